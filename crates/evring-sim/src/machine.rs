//! The simulated machine: its system calls and its interface for tests.

use std::cell::{RefCell, RefMut};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;
use shared_ring::author::{CallJob, EventCounter, FileJob, System, WakeSignal};
use shared_ring::files::{Access, File, FileOp, FileOutcome, Metadata, PathAt, WriteAt};
use shared_ring::nonblocking::FileRange;
use shared_ring::poller::Readiness;
use shared_ring::sockets::{BufferSizes, ListenOptions};
use shared_ring::{Fd, Host, Socket, Waker};

use crate::disk::ROOT;
use crate::fault::Fault;
use crate::memory::MemoryHold;
use crate::number;
use crate::peer::{Net, Next, Peer};
use crate::plan::{Plan, Unsupported};
use crate::state::{DescriptorKind, MachineUsage, SimState, readiness};
use crate::stream::Owner;
use crate::work::SimOffload;

/// A simulated machine; clones share it.
///
/// Its descriptors are valid only for itself and its clones. They are not descriptors of this
/// process, where the same numbers may name other files.
#[derive(Clone)]
pub struct Machine(Rc<RefCell<SimState>>, Option<Unsupported>);

/// The counter of a waker.
#[derive(Debug)]
struct SimCounter(Fd, Arc<AtomicU64>);

impl EventCounter for SimCounter {
    fn fd(&self) -> Fd {
        self.0
    }

    fn add_one(&self) {
        self.1.fetch_add(1, Ordering::AcqRel);
    }

    fn reset(&self) {
        self.1.store(0, Ordering::Release);
    }
}

/// The owner of an open file.
struct FileOwner(Machine, Fd);

impl Drop for FileOwner {
    fn drop(&mut self) {
        self.0.state().close(self.1);
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The first rule that was broken, if any.
    pub failure: Option<String>,
    /// Number of steps taken.
    pub steps: u64,
    /// Number of times that each fault happened, in the order of [`Fault::ALL`].
    pub faults: [u64; Fault::COUNT],
    /// The events of the run, one line each, if [`Plan::trace_steps`] is set.
    pub trace: Vec<String>,
}

/// A scripted peer.
#[derive(Clone)]
pub struct ManualPeer {
    machine: Machine,
    peer: u32,
}

impl ManualPeer {
    /// Performs an action on the network, at once.
    pub fn with<T>(&self, act: impl FnOnce(&mut Net<'_>) -> T) -> T {
        act(&mut Net::new(&mut self.machine.state(), self.peer))
    }

    /// Listens at an address and returns it.
    ///
    /// # Panics
    /// If the address is in use.
    pub fn listen(&self, at: SocketAddr) -> SocketAddr {
        let owner = Owner::Peer(self.peer);
        self.machine.state().listen(at, 64, owner).expect("the address is free").1
    }
}

/// A peer that performs no actions itself.
struct Idle;

impl Peer for Idle {
    fn step(&mut self, _net: &mut Net<'_>) -> Next {
        Next::Wait
    }

    fn waits_for(&self) -> String {
        "a scripted peer".to_owned()
    }
}

impl Machine {
    /// Creates a machine without files or peers.
    ///
    /// # Panics
    /// If the plan is invalid: no room, no steps, or no descriptors.
    pub fn new(plan: &Plan) -> Self {
        assert!(plan.room != Some(0), "room must be at least 1");
        assert!(plan.steps > 0 && plan.descriptors > 0, "steps and descriptors must be at least 1");
        Machine(Rc::new(RefCell::new(SimState::new(plan))), plan.unsupported)
    }

    pub(super) fn state(&self) -> RefMut<'_, SimState> {
        self.0.borrow_mut()
    }

    pub(super) fn unsupported(&self, feature: Unsupported) -> bool {
        self.1 == Some(feature)
    }

    /// Adds a file and its parent directories.
    pub fn add_file(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.state().disk.add(path, bytes.into());
    }

    /// Removes a file from the page cache. From then on reads and hints decide which of its pages are there. If the file
    /// `is_damaged`, reads from the disk fail.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn evict(&self, path: &str, is_damaged: bool) {
        let mut state = self.state();
        let node = state.disk.find(ROOT, path.as_bytes()).expect("the file exists");
        let len = state.disk.meta(node).len;
        state.page_cache.evict(node, len, is_damaged);
    }

