//! What the ring reports of sockets, and what events are made of it.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, SocketFlags};
use shared_ring::nonblocking::{is_aborted_accept, is_fd_limit};
use shared_ring::{
    Errno, Fd, Kernel, KernelError, Mode, OpKind, RawCompletion, Submit, System, UringConfig,
    UringKernel, Waker,
};

use super::reports::{ReportList, Reports};
use super::table::{Role, SocketEntry, SocketTable};
use super::{Received, SocketConfig, SocketId};
use crate::{Error, Event, EventSink, EventType, Group, Groups, SendSetupError, Source};

const IN: u32 = libc::POLLIN as u32;
const ERR: u32 = libc::POLLERR as u32;
const RDHUP: u32 = libc::POLLRDHUP as u32;

/// A source of events: the sockets that are given to it. All its memory is taken at the start.
///
/// What is done with them is done by methods of [`ControlBlock`](crate::ControlBlock).
///
/// ```
/// use send_core::{EventType, ControlBlock, Group, Groups, SocketId, SocketConfig, Sockets};
/// use std::net::{TcpListener, TcpStream};
///
/// # if Sockets::new(&SocketConfig::default()).is_err() { return Ok(()) }
/// let mut send = ControlBlock::with_source(100, Sockets::new(&SocketConfig::default())?)?;
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let client = TcpStream::connect(listener.local_addr()?)?;
/// send.set_group(EventType::ACCEPT, Some(Group::FIRST))?;
/// // Accepted sockets are watched, in the group that follows.
/// send.auto_accept(listener, Some(Group::FIRST.next()))?;
/// send.wait(Groups::ALL, None)?;
/// let event = send.next_event().expect("it has waited for one");
/// let connection = SocketId::of(&event).expect("an event of a socket");
/// assert_eq!(send.send(connection, b"hello")?, Some(5));
/// # drop(client);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sockets {
    /// It goes before the sockets, of which it holds some.
    pub(super) kernel: UringKernel,
    pub(super) table: SocketTable,
    pub(super) listeners: Vec<SocketId>,
    /// What was received, and not made out.
    reports: Reports,
    /// Of that, what sockets have left that are gone.
    stale: ReportList,
    /// Sockets that the ring has to be told of.
    waiting: VecDeque<SocketId>,
    /// Sockets that found no receive buffer.
    starved: VecDeque<SocketId>,
    /// The waker's report, which is made out before the next wait.
    woken: Option<RawCompletion>,
    /// Groups that were given to sockets so far.
    pub(super) groups: Groups,
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").field("groups", &self.groups).finish_non_exhaustive()
    }
}

/// Most connections, gone before they were accepted, that one event looks at.
const MAX_ABORTED_ACCEPTS: u32 = 64;

impl Sockets {
    /// Room for sockets, over a ring of the calling thread.
    ///
    /// # Errors
    /// When the ring can't be set up, with the reason in words, or there can't be so many.
    pub fn new(config: &SocketConfig) -> Result<Self, SendSetupError> {
        config.check()?;
        let &SocketConfig { sockets, buffers, buffer_size } = config;
        let ring = UringConfig { mode: Mode::Cooperative, operations: 1, buffers, buffer_size };
        let room = || VecDeque::with_capacity(sockets as usize);
        Ok(Sockets {
            kernel: UringKernel::new(&ring)?,
            table: SocketTable::new(sockets),
            listeners: Vec::with_capacity(sockets as usize),
            reports: Reports::new(buffers.into()),
            stale: ReportList::default(),
            waiting: room(),
            starved: room(),
            woken: None,
            groups: Groups::NONE,
        })
    }

    /// Takes a socket in, which tells of itself from now on.
    pub(super) fn adopt(
        &mut self,
        fd: OwnedFd,
        role: Role,
        group: Group,
    ) -> Result<SocketId, Error> {
        if self.table.is_full() {
            return Err(Error::TooManySockets);
        }
        // SAFETY: it is open until the call is over.
        let lent = unsafe { Fd::lent(fd.as_fd()) };
        let signals = self.kernel.host_mut().enable_sigio(lent);
        signals.map_err(|e| Error::System("a socket's signal", e.raw_os_error()))?;
        let socket = self.table.put(fd, role, group).ok_or(Error::TooManySockets)?;
        if role == Role::Watched || role == Role::Receives {
            self.groups = self.groups | group.into();
        }
        self.waiting.push_back(socket);
        self.begin();
        Ok(socket)
    }

