//! The driver's state of a connection.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsRawFd;

use bitflags::bitflags;
use shared_ring::buffers::{BufferGroup, GatherList};
use shared_ring::files::File;
use shared_ring::{Fd, Socket};

use super::shares::Source;
use crate::{Close, CloseReason, ConnId, FILE_TAG, HIGH_WATER, LOW_WATER, Tail};

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot is free.
    Vacant,
    /// A connect is in flight or about to fail.
    Connecting,
    /// The connection is established.
    Open,
    /// The application has closed it; the queue is being flushed.
    Flushing,
    /// Everything was sent and the sending side is shut down; received bytes are discarded.
    Lingering,
    /// Operations in flight are being cancelled; then the socket is closed.
    Ending,
}

bitflags! {
    /// Flags of a connection.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct ConnFlags: u32 {
        /// A receive is in flight.
        const RECEIVING = 1;
        /// A send is in flight.
        const SENDING = 1 << 1;
        /// A connect or a close is in flight.
        const CONNECTING_OR_CLOSING = 1 << 2;
        /// The receive in flight was cancelled.
        const CANCELLED = 1 << 3;
        /// The application has paused receiving.
        const PAUSED = 1 << 4;
        /// The peer has shut down its sending side.
        const EOF = 1 << 5;
        /// The application was notified of the end.
        const EOF_NOTIFIED = 1 << 6;
        /// Our sending side is shut down.
        const SHUT_DOWN = 1 << 7;
        /// The queue reached the high-water mark and has not fallen to the low one.
        const ABOVE_HIGH_WATER = 1 << 8;
        /// The connection is in the list of connections to service after the callback.
        const DIRTY = 1 << 9;
        /// The connection is in the list of connections to revisit in this turn.
        const REVISIT = 1 << 10;
        /// The application has resumed receiving and must be called.
        const RESUMED = 1 << 11;
        /// The queue has exceeded its maximum.
        const OVERRUN = 1 << 12;
        /// The connection was accepted, and nothing has been received on it yet.
        const UNSERVED = 1 << 13;
        /// Once the application has received all bytes, it is asked whether the connection may close: the
        /// server stops, or a new connection needs the room.
        const QUIESCING = 1 << 14;
        /// A receive has begun, so the buffer group is fixed.
        const GROUP_FIXED = 1 << 15;
        /// The socket took only a part of the last piece of a file, or of the last send from memory that the policy decided.
        const SOCKET_FULL = 1 << 16;
        /// The policy has the connection send nothing for a time.
        const SEND_PAUSED = 1 << 17;
        /// A hook holds a message.
        const HELD = 1 << 18;
        /// The socket was full before a pause, or bytes in memory went before another part of a file; it has neither sent
        /// a piece of a file nor reported room since.
        const MAY_BE_FULL = 1 << 19;
        /// It closes to make room for a new connection.
        const EVICTED = 1 << 20;
        /// It has sent its maximum of file bytes for this turn. The revisit sends the next ones.
        const HAS_SENT_FILES = 1 << 21;
    }
}

/// An item of a send queue.
#[derive(Debug)]
pub(crate) enum SendItem {
    Memory(Box<GatherList>),
    File(QueuedFile),
}

/// A part of a file.
#[derive(Debug)]
pub(crate) struct QueuedFile {
    pub(crate) file: File,
    /// The bytes that are left. They are not empty.
    pub(crate) left: Range<u64>,
    /// Whether other bytes of the file were sent or read.
    pub(crate) is_begun: bool,
}

impl QueuedFile {
    /// Removes bytes that were sent or read. Returns whether none are left.
    pub(crate) fn advance(&mut self, n: u64) -> bool {
        self.left.start += n;
        self.is_begun |= n > 0;
        self.left.is_empty()
    }
}

/// Send queue of a connection. It is usually a single list, which needs no further allocation.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    first: Option<SendItem>,
    remaining: VecDeque<SendItem>,
    files: usize,
}

