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
    Completion, Counters, Fd, Host, Kernel, KernelError, LinuxRing, Mode, Op, OpKind, Outcome,
    Ring, SetupError, Submit, SubmitError, Submitted, System, Token, UringConfig, UringKernel,
    Waker,
};

use crate::ring::{RingSource, reported};
use crate::{
    ControlBlock, Counts, Error, Event, EventType, Events, Group, Groups, Handler, Trigger,
};

/// When events are delivered, and when the application is told (figure 4.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// SEND: delivered at once, told by interruption.
    Preemptive,
    /// PS2: delivered at once, told when the application looks.
    Ps2,
    /// PS1: delivered, and told, when the application has nothing left to do and asks.
    Ps1,
}

/// How much there is room for.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Places in the event buffer.
    pub events: u32,
    /// Places in each of the two queues.
    pub queued: usize,
}

impl Default for Capacity {
    /// As many as the ring's own queue holds, and as its handler finds at a time.
    fn default() -> Self {
        Capacity { events: 1024, queued: 4096 }
    }
}

/// Most completions handed out between two submissions.
const MAX_STEPS: u32 = 64;

/// The same after something was cancelled.
const STEPS_AFTER_CANCEL: u32 = 32;

/// More new connections than this are enough for now.
const BATCH_ABOVE: usize = 32;
/// Most new connections that come before the rest, between two submissions: so few that they are still in
/// the processor's cache when they are served.
const MAX_NEW_FIRST: u32 = 4;

/// New connections, and everything else.
const NEW_GROUP: Group = Group::FIRST;
const OTHER_GROUP: Group = NEW_GROUP.next();

/// A ring's kernel whose completions are delivered as events.
pub struct SendKernel<R: Ring + 'static = LinuxRing> {
    evt: ControlBlock<RingSource<R>>,
    delivery: Delivery,
    new: Consumer<Event>,
    others: Consumer<Event>,
    /// Listeners that signal, and whether so many of their connections are wanted in a turn, and no more:
    /// nothing interrupts for one then.
    watched: Vec<(RawFd, bool)>,
    host: R::System,
    waker: Waker,
    now: Instant,
    steps: u32,
    /// New connections that have come before the rest since the last submission.
    new_first: u32,
}

/// The event handler of figure 4.2: it puts each event into the queue where it belongs.
struct Enqueue {
    new: Producer<Event>,
    others: Producer<Event>,
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
        self.new.is_full() || self.others.is_full()
    }

    fn put(&mut self, event: Event) {
        let queue = if event.kind == EventType::ACCEPT { &mut self.new } else { &mut self.others };
        // Whoever calls this has seen that there is room.
        let _ = queue.push(event);
    }
}

impl SendKernel<LinuxRing> {
    /// Sets up a ring whose completions are delivered so. It belongs to the calling thread.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn new(config: &UringConfig, delivery: Delivery) -> Result<Self, SendSetupError> {
        let config = UringConfig { mode: delivery.mode(), ..*config };
        SendKernel::over(UringKernel::new(&config)?, delivery, Capacity::default())
    }
}

impl Delivery {
    /// How the ring has to run.
    pub fn mode(self) -> Mode {
        match self {
            Delivery::Preemptive => Mode::Cooperative,
            Delivery::Ps2 => Mode::Immediate,
            Delivery::Ps1 => Mode::Deferred,
        }
    }
}

/// Why there can be no such kernel, or no [`Sockets`](crate::Sockets).
#[derive(Debug)]
pub enum SendSetupError {
    /// The ring can't be set up.
    Ring(SetupError),
    /// The control block can't.
    Block(Error),
}

