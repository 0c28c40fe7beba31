//! Connections and sockets as sources of events, on this machine's io_uring.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use send_core::control_block::{
    Actions, ControlBlock, Group, Groups, MAX_SOCKETS, SetFlag, Trigger,
};
use send_core::sockets::{Received, SendSetupError, SocketConfig, SocketId, Sockets};
use send_core::{Action, Error, Event, EventType};

type Send = ControlBlock<Sockets>;

const IN: u32 = libc::POLLIN as u32;
const OUT: u32 = libc::POLLOUT as u32;
const RDHUP: u32 = libc::POLLRDHUP as u32;
const ERR: u32 = libc::POLLERR as u32;

const ACCEPTS: Group = Group::FIRST;
const OTHER: Group = ACCEPTS.next();

/// Counts allocations per thread.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: the caller follows the rules.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONFIG: SocketConfig = SocketConfig::new(64, 4, 64);

fn with_sockets(sockets: u32) -> SocketConfig {
    SocketConfig::new(sockets, CONFIG.buffers, CONFIG.buffer_size)
}

/// Returns a block over a ring, or `None` without io_uring, which the tests of `shared-ring`
/// report.
fn block_for(events: u32, config: SocketConfig) -> Option<Send> {
    match Sockets::new(&config) {
        Ok(sockets) => {
            let mut send = ControlBlock::with_source(events, sockets).unwrap();
            send.set_group(EventType::ACCEPT, Some(ACCEPTS)).unwrap();
            Some(send)
        }
        Err(SendSetupError::Ring(missing)) => {
            println!("not tested: {missing}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn block() -> Option<Send> {
    block_for(64, CONFIG)
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn connect(to: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(to).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// Returns two ends of a connection, the server's first.
fn pair() -> (TcpStream, TcpStream) {
    let (listener, address) = listen();
    let client = connect(address);
    (listener.accept().unwrap().0, client)
}

/// Returns the number of connections in a listener's backlog, from TCP_INFO.
fn queued(listener: RawFd) -> u32 {
    let mut info = [0_u8; 232];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the option writes at most `length` bytes to `info`.
    let result = unsafe {
        let info = info.as_mut_ptr().cast();
        libc::getsockopt(listener, libc::IPPROTO_TCP, libc::TCP_INFO, info, &mut length)
    };
    assert_eq!(result, 0);
    // `tcpi_unacked`: for a listener, the length of its backlog.
    u32::from_ne_bytes(info[24..28].try_into().unwrap())
}

/// Waits for an event of some groups, and asserts its type.
fn await_event(send: &mut Send, mask: Groups, kind: EventType) -> Event {
    let until = Instant::now() + Duration::from_secs(60);
    assert!(send.wait(mask, Some(until)).unwrap(), "no event of type {kind:?}");
    let event = send.next_event().unwrap();
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

/// Enters the kernel, so that it runs deferred work, without delivering an event.
fn enter(send: &mut Send) {
    assert!(!send.wait(Groups::NONE, Some(Instant::now())).unwrap());
}

/// Waits until `count` events are undelivered.
fn await_queued(send: &mut Send, count: u32) {
    while send.block().num_queued() != count {
        enter(send);
    }
}

#[test]
fn accept_event_has_the_state_of_the_connection() {
    let Some(mut send) = block() else { return };
    let (listener, address) = listen();
    send.auto_accept(listener, None).unwrap();
    let mut client = connect(address);
    client.write_all(b"hello").unwrap();
    let event = await_event(&mut send, ACCEPTS.into(), EventType::ACCEPT);
    assert_eq!((event.group, event.state, event.count), (0, IN | OUT, 1));
    let socket = SocketId::of(&event).unwrap();
    assert_eq!(send.peer(socket), Ok(Some(client.local_addr().unwrap())));
    assert_eq!(send.descriptor(socket).unwrap().as_raw_fd(), event.fd);
    let mut received = [0; 9];
    assert_eq!((send.recv(socket, &mut received), &received[..5]), (Ok(Some(5)), &b"hello"[..]));
    assert_eq!(send.recv(socket, &mut received), Ok(None));
    assert_eq!(send.send(socket, b"bye"), Ok(Some(3)));
    drop(send.release(socket).unwrap());
    let mut last = Vec::new();
    client.read_to_end(&mut last).unwrap();
    assert_eq!(last, b"bye");
}

#[test]
fn no_connection_is_accepted_while_masks_are_lowered() {
    let Some(mut send) = block() else { return };
    let (listener, address) = listen();
    let number = listener.as_raw_fd();
    send.auto_accept(listener, None).unwrap();
    let clients: Vec<_> = (0..3).map(|_| connect(address)).collect();
    await_queued(&mut send, 1);
    assert_eq!((queued(number), send.next_event()), (3, None));
    // Other groups may be delivered.
    send.set_deliver(!Groups::from(ACCEPTS));
    send.poll_pending();
    assert_eq!((queued(number), send.next_event()), (3, None));
    send.set_deliver(Groups::ALL);
    assert_eq!(queued(number), 0);
    let accepted: Vec<_> = std::iter::from_fn(|| send.next_event()).map(|e| e.kind).collect();
    assert_eq!(accepted, [EventType::ACCEPT; 3]);
    // Accepting stops as soon as the mask is lowered.
    send.set_deliver(Groups::NONE);
    let late: Vec<_> = (0..3).map(|_| connect(address)).collect();
    await_queued(&mut send, 1);
    assert_eq!((queued(number), send.next_event()), (3, None));
    // The mask of a wait replaces it.
    await_event(&mut send, ACCEPTS.into(), EventType::ACCEPT);
    assert_eq!(queued(number), 0);
    drop((clients, late));
}

#[test]
fn disabling_accept_temporarily_loses_no_connection() {
    let Some(mut send) = block() else { return };
    let (listener, address) = listen();
    let number = listener.as_raw_fd();
    send.auto_accept(listener, None).unwrap();
    let _client = connect(address);
    await_queued(&mut send, 1);
    send.set_group(EventType::ACCEPT, None).unwrap();
    send.set_deliver(Groups::ALL);
    enter(&mut send);
    assert_eq!(queued(number), 1);
    send.set_group(EventType::ACCEPT, Some(OTHER)).unwrap();
    assert_eq!(
        send.next_event().map(|event| (event.kind, event.group)),
        Some((EventType::ACCEPT, 1))
    );
}

#[test]
fn connection_interrupts_a_computation() {
    let Some(mut send) = block_for(1024, with_sockets(1024)) else { return };
    let (listener, address) = listen();
    let accepts = Arc::new(AtomicU64::new(0));
    let handler = Actions::new().on(EventType::ACCEPT, Action::Count(accepts.clone()));
    send.set_handler(handler, Trigger::Level);
    send.set_notify(Groups::ALL).unwrap();
    send.auto_accept(listener, None).unwrap();
    let connecting = thread::spawn(move || (0..100).map(|_| connect(address)).collect::<Vec<_>>());
    // This loop makes no system call.
    while accepts.load(Ordering::Relaxed) < 100 {
        std::hint::spin_loop();
    }
    connecting.join().unwrap();
    assert!(send.counters().interrupts > 0);
}

#[test]
fn ready_socket_interrupts_a_computation() {
    let Some(mut send) = block() else { return };
    let ready = Arc::new(AtomicBool::new(false));
    send.set_handler(SetFlag(ready.clone()), Trigger::Edge);
    send.set_notify(Groups::from(Group::new(7).unwrap())).unwrap();
    let (server, mut client) = pair();
    let socket = send.watch(server, Group::new(7).unwrap()).unwrap();
    // The initial state.
    assert!(ready.swap(false, Ordering::Acquire));
    let first = send.next_event().unwrap();
    assert_eq!((first.value, first.state, first.group), (socket.value(), OUT, 7));
    for round in 0..100 {
        let writing = thread::spawn(move || {
            client.write_all(&[round; 8]).unwrap();
            client
        });
        while !ready.swap(false, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        client = writing.join().unwrap();
        let event = send.next_event().unwrap();
        assert_eq!((event.kind, event.value), (EventType::READY, socket.value()));
        assert_eq!(event.state, IN | OUT);
        assert_eq!(send.recv(socket, &mut [0; 64]), Ok(Some(8)));
    }
    assert!(send.counters().interrupts >= 100);
}

#[test]
fn received_bytes_interrupt_a_computation() {
    let Some(mut send) = block() else { return };
    let notified = Arc::new(AtomicBool::new(false));
    send.set_handler(SetFlag(notified.clone()), Trigger::Edge);
    send.set_notify(Groups::ALL).unwrap();
    let (server, mut client) = pair();
    let socket = send.receive(server, OTHER).unwrap();
    let writing = thread::spawn(move || {
        client.write_all(b"hello").unwrap();
        client
    });
    while !notified.swap(false, Ordering::Acquire) {
        std::hint::spin_loop();
    }
    assert_eq!(send.next_event().unwrap().value, socket.value());
    let Received::Bytes(bytes) = send.received(socket).unwrap() else { panic!("nothing came") };
    assert_eq!(&*bytes, b"hello");
    drop(writing.join().unwrap());
}

#[test]
fn flooded_socket_has_one_event() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.watch(server, OTHER).unwrap();
    let (other, mut until) = pair();
    let receives = send.receive(other, OTHER).unwrap();
    assert_eq!(await_event(&mut send, OTHER.into(), EventType::READY).value, socket.value());
    let before = ALLOCATED.get();
    for _ in 0..2_000 {
        client.write_all(b"x").unwrap();
        until.write_all(b"x").unwrap();
        enter(&mut send);
        assert!(send.block().num_queued() <= 2, "{}", send.block().num_queued());
    }
    assert_eq!(ALLOCATED.get(), before);
    assert_eq!(send.block().num_queued(), 2);
    send.set_deliver(Groups::ALL);
    let events: Vec<_> = std::iter::from_fn(|| send.next_event()).collect();
    assert_eq!(events.len(), 2, "{events:?}");
    for event in events {
        let state = if event.value == socket.value() { IN | OUT } else { IN };
        assert_eq!((event.state, event.count > 1), (state, true), "{event:?}");
    }
    assert!(matches!(send.received(receives), Ok(Received::Bytes(_))));
}

#[test]
fn event_of_a_drained_socket_is_withdrawn() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.watch(server, OTHER).unwrap();
    await_event(&mut send, OTHER.into(), EventType::READY);
    client.write_all(b"hello").unwrap();
    await_queued(&mut send, 1);
    assert_eq!(send.recv(socket, &mut [0; 64]), Ok(Some(5)));
    send.set_deliver(Groups::ALL);
    assert_eq!((send.next_event(), send.block().num_queued()), (None, 0));
    // Partially read data is still reported.
    send.set_deliver(Groups::NONE);
    client.write_all(b"again").unwrap();
    await_queued(&mut send, 1);
    assert_eq!(send.recv(socket, &mut [0; 2]), Ok(Some(2)));
    send.set_deliver(Groups::ALL);
    assert_eq!(send.next_event().map(|event| event.state), Some(IN | OUT));
    // Changes since then are reported.
    send.set_deliver(Groups::NONE);
    client.write_all(b"more").unwrap();
    await_queued(&mut send, 1);
    client.shutdown(Shutdown::Write).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    assert_eq!(send.wait(OTHER.into(), Some(until)), Ok(true));
    let states = std::iter::from_fn(|| {
        send.wait(OTHER.into(), Some(until)).unwrap().then(|| send.next_event().unwrap().state)
    });
    assert!(states.take(2).any(|state| state == IN | OUT | RDHUP));
}

#[test]
fn socket_writable_again_raises_an_event() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.watch(server, OTHER).unwrap();
    await_event(&mut send, OTHER.into(), EventType::READY);
    let mut sent = 0;
    while let Some(n) = send.send(socket, &[1; 65536]).unwrap() {
        sent += n;
    }
    let reading = thread::spawn(move || {
        client.read_exact(&mut vec![0; sent]).unwrap();
        client
    });
    let event = await_event(&mut send, OTHER.into(), EventType::READY);
    assert_eq!(event.state, OUT);
    assert!(send.send(socket, b"more").unwrap().is_some());
    drop(reading.join().unwrap());
}

#[test]
fn received_bytes_are_returned_in_order() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.receive(server, OTHER).unwrap();
    assert!(matches!(send.received(socket), Ok(Received::WouldBlock)));
    let sent: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
    let writing = thread::spawn({
        let sent = sent.clone();
        move || client.write_all(&sent)
    });
    let mut received = Vec::new();
    'all: loop {
        let event = await_event(&mut send, OTHER.into(), EventType::DATA);
        assert_eq!(SocketId::of(&event), Some(socket));
        loop {
            match send.received(socket).unwrap() {
                Received::Bytes(bytes) => received.extend_from_slice(&bytes),
                Received::WouldBlock => break,
                Received::End => break 'all,
            }
        }
    }
    assert!(received == sent);
    assert!(matches!(send.received(socket), Ok(Received::End)));
    writing.join().unwrap().unwrap();
}

#[test]
fn data_event_is_withdrawn_when_the_data_was_taken() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.receive(server, OTHER).unwrap();
    client.write_all(b"hello").unwrap();
    await_queued(&mut send, 1);
    assert!(matches!(send.received(socket), Ok(Received::Bytes(_))));
    send.set_deliver(Groups::ALL);
    assert_eq!((send.next_event(), send.block().num_queued()), (None, 0));
    client.write_all(b"again").unwrap();
    let event = await_event(&mut send, OTHER.into(), EventType::DATA);
    assert_eq!(event.state, IN);
}

#[test]
fn socket_without_buffer_resumes_when_one_is_free() {
    let Some(mut send) = block() else { return };
    let (large, mut first) = pair();
    let large = send.receive(large, OTHER).unwrap();
    first.write_all(&[1; 1000]).unwrap();
    await_queued(&mut send, 1);
    let (small, mut second) = pair();
    let small = send.receive(small, ACCEPTS).unwrap();
    second.write_all(b"hello").unwrap();
    // All buffers are full, and the second socket has none.
    enter(&mut send);
    assert!(matches!(send.received(small), Ok(Received::WouldBlock)));
    let mut received = 0;
    while received < 1000 {
        match send.received(large).unwrap() {
            Received::Bytes(bytes) => received += bytes.len(),
            _ => enter(&mut send),
        }
    }
    let event = await_event(&mut send, ACCEPTS.into(), EventType::DATA);
    assert_eq!(SocketId::of(&event), Some(small));
    let Received::Bytes(bytes) = send.received(small).unwrap() else { panic!("nothing came") };
    assert_eq!(&*bytes, b"hello");
}

#[test]
fn reset_is_reported() {
    let Some(mut send) = block() else { return };
    let ((watched, one), (receiving, two)) = (pair(), pair());
    let watched = send.watch(watched, ACCEPTS).unwrap();
    let receiving = send.receive(receiving, OTHER).unwrap();
    await_event(&mut send, ACCEPTS.into(), EventType::READY);
    for client in [one, two] {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the option reads one `linger`.
        let set = unsafe {
            let size = size_of_val(&linger) as libc::socklen_t;
            let value = (&raw const linger).cast();
            libc::setsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size)
        };
        assert_eq!(set, 0);
    }
    let event = await_event(&mut send, ACCEPTS.into(), EventType::READY);
    assert_eq!((SocketId::of(&event), event.state & ERR), (Some(watched), ERR));
    let reset = Error::System("receiving", libc::ECONNRESET);
    assert_eq!(send.recv(watched, &mut [0; 8]), Err(reset));
    let event = await_event(&mut send, OTHER.into(), EventType::DATA);
    assert_eq!(event.state, ERR);
    assert_eq!(send.received(receiving).err(), Some(reset));
    assert_eq!(send.received(receiving).err(), Some(reset));
}

