//! Real-time signals, as phhttpd used them (SEND 2.4.2). Events of descriptors are queued as signals.
//! A wait that may block takes one signal, a wait that must not block takes all. After an overflow of
//! the queue, poll(2) reports the current state, and signals continue from there.
//!
//! A signal carries a descriptor's number, which may have been reused when it is taken (SEND 2.4.3).
//! So a reused number gets another mark, that is, another signal number, and a signal with an old mark
//! is stale. When all marks of a number are used, the queue is drained, so that no old signal remains.
//! (A file that was duplicated, and is open under another number, would still signal under this one.)

use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::interface::{PollNow, Poller, Readiness};
use super::signals::{Signal, SignalQueue, SignalSource};
use crate::interest::HintQueue;
use crate::table::Table;
use crate::{Fd, Linux};

/// Descriptors that signal.
pub struct RtSig<S: SignalSource = SignalQueue, A: PollNow = Linux> {
    signals: S,
    /// Reports the current state of descriptors.
    state: A,
    watched: Table<Watched>,
    /// Descriptors with readiness to report.
    reported: HintQueue,
    /// Number of times the queue was observed empty.
    emptied: u64,
    overflowed: bool,
    polled: Vec<libc::pollfd>,
    overflows: u64,
    stale: u64,
    system_calls: u64,
}

impl<S: SignalSource, A: PollNow> std::fmt::Debug for RtSig<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RtSig").field("overflows", &self.overflows).finish_non_exhaustive()
    }
}

/// State of a descriptor number.
#[derive(Default)]
struct Watched {
    want: Readiness,
    /// Mark of its signals.
    mark: u8,
    signals: bool,
    /// Readiness to report.
    ready: Readiness,
    /// Value of `emptied` when the last descriptor of this number was closed; 0 for none.
    closed: u64,
}

impl RtSig {
    /// Creates an empty set, and blocks the signals in the calling thread as long as the set lives: SIGIO, and
    /// SIGRTMIN+1 to SIGRTMIN+4. A program that the thread starts inherits them blocked, also by posix_spawn(3), as
    /// [`std::process::Command`] does. A thread with a set must not have a control block of `send-core`, which
    /// handles and unblocks SIGIO.
    ///
    /// # Errors
    /// If the thread already has one.
    pub fn new() -> io::Result<Self> {
        Ok(RtSig::over(SignalQueue::new()?, Linux::default()))
    }

    /// Checks that descriptors can signal on this machine.
    ///
    /// # Errors
    /// The reason why they cannot.
    pub fn probe() -> io::Result<()> {
        let mut queue = SignalQueue::new()?;
        let (reads, writes) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        queue.watch(Fd::from_raw(reads.as_raw_fd()), 0)?;
        rustix::io::write(&writes, b"x")?;
        let signal = queue.take(Some(Duration::ZERO));
        queue.forget(Fd::from_raw(reads.as_raw_fd()));
        match signal? {
            Some(_) => Ok(()),
            None => Err(io::Error::new(io::ErrorKind::Unsupported, "descriptors send no signals")),
        }
    }
}

impl<S: SignalSource, A: PollNow> RtSig<S, A> {
    /// Creates an empty set over a queue of signals and a source of current states.
    pub fn over(signals: S, state: A) -> Self {
        RtSig {
            signals,
            state,
            watched: Table::default(),
            reported: HintQueue::new(usize::MAX),
            emptied: 1,
            overflowed: false,
            polled: Vec::new(),
            overflows: 0,
            stale: 0,
            system_calls: 0,
        }
    }

    /// Returns the number of signals for descriptors that were closed.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Makes a descriptor signal, with a mark that no queued signal has for this number.
    fn watch(&mut self, fd: Fd) -> io::Result<()> {
        let watched = self.watched.at(fd.index());
        let mut mark = if watched.closed == self.emptied { watched.mark + 1 } else { 0 };
        if mark == S::MAX_MARKS {
            self.drain_signals()?;
            mark = 0;
        }
        self.signals.watch(fd, mark)?;
        let watched = self.watched.at(fd.index());
        (watched.mark, watched.signals) = (mark, true);
        Ok(())
    }

    /// Takes signals until the queue is empty. (It ends, as queueing a signal takes longer.)
    fn drain_signals(&mut self) -> io::Result<()> {
        while let Some(signal) = self.signals.take(Some(Duration::ZERO))? {
            self.handle_signal(signal);
        }
        self.emptied += 1;
        Ok(())
    }

    /// Records the event of a signal.
    fn handle_signal(&mut self, signal: Signal) {
        match signal {
            Signal::Overflow => self.overflowed = true,
            Signal::Ready(fd, mark, ready) => {
                let watched = self.watched.get(fd.index());
                let is_current = watched.is_some_and(|w| w.signals && w.mark == mark);
                if !is_current {
                    self.stale += 1;
                    return;
                }
                // More data and the end of the stream cause the same signal.
                let may_end = ready.contains(Readiness::READ);
                self.note(fd, if may_end { ready | Readiness::HANGUP } else { ready });
            }
        }
    }

