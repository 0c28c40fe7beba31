//! What one thread is interested in, and what has happened of that.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::edges::{EpollEdges, HintSource};
use super::hints::HintQueue;
use super::process::ProcessWide;
use crate::poller::PollNow;
use crate::{Fd, Linux, Table};

/// A thread's INTERESTED sets and its HINTS queue. Interests are flags of poll(2).
pub(crate) struct InterestSets<H = EpollEdges, A = Linux> {
    source: H,
    /// Knows what state descriptors are in.
    state: A,
    /// By descriptor, 0 for no interest.
    interested: Table<i16>,
    /// What all threads of the process are interested in, and this thread's name there.
    process: Option<(Arc<ProcessWide>, u64)>,
    hints: HintQueue,
    /// What was hinted at last.
    edges: Vec<Fd>,
    /// How many descriptors, from `cursor` on and around, are to be looked at, since hints were
    /// discarded.
    unscanned: usize,
    cursor: usize,
    asked: Vec<libc::pollfd>,
    /// What was true of the descriptors asked last.
    found: Vec<libc::pollfd>,
    overflows: u64,
    system_calls: u64,
}

impl<H: HintSource, A: PollNow> InterestSets<H, A> {
    /// How many descriptors a scan asks at a time.
    const SCAN_BATCH: usize = 64;

    pub(crate) fn new(source: H, state: A, hints: usize) -> Self {
        InterestSets {
            source,
            state,
            interested: Table::default(),
            process: None,
            hints: HintQueue::new(hints),
            edges: Vec::new(),
            unscanned: 0,
            cursor: 0,
            asked: Vec::new(),
            found: Vec::new(),
            overflows: 0,
            system_calls: 0,
        }
    }

    /// Adds what all threads of the process are interested in.
    pub(super) fn join(&mut self, process: Arc<ProcessWide>, name: u64) {
        self.process = Some((process, name));
    }

    pub(super) fn source(&self) -> &H {
        &self.source
    }

    /// What this thread has declared of a descriptor.
    pub(crate) fn interest(&self, fd: Fd) -> i16 {
        self.interested.get(fd.index()).copied().unwrap_or_default()
    }

    /// What is wanted of a descriptor, by this thread or by all.
    fn wanted(&mut self, fd: Fd) -> i16 {
        let Some((process, name)) = &self.process else { return self.interest(fd) };
        let (by_all, is_reused) = process.interest(fd, *name);
        if is_reused {
            self.replace(fd, 0);
        }
        self.interest(fd) | by_all
    }

    /// One more than the highest descriptor that anything may be wanted of.
    fn numbers(&self) -> usize {
        self.interested.len().max(self.process.as_ref().map_or(0, |(process, _)| process.numbers()))
    }

    /// Declares an interest, which begins with a hint if it is true already.
    pub(crate) fn declare(&mut self, fd: Fd, wanted: i16, one: bool) -> io::Result<()> {
        self.replace(fd, 0);
        let InterestSets { source, process, .. } = self;
        match process {
            Some((process, name)) => {
                process.declare_own(fd, *name, |by_all| source.watch(fd, wanted | by_all, one))?;
            }
            None => {
                source.watch(fd, wanted, one)?;
            }
        }
        self.replace(fd, wanted);
        Ok(())
    }

    /// Sets what is wanted of a descriptor, and says nothing of what is true already.
    pub(crate) fn replace(&mut self, fd: Fd, wanted: i16) {
        let numbers = self.numbers();
        *self.interested.at(fd.index()) = wanted;
        if self.unscanned > 0 && self.numbers() > numbers {
            // The way around has become longer.
            self.unscanned = self.numbers();
        }
    }

    /// Drops a descriptor that is about to be closed.
    pub(crate) fn forget(&mut self, fd: Fd) {
        self.replace(fd, 0);
        self.source.forget(fd);
    }

