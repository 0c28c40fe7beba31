//! Sockets that tell of themselves by events (SEND 3.6).

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{RecvFlags, SendFlags, getpeername, recv, send};
use rustix::process::{Resource, getrlimit};
use shared_ring::{
    Completion, Errno, Fd, Kind, Op, Outcome, Posted, Reported, Ring, RxBuf, Submit, System, Token,
    UringConfig, UringKernel,
};

use crate::queue::HolderId;
use crate::ring::RingSource;
use crate::{Error, Event, EventType, Evtctl, Group, Intake, Unusable};

/// A socket whose state is told by events of the type [`READY`](EventType::READY), whose `value` is
/// that of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Socket {
    slot: u32,
    generation: u32,
}

impl Socket {
    pub(crate) fn new(token: Token) -> Self {
        Socket { slot: token.slot(), generation: token.generation() }
    }

    fn token(self) -> Token {
        Token::new(Kind::Watch, self.slot, self.generation)
    }

    fn receive_token(self) -> Token {
        Token::new(Kind::Receive, self.slot, self.generation)
    }

    /// What its events carry as `value`.
    pub fn value(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }
}

/// A connection that was accepted as its event was delivered.
#[derive(Debug)]
pub struct Accepted {
    /// Its descriptor, which is non-blocking.
    pub fd: OwnedFd,
    /// What can be done with it now, in the format of poll(2).
    pub state: u32,
    /// The address of the other end, if it is still there.
    pub peer: Option<SocketAddr>,
}

/// A listener whose connections are accepted by themselves.
#[derive(Debug)]
pub(crate) struct Listening {
    listener: TcpListener,
    /// An accept is in flight.
    armed: bool,
    /// It was cancelled.
    ending: bool,
}

/// A place for a socket that tells of itself.
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) generation: u32,
    pub(crate) bound: Option<Bound>,
    /// A receive is in flight, perhaps one that was cancelled. The place is in use as long.
    receives: bool,
}

/// A socket, its one event, and what was received for it, if that is wanted.
pub(crate) struct Bound {
    pub(crate) fd: Fd,
    pub(crate) holder: HolderId,
    pub(crate) group: Group,
    received: Option<Pieces>,
}

/// Pieces of a stream, and why it has ended.
type Pieces = VecDeque<Result<RxBuf, Errno>>;

impl<R: Ring + 'static> RingSource<R> {
    fn bound(&mut self, socket: Socket) -> Option<&mut Bound> {
        let current = |w: &&mut Watched| w.generation % Token::GENERATIONS == socket.generation;
        self.watched.get_mut(socket.slot as usize).filter(current)?.bound.as_mut()
    }

    fn unbind(&mut self, socket: Socket) -> Option<Bound> {
        self.bound(socket)?;
        let watched = &mut self.watched[socket.slot as usize];
        watched.generation = watched.generation.wrapping_add(1);
        let bound = watched.bound.take()?;
        let receives = watched.receives;
        if bound.received.is_none() {
            self.kernel.unwatch(socket.token());
        } else if receives {
            self.kernel.cancel(socket.receive_token());
        }
        if !receives {
            self.vacant.push(socket.slot);
        }
        Some(bound)
    }

    fn receive(&mut self, socket: Socket) -> Result<(), Error> {
        let Some(Bound { fd, .. }) = self.bound(socket) else { return Ok(()) };
        let op = Op::Receive { fd: *fd };
        let posted = self.kernel.submit(socket.receive_token(), op);
        self.watched[socket.slot as usize].receives = posted.is_ok();
        posted.map(drop).map_err(|_| Error::Full)
    }

    /// Accepts, or does not: what is in flight is cancelled, at once.
    pub(crate) fn set_accepting(&mut self, on: bool) -> Result<(), Error> {
        let mut changed = false;
        for (slot, listening) in self.listeners.iter_mut().enumerate() {
            let token = Token::new(Kind::Accept, slot as u32, 0);
            if on && !listening.armed {
                let listener = Fd::lent(listening.listener.as_fd());
                let posted = self.kernel.submit(token, Op::Accept { listener, per_turn: None });
                listening.armed = matches!(posted, Ok(Posted::InFlight));
                changed = true;
            } else if !on && listening.armed && !listening.ending {
                self.kernel.cancel(token);
                listening.ending = true;
                changed = true;
            }
        }
        if changed {
            let flushed = self.kernel.flush();
            flushed.map_err(|fault| self.broken(fault))?;
        }
        Ok(())
    }

    /// An accept of this crate's own has told something. It may be called in a signal handler: an
    /// accept has no memory to be given back.
    pub(crate) fn accept_told(&mut self, report: Reported, intake: &mut Intake<'_>) {
        let slot = report.token().slot();
        // SAFETY: `take_in` has just got it from the kernel, and nobody else has it.
        let made_out = unsafe { self.kernel.make_out(report) };
        let Some(Completion { outcome, last, .. }) = made_out else { return };
        if let Outcome::Accepted(fd) = outcome {
            self.arrived.put(fd.raw());
            let event = Event { fd: fd.raw(), value: slot.into(), ..Event::new(EventType::ACCEPT) };
            intake.post(event);
        }
        if let Some(listening) = self.listeners.get_mut(slot as usize).filter(|_| last) {
            (listening.armed, listening.ending) = (false, false);
        }
    }

    /// Bytes have come for a socket. It may be called in a signal handler: the buffers were there
    /// before, and so is the room for as many.
    pub(crate) fn data_told(&mut self, report: Reported, intake: &mut Intake<'_>) {
        let slot = report.token().slot();
        // SAFETY: `take_in` has just got it from the kernel, and nobody else has it.
        let made_out = unsafe { self.kernel.make_out(report) };
        let Some(Completion { token, outcome, last }) = made_out else { return };
        let Some(watched) = self.watched.get_mut(slot as usize) else { return };
        watched.receives &= !last;
        if last && watched.bound.is_none() {
            self.vacant.push(slot);
        }
        if watched.generation % Token::GENERATIONS != token.generation() {
            return;
        }
        let Some(Bound { fd, holder, group, received: Some(received) }) = &mut watched.bound else {
            return;
        };
        received.push_back(match outcome {
            Outcome::Received(bytes) => Ok(bytes),
            Outcome::Failed(errno, _) => Err(errno),
            _ => Err(Errno::NODATA),
        });
        let value = Socket { slot, generation: token.generation() }.value();
        let state = if last { libc::POLLRDHUP } else { libc::POLLIN } as u32;
        let event = Event { fd: fd.raw(), state, value, ..Event::new(EventType::DATA) };
        intake.generate_in(*holder, *group, event);
    }
}

