//! Lifetime of descriptors. A single test, as descriptors belong to the process.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use send_core::EventType;
use send_core::control_block::{ControlBlock, Group, Groups};
use send_core::sockets::{SendSetupError, SocketConfig, SocketId, Sockets};

const CONFIG: SocketConfig = SocketConfig::new(64, 4, 64);

fn block() -> Option<ControlBlock<Sockets>> {
    let sockets = match Sockets::new(&CONFIG) {
        Ok(sockets) => sockets,
        Err(SendSetupError::Ring(missing)) => {
            println!("not tested: {missing}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut send = ControlBlock::with_source(8, sockets).unwrap();
    send.set_group(EventType::ACCEPT, Some(Group::FIRST)).unwrap();
    Some(send)
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn await_event(send: &mut ControlBlock<Sockets>) -> SocketId {
    let until = Instant::now() + Duration::from_secs(60);
    assert!(send.wait(Group::FIRST.into(), Some(until)).unwrap(), "no connection is accepted");
    SocketId::of(&send.next_event().unwrap()).unwrap()
}

/// Drops a block with sockets in every state.
fn use_sockets(mut send: ControlBlock<Sockets>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    send.auto_accept(listener, Some(Group::FIRST.next())).unwrap();
    let mut clients: Vec<_> = (0..12).map(|_| TcpStream::connect(address).unwrap()).collect();
    clients.iter_mut().for_each(|client| client.write_all(b"hello").unwrap());
    // One is taken and kept, one released, one received from; the others are accepted and never
    // taken.
    await_event(&mut send);
    let released = await_event(&mut send);
    drop(send.release(released).unwrap());
    let received = await_event(&mut send);
    let fd = send.release(received).unwrap();
    send.receive(fd, Group::FIRST).unwrap();
    send.set_deliver(Groups::ALL);
    assert!(send.block().has_events());
    drop(send);
    for client in &mut clients {
        // The server's ends are closed, with or without unread data.
        assert!(!matches!(client.read(&mut [0]), Ok(1..)));
    }
}

/// Sets the descriptor limit. Returns the former limit.
fn set_limit(max: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls write and read one structure.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        before
    }
}

/// A connection waits while no descriptor is available, and is accepted later.
fn exhaust_descriptors(mut send: ControlBlock<Sockets>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    send.auto_accept(listener, None).unwrap();
    let before = set_limit(3);
    let until = Instant::now() + Duration::from_millis(20);
    assert_eq!(send.wait(Groups::ALL, Some(until)), Ok(false));
    set_limit(before);
    await_event(&mut send);
}

#[test]
fn descriptors_are_closed_and_accepting_resumes_after_a_shortage() {
    let Some(send) = block() else { return };
    // Opens descriptors that stay open.
    use_sockets(send);
    let before = open_descriptors();
    for _ in 0..3 {
        use_sockets(block().unwrap());
        exhaust_descriptors(block().unwrap());
        assert_eq!(open_descriptors(), before);
    }
}
