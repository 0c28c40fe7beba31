//! The time of a posted null call on a file that is registered with the ring of the pages.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use flexsc_rt::{Call, Config, Descriptor, Pages};
use rustix::fs::{MemfdFlags, memfd_create};

use super::super::rounds::Round;
use super::super::system_call::failed;
use super::cell::{Cell, DIRECT, NULL, NULL_DEPTH, REPEATS, figure};
use crate::failure::Failure;
use crate::outcome::{Outcome, X};
use crate::statistics::{ratios, spread};

/// The name of the series, and the ratio of the direct call to it.
const SERIES: &str = "adaptive, registered file";
const RATIO: &str = "null_direct_over_posted_registered";

/// Pages with a registered file, and the times: by depth, one for each round.
pub(super) struct Registered {
    pages: Pages,
    file: Descriptor,
    is_registered: bool,
    depths: Vec<usize>,
    times: Vec<Vec<f64>>,
}

impl Registered {
    /// Creates the pages, whose choice of an executor learns by so many calls at each depth. Without io_uring nothing is
    /// measured.
    pub(super) fn new(depths: &[usize], learnt: usize) -> Result<Self, Failure> {
        let file = memfd_create("lab", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
        let file = Descriptor::new(file);
        let mut pages = Pages::register(&Config::default()).map_err(failed)?;
        let is_registered = pages.register_file(&file);
        let times = vec![Vec::new(); depths.len()];
        let mut this = Registered { pages, file, is_registered, depths: depths.to_vec(), times };
        for &depth in depths {
            for _ in 0..learnt.div_ceil(depth) {
                this.batch(depth)?;
            }
        }
        Ok(this)
    }

    fn batch(&mut self, depth: usize) -> Result<(), Failure> {
        let fd = self.file.as_fd().as_raw_fd() as usize;
        let args = [fd, 0, 0, libc::POSIX_FADV_NORMAL as usize, 0, 0];
        for _ in 0..depth {
            let call = Call::bounded(libc::SYS_fadvise64, args).about(&self.file);
            // SAFETY: it has no pointer, and the file is dropped after the pages.
            unsafe { self.pages.post(&call) }.map_err(|busy| Failure::new("flexsc", busy))?;
        }
        while self.pages.outstanding() > 0 {
            self.pages.wait(None).map_err(failed)?;
            while let Some(completion) = self.pages.next() {
                completion.result?;
            }
        }
        Ok(())
    }

    /// Measures all depths in a round.
    pub(super) fn measure(&mut self, round: &mut Round, calls: usize) -> Result<(), Failure> {
        if !self.is_registered {
            return Ok(());
        }
        for i in round.order(self.depths.len()) {
            let depth = self.depths[i];
            // One batch before warms the caches.
            self.batch(depth)?;
            let batches = calls.div_ceil(depth);
            let mut least = f64::MAX;
            for _ in 0..REPEATS {
                let begin = Instant::now();
                for _ in 0..batches {
                    self.batch(depth)?;
                }
                let ns = begin.elapsed().as_nanos() as f64;
                least = least.min(ns / (batches * depth) as f64);
            }
            self.times[i].push(least);
        }
        Ok(())
    }

    /// Adds the times, and the ratio to the direct call in the same rounds.
    pub(super) fn report(&self, cells: &[Cell], outcome: &mut Outcome) {
        for (&depth, times) in self.depths.iter().zip(&self.times) {
            let Some(y) = spread(times) else { continue };
            outcome.point(&figure("null"), "ns", SERIES, X::Number(depth as f64), y);
            let direct = cells.iter().find(|cell| (cell.work, cell.depth) == (NULL, depth));
            if let Some(cell) = direct.filter(|_| depth == NULL_DEPTH) {
                outcome.ratio(RATIO, "flexsc", ratios(&cell.times[DIRECT], times));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_a_registered_file_are_made() {
        let mut registered = Registered::new(&[1, 64], 128).unwrap();
        registered.batch(64).unwrap();
        let counters = registered.pages.counters();
        assert_eq!(counters.files_registered, u64::from(registered.is_registered));
        assert!(counters.posted >= 256 + 64);
    }
}
