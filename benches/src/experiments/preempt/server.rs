//! The server: a program that computes for 1 ms at a time.

use std::collections::VecDeque;
use std::hint;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shared_ring::{
    BufferSizes, Counters, Errno, Host, Kernel, KernelError, ListenOptions, Op, OpKind, Outcome,
    Socket, Token,
};

use super::client::ENDLESS;
use crate::failure::Failure;

/// How long it computes at a time, without a system call.
pub(super) const CHUNK: Duration = Duration::from_millis(1);
/// How long the last connections may take.
const PATIENCE: Duration = Duration::from_secs(10);
const ACCEPT: Token = Token::new(OpKind::Accept, 0, 0);

/// What it computes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// Something else; connections are closed between.
    Aside,
    /// Each connection, which is closed then; when there is none, something else.
    Each,
}

/// How many connections have come that were not taken yet, known without asking. Without such a number
/// all are taken at a turn.
pub(super) type Arrived<K> = Option<fn(&K) -> u32>;

pub(super) struct Server<K> {
    kernel: K,
    /// Until it is closed.
    listener: Option<Socket>,
    arrived: Arrived<K>,
    work: Duty,
    /// Of a batch, those that it has not come to.
    waiting: VecDeque<Socket>,
    taken: usize,
    closed: u32,
    /// When each connection became known, in their order.
    known: Vec<Instant>,
    /// Why no more are accepted.
    refused: Option<Errno>,
}

/// What was counted at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub(super) entries: u64,
    pub(super) known: usize,
}

/// What a run came to.
pub(super) struct Served {
    pub(super) known: Vec<Instant>,
    /// From the end of the warm-up to the last connection.
    pub(super) entries_per_event: f64,
}

impl<K: Kernel> Server<K> {
    /// Listens, and returns where.
    pub(super) fn new(
        mut kernel: K,
        arrived: Arrived<K>,
        work: Duty,
    ) -> Result<(Self, SocketAddr), Failure> {
        let options =
            ListenOptions { backlog: 4096, reuse_port: false, buffers: BufferSizes::default() };
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let (listener, address) = kernel.host_mut().listen(local, &options)?;
        // SAFETY: `end` closes the listener, when the accept has ended.
        let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
        kernel
            .submit(ACCEPT, accept)
            .map_err(|refused| Failure::Run(format!("accepting is refused: {:?}", refused.kind)))?;
        let (waiting, known) = (VecDeque::with_capacity(4096), Vec::with_capacity(65_536));
        let server = Server {
            kernel,
            listener: Some(listener),
            arrived,
            work,
            waiting,
            taken: 0,
            closed: 0,
            known,
            refused: None,
        };
        Ok((server, address))
    }

    /// Serves until `total` connections have become known, and closes everything. What happens before
    /// `warm` is not counted.
    pub(super) fn serve(mut self, total: &AtomicUsize, warm: Instant) -> Result<Served, Failure> {
        let served = self.until(total, warm);
        let ended = self.end().map_err(|e| Failure::new("the server", e));
        let entries_per_event = served?;
        ended?;
        Ok(Served { known: self.known, entries_per_event })
    }

    /// Returns the entries into the kernel for each event.
    fn until(&mut self, total: &AtomicUsize, warm: Instant) -> Result<f64, Failure> {
        let (mut from, mut patience) = (None, None);
        loop {
            let now = Instant::now();
            if now >= warm {
                from.get_or_insert_with(|| self.count());
            }
            match total.load(Ordering::Acquire) {
                ENDLESS => {}
                total if self.known.len() >= total => break,
                _ if now > *patience.get_or_insert(now + PATIENCE) => {
                    return Err(Failure::Run("connections were not accepted in 10 s".to_owned()));
                }
                _ => {}
            }
            self.turn(now).map_err(|e| Failure::new("the server", e))?;
            if let Some(errno) = self.refused {
                return Err(Failure::new("accepting", errno));
            }
        }
        let (from, to) = (from.unwrap_or_default(), self.count());
        let events = (to.known - from.known).max(1) as f64;
        Ok((to.entries - from.entries) as f64 / events)
    }

    /// Closes what is open, lest later runs find no room for theirs.
    fn end(&mut self) -> Result<(), KernelError> {
        self.kernel.cancel(ACCEPT);
        loop {
            while let Some(socket) = self.take() {
                self.close(socket);
            }
            if self.refused.is_some() {
                if let Some(listener) = self.listener.take() {
                    self.kernel.host_mut().close_unused(listener);
                }
                return Ok(());
            }
            self.kernel.turn(None)?;
        }
    }

    fn count(&self) -> Count {
        Count { entries: entries(self.kernel.counters()), known: self.known.len() }
    }

    /// Asks for what has come, without waiting, and works on it.
    fn turn(&mut self, now: Instant) -> Result<(), KernelError> {
        self.kernel.turn(Some(now))?;
        if self.arrived.is_none() {
            while let Some(socket) = self.take() {
                self.waiting.push_back(socket);
            }
        }
        self.look();
        let mut computed = false;
        while let Some(socket) = self.next() {
            self.look();
            if self.work == Duty::Each {
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
                Outcome::Failed(errno, _) => self.refused = Some(errno),
                _ => {}
            }
        }
    }

    /// Notes the time for connections that have become known.
    fn look(&mut self) {
        let arrived = self.arrived.map_or(0, |arrived| arrived(&self.kernel));
        let known = self.taken + arrived as usize;
        if known > self.known.len() {
            self.known.resize(known, Instant::now());
        }
    }

    /// Computes, and makes no system call.
    fn compute(&mut self) {
        let until = Instant::now() + CHUNK;
        let mut x = 1u64;
        while Instant::now() < until {
            for i in 1..500 {
                x = hint::black_box(x.wrapping_mul(i | 1));
            }
            self.look();
        }
    }

    fn close(&mut self, socket: Socket) {
        self.closed = self.closed.wrapping_add(1);
        let token = Token::new(OpKind::Close, 1 + self.closed % 65_536, 0);
        if let Err(refused) = self.kernel.submit(token, Op::Close { socket })
            && let Op::Close { socket } = refused.op
        {
            self.kernel.host_mut().close_unused(socket);
        }
    }
}

/// How often the program has entered the kernel because of events: by each system call, and twice
/// by each interruption, which begins in the kernel and ends there, by sigreturn(2).
fn entries(counters: Counters) -> u64 {
    counters.system_calls + 2 * counters.interruptions
}
