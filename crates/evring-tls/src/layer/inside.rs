//! The commands for an application inside a layer.

use std::any::Any;
use std::time::Instant;

use evring::layers::Forward;
use evring::{Chunk, Close, Commands, ConnId};

use super::session::Session;
use super::transform::Transform;

/// Connections of a layer, by slot: a command may refer to any of them.
#[derive(Debug)]
pub(super) struct Sessions<T> {
    slots: Vec<Option<Session<T>>>,
    /// Connections with reserved memory that the application is filling.
    reserved: Vec<ConnId>,
}

impl<T> Default for Sessions<T> {
    fn default() -> Self {
        Sessions { slots: Vec::new(), reserved: Vec::new() }
    }
}

impl<T: Transform> Sessions<T> {
    pub(super) fn begin(&mut self, id: ConnId, transform: T) {
        let slot = id.slot() as usize;
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(Session::new(id, transform));
    }

    pub(super) fn get(&mut self, id: ConnId) -> Option<&mut Session<T>> {
        self.slots.get_mut(id.slot() as usize)?.as_mut().filter(|session| session.id == id)
    }

    /// Returns the transformation of a connection.
    fn transform(&self, id: ConnId) -> Option<&T> {
        self.find(id).map(|session| &session.transform)
    }

    pub(super) fn find(&self, id: ConnId) -> Option<&Session<T>> {
        self.slots.get(id.slot() as usize)?.as_ref().filter(|session| session.id == id)
    }

    pub(super) fn remove(&mut self, id: ConnId) {
        if self.get(id).is_some() {
            self.slots[id.slot() as usize] = None;
        }
    }

    pub(super) fn send_reserved(&mut self, io: &mut dyn Commands) {
        while let Some(id) = self.reserved.pop() {
            if let Some(session) = self.get(id) {
                session.pump(io);
            }
        }
    }
}

/// Forwards commands with the bytes transformed. The commands inside are an object, so that an application in
/// a layer is compiled once for all mechanisms.
pub(super) struct LayerCommands<'a, T> {
    pub io: &'a mut (dyn Commands + 'a),
    pub sessions: &'a mut Sessions<T>,
}

impl<'a, T: Transform> Forward for LayerCommands<'a, T> {
    type Inner = dyn Commands + 'a;

    fn inner(&self) -> &Self::Inner {
        self.io
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        self.io
    }

    fn session(&self, id: ConnId) -> Option<&dyn Any> {
        match self.sessions.transform(id) {
            Some(transform) => Some(transform),
            None => self.io.session(id),
        }
    }

    fn send(&mut self, to: ConnId, chunk: Chunk<'_>) -> usize {
        match self.sessions.get(to) {
            Some(session) => session.send(self.io, chunk),
            None => self.io.send(to, chunk),
        }
    }

    fn reserve(&mut self, to: ConnId, n: usize) -> &mut [u8] {
        if self.sessions.get(to).is_none() {
            return self.io.reserve(to, n);
        }
        self.sessions.reserved.push(to);
        self.sessions.get(to).expect("checked above").reserve(self.io, n)
    }

    fn unsent_bytes(&self, id: ConnId) -> u64 {
        let unsealed = self.sessions.find(id).map_or(0, Session::unsealed_bytes);
        self.io.unsent_bytes(id).saturating_add(unsealed)
    }

    fn queued_bytes(&self, id: ConnId) -> u64 {
        let queued = self.sessions.find(id).map_or(0, Session::queued_bytes);
        self.io.queued_bytes(id).saturating_add(queued)
    }

    fn is_receiving(&self, id: ConnId) -> bool {
        match self.sessions.find(id) {
            Some(session) => session.is_receiving(),
            None => self.io.is_receiving(id),
        }
    }

    fn is_closing(&self, id: ConnId) -> bool {
        match self.sessions.find(id) {
            Some(session) => !session.app_reads(),
            None => self.io.is_closing(id),
        }
    }

    fn set_receiving(&mut self, id: ConnId, on: bool) {
        match self.sessions.get(id) {
            Some(session) => session.receive(self.io, on),
            None => self.io.set_receiving(id, on),
        }
    }

    fn set_deadline(&mut self, id: ConnId, at: Option<Instant>) {
        if !self.sessions.find(id).is_some_and(Session::is_flushing) {
            self.io.set_deadline(id, at);
        }
    }

    fn close(&mut self, id: ConnId, how: Close) {
        match self.sessions.get(id) {
            Some(session) => session.close(self.io, how),
            None => self.io.close(id, how),
        }
    }
}
