//! Admission control under overload, on every mechanism that has turns.

use crate::server;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use evring::{Admission, Application, Chunk, Close, Commands, Cx, Lateness, Order, Rx};
use server::{Server, TIMEOUT, listening, mechanisms};
use shared_ring::{Host, Linux, Socket};

/// Length of the backlog without overload.
const MAX_BACKLOG: u32 = 128;
/// Number of clients that keep the server busy.
const CLIENTS: usize = 24;

/// Statistics that the server reported last.
#[derive(Default)]
struct Reported {
    backlog: AtomicU32,
    abandoned: AtomicU64,
    rate: AtomicU32,
    /// Number of requests reported as late.
    late: AtomicU64,
}

/// A request on a connection that stays open.
const KEEP: &[u8] = b"k";

/// Uses 1 ms of CPU time per request.
struct Slow(Arc<Reported>);

impl Application for Slow {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let keep = rx.bytes() == KEEP;
        rx.consume(rx.bytes().len());
        let late = x.io.lateness(x.id) != Lateness::InTime;
        let end = Linux::default().cpu_time() + Duration::from_millis(1);
        while Linux::default().cpu_time() < end {}
        let (reported, stats) = (&self.0, x.io.stats());
        reported.late.fetch_add(late.into(), Ordering::Relaxed);
        reported.backlog.store(stats.backlog, Ordering::Relaxed);
        reported.abandoned.store(stats.abandoned, Ordering::Relaxed);
        reported.rate.store(stats.service_rate, Ordering::Relaxed);
        x.io.send(x.id, Chunk::Static(b"done"));
        if !keep {
            x.io.close(x.id, Close::Flush);
        }
    }
}

/// Runs a test against a server on each mechanism that has admission control.
fn on_each(order: Order, test: impl Fn(SocketAddr, &Reported)) {
    for name in mechanisms().filter(|name| *name != "tokio") {
        println!("{name}");
        let reported = Arc::new(Reported::default());
        let app = Slow(Arc::clone(&reported));
        let mut admission = Admission::default();
        admission.max_queue_delay = Duration::from_millis(5);
        admission.min_queue = 4;
        admission.max_wait = Duration::from_secs(60);
        admission.order = order;
        let config = listening(1).with(|c| {
            c.backlog = MAX_BACKLOG;
            c.admission = Some(admission);
        });
        let server = Server::start(name, config, || app);
        test(server.address, &reported);
        let stats = server.stop();
        assert_eq!(stats.accepted, stats.closed);
        assert_eq!(stats.backlog, MAX_BACKLOG, "a shared socket keeps its backlog");
    }
}

/// Sends a request. Returns whether there was a reply.
fn ask(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, TIMEOUT) else { return false };
    let mut reply = [0; 4];
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut reply).is_ok() && &reply == b"done"
}

/// Sends a request and resets the connection.
fn ask_and_leave(address: SocketAddr) {
    if let Ok(mut stream) = TcpStream::connect_timeout(&address, TIMEOUT) {
        let _ = stream.write_all(b"x");
        let socket = Socket::from(OwnedFd::from(stream));
        Linux::default().reset_on_close(&socket);
        Linux::default().close_unused(socket);
    }
}

/// Runs `each` repeatedly in many clients until `enough`.
fn flood<R>(each: impl Fn() -> R + Sync, enough: impl Fn() -> bool) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    each();
                }
            });
        }
        let until = Instant::now() + TIMEOUT;
        while !enough() && Instant::now() < until {
            // The core is the server's.
            thread::sleep(Duration::from_millis(1));
        }
        let reached = enough();
        done.store(true, Ordering::Relaxed);
        assert!(reached, "the condition was not reached in time");
    });
}

#[test]
fn overload_shortens_the_backlog() {
    on_each(Order::Oldest, |address, reported| {
        let backlog = || reported.backlog.load(Ordering::Relaxed);
        flood(|| ask(address), || (1..MAX_BACKLOG).contains(&backlog()));
        let rate = reported.rate.load(Ordering::Relaxed);
        assert!((1..=1_000).contains(&rate), "{rate} requests of 1 ms per second");
        let until = Instant::now() + TIMEOUT;
        while backlog() < MAX_BACKLOG {
            // Without new connections the overload ends, however late this machine serves the next one.
            thread::sleep(Duration::from_millis(200));
            assert!(ask(address), "a single client is served");
            assert!(Instant::now() < until, "the backlog stays short");
        }
    });
}

#[test]
fn busy_connections_do_not_block_new_ones() {
    on_each(Order::Oldest, |address, _| {
        let done = AtomicBool::new(false);
        let keep_busy = || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            while !done.load(Ordering::Relaxed) {
                stream.write_all(KEEP).unwrap();
                stream.read_exact(&mut [0; 4]).unwrap();
            }
        };
        thread::scope(|scope| {
            let kept: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(keep_busy)).collect();
            let served = (0..8).filter(|_| ask(address)).count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(served, 8, "new clients");
            kept.into_iter().for_each(|thread| thread.join().unwrap());
        });
    });
}

#[test]
fn connections_of_closed_clients_are_abandoned() {
    on_each(Order::Oldest, |address, reported| {
        let ask_twice = || {
            ask(address);
            ask_and_leave(address);
        };
        flood(ask_twice, || reported.abandoned.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn newest_first_abandons_the_oldest() {
    on_each(Order::Newest, |address, reported| {
        flood(|| ask(address), || reported.abandoned.load(Ordering::Relaxed) > 0);
        assert!(ask(address), "a single client is served");
    });
}

#[test]
fn long_waits_are_reported_as_late() {
    on_each(Order::Oldest, |address, reported| {
        flood(|| ask(address), || reported.late.load(Ordering::Relaxed) > 0);
    });
}
