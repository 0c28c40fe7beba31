//! One connection as the driver sees it.

use std::collections::VecDeque;
use std::ops::Range;

use bitflags::bitflags;
use shared_ring::{Fd, File, GatherList, Socket};

use super::shares::Source;
use crate::{Close, CloseReason, ConnId, HIGH_WATER, Tail};

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
    pub(crate) struct ConnFlags: u16 {
        /// A receive is in flight.
        const RECEIVING = 1;
        /// A send is in flight.
        const SENDING = 1 << 1;
        /// A connect or a close is in flight.
        const CONNECTING_OR_CLOSING = 1 << 2;
        /// The receive in flight was cancelled.
        const CANCELLED = 1 << 3;
        /// The application does not want to receive.
        const PAUSED = 1 << 4;
        /// The peer will send no more.
        const EOF = 1 << 5;
        /// The application was told so.
        const EOF_NOTIFIED = 1 << 6;
        /// The peer was told that we will send no more.
        const SHUT_DOWN = 1 << 7;
        /// The queue has reached the high-water mark and not fallen to the low one.
        const ABOVE_HIGH_WATER = 1 << 8;
        /// It stands in the list of connections to tend after the callback.
        const DIRTY = 1 << 9;
        /// It stands in the list of connections to look at again in this turn.
        const REVISIT = 1 << 10;
        /// The application has resumed and is to be called.
        const RESUMED = 1 << 11;
        /// The queue has outgrown its bound.
        const OVERRUN = 1 << 12;
        /// It came in, and the application has seen nothing of it yet.
        const UNSERVED = 1 << 13;
        /// Once the application has seen all that has arrived, it is asked whether the connection may
        /// end: the server stops, or a new connection needs the room.
        const QUIESCING = 1 << 14;
    }
}

/// Something that waits to be sent.
#[derive(Debug)]
pub(crate) enum SendItem {
    Memory(Box<GatherList>),
    File(File, Range<u64>),
}

/// What waits to be sent, in order. Mostly it is one list, which needs no memory of its own.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    first: Option<SendItem>,
    rest: VecDeque<SendItem>,
    files: usize,
}

impl SendQueue {
    pub(crate) fn front(&self) -> Option<&SendItem> {
        self.first.as_ref()
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut SendItem> {
        self.first.as_mut()
    }

    /// The list at the end, to be added to; a new one behind a file or a list partly sent.
    #[inline]
    pub(crate) fn list(&mut self, new: impl FnOnce() -> Box<GatherList>) -> &mut GatherList {
        if !matches!(self.back_mut(), Some(SendItem::Memory(list)) if !list.is_started()) {
            self.push_back(SendItem::Memory(new()));
        }
        match self.back_mut() {
            Some(SendItem::Memory(list)) => list,
            _ => unreachable!("a list was just put there"),
        }
    }

    fn back_mut(&mut self) -> Option<&mut SendItem> {
        self.rest.back_mut().or(self.first.as_mut())
    }

    pub(crate) fn push_back(&mut self, item: SendItem) {
        self.files += usize::from(item.is_file());
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            self.rest.push_back(item);
        }
    }

