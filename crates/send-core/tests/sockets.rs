//! Connections and sockets that tell of themselves, on this machine's io_uring.

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

use send_core::{
    Action, Actions, ControlBlock, Error, Event, EventType, Group, Groups, MAX_SOCKETS, Received,
    SendSetupError, SetFlag, SocketConfig, SocketId, Sockets, Trigger,
};

type Send = ControlBlock<Sockets>;

const IN: u32 = libc::POLLIN as u32;
const OUT: u32 = libc::POLLOUT as u32;
const RDHUP: u32 = libc::POLLRDHUP as u32;
const ERR: u32 = libc::POLLERR as u32;

const ACCEPTS: Group = Group::FIRST;
const REST: Group = ACCEPTS.next();

/// Counts what a thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: the caller keeps the rules.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONFIG: SocketConfig = SocketConfig { sockets: 64, buffers: 4, buffer_size: 64 };

/// A block over a ring, or none where there is no io_uring; that is said by the tests of `shared-ring`.
fn block_for(events: u32, config: SocketConfig) -> Option<Send> {
    match Sockets::new(&config) {
        Ok(sockets) => {
            let mut send = ControlBlock::with_source(events, sockets).unwrap();
            send.set_group(EventType::ACCEPT, Some(ACCEPTS)).unwrap();
            Some(send)
        }
        Err(SendSetupError::Ring(_)) => None,
        Err(SendSetupError::Block(error)) => panic!("{error}"),
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

/// Two ends of a connection; the first is that of the server.
fn pair() -> (TcpStream, TcpStream) {
    let (listener, address) = listen();
    let client = connect(address);
    (listener.accept().unwrap().0, client)
}

/// How many connections wait in a listener's queue, as the kernel tells.
fn queued(listener: RawFd) -> u32 {
    let mut info = [0_u8; 232];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the option writes at most so many bytes to `info`.
    let result = unsafe {
        let info = info.as_mut_ptr().cast();
        libc::getsockopt(listener, libc::IPPROTO_TCP, libc::TCP_INFO, info, &mut length)
    };
    assert_eq!(result, 0);
    // `tcpi_unacked`, which for a listener is the length of its queue.
    u32::from_ne_bytes(info[24..28].try_into().unwrap())
}

/// Waits for an event of a kind among some groups.
fn await_event(send: &mut Send, mask: Groups, kind: EventType) -> Event {
    let far = Instant::now() + Duration::from_secs(60);
    assert!(send.wait(mask, Some(far)).unwrap(), "no event of the kind {kind:?} comes");
    let event = send.next_event().unwrap();
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

/// Has the kernel do what it has put off, while no event is delivered.
fn enter(send: &mut Send) {
    assert!(!send.wait(Groups::NONE, Some(Instant::now())).unwrap());
}

/// Waits until so many events wait undelivered.
fn await_queued(send: &mut Send, count: u32) {
    while send.block().num_queued() != count {
        enter(send);
    }
}

#[test]
fn a_connection_tells_of_its_state_as_it_is_accepted() {
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
    let mut heard = [0; 9];
    assert_eq!((send.recv(socket, &mut heard), &heard[..5]), (Ok(Some(5)), &b"hello"[..]));
    assert_eq!(send.recv(socket, &mut heard), Ok(None));
    assert_eq!(send.send(socket, b"bye"), Ok(Some(3)));
    drop(send.release(socket).unwrap());
    let mut last = Vec::new();
    client.read_to_end(&mut last).unwrap();
    assert_eq!(last, b"bye");
}

#[test]
fn nothing_is_accepted_while_the_masks_let_no_connection_through() {
    let Some(mut send) = block() else { return };
    let (listener, address) = listen();
    let number = listener.as_raw_fd();
    send.auto_accept(listener, None).unwrap();
    let clients: Vec<_> = (0..3).map(|_| connect(address)).collect();
    await_queued(&mut send, 1);
    assert_eq!((queued(number), send.next_event()), (3, None));
    // Other groups may be delivered meanwhile.
    send.set_deliver(!Groups::from(ACCEPTS));
    send.poll_pending();
    assert_eq!((queued(number), send.next_event()), (3, None));
    send.set_deliver(Groups::ALL);
    assert_eq!(queued(number), 0);
    let accepted: Vec<_> = std::iter::from_fn(|| send.next_event()).map(|e| e.kind).collect();
    assert_eq!(accepted, [EventType::ACCEPT; 3]);
    // It ends as it began: at once.
    send.set_deliver(Groups::NONE);
    let late: Vec<_> = (0..3).map(|_| connect(address)).collect();
    await_queued(&mut send, 1);
    assert_eq!((queued(number), send.next_event()), (3, None));
    // The mask of a wait stands for it.
    await_event(&mut send, ACCEPTS.into(), EventType::ACCEPT);
    assert_eq!(queued(number), 0);
    drop((clients, late));
}

#[test]
fn a_type_that_is_disabled_for_a_while_forgets_no_connection() {
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
    send.set_group(EventType::ACCEPT, Some(REST)).unwrap();
    assert_eq!(
        send.next_event().map(|event| (event.kind, event.group)),
        Some((EventType::ACCEPT, 1))
    );
}

#[test]
fn a_connection_interrupts_the_application_while_it_computes() {
    let Some(mut send) = block_for(1024, SocketConfig { sockets: 1024, ..CONFIG }) else { return };
    let (listener, address) = listen();
    let accepts = Arc::new(AtomicU64::new(0));
    let handler = Actions::new().on(EventType::ACCEPT, Action::Count(accepts.clone()));
    send.set_handler(handler, Trigger::Level);
    send.set_notify(Groups::ALL).unwrap();
    send.auto_accept(listener, None).unwrap();
    let connecting = thread::spawn(move || (0..100).map(|_| connect(address)).collect::<Vec<_>>());
    // No system call is made here.
    while accepts.load(Ordering::Relaxed) < 100 {
        std::hint::spin_loop();
    }
    connecting.join().unwrap();
    assert!(send.counts().interrupts > 0);
}

#[test]
fn a_socket_interrupts_the_application_while_it_computes() {
    let Some(mut send) = block() else { return };
    let ready = Arc::new(AtomicBool::new(false));
    send.set_handler(SetFlag(ready.clone()), Trigger::Edge);
    send.set_notify(Groups::from(Group::new(7).unwrap())).unwrap();
    let (server, mut client) = pair();
    let socket = send.watch(server, Group::new(7).unwrap()).unwrap();
    // What it can do at the beginning.
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
    assert!(send.counts().interrupts >= 100);
}

#[test]
fn bytes_that_are_received_interrupt_the_application() {
    let Some(mut send) = block() else { return };
    let come = Arc::new(AtomicBool::new(false));
    send.set_handler(SetFlag(come.clone()), Trigger::Edge);
    send.set_notify(Groups::ALL).unwrap();
    let (server, mut client) = pair();
    let socket = send.receive(server, REST).unwrap();
    let writing = thread::spawn(move || {
        client.write_all(b"hello").unwrap();
        client
    });
    while !come.swap(false, Ordering::Acquire) {
        std::hint::spin_loop();
    }
    assert_eq!(send.next_event().unwrap().value, socket.value());
    let Received::Bytes(bytes) = send.received(socket).unwrap() else { panic!("nothing came") };
    assert_eq!(&*bytes, b"hello");
    drop(writing.join().unwrap());
}

#[test]
fn a_socket_that_is_flooded_has_one_event() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.watch(server, REST).unwrap();
    let (other, mut far) = pair();
    let receives = send.receive(other, REST).unwrap();
    assert_eq!(await_event(&mut send, REST.into(), EventType::READY).value, socket.value());
    let before = ALLOCATED.get();
    for _ in 0..2_000 {
        client.write_all(b"x").unwrap();
        far.write_all(b"x").unwrap();
        enter(&mut send);
        assert!(send.block().num_queued() <= 2, "{}", send.block().num_queued());
    }
    assert_eq!(ALLOCATED.get(), before);
    assert_eq!(send.block().num_queued(), 2);
    send.set_deliver(Groups::ALL);
    let told: Vec<_> = std::iter::from_fn(|| send.next_event()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    for event in told {
        let state = if event.value == socket.value() { IN | OUT } else { IN };
        assert_eq!((event.state, event.count > 1), (state, true), "{event:?}");
    }
    assert!(matches!(send.received(receives), Ok(Received::Bytes(_))));
}

#[test]
fn an_event_is_withdrawn_when_the_socket_was_emptied_before() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.watch(server, REST).unwrap();
    await_event(&mut send, REST.into(), EventType::READY);
    client.write_all(b"hello").unwrap();
    await_queued(&mut send, 1);
    assert_eq!(send.recv(socket, &mut [0; 64]), Ok(Some(5)));
    send.set_deliver(Groups::ALL);
    assert_eq!((send.next_event(), send.block().num_queued()), (None, 0));
    // What was read in part only is still told.
    send.set_deliver(Groups::NONE);
    client.write_all(b"again").unwrap();
    await_queued(&mut send, 1);
    assert_eq!(send.recv(socket, &mut [0; 2]), Ok(Some(2)));
    send.set_deliver(Groups::ALL);
    assert_eq!(send.next_event().map(|event| event.state), Some(IN | OUT));
    // And what has come since changes what is told.
    send.set_deliver(Groups::NONE);
    client.write_all(b"more").unwrap();
    await_queued(&mut send, 1);
    client.shutdown(Shutdown::Write).unwrap();
    let far = Instant::now() + Duration::from_secs(60);
    assert_eq!(send.wait(REST.into(), Some(far)), Ok(true));
    let states = std::iter::from_fn(|| {
        send.wait(REST.into(), Some(far)).unwrap().then(|| send.next_event().unwrap().state)
    });
    assert!(states.take(2).any(|state| state == IN | OUT | RDHUP));
}

#[test]
fn a_socket_with_room_again_tells_so() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.watch(server, REST).unwrap();
    await_event(&mut send, REST.into(), EventType::READY);
    let mut sent = 0;
    while let Some(n) = send.send(socket, &[1; 65536]).unwrap() {
        sent += n;
    }
    let reading = thread::spawn(move || {
        client.read_exact(&mut vec![0; sent]).unwrap();
        client
    });
    let event = await_event(&mut send, REST.into(), EventType::READY);
    assert_eq!(event.state, OUT);
    assert!(send.send(socket, b"more").unwrap().is_some());
    drop(reading.join().unwrap());
}

#[test]
fn received_bytes_are_told_and_taken_in_order() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.receive(server, REST).unwrap();
    assert!(matches!(send.received(socket), Ok(Received::Nothing)));
    let sent: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
    let writing = thread::spawn({
        let sent = sent.clone();
        move || client.write_all(&sent)
    });
    let mut heard = Vec::new();
    'all: loop {
        let event = await_event(&mut send, REST.into(), EventType::DATA);
        assert_eq!(SocketId::of(&event), Some(socket));
        loop {
            match send.received(socket).unwrap() {
                Received::Bytes(bytes) => heard.extend_from_slice(&bytes),
                Received::Nothing => break,
                Received::End => break 'all,
            }
        }
    }
    assert!(heard == sent);
    assert!(matches!(send.received(socket), Ok(Received::End)));
    writing.join().unwrap().unwrap();
}

