//! The room that a call needs to be posted.

use crate::call::{Executor, Waits};

/// The resources that a call needs to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    /// A free entry: it is bounded.
    Entry,
    /// The same, and not all entries that are not reserved for bounded calls have calls that wait.
    Unreserved,
    /// The same, and a thread that may wait indefinitely.
    Thread,
}

impl Room {
    pub(crate) const ALL: [Room; 3] = [Room::Entry, Room::Unreserved, Room::Thread];

    #[inline]
    pub(super) fn of(waits: Waits, pinned: Option<Executor>) -> Self {
        let on_thread = match waits {
            Waits::Bounded => return Room::Entry,
            Waits::Indefinitely => !matches!(pinned, Some(Executor::InPlace | Executor::Ring)),
            Waits::UntilReady(..) => false,
            Waits::Ready(..) | Waits::AfterReady(..) | Waits::ReadyThenBlocks(..) => {
                pinned == Some(Executor::Threads)
            }
        };
        if on_thread { Room::Thread } else { Room::Unreserved }
    }
}
