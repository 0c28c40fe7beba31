//! Pages by the number of requests on a connection: figures 6-6 and 6-7, and table 6-12.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ash_sandbox::sandbox::{Handler, SharedTable};
use bytes::Bytes;
use evring::hooks::{Landing, ReceiveHook, Tenant, Upcalls};
use evring::owner::{Notification, NotificationRing, NotificationSender, OwnerThread, Scheduling};
use evring::{AnyMechanism, Chunk, Commands, Config, ConnId, Listener, RemoteHandle, Rx};

use super::super::{Context, DEFAULT};
use super::page::{REQUEST, is_request, module, native, reply};
use super::scheduling::{Policy, owner_policy};
use super::server::UpcallProcess;
use super::{Contestant, load_with, policy, run_rounds};
use crate::failure::Failure;
use crate::measure::{CLIENT_CORE, SERVER_CORE, pin};
use crate::outcome::{Outcome, X};
use crate::statistics::{Spread, spread};

/// Requests on a connection, and connections in a round (table 6-11 has 1,000 of most).
const CONNECTIONS: [(usize, usize); 5] = [(1, 100), (5, 50), (10, 50), (100, 10), (10_000, 1)];
/// The sizes of pages.
const SIZES: [usize; 2] = [8, 2048];
const QUICK: usize = 3;
const FULL: usize = 15;

/// The size of the notification ring.
const NOTIFICATIONS: usize = 64;
/// Number and size of the receive buffers in the memory of the handler.
const BUFFERS: (u16, u32) = (64, 2048);

const SUCCESS: &str = "Events that the handler has handled";

pub(super) const NOTES: [&str; 3] = [
    "Figures 6-6 and 6-7: one client, one connection and request at a time, from its connect to its close. The ways are the \
     thesis' five, and an upcall in process. In all of them the application, a normal thread on the core of the server, \
     handles the set-up and the end of each connection, as TCP's library does in the thesis, and what a handler passes \
     on; at user level, also the requests. The thread of the ring and the process for upcalls are real-time where that is \
     permitted.",
    "Table 6-12: in the thesis a connection of r requests is r + 4 messages, of which the handler gets all and TCP \
     can predict one more. Here the kernel does TCP, and what reaches the program of a connection are r + 2 events: \
     it is accepted, r requests arrive, and it ends. The handler can handle r of them, so the best rate is r / (r + 2), for \
     TCP's handler and the server's, which are one.",
    "The lock is that of the pages, which the application holds while it handles an event, also the set-up and the end of \
     a connection. A handler that finds it taken aborts, and the application gets the message (5.4.1). The handler preempts \
     the application, so it finds the lock taken if a request arrives during such an event. An event takes the application \
     about a microsecond; `for 20 us` has it work for 20 us more with the lock, as it would if it did TCP.",
];

/// The way in which a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A handler in the sandbox; perhaps with the lock, which the application has for this time more at each event.
    Sandboxed { lock: Option<Duration> },
    /// An unsafe handler.
    Unsafe,
    /// Another process.
    Upcall,
    /// A hook.
    UpcallInProcess,
    /// The application, which polls.
    Polling,
    /// The application, which sleeps until a message wakes it.
    Suspended,
}

const WAYS: [(&str, Way); 6] = [
    ("sandboxed", Way::Sandboxed { lock: None }),
    ("unsafe", Way::Unsafe),
    ("upcall", Way::Upcall),
    ("upcall in process", Way::UpcallInProcess),
    ("user level, polling", Way::Polling),
    ("user level, suspended", Way::Suspended),
];

