//! The notifier.

use std::io::{PipeWriter, Read, Write, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use send_core::{Action, Error, EventType, Notifier};

fn count() -> (Arc<AtomicU64>, Action) {
    let number = Arc::new(AtomicU64::new(0));
    (number.clone(), Action::Count(number))
}

#[test]
fn each_type_runs_its_actions() {
    let mut notifier = Notifier::new().unwrap();
    let hup = EventType::signal(libc::SIGHUP).unwrap();
    let ((hups, count_hups), (posts, count_posts), (second, count_second)) =
        (count(), count(), count());
    notifier.on(hup, count_hups).unwrap();
    notifier.on(EventType::USER, count_posts).unwrap();
    notifier.on(EventType::USER, count_second).unwrap();
    let poster = notifier.poster();
    // SAFETY: the signal is handled.
    unsafe { libc::raise(libc::SIGHUP) };
    poster.post(0).unwrap();
    let counts = || [&hups, &posts, &second].map(|number| number.load(Ordering::Relaxed));
    assert_eq!(counts(), [1, 1, 1]);
    notifier.block(EventType::USER).unwrap();
    poster.post(0).unwrap();
    // SAFETY: the signal is handled.
    unsafe { libc::raise(libc::SIGHUP) };
    assert_eq!(counts(), [2, 1, 1]);
    notifier.unblock(EventType::USER).unwrap();
    assert_eq!(counts(), [2, 2, 2]);
    notifier.off(EventType::USER).unwrap();
    let _ = poster.post(0);
    assert_eq!(counts(), [2, 2, 2]);
    let (later, count_later) = count();
    notifier.on(EventType::USER, count_later).unwrap();
    poster.post(0).unwrap();
    assert_eq!((counts(), later.load(Ordering::Relaxed)), ([2, 2, 2], 1));
}

#[test]
fn wait_returns_the_event_without_running_its_action() {
    let mut notifier = Notifier::new().unwrap();
    let ((posts, count_posts), (ticks, count_ticks)) = (count(), count());
    notifier.on(EventType::USER, count_posts).unwrap();
    notifier.on(EventType::TIMER, count_ticks).unwrap();
    notifier.set_timer(Some(Duration::from_millis(1))).unwrap();
    let poster = notifier.poster();
    let posting = thread::spawn(move || {
        while ticks.load(Ordering::Relaxed) < 3 {
            std::hint::spin_loop();
        }
        poster.post(42).unwrap();
    });
    let until = Instant::now() + Duration::from_secs(60);
    let event = notifier.wait(&[EventType::USER], Some(until)).unwrap().unwrap();
    assert_eq!((event.kind, event.value), (EventType::USER, 42));
    assert_eq!(posts.load(Ordering::Relaxed), 0);
    posting.join().unwrap();
    let past = Some(Instant::now());
    assert_eq!(notifier.wait(&[EventType::USER], past), Ok(None));
}

#[test]
fn second_action_for_a_type_with_queued_events_did_not_return() {
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
fn wait_ran_actions_for_further_events_of_a_blocked_type() {
    let mut notifier = Notifier::new().unwrap();
    let ((posts, count_posts), (_, count_signals)) = (count(), count());
    notifier.on(EventType::USER, count_posts).unwrap();
    notifier.on(EventType::signal(libc::SIGUSR2).unwrap(), count_signals).unwrap();
    notifier.block(EventType::USER).unwrap();
    let poster = notifier.poster();
    (1..=4).for_each(|value| poster.post(value).unwrap());
    let until = Instant::now() + Duration::from_secs(60);
    let mut next = || notifier.wait(&[EventType::USER], Some(until)).unwrap().unwrap().value;
    assert_eq!([next(), next()], [1, 2]);
    assert_eq!(posts.load(Ordering::Relaxed), 0);
    notifier.unblock(EventType::USER).unwrap();
    assert_eq!(posts.load(Ordering::Relaxed), 2);
}

/// Blocks or unblocks the notification signal.
fn change_mask(how: libc::c_int) {
    // SAFETY: a plain C structure, for which all zero bytes are a valid value; a live signal set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGIO);
        assert_eq!(libc::pthread_sigmask(how, &set, std::ptr::null_mut()), 0);
    }
}

#[test]
fn type_in_the_group_of_a_removed_one_lost_an_event() {
    let mut notifier = Notifier::new().unwrap();
    let ((posts, count_posts), (_, count_ticks)) = (count(), count());
    notifier.on(EventType::TIMER, count_ticks).unwrap();
    notifier.off(EventType::TIMER).unwrap();
    // The post waits until the type gets a group.
    change_mask(libc::SIG_BLOCK);
    notifier.poster().post(1).unwrap();
    notifier.on(EventType::USER, count_posts).unwrap();
    change_mask(libc::SIG_UNBLOCK);
    assert_eq!(posts.load(Ordering::Relaxed), 1);
}

#[test]
fn wait_after_its_time_returns_an_event_that_waited() {
    let mut notifier = Notifier::new().unwrap();
    let ((posts, count_posts), (_, count_signals)) = (count(), count());
    let signal = EventType::signal(libc::SIGCONT).unwrap();
    notifier.on(EventType::USER, count_posts).unwrap();
    notifier.on(signal, count_signals).unwrap();
    notifier.block(signal).unwrap();
    notifier.poster().post(1).unwrap();
    // SAFETY: the signal is handled.
    unsafe { libc::raise(libc::SIGCONT) };
    let event = notifier.wait(&[signal], Some(Instant::now())).unwrap();
    assert_eq!(event.map(|event| event.kind), Some(signal));
    assert_eq!(posts.load(Ordering::Relaxed), 1);
}

#[test]
fn action_that_writes_to_a_full_pipe_blocked_the_thread() {
    let (mut reader, mut writer) = pipe().unwrap();
    let size = fill(&mut writer);
    let (done, is_done) = channel();
    thread::spawn(move || {
        let mut notifier = Notifier::new().unwrap();
        let writer = Arc::new(OwnedFd::from(writer));
        notifier.on(EventType::USER, Action::Write(writer, b"event")).unwrap();
        notifier.poster().post(1).unwrap();
        reader.read_exact(&mut vec![0; size]).unwrap();
        notifier.poster().post(2).unwrap();
        drop(notifier);
        let mut written = Vec::new();
        reader.read_to_end(&mut written).unwrap();
        done.send(written).unwrap();
    });
    let written = is_done.recv_timeout(Duration::from_secs(60));
    assert_eq!(written.as_deref(), Ok(&b"event"[..]));
}

/// Fills a pipe. Returns the number of bytes in it.
fn fill(writer: &mut PipeWriter) -> usize {
    // SAFETY: asks for a number.
    let size = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) } as usize;
    writer.write_all(&vec![0; size]).unwrap();
    size
}

#[test]
fn types_that_shared_the_last_group_were_blocked_together() {
    let mut notifier = Notifier::new().unwrap();
    let (counts, action) = count();
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
    assert_eq!(counts.load(Ordering::Relaxed), 1);
}
