//! Each system call is counted once, by the poller or the kernel that makes it.

mod number;
mod turns;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

use number::number;
use rustix::net::SendFlags;
use shared_ring::buffers::{BufferGroup, GatherList};
use shared_ring::files::{File, FileOp};
use shared_ring::poller::{EpollEdge, Poll};
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    Engine, EngineConfig, Errno, Host, Kernel, Linux, Op, OpKind, Outcome, Socket, Submit,
    Submitted, Token, WhenCold,
};
use turns::{Batch, TurnInto};

#[test]
fn engine_counts_its_own_and_its_pollers_calls() {
    let (one, other) = UnixDatagram::pair().unwrap();
    other.set_nonblocking(true).unwrap();
    let config = EngineConfig::new(8, 2, 64);
    let mut engine = Engine::new(Poll::default(), &config).unwrap();
    let socket = Socket::from(OwnedFd::from(other));
    let fd = number(&socket);
    let token = |kind| Token::new(kind, 0, 0);
    let begin = engine.counters().system_calls;
    let calls = |engine: &Engine<Poll>| engine.counters().system_calls - begin;

    // poll and recv.
    engine.submit(token(OpKind::Receive), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
    one.send(b"1").unwrap();
    let mut batch = Batch::new();
    engine.turn_into(None, &mut batch).unwrap();
    assert!(matches!(batch[0].outcome, Outcome::Received(_)));
    assert_eq!(calls(&engine), 2);

    // send.
    let mut data = Box::new(GatherList::default());
    data.copy(b"2");
    let sent = engine.submit(token(OpKind::Send), Op::Send { fd, data }).unwrap();
    assert!(matches!(sent, Submitted::Done(Outcome::Sent(..))));
    assert_eq!(calls(&engine), 3);

    // close.
    engine.cancel(token(OpKind::Receive));
    engine.turn_into(None, &mut batch).unwrap();
    let before = calls(&engine);
    engine.submit(token(OpKind::Close), Op::Close { socket }).unwrap();
    assert_eq!(calls(&engine), before + 1);
}

#[test]
fn each_message_after_an_urgent_byte_was_received_twice() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = listener.accept().unwrap().0;
    ours.set_nonblocking(true).unwrap();
    let config = EngineConfig::new(8, 2, 64);
    let mut engine = Engine::new(EpollEdge::new().unwrap(), &config).unwrap();
    let socket = Socket::from(OwnedFd::from(ours));
    let receive = Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT };
    engine.submit(Token::new(OpKind::Receive, 0, 0), receive).unwrap();
    let mut batch = Batch::new();
    engine.turn_into(Some(engine.now()), &mut batch).unwrap();

    let message = |engine: &mut Engine<EpollEdge>, theirs: &mut TcpStream| {
        let before = engine.counters().system_calls;
        theirs.write_all(b"x").unwrap();
        let mut batch = Batch::new();
        while batch.is_empty() {
            engine.turn_into(None, &mut batch).unwrap();
        }
        engine.turn_into(Some(engine.now()), &mut batch).unwrap();
        assert!(matches!(batch[0].outcome, Outcome::Received(_)), "{batch:?}");
        engine.counters().system_calls - before
    };
    // epoll_wait and recv, and epoll_wait of the turn without a message.
    assert_eq!(message(&mut engine, &mut theirs), 3);
    rustix::net::send(&theirs, b"!", SendFlags::OOB).unwrap();
    engine.turn_into(None, &mut batch).unwrap();
    assert!(batch.is_empty(), "{batch:?}");
    // After the first one, the engine looks for bytes behind the urgent one.
    assert_eq!([(); 4].map(|()| message(&mut engine, &mut theirs)), [4, 3, 3, 3]);
    drop(engine);
    Linux::default().close_unused(socket);
}

/// An engine, a socket and its peer. The peer does not read, and the socket is full.
fn with_full_socket() -> (Engine<Poll>, Socket, UnixStream) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[0; 1 << 16]).is_ok() {}
    let engine = Engine::new(Poll::default(), &EngineConfig::new(8, 2, 64)).unwrap();
    (engine, Socket::from(OwnedFd::from(ours)), theirs)
}

/// Reads all that there is.
fn drain(theirs: &mut UnixStream) {
    theirs.set_nonblocking(true).unwrap();
    while theirs.read(&mut [0; 1 << 16]).is_ok() {}
}

