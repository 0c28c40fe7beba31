//! The heartbeat: user space is not notified when a thread blocks, so it looks for a thread that is in the same call as at
//! the last beat and does not run. It counts the thread as blocked, and lets another one take its page over. It also
//! repeats interruptions, ends the calls of threads that are gone, and decides whether the owner has a core of its own.

use std::sync::{Arc, PoisonError};
use std::thread;

use shared_ring::sync::Ordering;

use super::super::cores::Beats;
use super::super::tasks::MutexGuard;
use super::super::{interrupt, processors};
use super::{PageState, Pool, PoolState, STACK_BYTES, ThreadCall};
use crate::entry::Status;
use crate::page::ENTRIES;

/// Beats without an active thread, after which the heartbeat sleeps.
const IDLE_BEATS: u32 = 16;

/// Beats after which the heartbeat checks that the threads that it has found blocked exist, at the latest.
const BEATS_OF_CHECK: u32 = 1_024;

impl Pool {
    /// Ends the sleep of the heartbeat.
    pub(super) fn wake_heartbeat(&self, state: &mut PoolState) {
        if std::mem::take(&mut state.heartbeat_sleeps) {
            self.beat.notify_one();
        }
    }

    /// Returns whether the heartbeat runs, and starts it if it does not.
    pub(super) fn has_heartbeat(pool: &Arc<Pool>, state: &mut PoolState) -> bool {
        if !state.heartbeat_runs && !state.stop {
            let heart = Arc::clone(pool);
            let builder = thread::Builder::new().name("flexsc heartbeat".to_owned());
            let builder = builder.stack_size(STACK_BYTES);
            let started = interrupt::spawn(builder, move || heart.heartbeat());
            state.heartbeat_runs = started.is_ok();
        }
        state.heartbeat_runs
    }

    /// The body of the heartbeat.
    fn heartbeat(self: Arc<Self>) {
        let mut seen = vec![ThreadCall::default(); self.threads.len()];
        let (mut idle_beats, mut beats) = (0, Beats::default());
        let mut until_check = BEATS_OF_CHECK;
        let mut state = self.lock();
        while !state.stop {
            if idle_beats >= IDLE_BEATS {
                if beats.idle() {
                    self.set_given(&mut state, false);
                }
                // A check before and after each sleep, which is as long as the beats between two checks.
                if !self.replace_dead(&mut state) {
                    state.heartbeat_sleeps = true;
                    state = self.sleep(state);
                    if std::mem::take(&mut state.heartbeat_sleeps) {
                        continue;
                    }
                }
                (idle_beats, until_check) = (0, 1);
                continue;
            }
            until_check -= 1;
            if until_check == 0 {
                until_check = BEATS_OF_CHECK;
                self.replace_dead(&mut state);
            }
            let waited = self.beat.wait_timeout(state, self.period);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let is_active =
                state.active > 0 && self.cores.may_be_given(self.shared.bell.sleep.is_sleeping());
            if self.cores.are_several() && beats.beat(is_active) {
                drop(state);
                let decision = beats.end_window(&self.cores, processors::runnable);
                state = self.lock();
                match decision {
                    Some(given) => self.set_given(&mut state, given),
                    None => self.cores.follow_owner(),
                }
            }
            let cancelling = self.beat(&mut state, &mut seen);
            let queued = !state.queue.is_empty();
            // A thread that was started or woken may come later than the beats end.
            let is_coming = state.starting > 0 || (queued && state.idle > 0);
            let is_idle = state.active == 0 && !is_coming && !cancelling;
            idle_beats = if is_idle { idle_beats + 1 } else { 0 };
            if queued {
                if !Pool::wake(&self, state, 0) {
                    self.shared.bell.ring();
                }
                state = self.lock();
            }
        }
        state.heartbeat_runs = false;
        self.ended.notify_all();
    }

