//! What went wrong once, on every kernel, poller or list that it concerns.

mod held;
mod number;

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use held::held;
use number::number;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shared_ring::poller::{Epoll, EpollEdge, Poll, Poller, Readiness, RtSig, Select};
use shared_ring::{
    Batch, Engine, EngineConfig, GatherList, Host, Kernel, Linux, Mode, Op, OpKind, Outcome,
    PortableKernel, Socket, Submit, Submitted, SymlinkPolicy, Token, UringConfig, UringKernel,
};

/// More than the submission queue holds, and more than its rest holds once it was emptied.
const RECEIVES: u32 = 600;

/// As many descriptors as the process may ever have.
fn raise_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

fn a_wake_is_heard(name: &str, mut kernel: impl Kernel) {
    println!("{name}");
    let sockets: Vec<_> = (0..RECEIVES)
        .map(|slot| {
            let socket = UnixDatagram::unbound().unwrap();
            socket.set_nonblocking(true).unwrap();
            let socket = Socket::from(OwnedFd::from(socket));
            let receive = Op::Receive { fd: number(&socket) };
            kernel.submit(Token::new(OpKind::Receive, slot, 0), receive).unwrap();
            socket
        })
        .collect();
    let waker = kernel.waker();
    let wakes = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        waker.wake();
    });
    let (begin, mut batch) = (Instant::now(), Batch::new());
    let until = begin + Duration::from_secs(4);
    let woken = loop {
        kernel.turn_into(Some(until), &mut batch).unwrap();
        let woken = batch.drain(..).any(|c| matches!(c.outcome, Outcome::Woken));
        if woken || Instant::now() >= until {
            break woken;
        }
    };
    let took = begin.elapsed();
    assert!(woken && took < Duration::from_secs(2), "{name}: heard {woken}, after {took:?}");
    wakes.join().unwrap();
    drop(kernel);
    sockets.into_iter().for_each(|socket| Linux::default().close_unused(socket));
}

#[test]
fn a_wake_was_lost_behind_a_full_submission_queue() {
    raise_limit();
    let (operations, buffers, buffer_size) = (1024, 16, 512);
    let engine = EngineConfig { operations, buffers, buffer_size };
    a_wake_is_heard("engine over epoll", Engine::new(Epoll::new().unwrap(), &engine).unwrap());
    a_wake_is_heard(
        "engine over edge-triggered epoll",
        Engine::new(EpollEdge::new().unwrap(), &engine).unwrap(),
    );
    a_wake_is_heard("engine over poll", Engine::new(Poll::default(), &engine).unwrap());
    a_wake_is_heard("engine over select", Engine::new(Select::default(), &engine).unwrap());
    for mode in [Mode::Deferred, Mode::Cooperative, Mode::Immediate] {
        match UringKernel::new(&UringConfig { mode, operations, buffers, buffer_size }) {
            Ok(kernel) => a_wake_is_heard(&format!("ring, {mode:?}"), kernel),
            Err(missing) => println!("ring, {mode:?}: {missing}"),
        }
    }
}

