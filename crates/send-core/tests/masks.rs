//! Delivery, its order, and notification.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use send_core::control_block::{Actions, ControlBlock, Events, Group, Groups, Handler, Trigger};
use send_core::{Action, EventType, Poster};

const USER: EventType = EventType::USER;

/// Returns a block of the calling thread whose handler counts posted events.
fn block(events: u32) -> (ControlBlock, Poster, Arc<AtomicU64>) {
    let mut send = ControlBlock::define(events).unwrap();
    let load = Arc::new(AtomicU64::new(0));
    let handler = Actions::new().on(USER, Action::Count(load.clone()));
    send.set_handler(handler, Trigger::Level);
    send.set_group(USER, Some(Group::FIRST)).unwrap();
    let poster = send.poster();
    (send, poster, load)
}

/// Posts all values from another thread.
fn post(poster: &Poster, values: impl IntoIterator<Item = u64>) {
    let values: Vec<_> = values.into_iter().collect();
    thread::scope(|scope| {
        scope.spawn(|| values.iter().for_each(|value| poster.post(*value).unwrap()));
    });
}

fn load(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}

#[test]
fn lowered_masks_prevent_delivery() {
    let (mut send, poster, handled) = block(8);
    post(&poster, [1, 2]);
    send.poll_pending();
    assert!(!send.block().has_events());
    assert_eq!((send.next_event(), load(&handled)), (None, 0));
    assert_eq!(send.block().num_queued(), 2);
}

#[test]
fn deliver_alone_does_not_notify() {
    let (mut send, poster, handled) = block(8);
    send.set_deliver(Groups::ALL);
    post(&poster, [7]);
    let event = send.next_event().unwrap();
    assert_eq!((event.kind, event.value, event.group, event.count), (USER, 7, 0, 1));
    assert_eq!((send.next_event(), load(&handled)), (None, 0));
}

#[test]
fn notification_overrides_delivery_and_interrupts() {
    let (mut send, poster, handled) = block(8);
    send.set_notify(Groups::ALL).unwrap();
    post(&poster, 1..=5);
    assert_eq!((send.next_event(), load(&handled)), (None, 5));
    assert!(send.counters().interrupts > 0);
}

#[test]
fn raising_notify_reports_events_delivered_before() {
    let (mut send, poster, handled) = block(8);
    send.set_deliver(Groups::ALL);
    post(&poster, [1]);
    send.poll_pending();
    assert!(send.block().has_events());
    assert_eq!(load(&handled), 0);
    send.set_notify(Groups::ALL).unwrap();
    assert_eq!((send.next_event(), load(&handled)), (None, 1));
}

#[test]
fn raising_deliver_delivers_queued_events() {
    let (send, poster, handled) = block(8);
    post(&poster, [1, 2, 3]);
    send.poll_pending();
    send.set_deliver(Groups::ALL);
    assert!(send.block().has_events());
    assert_eq!(load(&handled), 0);
}

#[test]
fn group_outside_the_mask_does_not_interrupt() {
    let (mut send, poster, handled) = block(8);
    send.set_group(USER, Some(Group::new(9).unwrap())).unwrap();
    send.set_notify(!Groups::from(Group::new(9).unwrap())).unwrap();
    post(&poster, [1]);
    assert_eq!((send.next_event(), load(&handled)), (None, 0));
    send.set_notify(Groups::from(Group::new(9).unwrap())).unwrap();
    assert_eq!(load(&handled), 1);
}

#[test]
fn type_without_group_is_disabled() {
    let (mut send, poster, handled) = block(8);
    send.set_group(USER, None).unwrap();
    send.set_notify(Groups::ALL).unwrap();
    post(&poster, [1]);
    send.poll_pending();
    assert_eq!((send.next_event(), load(&handled), send.block().num_queued()), (None, 0, 0));
}

