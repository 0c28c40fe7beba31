//! The driver: turns completions into callbacks, and commands into operations.
//!
//! It is the same for every mechanism. Between two callbacks nothing is left half done: what a
//! callback asked for is carried out when it has returned, so no command calls back.

/// Calls the application about a connection.
macro_rules! call {
    ($driver:ident, $slot:expr, $callback:ident $(, $argument:expr)*) => {{
        let id = $driver.io.conn($slot);
        let state = $driver.states.at($slot as usize);
        $driver.app.$callback(Cx { io: &mut $driver.io, id, state } $(, $argument)*)
    }};
}

mod close;
mod gate;
mod io;
mod link;
mod quiesce;
mod receive;
mod run;
mod send;
mod shares;

pub(crate) use gate::Gate;
#[cfg(feature = "sim")]
pub use io::usage::Usage;
pub(crate) use io::{FILE_WORKS, Io, MAX_LISTS, MIN_HELD, operations, spares};
pub(crate) use link::Link;
use run::GRACE;
pub(crate) use run::{drive, gates, roots};

use shared_ring::{Completion, Errno, Fault, Host, Kind, Outcome, Socket, Submit, Table, Token};

use crate::{Application, Cx, LOW_WATER, Lateness, Listener, Remote, Why};
use link::{Flags, Phase};
use shares::Source;

/// A server: its application, the states of its connections, and everything else.
pub(crate) struct Driver<K: Submit, A: Application> {
    app: A,
    states: Table<A::State>,
    pub(crate) io: Io<K>,
    remote: Remote,
}

impl<K: Submit, A: Application> Driver<K, A> {
    pub(crate) fn new(app: A, io: Io<K>, remote: Remote) -> Self {
        Driver { app, states: Table::default(), io, remote }
    }

    /// Uses one completion.
    pub(crate) fn complete(&mut self, completion: Completion) {
        let Completion { token, outcome, last } = completion;
        match token.kind() {
            Kind::Accept => self.accept(token.slot() as usize, outcome, last),
            Kind::File => self.file_done(token, outcome),
            Kind::Wake => self.wake(),
            kind => self.connection(kind, token, outcome, last),
        }
        self.settle();
    }

    /// A completion of an operation on a connection.
    fn connection(&mut self, kind: Kind, token: Token, outcome: Outcome, last: bool) {
        let slot = token.slot();
        let lives = |link: &&mut Link| {
            link.phase != Phase::Vacant
                && link.generation % Token::GENERATIONS == token.generation()
        };
        let Some(link) = self.io.links.get_mut(slot as usize).filter(lives) else {
            self.io.stats.stale += 1;
            return;
        };
        if last {
            link.flags -= match kind {
                Kind::Receive => Flags::RECEIVING | Flags::CANCELLED,
                Kind::Send => Flags::SENDING,
                _ => Flags::CHANGING,
            };
            link.touch(slot, &mut self.io.touched);
        }
        match outcome {
            Outcome::Received(bytes) => self.received(slot, bytes),
            Outcome::Eof => self.eof(slot),
            Outcome::Sent(list, n) => self.sent(slot, list, n),
            Outcome::SentFile(n) => self.sent_file(slot, n.into()),
            Outcome::Connected => self.connected(slot),
            Outcome::Closed => self.closed(slot),
            Outcome::Failed(errno, list) => self.failed(slot, kind, errno, list),
            _ => self.io.stats.stale += 1,
        }
    }

    fn accept(&mut self, gate: usize, outcome: Outcome, last: bool) {
        let now = self.io.kernel.now();
        if last {
            self.io.gates[gate].ended();
        }
        match outcome {
            Outcome::Accepted(socket) => self.accepted(Listener(gate as u16), socket),
            Outcome::Failed(Errno::CANCELED, _) => {}
            Outcome::Closed => self.io.gates[gate].closed(),
            _ => {
                self.io.stats.accept_pauses += 1;
                self.io.gates[gate].rest(now);
            }
        }
    }

    /// Lets a connection in, or puts it aside. It is reset if its address has its share.
    fn accepted(&mut self, listener: Listener, socket: Socket) {
        let Ok(from) = self.io.take_share(&socket) else {
            self.io.stats.refused_addresses += 1;
            return self.reset(socket, None);
        };
        self.io.aside.push_back((listener, socket, from));
        if self.io.load.lets_in().is_none() {
            return self.let_in(1);
        }
        while self.io.aside.len() > self.io.load.aside()
            && let Some((_, socket, from)) = self.io.aside.pop_front()
        {
            self.refuse(socket, from);
        }
    }