#[test]
fn socket_was_polled_again_after_a_poller_had_found_room() {
    let (mut engine, socket, mut theirs) = with_full_socket();
    let before = engine.counters().system_calls;
    let token = Token::new(OpKind::Send, 0, 0);
    let waits = engine.submit(token, Op::Writable { fd: number(&socket) }).unwrap();
    assert!(matches!(waits, Submitted::InFlight), "{waits:?}");
    drain(&mut theirs);
    let mut batch = Batch::new();
    engine.turn_into(None, &mut batch).unwrap();
    assert!(matches!(batch[0].outcome, Outcome::Writable), "{batch:?}");
    // One to find the socket full, and the wait.
    assert_eq!(engine.counters().system_calls - before, 2);
    drop(engine);
    Linux::default().close_unused(socket);
}

#[test]
fn room_found_before_an_operation_is_no_room_for_it() {
    let (mut engine, socket, mut theirs) = with_full_socket();
    let (fd, token) = (number(&socket), Token::new(OpKind::Send, 0, 0));
    engine.submit(token, Op::Writable { fd }).unwrap();
    drain(&mut theirs);
    // The poller has found room when the socket becomes full again, and the next operation waits.
    engine.turn(None).unwrap();
    engine.cancel(token);
    let mut data = Box::new(GatherList::default());
    data.copy(&[0; 1 << 22]);
    let sent = engine.submit(token, Op::Send { fd, data }).unwrap();
    assert!(matches!(sent, Submitted::Done(Outcome::Sent(..))), "{sent:?}");
    let waits = engine.submit(token, Op::Writable { fd }).unwrap();
    assert!(matches!(waits, Submitted::InFlight), "{waits:?}");
    assert!(engine.next().is_none());
    let mut batch = Batch::new();
    engine.turn_into(Some(engine.now()), &mut batch).unwrap();
    assert!(matches!(batch[0].outcome, Outcome::Failed(Errno::CANCELED, None)), "{batch:?}");
    assert_eq!(batch.len(), 1);
    drain(&mut theirs);
    engine.turn_into(None, &mut batch).unwrap();
    assert!(matches!(batch[1].outcome, Outcome::Writable), "{batch:?}");
    drop(engine);
    Linux::default().close_unused(socket);
}

#[test]
fn ring_submits_more_than_its_queue_holds_in_one_turn() {
    const CLOSES: u32 = 600;
    for mode in [Mode::Deferred, Mode::Cooperative, Mode::Immediate] {
        let config = UringConfig::new(mode, CLOSES, 1, 64);
        let mut kernel = match UringKernel::new(&config) {
            Ok(kernel) => kernel,
            Err(missing) => {
                println!("not tested: ring, {mode:?}: {missing}");
                continue;
            }
        };
        for slot in 0..CLOSES {
            let socket = Socket::from(OwnedFd::from(UnixDatagram::unbound().unwrap()));
            kernel.submit(Token::new(OpKind::Close, slot, 0), Op::Close { socket }).unwrap();
        }
        let before = kernel.counters().system_calls;
        kernel.turn(Some(kernel.now())).unwrap();
        assert_eq!(kernel.counters().system_calls - before, 2, "{mode:?}");
        let closed = std::iter::from_fn(|| kernel.next());
        assert_eq!(closed.count(), CLOSES as usize, "{mode:?}");
    }
}

