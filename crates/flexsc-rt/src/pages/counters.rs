//! Counters of pages.

use super::Pages;
use crate::object::FileSystem;

/// Counters of the calls on some pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Calls posted.
    pub posted: u64,
    /// Calls executed in place, repetitions included.
    pub in_place: u64,
    /// Calls submitted to syscall threads.
    pub on_threads: u64,
    /// Calls shared by the owner and syscall threads; each is also one of those in place or on threads.
    pub shared: u64,
    /// Calls submitted to the ring.
    pub on_ring: u64,
    /// Calls pinned to the ring, or given to it by the choice, that another executor made: the ring or
    /// the kernel has no operation for them, or there is no ring (see [`Pages::ring_error`]).
    pub ring_refused: u64,
    /// Times that a file was registered with the ring; one that is registered already is counted again.
    pub files_registered: u64,
    /// Times that one was not: the table is full, there is none, or the file is registered with other pages.
    pub files_not_registered: u64,
    /// Calls whose costs are learnt apart: by number, whether their file is registered, and by kind of object or file
    /// system. At most 254; all further ones learn together.
    pub learnt_apart: usize,
    /// File systems that this process tells apart, of those of the files that it was asked about: at most 15.
    pub file_systems: usize,
    /// Times that a call began to wait for a descriptor.
    pub readiness_waits: u64,
    /// Calls of epoll(7).
    pub epoll_calls: u64,
    /// Times that a call was refused, or a future had to wait, as entries or threads were busy.
    pub throttled: u64,
    /// Cancellations that ended a call before an executor began it.
    pub withdrawn: u64,
    /// Cancellations that interrupted an executor.
    pub interrupted: u64,
    /// Times that the owner slept.
    pub sleeps: u64,
    /// Entries into the ring: system calls of io_uring_enter(2).
    pub ring_entries: u64,
    /// Syscall threads started.
    pub threads_started: u64,
    /// Times that the heartbeat found a thread blocked.
    pub threads_blocked: u64,
    /// Syscall threads that ended in a call.
    pub threads_died: u64,
    /// Most syscall threads that were active at a time.
    pub max_active_threads: usize,
    /// Times that the syscall threads got cores of their own.
    pub cores_given: u64,
    /// Times that these were taken back.
    pub cores_taken_back: u64,
}

impl Pages {
    /// Returns the counters. In a child of fork(2), those of syscall threads are 0.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.learnt_apart = self.choices.rows();
        counters.file_systems = FileSystem::count();
        counters.epoll_calls = self.readiness.calls();
        counters.ring_entries = self.ring.entered();
        // In a child, the lock of the threads may be that of one that does not exist.
        if let Some(threads) = &self.threads
            && self.process.is_current()
        {
            let of_threads = threads.counters();
            counters.threads_started = of_threads.started;
            counters.threads_blocked = of_threads.blocked;
            counters.threads_died = of_threads.died;
            counters.max_active_threads = of_threads.max_active;
            counters.cores_given = of_threads.cores_given;
            counters.cores_taken_back = of_threads.cores_taken_back;
        }
        counters
    }
}
