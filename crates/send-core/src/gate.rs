//! The gate between an application and what interrupts it (SEND 3.2 to 3.4).
//!
//! The thesis' kernel checks the block at every return to user mode. Here a signal handler does.
//! Work it cannot do at that moment it leaves *pending*: the code that reopens the gate, by leaving
//! a critical section or raising a mask, performs it. So no notification is lost. Only one case
//! enters the kernel: a signal that found notification off has blocked itself, and is unblocked
//! when the mask is raised.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{self, Location};
use std::process;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
};
use std::thread;

use shared_ring::author::Process;

use crate::context::Context;
use crate::notification;
use crate::per_thread::PerThread;
use crate::posts::PostQueue;
use crate::signals;
use crate::{Error, EventControl, Group, Groups};

/// One past the highest signal number.
pub(crate) const SIGNAL_COUNT: usize = 65;

/// The gate of each thread that has one.
static CURRENT: PerThread = PerThread::new();

thread_local! {
    /// Unused. If this crate is in a library loaded by dlopen(3), accessing it allocates the
    /// thread's storage for the library. Otherwise, a panicking handler would do that when it
    /// counts panics.
    static STORAGE: Cell<bool> = const { Cell::new(false) };
}

/// The setup of the process was done.
static IS_SET_UP: AtomicBool = AtomicBool::new(false);

/// A child of fork(2) shares rings and timers with its parent, which receives their events. This
/// restores the signals in the child; other code checks the process that a gate belongs to.
extern "C" fn in_child_of_fork() {
    signals::restore_in_child();
    // SAFETY: a gate stays where it is while it is installed.
    if let Some(gate) = unsafe { CURRENT.get::<Gate>().as_ref() } {
        gate.unmask();
    }
}

/// Installs a panic hook that aborts the process if a signal handler panics. The previous hook does
/// not run then, as it takes locks that the interrupted code may hold, such as that of standard
/// error. A hook that is set later without calling this one does run.
fn guard_panics() {
    let previous_hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // SAFETY: as in `in_child_of_fork`.
        let gate = unsafe { CURRENT.get::<Gate>().as_ref() };
        if gate.is_some_and(|gate| !gate.block.regs().is_null()) {
            // The hook's output without the message, as formatting it allocates.
            let file = info.location().map_or("an unknown file", Location::file);
            abort_on_violation_in("a handler must not panic", file);
        }
        previous_hook(info);
    }));
}

/// Number of uses after which the notification signal is unblocked, in case other code blocked it.
const RECHECK_INTERVAL: u32 = 64;

/// State that decides whether a thread may be interrupted.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) block: EventControl,
    /// Nesting depth of critical sections. While it is above 0, nothing interrupts.
    critical: AtomicU32,
    /// Events may have arrived that were not processed.
    pending: AtomicBool,
    /// The notification signal has blocked itself.
    masked: AtomicBool,
    /// Address range of code that must not be interrupted.
    section: [AtomicUsize; 2],
    /// Groups delivered without notification of the application.
    unnotified: AtomicU32,
    /// Groups with undelivered events.
    waiting: AtomicU32,
    /// Not everything could be collected or delivered for lack of space.
    has_backlog: AtomicBool,
    /// Groups for which the notification signal is sent.
    signalled: AtomicU32,
    /// Signals received, and their numbers.
    signals: AtomicU64,
    counts: [AtomicU32; SIGNAL_COUNT],
    /// Number of events put into the buffer, and its value when each group's last event was put.
    put_count: AtomicU64,
    last_put: [AtomicU64; Group::COUNT as usize],
    /// Number of uses until the signal is unblocked in case other code blocked it. Above
    /// [`RECHECK_INTERVAL`] and constant until the signal first blocks itself, as no other code can
    /// have saved it as blocked.
    uses_until_recheck: AtomicU32,
    hooks: Hooks,
    /// The pointer with which it was installed, or null.
    installed: AtomicPtr<Gate>,
    posts: Arc<PostQueue>,
    counters: AtomicCounters,
    process: Process,
}

