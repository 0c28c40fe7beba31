//! The number of SIGHUPs that have arrived.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::SIGHUP;

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Counts the signals from now on.
pub(crate) fn count() -> io::Result<()> {
    let count = || {
        COUNT.fetch_add(1, Ordering::SeqCst);
    };
    // SAFETY: the action uses an atomic, and does not panic (signal-safety(7)).
    unsafe { signal_hook::low_level::register(SIGHUP, count) }?;
    Ok(())
}

/// Returns the number of signals that have arrived.
pub(crate) fn arrived() -> usize {
    COUNT.load(Ordering::SeqCst)
}
