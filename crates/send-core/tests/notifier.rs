//! The wrapper for daily use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use send_core::{Action, Error, EventType, Notifier};

fn count() -> (Arc<AtomicU64>, Action) {
    let number = Arc::new(AtomicU64::new(0));
    (number.clone(), Action::Count(number))
}

#[test]
fn each_type_has_its_actions() {
    let mut notifier = Notifier::new().unwrap();
    let hup = EventType::signal(libc::SIGHUP).unwrap();
    let ((hups, count_hups), (posts, count_posts), (again, count_again)) =
        (count(), count(), count());
    notifier.on(hup, count_hups).unwrap();
    notifier.on(EventType::USER, count_posts).unwrap();
    notifier.on(EventType::USER, count_again).unwrap();
    let poster = notifier.poster();
    // SAFETY: the signal is handled.
    unsafe { libc::raise(libc::SIGHUP) };
    poster.post(0).unwrap();
    let seen = || [&hups, &posts, &again].map(|number| number.load(Ordering::Relaxed));
    assert_eq!(seen(), [1, 1, 1]);
    notifier.block(EventType::USER).unwrap();
    poster.post(0).unwrap();
    // SAFETY: the signal is handled.
    unsafe { libc::raise(libc::SIGHUP) };
    assert_eq!(seen(), [2, 1, 1]);
    notifier.unblock(EventType::USER).unwrap();
    assert_eq!(seen(), [2, 2, 2]);
    notifier.off(EventType::USER).unwrap();
    let _ = poster.post(0);
    assert_eq!(seen(), [2, 2, 2]);
    let (later, count_later) = count();
    notifier.on(EventType::USER, count_later).unwrap();
    poster.post(0).unwrap();
    assert_eq!((seen(), later.load(Ordering::Relaxed)), ([2, 2, 2], 1));
}

#[test]
fn who_waits_for_a_type_gets_the_event_itself() {
    let mut notifier = Notifier::new().unwrap();
    let ((posts, count_posts), (ticks, count_ticks)) = (count(), count());
    notifier.on(EventType::USER, count_posts).unwrap();
    notifier.on(EventType::TIMER, count_ticks).unwrap();
    notifier.set_timer(Some(Duration::from_millis(1))).unwrap();
    let poster = notifier.poster();
    let posting = std::thread::spawn(move || {
        while ticks.load(Ordering::Relaxed) < 3 {
            std::hint::spin_loop();
        }
        poster.post(42).unwrap();
    });
    let far = Instant::now() + Duration::from_secs(60);
    let event = notifier.wait(&[EventType::USER], Some(far)).unwrap().unwrap();
    assert_eq!((event.kind, event.value), (EventType::USER, 42));
    assert_eq!(posts.load(Ordering::Relaxed), 0);
    posting.join().unwrap();
    let past = Some(Instant::now());
    assert_eq!(notifier.wait(&[EventType::USER], past), Ok(None));
}

#[test]
fn a_second_action_for_a_type_whose_events_wait_did_not_come_to_an_end() {
    let mut notifier = Notifier::new().unwrap();
    let counts: Vec<_> = (0..2).map(|_| Arc::new(AtomicU64::new(0))).collect();
    notifier.on(EventType::USER, Action::Count(counts[0].clone())).unwrap();
    notifier.block(EventType::USER).unwrap();
    let poster = notifier.poster();
    poster.post(1).unwrap();
    poster.post(2).unwrap();
    notifier.on(EventType::USER, Action::Count(counts[1].clone())).unwrap();
    notifier.unblock(EventType::USER).unwrap();
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2));
}

#[test]
fn of_several_that_came_together_while_their_type_was_blocked_all_but_one_went_to_the_actions() {
    let mut notifier = Notifier::new().unwrap();
    let ((posts, count_posts), (_, count_signals)) = (count(), count());
    notifier.on(EventType::USER, count_posts).unwrap();
    notifier.on(EventType::signal(libc::SIGHUP).unwrap(), count_signals).unwrap();
    notifier.block(EventType::USER).unwrap();
    let poster = notifier.poster();
    (1..=4).for_each(|value| poster.post(value).unwrap());
    let far = Instant::now() + Duration::from_secs(60);
    let mut next = || notifier.wait(&[EventType::USER], Some(far)).unwrap().unwrap().value;
    assert_eq!([next(), next()], [1, 2]);
    assert_eq!(posts.load(Ordering::Relaxed), 0);
    notifier.unblock(EventType::USER).unwrap();
    assert_eq!(posts.load(Ordering::Relaxed), 2);
}

#[test]
fn with_more_types_than_groups_those_that_shared_the_last_were_blocked_together() {
    let mut notifier = Notifier::new().unwrap();
    let (seen, action) = count();
    let of = |number| EventType::signal(libc::SIGRTMIN() + number).unwrap();
    let (first, more) = ((0..30).map(of), of(30));
    for kind in first.chain([EventType::USER, EventType::TIMER]) {
        notifier.on(kind, action.clone()).unwrap();
    }
    assert_eq!(notifier.on(more, action.clone()), Err(Error::TooManyTypes));
    notifier.off(EventType::TIMER).unwrap();
    notifier.on(more, action.clone()).unwrap();
    notifier.block(EventType::USER).unwrap();
    // SAFETY: the signal is handled.
    unsafe { libc::raise(libc::SIGRTMIN() + 30) };
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}
