//! Core specialization: syscall threads get cores of their own while load and idle cores justify it (sections 3
//! and 6.1: "dynamic core specialization").
//!
//! The heartbeat looks at windows of 64 beats. In a busy beat, a syscall thread is active and the owner awake. The
//! threads leave the core of the pages' owner after two windows in a row with at least three busy beats of four, and no
//! more runnable threads than cores that the process may use. Then the caches of this core keep the program, those of
//! the other cores the kernel. The threads may use all cores again after two windows in a row with less than one busy
//! beat of four, or with more runnable threads than cores. They may also use them when the heartbeat finds nothing to
//! do. The heartbeat does not count itself, so with two cores a busy owner and one busy thread have a core each. The
//! owner is never moved. If it runs on another core at the end of a window, the threads leave that one instead. While
//! the owner has a core, one thread fewer is active, so that it is still one for each core.
//! With one core there is nothing to give: the owner and the threads take turns, in batches. The core of an owner that
//! waits would be idle. [`Specialization::WhileBusy`] ignores whether the owner is awake, and how many threads of the
//! machine are runnable.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::thread::CpuSet;

use super::processors;
use crate::specialization::Specialization;

/// Beats of a window, and from how many busy ones on cores are given, and kept.
const WINDOW: u32 = 64;
const GIVE_FROM: u32 = 48;
const KEEP_FROM: u32 = 16;

/// Windows in a row that decide.
const WINDOWS: u32 = 2;

/// The observations of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Busy beats.
    pub(crate) active: u32,
    /// Threads of the machine that run or could, without the heartbeat that looks.
    pub(crate) runnable: usize,
    /// Cores that the process may use.
    pub(crate) cores: usize,
}

/// Decides from one window to the next.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    is_given: bool,
    /// Windows in a row that speak for a change.
    for_change: u32,
}

impl Policy {
    /// Returns whether the threads have cores of their own from now on, if that changes.
    pub(crate) fn decide(&mut self, window: Window) -> Option<bool> {
        let spare = window.runnable <= window.cores;
        let wanted = match self.is_given {
            true => window.active >= KEEP_FROM && spare,
            false => window.active >= GIVE_FROM && spare && window.cores > 1,
        };
        self.for_change = if wanted == self.is_given { 0 } else { self.for_change + 1 };
        (self.for_change == WINDOWS).then(|| self.change(wanted))
    }

    /// Takes the cores back at once. Returns whether they were given.
    pub(crate) fn take_back(&mut self) -> bool {
        let was_given = self.is_given;
        self.change(false);
        was_given
    }

    fn change(&mut self, given: bool) -> bool {
        (self.is_given, self.for_change) = (given, 0);
        given
    }
}

/// Which cores the syscall threads may use.
#[derive(Debug)]
pub(crate) struct Cores {
    /// Those of the thread that registered the pages; `None` if there is one, or they are not known.
    allowed: Option<CpuSet>,
    specialization: Specialization,
    /// The core on which the owner has last submitted.
    owner: AtomicU32,
    /// The number of changes in the upper half; in the lower half the core that is left to the owner plus one, or 0.
    given: AtomicU64,
}

/// The state of a syscall thread. It begins with the cores of the thread that has started it, which may be fewer.
#[derive(Debug)]
pub(crate) struct Applied(u64);

impl Default for Applied {
    fn default() -> Self {
        Applied(u64::MAX)
    }
}

impl Cores {
    pub(crate) fn new(specialization: Specialization) -> Self {
        let is_off = specialization == Specialization::Off;
        let allowed = processors::allowed().filter(|all| !is_off && all.count() > 1);
        Cores { allowed, specialization, owner: AtomicU32::new(0), given: AtomicU64::new(0) }
    }

    /// Returns whether there are cores to give.
    pub(crate) fn are_several(&self) -> bool {
        self.allowed.is_some()
    }

    /// Returns whether a beat with an active thread is busy, as the owner sleeps or does not.
    pub(crate) fn may_be_given(&self, owner_sleeps: bool) -> bool {
        !owner_sleeps || self.specialization == Specialization::WhileBusy
    }

    /// Returns how many threads may be active, of so many at most: one for each core that they may use.
    #[inline]
    pub(crate) fn active_threads(&self, max: usize) -> usize {
        let given = self.given.load(Ordering::Relaxed) as u32;
        match self.of_threads(given) {
            Some(cores) if given != 0 => max.min(cores.count() as usize),
            _ => max,
        }
    }

