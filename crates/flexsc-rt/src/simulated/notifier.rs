//! The notifier of the simulated machine, which has no thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::task::Waker;
use std::time::Duration;

use super::armed::Armed;
use super::call_ring::is_readable;
use super::machine::{Machine, machine};
use crate::watch::Watch;

/// Time after which it is tried again, of the machine.
pub(crate) const RETRY: Duration = Duration::from_micros(10);

/// The machine holds what it wakes.
pub(crate) struct Notifier;

impl Notifier {
    /// Fails in one of four attempts, or always, as if no thread could be started.
    pub(crate) fn start(pages: impl AsFd) -> io::Result<Self> {
        if machine(|machine| machine.refuses_notifier || machine.random(4) == 0) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let bell = pages.as_fd().as_raw_fd();
        machine(|machine| machine.notifier = Some((bell, Watch::default())));
        Ok(Notifier)
    }

    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut Watch) -> R) -> R {
        machine(|machine| change(&mut machine.notifier.as_mut().expect("it was started").1))
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        let former = machine(|machine| machine.notifier.take());
        drop(former);
    }
}

impl Machine {
    /// Returns the tasks that are woken as no turn has come.
    pub(super) fn tick(&mut self) -> Vec<Waker> {
        self.notifier.as_mut().map_or_else(Vec::new, |(_, watch)| watch.tick())
    }

    /// Returns whether the notifier will wake a task sometime.
    pub(super) fn is_watched(&self) -> bool {
        self.notifier.as_ref().is_some_and(|(_, watch)| watch.is_parked() || watch.is_due())
    }

    /// Returns the task to wake, if the epoll set of the pages that the notifier waits for has a report.
    pub(super) fn take_notified(&mut self) -> Option<Waker> {
        let (bell, watch) = self.notifier.as_ref()?;
        let bell = *bell;
        if !watch.is_parked() {
            return None;
        }
        let armed: Vec<_> = self.armed.iter().map(|(fd, armed)| (*fd, *armed)).collect();
        let mut is_reported = |(fd, armed): &(i32, Armed)| {
            !armed.report(self.changes(*fd), self.ready(*fd), self.has_error(*fd)).is_empty()
        };
        let has_report =
            armed.iter().any(&mut is_reported) || is_readable(bell) || self.ring.has_completions();
        if has_report { self.notifier.as_mut()?.1.take_driver() } else { None }
    }
}