    /// Tells the ring of sockets. It may be called in a signal handler, as there is room for all.
    fn begin(&mut self) {
        // Sockets that found no receive buffer begin again when there are some.
        if u32::from(self.kernel.buffers()) > self.reports.len() {
            self.waiting.append(&mut self.starved);
        }
        while let Some(socket) = self.waiting.front().copied() {
            if let Some(SocketEntry { fd: Some(fd), role, .. }) = self.table.get(socket) {
                let token = socket.token(kind(*role));
                // SAFETY: it stays in its place until the kernel has been told of its end (`release`), or is
                // dropped: it goes before the sockets.
                let lent = unsafe { Fd::lent(fd.as_fd()) };
                if !self.kernel.begin(token, lent) {
                    if !self.kernel.flush().unwrap_or(false) {
                        return;
                    }
                    continue;
                }
            }
            self.waiting.pop_front();
        }
        // A kernel that can't be used any more says so at the next wait.
        let _ = self.kernel.flush();
    }

    /// Makes out what the waker has brought, outside signal handlers.
    fn decode_wake(&mut self) {
        if let Some(woken) = self.woken.take() {
            // SAFETY: `collect` had it from this kernel, and has put it here once.
            unsafe { self.kernel.decode(woken) };
        }
    }

    /// Does what can't be done in a signal handler: what the waker has brought, and giving receive
    /// buffers back, which an interrupted application may be dropping.
    fn maintain_ring(&mut self) {
        self.decode_wake();
        while let Some(report) = self.reports.pop(&mut self.stale) {
            // SAFETY: as above, and it is of a stream.
            drop(unsafe { self.kernel.bytes(report) });
        }
        self.kernel.give_back();
        self.begin();
    }

    /// A socket's state was reported.
    fn changed(&mut self, report: RawCompletion, sink: &mut EventSink<'_>) {
        let socket = SocketId::of_token(report.token());
        let Some(entry) = self.table.get(socket) else { return };
        match u32::try_from(report.result()) {
            Ok(state) => {
                entry.news |= state;
                if !report.has_more() {
                    self.waiting.push_back(socket);
                }
            }
            // It is not tried again, or it might fail to no end.
            Err(_) => {
                entry.news |= ERR;
                entry.failed = true;
            }
        }
        if entry.role == Role::Watched {
            sink.raise(socket.slot(), entry.group, event(EventType::READY, socket, entry));
        }
    }

    /// Bytes were received, or are no more.
    fn received(&mut self, report: RawCompletion, sink: &mut EventSink<'_>) {
        let socket = SocketId::of_token(report.token());
        let Some(entry) = self.table.get(socket) else {
            if report.has_buffer() {
                self.reports.push(&mut self.stale, report);
            }
            return;
        };
        if report.result() == -libc::ENOBUFS {
            return self.starved.push_back(socket);
        }
        let is_end = report.result() <= 0;
        if report.has_buffer() {
            let to = if is_end { &mut self.stale } else { &mut entry.reports_left };
            // There is room for as many as there are buffers.
            self.reports.push(to, report);
        }
        if is_end {
            entry.end = Some(-report.result());
            entry.news |= if report.result() == 0 { IN | RDHUP } else { ERR };
        } else {
            entry.news |= IN;
            if !report.has_more() {
                self.waiting.push_back(socket);
            }
        }
        sink.raise(socket.slot(), entry.group, event(EventType::DATA, socket, entry));
    }

    /// Has an event wait for every listener that may have connections.
    fn call_listeners(&mut self, sink: &mut EventSink<'_>) {
        let Some(group) = sink.group(EventType::ACCEPT) else { return };
        for listener in &self.listeners {
            if let Some(entry) = self.table.get(*listener).filter(|entry| entry.news != 0) {
                entry.news = 0;
                sink.raise(listener.slot(), group, event(EventType::ACCEPT, *listener, entry));
            }
        }
    }

