//! What a server lets in when more comes than it can serve, on every mechanism that has turns.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use evring::{
    Admission, AnyMechanism, Application, Chunk, Close, Commands, Config, Cx, Lateness, Order, Rx,
    Stats, backends,
};
use shared_ring::{Host, Linux, Socket};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// The length of the listener's queue while there is slack.
const LONGEST: u32 = 128;
/// Clients that never let a server rest.
const CLIENTS: usize = 24;

/// What the server has told last.
#[derive(Default)]
struct Told {
    backlog: AtomicU32,
    lost: AtomicU64,
    rate: AtomicU32,
    /// How often a request was said to come too late.
    late: AtomicU64,
}

/// What is asked on a connection that is kept.
const KEEP: &[u8] = b"k";

/// Takes a millisecond of processor time for each request.
struct Slow(Arc<Told>);

impl Application for Slow {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let keep = rx.bytes() == KEEP;
        rx.consume(rx.bytes().len());
        let late = x.io.lateness(x.id) != Lateness::InTime;
        let end = Linux::default().cpu_time() + Duration::from_millis(1);
        while Linux::default().cpu_time() < end {}
        let (told, stats) = (&self.0, x.io.stats());
        told.late.fetch_add(late.into(), Ordering::Relaxed);
        told.backlog.store(stats.backlog, Ordering::Relaxed);
        told.lost.store(stats.abandoned, Ordering::Relaxed);
        told.rate.store(stats.service_rate, Ordering::Relaxed);
        x.io.send(x.id, Chunk::Static(b"done"));
        if !keep {
            x.io.close(x.id, Close::Flush);
        }
    }
}

/// Runs a test beside a server on each mechanism that learns of its load.
fn on_each(order: Order, test: impl Fn(SocketAddr, &Told)) {
    for backend in backends().into_iter().filter(|backend| backend.name != "tokio") {
        if let Err(reason) = &backend.available {
            println!("{} is not available: {reason}", backend.name);
            continue;
        }
        println!("{}", backend.name);
        let told = Arc::new(Told::default());
        let (sender, receiver) = mpsc::channel();
        let app = Slow(Arc::clone(&told));
        let server = thread::spawn(move || -> Stats {
            let admission = Admission {
                max_queue_delay: Duration::from_millis(5),
                min_queue: 4,
                max_wait: Duration::from_secs(60),
                order,
            };
            let config = Config {
                listen: vec!["127.0.0.1:0".parse().unwrap()],
                backlog: LONGEST,
                admission: Some(admission),
                ..Config::default()
            };
            let server = AnyMechanism::new(backend.name, &config).unwrap();
            sender.send((server.addresses()[0], server.remote())).unwrap();
            server.run(app).unwrap()
        });
        let (address, remote) = receiver.recv().unwrap();
        test(address, &told);
        remote.stop();
        let stats = server.join().unwrap();
        assert_eq!(stats.accepted, stats.closed);
    }
}

/// Asks once; whether there was a reply.
fn ask(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) else { return false };
    let mut reply = [0; 4];
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut reply).is_ok() && &reply == b"done"
}

/// Asks, and goes away by a reset.
fn ask_and_leave(address: SocketAddr) {
    if let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) {
        let _ = stream.write_all(b"x");
        let socket = Socket::from(OwnedFd::from(stream));
        Linux::default().reset_on_close(&socket);
        Linux::default().close_unused(socket);
    }
}

/// Has clients do something again and again until `enough`.
fn flood<R>(each: impl Fn() -> R + Sync, enough: impl Fn() -> bool) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    each();
                }
            });
        }
        let until = Instant::now() + PATIENCE;
        while !enough() && Instant::now() < until {
            thread::yield_now();
        }
        let came = enough();
        over.store(true, Ordering::Relaxed);
        assert!(came, "it never comes");
    });
}

#[test]
fn a_listeners_queue_is_shorter_as_long_as_more_comes_than_is_served() {
    on_each(Order::Oldest, |address, told| {
        let backlog = || told.backlog.load(Ordering::Relaxed);
        flood(|| ask(address), || (1..LONGEST).contains(&backlog()));
        let rate = told.rate.load(Ordering::Relaxed);
        assert!((1..=1_000).contains(&rate), "{rate} in a second, each of which takes 1 ms");
        let until = Instant::now() + PATIENCE;
        while backlog() < LONGEST {
            assert!(ask(address), "who comes alone is served");
            assert!(Instant::now() < until, "the queue stays short");
        }
    });
}

#[test]
fn connections_that_never_rest_lock_nobody_out() {
    on_each(Order::Oldest, |address, _| {
        let over = AtomicBool::new(false);
        let never_rests = || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            while !over.load(Ordering::Relaxed) {
                stream.write_all(KEEP).unwrap();
                stream.read_exact(&mut [0; 4]).unwrap();
            }
        };
        thread::scope(|scope| {
            let kept: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(never_rests)).collect();
            let served = (0..20).filter(|_| ask(address)).count();
            over.store(true, Ordering::Relaxed);
            assert_eq!(served, 20, "newcomers");
            kept.into_iter().for_each(|thread| thread.join().unwrap());
        });
    });
}

#[test]
fn nothing_is_done_for_clients_that_have_gone() {
    on_each(Order::Oldest, |address, told| {
        let stays_and_leaves = || {
            ask(address);
            ask_and_leave(address);
        };
        flood(stays_and_leaves, || told.lost.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn the_newest_come_first_and_the_oldest_are_refused() {
    on_each(Order::Newest, |address, told| {
        flood(|| ask(address), || told.lost.load(Ordering::Relaxed) > 0);
        assert!(ask(address), "who comes alone is served");
    });
}

#[test]
fn who_has_waited_too_long_is_told_apart() {
    on_each(Order::Oldest, |address, told| {
        flood(|| ask(address), || told.late.load(Ordering::Relaxed) > 0);
    });
}