/// Connections that were accepted and not taken: a bit for each descriptor that there may be.
pub(crate) struct Arrived(Box<[u64]>);

impl Arrived {
    pub(crate) fn new() -> Self {
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX).min(1 << 20);
        Arrived((0..most.div_ceil(64)).map(|_| 0).collect())
    }

    fn place(&mut self, fd: i32) -> Option<(&mut u64, u64)> {
        let at = usize::try_from(fd).ok()?;
        Some((self.0.get_mut(at / 64)?, 1 << (at % 64)))
    }

    /// Notes one. What can't be noted can't be taken, and stays open.
    fn put(&mut self, fd: i32) {
        if let Some((word, bit)) = self.place(fd) {
            *word |= bit;
        }
    }

    /// Takes one; false when it is not there.
    fn take(&mut self, fd: i32) -> bool {
        let Some((word, bit)) = self.place(fd) else { return false };
        let there = *word & bit != 0;
        *word &= !bit;
        there
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        for fd in 0..64 * self.0.len() as i32 {
            if self.take(fd) {
                // SAFETY: it was accepted, and nobody has taken it.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
}

impl Evtctl<RingSource> {
    /// DEF_ECB for the events of a ring of this machine: connections, sockets, and whatever is posted.
    ///
    /// # Errors
    /// As [`Evtctl::define`]; and when io_uring can't be used, with the reason in words.
    pub fn with_ring(events: u32, config: &UringConfig) -> Result<Self, Unusable> {
        let source = RingSource::new(UringKernel::new(config)?, Some(config.buffers));
        Ok(Evtctl::with_source(events, source)?)
    }
}

impl<R: Ring<System: Clone> + 'static> Evtctl<RingSource<R>> {
    /// SIOCAUTOACCEPT: has connections accepted as their events are delivered; never while the masks
    /// let none through. They interrupt.
    ///
    /// # Errors
    /// Those of fcntl(2), and of the ring.
    pub fn auto_accept(&mut self, listener: TcpListener) -> Result<(), Error> {
        self.signals_from(listener.as_fd())?;
        self.critically(|source| {
            source.listeners.push(Listening { listener, armed: false, ending: false });
        });
        self.allow_again()
    }

    /// What an event of the type [`ACCEPT`](EventType::ACCEPT) has brought, once; nothing of other
    /// events. Connections that nobody takes are closed with the block.
    pub fn accepted(&mut self, event: Event) -> Option<Accepted> {
        let is_new = event.kind == EventType::ACCEPT
            && self.critically(|source| source.arrived.take(event.fd));
        // SAFETY: it was accepted, and nobody has taken it before.
        let fd = is_new.then(|| unsafe { OwnedFd::from_raw_fd(event.fd) })?;
        let peer = getpeername(&fd).ok().flatten();
        let peer = peer.and_then(|address| SocketAddr::try_from(address).ok());
        Some(Accepted { state: state(fd.as_fd()), fd, peer })
    }

    /// Binds a socket to a group (F_SETSIG, SEND 3.6.2): from now on events tell of its state, and
    /// interrupt. Memory for its one event is taken now.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn watch(&mut self, socket: OwnedFd, group: Group) -> Result<Socket, Error> {
        let nonblocking =
            fcntl_getfl(&socket).and_then(|f| fcntl_setfl(&socket, f | OFlags::NONBLOCK));
        nonblocking.map_err(|e| Error::System("a socket's flags", e.raw_os_error()))?;
        self.signals_from(socket.as_fd())?;
        Ok(self.bind(socket, group, None))
    }

    /// Binds a socket to a group, and has it received from: events of the type
    /// [`DATA`](EventType::DATA) tell of what has come, which [`data`](Evtctl::data) takes.
    ///
    /// # Errors
    /// Those of fcntl(2), and [`Error::Full`] when as many operations are in flight as there may be.
    pub fn receive(&mut self, socket: OwnedFd, group: Group) -> Result<Socket, Error> {
        self.signals_from(socket.as_fd())?;
        let room = usize::from(self.ask(|source| source.buffers.unwrap_or(0))) + 2;
        let socket = self.bind(socket, group, Some(VecDeque::with_capacity(room)));
        let receiving = self.critically(|source| source.receive(socket));
        if receiving.is_err() {
            drop(self.unwatch(socket));
        }
        receiving.map(|()| socket)
    }

    /// The next piece of what a socket has received; none when there is nothing yet.
    ///
    /// # Errors
    /// What ended it: `ENODATA` at the end of the stream, and those of recv(2).
    pub fn data(&mut self, socket: Socket) -> io::Result<Option<RxBuf>> {
        let taken = self.critically(|source| {
            let bound = source.bound(socket)?;
            Some(bound.received.as_mut().and_then(VecDeque::pop_front))
        });
        let taken = taken.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        Ok(taken.transpose()?)
    }

    fn bind(&mut self, socket: OwnedFd, group: Group, received: Option<Pieces>) -> Socket {
        let (fd, holder) = (Fd::from_owned(socket), self.hold());
        self.critically(|source| {
            let slot = source.vacant.pop().unwrap_or(source.watched.len() as u32);
            let watches = received.is_none();
            // Room for every place, as they are given back in a signal handler, too.
            source.vacant.reserve(source.watched.len() + 1);
            let watched = source.watched.at(slot as usize);
            watched.bound = Some(Bound { fd, holder, group, received });
            let socket = Socket { slot, generation: watched.generation % Token::GENERATIONS };
            if watches {
                source.kernel.watch(socket.token(), fd);
            }
            socket
        })
    }

    /// Ends that; what waits is withdrawn. The socket comes back, unless that was done before.
    pub fn unwatch(&mut self, socket: Socket) -> Option<OwnedFd> {
        let bound = self.critically(|source| source.unbind(socket))?;
        self.release(bound.holder);
        // SAFETY: it was given by its owner, and is given back once.
        Some(unsafe { OwnedFd::from_raw_fd(bound.fd.raw()) })
    }

    /// Receives. When that has emptied the socket, an event that says it can be read is withdrawn if
    /// it was not delivered yet.
    ///
    /// # Errors
    /// Those of recv(2), and `EBADF` for a socket that is not watched.
    pub fn recv(&mut self, socket: Socket, into: &mut [u8]) -> io::Result<usize> {
        let (fd, holder) = self.watched(socket)?;
        let wanted = into.len();
        // SAFETY: the descriptor is open until `unwatch`.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd.raw()) };
        let received = recv(borrowed, into, RecvFlags::DONTWAIT).map(|(n, _)| n);
        let emptied = match received {
            Ok(n) => n > 0 && n < wanted,
            Err(errno) => errno == Errno::AGAIN,
        };
        if emptied {
            self.amend(holder, PollFlags::IN);
        }
        Ok(received?)
    }

    /// Sends. When that has filled the socket, an event that says it can be written to is withdrawn if
    /// it was not delivered yet.
    ///
    /// # Errors
    /// Those of send(2), and `EBADF` for a socket that is not watched.
    pub fn send(&mut self, socket: Socket, bytes: &[u8]) -> io::Result<usize> {
        let (fd, holder) = self.watched(socket)?;
        // SAFETY: the descriptor is open until `unwatch`.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd.raw()) };
        let sent = send(borrowed, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        if sent.map_or_else(|errno| errno == Errno::AGAIN, |n| n < bytes.len()) {
            self.amend(holder, PollFlags::OUT);
        }
        Ok(sent?)
    }

    fn watched(&mut self, socket: Socket) -> io::Result<(Fd, HolderId)> {
        let found = self.critically(|source| source.bound(socket).map(|b| (b.fd, b.holder)));
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Has a descriptor interrupt this thread.
    fn signals_from(&mut self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        let fd = Fd::lent(fd);
        let set = self.critically(|source| source.kernel.host_mut().signal_on_arrival(fd));
        set.map_err(|e| Error::System("a descriptor's signal", e.raw_os_error()))
    }
}

/// The state of a descriptor, in the format of poll(2).
fn state(fd: BorrowedFd<'_>) -> u32 {
    let wanted = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
    let mut polled = [PollFd::from_borrowed_fd(fd, wanted)];
    match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) => polled[0].revents().bits().into(),
        Err(_) => 0,
    }
}

impl<R: Ring + 'static> Drop for RingSource<R> {
    /// Closes the sockets that were not given back.
    fn drop(&mut self) {
        for bound in self.watched.iter().filter_map(|watched| watched.bound.as_ref()) {
            // SAFETY: it was given by its owner and not given back.
            drop(unsafe { OwnedFd::from_raw_fd(bound.fd.raw()) });
        }
    }
}
