//! Admission: how much is let in when more comes than can be served.
//!
//! A connection that is accepted and then refused has cost most of what serving it would have. So excess
//! has to end before, in the listener's queue, where the kernel drops it for next to nothing. That queue
//! should be as long as what is served in the time that a client may wait, and no longer: who waits
//! longer has gone when its turn comes, and is served for nothing.

use std::mem;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

/// How much is let in when more comes than can be served. The default suits clients who wait a second.
///
/// A server that is asked for too much shows it by the time that its clients have waited: even the
/// quickest of those whom it serves has waited longer than it should. While that is so, and for a little
/// longer, the listeners' queues are as long as what is served in the permitted time, and connections are
/// accepted a few at a time; more where a turn asks for the state of every connection, as with `poll` and
/// `select`. Otherwise nothing is changed. The mechanism `tokio` has no turns to go by, and leaves all as
/// it is.
///
/// Clients who find a queue full try again, the first time after a second (tcp(7)). A server whose clients
/// had better wait than try again should permit a longer delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    /// How long a connection may wait until it is served.
    pub max_queue_delay: Duration,
    /// The least length of the queue; several listeners share it.
    pub min_queue: u32,
    /// A connection that has waited longer than this is reset when it is accepted, as one whose peer has
    /// gone.
    pub max_wait: Duration,
    /// Which of the connections that wait is served next.
    pub order: Order,
}

impl Admission {
    /// For how long it is watched before there is an order.
    fn period(&self) -> Duration {
        self.max_queue_delay.max(MIN_PERIOD)
    }
}

/// The order in which waiting connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By age, as they stand in the listener's queue.
    Oldest,
    /// The newest first. Those that come to lie too deep are reset, which costs more than leaving them
    /// in the queue; but whoever is served has hardly waited.
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

/// How late the work on a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lateness {
    /// Not late.
    InTime,
    /// What has arrived has waited more than twice as long as it should. Something costly had better be
    /// refused.
    Late,
    /// It has waited longer than [`Admission::max_wait`], or the peer has reset the connection: nobody
    /// waits for a reply.
    Abandoned,
}

/// Connections accepted in one turn when there are too many, and let in: so few that they are still in the
/// processor's cache when they are served.
const PER_TURN: NonZeroU16 = NonZeroU16::new(4).unwrap();
/// The same where a turn is dear by itself.
const MANY: NonZeroU16 = NonZeroU16::new(256).unwrap();
/// The same while many that were let in before still wait.
const FEW: NonZeroU16 = NonZeroU16::MIN;
/// The same where the newest come first, which have to be looked for.
const SEARCHED: NonZeroU16 = NonZeroU16::new(64).unwrap();
/// How far apart it is looked how long somebody has waited.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);
/// The least length of a period.
const MIN_PERIOD: Duration = Duration::from_millis(1);
/// Periods after which nobody thinks of it any more that there were too many.
const CALM_PERIODS: u32 = 10;

