//! Admission control: the number of connections that the driver accepts under overload.
//!
//! Accepting and then rejecting a connection costs almost as much as serving it. Excess load must therefore
//! be dropped earlier, in the listen backlog, where the kernel does it cheaply. The backlog should hold
//! what the server can serve while clients wait, and no more: the clients of older connections have given
//! up, and serving these is wasted work.

use std::mem;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

/// Admission control under overload. The default assumes clients that time out after one second.
///
/// The driver detects overload by queueing delay: even the shortest delay in a period exceeds the limit. The delay is that of
/// the first bytes of an accepted connection: where no connection is new, there is no overload, however late messages are.
/// During overload, and for a short time after it, the driver limits the listen backlogs to what it can
/// serve within [`max_queue_delay`](Self::max_queue_delay) and accepts few connections per turn. Mechanisms
/// that scan all descriptors in each turn, such as `poll` and `select`, accept more. Without overload
/// nothing changes. The mechanism `tokio` has no turns and ignores admission control.
///
/// A client that finds the backlog full retries after one second (tcp(7)). If clients should wait rather
/// than retry, raise the delay.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Admission {
    /// Maximum time that a connection should wait until it is served.
    pub max_queue_delay: Duration,
    /// Minimum length of the backlog; several listeners share it.
    pub min_queue: u32,
    /// Maximum age of a connection. An older one counts as abandoned, and the driver resets it when it
    /// accepts it.
    pub max_wait: Duration,
    /// Order in which waiting connections are served.
    pub order: Order,
}

impl Admission {
    /// Length of a measurement period.
    fn period(&self) -> Duration {
        self.max_queue_delay.max(MIN_PERIOD)
    }
}

/// Order in which waiting connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Oldest first, the order of the listen backlog.
    Oldest,
    /// Newest first. Connections too deep in the queue are reset, which costs more than leaving them in the
    /// backlog, but those that are served have hardly waited.
    Newest,
}

impl Default for Admission {
    fn default() -> Self {
        Admission {
            max_queue_delay: Duration::from_millis(50),
            min_queue: 32,
            max_wait: Duration::from_secs(2),
            order: Order::Oldest,
        }
    }
}

/// Lateness of the work on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lateness {
    /// Not late.
    InTime,
    /// The newest bytes have waited more than twice the permitted delay. The application should reject
    /// expensive work.
    Late,
    /// The bytes have waited longer than [`Admission::max_wait`], or the peer has reset the connection. No
    /// client waits for a reply.
    Abandoned,
}

/// Connections accepted and admitted in one turn under overload; few enough to stay in the CPU cache until
/// they are served.
const ACCEPTS_PER_TURN: NonZeroU16 = NonZeroU16::new(4).unwrap();
/// The same for mechanisms that scan all descriptors.
const ACCEPTS_SCANNING: NonZeroU16 = NonZeroU16::new(256).unwrap();
/// The same while many admitted connections are unserved.
const ACCEPTS_CROWDED: NonZeroU16 = NonZeroU16::MIN;
/// The same if the newest connections come first: the driver must find them among the accepted.
const ACCEPTS_NEWEST: NonZeroU16 = NonZeroU16::new(64).unwrap();
/// Minimum interval between two samples of the queueing delay.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);
/// Minimum length of a period.
const MIN_PERIOD: Duration = Duration::from_millis(1);
/// Number of periods without overload after which the limits are lifted.
const CALM_PERIODS: u32 = 10;

/// Estimates the load from queueing delays, in periods of [`Admission::period`].
#[derive(Debug)]
pub(crate) struct LoadEstimator {
    admission: Option<Admission>,
    /// Each turn scans all descriptors, so a turn should accept many connections.
    scans: bool,
    /// Start of the current period.
    began: Option<Instant>,
    /// Connections served in the period, and in the current turn.
    served: u64,
    in_turn: u64,
    /// Time of the last sample, and the minimum queueing delay in the period.
    last_sample: Option<Instant>,
    min_wait: Option<Duration>,
    /// Minimum number of deferred connections at the end of a turn.
    min_deferred: usize,
    /// The server has reached its maximum number of connections in this period.
    full: bool,
    /// End of the overload, unless it is detected again.
    overloaded_until: Option<Instant>,
    /// Number of admitted connections for which no bytes have been handled yet.
    unserved: u32,
    /// Too many connections are unserved, so fewer are admitted.
    many_unserved: bool,
    /// Connections served per second under overload.
    rate: f64,
}

/// Limits for the listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmissionLimits {
    /// Maximum number of connections to accept in one turn.
    pub(crate) per_turn: Option<NonZeroU16>,
    /// Maximum total length of all backlogs.
    pub(crate) waiting: Option<u32>,
}

