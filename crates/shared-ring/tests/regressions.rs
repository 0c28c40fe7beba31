//! Regression tests, each for all affected kernels, pollers or lists.

mod held;
mod number;
mod turns;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use evring_sim::{Fault, Faults, Machine, Plan, SimKernel, Unsupported};
use held::held;
use number::number;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shared_ring::author::ReadBuffers;
use shared_ring::buffers::{BufferGroup, GatherList};
use shared_ring::calls::{Call, Executor};
use shared_ring::files::{Access, FileOp, FileOutcome, PathAt, SymlinkPolicy, WriteAt};
use shared_ring::poller::{Epoll, EpollEdge, POLLERS, Poller, Readiness, RtSig};
use shared_ring::sockets::ListenOptions;
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    Completion, Engine, EngineConfig, Errno, Fd, Host, Kernel, Linux, Op, OpKind, Outcome,
    PortableKernel, Socket, Submit, Submitted, Token, WhenCold,
};
use turns::{Batch, TurnInto};

/// Simulated runs of a test.
const SEEDS: u64 = 5_000;

/// More than the submission queue holds.
const RECEIVES: u32 = 600;

/// Raises the limit of descriptors to its maximum.
fn raise_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

fn wake_ends_a_wait(name: &str, mut kernel: impl Kernel) {
    println!("{name}");
    let sockets: Vec<_> = (0..RECEIVES)
        .map(|slot| {
            let socket = UnixDatagram::unbound().unwrap();
            socket.set_nonblocking(true).unwrap();
            let socket = Socket::from(OwnedFd::from(socket));
            let receive = Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT };
            kernel.submit(Token::new(OpKind::Receive, slot, 0), receive).unwrap();
            socket
        })
        .collect();
    let waker = kernel.waker();
    let owner = format!("/proc/self/task/{}/stat", rustix::thread::gettid().as_raw_nonzero());
    let wakes = thread::spawn(move || {
        let until = Instant::now() + Duration::from_secs(10);
        let waits = || fs::read_to_string(&owner).unwrap().contains(") S ");
        while !waits() && Instant::now() < until {
            thread::yield_now();
        }
        waker.wake();
    });
    let (begin, mut batch) = (Instant::now(), Batch::new());
    let until = begin + Duration::from_secs(30);
    let woken = loop {
        kernel.turn_into(Some(until), &mut batch).unwrap();
        let woken = batch.drain(..).any(|c| matches!(c.outcome, Outcome::Woken));
        if woken || Instant::now() >= until {
            break woken;
        }
    };
    let took = begin.elapsed();
    assert!(woken && took < Duration::from_secs(15), "{name}: woken {woken}, after {took:?}");
    wakes.join().unwrap();
    drop(kernel);
    sockets.into_iter().for_each(|socket| Linux::default().close_unused(socket));
}

#[test]
fn probing_a_ring_interrupted_later_calls_of_the_thread() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    for mode in [Mode::Deferred, Mode::Cooperative, Mode::Immediate] {
        for _ in 0..20 {
            // Where it is refused, there is no ring to destroy.
            let _ = UringKernel::probe(mode);
            let error = (&ours).read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{mode:?}");
        }
    }
}

#[test]
fn wake_was_lost_if_the_submission_queue_was_full() {
    raise_limit();
    let (operations, buffers, buffer_size) = (1024, 16, 512);
    let engine = EngineConfig::new(operations, buffers, buffer_size);
    for (name, open) in POLLERS {
        wake_ends_a_wait(
            &format!("engine over {name}"),
            Engine::new(open().unwrap(), &engine).unwrap(),
        );
    }
    for mode in [Mode::Deferred, Mode::Cooperative, Mode::Immediate] {
        match UringKernel::new(&UringConfig::new(mode, operations, buffers, buffer_size)) {
            Ok(kernel) => wake_ends_a_wait(&format!("ring, {mode:?}"), kernel),
            Err(missing) => println!("not tested: ring, {mode:?}: {missing}"),
        }
    }
}

