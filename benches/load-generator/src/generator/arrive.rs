//! What is due begins.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use shared_ring::Kernel;

use super::{BURST, GIVEN_UP, Generator, RETRY, Wakes};
use crate::connection::{Asked, Phase, Role};
use crate::deadlines::Watched;
use crate::{Failed, Pace};

impl<K: Kernel> Generator<'_, K> {
    /// Begins what is due, at most [`BURST`] of it, so that what comes is not left lying.
    pub(super) fn begin_what_is_due(&mut self) {
        while let Some(Reverse((at, who))) = self.waking.peek().copied()
            && at <= self.now
        {
            self.waking.pop();
            match who {
                Wakes::Thinker(slot, generation) => self.thought(slot, generation),
                Wakes::Unconnected => self.try_again(),
                Wakes::Slow(slot, generation) => self.slow_goes_on(slot, generation),
                Wakes::SlowAgain(role) => self.slow_again(role),
            }
        }
        for _ in 0..self.clients.min(BURST) {
            self.clients -= 1;
            self.begin_session(self.now);
        }
        let (mut begun, mut given_up) = (0, 0);
        while begun < BURST && given_up < GIVEN_UP {
            let Some(moments) = &mut self.moments else { break };
            let due = self.begin + moments.next();
            if due > self.now {
                break;
            }
            moments.advance();
            if due + self.plan.deadline <= self.now {
                self.give_up(due);
                given_up += 1;
                continue;
            }
            match self.plan.pace {
                Pace::Requests { .. } => self.request_due(due),
                _ => self.begin_session(due),
            }
            begun += 1;
        }
    }

    /// A client whose time was over before this program came to it.
    fn give_up(&mut self, due: Instant) {
        let counts = self.due(due);
        self.begun(due);
        let (session, place) = match self.plan.pace {
            Pace::Requests { .. } => self.next_request(),
            _ => (self.next_session(), 0),
        };
        if counts && matches!(self.plan.pace, Pace::Sessions { .. }) {
            self.tally.skipped += self.plan.sessions[session].rest(1);
        }
        self.lose(Asked { due, counts, session, place, connect: None }, Failed::ReplyTimeout);
    }

    fn next_session(&mut self) -> usize {
        let session = self.session;
        self.session = (session + 1) % self.plan.sessions.len();
        session
    }

    pub(super) fn begin_session(&mut self, due: Instant) {
        let counts = self.due(due);
        let session = self.next_session();
        match self.connect(Role::Session) {
            Ok(slot) => {
                self.begun(due);
                let connection = &mut self.connections[slot as usize];
                connection.session = session;
                connection.counts = counts;
                connection.place = 1;
                self.ask(slot, due, session, 0);
            }
            Err(failure) => {
                self.lose(Asked { due, counts, session, place: 0, connect: None }, failure);
                if counts {
                    self.tally.skipped += self.plan.sessions[session].rest(1);
                }
                self.try_again_later();
            }
        }
    }

    /// A request is due; says whether it counts.
    pub(super) fn due(&mut self, due: Instant) -> bool {
        let counts = self.counts(due);
        self.tally.due(counts);
        self.counted += u64::from(counts);
        counts
    }

    /// Something that was due has been begun.
    pub(super) fn begun(&mut self, due: Instant) {
        let counts = self.counts(due);
        match self.plan.pace {
            Pace::Closed { .. } => self.tally.begun(counts),
            _ => self.fresh.push((due, counts)),
        }
    }

    /// Where there is to be a number of connections, one that failed is made again, a little later.
    pub(super) fn try_again_later(&mut self) {
        if !matches!(self.plan.pace, Pace::Sessions { .. }) {
            self.waking.push(Reverse((self.now + RETRY, Wakes::Unconnected)));
        }
    }

    pub(super) fn try_again(&mut self) {
        match self.plan.pace {
            Pace::Closed { .. } => self.clients += 1,
            Pace::Sessions { .. } => {}
            Pace::Requests { .. } => {
                if self.connect(Role::Kept).is_err() {
                    self.try_again_later();
                }
            }
        }
    }

    pub(super) fn request_due(&mut self, due: Instant) {
        self.due(due);
        self.begun(due);
        self.waiting.push_back(due);
        self.serve_waiting();
    }

    /// Hands requests that wait to connections that are idle.
    pub(super) fn serve_waiting(&mut self) {
        while !self.waiting.is_empty() {
            let Some((slot, generation)) = self.idle.pop_front() else { return };
            let connection = &self.connections[slot as usize];
            if connection.generation != generation || connection.phase != Phase::Open {
                continue;
            }
            let Some(due) = self.waiting.pop_front() else { return };
            let (session, place) = self.next_request();
            self.ask(slot, due, session, place);
            self.send(slot);
        }
    }

    /// Goes through the requests of all sessions, one by one.
    pub(super) fn next_request(&mut self) -> (usize, u64) {
        let now = (self.session, self.place);
        self.place += 1;
        if self.place >= self.plan.sessions[self.session].requests.len() as u64 {
            self.place = 0;
            self.session = (self.session + 1) % self.plan.sessions.len();
        }
        now
    }

    /// Puts a request on a connection.
    pub(super) fn ask(&mut self, slot: u32, due: Instant, session: usize, place: u64) {
        let counts = self.counts(due);
        let connection = &mut self.connections[slot as usize];
        let under_way = connection.asked.len() as u64;
        let at = due + self.plan.deadline;
        let generation = connection.generation;
        let number = connection.over + under_way;
        self.deadlines.watch(Watched { at, slot, generation, place: number });
        let connect = (connection.phase == Phase::Open).then_some(Duration::ZERO);
        connection.asked.push_back(Asked { due, counts, session, place, connect });
        connection.unsent += 1;
    }

    /// A connection that has got a reply, or that is new, asks for what is next.
    pub(super) fn go_on(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.role == Role::Kept {
            let generation = connection.generation;
            self.idle.push_back((slot, generation));
            return self.serve_waiting();
        }
        while let connection = &mut self.connections[slot as usize]
            && connection.asked.len() < self.plan.depth
            && !connection.thinks
        {
            let (session, place) = (connection.session, connection.place);
            let Some((ask, _)) = self.plan.sessions[session].at(place) else { break };
            if !ask.think.is_zero() && !connection.asked.is_empty() {
                break;
            }
            if !ask.think.is_zero() {
                connection.thinks = true;
                let who = Wakes::Thinker(slot, connection.generation);
                self.waking.push(Reverse((self.now + ask.think, who)));
                break;
            }
            self.ask_next(slot);
        }
        self.send(slot);
    }

    /// A client has thought, and asks.
    pub(super) fn thought(&mut self, slot: u32, generation: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.generation != generation || connection.phase != Phase::Open {
            return;
        }
        connection.thinks = false;
        self.ask_next(slot);
        self.go_on(slot);
    }

    pub(super) fn ask_next(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        let (session, place) = (connection.session, connection.place);
        connection.place += 1;
        let counts = self.due(self.now);
        self.tally.begun(counts);
        self.ask(slot, self.now, session, place);
    }
}
