//! The sockets that tell of themselves: their names, and how far each has come.
//!
//! The table is there before them, so that a connection can be taken in by a signal handler.

use std::os::fd::{AsRawFd, OwnedFd};

use shared_ring::{Kind, Token};

use super::reports::Pieces;
use crate::{Event, EventType, Group};

/// The name of a socket: events of one that is gone (SEND 2.4.3) are known by it. A slot has the same name
/// again after [`Token::GENERATIONS`] sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Socket {
    slot: u32,
    /// How often the slot was used before, modulo [`Token::GENERATIONS`].
    generation: u32,
}

impl Socket {
    /// The socket that an event is about: of [`ACCEPT`](EventType::ACCEPT) the new one, of
    /// [`READY`](EventType::READY) and [`DATA`](EventType::DATA) the one that tells. None of other types
    /// of events.
    pub fn of(event: &Event) -> Option<Self> {
        let tells = [EventType::ACCEPT, EventType::READY, EventType::DATA].contains(&event.kind);
        let (slot, generation) = (event.value as u32, (event.value >> 32) as u32);
        tells.then_some(Socket { slot, generation })
    }

    /// The [`value`](Event::value) of its events.
    pub fn value(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Where it stands, which is also its number as an origin of events.
    pub(crate) fn slot(self) -> u32 {
        self.slot
    }

    pub(crate) fn token(self, kind: Kind) -> Token {
        Token::new(kind, self.slot, self.generation)
    }

    pub(crate) fn of_token(token: Token) -> Self {
        Socket { slot: token.slot(), generation: token.generation() }
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
pub(crate) struct Place {
    /// None when the place is vacant.
    pub(crate) fd: Option<OwnedFd>,
    generation: u32,
    pub(crate) role: Role,
    pub(crate) group: Group,
    /// Of what was reported and not told since, or received and not taken, in the format of poll(2).
    pub(crate) news: u32,
    /// What has happened to it that it can't be asked about: POLLERR when it can't tell any more.
    pub(crate) failed: u32,
    /// What was received, as it was reported.
    pub(crate) pieces: Pieces,
    /// Why it receives no more: 0 at the end of the stream, or an error's number.
    pub(crate) end: Option<i32>,
}

/// A table of sockets.
#[derive(Debug)]
pub(crate) struct Places {
    places: Box<[Place]>,
    vacant: Vec<u32>,
}

impl Places {
    pub(crate) fn new(most: u32) -> Self {
        let place = |_| Place::new(None, 0, Role::Held, Group::FIRST);
        Places { places: (0..most).map(place).collect(), vacant: (0..most).rev().collect() }
    }

    /// How many there may be.
    pub(crate) fn most(&self) -> u32 {
        self.places.len() as u32
    }

    pub(crate) fn is_full(&self) -> bool {
        self.vacant.is_empty()
    }

    /// Takes a socket in, and names it; none when there is no room, and it is closed.
    pub(crate) fn put(&mut self, fd: OwnedFd, role: Role, group: Group) -> Option<Socket> {
        let slot = self.vacant.pop()?;
        let place = &mut self.places[slot as usize];
        *place = Place::new(Some(fd), place.generation, role, group);
        Some(Socket { slot, generation: place.generation })
    }

    /// Takes a socket out. Its name is not used again.
    pub(crate) fn take(&mut self, socket: Socket) -> Option<OwnedFd> {
        let place = self.get(socket)?;
        place.generation = (place.generation + 1) % Token::GENERATIONS;
        let fd = place.fd.take();
        // There is room for every place.
        self.vacant.push(socket.slot);
        fd
    }

    /// The descriptor of a socket, if it is there still.
    pub(crate) fn descriptor(&self, socket: Socket) -> Option<i32> {
        Some(self.current(socket)?.fd.as_ref()?.as_raw_fd())
    }

    /// Whether a socket has anything to tell.
    pub(crate) fn has_news(&self, socket: Socket) -> bool {
        self.current(socket).is_some_and(|place| place.news != 0)
    }

    fn current(&self, socket: Socket) -> Option<&Place> {
        let place = self.places.get(socket.slot as usize)?;
        (place.fd.is_some() && place.generation == socket.generation).then_some(place)
    }

    /// A socket, if it is there still.
    pub(crate) fn get(&mut self, socket: Socket) -> Option<&mut Place> {
        let place = self.places.get_mut(socket.slot as usize)?;
        (place.fd.is_some() && place.generation == socket.generation).then_some(place)
    }
}

impl Place {
    fn new(fd: Option<OwnedFd>, generation: u32, role: Role, group: Group) -> Self {
        let (pieces, end) = (Pieces::default(), None);
        Place { fd, generation, role, group, news: 0, failed: 0, pieces, end }
    }
}
