//! Commands: they record requests, which the driver executes after the callback.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};
use shared_ring::{Errno, Host, Op, OpKind, Outcome, Submit, Submitted};

use super::Io;
use crate::driver::connection::{ConnFlags, Connection, Phase};
use crate::driver::listener::ListenerState;
use crate::wheel::after;
use crate::{
    AcceptPolicy, Chunk, Close, CloseReason, Commands, ConnId, FileOp, Lateness, Listener, NoTimer,
    Stats,
};

/// Returns a number of bytes, or the largest one.
fn clamp(bytes: u128) -> u64 {
    bytes.try_into().unwrap_or(u64::MAX)
}

impl<K: Submit> Io<K> {
    /// Returns the number of bytes that were queued and that the peer has not acknowledged.
    pub(in crate::driver) fn unacknowledged(&self, id: ConnId) -> u128 {
        let Some(connection) = self.alive(id) else { return 0 };
        let socket = connection.socket.as_ref();
        let sent = socket.map_or(0, |socket| self.kernel.host().unacked_bytes(socket));
        connection.queued_bytes() + u128::from(sent)
    }
}

impl<K: Submit> Commands for Io<K> {
    fn now(&self) -> Instant {
        self.kernel.now()
    }

    fn wall_time(&self) -> SystemTime {
        self.kernel.host().wall_time()
    }

    fn random(&mut self) -> u64 {
        self.kernel.host_mut().random()
    }

    fn send(&mut self, to: ConnId, chunk: Chunk<'_>) -> usize {
        let Io { connections, spare, dirty, config, .. } = self;
        let connection =
            connections.get_mut(to.slot() as usize).filter(|connection| connection.is(to));
        let Some(connection) = connection.filter(|connection| connection.takes_sends()) else {
            chunk.discard();
            return 0;
        };
        let mut n = 0;
        if let Chunk::File(file, range) = chunk {
            if !range.is_empty() {
                connection.queue.push_file(file, range);
            }
        } else {
            let list = connection.queue.list(|| spare.pop().unwrap_or_default());
            let before = list.len();
            match chunk {
                Chunk::Copy(bytes) => list.copy(bytes),
                Chunk::Static(bytes) => list.constant(bytes),
                Chunk::Shared(bytes) => list.shared(bytes),
                Chunk::Received(bytes) => list.received(bytes),
                Chunk::File(..) => {}
            }
            n = list.len() - before;
        }
        connection.mark_dirty(to.slot(), dirty);
        connection.note_queued(n, config.max_queued_bytes)
    }

    fn reserve(&mut self, to: ConnId, n: usize) -> &mut [u8] {
        let Io { connections, spare, dirty, config, scratch, .. } = self;
        let connection =
            connections.get_mut(to.slot() as usize).filter(|connection| connection.is(to));
        let Some(connection) = connection.filter(|connection| connection.takes_sends()) else {
            *scratch = vec![0; n];
            return scratch;
        };
        connection.note_queued(n, config.max_queued_bytes);
        connection.mark_dirty(to.slot(), dirty);
        connection.queue.list(|| spare.pop().unwrap_or_default()).reserve(n)
    }

    fn connect(&mut self, to: SocketAddr) -> ConnId {
        let full = self.open >= self.config.max_connections;
        let slot = self.allocate_slot(Phase::Connecting);
        self.stats.connected += 1;
        let opened = if full {
            Err(Errno::NOBUFS.into())
        } else {
            self.kernel.host_mut().socket(to, None, self.config.socket_buffers)
        };
        let submitted = opened.and_then(|socket| {
            let token = self.token(OpKind::Connect, slot);
            let connection = self.connection(slot);
            connection.socket = Some(socket);
            let Some(fd) = connection.fd() else { unreachable!("the socket was just stored") };
            let op = Op::Connect { fd, to };
            self.kernel.submit(token, op).map_err(|_| Errno::NOBUFS.into())
        });
        match submitted {
            Ok(Submitted::InFlight) => {
                self.connection(slot).flags |= ConnFlags::CONNECTING_OR_CLOSING
            }
            Ok(Submitted::Done(outcome)) => {
                if let Outcome::Failed(errno, _) = outcome {
                    self.connection(slot).reason = Some(CloseReason::Failed(errno.into()));
                }
                self.schedule_revisit(slot);
            }
            Err(error) => {
                self.connection(slot).reason = Some(CloseReason::Failed(error));
                self.schedule_revisit(slot);
            }
        }
        self.conn(slot)
    }

    fn file_op(&mut self, on: ConnId, tag: u32, op: FileOp) {
        self.request_file_op(on, tag, op);
    }

    fn set_receiving(&mut self, id: ConnId, on: bool) {
        self.set_paused(id, ConnFlags::PAUSED, !on);
    }

