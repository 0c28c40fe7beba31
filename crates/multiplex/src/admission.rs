//! Admission: how much is let in when more comes than can be served.
//!
//! A connection that is accepted and then refused has cost most of what serving it would have. So excess
//! has to end before, in the listener's queue, where the kernel drops it for next to nothing. That queue
//! should be as long as what is served in the time that a client may wait, and no longer: who waits
//! longer has gone when its turn comes, and is served for nothing.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

/// How much is let in when more comes than can be served. The default suits clients who wait a second.
///
/// How fast the server is it learns while connections wait for it. While none do, nothing is changed:
/// queues have their full length, and connections are accepted as they come. The mechanism `tokio`
/// has no turns to go by, and leaves all as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    /// How long a connection may wait in a listener's queue, which is made as long as what is served in
    /// this time. Also how long it takes to see that there is too much.
    pub delay: Duration,
    /// The least length of that queue.
    pub least: u32,
    /// Who has waited longer than this is not served any more.
    pub patience: Duration,
    /// Which of the connections that wait is served next.
    pub order: Order,
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
            delay: Duration::from_millis(50),
            least: 32,
            patience: Duration::from_secs(2),
            order: Order::Oldest,
        }
    }
}

/// How late the work on a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lateness {
    /// Not late.
    InTime,
    /// What has arrived has waited more than twice as long as [`Admission::delay`] wants it to. Something
    /// costly had better be refused.
    Late,
    /// It has waited longer than [`Admission::patience`], or the peer has gone: nobody waits for a
    /// reply.
    Lost,
}

/// Connections accepted in one turn while there is no slack, and let in.
const PER_TURN: NonZeroU16 = NonZeroU16::new(16).unwrap();
/// The same where the newest come first, which have to be looked for.
const SEARCHED: NonZeroU16 = NonZeroU16::new(64).unwrap();
/// Periods without a standing queue after which the worst is over.
const CALM: u32 = 10;
/// How far apart it is looked how many wait.
const APART: Duration = Duration::from_millis(1);
/// The least length of a period.
const SHORTEST: Duration = Duration::from_millis(1);

/// What the driver learns of its load.
#[derive(Debug)]
pub(crate) struct Load {
    admission: Option<Admission>,
    /// The listeners' queues as they are without admission, and as they are now.
    longest: u32,
    length: u32,
    /// When the current period began.
    began: Option<Instant>,
    /// How often the thread had slept by then.
    slept: u64,
    /// Connections served in it.
    served: u64,
    /// When it was last looked how many wait, and the fewest that did.
    looked: Option<Instant>,
    fewest: Option<u32>,
    /// The thread has not slept in a whole period.
    busy: bool,
    /// Connections stand in a listener's queue all the time, or did a while ago.
    over: bool,
    /// Periods since they did.
    calm: u32,
    /// Connections served in a second, while more of them stood waiting.
    rate: f64,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orders {
    /// The most connections to accept in a turn.
    pub(crate) per_turn: Option<NonZeroU16>,
    /// A new length for the listeners' queues.
    pub(crate) backlog: Option<u32>,
}

impl Load {
    pub(crate) fn new(admission: Option<Admission>, longest: u32) -> Self {
        Load {
            admission,
            longest,
            length: longest,
            began: None,
            slept: 0,
            served: 0,
            looked: None,
            fewest: None,
            busy: false,
            over: false,
            calm: 0,
            rate: 0.0,
        }
    }

    /// Notes a connection of which the application sees something for the first time.
    #[inline]
    pub(crate) fn served(&mut self) {
        self.served += 1;
    }

    /// The length that the queues should have when nothing is wrong.
    pub(crate) fn set_longest(&mut self, longest: u32) {
        (self.longest, self.length) = (longest, longest);
    }

    /// Whether there is no slack.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy || self.over
    }

