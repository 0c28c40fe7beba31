//! The notifier of the simulated machine, which has no thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::Waker;

use super::call_ring::is_readable;
use super::epoll_set::Armed;
use super::machine::{Machine, machine};

/// The machine holds the waker.
pub(crate) struct Notifier(RawFd);

impl Notifier {
    /// Fails in one of four attempts, as if no thread could be started.
    pub(crate) fn start(pages: impl AsFd) -> io::Result<Self> {
        match machine(|machine| machine.random(4)) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(Notifier(pages.as_fd().as_raw_fd())),
        }
    }

    pub(crate) fn watch(&self, waker: Waker) -> Option<Waker> {
        let former = machine(|machine| machine.notifier.replace((self.0, waker)));
        former.map(|(_, waker)| waker)
    }
}

impl Machine {
    /// Returns the task to wake, if the epoll set of the pages that the notifier waits for has a report.
    pub(super) fn take_notified(&mut self) -> Option<Waker> {
        let (bell, _) = self.notifier.as_ref()?;
        let bell = *bell;
        let armed: Vec<_> = self.armed.iter().map(|(fd, armed)| (*fd, *armed)).collect();
        let mut is_reported = |(fd, armed): &(i32, Armed)| !armed.report(self, *fd).is_empty();
        let has_report =
            armed.iter().any(&mut is_reported) || is_readable(bell) || self.ring.has_completions();
        if has_report { self.notifier.take().map(|(_, waker)| waker) } else { None }
    }
}