#[test]
fn low_groups_are_delivered_first() {
    let (mut send, poster, _) = block(8);
    let signal = EventType::signal(libc::SIGUSR1).unwrap();
    send.set_group(USER, Some(Group::new(31).unwrap())).unwrap();
    send.set_group(signal, Some(Group::new(30).unwrap())).unwrap();
    post(&poster, [1, 2]);
    // SAFETY: the signal is handled.
    unsafe { libc::raise(libc::SIGUSR1) };
    send.set_deliver(Groups::ALL);
    let order: Vec<_> = std::iter::from_fn(|| send.next_event()).map(|e| e.kind).collect();
    assert_eq!(order, [signal, USER, USER]);
}

#[test]
fn full_buffer_raises_overflow_and_loses_no_event() {
    let (mut send, poster, handled) = block(2);
    let overflow = Group::new(1).unwrap();
    send.set_group(EventType::OVERFLOW, Some(overflow)).unwrap();
    send.set_deliver(Groups::ALL);
    // Two events are in the buffer, two are queued, two were not collected.
    post(&poster, 1..=2);
    send.poll_pending();
    post(&poster, 3..=4);
    send.poll_pending();
    post(&poster, 5..=6);
    assert!(poster.post(7).is_err());
    assert_eq!((send.block().num_queued(), load(&handled)), (2, 0));
    assert!(send.counters().overflows > 0);
    send.set_notify(overflow.into()).unwrap();
    send.poll_pending();
    // The handler was notified of the overflow and emptied the buffer; further events are
    // delivered.
    assert!(load(&handled) >= 2);
    let remaining = std::iter::from_fn(|| send.next_event()).count() as u64;
    assert_eq!(load(&handled) + remaining, 6);
}

#[test]
fn posts_that_were_not_collected_did_not_count() {
    let (send, poster, _) = block(2);
    for queued in [2, 4] {
        post(&poster, [1, 2]);
        send.poll_pending();
        assert_eq!(send.block().num_queued(), queued);
    }
}

/// Uses one event up each time it is called.
struct OneByOne(Arc<AtomicU64>);

// SAFETY: it adds to an atomic number.
unsafe impl Handler for OneByOne {
    fn handle(&mut self, events: &mut Events<'_>) {
        self.0.fetch_add(events.take(1).count() as u64, Ordering::Relaxed);
    }
}

#[test]
fn a_handler_that_takes_one_event_at_a_time_is_called_for_each() {
    for trigger in [Trigger::Level, Trigger::Edge] {
        let (mut send, poster, _) = block(2);
        let handled = Arc::new(AtomicU64::new(0));
        send.set_handler(OneByOne(handled.clone()), trigger);
        post(&poster, 1..=2);
        send.poll_pending();
        post(&poster, 3..=4);
        send.poll_pending();
        send.set_deliver(Groups::ALL);
        send.handle_events();
        assert_eq!((load(&handled), send.next_event()), (4, None), "{trigger:?}");
    }
}

#[test]
fn signals_while_notification_is_off_interrupt_once() {
    let (send, poster, handled) = block(8);
    send.set_deliver(Groups::ALL);
    let before = send.counters();
    // SAFETY: passes numbers; this is the calling thread.
    let thread = unsafe { libc::gettid() };
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300_000 {
                // SAFETY: as above. The signal is handled.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGIO) };
            }
        });
    });
    post(&poster, [1]);
    let counts = send.counters();
    assert_eq!((counts.interrupts - before.interrupts, counts.masked), (1, 1));
    // Raising the mask costs one system call, this time only.
    send.set_notify(Groups::ALL).unwrap();
    assert_eq!((load(&handled), send.counters().unmasked), (1, 1));
    send.set_notify(Groups::NONE).unwrap();
    send.set_notify(Groups::ALL).unwrap();
    assert_eq!(send.counters().unmasked, 1);
    post(&poster, [1]);
    assert_eq!(load(&handled), 2);
}

