//! What clients of the cache say, and what they hear.

use kv::model::Model;
use shared_ring::sim::{Net, PeerConn};

use super::replies::Replies;
use super::talker::Dialogue;

/// A client of the cache that has keys of its own, and so knows what is stored.
pub(super) struct Caching {
    me: usize,
    model: Model,
    expected: Replies,
    /// The last requests get no reply, so it is not known whether they were carried out.
    unanswered: bool,
    /// Goes up when a connection ended with requests on their way: they may be carried out at any
    /// time, so it is not known what is stored.
    era: usize,
}

/// The longest value in bytes.
const MAX_VALUE: usize = 3_000;

impl Caching {
    pub(super) fn new(me: usize) -> Self {
        let expected = Replies::default();
        Caching { me, model: Self::model(me, 0), expected, unanswered: false, era: 0 }
    }

    fn model(me: usize, era: usize) -> Model {
        Model::new(format!("client{me}-{era}-"), MAX_VALUE, false)
    }
}

impl Dialogue for Caching {
    fn begin(&mut self) {
        if !self.expected.is_empty() || self.unanswered {
            self.era += 1;
            self.model = Self::model(self.me, self.era);
            self.expected.clear();
            self.unanswered = false;
        }
    }

    fn ask(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) -> bool {
        let mut reply = Vec::new();
        self.model.step(&mut |n| net.below(n), out, &mut reply);
        self.expected.add(&reply);
        self.unanswered = reply.is_empty();
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

    fn owed(&self) -> Option<String> {
        self.expected.owed()
    }
}