    /// Makes the machine read nothing ahead in files that were evicted.
    pub fn read_nothing_ahead(&self) {
        self.state().page_cache.reads_nothing_ahead = true;
    }

    /// Returns the number of bytes that were read from the disk, of files that were evicted.
    pub fn disk_bytes(&self) -> u64 {
        self.state().page_cache.disk_bytes
    }

    /// Returns the number of sends that waited for the disk.
    pub fn blocking_sends(&self) -> u64 {
        self.state().page_cache.blocking_sends
    }

    pub(super) fn is_cold_now(&self, part: Option<FileRange>) -> bool {
        let mut state = self.state();
        let known = part.and_then(|part| {
            let node = state.file(part.file, "look").ok()?;
            state.page_cache.is_cold(node, part)
        });
        known.unwrap_or_else(|| state.rng.fault(Fault::Cold))
    }

    /// Adds a peer.
    pub fn add_peer(&self, peer: impl Peer + 'static) {
        let _ = self.state().add_peer(Box::new(peer), false);
    }

    /// Adds a peer that serves at an address. The run does not wait for it at the end.
    ///
    /// # Panics
    /// If the address is in use.
    pub fn add_server(&self, at: SocketAddr, peer: impl Peer + 'static) {
        let mut state = self.state();
        let peer = state.add_peer(Box::new(peer), true);
        state.listen(at, 64, Owner::Peer(peer)).expect("the address is free");
    }

    /// Adds a scripted peer.
    pub fn manual_peer(&self) -> ManualPeer {
        let peer = self.state().add_peer(Box::new(Idle), true);
        ManualPeer { machine: self.clone(), peer }
    }

    /// Sets the function to call when all peers except servers are [done](super::Next::Done),
    /// usually to stop the program. It is called in the middle of a step, so it must not use the
    /// machine. Without peers it is never called.
    pub fn on_end(&self, on_end: impl FnOnce() + 'static) {
        self.state().set_on_end(Box::new(on_end));
    }

    /// Fails the run: the program has broken a rule.
    pub fn fail(&self, message: impl Into<String>) {
        self.state().fail(message);
    }

    /// Returns the first rule that was broken, if any.
    pub fn failure(&self) -> Option<String> {
        let mut state = self.state();
        state.check_freed();
        state.failure().map(str::to_owned)
    }

    /// Ends a run. It fails if the program has left descriptors open or operations in flight, except
    /// file operations that hang, those queued behind them, and their files.
    pub fn verdict(&self) -> RunReport {
        let mut state = self.state();
        state.check_freed();
        if state.failure().is_none() && !state.abandoned_memory.iter().all(MemoryHold::is_untouched)
        {
            state.fail("the program has written to the memory of an abandoned operation");
        }
        let open = state.open_descriptors();
        if !open.is_empty() {
            state.fail(format!("descriptors were left open: {}", open.join(", ")));
        }
        if !state.unfinished.is_empty() {
            let unfinished = state.unfinished.join(", ");
            state.fail(format!("operations have not completed: {unfinished}"));
        }
        let verdict = RunReport {
            failure: state.failure().map(str::to_owned),
            steps: state.steps(),
            faults: state.rng.counts(),
            trace: state.trace.take(),
        };
        if !state.abandoned_files.is_empty() {
            state.clear();
        }
        verdict
    }

    /// Returns `n`, or less if the fault happens.
    pub(super) fn shorten(&self, n: usize, fault: Fault) -> usize {
        let mut state = self.state();
        if n > 1 && state.rng.fault(fault) { 1 + state.rng.below(n) } else { n }
    }

    fn interrupted(&self) -> Result<(), Errno> {
        if self.state().rng.fault(Fault::Interrupted) { Err(Errno::INTR) } else { Ok(()) }
    }

