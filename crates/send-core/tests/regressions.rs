//! What went wrong once.

use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{mem, ptr, thread};

use send_core::{
    ControlBlock, Delivery, EventType, Events, Group, Groups, Handler, Poster, SendKernel, SetFlag,
    Trigger,
};
use shared_ring::{Host, Kernel, ListenOptions, Op, OpKind, Submit, Token, UringConfig};

const USER: EventType = EventType::USER;

/// A block whose handler counts the events that it takes, posted and of a signal, and how often it is called.
struct Counted {
    send: ControlBlock,
    taken: Arc<AtomicU64>,
    calls: Arc<AtomicU64>,
    poster: Poster,
}

struct Takes(Arc<AtomicU64>, Arc<AtomicU64>);

// SAFETY: it takes events and adds to atomic numbers.
unsafe impl Handler for Takes {
    fn handle(&mut self, events: &mut Events<'_>) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.fetch_add(events.count() as u64, Ordering::Relaxed);
    }
}

const POSTED: Group = Group::FIRST;
const SIGNALLED: Group = POSTED.next();
const OTHER: Group = SIGNALLED.next();

fn counted(signal: i32) -> Counted {
    let mut send = ControlBlock::define(8).unwrap();
    let (taken, calls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    send.set_handler(Takes(taken.clone(), calls.clone()), Trigger::Edge);
    send.set_group(USER, Some(POSTED)).unwrap();
    send.set_group(EventType::signal(signal).unwrap(), Some(SIGNALLED)).unwrap();
    let poster = send.poster();
    Counted { send, taken, calls, poster }
}

fn post(poster: &Poster, value: u64) {
    let poster = poster.clone();
    thread::spawn(move || poster.post(value)).join().unwrap().unwrap();
}

fn seen(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}

fn raise(signal: i32) {
    // SAFETY: the signal is handled.
    unsafe { libc::raise(signal) };
}

#[test]
fn raising_notify_for_one_group_ran_the_handler_for_another() {
    let Counted { send, taken, calls, poster } = counted(libc::SIGUSR1);
    send.set_deliver(Groups::ALL);
    post(&poster, 1);
    send.poll_pending();
    assert!(send.block().has_events());
    send.set_notify(OTHER.into()).unwrap();
    send.set_notify(SIGNALLED.into()).unwrap();
    assert_eq!((seen(&calls), seen(&taken)), (0, 0), "nothing of these groups is there");
    send.set_notify(POSTED.into()).unwrap();
    assert_eq!((seen(&calls), seen(&taken)), (1, 1));
}

#[test]
fn an_event_that_was_taken_ran_the_handler_for_another() {
    let Counted { mut send, taken, calls, poster } = counted(libc::SIGUSR2);
    // One of each group is delivered, the posted one first.
    send.set_deliver(Groups::ALL);
    post(&poster, 1);
    raise(libc::SIGUSR2);
    assert_eq!(send.next_event().map(|event| event.kind), Some(USER));
    send.set_notify(POSTED.into()).unwrap();
    assert_eq!((seen(&calls), seen(&taken)), (0, 0), "that of its group was taken");
    send.set_notify(SIGNALLED.into()).unwrap();
    assert_eq!((seen(&calls), seen(&taken)), (1, 1));
}

#[test]
fn a_buffer_that_had_been_full_ran_the_handler_for_another_group() {
    let Counted { mut send, calls, poster, .. } = counted(libc::SIGURG);
    send.set_group(EventType::OVERFLOW, Some(OTHER)).unwrap();
    send.set_deliver(Groups::ALL);
    for value in 0..8 {
        post(&poster, value);
    }
    send.poll_pending();
    post(&poster, 8);
    send.poll_pending();
    assert_eq!(send.counts().overflows, 1);
    // What had filled it is taken, and something else is there.
    while send.next_event().is_some() {}
    post(&poster, 9);
    send.poll_pending();
    assert!(send.block().has_events());
    send.set_notify(OTHER.into()).unwrap();
    assert_eq!(seen(&calls), 0);
}

/// The calling thread's signals that are blocked.
fn mask() -> libc::sigset_t {
    // SAFETY: a plain C structure, which the call fills in.
    unsafe {
        let mut set = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut set);
        set
    }
}

