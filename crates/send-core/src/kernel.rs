//! A ring whose completions are delivered as events: the server of the thesis (SEND 4.3).
//!
//! It has two queues: one for new connections, one for all other events. The event handler only
//! puts events into them (figure 4.2). The application takes new connections first, at most a few
//! at a time, as serving them is cheapest while they are in the cache. There are no batches: an
//! event delivered meanwhile is processed in the next step.

pub use crate::ring::SendSetupError;

use std::os::fd::AsRawFd;
use std::time::Instant;

use rtrb::{Consumer, Producer, RingBuffer};
use shared_ring::author::System;
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};
use shared_ring::uring::{LinuxRing, Ring};
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    Completion, Counters, Fd, Host, Kernel, KernelError, Occupancy, Op, OpKind, Outcome, Submit,
    SubmitError, Submitted, Token, Waker,
};

use crate::control_block::{Counters as NotificationCounters, Events, Handler};
use crate::ring::{RingSource, raw};
use crate::{ControlBlock, Event, EventType, Group, Groups, Trigger};

/// Delivery of events and notification of the application (figure 4.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// SEND: delivered immediately, notified by interruption.
    Preemptive,
    /// PS2: delivered immediately, notified when the application polls.
    Ps2,
    /// PS1: delivered and notified when the application is idle and polls.
    Ps1,
}

/// Capacities of the buffer and the queues.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Capacity {
    /// Maximum number of events in the event buffer.
    pub events: u32,
    /// Maximum number of events in each of the two queues; 0 counts as 1.
    pub queued: usize,
}

impl Capacity {
    /// Sizes a buffer for `events` events, and each queue for `queued`.
    pub const fn new(events: u32, queued: usize) -> Self {
        Capacity { events, queued }
    }
}

impl Default for Capacity {
    /// As many as the completion queue holds, and as many as the handler takes at a time.
    fn default() -> Self {
        Capacity { events: 1024, queued: 4096 }
    }
}

/// Maximum number of completions returned between two submissions.
const MAX_STEPS: u32 = 64;

/// The same maximum after an operation was cancelled.
const STEPS_AFTER_CANCEL: u32 = 32;

/// Notification stops while more new connections than this are queued.
const BATCH_ABOVE: usize = 32;
/// Maximum number of new connections taken before other events, between two submissions. They are
/// still in the processor's cache when they are served.
const MAX_NEW_FIRST: u32 = 4;

/// Groups of new connections and of all other events.
const NEW_GROUP: Group = Group::FIRST;
const OTHER_GROUP: Group = NEW_GROUP.next();

/// A ring's kernel whose completions are delivered as events.
pub struct SendKernel<R: Ring + 'static = LinuxRing> {
    ecb: ControlBlock<RingSource<R>>,
    delivery: Delivery,
    new: Consumer<Event>,
    others: Consumer<Event>,
    /// Listeners with `SIGIO` enabled. The flag is set if the number of their connections per turn
    /// is limited, so that interruption is useless.
    watched: Vec<(Fd, bool)>,
    host: R::System,
    waker: Waker,
    now: Instant,
    steps: u32,
    /// Number of new connections taken before other events since the last submission.
    new_first: u32,
}

impl<R: Ring + 'static> std::fmt::Debug for SendKernel<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendKernel").field("delivery", &self.delivery).finish_non_exhaustive()
    }
}

/// The event handler of figure 4.2: puts each event into its queue.
struct Enqueue {
    new: Producer<Event>,
    others: Producer<Event>,
}

// SAFETY: a push copies to memory of the queue that was allocated before, and changes atomics.
unsafe impl Handler for Enqueue {
    fn handle(&mut self, events: &mut Events<'_>) {
        // Events for which a queue has no room stay in the buffer.
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
        // The caller has checked that there is room.
        let _ = queue.push(event);
    }
}

impl SendKernel<LinuxRing> {
    /// Creates a ring whose completions are delivered as events. It is bound to the calling thread.
    ///
    /// # Errors
    /// Returns an error if the ring or the control block cannot be created.
    pub fn new(config: &UringConfig, delivery: Delivery) -> Result<Self, SendSetupError> {
        let mut config = *config;
        config.mode = delivery.mode();
        SendKernel::with_kernel(UringKernel::new(&config)?, delivery, Capacity::default())
    }
}

impl Delivery {
    /// Returns the ring mode that this delivery requires.
    pub fn mode(self) -> Mode {
        match self {
            Delivery::Preemptive => Mode::Cooperative,
            Delivery::Ps2 => Mode::Immediate,
            Delivery::Ps1 => Mode::Deferred,
        }
    }
}

