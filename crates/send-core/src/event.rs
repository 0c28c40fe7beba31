//! What an event says.

use std::fmt;

use crate::Error;

/// What an event is about.
///
/// Signals are known by the numbers that the system gives them (SEND 3.3); the other types follow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct EventType(u8);

impl EventType {
    /// All numbers are below this.
    pub const COUNT: usize = 72;

    /// A connection was accepted, `EVT_IPACCEPT` (SEND 3.6.1).
    pub const ACCEPT: EventType = EventType(65);
    /// The state of a socket has changed, `EVT_IOREADY` (SEND 3.6.2).
    pub const READY: EventType = EventType(66);
    /// Bytes were received.
    pub const DATA: EventType = EventType(67);
    /// A timer ran out.
    pub const TIMER: EventType = EventType(68);
    /// A thread has posted something.
    pub const USER: EventType = EventType(69);
    /// Something else that was asked of the kernel is done.
    pub const DONE: EventType = EventType(70);
    /// Events wait for which the buffer has no room, `EVT_OVERFLOW` (SEND 3.1). It never stands in
    /// the buffer itself.
    pub const OVERFLOW: EventType = EventType(71);

    /// A signal, such as `libc::SIGINT`.
    ///
    /// # Errors
    /// [`Error::NoSuchSignal`] for numbers that are no signals, for those that can't be handled
    /// (`SIGKILL`, `SIGSTOP`), for those of faults, which can't wait (`SIGSEGV`, `SIGBUS`, `SIGFPE`,
    /// `SIGILL`, `SIGTRAP`), and for `SIGIO`, by which notification itself works.
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
        // 32 and 33 belong to the C library.
        let known = (1..=31).contains(&number) || (34..=64).contains(&number);
        if known && !RESERVED.contains(&number) {
            Ok(EventType(number as u8))
        } else {
            Err(Error::NoSuchSignal(number))
        }
    }

    /// The signal's number, if it is one.
    pub const fn as_signal(self) -> Option<i32> {
        if self.0 < EventType::ACCEPT.0 { Some(self.0 as i32) } else { None }
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The type of a signal that is handled, and so known to be one.
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

/// One event, as it stands in the buffer: `struct event`, which is 40 bytes in the thesis and 24
/// here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// What it is about.
    pub kind: EventType,
    /// The event group by which it was delivered.
    pub group: u8,
    /// How many events of the same kind and origin it stands for (at least 1; no more than fits).
    pub count: u16,
    /// The descriptor of the [socket](crate::SocketId) that it is about; of a completion, its result, such
    /// as a new connection's descriptor; else -1.
    pub fd: i32,
    /// The state of that socket, in the format of poll(2); of a completion, the flags with which the ring
    /// reports it; else 0.
    pub state: u32,
    /// Not used.
    pub reserved: u32,
    /// What who posted it says; for other events, what names their origin.
    pub value: u64,
}

impl Event {
    /// An event of a kind that says no more than that it happened.
    pub const fn new(kind: EventType) -> Self {
        Event { kind, group: 0, count: 1, fd: -1, state: 0, reserved: 0, value: 0 }
    }

    /// Takes in a later event of the same origin: what it says is newer, and the two count
    /// together.
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
    fn an_event_is_laid_out_as_documented() {
        assert_eq!(size_of::<Event>(), 24);
        assert_eq!(offset_of!(Event, kind), 0);
        assert_eq!(offset_of!(Event, group), 1);
        assert_eq!(offset_of!(Event, count), 2);
        assert_eq!(offset_of!(Event, fd), 4);
        assert_eq!(offset_of!(Event, state), 8);
        assert_eq!(offset_of!(Event, value), 16);
    }

    #[test]
    fn faults_and_what_is_reserved_are_no_events() {
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
