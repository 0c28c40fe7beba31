//! Regression tests.

use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{mem, ptr, thread};

use send_core::control_block::{ControlBlock, Events, Group, Groups, Handler, SetFlag, Trigger};
use send_core::kernel::{Delivery, SendKernel};
use send_core::{EventType, Poster};
use shared_ring::sockets::ListenOptions;
use shared_ring::uring::UringConfig;
use shared_ring::{Host, Kernel, Op, OpKind, Submit, Token};

const USER: EventType = EventType::USER;

/// A block whose handler counts the posted and signal events that it takes, and its calls.
struct CountingBlock {
    send: ControlBlock,
    taken: Arc<AtomicU64>,
    calls: Arc<AtomicU64>,
    poster: Poster,
}

struct Counting(Arc<AtomicU64>, Arc<AtomicU64>);

// SAFETY: it takes events and adds to atomic numbers.
unsafe impl Handler for Counting {
    fn handle(&mut self, events: &mut Events<'_>) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.fetch_add(events.count() as u64, Ordering::Relaxed);
    }
}

const POSTED: Group = Group::FIRST;
const SIGNALLED: Group = POSTED.next();
const OTHER: Group = SIGNALLED.next();

fn counted(signal: i32) -> CountingBlock {
    let mut send = ControlBlock::define(8).unwrap();
    let (taken, calls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    send.set_handler(Counting(taken.clone(), calls.clone()), Trigger::Edge);
    send.set_group(USER, Some(POSTED)).unwrap();
    send.set_group(EventType::signal(signal).unwrap(), Some(SIGNALLED)).unwrap();
    let poster = send.poster();
    CountingBlock { send, taken, calls, poster }
}

fn post(poster: &Poster, value: u64) {
    let poster = poster.clone();
    thread::spawn(move || poster.post(value)).join().unwrap().unwrap();
}

fn load(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}

fn raise(signal: i32) {
    // SAFETY: the signal is handled.
    unsafe { libc::raise(signal) };
}

#[test]
fn raising_notify_for_one_group_ran_the_handler_for_another() {
    let CountingBlock { send, taken, calls, poster } = counted(libc::SIGUSR1);
    send.set_deliver(Groups::ALL);
    post(&poster, 1);
    send.poll_pending();
    assert!(send.block().has_events());
    send.set_notify(OTHER.into()).unwrap();
    send.set_notify(SIGNALLED.into()).unwrap();
    assert_eq!((load(&calls), load(&taken)), (0, 0), "no event of these groups");
    send.set_notify(POSTED.into()).unwrap();
    assert_eq!((load(&calls), load(&taken)), (1, 1));
}

#[test]
fn taken_event_ran_the_handler_for_another_group() {
    let CountingBlock { mut send, taken, calls, poster } = counted(libc::SIGUSR2);
    // One event of each group is delivered, the posted one first.
    send.set_deliver(Groups::ALL);
    post(&poster, 1);
    raise(libc::SIGUSR2);
    assert_eq!(send.next_event().map(|event| event.kind), Some(USER));
    send.set_notify(POSTED.into()).unwrap();
    assert_eq!((load(&calls), load(&taken)), (0, 0), "the group's event was taken");
    send.set_notify(SIGNALLED.into()).unwrap();
    assert_eq!((load(&calls), load(&taken)), (1, 1));
}

#[test]
fn formerly_full_buffer_ran_the_handler_for_another_group() {
    let CountingBlock { mut send, calls, poster, .. } = counted(libc::SIGURG);
    send.set_group(EventType::OVERFLOW, Some(OTHER)).unwrap();
    send.set_deliver(Groups::ALL);
    for value in 0..8 {
        post(&poster, value);
    }
    send.poll_pending();
    post(&poster, 8);
    send.poll_pending();
    assert_eq!(send.counters().overflows, 1);
    // The events that filled the buffer are taken, and another is put.
    while send.next_event().is_some() {}
    post(&poster, 9);
    send.poll_pending();
    assert!(send.block().has_events());
    send.set_notify(OTHER.into()).unwrap();
    assert_eq!(load(&calls), 0);
}

/// Returns the calling thread's signal mask.
fn mask() -> libc::sigset_t {
    // SAFETY: a plain C structure, which the call fills in.
    unsafe {
        let mut set = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut set);
        set
    }
}