/// What the driver learns of its load. Periods are as long as a connection may wait.
#[derive(Debug)]
pub(crate) struct LoadEstimator {
    admission: Option<Admission>,
    /// A turn costs so much by itself that it should bring as many as there are.
    scans: bool,
    /// When the current period began.
    began: Option<Instant>,
    /// Connections served in it, and in the current turn.
    served: u64,
    in_turn: u64,
    /// When it was last looked how long somebody has waited, and the least of these times.
    looked: Option<Instant>,
    min_wait: Option<Duration>,
    /// The fewest that were put aside at the end of a turn.
    min_deferred: usize,
    /// There is no room for other reasons.
    full: bool,
    /// There are too many, or were a while ago.
    overloaded_until: Option<Instant>,
    /// How many have been let in for whom nothing was done yet.
    unserved: u32,
    /// They are so many that few should follow.
    many_unserved: bool,
    /// Connections served in a second when there were too many.
    rate: f64,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmissionLimits {
    /// The most connections to accept in a turn.
    pub(crate) per_turn: Option<NonZeroU16>,
    /// The most that may wait in all listeners' queues together.
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
            looked: None,
            min_wait: None,
            min_deferred: usize::MAX,
            full: false,
            overloaded_until: None,
            unserved: 0,
            many_unserved: false,
            rate: 0.0,
        }
    }

    /// Notes a connection that is let in.
    pub(crate) fn admitted(&mut self) {
        self.unserved += 1;
    }

    /// Notes a connection for which something is done for the first time; whether it is to be asked how
    /// long it has waited.
    pub(crate) fn first_service(&mut self, now: Instant) -> bool {
        self.in_turn += 1;
        self.unserved -= 1;
        let is_due =
            self.looked.is_none_or(|at| now.saturating_duration_since(at) >= SAMPLE_INTERVAL);
        self.admission.is_some() && is_due
    }

    /// Notes how long one of those had waited.
    pub(crate) fn sample_wait(&mut self, now: Instant, time: Duration) {
        self.looked = Some(now);
        self.min_wait = Some(self.min_wait.map_or(time, |min| min.min(time)));
    }

    /// Whether there are too many.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.overloaded_until.is_some()
    }

    /// When that is over, if nothing else happens.
    pub(crate) fn overload_ends(&self) -> Option<Instant> {
        // It is seen at the end of a period.
        let period = self.admission?.period();
        self.overloaded_until.max(self.overloaded_until.and(self.began?.checked_add(period)))
    }

    /// How many connections are let in each turn; the rest is put aside so that the newest come first.
    pub(crate) fn admit_per_turn(&self) -> Option<usize> {
        let newest = self.admission.is_some_and(|a| a.order == Order::Newest);
        let some = if self.scans { SEARCHED } else { PER_TURN };
        (newest && self.is_overloaded()).then_some(some.get().into())
    }

    /// Connections served in a second, when there were last too many; 0 if there never were.
    pub(crate) fn rate(&self) -> u32 {
        self.rate as u32
    }

    /// How late something is that has waited for so long; without a time, its peer has gone.
    pub(crate) fn lateness(&self, waited: Option<Duration>) -> Lateness {
        match (self.admission, waited) {
            (Some(_), None) => Lateness::Abandoned,
            (Some(admission), Some(waited)) if waited > admission.max_wait => Lateness::Abandoned,
            (Some(admission), Some(waited)) if waited / 2 > self.bound(admission) => Lateness::Late,
            _ => Lateness::InTime,
        }
    }

    /// How long a connection waits in a queue that is as long as it may be.
    fn bound(&self, admission: Admission) -> Duration {
        let min = Duration::try_from_secs_f64(f64::from(admission.min_queue) / self.rate);
        admission.max_queue_delay.max(min.unwrap_or(Duration::ZERO))
    }

    /// Ends a turn, which began at `now`, and after which so many connections are put aside. Those who
    /// wait as there is no room for them, when it is `full`, tell nothing. There are orders at the end of
    /// a period, and when so many have been let in that few should follow.
    pub(crate) fn end_turn(
        &mut self,
        now: Instant,
        deferred: usize,
        full: bool,
    ) -> Option<AdmissionLimits> {
        let admission = self.admission?;
        if self.served == 0 && !self.is_overloaded() {
            // A period begins when there is something to do.
            self.began = Some(now);
        }
        let began = *self.began.get_or_insert(now);
        let time = now.saturating_duration_since(began);
        let is_overloaded = time >= admission.period();
        let is_crowded = self.is_crowded(admission);
        let was_crowded = mem::replace(&mut self.many_unserved, is_crowded);
        let limits = if is_overloaded {
            Some(self.end_period(admission, now, time))
        } else {
            (self.many_unserved != was_crowded).then(|| self.limits(admission))
        };
        // What this turn has done took place after its beginning.
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
        // What is older tells nothing, as nobody came since.
        let from = now.checked_sub(admission.period() * 2);
        let wait = self.min_wait.take().filter(|_| !self.full && self.looked > from);
        // When all is as it should be, who is served has waited just as long as is permitted.
        let max = if self.is_overloaded() {
            admission.max_queue_delay / 2
        } else {
            admission.max_queue_delay
        };
        let stand_aside = self.is_overloaded() && (1..usize::MAX).contains(&self.min_deferred);
        if wait.is_some_and(|wait| wait > max) || stand_aside {
            let rate = self.served as f64 / time.as_secs_f64();
            self.rate = if self.is_overloaded() { self.rate * 0.75 + rate * 0.25 } else { rate };
            self.overloaded_until =
                now.checked_add(admission.period().saturating_mul(CALM_PERIODS));
        } else if self.overloaded_until.is_some_and(|overloaded_until| overloaded_until <= now) {
            self.overloaded_until = None;
        }
        (self.began, self.served, self.min_deferred) = (Some(now), 0, usize::MAX);
        self.full = false;
        self.limits(admission)
    }

    fn limits(&self, admission: Admission) -> AdmissionLimits {
        AdmissionLimits { per_turn: self.per_turn(admission), waiting: self.waiting(admission) }
    }

    /// Whether half as many as may wait outside wait inside; who was crowded has to be well below that.
    /// Clients that say nothing may be among them, so some are let in all the same.
    fn is_crowded(&self, admission: Admission) -> bool {
        let share = if self.many_unserved { 4 } else { 2 };
        self.waiting(admission).is_some_and(|max| self.unserved > max / share)
    }

    /// What is served in the time that a connection may wait.
    fn waiting(&self, admission: Admission) -> Option<u32> {
        let places = (self.rate * admission.max_queue_delay.as_secs_f64()) as u32;
        self.is_overloaded().then(|| places.max(admission.min_queue))
    }

    fn per_turn(&self, admission: Admission) -> Option<NonZeroU16> {
        let some = match admission.order {
            _ if self.scans => MANY,
            Order::Newest => SEARCHED,
            Order::Oldest if self.many_unserved => FEW,
            Order::Oldest => PER_TURN,
        };
        self.is_overloaded().then_some(some)
    }

    /// How many may be put aside.
    pub(crate) fn deferred(&self) -> usize {
        self.admission.and_then(|admission| self.waiting(admission)).unwrap_or(u32::MAX) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(50);
    const NO_LIMITS: AdmissionLimits = AdmissionLimits { per_turn: None, waiting: None };

    /// A period of turns, each of which serves so many, who have waited for so many milliseconds.
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
                    // Later ones have waited longer.
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

    fn begun() -> (LoadEstimator, Instant) {
        (LoadEstimator::new(Some(Admission::default()), false), Instant::now())
    }

    #[test]
    fn nothing_is_changed_while_somebody_is_served_in_time() {
        let (mut load, mut now) = begun();
        for _ in 0..20 {
            assert_eq!(period(&mut load, &mut now, (100, 45)), NO_LIMITS);
        }
        assert!(!load.is_overloaded());
    }

    #[test]
    fn when_all_have_waited_too_long_as_many_may_wait_as_are_served_in_time() {
        let (mut load, mut now) = begun();
        let mut limits = period(&mut load, &mut now, (16, 60));
        while limits == NO_LIMITS {
            limits = period(&mut load, &mut now, (16, 60));
        }
        assert_eq!(limits, AdmissionLimits { per_turn: Some(PER_TURN), waiting: Some(160) });
        assert_eq!(load.rate(), 3_200);
        // It follows the rate.
        let faster = (0..20).map(|_| period(&mut load, &mut now, (32, 50)).waiting).last();
        assert!(faster.flatten().is_some_and(|n| (300..=330).contains(&n)), "{faster:?}");
        // With more inside than are served in time it takes few.
        (0..400).for_each(|_| load.admitted());
        assert_eq!(period(&mut load, &mut now, (32, 50)).per_turn, Some(FEW));
        // When it has gone well for a while, all is as before, by itself too.
        let ends = load.overload_ends().unwrap();
        while now < ends {
            assert!(load.is_overloaded());
            period(&mut load, &mut now, (1, 0));
        }
        assert_eq!(period(&mut load, &mut now, (1, 0)), NO_LIMITS);
        assert_eq!((load.is_overloaded(), load.overload_ends()), (false, None));
    }

    #[test]
    fn what_scans_lets_in_many_in_a_turn() {
        let (mut load, mut now) =
            (LoadEstimator::new(Some(Admission::default()), true), Instant::now());
        while !load.is_overloaded() {
            period(&mut load, &mut now, (16, 60));
        }
        let limits = period(&mut load, &mut now, (16, 60));
        assert_eq!((limits.per_turn, limits.waiting.is_some()), (Some(MANY), true));
    }

    #[test]
    fn the_newest_are_looked_for_among_more_than_are_let_in() {
        for scans in [false, true] {
            let newest = Admission { order: Order::Newest, ..Admission::default() };
            let (mut load, mut now) = (LoadEstimator::new(Some(newest), scans), Instant::now());
            while !load.is_overloaded() {
                period(&mut load, &mut now, (16, 60));
            }
            let limits = period(&mut load, &mut now, (16, 60));
            let (accepted, admitted) =
                (limits.per_turn.unwrap().get(), load.admit_per_turn().unwrap());
            assert!(usize::from(accepted) > admitted, "{accepted} and {admitted}");
        }
    }

    #[test]
    fn time_in_which_nobody_came_is_no_part_of_a_period() {
        let (mut load, mut now) = begun();
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
    fn one_who_had_waited_before_nobody_came_is_not_too_many() {
        let (mut load, mut now) = begun();
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
    fn who_waits_for_room_tells_nothing_of_the_load() {
        let (mut load, mut now) = begun();
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
    fn a_few_may_always_wait_and_are_not_late_then() {
        let (mut load, mut now) = begun();
        while !load.is_overloaded() {
            // 20 in a second, so that the last of 32 waits for 1.6 s.
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
    fn without_admission_there_are_no_orders() {
        let mut load = LoadEstimator::new(None, false);
        let now = Instant::now();
        for second in 0..10 {
            let then = now + Duration::from_secs(second);
            load.admitted();
            assert!(!load.first_service(then));
            assert_eq!(load.end_turn(then, 0, false), None);
        }
        assert_eq!(load.lateness(None), Lateness::InTime);
        assert_eq!(load.lateness(Some(Duration::MAX)), Lateness::InTime);
    }

    #[test]
    fn lateness_is_told_by_the_time_that_something_has_waited() {
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