/// Measures the pages.
pub(super) fn measure(cx: &Context, outcome: &mut Outcome) -> Result<(), Failure> {
    // The servers pin themselves.
    pin(&[CLIENT_CORE])?;
    let owner = owner_policy(outcome);
    for bytes in SIZES {
        let mut all = Vec::new();
        let mut keys = Vec::new();
        for (name, way) in WAYS {
            for (requests, connections) in CONNECTIONS {
                keys.push((name, requests));
                all.push(Contestant::new(format!("{name}, {requests}"), move || {
                    let server = PageServer::start(way, bytes, owner)?;
                    server.us_per_request(1, 2)?;
                    server.us_per_request(requests, connections)
                }));
            }
        }
        run_rounds(cx, if cx.quick { QUICK } else { FULL }, &mut all)?;
        let number = if bytes == 8 { "6-6" } else { "6-7" };
        let figure = format!("Time per request by requests on a connection, {bytes} bytes");
        for ((way, requests), contestant) in keys.iter().zip(&all) {
            if let Some(y) = spread(&contestant.values) {
                outcome.point(&figure, "us", way, X::Number(*requests as f64), y);
            }
        }
        outcome.paper(
            &figure,
            &format!(
                "ASH, figure {number}: with a single request, handlers and upcalls are slower than a server that polls, as \
                 most of them abort; with more, polling, unsafe handlers and upcalls are as fast, handlers in the sandbox \
                 a little slower, and a suspended server is the slowest."
            ),
        );
    }
    success(owner, outcome)
}

/// The locks of table 6-12: their name, that of the ratio, and the time for which the application has them.
const LOCKS: [(&str, &str, Option<Duration>); 3] = [
    ("without a lock", "success_over_best", None),
    ("with the lock", "success_over_best_with_lock", Some(Duration::ZERO)),
    (
        "with the lock for 20 us",
        "success_over_best_with_lock_20us",
        Some(Duration::from_micros(20)),
    ),
];

/// Counts successes, as in table 6-12.
fn success(owner: Policy, outcome: &mut Outcome) -> Result<(), Failure> {
    for (requests, connections) in CONNECTIONS {
        let best = requests as f64 / (requests + 2) as f64;
        let mut add = |name: &str, share: f64| {
            let y = Spread { median: share * 100.0, low: share * 100.0, high: share * 100.0 };
            outcome.point(SUCCESS, "%", name, X::Number(requests as f64), y);
        };
        let mut shares = Vec::new();
        for (name, ratio, lock) in LOCKS {
            let server = PageServer::start(Way::Sandboxed { lock }, SIZES[0], owner)?;
            server.us_per_request(requests, connections)?;
            let Events { handled, all } = server.events();
            let share = handled as f64 / all as f64;
            add(name, share);
            shares.push((format!("{ratio}_{requests}"), share / best));
        }
        add("best possible", best);
        for (ratio, share) in shares {
            outcome.count(ratio, "ash", share);
        }
    }
    outcome.paper(
        SUCCESS,
        "ASH, table 6-12, by 1, 5, 10, 100 and 10,000 requests: 20-30, 55-60, 70-75, 96-97 and 100 % of all \
         messages (best possible 40, 67, 78, 97 and 100 %); 10-15, 50-55, 65-70, 95-96 and 100 % for the \
         application (best possible 20, 56, 71, 96 and 100 %).",
    );
    Ok(())
}

/// The events of connections: set-up, requests and end.
struct Events {
    handled: u64,
    all: u64,
}

/// The state that the thread of the application shares with the client.
#[derive(Debug, Default)]
struct Shared {
    /// Events that the application has handled.
    application: AtomicU64,
    is_over: AtomicBool,
}

/// A server of one page.
struct PageServer {
    address: SocketAddr,
    remote: RemoteHandle,
    /// That of a handler.
    tenant: Option<Tenant>,
    reply_bytes: usize,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
    _process: Option<UpcallProcess>,
}

/// The objects that the thread of the ring creates in addition to its hook.
type Parts = (Option<Tenant>, Option<UpcallProcess>);

