//! A wrapper around an application that checks the contract of [`Application`].

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use evring::buffers::BufferGroup;
use evring::files::{FileOp, FileOutcome};
use evring::layers::Forward;
use evring::{
    Application, Chunk, Close, CloseReason, Commands, ConnId, Cx, HIGH_WATER, Listener, NoTimer,
    Others, Rx,
};
use evring_sim::Machine;

use super::talker::Shared;

/// Maximum lateness of a deadline: the resolution of the timer wheel, and a turn.
const MAX_LATENESS: Duration = Duration::from_millis(5);

/// A deadline is lost after this time, and a wake-up late: a busy poller may report others before.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// Number of callbacks between two checks for lost deadlines.
const CHECK_INTERVAL: u32 = 16;

/// Number of callbacks within which the application panics if no submission is queued.
const PANIC_WINDOW: u32 = 16;

/// The planned panic of an application.
pub(super) struct ApplicationPanic {
    /// Number of submissions that were queued in a ring.
    pub(super) queued: usize,
}

/// An application whose callbacks are checked; the run fails if one violates the contract.
pub(super) struct Contract<A> {
    inner: A,
    records: Records,
}

/// Records of all connections.
struct Records {
    machine: Machine,
    /// The buffer group of the listener.
    group: BufferGroup,
    entries: Vec<Entry>,
    /// The times of the application's own timers that are set.
    timers: Vec<Option<Instant>>,
    shared: Shared,
    /// The application wakes itself, too.
    has_own_tags: bool,
    calls: u32,
    /// The number of callbacks after which the application panics, if it does.
    panics_after: Option<u32>,
    callbacks: u32,
}

/// The record of the connection in a slot.
#[derive(Default)]
struct Entry {
    /// The connection; `None` if the slot is unused.
    id: Option<ConnId>,
    /// The connection is or was open.
    open: bool,
    /// The group of its receive buffers.
    group: BufferGroup,
    close: Option<Close>,
    paused: bool,
    eof: bool,
    /// Its queue was, or may have been, above the high-water mark.
    above_high_water: bool,
    deadline: Option<Instant>,
    /// Bytes that the application has not consumed.
    unconsumed: Vec<u8>,
    /// Tags of file operations in flight.
    file_ops: Vec<u32>,
}

impl<A> Contract<A> {
    /// Checks an application whose listener has the buffer group `group`.
    pub(super) fn new(
        inner: A,
        machine: &Machine,
        group: BufferGroup,
        shared: &Shared,
        has_own_tags: bool,
        panics_after: Option<u32>,
    ) -> Self {
        let records = Records {
            machine: machine.clone(),
            group,
            entries: Vec::new(),
            timers: Vec::new(),
            shared: shared.clone(),
            has_own_tags,
            calls: 0,
            panics_after,
            callbacks: 0,
        };
        Contract { inner, records }
    }
}

impl<A> Drop for Contract<A> {
    /// Fails the run if the application was not notified of the end of each connection, or not woken. A server that retires
    /// may end before it is woken.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if let Some(id) = self.records.entries.iter().find_map(|entry| entry.id) {
            self.records.fail(id, "was not notified that it is closed");
        }
        let Shared { tags, retiring, .. } = &self.records.shared;
        if let (false, Some((tag, _))) = (retiring.get(), tags.borrow().front()) {
            self.records.fail_app(&format!("was not woken with {tag}"));
        }
    }
}

impl Records {
    fn fail(&self, id: ConnId, violation: &str) {
        self.machine.fail(format!("contract violated: {id:?} {violation}"));
    }

    fn fail_app(&self, violation: &str) {
        self.machine.fail(format!("contract violated: the application {violation}"));
    }

    /// Returns the record of a connection, unless it is closed.
    fn entry(&mut self, id: ConnId) -> Option<&mut Entry> {
        self.entries.get_mut(id.slot() as usize).filter(|entry| entry.id == Some(id))
    }

    fn begin(&mut self, id: ConnId, open: bool) {
        let slot = id.slot() as usize;
        if slot >= self.entries.len() {
            self.entries.resize_with(slot + 1, Entry::default);
        }
        if self.entries[slot].id.is_some() {
            self.fail(id, "takes the slot of a connection that is not closed");
        }
        let mut unconsumed = std::mem::take(&mut self.entries[slot].unconsumed);
        unconsumed.clear();
        self.entries[slot] = Entry { id: Some(id), open, unconsumed, ..Entry::default() };
    }