/// An empty pipe stands for a file that is not cached; at this offset preadv2(2) reads its current position.
#[test]
fn uncached_part_is_reported_at_once() {
    fn check(mut kernel: impl Submit) {
        let (_one, other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let socket = Socket::from(OwnedFd::from(other));
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let (fd, file) = (number(&socket), File::from(read));
        let op = Op::SendFile {
            fd,
            file,
            offset: u64::MAX,
            len: 1,
            is_last: true,
            when_cold: WhenCold::Report,
        };
        let sent = kernel.submit(Token::new(OpKind::Send, 0, 0), op).unwrap();
        assert!(matches!(sent, Submitted::Done(Outcome::Cold)), "{sent:?}");
        let counters = kernel.counters();
        assert_eq!((counters.cold_file_reads, counters.offloaded_file_ops), (1, 0));
        kernel.finish();
        Linux::default().close_unused(socket);
    }
    check(Engine::new(Poll::default(), &EngineConfig::new(8, 2, 64)).unwrap());
    match UringKernel::new(&UringConfig::new(Mode::Deferred, 8, 2, 64)) {
        Ok(ring) => check(ring),
        Err(missing) => println!("not tested: {missing}"),
    }
}

/// The offload threads are not used, as the file is cached.
#[test]
fn cached_file_is_sent_at_once() {
    let (one, other) = UnixStream::pair().unwrap();
    other.set_nonblocking(true).unwrap();
    let config = EngineConfig::new(8, 2, 64);
    let mut engine = Engine::new(Poll::default(), &config).unwrap();
    // A file system in memory does not tell what is cached.
    let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(b"contents").unwrap();
    let file = File::from(OwnedFd::from(file));

    let socket = Socket::from(OwnedFd::from(other));
    let fd = number(&socket);
    let op = Op::SendFile { fd, file, offset: 0, len: 8, is_last: true, when_cold: WhenCold::Read };
    let sent = engine.submit(Token::new(OpKind::Send, 0, 0), op).unwrap();
    assert!(matches!(sent, Submitted::Done(Outcome::SentFile { bytes: 8, .. })), "{sent:?}");
    assert_eq!((engine.counters().cold_file_reads, engine.counters().offloaded_file_ops), (0, 0));
    Linux::default().close_unused(socket);
    assert_eq!(std::io::read_to_string(one).unwrap(), "contents");
}

#[test]
fn send_is_polled_only_until_its_socket_has_room() {
    let mut kernel = match UringKernel::new(&UringConfig::new(Mode::Deferred, 16, 8, 512)) {
        Ok(kernel) => kernel,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let socket = Socket::from(OwnedFd::from(ours));
    let (fd, token) = (number(&socket), Token::new(OpKind::Send, 0, 0));
    let (mut batch, mut piece) = (Batch::new(), vec![0; 1 << 20]);
    let mut data = Box::new(GatherList::default());
    data.copy(&[7; 1 << 20]);
    // The first send fills the socket at once, so the next one waits for room.
    kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
    let full = kernel.submit(token, Op::Send { fd, data }).unwrap();
    let Submitted::Done(Outcome::Sent(data, sent)) = full else { panic!("{full:?}") };
    assert!(!data.is_empty());
    let waits = kernel.submit(token, Op::Send { fd, data }).unwrap();
    assert!(matches!(waits, Submitted::InFlight), "{waits:?}");
    kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
    assert!(batch.is_empty(), "{batch:?}");
    theirs.read_exact(&mut piece[..sent]).unwrap();
    while batch.is_empty() {
        kernel.turn_into(Some(Instant::now() + Duration::from_secs(30)), &mut batch).unwrap();
    }
    let rest = batch.pop_front().unwrap().outcome;
    let Outcome::Sent(_, sent) = rest else { panic!("{rest:?}") };
    theirs.read_exact(&mut piece[..sent]).unwrap();
    // From then on, a send is one system call again, and no submission.
    for _ in 0..3 {
        kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
        let before = kernel.counters().system_calls;
        let mut data = Box::new(GatherList::default());
        data.copy(b"reply");
        let at_once = kernel.submit(token, Op::Send { fd, data }).unwrap();
        assert!(matches!(at_once, Submitted::Done(Outcome::Sent(_, 5))), "{at_once:?}");
        assert_eq!(kernel.counters().system_calls, before + 1);
    }
    drop(kernel);
    Linux::default().close_unused(socket);
}

#[test]
fn read_that_fails_at_once_is_not_made_again_by_the_ring() {
    let mut ring = match UringKernel::new(&UringConfig::new(Mode::Deferred, 8, 2, 64)) {
        Ok(ring) => ring,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let unreadable = std::fs::File::options().write(true).open(file.path()).unwrap();
    let before = ring.counters().system_calls;
    let read = Op::File(FileOp::Read(File::from(OwnedFd::from(unreadable)), 0..8));
    let submitted = ring.submit(Token::new(OpKind::File, 0, 0), read).unwrap();
    assert!(matches!(submitted, Submitted::Done(Outcome::Failed(Errno::BADF, None))));
    assert_eq!(ring.counters().system_calls, before + 1);
}