#[test]
fn accepted_sockets_inherit_the_group_of_their_listener() {
    let Some(mut send) = block() else { return };
    let notified = Arc::new(AtomicBool::new(false));
    let (listener, address) = listen();
    send.auto_accept(listener, Some(OTHER)).unwrap();
    send.set_handler(SetFlag(notified.clone()), Trigger::Edge);
    send.set_notify(Groups::ALL).unwrap();
    let connecting = thread::spawn(move || {
        let mut client = connect(address);
        client.write_all(b"hello").unwrap();
        client
    });
    while !notified.swap(false, Ordering::Acquire) {
        std::hint::spin_loop();
    }
    let mut client = connecting.join().unwrap();
    let accepted = send.next_event().unwrap();
    let socket = SocketId::of(&accepted).unwrap();
    assert_eq!(accepted.kind, EventType::ACCEPT);
    // It reports its state without further setup, and interrupts.
    let mut state = 0;
    while state & IN == 0 {
        let event = await_event(&mut send, OTHER.into(), EventType::READY);
        assert_eq!((SocketId::of(&event), event.group), (Some(socket), 1));
        state = event.state;
    }
    assert_eq!(send.recv(socket, &mut [0; 64]), Ok(Some(5)));
    notified.store(false, Ordering::Release);
    let writing = thread::spawn(move || client.write_all(b"again").map(|()| client));
    while !notified.swap(false, Ordering::Acquire) {
        std::hint::spin_loop();
    }
    assert_eq!(send.next_event().map(|event| event.state), Some(IN | OUT));
    drop(writing.join().unwrap().unwrap());
}

