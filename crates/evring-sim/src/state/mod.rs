//! The state of the simulated machine: descriptors, connections, peers, time.

mod arrivals;
mod connections;
mod descriptor;
mod descriptors;
mod event;
mod in_use;
mod listener;
mod listeners;
mod readiness;
mod signal_queue;
mod signals;
mod time;
mod usage;

pub(crate) use arrivals::Datagrams;
pub(crate) use descriptor::DescriptorKind;
pub(crate) use event::{Event, WaitOutcome};
pub(crate) use readiness::{is_hung_up, readiness};
pub(crate) use signal_queue::{SignalQueue, Signalling};
pub use usage::MachineUsage;
pub(crate) use usage::{client, network};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use shared_ring::{Fd, Waker};

use crate::disk::{FileTree, ROOT};
use crate::fault::Fault;
use crate::memory::MemoryHold;
use crate::page_cache::PageCache;
use crate::peer::Peer;
use crate::plan::Plan;
use crate::rng::SimRng;
use crate::stream::{Connection, End};
use crate::trace::Trace;
use descriptor::Descriptor;
use listener::Listener;
use usage::UsageTracker;

/// A peer and its scheduling state.
struct Actor {
    /// None while the peer runs.
    peer: Option<Box<dyn Peer>>,
    is_runnable: bool,
    is_done: bool,
    serves: bool,
}

/// The state of the simulated machine and its network.
pub(crate) struct SimState {
    pub(crate) rng: SimRng,
    pub(crate) disk: FileTree,
    pub(crate) page_cache: PageCache,
    /// The files to which a fault has happened; `None` for one that did not exist.
    file_faults: Vec<(Fault, Option<u32>)>,
    /// See [`Machine::set_disk_time`](crate::Machine::set_disk_time).
    pub(crate) disk_time: Option<Duration>,
    pub(crate) trace: Trace,
    start: Instant,
    pub(crate) now: Duration,
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
    pub(crate) changed_fds: Vec<u32>,
    /// Operations and file work that are due.
    pub(crate) due: Vec<u64>,
    pub(crate) due_work: Vec<u64>,
    /// File operations that are slow or hang: the completion, and the descriptor in use.
    pub(crate) blocked: Vec<(Event, Fd)>,
    /// Memory of file operations that were abandoned when their ring was closed.
    pub(crate) abandoned_memory: Vec<MemoryHold>,
    /// Files of operations that were abandoned because a file operation hangs.
    pub(crate) abandoned_files: Vec<Fd>,
    /// The wakers' counters.
    wakers: Vec<(u32, Arc<AtomicU64>)>,
    /// Woken when file work is done.
    worker: Option<Waker>,
    last_port: u16,
    /// Number of client addresses that peers connect from.
    num_addresses: usize,
    steps: u64,
    max_steps: u64,
    /// System calls since the last step.
    calls: u64,
    on_end: Option<Box<dyn FnOnce()>>,
    /// Operations that were in flight when their kernel was dropped.
    pub(crate) unfinished: Vec<String>,
    failure: Option<String>,
    pub(crate) usage: UsageTracker,
    pub(crate) signalling: Signalling,
    /// A signal handler runs while the kernel is in the middle of its work.
    pub(crate) ring_is_busy: bool,
}

impl SimState {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut rng = SimRng::new(plan.seed, plan.faults, plan.max_faults);
        let num_addresses = [1, 2, 5, 20][rng.below(4)];
        SimState {
            rng,
            disk: FileTree::new(),
            page_cache: PageCache::default(),
            file_faults: Vec::new(),
            disk_time: None,
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
            // The first one follows.
            last_port: u16::MAX,
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

    pub(crate) fn instant(&self) -> Instant {
        self.start + self.now
    }

    /// Notes that the program has broken a rule; only the first failure is kept.
    pub(crate) fn fail(&mut self, message: impl Into<String>) {
        if self.failure.is_none() {
            let message = message.into();
            self.note(|| format!("FAILURE: {message}"));
            self.failure = Some(message);
        }
    }

    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        self.trace.note(self.now, line);
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns whether this fault happens to a file now, and notes that; `None` for a file that does not exist.
    pub(crate) fn file_fault(&mut self, fault: Fault, node: Option<u32>) -> bool {
        let happens = self.rng.fault(fault);
        if happens && !self.file_faults.contains(&(fault, node)) {
            self.file_faults.push((fault, node));
        }
        happens
    }

    /// Returns whether this fault has happened to the file at a path.
    pub(crate) fn has_file_fault(&self, fault: Fault, path: &str) -> bool {
        let node = self.disk.find(ROOT, path.as_bytes()).ok();
        self.file_faults.contains(&(fault, node))
    }

    /// Changes a file, as another program might.
    pub(crate) fn change(&mut self, node: u32) {
        let wall = self.wall();
        self.disk.change(node, wall, &mut self.rng);
        self.note(|| format!("file {node} changes"));
    }

    /// Returns the time of day.
    pub(crate) fn wall(&self) -> Duration {
        Duration::from_secs(1_700_000_000) + self.now
    }

    /// Returns whether peers should finish.
    pub(crate) fn is_late(&self) -> bool {
        self.steps >= self.max_steps
    }

    /// Frees most memory after a run. Abandoned operations are leaked, and own the machine.
    pub(crate) fn clear(&mut self) {
        self.abandoned_memory.clear();
        self.disk = FileTree::new();
        self.connections.clear();
        self.actors.clear();
        self.events.clear();
    }

    pub(crate) fn set_on_end(&mut self, on_end: Box<dyn FnOnce()>) {
        self.on_end = Some(on_end);
    }
}
