//! The gate between an application and what interrupts it (SEND 3.2 to 3.4).
//!
//! The kernel of the thesis looks at the block at every return to user mode. Here a signal handler
//! looks, and what it can't do at that moment it leaves as *pending*: whoever opens the gate again,
//! by leaving a critical section or by raising a mask, looks in its place. So no notification is
//! lost, and none of this enters the kernel but one case: a signal that found notification off has
//! blocked itself, and is unblocked when the mask is raised.

use std::cell::Cell;
use std::mem;
use std::ops::Range;
use std::panic::{self, Location};
use std::process;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
};
use std::thread;

use shared_ring::Process;

use crate::context::Context;
use crate::per_thread::PerThread;
use crate::posts::PostQueue;
use crate::signals;
use crate::{Error, EventControl, Group, Groups};

/// One past the highest signal number.
pub(crate) const SIGNAL_COUNT: usize = 65;

/// The gate of each thread that has one.
static CURRENT: PerThread = PerThread::new();

thread_local! {
    /// Nothing. But where this crate is in a library that was loaded by dlopen(3), what a thread stores in it
    /// gets its place with this, and not when a handler panics, which counts panics.
    static TOUCHED: Cell<bool> = const { Cell::new(false) };
}

/// Whether what concerns the whole process was done.
static IS_SET_UP: AtomicBool = AtomicBool::new(false);

/// A child of fork(2) shares rings and timers with its parent, whose events they are. Here it leaves the
/// signals to it; the rest is seen from the process that a gate belongs to.
extern "C" fn forked() {
    signals::leave_to_parent();
    // SAFETY: a gate stays where it is while it is installed.
    if let Some(gate) = unsafe { CURRENT.get::<Gate>().as_ref() } {
        gate.unmask();
    }
}

/// Has a panic in a signal handler end the process before the panic hook runs: it takes locks, such as that of
/// the standard error output, which the interrupted code may hold. A hook that is set later, and does not
/// call the one that it replaces, runs.
fn guard_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // SAFETY: as in `forked`.
        let gate = unsafe { CURRENT.get::<Gate>().as_ref() };
        if gate.is_some_and(|gate| !gate.block.regs().is_null()) {
            // What the hook would have written, but for the message, whose form takes memory.
            let file = info.location().map_or("an unknown file", Location::file);
            abort_on_violation_in("a handler must not panic", file);
        }
        before(info);
    }));
}

/// After so many uses it is seen whether the signal of notification was blocked from outside.
const RECHECK_INTERVAL: u32 = 64;

/// What interrupts a thread, and what holds it off.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) block: EventControl,
    /// How many critical sections the thread is in. While it is in one, nothing interrupts.
    critical: AtomicU32,
    /// Something came that was not looked at.
    pending: AtomicBool,
    /// The signal has blocked itself.
    masked: AtomicBool,
    /// Code that must not be interrupted.
    section: [AtomicUsize; 2],
    /// Groups delivered, of which the application was not told.
    unnotified: AtomicU32,
    /// Groups that wait undelivered.
    waiting: AtomicU32,
    /// There was no room to take in or deliver everything.
    left: AtomicBool,
    /// Groups of event types for which the signal of notification is sent.
    signalled: AtomicU32,
    /// Signals that came, and how often.
    signals: AtomicU64,
    counts: [AtomicU32; SIGNAL_COUNT],
    /// How many events were put into the buffer, and, for each group, how many when the last of it was.
    put: AtomicU64,
    last: [AtomicU64; Group::COUNT as usize],
    /// How many uses may pass before it is seen whether the signal was blocked from outside. More than
    /// [`RECHECK_INTERVAL`] as long as it has not blocked itself, so that nobody can have found it blocked.
    uses_until_recheck: AtomicU32,
    hooks: Hooks,
    /// The pointer by which it was installed, null when it is not.
    installed: AtomicPtr<Gate>,
    posts: Arc<PostQueue>,
    counters: Counters,
    process: Process,
}