/// Registers a file, which epoll rejects, then a socket that gets the file's number.
fn rejected_descriptor_is_not_registered(mut poller: impl Poller) {
    let file = Socket::from(OwnedFd::from(File::open("/proc/self/exe").unwrap()));
    let fd = number(&file);
    for time in ["first", "second"] {
        let result = poller.set(fd, Readiness::READ).map_err(|error| error.kind());
        assert_eq!(result, Err(std::io::ErrorKind::PermissionDenied), "the {time} time");
    }
    poller.set(fd, Readiness::empty()).expect("there is nothing to remove");
    // Gives the file's number to a socket.
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    theirs.send(b"x").unwrap();
    // SAFETY: the number is open and has no other owner.
    let mut place: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(file.as_raw_fd()) };
    rustix::io::dup2(&ours, &mut place).unwrap();
    let socket = Socket::from(place);
    let fd = number(&socket);
    poller.set(fd, Readiness::READ).unwrap();
    let mut ready = Vec::new();
    poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
    assert_eq!(ready, [(fd, Readiness::READ)]);
    poller.forget(fd);
    Linux::default().close_unused(socket);
}

#[test]
fn epoll_treated_a_rejected_descriptor_as_registered() {
    rejected_descriptor_is_not_registered(Epoll::new().unwrap());
    rejected_descriptor_is_not_registered(EpollEdge::new().unwrap());
}

#[test]
fn list_that_was_never_empty_grew_without_bound() {
    const ROUNDS: usize = 100;
    let piece = vec![1; GatherList::MAX_BYTES];
    let mut queue = VecDeque::from([GatherList::default()]);
    let append = |queue: &mut VecDeque<GatherList>, bytes: &[u8]| {
        // Bytes after a partly sent list go to a new one.
        if queue.back().is_none_or(GatherList::is_started) {
            queue.push_back(GatherList::default());
        }
        queue.back_mut().unwrap().copy(bytes);
    };
    append(&mut queue, &piece[..4096]);
    append(&mut queue, &piece);
    let before = held();
    for _ in 0..ROUNDS {
        // The queue is never empty.
        let front = queue.front_mut().unwrap();
        let n = front.len().min(GatherList::MAX_BYTES);
        front.advance(n);
        if front.is_empty() {
            queue.pop_front();
        }
        append(&mut queue, &piece[..n]);
    }
    let queued: usize = queue.iter().map(GatherList::len).sum();
    assert_eq!(queued, GatherList::MAX_BYTES + 4096);
    let grown = held() - before;
    assert!(grown < 4 * GatherList::MAX_BYTES as isize, "{grown} bytes more for the same queue");
}

#[test]
fn list_is_started_while_partly_sent() {
    let mut list = GatherList::default();
    list.copy(b"to and fro");
    assert!(!list.is_started());
    list.advance(3);
    assert!(list.is_started());
    list.advance(7);
    assert!(!list.is_started() && list.is_empty(), "all was sent");
    list.copy(b"x");
    list.copy(b"y");
    list.advance(1);
    assert!(list.is_started());
    list.clear();
    assert!(!list.is_started());
}

/// The simulated disk makes short reads.
#[test]
fn a_short_read_was_taken_for_the_end_of_the_file() {
    use evring_sim::{Fault, Faults, Machine, Plan, SimKernel};
    use shared_ring::files::SymlinkPolicy;
    use shared_ring::{Submit, Submitted};
    use std::path::Path;

    let contents: Vec<u8> = (0..5_000u32).map(|at| at as u8).collect();
    let (mut short, mut by_ring) = (0, 0);
    for seed in 0..50 {
        // The ring reads what is not cached.
        let faults = Faults::NONE.with(Fault::ShortRead).with(Fault::Cold);
        let machine = Machine::new(&Plan::default().with(|p| (p.seed, p.faults) = (seed, faults)));
        machine.add_file("file", &*contents);
        let ring = UringConfig::new(Mode::Deferred, 4, 1, 64);
        let mut kernel = SimKernel::new(&machine, &ring).unwrap();
        let root = kernel.host_mut().open_directory(Path::new("/")).unwrap();
        let token = Token::new(OpKind::File, 0, 0);
        let mut next = |op| {
            if let Submitted::Done(outcome) = kernel.submit(token, op).unwrap() {
                return outcome;
            }
            by_ring += 1;
            loop {
                kernel.turn(None).unwrap();
                if let Some(completion) = kernel.next() {
                    break completion.outcome;
                }
            }
        };
        let path = PathAt { root, path: c"file".into(), symlinks: SymlinkPolicy::Beneath };
        let open = Op::File(FileOp::Open(path, Access::Read));
        let Outcome::File(FileOutcome::Opened(opened)) = next(open) else { panic!("not opened") };
        let read = Op::File(FileOp::Read(opened.0.clone(), 10..6_010));
        let Outcome::File(FileOutcome::Read(bytes)) = next(read) else { panic!("not read") };
        assert!(*bytes == contents[10..], "{} bytes", bytes.len());
        drop((bytes, opened, kernel));
        let verdict = machine.verdict();
        assert_eq!(verdict.failure, None);
        short += verdict.faults[Fault::ShortRead as usize];
    }
    assert!(short > 0, "no read was short");
    // Each file was opened by the ring.
    assert!((51..100).contains(&by_ring), "one of both ways was not tested: {by_ring}");
}

