//! The simulated machine from within: descriptors, connections, peers, time.

mod connections;
mod descriptors;
mod listeners;
mod time;

pub(in crate::sim) use descriptors::What;
pub(in crate::sim) use time::{Event, Passed};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::Waker;
use crate::sim::dice::Dice;
use crate::sim::disk::Disk;
use crate::sim::plan::Plan;
use crate::sim::signals::Signalling;
use crate::sim::stream::{Connection, End};
use crate::sim::trace::Trace;
use crate::sim::usage::Noted;
use descriptors::Descriptor;
use listeners::Listener;
use time::Actor;

/// The simulated machine, and the world around it.
pub(in crate::sim) struct World {
    pub(in crate::sim) dice: Dice,
    pub(in crate::sim) disk: Disk,
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
    pub(in crate::sim) stirred: Vec<u32>,
    /// Operations and file work that are due.
    pub(in crate::sim) due: Vec<u64>,
    pub(in crate::sim) due_work: Vec<u64>,
    /// The wakers' counters.
    bells: Vec<(u32, Arc<AtomicU64>)>,
    /// Is woken when file work is done.
    worker: Option<Waker>,
    ports: u16,
    steps: u64,
    most_steps: u64,
    /// System calls since something else has happened.
    calls: u64,
    finale: Option<Box<dyn FnOnce()>>,
    /// Operations that were in flight when their kernel was let go of.
    pub(in crate::sim) unfinished: Vec<String>,
    failure: Option<String>,
    pub(in crate::sim) noted: Noted,
    pub(in crate::sim) signalling: Signalling,
    /// A kernel is in the middle of its work, and a signal has interrupted it.
    pub(in crate::sim) ring_is_used: bool,
}

impl World {
    pub(in crate::sim) fn new(plan: &Plan) -> Self {
        World {
            dice: Dice::new(plan.seed, plan.faults, plan.most_faults),
            disk: Disk::new(),
            trace: Trace::new(plan.traced),
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
            stirred: Vec::new(),
            due: Vec::new(),
            due_work: Vec::new(),
            bells: Vec::new(),
            worker: None,
            ports: 10_000,
            steps: 0,
            most_steps: plan.steps,
            calls: 0,
            finale: None,
            unfinished: Vec::new(),
            failure: None,
            noted: Noted::default(),
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
        self.disk.change(node, wall, &mut self.dice);
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

    pub(in crate::sim) fn set_finale(&mut self, finale: Box<dyn FnOnce()>) {
        self.finale = Some(finale);
    }
}
