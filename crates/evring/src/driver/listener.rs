//! The driver's state of a listener.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use shared_ring::buffers::BufferGroup;
use shared_ring::{Fd, Host, Op, OpKind, Socket, Submit, Token};

use super::close_socket::close;
use crate::AcceptPolicy;

/// State of a listener.
#[derive(Debug)]
pub(crate) struct ListenerState {
    index: u32,
    /// Buffer group of the connections.
    pub(crate) group: BufferGroup,
    /// `None` once its close has started.
    socket: Option<Socket>,
    /// The socket has listened before, with a backlog of another length.
    is_adopted: bool,
    /// Another process keeps the socket open.
    is_shared: bool,
    /// The application has stopped accepting.
    off: bool,
    per_turn: Option<NonZeroU16>,
    /// Maximum number of accepts per turn under overload.
    max_per_turn: Option<NonZeroU16>,
    /// Maximum number of accepts per turn as few connections have room.
    max_for_room: Option<NonZeroU16>,
    /// Length of the backlog as configured, and as set.
    configured_backlog: u32,
    length: u32,
    /// An accept is in flight.
    pub(crate) accepting: bool,
    cancelled: bool,
    /// Number of connections taken from the queue since the server began to close its listeners.
    pub(super) taken_at_end: u32,
    /// Earliest time of the next accept after a failure, unless a connection closes first.
    retry: Option<Instant>,
    closed: bool,
}

impl ListenerState {
    /// Pause after a failed accept, such as for lack of descriptors, unless a connection closes first.
    const RETRY_INTERVAL: Duration = Duration::from_millis(100);

    /// Returns the state of a listener with this backlog.
    pub(crate) fn new(index: u32, socket: Socket, length: u32) -> Self {
        ListenerState {
            index,
            group: BufferGroup::DEFAULT,
            socket: Some(socket),
            is_adopted: false,
            is_shared: false,
            off: false,
            per_turn: None,
            max_per_turn: None,
            max_for_room: None,
            configured_backlog: length,
            length,
            accepting: false,
            cancelled: false,
            taken_at_end: 0,
            retry: None,
            closed: false,
        }
    }

    /// Returns the state of a listener whose socket has listened before, with a backlog of another length. Another
    /// process may keep it open.
    pub(crate) fn adopted(index: u32, socket: Socket, length: u32, is_shared: bool) -> Self {
        ListenerState { is_adopted: true, is_shared, ..ListenerState::new(index, socket, length) }
    }

    fn token(&self) -> Token {
        Token::new(OpKind::Accept, self.index, 0)
    }

    /// Returns whether another process keeps the socket open.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns the listener's socket unless its close has started.
    pub(crate) fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// Takes the socket to close it; no accept may be in flight.
    pub(crate) fn take(&mut self) -> Option<Socket> {
        self.socket.take()
    }

    /// Returns whether an accept is in flight.
    pub(crate) fn is_accepting(&self) -> bool {
        self.accepting
    }

    /// Returns the descriptor for an accept.
    fn fd(&self) -> Option<Fd> {
        // SAFETY: the socket is closed by `close`, when no accept is in flight (`accepting`), by
        // `Io::drop`, after `Submit::finish`, or by `open_listeners`, before the first accept. Nothing
        // keeps the descriptor beyond the accept that it was requested for.
        self.socket.as_ref().map(|socket| unsafe { socket.fd() })
    }

    /// Returns when to retry an accept.
    pub(crate) fn retry(&self) -> Option<Instant> {
        self.retry.filter(|_| self.socket.is_some() && !self.off)
    }

    /// Applies the policy that the application has set.
    pub(crate) fn set_policy<K: Submit>(&mut self, how: AcceptPolicy, kernel: &mut K) {
        if self.socket.is_none() {
            return;
        }
        match how {
            AcceptPolicy::Off => self.off = true,
            AcceptPolicy::All => (self.off, self.per_turn) = (false, None),
            AcceptPolicy::PerTurn(n) => {
                (self.off, self.per_turn) =
                    (false, Some(NonZeroU16::new(n).unwrap_or(NonZeroU16::MIN)));
            }
            AcceptPolicy::Backlog(length) => {
                self.configured_backlog = length;
                self.set_length(length, kernel);
                return;
            }
        }
        // The accept in flight may have the old policy; the next one has the new.
        self.cancel_accept(kernel);
    }

    /// Limits the number of accepts per turn, in addition to the application's policy.
    pub(crate) fn limit_per_turn<K: Submit>(
        &mut self,
        max_per_turn: Option<NonZeroU16>,
        kernel: &mut K,
    ) {
        let before = self.per_turn_limit();
        self.max_per_turn = max_per_turn;
        if self.per_turn_limit() != before {
            self.cancel_accept(kernel);
        }
    }