    /// Receives as recv(2) does: a short receive means that no more bytes have arrived, which
    /// edge-triggered callers rely on (epoll(7)).
    pub(super) fn receive(&self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.state();
        let end = state.connected(fd, "receive")?;
        let mut at = 0;
        let received = state.receive(end, into.len(), |piece| {
            into[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        });
        state.note(|| format!("receive {fd:?}: {received:?}"));
        received
    }

    /// Sends from several buffers, as much as there is room for.
    pub(super) fn send_all(&self, fd: Fd, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let whole: usize = pieces.iter().map(|piece| piece.len()).sum();
        let max = self.shorten(whole, Fault::ShortSend);
        let mut state = self.state();
        let end = state.connected(fd, "send")?;
        let mut sent = 0;
        for piece in pieces {
            let piece = &piece[..piece.len().min(max - sent)];
            match state.send(end, piece) {
                Ok(n) if n < piece.len() => {
                    sent += n;
                    break;
                }
                Ok(n) => sent += n,
                Err(errno) if sent == 0 => {
                    state.note(|| format!("send {fd:?}: {errno:?}"));
                    return Err(errno);
                }
                Err(_) => break,
            }
            if sent == max {
                break;
            }
        }
        if sent < whole {
            state.connection_of(end).arm_writable(end.side);
        }
        state.note(|| format!("send {fd:?}: {sent} of {whole} bytes"));
        Ok(sent)
    }

    pub(super) fn open(&self, root: Fd, path: &[u8], access: Access) -> Result<Fd, Errno> {
        let mut state = self.state();
        let root = state.file(root, "open")?;
        let node = match state.rng.fault(Fault::DiskError) {
            true => Err(Errno::IO),
            false => state.disk.open(root, path, access),
        };
        state.note(|| format!("open {}: {node:?}", path.escape_ascii()));
        state.open(DescriptorKind::File(node?, access != Access::Read))
    }

    pub(super) fn read(&self, part: FileRange) -> Result<Vec<u8>, Errno> {
        let mut bytes = self.read_part(part)?;
        let mut state = self.state();
        if bytes.len() > 1 && state.rng.fault(Fault::ShortRead) {
            let n = 1 + state.rng.below(bytes.len());
            bytes.truncate(n);
        }
        Ok(bytes)
    }

    /// Reads all bytes that the file has of a part.
    pub(super) fn read_part(&self, part: FileRange) -> Result<Vec<u8>, Errno> {
        let mut state = self.state();
        let node = state.file(part.file, "read")?;
        if !state.page_cache.read(node, part) || state.rng.fault(Fault::DiskError) {
            return Err(Errno::IO);
        }
        state.page_cache.read_ahead(node, part);
        if state.rng.fault(Fault::FileChanges) {
            state.change(node);
        }
        Ok(state.disk.read(node, part.offset, part.len)?.to_vec())
    }

    /// Writes bytes to a file, or only the first ones if a fault happens. Returns their number.
    pub(super) fn write(&self, file: Fd, at: WriteAt, bytes: &[u8]) -> Result<usize, Errno> {
        let n = self.shorten(bytes.len(), Fault::ShortWrite);
        let mut state = self.state();
        let node = state.writable_file(file)?;
        if state.rng.fault(Fault::DiskError) {
            return Err(Errno::IO);
        }
        let wall = state.wall();
        state.disk.write(node, at, &bytes[..n], wall).map(|()| n)
    }

    /// Reads a part of a file, less only at its end.
    fn read_all(&self, part: FileRange) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        while bytes.len() < part.len as usize {
            let offset = part.offset + bytes.len() as u64;
            let more =
                self.read(FileRange { offset, len: part.len - bytes.len() as u32, ..part })?;
            if more.is_empty() {
                break;
            }
            bytes.extend_from_slice(&more);
        }
        Ok(bytes)
    }