impl PageServer {
    fn start(way: Way, bytes: usize, policy: Policy) -> Result<Self, Failure> {
        let shared = Arc::new(Shared::default());
        let (started, parts) = mpsc::channel();
        let its = Arc::clone(&shared);
        let serve = move || {
            // Its thread of the ring inherits the core.
            pin(&[SERVER_CORE])?;
            let table = SharedTable::with_sections(1, 8)?;
            let scheduling = policy.scheduling().unwrap_or_default();
            let (owner, ring, parts) = start_owner(way, bytes, (policy, scheduling), &table)?;
            let _ = started.send((owner.addresses()[0], owner.remote(), parts));
            let lock = match way {
                Way::Sandboxed { lock: Some(time) } => Some((&*table, time)),
                _ => None,
            };
            application(&ring, way == Way::Polling, &reply(bytes), lock, &its);
            owner.join().map(drop).map_err(|e| Failure::new(DEFAULT, e))
        };
        let thread = thread::spawn(serve);
        let Ok((address, remote, (tenant, process))) = parts.recv() else {
            let panicked = || Err(Failure::Run("the server of pages panicked".to_owned()));
            thread.join().unwrap_or_else(|_| panicked())?;
            return Err(Failure::Run("the server of pages ended before it listened".to_owned()));
        };
        let reply_bytes = reply(bytes).len();
        let (thread, _process) = (Some(thread), process);
        Ok(PageServer { address, remote, tenant, reply_bytes, shared, thread, _process })
    }

    fn events(&self) -> Events {
        let handled = self.tenant.as_ref().map_or(0, |tenant| tenant.counters().handled);
        Events { handled, all: handled + self.shared.application.load(Ordering::Relaxed) }
    }

