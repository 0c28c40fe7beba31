//! One listener as the driver sees it.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use shared_ring::{Fd, Host, Op, OpKind, Socket, Submit, Token};

use super::close::close;
use crate::AcceptPolicy;

/// A listener and whether it accepts.
#[derive(Debug)]
pub(crate) struct ListenerState {
    index: u32,
    /// Until it is to be closed.
    socket: Option<Socket>,
    /// What the application wants.
    off: bool,
    per_turn: Option<NonZeroU16>,
    /// What may be accepted in a turn at most, as long as there are too many.
    max_per_turn: Option<NonZeroU16>,
    /// The length of its queue as it is wanted, and as it is.
    wanted_backlog: u32,
    length: u32,
    /// An accept is in flight.
    pub(crate) accepting: bool,
    cancelled: bool,
    /// No connection can be taken before this, unless one ends.
    retry: Option<Instant>,
    closed: bool,
}

impl ListenerState {
    /// How long a listener rests when the machine has no descriptor left, unless a connection
    /// ends before.
    const RETRY_INTERVAL: Duration = Duration::from_millis(100);

    /// A listener whose queue has this length.
    pub(crate) fn new(index: u32, socket: Socket, length: u32) -> Self {
        ListenerState {
            index,
            socket: Some(socket),
            off: false,
            per_turn: None,
            max_per_turn: None,
            wanted_backlog: length,
            length,
            accepting: false,
            cancelled: false,
            retry: None,
            closed: false,
        }
    }

    fn token(&self) -> Token {
        Token::new(OpKind::Accept, self.index, 0)
    }

    /// The listener, until it is to be closed.
    pub(crate) fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// Takes the listener, to close it; no accept is in flight.
    pub(crate) fn take(&mut self) -> Option<Socket> {
        self.socket.take()
    }

    /// The number of the listener, to accept from it.
    fn fd(&self) -> Option<Fd> {
        // SAFETY: the listener is taken to be closed by `close`, when no accept is in flight (`accepting`), by
        // `Io::drop`, behind `Submit::finish`, or by `listeners`, before there is an accept. Nothing keeps the
        // number beyond the accept that it was asked for.
        self.socket.as_ref().map(|socket| unsafe { socket.fd() })
    }

    /// When to try again.
    pub(crate) fn retry(&self) -> Option<Instant> {
        self.retry.filter(|_| self.socket.is_some() && !self.off)
    }

