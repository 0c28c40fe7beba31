//! What the ring reports of sockets, and what events are made of it.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, SocketFlags};
use shared_ring::nonblocking::{is_lost_peer, is_table_full};
use shared_ring::{
    Errno, Fault, Fd, Kernel, Kind, Mode, Reported, Submit, System, UringConfig, UringKernel, Waker,
};

use super::places::{Place, Places, Role};
use super::reports::{Pieces, Reports};
use super::{Received, Socket, SocketConfig};
use crate::{Error, Event, EventType, Group, Groups, Intake, Source, Unusable};

const IN: u32 = libc::POLLIN as u32;
const ERR: u32 = libc::POLLERR as u32;
const RDHUP: u32 = libc::POLLRDHUP as u32;

/// A source of events: the sockets that are given to it. All its memory is taken at the start.
///
/// What is done with them is done by methods of [`Evtctl`](crate::Evtctl).
///
/// ```
/// use send_core::{EventType, Evtctl, Group, Groups, Socket, SocketConfig, Sockets};
/// use std::net::{TcpListener, TcpStream};
///
/// # if Sockets::new(&SocketConfig::default()).is_err() { return Ok(()) }
/// let mut send = Evtctl::with_source(100, Sockets::new(&SocketConfig::default())?)?;
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let client = TcpStream::connect(listener.local_addr()?)?;
/// send.set_group(EventType::ACCEPT, Some(Group::FIRST))?;
/// // Accepted sockets are watched, in the group that follows.
/// send.auto_accept(listener, Some(Group::FIRST.next()))?;
/// send.wait(Groups::ALL, None)?;
/// let event = send.next_event().expect("it has waited for one");
/// let connection = Socket::of(&event).expect("an event of a socket");
/// assert_eq!(send.send(connection, b"hello")?, Some(5));
/// # drop(client);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sockets {
    /// It goes before the sockets, of which it holds some.
    pub(super) kernel: UringKernel,
    pub(super) places: Places,
    pub(super) listeners: Vec<Socket>,
    /// What was received, and not made out.
    reports: Reports,
    /// Of that, what sockets have left that are gone.
    stale: Pieces,
    /// Sockets that the ring has to be told of.
    waiting: VecDeque<Socket>,
    /// Sockets that found no receive buffer.
    dry: VecDeque<Socket>,
    /// The waker's report, which is made out before the next wait.
    woken: Option<Reported>,
    /// Groups that were given to sockets so far.
    pub(super) groups: Groups,
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").field("groups", &self.groups).finish_non_exhaustive()
    }
}

/// Most connections, gone before they were accepted, that one event looks at.
const LOST: u32 = 64;

impl Sockets {
    /// Room for sockets, over a ring of the calling thread.
    ///
    /// # Errors
    /// When the ring can't be set up, with the reason in words, or there can't be so many.
    pub fn new(config: &SocketConfig) -> Result<Self, Unusable> {
        config.check()?;
        let &SocketConfig { sockets, buffers, buffer_size } = config;
        let ring = UringConfig { mode: Mode::Cooperative, operations: 1, buffers, buffer_size };
        let room = || VecDeque::with_capacity(sockets as usize);
        Ok(Sockets {
            kernel: UringKernel::new(&ring)?,
            places: Places::new(sockets),
            listeners: Vec::with_capacity(sockets as usize),
            reports: Reports::new(buffers.into()),
            stale: Pieces::default(),
            waiting: room(),
            dry: room(),
            woken: None,
            groups: Groups::NONE,
        })
    }

