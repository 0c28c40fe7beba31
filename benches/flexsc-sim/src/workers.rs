//! The syscall threads of the simulated machine: each takes any submitted entry at any time.

use std::sync::Arc;

use evring_sim::{CallBy, SimCalls};
use shared_ring::author::CallJob;

use crate::page::ENTRIES;
use crate::shared::Shared;

/// Threads at a time.
const MAX_THREADS: usize = 3;

/// In a name: a syscall thread makes the call.
pub(crate) const BY_THREAD: u64 = 1 << 63;

/// The pages whose submitted entries the threads execute.
#[derive(Default)]
pub(crate) struct Workers {
    pub(crate) shared: Option<Arc<Shared>>,
    /// Pages that may have submitted entries.
    pub(crate) pages: Vec<u32>,
}

impl Workers {
    /// Lets threads take entries, or not yet. Returns whether they may take more.
    pub(crate) fn claim(&mut self, calls: &mut SimCalls) -> bool {
        let Some(shared) = &self.shared else { return false };
        while !self.pages.is_empty() && calls.in_flight(CallBy::Thread) < MAX_THREADS {
            if calls.below(4) == 0 {
                return true;
            }
            let at = calls.below(self.pages.len());
            let page = self.pages[at] as usize;
            let Some(place) = shared.submitted[page].claim() else {
                self.pages.swap_remove(at);
                continue;
            };
            let index = (page * ENTRIES + place) as u32;
            shared.entry(index).begin(0);
            // SAFETY: this thread has claimed the entry; its memory is valid until the call has ended.
            unsafe {
                let (number, args) = shared.entry(index).call();
                let job = CallJob { number, args };
                calls.begin(BY_THREAD | u64::from(index), job, CallBy::Thread);
            }
        }
        false
    }

    /// Ends the call of an entry.
    pub(crate) fn end(&mut self, index: u32, result: isize) {
        let Some(shared) = &self.shared else { return };
        // SAFETY: a thread has claimed the entry.
        unsafe { shared.entry(index).finish_on_thread(result) };
        shared.complete(index);
    }
}