    /// Looks at the threads: interrupts calls that are cancelled, and takes pages over from threads in the calls in
    /// which they were seen before. Returns whether there is a call to interrupt.
    pub(super) fn beat(self: &Arc<Self>, state: &mut PoolState, seen: &mut [ThreadCall]) -> bool {
        let mut cancelling = false;
        for (number, seen) in seen.iter_mut().enumerate() {
            let thread = &self.threads[number];
            let now = thread.call();
            let Some(entry) = now.entry else {
                *seen = now;
                continue;
            };
            let served = self.shared.entry(entry);
            if served.status() == Status::Cancel {
                cancelling = true;
                thread.serving.interrupt(entry, served);
            }
            if now == *seen && !thread.blocked.load(Ordering::Relaxed) {
                self.take_over(state, number as u16, now);
            }
            *seen = now;
        }
        cancelling
    }

    /// Sleeps until a thread is active, or has to be checked.
    fn sleep<'a>(&self, state: MutexGuard<'a, PoolState>) -> MutexGuard<'a, PoolState> {
        if self.threads.iter().any(|thread| thread.blocked.load(Ordering::Relaxed)) {
            let until_check = self.period.saturating_mul(BEATS_OF_CHECK);
            let waited = self.beat.wait_timeout(state, until_check);
            waited.unwrap_or_else(PoisonError::into_inner).0
        } else {
            self.beat.wait(state).unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// Ends the calls of blocked threads that are gone. Returns whether there are any.
    fn replace_dead(self: &Arc<Self>, state: &mut PoolState) -> bool {
        let mut any = false;
        for (number, thread) in self.threads.iter().enumerate() {
            if thread.blocked.load(Ordering::Relaxed) && thread.serving.is_dead() {
                self.end_dead(state, number as u16);
                any = true;
            }
        }
        any
    }

    /// Ends the call of a thread that is gone, and releases what it had. Its stack stays mapped, as the kernel has ended it
    /// without pthread_exit(3).
    fn end_dead(self: &Arc<Self>, state: &mut PoolState, number: u16) {
        let thread = &self.threads[usize::from(number)];
        thread.blocked.store(false, Ordering::Relaxed);
        // It does not change any more.
        if let Some(entry) = thread.serving.entry() {
            thread.serving.begin_again(entry);
            // SAFETY: the thread that had claimed the entry is gone.
            unsafe { self.shared.entry(entry).finish_on_thread(-(libc::EOWNERDEAD as isize)) };
            self.shared.complete(entry);
        }
        state.counters.died += 1;
        state.unused.push(number);
        // SAFETY: the body in `Pool::start` has a reference in a `ManuallyDrop`, and releases it after its last call. The
        // thread is gone in a call, so it never does. This is done once: until now it held its page or was blocked, and
        // its number is unused from now on. `self` is a further reference.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(self)) };
    }

    /// Gives the threads cores of their own, or takes them back.
    pub(super) fn set_given(&self, state: &mut PoolState, given: bool) {
        self.cores.set_given(given);
        match given {
            true => state.counters.cores_given += 1,
            false => state.counters.cores_taken_back += 1,
        }
    }

    /// Counts a thread as blocked, and frees its page for another one, unless it computes or waits for a core.
    pub(super) fn take_over(
        self: &Arc<Self>,
        state: &mut PoolState,
        number: u16,
        call: ThreadCall,
    ) {
        let Some(page) = call.entry.map(|entry| entry / ENTRIES as u32) else { return };
        let thread = &self.threads[usize::from(number)];
        // A thread whose call has ended waits for the lock, so it does not run either.
        if state.pages[page as usize] != PageState::Held(number)
            || thread.serving.is_running()
            || thread.call() != call
        {
            return;
        }
        state.pages[page as usize] = PageState::Idle;
        state.end_active();
        state.counters.blocked += 1;
        if !self.shared.submitted[page as usize].is_empty() {
            state.queue_page(page);
        }
        if thread.serving.is_dead() {
            self.end_dead(state, number);
        } else {
            #[cfg(all(test, not(loom)))]
            thread.blocked_in.store(call.served, Ordering::Relaxed);
            thread.blocked.store(true, Ordering::Relaxed);
        }
    }
}
