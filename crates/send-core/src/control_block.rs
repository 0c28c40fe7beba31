//! A thread's use of events: what evtctl(), the system call of the thesis, does there (SEND 3.2).

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
use crate::gate::{self, Counts, Gate, Hooks, SIGNAL_COUNT};
use crate::group::Assignment;
use crate::posts::PostQueue;
use crate::queue::{EventQueue, HolderId};
use crate::signals;
use crate::source::{EventSink, NoSource, Origins};
use crate::stack::Stack;
use crate::timer::Timer;
use crate::{
    Error, Event, EventControl, EventType, Events, Group, Groups, Handler, Poster, Source, Trigger,
    code, context,
};

/// Types whose events interrupt by the signal of notification; signals interrupt by themselves.
const SIGNALLED: [EventType; 5] =
    [EventType::ACCEPT, EventType::DATA, EventType::TIMER, EventType::USER, EventType::DONE];

/// The event control block of the thread that made it, and all that goes with it.
///
/// A thread has one at most; it stays on its thread, and ends there.
pub struct ControlBlock<S: Source = NoSource> {
    /// Boxed, and given back at the end. A signal handler has the same pointer.
    control: NonNull<Control<S>>,
    stack: Option<Stack>,
    /// Bound to its thread.
    thread: PhantomData<*mut ()>,
}

/// What a signal handler finds: the gate, and behind it what may be touched only when it is closed.
/// The gate stands first, so that a pointer to it is one to the whole.
#[repr(C)]
struct Control<S> {
    gate: Gate,
    inside: UnsafeCell<Inside<S>>,
}

impl<S: Source> fmt::Debug for ControlBlock<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gate().fmt(f)
    }
}

struct Inside<S> {
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
    /// The buffer had no room when it was last tried.
    was_full: bool,
}

impl ControlBlock<NoSource> {
    /// DEF_ECB: makes a block whose buffer holds so many events, for signals and posts.
    ///
    /// # Errors
    /// When the thread has one, the buffer has no or too many places, or the system refuses.
    pub fn define(events: u32) -> Result<Self, Error> {
        ControlBlock::with_source(events, NoSource::new()?)
    }
}