/// Asks for a file, which epoll does not take, then for a socket that gets the file's number.
fn a_refusal_is_forgotten(mut poller: impl Poller) {
    let file = Socket::from(OwnedFd::from(File::open("/proc/self/exe").unwrap()));
    let fd = number(&file);
    for time in ["first", "second"] {
        let refused = poller.set(fd, Readiness::READ).map_err(|error| error.kind());
        assert_eq!(refused, Err(std::io::ErrorKind::PermissionDenied), "the {time} time");
    }
    poller.set(fd, Readiness::empty()).expect("there is nothing to take out");
    // Puts a socket where the file was.
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    theirs.send(b"x").unwrap();
    // SAFETY: the number is open and nobody else uses it while it changes hands.
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
fn epoll_took_a_descriptor_that_it_had_refused_for_set() {
    a_refusal_is_forgotten(Epoll::new().unwrap());
    a_refusal_is_forgotten(EpollEdge::new().unwrap());
}

#[test]
fn a_list_that_was_never_empty_grew_without_bound() {
    const ROUNDS: usize = 100;
    let piece = vec![1; GatherList::MAX_BYTES];
    let mut queue = VecDeque::from([GatherList::default()]);
    let append = |queue: &mut VecDeque<GatherList>, bytes: &[u8]| {
        // What is added to a list partly sent goes to a new one.
        if queue.back().is_none_or(GatherList::is_started) {
            queue.push_back(GatherList::default());
        }
        queue.back_mut().unwrap().copy(bytes);
    };
    append(&mut queue, &piece[..4096]);
    append(&mut queue, &piece);
    let before = held();
    for _ in 0..ROUNDS {
        // There is always something left to be sent.
        let front = queue.front_mut().unwrap();
        let n = front.len().min(GatherList::MAX_BYTES);
        front.advance(n);
        if front.is_empty() {
            queue.pop_front();
        }
        append(&mut queue, &piece[..n]);
    }
    let left: usize = queue.iter().map(GatherList::len).sum();
    assert_eq!(left, GatherList::MAX_BYTES + 4096);
    let grown = held() - before;
    assert!(grown < 4 * GatherList::MAX_BYTES as isize, "{grown} bytes more for as much to send");
}

#[test]
fn a_list_is_started_from_its_first_byte_sent_to_its_last() {
    let mut list = GatherList::default();
    list.copy(b"to and fro");
    assert!(!list.is_started());
    list.advance(3);
    assert!(list.is_started());
    list.advance(7);
    assert!(!list.is_started() && list.is_empty(), "it is as good as new");
    list.copy(b"x");
    list.copy(b"y");
    list.advance(1);
    assert!(list.is_started());
    list.clear();
    assert!(!list.is_started());
}

/// The simulated disk reads a part at a time.
#[cfg(feature = "sim")]
#[test]
fn a_short_read_was_taken_for_the_end_of_the_file() {
    use shared_ring::sim::{Fault, Faults, Machine, Plan, SimKernel};
    use shared_ring::{Submit, SymlinkPolicy};
    use std::path::Path;

    let contents: Vec<u8> = (0..5_000u32).map(|at| at as u8).collect();
    let mut short = 0;
    for seed in 0..50 {
        let faults = Faults::NONE.with(Fault::ShortRead);
        let machine = Machine::new(&Plan { seed, faults, ..Plan::default() });
        machine.add_file("file", &*contents);
        let ring = UringConfig { mode: Mode::Deferred, operations: 4, buffers: 1, buffer_size: 64 };
        let mut kernel = SimKernel::new(&machine, &ring).unwrap();
        let root = kernel.host_mut().open_directory(Path::new("/")).unwrap();
        let token = Token::new(OpKind::File, 0, 0);
        let mut next = |op| {
            kernel.submit(token, op).unwrap();
            loop {
                kernel.turn(None).unwrap();
                if let Some(completion) = kernel.next() {
                    break completion.outcome;
                }
            }
        };
        let open = Op::Open { root, path: c"file".into(), symlinks: SymlinkPolicy::Beneath };
        let Outcome::Opened(opened) = next(open) else { panic!("not opened") };
        let read = Op::Read { file: opened.0.clone(), offset: 10, len: 6_000 };
        let Outcome::Read(bytes) = next(read) else { panic!("not read") };
        assert!(*bytes == contents[10..], "{} bytes", bytes.len());
        drop((bytes, opened, kernel));
        let verdict = machine.verdict();
        assert_eq!(verdict.failure, None);
        short += verdict.faults[Fault::ShortRead as usize];
    }
    assert!(short > 0, "no read was short");
}

/// Both are submitted before the kernel has said that it knows no accept that goes on.
#[cfg(feature = "sim")]
#[test]
fn without_multishot_a_second_listener_failed() {
    use shared_ring::sim::{Faults, Machine, Plan, SimKernel, Unsupported};
    use shared_ring::{BufferSizes, ListenOptions, Submit};

    let unsupported = Some(Unsupported::Multishot);
    let machine = Machine::new(&Plan { unsupported, faults: Faults::NONE, ..Plan::default() });
    let ring = UringConfig { mode: Mode::Deferred, operations: 4, buffers: 1, buffer_size: 64 };
    let mut kernel = SimKernel::new(&machine, &ring).unwrap();
    let options = ListenOptions { backlog: 9, reuse_port: false, buffers: BufferSizes::default() };
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
        let _line = manual_peer.with(|net| net.connect(*address)).unwrap();
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

/// A descriptor was closed, and its number became somebody else's, who has signals of another kind.
#[test]
fn rtsig_changed_the_flags_of_a_strangers_descriptor_at_its_end() {
    use std::os::fd::AsFd;

    let is_async = |fd: &OwnedFd| {
        let flags = rustix::fs::fcntl_getfl(fd).unwrap();
        flags.contains(rustix::fs::OFlags::from_bits_retain(libc::O_ASYNC as u32))
    };
    let mut poller = RtSig::new().unwrap();
    let (ours, other) = UnixDatagram::pair().unwrap();
    let (mut closed, kept) = (OwnedFd::from(ours), OwnedFd::from(other));
    let stranger = OwnedFd::from(UnixDatagram::unbound().unwrap());
    for fd in [&closed, &kept] {
        // SAFETY: the number stays open. What it stands for does not, as the test is about that.
        poller.set(unsafe { shared_ring::Fd::lent(fd.as_fd()) }, Readiness::READ).unwrap();
    }
    let flags = rustix::fs::OFlags::from_bits_retain(libc::O_ASYNC as u32);
    rustix::fs::fcntl_setfl(&stranger, flags).unwrap();
    rustix::io::dup2(&stranger, &mut closed).unwrap();
    drop(poller);
    assert!(is_async(&closed), "it is not the poller's");
    assert!(!is_async(&kept), "a signal that is no longer blocked would end the process");
}

#[test]
fn file_work_that_hangs_kept_a_kernel_from_ending() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let number = read.as_raw_fd();
    let config = EngineConfig { operations: 8, buffers: 1, buffer_size: 64 };
    let mut kernel = PortableKernel::new(Epoll::new().unwrap(), &config).unwrap();
    let file = shared_ring::File::from(read);
    // At this offset a pipe is read where it stands (preadv2(2)): the thread waits for the writer.
    let op = Op::Read { file, offset: u64::MAX, len: 1 };
    let token = Token::new(OpKind::File, 0, 0);
    assert!(matches!(kernel.submit(token, op), Ok(Submitted::InFlight)));
    // Once work that was posted later is done, a thread has begun with it.
    let root = kernel.host_mut().open_directory("/proc/self".as_ref()).unwrap();
    let op = Op::List { root, path: c"task".into(), symlinks: SymlinkPolicy::Beneath };
    kernel.submit(Token::new(OpKind::File, 1, 0), op).unwrap();
    let mut batch = Batch::new();
    while !batch.iter().any(|c| matches!(c.outcome, Outcome::Listed(_))) {
        kernel.turn_into(None, &mut batch).unwrap();
    }
    drop(kernel);
    // The thread reads by the number still, so it was not closed.
    // SAFETY: it only asks for the flags of a descriptor.
    assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
    drop(write);
}

/// With edges, the kernel reads a socket that may have more once in each turn, also when the application
/// closes another that waits for the same.
#[test]
fn a_socket_that_is_closed_leaves_its_turn_to_nobody() {
    let config = EngineConfig { operations: 8, buffers: 4, buffer_size: 16 };
    let mut engine = Engine::new(EpollEdge::new().unwrap(), &config).unwrap();
    let receive = |slot| Token::new(OpKind::Receive, slot, 0);
    let [(first, _far), (second, _other)] = [0, 1].map(|slot| {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.write_all(&[7; 1_000]).unwrap();
        let socket = Socket::from(OwnedFd::from(near));
        engine.submit(receive(slot), Op::Receive { fd: number(&socket) }).unwrap();
        (socket, far)
    });
    let mut batch = Batch::new();
    engine.turn_into(None, &mut batch).unwrap();
    assert_eq!(batch.drain(..).count(), 2, "each has filled a buffer, and may have more");

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
                assert!(completion.last && completion.token == receive(0));
                let close = Token::new(OpKind::Close, 0, 0);
                engine.submit(close, Op::Close { socket: first.take().unwrap() }).unwrap();
            }
        }
    }
    assert_eq!(received, 1);
    Linux::default().close_unused(second);
}
