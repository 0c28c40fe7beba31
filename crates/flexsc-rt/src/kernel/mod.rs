//! Syscall pages as a kernel of `shared_ring`, for servers (section 4, figure 4).
//!
//! Each stage of a connection posts the next call as an entry, and several accepts are outstanding
//! for a listener. The calls of a turn are executed in one batch: few in place, more of them by one entry into
//! io_uring, in which the owner also sleeps. A receive waits for its socket without a buffer: one entry waits until
//! the socket is readable, the next one receives. Where io_uring is missing, all calls are made in place, and wait
//! in an epoll set.
//! Writes to files and lists of directories run on threads of their own.

mod calls;
mod closes;
mod files;
mod stages;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use shared_ring::author::{
    Continued, DiscardBuffer, InFlightTable, Operations, Process, ReadAhead, System, WakeSignal,
};
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool, RxBuf};
use shared_ring::calls::Executor as By;
use shared_ring::files::File;
use shared_ring::nonblocking;
use shared_ring::{
    Completion, Counters, EngineConfig, Host, Kernel, KernelError, Occupancy, Op, OpKind, Socket,
    Submit, SubmitError, SubmitErrorKind, Submitted, Token, Waker,
};

use super::host::{self, Machine};
use crate::call::{Call, Direction};
use crate::error::{Busy, Error};
use crate::pages::{self, Config, EntryId, Pages};

use closes::{CLOSES, Closes};
use files::FileStage;

/// Accepts outstanding for a listener, at most.
const ACCEPTS: u16 = 16;

/// Accepts outstanding beyond the first one of each listener, at most.
const MORE_ACCEPTS: u16 = 1024;

/// Entries of closes of files.
const CLOSE_FILE: Token = Token::new(OpKind::Wake, 1, 0);

/// A kernel whose operations are posted system calls.
pub struct FlexScKernel {
    pages: Pages,
    /// The operation of each busy entry.
    owners: Box<[Token]>,
    in_flight: InFlightTable<State>,
    /// Receive buffers and counters; file operations.
    operations: Operations<Machine, ()>,
    closes: Closes,
    read_ahead: ReadAhead,
    /// Each send that waits for the disk keeps it, too.
    discarded: Rc<DiscardBuffer>,
    /// For each buffer group, receives that wait for a buffer, in order.
    starved: Vec<VecDeque<Token>>,
    /// Accepts outstanding beyond the first one of each listener.
    more_accepts: u16,
    /// Accepts to post again in the next turn: a listener accepts at most as many connections in a turn as accepts
    /// are outstanding.
    next_accepts: Vec<Token>,
    /// Calls were posted that are executed in place.
    has_posted: bool,
    done: VecDeque<Completion>,
    waker: Waker,
    now: Instant,
    process: Process,
}

impl std::fmt::Debug for FlexScKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlexScKernel").field("pages", &self.pages).finish_non_exhaustive()
    }
}

/// Returns the configuration of the pages of one of so many workers.
fn of_pages(config: &EngineConfig, workers: u16) -> Config {
    let mut of_pages = Config::default();
    // One for each operation, and one for the waker.
    let more = u32::from(MORE_ACCEPTS) + u32::from(CLOSES) + 1 + of_pages.reserve;
    of_pages.entries = config.operations.saturating_add(more);
    of_pages.sleep_in_ring = true;
    of_pages.active_threads = (of_pages.active_threads / usize::from(workers.max(1))).max(1);
    of_pages
}

/// How far an operation is.
struct State {
    stage: Stage,
    /// Why it ends once its calls have ended.
    end: Option<Errno>,
}

/// The calls of an operation that are posted.
enum Stage {
    /// None; a receive waits for a buffer.
    Idle,
    /// Each takes a connection. There are so many until the operation ends.
    Accepting(Vec<EntryId>, u16),
    /// A receive waits until its socket is readable, or a send of a file until it is writable.
    Waiting(EntryId),
    /// A receive has a buffer.
    Receiving(EntryId, RxBuf),
    /// The part of a file that is to be sent is read, so that it is cached.
    Reading(EntryId, #[expect(dead_code, reason = "the kernel writes to it")] Rc<DiscardBuffer>),
    /// The call of a file operation.
    File(EntryId, FileStage),
    /// The call of any other operation.
    Calling(EntryId),
}

impl FlexScKernel {
    /// Registers pages with an entry for each operation.
    ///
    /// # Errors
    /// As [`Pages::register`].
    pub fn new(config: &EngineConfig) -> Result<Self, Error> {
        FlexScKernel::with_workers(config, 1)
    }

