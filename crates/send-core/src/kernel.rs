//! A ring whose completions are delivered as events: the server of the thesis (SEND 4.3).
//!
//! There are two queues, of new connections and of everything else, and the event handler does
//! nothing but put events into them (figure 4.2). The application takes new connections first, but no more
//! than a few at a time, as they are served best while they are in the cache. There is no batch: what was
//! delivered meanwhile is seen at the next step.

use std::fmt;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use rtrb::{Consumer, Producer, RingBuffer};
use shared_ring::{
    Completion, Counters, Fault, Fd, Host, Kernel, Kind, LinuxRing, Missing, Mode, Op, Outcome,
    Posted, Refused, Ring, Submit, System, Token, UringConfig, UringKernel, Waker,
};

use crate::ring::{RingSource, reported};
use crate::{Counts, Error, Event, EventType, Events, Evtctl, Group, Groups, Handler, Trigger};

/// When events are delivered, and when the application is told (figure 4.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// SEND: delivered at once, told by interruption.
    Preemptive,
    /// PS2: delivered at once, told when the application looks.
    Immediate,
    /// PS1: delivered, and told, when the application has nothing left to do and asks.
    Batched,
}

/// How much there is room for.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Places in the event buffer.
    pub events: u32,
    /// Places in each of the two queues.
    pub queued: usize,
}

impl Default for Sizes {
    /// As many as the ring's own queue holds, and as its handler finds at a time.
    fn default() -> Self {
        Sizes { events: 1024, queued: 4096 }
    }
}

/// Most completions handed out between two submissions.
const STEPS: u32 = 64;

/// The same after something was cancelled.
const SOON: u32 = 32;

/// More new connections than this are enough for now.
const ENOUGH: usize = 32;
/// Most new connections that come before the rest, between two submissions: so few that they are still in
/// the processor's cache when they are served.
const AHEAD: u32 = 4;

/// New connections, and everything else.
const NEW: Group = Group::FIRST;
const REST: Group = NEW.next();

/// A ring's kernel whose completions are delivered as events.
pub struct SendKernel<R: Ring + 'static = LinuxRing> {
    evt: Evtctl<RingSource<R>>,
    delivery: Delivery,
    new: Consumer<Event>,
    rest: Consumer<Event>,
    /// Listeners that signal, and whether so many of their connections are wanted in a turn, and no more:
    /// nothing interrupts for one then.
    watched: Vec<(RawFd, bool)>,
    host: R::System,
    waker: Waker,
    now: Instant,
    steps: u32,
    /// New connections that have come before the rest since the last submission.
    ahead: u32,
}

/// The event handler of figure 4.2: it puts each event into the queue where it belongs.
struct Enqueue {
    new: Producer<Event>,
    rest: Producer<Event>,
}

// SAFETY: pushing to one of these queues copies to a place that was allocated before, and changes
// atomic numbers.
unsafe impl Handler for Enqueue {
    fn handle(&mut self, events: &mut Events<'_>) {
        // What finds no room stays in the buffer.
        while !self.is_full()
            && let Some(event) = events.next()
        {
            self.put(event);
        }
    }
}

impl Enqueue {
    fn is_full(&self) -> bool {
        self.new.is_full() || self.rest.is_full()
    }

    fn put(&mut self, event: Event) {
        let queue = if event.kind == EventType::ACCEPT { &mut self.new } else { &mut self.rest };
        // Whoever calls this has seen that there is room.
        let _ = queue.push(event);
    }
}

impl SendKernel<LinuxRing> {
    /// Sets up a ring whose completions are delivered so. It belongs to the calling thread.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn new(config: &UringConfig, delivery: Delivery) -> Result<Self, Unusable> {
        let config = UringConfig { mode: delivery.mode(), ..*config };
        SendKernel::over(UringKernel::new(&config)?, delivery, Sizes::default())
    }
}

impl Delivery {
    /// How the ring has to run.
    pub fn mode(self) -> Mode {
        match self {
            Delivery::Preemptive => Mode::Cooperative,
            Delivery::Immediate => Mode::Immediate,
            Delivery::Batched => Mode::Deferred,
        }
    }
}