    /// Performs file work at once.
    pub(super) fn do_work(&self, work: &FileJob) -> Result<FileOutcome, Errno> {
        let open = |at: &PathAt<Fd>, access| {
            let fd = self.open(at.root, at.path.to_bytes(), access)?;
            Ok(self.file(number::socket(fd)))
        };
        match work {
            FileOp::Open(at, access) => {
                let file = open(at, *access)?;
                let meta = self.meta(number::of(&file))?;
                Ok(FileOutcome::Opened(Box::new((file, meta))))
            }
            FileOp::Stat(at) => {
                self.meta(number::of(&open(at, Access::Read)?)).map(FileOutcome::Stat)
            }
            FileOp::List(at) => {
                let file = open(at, Access::Read)?;
                let mut state = self.state();
                let node = state.file(number::of(&file), "list")?;
                let listing = state.disk.list(node);
                drop(state);
                listing.map(FileOutcome::Listed)
            }
            FileOp::Read(file, range) => {
                let len = (range.end - range.start).min(u32::MAX.into()) as u32;
                let bytes = self.read_all(FileRange { file: *file, offset: range.start, len })?;
                Ok(FileOutcome::Read(bytes.into()))
            }
            FileOp::Write(write) => {
                let mut written = 0;
                while written < write.bytes.len() {
                    let at = match write.at {
                        WriteAt::End => WriteAt::End,
                        WriteAt::Offset(start) => WriteAt::Offset(start + written as u64),
                    };
                    written += self.write(write.file, at, &write.bytes[written..])?;
                }
                Ok(FileOutcome::Written)
            }
        }
    }
}

/// System calls.
impl Machine {
    /// Creates a counter, as eventfd(2) does, and a function that adds to it. A read in the event loop
    /// does not wait for it, others do.
    ///
    /// # Errors
    /// `EMFILE` at the maximum number of descriptors.
    pub fn event(&self) -> Result<(Socket, impl Fn(u64) + use<>), Errno> {
        let mut state = self.state();
        let counter = Arc::new(AtomicU64::new(0));
        let fd = state.open(DescriptorKind::Event(Arc::clone(&counter)))?;
        state.add_waker(fd, Arc::clone(&counter));
        let add = move |n| {
            counter.fetch_add(n, Ordering::AcqRel);
        };
        Ok((number::socket(fd), add))
    }