    /// Leaves the connections in every other slot in the listener's group, and moves the others to the
    /// default group.
    fn choose_group(&mut self, id: ConnId, io: &mut impl Commands) {
        let group = if id.slot().is_multiple_of(2) { self.group } else { BufferGroup::DEFAULT };
        let Some(entry) = self.entry(id) else { return };
        entry.group = group;
        if group == BufferGroup::DEFAULT && io.set_receive_group(id, group).is_err() {
            self.fail(id, "cannot choose its buffer group when it is accepted");
        }
    }

    /// Returns the record of the connection of a callback, which must be open.
    fn open_entry(&mut self, id: ConnId, io: &impl Commands) -> &mut Entry {
        if self.entry(id).is_some() && !io.is_open(id) {
            self.fail(id, "has ended");
        }
        self.callback_entry(id, io)
    }

    /// Returns the record of the connection of a callback, which must not be closed.
    fn callback_entry(&mut self, id: ConnId, io: &impl Commands) -> &mut Entry {
        self.check_deadlines(io);
        if self.entry(id).is_none() {
            self.fail(id, "is closed or unknown");
            let slot = id.slot() as usize;
            self.entries.resize_with(self.entries.len().max(slot + 1), Entry::default);
            self.entries[slot].id = Some(id);
        }
        self.entry(id).expect("the entry exists")
    }

    /// Fails the run if a deadline was lost. The driver clears the deadline of a connection that ends.
    fn check_deadlines(&mut self, io: &impl Commands) {
        self.calls += 1;
        if !self.calls.is_multiple_of(CHECK_INTERVAL) {
            return;
        }
        for entry in &self.entries {
            let lost = entry.deadline.is_some_and(|at| io.now() > at + LOST_AFTER);
            if let (true, Some(id)) = (lost, entry.id)
                && io.is_open(id)
            {
                self.fail(id, "was not notified that its deadline has passed");
            }
        }
        if self.timers.iter().flatten().any(|at| io.now() > *at + LOST_AFTER) {
            self.fail_app("was not notified that a timer has expired");
        }
    }

    fn timer(&mut self, timer: u32, io: &impl Commands) {
        self.check_deadlines(io);
        let now = io.now();
        match self.timers.get_mut(timer as usize).and_then(Option::take) {
            None => self.fail_app("was notified of a timer that is not set"),
            Some(at) if now < at => self.fail_app("was notified of a timer too early"),
            Some(at) if now > at + MAX_LATENESS => {
                self.fail_app(&format!("was notified of a timer {:?} late", now - at));
            }
            Some(_) => {}
        }
    }

    fn woken(&mut self, tag: u64, io: &impl Commands) {
        self.check_deadlines(io);
        let mut tags = self.shared.tags.borrow_mut();
        let is_next = tags.front().is_some_and(|(next, _)| *next == tag);
        let next = if is_next { tags.pop_front() } else { None };
        drop(tags);
        match next {
            Some((_, since)) if self.machine.now() > since + LOST_AFTER => {
                self.fail_app(&format!("was woken {:?} late", self.machine.now() - since));
            }
            None if !self.has_own_tags => {
                self.fail_app(&format!("was woken with {tag}, which is not the next tag"));
            }
            _ => {}
        }
    }

    /// Panics if it is time: if submissions are queued, or soon. No message is printed.
    fn panic_if_due(&mut self) {
        self.callbacks += 1;
        let Some(late) = self.panics_after.and_then(|at| self.callbacks.checked_sub(at)) else {
            return;
        };
        let queued = self.machine.queued_submissions();
        if queued > 0 || late >= PANIC_WINDOW {
            // Clients expect nothing more.
            self.shared.stopping.set(true);
            std::panic::resume_unwind(Box::new(ApplicationPanic { queued }));
        }
    }

    fn expired(&mut self, id: ConnId, io: &impl Commands) {
        let now = io.now();
        let entry = self.open_entry(id, io);
        let (deadline, closed) = (entry.deadline.take(), entry.is_closed());
        match deadline {
            None => self.fail(id, "has expired, but has no deadline"),
            Some(at) if now < at => self.fail(id, "has expired before its deadline"),
            Some(at) if now > at + MAX_LATENESS => {
                let late = now - at;
                self.fail(id, &format!("was notified {late:?} late that its deadline has passed"));
            }
            Some(_) if closed => self.fail(id, "has expired although it was closed"),
            Some(_) => {}
        }
    }

