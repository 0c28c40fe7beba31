//! Connections are made, used and ended.

use shared_ring::{
    BufferSizes, Completion, Errno, GatherList, Host, Kernel, Op, OpKind, Outcome, RxBuf,
    Submitted, Token,
};

use super::{FAREWELL, Generator, connection_token, emptied, failure_of, is_over};
use crate::connection::{Asked, Connection, Phase, Role};
use crate::deadlines::Watched;
use crate::reply::Reply;
use crate::tally::Stopped;
use crate::{Ending, Failed, Log};

/// The receive buffer of those who read slowly, in bytes: what the kernel holds for them is soon
/// full.
const SLOW_BUFFER: usize = 4096;

impl<K: Kernel> Generator<'_, K> {
    /// Makes a connection.
    pub(super) fn connect(&mut self, role: Role) -> Result<u32, Failed> {
        if self.open >= self.plan.max_open {
            return Err(Failed::NoRoom);
        }
        let from = match self.plan.sources.len() {
            0 => None,
            n => Some(self.plan.sources[self.source % n]),
        };
        self.source = self.source.wrapping_add(1);
        let to = self.plan.to;
        let mut buffers = BufferSizes::default();
        if role == Role::SlowReader {
            buffers.receive = Some(SLOW_BUFFER);
        }
        let socket = self.kernel.host_mut().socket(to, from, buffers);
        let socket =
            socket.map_err(|e| failure_of(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection::default());
            self.connections.len() as u32 - 1
        });
        self.open += 1;
        let connection = &mut self.connections[slot as usize];
        connection.begin(role, socket);
        let Some(fd) = connection.fd() else { unreachable!("it has just begun") };
        connection.connects = true;
        self.post(
            connection_token(&self.connections, OpKind::Connect, slot),
            Op::Connect { fd, to },
        );
        Ok(slot)
    }

    /// Posts an operation. What is done at once completes in this turn, as everything else does.
    pub(super) fn post(&mut self, token: Token, op: Op) {
        let outcome = match self.kernel.submit(token, op) {
            Ok(Submitted::InFlight) => return,
            Ok(Submitted::Done(outcome)) => outcome,
            // The kernel was given room for all of them.
            Err(refused) => {
                let list = match refused.op {
                    Op::Close { socket } => {
                        self.kernel.host_mut().close_unused(socket);
                        None
                    }
                    Op::Send { data, .. } => Some(data),
                    _ => None,
                };
                Outcome::Failed(Errno::NOBUFS, list)
            }
        };
        self.done.push_back(Completion { token, outcome, last: true });
    }

    pub(super) fn connected(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.phase != Phase::Connecting {
            return;
        }
        connection.phase = Phase::Open;
        connection.receives = true;
        let (role, generation) = (connection.role, connection.generation);
        if let Some(first) = connection.asked.front_mut() {
            let time = self.now.saturating_duration_since(first.due);
            first.connect = Some(time);
            self.tally.connected(first.counts, time);
        }
        let Some(fd) = connection.fd() else { return };
        self.refused_since = None;
        self.refusals = 0;
        self.has_connected = true;
        self.post(connection_token(&self.connections, OpKind::Receive, slot), Op::Receive { fd });
        match role {
            Role::Session => {
                self.go_on(slot);
                return;
            }
            Role::Kept => self.idle.extend((0..self.plan.depth).map(|_| (slot, generation))),
            Role::Cold => self.tally.cold += 1,
            Role::SlowReader | Role::SlowSender => {
                self.tally.slow += 1;
                self.slow_goes_on(slot, generation);
            }
        }
        if self.opening > 0 {
            self.opening -= 1;
            self.opened += 1;
        }
        self.serve_waiting();
    }

    pub(super) fn received(&mut self, slot: u32, bytes: &RxBuf) {
        if self.connections[slot as usize].role.is_slow() {
            return self.slow_received(slot, bytes);
        }
        let mut rest = &bytes[..];
        let connection = &self.connections[slot as usize];
        // What nobody has asked for yet is no reply.
        let mut owed = connection.asked.len().saturating_sub(connection.unsent);
        while !rest.is_empty() {
            let connection = &mut self.connections[slot as usize];
            if connection.role == Role::Cold || connection.phase != Phase::Open {
                return;
            }
            let Some(asked) = connection.asked.front().filter(|_| owed > 0) else {
                return self.fail(slot, Failed::Malformed);
            };
            let bodiless = self.plan.sessions[asked.session]
                .at(asked.place)
                .is_some_and(|(ask, _)| ask.bodiless);
            match connection.reader.take(rest, bodiless) {
                Ok((used, reply)) => {
                    rest = &rest[used..];
                    if let Some(reply) = reply {
                        owed -= 1;
                        self.replied(slot, reply);
                    }
                }
                Err(_) => return self.fail(slot, Failed::Malformed),
            }
        }
    }

    /// The server has ended the connection.
    pub(super) fn ended(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        match connection.phase {
            Phase::Open if connection.role.is_slow() => self.slow_ended(slot),
            Phase::Open if connection.asked.is_empty() => self.end(slot, false),
            Phase::Open => {
                if let Some(reply) = connection.reader.end() {
                    return self.replied(slot, reply);
                }
                let within = connection.reader.is_within();
                self.fail(slot, if within { Failed::ShortBody } else { Failed::Closed });
            }
            Phase::Farewell => self.end(slot, false),
            _ => {}
        }
    }

    pub(super) fn replied(&mut self, slot: u32, reply: Reply) {
        let connection = &mut self.connections[slot as usize];
        let Some(asked) = connection.asked.pop_front() else { return };
        connection.over += 1;
        connection.answered = true;
        self.refused_since = None;
        self.counted -= u64::from(asked.counts);
        let Some((ask, last)) = self.plan.sessions[asked.session].at(asked.place) else { return };
        let time = self.now.saturating_duration_since(asked.due);
        let failed = match reply.status {
            _ if time > self.plan.deadline => Some(Failed::ReplyTimeout),
            503 => Some(Failed::Unavailable),
            400.. => {
                self.tally.bad_status(asked.counts, reply.status);
                Some(Failed::Status)
            }
            _ if ask.size.is_some_and(|size| size != reply.bytes) => Some(Failed::ShortBody),
            _ => None,
        };
        match failed {
            Some(failure) => self.tally.failed(asked.counts, failure),
            None => self.tally.replied(asked.counts, time, reply.bytes),
        }
        self.note(&asked, failed);
        if reply.keep_alive && !(last && self.connections[slot as usize].role == Role::Session) {
            return self.go_on(slot);
        }
        self.lose_all(slot, Failed::Closed);
        if self.plan.ending != Ending::Server {
            return self.end(slot, self.plan.ending == Ending::Reset);
        }
        let connection = &mut self.connections[slot as usize];
        connection.phase = Phase::Farewell;
        let (at, generation) = (self.now + self.plan.deadline, connection.generation);
        self.farewells.watch(Watched { at, slot, generation, place: FAREWELL });
        if !connection.receives {
            self.end(slot, false);
        }
    }

    /// Sends what has not been sent.
    pub(super) fn send(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.unsent == 0 || connection.sends || connection.phase != Phase::Open {
            return;
        }
        let Some(fd) = connection.fd() else { return };
        let mut data = self.spare.pop().unwrap_or_default();
        let first = connection.asked.len() - connection.unsent;
        for asked in connection.asked.range(first..) {
            if let Some((ask, last)) = self.plan.sessions[asked.session].at(asked.place) {
                let last =
                    last && connection.role == Role::Session && self.plan.ending == Ending::Server;
                data.shared(if last { ask.last.clone() } else { ask.bytes.clone() });
            }
        }
        connection.unsent = 0;
        connection.sends = true;
        self.post(connection_token(&self.connections, OpKind::Send, slot), Op::Send { fd, data });
    }

    pub(super) fn sent(&mut self, slot: u32, data: Box<GatherList>) {
        let connection = &mut self.connections[slot as usize];
        if data.is_empty() || !connection.is_alive() {
            let (role, alive) = (connection.role, connection.is_alive());
            self.spare.push(emptied(data));
            return match role {
                Role::SlowSender if alive => self.slow_sent(slot),
                Role::Session | Role::Kept if alive => self.send(slot),
                _ => {}
            };
        }
        let Some(fd) = connection.fd() else { return };
        connection.sends = true;
        self.post(connection_token(&self.connections, OpKind::Send, slot), Op::Send { fd, data });
    }

    /// Gives up requests whose time is over, by a reset of their connections.
    pub(super) fn give_up_what_is_late(&mut self) {
        while let Some(watched) =
            self.deadlines.take(self.now).or_else(|| self.farewells.take(self.now))
        {
            if is_over(&self.connections, &watched) {
                continue;
            }
            match self.connections[watched.slot as usize].phase {
                Phase::Farewell => self.end(watched.slot, true),
                Phase::Connecting => self.fail(watched.slot, Failed::ConnectTimeout),
                _ => self.fail(watched.slot, Failed::ReplyTimeout),
            }
            self.close_if_quiet(watched.slot);
        }
        while let Some(due) = self.waiting.front().copied()
            && due + self.plan.deadline <= self.now
        {
            self.waiting.pop_front();
            let (session, place) = self.next_request();
            let counts = self.counts(due);
            let asked = Asked { due, counts, session, place, connect: None };
            self.lose(asked, Failed::ReplyTimeout);
        }
    }

    /// A connection has failed, and with it what was asked on it.
    pub(super) fn fail(&mut self, slot: u32, failure: Failed) {
        let connection = &mut self.connections[slot as usize];
        if !connection.is_alive() {
            return;
        }
        if connection.role.is_slow() && connection.phase == Phase::Open {
            self.tally.slow_lost += 1;
        }
        if failure == Failed::Refused {
            self.refused_since.get_or_insert(self.now);
            self.refusals += 1;
        }
        if self.opening > 0 && connection.phase == Phase::Connecting {
            self.tally.stopped = Some(Stopped::NotOpened(failure));
        }
        self.lose_all(slot, failure);
        self.end(slot, true);
    }

    /// What was asked on a connection gets no reply.
    pub(super) fn lose_all(&mut self, slot: u32, mut failure: Failed) {
        while let Some(asked) = self.connections[slot as usize].asked.pop_front() {
            self.connections[slot as usize].over += 1;
            self.lose(asked, failure);
            // Those behind it have not been begun.
            if failure == Failed::ShortBody {
                failure = Failed::Closed;
            }
        }
    }

    pub(super) fn lose(&mut self, asked: Asked, failure: Failed) {
        self.counted -= u64::from(asked.counts);
        self.tally.failed(asked.counts, failure);
        self.note(&asked, Some(failure));
    }

    pub(super) fn note(&mut self, asked: &Asked, failed: Option<Failed>) {
        if self.plan.keep_log {
            let due = asked.due.saturating_duration_since(self.begin);
            let end = self.now.saturating_duration_since(asked.due);
            self.tally.log.push(Log { due, connect: asked.connect, end, failed });
        }
    }

    /// Ends a connection: what is in flight first, then its descriptor.
    pub(super) fn end(&mut self, slot: u32, reset: bool) {
        let connection = &mut self.connections[slot as usize];
        connection.phase = Phase::Ending;
        if connection.role == Role::Session && connection.counts {
            let (session, place) = (connection.session, connection.place);
            self.tally.skipped += self.plan.sessions[session].rest(place);
        }
        let connection = &mut self.connections[slot as usize];
        if connection.role == Role::Cold {
            self.tally.cold_lost += 1;
        }
        let Some(socket) = &connection.socket else { return };
        let flights = [
            (connection.connects, OpKind::Connect),
            (connection.receives, OpKind::Receive),
            (connection.sends, OpKind::Send),
        ];
        if reset {
            self.kernel.host_mut().reset_on_close(socket);
        }
        for (_, kind) in flights.into_iter().filter(|(flies, _)| *flies) {
            self.kernel.cancel(connection_token(&self.connections, kind, slot));
        }
        self.close_if_quiet(slot);
    }

    pub(super) fn close_if_quiet(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.phase != Phase::Ending || !connection.is_quiet() {
            return;
        }
        connection.phase = Phase::Closing;
        let Some(socket) = connection.socket.take() else { return };
        self.post(connection_token(&self.connections, OpKind::Close, slot), Op::Close { socket });
    }

    /// A connection is gone. Where there is to be another one in its place, it follows.
    pub(super) fn closed(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        connection.phase = Phase::Free;
        connection.generation = (connection.generation + 1) % Token::GENERATIONS;
        let (role, failed) = (connection.role, !connection.answered);
        self.free.push(slot);
        self.open -= 1;
        if self.ended {
            return;
        }
        if role == Role::Cold {
            return;
        }
        if role.is_slow() {
            return self.slow_later(role);
        }
        if role == Role::Kept && self.idle.len() > 2 * self.connections.len() * self.plan.depth {
            let connections = &self.connections;
            self.idle
                .retain(|(slot, generation)| connections[*slot as usize].generation == *generation);
        }
        if failed { self.try_again_later() } else { self.try_again() }
    }
}
