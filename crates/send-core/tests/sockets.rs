//! Connections and sockets that tell of themselves, on this machine's io_uring.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use send_core::{
    Accepted, Action, Actions, Event, EventType, Evtctl, Group, Groups, RingSource, Trigger,
};
use shared_ring::{Mode, UringConfig, UringKernel};

type Send = Evtctl<RingSource>;

const IN: u32 = libc::POLLIN as u32;
const OUT: u32 = libc::POLLOUT as u32;

/// A block over a ring, or none where there is no io_uring; that is said once by the tests of
/// `shared-ring`.
fn block() -> Option<Send> {
    let config =
        UringConfig { mode: Mode::Cooperative, operations: 64, buffers: 4, buffer_size: 64 };
    UringKernel::probe(config.mode).ok()?;
    Some(Evtctl::with_ring(64, &config).unwrap())
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Two ends of a connection; the first is that of the server.
fn pair() -> (OwnedFd, TcpStream) {
    let (listener, address) = listen();
    let client = TcpStream::connect(address).unwrap();
    client.set_nodelay(true).unwrap();
    (listener.accept().unwrap().0.into(), client)
}

/// How many connections wait in a listener's queue, as the kernel tells.
fn queued(listener: i32) -> u32 {
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

/// Waits for an event of a kind, and drops others.
fn await_event(send: &mut Send, kind: EventType) -> Event {
    loop {
        assert!(send.wait(Groups::ALL, soon()).unwrap(), "no event of the kind {kind:?} comes");
        if let Some(event) = send.next_event().filter(|event| event.kind == kind) {
            return event;
        }
    }
}

#[test]
fn a_connection_is_accepted_as_its_event_is_delivered() {
    let Some(mut send) = block() else { return };
    let (listener, address) = listen();
    send.set_group(EventType::ACCEPT, Some(Group::FIRST)).unwrap();
    send.set_deliver(Groups::ALL).unwrap();
    send.auto_accept(listener).unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"hello").unwrap();
    let event = await_event(&mut send, EventType::ACCEPT);
    let Accepted { fd, state, peer } = send.accepted(event).unwrap();
    // What it says of itself is known without asking.
    assert_eq!(state & (IN | OUT), IN | OUT);
    assert_eq!(peer, Some(client.local_addr().unwrap()));
    let mut server = TcpStream::from(fd);
    let mut heard = [0; 5];
    server.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
    assert!(send.accepted(event).is_none());
}

#[test]
fn a_connection_interrupts_the_application_while_it_computes() {
    let Some(mut send) = block() else { return };
    let (listener, address) = listen();
    let accepts = Arc::new(AtomicU64::new(0));
    let handler = Actions::new().on(EventType::ACCEPT, Action::Count(accepts.clone()));
    send.set_handler(handler, Trigger::Level);
    send.set_group(EventType::ACCEPT, Some(Group::FIRST)).unwrap();
    send.set_notify(Groups::ALL).unwrap();
    send.auto_accept(listener).unwrap();
    let connecting = thread::spawn(move || {
        (0..100).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>()
    });
    // No system call is made here.
    while accepts.load(Ordering::Relaxed) < 100 {
        std::hint::spin_loop();
    }
    connecting.join().unwrap();
    assert!(send.counts().interrupts > 0);
}

#[test]
fn nothing_is_accepted_while_the_masks_let_no_connection_through() {
    let Some(mut send) = block() else { return };
    let (listener, address) = listen();
    let number = listener.as_raw_fd();
    send.set_group(EventType::ACCEPT, Some(Group::FIRST)).unwrap();
    send.auto_accept(listener).unwrap();
    let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    send.look();
    assert_eq!((queued(number), send.next_event()), (3, None));
    send.set_deliver(Groups::ALL).unwrap();
    for _ in 0..3 {
        await_event(&mut send, EventType::ACCEPT);
    }
    assert_eq!(queued(number), 0);
    // It ends as it began: at once.
    send.set_deliver(Groups::NONE).unwrap();
    let late: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    let past = Some(Instant::now());
    assert!(!send.wait(!Groups::from(Group::FIRST), past).unwrap());
    assert_eq!(queued(number), 3);
    // A wait's mask stands for that of delivery.
    assert!(send.wait(Groups::ALL, soon()).unwrap());
    drop((clients, late));
}

#[test]
fn a_socket_that_is_flooded_has_one_event() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let group = Group::new(5).unwrap();
    let socket = send.watch(server, group).unwrap();
    // What it can do at the beginning.
    send.set_deliver(Groups::ALL).unwrap();
    let first = await_event(&mut send, EventType::READY);
    assert_eq!((first.value, first.state & (IN | OUT), first.group), (socket.value(), OUT, 5));
    send.set_deliver(Groups::NONE).unwrap();
    for _ in 0..5_000 {
        client.write_all(b"x").unwrap();
        send.look();
        assert!(send.block().num_queued() <= 1, "{}", send.block().num_queued());
    }
    assert!(!send.wait(Groups::NONE, Some(Instant::now())).unwrap());
    assert_eq!(send.block().num_queued(), 1);
    send.set_deliver(Groups::ALL).unwrap();
    let event = send.next_event().unwrap();
    assert!(event.count > 1 && event.state & IN != 0, "{event:?}");
    assert_eq!(send.next_event(), None);
}