#[test]
fn accepted_sockets_interrupt_repeatedly_without_their_listener() {
    let Some(mut send) = block() else { return };
    let notified = Arc::new(AtomicBool::new(false));
    send.set_handler(SetFlag(notified.clone()), Trigger::Edge);
    send.set_notify(OTHER.into()).unwrap();
    let (listener, address) = listen();
    // Two listeners with the same inherited group.
    for listener in [listener, listen().0] {
        send.auto_accept(listener, Some(OTHER)).unwrap();
    }
    let mut client = connect(address);
    let accepted = await_event(&mut send, ACCEPTS.into(), EventType::ACCEPT);
    let socket = SocketId::of(&accepted).unwrap();
    // The initial state.
    assert_eq!(await_event(&mut send, OTHER.into(), EventType::READY).state, OUT);
    notified.store(false, Ordering::Release);
    for round in 0..10 {
        let writing = thread::spawn(move || client.write_all(&[round; 8]).map(|()| client));
        // This loop makes no system call.
        let until = Instant::now() + Duration::from_secs(60);
        while !notified.swap(false, Ordering::Acquire) {
            assert!(Instant::now() < until, "round {round}: nothing interrupts");
            std::hint::spin_loop();
        }
        client = writing.join().unwrap().unwrap();
        assert_eq!(send.next_event().map(|event| event.state), Some(IN | OUT));
        assert_eq!(send.recv(socket, &mut [0; 64]), Ok(Some(8)));
    }
}