    fn received(&mut self, id: ConnId, io: &impl Commands, rx: &Rx<'_>) {
        let entry = self.open_entry(id, io);
        let violation = if !entry.open {
            "receives before it is open"
        } else if entry.paused {
            "receives while paused"
        } else if entry.is_closed() {
            "receives although it was closed"
        } else if entry.eof && !rx.eof() {
            "is not notified of the end of the stream again"
        } else if !rx.bytes().starts_with(&entry.unconsumed) {
            "does not get its unconsumed bytes again"
        } else if rx.place().is_some_and(|place| place.group != entry.group) {
            "receives into another buffer group"
        } else {
            entry.eof |= rx.eof();
            return;
        };
        self.fail(id, violation);
    }

    fn note_unconsumed(&mut self, id: ConnId, rx: &Rx<'_>) {
        if let Some(entry) = self.entry(id) {
            entry.unconsumed.clear();
            // After the end of the stream nothing is received again, unless the connection is
            // paused.
            if !rx.eof() || entry.paused {
                entry.unconsumed.extend_from_slice(rx.bytes());
            }
        }
    }

    fn file(&mut self, id: ConnId, io: &impl Commands, tag: u32) {
        let entry = self.open_entry(id, io);
        let closed = entry.is_closed();
        match entry.file_ops.iter().position(|known| *known == tag) {
            Some(at) => drop(entry.file_ops.swap_remove(at)),
            None => self.fail(id, "gets the result of a file operation that it did not request"),
        }
        if closed {
            self.fail(id, "gets the result of a file operation although it was closed");
        }
    }
}

impl Entry {
    fn is_closed(&self) -> bool {
        self.close.is_some_and(|how| how != Close::Half)
    }
}

/// Commands that are recorded and passed on.
struct Recorder<'a, C> {
    io: &'a mut C,
    records: &'a mut Records,
}

impl<A: Application> Contract<A> {
    /// Calls the inner application.
    fn call<C: Commands>(&mut self, io: &mut C, f: impl FnOnce(&mut A, &mut Recorder<'_, C>)) {
        f(&mut self.inner, &mut Recorder { io, records: &mut self.records });
        self.records.panic_if_due();
    }
}

impl<A: Application> Application for Contract<A> {
    type State = A::State;
    const MAX_UNCONSUMED: usize = A::MAX_UNCONSUMED;
    const INTERCEPTS: bool = A::INTERCEPTS;

    fn accepted(&mut self, x: Cx<'_, impl Commands, A::State>, at: Listener) {
        self.records.begin(x.id, true);
        self.records.choose_group(x.id, x.io);
        self.call(x.io, |app, io| {
            app.accepted(Cx { io, id: x.id, state: x.state, others: x.others }, at)
        });
    }

    fn connected(&mut self, x: Cx<'_, impl Commands, A::State>, result: io::Result<()>) {
        let entry = self.records.open_entry(x.id, &*x.io);
        if entry.open || entry.is_closed() {
            self.records.fail(x.id, "is connected twice, or although it was closed");
        } else {
            entry.open = result.is_ok();
        }
        self.call(x.io, |app, io| {
            app.connected(Cx { io, id: x.id, state: x.state, others: x.others }, result)
        });
    }

    fn intercept(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        self.records.open_entry(id, &*io);
        self.call(io, |app, io| app.intercept(io, id, rx));
    }

    fn received(&mut self, x: Cx<'_, impl Commands, A::State>, rx: &mut Rx<'_>) {
        self.records.received(x.id, &*x.io, rx);
        self.call(x.io, |app, io| {
            app.received(Cx { io, id: x.id, state: x.state, others: x.others }, rx)
        });
        self.records.note_unconsumed(x.id, rx);
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, A::State>) {
        let entry = self.records.open_entry(x.id, &*x.io);
        if !std::mem::take(&mut entry.above_high_water) {
            self.records.fail(x.id, "has drained but was not above the high-water mark");
        }
        self.call(x.io, |app, io| {
            app.drained(Cx { io, id: x.id, state: x.state, others: x.others })
        });
    }