    /// How many connections are let in each turn, and the rest is put aside so that the newest come
    /// first.
    pub(crate) fn lets_in(&self) -> Option<usize> {
        let newest = self.admission.is_some_and(|a| a.order == Order::Newest);
        (newest && self.over).then_some(PER_TURN.get().into())
    }

    /// How many may be put aside.
    pub(crate) fn aside(&self) -> usize {
        self.length as usize
    }

    /// Connections served in a second, when that was last seen; 0 before.
    pub(crate) fn rate(&self) -> u32 {
        self.rate as u32
    }

    /// The length of the listeners' queues.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// How late something is that has waited for so long; without a time, its peer has gone.
    pub(crate) fn lateness(&self, waited: Option<Duration>) -> Lateness {
        match (self.admission, waited) {
            (Some(_), None) => Lateness::Lost,
            (Some(admission), Some(waited)) if waited > admission.patience => Lateness::Lost,
            (Some(admission), Some(waited)) if waited > admission.delay.saturating_mul(2) => {
                Lateness::Late
            }
            _ => Lateness::InTime,
        }
    }

    /// Whether those who are accepted are to be asked how long they have waited.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Ends a turn. At the end of a period there are orders. `waiting` tells how many connections wait
    /// now, and `sleeps` how often the thread has slept so far.
    pub(crate) fn end_turn(
        &mut self,
        now: Instant,
        waiting: impl FnOnce() -> u32,
        sleeps: impl FnOnce() -> u64,
    ) -> Option<Orders> {
        let admission = self.admission?;
        let Some(began) = self.began else {
            (self.began, self.slept) = (Some(now), sleeps());
            return None;
        };
        let is_due = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= APART);
        if self.is_busy() && is_due {
            let waiting = waiting();
            self.looked = Some(now);
            self.fewest = Some(self.fewest.map_or(waiting, |fewest| fewest.min(waiting)));
        }
        let time = now.saturating_duration_since(began);
        (time >= admission.delay.max(SHORTEST))
            .then(|| self.end_period(admission, now, time, sleeps()))
    }

    fn end_period(
        &mut self,
        admission: Admission,
        now: Instant,
        time: Duration,
        sleeps: u64,
    ) -> Orders {
        self.busy = sleeps == self.slept;
        let stands = self.busy && self.fewest.is_some_and(|fewest| fewest > 0);
        if stands {
            let rate = self.served as f64 / time.as_secs_f64();
            self.rate = if self.over { self.rate * 0.75 + rate * 0.25 } else { rate };
            (self.over, self.calm) = (true, 0);
        } else if self.over {
            self.calm += 1;
            self.over = self.calm < CALM;
        }
        (self.began, self.slept, self.served, self.fewest) = (Some(now), sleeps, 0, None);
        let wanted = if self.over { self.fitting(admission) } else { self.longest };
        // A length that is nearly right is let be, but for the last step.
        let differs = wanted.abs_diff(self.length) * 5 > self.length;
        let backlog = (wanted != self.length && (differs || !self.over)).then_some(wanted);
        self.length = backlog.unwrap_or(self.length);
        Orders { per_turn: self.per_turn(admission), backlog }
    }

    /// What is served in the time that a connection may wait.
    fn fitting(&self, admission: Admission) -> u32 {
        let places = (self.rate * admission.delay.as_secs_f64()) as u32;
        places.max(admission.least).min(self.longest)
    }

    fn per_turn(&self, admission: Admission) -> Option<NonZeroU16> {
        let searched = admission.order == Order::Newest && self.over;
        self.is_busy().then_some(if searched { SEARCHED } else { PER_TURN })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(50);

    /// A period of turns, each of which serves so many, and leaves so many waiting.
    fn period(load: &mut Load, now: &mut Instant, (each, left): (u32, u32), sleeps: u64) -> Orders {
        const TURNS: u32 = 10;
        for turn in 0..TURNS {
            (0..each).for_each(|_| load.served());
            *now += PERIOD / TURNS;
            // It fills up towards the end.
            if let Some(orders) = load.end_turn(*now, || left + turn, || sleeps) {
                return orders;
            }
        }
        panic!("a period ends when its time is over");
    }

    fn begun() -> (Load, Instant) {
        let now = Instant::now();
        let mut load = Load::new(Some(Admission::default()), 4096);
        assert_eq!(load.end_turn(now, || 9, || 0), None, "the first turn begins a period");
        (load, now)
    }

    #[test]
    fn who_sleeps_has_slack() {
        let (mut load, mut now) = begun();
        for sleeps in 1..20 {
            let orders = period(&mut load, &mut now, (100, 9), sleeps);
            assert_eq!(orders, Orders { per_turn: None, backlog: None });
        }
        assert!(!load.is_busy());
    }

    #[test]
    fn who_is_busy_takes_few_at_a_time_and_the_queue_stays_as_long() {
        let (mut load, mut now) = begun();
        for _ in 0..3 {
            let orders = period(&mut load, &mut now, (3, 0), 0);
            assert_eq!(orders, Orders { per_turn: Some(PER_TURN), backlog: None });
            assert!(load.is_busy() && !load.is_over());
        }
        let orders = period(&mut load, &mut now, (3, 0), 1);
        assert_eq!(orders, Orders { per_turn: None, backlog: None });
    }

    #[test]
    fn a_queue_that_stands_gets_the_length_of_what_is_served_in_its_time() {
        let (mut load, mut now) = begun();
        period(&mut load, &mut now, (16, 1), 0);
        let orders = period(&mut load, &mut now, (16, 1), 0);
        assert_eq!(orders, Orders { per_turn: Some(PER_TURN), backlog: Some(160) });
        assert_eq!(load.rate(), 3_200);
        // It follows the rate, but not each little change.
        let orders = period(&mut load, &mut now, (17, 1), 0);
        assert_eq!(orders.backlog, None);
        let mut at = |each, left| period(&mut load, &mut now, (each, left), 0).backlog;
        let faster = (0..10).filter_map(|_| at(32, 1)).last();
        assert!(faster.is_some_and(|length| (280..=320).contains(&length)), "{faster:?}");
        // When nothing has stood for a while, it is as long as before.
        let calm: Vec<_> = (0..CALM).map(|_| at(3, 0)).collect();
        assert_eq!(calm.last(), Some(&Some(4096)));
        assert!(calm[..calm.len() - 1].iter().all(Option::is_none));
    }

    #[test]
    fn a_queue_is_never_shorter_than_the_least_nor_longer_than_it_was() {
        let slow = Admission { delay: Duration::from_micros(10), ..Admission::default() };
        for (longest, length) in [(4096, 32), (8, 8)] {
            let mut load = Load::new(Some(slow), longest);
            load.rate = 3_000.0;
            assert_eq!(load.fitting(slow), length);
        }
    }

    #[test]
    fn without_admission_there_are_no_orders() {
        let mut load = Load::new(None, 4096);
        let now = Instant::now();
        for second in 0..10 {
            (0..100).for_each(|_| load.served());
            let then = now + Duration::from_secs(second);
            assert_eq!(load.end_turn(then, || 9, || 0), None);
        }
        assert_eq!(load.lateness(None), Lateness::InTime);
        assert_eq!(load.lateness(Some(Duration::MAX)), Lateness::InTime);
    }

    #[test]
    fn lateness_is_told_by_the_time_that_something_has_waited() {
        let load = Load::new(Some(Admission::default()), 4096);
        let of = |ms| load.lateness(Some(Duration::from_millis(ms)));
        assert_eq!(
            [of(100), of(101), of(2_000), of(2_001)],
            [Lateness::InTime, Lateness::Late, Lateness::Late, Lateness::Lost]
        );
        assert_eq!(load.lateness(None), Lateness::Lost);
    }
}
