//! The sockets that tell of themselves: their names, and how far each has come.
//!
//! The table is there before them, so that a connection can be taken in by a signal handler.

use std::os::fd::{AsRawFd, OwnedFd};

use shared_ring::{OpKind, Token};

use super::reports::ReportList;
use crate::{Event, EventType, Group};

/// The name of a socket: events of one that is gone (SEND 2.4.3) are known by it. A slot has the same name
/// again after [`Token::GENERATIONS`] sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId {
    slot: u32,
    /// How often the slot was used before, modulo [`Token::GENERATIONS`].
    generation: u32,
}

impl SocketId {
    /// The socket that an event is about: of [`ACCEPT`](EventType::ACCEPT) the new one, of
    /// [`READY`](EventType::READY) and [`DATA`](EventType::DATA) the one that tells. None of other types
    /// of events.
    pub fn of(event: &Event) -> Option<Self> {
        let tells = [EventType::ACCEPT, EventType::READY, EventType::DATA].contains(&event.kind);
        let (slot, generation) = (event.value as u32, (event.value >> 32) as u32);
        tells.then_some(SocketId { slot, generation })
    }

    /// The [`value`](Event::value) of its events.
    pub fn value(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Where it stands, which is also its number as an origin of events.
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

/// What is done with a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It was accepted, and tells nothing.
    Held,
    /// Its connections are accepted; they are watched if they inherit a group.
    Listens(Option<Group>),
    /// It tells of its state.
    Watched,
    /// It tells of what it has received.
    Receives,
}

/// A socket.
#[derive(Debug)]
pub(crate) struct SocketEntry {
    /// None when the place is vacant.
    pub(crate) fd: Option<OwnedFd>,
    generation: u32,
    pub(crate) role: Role,
    pub(crate) group: Group,
    /// Of what was reported and not told since, or received and not taken, in the format of poll(2).
    pub(crate) news: u32,
    /// It can't tell any more, and nothing is asked of it.
    pub(crate) failed: bool,
    /// What was received, as it was reported.
    pub(crate) reports_left: ReportList,
    /// Why it receives no more: 0 at the end of the stream, or an error's number.
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

    /// How many there may be.
    pub(crate) fn max(&self) -> u32 {
        self.table.len() as u32
    }

    pub(crate) fn is_full(&self) -> bool {
        self.vacant.is_empty()
    }

    /// Takes a socket in, and names it; none when there is no room, and it is closed.
    pub(crate) fn put(&mut self, fd: OwnedFd, role: Role, group: Group) -> Option<SocketId> {
        let slot = self.vacant.pop()?;
        let entry = &mut self.table[slot as usize];
        *entry = SocketEntry::new(Some(fd), entry.generation, role, group);
        Some(SocketId { slot, generation: entry.generation })
    }

    /// Takes a socket out. Its name is not used again.
    pub(crate) fn take(&mut self, socket: SocketId) -> Option<OwnedFd> {
        let entry = self.get(socket)?;
        entry.generation = (entry.generation + 1) % Token::GENERATIONS;
        let fd = entry.fd.take();
        // There is room for every place.
        self.vacant.push(socket.slot);
        fd
    }

    /// The descriptor of a socket, if it is there still.
    pub(crate) fn descriptor(&self, socket: SocketId) -> Option<i32> {
        Some(self.current(socket)?.fd.as_ref()?.as_raw_fd())
    }

    /// Whether a socket has anything to tell.
    pub(crate) fn has_news(&self, socket: SocketId) -> bool {
        self.current(socket).is_some_and(|entry| entry.news != 0)
    }

    fn current(&self, socket: SocketId) -> Option<&SocketEntry> {
        let entry = self.table.get(socket.slot as usize)?;
        (entry.fd.is_some() && entry.generation == socket.generation).then_some(entry)
    }

    /// A socket, if it is there still.
    pub(crate) fn get(&mut self, socket: SocketId) -> Option<&mut SocketEntry> {
        let entry = self.table.get_mut(socket.slot as usize)?;
        (entry.fd.is_some() && entry.generation == socket.generation).then_some(entry)
    }
}

impl SocketEntry {
    fn new(fd: Option<OwnedFd>, generation: u32, role: Role, group: Group) -> Self {
        let (reports_left, end) = (ReportList::default(), None);
        SocketEntry { fd, generation, role, group, news: 0, failed: false, reports_left, end }
    }
}
