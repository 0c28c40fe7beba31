//! The simulated machine from without: its system calls.

use std::cell::{RefCell, RefMut};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;

use super::disk::TOP;
use super::fault::Fault;
use super::peer::{Net, Next, Peer};
use super::plan::{Plan, Refuses};
use super::stream::Owner;
use super::work::Works;
use super::world::{What, World};
use crate::nonblocking::Part;
use crate::{
    BufferSizes, Fd, File, Host, ListenOptions, Meta, Outcome, Socket, System, Told, Waker, Work,
};

/// A simulated machine; clones share it.
///
/// Its sockets and its numbers of descriptors are for itself and its clones. They are no descriptors of this
/// process, where the same numbers may stand for others.
#[derive(Clone)]
pub struct Machine(Rc<RefCell<World>>, Option<Refuses>);

/// The owner of an open file.
struct Opened(Machine, Fd);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.world().close(self.1);
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What rule was broken, if any.
    pub failure: Option<String>,
    /// How many steps were taken.
    pub steps: u64,
    /// How often each fault happened, in the order of [`Fault::ALL`].
    pub faults: [u64; Fault::COUNT],
    /// What happened, line by line, if that was wanted.
    pub trace: Vec<String>,
}

/// A peer that does what it is told.
#[derive(Clone)]
pub struct Hand {
    machine: Machine,
    peer: u32,
}

impl Hand {
    /// Does something on the network, at once.
    pub fn with<T>(&self, act: impl FnOnce(&mut Net<'_>) -> T) -> T {
        act(&mut Net::new(&mut self.machine.world(), self.peer))
    }

    /// Listens at an address.
    ///
    /// # Panics
    /// When somebody listens there already.
    pub fn listen(&self, at: SocketAddr) -> SocketAddr {
        let owner = Owner::Peer(self.peer);
        self.machine.world().listen(at, 64, owner).expect("the address is free").1
    }
}

/// Waits to be told.
struct Idle;

impl Peer for Idle {
    fn step(&mut self, _net: &mut Net<'_>) -> Next {
        Next::Wait
    }

    fn waits_for(&self) -> String {
        "one that does what it is told".to_owned()
    }
}

impl Machine {
    /// A machine without files or peers.
    ///
    /// # Panics
    /// When the plan makes no sense: no room, no steps, or no descriptors.
    pub fn new(plan: &Plan) -> Self {
        assert!(plan.room != Some(0), "a connection has room for a byte at least");
        assert!(plan.steps > 0 && plan.descriptors > 0, "a run has steps and descriptors");
        Machine(Rc::new(RefCell::new(World::new(plan))), plan.refuses)
    }

    pub(super) fn world(&self) -> RefMut<'_, World> {
        self.0.borrow_mut()
    }

    pub(super) fn refuses(&self, what: Refuses) -> bool {
        self.1 == Some(what)
    }

    /// Adds a file, and the directories that its path names.
    pub fn add_file(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.world().disk.add(path, bytes.into());
    }

    /// Adds a peer.
    pub fn add_peer(&self, peer: impl Peer + 'static) {
        let _ = self.world().add_peer(Box::new(peer), false);
    }

    /// Adds a peer that only serves, at an address, and is not waited for at the end.
    ///
    /// # Panics
    /// When somebody listens there already.
    pub fn add_server(&self, at: SocketAddr, peer: impl Peer + 'static) {
        let mut world = self.world();
        let peer = world.add_peer(Box::new(peer), true);
        world.listen(at, 64, Owner::Peer(peer)).expect("a peer has an address of its own");
    }

    /// Adds a peer that does what it is told.
    pub fn hand(&self) -> Hand {
        let peer = self.world().add_peer(Box::new(Idle), true);
        Hand { machine: self.clone(), peer }
    }

    /// Says what is done when all peers but servers are [done](super::Next::Done): nothing else
    /// stops the program. It is done in the middle of a step, so it has to leave the machine alone.
    /// Without peers it is never done.
    pub fn at_end(&self, finale: impl FnOnce() + 'static) {
        self.world().set_finale(Box::new(finale));
    }

