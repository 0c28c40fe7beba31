//! The client of an echo server.

use evring_sim::{Fault, Net, PeerConn};

use super::replies::Replies;
use super::talker::ProtocolModel;

/// A model of an echo server: it expects the bytes that it sends.
#[derive(Default)]
pub(super) struct EchoModel {
    expected: Replies,
    last_byte: u8,
    via_proxy: bool,
}

impl EchoModel {
    /// Returns the model of an echo server behind a proxy.
    pub(super) fn via_proxy() -> Self {
        EchoModel { via_proxy: true, ..EchoModel::default() }
    }
}

/// Faults that may break the connection of a proxy to its origin.
pub(super) const ORIGIN_FAULTS: &[Fault] =
    &[Fault::Reset, Fault::Unreachable, Fault::TableFull, Fault::Stall];

impl ProtocolModel for EchoModel {
    fn reset(&mut self) {
        self.expected.clear();
    }

    fn next_request(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) -> bool {
        let n = 1 + [1, 30, 900, 6_000][net.below(4)];
        let before = out.len();
        for _ in 0..n {
            self.last_byte = self.last_byte.wrapping_add(1);
            out.push(self.last_byte);
        }
        self.expected.add(&out[before..]);
        true
    }

    fn check_replies(
        &mut self,
        _net: &mut Net<'_>,
        _conn: &PeerConn,
        bytes: &[u8],
    ) -> Result<usize, String> {
        self.expected.compare(bytes)
    }

    fn depends_on(&self) -> &'static [Fault] {
        if self.via_proxy { ORIGIN_FAULTS } else { &[] }
    }

    fn outstanding(&self) -> Option<String> {
        self.expected.outstanding()
    }
}