#[test]
fn an_event_of_bytes_is_withdrawn_when_they_were_taken_before() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.receive(server, REST).unwrap();
    client.write_all(b"hello").unwrap();
    await_queued(&mut send, 1);
    assert!(matches!(send.received(socket), Ok(Received::Bytes(_))));
    send.set_deliver(Groups::ALL);
    assert_eq!((send.next_event(), send.block().num_queued()), (None, 0));
    client.write_all(b"again").unwrap();
    let event = await_event(&mut send, REST.into(), EventType::DATA);
    assert_eq!(event.state, IN);
}

#[test]
fn a_socket_that_found_no_buffer_goes_on_when_there_is_one() {
    let Some(mut send) = block() else { return };
    let (greedy, mut first) = pair();
    let greedy = send.receive(greedy, REST).unwrap();
    first.write_all(&[1; 1000]).unwrap();
    await_queued(&mut send, 1);
    let (modest, mut second) = pair();
    let modest = send.receive(modest, ACCEPTS).unwrap();
    second.write_all(b"hello").unwrap();
    // All buffers are full, of which the other takes none.
    enter(&mut send);
    assert!(matches!(send.received(modest), Ok(Received::Nothing)));
    let mut heard = 0;
    while heard < 1000 {
        match send.received(greedy).unwrap() {
            Received::Bytes(bytes) => heard += bytes.len(),
            _ => enter(&mut send),
        }
    }
    let event = await_event(&mut send, ACCEPTS.into(), EventType::DATA);
    assert_eq!(SocketId::of(&event), Some(modest));
    let Received::Bytes(bytes) = send.received(modest).unwrap() else { panic!("nothing came") };
    assert_eq!(&*bytes, b"hello");
}

