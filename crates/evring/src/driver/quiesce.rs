//! Ends connections that do nothing, without losing what their peers have sent.

use std::time::{Duration, Instant};

use shared_ring::{Errno, Host, Submit};

use super::Driver;
use super::connection::{ConnFlags, Phase};
use crate::{Application, Close, Commands, Cx, Listener};

/// How often connections are looked through for idle ones, while others wait for their room.
const SEARCH_INTERVAL: Duration = Duration::from_millis(10);

/// The most connections that are ended in one search.
const MAX_ENDED: usize = 64;

impl<K: Submit, A: Application> Driver<K, A> {
    /// Closes the listeners, and asks the application about every connection.
    pub(super) fn stop(&mut self) {
        self.io.stopping = true;
        for listener in 0..self.io.listeners.len() {
            self.accept_waiting(listener);
        }
        for slot in 0..self.io.connections.len() as u32 {
            let connection = self.io.connection(slot);
            if connection.close.is_some() {
                continue;
            }
            match connection.phase {
                Phase::Connecting => {
                    call!(self, slot, stopping);
                }
                Phase::Open => self.quiesce(slot),
                _ => continue,
            }
            self.flush();
        }
    }

    /// Accepts the connections that wait in a listener's queue: closing the listener would reset them. Those
    /// for which there is no room are reset, and counted.
    fn accept_waiting(&mut self, listener: usize) {
        let length = self.io.listeners[listener].length();
        // The kernel lets one more wait than was asked for.
        for _ in 0..=length {
            let state = &self.io.listeners[listener];
            let has_room = !state.is_off() && self.io.accepts();
            let Some(socket) = state.socket() else { return };
            match self.io.kernel.host_mut().accept(socket) {
                Ok(peer) if !has_room => {
                    self.io.stats.reset_at_stop += 1;
                    self.reset(peer, None);
                }
                Ok(peer) => self.accepted(Listener(listener as u16), peer),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
            self.flush();
        }
    }

    /// Has the application asked about a connection once it has seen what has arrived.
    pub(super) fn quiesce(&mut self, slot: u32) {
        self.io.connection(slot).flags |= ConnFlags::QUIESCING;
        self.io.mark_dirty(slot);
    }

    /// Goes on with that. The receive in flight may have landed, so it has to end first; and what is in
    /// the socket by then comes before the end of the connection.
    pub(super) fn continue_quiescing(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        let asks = connection.phase == Phase::Open && connection.close.is_none();
        if asks && connection.has(ConnFlags::RECEIVING) {
            return self.cancel_receive(slot);
        }
        let receives = asks && !connection.flags.intersects(ConnFlags::PAUSED | ConnFlags::EOF);
        let socket = self.io.connections[slot as usize].socket.as_ref().filter(|_| receives);
        let has_more = socket.is_some_and(|socket| self.io.kernel.host().unread(socket) > 0);
        // What was left by a pause comes before, too.
        let resumes = receives && self.io.connection(slot).has(ConnFlags::RESUMED);
        if (has_more || resumes) && self.io.stopping {
            return;
        }
        let connection = self.io.connection(slot);
        connection.flags -= ConnFlags::QUIESCING;
        if !asks {
            return;
        }
        if self.io.stopping {
            call!(self, slot, stopping);
        } else if !has_more && self.is_idle(slot) && self.io.unsent_bytes(self.io.conn(slot)) == 0 {
            self.io.stats.idle_closed += 1;
            self.io.connection(slot).close = Some(Close::Flush);
        }
    }

    fn is_idle(&mut self, slot: u32) -> bool {
        self.io.connection(slot).is_quiet() && self.app.is_idle(self.states.at(slot as usize))
    }

    /// Makes room for connections that wait, by ending those that have been idle for longest.
    pub(super) fn close_idle_for_waiting(&mut self) {
        let now = self.io.kernel.now();
        let waits = !self.io.deferred.is_empty() && !self.io.has_room() && !self.io.stopping;
        if !waits || now < self.io.next_search {
            return;
        }
        self.io.next_search = now + SEARCH_INTERVAL;
        let wanted = self.io.deferred.len().min(MAX_ENDED);
        // An application sets its deadlines by when a connection became idle. Those that have not asked for
        // anything yet come last.
        let mut idle: Vec<(bool, Option<Instant>, u32)> = Vec::new();
        for slot in 0..self.io.connections.len() as u32 {
            if self.is_idle(slot) {
                let is_new = self.io.connection(slot).has(ConnFlags::UNSERVED);
                idle.push((is_new, self.io.wheel.deadline(slot), slot));
            }
        }
        idle.sort_unstable();
        let mut ended = 0;
        for (_, _, slot) in idle {
            if ended == wanted {
                break;
            }
            // What its peer has not taken must not be lost.
            if self.io.unsent_bytes(self.io.conn(slot)) == 0 {
                self.quiesce(slot);
                ended += 1;
            }
        }
        self.flush();
    }
}