    /// Notes that the program has broken a rule.
    pub fn fail(&self, what: impl Into<String>) {
        self.world().fail(what);
    }

    /// Whether a signal interrupts the application now. What it stands for has landed then.
    pub fn signalled(&self) -> bool {
        let mut world = self.world();
        let signalled = world.dice.fault(Fault::Signal);
        if signalled {
            world.enter();
        }
        signalled
    }

    /// What rule was broken, if any.
    pub fn failure(&self) -> Option<String> {
        let mut world = self.world();
        world.look_for_freed();
        world.failure().map(str::to_owned)
    }

    /// Ends a run: the program is over, and everything it had must be closed and at its end.
    pub fn verdict(&self) -> Verdict {
        let mut world = self.world();
        world.look_for_freed();
        let open = world.open_descriptors();
        if !open.is_empty() {
            world.fail(format!("descriptors are left open: {}", open.join(", ")));
        }
        if !world.unfinished.is_empty() {
            let unfinished = world.unfinished.join(", ");
            world.fail(format!("operations have not come to their ends: {unfinished}"));
        }
        Verdict {
            failure: world.failure().map(str::to_owned),
            steps: world.steps(),
            faults: world.dice.counts(),
            trace: world.trace.take(),
        }
    }

    /// `n`, or less.
    pub(super) fn short(&self, n: usize, fault: Fault) -> usize {
        let mut world = self.world();
        if n > 1 && world.dice.fault(fault) { 1 + world.dice.below(n) } else { n }
    }

    fn interrupted(&self) -> Result<(), Errno> {
        if self.world().dice.fault(Fault::Interrupted) { Err(Errno::INTR) } else { Ok(()) }
    }

    /// Receives as recv(2) does: less than there is room for means that there is no more, which
    /// whoever is told of edges relies on (epoll(7)).
    pub(super) fn receive(&self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        let mut world = self.world();
        let end = world.connected(fd, "receive")?;
        let mut at = 0;
        let received = world.receive(end, into.len(), |piece| {
            into[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        });
        world.note(|| format!("receive {fd:?}: {received:?}"));
        received
    }

    /// Sends what lies in several places, as far as there is room.
    pub(super) fn send_all(&self, fd: Fd, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let whole: usize = pieces.iter().map(|piece| piece.len()).sum();
        let most = self.short(whole, Fault::ShortSend);
        let mut world = self.world();
        let end = world.connected(fd, "send")?;
        let mut sent = 0;
        for piece in pieces {
            let piece = &piece[..piece.len().min(most - sent)];
            match world.send(end, piece) {
                Ok(n) if n < piece.len() => {
                    sent += n;
                    break;
                }
                Ok(n) => sent += n,
                Err(errno) if sent == 0 => {
                    world.note(|| format!("send {fd:?}: {errno:?}"));
                    return Err(errno);
                }
                Err(_) => break,
            }
            if sent == most {
                break;
            }
        }
        if sent < whole {
            world.of(end).ask_for_room(end.side);
        }
        world.note(|| format!("send {fd:?}: {sent} of {whole} bytes"));
        Ok(sent)
    }

    /// Opens what a path leads to.
    pub(super) fn open(&self, root: Fd, path: &[u8]) -> Result<Fd, Errno> {
        let mut world = self.world();
        let root = world.file(root, "open")?;
        let failed = world.dice.fault(Fault::DiskError);
        let node = if failed { Err(Errno::IO) } else { world.disk.find(root, path) };
        world.note(|| format!("open {}: {node:?}", path.escape_ascii()));
        world.open(What::File(node?))
    }

    /// Reads part of a file.
    pub(super) fn read(&self, part: Part) -> Result<Vec<u8>, Errno> {
        let mut world = self.world();
        let node = world.file(part.file, "read")?;
        if world.dice.fault(Fault::DiskError) {
            return Err(Errno::IO);
        }
        if world.dice.fault(Fault::FileChanges) {
            world.change(node);
        }
        let mut bytes = world.disk.read(node, part.offset, part.len)?.to_vec();
        if bytes.len() > 1 && world.dice.fault(Fault::ShortRead) {
            let n = 1 + world.dice.below(bytes.len());
            bytes.truncate(n);
        }
        Ok(bytes)
    }

    /// Does file work, however long that takes.
    pub(super) fn do_work(&self, work: &Work) -> Result<Outcome, Errno> {
        match work {
            Work::Open(root, path, _) => {
                let file = self.file(Socket::of(self.open(*root, path.to_bytes())?));
                let meta = self.meta(file.fd())?;
                Ok(Outcome::Opened(Box::new((file, meta))))
            }
            Work::Stat(root, path, _) => {
                let file = self.file(Socket::of(self.open(*root, path.to_bytes())?));
                self.meta(file.fd()).map(Outcome::Stat)
            }
            Work::List(root, path, _) => {
                let file = self.file(Socket::of(self.open(*root, path.to_bytes())?));
                let mut world = self.world();
                let node = world.file(file.fd(), "list")?;
                let listing = world.disk.list(node);
                drop(world);
                listing.map(Outcome::Listed)
            }
            Work::Read(file, offset, len) => {
                let mut bytes = Vec::new();
                while bytes.len() < *len as usize {
                    let offset = offset + bytes.len() as u64;
                    let len = len - bytes.len() as u32;
                    let more = self.read(Part { file: *file, offset, len })?;
                    if more.is_empty() {
                        break;
                    }
                    bytes.extend_from_slice(&more);
                }
                Ok(Outcome::Read(bytes.into()))
            }
        }
    }
}

impl Host for Machine {
    fn listen(
        &mut self,
        at: SocketAddr,
        options: &ListenOptions,
    ) -> io::Result<(Socket, SocketAddr)> {
        self.may_be_signalled(false);
        let mut world = self.world();
        let (listener, at) = world.listen(at, options.backlog as usize, Owner::Queue)?;
        let fd = world.open(What::Listener(listener))?;
        world.set_listener_owner(listener, Owner::Descriptor(fd.raw() as u32));
        Ok((Socket::of(fd), at))
    }

