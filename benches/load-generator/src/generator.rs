//! Makes the load of a plan.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use shared_ring::{
    BufferSizes, Completion, Errno, Fault, Gather, Host, Kernel, Kind, Op, Outcome, Posted, RxBuf,
    Token,
};

use crate::arrivals::Moments;
use crate::connection::{Asked, Connection, Phase, Role};
use crate::deadlines::{Deadlines, Watched};
use crate::reply::Reply;
use crate::tally::Stopped;
use crate::{Ending, Failed, Log, Pace, Plan, Senseless, Session, Tally};

/// Most sessions or requests begun between two looks at what has come.
const BURST: u32 = 64;
/// Most connections being made before the load begins.
const OPENING: u32 = 64;
/// How long a client waits that found no connection before it tries again, in a closed loop.
const RETRY: Duration = Duration::from_millis(10);
/// How long the server may refuse every connection before it is taken for gone.
const REFUSING: Duration = Duration::from_secs(1);
/// How long it may take to open what is to be open before the load begins, and how much longer for
/// each connection.
const OPENING_TIME: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(5));
/// How long to wait for the last descriptors to be closed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whom a time wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wakes {
    /// Who thought, on the connection of this slot and generation.
    Thinker(u32, u32),
    /// Who found no connection.
    Unconnected,
}

/// Lists to be used again, boxed as the kernel takes them.
type Lists = Vec<Box<Gather>>;

/// Makes the load of a plan, on a kernel.
pub struct Generator<'a, K> {
    kernel: K,
    plan: &'a Plan,
    tally: Tally,
    /// The time of this turn.
    now: Instant,
    begin: Instant,
    counted_from: Instant,
    counted_until: Instant,
    next_slice: Instant,
    connections: Vec<Connection>,
    free: Vec<u32>,
    open: u32,
    /// Connections that are to be there before the load begins: being made, made.
    opening: u32,
    opened: u32,
    /// When sessions or requests are due, in an open loop.
    moments: Option<Moments>,
    /// Clients of a closed loop that are to begin a session.
    clients: u32,
    /// The session that is next, and the request of it where requests are due one by one.
    session: usize,
    place: u64,
    source: usize,
    /// Connections that take a request, with their generations.
    idle: VecDeque<(u32, u32)>,
    /// Requests that found none.
    waiting: VecDeque<Instant>,
    deadlines: Deadlines,
    /// When clients go on.
    waking: BinaryHeap<Reverse<(Instant, Wakes)>>,
    /// Requests that count and have not come to their ends.
    counted: u64,
    /// The load has ended: nothing begins any more.
    ended: bool,
    /// When what was begun in this turn was due.
    fresh: Vec<(Instant, bool)>,
    /// Completions that needed no kernel.
    done: VecDeque<Completion>,
    spare: Lists,
    refused_since: Option<Instant>,
}

impl<'a, K: Kernel> Generator<'a, K> {
    /// Operations that the kernel must have room for.
    pub fn operations(plan: &Plan) -> u32 {
        4 * (plan.most_open + 1)
    }

    /// Sets up the load of a plan.
    ///
    /// # Errors
    /// When the plan makes no sense.
    pub fn new(kernel: K, plan: &'a Plan) -> Result<Self, Senseless> {
        plan.check()?;
        let now = kernel.host().clock();
        let rate = plan.pace.rate();
        Ok(Generator {
            tally: Tally::new(),
            now,
            begin: now,
            counted_from: now,
            counted_until: now,
            next_slice: now,
            connections: Vec::new(),
            free: Vec::new(),
            open: 0,
            opening: 0,
            opened: 0,
            moments: rate.map(|(rate, arrivals)| Moments::new(arrivals, rate, plan.seed)),
            clients: 0,
            session: 0,
            place: 0,
            source: 0,
            idle: VecDeque::new(),
            waiting: VecDeque::new(),
            deadlines: Deadlines::default(),
            waking: BinaryHeap::new(),
            counted: 0,
            ended: false,
            fresh: Vec::with_capacity(BURST as usize),
            done: VecDeque::new(),
            spare: Vec::new(),
            refused_since: None,
            kernel,
            plan,
        })
    }

