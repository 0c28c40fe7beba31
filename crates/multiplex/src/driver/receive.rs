//! Received bytes on their way to the application.

use std::mem;

use shared_ring::{Errno, Kind, Op, RxBuf, Submit};

use super::Driver;
use super::link::{Flags, Phase};
use crate::{Application, Cx, Rx, Tail, Why};

impl<K: Submit, A: Application> Driver<K, A> {
    #[inline]
    pub(super) fn received(&mut self, slot: u32, bytes: RxBuf) {
        let link = self.io.link(slot);
        if link.has(Flags::UNSERVED) {
            self.io.serves(slot);
        }
        let link = self.io.link(slot);
        if !link.is_heard() {
            return;
        }
        if link.has(Flags::PAUSED) {
            link.tail.append(&bytes);
            self.io.touch(slot);
            self.cancel_receive(slot);
        } else if link.tail.is_empty() {
            self.offer_buffer(slot, bytes);
        } else {
            self.offer_with_tail(slot, bytes);
        }
        if self.io.link(slot).has(Flags::QUIESCING) {
            self.io.touch(slot);
        }
    }

    /// Shows the application a buffer in place, and keeps what it leaves.
    #[inline]
    pub(super) fn offer_buffer(&mut self, slot: u32, bytes: RxBuf) {
        self.io.stats.received += 1;
        let mut rx = Rx::buffer(bytes, false);
        call!(self, slot, received, &mut rx);
        let rest = rx.bytes();
        if !rest.is_empty() && self.io.link(slot).is_heard() {
            let mut tail = self.io.spare_tail();
            tail.append(rest);
            self.keep_tail(slot, tail);
        }
    }

    /// Appends to what was left, as much as fits at a time, and shows that.
    pub(super) fn offer_with_tail(&mut self, slot: u32, mut bytes: RxBuf) {
        while !bytes.is_empty() && self.io.link(slot).is_heard() {
            let link = self.io.link(slot);
            if link.tail.is_empty() && !link.has(Flags::PAUSED) {
                return self.offer_buffer(slot, bytes);
            }
            let room = match link.has(Flags::PAUSED) {
                true => bytes.len(),
                false => A::MAX_UNCONSUMED.saturating_sub(link.tail.len()).min(bytes.len()),
            };
            link.tail.append(&bytes[..room]);
            bytes.advance(room);
            if !link.has(Flags::PAUSED) {
                self.offer_tail(slot);
            }
        }
    }

    /// Shows the application what it has left before, and with it the end if that has come.
    pub(super) fn offer_tail(&mut self, slot: u32) {
        self.io.stats.received += 1;
        let link = self.io.link(slot);
        let eof = link.has(Flags::EOF);
        link.flags.set(Flags::TOLD, eof);
        let mut tail = mem::take(&mut link.tail);
        let mut rx = Rx::borrowed(tail.bytes_mut(), eof);
        call!(self, slot, received, &mut rx);
        let remaining = rx.bytes().len();
        tail.keep_last(remaining);
        self.keep_tail(slot, tail);
        if eof {
            // With the other half closed before, this was the last thing to do.
            self.io.touch(slot);
        }
    }

    /// Keeps what the application has left, if it still wants it and keeps to its bound.
    pub(super) fn keep_tail(&mut self, slot: u32, tail: Tail) {
        let link = self.io.link(slot);
        let paused = link.has(Flags::PAUSED);
        let over = link.has(Flags::EOF) && !paused;
        if !link.is_heard() || tail.is_empty() || over {
            self.io.recycle_tail(tail);
            // It holds less than it was counted for.
            self.io.touch(slot);
        } else if tail.len() >= A::MAX_UNCONSUMED && !paused {
            self.io.stats.overruns += 1;
            self.end(slot, Why::Overrun);
        } else {
            link.tail = tail;
            self.io.touch(slot);
        }
    }

    pub(super) fn eof(&mut self, slot: u32) {
        let link = self.io.link(slot);
        link.flags |= Flags::EOF;
        match link.phase {
            Phase::Lingering => self.end(slot, Why::Closed),
            Phase::Open if link.is_heard() && !link.has(Flags::PAUSED) => self.offer_tail(slot),
            _ => {}
        }
    }

    /// Receives, if that is wanted and not being done. While much is left since a pause, the application
    /// sees that first: else each resume would add to it.
    pub(super) fn receive(&mut self, slot: u32) {
        let link = self.io.link(slot);
        if link.flags.intersects(Flags::RECEIVING | Flags::EOF) {
            if link.has(Flags::PAUSED) && link.tail.len() >= A::MAX_UNCONSUMED {
                self.cancel_receive(slot);
            }
            return;
        }
        let wanted = match link.phase {
            Phase::Open if link.has(Flags::PAUSED) => false,
            Phase::Open => !link.has(Flags::RESUMED) || link.tail.len() < A::MAX_UNCONSUMED,
            Phase::Lingering => true,
            _ => false,
        };
        let (true, Some(fd)) = (wanted, link.fd()) else { return };
        link.flags |= Flags::RECEIVING;
        let token = self.io.token(Kind::Receive, slot);
        if self.io.kernel.submit(token, Op::Receive { fd }).is_err() {
            self.io.link(slot).flags -= Flags::RECEIVING;
            self.end(slot, Why::Failed(Errno::NOBUFS.into()));
        }
    }

    pub(super) fn cancel_receive(&mut self, slot: u32) {
        let token = self.io.token(Kind::Receive, slot);
        let link = self.io.link(slot);
        if link.has(Flags::RECEIVING) && !link.has(Flags::CANCELLED) {
            link.flags |= Flags::CANCELLED;
            self.io.kernel.cancel(token);
        }
    }
}
