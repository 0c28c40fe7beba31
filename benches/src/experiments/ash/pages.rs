//! Pages by the number of requests on a connection: figures 6-6 and 6-7, and table 6-12.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evring::{
    AnyMechanism, Application, Chunk, Close, Commands, Config, Cx, Hooked, Landing, Listener,
    RemoteHandle, Rx, Tenant,
};

use super::super::{Context, DEFAULT};
use super::web::{REQUEST, module};
use super::{Contestant, load, run_rounds};
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

const SUCCESS: &str = "Events that the handler has handled";

pub(super) const NOTES: [&str; 2] = [
    "Figures 6-6 and 6-7: one client, one connection and request at a time, from its connect to its close. Two \
     ways of the thesis' five are compared: the handler, and the application behind it while it is off. The others are \
     not measured for pages.",
    "Table 6-12: in the thesis a connection of r requests is r + 4 messages, of which the handler gets all and TCP \
     can predict one more. Here the kernel does TCP, and what reaches the program of a connection are r + 2 events: \
     it is accepted, r requests arrive, and it ends. The handler can handle r of them. It holds no lock against the \
     application.",
];

/// Measures the pages.
pub(super) fn measure(cx: &Context, outcome: &mut Outcome) -> Result<(), Failure> {
    // The servers of the rest of the experiment pin themselves.
    pin(&[CLIENT_CORE])?;
    for bytes in SIZES {
        let server = PageServer::start(bytes)?;
        let mut all = Vec::new();
        let mut keys = Vec::new();
        for (way, is_on) in [("handler", true), ("application", false)] {
            for (requests, connections) in CONNECTIONS {
                let server = &server;
                keys.push((way, requests));
                all.push(Contestant::new(format!("{way}, {requests}"), move || {
                    server.tenant.set_on(is_on);
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
        drop(all);
        outcome.paper(
            &figure,
            &format!(
                "ASH, figure {number}: with a single request, handlers are slower than a server that polls, as most \
                 of them abort; with more, they are as fast, and faster than one that is suspended."
            ),
        );
        if bytes == SIZES[0] {
            success(&server, outcome)?;
        }
    }
    Ok(())
}

/// Counts successes, as in table 6-12.
fn success(server: &PageServer, outcome: &mut Outcome) -> Result<(), Failure> {
    server.tenant.set_on(true);
    for (requests, connections) in CONNECTIONS {
        let before = server.events();
        server.us_per_request(requests, connections)?;
        let after = server.events();
        let share = (after.handled - before.handled) as f64 / (after.all - before.all) as f64;
        let best = requests as f64 / (requests + 2) as f64;
        for (name, share) in [("measured", share), ("best possible", best)] {
            let y = Spread { median: share * 100.0, low: share * 100.0, high: share * 100.0 };
            outcome.point(SUCCESS, "%", name, X::Number(requests as f64), y);
        }
        outcome.count(format!("success_over_best_{requests}"), "ash", share / best);
    }
    outcome.paper(
        SUCCESS,
        "ASH, table 6-12, by 1, 5, 10, 100 and 10,000 requests: 20-30, 55-60, 70-75, 96-97 and 100 % of all \
         messages (best possible 40, 67, 78, 97 and 100 %); 10-15, 50-55, 65-70, 95-96 and 100 % for the \
         application (best possible 20, 56, 71, 96 and 100 %).",
    );
    Ok(())
}

struct Events {
    handled: u64,
    all: u64,
}

/// A server of one page, by a handler or by the application behind it.
struct PageServer {
    address: SocketAddr,
    remote: RemoteHandle,
    tenant: Tenant,
    /// Connections that were accepted, and that have ended.
    ends: Arc<AtomicU64>,
    reply_bytes: usize,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl PageServer {
    fn start(bytes: usize) -> Result<Self, Failure> {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
        let reply = [head.as_bytes(), &b"x".repeat(bytes)].concat();
        let reply_bytes = reply.len();
        let ends = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&ends);
        let (started, parts) = mpsc::channel();
        let serve = move || {
            pin(&[SERVER_CORE])?;
            let config = Config::default().with(|c| c.listen = vec![([127, 0, 0, 1], 0).into()]);
            let mut server =
                AnyMechanism::new(DEFAULT, &config).map_err(|e| Failure::new(DEFAULT, e))?;
            let mut landing = Landing::new();
            let handler = load(&module(&reply))?;
            let tenant = landing.bind(handler, 64, 2048, |buffers| server.add_buffers(buffers));
            let tenant = tenant.map_err(|e| Failure::new("cannot bind a handler", e))?;
            let group = server.set_listener_group(Listener(0), tenant.group());
            group.map_err(|e| Failure::new("cannot bind a handler", e))?;
            let _ = started.send((server.addresses()[0], server.remote(), tenant));
            let page = Page { reply: reply.into(), ends: counted };
            server.run(Hooked::new(page, landing)).map_err(|e| Failure::new(DEFAULT, e))?;
            Ok(())
        };
        let thread = thread::spawn(serve);
        let Ok((address, remote, tenant)) = parts.recv() else {
            let panicked = || Err(Failure::Run("the server of pages panicked".to_owned()));
            thread.join().unwrap_or_else(|_| panicked())?;
            return Err(Failure::Run("the server of pages ended before it listened".to_owned()));
        };
        Ok(PageServer { address, remote, tenant, ends, reply_bytes, thread: Some(thread) })
    }

    fn events(&self) -> Events {
        let counters = self.tenant.counters();
        let all = counters.landed + self.ends.load(Ordering::Relaxed);
        Events { handled: counters.handled, all }
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
        self.remote.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The application, which has the page, too.
struct Page {
    reply: bytes::Bytes,
    ends: Arc<AtomicU64>,
}

impl Application for Page {
    type State = ();
    const MAX_UNCONSUMED: usize = 4096;

    fn accepted(&mut self, _: Cx<'_, impl Commands, ()>, _: Listener) {
        self.ends.fetch_add(1, Ordering::Relaxed);
    }

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes().starts_with(b"GET /1k.txt HTTP") && rx.bytes().ends_with(b"\r\n\r\n") {
            rx.consume(rx.bytes().len());
            x.io.send(x.id, Chunk::Shared(self.reply.clone()));
        }
        if rx.eof() {
            self.ends.fetch_add(1, Ordering::Relaxed);
            x.io.close(x.id, Close::Flush);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handler_handles_all_requests_while_it_is_on() {
        let server = PageServer::start(8).unwrap();
        assert!(server.us_per_request(5, 3).unwrap() > 0.0);
        let on = server.events();
        assert_eq!((on.handled, on.all), (15, 21));
        server.tenant.set_on(false);
        server.us_per_request(5, 3).unwrap();
        let off = server.events();
        assert_eq!((off.handled, off.all), (15, 42));
    }
}