    /// Lets in some of those that were put aside, if there is room.
    fn let_in(&mut self, most: usize) {
        for _ in 0..most {
            if !self.io.has_room() {
                return;
            }
            let newest = self.io.load.lets_in().is_some();
            let aside = &mut self.io.aside;
            let next = if newest { aside.pop_back() } else { aside.pop_front() };
            let Some((listener, socket, from)) = next else { return };
            let Io { load, kernel, .. } = &self.io;
            if load.is_over() && load.lateness(kernel.host().waited(&socket)) == Lateness::Lost {
                self.refuse(socket, from);
            } else {
                self.admit(listener, socket, from);
            }
        }
    }

    /// Resets a connection for which it is too late.
    fn refuse(&mut self, socket: Socket, from: Option<Source>) {
        self.io.stats.lost += 1;
        self.reset(socket, from);
    }

    /// Resets an accepted connection that has not been admitted.
    fn reset(&mut self, socket: Socket, from: Option<Source>) {
        self.io.give_back_share(from);
        self.io.kernel.host_mut().reset_on_close(&socket);
        self.io.kernel.host_mut().discard(socket);
    }

    fn admit(&mut self, listener: Listener, socket: Socket, from: Option<Source>) {
        let slot = self.io.occupy(Phase::Open);
        let link = self.io.link(slot);
        link.socket = Some(socket);
        link.from = from;
        link.flags |= Flags::UNSERVED;
        self.io.load.let_in();
        self.io.stats.accepted += 1;
        self.io.touch(slot);
        call!(self, slot, accepted, listener);
        if self.io.stopping {
            self.quiesce(slot);
        }
    }

    fn connected(&mut self, slot: u32) {
        let link = self.io.link(slot);
        if link.phase != Phase::Connecting {
            return;
        }
        link.phase = Phase::Open;
        let resumed = link.has(Flags::RESUMED);
        if link.is_heard() {
            call!(self, slot, connected, Ok(()));
        }
        if resumed {
            self.io.call_again(slot);
        }
    }

    fn file_done(&mut self, token: Token, outcome: Outcome) {
        if let Some(work) = self.io.end_work(token) {
            let (tag, done) = work.done(outcome);
            call!(self, work.on.slot(), file, tag, done);
        }
        self.io.begin_waiting_works();
    }

    /// Looks after every connection that commands were given for.
    fn settle(&mut self) {
        let mut at = 0;
        while let Some(&slot) = self.io.touched.get(at) {
            at += 1;
            self.io.link(slot).flags -= Flags::TOUCHED;
            self.tend(slot);
        }
        self.io.touched.clear();
    }

    /// Does what a connection is due for.
    #[inline]
    fn tend(&mut self, slot: u32) {
        let link = self.io.link(slot);
        if link.close.is_some() || link.flags.intersects(Flags::QUIESCING | Flags::OVERRUN) {
            self.go_on_ending(slot);
        }
        match self.io.link(slot).phase {
            Phase::Vacant | Phase::Connecting => {}
            Phase::Ending => self.finish(slot),
            Phase::Open | Phase::Flushing | Phase::Lingering => {
                self.send(slot);
                self.receive(slot);
            }
        }
        let link = self.io.link(slot);
        if link.holds() != link.held && self.io.account(slot) {
            self.overrun(slot);
        }
    }

    /// Goes on with what leads to the end of a connection.
    fn go_on_ending(&mut self, slot: u32) {
        if self.io.link(slot).has(Flags::QUIESCING) {
            self.go_on_quiescing(slot);
        }
        if self.io.link(slot).close.is_some() {
            self.begin_close(slot);
        }
        let link = self.io.link(slot);
        if link.has(Flags::OVERRUN) && link.phase != Phase::Ending {
            self.overrun(slot);
        }
    }

    /// Ends a connection for which more would be held than is permitted.
    #[cold]
    fn overrun(&mut self, slot: u32) {
        self.io.stats.overruns += 1;
        self.end(slot, Why::Overrun);
    }

    /// Does what is due after a batch of completions: passed deadlines, connections to be called
    /// again, listeners.
    pub(crate) fn end_turn(&mut self) {
        let now = self.io.kernel.now();
        // No more than there can be: a deadline that is set in the past waits for the next turn.
        for _ in 0..self.io.links.len() {
            let Some(slot) = self.io.wheel.expired(now) else { break };
            self.expired(slot);
            self.settle();
        }
        for _ in 0..self.io.ended_works.len() {
            let Some((work, outcome)) = self.io.ended_works.pop_front() else { break };
            if let Some(work) = self.io.told(work) {
                let (tag, done) = work.done(outcome);
                call!(self, work.on.slot(), file, tag, done);
                self.settle();
            }
            self.io.begin_waiting_works();
        }
        for _ in 0..self.io.again.len() {
            let Some(id) = self.io.again.pop_front() else { break };
            if self.io.conn(id.slot()) == id {
                self.again(id.slot());
                self.settle();
            }
        }
        if !self.io.aside.is_empty() {
            let most = self.io.load.lets_in().unwrap_or(self.io.aside.len());
            self.let_in(most);
            self.settle();
        }
        self.make_room();
        self.io.judge_load();
        self.tend_gates();
    }

