//! The simulated machine from within: descriptors, connections, peers, time.

mod connections;
mod descriptors;
mod listeners;
mod time;

pub(in crate::sim) use descriptors::DescriptorKind;
pub(in crate::sim) use time::{Event, Passed};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::sim::disk::FileTree;
use crate::sim::memory::MemoryHold;
use crate::sim::plan::Plan;
use crate::sim::rng::SimRng;
use crate::sim::signals::Signalling;
use crate::sim::stream::{Connection, End};
use crate::sim::trace::Trace;
use crate::sim::usage::UsageTracker;
use crate::{Fd, Waker};
use descriptors::Descriptor;
use listeners::Listener;
use time::Actor;

/// The simulated machine, and the world around it.
pub(in crate::sim) struct SimState {
    pub(in crate::sim) rng: SimRng,
    pub(in crate::sim) disk: FileTree,
    pub(in crate::sim) trace: Trace,
    start: Instant,
    pub(in crate::sim) now: Duration,
    descriptors: Vec<Descriptor>,
    most_descriptors: usize,
    room: Option<usize>,
    connections: Vec<Option<Connection>>,
    listeners: Vec<Listener>,
    actors: Vec<Actor>,
    runnable: Vec<u32>,
    /// Ends whose bytes are on their way.
    wires: Vec<End>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    serial: u64,
    /// Descriptors of which something has changed.
    pub(in crate::sim) changed_fds: Vec<u32>,
    /// Operations and file work that are due.
    pub(in crate::sim) due: Vec<u64>,
    pub(in crate::sim) due_work: Vec<u64>,
    /// File work that is late or hangs: its end, and the descriptor that it uses.
    pub(in crate::sim) stuck: Vec<(Event, Fd)>,
    /// Memory that such work was given in a ring that is closed.
    pub(in crate::sim) kept: Vec<MemoryHold>,
    /// Files of operations that such work has kept from ending.
    pub(in crate::sim) left: Vec<Fd>,
    /// The wakers' counters.
    wakers: Vec<(u32, Arc<AtomicU64>)>,
    /// Is woken when file work is done.
    worker: Option<Waker>,
    ports: u16,
    /// How many clients the peers' connections are of, as far as addresses tell.
    clients: usize,
    steps: u64,
    most_steps: u64,
    /// System calls since something else has happened.
    calls: u64,
    on_end: Option<Box<dyn FnOnce()>>,
    /// Operations that were in flight when their kernel was let go of.
    pub(in crate::sim) unfinished: Vec<String>,
    failure: Option<String>,
    pub(in crate::sim) usage: UsageTracker,
    pub(in crate::sim) signalling: Signalling,
    /// A kernel is in the middle of its work, and a signal has interrupted it.
    pub(in crate::sim) ring_is_used: bool,
}

impl SimState {
    pub(in crate::sim) fn new(plan: &Plan) -> Self {
        let mut rng = SimRng::new(plan.seed, plan.faults, plan.max_faults);
        let clients = [1, 2, 5, 20][rng.below(4)];
        SimState {
            rng,
            disk: FileTree::new(),
            trace: Trace::new(plan.trace_steps),
            start: Instant::now(),
            now: Duration::ZERO,
            descriptors: Vec::new(),
            most_descriptors: plan.descriptors,
            room: plan.room,
            connections: Vec::new(),
            listeners: Vec::new(),
            actors: Vec::new(),
            runnable: Vec::new(),
            wires: Vec::new(),
            events: BinaryHeap::new(),
            serial: 0,
            changed_fds: Vec::new(),
            due: Vec::new(),
            due_work: Vec::new(),
            stuck: Vec::new(),
            kept: Vec::new(),
            left: Vec::new(),
            wakers: Vec::new(),
            worker: None,
            ports: 10_000,
            clients,
            steps: 0,
            most_steps: plan.steps,
            calls: 0,
            on_end: None,
            unfinished: Vec::new(),
            failure: None,
            usage: UsageTracker::default(),
            signalling: Signalling::Never,
            ring_is_used: false,
        }
    }

    pub(in crate::sim) fn instant(&self) -> Instant {
        self.start + self.now
    }

    /// Notes that the program has broken a rule. What comes after the first time is of no interest.
    pub(in crate::sim) fn fail(&mut self, what: impl Into<String>) {
        if self.failure.is_none() {
            let what = what.into();
            self.note(|| format!("FAILURE: {what}"));
            self.failure = Some(what);
        }
    }

    pub(in crate::sim) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    pub(in crate::sim) fn note(&mut self, line: impl FnOnce() -> String) {
        self.trace.note(self.now, line);
    }

    pub(in crate::sim) fn steps(&self) -> u64 {
        self.steps
    }

    /// Somebody changes a file.
    pub(in crate::sim) fn change(&mut self, node: u32) {
        let wall = self.wall();
        self.disk.change(node, wall, &mut self.rng);
        self.note(|| format!("file {node} changes"));
    }

    /// The time of day.
    pub(in crate::sim) fn wall(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + self.now
    }

    /// Whether the peers should come to an end.
    pub(in crate::sim) fn is_late(&self) -> bool {
        self.steps >= self.most_steps
    }

    /// Lets go of what takes most memory, once a run is over: what hung work was given is leaked, and keeps
    /// the machine.
    pub(in crate::sim) fn let_go(&mut self) {
        self.kept.clear();
        self.disk = FileTree::new();
        self.connections.clear();
        self.actors.clear();
        self.events.clear();
    }

    pub(in crate::sim) fn set_on_end(&mut self, on_end: Box<dyn FnOnce()>) {
        self.on_end = Some(on_end);
    }
}
