//! Control block operations: those of evtctl(), the system call of the thesis (SEND 3.2).
//!
//! ```
//! use send_core::control_block::{Actions, ControlBlock, Group, Groups, Trigger};
//! use send_core::{Action, EventType};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! let mut send = ControlBlock::define(100)?;
//! let count = Arc::new(AtomicU64::new(0));
//! let handler = Actions::new().on(EventType::USER, Action::Count(count.clone()));
//! send.set_handler(handler, Trigger::Level);
//! send.set_group(EventType::USER, Some(Group::FIRST))?;
//! send.set_notify(Groups::ALL)?;
//! // From now on an event posted by another thread interrupts this one.
//! let poster = send.poster();
//! std::thread::spawn(move || poster.post(7)).join().unwrap()?;
//! assert_eq!(count.load(Ordering::Relaxed), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::block::EventControl;
pub use crate::gate::Counters;
pub use crate::group::{Group, Groups};
pub use crate::handler::{Actions, Events, Handler, SetFlag, Trigger};
pub use crate::limits::{MAX_EVENTS, MAX_SOCKETS};
pub use crate::source::{EventSink, NoSource, Source};

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use crate::block::Deliverer;
use crate::gate::{self, AbortOnUnwind, Gate, Hooks, SIGNAL_COUNT};
use crate::group::Assignment;
use crate::posts::PostQueue;
use crate::queue::{EventQueue, HolderId};
use crate::signals;
use crate::source::Origins;
use crate::stack::Stack;
use crate::timer::Timer;
use crate::{Error, Event, EventType, Poster, code, context};

/// Types whose events interrupt by the notification signal. Signals interrupt by themselves.
const SIGNALLED: [EventType; 5] =
    [EventType::ACCEPT, EventType::DATA, EventType::TIMER, EventType::USER, EventType::DONE];

/// The calling thread's event control block with its queue, source and handler.
///
/// A thread has at most one. It is bound to its thread.
pub struct ControlBlock<S: Source = NoSource> {
    /// Boxed, and freed on drop. The signal handler has the same pointer.
    control: NonNull<Control<S>>,
    stack: Option<Stack>,
    /// Makes the type `!Send`.
    thread: PhantomData<*mut ()>,
}

/// State of the signal handler: the gate, and data that is accessed only while the gate is closed.
/// The gate is the first field, so that a pointer to it is also one to the whole.
#[repr(C)]
struct Control<S> {
    gate: Gate,
    state: UnsafeCell<State<S>>,
}

impl<S: Source> fmt::Debug for ControlBlock<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gate().fmt(f)
    }
}

struct State<S> {
    deliverer: Deliverer,
    queue: EventQueue,
    groups: Assignment,
    /// Holders of the signals that are events.
    signals: [Option<HolderId>; SIGNAL_COUNT],
    posts: Arc<PostQueue>,
    source: S,
    origins: Origins,
    handler: Option<(Box<dyn Handler>, Trigger)>,
    timer: Option<(Timer, HolderId)>,
    /// The buffer was full at the last delivery.
    was_full: bool,
}

impl ControlBlock<NoSource> {
    /// DEF_ECB: creates a block for signals and posts, whose buffer holds `events` events.
    ///
    /// # Errors
    /// Returns an error if the thread has a block, the size is invalid, or a system call fails.
    pub fn define(events: u32) -> Result<Self, Error> {
        ControlBlock::with_source(events, NoSource::new()?)
    }
}

impl<S: Source> ControlBlock<S> {
    /// DEF_ECB with a source of further events.
    ///
    /// # Errors
    /// As [`ControlBlock::define`].
    pub fn with_source(events: u32, source: S) -> Result<Self, Error> {
        if events == 0 || events > MAX_EVENTS {
            return Err(Error::BufferSize(events));
        }
        if Gate::is_installed() {
            return Err(Error::AlreadyDefined);
        }
        let stack = Stack::new()?;
        let block = EventControl::new(events);
        block.set_stack(stack.top());
        let thread = gettid().as_raw_nonzero().get();
        let posts = Arc::new(PostQueue::new(events, thread, source.waker()));
        let mut queue = EventQueue::new(events);
        let origins = Origins::new(&mut queue, source.origins());
        let state = State {
            deliverer: Deliverer::default(),
            queue,
            groups: Assignment::default(),
            signals: [const { None }; SIGNAL_COUNT],
            posts,
            source,
            origins,
            handler: None,
            timer: None,
            was_full: false,
        };
        let hooks = Hooks { deliver: deliver::<S>, handle: handle::<S> };
        let gate = Gate::new(block, hooks, Arc::clone(&state.posts));
        let control = Box::new(Control { gate, state: UnsafeCell::new(state) });
        let control = NonNull::from(Box::leak(control));
        let ecb = ControlBlock { control, stack: Some(stack), thread: PhantomData };
        // SAFETY: the gate is the first part of what `control` points to, which is freed only after
        // the gate was uninstalled.
        unsafe { Gate::install(control.as_ptr().cast()) }?;
        signals::begin_notification(thread)?;
        Ok(ecb)
    }