    /// Accepts a listener's next connection, as its event is delivered (SEND 3.6.1).
    fn accept(&mut self, listener: SocketId) -> Option<Event> {
        for _ in 0..MAX_ABORTED_ACCEPTS {
            let full = self.table.is_full();
            let entry = self.table.get(listener)?;
            let (Some(fd), Role::Listens(inherited)) = (&entry.fd, entry.role) else { return None };
            let accepted = match full {
                // One that is released makes room.
                true => Err(Errno::NFILE),
                false if entry.failed => Err(Errno::INVAL),
                false => net::accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK),
            };
            match accepted {
                Ok(fd) => {
                    // There may be more.
                    entry.news = IN;
                    return self.arrived(fd, inherited);
                }
                Err(Errno::AGAIN) => return None,
                Err(errno) if is_aborted_accept(errno) || errno == Errno::INTR => {}
                Err(errno)
                    if is_fd_limit(errno) || [Errno::NOBUFS, Errno::NOMEM].contains(&errno) =>
                {
                    // It is tried again at the next look.
                    entry.news = IN;
                    return None;
                }
                Err(_) => {
                    entry.failed = true;
                    let failed = event(EventType::ACCEPT, listener, entry);
                    return Some(Event { fd: -1, state: ERR, ..failed });
                }
            }
        }
        // The others are for the next look.
        if let Some(entry) = self.table.get(listener) {
            entry.news = IN;
        }
        None
    }

    /// Takes in a connection, which inherits what its listener was told (SIOCEVTCLONE).
    fn arrived(&mut self, fd: OwnedFd, inherited: Option<Group>) -> Option<Event> {
        let state = state(fd.as_fd()).unwrap_or(0);
        let role = if inherited.is_some() { Role::Watched } else { Role::Held };
        if role == Role::Watched {
            // Where that is refused its events come at the next entry into the kernel.
            // SAFETY: it is open until the call is over.
            let lent = unsafe { Fd::lent(fd.as_fd()) };
            let _ = self.kernel.host_mut().enable_sigio(lent);
        }
        let socket = self.table.put(fd, role, inherited.unwrap_or(Group::FIRST))?;
        if role == Role::Watched {
            self.waiting.push_back(socket);
        }
        let entry = self.table.get(socket)?;
        Some(Event { state, ..event(EventType::ACCEPT, socket, entry) })
    }

    /// The next of what a socket has received.
    pub(super) fn next_piece(&mut self, socket: SocketId) -> Result<Received, Error> {
        self.maintain_ring();
        let entry = self.table.get(socket).filter(|entry| entry.role == Role::Receives);
        let entry = entry.ok_or(Error::NoSuchSocket)?;
        if let Some(report) = self.reports.pop(&mut entry.reports_left) {
            if entry.reports_left.is_empty() && entry.end.is_none() {
                entry.news = 0;
            }
            // SAFETY: `received` had it from this kernel, of a stream, and has put it there once.
            let bytes = unsafe { self.kernel.bytes(report) };
            return Ok(bytes.map_or(Received::Nothing, Received::Bytes));
        }
        entry.news = 0;
        match entry.end {
            None => Ok(Received::Nothing),
            Some(0) => Ok(Received::End),
            Some(errno) => Err(Error::System("receiving", errno)),
        }
    }

    /// Lets a socket go. Nothing is told of it any more.
    pub(super) fn release(
        &mut self,
        socket: SocketId,
        sink: &mut EventSink<'_>,
    ) -> Result<OwnedFd, Error> {
        let entry = self.table.get(socket).ok_or(Error::NoSuchSocket)?;
        let role = entry.role;
        if role != Role::Held {
            let ended =
                self.kernel.end(socket.token(kind(role))).map_err(|fault| broken(&fault))?;
            // What the kernel has not been told might reach another socket of that number.
            if !ended {
                return Err(Error::Busy);
            }
        }
        sink.withdraw(socket.slot());
        self.listeners.retain(|known| *known != socket);
        for list in [&mut self.waiting, &mut self.starved] {
            list.retain(|known| *known != socket);
        }
        let mut left = self.table.get(socket).map(|entry| entry.reports_left).unwrap_or_default();
        while let Some(report) = self.reports.pop(&mut left) {
            // SAFETY: as in `next_piece`.
            drop(unsafe { self.kernel.bytes(report) });
        }
        let fd = self.table.take(socket).ok_or(Error::NoSuchSocket)?;
        if role != Role::Held {
            // It is a socket that could be set to signal.
            // SAFETY: as in `adopt`.
            let lent = unsafe { Fd::lent(fd.as_fd()) };
            let _ = self.kernel.host_mut().disable_sigio(lent);
        }
        // Its buffers are for the others.
        self.maintain_ring();
        Ok(fd)
    }
}