    fn hold(&mut self, id: ConnId, on: bool) {
        self.set_paused(id, ConnFlags::HELD, on);
    }

    fn set_deadline(&mut self, id: ConnId, at: Option<Instant>) {
        let Some(connection) = self.alive_mut(id) else { return };
        if connection.close.is_some_and(|how| how != Close::Half) {
            return;
        }
        match at {
            Some(at) => self.wheel.set(id.slot(), at),
            None => self.wheel.clear(id.slot()),
        }
    }

    fn deadline(&self, id: ConnId) -> Option<Instant> {
        self.alive(id).and_then(|_| self.wheel.deadline(id.slot()))
    }

    fn set_timer(&mut self, timer: u32, at: Option<Instant>) -> Result<(), NoTimer> {
        let max_timers = self.config.max_timers;
        self.wheel.set_own(timer, at).then_some(()).ok_or(NoTimer { timer, max_timers })
    }

    fn busy_poll(&mut self, time: Duration) {
        let ends = after(self.kernel.now(), time);
        self.busy_poll_ends = self.busy_poll_ends.max(ends);
    }

    fn close(&mut self, id: ConnId, how: Close) {
        let Some(connection) = self.alive_mut(id) else { return };
        if connection.close.is_none_or(|before| abruptness(how) > abruptness(before)) {
            connection.close = Some(how);
            self.mark_dirty(id.slot());
        }
    }

    fn unsent_bytes(&self, id: ConnId) -> u64 {
        clamp(self.unacknowledged(id))
    }

    fn queued_bytes(&self, id: ConnId) -> u64 {
        let connection = self.connections.get(id.slot() as usize);
        let connection = connection.filter(|connection| connection.generation == id.generation());
        clamp(connection.map_or(0, Connection::queued_bytes))
    }

    fn is_receiving(&self, id: ConnId) -> bool {
        self.alive(id).is_some_and(|connection| !connection.has(ConnFlags::PAUSED))
    }

    fn is_open(&self, id: ConnId) -> bool {
        self.alive(id).is_some()
    }

    fn is_closing(&self, id: ConnId) -> bool {
        let closes = |how| how != Close::Half;
        self.alive(id).is_none_or(|connection| connection.close.is_some_and(closes))
    }

    fn next_open(&self, slot: u32) -> Option<ConnId> {
        let mut ids = (slot..self.connections.len() as u32).map(|slot| self.conn(slot));
        ids.find(|id| self.is_open(*id))
    }

    fn peer_addr(&self, id: ConnId) -> Option<SocketAddr> {
        self.kernel.host().peer_addr(self.alive(id)?.socket.as_ref()?)
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.last_group = self.kernel.add_buffers(buffers)?;
        Ok(self.last_group)
    }

    fn set_receive_group(&mut self, id: ConnId, group: BufferGroup) -> Result<(), BufferError> {
        self.check_group(group)?;
        let connection = self.alive_mut(id).ok_or(BufferError::Absent)?;
        if connection.has(ConnFlags::GROUP_FIXED) {
            return Err(BufferError::TooLate);
        }
        connection.group = group;
        Ok(())
    }

    fn receive_group(&self, id: ConnId) -> BufferGroup {
        self.alive(id).map_or(BufferGroup::DEFAULT, |connection| connection.group)
    }

    fn set_accept_policy(&mut self, at: Listener, how: AcceptPolicy) {
        if let Some(listener) = self.listeners.get_mut(usize::from(at.0)) {
            listener.set_policy(how, &mut self.kernel);
        }
    }

    fn lateness(&self, id: ConnId) -> Lateness {
        match self.alive(id).and_then(|connection| connection.socket.as_ref()) {
            // A client that still receives a reply has not waited for the next one.
            Some(socket) if self.load.is_overloaded() && self.unsent_bytes(id) == 0 => {
                self.load.lateness(self.kernel.host().idle_time(socket))
            }
            _ => Lateness::InTime,
        }
    }

    fn is_overloaded(&self) -> bool {
        self.load.is_overloaded()
    }

    fn stats(&self) -> Stats {
        Stats {
            cpu_time: self.kernel.host().cpu_time(),
            backlog: self.listeners.iter().map(ListenerState::length).sum(),
            service_rate: self.load.rate(),
            kernel: self.kernel.counters(),
            occupancy: self.kernel.occupancy(),
            deferred_reads: self.deferred_reads.as_ref().map_or(0, |r| r.counters().deferred),
            ..self.stats
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping
    }
}

fn abruptness(how: Close) -> u8 {
    match how {
        Close::Half => 0,
        Close::Linger => 1,
        Close::Flush => 2,
        Close::Reset => 3,
    }
}
