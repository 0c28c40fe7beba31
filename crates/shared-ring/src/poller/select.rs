//! select(2), well implemented: the bit maps are copied to shadow maps, which the kernel
//! overwrites, and results are scanned a word at a time (Banga, Mogul and Druschel 1999, section 2).

use std::io;
use std::time::Duration;

use super::interface::{Poller, Readiness, ready, timespec};
use crate::Fd;

const BITS: usize = u64::BITS as usize;

/// Bit maps of any length. Only the C library limits select to 1,024 descriptors.
#[derive(Default)]
pub struct Select {
    read: Map,
    write: Map,
    system_calls: u64,
}

impl std::fmt::Debug for Select {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Select").field("system_calls", &self.system_calls).finish_non_exhaustive()
    }
}

/// The interest bits, and a copy that the kernel overwrites with readiness.
#[derive(Default)]
struct Map {
    wanted: Vec<u64>,
    shadow: Vec<u64>,
}

impl Map {
    fn set(&mut self, at: usize, on: bool) {
        if self.wanted.len() <= at / BITS {
            self.wanted.resize(at / BITS + 1, 0);
        }
        let bit = 1 << (at % BITS);
        if on {
            self.wanted[at / BITS] |= bit;
        } else {
            self.wanted[at / BITS] &= !bit;
        }
    }

    /// Returns the number of words up to the last one with a bit set.
    fn used(&self) -> usize {
        self.wanted.iter().rposition(|w| *w != 0).map_or(0, |at| at + 1)
    }

    /// Copies the first `words` and returns the address of the copy.
    fn copy(&mut self, words: usize) -> *mut u64 {
        self.wanted.resize(self.wanted.len().max(words), 0);
        self.shadow.clear();
        self.shadow.extend_from_slice(&self.wanted[..words]);
        self.shadow.as_mut_ptr()
    }
}

// SAFETY: `forget` removes the number from the bit maps; only numbers in them are polled and reported.
unsafe impl Poller for Select {
    fn is_edge_triggered(&self) -> bool {
        false
    }
    fn scans_all_fds(&self) -> bool {
        true
    }

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        self.read.set(fd.index(), want.contains(Readiness::READ));
        self.write.set(fd.index(), want.contains(Readiness::WRITE));
        Ok(())
    }

    fn forget(&mut self, fd: Fd) {
        self.read.set(fd.index(), false);
        self.write.set(fd.index(), false);
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<(Fd, Readiness)>,
    ) -> io::Result<()> {
        let words = self.read.used().max(self.write.used());
        let (read, write) = (self.read.copy(words), self.write.copy(words));
        let mut timeout = timeout.map(timespec);
        let timeout = timeout.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        let none = std::ptr::null_mut::<u64>();
        self.system_calls += 1;
        // SAFETY: both maps hold `words * 64` bits, the number passed to the kernel; `timeout` is null
        // or points to a live value; no third map and no mask are passed.
        let n = unsafe {
            libc::syscall(libc::SYS_pselect6, words * BITS, read, write, none, timeout, none)
        };
        if ready(n)? == 0 {
            return Ok(());
        }
        for (word, (read, write)) in self.read.shadow.iter().zip(&self.write.shadow).enumerate() {
            let mut either = read | write;
            while either != 0 {
                let bit = either.trailing_zeros() as usize;
                either &= either - 1;
                let mut ready = Readiness::empty();
                ready.set(Readiness::READ, read >> bit & 1 == 1);
                ready.set(Readiness::WRITE, write >> bit & 1 == 1);
                out.push((Fd::from_raw((word * BITS + bit) as i32), ready));
            }
        }
        Ok(())
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}
