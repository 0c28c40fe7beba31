//! Real-time signals, as phhttpd used them (SEND 2.4.2): what happens to a descriptor is queued as a
//! signal, which the application takes when it likes: one at a time when it has nothing else to do, and
//! all there are when it has. When the queue overflows, poll tells how things stand, and signals go on
//! from there.
//!
//! A signal carries the number of a descriptor, which may be another's when it is taken (SEND 2.4.3).
//! So a number that is used again gets another mark, another signal, and a signal with an old mark
//! is stale. When all marks of a number are used up, the queue is emptied; then none is old. (A file
//! that was duplicated, and lives on under another number, would go on to signal under this one.)

use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::signals::{Signal, SignalQueue, SignalSource};
use super::{PollNow, Poller, Readiness};
use crate::interest::HintQueue;
use crate::{Fd, Linux, Table};

/// Descriptors that signal.
pub struct RtSig<S: SignalSource = SignalQueue, A: PollNow = Linux> {
    signals: S,
    /// Knows what state descriptors are in.
    state: A,
    watched: Table<Watched>,
    /// Descriptors of which something is to be reported.
    reported: HintQueue,
    /// How often the queue was seen empty.
    emptied: u64,
    overflowed: bool,
    asked: Vec<libc::pollfd>,
    overflows: u64,
    stale: u64,
    system_calls: u64,
}

/// What is known of a descriptor's number.
#[derive(Default)]
struct Watched {
    want: Readiness,
    /// Its signals have this mark.
    mark: u8,
    signals: bool,
    /// What is to be reported.
    ready: Readiness,
    /// What `emptied` was when the last descriptor of this number was closed; 0 for none.
    closed: u64,
}

impl RtSig {
    /// Makes an empty set, and blocks the signals in the calling thread, as long as the set lives.
    ///
    /// # Errors
    /// When the thread has one already.
    pub fn new() -> io::Result<Self> {
        Ok(RtSig::over(SignalQueue::new()?, Linux::default()))
    }

    /// Tries whether a descriptor signals here.
    ///
    /// # Errors
    /// What is in the way.
    pub fn probe() -> io::Result<()> {
        let mut queue = SignalQueue::new()?;
        let (reads, writes) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        queue.watch(Fd::from_raw(reads.as_raw_fd()), 0)?;
        rustix::io::write(&writes, b"x")?;
        match queue.take(Some(Duration::ZERO))? {
            Some(_) => Ok(()),
            None => Err(io::Error::new(io::ErrorKind::Unsupported, "no signal comes")),
        }
    }
}

impl<S: SignalSource, A: PollNow> RtSig<S, A> {
    /// Makes an empty set over a queue of signals, and what knows of states.
    pub(crate) fn over(signals: S, state: A) -> Self {
        RtSig {
            signals,
            state,
            watched: Table::default(),
            reported: HintQueue::new(usize::MAX),
            emptied: 1,
            overflowed: false,
            asked: Vec::new(),
            overflows: 0,
            stale: 0,
            system_calls: 0,
        }
    }

    /// How many signals were about a descriptor that was closed.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Has a descriptor signal, with a mark that no signal in the queue has for this number.
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

    /// Takes signals until there are none. (It ends: to queue one takes longer than to take one.)
    fn drain_signals(&mut self) -> io::Result<()> {
        while let Some(signal) = self.signals.take(Some(Duration::ZERO))? {
            self.handle_signal(signal);
        }
        self.emptied += 1;
        Ok(())
    }

    /// Uses what a signal says.
    fn handle_signal(&mut self, signal: Signal) {
        match signal {
            Signal::Overflow => self.overflowed = true,
            Signal::Ready(fd, mark, ready) => {
                let watched = self.watched.get(fd.index());
                let known = watched.is_some_and(|w| w.signals && w.mark == mark);
                if !known {
                    self.stale += 1;
                    return;
                }
                // That more can be read and that this is the end are the same signal.
                let ends = ready.contains(Readiness::READ);
                self.note(fd, if ends { ready | Readiness::HANGUP } else { ready });
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

    /// Leaves the signals that there still are, and asks for the state of all.
    fn recover_from_overflow(&mut self) -> io::Result<()> {
        self.overflows += 1;
        while self.signals.take(Some(Duration::ZERO))?.is_some() {}
        self.emptied += 1;
        self.overflowed = false;
        self.asked.clear();
        for (number, watched) in self.watched.iter().enumerate() {
            let fd = Fd::from_raw(number as i32);
            self.asked.extend((!watched.want.is_empty()).then(|| entry(fd, watched.want)));
        }
        self.poll_asked()
    }

    /// Asks, and notes what is ready.
    fn poll_asked(&mut self) -> io::Result<()> {
        self.system_calls += 1;
        self.state.poll_now(&mut self.asked)?;
        for i in 0..self.asked.len() {
            let entry = self.asked[i];
            self.note(Fd::from_raw(entry.fd), Readiness::from_poll(entry.revents));
        }
        Ok(())
    }
}

fn entry(fd: Fd, want: Readiness) -> libc::pollfd {
    libc::pollfd { fd: fd.raw(), events: want.to_poll() | libc::POLLRDHUP, revents: 0 }
}

// SAFETY: `forget` notes that nothing is wanted of the number, and that it does not signal; without that no
// state is asked for or reported, and nothing is undone at the end.
unsafe impl<S: SignalSource, A: PollNow> Poller for RtSig<S, A> {
    const EDGE: bool = true;
    const BY_SIGNALS: bool = true;

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
        // No signal tells of what was so before.
        self.asked.clear();
        self.asked.push(entry(fd, want));
        self.poll_asked()
    }

    fn forget(&mut self, fd: Fd) {
        self.signals.forget(fd);
        let watched = self.watched.at(fd.index());
        *watched = Watched { mark: watched.mark, closed: self.emptied, ..Watched::default() };
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<(Fd, Readiness)>,
    ) -> io::Result<()> {
        // One at a time; but where others are being served that may never rest, all there are: the system
        // hands out those with a lower mark first, and the others have to have a turn, too.
        let is_busy = timeout == Some(Duration::ZERO);
        let room = if is_busy { S::MAX_BATCH } else { 1 };
        if is_busy || self.reported.len() == 0 {
            for _ in 0..room {
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
    /// A signal that is no longer blocked would end the process.
    fn drop(&mut self) {
        for (number, _) in self.watched.iter().enumerate().filter(|(_, w)| w.signals) {
            self.signals.ignore(Fd::from_raw(number as i32));
        }
    }
}
