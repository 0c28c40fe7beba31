//! A server that computes, and is interrupted by its clients (SEND 3.6): connections are accepted and
//! tell of their state by themselves, and no system call asks for them.
//!
//!     cargo run -p send-core --example sockets
//!
//! Talk to it with `nc`; it sends back what it hears. An argument says how many connections it serves.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, error};

use send_core::{
    ControlBlock, EventType, Group, Groups, SetFlag, SocketConfig, SocketId, Sockets, Trigger,
};

fn main() -> Result<(), Box<dyn error::Error>> {
    let mut left = env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(u64::MAX);
    let mut ecb = ControlBlock::with_source(100, Sockets::new(&SocketConfig::default())?)?;

    // The handler raises a flag, and leaves the events to the application.
    let come = Arc::new(AtomicBool::new(false));
    ecb.set_handler(SetFlag(come.clone()), Trigger::Edge);
    ecb.set_notify(Groups::ALL)?;

    // SIOCAUTOACCEPT; new connections come first. SIOCEVTCLONE: they are watched, in the next group.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening on {}", listener.local_addr()?);
    ecb.set_group(EventType::ACCEPT, Some(Group::FIRST))?;
    ecb.auto_accept(listener, Some(Group::FIRST.next()))?;

    let mut steps = 0_u64;
    while left > 0 {
        // What it computes is how far it comes. It makes no system call.
        while !come.swap(false, Ordering::Acquire) {
            steps += 1;
        }
        while let Some(event) = ecb.next_event() {
            println!("after {steps} steps: {event:?}");
            let Some(socket) = SocketId::of(&event) else { continue };
            if event.kind == EventType::READY
                && !answer(&ecb, socket)
                && let Ok(ended) = ecb.release(socket)
            {
                drop(ended);
                left -= 1;
            }
        }
    }
    Ok(())
}

/// Sends back what has come; whether there may be more.
fn answer(ecb: &ControlBlock<Sockets>, socket: SocketId) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match ecb.recv(socket, &mut bytes) {
            Ok(None) => return true,
            // What does not fit is dropped, as this is an example.
            Ok(Some(n)) if n > 0 && ecb.send(socket, &bytes[..n]).is_ok() => {}
            // The end, or a reset; or the event came too late, and it is gone.
            _ => return false,
        }
    }
}