impl SendQueue {
    pub(crate) fn front(&self) -> Option<&SendItem> {
        self.first.as_ref()
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut SendItem> {
        self.first.as_mut()
    }

    /// Returns the list at the end. Appends a new one after a file or a partly sent list.
    #[inline]
    pub(crate) fn list(&mut self, new: impl FnOnce() -> Box<GatherList>) -> &mut GatherList {
        if !matches!(self.back_mut(), Some(SendItem::Memory(list)) if !list.is_started()) {
            self.push_back(SendItem::Memory(new()));
        }
        match self.back_mut() {
            Some(SendItem::Memory(list)) => list,
            _ => unreachable!("a list was just pushed"),
        }
    }

    fn back_mut(&mut self) -> Option<&mut SendItem> {
        self.remaining.back_mut().or(self.first.as_mut())
    }

    pub(crate) fn push_back(&mut self, item: SendItem) {
        self.files += usize::from(item.is_file());
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            self.remaining.push_back(item);
        }
    }

    /// Appends a part of a file, which continues the last one if it is of the same file.
    pub(crate) fn push_file(&mut self, file: File, left: Range<u64>) {
        let is_same = |item: &SendItem| match item {
            SendItem::File(queued) => Some(queued.file.as_raw_fd() == file.as_raw_fd()),
            SendItem::Memory(_) => None,
        };
        let is_begun = self.files > 0 && self.iter().filter_map(is_same).last() == Some(true);
        self.push_back(SendItem::File(QueuedFile { file, left, is_begun }));
    }