/// Files are open with `O_NONBLOCK`. On Linux 6.1 to 6.4, with a disk that has no non-blocking mode, the ring refuses to read
/// them and to write to them.
#[test]
fn cold_reads_and_writes_failed_on_a_disk_without_a_non_blocking_mode() {
    let unsupported = Some(Unsupported::NonblockingDisk);
    for seed in 0..50 {
        let plan = |p: &mut Plan| {
            (p.seed, p.faults, p.unsupported) = (seed, Faults::NONE, unsupported);
        };
        let machine = Machine::new(&Plan::default().with(plan));
        machine.add_file("file", b"0123456789");
        let ring = UringConfig::new(Mode::Deferred, 4, 1, 64);
        let mut kernel = SimKernel::new(&machine, &ring).unwrap();
        let root = kernel.host_mut().open_directory("/".as_ref()).unwrap();
        let path = PathAt { root, path: c"file".into(), symlinks: SymlinkPolicy::Beneath };
        let (token, by_ring) = (Token::new(OpKind::File, 0, 0), seed % 2 == 1);
        let mut run = |op, cancels| {
            assert!(matches!(kernel.submit(token, Op::File(op)), Ok(Submitted::InFlight)));
            if cancels {
                kernel.turn(Some(kernel.now())).unwrap();
                // By then a thread has begun the read, or the ring's answer waits to be taken.
                assert!(by_ring || kernel.next().is_none());
                kernel.cancel(token);
            }
            loop {
                match kernel.next() {
                    Some(completion) if completion.token == token => return completion,
                    Some(_) => {}
                    None => kernel.turn(None).unwrap(),
                }
            }
        };
        let opened = run(FileOp::Open(path, Access::Write), false).outcome;
        let Outcome::File(FileOutcome::Opened(opened)) = opened else { panic!("{opened:?}") };
        let file = opened.0;
        for (at, bytes) in [(WriteAt::Offset(0), "X"), (WriteAt::End, "Y")] {
            let written = run(FileOp::write(file.clone(), at, bytes), false).outcome;
            assert!(matches!(written, Outcome::File(FileOutcome::Written)), "{written:?}");
        }
        machine.evict("file", false);
        let read = run(FileOp::Read(file.clone(), 0..100), false);
        assert!(read.was_cold);
        let Outcome::File(FileOutcome::Read(bytes)) = read.outcome else { panic!("{read:?}") };
        assert_eq!(&*bytes, b"X123456789Y");
        machine.evict("file", false);
        let failed = run(FileOp::Read(file.clone(), 0..100), true).outcome;
        assert!(matches!(failed, Outcome::Failed(Errno::CANCELED, None)), "{failed:?}");
        machine.evict("file", true);
        let failed = run(FileOp::Read(file.clone(), 0..100), false).outcome;
        assert!(matches!(failed, Outcome::Failed(Errno::IO, None)), "{failed:?}");
        assert_eq!(kernel.counters().offloaded_file_ops, if by_ring { 4 } else { 5 });
        drop((file, kernel));
        assert_eq!(machine.verdict().failure, None);
    }
}

