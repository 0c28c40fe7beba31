//! Bugs that are planted on purpose, one at a time, to see that simulation finds them.
//!
//! Without the feature `planted` there are none, and what asks for them costs nothing.

/// Whether a bug is planted now: a constant, but with the feature `planted`.
#[cfg(feature = "planted")]
#[doc(hidden)]
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is_planted($crate::planted::Bug::$bug)
    };
}

/// Whether a bug is planted now: a constant, but with the feature `planted`.
#[cfg(not(feature = "planted"))]
#[doc(hidden)]
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

#[cfg(feature = "planted")]
pub use bugs::{Bug, is_planted, plant};

#[cfg(feature = "planted")]
mod bugs {
    use std::cell::Cell;

    macro_rules! bugs {
        ($($(#[$doc:meta])* $name:ident,)*) => {
            /// A bug that can be planted.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Bug { $($(#[$doc])* $name,)* }

            impl Bug {
                /// Every one.
                pub const ALL: &[Bug] = &[$(Bug::$name,)*];
            }
        };
    }

    bugs! {
        /// What concerns a connection that is gone reaches the one that has its slot now.
        GenerationIgnored,
        /// A slot is used again under its old generation.
        GenerationKept,
        /// The memory of a send is let go of when it is cancelled, before it has ended.
        FreedAtCancel,
        /// A cancel that finds the queue full is forgotten.
        CancelForgotten,
        /// A cancel is submitted though its operation has ended, and reaches the next of its name.
        CancelReachesNext,
        /// A descriptor is closed while operations on it are in flight.
        ClosedWhileBusy,
        /// A receive that found no buffer is not posted again.
        StarvedForgotten,
        /// An operation that the kernel ended early is not posted again.
        NotRearmed,
        /// A buffer is given to the kernel twice.
        BufferGivenTwice,
        /// A buffer is written to while the kernel holds it.
        BufferWritten,
        /// A part that was read of a file is taken for all of it.
        ShortReadIsWhole,
        /// What a short write has left is dropped.
        ShortWriteIsWhole,
        /// What a short write has left goes behind what was queued since.
        RestGoesBehind,
        /// The beginning of a request is lost when its end has not come yet.
        TailLost,
        /// Bytes that arrive while the application has paused are lost.
        PausedBytesLost,
        /// A wake-up is never noted as heard, so that later ones are saved.
        NeverHeard,
        /// What was said of a closed descriptor reaches the next of its number.
        OldEventReachesNext,
        /// With edges: a full buffer is taken for all there is.
        FullBufferIsAll,
        /// With edges: the end of a stream is not looked for behind its last bytes.
        EndNotLookedFor,
        /// The poller is not told that an operation waits for room.
        RoomNotAskedFor,
        /// Hints that were discarded are not made up for.
        HintsLost,
        /// A signal about a descriptor that was closed is taken to be about the next of its number.
        StaleSignalBelieved,
        /// Signals that had no room are not made up for.
        OverflowIgnored,
        /// A descriptor's state is not asked for when it begins to signal.
        StateNotAsked,
        /// A connection that arrives while the server stops is left open.
        LateArrivalLeaked,
        /// A listener that has rested does not accept again.
        RestsForEver,
        /// Connections that were put aside are not let in.
        AsideForgotten,
        /// A descriptor is closed a second time.
        ClosedTwice,
        /// A connection's state is not reset for the next.
        StateKept,
        /// What is queued is dropped at a close that should send it first.
        DroppedAtClose,
    }

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug for this thread, in place of another.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Whether this bug is planted.
    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}