    pub(crate) fn push_front(&mut self, item: SendItem) {
        self.files += usize::from(item.is_file());
        if let Some(second) = self.first.replace(item) {
            self.remaining.push_front(second);
        }
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<SendItem> {
        let item = self.first.take()?;
        if !self.remaining.is_empty() {
            self.first = self.remaining.pop_front();
        }
        self.files -= usize::from(item.is_file());
        Some(item)
    }

    /// Takes the front item if it is a list.
    #[inline]
    fn pop_list(&mut self) -> Option<Box<GatherList>> {
        match self.first.take_if(|item| !item.is_file())? {
            SendItem::Memory(list) => {
                self.first = self.remaining.pop_front();
                Some(list)
            }
            SendItem::File(..) => unreachable!("the item is not a file"),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the first file.
    pub(crate) fn first_file(&self) -> Option<&QueuedFile> {
        self.iter().find_map(|item| match item {
            SendItem::File(queued) => Some(queued),
            SendItem::Memory(_) => None,
        })
    }

    /// Returns whether another part of the first file follows it.
    pub(crate) fn has_more_parts(&self) -> bool {
        let is_begun = |item: &SendItem| matches!(item, SendItem::File(queued) if queued.is_begun);
        self.files > 1 && self.iter().filter(|item| item.is_file()).nth(1).is_some_and(is_begun)
    }

    /// Replaces the first `n` bytes of the first file by a list with these bytes.
    pub(crate) fn replace_file_bytes(&mut self, n: u64, list: Box<GatherList>) {
        if self.first.as_ref().is_some_and(SendItem::is_file) {
            self.push_front(SendItem::Memory(list));
        } else if let Some(at) = self.remaining.iter().position(SendItem::is_file) {
            self.remaining.insert(at, SendItem::Memory(list));
        }
        // The file is behind the list, so it is not the first item.
        let Some(at) = self.remaining.iter().position(SendItem::is_file) else { return };
        if let SendItem::File(queued) = &mut self.remaining[at]
            && queued.advance(n)
        {
            self.remaining.remove(at);
            self.files -= 1;
        }
    }

    /// Returns the number of bytes in memory in front of the first file.
    pub(crate) fn bytes_before_file(&self) -> usize {
        self.iter().map_while(SendItem::memory_bytes).sum()
    }

    /// Returns the number of files.
    pub(crate) fn files(&self) -> usize {
        self.files
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &SendItem> {
        self.first.iter().chain(&self.remaining)
    }

    /// Returns the number of file bytes: the ranges of files may extend far beyond their ends.
    pub(crate) fn file_bytes(&self) -> u128 {
        self.iter().map(|item| u128::from(item.file_bytes())).sum()
    }

    /// Returns the memory that the lists hold for queued bytes.
    #[inline]
    pub(crate) fn cost(&self) -> usize {
        let Some(first) = &self.first else { return 0 };
        first.cost() + self.remaining.iter().map(SendItem::cost).sum::<usize>()
    }
}

impl SendItem {
    fn is_file(&self) -> bool {
        matches!(self, SendItem::File(..))
    }

    fn file_bytes(&self) -> u64 {
        self.file_bytes_left().unwrap_or(0)
    }

    /// Returns the number of bytes left of a file.
    pub(crate) fn file_bytes_left(&self) -> Option<u64> {
        match self {
            SendItem::File(QueuedFile { left, .. }) => Some(left.end - left.start),
            SendItem::Memory(_) => None,
        }
    }

    /// Returns the number of bytes of a list.
    fn memory_bytes(&self) -> Option<usize> {
        match self {
            SendItem::Memory(list) => Some(list.len()),
            SendItem::File(..) => None,
        }
    }

    fn cost(&self) -> usize {
        match self {
            SendItem::Memory(list) => list.cost(),
            SendItem::File(..) => 0,
        }
    }
}

/// State of one connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) generation: u32,
    pub(crate) socket: Option<Socket>,
    /// The source address in whose share the connection counts.
    pub(crate) from: Option<Source>,
    /// The group of its receive buffers.
    pub(crate) group: BufferGroup,
    pub(crate) phase: Phase,
    pub(crate) flags: ConnFlags,
    /// The requested close.
    pub(crate) close: Option<Close>,
    /// Unsent bytes at the last progress check.
    pub(crate) unsent: Option<u64>,
    /// File operations in flight or deferred.
    pub(crate) files: u32,
    /// Those of them that a layer makes.
    pub(crate) layer_files: u32,
    /// One of them reads the first bytes of the first queued file.
    pub(crate) is_reading_ahead: bool,
    /// Reads of the application are held back.
    pub(crate) defers_reads: bool,
    /// Bytes queued or in the send in flight, without files. Once the connection ends: all that the kernel did not
    /// take, with those of files.
    pub(crate) queued: usize,
    /// Memory of the list in the send in flight, when it was submitted.
    pub(crate) over_send: usize,
    /// Bytes counted for this connection in [`Io::held`](super::Io::held).
    pub(crate) held: usize,
    pub(crate) queue: SendQueue,
    /// Bytes that the application has not consumed.
    pub(crate) tail: Tail,
    /// The reason why it ends or failed to connect.
    pub(crate) reason: Option<CloseReason>,
}

impl Default for Connection {
    fn default() -> Self {
        Connection {
            generation: 0,
            socket: None,
            from: None,
            group: BufferGroup::DEFAULT,
            phase: Phase::Vacant,
            flags: ConnFlags::empty(),
            close: None,
            unsent: None,
            files: 0,
            layer_files: 0,
            is_reading_ahead: false,
            defers_reads: false,
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
    /// Returns the descriptor, for an operation that is recorded in the flags.
    #[inline]
    pub(crate) fn fd(&self) -> Option<Fd> {
        // SAFETY: the socket is closed in two places. `Driver::finish` closes it when the flags record no
        // operation (`is_busy`); the last completion of an operation clears its flag. `Io::drop` closes it
        // after `Submit::finish`. Nothing keeps the descriptor beyond the operation that it was requested
        // for.
        self.socket.as_ref().map(|socket| unsafe { socket.fd() })
    }

    /// Returns the number of queued bytes as reported to the application: a file counts as [`HIGH_WATER`].
    pub(crate) fn load(&self) -> usize {
        self.queued.saturating_add(self.queue.files().saturating_mul(HIGH_WATER))
    }

    /// Returns whether its queue has fallen from the high-water mark to the low one, and the application was not notified.
    #[inline]
    pub(crate) fn has_drained(&self) -> bool {
        self.has(ConnFlags::ABOVE_HIGH_WATER) && self.load() <= LOW_WATER
    }

    /// Returns the number of bytes that were queued and that the kernel has not taken.
    pub(crate) fn queued_bytes(&self) -> u128 {
        self.queue.file_bytes() + self.queued as u128
    }

    /// Counts newly queued bytes and returns the new load.
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

    /// Counts a file operation with this tag.
    pub(crate) fn note_file_op(&mut self, tag: u32) {
        self.files += 1;
        self.layer_files += u32::from(tag == FILE_TAG);
    }

    /// Returns the number of file operations of the application, in flight or deferred.
    pub(crate) fn application_files(&self) -> u32 {
        self.files - self.layer_files - u32::from(self.is_reading_ahead)
    }

    /// Adds the connection to the list of connections to service.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, slot: u32, dirty: &mut Vec<u32>) {
        if !self.has(ConnFlags::DIRTY) {
            self.flags |= ConnFlags::DIRTY;
            dirty.push(slot);
        }
    }

    /// Returns whether `id` refers to this connection and it is not ending.
    pub(crate) fn is(&self, id: ConnId) -> bool {
        self.generation == id.generation() && !matches!(self.phase, Phase::Vacant | Phase::Ending)
    }

    /// Returns whether the application may queue bytes.
    pub(crate) fn takes_sends(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Open) && self.close.is_none()
    }

    /// Takes the list at the front of the queue for a send; `None` if a file is at the front.
    #[inline]
    pub(crate) fn take_list(&mut self) -> Option<Box<GatherList>> {
        let list = self.queue.pop_list()?;
        self.over_send = list.cost();
        Some(list)
    }

    /// Counts bytes of the list in flight as sent. The memory of the remaining list counts with the queue again.
    #[inline]
    pub(crate) fn note_sent(&mut self, n: usize) {
        self.queued -= n;
        self.over_send = 0;
    }

    /// Returns the memory held: unconsumed bytes, queued copies, and references to shared bytes.
    #[inline]
    pub(crate) fn holds(&self) -> usize {
        self.tail.capacity() + self.over_send + self.queue.cost()
    }

    /// Returns whether received bytes are passed to the application.
    pub(crate) fn app_reads(&self) -> bool {
        self.phase == Phase::Open && matches!(self.close, None | Some(Close::Half))
    }

    /// Returns whether the results of file operations are passed to the application.
    pub(crate) fn app_gets_files(&self) -> bool {
        self.app_reads() || self.phase == Phase::Connecting
    }

    /// Returns whether a receive is in flight, and nothing else is to be done.
    #[inline]
    pub(crate) fn only_receives(&self) -> bool {
        let others = ConnFlags::SENDING
            | ConnFlags::PAUSED
            | ConnFlags::HELD
            | ConnFlags::OVERRUN
            | ConnFlags::QUIESCING
            | ConnFlags::SEND_PAUSED;
        self.phase == Phase::Open
            && self.close.is_none()
            && self.flags & (others | ConnFlags::RECEIVING) == ConnFlags::RECEIVING
            && self.queue.is_empty()
            && !self.defers_reads
    }

    /// Returns whether no operation or bytes are pending, so that only the application knows whether it
    /// is idle.
    pub(crate) fn is_quiet(&self) -> bool {
        let busy = ConnFlags::SENDING
            | ConnFlags::CONNECTING_OR_CLOSING
            | ConnFlags::PAUSED
            | ConnFlags::HELD
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

    /// Returns whether received bytes wait: for the application, or for a hook.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.flags.intersects(ConnFlags::PAUSED | ConnFlags::HELD)
    }

    /// Returns whether bytes wait to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.queue.is_empty() || self.has(ConnFlags::SENDING)
    }

    /// Returns whether an operation on the socket is in flight.
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

    /// Sends the first list with a result of `n` bytes.
    fn send(connection: &mut Connection, n: usize) {
        let mut list = connection.take_list().unwrap();
        list.advance(n);
        connection.note_sent(n);
        if !list.is_empty() {
            connection.queue.push_front(SendItem::Memory(list));
        }
    }

    #[test]
    fn copies_in_a_partly_sent_list_were_not_counted() {
        let mut connection = Connection::default();
        copy(&mut connection, 1_000);
        send(&mut connection, 900);
        assert_eq!((connection.queued, connection.holds()), (100, 1_000));
        send(&mut connection, 100);
        assert_eq!((connection.queued, connection.holds()), (0, 0));
    }

    #[test]
    fn memory_of_the_send_in_flight_is_counted() {
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
    fn file_behind_a_partly_sent_list_is_counted() {
        let mut connection = Connection::default();
        copy(&mut connection, 10);
        let file = File::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        connection.queue.push_file(file, 0..1);
        send(&mut connection, 4);
        assert_eq!((connection.queue.files(), connection.load()), (1, HIGH_WATER + 6));
    }

    #[test]
    fn file_at_the_front_stays_and_is_counted_once() {
        let mut connection = Connection::default();
        let file = File::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        connection.queue.push_file(file, 0..1);
        copy(&mut connection, 10);
        assert!(connection.take_list().is_none());
        assert_eq!((connection.queue.files(), connection.load()), (1, HIGH_WATER + 10));
        assert!(matches!(connection.queue.pop_front(), Some(SendItem::File(..))));
        assert_eq!((connection.queue.files(), connection.load()), (0, 10));
        send(&mut connection, 10);
        assert!(connection.queue.is_empty());
    }
}
