//! Sockets as a source: conversion of ring reports to events.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, SocketFlags};
use shared_ring::author::System;
use shared_ring::nonblocking::{is_aborted_accept, is_fd_limit};
use shared_ring::uring::RawCompletion;
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{Errno, Fd, Kernel, KernelError, OpKind, Submit, Waker};

use super::reports::{ReportList, Reports};
use super::table::{Role, SocketEntry, SocketTable};
use super::{Received, SendSetupError, SocketConfig, SocketId};
use crate::control_block::{EventSink, Source};
use crate::{Error, Event, EventType, Group, Groups};

const IN: u32 = libc::POLLIN as u32;
const ERR: u32 = libc::POLLERR as u32;
const RDHUP: u32 = libc::POLLRDHUP as u32;

/// A source of events: sockets. All its memory is allocated at creation.
///
/// Its sockets are used by methods of [`ControlBlock`](crate::ControlBlock).
///
/// ```
/// use send_core::control_block::{ControlBlock, Group, Groups};
/// use send_core::sockets::{SocketId, SocketConfig, Sockets};
/// use send_core::EventType;
/// use std::net::{TcpListener, TcpStream};
///
/// # if Sockets::new(&SocketConfig::default()).is_err() { return Ok(()) }
/// let mut send = ControlBlock::with_source(100, Sockets::new(&SocketConfig::default())?)?;
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let client = TcpStream::connect(listener.local_addr()?)?;
/// send.set_group(EventType::ACCEPT, Some(Group::FIRST))?;
/// // Accepted sockets are watched in the next group.
/// send.auto_accept(listener, Some(Group::FIRST.next()))?;
/// send.wait(Groups::ALL, None)?;
/// let event = send.next_event().expect("wait returned true");
/// let connection = SocketId::of(&event).expect("an event of a socket");
/// assert_eq!(send.send(connection, b"hello")?, Some(5));
/// # drop(client);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sockets {
    /// Dropped before the sockets, as it uses their descriptors.
    pub(super) kernel: UringKernel,
    pub(super) table: SocketTable,
    pub(super) listeners: Vec<SocketId>,
    /// Reports of received data that are not decoded.
    reports: Reports,
    /// Such reports of released sockets.
    stale: ReportList,
    /// Sockets whose operation must be started.
    waiting: VecDeque<SocketId>,
    /// Sockets that found no receive buffer.
    without_buffer: VecDeque<SocketId>,
    /// The waker's report, decoded before the next wait.
    wake_report: Option<RawCompletion>,
    /// Groups used by sockets so far.
    pub(super) groups: Groups,
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").field("groups", &self.groups).finish_non_exhaustive()
    }
}

/// Maximum number of aborted connections skipped for one event.
const MAX_ABORTED_ACCEPTS: u32 = 64;

impl Sockets {
    /// Creates a ring and storage for sockets. It is bound to the calling thread.
    ///
    /// # Errors
    /// Returns an error if the configuration is invalid or the ring cannot be created.
    pub fn new(config: &SocketConfig) -> Result<Self, SendSetupError> {
        config.check()?;
        let &SocketConfig { sockets, buffers, buffer_size } = config;
        let ring = UringConfig::new(Mode::Cooperative, 1, buffers, buffer_size);
        let room = || VecDeque::with_capacity(sockets as usize);
        Ok(Sockets {
            kernel: UringKernel::new(&ring)?,
            table: SocketTable::new(sockets),
            listeners: Vec::with_capacity(sockets as usize),
            reports: Reports::new(buffers.into()),
            stale: ReportList::default(),
            waiting: room(),
            without_buffer: room(),
            wake_report: None,
            groups: Groups::NONE,
        })
    }