    fn gate(&self) -> &Gate {
        // SAFETY: it exists until `self` is dropped, and there is no mutable reference to it.
        unsafe { &(*self.control.as_ptr()).gate }
    }

    /// Returns an error in a child of fork(2), where the block is a copy of the parent's.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.gate().is_of_this_process() { Ok(()) } else { Err(Error::InChild) }
    }

    /// Calls `f` with the gate closed, and then polls for events that arrived meanwhile.
    fn with_gate_closed<R>(&self, f: impl FnOnce(&Gate, &mut State<S>) -> R) -> R {
        let section = self.gate().enter();
        // SAFETY: the gate is closed, so no handler uses it. `f` gets only parts of the block, so
        // it cannot call this again.
        let state = unsafe { &mut *(*self.control.as_ptr()).state.get() };
        let result = f(self.gate(), state);
        drop(section);
        result
    }

    /// Returns the shared block.
    pub fn block(&self) -> &EventControl {
        &self.gate().block
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.gate().counters()
    }

    /// Sets the handler. Without one, nothing interrupts.
    pub fn set_handler(&mut self, handler: impl Handler, trigger: Trigger) {
        let (mut former, boxed) = (None, Box::new(handler));
        self.with_gate_closed(|gate, state| {
            former = state.handler.replace((boxed, trigger));
            gate.block.set_handler(handle::<S> as *mut ());
        });
        // Outside the critical section, deallocation is safe.
        drop(former);
    }

    /// SETGROUP: assigns an event type to a group, or disables it with `None`. Queued events move
    /// with it, or are dropped.
    ///
    /// # Errors
    /// Returns an error if another part of the program handles the signal, if it is the event of
    /// another thread, or in a child of fork(2).
    pub fn set_group(&mut self, kind: EventType, group: Option<Group>) -> Result<(), Error> {
        self.check_process()?;
        let thread = gettid().as_raw_nonzero().get();
        self.with_gate_closed(|gate, state| {
            let number = kind.as_signal().map(|signal| signal as usize);
            let claimed = number.is_some_and(|number| state.signals[number].is_some());
            if let Some(number) = number.filter(|_| group.is_some() && !claimed) {
                signals::claim(number as i32, thread)?;
                state.signals[number] = Some(state.queue.allocate());
            }
            if let Some(former) = state.groups.set(kind, group) {
                state.queue.reassign(kind, former, group);
            }
            if let Some(number) = number.filter(|_| group.is_none() && claimed)
                && let Some(holder) = state.signals[number].take()
            {
                signals::restore(number as i32);
                state.queue.release(holder);
            }
            state.source.regrouped(kind);
            gate.set_signalled(state.signalled());
            gate.mark_pending();
            Ok(())
        })
    }

    /// Starts a periodic event of type [`TIMER`](EventType::TIMER), or stops it with `None`. Events
    /// that were not taken keep their count.
    ///
    /// # Errors
    /// Returns an error if the period is zero, if a system call fails, or in a child of fork(2).
    pub fn set_timer(&mut self, period: Option<Duration>) -> Result<(), Error> {
        if period.is_some_and(|period| period.is_zero()) {
            return Err(Error::ZeroPeriod);
        }
        self.check_process()?;
        let thread = gettid().as_raw_nonzero().get();
        self.with_gate_closed(|_, state| {
            if state.timer.is_none() {
                state.timer = Some((Timer::new(thread)?, state.queue.allocate()));
            }
            state.timer.as_mut().map_or(Ok(()), |(timer, _)| timer.set(period))
        })
    }

    /// DEF_CRITSECT: sets the address range of code that nothing interrupts (SEND 3.4). Functions
    /// called by this code are not included. At its end, the code must call
    /// [`poll_pending`](ControlBlock::poll_pending).
    ///
    /// # Errors
    /// Returns an error if the range is empty or not in the program's code.
    pub fn set_critical_section(&mut self, code: Range<usize>) -> Result<(), Error> {
        if code.is_empty() {
            return Err(Error::EmptySection);
        }
        if !context::IS_SUPPORTED {
            return Err(Error::RangesUnsupported);
        }
        if !code::contains(&code)? {
            return Err(Error::OutsideProgram(code.start, code.end));
        }
        self.with_gate_closed(|gate, _| gate.set_section(code));
        Ok(())
    }

    /// Calls `f` in a critical section. Nothing interrupts it; events are processed at its end. `f` must not replace the
    /// source: posts would wake the one before.
    pub fn with_notifications_blocked<R>(&mut self, f: impl FnOnce(&mut S) -> R) -> R {
        self.with_gate_closed(|_, state| f(&mut state.source))
    }

    /// Calls `f` with this block in a critical section that encloses those of its calls. `f` must not replace the
    /// block.
    #[cfg(feature = "ring")]
    pub(crate) fn in_one_section<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        // SAFETY: it exists until `self` is dropped, which `f` does not do, and there is no mutable reference to it.
        let section = unsafe { &(*self.control.as_ptr()).gate }.enter();
        let result = f(self);
        drop(section);
        result
    }

    /// Changes the events that the source reports, and polls for those that are already ready.
    #[cfg(feature = "ring")]
    pub(crate) fn configure<R>(&mut self, f: impl FnOnce(&mut S, &mut EventSink<'_>) -> R) -> R {
        self.with_gate_closed(|gate, state| {
            let State { queue, groups, source, origins, .. } = state;
            let result = f(source, &mut EventSink::new(queue, groups, *origins));
            gate.set_signalled(state.signalled());
            gate.mark_pending();
            result
        })
    }

    /// Calls `f` with the source.
    #[cfg(feature = "ring")]
    pub(crate) fn query<R>(&self, f: impl FnOnce(&S) -> R) -> R {
        self.with_gate_closed(|_, state| f(&state.source))
    }

    /// Delivers events and calls the handler, regardless of `notify` (figure 3.5, line 19).
    pub fn handle_events(&mut self) {
        self.gate().note_use();
        self.with_gate_closed(|gate, state| {
            state.source.maintain();
            let mask = gate.block.deliver() | gate.block.notify();
            deliver_and_handle(gate, state, mask);
        });
    }

    /// Runs a turn of the source, which sleeps until `until` if no event is queued. Then delivers
    /// the events that `mask` permits and calls the handler. Calls `is_busy` when the handler can
    /// no longer interrupt.
    #[cfg(feature = "ring")]
    pub(crate) fn turn(
        &mut self,
        mask: Groups,
        is_busy: impl FnOnce() -> bool,
        now: Instant,
        until: Option<Instant>,
    ) -> Result<(), Error> {
        self.gate().note_use();
        self.with_gate_closed(|gate, state| {
            let has_events = gate.block.has_events() || state.queue.waiting().intersects(mask);
            state.source.wait(if has_events || is_busy() { Some(now) } else { until })?;
            deliver_and_handle(gate, state, mask);
            gate.clear_unnotified();
            Ok(())
        })
    }

    /// Polls for events, as the thesis' kernel does at each return to user mode: delivers them, and
    /// calls the handler if `notify` permits. Makes a system call only if the notification signal
    /// had blocked itself before, because a restored signal mask may have blocked it again.
    pub fn poll_pending(&self) {
        self.gate().recheck_mask();
        let section = self.gate().enter();
        self.gate().mark_pending();
        drop(section);
    }

    /// Sets `deliver`: the groups whose events may be put into the buffer. Makes no system call,
    /// except those of a source with events to deliver.
    pub fn set_deliver(&self, groups: Groups) {
        self.gate().set_deliver(groups);
    }

    /// Sets `notify`: the groups whose events interrupt, and are delivered regardless of `deliver`.
    /// Raising it makes a system call if an event arrived while it was lowered. After the first
    /// such event, one call in 64 makes another one.
    ///
    /// # Errors
    /// Returns [`Error::NoHandler`] if no handler is set.
    pub fn set_notify(&self, groups: Groups) -> Result<(), Error> {
        if !groups.is_empty() && !self.block().has_handler() {
            return Err(Error::NoHandler);
        }
        self.gate().set_notify(groups);
        Ok(())
    }

    /// WAIT_FOR_EVENT: sleeps until the buffer holds an event, or until a time. Returns whether it
    /// holds one. Meanwhile `mask` replaces `deliver`, and `notify` has no effect. It does not
    /// sleep if the buffer is not empty. The handler is not called for the events while `notify` is
    /// lowered; otherwise, the next event may make it take all of them.
    ///
    /// # Errors
    /// Returns an error if the source fails, and in a child of fork(2).
    pub fn wait(&mut self, mask: Groups, until: Option<Instant>) -> Result<bool, Error> {
        self.check_process()?;
        let result = self.with_gate_closed(|gate, state| sleep(gate, state, mask, until));
        self.gate().recheck_mask();
        result
    }

    /// Takes the oldest event from the buffer. If it is empty, polls for events that may be
    /// delivered. Makes no system call, except those of a source.
    pub fn next_event(&mut self) -> Option<Event> {
        self.with_gate_closed(|gate, state| {
            if !gate.block.has_events() {
                gate.note_use();
                state.source.maintain();
                let mask = gate.block.deliver() | gate.block.notify();
                collect_and_deliver(gate, state, mask);
            }
            // SAFETY: the gate is closed.
            let event = unsafe { gate.block.take() };
            if gate.block.has_events() {
                // The remaining events are for the handler, if `notify` permits.
                gate.mark_pending();
            }
            event
        })
    }

    /// Returns a handle that posts events to this block from any thread.
    pub fn poster(&self) -> Poster {
        self.with_gate_closed(|_, state| Poster::from(&state.posts))
    }
}