impl<R: Ring<System: Clone> + 'static> SendKernel<R> {
    /// Delivers the completions of a ring that runs in the mode of `delivery`.
    ///
    /// # Errors
    /// Returns an error if the thread has a control block, or if `SIGIO` is in use.
    pub fn with_kernel(
        kernel: UringKernel<R>,
        delivery: Delivery,
        capacity: Capacity,
    ) -> Result<Self, SendSetupError> {
        let (host, waker, now) = (kernel.host().clone(), kernel.waker(), kernel.now());
        let queued = capacity.queued.max(1);
        let (new_producer, new) = RingBuffer::new(queued);
        let (others_producer, others) = RingBuffer::new(queued);
        let mut ecb = ControlBlock::with_source(capacity.events, RingSource::new(kernel))?;
        ecb.set_handler(Enqueue { new: new_producer, others: others_producer }, Trigger::Edge);
        ecb.set_group(EventType::ACCEPT, Some(NEW_GROUP))?;
        ecb.set_group(EventType::DATA, Some(OTHER_GROUP))?;
        ecb.set_group(EventType::DONE, Some(OTHER_GROUP))?;
        match delivery {
            Delivery::Preemptive => {
                ecb.set_deliver(Groups::ALL);
                ecb.set_notify(Groups::ALL)?;
            }
            Delivery::Ps2 => ecb.set_deliver(Groups::ALL),
            Delivery::Ps1 => {}
        }
        let watched = Vec::new();
        let (steps, new_first) = (0, 0);
        Ok(SendKernel { ecb, delivery, new, others, watched, host, waker, now, steps, new_first })
    }

    /// Returns the counters of the control block.
    pub fn notification_counters(&self) -> NotificationCounters {
        self.ecb.counters()
    }

    /// Returns the number of new connections in their queue.
    pub fn arrived(&self) -> u32 {
        self.new.slots() as u32
    }

    /// Enables `SIGIO` on a listener for this thread, until it is closed.
    fn watch(&mut self, listener: Fd, is_limited: bool) {
        if self.delivery != Delivery::Preemptive || self.ecb.check_process().is_err() {
            return;
        }
        if let Some(entry) = self.watched.iter_mut().find(|(fd, _)| *fd == listener) {
            entry.1 = is_limited;
        } else {
            self.watched.push((listener, is_limited));
        }
        // Repeated for a known descriptor too, as it may be another listener's now. If this fails,
        // its connections are accepted at the next entry into the kernel.
        let _ = self.host.enable_sigio(listener);
    }

    /// Takes the next event: a new connection first, within its limit.
    fn pop(&mut self) -> Option<Event> {
        if self.new.is_empty() && self.others.is_empty() && self.delivery != Delivery::Ps1 {
            self.ecb.handle_events();
        }
        let event = if self.new_first < MAX_NEW_FIRST || self.others.is_empty() {
            self.new.pop().ok()
        } else {
            None
        };
        self.new_first += u32::from(event.is_some());
        event.or_else(|| self.others.pop().ok())
    }

    /// Lowers `notify` while more new connections are queued than will be taken soon, or while all
    /// listeners limit them per turn.
    fn set_notify(&mut self) {
        if self.delivery == Delivery::Preemptive {
            let is_limited =
                !self.watched.is_empty() && self.watched.iter().all(|(_, is_limited)| *is_limited);
            let batched = is_limited || self.new.slots() > BATCH_ABOVE;
            let groups = if batched { Groups::NONE } else { Groups::ALL };
            // A handler is set, so this cannot fail.
            let _ = self.ecb.set_notify(groups);
        }
    }
}