/// What a library does that keeps signals off for a while, and then restores the mask that it has found.
fn restore(mask: &libc::sigset_t) {
    // SAFETY: a live signal set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

/// A thread whose notification is off, and blocked, when its mask is looked at; then on again; and then the
/// mask that was found is restored.
fn with_an_older_mask() -> Counted {
    let counted = counted(libc::SIGWINCH);
    post(&counted.poster, 1);
    let older = mask();
    // SAFETY: a live signal set.
    assert_eq!(unsafe { libc::sigismember(&older, libc::SIGIO) }, 1);
    counted.send.set_notify(Groups::ALL).unwrap();
    assert_eq!(seen(&counted.taken), 1);
    restore(&older);
    counted
}

/// Events interrupt.
fn interrupts(Counted { taken, poster, .. }: &Counted) {
    let before = seen(taken);
    post(poster, 1);
    assert_eq!(seen(taken), before + 1);
}

/// One test, as a signal is the event of one thread.
#[test]
fn an_older_mask_kept_notification_blocked_for_ever() {
    type Repair = fn(&mut Counted);
    let repairs: [(&str, Repair); 6] = [
        ("looking", |counted| counted.send.poll_pending()),
        ("waiting", |counted| {
            // It brings what waits, and calls no handler for it.
            assert_eq!(counted.send.wait(Groups::ALL, Some(Instant::now())), Ok(true));
            assert_eq!(counted.send.next_event().map(|event| event.value), Some(2));
        }),
        ("raising a mask again and again", |counted| {
            for _ in 0..64 {
                counted.send.set_notify(Groups::NONE).unwrap();
                counted.send.set_notify(Groups::ALL).unwrap();
            }
        }),
        ("taking events again and again", |counted| {
            for _ in 0..64 {
                while counted.send.next_event().is_some() {}
            }
        }),
        ("having them handled again and again", |counted| {
            for _ in 0..64 {
                counted.send.handle_events();
            }
        }),
        ("another signal", |_| raise(libc::SIGWINCH)),
    ];
    for (name, repair) in repairs {
        println!("{name}");
        let mut counted = with_an_older_mask();
        // It waits behind the block.
        post(&counted.poster, 2);
        assert_eq!(seen(&counted.taken), 1);
        repair(&mut counted);
        interrupts(&counted);
    }
}

#[test]
fn looking_at_masks_costs_those_nothing_whose_signal_was_never_blocked() {
    let counted = counted(libc::SIGCONT);
    counted.send.set_notify(Groups::ALL).unwrap();
    for _ in 0..200 {
        counted.send.poll_pending();
        counted.send.set_notify(Groups::NONE).unwrap();
        counted.send.set_notify(Groups::ALL).unwrap();
    }
    interrupts(&counted);
    assert_eq!(send_counts(&counted), (0, 0));
}

fn send_counts(counted: &Counted) -> (u64, u64) {
    let counts = counted.send.counts();
    (counts.masked, counts.unmasked)
}

/// Its number was that of a listener which had signalled, and was closed.
#[test]
fn a_listener_whose_number_was_used_before_did_not_interrupt() {
    let delivery = Delivery::Preemptive;
    let config = UringConfig { mode: delivery.mode(), operations: 8, buffers: 1, buffer_size: 16 };
    let Ok(mut kernel) = SendKernel::new(&config, delivery) else { return };
    let options = ListenOptions { backlog: 8, reuse_port: false, buffers: Default::default() };
    let at = "127.0.0.1:0".parse().unwrap();
    let (listener, _) = kernel.host_mut().listen(at, &options).unwrap();
    let is_async = || {
        // SAFETY: asks for numbers.
        unsafe { libc::fcntl(listener.as_raw_fd(), libc::F_GETFL) & libc::O_ASYNC != 0 }
    };
    let mut accept = |slot| {
        let token = Token::new(OpKind::Accept, slot, 0);
        // SAFETY: the number stays open to the end; what it stands for changes, as the test is about that.
        let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
        kernel.submit(token, accept).unwrap();
        assert!(is_async(), "listener {slot}");
        kernel.cancel(token);
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            kernel.turn(Some(until)).unwrap();
            if let Some(completion) = kernel.next() {
                assert!(completion.last && completion.token == token);
                return;
            }
        }
    };
    accept(0);
    let another = TcpListener::bind(at).unwrap();
    // SAFETY: the number is the first listener's, which the kernel has let go of.
    assert!(unsafe { libc::dup2(another.as_raw_fd(), listener.as_raw_fd()) } >= 0);
    assert!(!is_async());
    accept(1);
    kernel.host_mut().close_unused(listener);
}

/// A thread that posts to itself from its own handler, and is interrupted while it posts.
#[test]
fn who_posts_to_itself_hears_of_all() {
    let Counted { send, taken, poster, .. } = counted(libc::SIGTTOU);
    send.set_notify(Groups::ALL).unwrap();
    for value in 0..1000 {
        poster.post(value).unwrap();
    }
    assert_eq!(seen(&taken), 1000);
}

/// An alarm was raised though the buffer was empty.
#[test]
fn an_event_that_was_taken_raised_an_alarm() {
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
    let far = Instant::now() + Duration::from_secs(60);
    assert_eq!(send.wait(Groups::ALL, Some(far)), Ok(true));
}
