//! Clients that read the replies late.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ash_sandbox::sandbox::Handler;
use evring::hooks::{Hooked, Landing, Tenant};
use evring::{AnyMechanism, Listener, RemoteHandle};

use crate::landing::{BUFFERS, Echo, LEN, handler};
use crate::server::{echo_to_a_late_reader, side_by_side, small_queues};

/// A message that was not handled after this time is held.
const HELD_AFTER: Duration = Duration::from_millis(200);

/// Starts a server of one tenant, with small queues.
pub(super) fn with_small_queues(
    backend: &'static str,
    handler: fn() -> Handler,
) -> (SocketAddr, RemoteHandle, Tenant, thread::JoinHandle<()>) {
    let (started, server) = mpsc::channel();
    let thread = thread::spawn(move || {
        let mut server = AnyMechanism::new(backend, &small_queues()).unwrap();
        let mut landing = Landing::new();
        let add = |buffers| server.add_buffers(buffers);
        let tenant = landing.bind(handler(), BUFFERS.0, BUFFERS.1, add).unwrap();
        server.set_listener_group(Listener(0), tenant.group()).unwrap();
        started.send((server.addresses()[0], server.remote(), tenant)).unwrap();
        server.run(Hooked::new(Echo, landing)).unwrap();
    });
    let (address, remote, tenant) = server.recv().unwrap();
    (address, remote, tenant, thread)
}

#[test]
fn messages_held_for_a_late_reader_were_lost_at_a_stop() {
    side_by_side(|backend| {
        let (address, remote, tenant, thread) = with_small_queues(backend, handler);
        let mut client = TcpStream::connect(address).unwrap();
        let mut messages = 0;
        // Until one is held.
        while tenant.counters().handled == messages {
            client.write_all(&[2; LEN]).unwrap();
            messages += 1;
            let begin = Instant::now();
            while tenant.counters().handled < messages && begin.elapsed() < HELD_AFTER {
                thread::yield_now();
            }
        }
        remote.stop();
        let mut replies = Vec::new();
        client.read_to_end(&mut replies).unwrap();
        assert_eq!(replies.len(), messages as usize * LEN, "{backend}");
        thread.join().unwrap();
    });
}

#[test]
fn client_that_read_the_replies_of_a_handler_late_was_reset() {
    side_by_side(|backend| {
        let (address, remote, tenant, thread) = with_small_queues(backend, handler);
        // From its own memory.
        echo_to_a_late_reader(address, 2);
        assert_eq!(tenant.counters().passed, 0, "{backend}: the handler has echoed all");
        remote.stop();
        thread.join().unwrap();
    });
}