    /// Makes one of the system calls that the machine has by number: getrandom, read, pread64, and those of
    /// [`Machine::do_server_call`].
    pub(super) fn do_call(&self, job: &CallJob) -> Result<usize, Errno> {
        let [a, b, c, d, ..] = job.args;
        // SAFETY: by the promises of `Call::new` and `Call::job`, the memory at `start` has `len` bytes,
        // which are not accessed otherwise.
        let memory =
            |start: usize, len| unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) };
        let fd = number::fd(a as i32);
        match i64::from(job.number) {
            libc::SYS_getrandom => {
                let mut state = self.state();
                memory(a, b).fill_with(|| state.rng.number() as u8);
                Ok(b)
            }
            libc::SYS_read => {
                let mut state = self.state();
                match state.kind(fd, "read")? {
                    DescriptorKind::Event(counter) => match counter.swap(0, Ordering::AcqRel) {
                        _ if c < 8 => Err(Errno::INVAL),
                        0 => Err(Errno::AGAIN),
                        count => {
                            memory(b, 8).copy_from_slice(&count.to_ne_bytes());
                            Ok(8)
                        }
                    },
                    DescriptorKind::Connected(_) => {
                        drop(state);
                        self.receive(fd, memory(b, c))
                    }
                    _ => Err(Errno::INVAL),
                }
            }
            libc::SYS_pread64 => {
                let part = FileRange { file: fd, offset: d as u64, len: c as u32 };
                let bytes = self.read(part)?;
                memory(b, bytes.len()).copy_from_slice(&bytes);
                Ok(bytes.len())
            }
            // SAFETY: as above.
            _ => unsafe { self.do_server_call(job) },
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
        let mut state = self.state();
        let (listener, at) = state.listen(at, options.backlog as usize, Owner::Queue)?;
        let fd = state.open(DescriptorKind::Listener(listener))?;
        state.set_listener_owner(listener, Owner::Descriptor(fd.raw() as u32));
        Ok((number::socket(fd), at))
    }

    fn accept(&mut self, listener: &Socket) -> Result<Socket, Errno> {
        self.may_be_signalled(false);
        self.interrupted()?;
        self.state().accept(number::of(listener)).map(number::socket)
    }

    fn backlog(&mut self, listener: &Socket, length: u32) -> io::Result<()> {
        self.may_be_signalled(false);
        let mut state = self.state();
        if let DescriptorKind::Listener(listener) = *state.kind(number::of(listener), "listen")? {
            state.set_backlog(listener, length as usize);
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
        Ok(number::socket(self.state().open(DescriptorKind::Fresh)?))
    }

    fn shutdown(&mut self, socket: &Socket) {
        self.may_be_signalled(false);
        let mut state = self.state();
        if let Ok(end) = state.connected(number::of(socket), "shutdown") {
            state.note(|| format!("shutdown {socket:?}"));
            state.finish(end);
        }
    }

    fn set_unsent_limit(&mut self, socket: &Socket, bytes: u32) -> io::Result<()> {
        self.may_be_signalled(false);
        let mut state = self.state();
        let end = state.connected(number::of(socket), "setsockopt")?;
        state.connection_of(end).set_unsent_limit(end.side, bytes as usize);
        Ok(())
    }

    fn reset_on_close(&mut self, socket: &Socket) {
        self.may_be_signalled(false);
        self.state().reset_on_close(number::of(socket));
    }

    fn close_unused(&mut self, socket: Socket) {
        self.may_be_signalled(false);
        self.state().close(number::of(&socket));
    }

    fn peer_addr(&self, socket: &Socket) -> Option<SocketAddr> {
        self.may_be_signalled(false);
        let mut state = self.state();
        let end = state.connected(number::of(socket), "getpeername").ok()?;
        Some(state.connection_of(end).address[usize::from(end.other().side)])
    }

    fn unacked_bytes(&self, socket: &Socket) -> u64 {
        self.may_be_signalled(false);
        let mut state = self.state();
        let Ok(end) = state.connected(number::of(socket), "ioctl") else { return 0 };
        state.connection_of(end).unacked_bytes(end.side) as u64
    }

    fn file_metadata(&self, file: &File) -> Result<Metadata, Errno> {
        self.may_be_signalled(false);
        self.metadata(number::of(file))
    }

    fn unread(&self, socket: &Socket) -> u64 {
        self.may_be_signalled(false);
        let mut state = self.state();
        let Ok(end) = state.connected(number::of(socket), "ioctl") else { return 0 };
        state.connection_of(end).readable_bytes(end.side) as u64
    }

    fn idle_time(&self, socket: &Socket) -> Option<Duration> {
        self.may_be_signalled(false);
        let mut state = self.state();
        let (end, now) = (state.connected(number::of(socket), "getsockopt").ok()?, state.now);
        let connection = state.connection_of(end);
        let last_activity = connection.last_activity[usize::from(end.side)];
        (!connection.is_broken()).then(|| now.saturating_sub(last_activity))
    }

    fn open_directory(&mut self, path: &Path) -> io::Result<File> {
        self.may_be_signalled(false);
        let mut state = self.state();
        let node = match path.as_os_str().as_encoded_bytes() {
            b"/" => ROOT,
            path => state.disk.find(ROOT, path.strip_prefix(b"/").unwrap_or(path))?,
        };
        let fd = state.open(DescriptorKind::File(node, false))?;
        drop(state);
        Ok(self.file(number::socket(fd)))
    }

    fn clock(&self) -> Instant {
        self.state().instant()
    }

    fn wall_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.state().wall()
    }

    fn cpu_time(&self) -> Duration {
        self.state().now / 2
    }

    fn random(&mut self) -> u64 {
        self.state().rng.number()
    }
}

impl System for Machine {
    type Offload = SimOffload;

    fn waker(&mut self, _flag: WakeSignal) -> io::Result<Waker> {
        let mut state = self.state();
        let counter = Arc::new(AtomicU64::new(0));
        let fd = state.open(DescriptorKind::Event(Arc::clone(&counter)))?;
        state.add_waker(fd, Arc::clone(&counter));
        Ok(Waker::of(SimCounter(fd, counter)))
    }

