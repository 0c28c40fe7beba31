//! Timed events.

/// A timed event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A peer runs.
    Peer(u32),
    /// An attempt to connect succeeds or fails.
    Connect(u32, u64),
    /// An operation in flight completes.
    Operation(u64),
    /// File work completes.
    FileJob(u64),
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// An event happened.
    Event,
    /// The timeout expired.
    TimedOut,
    /// No event will ever happen.
    Deadlock,
}
