//! Delivery of received bytes to the application.

use std::mem;

use shared_ring::buffers::RxBuf;
use shared_ring::{Errno, Op, OpKind, Submit};

use super::Driver;
use super::connection::{ConnFlags, Phase};
use crate::{Application, CloseReason, Cx, Rx, Tail};

impl<K: Submit, A: Application> Driver<K, A> {
    #[inline]
    pub(super) fn received(&mut self, slot: u32, bytes: RxBuf) {
        let connection = self.io.connection(slot);
        let (flags, app_reads) = (connection.flags, connection.app_reads());
        if flags.contains(ConnFlags::UNSERVED) {
            self.io.note_first_service(slot);
        }
        if app_reads {
            if flags.contains(ConnFlags::QUIESCING) {
                self.io.mark_dirty(slot);
            }
            self.offer(slot, bytes);
        }
    }

    /// Passes a buffer to the application, which may intercept it.
    // Inlined, so that the buffer is not copied from call to call.
    #[inline(always)]
    fn offer(&mut self, slot: u32, bytes: RxBuf) {
        if !A::INTERCEPTS {
            self.deliver(slot, bytes);
        } else if let Some(rest) = self.intercept(slot, bytes) {
            self.deliver(slot, rest);
        }
    }

    /// Lets the application intercept a message, unless it has the beginning of it or works on another one, or a hook holds
    /// the connection. Returns the rest.
    #[inline]
    fn intercept(&mut self, slot: u32, bytes: RxBuf) -> Option<RxBuf> {
        let connection = self.io.connection(slot);
        if !connection.tail.is_empty() || connection.has(ConnFlags::HELD) {
            return Some(bytes);
        }
        let id = self.io.conn(slot);
        if self.app.has_message(id, self.states.at(slot)) {
            return Some(bytes);
        }
        let mut rx = Rx::buffer(bytes, false);
        self.app.intercept(&mut self.io, id, &mut rx);
        rx.into_buffer().filter(|rest| !rest.is_empty() && self.io.connection(slot).app_reads())
    }

    #[inline(always)]
    fn deliver(&mut self, slot: u32, bytes: RxBuf) {
        let connection = self.io.connection(slot);
        if connection.is_paused() {
            self.io.append_to_tail(slot, &bytes);
            self.io.mark_dirty(slot);
            self.cancel_receive(slot);
        } else if connection.tail.is_empty() {
            self.offer_buffer(slot, bytes);
        } else {
            self.offer_with_tail(slot, bytes);
        }
    }

    /// Passes a buffer to the application in place and keeps the unconsumed bytes.
    #[inline(always)]
    pub(super) fn offer_buffer(&mut self, slot: u32, bytes: RxBuf) {
        self.io.stats.received += 1;
        let mut rx = Rx::buffer(bytes, false);
        call!(self, slot, received, &mut rx);
        let remaining = rx.bytes();
        if !remaining.is_empty() && self.io.connection(slot).app_reads() {
            let mut tail = self.io.spare_tail();
            tail.append(remaining);
            self.keep_tail(slot, tail);
        }
    }

    /// The same as `offer`, for bytes behind those that the application has taken at last.
    #[cold]
    fn offer_again(&mut self, slot: u32, bytes: RxBuf) {
        self.offer(slot, bytes);
    }

    /// Appends to the unconsumed bytes, as much as fits at a time, and passes them.
    pub(super) fn offer_with_tail(&mut self, slot: u32, mut bytes: RxBuf) {
        while !bytes.is_empty() && self.io.connection(slot).app_reads() {
            let connection = self.io.connection(slot);
            if connection.tail.is_empty() && !connection.is_paused() {
                return self.offer_again(slot, bytes);
            }
            let room = match connection.is_paused() {
                true => bytes.len(),
                false => A::MAX_UNCONSUMED.saturating_sub(connection.tail.len()).min(bytes.len()),
            };
            self.io.append_to_tail(slot, &bytes[..room]);
            bytes.advance(room);
            if !self.io.connection(slot).is_paused() {
                self.offer_tail(slot);
            }
        }
    }

    /// Passes the unconsumed bytes to the application, with the end of the stream if reached.
    pub(super) fn offer_tail(&mut self, slot: u32) {
        self.io.stats.received += 1;
        let connection = self.io.connection(slot);
        let eof = connection.has(ConnFlags::EOF);
        connection.flags.set(ConnFlags::EOF_NOTIFIED, eof);
        let mut tail = mem::take(&mut connection.tail);
        let mut rx = Rx::borrowed(tail.bytes_mut(), eof);
        call!(self, slot, received, &mut rx);
        let remaining = rx.bytes().len();
        tail.keep_last(remaining);
        self.keep_tail(slot, tail);
        if eof {
            // If the sending side is shut down, the connection can close now.
            self.io.mark_dirty(slot);
        }
    }

    /// Keeps the unconsumed bytes if the application still reads and stays within its limit.
    pub(super) fn keep_tail(&mut self, slot: u32, tail: Tail) {
        let connection = self.io.connection(slot);
        let paused = connection.is_paused();
        let ended = connection.has(ConnFlags::EOF) && !paused;
        if !connection.app_reads() || tail.is_empty() || ended {
            self.io.recycle_tail(tail);
            // The connection holds less memory than counted.
            self.io.mark_dirty(slot);
        } else if tail.len() >= A::MAX_UNCONSUMED && !paused {
            self.io.stats.overruns += 1;
            self.end(slot, CloseReason::Overrun);
        } else {
            connection.tail = tail;
            self.io.mark_dirty(slot);
        }
    }

    pub(super) fn eof(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        connection.flags |= ConnFlags::EOF;
        match connection.phase {
            Phase::Lingering => self.end(slot, CloseReason::Closed),
            Phase::Open if connection.app_reads() && !connection.is_paused() => {
                self.offer_tail(slot)
            }
            _ => {}
        }
    }

    /// Submits a receive if none is in flight and the application reads. After a pause, the application
    /// first gets the bytes left: otherwise each resume would add to them.
    pub(super) fn receive(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        if connection.flags.intersects(ConnFlags::RECEIVING | ConnFlags::EOF) {
            if connection.is_paused() && connection.tail.len() >= A::MAX_UNCONSUMED {
                self.cancel_receive(slot);
            }
            return;
        }
        let wanted = match connection.phase {
            Phase::Open if connection.is_paused() => false,
            Phase::Open => {
                !connection.has(ConnFlags::RESUMED) || connection.tail.len() < A::MAX_UNCONSUMED
            }
            Phase::Lingering => true,
            _ => false,
        };
        let (true, Some(fd)) = (wanted, connection.fd()) else { return };
        connection.flags |= ConnFlags::RECEIVING | ConnFlags::GROUP_FIXED;
        let group = connection.group;
        let token = self.io.token(OpKind::Receive, slot);
        if self.io.kernel.submit(token, Op::Receive { fd, group }).is_err() {
            self.io.connection(slot).flags -= ConnFlags::RECEIVING;
            self.end(slot, CloseReason::Failed(Errno::NOBUFS.into()));
        }
    }

    pub(super) fn cancel_receive(&mut self, slot: u32) {
        let token = self.io.token(OpKind::Receive, slot);
        let connection = self.io.connection(slot);
        if connection.has(ConnFlags::RECEIVING) && !connection.has(ConnFlags::CANCELLED) {
            connection.flags |= ConnFlags::CANCELLED;
            self.io.kernel.cancel(token);
        }
    }
}