#[test]
fn a_reset_is_told() {
    let Some(mut send) = block() else { return };
    let ((watched, one), (receiving, two)) = (pair(), pair());
    let watched = send.watch(watched, ACCEPTS).unwrap();
    let receiving = send.receive(receiving, REST).unwrap();
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
    let event = await_event(&mut send, REST.into(), EventType::DATA);
    assert_eq!(event.state, ERR);
    assert_eq!(send.received(receiving).err(), Some(reset));
    assert_eq!(send.received(receiving).err(), Some(reset));
}

#[test]
fn accepted_sockets_inherit_what_their_listener_was_told() {
    let Some(mut send) = block() else { return };
    let come = Arc::new(AtomicBool::new(false));
    let (listener, address) = listen();
    send.auto_accept(listener, Some(REST)).unwrap();
    send.set_handler(SetFlag(come.clone()), Trigger::Edge);
    send.set_notify(Groups::ALL).unwrap();
    let connecting = thread::spawn(move || {
        let mut client = connect(address);
        client.write_all(b"hello").unwrap();
        client
    });
    while !come.swap(false, Ordering::Acquire) {
        std::hint::spin_loop();
    }
    let mut client = connecting.join().unwrap();
    let accepted = send.next_event().unwrap();
    let socket = SocketId::of(&accepted).unwrap();
    assert_eq!(accepted.kind, EventType::ACCEPT);
    // It tells of its state without having been asked to, and interrupts.
    let mut state = 0;
    while state & IN == 0 {
        let event = await_event(&mut send, REST.into(), EventType::READY);
        assert_eq!((SocketId::of(&event), event.group), (Some(socket), 1));
        state = event.state;
    }
    assert_eq!(send.recv(socket, &mut [0; 64]), Ok(Some(5)));
    come.store(false, Ordering::Release);
    let writing = thread::spawn(move || client.write_all(b"again").map(|()| client));
    while !come.swap(false, Ordering::Acquire) {
        std::hint::spin_loop();
    }
    assert_eq!(send.next_event().map(|event| event.state), Some(IN | OUT));
    drop(writing.join().unwrap().unwrap());
}

