//! Generates the load of a plan.

mod io;
mod schedule;
mod slow;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use shared_ring::buffers::GatherList;
use shared_ring::{Completion, Errno, Host, Kernel, KernelError, OpKind, Outcome, Token};

use crate::arrivals::ArrivalTimes;
use crate::connection::{Connection, Phase, Role};
use crate::deadlines::{Deadline, Deadlines};
use crate::stats::{RunEvent, StopReason};
use crate::{InvalidPlan, LoadModel, Plan, RequestError, Stats};

/// Maximum number of sessions or requests started per turn of the kernel.
const MAX_STARTS_PER_TURN: u32 = 64;
/// Maximum number of requests per turn that expire before they are started.
const MAX_EXPIRED_PER_TURN: u32 = 1_000;
/// Maximum number of connections being established before the run starts.
const MAX_CONNECTING: u32 = 64;
/// Delay before a client retries after a failed connection, in a closed loop.
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// The run stops when the server has refused every connection for this long,
const REFUSAL_PERIOD: Duration = Duration::from_secs(1);
/// and at least this many connections.
const MIN_REFUSALS: u32 = 3;
/// Timeout for opening the initial connections, plus an allowance for each of them.
const SETUP_TIMEOUT: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(5));
/// Maximum delay of a request that still counts as started in time.
const MAX_LAG: Duration = Duration::from_millis(1);
/// Timeout for closing the remaining connections at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A client's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// The think time of the client on the connection with this slot and generation is over.
    Think(u32, u32),
    /// A client retries after a failed connection.
    Reconnect,
    /// A slow client on the connection with this slot and generation continues.
    Slow(u32, u32),
    /// A slow client opens a new connection.
    SlowReconnect(Role),
}

/// Lists for reuse, boxed because the kernel takes them boxed.
type Lists = Vec<Box<GatherList>>;

/// Generates the load of a plan on a kernel.
pub struct Generator<'a, K> {
    kernel: K,
    plan: &'a Plan,
    stats: Stats,
    /// Time of the current turn.
    now: Instant,
    start_time: Instant,
    measure_start: Instant,
    measure_end: Instant,
    next_interval: Instant,
    last_tick: Instant,
    connections: Vec<Connection>,
    free_slots: Vec<u32>,
    open: u32,
    /// Connections to open before the run: in progress, established.
    setup_pending: u32,
    setup_done: u32,
    /// Arrival times of sessions or requests, in an open loop.
    arrivals: Option<ArrivalTimes>,
    /// Number of sessions to start now, in a closed loop.
    sessions_to_start: u32,
    /// Index of the next session and, for `LoadModel::OpenRequests`, of the next request in it.
    next_session: usize,
    next_index: u64,
    next_source: usize,
    /// Index of the next request of slow clients.
    next_slow: usize,
    /// Idle persistent connections: slot and generation.
    idle: VecDeque<(u32, u32)>,
    /// Due times of requests that wait for an idle connection.
    queued: VecDeque<Instant>,
    deadlines: Deadlines,
    /// Deadlines for the server to close a connection.
    close_deadlines: Deadlines,
    /// Timers of clients.
    timers: BinaryHeap<Reverse<(Instant, Timer)>>,
    /// Measured requests without a reply or error yet.
    measured_pending: u64,
    /// The run has ended: nothing is started any more.
    stopping: bool,
    /// Due time of each session or request started in this turn, and whether it is measured.
    started: Vec<(Instant, bool)>,
    /// Completions of operations that completed at once.
    completions: VecDeque<Completion>,
    spare_lists: Lists,
    /// Start and length of the current run of refused connections.
    refused_since: Option<Instant>,
    refusals: u32,
    has_connected: bool,
}

impl<K> std::fmt::Debug for Generator<'_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generator").field("open", &self.open).finish_non_exhaustive()
    }
}

impl<'a, K: Kernel> Generator<'a, K> {
    /// Returns the number of operations that the kernel needs room for.
    pub fn operations(plan: &Plan) -> u32 {
        4 * (plan.max_open + 1)
    }

    /// Creates a generator for a plan.
    ///
    /// # Errors
    /// Returns [`InvalidPlan`] if a value is out of range.
    pub fn new(kernel: K, plan: &'a Plan) -> Result<Self, InvalidPlan> {
        plan.validate()?;
        let now = kernel.host().clock();
        let rate = plan.model.rate();
        Ok(Generator {
            stats: Stats::new(),
            now,
            start_time: now,
            measure_start: now,
            measure_end: now,
            next_interval: now,
            last_tick: now,
            connections: Vec::new(),
            free_slots: Vec::new(),
            open: 0,
            setup_pending: 0,
            setup_done: 0,
            arrivals: rate.map(|(rate, arrivals)| {
                ArrivalTimes::new(arrivals, rate, (plan.burst, plan.warm_up), plan.seed)
            }),
            sessions_to_start: 0,
            next_session: 0,
            next_index: 0,
            next_source: 0,
            next_slow: 0,
            idle: VecDeque::new(),
            queued: VecDeque::new(),
            deadlines: Deadlines::default(),
            close_deadlines: Deadlines::default(),
            timers: BinaryHeap::new(),
            measured_pending: 0,
            stopping: false,
            started: Vec::with_capacity(MAX_STARTS_PER_TURN as usize),
            completions: VecDeque::new(),
            spare_lists: Vec::new(),
            refused_since: None,
            refusals: 0,
            has_connected: false,
            kernel,
            plan,
        })
    }