/// Functions on the data behind the gate, which know its type. They get the pointer with which the
/// gate was installed, and are called only while it is closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hooks {
    /// Collects events and delivers those that the mask permits.
    pub(crate) deliver: unsafe fn(*const Gate, Groups),
    /// Calls the handler. Returns whether to call it again while there are events.
    pub(crate) handle: unsafe fn(*const Gate) -> bool,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        struct AtomicCounters { $($name: AtomicU64,)* }

        /// Event counters of a thread's control block.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl AtomicCounters {
            fn load(&self) -> Counters {
                Counters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Signals that interrupted the thread; each enters and leaves the kernel once.
    interrupts,
    /// Interrupts that arrived in a critical section and were deferred to its end.
    deferred,
    /// Interrupts that found notification off and blocked the signal.
    masked,
    /// Times the signal was unblocked because a mask was raised, at one system call each.
    unmasked,
    /// Times it was unblocked in case a restored signal mask blocked it, at one system call each.
    mask_rechecks,
    /// Calls of the event handler.
    notifications,
    /// Events put into the buffer.
    delivered,
    /// Times the buffer was full while events were queued.
    overflows,
}

fn add(counter: &AtomicU64, n: u64) {
    // One thread writes; a signal handler in between returns before the thread continues.
    counter.fetch_add(n, Ordering::Relaxed);
}

