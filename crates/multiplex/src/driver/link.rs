//! One connection as the driver sees it.

use std::collections::VecDeque;
use std::ops::Range;

use bitflags::bitflags;
use shared_ring::{Fd, File, Gather};

use crate::{Close, Conn, Why};

/// Where a connection stands between its beginning and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot is free.
    Vacant,
    /// A connect is in flight, or about to fail.
    Connecting,
    /// Bytes flow.
    Open,
    /// The application has closed it; what is queued still goes out.
    Flushing,
    /// All is sent and the peer was told; what it still sends is dropped.
    Lingering,
    /// Operations in flight are being cancelled; then the descriptor is closed.
    Ending,
}

bitflags! {
    /// Facts about a connection.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Flags: u16 {
        /// A receive is in flight.
        const RECEIVING = 1;
        /// A send is in flight.
        const SENDING = 1 << 1;
        /// A connect or a close is in flight.
        const CHANGING = 1 << 2;
        /// The receive in flight was cancelled.
        const CANCELLED = 1 << 3;
        /// The application does not want to receive.
        const PAUSED = 1 << 4;
        /// The peer will send no more.
        const EOF = 1 << 5;
        /// The application was told so.
        const TOLD = 1 << 6;
        /// The peer was told that we will send no more.
        const SHUT = 1 << 7;
        /// The queue has reached the high-water mark and not fallen to the low one.
        const HIGH = 1 << 8;
        /// It stands in the list of connections to tend after the callback.
        const TOUCHED = 1 << 9;
        /// It stands in the list of connections to call again in this turn.
        const AGAIN = 1 << 10;
        /// The queue has outgrown its bound.
        const OVERRUN = 1 << 11;
    }
}

/// Something that waits to be sent.
#[derive(Debug)]
pub(crate) enum Item {
    Memory(Box<Gather>),
    File(File, Range<u64>),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) generation: u32,
    pub(crate) fd: Option<Fd>,
    pub(crate) phase: Phase,
    pub(crate) flags: Flags,
    /// The close that the application asked for.
    pub(crate) close: Option<Close>,
    /// File work in flight or waiting.
    pub(crate) files: u8,
    /// Bytes queued, and in the send in flight, without those of files.
    pub(crate) queued: usize,
    pub(crate) queue: VecDeque<Item>,
    /// Received bytes that the application has not consumed.
    pub(crate) tail: Vec<u8>,
    /// Why it ends, once it does; before that, why it could not begin.
    pub(crate) why: Option<Why>,
}

impl Link {
    pub(crate) fn vacant() -> Self {
        Link {
            generation: 0,
            fd: None,
            phase: Phase::Vacant,
            flags: Flags::empty(),
            close: None,
            files: 0,
            queued: 0,
            queue: VecDeque::new(),
            tail: Vec::new(),
            why: None,
        }
    }

    /// Whether the name given out for `slot` is still good.
    pub(crate) fn is(&self, id: Conn) -> bool {
        self.generation == id.generation() && !matches!(self.phase, Phase::Vacant | Phase::Ending)
    }

    /// Whether the application may still queue bytes.
    pub(crate) fn takes_sends(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Open) && self.close.is_none()
    }

    /// Whether received bytes are the application's business.
    pub(crate) fn is_heard(&self) -> bool {
        self.phase == Phase::Open && matches!(self.close, None | Some(Close::Half))
    }

    pub(crate) fn has(&self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// Whether an operation on the descriptor is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.flags.intersects(Flags::RECEIVING | Flags::SENDING | Flags::CHANGING)
    }
}