    /// As [`FlexScKernel::new`], for each of so many workers of a process: they divide the active syscall threads, of
    /// which there is one per core (section 3.2.1). Each has one at least.
    ///
    /// # Errors
    /// As [`Pages::register`].
    pub fn with_workers(config: &EngineConfig, workers: u16) -> Result<Self, Error> {
        let mut system = host::machine();
        let waker = system
            .waker(WakeSignal::Polled)
            .map_err(|error| Error::System("create an eventfd", error))?;
        let pages = Pages::register(&of_pages(config, workers))?;
        let offload = system.offload(waker.clone());
        let now = system.clock();
        let mut kernel = FlexScKernel {
            owners: vec![Token::WAKE; pages.entries()].into_boxed_slice(),
            pages,
            in_flight: InFlightTable::new(config.operations),
            operations: Operations::new(system, config, offload),
            closes: Closes::new(),
            read_ahead: ReadAhead::default(),
            discarded: Rc::default(),
            starved: vec![VecDeque::new()],
            more_accepts: 0,
            next_accepts: Vec::with_capacity(MORE_ACCEPTS.into()),
            has_posted: false,
            done: VecDeque::new(),
            waker,
            now,
            process: Process::current(),
        };
        kernel.wait_for_wakes();
        Ok(kernel)
    }

    /// Returns the counters of the pages: which executor has made how many calls.
    pub fn page_counters(&self) -> pages::Counters {
        self.pages.counters()
    }

    /// Posts the waker's entry.
    fn wait_for_wakes(&mut self) {
        let wake = Call::until_ready(self.waker.as_raw_fd(), Direction::Read);
        // SAFETY: it makes no call.
        let posted = unsafe { self.pages.post(&wake) };
        let id = posted.expect("there are more entries than operations");
        self.owners[id.index()] = Token::WAKE;
    }

    /// Uses the completions of the pages.
    fn complete(&mut self) {
        while let Some(index) = self.pages.next_done() {
            let (id, result) = self.pages.take_raw(index);
            let token = self.owners[id.index()];
            if token == Token::WAKE {
                self.on_wake();
                continue;
            }
            if token == CLOSE_FILE {
                self.closes.closed();
                continue;
            }
            let result = match result {
                -4095..0 => Err(Errno::from_raw_os_error(-result as i32)),
                result => Ok(result as usize),
            };
            self.proceed(token, id, result);
        }
    }

    fn on_wake(&mut self) {
        self.waker.drain();
        self.operations.counters.system_calls += 1;
        while let Some(continued) = self.operations.next_offloaded() {
            match continued {
                Continued::Completed(completion) => self.done.push_back(completion),
                Continued::Waits(..) => unreachable!("no operation of sockets is submitted to it"),
            }
        }
        self.done.push_back(Completion::woken());
        self.wait_for_wakes();
    }

    /// Posts the closes of files that were dropped.
    fn post_closes(&mut self) {
        while let Some(file) = self.closes.next() {
            // SAFETY: nothing else uses the descriptor.
            match unsafe { self.pages.post(&calls::close(file.as_raw_fd())) } {
                Ok(id) => {
                    // The call closes it.
                    let _ = file.into_raw_fd();
                    self.owners[id.index()] = CLOSE_FILE;
                }
                Err(Busy) => self.closes.closed(),
            }
        }
    }

    /// Gives free buffers to the receives that wait for one.
    fn feed(&mut self) {
        for group in 0..self.starved.len() {
            while let Some(token) = self.starved[group].pop_front() {
                if !self.receive(token) {
                    self.starved[group].push_front(token);
                    break;
                }
            }
        }
    }

    /// Posts the accepts again that have completed in the last turn.
    fn post_accepts(&mut self) {
        while let Some(token) = self.next_accepts.pop() {
            let ends = self.in_flight.get(token).is_none_or(|entry| entry.state.end.is_some());
            if !ends {
                self.post_again(token);
            }
        }
    }
}

// SAFETY: a call is made until the entry is done, and an operation ends after the last of its calls. Threads
// that hang use only numbers of operations that are leaked.
unsafe impl Submit for FlexScKernel {
    type Host = Machine;
    /// A posted call may wait, and then sends all that it was posted for: see [`nonblocking::cut_to_block`].
    const MAX_PIECE_BYTES: u64 = File::BLOCK_BYTES;