    /// Limits the number of accepts per turn if the backlog has more connections than `room`: an accept without a
    /// limit takes all of them. `listeners` share the room.
    pub(crate) fn fit_room<K: Submit>(&mut self, room: u32, listeners: u32, kernel: &mut K) {
        const FEW: NonZeroU16 = NonZeroU16::new(16).unwrap();
        // Those of a turn may complete after the next limit is set.
        let room = room / listeners;
        // The limit ends a fifth above, so that room that varies around the length changes nothing.
        let length = match self.max_for_room {
            None => self.length,
            Some(_) => self.length.saturating_add(self.length / 5),
        };
        let max = if room < 2 * u32::from(FEW.get()) {
            Some(NonZeroU16::MIN)
        } else {
            (room <= length).then_some(FEW)
        };
        if max != self.max_for_room {
            let before = self.per_turn_limit();
            self.max_for_room = max;
            if self.per_turn_limit() != before {
                self.cancel_accept(kernel);
            }
        }
    }

    /// Sets the backlog of an adopted socket, when the server begins to serve: until then, another one may have served
    /// with a length of its own.
    pub(crate) fn set_adopted_backlog<K: Submit>(&mut self, kernel: &mut K) {
        if self.is_adopted {
            self.set_length(self.configured_backlog, kernel);
        }
    }

    /// Limits the backlog; `None` lifts the limit. A change of at most a fifth is skipped. The limit of an adopted socket
    /// is set again if the process that retired has lifted it, as its own was the same.
    pub(crate) fn fit_backlog<K: Submit>(&mut self, max: Option<u32>, kernel: &mut K) {
        let length = max.map_or(self.configured_backlog, |max| max.min(self.configured_backlog));
        let is_near = length.abs_diff(self.length) <= self.length / 5 && max.is_some();
        let socket = self.socket.as_ref().filter(|_| self.is_adopted && max.is_some());
        let set = socket.and_then(|socket| kernel.host().backlog_length(socket));
        let was_lifted = set.is_some_and(|set| set > self.length);
        if was_lifted || length != self.length && !is_near {
            self.set_length(length, kernel);
        }
    }

    /// Lifts the limit of the backlog before the socket is closed, unless another owner of the socket has set a length of
    /// its own.
    pub(crate) fn lift_limit<K: Submit>(&mut self, kernel: &mut K) {
        let Some(socket) = self.socket.as_ref().filter(|_| self.length != self.configured_backlog)
        else {
            return;
        };
        if kernel.host().backlog_length(socket).is_none_or(|length| length == self.length) {
            self.fit_backlog(None, kernel);
        }
    }

    fn set_length<K: Submit>(&mut self, length: u32, kernel: &mut K) {
        let Some(socket) = &self.socket else { return };
        self.length = length;
        // The kernel clamps the length.
        let _ = kernel.host_mut().backlog(socket, length);
    }

    /// Returns whether the application has stopped accepting.
    pub(crate) fn is_off(&self) -> bool {
        self.off
    }

    /// Returns the length of the backlog.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// Returns the maximum number of accepts per turn.
    fn per_turn_limit(&self) -> Option<NonZeroU16> {
        [self.per_turn, self.max_per_turn, self.max_for_room].into_iter().flatten().min()
    }

    /// Cancels the accept in flight. Returns whether it requested a cancellation.
    pub(crate) fn cancel_accept<K: Submit>(&mut self, kernel: &mut K) -> bool {
        let cancels = self.accepting && !self.cancelled;
        if cancels {
            self.cancelled = true;
            kernel.cancel(self.token());
        }
        cancels
    }

    /// Pauses the listener after a failure.
    pub(crate) fn pause_until_retry(&mut self, now: Instant) {
        self.retry = Some(now + Self::RETRY_INTERVAL);
    }

    /// Ends the pause: a descriptor or a slot has become free.
    pub(crate) fn clear_retry(&mut self) {
        self.retry = None;
    }

    /// Records that the accept in flight has ended.
    pub(crate) fn ended(&mut self) {
        self.accepting = false;
        self.cancelled = false;
    }

    /// Submits an accept if the policy permits it and none is in flight.
    pub(crate) fn resume<K: Submit>(&mut self, kernel: &mut K, now: Instant) {
        let is_paused = self.retry.is_some_and(|at| at > now);
        let Some(listener) = self.fd() else { return };
        if self.off || self.accepting || is_paused {
            return;
        }
        self.retry = None;
        let op = Op::Accept { listener, per_turn: self.per_turn_limit() };
        match kernel.submit(self.token(), op) {
            Ok(_) => self.accepting = true,
            Err(_) => self.pause_until_retry(now),
        }
    }

    /// Closes the listener once no accept is in flight. The close reuses the accept's token.
    pub(crate) fn close<K: Submit>(&mut self, kernel: &mut K) {
        if self.accepting {
            self.cancel_accept(kernel);
        } else if let Some(socket) = self.take() {
            self.closed = close(kernel, self.token(), socket);
        }
    }