#[test]
fn accepted_sockets_without_inherited_group_raise_no_event() {
    let Some(mut send) = block() else { return };
    let (listener, address) = listen();
    send.auto_accept(listener, None).unwrap();
    let mut client = connect(address);
    let event = await_event(&mut send, ACCEPTS.into(), EventType::ACCEPT);
    client.write_all(b"hello").unwrap();
    assert_eq!(send.wait(Groups::ALL, Some(Instant::now())), Ok(false));
    // It is watched after it was released and added again.
    let fd = send.release(SocketId::of(&event).unwrap()).unwrap();
    let socket = send.watch(fd, OTHER).unwrap();
    assert_eq!(await_event(&mut send, OTHER.into(), EventType::READY).value, socket.value());
}

#[test]
fn released_socket_raises_no_event() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let old = send.watch(server, OTHER).unwrap();
    await_queued(&mut send, 1);
    let server = send.release(old).unwrap();
    send.poll_pending();
    assert_eq!(send.block().num_queued(), 0);
    // SAFETY: only queries the flags of a descriptor.
    let flags = unsafe { libc::fcntl(server.as_raw_fd(), libc::F_GETFL) };
    assert_eq!(flags & libc::O_ASYNC, 0);
    assert_eq!(send.release(old).err(), Some(Error::NoSuchSocket));
    assert_eq!(send.recv(old, &mut [0]).err(), Some(Error::NoSuchSocket));
    assert_eq!(send.received(old).err(), Some(Error::NoSuchSocket));
    // Another socket in its slot has another identifier.
    let (next, _far) = pair();
    let new = send.watch(next, ACCEPTS).unwrap();
    assert_ne!(old, new);
    client.write_all(b"ignored").unwrap();
    let event = await_event(&mut send, Groups::ALL, EventType::READY);
    assert_eq!((SocketId::of(&event), event.group), (Some(new), 0));
    assert_eq!(send.wait(Groups::ALL, Some(Instant::now())), Ok(false));
    drop(server);
}

