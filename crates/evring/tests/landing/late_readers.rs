//! Clients that read the replies late.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use ash_sandbox::sandbox::Handler;
use evring::hooks::{Hooked, Landing, Tenant};
use evring::{
    AnyMechanism, Application, Chunk, Commands, Cx, HIGH_WATER, Listener, Others, RemoteHandle, Rx,
};

use crate::landing::{BUFFERS, Echo, LEN, handler};
use crate::server::{TIMEOUT, echo_to_a_late_reader, next, side_by_side, small_queues};

/// Starts a server of one tenant, with small queues.
pub(super) fn with_small_queues(
    backend: &'static str,
    handler: fn() -> Handler,
) -> (SocketAddr, RemoteHandle, Tenant, thread::JoinHandle<()>) {
    start_with(backend, handler, Echo)
}

/// The same, in front of this application.
fn start_with<A: Application + Send + 'static>(
    backend: &'static str,
    handler: fn() -> Handler,
    app: A,
) -> (SocketAddr, RemoteHandle, Tenant, thread::JoinHandle<()>) {
    let (started, server) = mpsc::channel();
    let thread = thread::spawn(move || {
        let mut server = AnyMechanism::new(backend, &small_queues()).unwrap();
        let mut landing = Landing::new();
        let add = |buffers| server.add_buffers(buffers);
        let tenant = landing.bind(handler(), BUFFERS.0, BUFFERS.1, add).unwrap();
        server.set_listener_group(Listener(0), tenant.group()).unwrap();
        started.send((server.addresses()[0], server.remote(), tenant)).unwrap();
        server.run(Hooked::new(app, landing)).unwrap();
    });
    let (address, remote, tenant) = server.recv().unwrap();
    (address, remote, tenant, thread)
}

#[test]
fn messages_held_for_a_late_reader_were_lost_at_a_stop() {
    side_by_side(|backend| {
        let (report, reports) = mpsc::channel();
        let (address, remote, tenant, thread) = start_with(backend, handler, Pauses(report));
        let mut client = TcpStream::connect(address).unwrap();
        let is_full = || {
            assert!(remote.wake(LOOK));
            next(&reports) >= HIGH_WATER as u64
        };
        let mut messages = 0;
        // Until one is held.
        while tenant.counters().handled == messages {
            client.write_all(&[2; LEN]).unwrap();
            messages += 1;
            let begin = Instant::now();
            // Fewer replies may be queued while it is held: the client's kernel may take some after the one before.
            while tenant.counters().handled < messages && !is_full() && begin.elapsed() < TIMEOUT {}
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

/// Wake-ups of [`Pauses`].
const PAUSE_IF_FULL: u64 = 0;
const RESUME: u64 = 1;
const LOOK: u64 = 2;

/// An echo server that says how many bytes are queued when it is woken, and may pause its connection if they are many.
struct Pauses(mpsc::Sender<u64>);

impl Application for Pauses {
    type State = ();
    const MAX_UNCONSUMED: usize = LEN;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        x.io.send(x.id, Chunk::Received(rx.take()));
    }

    fn woken(&mut self, io: &mut impl Commands, _: Others<'_, ()>, tag: u64) {
        let mut queued = 0;
        if let Some(id) = io.next_open(0) {
            queued = io.queued_bytes(id);
            if tag == RESUME || tag == PAUSE_IF_FULL && queued >= HIGH_WATER as u64 {
                io.set_receiving(id, tag == RESUME);
            }
        }
        self.0.send(queued).unwrap();
    }
}

#[test]
fn handler_got_a_message_twice_if_the_application_had_paused_the_connection() {
    side_by_side(|backend| {
        let (report, reports) = mpsc::channel();
        let (address, remote, tenant, thread) = start_with(backend, handler, Pauses(report));
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        let queued = || {
            assert!(remote.wake(PAUSE_IF_FULL));
            next(&reports)
        };
        let mut messages = 0;
        while queued() < HIGH_WATER as u64 {
            client.write_all(&[2; LEN]).unwrap();
            messages += 1;
            while tenant.counters().handled < messages {
                thread::yield_now();
            }
        }
        client.read_exact(&mut vec![0; messages as usize * LEN]).unwrap();
        while queued() > 0 {}
        // The handler's hold has ended by now, and the pause has not.
        queued();
        client.write_all(&[3; LEN]).unwrap();
        while tenant.counters().passed == 0 {
            thread::yield_now();
        }
        assert!(remote.wake(RESUME));
        client.read_exact(&mut [0; LEN]).unwrap();
        assert_eq!(tenant.counters().passed, 1, "{backend}");
        remote.stop();
        drop(client);
        thread.join().unwrap();
    });
}