    /// Takes a socket in, which tells of itself from now on.
    pub(super) fn adopt(&mut self, fd: OwnedFd, role: Role, group: Group) -> Result<Socket, Error> {
        if self.places.is_full() {
            return Err(Error::TooManySockets);
        }
        // SAFETY: it is open until the call is over.
        let lent = unsafe { Fd::lent(fd.as_fd()) };
        let signals = self.kernel.host_mut().signal_on_arrival(lent);
        signals.map_err(|e| Error::System("a socket's signal", e.raw_os_error()))?;
        let socket = self.places.put(fd, role, group).ok_or(Error::TooManySockets)?;
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
            self.waiting.append(&mut self.dry);
        }
        while let Some(socket) = self.waiting.front().copied() {
            if let Some(Place { fd: Some(fd), role, .. }) = self.places.get(socket) {
                let token = socket.token(kind(*role));
                // SAFETY: it stays in its place until the kernel has been told of its end (`release`), or is
                // dropped: it goes before the sockets.
                let lent = unsafe { Fd::lent(fd.as_fd()) };
                if !self.kernel.begin(token, lent) {
                    if !self.kernel.hand_over().unwrap_or(false) {
                        return;
                    }
                    continue;
                }
            }
            self.waiting.pop_front();
        }
        // A kernel that can't be used any more says so at the next wait.
        let _ = self.kernel.hand_over();
    }

    /// Makes out what the waker has brought, outside signal handlers.
    fn hear(&mut self) {
        if let Some(woken) = self.woken.take() {
            // SAFETY: `take_in` had it from this kernel, and has put it here once.
            unsafe { self.kernel.make_out(woken) };
        }
    }

    /// Does what can't be done in a signal handler: what the waker has brought, and giving receive
    /// buffers back, which an interrupted application may be dropping.
    fn settle(&mut self) {
        self.hear();
        while let Some(report) = self.reports.pop(&mut self.stale) {
            // SAFETY: as above, and it is of a stream.
            drop(unsafe { self.kernel.bytes(report) });
        }
        self.kernel.give_back();
        self.begin();
    }

    /// A socket's state was reported.
    fn changed(&mut self, report: Reported, intake: &mut Intake<'_>) {
        let socket = Socket::of_token(report.token());
        let Some(place) = self.places.get(socket) else { return };
        match u32::try_from(report.result()) {
            Ok(state) => {
                place.news |= state;
                if !report.goes_on() {
                    self.waiting.push_back(socket);
                }
            }
            // It is not tried again, or it might fail to no end.
            Err(_) => {
                place.news |= ERR;
                place.failed = ERR;
            }
        }
        if place.role == Role::Watched {
            intake.tell(socket.slot(), place.group, event(EventType::READY, socket, place));
        }
    }

    /// Bytes were received, or are no more.
    fn received(&mut self, report: Reported, intake: &mut Intake<'_>) {
        let socket = Socket::of_token(report.token());
        let Some(place) = self.places.get(socket) else {
            if report.has_buffer() {
                self.reports.push(&mut self.stale, report);
            }
            return;
        };
        if report.result() == -libc::ENOBUFS {
            return self.dry.push_back(socket);
        }
        let is_end = report.result() <= 0;
        if report.has_buffer() {
            let to = if is_end { &mut self.stale } else { &mut place.pieces };
            // There is room for as many as there are buffers.
            self.reports.push(to, report);
        }
        if is_end {
            place.end = Some(-report.result());
            place.news |= if report.result() == 0 { IN | RDHUP } else { ERR };
        } else {
            place.news |= IN;
            if !report.goes_on() {
                self.waiting.push_back(socket);
            }
        }
        intake.tell(socket.slot(), place.group, event(EventType::DATA, socket, place));
    }

    /// Has an event wait for every listener that may have connections.
    fn call_listeners(&mut self, intake: &mut Intake<'_>) {
        let Some(group) = intake.group(EventType::ACCEPT) else { return };
        for listener in &self.listeners {
            if let Some(place) = self.places.get(*listener).filter(|place| place.news != 0) {
                place.news = 0;
                intake.tell(listener.slot(), group, event(EventType::ACCEPT, *listener, place));
            }
        }
    }

    /// Accepts a listener's next connection, as its event is delivered (SEND 3.6.1).
    fn accept(&mut self, listener: Socket) -> Option<Event> {
        for _ in 0..LOST {
            let full = self.places.is_full();
            let place = self.places.get(listener)?;
            let (Some(fd), Role::Listens(inherited)) = (&place.fd, place.role) else { return None };
            let accepted = match full {
                // One that is released makes room.
                true => Err(Errno::NFILE),
                false if place.failed != 0 => Err(Errno::INVAL),
                false => net::accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK),
            };
            match accepted {
                Ok(fd) => {
                    // There may be more.
                    place.news = IN;
                    return self.arrived(fd, inherited);
                }
                Err(Errno::AGAIN) => return None,
                Err(errno) if is_lost_peer(errno) || errno == Errno::INTR => {}
                Err(errno)
                    if is_table_full(errno) || [Errno::NOBUFS, Errno::NOMEM].contains(&errno) =>
                {
                    // It is tried again at the next look.
                    place.news = IN;
                    return None;
                }
                Err(_) => {
                    place.failed = ERR;
                    let failed = event(EventType::ACCEPT, listener, place);
                    return Some(Event { fd: -1, state: ERR, ..failed });
                }
            }
        }
        // The others are for the next look.
        if let Some(place) = self.places.get(listener) {
            place.news = IN;
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
            let _ = self.kernel.host_mut().signal_on_arrival(lent);
        }
        let socket = self.places.put(fd, role, inherited.unwrap_or(Group::FIRST))?;
        if role == Role::Watched {
            self.waiting.push_back(socket);
        }
        let place = self.places.get(socket)?;
        Some(Event { state, ..event(EventType::ACCEPT, socket, place) })
    }

    /// The next of what a socket has received.
    pub(super) fn next_piece(&mut self, socket: Socket) -> Result<Received, Error> {
        self.settle();
        let place = self.places.get(socket).filter(|place| place.role == Role::Receives);
        let place = place.ok_or(Error::NoSuchSocket)?;
        if let Some(report) = self.reports.pop(&mut place.pieces) {
            if place.pieces.is_empty() && place.end.is_none() {
                place.news = 0;
            }
            // SAFETY: `received` had it from this kernel, of a stream, and has put it there once.
            let bytes = unsafe { self.kernel.bytes(report) };
            return Ok(bytes.map_or(Received::Nothing, Received::Bytes));
        }
        place.news = 0;
        match place.end {
            None => Ok(Received::Nothing),
            Some(0) => Ok(Received::End),
            Some(errno) => Err(Error::System("receiving", errno)),
        }
    }

    /// Lets a socket go. Nothing is told of it any more.
    pub(super) fn release(
        &mut self,
        socket: Socket,
        intake: &mut Intake<'_>,
    ) -> Result<OwnedFd, Error> {
        let place = self.places.get(socket).ok_or(Error::NoSuchSocket)?;
        let role = place.role;
        if role != Role::Held {
            let ended =
                self.kernel.end(socket.token(kind(role))).map_err(|fault| broken(&fault))?;
            // What the kernel has not been told might reach another socket of that number.
            if !ended {
                return Err(Error::Busy);
            }
        }
        intake.withdraw(socket.slot());
        self.listeners.retain(|known| *known != socket);
        for list in [&mut self.waiting, &mut self.dry] {
            list.retain(|known| *known != socket);
        }
        let mut left = self.places.get(socket).map(|place| place.pieces).unwrap_or_default();
        while let Some(report) = self.reports.pop(&mut left) {
            // SAFETY: as in `next_piece`.
            drop(unsafe { self.kernel.bytes(report) });
        }
        let fd = self.places.take(socket).ok_or(Error::NoSuchSocket)?;
        if role != Role::Held {
            // It is a socket that could be set to signal.
            // SAFETY: as in `adopt`.
            let lent = unsafe { Fd::lent(fd.as_fd()) };
            let _ = self.kernel.host_mut().signal_no_more(lent);
        }
        // Its buffers are for the others.
        self.settle();
        Ok(fd)
    }
}