    /// Makes the load. After each interval `watch` is shown what was seen so far; when it returns
    /// false the load ends early.
    ///
    /// # Errors
    /// Only when the kernel can't be used any more.
    pub fn run(mut self, mut watch: impl FnMut(&Tally) -> bool) -> Result<Tally, Fault> {
        self.tally.stopped = self.open_beforehand()?;
        if self.tally.stopped.is_none() {
            self.start();
            while !self.is_over() {
                self.tick(&mut watch);
                if self.refused_since.is_some_and(|since| self.now >= since + REFUSING) {
                    self.tally.stopped = Some(Stopped::Gone);
                }
                if self.tally.stopped.is_some() {
                    break;
                }
                self.begin_what_is_due();
                self.give_up_what_is_late();
                let next = self.next_moment();
                self.turn(Some(next))?;
            }
            let end = self.now.min(self.counted_until);
            self.tally.measured = end.saturating_duration_since(self.counted_from);
        }
        self.close_all()?;
        Ok(self.tally)
    }

    /// Opens the connections that are to be there before the load begins; says why they can't be.
    fn open_beforehand(&mut self) -> Result<Option<Stopped>, Fault> {
        let kept = match self.plan.pace {
            Pace::Requests { connections, .. } => connections,
            _ => 0,
        };
        let wanted = self.plan.cold + kept;
        let patience = self.now + OPENING_TIME.0 + OPENING_TIME.1 * wanted;
        while self.opened < wanted {
            while self.opening < OPENING && self.opened + self.opening < wanted {
                let made = self.opened + self.opening;
                let role = if made < self.plan.cold { Role::Cold } else { Role::Kept };
                if let Err(why) = self.connect(role) {
                    return Ok(Some(Stopped::NotOpened(why)));
                }
                self.opening += 1;
            }
            self.turn(Some(patience))?;
            if let Some(stopped) = self.tally.stopped {
                return Ok(Some(stopped));
            }
            if self.now >= patience {
                return Ok(Some(Stopped::NotOpened(Failed::ConnectTimeout)));
            }
        }
        Ok(None)
    }

    fn start(&mut self) {
        self.now = self.kernel.host().clock();
        self.begin = self.now;
        self.counted_from = self.begin + self.plan.warm_up;
        self.counted_until = self.counted_from + self.plan.duration;
        self.next_slice = self.begin + self.plan.interval;
        if let Pace::Closed { clients } = self.plan.pace {
            self.clients = clients;
        }
    }

    /// Whether all that counts has come to its end. Until then the load goes on, as a server that
    /// is left alone with its last requests has it easier than before.
    fn is_over(&self) -> bool {
        self.now >= self.counted_until && self.counted == 0
    }

    /// Whether what is due at a moment counts.
    fn counts(&self, due: Instant) -> bool {
        due >= self.counted_from && due < self.counted_until
    }

    /// Ends the slices of the time series that are over.
    fn tick(&mut self, watch: &mut impl FnMut(&Tally) -> bool) {
        while self.now >= self.next_slice {
            self.next_slice += self.plan.interval;
            self.tally.slice().open = self.open;
            if !watch(&self.tally) {
                self.tally.stopped = Some(Stopped::Asked);
            }
            self.tally.series.push(Default::default());
        }
    }

    /// When there will be something to do though nothing comes.
    fn next_moment(&mut self) -> Instant {
        let connections = &self.connections;
        let first = self.deadlines.next(|watched| is_over(connections, watched));
        let waiting = self.waiting.front().map(|due| *due + self.plan.deadline);
        let wake = self.waking.peek().map(|Reverse((at, _))| *at);
        let mut next = self.next_slice;
        for at in [first, waiting, wake].into_iter().flatten() {
            next = next.min(at);
        }
        if self.now < self.counted_until {
            next = next.min(self.counted_until);
        }
        if self.clients > 0 {
            next = self.now;
        }
        if let Some(moments) = &self.moments {
            next = next.min(self.begin + moments.next());
        }
        next
    }

    fn turn(&mut self, until: Option<Instant>) -> Result<(), Fault> {
        if !self.fresh.is_empty() {
            let now = self.kernel.host().clock();
            for (due, counts) in self.fresh.drain(..) {
                self.tally.begun(counts, now.saturating_duration_since(due), true);
            }
        }
        let until = if self.done.is_empty() { until } else { Some(self.now) };
        self.kernel.turn(until)?;
        self.now = self.kernel.now();
        while let Some(completion) = self.done.pop_front().or_else(|| self.kernel.next()) {
            self.complete(completion);
        }
        Ok(())
    }

