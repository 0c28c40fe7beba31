//! The state of the simulated machine: descriptors, connections, peers, time.

mod connections;
mod descriptors;
mod listeners;
mod time;

pub(in crate::sim) use descriptors::DescriptorKind;
pub(in crate::sim) use time::{Event, WaitOutcome};

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

/// The state of the simulated machine and its network.
pub(in crate::sim) struct SimState {
    pub(in crate::sim) rng: SimRng,
    pub(in crate::sim) disk: FileTree,
    pub(in crate::sim) trace: Trace,
    start: Instant,
    pub(in crate::sim) now: Duration,
    descriptors: Vec<Descriptor>,
    max_descriptors: usize,
    room: Option<usize>,
    connections: Vec<Option<Connection>>,
    listeners: Vec<Listener>,
    actors: Vec<Actor>,
    runnable: Vec<u32>,
    /// Ends with bytes in transit.
    wires: Vec<End>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    serial: u64,
    /// Descriptors that have changed.
    pub(in crate::sim) changed_fds: Vec<u32>,
    /// Operations and file work that are due.
    pub(in crate::sim) due: Vec<u64>,
    pub(in crate::sim) due_work: Vec<u64>,
    /// File operations that are slow or hang: the completion, and the descriptor in use.
    pub(in crate::sim) blocked: Vec<(Event, Fd)>,
    /// Memory of file operations that were abandoned when their ring was closed.
    pub(in crate::sim) abandoned_memory: Vec<MemoryHold>,
    /// Files of operations that were abandoned because a file operation hangs.
    pub(in crate::sim) abandoned_files: Vec<Fd>,
    /// The wakers' counters.
    wakers: Vec<(u32, Arc<AtomicU64>)>,
    /// Woken when file work is done.
    worker: Option<Waker>,
    ports: u16,
    /// Number of client addresses that peers connect from.
    num_addresses: usize,
    steps: u64,
    max_steps: u64,
    /// System calls since the last step.
    calls: u64,
    on_end: Option<Box<dyn FnOnce()>>,
    /// Operations that were in flight when their kernel was dropped.
    pub(in crate::sim) unfinished: Vec<String>,
    failure: Option<String>,
    pub(in crate::sim) usage: UsageTracker,
    pub(in crate::sim) signalling: Signalling,
    /// A signal handler runs while the kernel is in the middle of its work.
    pub(in crate::sim) ring_is_busy: bool,
}

impl SimState {
    pub(in crate::sim) fn new(plan: &Plan) -> Self {
        let mut rng = SimRng::new(plan.seed, plan.faults, plan.max_faults);
        let num_addresses = [1, 2, 5, 20][rng.below(4)];
        SimState {
            rng,
            disk: FileTree::new(),
            trace: Trace::new(plan.trace_steps),
            start: Instant::now(),
            now: Duration::ZERO,
            descriptors: Vec::new(),
            max_descriptors: plan.descriptors,
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
            blocked: Vec::new(),
            abandoned_memory: Vec::new(),
            abandoned_files: Vec::new(),
            wakers: Vec::new(),
            worker: None,
            ports: 10_000,
            num_addresses,
            steps: 0,
            max_steps: plan.steps,
            calls: 0,
            on_end: None,
            unfinished: Vec::new(),
            failure: None,
            usage: UsageTracker::default(),
            signalling: Signalling::Never,
            ring_is_busy: false,
        }
    }

    pub(in crate::sim) fn instant(&self) -> Instant {
        self.start + self.now
    }

    /// Notes that the program has broken a rule; only the first failure is kept.
    pub(in crate::sim) fn fail(&mut self, message: impl Into<String>) {
        if self.failure.is_none() {
            let message = message.into();
            self.note(|| format!("FAILURE: {message}"));
            self.failure = Some(message);
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

    /// Changes a file, as another program might.
    pub(in crate::sim) fn change(&mut self, node: u32) {
        let wall = self.wall();
        self.disk.change(node, wall, &mut self.rng);
        self.note(|| format!("file {node} changes"));
    }

    /// Returns the time of day.
    pub(in crate::sim) fn wall(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + self.now
    }

    /// Returns whether peers should finish.
    pub(in crate::sim) fn is_late(&self) -> bool {
        self.steps >= self.max_steps
    }

    /// Frees most memory after a run. Abandoned operations are leaked, and own the machine.
    pub(in crate::sim) fn clear(&mut self) {
        self.abandoned_memory.clear();
        self.disk = FileTree::new();
        self.connections.clear();
        self.actors.clear();
        self.events.clear();
    }

    pub(in crate::sim) fn set_on_end(&mut self, on_end: Box<dyn FnOnce()>) {
        self.on_end = Some(on_end);
    }
}