impl<S: Source> ControlBlock<S> {
    /// DEF_ECB for the events of a source, too.
    ///
    /// # Errors
    /// As [`ControlBlock::define`].
    pub fn with_source(events: u32, source: S) -> Result<Self, Error> {
        if events == 0 || events > crate::MAX_EVENTS {
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
        let inside = Inside {
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
        let gate = Gate::new(block, hooks, Arc::clone(&inside.posts));
        let control = Box::new(Control { gate, inside: UnsafeCell::new(inside) });
        let control = NonNull::from(Box::leak(control));
        let ecb = ControlBlock { control, stack: Some(stack), thread: PhantomData };
        // SAFETY: the gate is the first part of what `control` points to, which is given back only
        // when another stands in its place.
        unsafe { Gate::install(control.as_ptr().cast()) }?;
        signals::begin_notification(thread)?;
        Ok(ecb)
    }

    fn gate(&self) -> &Gate {
        // SAFETY: it is there until `self` is dropped, and nobody has it to be changed.
        unsafe { &(*self.control.as_ptr()).gate }
    }

    /// In a child of fork(2) the block is a copy, and the parent's is meant.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.gate().is_of_this_process() { Ok(()) } else { Err(Error::InChild) }
    }

    /// Does something with the gate closed, and looks afterwards at what came meanwhile.
    fn inside<R>(&self, f: impl FnOnce(&Gate, &mut Inside<S>) -> R) -> R {
        let section = self.gate().enter();
        // SAFETY: the gate is closed, so no handler uses it; `f` can't come here again, as all that
        // it is given are parts.
        let inside = unsafe { &mut *(*self.control.as_ptr()).inside.get() };
        let result = f(self.gate(), inside);
        drop(section);
        result
    }

    /// The block.
    pub fn block(&self) -> &EventControl {
        &self.gate().block
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.gate().counts()
    }

    /// Sets the handler. Without one nothing interrupts.
    pub fn set_handler(&mut self, handler: impl Handler, trigger: Trigger) {
        let (mut former, boxed) = (None, Box::new(handler));
        self.inside(|gate, inside| {
            former = inside.handler.replace((boxed, trigger));
            gate.block.set_handler(handle::<S> as *mut ());
        });
        // Its memory is given back where that is safe.
        drop(former);
    }

    /// SETGROUP: puts a type of events into a group, or disables it with `None`. What waits goes
    /// along, or is dropped.
    ///
    /// # Errors
    /// When a signal is handled by another part of the program, or is another thread's event; and in a child
    /// of fork(2).
    pub fn set_group(&mut self, kind: EventType, group: Option<Group>) -> Result<(), Error> {
        self.check_process()?;
        let thread = gettid().as_raw_nonzero().get();
        self.inside(|gate, inside| {
            let number = kind.as_signal().map(|signal| signal as usize);
            let known = number.is_some_and(|number| inside.signals[number].is_some());
            if let Some(number) = number.filter(|_| group.is_some() && !known) {
                signals::claim(number as i32, thread)?;
                inside.signals[number] = Some(inside.queue.hold());
            }
            if let Some(former) = inside.groups.set(kind, group) {
                inside.queue.reassign(kind, former, group);
            }
            if let Some(number) = number.filter(|_| group.is_none() && known)
                && let Some(holder) = inside.signals[number].take()
            {
                signals::give_back(number as i32);
                inside.queue.release(holder);
            }
            inside.source.regrouped(kind);
            gate.set_signalled(inside.signalled());
            gate.mark_pending();
            Ok(())
        })
    }

    /// Has an event of the type [`TIMER`](EventType::TIMER) come again and again, or no more with
    /// `None`. What has not been taken counts on.
    ///
    /// # Errors
    /// When the period is zero, or the system refuses; and in a child of fork(2).
    pub fn set_timer(&mut self, every: Option<Duration>) -> Result<(), Error> {
        if every.is_some_and(|every| every.is_zero()) {
            return Err(Error::NoPeriod);
        }
        self.check_process()?;
        let thread = gettid().as_raw_nonzero().get();
        self.inside(|_, inside| {
            if inside.timer.is_none() {
                inside.timer = Some((Timer::new(thread)?, inside.queue.hold()));
            }
            inside.timer.as_mut().map_or(Ok(()), |(timer, _)| timer.set(every))
        })
    }

    /// DEF_CRITSECT: sets the code in which nothing interrupts (SEND 3.4), from its first byte to one
    /// past its last. It has to be all that runs there: what it calls is outside. Whoever leaves it
    /// calls [`poll_pending`](ControlBlock::poll_pending).
    ///
    /// # Errors
    /// When it is empty, or not in the program's code.
    pub fn set_critical_section(&mut self, code: Range<usize>) -> Result<(), Error> {
        if code.is_empty() {
            return Err(Error::EmptySection);
        }
        if !context::KNOWN {
            return Err(Error::NoRanges);
        }
        if !code::contains(&code)? {
            return Err(Error::OutsideProgram(code.start, code.end));
        }
        self.inside(|gate, _| gate.set_section(code));
        Ok(())
    }

    /// Does something in a critical section: nothing interrupts it. What came meanwhile is looked at
    /// when it ends.
    pub fn with_notifications_blocked<R>(&mut self, f: impl FnOnce(&mut S) -> R) -> R {
        self.inside(|_, inside| f(&mut inside.source))
    }

    /// Changes what the source tells of, and looks at what is to be told already.
    pub(crate) fn configure<R>(&mut self, f: impl FnOnce(&mut S, &mut EventSink<'_>) -> R) -> R {
        self.inside(|gate, inside| {
            let Inside { queue, groups, source, origins, .. } = inside;
            let result = f(source, &mut EventSink::new(queue, groups, *origins));
            gate.set_signalled(inside.signalled());
            gate.mark_pending();
            result
        })
    }

    /// Asks something of the source.
    pub(crate) fn ask<R>(&self, f: impl FnOnce(&S) -> R) -> R {
        self.inside(|_, inside| f(&inside.source))
    }

    /// Calls the handler for what the buffer holds, whatever `notify` says (figure 3.5, line 19).
    /// What has come and may be delivered is delivered first.
    pub fn handle_events(&mut self) {
        self.gate().note_use();
        self.inside(|gate, inside| {
            inside.source.maintain();
            let mask = gate.block.deliver() | gate.block.notify();
            deliver_and_handle(gate, inside, mask);
        });
    }

    /// Has the source take a turn, which sleeps if nothing is there, until a time; then delivers what
    /// `mask` allows, and calls the handler for it. Whether the handler has left something to be done is
    /// asked when it can't be called any more.
    pub(crate) fn turn(
        &mut self,
        mask: Groups,
        is_busy: impl FnOnce() -> bool,
        now: Instant,
        until: Option<Instant>,
    ) -> Result<(), Error> {
        self.gate().note_use();
        self.inside(|gate, inside| {
            let waits = gate.block.has_events() || inside.queue.waiting().intersects(mask);
            inside.source.wait(if waits || is_busy() { Some(now) } else { until })?;
            deliver_and_handle(gate, inside, mask);
            gate.clear_unnotified();
            Ok(())
        })
    }

    /// Looks at what has come, as the kernel of the thesis does at each return to the application:
    /// delivers it, and calls the handler if it is to be called. No system call, but one where the signal of
    /// notification has blocked itself before, lest an older mask of signals has blocked it again.
    pub fn poll_pending(&self) {
        self.gate().recheck_mask();
        let section = self.gate().enter();
        self.gate().mark_pending();
        drop(section);
    }

    /// Sets `deliver`: whose events may be put into the buffer. No system call, but those of a source that
    /// has something to deliver then.
    pub fn set_deliver(&self, groups: Groups) {
        self.gate().set_deliver(groups);
    }

    /// Sets `notify`: whose events interrupt, and are delivered whatever `deliver` says. No system
    /// call, but one when it is raised after an event has found it down, and for a thread to which that has
    /// happened one in 64 times.
    ///
    /// # Errors
    /// [`Error::NoHandler`] when there is nothing to call.
    pub fn set_notify(&self, groups: Groups) -> Result<(), Error> {
        if !groups.is_empty() && !self.block().has_handler() {
            return Err(Error::NoHandler);
        }
        self.gate().set_notify(groups);
        Ok(())
    }

    /// WAIT_FOR_EVENT: sleeps until the buffer holds an event, or until a time; whether it does then.
    /// While it sleeps `mask` stands for `deliver`, and `notify` for nothing. It does not sleep when
    /// the buffer is not empty, and the handler is not called for what it brings as long as `notify` is
    /// down; with it up, what comes next may have the handler take all there is.
    ///
    /// # Errors
    /// When the source can't be used any more, and in a child of fork(2).
    pub fn wait(&mut self, mask: Groups, until: Option<Instant>) -> Result<bool, Error> {
        self.check_process()?;
        let found = self.inside(|gate, inside| sleep(gate, inside, mask, until));
        self.gate().recheck_mask();
        found
    }

    /// Takes the oldest event out of the buffer. When that is empty it is looked whether something
    /// has come that may be delivered; no system call, but those of a source.
    pub fn next_event(&mut self) -> Option<Event> {
        self.inside(|gate, inside| {
            if !gate.block.has_events() {
                gate.note_use();
                inside.source.maintain();
                let mask = gate.block.deliver() | gate.block.notify();
                deliver_inside(gate, inside, mask);
            }
            // SAFETY: the gate is closed.
            let event = unsafe { gate.block.take() };
            if gate.block.has_events() {
                // What came with it is for the handler, if it is to be told.
                gate.mark_pending();
            }
            event
        })
    }

    /// Posts events to this block, from any thread.
    pub fn poster(&self) -> Poster {
        self.inside(|_, inside| Poster::from(&inside.posts))
    }
}

impl<S: Source> Drop for ControlBlock<S> {
    fn drop(&mut self) {
        let mut signals = [const { None }; SIGNAL_COUNT];
        self.inside(|gate, inside| {
            inside.posts.end();
            gate.block.set_notify(Groups::NONE);
            signals = mem::replace(&mut inside.signals, [const { None }; SIGNAL_COUNT]);
        });
        let held = signals.iter().enumerate().filter(|(_, held)| held.is_some());
        // In a child of fork(2) they may be its own again.
        for (number, _) in held.filter(|_| self.gate().is_of_this_process()) {
            signals::give_back(number as i32);
        }
        // What interrupts from now on finds nobody.
        self.gate().uninstall();
        self.gate().unmask();
        // The stack goes last, as long as the timer runs and the source is open.
        let stack = self.stack.take();
        // SAFETY: it was a box, and no handler knows of it any more.
        drop(unsafe { Box::from_raw(self.control.as_ptr()) });
        drop(stack);
    }
}

impl<S: Source> Inside<S> {
    /// Groups of events for which the signal of notification is sent.
    fn signalled(&self) -> Groups {
        let types = SIGNALLED.into_iter().filter_map(|kind| self.groups.get(kind));
        types.fold(self.source.groups(), |all, group| all | group.into())
    }
}

/// Sleeps until the buffer holds an event that `mask` allows, or until a time. The source is asked
/// once at least, unless there is one already.
fn sleep<S: Source>(
    gate: &Gate,
    inside: &mut Inside<S>,
    mask: Groups,
    until: Option<Instant>,
) -> Result<bool, Error> {
    let mut asked = false;
    loop {
        if !gate.block.has_events() {
            deliver_inside(gate, inside, mask);
        }
        let over = || until.is_some_and(|at| at <= Instant::now());
        if gate.block.has_events() || (asked && over()) {
            gate.clear_unnotified();
            return Ok(gate.block.has_events());
        }
        asked = true;
        inside.posts.set_sleeps(true);
        // What came before that was seen would wake nobody.
        let posts = !inside.posts.is_empty() && inside.queue.has_room();
        let quiet = !posts && !gate.has_signals();
        let due = inside.timer.as_ref().and_then(|(timer, _)| timer.due());
        let until = [until, due].into_iter().flatten().min();
        let waited = if quiet { inside.source.wait(until) } else { Ok(()) };
        inside.posts.set_sleeps(false);
        waited?;
    }
}

/// Takes in what has come, and puts into the buffer what `mask` allows.
fn deliver_inside<S: Source>(gate: &Gate, inside: &mut Inside<S>, mask: Groups) {
    if !gate.is_of_this_process() {
        return;
    }
    let Inside {
        deliverer, queue, groups, signals, posts, source, origins, timer, was_full, ..
    } = inside;
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
            && let count @ 1.. = timer.passed()
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
        // Room for more has come by what went.
        let more = !posts.is_empty() || source.queued() > 0;
        if full || count == before || !more {
            break;
        }
    }
    // Told once, until something has been taken out.
    let overflow = full && (count > 0 || !*was_full);
    *was_full = full;
    let told = |group: &Group| overflow && mask.contains(*group);
    if let Some(group) = groups.get(EventType::OVERFLOW).filter(told) {
        gate.note_full(group);
        all = all | group.into();
    }
    gate.block.set_queued(queue.len() + source.queued());
    let left = queue.len() > 0 || !posts.is_empty() || source.queued() > 0;
    gate.note_delivery(count, queue.waiting(), left, overflow);
    gate.add_unnotified(all);
}

/// Delivers what `mask` allows and calls the handler for it, until nothing is left or the handler
/// takes no more.
fn deliver_and_handle<S: Source>(gate: &Gate, inside: &mut Inside<S>, mask: Groups) {
    loop {
        deliver_inside(gate, inside, mask);
        let before = gate.block.tail();
        if gate.block.has_events() {
            call_handler(gate, inside);
        }
        if gate.block.tail() == before {
            return;
        }
    }
}

/// Calls the handler, if there is one; whether it is to be called while there are events.
fn call_handler<S: Source>(gate: &Gate, inside: &mut Inside<S>) -> bool {
    let Some((handler, trigger)) = &mut inside.handler else { return false };
    let before = gate.block.tail();
    gate.note_notification();
    handler.handle(&mut Events::new(gate));
    let level = *trigger == Trigger::Level;
    if level && gate.block.has_events() && gate.block.tail() == before {
        gate::abort_on_violation("a level-triggered handler has to use up at least one event");
    }
    level
}

/// [`Hooks::deliver`].
unsafe fn deliver<S: Source>(gate: *const Gate, mask: Groups) {
    let control = gate.cast::<Control<S>>();
    // SAFETY: the gate is the first part of a `Control` of this type, with which it was installed;
    // it is closed, so that the rest of it is not in use.
    let (gate, inside) = unsafe { (&(*control).gate, &mut *(*control).inside.get()) };
    deliver_inside(gate, inside, mask);
}

/// [`Hooks::handle`].
unsafe fn handle<S: Source>(gate: *const Gate) -> bool {
    let control = gate.cast::<Control<S>>();
    // SAFETY: as in `deliver`.
    let (gate, inside) = unsafe { (&(*control).gate, &mut *(*control).inside.get()) };
    call_handler(gate, inside)
}