#[test]
fn accepted_sockets_interrupt_again_and_again_though_their_listener_does_not() {
    let Some(mut send) = block() else { return };
    let come = Arc::new(AtomicBool::new(false));
    send.set_handler(SetFlag(come.clone()), Trigger::Edge);
    send.set_notify(REST.into()).unwrap();
    let (listener, address) = listen();
    // Two with the same to inherit.
    for listener in [listener, listen().0] {
        send.auto_accept(listener, Some(REST)).unwrap();
    }
    let mut client = connect(address);
    let accepted = await_event(&mut send, ACCEPTS.into(), EventType::ACCEPT);
    let socket = SocketId::of(&accepted).unwrap();
    // What it can do at the beginning.
    assert_eq!(await_event(&mut send, REST.into(), EventType::READY).state, OUT);
    come.store(false, Ordering::Release);
    for round in 0..10 {
        let writing = thread::spawn(move || client.write_all(&[round; 8]).map(|()| client));
        // No system call is made here.
        let far = Instant::now() + Duration::from_secs(60);
        while !come.swap(false, Ordering::Acquire) {
            assert!(Instant::now() < far, "round {round}: nothing interrupts");
            std::hint::spin_loop();
        }
        client = writing.join().unwrap().unwrap();
        assert_eq!(send.next_event().map(|event| event.state), Some(IN | OUT));
        assert_eq!(send.recv(socket, &mut [0; 64]), Ok(Some(8)));
    }
}