#[test]
fn releasing_a_socket_frees_the_buffers_of_its_data() {
    let Some(mut send) = block() else { return };
    for _ in 0..20 {
        let (server, mut client) = pair();
        let socket = send.receive(server, OTHER).unwrap();
        client.write_all(&[1; 1000]).unwrap();
        await_queued(&mut send, 1);
        // One buffer is borrowed while the others are freed.
        let Received::Bytes(bytes) = send.received(socket).unwrap() else { panic!("none came") };
        send.release(socket).unwrap();
        assert_eq!(&*bytes, &[1; 64]);
    }
}

#[test]
fn sockets_of_a_dropped_block_went_on_to_signal() {
    let Some(mut send) = block() else { return };
    let ((listener, _), (watched, _first), (receives, _second)) = (listen(), pair(), pair());
    let copies: [OwnedFd; 3] = [
        listener.try_clone().unwrap().into(),
        watched.try_clone().unwrap().into(),
        receives.try_clone().unwrap().into(),
    ];
    let is_async = |copy: &OwnedFd| {
        // SAFETY: only queries numbers.
        unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_GETFL) & libc::O_ASYNC != 0 }
    };
    send.auto_accept(listener, None).unwrap();
    send.watch(watched, OTHER).unwrap();
    send.receive(receives, OTHER).unwrap();
    assert!(copies.iter().all(is_async));
    drop(send);
    assert!(!copies.iter().any(is_async));
}

