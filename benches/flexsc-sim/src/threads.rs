//! Syscall threads of the simulated machine: each takes any submitted entry at any time. How many there are is decided
//! by the code of `flexsc-rt`, which its own simulation includes.

use std::sync::Arc;
use std::time::Duration;

use evring_sim::{CallBy, SimCalls};
use shared_ring::author::CallJob;

use crate::clock::Instant;
use crate::machine::{self, BY_THREAD, machine};
use crate::page::ENTRIES;
use crate::shared::Shared;
use crate::specialization::Specialization;

/// Threads at a time.
const MAX_THREADS: usize = 3;

/// What the threads work on.
#[derive(Default)]
pub(crate) struct Workers {
    shared: Option<Arc<Shared>>,
    /// Pages that may have submitted entries.
    pages: Vec<u32>,
}

impl Workers {
    /// Lets threads take entries, or not yet.
    pub(crate) fn claim(&mut self, calls: &mut SimCalls) {
        let Some(shared) = &self.shared else { return };
        while !self.pages.is_empty()
            && calls.in_flight(CallBy::Thread) < MAX_THREADS
            && calls.below(4) > 0
        {
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
    }

    /// Ends the call of an entry.
    pub(crate) fn end(&mut self, index: u32, result: isize) {
        let Some(shared) = &self.shared else { return };
        // SAFETY: a thread has claimed the entry.
        unsafe { shared.entry(index).finish_on_thread(result) };
        shared.complete(index);
    }
}

/// Counters, as those of the real threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadCounters {
    pub(crate) started: u64,
    pub(crate) blocked: u64,
    pub(crate) died: u64,
    pub(crate) max_active: usize,
    pub(crate) cores_given: u64,
    pub(crate) cores_taken_back: u64,
}

#[derive(Debug)]
pub(crate) struct Threads;

impl Threads {
    pub(crate) fn new(
        shared: Arc<Shared>,
        _threads: u16,
        _active: usize,
        _period: Duration,
        _specialization: Specialization,
    ) -> Self {
        machine(|machine| machine.workers = Workers { shared: Some(shared), pages: Vec::new() });
        Threads
    }

    pub(crate) fn submit(
        &self,
        pages: &mut Vec<u32>,
        masks: &mut [u64],
        _owner_works: bool,
    ) -> bool {
        machine(|machine| {
            let workers = &mut machine.workers;
            let Some(shared) = &workers.shared else { return };
            for page in pages.drain(..) {
                let mask = std::mem::take(&mut masks[page as usize]);
                shared.submitted[page as usize].submit(mask);
                workers.pages.push(page);
            }
        });
        true
    }

    pub(crate) fn are_stranded(&self) -> bool {
        false
    }

    pub(crate) fn take_stranded_pages(&self) -> bool {
        false
    }

    pub(crate) fn interrupt(&self, entry: u32) {
        machine(|machine| machine.calls.cancel(BY_THREAD | u64::from(entry)));
    }

    pub(crate) fn counters(&self) -> ThreadCounters {
        ThreadCounters::default()
    }

    /// Ends ring and threads: nothing follows.
    pub(crate) fn stop(&self, _deadline: Instant) -> bool {
        machine::end();
        true
    }
}