/// Restores a saved mask, like a library that blocked signals temporarily.
fn restore(mask: &libc::sigset_t) {
    // SAFETY: a live signal set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

/// Returns a block whose thread saved its mask while notification was off and blocked, raised
/// notification, and restored the mask.
fn with_restored_mask() -> CountingBlock {
    let counted = counted(libc::SIGWINCH);
    post(&counted.poster, 1);
    let saved = mask();
    // SAFETY: a live signal set.
    assert_eq!(unsafe { libc::sigismember(&saved, libc::SIGIO) }, 1);
    counted.send.set_notify(Groups::ALL).unwrap();
    assert_eq!(load(&counted.taken), 1);
    restore(&saved);
    counted
}

/// Asserts that events interrupt.
fn assert_interrupts(CountingBlock { taken, poster, .. }: &CountingBlock) {
    let before = load(taken);
    post(poster, 1);
    assert_eq!(load(taken), before + 1);
}

/// A single test, as a signal is the event of one thread.
#[test]
fn restored_mask_blocked_notification_permanently() {
    type Repair = fn(&mut CountingBlock);
    let repairs: [(&str, Repair); 6] = [
        ("poll_pending", |counted| counted.send.poll_pending()),
        ("wait", |counted| {
            // It returns the queued event, and calls no handler for it.
            assert_eq!(counted.send.wait(Groups::ALL, Some(Instant::now())), Ok(true));
            assert_eq!(counted.send.next_event().map(|event| event.value), Some(2));
        }),
        ("raising notify repeatedly", |counted| {
            for _ in 0..64 {
                counted.send.set_notify(Groups::NONE).unwrap();
                counted.send.set_notify(Groups::ALL).unwrap();
            }
        }),
        ("next_event repeatedly", |counted| {
            for _ in 0..64 {
                while counted.send.next_event().is_some() {}
            }
        }),
        ("handle_events repeatedly", |counted| {
            for _ in 0..64 {
                counted.send.handle_events();
            }
        }),
        ("another signal", |_| raise(libc::SIGWINCH)),
    ];
    for (name, repair) in repairs {
        println!("{name}");
        let mut counted = with_restored_mask();
        // The signal stays blocked.
        post(&counted.poster, 2);
        assert_eq!(load(&counted.taken), 1);
        repair(&mut counted);
        assert_interrupts(&counted);
    }
}

#[test]
fn thread_with_unblocked_signal_makes_no_mask_system_calls() {
    let counted = counted(libc::SIGCONT);
    counted.send.set_notify(Groups::ALL).unwrap();
    for _ in 0..200 {
        counted.send.poll_pending();
        counted.send.set_notify(Groups::NONE).unwrap();
        counted.send.set_notify(Groups::ALL).unwrap();
    }
    assert_interrupts(&counted);
    assert_eq!(mask_counts(&counted), (0, 0));
}

fn mask_counts(counted: &CountingBlock) -> (u64, u64) {
    let counts = counted.send.counters();
    (counts.masked, counts.unmasked)
}

/// The descriptor had belonged to a closed listener with `SIGIO` enabled.
#[test]
fn listener_with_reused_descriptor_did_not_interrupt() {
    let delivery = Delivery::Preemptive;
    let config = UringConfig::new(delivery.mode(), 8, 1, 16);
    let mut kernel = match SendKernel::new(&config, delivery) {
        Ok(kernel) => kernel,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let options = ListenOptions::new(8);
    let at = "127.0.0.1:0".parse().unwrap();
    let (listener, _) = kernel.host_mut().listen(at, &options).unwrap();
    let is_async = || {
        // SAFETY: only queries numbers.
        unsafe { libc::fcntl(listener.as_raw_fd(), libc::F_GETFL) & libc::O_ASYNC != 0 }
    };
    let mut accept = |slot| {
        let token = Token::new(OpKind::Accept, slot, 0);
        // SAFETY: the descriptor stays open to the end; this test changes the listener behind it.
        let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
        kernel.submit(token, accept).unwrap();
        assert!(is_async(), "listener {slot}");
        kernel.cancel(token);
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            kernel.turn(Some(until)).unwrap();
            if let Some(completion) = kernel.next() {
                assert!(completion.is_last && completion.token == token);
                return;
            }
        }
    };
    accept(0);
    let reused = TcpListener::bind(at).unwrap();
    // SAFETY: the descriptor is the first listener's, which the kernel no longer uses.
    assert!(unsafe { libc::dup2(reused.as_raw_fd(), listener.as_raw_fd()) } >= 0);
    assert!(!is_async());
    accept(1);
    kernel.host_mut().close_unused(listener);
}

/// Another descriptor of the listener stayed open.
#[test]
fn listener_that_was_closed_went_on_to_signal() {
    let delivery = Delivery::Preemptive;
    let config = UringConfig::new(delivery.mode(), 8, 1, 16);
    for finishes in [false, true] {
        let mut kernel = match SendKernel::new(&config, delivery) {
            Ok(kernel) => kernel,
            Err(missing) => return println!("not tested: {missing}"),
        };
        let at = "127.0.0.1:0".parse().unwrap();
        let (listener, _) = kernel.host_mut().listen(at, &ListenOptions::new(8)).unwrap();
        // SAFETY: the listener is open.
        let other = unsafe { BorrowedFd::borrow_raw(listener.as_raw_fd()) };
        let other = other.try_clone_to_owned().unwrap();
        let is_async = || {
            // SAFETY: only queries numbers.
            unsafe { libc::fcntl(other.as_raw_fd(), libc::F_GETFL) & libc::O_ASYNC != 0 }
        };
        let token = Token::new(OpKind::Accept, 0, 0);
        // SAFETY: the descriptor is closed below, after the accept has ended.
        let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
        kernel.submit(token, accept).unwrap();
        assert!(is_async());
        if finishes {
            kernel.finish();
            kernel.host_mut().close_unused(listener);
        } else {
            kernel.cancel(token);
            let until = Instant::now() + Duration::from_secs(10);
            while kernel.next().is_none() {
                kernel.turn(Some(until)).unwrap();
                assert!(Instant::now() < until, "the accept does not end");
            }
            kernel.submit(Token::new(OpKind::Close, 0, 0), Op::Close { socket: listener }).unwrap();
        }
        assert!(!is_async(), "finishes: {finishes}");
    }
}

/// The notification of each post interrupts the poster.
#[test]
fn posts_of_a_thread_to_itself_are_all_delivered() {
    let CountingBlock { send, taken, poster, .. } = counted(libc::SIGTTOU);
    send.set_notify(Groups::ALL).unwrap();
    for value in 0..1000 {
        poster.post(value).unwrap();
    }
    assert_eq!(load(&taken), 1000);
}

/// The handler ran although the buffer was empty.
#[test]
fn taken_event_set_the_flag() {
    let mut send = ControlBlock::define(8).unwrap();
    let raised = SetFlag::default();
    send.set_handler(raised.clone(), Trigger::Edge);
    send.set_group(USER, Some(POSTED)).unwrap();
    send.set_deliver(Groups::ALL);
    let poster = send.poster();
    post(&poster, 1);
    assert_eq!(send.next_event().map(|event| event.value), Some(1));
    send.set_notify(Groups::ALL).unwrap();
    assert!(!raised.0.load(Ordering::Relaxed));
    post(&poster, 2);
    assert!(raised.0.load(Ordering::Relaxed));
    let until = Instant::now() + Duration::from_secs(60);
    assert_eq!(send.wait(Groups::ALL, Some(until)), Ok(true));
}