#[test]
fn data_of_a_released_socket_frees_its_buffer() {
    let Some(mut send) = block() else { return };
    let blocked = Blocked::new(libc::SIGIO);
    for _ in 0..20 {
        let (server, mut client) = pair();
        let socket = send.receive(server, OTHER).unwrap();
        // The ring has the data, and no poll has collected it.
        client.write_all(b"hello").unwrap();
        send.release(socket).unwrap();
    }
    drop(blocked);
    let (server, mut client) = pair();
    let socket = send.receive(server, OTHER).unwrap();
    client.write_all(b"hello").unwrap();
    await_event(&mut send, OTHER.into(), EventType::DATA);
    assert!(matches!(send.received(socket), Ok(Received::Bytes(_))));
}

#[test]
fn low_groups_are_delivered_first() {
    let Some(mut send) = block() else { return };
    let (mut clients, mut sockets) = (Vec::new(), Vec::new());
    for group in [9, 4, 7] {
        let (server, client) = pair();
        clients.push(client);
        sockets.push(send.watch(server, Group::new(group).unwrap()).unwrap());
    }
    await_queued(&mut send, 3);
    send.set_deliver(Groups::ALL);
    let order: Vec<_> = std::iter::from_fn(|| send.next_event()).map(|e| e.value).collect();
    assert_eq!(order, [1, 2, 0].map(|i: usize| sockets[i].value()));
}

#[test]
fn socket_keeps_its_group_when_its_type_is_regrouped() {
    for other in [None, Some(Group::FIRST)] {
        let Some(mut send) = block() else { return };
        let (server, _client) = pair();
        send.set_group(EventType::READY, Some(OTHER)).unwrap();
        send.watch(server, OTHER).unwrap();
        await_queued(&mut send, 1);
        send.set_group(EventType::READY, other).unwrap();
        send.set_deliver(Groups::ALL);
        let events = send.next_event().map(|event| (event.kind, event.group));
        assert_eq!(events, Some((EventType::READY, OTHER.number())));
    }
}

