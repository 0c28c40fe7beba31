//! Descriptors that the kernel reports as ready although calls on them are not: the calls wait for changes.

#[allow(dead_code, reason = "a part is used")]
#[path = "../../httpd/tests/serving/refused.rs"]
mod refused;

use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use flexsc_rt::operations::{read, receive, set_option, sleep, splice, write};
use flexsc_rt::{Config, Descriptor, Direction, EventLoop, Operation};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::SendFlags;
use rustix::pipe::{PipeFlags, pipe_with};

type Output<T> = Rc<RefCell<Option<T>>>;

/// Begins a call.
fn begin<O: Operation>(events: &mut EventLoop, operation: O) -> Output<O::Output> {
    let output = Rc::new(RefCell::new(None));
    let slot = Rc::clone(&output);
    events.post(operation, move |_, output| *slot.borrow_mut() = Some(output)).expect("room");
    output
}

fn end<T>(events: &mut EventLoop, output: &Output<T>) -> T {
    while output.borrow().is_none() {
        events.turn(None).expect("a completion");
    }
    output.take().expect("it was set")
}

fn run<O: Operation>(events: &mut EventLoop, operation: O) -> O::Output {
    let output = begin(events, operation);
    end(events, &output)
}

/// With and without threads, and the ring as the place to sleep.
fn each_wait(test: impl Fn(&mut EventLoop)) {
    for (sleep_in_ring, threads) in [(false, 0), (false, 4), (true, 0), (true, 4)] {
        let mut config = Config::default();
        (config.sleep_in_ring, config.threads) = (sleep_in_ring, threads);
        test(&mut EventLoop::new(&config).expect("pages"));
    }
}

/// Lets 50 timers expire. The loop makes a few calls beside: it does not look at a descriptor again and again.
fn assert_quiet(events: &mut EventLoop) {
    let before = events.counters();
    for _ in 0..50 {
        run(events, sleep(Duration::from_micros(100))).unwrap();
    }
    let now = events.counters();
    let in_place = now.in_place - before.in_place;
    assert!(in_place <= 110, "{in_place} calls beside 50 timers");
    let enters = now.epoll_calls + now.ring_entries - before.epoll_calls - before.ring_entries;
    assert!(enters <= 400, "{enters} looks, at 50 timers");
}

/// A socket with an error in its queue (`IP_RECVERR`), which was also the result of a receive, and its address.
fn with_error_in_queue(events: &mut EventLoop) -> (Descriptor, UdpSocket) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.connect(socket.local_addr().unwrap()).unwrap();
    let descriptor = Descriptor::new(OwnedFd::from(socket.try_clone().unwrap()));
    run(events, set_option(&descriptor, 0, libc::IP_RECVERR, 1)).unwrap();
    send_to_closed_port(&socket);
    let (refused, _) = run(events, receive(&descriptor, Vec::with_capacity(16)));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    (descriptor, peer)
}

fn send_to_closed_port(socket: &UdpSocket) {
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    socket.send_to(b"nobody", closed).unwrap();
}

#[test]
fn error_in_the_queue_of_a_socket_kept_the_owner_busy() {
    each_wait(|events| {
        let (socket, peer) = with_error_in_queue(events);
        let waits = begin(events, receive(&socket, Vec::with_capacity(16)));
        assert_quiet(events);
        assert!(waits.borrow().is_none());
        peer.send(b"first").unwrap();
        assert_eq!(end(events, &waits).1, b"first");
        // Of several in the ring, none is the first.
        let waits = [(); 2].map(|()| begin(events, receive(&socket, Vec::with_capacity(16))));
        assert_quiet(events);
        for bytes in [b"second", b"third_"] {
            peer.send(bytes).unwrap();
            while waits.iter().all(|waits| waits.borrow().is_none()) {
                events.turn(None).unwrap();
            }
            let received = waits.iter().find_map(|waits| waits.take()).unwrap();
            assert_eq!(received.1, bytes);
            assert_quiet(events);
        }
    });
}