impl<S: Source> Drop for ControlBlock<S> {
    fn drop(&mut self) {
        let mut signals = [const { None }; SIGNAL_COUNT];
        self.with_gate_closed(|gate, state| {
            state.posts.close();
            gate.block.set_notify(Groups::NONE);
            signals = mem::replace(&mut state.signals, [const { None }; SIGNAL_COUNT]);
        });
        let claimed = signals.iter().enumerate().filter(|(_, held)| held.is_some());
        // In a child of fork(2), the child's own block may have claimed them again.
        for (number, _) in claimed.filter(|_| self.gate().is_of_this_process()) {
            signals::restore(number as i32);
        }
        // From now on the signal handler finds no gate.
        self.gate().uninstall();
        self.gate().unmask();
        // The stack goes last, because the timer and the source may still interrupt.
        let stack = self.stack.take();
        // SAFETY: it was a box, and no signal handler can reach it any more.
        drop(unsafe { Box::from_raw(self.control.as_ptr()) });
        drop(stack);
    }
}

impl<S: Source> State<S> {
    /// Returns the groups of events for which the notification signal is sent.
    fn signalled(&self) -> Groups {
        let types = SIGNALLED.into_iter().filter_map(|kind| self.groups.get(kind));
        types.fold(self.source.groups(), |all, group| all | group.into())
    }
}