#[test]
fn part_that_is_not_cached_counted_as_cached_while_all_buffers_of_reads_were_lent() {
    const PART: u64 = ReadBuffers::BYTES as u64;
    let machine = Machine::new(&Plan::default().with(|p| p.faults = Faults::NONE));
    machine.add_file("file", vec![7; PART as usize]);
    let ring = UringConfig::new(Mode::Deferred, 4, 1, 64);
    let mut kernel = SimKernel::new(&machine, &ring).unwrap();
    let root = kernel.host_mut().open_directory("/".as_ref()).unwrap();
    let path = PathAt { root, path: c"file".into(), symlinks: SymlinkPolicy::Beneath };
    let token = Token::new(OpKind::File, 0, 0);
    let mut run = |op| {
        if let Submitted::Done(outcome) = kernel.submit(token, Op::File(op)).unwrap() {
            return (outcome, false, true);
        }
        loop {
            match kernel.next() {
                Some(done) if done.token == token => return (done.outcome, done.was_cold, false),
                Some(_) => {}
                None => kernel.turn(None).unwrap(),
            }
        }
    };
    let (opened, ..) = run(FileOp::Open(path, Access::Read));
    let Outcome::File(FileOutcome::Opened(opened)) = opened else { panic!("{opened:?}") };
    let file = opened.0;
    let mut read = || {
        let (outcome, was_cold, at_once) = run(FileOp::Read(file.clone(), 0..PART));
        let Outcome::File(FileOutcome::Read(bytes)) = outcome else { panic!("{outcome:?}") };
        assert!(*bytes == [7; PART as usize]);
        (bytes, was_cold, at_once)
    };
    // The last one has memory of its own.
    let held: Vec<_> = (0..=ReadBuffers::MAX).map(|_| read()).collect();
    assert!(held.iter().all(|(_, was_cold, at_once)| !was_cold && *at_once));
    machine.evict("file", false);
    let (_, was_cold, at_once) = read();
    assert!(was_cold && !at_once);
    drop((held, file, kernel));
    assert_eq!(machine.verdict().failure, None);
}

/// Both accepts are submitted before the kernel has reported that it lacks multishot accepts.
#[test]
fn without_multishot_a_second_listener_failed() {
    let unsupported = Some(Unsupported::Multishot);
    let machine = Machine::new(
        &Plan::default().with(|p| (p.unsupported, p.faults) = (unsupported, Faults::NONE)),
    );
    let ring = UringConfig::new(Mode::Deferred, 4, 1, 64);
    let mut kernel = SimKernel::new(&machine, &ring).unwrap();
    let options = ListenOptions::new(9);
    let accept = |slot| Token::new(OpKind::Accept, slot, 0);
    let listeners = [0, 1].map(|slot| {
        let any = "10.0.0.1:0".parse().unwrap();
        let (listener, address) = kernel.host_mut().listen(any, &options).unwrap();
        let op = Op::Accept { listener: number(&listener), per_turn: None };
        kernel.submit(accept(slot), op).unwrap();
        (listener, address)
    });
    let manual_peer = machine.manual_peer();
    for (slot, (_, address)) in listeners.iter().enumerate() {
        let _conn = manual_peer.with(|net| net.connect(*address)).unwrap();
        let completion = loop {
            kernel.turn(None).unwrap();
            if let Some(completion) = kernel.next() {
                break completion;
            }
        };
        assert_eq!(completion.token, accept(slot as u32), "{completion:?}");
        let Outcome::Accepted(socket) = completion.outcome else { panic!("{completion:?}") };
        kernel.host_mut().close_unused(socket);
    }
}

/// The number of a closed descriptor was reused for a file with its own signals.
#[test]
fn dropped_rtsig_changed_the_flags_of_a_reused_descriptor() {
    use std::os::fd::AsFd;

    let is_async = |fd: &OwnedFd| {
        let flags = rustix::fs::fcntl_getfl(fd).unwrap();
        flags.contains(rustix::fs::OFlags::from_bits_retain(libc::O_ASYNC as u32))
    };
    let mut poller = RtSig::new().unwrap();
    let (ours, other) = UnixDatagram::pair().unwrap();
    let (mut closed, kept) = (OwnedFd::from(ours), OwnedFd::from(other));
    let unrelated = OwnedFd::from(UnixDatagram::unbound().unwrap());
    for fd in [&closed, &kept] {
        // SAFETY: the number stays open, although its file is replaced, which this test is about.
        poller.set(unsafe { shared_ring::Fd::lent(fd.as_fd()) }, Readiness::READ).unwrap();
    }
    let flags = rustix::fs::OFlags::from_bits_retain(libc::O_ASYNC as u32);
    rustix::fs::fcntl_setfl(&unrelated, flags).unwrap();
    rustix::io::dup2(&unrelated, &mut closed).unwrap();
    drop(poller);
    assert!(is_async(&closed), "it does not belong to the poller");
    assert!(!is_async(&kept), "an unblocked signal would terminate the process");
}