    /// Returns the cores of the threads, if of those that are allowed `owner - 1` is left to the owner.
    fn of_threads(&self, owner: u32) -> Option<CpuSet> {
        let mut cores = self.allowed?;
        if let Some(core) = owner.checked_sub(1) {
            cores.unset(core as usize);
        }
        Some(cores)
    }

    /// Notes where the owner runs.
    #[inline]
    pub(crate) fn note_owner(&self) {
        if self.allowed.is_some() {
            self.owner.store(processors::current(), Ordering::Relaxed);
        }
    }

    /// Gives the threads cores of their own, or takes them back.
    pub(crate) fn set_given(&self, given: bool) {
        let core = if given { u64::from(self.owner.load(Ordering::Relaxed)) + 1 } else { 0 };
        let changes = (self.given.load(Ordering::Relaxed) >> 32) + 1;
        self.given.store(changes << 32 | core, Ordering::Relaxed);
    }

    /// Leaves the core on which the owner runs now to it, if the threads have cores of their own.
    pub(crate) fn follow_owner(&self) {
        let given = self.given.load(Ordering::Relaxed) as u32;
        if given != 0 && given - 1 != self.owner.load(Ordering::Relaxed) {
            self.set_given(true);
        }
    }

    /// Moves the calling syscall thread, if something has changed.
    #[inline]
    pub(crate) fn apply(&self, applied: &mut Applied) {
        let given = self.given.load(Ordering::Relaxed);
        if given != applied.0 {
            applied.0 = given;
            self.move_thread(given as u32);
        }
    }

    #[cold]
    fn move_thread(&self, owner: u32) {
        if let Some(cores) = self.of_threads(owner) {
            processors::move_to(&cores);
        }
    }
}

/// Looks at the beats of the heartbeat.
#[derive(Debug, Default)]
pub(crate) struct Beats {
    policy: Policy,
    beats: u32,
    active: u32,
}

impl Beats {
    /// Notes a beat. Returns whether it was the last of a window.
    pub(crate) fn beat(&mut self, is_active: bool) -> bool {
        self.beats += 1;
        self.active += u32::from(is_active);
        self.beats == WINDOW
    }

    /// Ends a window, by a function that returns how many other threads are runnable. Returns the decision, if it is
    /// another one.
    pub(crate) fn end_window(
        &mut self,
        of: &Cores,
        runnable: impl FnOnce() -> Option<usize>,
    ) -> Option<bool> {
        let active = std::mem::take(&mut self.active);
        self.beats = 0;
        // Not those of this thread, which has begun with those of the owner.
        let cores = of.allowed.map_or(1, |cores| cores.count() as usize);
        let runnable = match of.specialization {
            Specialization::WhileBusy => 0,
            _ => runnable().unwrap_or(usize::MAX),
        };
        self.policy.decide(Window { active, runnable, cores })
    }

