//! What clients of an echo say, and what they hear: the same.

use shared_ring::sim::{Fault, Net, PeerConn};

use super::replies::Replies;
use super::talker::Dialogue;

/// A client that wants to hear what it has said.
#[derive(Default)]
pub(super) struct Echoed {
    expected: Replies,
    said: u8,
    by_proxy: bool,
}

impl Echoed {
    /// What is said goes through a proxy.
    pub(super) fn by_proxy() -> Self {
        Echoed { by_proxy: true, ..Echoed::default() }
    }
}

/// What may cost a server the connection to the one behind it.
pub(super) const BEHIND: &[Fault] =
    &[Fault::Reset, Fault::Unreachable, Fault::TableFull, Fault::Stall];

impl Dialogue for Echoed {
    fn begin(&mut self) {
        self.expected.clear();
    }

    fn ask(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) -> bool {
        let n = 1 + [1, 30, 900, 6_000][net.below(4)];
        let before = out.len();
        for _ in 0..n {
            self.said = self.said.wrapping_add(1);
            out.push(self.said);
        }
        self.expected.add(&out[before..]);
        true
    }

    fn hear(
        &mut self,
        _net: &mut Net<'_>,
        _line: &PeerConn,
        bytes: &[u8],
    ) -> Result<usize, String> {
        self.expected.compare(bytes)
    }

    fn depends_on(&self) -> &'static [Fault] {
        if self.by_proxy { BEHIND } else { &[] }
    }

    fn owed(&self) -> Option<String> {
        self.expected.owed()
    }
}
