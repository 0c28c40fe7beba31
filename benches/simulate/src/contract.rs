//! What an application is promised: a layer around any that sees it kept.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use evring::{
    AcceptPolicy, Application, Chunk, Close, CloseReason, Commands, ConnId, Cx, FileOp,
    FileOutcome, HIGH_WATER, Lateness, Listener, Rx, Stats,
};
use shared_ring::sim::Machine;

/// How late a deadline may be at most: what the wheel may add to it, and a turn.
const LATE: Duration = Duration::from_millis(5);

/// After so much time a deadline is lost.
const LOST: Duration = Duration::from_millis(100);

/// So many callbacks pass between two looks for deadlines that are lost.
const LOOK: u32 = 16;

/// An application that is called as the trait says, or the run fails.
pub(super) struct Contract<A> {
    inner: A,
    book: Book,
}

/// What is known of the connections.
struct Book {
    machine: Machine,
    entries: Vec<Entry>,
    calls: u32,
}

/// What is known of the connection in a slot.
#[derive(Default)]
struct Entry {
    /// The connection; none before the first, and when it is gone.
    id: Option<ConnId>,
    /// It is open, or was.
    open: bool,
    close: Option<Close>,
    paused: bool,
    eof: bool,
    /// Its queue was seen to be high, or may have been.
    high: bool,
    deadline: Option<Instant>,
    /// What it has left unconsumed.
    left: Vec<u8>,
    /// Tags of file work that has not ended.
    file_ops: Vec<u32>,
}

impl<A> Contract<A> {
    pub(super) fn new(inner: A, machine: &Machine) -> Self {
        let book = Book { machine: machine.clone(), entries: Vec::new(), calls: 0 };
        Contract { inner, book }
    }
}

impl<A> Drop for Contract<A> {
    /// An application hears of the end of each connection, however the server ends.
    fn drop(&mut self) {
        if !std::thread::panicking()
            && let Some(id) = self.book.entries.iter().find_map(|entry| entry.id)
        {
            self.book.fail(id, "was not told that it is closed");
        }
    }
}

impl Book {
    fn fail(&self, id: ConnId, what: &str) {
        self.machine.fail(format!("the application was promised otherwise: {id:?} {what}"));
    }

    /// What is known of a connection, if it is the one in its slot.
    fn of(&mut self, id: ConnId) -> Option<&mut Entry> {
        self.entries.get_mut(id.slot() as usize).filter(|entry| entry.id == Some(id))
    }

    fn begin(&mut self, id: ConnId, open: bool) {
        let slot = id.slot() as usize;
        if slot >= self.entries.len() {
            self.entries.resize_with(slot + 1, Entry::default);
        }
        if self.entries[slot].id.is_some() {
            self.fail(id, "takes the slot of one that is not closed");
        }
        let mut left = std::mem::take(&mut self.entries[slot].left);
        left.clear();
        self.entries[slot] = Entry { id: Some(id), open, left, ..Entry::default() };
    }

    /// A callback is about a connection, which has to be there.
    fn about(&mut self, id: ConnId, now: Instant) -> &mut Entry {
        self.look(now);
        if self.of(id).is_none() {
            self.fail(id, "is gone, or never was");
            let slot = id.slot() as usize;
            self.entries.resize_with(self.entries.len().max(slot + 1), Entry::default);
            self.entries[slot].id = Some(id);
        }
        self.of(id).expect("it was seen to")
    }

    /// Looks for deadlines that are lost.
    fn look(&mut self, now: Instant) {
        self.calls += 1;
        if !self.calls.is_multiple_of(LOOK) {
            return;
        }
        for entry in &self.entries {
            let lost = entry.deadline.is_some_and(|at| now > at + LOST);
            if let (true, Some(id)) = (lost, entry.id) {
                self.fail(id, "was not told that its deadline has passed");
            }
        }
    }

    fn expired(&mut self, id: ConnId, now: Instant) {
        let entry = self.about(id, now);
        let (deadline, closed) = (entry.deadline.take(), entry.is_closed());
        match deadline {
            None => self.fail(id, "has expired, but has no deadline"),
            Some(at) if now < at => self.fail(id, "has expired before its deadline"),
            Some(at) if now > at + LATE => {
                let late = now - at;
                self.fail(id, &format!("was told {late:?} late that its deadline has passed"));
            }
            Some(_) if closed => self.fail(id, "has expired though it was closed"),
            Some(_) => {}
        }
    }

    fn received(&mut self, id: ConnId, now: Instant, rx: &Rx<'_>) {
        let entry = self.about(id, now);
        let what = if !entry.open {
            "receives before it is open"
        } else if entry.paused {
            "receives while it has paused"
        } else if entry.is_closed() {
            "receives though it was closed"
        } else if entry.eof && !rx.eof() {
            "is not told of the end again"
        } else if !rx.bytes().starts_with(&entry.left) {
            "does not get again what it has left"
        } else {
            entry.eof |= rx.eof();
            return;
        };
        self.fail(id, what);
    }

    fn left(&mut self, id: ConnId, rx: &Rx<'_>) {
        if let Some(entry) = self.of(id) {
            entry.left.clear();
            // Behind the end nothing comes again, unless it has paused.
            if !rx.eof() || entry.paused {
                entry.left.extend_from_slice(rx.bytes());
            }
        }
    }

    fn file(&mut self, id: ConnId, now: Instant, tag: u32) {
        let entry = self.about(id, now);
        let closed = entry.is_closed();
        match entry.file_ops.iter().position(|known| *known == tag) {
            Some(at) => drop(entry.file_ops.swap_remove(at)),
            None => self.fail(id, "is told of file work that it did not ask for"),
        }
        if closed {
            self.fail(id, "is told of file work though it was closed");
        }
    }
}

