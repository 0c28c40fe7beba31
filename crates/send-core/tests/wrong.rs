//! What makes no sense is refused by name, and the process goes on.

use std::thread;
use std::time::Duration;

use send_core::{
    Actions, ControlBlock, Error, EventType, Group, Groups, MAX_EVENTS, PostError, Trigger,
};

#[test]
fn a_thread_has_one_block() {
    let send = ControlBlock::define(4).unwrap();
    assert_eq!(ControlBlock::define(4).unwrap_err(), Error::AlreadyDefined);
    drop(send);
    drop(ControlBlock::define(4).unwrap());
}

#[test]
fn a_buffer_holds_something_but_not_everything() {
    assert_eq!(ControlBlock::define(0).unwrap_err(), Error::BufferSize(0));
    let most = MAX_EVENTS + 1;
    assert_eq!(ControlBlock::define(most).unwrap_err(), Error::BufferSize(most));
    drop(ControlBlock::define(1).unwrap());
}

#[test]
fn there_is_no_notification_without_a_handler() {
    let mut send = ControlBlock::define(4).unwrap();
    assert_eq!(send.set_notify(Groups::ALL), Err(Error::NoHandler));
    assert_eq!(send.set_notify(Groups::NONE), Ok(()));
    send.set_handler(Actions::new(), Trigger::Edge);
    assert_eq!(send.set_notify(Groups::ALL), Ok(()));
}

#[test]
fn a_timer_has_a_period() {
    let mut send = ControlBlock::define(4).unwrap();
    assert_eq!(send.set_timer(Some(Duration::ZERO)), Err(Error::NoPeriod));
}

#[test]
fn there_are_32_groups() {
    assert_eq!(Group::new(32), Err(Error::NoSuchGroup(32)));
}

#[test]
fn a_critical_section_is_some_of_the_programs_code() {
    let mut send = ControlBlock::define(4).unwrap();
    let code = there_are_32_groups as fn() as usize;
    assert_eq!(send.set_critical_section(code..code), Err(Error::EmptySection));
    let data = &raw const code as usize;
    let outside = Err(Error::OutsideProgram(data, data + 8));
    assert_eq!(send.set_critical_section(data..data + 8), outside);
    assert_eq!(send.set_critical_section(code..code + 1), Ok(()));
}

#[test]
fn a_signal_is_the_event_of_one_thread() {
    let signal = EventType::signal(libc::SIGWINCH).unwrap();
    let mut send = ControlBlock::define(4).unwrap();
    send.set_group(signal, Some(Group::FIRST)).unwrap();
    let refused = move || {
        let mut other = ControlBlock::define(4).unwrap();
        other.set_group(signal, Some(Group::FIRST))
    };
    let in_use = Err(Error::SignalInUse(libc::SIGWINCH));
    assert_eq!(thread::spawn(refused).join().unwrap(), in_use);
    drop(send);
    assert_eq!(thread::spawn(refused).join().unwrap(), Ok(()));
}

#[test]
fn posts_to_a_block_that_is_gone_come_back() {
    let poster = thread::spawn(|| ControlBlock::define(4).unwrap().poster()).join().unwrap();
    assert_eq!(poster.post(7), Err(PostError::Ended(7)));
}

#[test]
fn posts_beyond_the_room_come_back() {
    let mut send = ControlBlock::define(2).unwrap();
    send.set_group(EventType::USER, Some(Group::FIRST)).unwrap();
    let poster = send.poster();
    // Two are taken in and wait to be delivered; two wait to be taken in.
    (1..=2).for_each(|value| assert_eq!(poster.post(value), Ok(())));
    send.poll_pending();
    (3..=4).for_each(|value| assert_eq!(poster.post(value), Ok(())));
    assert_eq!(poster.post(5), Err(PostError::Full(5)));
}

#[test]
fn every_refusal_is_a_sentence() {
    let all = [
        Error::AlreadyDefined,
        Error::InChild,
        Error::BufferSize(0),
        Error::NoSuchGroup(40),
        Error::TooManyTypes,
        Error::NoSuchSignal(9),
        Error::EmptySection,
        Error::OutsideProgram(1, 2),
        Error::NoRanges,
        Error::NoHandler,
        Error::NoPeriod,
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
