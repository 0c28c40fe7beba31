//! Deferred event delivery against a model that searches lists.

use std::time::{Duration, Instant};

use ecem::{Config, Delivery, Event, EventKind, EventManager, PairId, Readiness};
use proptest::prelude::*;

const PAIRS: usize = 5;
const MAX_DEFERRED: usize = 6;
const MAX_DELAY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
enum Step {
    Add(usize, Readiness),
    Remove(usize),
    Close(usize),
    Deliver(usize),
    SetPost(usize, Readiness),
    SetSocket(usize, Readiness),
    Next,
    Wait(u64),
}

fn readiness() -> impl Strategy<Value = Readiness> {
    prop_oneof![Just(Readiness::Wait), Just(Readiness::Ready)]
}

fn step() -> impl Strategy<Value = Step> {
    let pair = 0..PAIRS;
    prop_oneof![
        2 => (pair.clone(), readiness()).prop_map(|(pair, to)| Step::Add(pair, to)),
        1 => pair.clone().prop_map(Step::Remove),
        1 => pair.clone().prop_map(Step::Close),
        6 => pair.clone().prop_map(Step::Deliver),
        2 => (pair.clone(), readiness()).prop_map(|(pair, to)| Step::SetPost(pair, to)),
        2 => (pair, readiness()).prop_map(|(pair, to)| Step::SetSocket(pair, to)),
        5 => Just(Step::Next),
        1 => (0..8u64).prop_map(Step::Wait),
    ]
}

/// Pair number `n` sends file `n % 2` to socket `10 + n / 2`, so that pairs share both.
fn events(pair: usize) -> (Event, Event) {
    (
        Event::new((pair % 2) as i32, EventKind::DiskReadResponse),
        Event::new((10 + pair / 2) as i32, EventKind::NetworkWriteRequest),
    )
}

struct Model {
    manager: EventManager<u32>,
    ids: [Option<PairId>; PAIRS],
    post: [Readiness; PAIRS],
    /// Deferred events: pair, event, deadline. The oldest comes first.
    deferred: Vec<(usize, u32, Instant)>,
    now: Instant,
    last: u32,
}

impl Model {
    fn new() -> Self {
        let mut config = Config::default();
        config.max_pairs = PAIRS;
        config.max_deferred = MAX_DEFERRED;
        config.max_delay = MAX_DELAY;
        Model {
            manager: EventManager::new(&config),
            ids: [None; PAIRS],
            post: [Readiness::Wait; PAIRS],
            deferred: Vec::new(),
            now: Instant::now(),
            last: 0,
        }
    }

    /// Takes the deferred events of a pair out of the model.
    fn drain(&mut self, pair: usize) -> Vec<u32> {
        let of_pair = self.deferred.iter().filter(|(other, ..)| *other == pair);
        let events = of_pair.map(|(_, event, _)| *event).collect();
        self.deferred.retain(|(other, ..)| *other != pair);
        events
    }

    fn deliver(&mut self, pair: usize) {
        let Some(id) = self.ids[pair] else { return };
        self.last += 1;
        let earlier = self.deferred.iter().position(|(other, ..)| *other == pair);
        let expected = if earlier.is_none() && self.post[pair] == Readiness::Ready {
            Delivery::Now(self.last)
        } else if self.deferred.len() < MAX_DEFERRED {
            self.deferred.push((pair, self.last, self.now + MAX_DELAY));
            Delivery::Deferred
        } else if let Some(earlier) = earlier {
            let (_, oldest, _) = self.deferred.remove(earlier);
            self.deferred.push((pair, self.last, self.now + MAX_DELAY));
            Delivery::Now(oldest)
        } else {
            Delivery::Now(self.last)
        };
        assert_eq!(self.manager.deliver(id, self.last, self.now), expected);
    }