impl LoadEstimator {
    pub(crate) fn new(admission: Option<Admission>, scans: bool) -> Self {
        LoadEstimator {
            admission,
            scans,
            began: None,
            served: 0,
            in_turn: 0,
            last_sample: None,
            min_wait: None,
            min_deferred: usize::MAX,
            full: false,
            overloaded_until: None,
            unserved: 0,
            many_unserved: false,
            rate: 0.0,
        }
    }

    /// Records an admitted connection.
    pub(crate) fn admitted(&mut self) {
        self.unserved += 1;
    }

    /// Records that a connection is served for the first time. Returns whether its queueing delay should be
    /// sampled.
    pub(crate) fn first_service(&mut self, now: Instant) -> bool {
        self.in_turn += 1;
        self.unserved -= 1;
        let is_due =
            self.last_sample.is_none_or(|at| now.saturating_duration_since(at) >= SAMPLE_INTERVAL);
        self.admission.is_some() && is_due
    }

    /// Records the queueing delay of a connection that was just served.
    pub(crate) fn sample_wait(&mut self, now: Instant, time: Duration) {
        self.last_sample = Some(now);
        self.min_wait = Some(self.min_wait.map_or(time, |min| min.min(time)));
    }

    /// Returns whether the server is overloaded.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.overloaded_until.is_some()
    }

    /// Returns the end of the overload if it is not detected again.
    pub(crate) fn overload_ends(&self) -> Option<Instant> {
        // The end is noticed when a period ends.
        let period = self.admission?.period();
        self.overloaded_until.max(self.overloaded_until.and(self.began?.checked_add(period)))
    }

    /// Returns the number of connections to admit per turn if the newest come first under overload. The
    /// others stay deferred.
    pub(crate) fn admit_per_turn(&self) -> Option<usize> {
        let newest = self.admission.is_some_and(|a| a.order == Order::Newest);
        let max = if self.scans { ACCEPTS_NEWEST } else { ACCEPTS_PER_TURN };
        (newest && self.is_overloaded()).then_some(max.get().into())
    }

    /// Returns the number of connections served per second under the last overload; 0 if there was none.
    pub(crate) fn rate(&self) -> u32 {
        self.rate as u32
    }

    /// Returns the lateness of bytes that have waited for this time; `None` stands for a closed peer.
    pub(crate) fn lateness(&self, waited: Option<Duration>) -> Lateness {
        match (self.admission, waited) {
            (Some(_), None) => Lateness::Abandoned,
            (Some(admission), Some(waited)) if waited > admission.max_wait => Lateness::Abandoned,
            (Some(admission), Some(waited)) if waited / 2 > self.bound(admission) => Lateness::Late,
            _ => Lateness::InTime,
        }
    }

    /// Returns the delay of a connection in a backlog of the maximum length.
    fn bound(&self, admission: Admission) -> Duration {
        let min = Duration::try_from_secs_f64(f64::from(admission.min_queue) / self.rate);
        admission.max_queue_delay.max(min.unwrap_or(Duration::ZERO))
    }

    /// Ends a turn that began at `now` and left `deferred` connections waiting. If the server is `full`,
    /// the delays of this period do not count. Returns limits at the end of a period, and when admission
    /// becomes crowded or stops to be.
    pub(crate) fn end_turn(
        &mut self,
        now: Instant,
        deferred: usize,
        full: bool,
    ) -> Option<AdmissionLimits> {
        let admission = self.admission?;
        if self.served == 0 && !self.is_overloaded() {
            // A period starts with the first connection.
            self.began = Some(now);
        }
        let began = *self.began.get_or_insert(now);
        let time = now.saturating_duration_since(began);
        let period_ended = time >= admission.period();
        let is_crowded = self.is_crowded(admission);
        let was_crowded = mem::replace(&mut self.many_unserved, is_crowded);
        let limits = if period_ended {
            Some(self.end_period(admission, now, time))
        } else {
            (self.many_unserved != was_crowded).then(|| self.limits(admission))
        };
        // The connections of this turn were served after its beginning.
        self.served += mem::take(&mut self.in_turn);
        self.min_deferred = self.min_deferred.min(deferred);
        self.full |= full;
        limits
    }

    fn end_period(
        &mut self,
        admission: Admission,
        now: Instant,
        time: Duration,
    ) -> AdmissionLimits {
        // An older sample says nothing about this period.
        let from = now.checked_sub(admission.period() * 2);
        let wait = self.min_wait.take().filter(|_| !self.full && self.last_sample > from);
        // With the right limits, connections wait just as long as the permitted delay.
        let max = if self.is_overloaded() {
            admission.max_queue_delay / 2
        } else {
            admission.max_queue_delay
        };
        // At a full server, those that are deferred wait for a place.
        let always_deferred =
            self.is_overloaded() && !self.full && (1..usize::MAX).contains(&self.min_deferred);
        if wait.is_some_and(|wait| wait > max) || always_deferred {
            let rate = self.served as f64 / time.as_secs_f64();
            self.rate = if self.is_overloaded() { self.rate * 0.75 + rate * 0.25 } else { rate };
            self.overloaded_until =
                now.checked_add(admission.period().saturating_mul(CALM_PERIODS));
        } else if self.overloaded_until.is_some_and(|end| end <= now) {
            self.overloaded_until = None;
        }
        (self.began, self.served, self.min_deferred) = (Some(now), 0, usize::MAX);
        self.full = false;
        self.limits(admission)
    }

    fn limits(&self, admission: Admission) -> AdmissionLimits {
        AdmissionLimits { per_turn: self.per_turn(admission), waiting: self.waiting(admission) }
    }

    /// Returns whether more than half of the permitted backlog is admitted but unserved. The state ends
    /// below a quarter. Some of these clients may never send, so a few are still admitted.
    fn is_crowded(&self, admission: Admission) -> bool {
        let share = if self.many_unserved { 4 } else { 2 };
        self.waiting(admission).is_some_and(|max| self.unserved > max / share)
    }

    /// Returns the number of connections that are served within the permitted delay.
    fn waiting(&self, admission: Admission) -> Option<u32> {
        let max = (self.rate * admission.max_queue_delay.as_secs_f64()) as u32;
        self.is_overloaded().then(|| max.max(admission.min_queue))
    }

    fn per_turn(&self, admission: Admission) -> Option<NonZeroU16> {
        let max = match admission.order {
            _ if self.scans => ACCEPTS_SCANNING,
            Order::Newest => ACCEPTS_NEWEST,
            Order::Oldest if self.many_unserved => ACCEPTS_CROWDED,
            Order::Oldest => ACCEPTS_PER_TURN,
        };
        self.is_overloaded().then_some(max)
    }

    /// Returns the maximum number of deferred connections.
    pub(crate) fn deferred(&self) -> usize {
        self.admission.and_then(|admission| self.waiting(admission)).unwrap_or(u32::MAX) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(50);
    const NO_LIMITS: AdmissionLimits = AdmissionLimits { per_turn: None, waiting: None };

    /// Simulates turns until limits are returned; each turn serves `each` connections that waited `wait`
    /// ms.
    fn period(
        load: &mut LoadEstimator,
        now: &mut Instant,
        (each, wait): (u32, u64),
    ) -> AdmissionLimits {
        const TURNS: u32 = 10;
        for turn in 0..TURNS {
            for _ in 0..each {
                load.admitted();
                if load.first_service(*now) {
                    load.sample_wait(*now, Duration::from_millis(wait + u64::from(turn)));
                }
            }
            let limits = load.end_turn(*now, 0, false);
            *now += DELAY / TURNS;
            if let Some(limits) = limits {
                return limits;
            }
        }
        period(load, now, (each, wait))
    }

    /// Returns an estimator after the first limits of an overload.
    fn overloaded(admission: Admission, scans: bool) -> (LoadEstimator, Instant) {
        let (mut load, mut now) = (LoadEstimator::new(Some(admission), scans), Instant::now());
        while !load.is_overloaded() {
            period(&mut load, &mut now, (16, 60));
        }
        (load, now)
    }

    fn estimator() -> (LoadEstimator, Instant) {
        (LoadEstimator::new(Some(Admission::default()), false), Instant::now())
    }

    #[test]
    fn short_waits_cause_no_limits() {
        let (mut load, mut now) = estimator();
        for _ in 0..20 {
            assert_eq!(period(&mut load, &mut now, (100, 45)), NO_LIMITS);
        }
        assert!(!load.is_overloaded());
    }

    #[test]
    fn long_waits_limit_the_backlog_to_the_service_rate() {
        let (mut load, mut now) = estimator();
        let mut limits = period(&mut load, &mut now, (16, 60));
        while limits == NO_LIMITS {
            limits = period(&mut load, &mut now, (16, 60));
        }
        assert_eq!(
            limits,
            AdmissionLimits { per_turn: Some(ACCEPTS_PER_TURN), waiting: Some(160) }
        );
        assert_eq!(load.rate(), 3_200);
        // The limit follows the service rate.
        let faster = (0..20).map(|_| period(&mut load, &mut now, (32, 50)).waiting).last();
        assert!(faster.flatten().is_some_and(|n| (300..=330).contains(&n)), "{faster:?}");
        // With too many unserved connections, the driver accepts fewer.
        (0..400).for_each(|_| load.admitted());
        assert_eq!(period(&mut load, &mut now, (32, 50)).per_turn, Some(ACCEPTS_CROWDED));
        // The limits are lifted after enough periods without overload.
        let ends = load.overload_ends().unwrap();
        while now < ends {
            assert!(load.is_overloaded());
            period(&mut load, &mut now, (1, 0));
        }
        assert_eq!(period(&mut load, &mut now, (1, 0)), NO_LIMITS);
        assert_eq!((load.is_overloaded(), load.overload_ends()), (false, None));
    }

    #[test]
    fn scanning_mechanism_accepts_many_per_turn() {
        let (mut load, mut now) = overloaded(Admission::default(), true);
        let limits = period(&mut load, &mut now, (16, 60));
        assert_eq!((limits.per_turn, limits.waiting.is_some()), (Some(ACCEPTS_SCANNING), true));
    }

    #[test]
    fn newest_first_accepts_more_than_it_admits() {
        for scans in [false, true] {
            let newest = Admission { order: Order::Newest, ..Admission::default() };
            let (mut load, mut now) = overloaded(newest, scans);
            let limits = period(&mut load, &mut now, (16, 60));
            let (accepted, admitted) =
                (limits.per_turn.unwrap().get(), load.admit_per_turn().unwrap());
            assert!(usize::from(accepted) > admitted, "{accepted} and {admitted}");
        }
    }

    #[test]
    fn idle_time_is_no_part_of_a_period() {
        let (mut load, mut now) = estimator();
        load.end_turn(now, 0, false);
        now += DELAY * 1_000;
        for _ in 0..20 {
            load.admitted();
            if load.first_service(now) {
                load.sample_wait(now, DELAY * 2);
            }
            load.end_turn(now, 0, false);
            now += DELAY / 10;
        }
        assert!(load.is_overloaded() && load.rate() >= 150, "{}", load.rate());
    }

    #[test]
    fn sample_before_an_idle_time_causes_no_overload() {
        let (mut load, mut now) = estimator();
        load.admitted();
        assert!(load.first_service(now));
        load.sample_wait(now, DELAY * 2);
        load.end_turn(now, 0, false);
        now += DELAY * 100;
        load.admitted();
        assert_eq!(load.end_turn(now, 0, false), Some(NO_LIMITS));
        assert!(!load.is_overloaded());
    }

    #[test]
    fn waits_at_full_server_cause_no_limits() {
        let (mut load, mut now) = estimator();
        for _ in 0..100 {
            load.admitted();
            if load.first_service(now) {
                load.sample_wait(now, DELAY * 10);
            }
            assert_ne!(load.end_turn(now, 0, true).map(|o| o.waiting.is_some()), Some(true));
            now += DELAY / 10;
        }
    }

    #[test]
    fn overload_lasted_as_long_as_the_server_was_full() {
        let (mut load, mut now) = overloaded(Admission::default(), false);
        // Another client waits for a place all the time.
        for _ in 0..30 {
            load.end_turn(now, 1, true);
            now += Admission::default().period();
        }
        assert!(!load.is_overloaded());
    }

    #[test]
    fn minimum_backlog_is_admitted_and_in_time() {
        let (mut load, mut now) = estimator();
        while !load.is_overloaded() {
            // 20 per second: the last of 32 waits for 1.6 s.
            load.admitted();
            load.first_service(now);
            load.sample_wait(now, DELAY * 2);
            for _ in 0..10 {
                load.end_turn(now, 0, false);
                now += DELAY / 10;
            }
        }
        assert_eq!(load.waiting(Admission::default()), Some(32));
        assert_eq!(load.lateness(Some(DELAY * 20)), Lateness::InTime);
        assert_eq!(load.lateness(Some(DELAY * 50)), Lateness::Abandoned);
    }

    #[test]
    fn disabled_admission_sets_no_limits() {
        let mut load = LoadEstimator::new(None, false);
        let now = Instant::now();
        for second in 0..10 {
            let later = now + Duration::from_secs(second);
            load.admitted();
            assert!(!load.first_service(later));
            assert_eq!(load.end_turn(later, 0, false), None);
        }
        assert_eq!(load.lateness(None), Lateness::InTime);
        assert_eq!(load.lateness(Some(Duration::MAX)), Lateness::InTime);
    }

    #[test]
    fn lateness_follows_the_waiting_time() {
        let mut load = LoadEstimator::new(Some(Admission::default()), false);
        load.rate = 10_000.0;
        let of = |ms| load.lateness(Some(Duration::from_millis(ms)));
        assert_eq!(
            [of(100), of(101), of(2_000), of(2_001)],
            [Lateness::InTime, Lateness::Late, Lateness::Late, Lateness::Abandoned]
        );
        assert_eq!(load.lateness(None), Lateness::Abandoned);
    }
}
