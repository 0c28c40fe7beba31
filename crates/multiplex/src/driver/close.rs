//! The end of a connection, by the application or by the peer.

use std::mem;
use std::time::Duration;

use shared_ring::{Errno, Gather, Host, Kind, Op, Posted, Socket, Submit, Token};

use super::Driver;
use super::link::{Flags, Phase};
use crate::{Application, Close, Commands, Cx, Why};

/// When what is left is looked at first. Most connections have ended before.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// Closes a socket for which nothing is in flight; whether it is closed already.
pub(super) fn close<K: Submit>(kernel: &mut K, token: Token, socket: Socket) -> bool {
    match kernel.submit(token, Op::Close { socket }) {
        Ok(Posted::InFlight) => false,
        Ok(Posted::Done(_)) => true,
        Err(refused) => {
            if let Op::Close { socket } = refused.op {
                kernel.host_mut().discard(socket);
            }
            true
        }
    }
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Begins the close that was asked for.
    pub(super) fn begin_close(&mut self, slot: u32) {
        let link = self.io.link(slot);
        match (link.phase, link.close) {
            (
                Phase::Connecting | Phase::Open | Phase::Flushing | Phase::Lingering,
                Some(Close::Reset),
            ) => {
                self.io.reset_on_close(slot);
                self.end(slot, Why::Closed);
            }
            (Phase::Connecting, Some(Close::Flush | Close::Linger)) if link.queue.is_empty() => {
                self.end(slot, Why::Closed);
            }
            (Phase::Open, Some(Close::Flush | Close::Linger)) => {
                link.phase = Phase::Flushing;
                let tail = mem::take(&mut link.tail);
                self.io.recycle_tail(tail);
                self.io.set_timer(slot, FIRST_LOOK.min(self.io.config.stall));
            }
            _ => {}
        }
    }

    pub(super) fn failed(
        &mut self,
        slot: u32,
        kind: Kind,
        errno: Errno,
        list: Option<Box<Gather>>,
    ) {
        if let Some(list) = list {
            self.io.link(slot).note_sent(list.len());
            self.io.recycle(list);
        }
        let link = self.io.link(slot);
        match kind {
            _ if link.phase == Phase::Ending => {}
            // A pause that came to nothing or has done its work.
            Kind::Receive if errno == Errno::CANCELED => {}
            Kind::Receive if link.phase == Phase::Lingering => self.end(slot, Why::Closed),
            _ => self.lost(slot, errno),
        }
    }

    /// The connection broke, or never came to be.
    pub(super) fn lost(&mut self, slot: u32, errno: Errno) {
        if self.io.link(slot).phase == Phase::Connecting {
            self.io.link(slot).why = Some(Why::Failed(errno.into()));
            self.io.call_again(slot);
        } else {
            self.end(slot, Why::Failed(errno.into()));
        }
    }

    /// Tells the application that a connect has failed.
    pub(super) fn not_connected(&mut self, slot: u32, why: Why) {
        let errno = match &why {
            Why::Failed(error) => error.raw_os_error().unwrap_or(0),
            _ => 0,
        };
        if matches!(self.io.link(slot).close, None | Some(Close::Half)) {
            call!(self, slot, connected, Err(std::io::Error::from_raw_os_error(errno)));
        }
        self.end(slot, why);
    }

    /// Sees to it that the peer takes what is left fast enough; the first time only how much that is.
    pub(super) fn look_at_flush(&mut self, slot: u32) {
        let unsent = self.io.unsent(self.io.conn(slot));
        let before = self.io.link(slot).unsent.replace(unsent);
        let least = self.io.config.least();
        if before.is_some_and(|before| u128::from(before.saturating_sub(unsent)) < least) {
            return self.stalled(slot);
        }
        self.io.set_timer(slot, self.io.config.stall);
    }

    /// The peer does not take what is left to be sent. A reset tells it that this is not the end.
    fn stalled(&mut self, slot: u32) {
        self.io.reset_on_close(slot);
        self.end(slot, Why::Failed(Errno::TIMEDOUT.into()));
    }

    /// Begins the end of a connection: nothing more is sent, what is in flight is cancelled.
    pub(super) fn end(&mut self, slot: u32, why: Why) {
        let link = self.io.link(slot);
        if matches!(link.phase, Phase::Ending | Phase::Vacant) {
            return;
        }
        link.phase = Phase::Ending;
        link.why = Some(why);
        let tail = mem::take(&mut link.tail);
        self.io.recycle_tail(tail);
        self.io.drop_queue(slot);
        self.io.wheel.clear(slot);
        self.cancel_receive(slot);
        for (flag, kind) in [(Flags::SENDING, Kind::Send), (Flags::CHANGING, Kind::Connect)] {
            if self.io.link(slot).has(flag) {
                let token = self.io.token(kind, slot);
                self.io.kernel.cancel(token);
            }
        }
        self.io.touch(slot);
    }

    /// Closes the descriptor of an ending connection once nothing is in flight for it.
    pub(super) fn finish(&mut self, slot: u32) {
        let token = self.io.token(Kind::Close, slot);
        let link = self.io.link(slot);
        if link.is_busy() {
            return;
        }
        let Some(socket) = link.socket.take() else { return self.closed(slot) };
        if close(&mut self.io.kernel, token, socket) {
            self.closed(slot);
        } else {
            self.io.link(slot).flags |= Flags::CHANGING;
        }
    }

    pub(super) fn closed(&mut self, slot: u32) {
        if self.io.link(slot).has(Flags::UNSERVED) {
            // It has said nothing; who knows for what it came.
            self.io.serves(slot);
        }
        let why = self.io.link(slot).why.take().unwrap_or(Why::Closed);
        call!(self, slot, closed, why);
        *self.states.at(slot as usize) = A::State::default();
        self.io.vacate(slot);
        self.io.stats.closed += 1;
        for gate in &mut self.io.gates {
            gate.room();
        }
        if self.io.load.lets_in().is_none() {
            self.let_in(1);
        }
    }
}