    fn next(&mut self) {
        let expired = self.deferred.first().is_some_and(|(.., until)| *until <= self.now);
        match self.manager.next(self.now) {
            Some((id, event)) => {
                let pair = self.ids.iter().position(|other| *other == Some(id)).unwrap();
                let first = self.deferred.iter().position(|(other, ..)| *other == pair).unwrap();
                assert_eq!(self.deferred[first].1, event, "events of a pair keep their order");
                if expired {
                    assert_eq!(first, 0, "the oldest event comes first");
                } else {
                    assert_eq!(self.post[pair], Readiness::Ready);
                }
                self.deferred.remove(first);
            }
            None => {
                assert!(!expired);
                let blocked = |(pair, ..): &(usize, _, _)| self.post[*pair] == Readiness::Wait;
                assert!(self.deferred.iter().all(blocked));
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Add(pair, post) if self.ids[pair].is_none() => {
                let (pre, event) = events(pair);
                self.ids[pair] = Some(self.manager.add(pre, event, post).unwrap());
                self.post[pair] = post;
            }
            Step::Add(pair, post) => {
                let (pre, event) = events(pair);
                assert!(self.manager.add(pre, event, post).is_err());
            }
            Step::Remove(pair) => {
                let Some(id) = self.ids[pair].take() else { return };
                let (expected, mut removed) = (self.drain(pair), Vec::new());
                assert!(self.manager.remove(id, |event| removed.push(event)));
                assert_eq!(removed, expected);
                assert!(!self.manager.remove(id, |_| panic!("an event of a removed pair")));
                let delivery = self.manager.deliver(id, 0, self.now);
                assert_eq!(delivery, Delivery::Now(0), "a removed pair defers nothing");
            }
            Step::Close(pair) => {
                let socket = events(pair).1.object;
                let (mut expected, mut removed) = (Vec::new(), Vec::new());
                for pair in (0..PAIRS).filter(|pair| events(*pair).1.object == socket) {
                    self.ids[pair] = None;
                    expected.extend(self.drain(pair));
                }
                self.manager.remove_object(socket, |_, event| removed.push(event));
                removed.sort_unstable();
                expected.sort_unstable();
                assert_eq!(removed, expected);
            }
            Step::Deliver(pair) => self.deliver(pair),
            Step::SetPost(pair, to) => {
                let Some(id) = self.ids[pair] else { return };
                assert!(self.manager.set_post(id, to));
                self.post[pair] = to;
            }
            Step::SetSocket(pair, to) => {
                let (_, post) = events(pair);
                self.manager.set(post, to);
                for pair in (0..PAIRS).filter(|pair| events(*pair).1 == post) {
                    self.post[pair] = to;
                }
            }
            Step::Next => self.next(),
            Step::Wait(seconds) => self.now += Duration::from_secs(seconds),
        }
    }
}

proptest! {
    #[test]
    fn manager_equals_lists_of_events(steps in prop::collection::vec(step(), 0..200)) {
        let mut model = Model::new();
        for step in steps {
            model.step(step);
            let deadline = model.deferred.first().map(|(.., until)| *until);
            prop_assert_eq!(model.manager.next_deadline(), deadline);
            for (pair, id) in model.ids.iter().enumerate() {
                let Some(id) = id else { continue };
                let waits = model.deferred.iter().any(|(other, ..)| *other == pair);
                let pre = if waits { Readiness::Ready } else { Readiness::Wait };
                let state = ecem::PairState::new(pre, model.post[pair]);
                prop_assert_eq!(model.manager.table().state(*id), Some(state));
            }
        }
        // Each event was delivered, returned or is deferred.
        let counters = model.manager.counters();
        let left = counters.deferred - counters.released - counters.expired - counters.removed;
        let held = model.deferred.len() as u64;
        prop_assert!(held <= left && left <= held + counters.displaced);
    }
}

#[test]
fn event_that_can_never_be_sent_is_delivered_after_the_maximum_time() {
    let mut config = Config::default();
    config.max_delay = MAX_DELAY;
    let mut manager = EventManager::new(&config);
    let (pre, post) = events(0);
    let pair = manager.add(pre, post, Readiness::Wait).unwrap();
    let now = Instant::now();
    assert_eq!(manager.deliver(pair, 1, now), Delivery::Deferred);
    assert_eq!(manager.next_deadline(), Some(now + MAX_DELAY));
    assert_eq!(manager.next(now + MAX_DELAY - Duration::from_nanos(1)), None);
    assert_eq!(manager.next(now + MAX_DELAY), Some((pair, 1)));
    assert_eq!(manager.counters().expired, 1);
}

#[test]
fn ready_post_event_made_the_pairs_that_it_begins_wait() {
    let mut manager = EventManager::new(&Config::default());
    let [a, b, c] = [1, 2, 3].map(|object| Event::new(object, EventKind::NetworkWriteRequest));
    manager.add(a, b, Readiness::Ready).unwrap();
    let pair = manager.add(b, c, Readiness::Wait).unwrap();
    let now = Instant::now();
    assert_eq!(manager.deliver(pair, "x", now), Delivery::Deferred);
    manager.set(b, Readiness::Wait);
    manager.set(c, Readiness::Ready);
    assert_eq!(manager.next(now), Some((pair, "x")));
}

#[test]
fn longest_delay_overflowed_the_time() {
    let mut config = Config::default();
    config.max_delay = Duration::MAX;
    let mut manager = EventManager::new(&config);
    let (pre, post) = events(0);
    let pair = manager.add(pre, post, Readiness::Wait).unwrap();
    let now = Instant::now();
    assert_eq!(manager.deliver(pair, 1, now), Delivery::Deferred);
    assert!(manager.next_deadline() > Some(now + MAX_DELAY));
    assert_eq!(manager.next(now), None);
}

#[test]
fn pair_whose_handler_reports_another_event_each_time_kept_others_waiting() {
    let mut manager = EventManager::new(&Config::default());
    let now = Instant::now();
    let pairs = [0, 1].map(|pair| {
        let (pre, post) = (
            Event::new(pair, EventKind::DiskReadResponse),
            Event::new(10 + pair, EventKind::NetworkWriteRequest),
        );
        let id = manager.add(pre, post, Readiness::Wait).unwrap();
        assert_eq!(manager.deliver(id, 0, now), Delivery::Deferred);
        manager.deliver(id, 1, now);
        id
    });
    for id in pairs {
        assert!(manager.set_post(id, Readiness::Ready));
    }
    let mut released = [0; 2];
    for event in 2..12 {
        let (id, _) = manager.next(now).unwrap();
        manager.deliver(id, event, now);
        released[usize::from(id == pairs[1])] += 1;
    }
    assert_eq!(released, [5, 5]);
}