impl fmt::Display for SendSetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendSetupError::Ring(missing) => missing.fmt(f),
            SendSetupError::Block(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SendSetupError {}

impl From<SetupError> for SendSetupError {
    fn from(missing: SetupError) -> Self {
        SendSetupError::Ring(missing)
    }
}

impl From<Error> for SendSetupError {
    fn from(error: Error) -> Self {
        SendSetupError::Block(error)
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
        sizes: Capacity,
    ) -> Result<Self, SendSetupError> {
        let (host, waker, now) = (kernel.host().clone(), kernel.waker(), kernel.now());
        let (new_in, new) = RingBuffer::new(sizes.queued);
        let (others_in, others) = RingBuffer::new(sizes.queued);
        let mut evt = ControlBlock::with_source(sizes.events, RingSource::new(kernel))?;
        evt.set_handler(Enqueue { new: new_in, others: others_in }, Trigger::Edge);
        evt.set_group(EventType::ACCEPT, Some(NEW_GROUP))?;
        evt.set_group(EventType::DATA, Some(OTHER_GROUP))?;
        evt.set_group(EventType::DONE, Some(OTHER_GROUP))?;
        match delivery {
            Delivery::Preemptive => {
                evt.set_deliver(Groups::ALL);
                evt.set_notify(Groups::ALL)?;
            }
            Delivery::Ps2 => evt.set_deliver(Groups::ALL),
            Delivery::Ps1 => {}
        }
        let watched = Vec::new();
        let (steps, new_first) = (0, 0);
        Ok(SendKernel { evt, delivery, new, others, watched, host, waker, now, steps, new_first })
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
        let _ = self.host.enable_sigio(listener);
    }

    /// The event that is next: a new connection, if there is one.
    fn pop(&mut self) -> Option<Event> {
        if self.new.is_empty() && self.others.is_empty() && self.delivery != Delivery::Ps1 {
            self.evt.handle_events();
        }
        let event = if self.new_first < MAX_NEW_FIRST || self.others.is_empty() {
            self.new.pop().ok()
        } else {
            None
        };
        self.new_first += u32::from(event.is_some());
        event.or_else(|| self.others.pop().ok())
    }

    /// While more new connections wait than are soon taken, or as many are taken as were asked for,
    /// interruption brings nothing.
    fn set_notify(&mut self) {
        if self.delivery == Delivery::Preemptive {
            let counted =
                !self.watched.is_empty() && self.watched.iter().all(|(_, counted)| *counted);
            let batched = counted || self.new.slots() > BATCH_ABOVE;
            let groups = if batched { Groups::NONE } else { Groups::ALL };
            // It has a handler.
            let _ = self.evt.set_notify(groups);
        }
    }
}

// SAFETY: it hands on what the ring's kernel says. Of a listener it keeps the number, to compare it only.
unsafe impl<R: Ring<System: Clone> + 'static> Submit for SendKernel<R> {
    type Host = R::System;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        match &op {
            Op::Accept { listener, per_turn } => self.watch(*listener, per_turn.is_some()),
            // Another may get its number.
            Op::Close { socket } => {
                self.watched.retain(|(watched, _)| *watched != socket.as_raw_fd());
            }
            _ => {}
        }
        self.evt.with_notifications_blocked(|source| source.kernel.submit(token, op))
    }

    fn cancel(&mut self, token: Token) {
        self.evt.with_notifications_blocked(|source| source.kernel.cancel(token));
        // It is handed over soon, lest what it should end go on meanwhile; at once where that is an accept,
        // as nobody must be accepted then (SEND 3.6.1).
        let max = if token.kind() == OpKind::Accept { 0 } else { STEPS_AFTER_CANCEL };
        self.steps = self.steps.min(max);
    }

    fn finish(&mut self) {
        self.evt.with_notifications_blocked(|source| source.kernel.finish());
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
        let Counts { interrupts, unmasked, mask_rechecks, .. } = self.counts();
        let system_calls = counters.system_calls + unmasked + mask_rechecks;
        Counters { system_calls, interruptions: interrupts, ..counters }
    }
}

impl<R: Ring<System: Clone> + 'static> Kernel for SendKernel<R> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        self.set_notify();
        let SendKernel { evt, new, others, now, .. } = self;
        let is_busy = || !new.is_empty() || !others.is_empty();
        let turned = evt.turn(Groups::ALL, is_busy, *now, until);
        (self.now, self.steps, self.new_first) = (self.host.clock(), MAX_STEPS, 0);
        if self.delivery == Delivery::Ps1 {
            self.steps = u32::MAX;
        }
        turned.map_err(|_| {
            let fault = self.evt.with_notifications_blocked(|source| source.fault.take());
            fault.expect("a wait fails by a fault")
        })
    }

    fn next(&mut self) -> Option<Completion> {
        while self.steps > 0 {
            if self.host.signalled() {
                self.evt.poll_pending();
            }
            if let Some(completion) =
                self.evt.with_notifications_blocked(|source| source.kernel.next_done())
            {
                return Some(completion);
            }
            let event = self.pop()?;
            self.steps -= 1;
            // SAFETY: the event is one of this block's, which come from its kernel; the handler has put
            // it into one of the queues, and it was taken out once.
            let decoded =
                |source: &mut RingSource<R>| unsafe { source.kernel.decode(reported(event)) };
            if let Some(completion) = self.evt.with_notifications_blocked(decoded) {
                return Some(completion);
            }
        }
        None
    }

    fn reap(&mut self) {
        if self.delivery != Delivery::Ps1 {
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
            let Ok(event) = self.new.pop().or_else(|_| self.others.pop()) else { return };
            // SAFETY: as in `next`.
            let decoded =
                |source: &mut RingSource<R>| unsafe { source.kernel.decode(reported(event)) };
            let outcome =
                self.evt.with_notifications_blocked(decoded).map(|completion| completion.outcome);
            if let Some(Outcome::Accepted(socket)) = outcome {
                self.host.close_unused(socket);
            }
        }
    }
}
