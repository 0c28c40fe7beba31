//! Events and their types.

use std::fmt;

use crate::Error;

/// The type of an event. Signals have the kernel's numbers (SEND 3.3); other types follow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct EventType(u8);

impl EventType {
    /// One more than the highest number of a type.
    pub const COUNT: usize = 72;

    /// A connection was accepted, `EVT_IPACCEPT` (SEND 3.6.1).
    pub const ACCEPT: EventType = EventType(65);
    /// The state of a socket has changed, `EVT_IOREADY` (SEND 3.6.2).
    pub const READY: EventType = EventType(66);
    /// Bytes were received, or the stream ended.
    pub const DATA: EventType = EventType(67);
    /// A timer expired.
    pub const TIMER: EventType = EventType(68);
    /// A thread posted an event.
    pub const USER: EventType = EventType(69);
    /// Another operation completed.
    pub const DONE: EventType = EventType(70);
    /// The buffer is full and events are queued, `EVT_OVERFLOW` (SEND 3.1). Never in the buffer.
    pub const OVERFLOW: EventType = EventType(71);

    /// Returns the type of a signal, such as `libc::SIGINT`.
    ///
    /// # Errors
    /// Returns [`Error::NoSuchSignal`] for numbers that are not signals and for reserved signals:
    /// those that cannot be handled (`SIGKILL`, `SIGSTOP`), faults, which cannot be deferred
    /// (`SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL`, `SIGTRAP`), and the notification signal `SIGIO`.
    pub fn signal(number: i32) -> Result<Self, Error> {
        const RESERVED: [i32; 8] = [
            libc::SIGKILL,
            libc::SIGSTOP,
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGIO,
        ];
        // 32 and 33 are used by the C library.
        let is_signal = (1..=31).contains(&number) || (34..=64).contains(&number);
        if is_signal && !RESERVED.contains(&number) {
            Ok(EventType(number as u8))
        } else {
            Err(Error::NoSuchSignal(number))
        }
    }

    /// Returns the signal's number, if the type is a signal.
    pub const fn as_signal(self) -> Option<i32> {
        if self.0 < EventType::ACCEPT.0 { Some(self.0 as i32) } else { None }
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the type of a signal that is handled, and so is valid.
    pub(crate) const fn of_handled(signal: i32) -> Self {
        EventType(signal as u8)
    }
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            EventType::ACCEPT => "accept",
            EventType::READY => "ready",
            EventType::DATA => "data",
            EventType::TIMER => "timer",
            EventType::USER => "user",
            EventType::DONE => "done",
            EventType::OVERFLOW => "overflow",
            EventType(signal) => return write!(f, "signal {signal}"),
        })
    }
}

/// An event in the buffer, `struct event`: 40 bytes in the thesis, 24 here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// The type.
    pub kind: EventType,
    /// The group by which the event was delivered.
    pub group: u8,
    /// Number of coalesced events of the same type and origin; at least 1, saturating.
    pub count: u16,
    /// For a socket's event, its descriptor ([`SocketId`](crate::sockets::SocketId)). For a completion, its
    /// result, such as a new connection's descriptor. Otherwise -1.
    pub fd: i32,
    /// For a socket's event, its state in the format of poll(2). For a completion, the CQE flags.
    /// Otherwise 0.
    pub state: u32,
    /// Reserved.
    pub reserved: u32,
    /// The value given by the poster; for other events, the identifier of the source.
    pub value: u64,
}

impl Event {
    /// Creates an event with only a type.
    pub const fn new(kind: EventType) -> Self {
        Event { kind, group: 0, count: 1, fd: -1, state: 0, reserved: 0, value: 0 }
    }

    /// Merges a later event of the same origin: takes its fields and adds the counts.
    pub(crate) fn coalesce(&mut self, later: Event) {
        let count = self.count.saturating_add(later.count);
        *self = Event { count, group: self.group, ..later };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn event_layout_matches_the_documentation() {
        assert_eq!(size_of::<Event>(), 24);
        assert_eq!(offset_of!(Event, kind), 0);
        assert_eq!(offset_of!(Event, group), 1);
        assert_eq!(offset_of!(Event, count), 2);
        assert_eq!(offset_of!(Event, fd), 4);
        assert_eq!(offset_of!(Event, state), 8);
        assert_eq!(offset_of!(Event, value), 16);
    }

    #[test]
    fn faults_and_reserved_signals_are_not_events() {
        for number in [0, -1, 32, 33, 65, libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGIO]
        {
            assert_eq!(EventType::signal(number), Err(Error::NoSuchSignal(number)));
        }
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGCHLD, 34, 64] {
            assert_eq!(EventType::signal(number).unwrap().as_signal(), Some(number));
        }
        assert_eq!(EventType::ACCEPT.as_signal(), None);
    }
}
