//! A send policy that holds bytes back until the socket has room.

use std::collections::HashSet;

use evring::ConnId;
use evring::send_policy::{SendPolicy, SendResult, SendState, SendStep};

/// Waits for room after each send, and sends small pieces of files. It sends a piece that is not in the page cache when
/// it is asked for the second time.
#[derive(Default)]
pub(super) struct HoldBack {
    /// Connections that sent since they last had room.
    waiting: HashSet<ConnId>,
    /// Connections whose next piece is not in the page cache.
    cold: HashSet<ConnId>,
}

impl SendPolicy for HoldBack {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        let max_file_bytes = 1_000;
        match (self.waiting.contains(&state.id), self.cold.contains(&state.id)) {
            (true, _) => SendStep::WaitForRoom,
            (false, false) => SendStep::SendCached { max_file_bytes },
            (false, true) => SendStep::Send { max_file_bytes },
        }
    }

    fn completed(&mut self, id: ConnId, result: SendResult) {
        match result {
            SendResult::HasRoom => assert!(self.waiting.remove(&id), "the policy did not wait"),
            SendResult::Cold => assert!(self.cold.insert(id), "a cold piece was to be read"),
            _ => {
                self.cold.remove(&id);
                assert!(self.waiting.insert(id), "the driver sent without room");
            }
        }
    }

    fn closed(&mut self, id: ConnId) {
        self.waiting.remove(&id);
        self.cold.remove(&id);
    }
}