#[test]
fn next_error_ends_a_wait_beside_an_error_in_the_queue() {
    each_wait(|events| {
        let (socket, _peer) = with_error_in_queue(events);
        let waits = begin(events, receive(&socket, Vec::with_capacity(16)));
        assert_quiet(events);
        let own = UdpSocket::from(rustix::io::dup(&socket).unwrap());
        send_to_closed_port(&own);
        let (refused, _) = end(events, &waits);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn cancelled_wait_beside_an_error_in_the_queue_ends() {
    each_wait(|events| {
        let (socket, peer) = with_error_in_queue(events);
        let output = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&output);
        let receives = receive(&socket, Vec::with_capacity(16));
        let id = events.post(receives, move |_, output| *slot.borrow_mut() = Some(output)).unwrap();
        assert_quiet(events);
        events.cancel(id);
        let (interrupted, _) = end(events, &output);
        assert_eq!(interrupted.unwrap_err().kind(), ErrorKind::Interrupted);
        peer.send(b"bytes").unwrap();
        let (_, bytes) = run(events, receive(&socket, Vec::with_capacity(16)));
        assert_eq!(bytes, b"bytes");
        assert_quiet(events);
    });
}

/// The pipe has room.
#[test]
fn splice_beside_an_error_in_the_queue_kept_the_owner_busy() {
    each_wait(|events| {
        for waits_for in [Direction::Read, Direction::Write] {
            let (socket, peer) = with_error_in_queue(events);
            let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
            let [reader, writer] = [reader, writer].map(Descriptor::new);
            let waits = begin(events, splice(&socket, &writer, 16, waits_for));
            assert_quiet(events);
            assert!(waits.borrow().is_none());
            peer.send(b"bytes").unwrap();
            assert_eq!(end(events, &waits).unwrap(), 5);
            let (_, bytes) = run(events, read(&reader, Vec::with_capacity(16)));
            assert_eq!(bytes, b"bytes");
        }
    });
}

/// Linux moves nothing from a socket whose next byte is urgent, although more bytes are there and the pipe has room. No
/// event tells when the application has received the byte, so the splice ends.
#[test]
fn splice_at_an_urgent_byte_kept_the_owner_busy() {
    each_wait(|events| {
        for (waits_for, waits_before) in [
            (Direction::Read, true),
            (Direction::Write, true),
            (Direction::Read, false),
            (Direction::Write, false),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, _) = listener.accept().unwrap();
            socket.set_nonblocking(true).unwrap();
            let socket = Descriptor::new(OwnedFd::from(socket));
            let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
            let [reader, writer] = [reader, writer].map(Descriptor::new);
            let splice = || splice(&socket, &writer, 16, waits_for);
            let waiting = waits_before.then(|| begin(events, splice()));
            rustix::net::send(&peer, b"u", SendFlags::OOB).unwrap();
            assert_quiet(events);
            peer.write_all(b"data").unwrap();
            poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap();
            let waiting = waiting.unwrap_or_else(|| begin(events, splice()));
            let before = events.counters().in_place;
            while waiting.borrow().is_none() {
                // Without a limit, it would return at the end of the splice only.
                events.turn(Some(Duration::ZERO)).unwrap();
                let calls = events.counters().in_place - before;
                assert!(calls <= 20, "{calls} calls");
            }
            assert_eq!(end(events, &waiting).unwrap_err().kind(), ErrorKind::WouldBlock);
            let (_, bytes) = run(events, receive(&socket, Vec::with_capacity(1)));
            assert_eq!(bytes, b"d");
            assert_eq!(run(events, splice()).unwrap(), 3);
            let (_, bytes) = run(events, read(&reader, Vec::with_capacity(16)));
            assert_eq!(bytes, b"ata");
        }
    });
}

/// The counter is writable, but not for so large a number.
#[test]
fn write_that_does_not_fit_kept_the_owner_busy() {
    each_wait(|events| {
        let counter = eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let counter = Descriptor::new(counter);
        let number = (u64::MAX - 1).to_ne_bytes().to_vec();
        let waits = begin(events, write(&counter, number));
        assert_quiet(events);
        assert!(waits.borrow().is_none());
        let (_, bytes) = run(events, read(&counter, Vec::with_capacity(8)));
        assert_eq!(bytes, 1_u64.to_ne_bytes());
        assert_eq!(end(events, &waits).0.unwrap(), 8);
    });
}

/// A device without poll(2) whose reads would block, such as /dev/hwrng without entropy.
#[test]
fn device_that_cannot_be_waited_for_was_read_again_and_again() {
    thread::spawn(|| {
        let zero = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/zero");
        let zero = Descriptor::new(OwnedFd::from(zero.unwrap()));
        refused::refuse(libc::SYS_read, libc::EAGAIN).expect("cannot install a seccomp filter");
        for threads in [0, 4] {
            let mut config = Config::default();
            config.threads = threads;
            let mut events = EventLoop::new(&config).expect("pages");
            let output = begin(&mut events, read(&zero, Vec::with_capacity(8)));
            for _ in 0..1_000 {
                if output.borrow().is_none() {
                    events.turn(Some(Duration::from_millis(10))).unwrap();
                }
            }
            let (result, _) = output.take().expect("no result");
            assert_eq!(result.unwrap_err().kind(), ErrorKind::WouldBlock, "{threads} threads");
        }
    })
    .join()
    .unwrap();
}
