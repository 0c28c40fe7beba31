//! A send policy that holds bytes back until the socket has room.

use std::collections::HashSet;

use evring::{ConnId, SendPolicy, SendResult, SendState, SendStep};

/// Waits for room after each send, and sends small pieces of files.
#[derive(Default)]
pub(super) struct HoldBack {
    /// Connections that sent since they last had room.
    waiting: HashSet<ConnId>,
}

impl SendPolicy for HoldBack {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        match self.waiting.contains(&state.id) {
            true => SendStep::WaitForRoom,
            false => SendStep::Send { max_file_bytes: 1_000 },
        }
    }

    fn completed(&mut self, id: ConnId, result: SendResult) {
        match result {
            SendResult::HasRoom => assert!(self.waiting.remove(&id), "the policy did not wait"),
            _ => assert!(self.waiting.insert(id), "the driver sent without room"),
        }
    }

    fn closed(&mut self, id: ConnId) {
        self.waiting.remove(&id);
    }
}