    /// The threads have nothing to do. Returns whether they had cores of their own.
    pub(crate) fn idle(&mut self) -> bool {
        (self.beats, self.active) = (0, 0);
        self.policy.take_back()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn window(active: u32, runnable: usize) -> Window {
        Window { active, runnable, cores: 4 }
    }

    #[test]
    fn cores_are_given_under_load_and_taken_back() {
        let mut policy = Policy::default();
        // One window does not decide.
        assert_eq!(policy.decide(window(64, 3)), None);
        assert_eq!(policy.decide(window(10, 3)), None);
        assert_eq!(policy.decide(window(48, 4)), None);
        assert_eq!(policy.decide(window(64, 4)), Some(true));
        // Less load keeps them, little does not.
        assert_eq!([20, 16, 15, 20, 15].map(|n| policy.decide(window(n, 4))), [None; 5]);
        assert_eq!(policy.decide(window(0, 4)), Some(false));
        assert!(!policy.take_back());
    }

    #[test]
    fn other_threads_that_could_run_take_the_cores_back() {
        let mut policy = Policy::default();
        assert_eq!([5, 5, 5].map(|n| policy.decide(window(64, n))), [None; 3]);
        assert_eq!([4, 4].map(|n| policy.decide(window(64, n))), [None, Some(true)]);
        assert_eq!(
            [5, 4, 5, 5].map(|n| policy.decide(window(64, n))),
            [None, None, None, Some(false)]
        );
        assert_eq!([4, 4].map(|n| policy.decide(window(64, n))), [None, Some(true)]);
        assert!(policy.take_back() && !policy.take_back());
    }

    #[test]
    fn one_core_is_never_given() {
        let mut policy = Policy::default();
        let alone = Window { active: WINDOW, runnable: 1, cores: 1 };
        assert_eq!([alone; 9].map(|window| policy.decide(window)), [None; 9]);
    }

    /// Cores of a machine with so many, of which the owner has the first.
    fn cores_of(specialization: Specialization, count: usize) -> Cores {
        let mut allowed = CpuSet::new();
        (0..count).for_each(|core| allowed.set(core));
        Cores { allowed: Some(allowed), ..Cores::new(specialization) }
    }

    /// Ends windows in all of whose beats a thread was active.
    fn busy_windows(beats: &mut Beats, of: &Cores, runnable: usize) -> [Option<bool>; 2] {
        [(); 2].map(|()| {
            assert!((1..WINDOW).all(|_| !beats.beat(true)) && beats.beat(true));
            beats.end_window(of, || Some(runnable))
        })
    }

    #[test]
    fn busy_owner_and_thread_of_two_cores_had_no_core_each() {
        let cores = cores_of(Specialization::Adaptive, 2);
        let mut beats = Beats::default();
        // The owner and the thread.
        assert_eq!(busy_windows(&mut beats, &cores, 2), [None, Some(true)]);
        // One more.
        assert_eq!(busy_windows(&mut beats, &cores, 3), [None, Some(false)]);
        assert_eq!(busy_windows(&mut beats, &cores, 3), [None; 2]);
        // Unless the load is of no interest.
        let cores = cores_of(Specialization::WhileBusy, 2);
        assert_eq!(busy_windows(&mut beats, &cores, 100), [None, Some(true)]);
    }

    #[test]
    fn one_thread_for_each_core_that_is_left_is_active() {
        let cores = cores_of(Specialization::Adaptive, 4);
        cores.owner.store(2, Ordering::Relaxed);
        assert_eq!(cores.active_threads(usize::MAX), usize::MAX);
        cores.set_given(true);
        assert_eq!([1, 3, usize::MAX].map(|max| cores.active_threads(max)), [1, 3, 3]);
        let left = cores.of_threads(3).unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(|core| left.is_set(core)), [true, true, false, true, false]);
        cores.set_given(false);
        assert_eq!(cores.active_threads(usize::MAX), usize::MAX);
    }

    #[test]
    fn core_that_the_owner_had_left_was_still_left_to_it() {
        let cores = cores_of(Specialization::Adaptive, 4);
        let follow = |owner| {
            cores.owner.store(owner, Ordering::Relaxed);
            cores.follow_owner();
            cores.given.load(Ordering::Relaxed)
        };
        assert_eq!(follow(2), 0, "nothing is given");
        cores.set_given(true);
        let given = follow(2);
        assert_eq!(given as u32, 3);
        // The threads move only if something has changed.
        assert_eq!(follow(2), given);
        assert_eq!([0, 1, 0].map(|owner| follow(owner) as u32), [1, 2, 1]);
        cores.set_given(false);
        assert_eq!(follow(2) as u32, 0);
    }

    #[test]
    fn thread_leaves_the_core_of_the_owner_and_returns() {
        let cores = Cores::new(Specialization::Adaptive);
        let all = processors::allowed().unwrap();
        assert_eq!(cores.are_several(), all.count() > 1);
        cores.note_owner();
        let owner = cores.owner.load(Ordering::Relaxed) as usize;
        let mut applied = Applied::default();
        let mut used = || {
            cores.apply(&mut applied);
            processors::allowed().unwrap()
        };
        assert!(used() == all);
        cores.set_given(true);
        let left = used();
        // A single core is shared.
        let expected = if all.count() == 1 { (true, 1) } else { (false, all.count() - 1) };
        assert_eq!((left.is_set(owner), left.count()), expected);
        cores.set_given(false);
        assert!(used() == all);
    }

    #[test]
    fn beats_make_windows() {
        let mut beats = Beats::default();
        assert!((1..WINDOW).all(|_| !beats.beat(true)));
        assert!(beats.beat(false));
        assert_eq!(beats.active, WINDOW - 1);
        assert_eq!(beats.end_window(&cores_of(Specialization::WhileBusy, 2), || None), None);
        assert!((1..WINDOW).all(|_| !beats.beat(false)));
        assert!(!beats.idle());
    }
}
