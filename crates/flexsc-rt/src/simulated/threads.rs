//! Syscall threads of the simulated machine: any of them may take any submitted entry, at any step.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Instant;
use super::machine::machine;
use crate::cores::Specialization;
use crate::shared::Shared;

/// What a thread does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Thread {
    Idle,
    /// It makes the call of an entry.
    Calling(u32),
    /// The result of an entry is there, and its completion is not.
    Done(u32),
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
pub(crate) struct Threads(Arc<Shared>);

impl Threads {
    pub(crate) fn new(
        shared: Arc<Shared>,
        threads: u16,
        _active: usize,
        _period: Duration,
        _specialization: Specialization,
    ) -> Self {
        machine(|machine| {
            machine.threads = vec![Thread::Idle; threads.into()];
            machine.shared = Some(Arc::clone(&shared));
        });
        Threads(shared)
    }

    pub(crate) fn submit(
        &self,
        pages: &mut Vec<u32>,
        masks: &mut [u64],
        _owner_works: bool,
    ) -> bool {
        for page in pages.drain(..) {
            let mask = std::mem::take(&mut masks[page as usize]);
            self.0.submitted[page as usize].submit(mask);
        }
        true
    }

    pub(crate) fn are_stranded(&self) -> bool {
        false
    }

    pub(crate) fn take_stranded_pages(&self) -> bool {
        false
    }

    /// The thread sees the status of the entry.
    pub(crate) fn interrupt(&self, _entry: u32) {}

    pub(crate) fn counters(&self) -> ThreadCounters {
        ThreadCounters::default()
    }

    pub(crate) fn stop(&self, _deadline: Instant) -> bool {
        machine(|machine| {
            machine.shared = None;
            machine.threads.iter().all(|thread| matches!(thread, Thread::Idle))
        })
    }
}