/// What is behind the gate, by functions that know its type. They are given the pointer by which the
/// gate was installed, and called only while it is closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hooks {
    /// Takes in what has come and delivers what the mask allows.
    pub(crate) deliver: unsafe fn(*const Gate, Groups),
    /// Calls the handler; returns whether it is to be called again while there are events.
    pub(crate) handle: unsafe fn(*const Gate) -> bool,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        struct Counters { $($name: AtomicU64,)* }

        /// What has happened at a thread's control block so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Signals that interrupted the thread, each one entry into the kernel and one return.
    interrupts,
    /// Of those, the ones that came in a critical section and were left for its end.
    deferred,
    /// Of those, the ones that found notification off and blocked the signal.
    masked,
    /// Times the signal was unblocked because a mask was raised: one system call each.
    unmasked,
    /// Times it was unblocked lest an older mask had blocked it again: one system call each.
    mask_rechecks,
    /// Calls of the event handler.
    notifications,
    /// Events put into the buffer.
    delivered,
    /// Times the buffer was full while events waited.
    overflows,
}

fn add(counter: &AtomicU64, n: u64) {
    // One thread writes; a signal handler in between has put everything back when it returns.
    counter.fetch_add(n, Ordering::Relaxed);
}

/// A critical section of the calling thread, by its flag. It ends when this is dropped, and what
/// came meanwhile is looked at then.
#[derive(Debug)]
pub(crate) struct Section<'a>(&'a Gate);

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Gate {
    pub(crate) fn new(block: EventControl, hooks: Hooks, posts: Arc<PostQueue>) -> Self {
        Gate {
            block,
            critical: AtomicU32::new(0),
            pending: AtomicBool::new(false),
            masked: AtomicBool::new(false),
            section: [AtomicUsize::new(0), AtomicUsize::new(0)],
            unnotified: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            left: AtomicBool::new(false),
            signalled: AtomicU32::new(0),
            signals: AtomicU64::new(0),
            counts: [const { AtomicU32::new(0) }; SIGNAL_COUNT],
            put: AtomicU64::new(0),
            last: [const { AtomicU64::new(0) }; Group::COUNT as usize],
            uses_until_recheck: AtomicU32::new(u32::MAX),
            hooks,
            installed: AtomicPtr::new(ptr::null_mut()),
            posts,
            counters: Counters::default(),
            process: Process::current(),
        }
    }

    /// Makes this the gate of the calling thread, or none.
    ///
    /// # Safety
    /// It stays where it is until another takes its place.
    pub(crate) unsafe fn install(gate: *const Gate) -> Result<(), Error> {
        // While a thread panics, its hook can't be changed.
        if !thread::panicking() && !IS_SET_UP.swap(true, Ordering::Relaxed) {
            guard_panics();
            // SAFETY: `forked` does what may be done in a child of fork(2).
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        }
        TOUCHED.set(true);
        CURRENT.set(gate)?;
        // SAFETY: by the caller's promise it is there.
        unsafe { (*gate).installed.store(gate.cast_mut(), Ordering::Relaxed) };
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Takes this away from the calling thread, if it has it.
    pub(crate) fn uninstall(&self) {
        self.installed.store(ptr::null_mut(), Ordering::Relaxed);
        if ptr::eq(CURRENT.get(), self) {
            // There is a place for it, so it can't fail.
            let _ = CURRENT.set(ptr::null::<Gate>());
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Whether the calling thread has one, of this process.
    pub(crate) fn is_installed() -> bool {
        // SAFETY: a gate stays where it is while it is installed.
        unsafe { CURRENT.get::<Gate>().as_ref() }.is_some_and(Gate::is_of_this_process)
    }

    /// Whether it is not that of a process from which this one was forked.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counters.counts()
    }

    /// Begins a critical section.
    #[inline]
    pub(crate) fn enter(&self) -> Section<'_> {
        let depth = self.critical.load(Ordering::Relaxed);
        self.critical.store(depth + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Section(self)
    }

    #[inline]
    fn leave(&self) {
        let depth = self.critical.load(Ordering::Relaxed);
        if depth > 1 {
            self.critical.store(depth - 1, Ordering::Relaxed);
        } else {
            self.open();
        }
    }

    /// Opens the gate. What was left for now is looked at before, and again for as long as more
    /// comes in between.
    #[inline]
    fn open(&self) {
        loop {
            compiler_fence(Ordering::SeqCst);
            self.critical.store(0, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            // From here on an interrupt looks by itself. One that came before is seen now.
            if !self.pending.load(Ordering::Relaxed) {
                return;
            }
            self.critical.store(1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            self.deliver_and_notify(None);
        }
    }

    /// Has the gate looked at when it opens.
    pub(crate) fn mark_pending(&self) {
        self.pending.store(true, Ordering::Relaxed);
    }

    /// The application knows what was delivered.
    pub(crate) fn clear_unnotified(&self) {
        self.unnotified.store(0, Ordering::Relaxed);
    }

    /// Sets the mask of notification. Raising it looks at what has come since it was lowered.
    #[inline]
    pub(crate) fn set_notify(&self, groups: Groups) {
        self.block.set_notify(groups);
        compiler_fence(Ordering::SeqCst);
        if self.block.has_events() {
            // What the application has left in the buffer.
            self.add_unnotified(groups);
        }
        if !groups.is_empty() {
            self.note_use();
        }
        self.check_after_raise(groups);
    }

    /// Sets the mask of delivery. Raising it delivers what waits.
    #[inline]
    pub(crate) fn set_deliver(&self, groups: Groups) {
        self.block.set_deliver(groups);
        compiler_fence(Ordering::SeqCst);
        self.check_after_raise(groups);
    }

    /// Whether raising a mask to `groups` leaves anything to be done.
    #[inline]
    fn check_after_raise(&self, groups: Groups) {
        let left = self.unnotified.load(Ordering::Relaxed) | self.waiting.load(Ordering::Relaxed);
        let masked = self.masked.load(Ordering::Relaxed);
        if groups.intersects(Groups::from_bits(left)) || masked {
            self.deliver_pending(groups);
        }
    }

    #[cold]
    fn deliver_pending(&self, groups: Groups) {
        let section = self.enter();
        let signalled = Groups::from_bits(self.signalled.load(Ordering::Relaxed));
        if self.block.notify().intersects(signalled & groups) {
            self.unmask();
        }
        self.mark_pending();
        drop(section);
    }

    /// Lets the signal through again. One that waits comes at once, and finds the gate closed.
    pub(crate) fn unmask(&self) {
        if self.masked.swap(false, Ordering::Relaxed) {
            add(&self.counters.unmasked, 1);
            signals::unblock_notification();
        }
    }

    /// Whoever restores a mask of signals that was found while the signal had blocked itself blocks it again
    /// (pthread_sigmask(3), `SIG_SETMASK`), and nothing tells of that. So it is unblocked now and then.
    #[inline]
    pub(crate) fn note_use(&self) {
        match self.uses_until_recheck.load(Ordering::Relaxed) {
            0 => self.recheck_mask(),
            left => self.uses_until_recheck.store(left - 1, Ordering::Relaxed),
        }
    }

    /// Lets the signal through, if it may have been blocked from outside.
    #[cold]
    pub(crate) fn recheck_mask(&self) {
        let may_be_blocked = self.uses_until_recheck.load(Ordering::Relaxed) <= RECHECK_INTERVAL;
        if may_be_blocked && !self.masked.load(Ordering::Relaxed) && self.is_of_this_process() {
            self.uses_until_recheck.store(RECHECK_INTERVAL, Ordering::Relaxed);
            add(&self.counters.mask_rechecks, 1);
            signals::unblock_notification();
        }
    }

    /// Which groups the signal of notification is for.
    pub(crate) fn set_signalled(&self, groups: Groups) {
        self.signalled.store(groups.bits(), Ordering::Relaxed);
    }

    /// Sets the code that must not be interrupted.
    pub(crate) fn set_section(&self, code: Range<usize>) {
        self.section[0].store(code.start, Ordering::Relaxed);
        self.section[1].store(code.end, Ordering::Relaxed);
    }

    fn is_in_section(&self, context: &Context<'_>) -> bool {
        let [from, to] = &self.section;
        let at = context.instruction();
        at.is_some_and(|at| {
            (from.load(Ordering::Relaxed)..to.load(Ordering::Relaxed)).contains(&at)
        })
    }

    /// Notes a signal that is an event.
    pub(crate) fn note_signal(&self, number: usize) {
        self.counts[number].fetch_add(1, Ordering::Relaxed);
        self.signals.fetch_or(1 << (number - 1), Ordering::Relaxed);
    }

    /// Whether signals came.
    pub(crate) fn has_signals(&self) -> bool {
        self.signals.load(Ordering::Relaxed) != 0
    }

    /// Hands over the signals that came, with how often each did.
    pub(crate) fn take_signals(&self, mut each: impl FnMut(usize, u32)) {
        let mut seen = self.signals.swap(0, Ordering::Relaxed);
        while seen != 0 {
            let number = seen.trailing_zeros() as usize + 1;
            seen &= seen - 1;
            // One that came since is counted with these, and has left its mark again.
            if let times @ 1.. = self.counts[number].swap(0, Ordering::Relaxed) {
                each(number, times);
            }
        }
    }

    /// The instruction that the handler which runs has interrupted.
    pub(crate) fn interrupted_at(&self) -> Option<usize> {
        let regs = self.block.regs();
        // SAFETY: it is set only while the signal handler to which the context was given runs.
        (!regs.is_null()).then(|| unsafe { Context::from_raw(regs) }.instruction())?
    }

    /// A signal has interrupted the thread: the entry of everything preemptive.
    fn interrupt(&self, mut context: Context<'_>) {
        add(&self.counters.interrupts, 1);
        self.pending.store(true, Ordering::Relaxed);
        if self.critical.load(Ordering::Relaxed) != 0 || self.is_in_section(&context) {
            add(&self.counters.deferred, 1);
            return;
        }
        self.critical.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.block.set_regs(context.as_raw());
        self.deliver_and_notify(Some(&mut context));
        self.block.set_regs(ptr::null_mut());
        self.open();
        if !self.masked.load(Ordering::Relaxed) {
            // What came meanwhile may have had the mask raised again.
            context.unblock(signals::NOTIFICATION);
        }
    }

    /// Looks at what has come: delivers it, and tells the application if it wants to be told. The
    /// gate is closed.
    fn deliver_and_notify(&self, context: Option<&mut Context<'_>>) {
        self.pending.store(false, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.deliver();
        let mut again = false;
        while self.block.has_handler()
            && self.block.has_events()
            && (self.has_unnotified() || (again && self.is_on()))
        {
            self.unnotified.store(0, Ordering::Relaxed);
            again = self.handle();
            // What it has used up makes room for what waits.
            if self.left.load(Ordering::Relaxed) {
                self.deliver();
            }
        }
        let signalled = Groups::from_bits(self.signalled.load(Ordering::Relaxed));
        let wanted = self.block.has_handler() && self.block.notify().intersects(signalled);
        match context {
            Some(context) if !wanted => {
                // Nobody wants to be interrupted, so it is enough that this happened once.
                context.block(signals::NOTIFICATION);
                self.masked.store(true, Ordering::Relaxed);
                self.uses_until_recheck.store(RECHECK_INTERVAL, Ordering::Relaxed);
                add(&self.counters.masked, 1);
            }
            // The handler may have raised the mask.
            Some(context) => {
                context.unblock(signals::NOTIFICATION);
                self.masked.store(false, Ordering::Relaxed);
            }
            None if wanted => self.unmask(),
            None => {}
        }
    }

    fn is_on(&self) -> bool {
        !self.block.notify().is_empty()
    }

    fn has_unnotified(&self) -> bool {
        let unnotified = Groups::from_bits(self.unnotified.load(Ordering::Relaxed));
        self.holds(unnotified & self.block.notify())
    }

    /// Whether the buffer holds an event of any of these groups: whether the last that was put in has not
    /// been taken out, as those before it are taken first.
    fn holds(&self, mut groups: Groups) -> bool {
        let taken = self.put.load(Ordering::Relaxed) - u64::from(self.block.held());
        while let Some(group) = groups.first() {
            if self.last[usize::from(group.number())].load(Ordering::Relaxed) > taken {
                return true;
            }
            groups = groups - group.into();
        }
        false
    }

    /// An event was put into the buffer. The gate is closed.
    #[inline]
    pub(crate) fn note_put(&self, group: Group) {
        let put = self.put.load(Ordering::Relaxed) + 1;
        self.put.store(put, Ordering::Relaxed);
        self.last[usize::from(group.number())].store(put, Ordering::Relaxed);
    }

    /// The buffer is full. That is so, for this group, as long as it holds what it holds now. The gate is
    /// closed.
    pub(crate) fn note_full(&self, group: Group) {
        let put = self.put.load(Ordering::Relaxed);
        self.last[usize::from(group.number())].store(put, Ordering::Relaxed);
    }

    /// Takes in what has come, and delivers what the masks allow. The gate is closed.
    fn deliver(&self) {
        let mask = self.block.deliver() | self.block.notify();
        let gate = self.installed.load(Ordering::Relaxed).cast_const();
        if gate.is_null() {
            return;
        }
        // SAFETY: this is the thread's gate, and closed.
        unsafe { (self.hooks.deliver)(gate, mask) };
    }

    /// Notes groups that were delivered.
    pub(crate) fn add_unnotified(&self, groups: Groups) {
        // An interrupt may add to them, too, when a mask is raised.
        self.unnotified.fetch_or(groups.bits(), Ordering::Relaxed);
    }

    /// Notes what a delivery has done and left.
    pub(crate) fn note_delivery(
        &self,
        delivered: u32,
        waiting: Groups,
        left: bool,
        overflow: bool,
    ) {
        self.left.store(left, Ordering::Relaxed);
        add(&self.counters.delivered, delivered.into());
        add(&self.counters.overflows, overflow.into());
        self.waiting.store(waiting.bits(), Ordering::Relaxed);
    }

    pub(crate) fn note_notification(&self) {
        add(&self.counters.notifications, 1);
    }

    fn handle(&self) -> bool {
        let gate = self.installed.load(Ordering::Relaxed).cast_const();
        if gate.is_null() || !self.is_of_this_process() {
            return false;
        }
        let rule = Rule("a handler must not panic");
        // SAFETY: this is the thread's gate, and closed.
        let again = unsafe { (self.hooks.handle)(gate) };
        mem::forget(rule);
        again
    }
}

/// Ends the process when a rule is broken by unwinding out of where this lives.
struct Rule(&'static str);

impl Drop for Rule {
    fn drop(&mut self) {
        abort_on_violation(self.0);
    }
}

/// Ends the process with the rule that was broken. It may be called in a signal handler.
pub(crate) fn abort_on_violation(rule: &str) -> ! {
    end_process(&["send-core: a rule was broken: ", rule, "\n"])
}

/// The same, and the source file in which that was.
fn abort_on_violation_in(rule: &str, file: &str) -> ! {
    end_process(&["send-core: a rule was broken: ", rule, "\nsend-core: in ", file, "\n"])
}

fn end_process(parts: &[&str]) -> ! {
    for part in parts {
        // SAFETY: `part` is memory to be read.
        unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
    }
    process::abort()
}

/// What every signal of this crate comes to, on the thread that it interrupts.
pub(crate) fn interrupted(signal: i32, context: Context<'_>) {
    // SAFETY: a gate stays where it is while it is installed.
    let gate = unsafe { CURRENT.get::<Gate>().as_ref() };
    match gate.filter(|gate| gate.is_of_this_process()) {
        Some(gate) => {
            if signal != signals::NOTIFICATION {
                if signals::owner(signal) != gate.posts.thread() {
                    return signals::forward(signal);
                }
                gate.note_signal(signal as usize);
                gate.posts.wake_if_asleep();
            }
            gate.interrupt(context);
        }
        None if signal == signals::NOTIFICATION => {}
        None => signals::forward(signal),
    }
}