    fn submit(&mut self, token: Token, mut op: Op) -> Result<Submitted, SubmitError> {
        match &mut op {
            // The pages have no stages for datagrams.
            Op::ReceiveFrom { .. } | Op::SendTo { .. } => {
                return Ok(Submitted::Done(op.fail(Errno::OPNOTSUPP)));
            }
            Op::SendFile { offset, len, is_last, .. } => {
                nonblocking::cut_to_block(*offset, (len, is_last));
            }
            Op::Send { fd, .. } => self.read_ahead.forget(*fd),
            Op::Call(_, By::InPlace) => return self.operations.submit(token, op),
            // It fails there.
            Op::File(file) if !Self::posts(file) || file.check().is_err() => {
                return self.operations.submit(token, op);
            }
            _ => {}
        }
        if let Op::Receive { group, .. } = op
            && group.index() >= self.starved.len()
        {
            return Err(SubmitError::new(op, SubmitErrorKind::UnknownGroup));
        }
        let (accepts, stage) = match op {
            Op::Accept { per_turn, .. } => {
                let accepts = per_turn.map_or(ACCEPTS, |per_turn| ACCEPTS.min(per_turn.get()));
                let accepts = accepts.min(1 + MORE_ACCEPTS - self.more_accepts);
                (accepts, Stage::Accepting(Vec::with_capacity(accepts.into()), accepts))
            }
            _ => (1, Stage::Idle),
        };
        let offloaded = matches!(op, Op::Call(_, By::Ring | By::Thread));
        let sends_file = matches!(op, Op::SendFile { .. });
        if let Op::Close { socket } = &op {
            // SAFETY: the operation owns the socket.
            let number = unsafe { socket.fd() };
            self.read_ahead.forget(number);
        }
        self.in_flight.insert(token, op, State { stage, end: None })?;
        let posted = match token.kind() {
            OpKind::File => self.post_file(token),
            _ if sends_file => self.send_file(token, false),
            _ => self.post(token),
        };
        match posted {
            Ok(()) => {
                self.more_accepts += accepts - 1;
                for _ in 1..accepts {
                    // One is enough.
                    let _ = self.post(token);
                }
                self.operations.counters.offloaded_calls += u64::from(offloaded);
                Ok(Submitted::InFlight)
            }
            Err(Busy) => {
                let op = self.in_flight.remove(token).expect("it is in the table").op;
                match op {
                    // Every thread that may wait indefinitely does.
                    Op::Call(..) => self.operations.submit(token, op),
                    _ => Err(SubmitError::new(op, SubmitErrorKind::Full)),
                }
            }
        }
    }

    fn cancel(&mut self, token: Token) {
        let Some(entry) = self.in_flight.get(token) else {
            let cancelled = self.operations.cancel(token);
            return self.done.extend(cancelled);
        };
        self.operations.counters.cancels += 1;
        if entry.state.end.is_none() {
            self.end_with(token, Errno::CANCELED);
        }
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        let group = self.operations.add_buffers(buffers)?;
        self.starved.push(VecDeque::new());
        Ok(group)
    }

    fn finish(&mut self) {
        self.closes.finish();
        let FlexScKernel { pages, owners, in_flight, operations, .. } = self;
        let ended = pages.shut_down_once(|completion, _| {
            let Some(entry) = in_flight.get(owners[completion.id.index()]) else { return };
            let opens = matches!(
                (&entry.op, &entry.state.stage),
                (Op::Accept { .. }, _) | (_, Stage::File(_, FileStage::Opening(_)))
            );
            if let (true, Ok(fd)) = (opens, completion.result) {
                // SAFETY: the kernel has just opened it.
                operations.system.close_unused(unsafe { Socket::from_raw_fd(fd as i32) });
            }
        });
        // Those in flight use their memory, and what they open is still to be closed.
        if ended {
            in_flight.drain().for_each(drop);
        }
        self.starved.iter_mut().for_each(VecDeque::clear);
        self.operations.stop_offload();
        self.operations.discard(self.done.drain(..));
    }

    fn host(&self) -> &Machine {
        &self.operations.system
    }