    /// Requests the page on a number of connections, one after another.
    fn us_per_request(&self, requests: usize, connections: usize) -> Result<f64, Failure> {
        let mut reply = vec![0; self.reply_bytes];
        let start = Instant::now();
        for _ in 0..connections {
            let mut client = TcpStream::connect(self.address)?;
            client.set_nodelay(true)?;
            client.set_read_timeout(Some(Duration::from_secs(30)))?;
            for _ in 0..requests {
                client.write_all(REQUEST)?;
                client.read_exact(&mut reply)?;
            }
            client.shutdown(std::net::Shutdown::Write)?;
            // The server closes it, too.
            if client.read(&mut reply)? != 0 {
                return Err(Failure::Run("a reply without a request".to_owned()));
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / 1e3 / (requests * connections) as f64)
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.remote.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts the thread of the ring, with the hook of a way.
fn start_owner(
    way: Way,
    bytes: usize,
    (policy, scheduling): (Policy, Scheduling),
    table: &Arc<SharedTable>,
) -> Result<(OwnerThread, NotificationRing, Parts), Failure> {
    let config = Config::default().with(|c| {
        c.listen = vec![([127, 0, 0, 1], 0).into()];
        // Under overload, handlers would be off.
        c.admission = None;
    });
    let (created, parts) = mpsc::channel();
    let table = Arc::clone(table);
    let hook = move |server: &mut AnyMechanism, notifier| {
        let handler = match way {
            Way::Sandboxed { lock } => {
                let module = module(&reply(bytes), lock.is_some());
                Some(load_with(&module, self::policy(), Some(&table))?)
            }
            Way::Unsafe => Some(native(reply(bytes))?),
            _ => None,
        };
        let mut landing = Landing::new();
        let tenant = handler.map(|handler| bind(server, &mut landing, handler)).transpose()?;
        let process = (way == Way::Upcall)
            .then(|| UpcallProcess::start(&server.remote(), policy, Some(bytes)));
        let (process, upcalls) = process.transpose()?.unzip();
        let native = (way == Way::UpcallInProcess).then(|| Bytes::from(reply(bytes)));
        let _ = created.send((tenant, process));
        Ok::<(Page, (Landing, Option<Upcalls>)), Failure>((
            Page { notifier, native },
            (landing, upcalls),
        ))
    };
    let started = OwnerThread::start(DEFAULT, &config, scheduling, NOTIFICATIONS, hook);
    let (owner, ring) = started.map_err(|e| Failure::new("the server of pages", e))?;
    let parts = parts.recv().map_err(|e| Failure::new("the server of pages", e))?;
    Ok((owner, ring, parts))
}

fn bind(
    server: &mut AnyMechanism,
    landing: &mut Landing,
    handler: Handler,
) -> Result<Tenant, Failure> {
    let (count, size) = BUFFERS;
    let tenant = landing.bind(handler, count, size, |buffers| server.add_buffers(buffers));
    let tenant = tenant.map_err(|e| Failure::new("cannot bind a handler", e))?;
    let group = server.set_listener_group(Listener(0), tenant.group());
    group.map_err(|e| Failure::new("cannot bind a handler", e))?;
    Ok(tenant)
}

/// Tells the application of the set-up of connections; perhaps with the page.
struct Page {
    notifier: NotificationSender,
    native: Option<Bytes>,
}

impl ReceiveHook for Page {
    fn accepted(&mut self, _: &mut impl Commands, id: ConnId, _: Listener) {
        // A client has one connection at a time, so there is room.
        let _ = self.notifier.post(id, 0, 0);
    }

    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        if let Some(page) = self.native.as_ref().filter(|_| is_request(rx.bytes())) {
            rx.consume(rx.bytes().len());
            io.send(id, Chunk::Shared(page.clone()));
        }
    }
}

/// The application: handles what the hook leaves, each event with the lock if there is one.
fn application(
    ring: &NotificationRing,
    polls: bool,
    reply: &[u8],
    lock: Option<(&SharedTable, Duration)>,
    shared: &Shared,
) {
    let next = || {
        if !polls {
            return ring.wait();
        }
        loop {
            match ring.poll() {
                None if !shared.is_over.load(Ordering::Relaxed) => std::hint::spin_loop(),
                next => return next,
            }
        }
    };
    while let Some(notification) = next() {
        // The end of a connection was an event.
        if matches!(notification, Notification::Closed(_)) {
            continue;
        }
        let _lock = lock.map(|(table, time)| {
            let section = table.lock(0);
            let until = Instant::now() + time;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            section
        });
        // Before the reply, by which the client knows.
        shared.application.fetch_add(1, Ordering::Relaxed);
        let is_sent = match notification {
            Notification::Message(id, message) if is_request(&message) => {
                ring.reply(id, reply.to_vec()).is_ok()
            }
            Notification::Message(id, _) | Notification::End(id) => ring.close(id).is_ok(),
            _ => true,
        };
        if !is_sent {
            // The server has ended, since a client waits for each reply.
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_answers_and_its_events_are_counted() {
        let lock = ("with the lock", Way::Sandboxed { lock: Some(Duration::from_micros(20)) });
        for (name, way) in WAYS.into_iter().chain([lock]) {
            let server = PageServer::start(way, 8, Policy::Normal).unwrap();
            assert!(server.us_per_request(5, 3).unwrap() > 0.0);
            let Events { handled, all } = server.events();
            let expected = match way {
                Way::Sandboxed { lock: None } | Way::Unsafe => (15, 21),
                // The number of requests for which the application had the lock is not known.
                Way::Sandboxed { lock: Some(_) } => (handled, 21),
                // Others than the application and handlers do not count them.
                Way::Upcall | Way::UpcallInProcess => (0, 6),
                Way::Polling | Way::Suspended => (0, 21),
            };
            assert_eq!((handled, all), expected, "{name}");
        }
    }

    #[test]
    fn application_gets_the_requests_while_the_handler_is_off() {
        let way = Way::Sandboxed { lock: None };
        let server = PageServer::start(way, 2048, Policy::Normal).unwrap();
        server.tenant.as_ref().unwrap().set_on(false);
        server.us_per_request(5, 3).unwrap();
        let Events { handled, all } = server.events();
        assert_eq!((handled, all), (0, 21));
    }
}