    /// Adds a socket and starts its operation.
    pub(super) fn adopt(
        &mut self,
        fd: OwnedFd,
        role: Role,
        group: Group,
    ) -> Result<SocketId, Error> {
        if self.table.is_full() {
            return Err(Error::TooManySockets);
        }
        // SAFETY: it is open until the call has returned.
        let lent = unsafe { Fd::lent(fd.as_fd()) };
        let signals = self.kernel.host_mut().enable_sigio(lent);
        signals.map_err(|e| Error::System("a socket's signal", e.raw_os_error()))?;
        let socket = self.table.put(fd, role, group).ok_or(Error::TooManySockets)?;
        if role == Role::Watched || role == Role::Receives {
            self.groups = self.groups | group.into();
        }
        self.waiting.push_back(socket);
        self.start_waiting();
        Ok(socket)
    }

    /// Starts operations of waiting sockets. May be called in a signal handler.
    fn start_waiting(&mut self) {
        // Restart sockets that found no receive buffer, now that some are free.
        if u32::from(self.kernel.buffers()) > self.reports.len() {
            self.waiting.append(&mut self.without_buffer);
        }
        while let Some(socket) = self.waiting.front().copied() {
            if let Some(SocketEntry { fd: Some(fd), role, .. }) = self.table.get(socket) {
                let token = socket.token(kind(*role));
                // SAFETY: it stays open until the kernel was asked to end the operation (`release`),
                // or until `self` is dropped: the kernel is dropped before the sockets.
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
        // A kernel fault is reported by the next wait.
        let _ = self.kernel.flush();
    }

    /// Decodes the waker's report, outside signal handlers.
    fn decode_wake(&mut self) {
        if let Some(wake_report) = self.wake_report.take() {
            // SAFETY: `collect` got it from this kernel and stored it here once.
            unsafe { self.kernel.decode(wake_report) };
        }
    }

    /// Performs work that a signal handler cannot: decodes the waker's report, and returns receive
    /// buffers, which an interrupted application may be dropping.
    fn maintain_ring(&mut self) {
        self.decode_wake();
        while let Some(report) = self.reports.pop(&mut self.stale) {
            // SAFETY: as above, and it is a report of a stream.
            drop(unsafe { self.kernel.bytes(report) });
        }
        self.kernel.give_back();
        self.start_waiting();
    }

    /// Handles a report of a socket's state.
    fn state_reported(&mut self, report: RawCompletion, sink: &mut EventSink<'_>) {
        let socket = SocketId::of_token(report.token());
        let Some(entry) = self.table.get(socket) else { return };
        match u32::try_from(report.result()) {
            Ok(state) => {
                entry.unreported |= state;
                if !report.has_more() {
                    self.waiting.push_back(socket);
                }
            }
            // It is not restarted, as it might fail endlessly.
            Err(_) => {
                entry.unreported |= ERR;
                entry.failed = true;
            }
        }
        if entry.role == Role::Watched {
            sink.raise(socket.slot(), entry.group, event(EventType::READY, socket, entry));
        }
    }

    /// Handles a report of received bytes or the end of the stream.
    fn data_reported(&mut self, report: RawCompletion, sink: &mut EventSink<'_>) {
        let socket = SocketId::of_token(report.token());
        let Some(entry) = self.table.get(socket) else {
            if report.has_buffer() {
                self.reports.push(&mut self.stale, report);
            }
            return;
        };
        if report.result() == -libc::ENOBUFS {
            return self.without_buffer.push_back(socket);
        }
        let is_end = report.result() <= 0;
        if report.has_buffer() {
            let to = if is_end { &mut self.stale } else { &mut entry.reports };
            // There is room for as many reports as buffers.
            self.reports.push(to, report);
        }
        if is_end {
            entry.end = Some(-report.result());
            entry.unreported |= if report.result() == 0 { IN | RDHUP } else { ERR };
        } else {
            entry.unreported |= IN;
            if !report.has_more() {
                self.waiting.push_back(socket);
            }
        }
        sink.raise(socket.slot(), entry.group, event(EventType::DATA, socket, entry));
    }

    /// Raises an event for every listener that may have connections.
    fn raise_accepts(&mut self, sink: &mut EventSink<'_>) {
        let Some(group) = sink.group(EventType::ACCEPT) else { return };
        for listener in &self.listeners {
            if let Some(entry) = self.table.get(*listener).filter(|entry| entry.unreported != 0) {
                entry.unreported = 0;
                sink.raise(listener.slot(), group, event(EventType::ACCEPT, *listener, entry));
            }
        }
    }

    /// Accepts a listener's next connection, when its event is delivered (SEND 3.6.1).
    fn accept(&mut self, listener: SocketId) -> Option<Event> {
        for _ in 0..MAX_ABORTED_ACCEPTS {
            let full = self.table.is_full();
            let entry = self.table.get(listener)?;
            let (Some(fd), Role::Listens(inherited)) = (&entry.fd, entry.role) else { return None };
            let accepted = match full {
                // Retried after a socket was released.
                true => Err(Errno::NFILE),
                false if entry.failed => Err(Errno::INVAL),
                false => net::accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK),
            };
            match accepted {
                Ok(fd) => {
                    // More connections may be waiting.
                    entry.unreported = IN;
                    return self.add_accepted(fd, inherited);
                }
                Err(Errno::AGAIN) => return None,
                Err(errno) if is_aborted_accept(errno) || errno == Errno::INTR => {}
                Err(errno)
                    if is_fd_limit(errno)
                        || [Errno::NOBUFS, Errno::NOMEM, Errno::PERM].contains(&errno) =>
                {
                    // Retried at the next poll.
                    entry.unreported = IN;
                    return None;
                }
                Err(_) => {
                    entry.failed = true;
                    let failed = event(EventType::ACCEPT, listener, entry);
                    return Some(Event { fd: -1, state: ERR, ..failed });
                }
            }
        }
        // The others are accepted at the next poll.
        if let Some(entry) = self.table.get(listener) {
            entry.unreported = IN;
        }
        None
    }

    /// Adds an accepted connection, which inherits its listener's group (SIOCEVTCLONE).
    fn add_accepted(&mut self, fd: OwnedFd, inherited: Option<Group>) -> Option<Event> {
        let state = state(fd.as_fd()).unwrap_or(0);
        let role = if inherited.is_some() { Role::Watched } else { Role::Held };
        if role == Role::Watched {
            // If this fails, its events are delivered at the next entry into the kernel.
            // SAFETY: the descriptor is open until the call has returned.
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

    /// Returns the next data received by a socket.
    pub(super) fn next_received(&mut self, socket: SocketId) -> Result<Received, Error> {
        self.maintain_ring();
        let entry = self.table.get(socket).filter(|entry| entry.role == Role::Receives);
        let entry = entry.ok_or(Error::NoSuchSocket)?;
        if let Some(report) = self.reports.pop(&mut entry.reports) {
            if entry.reports.is_empty() && entry.end.is_none() {
                entry.unreported = 0;
            }
            // SAFETY: `received` got it from this kernel, for a stream, and stored it there once.
            let bytes = unsafe { self.kernel.bytes(report) };
            return Ok(bytes.map_or(Received::WouldBlock, Received::Bytes));
        }
        entry.unreported = 0;
        match entry.end {
            None => Ok(Received::WouldBlock),
            Some(0) => Ok(Received::End),
            Some(errno) => Err(Error::System("receiving", errno)),
        }
    }

    /// Removes a socket. It is the source of no further events.
    pub(super) fn release(
        &mut self,
        socket: SocketId,
        sink: &mut EventSink<'_>,
    ) -> Result<OwnedFd, Error> {
        let entry = self.table.get(socket).ok_or(Error::NoSuchSocket)?;
        let role = entry.role;
        if role != Role::Held {
            let is_submitted =
                self.kernel.end(socket.token(kind(role))).map_err(|fault| system_error(&fault))?;
            // An operation that was not ended might affect another socket with this descriptor.
            if !is_submitted {
                return Err(Error::Busy);
            }
        }
        sink.withdraw(socket.slot());
        self.listeners.retain(|other| *other != socket);
        for list in [&mut self.waiting, &mut self.without_buffer] {
            list.retain(|other| *other != socket);
        }
        let mut remaining = self.table.get(socket).map(|entry| entry.reports).unwrap_or_default();
        while let Some(report) = self.reports.pop(&mut remaining) {
            // SAFETY: as in `next_piece`.
            drop(unsafe { self.kernel.bytes(report) });
        }
        let fd = self.table.take(socket).ok_or(Error::NoSuchSocket)?;
        if role != Role::Held {
            disable_sigio(&mut self.kernel, fd.as_fd());
        }
        // Its receive buffers are free for other sockets.
        self.maintain_ring();
        Ok(fd)
    }
}

impl Drop for Sockets {
    /// Decodes the waker's report, for which the kernel would wait otherwise, and ends the signals: other
    /// descriptors of the sockets may stay open.
    fn drop(&mut self) {
        self.decode_wake();
        for (fd, _) in self.table.sockets().filter(|(_, role)| *role != Role::Held) {
            disable_sigio(&mut self.kernel, fd.as_fd());
        }
    }
}

/// Ends the signals of a socket. They were enabled, so this is expected to succeed.
fn disable_sigio(kernel: &mut UringKernel, fd: BorrowedFd<'_>) {
    // SAFETY: the descriptor is open until the call has returned.
    let lent = unsafe { Fd::lent(fd) };
    let _ = kernel.host_mut().disable_sigio(lent);
}

/// Returns the kind of token under which a socket reports.
fn kind(role: Role) -> OpKind {
    if role == Role::Receives { OpKind::Stream } else { OpKind::Watch }
}

/// Returns an event of a socket.
fn event(kind: EventType, socket: SocketId, entry: &SocketEntry) -> Event {
    let fd = entry.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    Event { fd, state: entry.unreported, value: socket.value(), ..Event::new(kind) }
}

/// Returns a socket's state in the format of poll(2). May be called in a signal handler.
fn state(fd: BorrowedFd<'_>) -> Option<u32> {
    let events = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
    let mut polled = [PollFd::from_borrowed_fd(fd, events)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok()?;
    Some(polled[0].revents().bits().into())
}

fn system_error(fault: &KernelError) -> Error {
    Error::System(fault.context, fault.error.raw_os_error().unwrap_or(0))
}

// SAFETY: `collect`, `queued` and `revalidate` call kernel methods that are documented as callable
// in a signal handler; accept(2), poll(2) and fcntl(2), which signal-safety(7) lists; and ioctl(2)
// with `FIOASYNC`, which it does not list, but which is a plain system call on Linux. The lists
// have the capacity allocated in `new`: a socket is in each at most once, and there are no more
// reports of received bytes than buffers.
unsafe impl Source for Sockets {
    fn collect(&mut self, sink: &mut EventSink<'_>) {
        // Errors are handled as in `begin`.
        let _ = self.kernel.run_task_work();
        loop {
            while let Some(report) = self.kernel.next_raw() {
                match report.token().kind() {
                    OpKind::Watch => self.state_reported(report, sink),
                    OpKind::Stream => self.data_reported(report, sink),
                    OpKind::Wake => self.wake_report = Some(report),
                    // A completion of an operation that ended before its cancellation.
                    _ => {}
                }
            }
            self.start_waiting();
            // The started operations may have completed at once.
            if self.kernel.raw_pending() == 0 {
                break;
            }
        }
        self.raise_accepts(sink);
    }

    fn queued(&self) -> u32 {
        let unnotified = |listener: &&SocketId| self.table.has_unreported(**listener);
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
                let unreported = mem::take(&mut entry.unreported);
                let now = state(fd.as_fd()).unwrap_or(unreported);
                if now & unreported == 0 { 0 } else { now }
            }
            _ => entry.unreported,
        };
        (state != 0).then_some(Event { state, ..event })
    }

    fn regrouped(&mut self, kind: EventType) {
        for listener in self.listeners.iter().filter(|_| kind == EventType::ACCEPT) {
            if let Some(entry) = self.table.get(*listener) {
                entry.unreported |= IN;
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
        let had_wake_report = self.wake_report.is_some();
        self.maintain_ring();
        if had_wake_report {
            // Another wake-up is reported only from now on. The caller polls before it sleeps.
            return Ok(());
        }
        self.kernel.turn(until).map_err(|fault| system_error(&fault))
    }
}