#[test]
fn undelivered_posts_do_not_block_sockets() {
    let Some(mut send) = block_for(2, CONFIG) else { return };
    send.set_group(EventType::USER, Some(Group::new(31).unwrap())).unwrap();
    let poster = send.poster();
    while poster.post(1).is_ok() {
        send.poll_pending();
    }
    let (listener, address) = listen();
    send.auto_accept(listener, Some(OTHER)).unwrap();
    let mut client = connect(address);
    let others = Groups::from(ACCEPTS) | OTHER.into();
    await_event(&mut send, others, EventType::ACCEPT);
    await_event(&mut send, others, EventType::READY);
    client.write_all(b"hello").unwrap();
    assert_eq!(await_event(&mut send, others, EventType::READY).state, IN | OUT);
}

#[test]
fn socket_resumes_after_ring_overflow() {
    let Some(mut send) = block() else { return };
    // On this socket every write is a separate report; TCP merges some.
    let (server, mut client) = UnixStream::pair().unwrap();
    let mut reader = server.try_clone().unwrap();
    let socket = send.watch(server, OTHER).unwrap();
    await_event(&mut send, OTHER.into(), EventType::READY);
    // The completion queue has room for 4,096 entries, and none is consumed.
    send.with_notifications_blocked(|_| {
        for _ in 0..5_000 {
            client.write_all(b"x").unwrap();
            reader.read_exact(&mut [0]).unwrap();
        }
    });
    enter(&mut send);
    client.write_all(b"x").unwrap();
    assert_eq!(await_event(&mut send, OTHER.into(), EventType::READY).state, IN | OUT);
    assert_eq!(send.recv(socket, &mut [0; 8]), Ok(Some(1)));
    assert_eq!(send.wait(OTHER.into(), Some(Instant::now())), Ok(false));
    client.write_all(b"x").unwrap();
    assert_eq!(await_event(&mut send, OTHER.into(), EventType::READY).state, IN | OUT);
}

/// Blocks a signal in the calling thread until dropped.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn new(signal: i32) -> Self {
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a live signal set.
        unsafe {
            libc::sigaddset(&mut set, signal);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
        Blocked(set)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &self.0, std::ptr::null_mut()) };
    }
}

#[test]
fn poll_finds_events_without_kernel_entry() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.watch(server, OTHER).unwrap();
    await_event(&mut send, OTHER.into(), EventType::READY);
    let blocked = Blocked::new(libc::SIGIO);
    for _ in 0..20 {
        let written = Arc::new(AtomicBool::new(false));
        let writing = thread::spawn({
            let written = written.clone();
            move || {
                client.write_all(b"x").unwrap();
                written.store(true, Ordering::Release);
                client
            }
        });
        while !written.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        send.poll_pending();
        assert_eq!(send.block().num_queued(), 1);
        client = writing.join().unwrap();
        assert_eq!(send.recv(socket, &mut [0; 8]), Ok(Some(1)));
        send.set_deliver(Groups::ALL);
        assert_eq!(send.next_event(), None);
        send.set_deliver(Groups::NONE);
    }
    drop(blocked);
}

#[test]
fn posts_end_waits_without_signals() {
    let Some(mut send) = block() else { return };
    send.set_group(EventType::USER, Some(OTHER)).unwrap();
    let poster = send.poster();
    let blocked = Blocked::new(libc::SIGIO);
    thread::scope(|scope| {
        for round in 0..50 {
            let poster = &poster;
            scope.spawn(move || poster.post(round).unwrap());
            assert_eq!(await_event(&mut send, OTHER.into(), EventType::USER).value, round);
        }
    });
    drop(blocked);
    // Dropping the block does not wait for the waker either.
    let begin = Instant::now();
    drop(send);
    assert!(begin.elapsed() < Duration::from_secs(4));
}