/// Sleeps until the buffer holds an event that `mask` permits, or until a time. Unless it holds one
/// already, polls the source at least once.
fn sleep<S: Source>(
    gate: &Gate,
    state: &mut State<S>,
    mask: Groups,
    until: Option<Instant>,
) -> Result<bool, Error> {
    let mut polled = false;
    loop {
        if !gate.block.has_events() {
            collect_and_deliver(gate, state, mask);
        }
        let has_expired = || until.is_some_and(|at| at <= Instant::now());
        if gate.block.has_events() || (polled && has_expired()) {
            gate.clear_unnotified();
            return Ok(gate.block.has_events());
        }
        polled = true;
        state.posts.set_sleeping(true);
        // Posts that arrived before this flag was set would not wake the thread.
        let posts = !state.posts.is_empty() && state.queue.has_room();
        let is_idle = !posts && !gate.has_signals();
        let due = state.timer.as_ref().and_then(|(timer, _)| timer.due());
        let until = [until, due].into_iter().flatten().min();
        let result = if is_idle { state.source.wait(until) } else { Ok(()) };
        state.posts.set_sleeping(false);
        result?;
    }
}

/// Collects events and puts those that `mask` permits into the buffer.
fn collect_and_deliver<S: Source>(gate: &Gate, state: &mut State<S>, mask: Groups) {
    if !gate.is_of_this_process() {
        return;
    }
    let State {
        deliverer, queue, groups, signals, posts, source, origins, timer, was_full, ..
    } = state;
    let (mut all, mut count, mut full) = (Groups::NONE, 0, false);
    loop {
        gate.take_signals(|number, times| {
            if let Some(holder) = &signals[number] {
                let kind = EventType::of_handled(number as i32);
                let count = times.min(u16::MAX.into()) as u16;
                let event = Event { count, ..Event::new(kind) };
                EventSink::new(queue, groups, *origins).generate(*holder, event);
            }
        });
        let mut sink = EventSink::new(queue, groups, *origins);
        if let Some((timer, holder)) = timer
            && let count @ 1.. = timer.elapsed()
        {
            sink.generate(*holder, Event { count, ..Event::new(EventType::TIMER) });
        }
        while sink.has_room()
            && let Some(value) = posts.take()
        {
            sink.post(Event { value, ..Event::new(EventType::USER) });
        }
        source.collect(&mut sink);
        let before = count;
        while !full && let Some((group, event)) = queue.first(mask) {
            full = deliverer.is_full(&gate.block);
            if full {
                break;
            }
            queue.delivered(group);
            if let Some(event) = source.revalidate(event) {
                // SAFETY: the gate is closed, and this is the block's deliverer. It has room.
                unsafe { deliverer.put(&gate.block, event, group) };
                gate.note_put(group);
                all = all | group.into();
                count += 1;
            }
        }
        // Delivered events have freed queue space.
        let has_more = !posts.is_empty() || source.queued() > 0;
        if full || count == before || !has_more {
            break;
        }
    }
    // Reported once, until an event was taken from the buffer.
    let overflow = full && (count > 0 || !*was_full);
    *was_full = full;
    let is_enabled = |group: &Group| overflow && mask.contains(*group);
    if let Some(group) = groups.get(EventType::OVERFLOW).filter(is_enabled) {
        gate.note_full(group);
        all = all | group.into();
    }
    gate.block.set_queued(queue.len() + posts.len() + source.queued());
    let has_backlog = queue.len() > 0 || !posts.is_empty() || source.queued() > 0;
    gate.note_delivery(count, queue.waiting(), has_backlog, overflow);
    gate.add_unnotified(all);
}