#[test]
fn accepted_sockets_tell_nothing_when_there_is_nothing_to_inherit() {
    let Some(mut send) = block() else { return };
    let (listener, address) = listen();
    send.auto_accept(listener, None).unwrap();
    let mut client = connect(address);
    let event = await_event(&mut send, ACCEPTS.into(), EventType::ACCEPT);
    client.write_all(b"hello").unwrap();
    assert_eq!(send.wait(Groups::ALL, Some(Instant::now())), Ok(false));
    // It is watched when it is given back and told to.
    let fd = send.release(SocketId::of(&event).unwrap()).unwrap();
    let socket = send.watch(fd, REST).unwrap();
    assert_eq!(await_event(&mut send, REST.into(), EventType::READY).value, socket.value());
}

#[test]
fn a_socket_that_is_released_tells_no_more() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let old = send.watch(server, REST).unwrap();
    await_queued(&mut send, 1);
    let server = send.release(old).unwrap();
    send.poll_pending();
    assert_eq!(send.block().num_queued(), 0);
    // SAFETY: it asks for the flags of a descriptor.
    let flags = unsafe { libc::fcntl(server.as_raw_fd(), libc::F_GETFL) };
    assert_eq!(flags & libc::O_ASYNC, 0);
    assert_eq!(send.release(old).err(), Some(Error::NoSuchSocket));
    assert_eq!(send.recv(old, &mut [0]).err(), Some(Error::NoSuchSocket));
    assert_eq!(send.received(old).err(), Some(Error::NoSuchSocket));
    // Another in its place has another name.
    let (next, _far) = pair();
    let new = send.watch(next, ACCEPTS).unwrap();
    assert_ne!(old, new);
    client.write_all(b"nobody listens").unwrap();
    let event = await_event(&mut send, Groups::ALL, EventType::READY);
    assert_eq!((SocketId::of(&event), event.group), (Some(new), 0));
    assert_eq!(send.wait(Groups::ALL, Some(Instant::now())), Ok(false));
    drop(server);
}

#[test]
fn what_was_received_and_not_taken_gives_its_buffers_back() {
    let Some(mut send) = block() else { return };
    for _ in 0..20 {
        let (server, mut client) = pair();
        let socket = send.receive(server, REST).unwrap();
        client.write_all(&[1; 1000]).unwrap();
        await_queued(&mut send, 1);
        // One is lent while the others go.
        let Received::Bytes(bytes) = send.received(socket).unwrap() else { panic!("none came") };
        send.release(socket).unwrap();
        assert_eq!(&*bytes, &[1; 64]);
    }
}

#[test]
fn bytes_that_came_for_a_socket_that_is_gone_give_their_buffer_back() {
    let Some(mut send) = block() else { return };
    let blocked = Blocked::new(libc::SIGIO);
    for _ in 0..20 {
        let (server, mut client) = pair();
        let socket = send.receive(server, REST).unwrap();
        // The ring has them, and nobody has looked.
        client.write_all(b"hello").unwrap();
        send.release(socket).unwrap();
    }
    drop(blocked);
    let (server, mut client) = pair();
    let socket = send.receive(server, REST).unwrap();
    client.write_all(b"hello").unwrap();
    await_event(&mut send, REST.into(), EventType::DATA);
    assert!(matches!(send.received(socket), Ok(Received::Bytes(_))));
}

