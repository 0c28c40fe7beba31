//! Invalid arguments are rejected with specific errors.

use std::thread;
use std::time::Duration;

use send_core::control_block::{Actions, ControlBlock, Group, Groups, MAX_EVENTS, Trigger};
use send_core::{Error, EventType, PostError};

#[test]
fn second_block_of_a_thread_is_rejected() {
    let send = ControlBlock::define(4).unwrap();
    assert_eq!(ControlBlock::define(4).unwrap_err(), Error::AlreadyDefined);
    drop(send);
    drop(ControlBlock::define(4).unwrap());
}

#[test]
fn buffer_size_is_limited() {
    assert_eq!(ControlBlock::define(0).unwrap_err(), Error::BufferSize(0));
    let too_many = MAX_EVENTS + 1;
    assert_eq!(ControlBlock::define(too_many).unwrap_err(), Error::BufferSize(too_many));
    drop(ControlBlock::define(1).unwrap());
}

#[test]
fn notification_requires_a_handler() {
    let mut send = ControlBlock::define(4).unwrap();
    assert_eq!(send.set_notify(Groups::ALL), Err(Error::NoHandler));
    assert_eq!(send.set_notify(Groups::NONE), Ok(()));
    send.set_handler(Actions::new(), Trigger::Edge);
    assert_eq!(send.set_notify(Groups::ALL), Ok(()));
}

#[test]
fn timer_with_zero_period_is_rejected() {
    let mut send = ControlBlock::define(4).unwrap();
    assert_eq!(send.set_timer(Some(Duration::ZERO)), Err(Error::ZeroPeriod));
}

#[test]
fn group_32_is_rejected() {
    assert_eq!(Group::new(32), Err(Error::NoSuchGroup(32)));
}

#[test]
fn critical_section_outside_code_is_rejected() {
    let mut send = ControlBlock::define(4).unwrap();
    let code = group_32_is_rejected as fn() as usize;
    assert_eq!(send.set_critical_section(code..code), Err(Error::EmptySection));
    let data = &raw const code as usize;
    let outside = Err(Error::OutsideProgram(data, data + 8));
    assert_eq!(send.set_critical_section(data..data + 8), outside);
    assert_eq!(send.set_critical_section(code..code + 1), Ok(()));
}

#[test]
fn signal_of_another_thread_is_rejected() {
    let signal = EventType::signal(libc::SIGWINCH).unwrap();
    let mut send = ControlBlock::define(4).unwrap();
    send.set_group(signal, Some(Group::FIRST)).unwrap();
    let claim = move || {
        let mut other = ControlBlock::define(4).unwrap();
        other.set_group(signal, Some(Group::FIRST))
    };
    let in_use = Err(Error::SignalInUse(libc::SIGWINCH));
    assert_eq!(thread::spawn(claim).join().unwrap(), in_use);
    drop(send);
    assert_eq!(thread::spawn(claim).join().unwrap(), Ok(()));
}

#[test]
fn post_to_a_dropped_block_fails() {
    let poster = thread::spawn(|| ControlBlock::define(4).unwrap().poster()).join().unwrap();
    assert_eq!(poster.post(7), Err(PostError::Closed(7)));
}

#[test]
fn post_to_a_full_queue_fails() {
    let mut send = ControlBlock::define(2).unwrap();
    send.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
    let poster = send.poster();
    // Two events are collected and queued; two posts are not collected.
    (1..=2).for_each(|value| assert_eq!(poster.post(value), Ok(())));
    send.poll_pending();
    (3..=4).for_each(|value| assert_eq!(poster.post(value), Ok(())));
    assert_eq!(poster.post(5), Err(PostError::Full(5)));
}

#[test]
fn every_error_has_a_message() {
    let all = [
        Error::AlreadyDefined,
        Error::InChild,
        Error::BufferSize(0),
        Error::NoSuchGroup(40),
        Error::TooManyTypes,
        Error::NoSuchSignal(9),
        Error::EmptySection,
        Error::OutsideProgram(1, 2),
        Error::RangesUnsupported,
        Error::NoHandler,
        Error::ZeroPeriod,
        Error::SignalInUse(2),
        Error::SocketCount(0),
        Error::ReceiveBuffers(3, 64),
        Error::TooManySockets,
        Error::NoSuchSocket,
        Error::NotASocket(0),
        Error::NotListening(3),
        Error::NotAStream(3),
        Error::Busy,
        Error::System("waiting", 4),
    ];
    for error in all {
        assert!(error.to_string().split(' ').count() >= 3, "{error}");
    }
}