    /// Does what the application wants.
    pub(crate) fn admit<K: Submit>(&mut self, how: AcceptPolicy, kernel: &mut K) {
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
                self.wanted_backlog = length;
                self.set_length(length, kernel);
                return;
            }
        }
        // The accept in flight may differ from what is wanted now; the next one will not.
        self.cancel_accept(kernel);
    }

    /// Accepts no more than this in a turn, whatever the application wants.
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

    /// Lets no more than so many wait in its queue; without a number as many as are wanted. A length that
    /// is nearly right is let be.
    pub(crate) fn fit_backlog<K: Submit>(&mut self, max: Option<u32>, kernel: &mut K) {
        let length = max.map_or(self.wanted_backlog, |max| max.min(self.wanted_backlog));
        let is_near = length.abs_diff(self.length) <= self.length / 5 && max.is_some();
        if length != self.length && !is_near {
            self.set_length(length, kernel);
        }
    }

    fn set_length<K: Submit>(&mut self, length: u32, kernel: &mut K) {
        let Some(socket) = &self.socket else { return };
        self.length = length;
        // The length is clamped by the system.
        let _ = kernel.host_mut().backlog(socket, length);
    }

    /// Whether the application wants no connections.
    pub(crate) fn is_off(&self) -> bool {
        self.off
    }

    /// The length of its queue.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// The most connections to accept in a turn.
    fn per_turn_limit(&self) -> Option<NonZeroU16> {
        match (self.per_turn, self.max_per_turn) {
            (Some(wanted), Some(max_per_turn)) => Some(wanted.min(max_per_turn)),
            (wanted, max_per_turn) => wanted.or(max_per_turn),
        }
    }

    /// Ends the accept in flight; whether there was one to end.
    pub(crate) fn cancel_accept<K: Submit>(&mut self, kernel: &mut K) -> bool {
        let pause = self.accepting && !self.cancelled;
        if pause {
            self.cancelled = true;
            kernel.cancel(self.token());
        }
        pause
    }

    /// Lets the listener rest after a failure.
    pub(crate) fn pause_until_retry(&mut self, now: Instant) {
        self.retry = Some(now + Self::RETRY_INTERVAL);
    }

    /// A descriptor or a slot has become free.
    pub(crate) fn clear_retry(&mut self) {
        self.retry = None;
    }

    /// Notes that the accept in flight has ended.
    pub(crate) fn ended(&mut self) {
        self.accepting = false;
        self.cancelled = false;
    }

    /// Accepts, if that is wanted and not being done.
    pub(crate) fn resume<K: Submit>(&mut self, kernel: &mut K, now: Instant) {
        let resting = self.retry.is_some_and(|at| at > now);
        let Some(listener) = self.fd() else { return };
        if self.off || self.accepting || resting {
            return;
        }
        self.retry = None;
        let op = Op::Accept { listener, per_turn: self.per_turn_limit() };
        match kernel.submit(self.token(), op) {
            Ok(_) => self.accepting = true,
            Err(_) => self.pause_until_retry(now),
        }
    }

    /// Closes the listener, once no accept is in flight. The close takes the accept's name.
    pub(crate) fn close<K: Submit>(&mut self, kernel: &mut K) {
        if self.accepting {
            self.cancel_accept(kernel);
        } else if let Some(socket) = self.take() {
            self.closed = close(kernel, self.token(), socket);
        }
    }

    /// Notes that the listener is closed.
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
    use shared_ring::{BufferSizes, Engine, EngineConfig, ListenOptions};

    use super::*;

    /// A kernel with a listener whose queue has 100 places.
    fn listening() -> (Engine<Poll>, ListenerState) {
        let config = EngineConfig { operations: 1, buffers: 1, buffer_size: 1 };
        let mut kernel = Engine::new(Poll::default(), &config).unwrap();
        let options =
            ListenOptions { backlog: 100, reuse_port: false, buffers: BufferSizes::default() };
        let address = "127.0.0.1:0".parse().unwrap();
        let (listener, _) = kernel.host_mut().listen(address, &options).unwrap();
        (kernel, ListenerState::new(0, listener, 100))
    }

    #[test]
    fn a_listener_that_rests_tries_again_unless_it_is_off_or_closed() {
        let (mut kernel, mut listener) = listening();
        let now = kernel.now();
        let later = now + ListenerState::RETRY_INTERVAL;
        assert_eq!(listener.retry(), None);
        listener.pause_until_retry(now);
        assert_eq!(listener.retry(), Some(later));
        listener.admit(AcceptPolicy::Off, &mut kernel);
        assert_eq!(listener.retry(), None);
        listener.admit(AcceptPolicy::All, &mut kernel);
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
    fn a_queue_that_is_nearly_right_is_let_be() {
        let (mut kernel, mut listener) = listening();
        let mut fit = |max_per_turn| {
            listener.fit_backlog(max_per_turn, &mut kernel);
            listener.length()
        };
        // A fifth more or less.
        assert_eq!([Some(80), Some(79)].map(&mut fit), [100, 79]);
        assert_eq!([Some(94), Some(95)].map(&mut fit), [79, 95]);
        // Never more than is wanted; and all of that, however near, once there is no bound.
        assert_eq!([Some(1_000), None].map(&mut fit), [95, 100]);
        let listener = listener.take().unwrap();
        kernel.host_mut().close_unused(listener);
    }
}
