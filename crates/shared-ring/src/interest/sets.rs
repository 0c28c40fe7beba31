//! A thread's interests and their pending events.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::edges::{EpollEdges, HintSource};
use super::hints::HintQueue;
use super::process::ProcessWide;
use crate::poller::PollNow;
use crate::table::Table;
use crate::{Fd, Linux};

/// A thread's INTERESTED sets and its HINTS queue. Interests are flags of poll(2).
pub(crate) struct InterestSets<H = EpollEdges, A = Linux> {
    source: H,
    /// Reports the current state of descriptors.
    state: A,
    /// Interest by descriptor; 0 for none.
    interested: Table<i16>,
    /// The interests of all threads of the process, and this thread's identifier there.
    process: Option<(Arc<ProcessWide>, u64)>,
    hints: HintQueue,
    /// Edges reported by the last wait.
    edges: Vec<Fd>,
    /// Number of descriptors still to be scanned since hints were discarded, from `cursor` on with
    /// wrap-around.
    unscanned: usize,
    cursor: usize,
    polled: Vec<libc::pollfd>,
    /// Descriptors of the last poll with events.
    found: Vec<libc::pollfd>,
    overflows: u64,
    system_calls: u64,
}

impl<H: HintSource, A: PollNow> InterestSets<H, A> {
    /// Maximum number of descriptors that a scan polls at a time.
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
            polled: Vec::new(),
            found: Vec::new(),
            overflows: 0,
            system_calls: 0,
        }
    }

    /// Adds the interests of all threads of the process.
    pub(super) fn join(&mut self, process: Arc<ProcessWide>, id: u64) {
        self.process = Some((process, id));
    }

    pub(super) fn source(&self) -> &H {
        &self.source
    }

    /// Returns this thread's own interest in a descriptor.
    pub(crate) fn interest(&self, fd: Fd) -> i16 {
        self.interested.get(fd.index()).copied().unwrap_or_default()
    }

    /// Returns the interest in a descriptor, of this thread or of all.
    fn wanted(&mut self, fd: Fd) -> i16 {
        let Some((process, id)) = &self.process else { return self.interest(fd) };
        let (by_all, is_reused) = process.interest(fd, *id);
        if is_reused {
            self.replace(fd, 0);
        }
        self.interest(fd) | by_all
    }

    /// Returns one more than the highest descriptor with interest.
    fn numbers(&self) -> usize {
        self.interested.len().max(self.process.as_ref().map_or(0, |(process, _)| process.numbers()))
    }

    /// Declares an interest. If it is already true, this causes a hint.
    pub(crate) fn declare(&mut self, fd: Fd, wanted: i16, one: bool) -> io::Result<()> {
        self.replace(fd, 0);
        let InterestSets { source, process, .. } = self;
        match process {
            Some((process, id)) => {
                process.declare_own(fd, *id, |by_all| source.watch(fd, wanted | by_all, one))?;
            }
            None => {
                source.watch(fd, wanted, one)?;
            }
        }
        self.replace(fd, wanted);
        Ok(())
    }

    /// Replaces the interest in a descriptor, without a hint for its current state.
    pub(crate) fn replace(&mut self, fd: Fd, wanted: i16) {
        let numbers = self.numbers();
        *self.interested.at(fd.index()) = wanted;
        if self.unscanned > 0 && self.numbers() > numbers {
            // The range to scan has grown.
            self.unscanned = self.numbers();
        }
    }

    /// Removes a descriptor that is about to be closed.
    pub(crate) fn forget(&mut self, fd: Fd) {
        self.replace(fd, 0);
        self.source.forget(fd);
    }

    /// Removes a descriptor that is about to be closed while other descriptors of its open file may remain.
    pub(crate) fn forget_shared(&mut self, fd: Fd) {
        self.replace(fd, 0);
        self.source.forget_shared(fd);
    }

    /// Returns up to `room` descriptors with events, in the order of their hints. Waits for the first
    /// hint, without limit with `None`. Returns none if a signal was handled or if no hint was still
    /// true.
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

    /// Discards the hints and starts a scan of all descriptors.
    fn overflow(&mut self) {
        self.overflows += 1;
        self.hints.discard();
        self.unscanned = self.numbers();
    }

    /// Takes hints, and polls their descriptors.
    fn dequeue(&mut self, room: usize) -> io::Result<()> {
        self.polled.clear();
        while self.polled.len() < room
            && let Some(fd) = self.hints.take()
        {
            self.add_candidate(fd);
        }
        self.poll_candidates()
    }

    fn add_candidate(&mut self, fd: Fd) {
        let events = self.wanted(fd);
        if events != 0 {
            self.polled.push(libc::pollfd { fd: fd.raw(), events, revents: 0 });
        }
    }

    /// Polls all candidates at once, and appends those with events to `found`.
    fn poll_candidates(&mut self) -> io::Result<()> {
        if self.polled.is_empty() {
            return Ok(());
        }
        self.system_calls += 1;
        self.state.poll_now(&mut self.polled)?;
        for i in 0..self.polled.len() {
            let entry = self.polled[i];
            if entry.revents & libc::POLLNVAL != 0 {
                self.closed(Fd::from_raw(entry.fd));
            } else if entry.revents != 0 {
                self.found.push(entry);
            }
        }
        Ok(())
    }

    /// Revokes the interest in a descriptor that was closed without a call of `forget`.
    fn closed(&mut self, fd: Fd) {
        self.replace(fd, 0);
        if let Some((process, _)) = &self.process {
            process.check(fd);
        }
    }

    /// Continues the scan of all descriptors in order, as long as `found` has room.
    fn scan(&mut self, room: usize) -> io::Result<()> {
        while self.unscanned > 0 && self.found.len() < room {
            self.polled.clear();
            let (before, numbers) = (self.found.len(), self.numbers());
            while self.unscanned > 0 && self.polled.len() < Self::SCAN_BATCH {
                self.add_candidate(Fd::from_raw((self.cursor % numbers) as i32));
                self.cursor = (self.cursor + 1) % numbers;
                self.unscanned -= 1;
            }
            self.poll_candidates()?;
            if let Some(next) = self.found.get(room) {
                // The next call continues from this descriptor.
                let next = next.fd as usize;
                self.unscanned += (self.cursor + numbers - next - 1) % numbers + 1;
                self.cursor = next;
                self.found.truncate(room);
            }
            self.drop_closed(before)?;
        }
        Ok(())
    }

    /// Drops descriptors that a scan has found but that are not registered: their number now belongs
    /// to another file. (Hints exist only for registered files.)
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

    /// Returns the number of times hints were discarded.
    pub(crate) fn overflows(&self) -> u64 {
        self.overflows
    }

    pub(crate) fn system_calls(&self) -> u64 {
        self.system_calls + self.source.system_calls()
    }
}