    fn note(&mut self, fd: Fd, ready: Readiness) {
        let watched = self.watched.at(fd.index());
        let ready = ready & (watched.want | Readiness::HANGUP);
        if !watched.want.is_empty() && !ready.is_empty() {
            watched.ready |= ready;
            let _has_room = self.reported.post(fd);
        }
    }

    /// Discards the queued signals, and polls the state of all descriptors.
    fn recover_from_overflow(&mut self) -> io::Result<()> {
        self.overflows += 1;
        while self.signals.take(Some(Duration::ZERO))?.is_some() {}
        self.emptied += 1;
        self.overflowed = false;
        self.polled.clear();
        for (number, watched) in self.watched.iter().enumerate() {
            let fd = Fd::from_raw(number as i32);
            self.polled.extend((!watched.want.is_empty()).then(|| entry(fd, watched.want)));
        }
        self.poll_descriptors()
    }

    /// Polls the descriptors in `polled`, and records those that are ready.
    fn poll_descriptors(&mut self) -> io::Result<()> {
        self.system_calls += 1;
        self.state.poll_now(&mut self.polled)?;
        for i in 0..self.polled.len() {
            let entry = self.polled[i];
            self.note(Fd::from_raw(entry.fd), Readiness::from_poll(entry.revents));
        }
        Ok(())
    }

    /// Removes a descriptor, whose signals were ended.
    fn remove(&mut self, fd: Fd) {
        let watched = self.watched.at(fd.index());
        *watched = Watched { mark: watched.mark, closed: self.emptied, ..Watched::default() };
    }
}

fn entry(fd: Fd, want: Readiness) -> libc::pollfd {
    let events = want.to_poll() | libc::POLLRDHUP | libc::POLLPRI;
    libc::pollfd { fd: fd.raw(), events, revents: 0 }
}

// SAFETY: `forget` clears the number's interest and that it signals. Only numbers with interest are polled
// and reported, and on drop only those that signal are reset.
unsafe impl<S: SignalSource, A: PollNow> Poller for RtSig<S, A> {
    fn is_edge_triggered(&self) -> bool {
        true
    }
    fn needs_signals(&self) -> bool {
        true
    }

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        let watched = self.watched.at(fd.index());
        if !want.is_empty() && !watched.signals {
            self.watch(fd)?;
        }
        let watched = self.watched.at(fd.index());
        watched.want = want;
        watched.ready &= want | Readiness::HANGUP;
        if want.is_empty() {
            return Ok(());
        }
        // No signal reports readiness from before.
        self.polled.clear();
        self.polled.push(entry(fd, want));
        self.poll_descriptors()
    }

    fn forget(&mut self, fd: Fd) {
        if self.watched.at(fd.index()).signals {
            self.signals.forget(fd);
        }
        self.remove(fd);
    }

    fn forget_shared(&mut self, fd: Fd) {
        if self.watched.at(fd.index()).signals {
            self.signals.forget_shared(fd);
        }
        self.remove(fd);
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<(Fd, Readiness)>,
    ) -> io::Result<()> {
        // Take one signal if the wait may block. Else take all: the kernel delivers lower signal numbers
        // first, so on a busy server those with higher marks would starve.
        let is_busy = timeout == Some(Duration::ZERO);
        let max = if is_busy { S::MAX_BATCH } else { 1 };
        if is_busy || self.reported.len() == 0 {
            for _ in 0..max {
                let signal = if self.overflowed { None } else { self.signals.take(timeout)? };
                let Some(signal) = signal else {
                    self.emptied += u64::from(is_busy && !self.overflowed);
                    break;
                };
                self.handle_signal(signal);
            }
        }
        if self.overflowed {
            self.recover_from_overflow()?;
        }
        while let Some(fd) = self.reported.take() {
            let ready = mem::take(&mut self.watched.at(fd.index()).ready);
            if !ready.is_empty() {
                out.push((fd, ready));
            }
        }
        Ok(())
    }

    fn system_calls(&self) -> u64 {
        self.system_calls + self.signals.system_calls()
    }

    fn overflows(&self) -> u64 {
        self.overflows
    }
}

impl<S: SignalSource, A: PollNow> Drop for RtSig<S, A> {
    /// Stops all signals. Once unblocked, a signal would terminate the process.
    fn drop(&mut self) {
        for (number, _) in self.watched.iter().enumerate().filter(|(_, w)| w.signals) {
            self.signals.ignore(Fd::from_raw(number as i32));
        }
    }
}