    /// Records that the listener is closed.
    pub(crate) fn closed(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

#[cfg(test)]
mod tests {
    use shared_ring::poller::Poll;
    use shared_ring::sockets::{ListenOptions, ListeningSocket};
    use shared_ring::{Engine, EngineConfig};

    use super::*;

    /// A kernel with a listener whose queue has 100 places.
    fn listening() -> (Engine<Poll>, ListenerState) {
        let config = EngineConfig::new(1, 1, 1);
        let mut kernel = Engine::new(Poll::default(), &config).unwrap();
        let options = ListenOptions::new(100);
        let address = "127.0.0.1:0".parse().unwrap();
        let (listener, _) = kernel.host_mut().listen(address, &options).unwrap();
        (kernel, ListenerState::new(0, listener, 100))
    }

    #[test]
    fn paused_listener_retries_unless_it_is_off_or_closed() {
        let (mut kernel, mut listener) = listening();
        let now = kernel.now();
        let later = now + ListenerState::RETRY_INTERVAL;
        assert_eq!(listener.retry(), None);
        listener.pause_until_retry(now);
        assert_eq!(listener.retry(), Some(later));
        listener.set_policy(AcceptPolicy::Off, &mut kernel);
        assert_eq!(listener.retry(), None);
        listener.set_policy(AcceptPolicy::All, &mut kernel);
        assert_eq!(listener.retry(), Some(later));
        listener.resume(&mut kernel, now);
        assert!(!listener.accepting && listener.retry().is_some(), "it is too early");
        listener.resume(&mut kernel, later);
        assert!(listener.accepting && listener.retry().is_none());
        listener.pause_until_retry(now);
        kernel.finish();
        let socket = listener.take().unwrap();
        assert_eq!(listener.retry(), None);
        kernel.host_mut().close_unused(socket);
    }

    #[test]
    fn accepts_are_limited_until_the_backlog_and_a_fifth_more_have_room() {
        let (mut kernel, mut listener) = listening();
        let mut fit = |room, listeners| {
            listener.fit_room(room, listeners, &mut kernel);
            listener.per_turn_limit().map(NonZeroU16::get)
        };
        assert_eq!(
            [(101, 1), (100, 1), (120, 1)].map(|(room, n)| fit(room, n)),
            [None, Some(16), Some(16)]
        );
        assert_eq!([(121, 1), (120, 1)].map(|(room, n)| fit(room, n)), [None, None]);
        // Those of a turn may still complete when there is no room.
        assert_eq!(
            [(32, 1), (31, 1), (64, 2), (63, 2)].map(|(room, n)| fit(room, n)),
            [Some(16), Some(1), Some(16), Some(1)]
        );
        let listener = listener.take().unwrap();
        kernel.host_mut().close_unused(listener);
    }

    #[test]
    fn process_that_retires_set_its_own_backlog_after_its_successor() {
        let mut kernel = Engine::new(Poll::default(), &EngineConfig::new(1, 1, 1)).unwrap();
        let options = ListenOptions::new(100);
        let socket = ListeningSocket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let length = |kernel: &Engine<Poll>, listener: &ListenerState| {
            kernel.host().backlog_length(listener.socket().unwrap())
        };
        // The length and the limit that a successor sets, and the last length.
        for (successor, limit, last) in
            [(None, None, 100), (Some(64), None, 64), (Some(64), Some(10), 10)]
        {
            let mut adopt = || kernel.host_mut().adopt(socket.clone()).unwrap();
            let mut listener = ListenerState::new(0, adopt(), 100);
            let mut next = ListenerState::adopted(0, adopt(), successor.unwrap_or(0), false);
            listener.fit_backlog(Some(10), &mut kernel);
            if successor.is_some() {
                next.set_adopted_backlog(&mut kernel);
                next.fit_backlog(limit, &mut kernel);
            }
            let before = limit.or(successor).unwrap_or(10);
            assert_eq!(length(&kernel, &listener), Some(before));
            listener.lift_limit(&mut kernel);
            if limit.is_some() {
                // It was the limit of both.
                assert_eq!(length(&kernel, &next), Some(100));
                next.fit_backlog(limit, &mut kernel);
            }
            assert_eq!(length(&kernel, &next), Some(last));
            for socket in [listener.take(), next.take()].into_iter().flatten() {
                kernel.host_mut().close_unused(socket);
            }
        }
    }

    #[test]
    fn small_change_of_the_backlog_is_skipped() {
        let (mut kernel, mut listener) = listening();
        let mut fit = |max_per_turn| {
            listener.fit_backlog(max_per_turn, &mut kernel);
            listener.length()
        };
        // A change of at most a fifth is skipped.
        assert_eq!([Some(80), Some(79)].map(&mut fit), [100, 79]);
        assert_eq!([Some(94), Some(95)].map(&mut fit), [79, 95]);
        // The backlog never exceeds the configured length. Without a limit it returns exactly to it.
        assert_eq!([Some(1_000), None].map(&mut fit), [95, 100]);
        let listener = listener.take().unwrap();
        kernel.host_mut().close_unused(listener);
    }
}
