//! The client of the cache.

use evring_sim::{Net, PeerConn};
use kv::model::Model;

use super::replies::Replies;
use super::talker::ProtocolModel;

/// A model of the cache. Each client has its own keys, so the model predicts their values.
pub(super) struct KvModel {
    me: usize,
    model: Model,
    expected: Replies,
    /// The last requests have no reply, so the model cannot tell whether the server executed them.
    unanswered: bool,
    /// Incremented when a connection ends with requests in transit. They may be executed later, so
    /// the client uses new keys.
    epoch: usize,
}

/// Maximum length of a value in bytes.
const MAX_VALUE: usize = 3_000;

impl KvModel {
    pub(super) fn new(me: usize) -> Self {
        let expected = Replies::default();
        KvModel { me, model: Self::model(me, 0), expected, unanswered: false, epoch: 0 }
    }

    fn model(me: usize, epoch: usize) -> Model {
        Model::new(format!("client{me}-{epoch}-"), MAX_VALUE, false)
    }
}

impl ProtocolModel for KvModel {
    fn reset(&mut self) {
        if !self.expected.is_empty() || self.unanswered {
            self.epoch += 1;
            self.model = Self::model(self.me, self.epoch);
            self.expected.clear();
            self.unanswered = false;
        }
    }

    fn next_request(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) -> bool {
        let mut reply = Vec::new();
        self.model.step(&mut |n| net.below(n), out, &mut reply);
        self.expected.add(&reply);
        self.unanswered = reply.is_empty();
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

    fn outstanding(&self) -> Option<String> {
        self.expected.outstanding()
    }
}
