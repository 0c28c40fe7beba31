//! The server: a program that computes for 1 ms at a time.

use std::collections::VecDeque;
use std::hint;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shared_ring::sockets::ListenOptions;
use shared_ring::{Counters, Errno, Host, Kernel, KernelError, Op, OpKind, Outcome, Socket, Token};

use super::client::RUNNING;
use crate::failure::Failure;

/// Duration of one computation, without a system call.
pub(super) const CHUNK: Duration = Duration::from_millis(1);
/// Timeout for the last connections.
const LAST_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT: Token = Token::new(OpKind::Accept, 0, 0);

/// The purpose of the computations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// A background task; connections are closed between computations.
    Background,
    /// One computation per connection, which is then closed; a background task if there is none.
    PerConnection,
}

/// Returns the number of queued connections without a system call. If `None`, each turn takes all
/// connections.
pub(super) type Arrived<K> = Option<fn(&K) -> u32>;

pub(super) struct Server<K> {
    kernel: K,
    /// The listener until it is closed.
    listener: Option<Socket>,
    arrived: Arrived<K>,
    duty: Duty,
    /// Unprocessed connections of a batch.
    waiting: VecDeque<Socket>,
    taken: usize,
    closed: u32,
    /// Time at which each connection was accepted, in order.
    accepted: Vec<Instant>,
    /// The error that ended the accept operation.
    error: Option<Errno>,
}

/// Counts at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub(super) entries: u64,
    pub(super) accepted: usize,
}

/// The results of a run.
pub(super) struct Served {
    pub(super) accepted: Vec<Instant>,
    /// Kernel entries per event, from the end of the warm-up to the last connection.
    pub(super) entries_per_event: f64,
}

impl<K: Kernel> Server<K> {
    /// Starts listening, and returns the address.
    pub(super) fn new(
        mut kernel: K,
        arrived: Arrived<K>,
        duty: Duty,
    ) -> Result<(Self, SocketAddr), Failure> {
        let options = ListenOptions::new(4096);
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let (listener, address) = kernel.host_mut().listen(local, &options)?;
        // SAFETY: `end` closes the listener after the accept has ended.
        let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
        kernel.submit(ACCEPT, accept).map_err(|error| {
            Failure::Run(format!("cannot accept connections: {:?}", error.kind))
        })?;
        let (waiting, accepted) = (VecDeque::with_capacity(4096), Vec::with_capacity(65_536));
        let server = Server {
            kernel,
            listener: Some(listener),
            arrived,
            duty,
            waiting,
            taken: 0,
            closed: 0,
            accepted,
            error: None,
        };
        Ok((server, address))
    }

    /// Serves until `total` connections have been accepted, and closes everything. Counts start at
    /// `warm_end`.
    pub(super) fn serve(
        mut self,
        total: &AtomicUsize,
        warm_end: Instant,
    ) -> Result<Served, Failure> {
        let served = self.until(total, warm_end);
        let ended = self.end().map_err(|e| Failure::new("the server failed", e));
        let entries_per_event = served?;
        ended?;
        Ok(Served { accepted: self.accepted, entries_per_event })
    }

    /// Serves all connections. Returns the kernel entries per event.
    fn until(&mut self, total: &AtomicUsize, warm_end: Instant) -> Result<f64, Failure> {
        let (mut start_count, mut deadline) = (None, None);
        loop {
            let now = Instant::now();
            if now >= warm_end {
                start_count.get_or_insert_with(|| self.count());
            }
            match total.load(Ordering::Acquire) {
                RUNNING => {}
                total if self.accepted.len() >= total => break,
                _ if now > *deadline.get_or_insert(now + LAST_TIMEOUT) => {
                    return Err(Failure::Run("connections were not accepted in 10 s".to_owned()));
                }
                _ => {}
            }
            self.turn(now).map_err(|e| Failure::new("the server failed", e))?;
            if let Some(errno) = self.error {
                return Err(Failure::new("cannot accept connections", errno));
            }
        }
        let (from, to) = (start_count.unwrap_or_default(), self.count());
        let events = (to.accepted - from.accepted).max(1) as f64;
        Ok((to.entries - from.entries) as f64 / events)
    }

    /// Closes all sockets, to free their descriptors for later runs.
    fn end(&mut self) -> Result<(), KernelError> {
        self.kernel.cancel(ACCEPT);
        loop {
            while let Some(socket) = self.take() {
                self.close(socket);
            }
            if self.error.is_some() {
                if let Some(listener) = self.listener.take() {
                    self.kernel.host_mut().close_unused(listener);
                }
                return Ok(());
            }
            self.kernel.turn(None)?;
        }
    }

    fn count(&self) -> Count {
        Count { entries: entries(self.kernel.counters()), accepted: self.accepted.len() }
    }

    /// Polls for connections and processes them.
    fn turn(&mut self, now: Instant) -> Result<(), KernelError> {
        self.kernel.turn(Some(now))?;
        if self.arrived.is_none() {
            while let Some(socket) = self.take() {
                self.waiting.push_back(socket);
            }
        }
        self.record_accepted();
        let mut computed = false;
        while let Some(socket) = self.next() {
            self.record_accepted();
            if self.duty == Duty::PerConnection {
                self.compute();
                computed = true;
            }
            self.close(socket);
        }
        if !computed {
            self.compute();
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Socket> {
        match self.arrived {
            Some(_) => self.take(),
            None => self.waiting.pop_front(),
        }
    }

    fn take(&mut self) -> Option<Socket> {
        loop {
            match self.kernel.next()?.outcome {
                Outcome::Accepted(socket) => {
                    self.taken += 1;
                    return Some(socket);
                }
                Outcome::Failed(errno, _) => self.error = Some(errno),
                _ => {}
            }
        }
    }

    /// Records the time of newly accepted connections.
    fn record_accepted(&mut self) {
        let arrived = self.arrived.map_or(0, |arrived| arrived(&self.kernel));
        let accepted = self.taken + arrived as usize;
        if accepted > self.accepted.len() {
            self.accepted.resize(accepted, Instant::now());
        }
    }

    /// Computes without a system call.
    fn compute(&mut self) {
        let until = Instant::now() + CHUNK;
        let mut x = 1u64;
        while Instant::now() < until {
            for i in 1..500 {
                x = hint::black_box(x.wrapping_mul(i | 1));
            }
            self.record_accepted();
        }
    }

    fn close(&mut self, socket: Socket) {
        self.closed = self.closed.wrapping_add(1);
        let token = Token::new(OpKind::Close, 1 + self.closed % 65_536, 0);
        if let Err(error) = self.kernel.submit(token, Op::Close { socket })
            && let Op::Close { socket } = error.op
        {
            self.kernel.host_mut().close_unused(socket);
        }
    }
}

/// Returns the kernel entries for events: one for each system call, and two for each interruption,
/// which enters by the signal and again by sigreturn(2).
fn entries(counters: Counters) -> u64 {
    counters.system_calls + 2 * counters.interruptions
}
