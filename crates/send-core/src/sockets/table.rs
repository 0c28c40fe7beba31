//! Table of sockets: identifiers and state.
//!
//! It is allocated in advance, so that a signal handler can add accepted connections.

use std::os::fd::{AsRawFd, OwnedFd};

use shared_ring::{OpKind, Token};

use super::reports::ReportList;
use crate::{Event, EventType, Group};

/// Identifies a socket, so that events of released sockets can be recognized (SEND 2.4.3). A slot
/// reuses an identifier after [`Token::GENERATIONS`] sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId {
    slot: u32,
    /// Number of earlier uses of the slot, modulo [`Token::GENERATIONS`].
    generation: u32,
}

impl SocketId {
    /// Returns the socket of an event: the new one for [`ACCEPT`](EventType::ACCEPT), the source
    /// for [`READY`](EventType::READY) and [`DATA`](EventType::DATA). Returns `None` for other
    /// event types.
    pub fn of(event: &Event) -> Option<Self> {
        let is_sockets =
            [EventType::ACCEPT, EventType::READY, EventType::DATA].contains(&event.kind);
        let (slot, generation) = (event.value as u32, (event.value >> 32) as u32);
        is_sockets.then_some(SocketId { slot, generation })
    }

    /// Returns the [`value`](Event::value) of its events.
    pub fn value(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Returns its slot, which is also its number as an origin of events.
    pub(crate) fn slot(self) -> u32 {
        self.slot
    }

    pub(crate) fn token(self, kind: OpKind) -> Token {
        Token::new(kind, self.slot, self.generation)
    }

    pub(crate) fn of_token(token: Token) -> Self {
        SocketId { slot: token.slot(), generation: token.generation() }
    }
}

/// Use of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Accepted, without events.
    Held,
    /// Listener with automatic accept. Connections are watched if they inherit a group.
    Listens(Option<Group>),
    /// Events report its state.
    Watched,
    /// Events report received data.
    Receives,
}

/// State of one slot.
#[derive(Debug)]
pub(crate) struct SocketEntry {
    /// `None` if the slot is vacant.
    pub(crate) fd: Option<OwnedFd>,
    generation: u32,
    pub(crate) role: Role,
    pub(crate) group: Group,
    /// State reported by the ring but not by an event, or data not taken, as in poll(2).
    pub(crate) unreported: u32,
    /// Its operation has failed and is not restarted.
    pub(crate) failed: bool,
    /// Reports of received data.
    pub(crate) reports: ReportList,
    /// Reason why receiving stopped: 0 at the end of the stream, otherwise the errno.
    pub(crate) end: Option<i32>,
}

/// A table of sockets.
#[derive(Debug)]
pub(crate) struct SocketTable {
    table: Box<[SocketEntry]>,
    vacant: Vec<u32>,
}

impl SocketTable {
    pub(crate) fn new(max: u32) -> Self {
        let entry = |_| SocketEntry::new(None, 0, Role::Held, Group::FIRST);
        SocketTable { table: (0..max).map(entry).collect(), vacant: (0..max).rev().collect() }
    }

    /// Returns the maximum number of sockets.
    pub(crate) fn max(&self) -> u32 {
        self.table.len() as u32
    }

    pub(crate) fn is_full(&self) -> bool {
        self.vacant.is_empty()
    }

    /// Adds a socket. Returns `None` and closes it if the table is full.
    pub(crate) fn put(&mut self, fd: OwnedFd, role: Role, group: Group) -> Option<SocketId> {
        let slot = self.vacant.pop()?;
        let entry = &mut self.table[slot as usize];
        *entry = SocketEntry::new(Some(fd), entry.generation, role, group);
        Some(SocketId { slot, generation: entry.generation })
    }

    /// Removes a socket. Its identifier becomes invalid.
    pub(crate) fn take(&mut self, socket: SocketId) -> Option<OwnedFd> {
        let entry = self.get(socket)?;
        entry.generation = (entry.generation + 1) % Token::GENERATIONS;
        let fd = entry.fd.take();
        // `vacant` has capacity for all slots.
        self.vacant.push(socket.slot);
        fd
    }

    /// Returns the descriptor of a socket, if it was not removed.
    pub(crate) fn descriptor(&self, socket: SocketId) -> Option<i32> {
        Some(self.current(socket)?.fd.as_ref()?.as_raw_fd())
    }

    /// Returns all sockets with their roles.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (&OwnedFd, Role)> {
        self.table.iter().filter_map(|entry| Some((entry.fd.as_ref()?, entry.role)))
    }

    /// Returns whether a socket has something to report.
    pub(crate) fn has_unreported(&self, socket: SocketId) -> bool {
        self.current(socket).is_some_and(|entry| entry.unreported != 0)
    }

    fn current(&self, socket: SocketId) -> Option<&SocketEntry> {
        let entry = self.table.get(socket.slot as usize)?;
        (entry.fd.is_some() && entry.generation == socket.generation).then_some(entry)
    }

    /// Returns a socket's state, if it was not removed.
    pub(crate) fn get(&mut self, socket: SocketId) -> Option<&mut SocketEntry> {
        let entry = self.table.get_mut(socket.slot as usize)?;
        (entry.fd.is_some() && entry.generation == socket.generation).then_some(entry)
    }
}

impl SocketEntry {
    fn new(fd: Option<OwnedFd>, generation: u32, role: Role, group: Group) -> Self {
        let (reports, end) = (ReportList::default(), None);
        SocketEntry { fd, generation, role, group, unreported: 0, failed: false, reports, end }
    }
}
