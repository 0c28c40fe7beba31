//! File work that takes very long, or never ends.

use std::time::Duration;

use super::fault::Fault;
use super::state::{Event, SimState};
use crate::Fd;

/// File work on a [slow disk](Fault::SlowDisk) takes less than so many microseconds.
const SLOW: usize = 40_000_000;

impl SimState {
    /// Begins file work that uses a descriptor and usually takes less than `usual` microseconds. Returns when
    /// `end` will happen; none if it never does.
    pub(in crate::sim) fn begin_file_work(
        &mut self,
        fd: Fd,
        usual: usize,
        end: Event,
    ) -> Option<Duration> {
        if self.rng.fault(Fault::DiskHangs) {
            self.note(|| format!("file work on {fd:?} hangs"));
            self.stuck.push((end, fd));
            // Whoever waits for it may lose patience.
            (0..self.peers()).for_each(|peer| self.schedule_peer(peer));
            return None;
        }
        let slow = self.rng.fault(Fault::SlowDisk);
        if slow {
            self.stuck.push((end, fd));
        }
        let time = self.rng.below(if slow { SLOW } else { usual });
        let time = Duration::from_micros(time as u64);
        self.note(|| format!("file work on {fd:?} will take {time:?}"));
        self.after(time, end);
        Some(self.now + time)
    }

    /// Ends file work.
    pub(in crate::sim) fn end_file_work(&mut self, end: Event) {
        self.stuck.retain(|(other, _)| *other != end);
    }

    /// Whether the end of file work is late, or never comes.
    pub(in crate::sim) fn is_stuck(&self, end: Event) -> bool {
        self.stuck.iter().any(|(other, _)| *other == end)
    }

    /// Whether such work uses a descriptor.
    pub(in crate::sim) fn is_used_by_stuck(&self, fd: Fd) -> bool {
        self.stuck.iter().any(|(_, used)| *used == fd)
    }
}