#[test]
fn hanging_file_job_blocked_the_drop_of_a_kernel() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let number = write.as_raw_fd();
    rustix::io::write(&write, &[0; 64 * 1024]).unwrap();
    let config = EngineConfig::new(8, 1, 64);
    let mut kernel = PortableKernel::new(Epoll::new().unwrap(), &config).unwrap();
    // The pipe is full, so the thread waits for its reader.
    let op = Op::File(FileOp::write(shared_ring::files::File::from(write), WriteAt::End, "x"));
    let token = Token::new(OpKind::File, 0, 0);
    assert!(matches!(kernel.submit(token, op), Ok(Submitted::InFlight)));
    // Once a job that was posted later is done, a thread has begun this one.
    let root = kernel.host_mut().open_directory("/proc/self".as_ref()).unwrap();
    let path = PathAt { root, path: c"task".into(), symlinks: SymlinkPolicy::Beneath };
    let op = Op::File(FileOp::List(path));
    kernel.submit(Token::new(OpKind::File, 1, 0), op).unwrap();
    let mut batch = Batch::new();
    while !batch.iter().any(|c| matches!(c.outcome, Outcome::File(FileOutcome::Listed(_)))) {
        kernel.turn_into(None, &mut batch).unwrap();
    }
    drop(kernel);
    // The thread still uses the number, so it was not closed.
    // SAFETY: returns the flags of a descriptor.
    assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
    drop(read);
}

/// A kernel waits for 5 s at its end, the last time for 0.1 s. Few of the opens end in that.
#[test]
fn file_that_was_opened_in_the_last_wait_of_a_kernel_stayed_open() {
    for seed in 1..=SEEDS {
        let mut plan = Plan::default();
        plan.seed = seed;
        plan.faults = Faults::NONE.with(Fault::Cold).with(Fault::SlowDisk);
        let machine = Machine::new(&plan);
        machine.add_file("file", b"");
        let mut kernel =
            SimKernel::new(&machine, &UringConfig::new(Mode::Deferred, 64, 1, 64)).unwrap();
        let root = kernel.host_mut().open_directory("/".as_ref()).unwrap();
        for slot in 0..64 {
            let path = PathAt {
                root: root.clone(),
                path: c"file".into(),
                symlinks: SymlinkPolicy::Beneath,
            };
            let open = Op::File(FileOp::Open(path, Access::Read));
            kernel.submit(Token::new(OpKind::File, slot, 0), open).unwrap();
        }
        // Those on a disk that is not slow.
        let (end, mut batch) = (kernel.now() + Duration::from_secs(1), Batch::new());
        while batch.len() < 64 && kernel.now() < end {
            kernel.turn_into(Some(end), &mut batch).unwrap();
        }
        drop((root, batch, kernel));
        assert_eq!(machine.verdict().failure, None, "seed {seed}");
    }
}

#[test]
fn file_send_queued_behind_hanging_jobs_could_not_be_cancelled() {
    let config = EngineConfig::new(8, 1, 64);
    let mut kernel = PortableKernel::new(Epoll::new().unwrap(), &config).unwrap();
    // Each of the four threads waits for the reader of a full pipe.
    let offset = u64::MAX;
    let mut readers = Vec::new();
    for slot in 0..4 {
        let (read, write) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&write, &[0; 64 * 1024]).unwrap();
        readers.push(read);
        let op = Op::File(FileOp::write(write.into(), WriteAt::End, "x"));
        let token = Token::new(OpKind::File, slot, 0);
        assert!(matches!(kernel.submit(token, op), Ok(Submitted::InFlight)));
    }
    let (near, _far) = UnixStream::pair().unwrap();
    let socket = Socket::from(OwnedFd::from(near));
    let (read, write) = rustix::pipe::pipe().unwrap();
    let op = Op::SendFile {
        fd: number(&socket),
        file: read.into(),
        offset,
        len: 1,
        is_last: true,
        when_cold: WhenCold::Read,
    };
    let send = Token::new(OpKind::Send, 0, 0);
    assert!(matches!(kernel.submit(send, op), Ok(Submitted::InFlight)));
    kernel.cancel(send);

    let mut batch = Batch::new();
    kernel.turn_into(Some(Instant::now()), &mut batch).unwrap();
    let is_cancelled = |completion: &Completion| {
        completion.token == send
            && completion.is_last
            && matches!(completion.outcome, Outcome::Failed(Errno::CANCELED, None))
    };
    assert!(batch.iter().any(is_cancelled), "{batch:?}");
    // No job uses the file, so it was closed.
    assert_eq!(rustix::io::write(&write, b"x"), Err(Errno::PIPE));
    drop(readers);
}