#[test]
fn connections_over_the_maximum_wait_in_the_listen_backlog() {
    let Some(mut send) = block_for(1, with_sockets(3)) else { return };
    let (listener, address) = listen();
    let number = listener.as_raw_fd();
    send.auto_accept(listener, None).unwrap();
    let clients: Vec<_> = (0..4).map(|_| connect(address)).collect();
    // The buffer has room for one connection, the table for two.
    send.set_deliver(Groups::ALL);
    let first = await_event(&mut send, Groups::ALL, EventType::ACCEPT);
    let second = await_event(&mut send, Groups::ALL, EventType::ACCEPT);
    assert_eq!((queued(number), send.next_event()), (2, None));
    // Waiting connections do not keep a wait from sleeping.
    let until = Instant::now() + Duration::from_millis(20);
    assert_eq!(send.wait(Groups::ALL, Some(until)), Ok(false));
    for event in [first, second] {
        drop(send.release(SocketId::of(&event).unwrap()).unwrap());
        assert!(await_event(&mut send, Groups::ALL, EventType::ACCEPT).fd >= 0);
    }
    assert_eq!(queued(number), 0);
    drop(clients);
}

#[test]
fn failed_listener_raises_an_event() {
    let Some(mut send) = block() else { return };
    let (listener, _) = listen();
    let number = listener.as_raw_fd();
    let socket = send.auto_accept(listener, None).unwrap();
    // SAFETY: passes numbers.
    assert_eq!(unsafe { libc::shutdown(number, libc::SHUT_RDWR) }, 0);
    let event = await_event(&mut send, Groups::ALL, EventType::ACCEPT);
    assert_eq!((SocketId::of(&event), event.fd, event.state), (Some(socket), -1, ERR));
}

#[test]
fn each_thread_has_its_own_sockets() {
    if block().is_none() {
        return;
    }
    thread::scope(|scope| {
        for byte in [1, 2] {
            scope.spawn(move || {
                let mut send = block().unwrap();
                let notified = Arc::new(AtomicBool::new(false));
                send.set_handler(SetFlag(notified.clone()), Trigger::Edge);
                send.set_notify(Groups::ALL).unwrap();
                let (listener, address) = listen();
                send.auto_accept(listener, Some(OTHER)).unwrap();
                let peer = thread::spawn(move || {
                    let mut client = connect(address);
                    for _ in 0..100 {
                        client.write_all(&[byte]).unwrap();
                        assert_eq!(client.read(&mut [0]).unwrap(), 1);
                    }
                });
                let mut received = 0;
                while received < 100 {
                    while !notified.swap(false, Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    while let Some(event) = send.next_event() {
                        let (socket, mut into) = (SocketId::of(&event).unwrap(), [0; 8]);
                        if let Ok(Some(1)) = send.recv(socket, &mut into) {
                            assert_eq!(into[0], byte);
                            received += 1;
                            send.send(socket, &[byte]).unwrap();
                        }
                    }
                }
                peer.join().unwrap();
            });
        }
    });
}

#[test]
fn invalid_arguments_are_rejected() {
    let error_of = |config: SocketConfig| match Sockets::new(&config).unwrap_err() {
        SendSetupError::Block(error) => error,
        error => panic!("{error}"),
    };
    for sockets in [0, MAX_SOCKETS + 1] {
        assert_eq!(error_of(with_sockets(sockets)), Error::SocketCount(sockets));
    }
    for (buffers, buffer_size) in [(0, 64), (3, 64), (4, 0), (32768, u32::MAX)] {
        let config = SocketConfig::new(CONFIG.sockets, buffers, buffer_size);
        assert_eq!(error_of(config), Error::ReceiveBuffers(buffers, buffer_size));
    }
    let Some(mut send) = block_for(8, with_sockets(1)) else { return };
    let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    let number = file.as_raw_fd();
    assert_eq!(send.watch(file, OTHER), Err(Error::NotASocket(number)));
    let (server, _client) = pair();
    let number = server.as_raw_fd();
    assert_eq!(send.auto_accept(server, None), Err(Error::NotListening(number)));
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let number = datagrams.as_raw_fd();
    assert_eq!(send.receive(datagrams, OTHER), Err(Error::NotAStream(number)));
    let ((first, _one), (second, _two)) = (pair(), pair());
    let socket = send.watch(first, OTHER).unwrap();
    assert_eq!(send.watch(second, OTHER), Err(Error::TooManySockets));
    // The socket is watched, so it has no received data.
    assert_eq!(send.received(socket).err(), Some(Error::NoSuchSocket));
    assert_eq!(SocketId::of(&Event::new(EventType::USER)), None);
}