    /// Runs the load and returns its statistics. Calls `watch` at each [`RunEvent`]; if it returns
    /// false, the run stops early.
    ///
    /// # Errors
    /// Returns an error if the kernel fails.
    pub fn run(
        mut self,
        mut watch: impl FnMut(RunEvent, &Stats) -> bool,
    ) -> Result<Stats, KernelError> {
        self.stats.stop_reason = self.open_initial(&mut watch)?;
        if self.stats.stop_reason.is_none() {
            self.start();
            loop {
                self.tick(&mut watch);
                let refused_too_long =
                    self.refused_since.is_some_and(|since| self.now >= since + REFUSAL_PERIOD);
                if refused_too_long && self.refusals >= MIN_REFUSALS {
                    self.stats.stop_reason = Some(StopReason::ServerUnavailable);
                }
                if self.stats.stop_reason.is_some() || self.is_finished() {
                    break;
                }
                self.start_due();
                self.expire_requests();
                let next = if self.plan.busy_poll { self.now } else { self.next_wakeup() };
                self.turn(Some(next))?;
            }
            if self.stats.stop_reason.is_none() && self.refusals > 0 && !self.has_connected {
                self.stats.stop_reason = Some(StopReason::ServerUnavailable);
            }
            let end = self.now.min(self.measure_end);
            self.stats.duration = end.saturating_duration_since(self.measure_start);
        }
        self.close_all()?;
        Ok(self.stats)
    }

    /// Opens the connections required before the run. Returns the reason if that fails.
    fn open_initial(
        &mut self,
        watch: &mut impl FnMut(RunEvent, &Stats) -> bool,
    ) -> Result<Option<StopReason>, KernelError> {
        let persistent = match self.plan.model {
            LoadModel::OpenRequests { connections, .. } => connections,
            _ => 0,
        };
        let slow = self.plan.slow.map_or(0, |slow| slow.readers + slow.senders);
        let total = self.plan.idle_connections + persistent + slow;
        let timeout = self.now + SETUP_TIMEOUT.0 + SETUP_TIMEOUT.1 * total;
        while self.setup_done < total {
            while self.setup_pending < MAX_CONNECTING
                && self.setup_done + self.setup_pending < total
            {
                let number = self.setup_done + self.setup_pending;
                let role = self.role_of(number);
                if let Err(error) = self.connect(role) {
                    return Ok(Some(StopReason::SetupFailed(error)));
                }
                self.setup_pending += 1;
            }
            self.turn(Some(timeout))?;
            if !watch(RunEvent::Poll, &self.stats) {
                return Ok(Some(StopReason::Interrupted));
            }
            if let Some(reason) = self.stats.stop_reason {
                return Ok(Some(reason));
            }
            if self.now >= timeout {
                return Ok(Some(StopReason::SetupFailed(RequestError::ConnectTimeout)));
            }
        }
        Ok(None)
    }

    /// Returns the role of the initial connection with this number.
    fn role_of(&self, number: u32) -> Role {
        let slow = self.plan.slow.unwrap_or_default();
        let ends = [self.plan.idle_connections, slow.readers, slow.senders];
        let roles = [Role::Idle, Role::SlowReader, Role::SlowSender];
        let mut end = 0;
        for (count, role) in ends.into_iter().zip(roles) {
            end += count;
            if number < end {
                return role;
            }
        }
        Role::Persistent
    }

    fn start(&mut self) {
        self.now = self.kernel.host().clock();
        self.start_time = self.now;
        // Earlier than every event, so that none is missed.
        self.last_tick = self.start_time - Duration::from_nanos(1);
        self.measure_start = self.start_time + self.plan.warm_up;
        self.measure_end = self.measure_start + self.plan.duration;
        self.next_interval = self.start_time + self.plan.interval;
        if let LoadModel::Closed { connections } = self.plan.model {
            self.sessions_to_start = connections;
        }
    }

    /// Returns whether every measured request has ended, unless the plan ends the load before. Until then it
    /// continues, because a server that only drains its last requests would be less loaded than before.
    fn is_finished(&self) -> bool {
        if !self.plan.drain {
            return self.now >= self.measure_end;
        }
        let all_due =
            self.arrivals.as_ref().is_none_or(|m| self.start_time + m.next() >= self.measure_end);
        self.now >= self.measure_end && self.measured_pending == 0 && all_due
    }

    /// Returns whether a request due at `due` is in the measurement period.
    fn is_measured(&self, due: Instant) -> bool {
        due >= self.measure_start && due < self.measure_end
    }