/// With edges, the engine reads a socket that may have more only once in each turn, even if the
/// application closes another such socket.
#[test]
fn closed_socket_left_its_read_to_another() {
    let config = EngineConfig::new(8, 4, 16);
    let mut engine = Engine::new(EpollEdge::new().unwrap(), &config).unwrap();
    let receive = |slot| Token::new(OpKind::Receive, slot, 0);
    let [(first, _first_peer), (second, _second_peer)] = [0, 1].map(|slot| {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.write_all(&[7; 1_000]).unwrap();
        let socket = Socket::from(OwnedFd::from(near));
        engine
            .submit(receive(slot), Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT })
            .unwrap();
        (socket, far)
    });
    let mut batch = Batch::new();
    engine.turn_into(None, &mut batch).unwrap();
    assert_eq!(batch.drain(..).count(), 2, "each has filled a buffer and may have more");

    engine.cancel(receive(0));
    engine.turn(None).unwrap();
    let (mut received, mut first) = (0, Some(first));
    while let Some(completion) = engine.next() {
        match completion.outcome {
            Outcome::Received(_) => {
                assert_eq!(completion.token, receive(1));
                received += 1;
            }
            _ => {
                assert!(completion.is_last && completion.token == receive(0));
                let close = Token::new(OpKind::Close, 0, 0);
                engine.submit(close, Op::Close { socket: first.take().unwrap() }).unwrap();
            }
        }
    }
    assert_eq!(received, 1);
    Linux::default().close_unused(second);
}

/// The socket for which the buffer was meant had no bytes left, as another owner of it had read them.
#[test]
fn free_buffer_waited_for_a_socket_without_bytes() {
    for (name, open) in POLLERS {
        let mut engine = Engine::new(open().unwrap(), &EngineConfig::new(8, 1, 16)).unwrap();
        let (mut batch, mut held) = (Batch::new(), None);
        let mut pairs = [0, 1, 2].map(|slot| {
            let (near, mut far) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            let socket = Socket::from(OwnedFd::from(near.try_clone().unwrap()));
            let receive = Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT };
            engine.submit(Token::new(OpKind::Receive, slot, 0), receive).unwrap();
            far.write_all(b"x").unwrap();
            while held.is_none() || engine.counters().buffer_shortages < slot.into() {
                engine.turn_into(None, &mut batch).unwrap();
                held = held.take().or(batch.pop_front());
            }
            (near, far, socket)
        });
        pairs[1].0.read_exact(&mut [0]).unwrap();
        drop(held);
        let until = engine.now() + Duration::from_secs(10);
        while batch.is_empty() {
            assert!(engine.now() < until, "{name} slept");
            engine.turn_into(Some(until), &mut batch).unwrap();
        }
        assert_eq!(batch[0].token.slot(), 2, "{name}");
        for (.., socket) in pairs {
            Linux::default().close_unused(socket);
        }
    }
}

/// Calls that never end occupy their threads, and not those of file operations.
#[test]
fn calls_that_wait_leave_file_operations_alone() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let config = EngineConfig::new(16, 1, 64);
    let mut kernel = PortableKernel::new(Epoll::new().unwrap(), &config).unwrap();
    for slot in 0..8 {
        // SAFETY: the pipe is open until the calls have ended.
        let fd = unsafe { Fd::lent(read.as_fd()) };
        let op = Op::Call(Box::new(Call::read(fd, 1)), Executor::Thread);
        assert!(matches!(
            kernel.submit(Token::new(OpKind::Call, slot, 0), op),
            Ok(Submitted::InFlight)
        ));
    }
    let root = kernel.host_mut().open_directory("/proc/self".as_ref()).unwrap();
    let path = PathAt { root, path: c"task".into(), symlinks: SymlinkPolicy::Beneath };
    kernel.submit(Token::new(OpKind::File, 0, 0), Op::File(FileOp::List(path))).unwrap();
    let mut batch = Batch::new();
    while !batch.iter().any(|c| matches!(c.outcome, Outcome::File(FileOutcome::Listed(_)))) {
        kernel.turn_into(None, &mut batch).unwrap();
    }
    assert_eq!(kernel.counters().offloaded_calls, 8);
    drop(write);
    let ended = |batch: &Batch| {
        batch.iter().filter(|c| matches!(c.outcome, Outcome::Called(_, Ok(0)))).count()
    };
    while ended(&batch) < 8 {
        kernel.turn_into(None, &mut batch).unwrap();
    }
}