    /// Begins what is due, at most [`BURST`] of it, so that what comes is not left lying.
    fn begin_what_is_due(&mut self) {
        while let Some(Reverse((at, who))) = self.waking.peek().copied()
            && at <= self.now
        {
            self.waking.pop();
            match who {
                Wakes::Thinker(slot, generation) => self.thought(slot, generation),
                Wakes::Unconnected => self.try_again(),
            }
        }
        for _ in 0..self.clients.min(BURST) {
            self.clients -= 1;
            self.begin_session(self.now);
        }
        for _ in 0..BURST {
            let Some(moments) = &mut self.moments else { break };
            let due = self.begin + moments.next();
            if due > self.now {
                break;
            }
            moments.advance();
            match self.plan.pace {
                Pace::Requests { .. } => self.request_due(due),
                _ => self.begin_session(due),
            }
        }
    }

    fn begin_session(&mut self, due: Instant) {
        let counts = self.due(due);
        let session = self.session;
        self.session = (session + 1) % self.plan.sessions.len();
        match self.connect(Role::Session) {
            Ok(slot) => {
                self.begun(due);
                let connection = &mut self.connections[slot as usize];
                connection.session = session;
                connection.place = 1;
                self.ask(slot, due, session, 0);
            }
            Err(why) => {
                self.lose(Asked { due, counts, session, place: 0, connect: None }, why);
                self.try_again_later();
            }
        }
    }

    /// A request is due; says whether it counts.
    fn due(&mut self, due: Instant) -> bool {
        let counts = self.counts(due);
        self.tally.due(counts);
        self.counted += u64::from(counts);
        counts
    }

    /// Something that was due has been begun.
    fn begun(&mut self, due: Instant) {
        let counts = self.counts(due);
        match self.plan.pace {
            Pace::Closed { .. } => self.tally.begun(counts, Duration::ZERO, false),
            _ => self.fresh.push((due, counts)),
        }
    }

    /// Where there is to be a number of connections, one that failed is made again, a little later.
    fn try_again_later(&mut self) {
        if !matches!(self.plan.pace, Pace::Sessions { .. }) {
            self.waking.push(Reverse((self.now + RETRY, Wakes::Unconnected)));
        }
    }

