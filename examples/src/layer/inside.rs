//! The commands as an application inside a layer sees them.

use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use multiplex::{Admit, Chunk, Close, Commands, Conn, FileOp, Lateness, Listener, Stats};

use super::session::Session;
use crate::Transform;

/// The connections of a layer, by slot: a command may name any of them, not only the one that a
/// callback is about.
#[derive(Debug)]
pub(super) struct Sessions<T> {
    slots: Vec<Option<Session<T>>>,
    /// Those with reserved memory that the application is filling in.
    reserved: Vec<Conn>,
}

impl<T> Default for Sessions<T> {
    fn default() -> Self {
        Sessions { slots: Vec::new(), reserved: Vec::new() }
    }
}

impl<T: Transform> Sessions<T> {
    pub(super) fn begin(&mut self, id: Conn, transform: T) {
        let slot = id.slot() as usize;
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(Session::new(id, transform));
    }

    pub(super) fn get(&mut self, id: Conn) -> Option<&mut Session<T>> {
        self.slots.get_mut(id.slot() as usize)?.as_mut().filter(|session| session.id == id)
    }

    pub(super) fn end(&mut self, id: Conn) -> Option<Session<T>> {
        self.get(id)?;
        self.slots[id.slot() as usize].take()
    }

    pub(super) fn send_reserved(&mut self, io: &mut impl Commands) {
        while let Some(id) = self.reserved.pop() {
            if let Some(session) = self.get(id) {
                session.pump(io);
            }
        }
    }
}

/// Passes commands on, with the bytes transformed.
pub(super) struct Inside<'a, C, T> {
    pub io: &'a mut C,
    pub sessions: &'a mut Sessions<T>,
}

impl<C: Commands, T: Transform> Commands for Inside<'_, C, T> {
    fn send(&mut self, to: Conn, chunk: Chunk<'_>) -> usize {
        match self.sessions.get(to) {
            Some(session) => session.send(self.io, chunk),
            None => self.io.send(to, chunk),
        }
    }

    fn reserve(&mut self, to: Conn, n: usize) -> &mut [u8] {
        if self.sessions.get(to).is_none() {
            return self.io.reserve(to, n);
        }
        self.sessions.reserved.push(to);
        self.sessions.get(to).expect("was there a line above").reserve(self.io, n)
    }

    fn receive(&mut self, id: Conn, on: bool) {
        match self.sessions.get(id) {
            Some(session) => session.receive(self.io, on),
            None => self.io.receive(id, on),
        }
    }

    fn close(&mut self, id: Conn, how: Close) {
        match self.sessions.get(id) {
            Some(session) => session.close(self.io, how),
            None => self.io.close(id, how),
        }
    }

    fn now(&self) -> Instant {
        self.io.now()
    }

    fn wall(&self) -> SystemTime {
        self.io.wall()
    }

    fn random(&mut self) -> u64 {
        self.io.random()
    }

    fn connect(&mut self, to: SocketAddr) -> Conn {
        self.io.connect(to)
    }

    fn file(&mut self, on: Conn, tag: u32, op: FileOp) {
        self.io.file(on, tag, op);
    }

    fn deadline(&mut self, id: Conn, at: Option<Instant>) {
        self.io.deadline(id, at);
    }

    fn unsent(&self, id: Conn) -> u64 {
        self.io.unsent(id)
    }

    fn peer(&self, id: Conn) -> Option<SocketAddr> {
        self.io.peer(id)
    }

    fn admit(&mut self, at: Listener, how: Admit) {
        self.io.admit(at, how);
    }

    fn lateness(&self, id: Conn) -> Lateness {
        self.io.lateness(id)
    }

    fn stats(&self) -> Stats {
        self.io.stats()
    }

    fn stopping(&self) -> bool {
        self.io.stopping()
    }

    fn pending(&self) -> bool {
        self.io.pending()
    }
}