/// A critical section of the calling thread, by its flag. Dropping it ends the section and
/// processes events that arrived meanwhile.
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
            has_backlog: AtomicBool::new(false),
            signalled: AtomicU32::new(0),
            signals: AtomicU64::new(0),
            counts: [const { AtomicU32::new(0) }; SIGNAL_COUNT],
            put_count: AtomicU64::new(0),
            last_put: [const { AtomicU64::new(0) }; Group::COUNT as usize],
            uses_until_recheck: AtomicU32::new(u32::MAX),
            hooks,
            installed: AtomicPtr::new(ptr::null_mut()),
            posts,
            counters: AtomicCounters::default(),
            process: Process::current(),
        }
    }

    /// Installs a gate for the calling thread, in place of any other.
    ///
    /// # Safety
    /// The gate must not move until another takes its place or it is uninstalled.
    pub(crate) unsafe fn install(gate: *const Gate) -> Result<(), Error> {
        // A panicking thread cannot change the hook.
        if !thread::panicking() && !IS_SET_UP.swap(true, Ordering::Relaxed) {
            guard_panics();
            // SAFETY: `in_child_of_fork` does only what is permitted in a child of fork(2).
            unsafe { libc::pthread_atfork(None, None, Some(in_child_of_fork)) };
        }
        STORAGE.set(true);
        CURRENT.set(gate)?;
        // SAFETY: the caller guarantees that it exists.
        unsafe { (*gate).installed.store(gate.cast_mut(), Ordering::Relaxed) };
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Removes this gate from the calling thread, if installed there.
    pub(crate) fn uninstall(&self) {
        self.installed.store(ptr::null_mut(), Ordering::Relaxed);
        if ptr::eq(CURRENT.get(), self) {
            // The key exists, so this cannot fail.
            let _ = CURRENT.set(ptr::null::<Gate>());
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Returns whether the calling thread has a gate of this process.
    pub(crate) fn is_installed() -> bool {
        // SAFETY: a gate does not move while it is installed.
        unsafe { CURRENT.get::<Gate>().as_ref() }.is_some_and(Gate::is_of_this_process)
    }

    /// Returns false in a child of fork(2) if the gate belongs to the parent.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters.load()
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

    /// Opens the gate. Processes pending events first, and repeats while more arrive.
    #[inline]
    fn open(&self) {
        loop {
            compiler_fence(Ordering::SeqCst);
            self.critical.store(0, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            // From here on, an interrupt processes events. An earlier one is observed now.
            if !self.pending.load(Ordering::Relaxed) {
                return;
            }
            self.critical.store(1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            self.deliver_and_notify(None);
        }
    }

    /// Makes the code that opens the gate process events.
    pub(crate) fn mark_pending(&self) {
        self.pending.store(true, Ordering::Relaxed);
    }

    /// Marks all delivered events as known to the application.
    pub(crate) fn clear_unnotified(&self) {
        self.unnotified.store(0, Ordering::Relaxed);
    }

    /// Sets `notify`. Raising it processes events that arrived while it was lowered.
    #[inline]
    pub(crate) fn set_notify(&self, groups: Groups) {
        self.block.set_notify(groups);
        compiler_fence(Ordering::SeqCst);
        if self.block.has_events() {
            // Events that the application left in the buffer.
            self.add_unnotified(groups);
        }
        if !groups.is_empty() {
            self.note_use();
        }
        self.check_after_raise(groups);
    }

    /// Sets `deliver`. Raising it delivers queued events.
    #[inline]
    pub(crate) fn set_deliver(&self, groups: Groups) {
        self.block.set_deliver(groups);
        compiler_fence(Ordering::SeqCst);
        self.check_after_raise(groups);
    }

    /// Processes events if raising a mask to `groups` permits any.
    #[inline]
    fn check_after_raise(&self, groups: Groups) {
        let affected =
            self.unnotified.load(Ordering::Relaxed) | self.waiting.load(Ordering::Relaxed);
        let masked = self.masked.load(Ordering::Relaxed);
        if groups.intersects(Groups::from_bits(affected)) || masked {
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

    /// Unblocks the signal. A pending one arrives at once, while the gate is closed.
    pub(crate) fn unmask(&self) {
        if self.masked.swap(false, Ordering::Relaxed) {
            add(&self.counters.unmasked, 1);
            notification::unblock();
        }
    }

    /// Code that restores a signal mask saved while the signal had blocked itself blocks it again
    /// (pthread_sigmask(3), `SIG_SETMASK`), which cannot be detected. So it is unblocked
    /// periodically.
    #[inline]
    pub(crate) fn note_use(&self) {
        match self.uses_until_recheck.load(Ordering::Relaxed) {
            0 => self.recheck_mask(),
            // The signal has never blocked itself. An interrupt that blocks it sets the number.
            remaining if remaining > RECHECK_INTERVAL => {}
            remaining => self.uses_until_recheck.store(remaining - 1, Ordering::Relaxed),
        }
    }

    /// Unblocks the signal, if other code may have blocked it.
    #[cold]
    pub(crate) fn recheck_mask(&self) {
        let may_be_blocked = self.uses_until_recheck.load(Ordering::Relaxed) <= RECHECK_INTERVAL;
        if may_be_blocked && !self.masked.load(Ordering::Relaxed) && self.is_of_this_process() {
            self.uses_until_recheck.store(RECHECK_INTERVAL, Ordering::Relaxed);
            add(&self.counters.mask_rechecks, 1);
            notification::unblock();
        }
    }

    /// Sets the groups for which the notification signal is sent.
    pub(crate) fn set_signalled(&self, groups: Groups) {
        self.signalled.store(groups.bits(), Ordering::Relaxed);
    }

    /// Sets the address range of code that must not be interrupted.
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

    /// Records a signal that is an event.
    pub(crate) fn note_signal(&self, number: usize) {
        self.counts[number].fetch_add(1, Ordering::Relaxed);
        self.signals.fetch_or(1 << (number - 1), Ordering::Relaxed);
    }

    /// Returns whether signals are recorded.
    pub(crate) fn has_signals(&self) -> bool {
        self.signals.load(Ordering::Relaxed) != 0
    }

    /// Takes the recorded signals, each with its count.
    pub(crate) fn take_signals(&self, mut each: impl FnMut(usize, u32)) {
        let mut received = self.signals.swap(0, Ordering::Relaxed);
        while received != 0 {
            let number = received.trailing_zeros() as usize + 1;
            received &= received - 1;
            // A signal that arrived since is included in the count, and has set its bit again.
            if let count @ 1.. = self.counts[number].swap(0, Ordering::Relaxed) {
                each(number, count);
            }
        }
    }

    /// Returns the address of the instruction that the current handler interrupted.
    pub(crate) fn instruction_pointer(&self) -> Option<usize> {
        let regs = self.block.regs();
        // SAFETY: it is set only while the signal handler that got this context runs.
        (!regs.is_null()).then(|| unsafe { Context::from_raw(regs) }.instruction())?
    }

    /// Handles a signal that interrupted the thread.
    fn interrupt(&self, mut context: Context<'_>) {
        add(&self.counters.interrupts, 1);
        self.pending.store(true, Ordering::Relaxed);
        if self.critical.load(Ordering::Relaxed) != 0 || self.is_in_section(&context) {
            add(&self.counters.deferred, 1);
            return;
        }
        self.critical.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // Opening the gate may call the handler too, and may unblock the signal, which interrupts this.
        let outer = self.block.regs();
        self.block.set_regs(context.as_raw());
        self.deliver_and_notify(Some(&mut context));
        self.open();
        self.block.set_regs(outer);
        if !self.masked.load(Ordering::Relaxed) {
            // Events that arrived meanwhile may have caused the mask to be raised.
            context.unblock(notification::NOTIFICATION);
        }
    }

    /// Polls: delivers events, and calls the handler if `notify` permits. The gate is closed.
    fn deliver_and_notify(&self, context: Option<&mut Context<'_>>) {
        self.pending.store(false, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.deliver();
        let mut call_again = false;
        while self.block.has_handler()
            && self.block.has_events()
            && (self.has_unnotified() || (call_again && self.notify_is_raised()))
        {
            self.unnotified.store(0, Ordering::Relaxed);
            call_again = self.handle();
            // The events taken have freed buffer space.
            if self.has_backlog.load(Ordering::Relaxed) {
                self.deliver();
            }
        }
        let signalled = Groups::from_bits(self.signalled.load(Ordering::Relaxed));
        let notifies = self.block.has_handler() && self.block.notify().intersects(signalled);
        match context {
            Some(context) if !notifies => {
                // No group interrupts, so one interrupt is enough: block the signal.
                context.block(notification::NOTIFICATION);
                self.masked.store(true, Ordering::Relaxed);
                self.uses_until_recheck.store(RECHECK_INTERVAL, Ordering::Relaxed);
                add(&self.counters.masked, 1);
            }
            // The handler may have raised the mask.
            Some(context) => {
                context.unblock(notification::NOTIFICATION);
                self.masked.store(false, Ordering::Relaxed);
            }
            None if notifies => self.unmask(),
            None => {}
        }
    }

    fn notify_is_raised(&self) -> bool {
        !self.block.notify().is_empty()
    }

    fn has_unnotified(&self) -> bool {
        let unnotified = Groups::from_bits(self.unnotified.load(Ordering::Relaxed));
        self.contains_any(unnotified & self.block.notify())
    }

    /// Returns whether the buffer holds an event of these groups. That is so if the last one put
    /// has not been taken, as earlier ones are taken first.
    fn contains_any(&self, mut groups: Groups) -> bool {
        let taken_count = self.put_count.load(Ordering::Relaxed) - u64::from(self.block.held());
        while let Some(group) = groups.first() {
            if self.last_put[usize::from(group.number())].load(Ordering::Relaxed) > taken_count {
                return true;
            }
            groups = groups - group.into();
        }
        false
    }

    /// Records an event put into the buffer. The gate is closed.
    #[inline]
    pub(crate) fn note_put(&self, group: Group) {
        let put = self.put_count.load(Ordering::Relaxed) + 1;
        self.put_count.store(put, Ordering::Relaxed);
        self.last_put[usize::from(group.number())].store(put, Ordering::Relaxed);
    }

    /// Records a full buffer as an event of this group. The gate is closed.
    pub(crate) fn note_full(&self, group: Group) {
        let put = self.put_count.load(Ordering::Relaxed);
        self.last_put[usize::from(group.number())].store(put, Ordering::Relaxed);
    }

    /// Collects events and delivers those that the masks permit. The gate is closed.
    fn deliver(&self) {
        let mask = self.block.deliver() | self.block.notify();
        let gate = self.installed.load(Ordering::Relaxed).cast_const();
        if gate.is_null() {
            return;
        }
        // SAFETY: this is the thread's gate, and it is closed.
        unsafe { (self.hooks.deliver)(gate, mask) };
    }

    /// Records delivered groups.
    pub(crate) fn add_unnotified(&self, groups: Groups) {
        // An interrupt may change them too, when a mask is raised.
        self.unnotified.fetch_or(groups.bits(), Ordering::Relaxed);
    }

    /// Records the result of a delivery.
    pub(crate) fn note_delivery(
        &self,
        delivered: u32,
        waiting: Groups,
        has_backlog: bool,
        overflow: bool,
    ) {
        self.has_backlog.store(has_backlog, Ordering::Relaxed);
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
        // SAFETY: this is the thread's gate, and it is closed.
        unsafe { (self.hooks.handle)(gate) }
    }
}

/// Aborts the process if unwinding drops it.
pub(crate) struct AbortOnUnwind(pub(crate) &'static str);

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        abort_on_violation(self.0);
    }
}

/// Aborts the process because of a rule violation. May be called in a signal handler.
pub(crate) fn abort_on_violation(rule: &str) -> ! {
    end_process(&["send-core: rule violated: ", rule, "\n"])
}

/// Aborts as above, and also reports the source file.
fn abort_on_violation_in(rule: &str, file: &str) -> ! {
    end_process(&["send-core: rule violated: ", rule, "\nsend-core: in ", file, "\n"])
}

fn end_process(parts: &[&str]) -> ! {
    for part in parts {
        // SAFETY: `part` is readable memory.
        unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
    }
    process::abort()
}

/// Handles a signal of this crate, on the thread that it interrupts.
pub(crate) fn interrupted(signal: i32, context: Context<'_>) {
    // SAFETY: a gate does not move while it is installed.
    let gate = unsafe { CURRENT.get::<Gate>().as_ref() };
    match gate.filter(|gate| gate.is_of_this_process()) {
        Some(gate) => {
            if signal != notification::NOTIFICATION {
                if signals::owner(signal) != gate.posts.thread() {
                    return signals::forward(signal);
                }
                gate.note_signal(signal as usize);
                gate.posts.wake_if_asleep();
            }
            gate.interrupt(context);
        }
        None if signal == notification::NOTIFICATION => {}
        None => signals::forward(signal),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use shared_ring::Waker;

    use super::*;

    unsafe fn deliver(_: *const Gate, _: Groups) {}

    unsafe fn handle(_: *const Gate) -> bool {
        false
    }

    #[test]
    fn signal_that_never_blocked_itself_was_unblocked_after_many_uses() {
        let posts = Arc::new(PostQueue::new(1, 0, Waker::new().unwrap()));
        let gate = Gate::new(EventControl::new(1), Hooks { deliver, handle }, posts);
        // As after almost 2^32 uses.
        gate.uses_until_recheck.store(RECHECK_INTERVAL + 1, Ordering::Relaxed);
        for _ in 0..200 {
            gate.note_use();
        }
        assert_eq!(gate.counters().mask_rechecks, 0);
    }
}