    fn accept(&mut self, listener: &Socket) -> Result<Socket, Errno> {
        self.may_be_signalled(false);
        self.interrupted()?;
        self.world().accept(listener.number()).map(Socket::of)
    }

    fn backlog(&mut self, listener: &Socket, length: u32) -> io::Result<()> {
        self.may_be_signalled(false);
        let mut world = self.world();
        if let What::Listener(listener) = *world.what(listener.number(), "listen")? {
            world.set_backlog(listener, length as usize);
        }
        Ok(())
    }

    fn socket(
        &mut self,
        _peer: SocketAddr,
        _from: Option<IpAddr>,
        _buffers: BufferSizes,
    ) -> io::Result<Socket> {
        self.may_be_signalled(false);
        Ok(Socket::of(self.world().open(What::Fresh)?))
    }

    fn shutdown(&mut self, socket: &Socket) {
        self.may_be_signalled(false);
        let mut world = self.world();
        if let Ok(end) = world.connected(socket.number(), "shutdown") {
            world.note(|| format!("shutdown {socket:?}"));
            world.finish(end);
        }
    }

    fn reset_on_close(&mut self, socket: &Socket) {
        self.may_be_signalled(false);
        self.world().reset_on_close(socket.number());
    }

    fn discard(&mut self, socket: Socket) {
        self.may_be_signalled(false);
        self.world().close(socket.number());
    }

    fn peer(&self, socket: &Socket) -> Option<SocketAddr> {
        self.may_be_signalled(false);
        let mut world = self.world();
        let end = world.connected(socket.number(), "getpeername").ok()?;
        Some(world.of(end).address[usize::from(end.other().side)])
    }

    fn unacknowledged(&self, socket: &Socket) -> u64 {
        self.may_be_signalled(false);
        let mut world = self.world();
        let Ok(end) = world.connected(socket.number(), "ioctl") else { return 0 };
        world.of(end).unacknowledged(end.side) as u64
    }