    pub(crate) fn push_front(&mut self, item: SendItem) {
        self.files += usize::from(item.is_file());
        if let Some(second) = self.first.replace(item) {
            self.rest.push_front(second);
        }
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<SendItem> {
        let item = self.first.take()?;
        if !self.rest.is_empty() {
            self.first = self.rest.pop_front();
        }
        self.files -= usize::from(item.is_file());
        Some(item)
    }

    /// Takes the list at the front, if it is one.
    #[inline]
    fn pop_list(&mut self) -> Option<Box<GatherList>> {
        match self.first.take_if(|item| !item.is_file())? {
            SendItem::Memory(list) => {
                self.first = self.rest.pop_front();
                Some(list)
            }
            SendItem::File(..) => unreachable!("files stay"),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// How many files there are.
    pub(crate) fn files(&self) -> usize {
        self.files
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &SendItem> {
        self.first.iter().chain(&self.rest)
    }

    /// How many bytes of files there are.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.iter().map(SendItem::file_bytes).sum()
    }

    /// Memory that its lists take for what is queued.
    #[inline]
    pub(crate) fn cost(&self) -> usize {
        let Some(first) = &self.first else { return 0 };
        first.cost() + self.rest.iter().map(SendItem::cost).sum::<usize>()
    }
}

impl SendItem {
    fn is_file(&self) -> bool {
        matches!(self, SendItem::File(..))
    }

    fn file_bytes(&self) -> u64 {
        match self {
            SendItem::File(_, range) => range.end - range.start,
            SendItem::Memory(_) => 0,
        }
    }

    fn cost(&self) -> usize {
        match self {
            SendItem::Memory(list) => list.cost(),
            SendItem::File(..) => 0,
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) generation: u32,
    pub(crate) socket: Option<Socket>,
    /// The address that it takes a place of.
    pub(crate) from: Option<Source>,
    pub(crate) phase: Phase,
    pub(crate) flags: ConnFlags,
    /// The close that the application asked for.
    pub(crate) close: Option<Close>,
    /// Bytes that were left when it was last seen to that the peer takes them.
    pub(crate) unsent: Option<u64>,
    /// File work in flight or waiting.
    pub(crate) files: u32,
    /// Bytes queued, and in the send in flight, without those of files.
    pub(crate) queued: usize,
    /// Memory of the list in the send in flight, as it was handed over.
    pub(crate) over_send: usize,
    /// What it was last counted for in [`Io::held`](super::Io::held).
    pub(crate) held: usize,
    pub(crate) queue: SendQueue,
    /// Received bytes that the application has not consumed.
    pub(crate) tail: Tail,
    /// Why it ends, once it does; before that, why it could not begin.
    pub(crate) reason: Option<CloseReason>,
}

impl Default for Connection {
    fn default() -> Self {
        Connection {
            generation: 0,
            socket: None,
            from: None,
            phase: Phase::Vacant,
            flags: ConnFlags::empty(),
            close: None,
            unsent: None,
            files: 0,
            queued: 0,
            over_send: 0,
            held: 0,
            queue: SendQueue::default(),
            tail: Tail::default(),
            reason: None,
        }
    }
}

impl Connection {
    /// The number of its socket, to name it in operations, which stand in its flags then.
    #[inline]
    pub(crate) fn fd(&self) -> Option<Fd> {
        // SAFETY: the socket is closed in two places. `Driver::finish` does it when no operation stands in
        // the flags (`is_busy`), from which each is removed by its last completion; `Io::drop` does it behind
        // `Submit::finish`. Nothing keeps the number beyond the operation that it was asked for.
        self.socket.as_ref().map(|socket| unsafe { socket.fd() })
    }

    /// What the application is told is queued: a file counts as much as the high-water mark.
    pub(crate) fn load(&self) -> usize {
        self.queued.saturating_add(self.queue.files().saturating_mul(HIGH_WATER))
    }

    /// Counts bytes that were queued. Returns the load that this makes.
    #[inline]
    pub(crate) fn note_queued(&mut self, n: usize, max: usize) -> usize {
        self.queued += n;
        let load = self.load();
        if load >= HIGH_WATER {
            self.flags |= ConnFlags::ABOVE_HIGH_WATER;
        }
        if load > max {
            self.flags |= ConnFlags::OVERRUN;
        }
        load
    }

    /// Puts it on the list of connections to tend.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, slot: u32, dirty: &mut Vec<u32>) {
        if !self.has(ConnFlags::DIRTY) {
            self.flags |= ConnFlags::DIRTY;
            dirty.push(slot);
        }
    }

    /// Whether the name given out for `slot` is still good.
    pub(crate) fn is(&self, id: ConnId) -> bool {
        self.generation == id.generation() && !matches!(self.phase, Phase::Vacant | Phase::Ending)
    }

    /// Whether the application may still queue bytes.
    pub(crate) fn takes_sends(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Open) && self.close.is_none()
    }

    /// Takes the list at the front of the queue, to send it; none if a file is there.
    #[inline]
    pub(crate) fn take_list(&mut self) -> Option<Box<GatherList>> {
        let list = self.queue.pop_list()?;
        self.over_send = list.cost();
        Some(list)
    }

    /// Counts bytes of the list in flight that were sent, or will not be. What memory it takes now is
    /// counted with the queue again.
    #[inline]
    pub(crate) fn note_sent(&mut self, n: usize) {
        self.queued -= n;
        self.over_send = 0;
    }

    /// Memory that is held for it: bytes received and not consumed, copies queued to be sent, and notes of
    /// what is shared.
    #[inline]
    pub(crate) fn holds(&self) -> usize {
        self.tail.capacity() + self.over_send + self.queue.cost()
    }

    /// Whether received bytes are the application's business.
    pub(crate) fn app_reads(&self) -> bool {
        self.phase == Phase::Open && matches!(self.close, None | Some(Close::Half))
    }

    /// Whether nothing is under way, so that only the application knows whether it waits for anything
    /// but another request.
    pub(crate) fn is_quiet(&self) -> bool {
        let busy = ConnFlags::SENDING
            | ConnFlags::CONNECTING_OR_CLOSING
            | ConnFlags::PAUSED
            | ConnFlags::EOF
            | ConnFlags::REVISIT;
        self.phase == Phase::Open
            && self.close.is_none()
            && !self.flags.intersects(busy)
            && self.files == 0
            && self.queue.is_empty()
            && self.tail.is_empty()
    }

    pub(crate) fn has(&self, flags: ConnFlags) -> bool {
        self.flags.contains(flags)
    }

    /// Whether an operation on the descriptor is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.flags.intersects(
            ConnFlags::RECEIVING | ConnFlags::SENDING | ConnFlags::CONNECTING_OR_CLOSING,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn copy(connection: &mut Connection, n: usize) {
        connection.queue.list(Box::default).copy(&vec![7; n]);
        connection.note_queued(n, 1 << 20);
    }

    /// Hands the first list over, and gets it back with `n` bytes of it sent.
    fn send(connection: &mut Connection, n: usize) {
        let mut list = connection.take_list().unwrap();
        list.advance(n);
        connection.note_sent(n);
        if !list.is_empty() {
            connection.queue.push_front(SendItem::Memory(list));
        }
    }

    #[test]
    fn copies_in_a_list_that_was_partly_sent_were_not_counted() {
        let mut connection = Connection::default();
        copy(&mut connection, 1_000);
        send(&mut connection, 900);
        assert_eq!((connection.queued, connection.holds()), (100, 1_000));
        send(&mut connection, 100);
        assert_eq!((connection.queued, connection.holds()), (0, 0));
    }

    #[test]
    fn what_a_send_in_flight_holds_is_counted() {
        let mut connection = Connection::default();
        copy(&mut connection, 1_000);
        let list = connection.take_list().unwrap();
        copy(&mut connection, 10);
        assert_eq!((connection.queued, connection.holds()), (1_010, 1_010));
        drop(list);
        connection.note_sent(1_000);
        assert_eq!((connection.queued, connection.holds()), (10, 10));
    }

    #[test]
    fn a_file_behind_a_list_that_was_partly_sent_is_still_counted() {
        let mut connection = Connection::default();
        copy(&mut connection, 10);
        let file = File::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        connection.queue.push_back(SendItem::File(file, 0..1));
        send(&mut connection, 4);
        assert_eq!((connection.queue.files(), connection.load()), (1, HIGH_WATER + 6));
    }

    #[test]
    fn a_file_at_the_front_stays_there_and_is_counted_once() {
        let mut connection = Connection::default();
        let file = File::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        connection.queue.push_back(SendItem::File(file, 0..1));
        copy(&mut connection, 10);
        assert!(connection.take_list().is_none());
        assert_eq!((connection.queue.files(), connection.load()), (1, HIGH_WATER + 10));
        assert!(matches!(connection.queue.pop_front(), Some(SendItem::File(..))));
        assert_eq!((connection.queue.files(), connection.load()), (0, 10));
        send(&mut connection, 10);
        assert!(connection.queue.is_empty());
    }
}
