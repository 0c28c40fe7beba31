//! Listening sockets and their accept queues.

use std::collections::VecDeque;
use std::net::SocketAddr;

use rustix::io::Errno;
use shared_ring::Fd;

use super::listener::Listener;
use super::{DescriptorKind, SimState};
use crate::fault::Fault;
use crate::stream::{End, Owner};

/// The first port of the program's and its peers' own choice.
const FIRST_PORT: u16 = 10_001;

impl SimState {
    pub(crate) fn listen(
        &mut self,
        at: SocketAddr,
        max: usize,
        owner: Owner,
    ) -> Result<(u32, SocketAddr), Errno> {
        let at = if at.port() == 0 { self.new_address(at) } else { at };
        if self.listener(at).is_some() {
            return Err(Errno::ADDRINUSE);
        }
        self.listeners.push(Listener { at, queue: VecDeque::new(), max, unsent_limit: 0, owner });
        Ok((self.listeners.len() as u32 - 1, at))
    }

    pub(crate) fn set_listener_owner(&mut self, listener: u32, owner: Owner) {
        self.listeners[listener as usize].owner = owner;
    }

    pub(crate) fn set_backlog(&mut self, listener: u32, max: usize) {
        self.listeners[listener as usize].max = max;
    }

    pub(crate) fn backlog(&self, listener: u32) -> usize {
        self.listeners[listener as usize].max
    }

    pub(crate) fn queue_length(&self, listener: u32) -> usize {
        self.listeners[listener as usize].queue.len()
    }

    /// Sets the limit of unsent bytes of a connection, or of those that a listener accepts; 0 for none.
    pub(crate) fn set_unsent_limit(&mut self, fd: Fd, bytes: usize) -> Result<(), Errno> {
        if let DescriptorKind::Listener(listener) = *self.kind(fd, "setsockopt")? {
            self.listeners[listener as usize].unsent_limit = bytes;
        } else {
            let end = self.connected(fd, "setsockopt")?;
            self.connection_of(end).set_unsent_limit(end.side, bytes);
        }
        Ok(())
    }

    /// Returns an address with the next port; after the last one, the first follows.
    pub(super) fn new_address(&mut self, like: SocketAddr) -> SocketAddr {
        self.last_port = self.last_port.checked_add(1).unwrap_or(FIRST_PORT);
        SocketAddr::new(like.ip(), self.last_port)
    }

    pub(super) fn listener(&self, at: SocketAddr) -> Option<usize> {
        self.listeners.iter().position(|l| l.at == at && l.owner != Owner::Closed)
    }

    pub(super) fn close_listener(&mut self, listener: u32) {
        self.listeners[listener as usize].owner = Owner::Closed;
        while let Some(connection) = self.listeners[listener as usize].queue.pop_front() {
            self.mark_disrupted(connection);
            self.close_end(End { connection, side: 1 }, true);
        }
    }

    pub(crate) fn has_pending(&self, listener: u32) -> bool {
        !self.listeners[listener as usize].queue.is_empty()
    }

    /// Returns the listener of a peer.
    pub(crate) fn listener_of(&self, peer: u32) -> Option<u32> {
        let at = self.listeners.iter().position(|l| l.owner == Owner::Peer(peer));
        at.map(|at| at as u32)
    }

    /// Takes the oldest connection from a listener's queue.
    pub(crate) fn pop_pending(&mut self, listener: u32) -> Option<End> {
        let connection = self.listeners[listener as usize].queue.pop_front()?;
        Some(End { connection, side: 1 })
    }

    /// Accepts for the program. Like the kernel it allocates the descriptor first: if none is free
    /// it fails even if the queue is empty, and queued connections stay queued.
    pub(crate) fn accept(&mut self, fd: Fd) -> Result<Fd, Errno> {
        let DescriptorKind::Listener(listener) = *self.kind(fd, "accept")? else {
            self.fail(format!("accept: {fd:?} is not a listener"));
            return Err(Errno::INVAL);
        };
        let accepted = self.accept_from(listener);
        if accepted != Err(Errno::AGAIN) {
            self.note(|| format!("accept at {fd:?}: {accepted:?}"));
        }
        accepted
    }

    pub(super) fn accept_from(&mut self, listener: u32) -> Result<Fd, Errno> {
        if self.rng.fault(Fault::TableFull) {
            return Err(Errno::NFILE);
        }
        let new = self.open(DescriptorKind::Fresh)?;
        let Some(end) = self.pop_pending(listener) else {
            self.discard(new);
            return Err(Errno::AGAIN);
        };
        if self.rng.fault(Fault::AcceptAborted) {
            self.discard(new);
            self.mark_disrupted(end.connection);
            self.close_end(end, true);
            return Err(Errno::CONNABORTED);
        }
        *self.kind(new, "accept")? = DescriptorKind::Connected(end);
        self.set_owner(end, Owner::Descriptor(new.raw() as u32));
        let limit = self.listeners[listener as usize].unsent_limit;
        self.connection_of(end).set_unsent_limit(end.side, limit);
        self.usage.accepted(new);
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    #[test]
    fn ports_overflowed_after_many_connections() {
        let mut state = SimState::new(&Plan::default());
        let like = SocketAddr::from(([10, 0, 0, 1], 0));
        let last = (0..60_000).map(|_| state.new_address(like).port()).last();
        assert_eq!(last, Some(FIRST_PORT + (59_999 - (u16::MAX - FIRST_PORT) - 1)));
    }
}