    fn file(
        &mut self,
        x: Cx<'_, impl Commands, A::State>,
        tag: u32,
        done: io::Result<FileOutcome>,
    ) {
        self.records.file(x.id, &*x.io, tag);
        self.call(x.io, |app, io| {
            app.file(Cx { io, id: x.id, state: x.state, others: x.others }, tag, done)
        });
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.records.expired(x.id, &*x.io);
        self.call(x.io, |app, io| {
            app.expired(Cx { io, id: x.id, state: x.state, others: x.others })
        });
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, A::State>, reason: CloseReason) {
        let entry = self.records.callback_entry(x.id, &*x.io);
        (entry.id, entry.deadline) = (None, None);
        self.call(x.io, |app, io| {
            app.closed(Cx { io, id: x.id, state: x.state, others: x.others }, reason)
        });
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.records.open_entry(x.id, &*x.io);
        self.call(x.io, |app, io| {
            app.stopping(Cx { io, id: x.id, state: x.state, others: x.others })
        });
    }

    fn is_idle(&self, id: ConnId, state: &A::State) -> bool {
        self.inner.is_idle(id, state)
    }

    fn has_unread(&self, id: ConnId, state: &A::State) -> bool {
        self.inner.has_unread(id, state)
    }

    fn has_message(&self, id: ConnId, state: &A::State) -> bool {
        self.inner.has_message(id, state)
    }

    fn is_unserved(&self, id: ConnId, state: &A::State) -> bool {
        self.inner.is_unserved(id, state)
    }

    fn evicting(&mut self, x: Cx<'_, impl Commands, A::State>) {
        if self.records.open_entry(x.id, &*x.io).is_closed() {
            self.records.fail(x.id, "makes room although it was closed");
        }
        self.call(x.io, |app, io| {
            app.evicting(Cx { io, id: x.id, state: x.state, others: x.others })
        });
    }

    fn woken(&mut self, io: &mut impl Commands, all: Others<'_, A::State>, tag: u64) {
        self.records.woken(tag, &*io);
        self.call(io, |app, io| app.woken(io, all, tag));
    }

    fn timer(&mut self, io: &mut impl Commands, all: Others<'_, A::State>, timer: u32) {
        self.records.timer(timer, &*io);
        self.call(io, |app, io| app.timer(io, all, timer));
    }
}

impl<C: Commands> Forward for Recorder<'_, C> {
    type Inner = C;

    fn inner(&self) -> &C {
        self.io
    }

    fn inner_mut(&mut self) -> &mut C {
        self.io
    }

    fn send(&mut self, to: ConnId, chunk: Chunk<'_>) -> usize {
        let queued = self.io.send(to, chunk);
        if queued >= HIGH_WATER
            && let Some(entry) = self.records.entry(to)
        {
            entry.above_high_water = true;
        }
        queued
    }

    fn reserve(&mut self, to: ConnId, n: usize) -> &mut [u8] {
        if let Some(entry) = self.records.entry(to) {
            entry.above_high_water = true;
        }
        self.io.reserve(to, n)
    }

    fn connect(&mut self, to: SocketAddr) -> ConnId {
        let id = self.io.connect(to);
        self.records.begin(id, false);
        id
    }

    fn file_op(&mut self, on: ConnId, tag: u32, op: FileOp) {
        if let Some(entry) = self.records.entry(on) {
            entry.file_ops.push(tag);
        }
        self.io.file_op(on, tag, op);
    }

    fn set_receiving(&mut self, id: ConnId, on: bool) {
        if let Some(entry) = self.records.entry(id) {
            entry.paused = !on;
        }
        self.io.set_receiving(id, on);
    }

    fn set_deadline(&mut self, id: ConnId, at: Option<Instant>) {
        if let Some(entry) = self.records.entry(id).filter(|entry| !entry.is_closed()) {
            entry.deadline = at;
        }
        self.io.set_deadline(id, at);
    }

    fn set_timer(&mut self, timer: u32, at: Option<Instant>) -> Result<(), NoTimer> {
        self.io.set_timer(timer, at)?;
        let timers = &mut self.records.timers;
        timers.resize(timers.len().max(timer as usize + 1), None);
        timers[timer as usize] = at;
        Ok(())
    }

    fn close(&mut self, id: ConnId, how: Close) {
        if let Some(entry) = self.records.entry(id)
            && (entry.close.is_none() || how != Close::Half)
        {
            entry.close = Some(how);
            if how != Close::Half {
                entry.deadline = None;
            }
        }
        self.io.close(id, how);
    }
}