    fn host_mut(&mut self) -> &mut Machine {
        &mut self.operations.system
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn counters(&self) -> Counters {
        let mut counters = self.operations.counters;
        let of_pages = self.pages.counters();
        counters.system_calls +=
            of_pages.in_place + of_pages.on_threads + of_pages.ring_entries + of_pages.epoll_calls;
        counters
    }

    fn occupancy(&self) -> Occupancy {
        let mut occupancy = self.operations.occupancy();
        occupancy.in_flight += self.in_flight.len() as u32;
        occupancy
    }
}

impl Kernel for FlexScKernel {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        if !self.process.is_current() {
            let context = "a turn in a child of fork(2), on its parent's kernel";
            return Err(KernelError::new(context, io::ErrorKind::PermissionDenied));
        }
        let failed =
            |error: Error| KernelError::new("waiting for system calls", io::Error::other(error));
        self.operations.counters.turns += 1;
        self.feed();
        self.post_accepts();
        self.post_closes();
        let timeout = match until {
            _ if !self.done.is_empty() => Some(Duration::ZERO),
            until => until.map(|at| at.saturating_duration_since(self.host().clock())),
        };
        self.has_posted = false;
        self.pages.wait_and_look(timeout, 1).map_err(failed)?;
        self.complete();
        // What is readable is received in the same turn.
        if mem::take(&mut self.has_posted) {
            self.pages.submit().map_err(failed)?;
            self.complete();
        }
        self.now = self.host().clock();
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        let completion = self.done.pop_front()?;
        self.operations.counters.completions += 1;
        Some(completion)
    }
}

impl Drop for FlexScKernel {
    fn drop(&mut self) {
        self.finish();
        // The kernel may still use the memory of those that have not ended.
        self.in_flight.drain().for_each(mem::forget);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use shared_ring::files::{Access, FileOp, PathAt, SymlinkPolicy};
    use shared_ring::nonblocking::Blocking;

    use super::*;
    use crate::call::Executor;

    #[test]
    fn each_worker_had_as_many_active_threads_as_there_are_cores() {
        let cores = Config::default().active_threads;
        let of_each =
            |workers: usize| of_pages(&EngineConfig::new(4, 1, 64), workers as u16).active_threads;
        assert_eq!([of_each(0), of_each(1)], [cores; 2]);
        for workers in 1..=2 * cores {
            let total = workers * of_each(workers);
            assert!((workers..=workers.max(cores)).contains(&total), "{workers}: {total}");
        }
    }

    #[test]
    fn drop_waited_again_for_a_call_that_a_stop_had_given_up() {
        let mut kernel = FlexScKernel::new(&EngineConfig::new(4, 1, 64)).unwrap();
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let byte: &mut [u8; 1] = Box::leak(Box::default());
        let args = [ours.as_raw_fd() as usize, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
        // SAFETY: the memory is never freed, and the descriptor closed after the call has ended.
        unsafe { kernel.pages.post(&Call::new(libc::SYS_read, args).uncancellable()) }.unwrap();
        kernel.finish();
        assert_eq!(kernel.pages.outstanding(), 1);
        let sleeps = kernel.pages.counters().sleeps;
        kernel.finish();
        assert!(!kernel.pages.shut_down_once(|_, _| {}));
        assert_eq!(kernel.pages.counters().sleeps, sleeps);
        peer.write_all(b"x").unwrap();
        assert!(kernel.pages.shut_down());
    }

    #[test]
    fn call_that_ended_after_a_stop_had_given_it_up_was_not_taken() {
        let mut kernel = FlexScKernel::new(&EngineConfig::new(4, 1, 64)).unwrap();
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let byte: &mut [u8; 1] = Box::leak(Box::default());
        let args = [ours.as_raw_fd() as usize, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
        for pinned in [Executor::Threads, Executor::Ring] {
            let call = Call::new(libc::SYS_read, args).uncancellable().pinned(pinned);
            // SAFETY: as above.
            unsafe { kernel.pages.post(&call) }.unwrap();
            kernel.finish();
            assert_eq!(kernel.pages.outstanding(), 1);
            peer.write_all(b"x").unwrap();
            let until = Instant::now() + Duration::from_secs(20);
            while !kernel.pages.shut_down_once(|_, _| {}) {
                assert!(Instant::now() < until, "{pinned:?}");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn file_that_was_opened_after_a_stop_had_given_up_stayed_open() {
        let dir = std::env::temp_dir().join(format!("flexsc-rt-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut kernel = FlexScKernel::new(&EngineConfig::new(4, 1, 64)).unwrap();
        let root = kernel.host_mut().open_directory(&dir).unwrap();
        let at: PathAt = PathAt { root, path: c"fifo".into(), symlinks: SymlinkPolicy::Beneath };
        let (root, start) = (at.root.as_raw_fd(), at.path.as_ptr());
        let mut how = at.open_how(Some(Access::Read), Blocking::MayBlock);
        // It waits for the other end.
        how[0] &= !(libc::O_NONBLOCK as u64);
        let token = Token::new(OpKind::File, 0, 0);
        let open = |scratch: &mut _| {
            calls::open(root, start, how, Blocking::MayBlock, scratch).uncancellable()
        };
        // SAFETY: the table has the root and the path, until the call has ended.
        let id = unsafe { kernel.pages.post_with(open) }.unwrap();
        kernel.owners[id.index()] = token;
        let stage = Stage::File(id, FileStage::Opening(Blocking::MayBlock));
        let op = Op::File(FileOp::Open(at, Access::Read));
        kernel.in_flight.insert(token, op, State { stage, end: None }).unwrap();
        kernel.finish();
        assert_eq!(kernel.pages.outstanding(), 1);
        // The thread opens the other end.
        let mut writer = std::fs::File::options().write(true).open(&path).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while kernel.pages.outstanding() > 0 {
            kernel.finish();
            assert!(Instant::now() < until, "the open has not ended");
            std::thread::yield_now();
        }
        assert_eq!(
            writer.write(b"x").map_err(|error| error.kind()),
            Err(io::ErrorKind::BrokenPipe)
        );
    }
}
