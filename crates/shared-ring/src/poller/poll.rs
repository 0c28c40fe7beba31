//! poll(2): each wait passes the whole array to the kernel and back.

use std::io;
use std::time::Duration;

use super::interface::{Poller, Readiness, ready, timespec};
use crate::Fd;
use crate::table::Table;

/// A dense array of descriptors, and the index of each descriptor in it.
#[derive(Default)]
pub struct Poll {
    array: Vec<libc::pollfd>,
    /// For each descriptor, its index in the array plus one.
    places: Table<usize>,
    system_calls: u64,
}

impl std::fmt::Debug for Poll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poll").field("watched", &self.array.len()).finish_non_exhaustive()
    }
}

// SAFETY: `forget` removes the number from the array; only numbers in it are polled and reported.
unsafe impl Poller for Poll {
    fn is_edge_triggered(&self) -> bool {
        false
    }
    fn scans_all_fds(&self) -> bool {
        true
    }

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        if want.is_empty() {
            self.forget(fd);
            return Ok(());
        }
        let events = want.to_poll();
        let place = self.places.at(fd.index());
        if let Some(at) = place.checked_sub(1) {
            self.array[at].events = events;
        } else {
            self.array.push(libc::pollfd { fd: fd.raw(), events, revents: 0 });
            *place = self.array.len();
        }
        Ok(())
    }

    fn forget(&mut self, fd: Fd) {
        let Some(at) = std::mem::take(self.places.at(fd.index())).checked_sub(1) else { return };
        self.array.swap_remove(at);
        if let Some(moved) = self.array.get(at) {
            *self.places.at(moved.fd as usize) = at + 1;
        }
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<(Fd, Readiness)>,
    ) -> io::Result<()> {
        let timeout = timeout.map(timespec);
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        self.system_calls += 1;
        // SAFETY: the array has the given length, `timeout` is null or points to a live value, and no
        // signal mask is passed.
        let n = unsafe {
            libc::ppoll(self.array.as_mut_ptr(), self.array.len() as _, timeout, std::ptr::null())
        };
        let mut remaining = ready(n.into())?;
        for entry in &self.array {
            if remaining == 0 {
                break;
            }
            if entry.revents == 0 {
                continue;
            }
            remaining -= 1;
            out.push((Fd::from_raw(entry.fd), Readiness::from_poll(entry.revents)));
        }
        Ok(())
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}
