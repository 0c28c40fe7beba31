//! A server that computes and is interrupted by its clients (SEND 3.6). Connections are accepted
//! and report their state without system calls by the application.
//!
//!     cargo run -p send-core --example sockets
//!
//! Connect with `nc`; the server echoes its input. An argument limits the connections served.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, error};

use send_core::EventType;
use send_core::control_block::{ControlBlock, Group, Groups, SetFlag, Trigger};
use send_core::sockets::{SocketConfig, SocketId, Sockets};

fn main() -> Result<(), Box<dyn error::Error>> {
    let mut remaining = env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(u64::MAX);
    let mut ecb = ControlBlock::with_source(100, Sockets::new(&SocketConfig::default())?)?;

    // The handler sets a flag. The application takes the events.
    let has_events = Arc::new(AtomicBool::new(false));
    ecb.set_handler(SetFlag(has_events.clone()), Trigger::Edge);
    ecb.set_notify(Groups::ALL)?;

    // SIOCAUTOACCEPT: connections are delivered first. SIOCEVTCLONE: watched in the next group.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening on {}", listener.local_addr()?);
    ecb.set_group(EventType::ACCEPT, Some(Group::FIRST))?;
    ecb.auto_accept(listener, Some(Group::FIRST.next()))?;

    let mut steps = 0_u64;
    while remaining > 0 {
        // The computation: count steps, without system calls.
        while !has_events.swap(false, Ordering::Acquire) {
            steps += 1;
        }
        while let Some(event) = ecb.next_event() {
            println!("after {steps} steps: {event:?}");
            let Some(socket) = SocketId::of(&event) else { continue };
            if event.kind == EventType::READY
                && !echo(&ecb, socket)
                && let Ok(fd) = ecb.release(socket)
            {
                drop(fd);
                remaining -= 1;
            }
        }
    }
    Ok(())
}

/// Echoes the received bytes. Returns false at the end of the stream or on an error.
fn echo(ecb: &ControlBlock<Sockets>, socket: SocketId) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match ecb.recv(socket, &mut bytes) {
            Ok(None) => return true,
            // Bytes that do not fit in the send buffer are dropped.
            Ok(Some(n)) if n > 0 && ecb.send(socket, &bytes[..n]).is_ok() => {}
            // End of stream, a reset, or an event of a released socket.
            _ => return false,
        }
    }
}