/// A cancelled call ends although the calls before it wait for ever.
#[test]
fn cancelled_call_waited_for_a_thread() {
    let config = EngineConfig::new(16, 1, 64);
    let engine = PortableKernel::new(Epoll::new().unwrap(), &config).unwrap();
    call_is_cancelled_behind_others(engine);
    let config = UringConfig::new(Mode::Deferred, 16, 1, 64);
    match UringKernel::new(&config) {
        Ok(ring) => call_is_cancelled_behind_others(ring),
        Err(missing) => println!("not tested: {missing}"),
    }
}

fn call_is_cancelled_behind_others(mut kernel: impl Kernel) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let token = |slot| Token::new(OpKind::Call, slot, 0);
    for slot in 0..5 {
        // SAFETY: the pipe is open until the calls have ended.
        let fd = unsafe { Fd::lent(read.as_fd()) };
        let op = Op::Call(Box::new(Call::read(fd, 1)), Executor::Thread);
        assert!(matches!(kernel.submit(token(slot), op), Ok(Submitted::InFlight)));
    }
    kernel.cancel(token(4));
    let mut batch = Batch::new();
    kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
    let done = batch.pop_front().expect("the call has ended");
    assert_eq!((done.token, done.is_last), (token(4), true));
    assert!(matches!(done.outcome, Outcome::Called(_, Err(Errno::CANCELED))));
    drop(write);
    let mut ended = 0;
    while ended < 4 {
        kernel.turn_into(None, &mut batch).unwrap();
        let calls = batch.drain(..).filter(|c| matches!(c.outcome, Outcome::Called(_, Ok(0))));
        ended += calls.count();
    }
}

/// Closes a listening socket that another process still has, and waits while a connection comes there.
fn waits_after_the_close_of_a_shared_listener(name: &str, poller: impl Poller) {
    let mut kernel = Engine::new(poller, &EngineConfig::new(4, 4, 64)).unwrap();
    let address = ([127, 0, 0, 1], 0).into();
    let (listener, address) = kernel.host_mut().listen(address, &ListenOptions::new(16)).unwrap();
    // SAFETY: the listener is open.
    let others = unsafe { BorrowedFd::borrow_raw(number(&listener).raw()) };
    let others = others.try_clone_to_owned().unwrap();
    let token = Token::new(OpKind::Accept, 0, 0);
    let accept = Op::Accept { listener: number(&listener), per_turn: None };
    let mut batch = Batch::new();
    kernel.submit(token, accept).unwrap();
    kernel.turn_into(Some(Instant::now()), &mut batch).unwrap();
    kernel.cancel(token);
    while batch.is_empty() {
        kernel.turn_into(Some(Instant::now()), &mut batch).unwrap();
    }
    kernel.submit(token, Op::Close { socket: listener }).unwrap();
    let client = TcpStream::connect(address).unwrap();
    let until = Instant::now() + Duration::from_millis(100);
    kernel.turn_into(Some(until), &mut batch).unwrap();
    assert!(Instant::now() >= until, "{name}: it woke for a closed socket");
    drop((client, others));
}

#[test]
fn closed_listener_of_two_processes_was_reported() {
    for (name, open) in POLLERS {
        waits_after_the_close_of_a_shared_listener(name, open().unwrap());
    }
}

/// The engine ended while it accepted, and another descriptor of the listener stayed open.
#[test]
fn listener_of_an_engine_that_ended_went_on_to_signal() {
    let poller = RtSig::new().unwrap();
    let mut kernel = Engine::new(poller, &EngineConfig::new(4, 4, 64)).unwrap();
    let address = ([127, 0, 0, 1], 0).into();
    let (listener, _) = kernel.host_mut().listen(address, &ListenOptions::new(16)).unwrap();
    // SAFETY: the listener is open.
    let other = unsafe { BorrowedFd::borrow_raw(number(&listener).raw()) };
    let other = other.try_clone_to_owned().unwrap();
    let is_async = || {
        let flags = rustix::fs::fcntl_getfl(&other).unwrap();
        flags.contains(rustix::fs::OFlags::from_bits_retain(libc::O_ASYNC as u32))
    };
    let accept = Op::Accept { listener: number(&listener), per_turn: None };
    kernel.submit(Token::new(OpKind::Accept, 0, 0), accept).unwrap();
    assert!(is_async());
    kernel.finish();
    kernel.host_mut().close_unused(listener);
    drop(kernel);
    assert!(!is_async(), "the next connection would terminate the process");
}

