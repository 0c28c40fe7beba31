//! When syscall threads have cores of their own.

/// The rule by which syscall threads leave the owner's core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Specialization {
    /// Never.
    Off,
    /// While load and idle cores justify it: if a thread was active and the owner awake in three quarters of two windows
    /// of 64 heartbeats, and no more threads of the machine are runnable than the process may use cores. A process that
    /// may use few of many cores rarely finds that.
    #[default]
    Adaptive,
    /// While threads are busy: the same, whether the owner is awake or not, and however many threads of the machine are
    /// runnable.
    WhileBusy,
}
