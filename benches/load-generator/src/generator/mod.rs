//! Makes the load of a plan.

mod arrive;
mod line;
mod slow;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use shared_ring::{
    Completion, Errno, GatherList, Host, Kernel, KernelError, OpKind, Outcome, Token,
};

use crate::arrivals::Moments;
use crate::connection::{Connection, Phase, Role};
use crate::deadlines::{Deadlines, Watched};
use crate::tally::{Moment, Stopped};
use crate::{Failed, InvalidPlan, Pace, Plan, Tally};

/// Most sessions or requests begun between two looks at what has come.
const BURST: u32 = 64;
/// Most that are given up between two looks, as their time was over before they could begin.
const GIVEN_UP: u32 = 1_000;
/// Most connections being made before the load begins.
const OPENING: u32 = 64;
/// How long a client waits that found no connection before it tries again, in a closed loop.
const RETRY: Duration = Duration::from_millis(10);
/// How long the server may refuse every connection before it is taken for gone.
const REFUSING: Duration = Duration::from_secs(1);
/// How often it has to, at least.
const REFUSALS: u32 = 3;
/// How long it may take to open what is to be open before the load begins, and how much longer for
/// each connection.
const OPENING_TIME: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(5));
/// How late something may be begun.
const TOLERABLE: Duration = Duration::from_millis(1);
/// How long to wait for the last descriptors to be closed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whom a time wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wakes {
    /// Who thought, on the connection of this slot and generation.
    Thinker(u32, u32),
    /// Who found no connection.
    Unconnected,
    /// Who reads or sends a little at a time, on the connection of this slot and generation.
    Slow(u32, u32),
    /// One such whose connection has ended.
    SlowAgain(Role),
}

/// Lists to be used again, boxed as the kernel takes them.
type Lists = Vec<Box<GatherList>>;

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
    last_tick: Instant,
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
    /// Until when servers may take to end connections.
    farewells: Deadlines,
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
    /// Since when all connections are refused, and how many were.
    refused_since: Option<Instant>,
    refusals: u32,
    has_connected: bool,
}

impl<'a, K: Kernel> Generator<'a, K> {
    /// Operations that the kernel must have room for.
    pub fn operations(plan: &Plan) -> u32 {
        4 * (plan.max_open + 1)
    }