    fn offload(&self, waker: Waker) -> SimOffload {
        self.state().set_worker(waker);
        SimOffload::new(self.clone())
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

    fn receive_from(&mut self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        self.receive_datagram(fd, into)
    }

    fn send_to(&mut self, fd: Fd, slices: &[IoSlice<'_>], to: SocketAddr) -> Result<(), Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        self.send_datagram(fd, slices, to)
    }

    fn is_writable(&mut self, fd: Fd) -> Result<bool, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        Ok(readiness(&mut self.state(), fd).contains(Readiness::WRITE))
    }

    fn sendfile(&mut self, fd: Fd, part: FileRange) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.interrupted()?;
        {
            let mut state = self.state();
            let node = state.file(part.file, "sendfile")?;
            let end = state.connected(fd, "sendfile")?;
            // A full socket comes before the disk.
            let has_room = state.connection_of(end).is_writable(end.side);
            if has_room && state.page_cache.is_cold(node, part) == Some(true) {
                state.page_cache.blocking_sends += 1;
            }
        }
        let bytes = self.read(part)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        self.send_all(fd, &[IoSlice::new(&bytes)])
    }

    fn is_cold(&mut self, part: FileRange) -> bool {
        self.may_be_signalled(true);
        self.is_cold_now(Some(part))
    }

    fn set_read_ahead(&mut self, file: Fd, on: bool) {
        self.may_be_signalled(true);
        let mut state = self.state();
        if state.file(file, "fadvise").is_ok() {
            state.page_cache.set_read_ahead(file, on);
        }
    }

    fn connect(&mut self, fd: Fd, to: SocketAddr) -> Result<(), Errno> {
        self.may_be_signalled(true);
        self.state().start_connect(fd, to)?;
        Err(Errno::INPROGRESS)
    }

    fn connected(&mut self, fd: Fd) -> Result<(), Errno> {
        self.may_be_signalled(true);
        match self.state().kind(fd, "getsockopt")? {
            DescriptorKind::Connected(_) => Ok(()),
            DescriptorKind::Refused(errno) => Err(*errno),
            _ => Err(Errno::INPROGRESS),
        }
    }

    fn file_work(&mut self, work: &FileJob) -> Result<FileOutcome, Errno> {
        self.may_be_signalled(true);
        let part = match work {
            FileOp::Read(file, range) => {
                let len = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
                Some(FileRange { file: *file, offset: range.start, len })
            }
            _ => None,
        };
        if work.may_always_block() || self.is_cold_now(part) {
            return Err(Errno::AGAIN);
        }
        self.do_work(work)
    }

    fn read_cached(&mut self, part: FileRange, into: &mut [u8]) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        if self.is_cold_now(Some(part)) {
            return Err(Errno::AGAIN);
        }
        let bytes = self.read_all(part)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn call(&mut self, job: &CallJob) -> Result<usize, Errno> {
        self.may_be_signalled(true);
        self.do_call(job)
    }

    fn enable_sigio(&mut self, _: Fd) -> Result<(), Errno> {
        self.interrupts();
        Ok(())
    }

    fn disable_sigio(&mut self, _: Fd) -> Result<(), Errno> {
        Ok(())
    }

    /// Peers may run first.
    fn signalled(&self) -> bool {
        let mut state = self.state();
        let signalled = state.rng.fault(Fault::Signal);
        if signalled {
            state.enter();
        }
        signalled
    }

    fn meta(&self, fd: Fd) -> Result<Metadata, Errno> {
        self.may_be_signalled(true);
        self.metadata(fd)
    }

    fn file(&self, opened: Socket) -> File {
        let owner = FileOwner(self.clone(), number::of(&opened));
        File::of(opened, owner)
    }
}

impl Machine {
    fn metadata(&self, fd: Fd) -> Result<Metadata, Errno> {
        let mut state = self.state();
        let node = state.file(fd, "fstat")?;
        Ok(state.disk.meta(node))
    }

    /// Returns the number of connections that the program has accepted so far.
    pub fn accepted(&self) -> u64 {
        self.state().usage.accepted
    }

    /// Returns the number of open connections of the client with most of them, and of the client
    /// whose connection was closed last. Completions have reported these connections.
    pub fn connections_of_clients(&self) -> [usize; 2] {
        self.state().connections_of_clients()
    }

    /// Returns the program's current use.
    pub fn in_use(&self) -> MachineUsage {
        self.state().in_use()
    }
}