    fn try_again(&mut self) {
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

    fn request_due(&mut self, due: Instant) {
        self.due(due);
        self.waiting.push_back(due);
        self.serve_waiting();
    }

    /// Hands requests that wait to connections that are idle.
    fn serve_waiting(&mut self) {
        while !self.waiting.is_empty() {
            let Some((slot, generation)) = self.idle.pop_front() else { return };
            let connection = &self.connections[slot as usize];
            if connection.generation != generation || connection.phase != Phase::Open {
                continue;
            }
            let Some(due) = self.waiting.pop_front() else { return };
            let (session, place) = self.next_request();
            self.begun(due);
            self.ask(slot, due, session, place);
            self.send(slot);
        }
    }

    /// Goes through the requests of all sessions, one by one.
    fn next_request(&mut self) -> (usize, u64) {
        let now = (self.session, self.place);
        self.place += 1;
        if self.place >= self.plan.sessions[self.session].requests.len() as u64 {
            self.place = 0;
            self.session = (self.session + 1) % self.plan.sessions.len();
        }
        now
    }

    /// Puts a request on a connection.
    fn ask(&mut self, slot: u32, due: Instant, session: usize, place: u64) {
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

    /// Makes a connection.
    fn connect(&mut self, role: Role) -> Result<u32, Failed> {
        if self.open >= self.plan.most_open {
            return Err(Failed::NoRoom);
        }
        let from = match self.plan.sources.len() {
            0 => None,
            n => Some(self.plan.sources[self.source % n]),
        };
        self.source = self.source.wrapping_add(1);
        let to = self.plan.to;
        let socket = self.kernel.host_mut().socket(to, from, BufferSizes::default());
        let fd = socket.map_err(|e| why(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection::default());
            self.connections.len() as u32 - 1
        });
        self.open += 1;
        let connection = &mut self.connections[slot as usize];
        connection.begin(role, fd);
        connection.connects = true;
        self.post(connection_token(&self.connections, Kind::Connect, slot), Op::Connect { fd, to });
        Ok(slot)
    }

    /// Posts an operation. What is done at once completes in this turn, as everything else does.
    fn post(&mut self, token: Token, op: Op) {
        let outcome = match self.kernel.submit(token, op) {
            Ok(Posted::InFlight) => return,
            Ok(Posted::Done(outcome)) => outcome,
            // The kernel was given room for all of them.
            Err(refused) => {
                let list = match refused.op {
                    Op::Close { fd } => {
                        self.kernel.host_mut().discard(fd);
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

    fn complete(&mut self, completion: Completion) {
        let Completion { token, outcome, last } = completion;
        let slot = token.slot();
        let Some(connection) = self.connections.get_mut(slot as usize) else { return };
        if connection.generation != token.generation() {
            return;
        }
        match token.kind() {
            Kind::Connect => connection.connects = false,
            Kind::Receive => connection.receives &= !last,
            Kind::Send => connection.sends = false,
            Kind::Close => return self.closed(slot),
            _ => return,
        }
        match outcome {
            Outcome::Connected => self.connected(slot),
            Outcome::Received(bytes) => self.received(slot, &bytes),
            Outcome::Eof => self.ended(slot),
            Outcome::Sent(list, _) => self.sent(slot, list),
            Outcome::Failed(errno, list) => {
                self.spare.extend(list.map(emptied));
                self.fail(slot, why(errno));
            }
            _ => {}
        }
        self.close_if_quiet(slot);
    }

    fn connected(&mut self, slot: u32) {
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
        let Some(fd) = connection.fd else { return };
        self.refused_since = None;
        self.post(connection_token(&self.connections, Kind::Receive, slot), Op::Receive { fd });
        match role {
            Role::Session => {
                self.go_on(slot);
                return;
            }
            Role::Kept => self.idle.extend((0..self.plan.depth).map(|_| (slot, generation))),
            Role::Cold => self.tally.cold += 1,
        }
        if self.opening > 0 {
            self.opening -= 1;
            self.opened += 1;
        }
        self.serve_waiting();
    }

    fn received(&mut self, slot: u32, bytes: &RxBuf) {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let connection = &mut self.connections[slot as usize];
            if connection.role == Role::Cold || connection.phase != Phase::Open {
                return;
            }
            let Some(asked) = connection.asked.front() else {
                return self.fail(slot, Failed::Malformed);
            };
            let bodiless = self.plan.sessions[asked.session]
                .at(asked.place)
                .is_some_and(|(ask, _)| ask.bodiless);
            match connection.reader.take(rest, bodiless) {
                Ok((used, reply)) => {
                    rest = &rest[used..];
                    if let Some(reply) = reply {
                        self.replied(slot, reply);
                    }
                }
                Err(_) => return self.fail(slot, Failed::Malformed),
            }
        }
    }

    /// The server has ended the connection.
    fn ended(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        match connection.phase {
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

    fn replied(&mut self, slot: u32, reply: Reply) {
        let connection = &mut self.connections[slot as usize];
        let Some(asked) = connection.asked.pop_front() else { return };
        connection.over += 1;
        self.counted -= u64::from(asked.counts);
        let Some((ask, last)) = self.plan.sessions[asked.session].at(asked.place) else { return };
        let time = self.now.saturating_duration_since(asked.due);
        let failed = match reply.status {
            _ if time > self.plan.deadline => Some(Failed::ReplyTimeout),
            503 => Some(Failed::Unavailable),
            400.. => Some(Failed::Status),
            _ if ask.size.is_some_and(|size| size != reply.bytes) => Some(Failed::ShortBody),
            _ => None,
        };
        match failed {
            Some(why) => self.tally.failed(asked.counts, why),
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
        self.deadlines.watch(Watched { at, slot, generation, place: FAREWELL });
        if !connection.receives {
            self.end(slot, false);
        }
    }

    /// A connection that has got a reply, or that is new, asks for what is next.
    fn go_on(&mut self, slot: u32) {
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
    fn thought(&mut self, slot: u32, generation: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.generation != generation || connection.phase != Phase::Open {
            return;
        }
        connection.thinks = false;
        self.ask_next(slot);
        self.go_on(slot);
    }

    fn ask_next(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        let (session, place) = (connection.session, connection.place);
        connection.place += 1;
        let counts = self.due(self.now);
        self.tally.begun(counts, Duration::ZERO, false);
        self.ask(slot, self.now, session, place);
    }

    /// Sends what has not been sent.
    fn send(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.unsent == 0 || connection.sends || connection.phase != Phase::Open {
            return;
        }
        let Some(fd) = connection.fd else { return };
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
        self.post(connection_token(&self.connections, Kind::Send, slot), Op::Send { fd, data });
    }

    fn sent(&mut self, slot: u32, data: Box<Gather>) {
        let connection = &mut self.connections[slot as usize];
        if data.is_empty() || !connection.is_alive() {
            self.spare.push(emptied(data));
            return self.send(slot);
        }
        let Some(fd) = connection.fd else { return };
        connection.sends = true;
        self.post(connection_token(&self.connections, Kind::Send, slot), Op::Send { fd, data });
    }

    /// Gives up requests whose time is over, by a reset of their connections.
    fn give_up_what_is_late(&mut self) {
        while let Some(watched) = self.deadlines.take(self.now) {
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
    fn fail(&mut self, slot: u32, why: Failed) {
        let connection = &mut self.connections[slot as usize];
        if !connection.is_alive() {
            return;
        }
        if why == Failed::Refused {
            self.refused_since.get_or_insert(self.now);
        }
        if self.opening > 0 && connection.phase == Phase::Connecting {
            self.tally.stopped = Some(Stopped::NotOpened(why));
        }
        self.lose_all(slot, why);
        self.end(slot, true);
    }

    /// What was asked on a connection gets no reply.
    fn lose_all(&mut self, slot: u32, why: Failed) {
        while let Some(asked) = self.connections[slot as usize].asked.pop_front() {
            self.connections[slot as usize].over += 1;
            self.lose(asked, why);
        }
    }

    fn lose(&mut self, asked: Asked, why: Failed) {
        self.counted -= u64::from(asked.counts);
        self.tally.failed(asked.counts, why);
        self.note(&asked, Some(why));
    }

    fn note(&mut self, asked: &Asked, failed: Option<Failed>) {
        if self.plan.keep_log {
            let due = asked.due.saturating_duration_since(self.begin);
            let end = self.now.saturating_duration_since(asked.due);
            self.tally.log.push(Log { due, connect: asked.connect, end, failed });
        }
    }

    /// Ends a connection: what is in flight first, then its descriptor.
    fn end(&mut self, slot: u32, reset: bool) {
        let connection = &mut self.connections[slot as usize];
        connection.phase = Phase::Ending;
        if connection.role == Role::Session {
            let session = &self.plan.sessions[connection.session];
            if session.rounds != Session::FOREVER {
                let all = session.rounds.saturating_mul(session.requests.len() as u64);
                self.tally.skipped += all.saturating_sub(connection.place);
            }
        }
        if connection.role == Role::Cold {
            self.tally.cold_lost += 1;
        }
        let Some(fd) = connection.fd else { return };
        let flights = [
            (connection.connects, Kind::Connect),
            (connection.receives, Kind::Receive),
            (connection.sends, Kind::Send),
        ];
        if reset {
            self.kernel.host_mut().reset_on_close(fd);
        }
        for (_, kind) in flights.into_iter().filter(|(flies, _)| *flies) {
            self.kernel.cancel(connection_token(&self.connections, kind, slot));
        }
        self.close_if_quiet(slot);
    }

    fn close_if_quiet(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.phase != Phase::Ending || !connection.is_quiet() {
            return;
        }
        connection.phase = Phase::Closing;
        let Some(fd) = connection.fd.take() else { return };
        self.post(connection_token(&self.connections, Kind::Close, slot), Op::Close { fd });
    }

    /// A connection is gone. Where there is to be another one in its place, it follows.
    fn closed(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        connection.phase = Phase::Free;
        connection.generation = (connection.generation + 1) % Token::GENERATIONS;
        let (role, failed) = (connection.role, connection.over == 0);
        self.free.push(slot);
        self.open -= 1;
        if self.ended {
            return;
        }
        if role == Role::Cold {
            return;
        }
        if failed { self.try_again_later() } else { self.try_again() }
    }

    fn close_all(&mut self) -> Result<(), Fault> {
        let patience = self.kernel.host().clock() + PATIENCE;
        self.ended = true;
        for slot in 0..self.connections.len() as u32 {
            if self.connections[slot as usize].is_alive() {
                // Its end is nobody's loss any more.
                self.connections[slot as usize].role = Role::Kept;
                self.end(slot, true);
            }
        }
        while self.open > 0 && self.now < patience {
            self.turn(Some(patience))?;
        }
        Ok(())
    }
}

/// Stands for the end of a connection that the server is to bring about.
const FAREWELL: u64 = u64::MAX;

/// Whether what is watched has come to its end.
fn is_over(connections: &[Connection], watched: &Watched) -> bool {
    let connection = &connections[watched.slot as usize];
    let place = watched.place;
    connection.generation != watched.generation
        || !connection.is_alive()
        || (place == FAREWELL) != (connection.phase == Phase::Farewell)
        || place < connection.over
}

fn connection_token(connections: &[Connection], kind: Kind, slot: u32) -> Token {
    connections[slot as usize].token(kind, slot)
}

fn emptied(mut list: Box<Gather>) -> Box<Gather> {
    list.clear();
    list
}

fn why(errno: Errno) -> Failed {
    match errno {
        Errno::CONNREFUSED => Failed::Refused,
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => Failed::Reset,
        Errno::TIMEDOUT => Failed::ConnectTimeout,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL => {
            Failed::NoRoom
        }
        _ => Failed::Other,
    }
}