#[test]
fn wait_uses_its_own_mask_and_calls_no_handler() {
    let (mut send, poster, handled) = block(8);
    let past = Instant::now();
    assert_eq!(send.wait(Groups::ALL, Some(past)), Ok(false));
    post(&poster, [3]);
    assert_eq!(send.wait(Groups::NONE, Some(past)), Ok(false));
    assert_eq!(send.wait(Groups::ALL, None), Ok(true));
    // The buffer is not empty, so this does not sleep.
    assert_eq!(send.wait(Groups::NONE, None), Ok(true));
    assert_eq!(send.next_event().map(|event| event.value), Some(3));
    assert_eq!(load(&handled), 0);
}

#[test]
fn post_ends_a_wait() {
    let (mut send, poster, handled) = block(8);
    send.set_notify(Groups::ALL).unwrap();
    thread::scope(|scope| {
        for round in 0..200 {
            let poster = &poster;
            scope.spawn(move || poster.post(round).unwrap());
            // The post may also interrupt just before the sleep.
            let until = Instant::now() + Duration::from_secs(60);
            while load(&handled) == round && !send.wait(Groups::ALL, Some(until)).unwrap() {}
            if send.next_event().is_some() {
                handled.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    assert_eq!(load(&handled), 200);
}

#[test]
fn timer_interrupts_and_ends_a_wait() {
    let (mut send, ..) = block(8);
    let ticks = Arc::new(AtomicU64::new(0));
    let handler = Actions::new().on(EventType::TIMER, Action::Count(ticks.clone()));
    send.set_handler(handler, Trigger::Level);
    send.set_group(EventType::TIMER, Some(Group::FIRST)).unwrap();
    send.set_timer(Some(Duration::from_millis(1))).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    assert_eq!(send.wait(Groups::ALL, Some(until)), Ok(true));
    let event = send.next_event().unwrap();
    assert!(event.kind == EventType::TIMER && event.count >= 1);
    send.set_notify(Groups::ALL).unwrap();
    while load(&ticks) < 10 {
        std::hint::spin_loop();
    }
    send.set_timer(None).unwrap();
    let now = Instant::now();
    assert_eq!(send.wait(Groups::ALL, Some(now + Duration::from_millis(20))), Ok(false));
}

#[test]
fn signal_is_forwarded_to_the_thread_that_claimed_it() {
    let (mut send, _, _) = block(8);
    let signal = EventType::signal(libc::SIGUSR2).unwrap();
    send.set_group(signal, Some(Group::FIRST)).unwrap();
    thread::scope(|scope| {
        // SAFETY: the signal is handled, and sent to the calling thread, which has no block.
        scope.spawn(|| unsafe { libc::raise(libc::SIGUSR2) });
    });
    let until = Instant::now() + Duration::from_secs(60);
    assert_eq!(send.wait(Groups::ALL, Some(until)), Ok(true));
    assert_eq!(send.next_event().map(|event| event.kind), Some(signal));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _other = block(8);
            // SAFETY: as above; this thread has a block, of which it is no event.
            unsafe { libc::raise(libc::SIGUSR2) };
        });
    });
    assert_eq!(send.wait(Groups::ALL, Some(until)), Ok(true));
    assert_eq!(send.next_event().map(|event| event.kind), Some(signal));
}

#[test]
fn raising_notify_reports_events_left_by_a_wait() {
    let (mut send, poster, handled) = block(8);
    post(&poster, [1, 2, 3]);
    assert_eq!(send.wait(Groups::ALL, None), Ok(true));
    assert_eq!(send.next_event().map(|event| event.value), Some(1));
    assert_eq!(load(&handled), 0);
    send.set_notify(Groups::ALL).unwrap();
    assert_eq!((load(&handled), send.next_event()), (2, None));
}

#[test]
fn each_thread_has_its_own_block() {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (send, poster, handled) = block(64);
                send.set_notify(Groups::ALL).unwrap();
                for round in 1..=100 {
                    post(&poster, [1]);
                    assert_eq!(load(&handled), round);
                }
            });
        }
    });
}