// SAFETY: it forwards to the ring's kernel. It keeps a listener's descriptor until its close or `finish`.
unsafe impl<R: Ring<System: Clone> + 'static> Submit for SendKernel<R> {
    type Host = R::System;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        match &op {
            Op::Accept { listener, per_turn } => self.watch(*listener, per_turn.is_some()),
            // The descriptor may be reused, and another one of the socket may stay open.
            Op::Close { socket } => {
                let closed = |(fd, _): &(Fd, bool)| fd.raw() == socket.as_raw_fd();
                if let Some(at) = self.watched.iter().position(closed) {
                    let (fd, _) = self.watched.swap_remove(at);
                    // If this fails, nothing was enabled.
                    let _ = self.host.disable_sigio(fd);
                }
            }
            _ => {}
        }
        self.ecb.with_notifications_blocked(|source| source.kernel.submit(token, op))
    }

    fn cancel(&mut self, token: Token) {
        self.ecb.with_notifications_blocked(|source| source.kernel.cancel(token));
        // Submit the cancellation soon, so that the operation does not continue meanwhile. For an
        // accept submit it at once, as no further connection must be accepted (SEND 3.6.1).
        let max = if token.kind() == OpKind::Accept { 0 } else { STEPS_AFTER_CANCEL };
        self.steps = self.steps.min(max);
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.ecb.with_notifications_blocked(|source| source.kernel.add_buffers(buffers))
    }

    fn finish(&mut self) {
        self.end();
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

    fn counters(&self) -> Counters {
        let mut counters = self.ecb.query(|source| source.kernel.counters());
        let NotificationCounters { interrupts, unmasked, mask_rechecks, .. } =
            self.notification_counters();
        counters.system_calls += unmasked + mask_rechecks;
        counters.interruptions = interrupts;
        counters
    }

    fn occupancy(&self) -> Occupancy {
        let block = self.ecb.block();
        let handled = self.new.slots() + self.others.slots();
        let mut occupancy = self.ecb.query(|source| source.kernel.occupancy());
        occupancy.delivered = block.held() + handled as u32;
        occupancy.queued = block.num_queued();
        occupancy.is_masked = block.notify() == Groups::NONE;
        occupancy
    }
}

impl<R: Ring<System: Clone> + 'static> Kernel for SendKernel<R> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        self.set_notify();
        let SendKernel { ecb, new, others, now, .. } = self;
        let is_busy = || !new.is_empty() || !others.is_empty();
        let result = ecb.turn(Groups::ALL, is_busy, *now, until);
        (self.now, self.steps, self.new_first) = (self.host.clock(), MAX_STEPS, 0);
        if self.delivery == Delivery::Ps1 {
            self.steps = u32::MAX;
        }
        result.map_err(|_| {
            let fault = self.ecb.with_notifications_blocked(|source| source.fault.take());
            fault.expect("a wait fails by a fault")
        })
    }

    fn next(&mut self) -> Option<Completion> {
        while self.steps > 0 {
            if self.host.signalled() {
                self.ecb.poll_pending();
            }
            if let Some(completion) =
                self.ecb.with_notifications_blocked(|source| source.kernel.next_done())
            {
                return Some(completion);
            }
            let event = self.pop()?;
            self.steps -= 1;
            // SAFETY: the event is one of this block's, which come from its kernel; the handler put
            // it into one of the queues, and it was taken once.
            let decoded = |source: &mut RingSource<R>| unsafe { source.kernel.decode(raw(event)) };
            if let Some(completion) = self.ecb.with_notifications_blocked(decoded) {
                return Some(completion);
            }
        }
        None
    }

    fn reap(&mut self) {
        if self.delivery != Delivery::Ps1 {
            self.ecb.handle_events();
        }
    }
}

impl<R: Ring + 'static> Drop for SendKernel<R> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<R: Ring + 'static> SendKernel<R> {
    /// Decodes events not consumed, so that operations complete and connections are closed. Then ends the ring, which
    /// discards what it completes meanwhile: listeners may go on accepting.
    fn end(&mut self) {
        let SendKernel { ecb, new, others, host, watched, .. } = self;
        // An interruption in between would deliver events that cannot be decoded after the end.
        ecb.in_one_section(|ecb| {
            // Lowering it needs no handler.
            let _ = ecb.set_notify(Groups::NONE);
            ecb.set_deliver(Groups::ALL);
            ecb.with_notifications_blocked(|source| source.ends = true);
            loop {
                ecb.handle_events();
                let Ok(event) = new.pop().or_else(|_| others.pop()) else { break };
                // SAFETY: as in `next`.
                let decoded =
                    |source: &mut RingSource<R>| unsafe { source.kernel.decode(raw(event)) };
                let completion = ecb.with_notifications_blocked(decoded);
                if let Some(Outcome::Accepted(socket)) = completion.map(|done| done.outcome) {
                    host.close_unused(socket);
                }
            }
            ecb.with_notifications_blocked(|source| source.kernel.finish());
        });
        for (fd, _) in watched.drain(..) {
            // Another descriptor of the listener may stay open. If this fails, nothing was enabled.
            let _ = host.disable_sigio(fd);
        }
    }
}