    /// Finds up to `room` descriptors of which something wanted is true, in the order of hints; waits
    /// for the first hint, for ever with `None`. Finds nothing when a signal was handled, and when no
    /// hint was true any more.
    pub(crate) fn next_events(
        &mut self,
        room: usize,
        timeout: Option<Duration>,
    ) -> io::Result<&[libc::pollfd]> {
        self.found.clear();
        self.scan(room)?;
        let queued = self.hints.len();
        if self.found.is_empty() && queued < room {
            let timeout = if queued > 0 { Some(Duration::ZERO) } else { timeout };
            self.source.wait(timeout, room - queued, &mut self.edges)?;
            let mut fits = true;
            for fd in self.edges.drain(..) {
                fits &= self.hints.post(fd);
            }
            if !fits {
                self.overflow();
                self.scan(room)?;
            }
        }
        if self.found.is_empty() {
            self.dequeue(room)?;
        }
        Ok(&self.found)
    }

    /// Discards the hints; each descriptor is looked at instead.
    fn overflow(&mut self) {
        self.overflows += 1;
        self.hints.discard();
        self.unscanned = self.numbers();
    }

    /// Takes hints, and finds what is true of them.
    fn dequeue(&mut self, room: usize) -> io::Result<()> {
        self.asked.clear();
        while self.asked.len() < room
            && let Some(fd) = self.hints.take()
        {
            self.add_candidate(fd);
        }
        self.poll_candidates()
    }

    fn add_candidate(&mut self, fd: Fd) {
        let events = self.wanted(fd);
        if events != 0 {
            self.asked.push(libc::pollfd { fd: fd.raw(), events, revents: 0 });
        }
    }

    /// Asks all at once. Those of which something is true are found.
    fn poll_candidates(&mut self) -> io::Result<()> {
        if self.asked.is_empty() {
            return Ok(());
        }
        self.system_calls += 1;
        self.state.poll_now(&mut self.asked)?;
        for i in 0..self.asked.len() {
            let entry = self.asked[i];
            if entry.revents & libc::POLLNVAL != 0 {
                self.closed(Fd::from_raw(entry.fd));
            } else if entry.revents != 0 {
                self.found.push(entry);
            }
        }
        Ok(())
    }

    /// A descriptor was closed, and nobody has said so.
    fn closed(&mut self, fd: Fd) {
        self.replace(fd, 0);
        if let Some((process, _)) = &self.process {
            process.check(fd);
        }
    }

    /// Goes on through all descriptors in their order, as far as there is room.
    fn scan(&mut self, room: usize) -> io::Result<()> {
        while self.unscanned > 0 && self.found.len() < room {
            self.asked.clear();
            let (before, numbers) = (self.found.len(), self.numbers());
            while self.unscanned > 0 && self.asked.len() < Self::SCAN_BATCH {
                self.add_candidate(Fd::from_raw((self.cursor % numbers) as i32));
                self.cursor = (self.cursor + 1) % numbers;
                self.unscanned -= 1;
            }
            self.poll_candidates()?;
            if let Some(next) = self.found.get(room) {
                // The rest has its turn with the next call.
                let next = next.fd as usize;
                self.unscanned += (self.cursor + numbers - next - 1) % numbers + 1;
                self.cursor = next;
                self.found.truncate(room);
            }
            self.drop_closed(before)?;
        }
        Ok(())
    }

    /// Of what a scan has found, drops what nobody has declared: its number is that of another file
    /// now. (The kernel gives no hints of such.)
    fn drop_closed(&mut self, from: usize) -> io::Result<()> {
        for i in (from..self.found.len()).rev() {
            let fd = Fd::from_raw(self.found[i].fd);
            let InterestSets { source, process, .. } = self;
            let is_watched = match process {
                Some((process, _)) => process.while_locked(|| source.is_watched(fd))?,
                None => source.is_watched(fd)?,
            };
            if !is_watched {
                self.closed(fd);
                self.found.remove(i);
            }
        }
        Ok(())
    }

    /// How often hints were discarded.
    pub(crate) fn overflows(&self) -> u64 {
        self.overflows
    }

    pub(crate) fn system_calls(&self) -> u64 {
        self.system_calls + self.source.system_calls()
    }
}
