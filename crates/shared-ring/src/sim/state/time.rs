//! Peers act, time passes.

use std::cmp::Reverse;
use std::time::Duration;

use super::SimState;
use crate::sim::fault::Fault;
use crate::sim::memory;
use crate::sim::peer::{Net, Next, Peer};
use crate::sim::stream::Owner;

/// A peer and what is to be done about it.
pub(super) struct Actor {
    /// Away while it acts.
    peer: Option<Box<dyn Peer>>,
    is_runnable: bool,
    is_done: bool,
    serves: bool,
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sim) enum Event {
    /// A peer acts.
    Peer(u32),
    /// An attempt to connect succeeds or fails.
    Connect(u32, u64),
    /// An operation in flight is done.
    Operation(u64),
    /// Work on a file is done.
    FileJob(u64),
}

/// What came of letting time pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Passed {
    /// Something has happened.
    Event,
    /// The time is over.
    Over,
    /// Nothing would ever happen.
    Nothing,
}

impl SimState {
    /// How many steps a run may take, beyond those it was to take, to come to its end.
    const GRACE: u64 = 1_000_000;
    /// How many system calls a program may make while nothing else happens.
    const MAX_IDLE_CALLS: u64 = 100_000;
    /// Until when everything must be over.
    const LONG: Duration = Duration::from_secs(24 * 3600);

    /// Adds a peer; one that only serves is not waited for at the end.
    pub(in crate::sim) fn add_peer(&mut self, peer: Box<dyn Peer>, serves: bool) -> u32 {
        let at = self.actors.len() as u32;
        self.actors.push(Actor { peer: Some(peer), is_runnable: false, is_done: false, serves });
        self.schedule_peer(at);
        at
    }

    /// How many peers there are.
    pub(in crate::sim) fn peers(&self) -> u32 {
        self.actors.len() as u32
    }

    /// Has a peer act.
    pub(in crate::sim) fn schedule_peer(&mut self, peer: u32) {
        let actor = &mut self.actors[peer as usize];
        if !actor.is_runnable && !actor.is_done {
            actor.is_runnable = true;
            self.runnable.push(peer);
        }
    }

