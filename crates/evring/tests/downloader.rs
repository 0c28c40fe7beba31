//! A client that downloads a file, on the simulated machine.

use crate::disk_file::contents;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evring::Config;
use evring_sim::{Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult};

/// Where the server listens.
pub(crate) fn at() -> SocketAddr {
    "10.0.0.1:7".parse().unwrap()
}

/// Returns a machine that has the file, on which nothing goes wrong, and the plan changed by `change`.
pub(crate) fn machine(file_bytes: u64, change: impl FnOnce(&mut Plan)) -> Machine {
    let machine = Machine::new(&Plan::default().with(|p| {
        p.faults = Faults::NONE;
        p.steps = 10_000_000;
        change(p);
    }));
    machine.add_file("site/file", contents(file_bytes));
    machine
}

/// Returns the configuration of a server of that file, changed by `change`.
pub(crate) fn config(change: impl FnOnce(&mut Config)) -> Config {
    Config::default().with(|c| {
        c.listen = vec![at()];
        c.roots = vec!["/site".into()];
        change(c);
    })
}

/// The end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Download {
    pub(crate) ended_at: Duration,
    pub(crate) bytes: u64,
}

/// A client that takes some bytes at each interval, until it has taken a number of them.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) bytes: usize,
    pub(crate) interval: Duration,
    pub(crate) until: usize,
}

/// A client that sends a byte and receives a file, or the beginning of it, until the connection ends.
pub(crate) struct Downloader {
    file_bytes: u64,
    pace: Option<Pace>,
    /// When it receives next, at the earliest.
    next_at: Duration,
    line: Option<PeerConn>,
    received: Vec<u8>,
    end: Rc<Cell<Option<Download>>>,
}

impl Downloader {
    /// Adds a client that takes all that arrives, or has a pace. Returns where the end of its connection will be.
    pub(crate) fn add(
        machine: &Machine,
        file_bytes: u64,
        pace: Option<Pace>,
    ) -> Rc<Cell<Option<Download>>> {
        let end = Rc::default();
        machine.add_peer(Downloader {
            file_bytes,
            pace,
            next_at: Duration::ZERO,
            line: None,
            received: Vec::new(),
            end: Rc::clone(&end),
        });
        end
    }

    fn receive(&mut self, net: &mut Net<'_>, line: &PeerConn) -> Next {
        let pace = self.pace.filter(|pace| self.received.len() < pace.until);
        let max = pace.map_or(usize::MAX, |pace| pace.bytes);
        match (net.receive(line, max, &mut self.received), pace) {
            (ReceiveResult::Bytes(_) | ReceiveResult::Nothing, Some(Pace { interval, .. })) => {
                self.next_at = net.now() + interval;
                Next::After(interval)
            }
            (ReceiveResult::Bytes(_), None) => Next::Ready,
            (ReceiveResult::Nothing, None) => Next::Wait,
            (ReceiveResult::End | ReceiveResult::Reset, _) => Next::Done,
        }
    }
}

impl Peer for Downloader {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let Some(line) = self.line.take() else {
            self.line = net.connect(at());
            if let Some(line) = &self.line {
                net.send(line, b"x");
            }
            return Next::After(Duration::from_micros(1));
        };
        // The machine also runs it when bytes arrive, and at a reset.
        let early = self.next_at.saturating_sub(net.now());
        let next = match net.is_broken(&line) {
            true => Next::Done,
            false if !early.is_zero() => Next::After(early),
            false => self.receive(net, &line),
        };
        if !matches!(next, Next::Done) {
            self.line = Some(line);
            return next;
        }
        if !contents(self.file_bytes).starts_with(&self.received) {
            net.fail(format!("other bytes arrived, or more: {}", self.received.len()));
        }
        net.close(line);
        let bytes = self.received.len() as u64;
        self.end.set(Some(Download { ended_at: net.now(), bytes }));
        Next::Done
    }

    fn waits_for(&self) -> String {
        "a file".to_owned()
    }
}