    /// Does for a connection what was put off until the batch was done.
    fn again(&mut self, slot: u32) {
        self.io.touch(slot);
        let link = self.io.link(slot);
        link.flags -= Flags::AGAIN;
        if link.phase == Phase::Connecting {
            match link.why.take() {
                Some(why) => self.not_connected(slot, why),
                // It may still be under way, and this be about something else.
                None if !link.has(Flags::CHANGING) => self.connected(slot),
                None => {}
            }
            return;
        }
        if link.has(Flags::HIGH) && link.load() <= LOW_WATER {
            link.flags -= Flags::HIGH;
            if link.phase == Phase::Open && link.close.is_none() {
                call!(self, slot, drained);
            }
        }
        let link = self.io.link(slot);
        if link.has(Flags::RESUMED) {
            link.flags -= Flags::RESUMED;
            if link.is_heard() && !link.has(Flags::PAUSED) {
                self.offer_tail(slot);
            }
        }
    }

    fn expired(&mut self, slot: u32) {
        match self.io.link(slot).phase {
            Phase::Flushing => self.look_at_flush(slot),
            Phase::Lingering => self.end(slot, Why::Closed),
            Phase::Connecting | Phase::Open => {
                call!(self, slot, expired);
            }
            Phase::Vacant | Phase::Ending => {}
        }
    }

    /// Accepts where there is room, and rests where there is none.
    pub(crate) fn tend_gates(&mut self) {
        let now = self.io.kernel.now();
        let full = !self.io.accepts();
        for gate in &mut self.io.gates {
            if self.io.stopping {
                gate.close(&mut self.io.kernel);
            } else if !full {
                gate.resume(&mut self.io.kernel, now);
            } else {
                // The end of a connection is what it waits for now.
                gate.room();
                self.io.stats.accept_pauses += u64::from(gate.pause(&mut self.io.kernel));
            }
        }
    }

    /// Another thread wants something.
    fn wake(&mut self) {
        for _ in 0..Remote::TAGS {
            let Some(tag) = self.remote.next_tag() else { break };
            self.app.woken(&mut self.io, tag);
            self.settle();
        }
        if self.remote.stopped() && !self.io.stopping {
            self.stop();
        }
    }

    /// Resets every connection that is still there.
    pub(crate) fn stop_now(&mut self) {
        while let Some((_, socket, from)) = self.io.aside.pop_front() {
            self.io.stats.reset_at_stop += 1;
            self.reset(socket, from);
        }
        for slot in 0..self.io.links.len() as u32 {
            let link = self.io.link(slot);
            if !matches!(link.phase, Phase::Vacant | Phase::Ending) {
                self.io.reset_on_close(slot);
                self.end(slot, Why::Stopped);
                self.settle();
            }
        }
    }

    /// Tells the application of the end of the connections that are left, after a fault of the kernel or
    /// when they can't end.
    pub(crate) fn abandon(&mut self, fault: Option<&Fault>) {
        for slot in 0..self.io.links.len() as u32 {
            let link = self.io.link(slot);
            if link.phase == Phase::Vacant {
                continue;
            }
            let why = link.why.take().unwrap_or_else(|| match fault {
                Some(fault) => Why::Failed(fault.error.kind().into()),
                None => Why::Stopped,
            });
            // Its descriptor is closed with all else; commands for it have no effect.
            link.phase = Phase::Ending;
            call!(self, slot, closed, why);
            self.io.stats.closed += 1;
        }
    }

    /// Whether a stopping server has nothing left to do, or can't do it.
    pub(crate) fn is_done(&self) -> bool {
        if self.io.drained.is_some_and(|at| self.io.kernel.now() >= at + GRACE) {
            return true;
        }
        let io = &self.io;
        let empty = io.open == 0 && io.aside.is_empty();
        io.stopping && empty && io.files_rest() && io.gates.iter().all(Gate::is_closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        // With a buffer list kept in the queue, an entry in the table of operations, a timer and
        // a small state, an idle connection stays under 512 bytes.
        assert!(size_of::<Link>() <= 208, "{}", size_of::<Link>());
    }
}
