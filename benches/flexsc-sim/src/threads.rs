//! The owner's side of the syscall threads (`workers.rs`). How many there are is decided by the code of `flexsc-rt`, which
//! its own simulation includes.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::machine::{self, machine};
use crate::shared::Shared;
use crate::specialization::Specialization;
use crate::workers::{BY_THREAD, Workers};

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
