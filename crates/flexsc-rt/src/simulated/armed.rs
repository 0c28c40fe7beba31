//! A descriptor in the epoll set of a simulated machine.

use rustix::event::epoll::EventFlags;

/// How a descriptor is reported; see the real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    Once,
    Changes,
}

/// A descriptor in the set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Armed {
    pub(crate) interest: [bool; 2],
    pub(crate) arm: Arm,
    /// The changes that were reported.
    pub(crate) seen: Option<[u64; 2]>,
}

impl Armed {
    /// Returns what the set reports of a descriptor with these changes, readiness and error.
    pub(crate) fn report(
        &self,
        changes: [u64; 2],
        ready: [bool; 2],
        has_error: bool,
    ) -> EventFlags {
        let mut flags = EventFlags::empty();
        let has_changed = |n: usize| self.seen.is_none_or(|seen| seen[n] != changes[n]);
        if self.arm == Arm::Once || (0..2).any(|n| self.interest[n] && has_changed(n)) {
            flags.set(EventFlags::IN, self.interest[0] && ready[0]);
            flags.set(EventFlags::OUT, self.interest[1] && ready[1]);
            flags.set(EventFlags::ERR, has_error);
        }
        flags
    }
}
