//! Scheduling of peers, and virtual time.

use std::cmp::Reverse;
use std::time::Duration;

use super::{Actor, Event, SimState, WaitOutcome};
use crate::fault::Fault;
use crate::memory;
use crate::peer::{Net, Next, Peer};
use crate::stream::Owner;

impl SimState {
    /// Maximum number of steps after the planned ones.
    const GRACE: u64 = 1_000_000;
    /// Maximum number of system calls without a step, and without a byte that is sent or received.
    const MAX_IDLE_CALLS: u64 = 100_000;
    /// Maximum virtual time of a run.
    const MAX_TIME: Duration = Duration::from_secs(24 * 3600);

    /// Adds a peer. The run does not wait for peers that only serve.
    pub(crate) fn add_peer(&mut self, peer: Box<dyn Peer>, serves: bool) -> u32 {
        let at = self.actors.len() as u32;
        self.actors.push(Actor { peer: Some(peer), is_runnable: false, is_done: false, serves });
        self.schedule_peer(at);
        at
    }

    pub(crate) fn num_peers(&self) -> u32 {
        self.actors.len() as u32
    }

    pub(crate) fn schedule_peer(&mut self, peer: u32) {
        let actor = &mut self.actors[peer as usize];
        if !actor.is_runnable && !actor.is_done {
            actor.is_runnable = true;
            self.runnable.push(peer);
        }
    }

    pub(crate) fn after(&mut self, time: Duration, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((self.now + time, self.serial, event)));
    }

    /// Runs a random peer, or delivers bytes of a random connection. Returns false if there is
    /// none.
    pub(crate) fn tick(&mut self) -> bool {
        let choices = self.runnable.len() + self.wires.len();
        if choices == 0 || self.failure.is_some() {
            return false;
        }
        self.calls = 0;
        self.steps += 1;
        if self.steps == self.max_steps {
            self.rng.stop_faults();
            (0..self.num_peers()).for_each(|peer| self.schedule_peer(peer));
        }
        if self.steps == self.max_steps + Self::GRACE {
            self.fail("the peers do not finish");
        }
        let at = self.rng.below(choices);
        if at < self.runnable.len() {
            let peer = self.runnable.swap_remove(at);
            self.run_peer(peer);
        } else {
            let end = self.wires.swap_remove(at - self.runnable.len());
            let in_transit = self.connection_of(end).in_transit(end.side);
            if in_transit > 0 {
                let n = 1 + self.rng.below(in_transit);
                if n < in_transit {
                    self.wires.push(end);
                }
                self.deliver(end, n);
            }
        }
        true
    }

    pub(super) fn run_peer(&mut self, at: u32) {
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

    /// Notes that a peer stalls, on all its connections.
    pub(crate) fn note_stall(&mut self, at: u32, time: Duration) {
        for connection in self.connections.iter_mut().flatten() {
            connection.has_stalled |= connection.owners.contains(&Owner::Peer(at));
        }
        self.note(|| format!("peer {at} stalls for {time:?}"));
    }

    /// Describes the peers that are not done.
    pub(super) fn waiting_peers(&self) -> String {
        let waiting = self.actors.iter().enumerate().filter(|(_, actor)| !actor.is_done);
        let peers: Vec<_> = waiting
            .filter_map(|(at, actor)| {
                Some(format!("peer {at} ({})", actor.peer.as_ref()?.waits_for()))
            })
            .collect();
        if peers.is_empty() { "no peer".to_owned() } else { peers.join(", ") }
    }

    /// Advances the clock to the next event or to `until`, whichever is earlier.
    pub(crate) fn advance_clock(&mut self, until: Option<Duration>) -> WaitOutcome {
        let next = self.events.peek().map(|Reverse((at, ..))| *at);
        match (next, until) {
            (Some(at), until) if until.is_none_or(|until| at <= until) => {
                self.now = self.now.max(at);
                self.run_due_events();
                WaitOutcome::Event
            }
            (_, Some(until)) => {
                self.now = self.now.max(until);
                if self.now > Self::MAX_TIME {
                    let waiting = self.waiting_peers();
                    self.fail(format!("a day has passed; still waiting: {waiting}"));
                }
                WaitOutcome::TimedOut
            }
            _ => WaitOutcome::Deadlock,
        }
    }

    /// Performs the events that are due.
    pub(super) fn run_due_events(&mut self) {
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

    /// Notes that bytes were sent or received. Between two steps there are only so many: those that peers have sent, and
    /// the room in their sockets.
    pub(super) fn note_progress(&mut self) {
        self.calls = 0;
    }

    /// Begins a system call: a little time passes, and a few peers run.
    pub(crate) fn enter(&mut self) {
        self.calls += 1;
        if self.calls > Self::MAX_IDLE_CALLS {
            let waiting = self.waiting_peers();
            self.fail(format!("the program makes calls without progress; waiting: {waiting}"));
        }
        self.check_freed();
        self.now += Duration::from_micros(self.rng.below(20) as u64);
        self.run_due_events();
        for _ in 0..self.rng.below(4) {
            self.tick();
        }
        self.check_wakers();
    }

    /// Fails the run if memory held by the kernel was freed; the kernel must not read it again.
    pub(crate) fn check_freed(&mut self) {
        if let Some((start, len)) = memory::take_freed() {
            self.fail(format!("{len} bytes at {start:#x} were freed while the kernel held them"));
        }
    }

    /// Waits for an event: runs a peer, or advances the clock.
    pub(crate) fn wait(&mut self, until: Option<Duration>) -> WaitOutcome {
        if self.failure.is_some() {
            return WaitOutcome::Deadlock;
        }
        // Work that the kernel has deferred comes first.
        let busy = !self.changed_fds.is_empty() || self.tick();
        let outcome = if busy { WaitOutcome::Event } else { self.advance_clock(until) };
        if outcome == WaitOutcome::Deadlock && self.failure.is_none() {
            let waiting = self.waiting_peers();
            self.fail(format!("the program waits forever; also waiting: {waiting}"));
        }
        self.check_wakers();
        outcome
    }
}