impl Drop for Sockets {
    /// The kernel would wait for the waker's report.
    fn drop(&mut self) {
        self.hear();
    }
}

/// Under what kind of token a socket reports.
fn kind(role: Role) -> Kind {
    if role == Role::Receives { Kind::Stream } else { Kind::Watch }
}

/// An event of a socket.
fn event(kind: EventType, socket: Socket, place: &Place) -> Event {
    let fd = place.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    Event { fd, state: place.news, value: socket.value(), ..Event::new(kind) }
}

/// The state of a socket, in the format of poll(2), which may be called in a signal handler.
fn state(fd: BorrowedFd<'_>) -> Option<u32> {
    let wanted = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
    let mut polled = [PollFd::from_borrowed_fd(fd, wanted)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok()?;
    Some(polled[0].revents().bits().into())
}

fn broken(fault: &Fault) -> Error {
    Error::System(fault.doing, fault.error.raw_os_error().unwrap_or(0))
}

// SAFETY: `take_in`, `queued` and `confirm` call of the kernel what says that it may be called in a
// signal handler, and accept(2), poll(2) and fcntl(2), which signal-safety(7) lists. What they put
// into lists finds room that was made in `new`: a socket stands once in each, and reports of received
// bytes are no more than buffers.
unsafe impl Source for Sockets {
    fn take_in(&mut self, intake: &mut Intake<'_>) {
        // As in `begin`.
        let _ = self.kernel.catch_up();
        loop {
            while let Some(report) = self.kernel.reported() {
                match report.token().kind() {
                    Kind::Watch => self.changed(report, intake),
                    Kind::Stream => self.received(report, intake),
                    Kind::Wake => self.woken = Some(report),
                    // That something had ended before it was cancelled.
                    _ => {}
                }
            }
            self.begin();
            // What was begun may have something to tell at once.
            if self.kernel.unreported() == 0 {
                break;
            }
        }
        self.call_listeners(intake);
    }

    fn queued(&self) -> u32 {
        let untold = |listener: &&Socket| self.places.has_news(**listener);
        let listeners = self.listeners.iter().filter(untold).count();
        self.kernel.unreported() + self.waiting.len() as u32 + listeners as u32
    }

    fn origins(&self) -> u32 {
        self.places.most()
    }

    fn groups(&self) -> Groups {
        self.groups
    }

    fn confirm(&mut self, event: Event) -> Option<Event> {
        let Some(socket) = Socket::of(&event) else { return Some(event) };
        if event.kind == EventType::ACCEPT {
            return self.accept(socket);
        }
        let place = self.places.get(socket)?;
        let state = match &place.fd {
            Some(fd) if event.kind == EventType::READY => {
                let news = mem::take(&mut place.news);
                let now = state(fd.as_fd()).map_or(news, |state| state | place.failed);
                if now & news == 0 { 0 } else { now }
            }
            _ => place.news,
        };
        (state != 0).then_some(Event { state, ..event })
    }

    fn regrouped(&mut self, kind: EventType) {
        for listener in self.listeners.iter().filter(|_| kind == EventType::ACCEPT) {
            if let Some(place) = self.places.get(*listener) {
                place.news |= IN;
            }
        }
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn tidy(&mut self) {
        self.settle();
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<(), Error> {
        let was_woken = self.woken.is_some();
        self.settle();
        if was_woken {
            // Only now is another wake heard; what it was for is looked at before anybody sleeps.
            return Ok(());
        }
        self.kernel.turn(until).map_err(|fault| broken(&fault))
    }
}