/// Delivers the events that `mask` permits and calls the handler, until it takes none.
fn deliver_and_handle<S: Source>(gate: &Gate, state: &mut State<S>, mask: Groups) {
    loop {
        collect_and_deliver(gate, state, mask);
        let before = gate.block.tail();
        if gate.block.has_events() {
            call_handler(gate, state);
        }
        if gate.block.tail() == before {
            return;
        }
    }
}

/// Calls the handler, if set. Returns whether to call it again while there are events.
fn call_handler<S: Source>(gate: &Gate, state: &mut State<S>) -> bool {
    let Some((handler, trigger)) = &mut state.handler else { return false };
    let before = gate.block.tail();
    gate.note_notification();
    let guard = AbortOnUnwind("a handler must not panic");
    handler.handle(&mut Events::new(gate));
    mem::forget(guard);
    let level = *trigger == Trigger::Level;
    if level && gate.block.has_events() && gate.block.tail() == before {
        gate::abort_on_violation("a level-triggered handler must take at least one event");
    }
    level
}

/// [`Hooks::deliver`].
unsafe fn deliver<S: Source>(gate: *const Gate, mask: Groups) {
    let control = gate.cast::<Control<S>>();
    // SAFETY: the gate is the first part of a `Control` of this type, with which it was installed.
    // It is closed, so the other parts are not in use.
    let (gate, state) = unsafe { (&(*control).gate, &mut *(*control).state.get()) };
    collect_and_deliver(gate, state, mask);
}

/// [`Hooks::handle`].
unsafe fn handle<S: Source>(gate: *const Gate) -> bool {
    let control = gate.cast::<Control<S>>();
    // SAFETY: as in `deliver`.
    let (gate, state) = unsafe { (&(*control).gate, &mut *(*control).state.get()) };
    call_handler(gate, state)
}