    pub(in crate::sim) fn after(&mut self, time: Duration, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((self.now + time, self.serial, event)));
    }

    /// Lets one peer or one connection, whichever it may be, go on; false if there is none.
    pub(in crate::sim) fn tick(&mut self) -> bool {
        let choices = self.runnable.len() + self.wires.len();
        if choices == 0 || self.failure.is_some() {
            return false;
        }
        self.calls = 0;
        self.steps += 1;
        if self.steps == self.most_steps {
            self.rng.stop_faults();
            (0..self.peers()).for_each(|peer| self.schedule_peer(peer));
        }
        if self.steps == self.most_steps + Self::GRACE {
            self.fail("the peers never come to an end");
        }
        let at = self.rng.below(choices);
        if at < self.runnable.len() {
            let peer = self.runnable.swap_remove(at);
            self.act(peer);
        } else {
            let end = self.wires.swap_remove(at - self.runnable.len());
            let under_way = self.of(end).under_way(end.side);
            if under_way > 0 {
                let n = 1 + self.rng.below(under_way);
                if n < under_way {
                    self.wires.push(end);
                }
                self.deliver(end, n);
            }
        }
        true
    }

    pub(super) fn act(&mut self, at: u32) {
        let actor = &mut self.actors[at as usize];
        actor.is_runnable = false;
        if self.rng.fault(Fault::Stall) {
            let time = Duration::from_millis(1 + self.rng.below(4_000) as u64);
            self.note_stall(at, time);
            return self.after(time, Event::Peer(at));
        }
        let Some(mut peer) = self.actors[at as usize].peer.take() else { return };
        let next = peer.step(&mut Net::new(self, at));
        self.actors[at as usize].peer = Some(peer);
        match next {
            Next::Ready => self.schedule_peer(at),
            Next::Wait => {}
            Next::After(time) => self.after(time, Event::Peer(at)),
            Next::Done => {
                self.actors[at as usize].is_done = true;
                if self.actors.iter().all(|actor| actor.is_done || actor.serves)
                    && let Some(on_end) = self.on_end.take()
                {
                    self.note(|| "all peers are done".to_owned());
                    on_end();
                }
            }
        }
    }

    /// A peer does nothing for a while, on any of its connections.
    pub(in crate::sim) fn note_stall(&mut self, at: u32, time: Duration) {
        for connection in self.connections.iter_mut().flatten() {
            connection.has_stalled |= connection.owners.contains(&Owner::Peer(at));
        }
        self.note(|| format!("peer {at} does nothing for {time:?}"));
    }

    /// What the peers that are not done are about.
    pub(super) fn waiting_peers(&self) -> String {
        let waiting = self.actors.iter().enumerate().filter(|(_, actor)| !actor.is_done);
        let words: Vec<_> = waiting
            .filter_map(|(at, actor)| {
                Some(format!("peer {at} ({})", actor.peer.as_ref()?.waits_for()))
            })
            .collect();
        if words.is_empty() { "nobody; who stops it?".to_owned() } else { words.join(", ") }
    }

    /// Lets time pass until something happens, at most until `until`.
    pub(in crate::sim) fn pass(&mut self, until: Option<Duration>) -> Passed {
        let next = self.events.peek().map(|Reverse((at, ..))| *at);
        match (next, until) {
            (Some(at), until) if until.is_none_or(|until| at <= until) => {
                self.now = self.now.max(at);
                self.happen();
                Passed::Event
            }
            (_, Some(until)) => {
                self.now = self.now.max(until);
                if self.now > Self::LONG {
                    let waiting = self.waiting_peers();
                    self.fail(format!("a day has passed, and these still wait: {waiting}"));
                }
                Passed::Over
            }
            _ => Passed::Nothing,
        }
    }

    /// Has everything happen that is due.
    pub(super) fn happen(&mut self) {
        while let Some(Reverse((at, _, event))) = self.events.peek() {
            if *at > self.now {
                return;
            }
            let event = *event;
            self.events.pop();
            match event {
                Event::Peer(peer) => self.schedule_peer(peer),
                Event::Connect(fd, serial) => self.end_connect(fd, serial),
                Event::Operation(id) => self.due.push(id),
                Event::FileJob(id) => {
                    self.due_work.push(id);
                    if let Some(worker) = &self.worker {
                        worker.wake();
                    }
                }
            }
        }
    }

    /// Begins a system call that lets others go on: a little time passes, a few of them act.
    pub(in crate::sim) fn enter(&mut self) {
        self.calls += 1;
        if self.calls > Self::MAX_IDLE_CALLS {
            let waiting = self.waiting_peers();
            self.fail(format!("the program makes calls to no end; waiting: {waiting}"));
        }
        self.check_freed();
        self.now += Duration::from_micros(self.rng.below(20) as u64);
        self.happen();
        for _ in 0..self.rng.below(4) {
            self.tick();
        }
        self.check_wakers();
    }

    /// Fails if memory was freed that the kernel holds; then nothing may look at it again.
    pub(in crate::sim) fn check_freed(&mut self) {
        if let Some((start, len)) = memory::freed() {
            self.fail(format!("{len} bytes at {start:#x} were freed while the kernel held them"));
        }
    }

    /// Lets others go on, or time pass, for a program that waits.
    pub(in crate::sim) fn wait(&mut self, until: Option<Duration>) -> Passed {
        if self.failure.is_some() {
            return Passed::Nothing;
        }
        // What the kernel has put off comes first.
        let busy = !self.changed_fds.is_empty() || self.tick();
        let passed = if busy { Passed::Event } else { self.pass(until) };
        if passed == Passed::Nothing && self.failure.is_none() {
            let waiting = self.waiting_peers();
            self.fail(format!("the program waits for ever; so do: {waiting}"));
        }
        self.check_wakers();
        passed
    }
}