#[test]
fn an_event_is_withdrawn_when_the_socket_was_emptied_before() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.watch(server, Group::FIRST).unwrap();
    send.set_deliver(Groups::ALL).unwrap();
    await_event(&mut send, EventType::READY);
    send.set_deliver(Groups::NONE).unwrap();
    client.write_all(b"hello").unwrap();
    while send.block().num_queued() == 0 {
        assert!(!send.wait(Groups::NONE, Some(Instant::now())).unwrap());
    }
    assert_eq!(send.recv(socket, &mut [0; 64]).unwrap(), 5);
    assert_eq!(send.block().num_queued(), 0);
    send.set_deliver(Groups::ALL).unwrap();
    assert_eq!(send.next_event(), None);
    // What comes later is told again.
    client.write_all(b"again").unwrap();
    let event = await_event(&mut send, EventType::READY);
    assert!(event.state & IN != 0);
    client.shutdown(Shutdown::Both).unwrap();
    let event = await_event(&mut send, EventType::READY);
    assert!(event.state & libc::POLLRDHUP as u32 != 0, "{event:?}");
}

#[test]
fn a_socket_that_is_given_back_tells_no_more() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.watch(server, Group::FIRST).unwrap();
    let server = send.unwatch(socket).unwrap();
    assert!(send.unwatch(socket).is_none());
    assert_eq!(send.recv(socket, &mut [0]).unwrap_err().raw_os_error(), Some(libc::EBADF));
    // Another in its place has another name.
    let (next, _client) = pair();
    let other = send.watch(next, Group::FIRST).unwrap();
    assert_ne!(other, socket);
    client.write_all(b"nobody listens").unwrap();
    let event = await_event(&mut send, EventType::READY);
    assert_eq!(event.value, other.value());
    drop(server);
}

#[test]
fn sockets_of_low_groups_are_told_first() {
    let Some(mut send) = block() else { return };
    let (mut clients, mut sockets) = (Vec::new(), Vec::new());
    for group in [9, 4, 7] {
        let (server, client) = pair();
        clients.push(client);
        sockets.push(send.watch(server, Group::new(group).unwrap()).unwrap());
    }
    while send.block().num_queued() < 3 {
        assert!(!send.wait(Groups::NONE, Some(Instant::now())).unwrap());
    }
    send.set_deliver(Groups::ALL).unwrap();
    let order: Vec<_> = std::iter::from_fn(|| send.next_event()).map(|e| e.value).collect();
    assert_eq!(order, [1, 2, 0].map(|i: usize| sockets[i].value()));
}

#[test]
fn what_is_received_is_told_and_taken() {
    let Some(mut send) = block() else { return };
    let (server, mut client) = pair();
    let socket = send.receive(server, Group::FIRST).unwrap();
    assert!(send.data(socket).unwrap().is_none());
    let sent: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
    let writing = thread::spawn({
        let sent = sent.clone();
        move || client.write_all(&sent)
    });
    let mut heard = Vec::new();
    let end = loop {
        let event = await_event(&mut send, EventType::DATA);
        assert_eq!(event.value, socket.value());
        let ended = loop {
            match send.data(socket) {
                Ok(Some(bytes)) => heard.extend_from_slice(&bytes),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        if let Some(error) = ended {
            break error;
        }
    };
    assert_eq!((heard, end.raw_os_error()), (sent, Some(libc::ENODATA)));
    writing.join().unwrap().unwrap();
}