/// Why there can be no such kernel, or no [`Sockets`](crate::Sockets).
#[derive(Debug)]
pub enum Unusable {
    /// The ring can't be set up.
    Ring(Missing),
    /// The control block can't.
    Block(Error),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Ring(missing) => missing.fmt(f),
            Unusable::Block(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unusable {}

impl From<Missing> for Unusable {
    fn from(missing: Missing) -> Self {
        Unusable::Ring(missing)
    }
}

impl From<Error> for Unusable {
    fn from(error: Error) -> Self {
        Unusable::Block(error)
    }
}

impl<R: Ring<System: Clone> + 'static> SendKernel<R> {
    /// Delivers the completions of a ring that runs in the mode of `delivery`.
    ///
    /// # Errors
    /// When the thread has a control block, or SIGIO is in use.
    pub fn over(
        kernel: UringKernel<R>,
        delivery: Delivery,
        sizes: Sizes,
    ) -> Result<Self, Unusable> {
        let (host, waker, now) = (kernel.host().clone(), kernel.waker(), kernel.now());
        let (new_in, new) = RingBuffer::new(sizes.queued);
        let (rest_in, rest) = RingBuffer::new(sizes.queued);
        let mut evt = Evtctl::with_source(sizes.events, RingSource::new(kernel))?;
        evt.set_handler(Enqueue { new: new_in, rest: rest_in }, Trigger::Edge);
        evt.set_group(EventType::ACCEPT, Some(NEW))?;
        evt.set_group(EventType::DATA, Some(REST))?;
        evt.set_group(EventType::DONE, Some(REST))?;
        match delivery {
            Delivery::Preemptive => {
                evt.set_deliver(Groups::ALL);
                evt.set_notify(Groups::ALL)?;
            }
            Delivery::Immediate => evt.set_deliver(Groups::ALL),
            Delivery::Batched => {}
        }
        let watched = Vec::new();
        let (steps, ahead) = (0, 0);
        Ok(SendKernel { evt, delivery, new, rest, watched, host, waker, now, steps, ahead })
    }

    /// What has happened at the control block.
    pub fn counts(&self) -> Counts {
        self.evt.counts()
    }

    /// New connections that have been put into their queue and not been taken.
    pub fn arrived(&self) -> u32 {
        self.new.slots() as u32
    }

    /// Has a listener interrupt this thread, which it does for good.
    fn watch(&mut self, listener: Fd, counted: bool) {
        if self.delivery != Delivery::Preemptive || self.evt.check_process().is_err() {
            return;
        }
        if let Some(known) = self.watched.iter_mut().find(|(fd, _)| *fd == listener.raw()) {
            known.1 = counted;
        } else {
            self.watched.push((listener.raw(), counted));
        }
        // Also where the number is known: it may be another listener's now. Where that is refused its
        // connections come at the next entry into the kernel.
        let _ = self.host.signal_on_arrival(listener);
    }

    /// The event that is next: a new connection, if there is one.
    fn pop(&mut self) -> Option<Event> {
        if self.new.is_empty() && self.rest.is_empty() && self.delivery != Delivery::Batched {
            self.evt.handle_events();
        }
        let event =
            if self.ahead < AHEAD || self.rest.is_empty() { self.new.pop().ok() } else { None };
        self.ahead += u32::from(event.is_some());
        event.or_else(|| self.rest.pop().ok())
    }

    /// While more new connections wait than are soon taken, or as many are taken as were asked for,
    /// interruption brings nothing.
    fn set_notify(&mut self) {
        if self.delivery == Delivery::Preemptive {
            let counted =
                !self.watched.is_empty() && self.watched.iter().all(|(_, counted)| *counted);
            let batched = counted || self.new.slots() > ENOUGH;
            let groups = if batched { Groups::NONE } else { Groups::ALL };
            // It has a handler.
            let _ = self.evt.set_notify(groups);
        }
    }
}

// SAFETY: it hands on what the ring's kernel says. Of a listener it keeps the number, to compare it only.
unsafe impl<R: Ring<System: Clone> + 'static> Submit for SendKernel<R> {
    type Host = R::System;

