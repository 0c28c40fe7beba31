//! Banga, Mogul and Druschel's interface (see [`interest`](crate::interest)) as a poller. Interest is
//! declared once, events are reported in order, and each event is checked against the current state.

use std::io;
use std::time::Duration;

use super::interface::{PollNow, Poller, Readiness};
use crate::interest::{EpollEdges, HintSource, InterestSets};
use crate::{Fd, Linux};

/// The interests of one thread.
pub struct InterestPoller<H = EpollEdges, A = Linux>(InterestSets<H, A>);

impl<H, A> std::fmt::Debug for InterestPoller<H, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InterestPoller").finish_non_exhaustive()
    }
}

impl InterestPoller {
    /// Creates empty sets.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub fn new() -> io::Result<Self> {
        Ok(InterestPoller::over(EpollEdges::new()?, Linux::default(), usize::MAX))
    }
}

impl<H: HintSource, A: PollNow> InterestPoller<H, A> {
    /// Maximum number of events per wait.
    const EVENTS: usize = 512;

    /// Creates empty sets over a source of hints and of current states, with at most `hints` hints.
    pub fn over(source: H, state: A, hints: usize) -> Self {
        InterestPoller(InterestSets::new(source, state, hints))
    }
}

// SAFETY: `forget` revokes the interest; only numbers with interest are polled and reported.
unsafe impl<H: HintSource, A: PollNow> Poller for InterestPoller<H, A> {
    /// Events are reported once, as in the paper.
    fn is_edge_triggered(&self) -> bool {
        true
    }

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        let (had, mut wanted) = (self.0.interest(fd), want.to_poll());
        if want.contains(Readiness::READ) {
            wanted |= libc::POLLRDHUP | libc::POLLPRI;
        }
        if wanted & !had == 0 {
            self.0.replace(fd, wanted);
            return Ok(());
        }
        self.0.declare(fd, wanted, false)
    }

    fn forget(&mut self, fd: Fd) {
        self.0.forget(fd);
    }

    fn forget_shared(&mut self, fd: Fd) {
        self.0.forget_shared(fd);
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<(Fd, Readiness)>,
    ) -> io::Result<()> {
        let found = self.0.next_events(Self::EVENTS, timeout)?;
        out.extend(found.iter().map(|e| (Fd::from_raw(e.fd), Readiness::from_poll(e.revents))));
        Ok(())
    }

    fn system_calls(&self) -> u64 {
        self.0.system_calls()
    }

    fn overflows(&self) -> u64 {
        self.0.overflows()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_scan_counts_its_calls() {
        let (one, other) = UnixDatagram::pair().unwrap();
        let mut poller = InterestPoller::over(EpollEdges::new().unwrap(), Linux::default(), 1);
        for socket in [&one, &other] {
            poller.set(Fd::from_raw(socket.as_raw_fd()), Readiness::WRITE).unwrap();
        }
        let before = poller.system_calls();
        let mut ready = Vec::new();
        poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
        assert_eq!((ready.len(), poller.overflows()), (2, 1));
        // For hints, for the state of all, and of each whether it is what was declared.
        assert_eq!(poller.system_calls() - before, 4);
    }
}