    /// Calls `watch` for the events that occurred, and starts a new interval when one has ended.
    fn tick(&mut self, watch: &mut impl FnMut(RunEvent, &Stats) -> bool) {
        let mut proceed = watch(RunEvent::Poll, &self.stats);
        for (at, event) in [
            (self.measure_start, RunEvent::MeasurementStart),
            (self.measure_end, RunEvent::MeasurementEnd),
        ] {
            if self.last_tick < at && self.now >= at {
                proceed &= watch(event, &self.stats);
            }
        }
        self.last_tick = self.now;
        while self.now >= self.next_interval {
            self.next_interval += self.plan.interval;
            self.stats.interval().open = self.open;
            proceed &= watch(RunEvent::IntervalEnd, &self.stats);
            self.stats.intervals.push(Default::default());
        }
        if !proceed {
            self.stats.stop_reason = Some(StopReason::Interrupted);
        }
    }

    /// Returns when the generator must act even if no operation completes.
    fn next_wakeup(&mut self) -> Instant {
        let connections = &self.connections;
        let first = self.deadlines.next(|deadline| is_obsolete(connections, deadline));
        let close = self.close_deadlines.next(|deadline| is_obsolete(connections, deadline));
        let queued = self.queued.front().map(|due| *due + self.plan.timeout);
        let wake = self.timers.peek().map(|Reverse((at, _))| *at);
        let mut next = self.next_interval;
        for at in [first, close, queued, wake].into_iter().flatten() {
            next = next.min(at);
        }
        for at in [self.measure_start, self.measure_end] {
            if self.now < at {
                next = next.min(at);
            }
        }
        if self.sessions_to_start > 0 {
            next = self.now;
        }
        if let Some(arrivals) = &self.arrivals {
            next = next.min(self.start_time + arrivals.next());
        }
        next
    }

    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        if !self.started.is_empty() {
            let now = self.kernel.host().clock();
            for (due, measured) in self.started.drain(..) {
                self.stats.lagged(measured, now.saturating_duration_since(due));
                // A request started after the end of the measurement period is too late.
                self.stats.started(measured && now <= self.measure_end + MAX_LAG);
            }
        }
        let until = if self.completions.is_empty() { until } else { Some(self.now) };
        self.kernel.turn(until)?;
        self.now = self.kernel.now();
        while let Some(completion) = self.completions.pop_front().or_else(|| self.kernel.next()) {
            self.complete(completion);
        }
        Ok(())
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { token, outcome, is_last, .. } = completion;
        let slot = token.slot();
        let Some(connection) = self.connections.get_mut(slot as usize) else { return };
        if connection.generation != token.generation() {
            return;
        }
        match token.kind() {
            OpKind::Connect => connection.connecting = false,
            OpKind::Receive | OpKind::Call => connection.receiving &= !is_last,
            OpKind::Send => connection.sending = false,
            OpKind::Close => return self.closed(slot),
            _ => return,
        }
        match outcome {
            Outcome::Connected => self.connected(slot),
            Outcome::Received(bytes) => self.received(slot, &bytes),
            Outcome::Eof => self.received_eof(slot),
            Outcome::Sent(list, _) => self.sent(slot, list),
            Outcome::Called(call, Ok(len)) => self.slow_piece(slot, &call.memory(1)[..len]),
            Outcome::Called(_, Err(errno)) => self.fail(slot, error_of(errno)),
            Outcome::Failed(errno, list) => {
                self.spare_lists.extend(list.map(cleared));
                self.fail(slot, error_of(errno));
            }
            _ => {}
        }
        self.close_if_drained(slot);
    }

    fn close_all(&mut self) -> Result<(), KernelError> {
        let timeout = self.kernel.host().clock() + CLOSE_TIMEOUT;
        self.stopping = true;
        for slot in 0..self.connections.len() as u32 {
            if self.connections[slot as usize].is_alive() {
                // With this role, closing is not counted as lost or skipped.
                self.connections[slot as usize].role = Role::Persistent;
                self.close(slot, true);
            }
        }
        while self.open > 0 && self.now < timeout {
            self.turn(Some(timeout))?;
        }
        Ok(())
    }
}

/// Index in a [`Deadline`] for the server's close of a connection.
const CLOSE_DEADLINE: u64 = u64::MAX;

/// Returns whether the request or close of a deadline has ended.
fn is_obsolete(connections: &[Connection], deadline: &Deadline) -> bool {
    let connection = &connections[deadline.slot as usize];
    let index = deadline.index;
    connection.generation != deadline.generation
        || !connection.is_alive()
        || (index == CLOSE_DEADLINE) != (connection.phase == Phase::AwaitingClose)
        || index < connection.completed
}

fn connection_token(connections: &[Connection], kind: OpKind, slot: u32) -> Token {
    connections[slot as usize].token(kind, slot)
}

fn cleared(mut list: Box<GatherList>) -> Box<GatherList> {
    list.clear();
    list
}

fn error_of(errno: Errno) -> RequestError {
    match errno {
        Errno::CONNREFUSED => RequestError::Refused,
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => RequestError::Reset,
        Errno::TIMEDOUT => RequestError::ConnectTimeout,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL => {
            RequestError::NoResources
        }
        _ => RequestError::Other,
    }
}
