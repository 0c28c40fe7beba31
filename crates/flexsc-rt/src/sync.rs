//! Waits for another thread.

/// Turns of a wait for another thread before it sleeps: some 10 microseconds.
const SPINS: u32 = 1_000;

/// Pauses once in a wait for another thread, which needs a moment. If it does not run, it may need the core of this one,
/// which has a higher priority (`SCHED_FIFO`); so the wait does not spin for long.
pub(crate) fn pause(spins: &mut u32) {
    #[cfg(loom)]
    loom::thread::yield_now();
    if *spins < SPINS {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(1));
    }
}