impl Entry {
    fn is_closed(&self) -> bool {
        self.close.is_some_and(|how| how != Close::Half)
    }
}

/// The commands, and what is noted of them.
struct Noting<'a, C> {
    io: &'a mut C,
    book: &'a mut Book,
}

impl<A: Application> Contract<A> {
    /// Calls the application within.
    fn call<C: Commands>(&mut self, io: &mut C, f: impl FnOnce(&mut A, &mut Noting<'_, C>)) {
        f(&mut self.inner, &mut Noting { io, book: &mut self.book });
    }
}

impl<A: Application> Application for Contract<A> {
    type State = A::State;
    const MAX_UNCONSUMED: usize = A::MAX_UNCONSUMED;

    fn accepted(&mut self, x: Cx<'_, impl Commands, A::State>, at: Listener) {
        self.book.begin(x.id, true);
        self.call(x.io, |app, io| app.accepted(Cx { io, id: x.id, state: x.state }, at));
    }

    fn connected(&mut self, x: Cx<'_, impl Commands, A::State>, result: io::Result<()>) {
        let entry = self.book.about(x.id, x.io.now());
        if entry.open || entry.is_closed() {
            self.book.fail(x.id, "is connected twice, or though it was closed");
        } else {
            entry.open = result.is_ok();
        }
        self.call(x.io, |app, io| app.connected(Cx { io, id: x.id, state: x.state }, result));
    }

    fn received(&mut self, x: Cx<'_, impl Commands, A::State>, rx: &mut Rx<'_>) {
        self.book.received(x.id, x.io.now(), rx);
        self.call(x.io, |app, io| app.received(Cx { io, id: x.id, state: x.state }, rx));
        self.book.left(x.id, rx);
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, A::State>) {
        let entry = self.book.about(x.id, x.io.now());
        if !std::mem::take(&mut entry.high) {
            self.book.fail(x.id, "has drained, but was not full");
        }
        self.call(x.io, |app, io| app.drained(Cx { io, id: x.id, state: x.state }));
    }

    fn file(&mut self, x: Cx<'_, impl Commands, A::State>, tag: u32, done: FileOutcome) {
        self.book.file(x.id, x.io.now(), tag);
        self.call(x.io, |app, io| app.file(Cx { io, id: x.id, state: x.state }, tag, done));
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.book.expired(x.id, x.io.now());
        self.call(x.io, |app, io| app.expired(Cx { io, id: x.id, state: x.state }));
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, A::State>, reason: CloseReason) {
        let entry = self.book.about(x.id, x.io.now());
        (entry.id, entry.deadline) = (None, None);
        self.call(x.io, |app, io| app.closed(Cx { io, id: x.id, state: x.state }, reason));
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.book.about(x.id, x.io.now());
        self.call(x.io, |app, io| app.stopping(Cx { io, id: x.id, state: x.state }));
    }

    fn is_idle(&self, state: &A::State) -> bool {
        self.inner.is_idle(state)
    }

    fn woken(&mut self, io: &mut impl Commands, tag: u64) {
        self.call(io, |app, io| app.woken(io, tag));
    }
}

impl<C: Commands> Commands for Noting<'_, C> {
    fn now(&self) -> Instant {
        self.io.now()
    }

    fn wall_time(&self) -> SystemTime {
        self.io.wall_time()
    }

    fn random(&mut self) -> u64 {
        self.io.random()
    }

    fn send(&mut self, to: ConnId, chunk: Chunk<'_>) -> usize {
        let queued = self.io.send(to, chunk);
        if queued >= HIGH_WATER
            && let Some(entry) = self.book.of(to)
        {
            entry.high = true;
        }
        queued
    }

    fn reserve(&mut self, to: ConnId, n: usize) -> &mut [u8] {
        if let Some(entry) = self.book.of(to) {
            entry.high = true;
        }
        self.io.reserve(to, n)
    }

    fn connect(&mut self, to: SocketAddr) -> ConnId {
        let id = self.io.connect(to);
        self.book.begin(id, false);
        id
    }

    fn file_op(&mut self, on: ConnId, tag: u32, op: FileOp) {
        if let Some(entry) = self.book.of(on) {
            entry.file_ops.push(tag);
        }
        self.io.file_op(on, tag, op);
    }

    fn set_receiving(&mut self, id: ConnId, on: bool) {
        if let Some(entry) = self.book.of(id) {
            entry.paused = !on;
        }
        self.io.set_receiving(id, on);
    }

    fn set_deadline(&mut self, id: ConnId, at: Option<Instant>) {
        if let Some(entry) = self.book.of(id).filter(|entry| !entry.is_closed()) {
            entry.deadline = at;
        }
        self.io.set_deadline(id, at);
    }

    fn close(&mut self, id: ConnId, how: Close) {
        if let Some(entry) = self.book.of(id)
            && (entry.close.is_none() || how != Close::Half)
        {
            entry.close = Some(how);
            if how != Close::Half {
                entry.deadline = None;
            }
        }
        self.io.close(id, how);
    }

    fn unsent_bytes(&self, id: ConnId) -> u64 {
        self.io.unsent_bytes(id)
    }

    fn peer_addr(&self, id: ConnId) -> Option<SocketAddr> {
        self.io.peer_addr(id)
    }

    fn set_accept_policy(&mut self, at: Listener, how: AcceptPolicy) {
        self.io.set_accept_policy(at, how);
    }

    fn lateness(&self, id: ConnId) -> Lateness {
        self.io.lateness(id)
    }

    fn stats(&self) -> Stats {
        self.io.stats()
    }

    fn is_stopping(&self) -> bool {
        self.io.is_stopping()
    }

    fn has_pending(&self) -> bool {
        self.io.has_pending()
    }
}
