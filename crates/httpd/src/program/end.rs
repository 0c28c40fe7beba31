//! The end of the process: a signal to stop the service, or a successor that serves in its place.

use std::sync::atomic::{AtomicU8, Ordering};

/// A signal to stop has arrived.
const STOP: u8 = 1;

/// A successor got the service before any signal to stop.
const SUCCESSOR: u8 = 2;

/// The reasons to end. The first one decides whether the service stops: a signal that arrives after the successor is for
/// this process, and there is no successor after a signal.
#[derive(Debug, Default)]
pub(crate) struct End(AtomicU8);

impl End {
    /// Notes a signal to stop. Returns whether it is the first one. A signal handler may call it.
    pub(crate) fn stop(&self) -> bool {
        self.0.fetch_or(STOP, Ordering::SeqCst) & STOP == 0
    }

    /// Returns whether a signal to stop has arrived.
    pub(crate) fn is_stopping(&self) -> bool {
        self.0.load(Ordering::SeqCst) & STOP != 0
    }

    /// Makes the service that of a successor. Returns false if a signal to stop has arrived.
    pub(crate) fn set_successor(&self) -> bool {
        self.0.compare_exchange(0, SUCCESSOR, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes the service back from a successor that has ended.
    pub(crate) fn remove_successor(&self) {
        self.0.fetch_and(!SUCCESSOR, Ordering::SeqCst);
    }

    /// Returns whether the service is that of a successor.
    pub(crate) fn has_successor(&self) -> bool {
        self.0.load(Ordering::SeqCst) & SUCCESSOR != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_found_a_successor_that_was_stopped_with_it() {
        let end = End::default();
        assert!(end.stop() && end.is_stopping());
        assert!(!end.set_successor());
        assert!(!end.has_successor(), "the service would have stopped without a delay");
        assert!(!end.stop(), "the second one exits at once");
    }

    #[test]
    fn successor_keeps_the_service_at_a_stop_of_the_process_before() {
        let end = End::default();
        assert!(end.set_successor() && end.has_successor() && !end.is_stopping());
        assert!(end.stop() && end.has_successor());
        assert!(!end.stop());
        // It has ended.
        end.remove_successor();
        assert!(end.is_stopping() && !end.has_successor());
        assert!(!end.set_successor());
    }
}