    fn unread(&self, socket: &Socket) -> u64 {
        self.may_be_signalled(false);
        let mut world = self.world();
        let Ok(end) = world.connected(socket.number(), "ioctl") else { return 0 };
        world.of(end).readable(end.side) as u64
    }

    fn waited(&self, socket: &Socket) -> Option<Duration> {
        self.may_be_signalled(false);
        let mut world = self.world();
        let (end, now) = (world.connected(socket.number(), "getsockopt").ok()?, world.now);
        let connection = world.of(end);
        let heard = connection.heard[usize::from(end.side)];
        (!connection.is_broken()).then(|| now.saturating_sub(heard))
    }

    fn directory(&mut self, path: &Path) -> io::Result<File> {
        self.may_be_signalled(false);
        let mut world = self.world();
        let node = match path.as_os_str().as_encoded_bytes() {
            b"/" => TOP,
            path => world.disk.find(TOP, path.strip_prefix(b"/").unwrap_or(path))?,
        };
        let fd = world.open(What::File(node))?;
        drop(world);
        Ok(self.file(Socket::of(fd)))
    }

    fn clock(&self) -> Instant {
        self.world().instant()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.world().wall()
    }

    fn processor_time(&self) -> Duration {
        self.world().now / 2
    }

    fn random(&mut self) -> u64 {
        self.world().dice.number()
    }
}

impl System for Machine {
    type Offload = Works;

    fn waker(&mut self, _told: Told) -> io::Result<Waker> {
        let mut world = self.world();
        let counter = Arc::new(AtomicU64::new(0));
        let fd = world.open(What::Event(Arc::clone(&counter)))?;
        world.add_bell(fd, Arc::clone(&counter));
        Ok(Waker::played(fd, counter))
    }

    fn offload(&self, waker: Waker) -> Works {
        self.world().set_worker(waker);
        Works::new(self.clone())
    }

    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        self.receive(fd, into)
    }

    fn send(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        self.send_all(fd, &[IoSlice::new(bytes)])
    }

    fn sendmsg(&mut self, fd: Fd, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        self.send_all(fd, slices)
    }

    fn sendfile(&mut self, fd: Fd, part: Part) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        let bytes = self.read(part)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        self.send_all(fd, &[IoSlice::new(&bytes)])
    }

    fn is_cold(&mut self, _file: Fd, _offset: u64) -> bool {
        self.may_be_signalled(true);
        self.world().dice.fault(Fault::Cold)
    }

    fn connect(&mut self, fd: Fd, to: SocketAddr) -> Result<(), Errno> {
        self.may_be_signalled(true);
        self.world().begin_connect(fd, to)?;
        Err(Errno::INPROGRESS)
    }

    fn connected(&mut self, fd: Fd) -> Result<(), Errno> {
        self.may_be_signalled(true);
        match self.world().what(fd, "getsockopt")? {
            What::Connected(_) => Ok(()),
            What::Refused(errno) => Err(*errno),
            _ => Err(Errno::INPROGRESS),
        }
    }

    fn file_work(&mut self, work: &Work) -> Result<Outcome, Errno> {
        self.may_be_signalled(true);
        if matches!(work, Work::List(..)) || self.world().dice.fault(Fault::Cold) {
            return Err(Errno::AGAIN);
        }
        self.do_work(work)
    }

    fn signal_on_arrival(&mut self, _: Fd) -> Result<(), Errno> {
        self.interrupts();
        Ok(())
    }

    fn signal_no_more(&mut self, _: Fd) -> Result<(), Errno> {
        Ok(())
    }

    fn signalled(&self) -> bool {
        Machine::signalled(self)
    }

    fn meta(&self, fd: Fd) -> Result<Meta, Errno> {
        self.may_be_signalled(true);
        let mut world = self.world();
        let node = world.file(fd, "fstat")?;
        Ok(world.disk.meta(node))
    }

    fn file(&self, opened: Socket) -> File {
        let fd = opened.number();
        File::owned_by(fd, Opened(self.clone(), fd))
    }
}