impl Drop for Sockets {
    /// The kernel would wait for the waker's report.
    fn drop(&mut self) {
        self.decode_wake();
    }
}

/// Under what kind of token a socket reports.
fn kind(role: Role) -> OpKind {
    if role == Role::Receives { OpKind::Stream } else { OpKind::Watch }
}

/// An event of a socket.
fn event(kind: EventType, socket: SocketId, entry: &SocketEntry) -> Event {
    let fd = entry.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    Event { fd, state: entry.news, value: socket.value(), ..Event::new(kind) }
}

/// The state of a socket, in the format of poll(2), which may be called in a signal handler.
fn state(fd: BorrowedFd<'_>) -> Option<u32> {
    let wanted = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
    let mut polled = [PollFd::from_borrowed_fd(fd, wanted)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok()?;
    Some(polled[0].revents().bits().into())
}

fn broken(fault: &KernelError) -> Error {
    Error::System(fault.context, fault.error.raw_os_error().unwrap_or(0))
}

// SAFETY: `collect`, `queued` and `revalidate` call of the kernel what says that it may be called in a
// signal handler, and accept(2), poll(2) and fcntl(2), which signal-safety(7) lists. What they put
// into lists finds room that was made in `new`: a socket stands once in each, and reports of received
// bytes are no more than buffers.
unsafe impl Source for Sockets {
    fn collect(&mut self, sink: &mut EventSink<'_>) {
        // As in `begin`.
        let _ = self.kernel.run_task_work();
        loop {
            while let Some(report) = self.kernel.next_raw() {
                match report.token().kind() {
                    OpKind::Watch => self.changed(report, sink),
                    OpKind::Stream => self.received(report, sink),
                    OpKind::Wake => self.woken = Some(report),
                    // That something had ended before it was cancelled.
                    _ => {}
                }
            }
            self.begin();
            // What was begun may have something to tell at once.
            if self.kernel.raw_pending() == 0 {
                break;
            }
        }
        self.call_listeners(sink);
    }

    fn queued(&self) -> u32 {
        let unnotified = |listener: &&SocketId| self.table.has_news(**listener);
        let listeners = self.listeners.iter().filter(unnotified).count();
        self.kernel.raw_pending() + self.waiting.len() as u32 + listeners as u32
    }

    fn origins(&self) -> u32 {
        self.table.max()
    }

    fn groups(&self) -> Groups {
        self.groups
    }

    fn revalidate(&mut self, event: Event) -> Option<Event> {
        let Some(socket) = SocketId::of(&event) else { return Some(event) };
        if event.kind == EventType::ACCEPT {
            return self.accept(socket);
        }
        let entry = self.table.get(socket)?;
        let state = match &entry.fd {
            Some(fd) if event.kind == EventType::READY && !entry.failed => {
                let news = mem::take(&mut entry.news);
                let now = state(fd.as_fd()).unwrap_or(news);
                if now & news == 0 { 0 } else { now }
            }
            _ => entry.news,
        };
        (state != 0).then_some(Event { state, ..event })
    }

    fn regrouped(&mut self, kind: EventType) {
        for listener in self.listeners.iter().filter(|_| kind == EventType::ACCEPT) {
            if let Some(entry) = self.table.get(*listener) {
                entry.news |= IN;
            }
        }
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn maintain(&mut self) {
        self.maintain_ring();
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<(), Error> {
        let was_woken = self.woken.is_some();
        self.maintain_ring();
        if was_woken {
            // Only now is another wake heard; what it was for is looked at before anybody sleeps.
            return Ok(());
        }
        self.kernel.turn(until).map_err(|fault| broken(&fault))
    }
}