/// A reply to the only message of a turn took two entries of the ring: one that submitted the send and found it
/// completed, and one that waited.
#[test]
fn lone_send_took_a_turn_of_its_own() {
    let config = UringConfig::new(Mode::Deferred, 16, 8, 512);
    let mut kernel = match UringKernel::new(&config) {
        Ok(kernel) => kernel,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let group = BufferGroup::DEFAULT;
    let pairs = [(); 2].map(|()| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Socket::from(OwnedFd::from(ours)), theirs)
    });
    for (slot, (socket, _)) in (0..).zip(&pairs) {
        let receive = Op::Receive { fd: number(socket), group };
        kernel.submit(Token::new(OpKind::Receive, slot, 0), receive).unwrap();
    }
    let until = || Some(Instant::now() + Duration::from_secs(30));
    let reply = |slot: usize| {
        let mut data = Box::<GatherList>::default();
        data.copy(b"reply");
        (Token::new(OpKind::Send, slot as u32, 0), Op::Send { fd: number(&pairs[slot].0), data })
    };
    // In turns with one message, the reply leaves at once.
    for _ in 0..3 {
        (&pairs[0].1).write_all(b"message").unwrap();
        kernel.turn(until()).unwrap();
        let before = kernel.counters().system_calls;
        assert!(matches!(kernel.next().unwrap().outcome, Outcome::Received(_)));
        let (token, op) = reply(0);
        let submitted = kernel.submit(token, op).unwrap();
        assert!(matches!(submitted, Submitted::Done(Outcome::Sent(_, 5))), "{submitted:?}");
        assert_eq!(kernel.counters().system_calls, before + 1);
        assert!(kernel.next().is_none());
    }
    // Further sends of the turn share the next entry.
    for slot in [0, 1] {
        let (token, op) = reply(slot);
        let submitted = kernel.submit(token, op).unwrap();
        assert!(matches!(submitted, Submitted::InFlight), "{submitted:?}");
    }
    let (mut batch, before) = (Batch::new(), kernel.counters().system_calls);
    kernel.turn_into(until(), &mut batch).unwrap();
    assert_eq!((batch.len(), kernel.counters().system_calls), (2, before + 1));
    // In one with two, the replies share the next entry.
    (&pairs[0].1).write_all(b"message").unwrap();
    (&pairs[1].1).write_all(b"message").unwrap();
    kernel.turn(until()).unwrap();
    while let Some(completion) = kernel.next() {
        let (token, op) = reply(completion.token.slot() as usize);
        let submitted = kernel.submit(token, op).unwrap();
        assert!(matches!(submitted, Submitted::InFlight), "{submitted:?}");
    }
    let before = kernel.counters().system_calls;
    batch.clear();
    kernel.turn_into(until(), &mut batch).unwrap();
    assert_eq!((batch.len(), kernel.counters().system_calls), (2, before + 1));
    drop(kernel);
    pairs.into_iter().for_each(|(socket, _)| Linux::default().close_unused(socket));
}

/// A send at once made the event loop wait for the peer, where the ring had not.
#[test]
fn lone_send_to_a_blocking_socket_blocked_the_owner() {
    let config = UringConfig::new(Mode::Deferred, 16, 8, 512);
    let mut kernel = match UringKernel::new(&config) {
        Ok(kernel) => kernel,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let socket = Socket::from(OwnedFd::from(ours));
    let until = || Some(Instant::now() + Duration::from_secs(30));
    let mut sent = 0;
    let mut batch = Batch::new();
    // The last fills the socket, and is in flight until the peer reads.
    for slot in 0.. {
        // A turn that only looks.
        kernel.turn_into(Some(Instant::now()), &mut batch).unwrap();
        let mut data = Box::<GatherList>::default();
        data.copy(&[0; 1 << 16]);
        let op = Op::Send { fd: number(&socket), data };
        match kernel.submit(Token::new(OpKind::Send, slot, 0), op).unwrap() {
            Submitted::Done(Outcome::Sent(_, n)) => sent += n,
            Submitted::InFlight => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(sent > 0);
    // The peer may have to read the sent bytes before the socket has room for more.
    batch.clear();
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; sent + 1];
        theirs.read_exact(&mut all).unwrap();
        theirs
    });
    while batch.is_empty() {
        kernel.turn_into(until(), &mut batch).unwrap();
    }
    reader.join().unwrap();
    drop(kernel);
    Linux::default().close_unused(socket);
}