#[test]
fn low_groups_are_told_first() {
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
fn the_group_of_a_socket_is_its_own_whatever_becomes_of_its_type() {
    for other in [None, Some(Group::FIRST)] {
        let Some(mut send) = block() else { return };
        let (server, _client) = pair();
        send.set_group(EventType::READY, Some(REST)).unwrap();
        send.watch(server, REST).unwrap();
        await_queued(&mut send, 1);
        send.set_group(EventType::READY, other).unwrap();
        send.set_deliver(Groups::ALL);
        let told = send.next_event().map(|event| (event.kind, event.group));
        assert_eq!(told, Some((EventType::READY, REST.number())));
    }
}

#[test]
fn posts_that_nobody_takes_hold_up_no_socket() {
    let Some(mut send) = block_for(2, CONFIG) else { return };
    send.set_group(EventType::USER, Some(Group::new(31).unwrap())).unwrap();
    let poster = send.poster();
    while poster.post(1).is_ok() {
        send.poll_pending();
    }
    let (listener, address) = listen();
    send.auto_accept(listener, Some(REST)).unwrap();
    let mut client = connect(address);
    let others = Groups::from(ACCEPTS) | REST.into();
    await_event(&mut send, others, EventType::ACCEPT);
    await_event(&mut send, others, EventType::READY);
    client.write_all(b"hello").unwrap();
    assert_eq!(await_event(&mut send, others, EventType::READY).state, IN | OUT);
}

#[test]
fn a_socket_goes_on_when_the_ring_has_overflowed() {
    let Some(mut send) = block() else { return };
    // Here every write is a piece of its own, and a report; TCP puts some together.
    let (server, mut client) = UnixStream::pair().unwrap();
    let mut reader = server.try_clone().unwrap();
    let socket = send.watch(server, REST).unwrap();
    await_event(&mut send, REST.into(), EventType::READY);
    // The ring has room for 4,096, as nobody takes one.
    send.with_notifications_blocked(|_| {
        for _ in 0..5_000 {
            client.write_all(b"x").unwrap();
            reader.read_exact(&mut [0]).unwrap();
        }
    });
    enter(&mut send);
    client.write_all(b"x").unwrap();
    assert_eq!(await_event(&mut send, REST.into(), EventType::READY).state, IN | OUT);
    assert_eq!(send.recv(socket, &mut [0; 8]), Ok(Some(1)));
    assert_eq!(send.wait(REST.into(), Some(Instant::now())), Ok(false));
    client.write_all(b"x").unwrap();
    assert_eq!(await_event(&mut send, REST.into(), EventType::READY).state, IN | OUT);
}

/// Has a signal blocked in the calling thread as long as this lives.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn new(signal: i32) -> Self {
        // SAFETY: a plain C structure for which all zero bytes are a valid value.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: it is a live signal set.
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
fn who_looks_sees_what_has_come_without_having_entered_the_kernel() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.watch(server, REST).unwrap();
    await_event(&mut send, REST.into(), EventType::READY);
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
fn a_post_ends_a_wait_that_no_signal_interrupts_again_and_again() {
    let Some(mut send) = block() else { return };
    send.set_group(EventType::USER, Some(REST)).unwrap();
    let poster = send.poster();
    let blocked = Blocked::new(libc::SIGIO);
    thread::scope(|scope| {
        for round in 0..50 {
            let poster = &poster;
            scope.spawn(move || poster.post(round).unwrap());
            assert_eq!(await_event(&mut send, REST.into(), EventType::USER).value, round);
        }
    });
    drop(blocked);
    // Nor does its end wait for the waker.
    let begin = Instant::now();
    drop(send);
    assert!(begin.elapsed() < Duration::from_secs(4));
}

#[test]
fn connections_for_which_there_is_no_room_wait_in_the_listeners_queue() {
    let Some(mut send) = block_for(1, SocketConfig { sockets: 3, ..CONFIG }) else { return };
    let (listener, address) = listen();
    let number = listener.as_raw_fd();
    send.auto_accept(listener, None).unwrap();
    let clients: Vec<_> = (0..4).map(|_| connect(address)).collect();
    // The buffer has room for one, the table for two.
    send.set_deliver(Groups::ALL);
    let first = await_event(&mut send, Groups::ALL, EventType::ACCEPT);
    let second = await_event(&mut send, Groups::ALL, EventType::ACCEPT);
    assert_eq!((queued(number), send.next_event()), (2, None));
    // That is no reason not to sleep.
    let turns = Instant::now() + Duration::from_millis(20);
    assert_eq!(send.wait(Groups::ALL, Some(turns)), Ok(false));
    for event in [first, second] {
        drop(send.release(SocketId::of(&event).unwrap()).unwrap());
        assert!(await_event(&mut send, Groups::ALL, EventType::ACCEPT).fd >= 0);
    }
    assert_eq!(queued(number), 0);
    drop(clients);
}

#[test]
fn a_listener_that_can_accept_no_more_tells_so() {
    let Some(mut send) = block() else { return };
    let (listener, _) = listen();
    let number = listener.as_raw_fd();
    let socket = send.auto_accept(listener, None).unwrap();
    // SAFETY: it passes numbers.
    assert_eq!(unsafe { libc::shutdown(number, libc::SHUT_RDWR) }, 0);
    let event = await_event(&mut send, Groups::ALL, EventType::ACCEPT);
    assert_eq!((SocketId::of(&event), event.fd, event.state), (Some(socket), -1, ERR));
}

#[test]
fn each_thread_has_sockets_of_its_own() {
    if block().is_none() {
        return;
    }
    thread::scope(|scope| {
        for byte in [1, 2] {
            scope.spawn(move || {
                let mut send = block().unwrap();
                let come = Arc::new(AtomicBool::new(false));
                send.set_handler(SetFlag(come.clone()), Trigger::Edge);
                send.set_notify(Groups::ALL).unwrap();
                let (listener, address) = listen();
                send.auto_accept(listener, Some(REST)).unwrap();
                let peer = thread::spawn(move || {
                    let mut client = connect(address);
                    for _ in 0..100 {
                        client.write_all(&[byte]).unwrap();
                        assert_eq!(client.read(&mut [0]).unwrap(), 1);
                    }
                });
                let mut heard = 0;
                while heard < 100 {
                    while !come.swap(false, Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    while let Some(event) = send.next_event() {
                        let (socket, mut into) = (SocketId::of(&event).unwrap(), [0; 8]);
                        if let Ok(Some(1)) = send.recv(socket, &mut into) {
                            assert_eq!(into[0], byte);
                            heard += 1;
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
fn what_makes_no_sense_is_refused_by_name() {
    let refused = |config: SocketConfig| match Sockets::new(&config).unwrap_err() {
        SendSetupError::Block(error) => error,
        SendSetupError::Ring(missing) => panic!("{missing}"),
    };
    for sockets in [0, MAX_SOCKETS + 1] {
        assert_eq!(refused(SocketConfig { sockets, ..CONFIG }), Error::SocketCount(sockets));
    }
    for (buffers, buffer_size) in [(0, 64), (3, 64), (4, 0), (32768, u32::MAX)] {
        let config = SocketConfig { buffers, buffer_size, ..CONFIG };
        assert_eq!(refused(config), Error::ReceiveBuffers(buffers, buffer_size));
    }
    let Some(mut send) = block_for(8, SocketConfig { sockets: 1, ..CONFIG }) else { return };
    let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    let number = file.as_raw_fd();
    assert_eq!(send.watch(file, REST), Err(Error::NotASocket(number)));
    let (server, _client) = pair();
    let number = server.as_raw_fd();
    assert_eq!(send.auto_accept(server, None), Err(Error::NotListening(number)));
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let number = datagrams.as_raw_fd();
    assert_eq!(send.receive(datagrams, REST), Err(Error::NotAStream(number)));
    let ((first, _one), (second, _two)) = (pair(), pair());
    let socket = send.watch(first, REST).unwrap();
    assert_eq!(send.watch(second, REST), Err(Error::TooManySockets));
    // It is watched, and so not received from.
    assert_eq!(send.received(socket).err(), Some(Error::NoSuchSocket));
    assert_eq!(SocketId::of(&Event::new(EventType::USER)), None);
}