    /// Sets up the load of a plan.
    ///
    /// # Errors
    /// When the plan makes no sense.
    pub fn new(kernel: K, plan: &'a Plan) -> Result<Self, InvalidPlan> {
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
            last_tick: now,
            connections: Vec::new(),
            free: Vec::new(),
            open: 0,
            opening: 0,
            opened: 0,
            moments: rate.map(|(rate, arrivals)| {
                Moments::new(arrivals, rate, (plan.burst, plan.warm_up), plan.seed)
            }),
            clients: 0,
            session: 0,
            place: 0,
            source: 0,
            idle: VecDeque::new(),
            waiting: VecDeque::new(),
            deadlines: Deadlines::default(),
            farewells: Deadlines::default(),
            waking: BinaryHeap::new(),
            counted: 0,
            ended: false,
            fresh: Vec::with_capacity(BURST as usize),
            done: VecDeque::new(),
            spare: Vec::new(),
            refused_since: None,
            refusals: 0,
            has_connected: false,
            kernel,
            plan,
        })
    }

    /// Makes the load. Whenever something is worth telling `watch` is shown what was seen so far; when
    /// it returns false the load ends early.
    ///
    /// # Errors
    /// Only when the kernel can't be used any more.
    pub fn run(
        mut self,
        mut watch: impl FnMut(Moment, &Tally) -> bool,
    ) -> Result<Tally, KernelError> {
        self.tally.stopped = self.open_beforehand(&mut watch)?;
        if self.tally.stopped.is_none() {
            self.start();
            loop {
                self.tick(&mut watch);
                let long = self.refused_since.is_some_and(|since| self.now >= since + REFUSING);
                if long && self.refusals >= REFUSALS {
                    self.tally.stopped = Some(Stopped::Gone);
                }
                if self.tally.stopped.is_some() || self.is_over() {
                    break;
                }
                self.begin_what_is_due();
                self.give_up_what_is_late();
                let next = if self.plan.busy { self.now } else { self.next_moment() };
                self.turn(Some(next))?;
            }
            if self.tally.stopped.is_none() && self.refusals > 0 && !self.has_connected {
                self.tally.stopped = Some(Stopped::Gone);
            }
            let end = self.now.min(self.counted_until);
            self.tally.measured = end.saturating_duration_since(self.counted_from);
        }
        self.close_all()?;
        Ok(self.tally)
    }

    /// Opens the connections that are to be there before the load begins; says why they can't be.
    fn open_beforehand(
        &mut self,
        watch: &mut impl FnMut(Moment, &Tally) -> bool,
    ) -> Result<Option<Stopped>, KernelError> {
        let kept = match self.plan.pace {
            Pace::Requests { connections, .. } => connections,
            _ => 0,
        };
        let slow = self.plan.slow.map_or(0, |slow| slow.readers + slow.senders);
        let wanted = self.plan.cold + kept + slow;
        let patience = self.now + OPENING_TIME.0 + OPENING_TIME.1 * wanted;
        while self.opened < wanted {
            while self.opening < OPENING && self.opened + self.opening < wanted {
                let made = self.opened + self.opening;
                let role = self.role_of(made);
                if let Err(failure) = self.connect(role) {
                    return Ok(Some(Stopped::NotOpened(failure)));
                }
                self.opening += 1;
            }
            self.turn(Some(patience))?;
            if !watch(Moment::Turn, &self.tally) {
                return Ok(Some(Stopped::Asked));
            }
            if let Some(stopped) = self.tally.stopped {
                return Ok(Some(stopped));
            }
            if self.now >= patience {
                return Ok(Some(Stopped::NotOpened(Failed::ConnectTimeout)));
            }
        }
        Ok(None)
    }

    /// What the connections that are opened beforehand are for, in their order.
    fn role_of(&self, number: u32) -> Role {
        let slow = self.plan.slow.unwrap_or_default();
        let ends = [self.plan.cold, slow.readers, slow.senders];
        let roles = [Role::Cold, Role::SlowReader, Role::SlowSender];
        let mut end = 0;
        for (count, role) in ends.into_iter().zip(roles) {
            end += count;
            if number < end {
                return role;
            }
        }
        Role::Kept
    }

    fn start(&mut self) {
        self.now = self.kernel.host().clock();
        self.begin = self.now;
        // Before anything else, so that all moments are behind it.
        self.last_tick = self.begin - Duration::from_nanos(1);
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
        let all_are_due =
            self.moments.as_ref().is_none_or(|m| self.begin + m.next() >= self.counted_until);
        self.now >= self.counted_until && self.counted == 0 && all_are_due
    }

    /// Whether what is due at a moment counts.
    fn counts(&self, due: Instant) -> bool {
        due >= self.counted_from && due < self.counted_until
    }

    /// Tells what is worth telling, and ends the slices of the time series that are over.
    fn tick(&mut self, watch: &mut impl FnMut(Moment, &Tally) -> bool) {
        let mut goes_on = watch(Moment::Turn, &self.tally);
        for (at, moment) in
            [(self.counted_from, Moment::Counts), (self.counted_until, Moment::CountsNoMore)]
        {
            if self.last_tick < at && self.now >= at {
                goes_on &= watch(moment, &self.tally);
            }
        }
        self.last_tick = self.now;
        while self.now >= self.next_slice {
            self.next_slice += self.plan.interval;
            self.tally.slice().open = self.open;
            goes_on &= watch(Moment::Slice, &self.tally);
            self.tally.series.push(Default::default());
        }
        if !goes_on {
            self.tally.stopped = Some(Stopped::Asked);
        }
    }

    /// When there will be something to do though nothing comes.
    fn next_moment(&mut self) -> Instant {
        let connections = &self.connections;
        let first = self.deadlines.next(|watched| is_over(connections, watched));
        let farewell = self.farewells.next(|watched| is_over(connections, watched));
        let waiting = self.waiting.front().map(|due| *due + self.plan.deadline);
        let wake = self.waking.peek().map(|Reverse((at, _))| *at);
        let mut next = self.next_slice;
        for at in [first, farewell, waiting, wake].into_iter().flatten() {
            next = next.min(at);
        }
        for at in [self.counted_from, self.counted_until] {
            if self.now < at {
                next = next.min(at);
            }
        }
        if self.clients > 0 {
            next = self.now;
        }
        if let Some(moments) = &self.moments {
            next = next.min(self.begin + moments.next());
        }
        next
    }

    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        if !self.fresh.is_empty() {
            let now = self.kernel.host().clock();
            for (due, counts) in self.fresh.drain(..) {
                self.tally.lagged(counts, now.saturating_duration_since(due));
                // What is begun behind the end is too late.
                self.tally.begun(counts && now <= self.counted_until + TOLERABLE);
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

    fn complete(&mut self, completion: Completion) {
        let Completion { token, outcome, last } = completion;
        let slot = token.slot();
        let Some(connection) = self.connections.get_mut(slot as usize) else { return };
        if connection.generation != token.generation() {
            return;
        }
        match token.kind() {
            OpKind::Connect => connection.connects = false,
            OpKind::Receive => connection.receives &= !last,
            OpKind::Send => connection.sends = false,
            OpKind::Close => return self.closed(slot),
            _ => return,
        }
        match outcome {
            Outcome::Connected => self.connected(slot),
            Outcome::Received(bytes) => self.received(slot, &bytes),
            Outcome::Eof => self.ended(slot),
            Outcome::Sent(list, _) => self.sent(slot, list),
            // One who reads slowly rests.
            Outcome::Failed(Errno::CANCELED, None) if self.is_resting(slot) => {}
            Outcome::Failed(errno, list) => {
                self.spare.extend(list.map(emptied));
                self.fail(slot, failure_of(errno));
            }
            _ => {}
        }
        self.close_if_quiet(slot);
    }

    fn close_all(&mut self) -> Result<(), KernelError> {
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

fn connection_token(connections: &[Connection], kind: OpKind, slot: u32) -> Token {
    connections[slot as usize].token(kind, slot)
}

fn emptied(mut list: Box<GatherList>) -> Box<GatherList> {
    list.clear();
    list
}

fn failure_of(errno: Errno) -> Failed {
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