    fn submit(&mut self, token: Token, op: Op) -> Result<Posted, Refused> {
        match &op {
            Op::Accept { listener, per_turn } => self.watch(*listener, per_turn.is_some()),
            // Another may get its number.
            Op::Close { socket } => {
                self.watched.retain(|(watched, _)| *watched != socket.as_raw_fd());
            }
            _ => {}
        }
        self.evt.critically(|source| source.kernel.submit(token, op))
    }

    fn cancel(&mut self, token: Token) {
        self.evt.critically(|source| source.kernel.cancel(token));
        // It is handed over soon, lest what it should end go on meanwhile; at once where that is an accept,
        // as nobody must be accepted then (SEND 3.6.1).
        let most = if token.kind() == Kind::Accept { 0 } else { SOON };
        self.steps = self.steps.min(most);
    }

    fn finish(&mut self) {
        self.evt.critically(|source| source.kernel.finish());
    }

    fn host(&self) -> &R::System {
        &self.host
    }

    fn host_mut(&mut self) -> &mut R::System {
        &mut self.host
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn landed(&self) -> u32 {
        // Otherwise those in the queue came with the batch that is being worked on.
        let arrived = if self.delivery == Delivery::Preemptive { self.arrived() } else { 0 };
        arrived + u32::from(self.evt.block().has_events())
    }

    fn counters(&self) -> Counters {
        let counters = self.evt.ask(|source| source.kernel.counters());
        let Counts { interrupts, unmasked, revalidated, .. } = self.counts();
        let system_calls = counters.system_calls + unmasked + revalidated;
        Counters { system_calls, interruptions: interrupts, ..counters }
    }
}

impl<R: Ring<System: Clone> + 'static> Kernel for SendKernel<R> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), Fault> {
        self.set_notify();
        let SendKernel { evt, new, rest, now, .. } = self;
        let is_busy = || !new.is_empty() || !rest.is_empty();
        let turned = evt.turn(Groups::ALL, is_busy, *now, until);
        (self.now, self.steps, self.ahead) = (self.host.clock(), STEPS, 0);
        if self.delivery == Delivery::Batched {
            self.steps = u32::MAX;
        }
        turned.map_err(|_| {
            let fault = self.evt.critically(|source| source.fault.take());
            fault.expect("a wait fails by a fault")
        })
    }

    fn next(&mut self) -> Option<Completion> {
        while self.steps > 0 {
            if self.host.signalled() {
                self.evt.look();
            }
            if let Some(completion) = self.evt.critically(|source| source.kernel.next_done()) {
                return Some(completion);
            }
            let event = self.pop()?;
            self.steps -= 1;
            // SAFETY: the event is one of this block's, which come from its kernel; the handler has put
            // it into one of the queues, and it was taken out once.
            let made_out =
                |source: &mut RingSource<R>| unsafe { source.kernel.make_out(reported(event)) };
            if let Some(completion) = self.evt.critically(made_out) {
                return Some(completion);
            }
        }
        None
    }

    fn reap(&mut self) {
        if self.delivery != Delivery::Batched {
            self.evt.handle_events();
        }
    }
}

impl<R: Ring + 'static> Drop for SendKernel<R> {
    /// Makes out what nobody has taken, lest its operations are waited for and connections stay open.
    fn drop(&mut self) {
        // Lowering it needs no handler.
        let _ = self.evt.set_notify(Groups::NONE);
        self.evt.set_deliver(Groups::ALL);
        loop {
            self.evt.handle_events();
            let Ok(event) = self.new.pop().or_else(|_| self.rest.pop()) else { return };
            // SAFETY: as in `next`.
            let made_out =
                |source: &mut RingSource<R>| unsafe { source.kernel.make_out(reported(event)) };
            let outcome = self.evt.critically(made_out).map(|completion| completion.outcome);
            if let Some(Outcome::Accepted(socket)) = outcome {
                self.host.discard(socket);
            }
        }
    }
}
