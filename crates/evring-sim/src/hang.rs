//! File operations on a disk that is slow or hangs.

use std::time::Duration;

use shared_ring::Fd;
use shared_ring::nonblocking::FileRange;

use crate::fault::Fault;
use crate::state::{Event, SimState};

/// Maximum time of a file operation on a [slow disk](Fault::SlowDisk), in microseconds.
const MAX_SLOW_MICROS: usize = 40_000_000;

impl SimState {
    /// Starts a file operation that uses a descriptor and usually takes less than `max_micros`.
    /// Returns the time of `completion`, or `None` if it never happens.
    pub(crate) fn start_file_op(
        &mut self,
        fd: Fd,
        max_micros: usize,
        completion: Event,
    ) -> Option<Duration> {
        if self.rng.fault(Fault::DiskHangs) {
            self.note(|| format!("a file operation on {fd:?} hangs"));
            self.blocked.push((completion, fd));
            // Clients set a timer from now on.
            (0..self.num_peers()).for_each(|peer| self.schedule_peer(peer));
            return None;
        }
        let slow = self.rng.fault(Fault::SlowDisk);
        if slow {
            self.blocked.push((completion, fd));
        }
        let micros = self.rng.below(if slow { MAX_SLOW_MICROS } else { max_micros });
        let time = self.disk_time.unwrap_or(Duration::from_micros(micros as u64));
        self.note(|| format!("a file operation on {fd:?} will take {time:?}"));
        self.after(time, completion);
        Some(self.now + time)
    }

    /// Returns whether pages of a part of an [evicted](crate::Machine::evict) file are missing in the page cache.
    pub(crate) fn misses(&mut self, part: FileRange) -> bool {
        let node = self.file(part.file, "look");
        node.is_ok_and(|node| self.page_cache.is_cold(node, part) == Some(true))
    }

    /// Notes that a file operation has ended.
    pub(crate) fn end_file_op(&mut self, completion: Event) {
        self.blocked.retain(|(other, _)| *other != completion);
    }

    /// Returns whether a file operation is slow or hangs.
    pub(crate) fn is_blocked(&self, completion: Event) -> bool {
        self.blocked.iter().any(|(other, _)| *other == completion)
    }

    /// Returns whether a file operation that is slow or hangs uses a descriptor.
    pub(crate) fn is_used_by_blocked(&self, fd: Fd) -> bool {
        self.blocked.iter().any(|(_, used)| *used == fd)
    }
}
