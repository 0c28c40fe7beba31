//! Closing of idle connections without losing bytes that their peers have sent.

use std::time::{Duration, Instant};

use shared_ring::nonblocking::{is_aborted_accept, is_fd_limit};
use shared_ring::{Errno, Host, Submit};

use super::Driver;
use super::connection::{ConnFlags, Connection, Phase};
use super::io::Io;
use super::listener::ListenerState;
use crate::{Application, Close, Commands, Cx, Listener};

/// Interval between searches for idle connections while others wait for room.
const SEARCH_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of connections closed in one search.
const MAX_ENDED: usize = 64;

impl<K: Submit, A: Application> Driver<K, A> {
    /// Closes the listeners and asks the application about every connection that it has not closed.
    pub(super) fn stop(&mut self) {
        self.io.stopping = true;
        for slot in 0..self.io.connections.len() as u32 {
            let connection = self.io.connection(slot);
            if connection.close.is_some_and(|how| how != Close::Half) {
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

    /// Closes the listeners; the connections go on.
    pub(super) fn retire(&mut self) {
        self.io.retiring = true;
    }

    /// Closes the listeners, each once its accept has ended and its backlog is empty.
    pub(super) fn close_listeners(&mut self) {
        for listener in 0..self.io.listeners.len() {
            let Io { listeners, kernel, .. } = &mut self.io;
            let state = &mut listeners[listener];
            // Other owners of the socket have no part in this server's overload.
            state.lift_limit(kernel);
            state.clear_retry();
            if state.is_accepting() || self.empty_backlog(listener) {
                let Io { listeners, kernel, .. } = &mut self.io;
                listeners[listener].close(kernel);
            }
        }
        if self.io.listeners.iter().all(ListenerState::is_closed) {
            self.remote.set_listeners_closed();
        }
    }

    /// Accepts the connections in a listener's backlog: closing the listener would reset them. If another process
    /// has the socket, too, it was not woken for those that woke an accept that was being cancelled (as io_uring
    /// wakes one accept of a socket). Returns false if some wait for room.
    fn empty_backlog(&mut self, listener: usize) -> bool {
        loop {
            let state = &self.io.listeners[listener];
            let Some(socket) = state.socket() else { return true };
            let resets = match self.io.last_accept(state) {
                LastAccept::Admits => false,
                LastAccept::Resets => true,
                LastAccept::WaitsForRoom => return false,
                LastAccept::Stops => return true,
            };
            let accepted = self.io.kernel.host_mut().accept(socket);
            if accepted.as_ref().is_err_and(|errno| is_fd_limit(*errno)) {
                let is_own = self.io.stopping && !self.io.retiring && !state.is_shared();
                // A connection that closes returns its descriptor.
                return !(is_own && self.io.gets_room());
            }
            self.io.listeners[listener].taken_at_end += 1;
            match accepted {
                Ok(peer) if resets => {
                    self.io.stats.reset_at_stop += 1;
                    self.reset(peer, None);
                }
                Ok(peer) => self.accepted(Listener(listener as u16), peer),
                Err(errno) if errno == Errno::INTR || is_aborted_accept(errno) => {}
                Err(_) => return true,
            }
            self.flush();
        }
    }

    /// Asks the application whether a connection may close, once it has received all bytes.
    pub(super) fn quiesce(&mut self, slot: u32) {
        self.io.connection(slot).flags |= ConnFlags::QUIESCING;
        self.io.mark_dirty(slot);
    }

    /// Continues to quiesce. The receive in flight may have completed, so it must end first. Bytes in the
    /// socket are received before the connection closes.
    pub(super) fn continue_quiescing(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        let is_open = connection.app_reads();
        if is_open && connection.has(ConnFlags::RECEIVING) {
            return self.cancel_receive(slot);
        }
        let reads = is_open && !connection.is_paused() && !connection.has(ConnFlags::EOF);
        let socket = self.io.connections[slot as usize].socket.as_ref().filter(|_| reads);
        let has_more = socket.is_some_and(|socket| self.io.kernel.host().unread(socket) > 0);
        // Bytes left since a pause come first, too.
        let resumes = reads && self.io.connection(slot).has(ConnFlags::RESUMED);
        if (has_more || resumes) && self.io.stopping {
            return;
        }
        let connection = self.io.connection(slot);
        connection.flags -= ConnFlags::QUIESCING;
        if !is_open {
            return;
        }
        if self.io.stopping {
            call!(self, slot, stopping);
        } else if !has_more && self.is_idle(slot) && self.io.unsent_bytes(self.io.conn(slot)) == 0 {
            self.io.stats.idle_closed += 1;
            call!(self, slot, evicting);
            let connection = self.io.connection(slot);
            connection.flags |= ConnFlags::EVICTED;
            // One that lingers would keep its place for seconds.
            if connection.close != Some(Close::Reset) {
                connection.close = Some(Close::Flush);
            }
        }
    }

    fn is_idle(&mut self, slot: u32) -> bool {
        let id = self.io.conn(slot);
        self.io.connection(slot).is_quiet() && self.app.is_idle(id, self.states.at(slot))
    }

    /// Returns whether no request has arrived on an idle connection.
    fn is_unserved(&mut self, slot: u32) -> bool {
        let id = self.io.conn(slot);
        self.io.connection(slot).has(ConnFlags::UNSERVED)
            || self.app.is_unserved(id, self.states.at(slot))
    }

    /// Makes room for waiting connections by closing those that have been idle for longest.
    pub(super) fn close_idle_for_waiting(&mut self) {
        let now = self.io.kernel.now();
        let needs_room = !self.io.deferred.is_empty() && !self.io.has_room() && !self.io.stopping;
        if !needs_room || now < self.io.next_search {
            return;
        }
        self.io.next_search = now + SEARCH_INTERVAL;
        let queued: usize = match self.io.shares {
            // Those beyond the limits of their addresses would take no place.
            Some(_) => 0,
            None => self.io.listeners.iter().map(|state| queued(state, &self.io.kernel)).sum(),
        };
        // Their places are not free yet.
        let is_chosen = |connection: &&Connection| {
            connection.flags.intersects(ConnFlags::QUIESCING | ConnFlags::EVICTED)
        };
        let chosen = self.io.connections.iter().filter(is_chosen).count();
        let wanted = (self.io.deferred.len() + queued).min(MAX_ENDED).saturating_sub(chosen);
        // Applications set deadlines from the time when a connection became idle. Connections without a
        // request yet come last.
        let mut idle: Vec<(bool, Option<Instant>, u32)> = Vec::new();
        for slot in 0..self.io.connections.len() as u32 {
            if self.is_idle(slot) && !self.io.connection(slot).has(ConnFlags::QUIESCING) {
                idle.push((self.is_unserved(slot), self.io.wheel.deadline(slot), slot));
            }
        }
        idle.sort_unstable();
        let mut ended = 0;
        for (_, _, slot) in idle {
            if ended == wanted {
                break;
            }
            // Bytes that the peer has not acknowledged must not be lost.
            if self.io.unsent_bytes(self.io.conn(slot)) == 0 {
                self.quiesce(slot);
                ended += 1;
            }
        }
        self.flush();
    }
}

/// What a server that ends does with the next connection in a listener's backlog.
enum LastAccept {
    Admits,
    Resets,
    WaitsForRoom,
    /// It accepts no more.
    Stops,
}

impl<K: Submit> Io<K> {
    /// Returns what to do with the next connection in a listener's backlog. If there is no room, a server that stops
    /// resets and counts it; one that retires, or whose socket another process keeps open, leaves it to other owners.
    fn last_accept(&self, state: &ListenerState) -> LastAccept {
        // The kernel queues one more connection than the backlog. Clients that come later do not keep the listener open.
        if state.taken_at_end > state.length() {
            return LastAccept::Stops;
        }
        if !state.is_off() && self.accepts() {
            return LastAccept::Admits;
        }
        if !self.stopping || self.retiring || state.is_shared() {
            return LastAccept::Stops;
        }
        if queued(state, &self.kernel) > 0 && self.gets_room() {
            return LastAccept::WaitsForRoom;
        }
        LastAccept::Resets
    }
}

/// Returns the number of connections that wait at a listener to be accepted.
fn queued<K: Submit>(state: &ListenerState, kernel: &K) -> usize {
    let socket = state.socket().filter(|_| !state.is_off());
    socket.and_then(|socket| kernel.host().queue_length(socket)).unwrap_or(0) as usize
}
