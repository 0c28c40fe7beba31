//! The numbers of signals to reload and to open the log again that have arrived: a successor gets those, too, that arrive
//! while it starts.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;

pub(crate) const SIGNALS: [Signal; 2] = [Signal::HUP, Signal::USR1];

static COUNTS: [AtomicUsize; SIGNALS.len()] = [const { AtomicUsize::new(0) }; SIGNALS.len()];

/// Counts the signals from now on.
pub(crate) fn count() -> io::Result<()> {
    for (signal, count) in SIGNALS.into_iter().zip(&COUNTS) {
        let add = || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        // SAFETY: the action uses an atomic, and does not panic (signal-safety(7)).
        unsafe { signal_hook::low_level::register(signal.as_raw(), add) }?;
    }
    Ok(())
}

/// Returns how many of each have arrived.
pub(crate) fn counts() -> [usize; SIGNALS.len()] {
    COUNTS.each_ref().map(|count| count.load(Ordering::SeqCst))
}
