//! What the application has queued, on its way out.

use shared_ring::{Errno, Fd, Gather, Host, Kind, Op, Outcome, Posted, Submit, Token};

use super::Driver;
use super::link::{Flags, Item, Link, Phase};
use crate::{Application, Close, LOW_WATER, Why};

/// The most bytes of a file that one operation sends, so that progress can be seen.
const FILE_PIECE: u64 = 256 * 1024;

/// The most operations that a connection sends by in one turn, if they are done at once.
const SENDS: u32 = 4;

/// Takes the next thing to send from the queue. A file stays there until it is sent.
#[inline]
fn next_send(link: &mut Link, fd: Fd) -> Option<Op> {
    if let Item::File(file, range) = link.queue.front()? {
        let len = (range.end - range.start).min(FILE_PIECE) as u32;
        return Some(Op::SendFile { fd, file: file.clone(), offset: range.start, len });
    }
    link.take_list().map(|data| Op::Send { fd, data })
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Sends what is queued, as far as it goes at once; the rest when there is room, or in the
    /// next turn.
    pub(super) fn send(&mut self, slot: u32) {
        for _ in 0..SENDS {
            let link = self.io.link(slot);
            let (false, Some(fd)) = (link.has(Flags::SENDING), link.fd()) else { return };
            let Some(op) = next_send(link, fd) else { return self.all_sent(slot) };
            let token = Token::new(Kind::Send, slot, link.generation);
            match self.io.kernel.submit(token, op) {
                Ok(Posted::InFlight) => self.io.link(slot).flags |= Flags::SENDING,
                Ok(Posted::Done(Outcome::Sent(list, n))) => self.sent(slot, list, n),
                Ok(Posted::Done(Outcome::SentFile(n))) => self.sent_file(slot, n.into()),
                Ok(Posted::Done(Outcome::Failed(errno, list))) => {
                    return self.failed(slot, Kind::Send, errno, list);
                }
                Ok(Posted::Done(other)) => unreachable!("not the end of a send: {other:?}"),
                Err(_) => return self.end(slot, Why::Failed(Errno::NOBUFS.into())),
            }
        }
        self.io.call_again(slot);
    }

    #[inline]
    pub(super) fn sent(&mut self, slot: u32, list: Box<Gather>, n: usize) {
        let link = self.io.link(slot);
        link.note_sent(n);
        self.progress(slot);
        let link = self.io.link(slot);
        if link.phase == Phase::Ending || list.is_empty() {
            self.io.recycle(list);
        } else {
            link.queue.push_front(Item::Memory(list));
        }
    }

    pub(super) fn sent_file(&mut self, slot: u32, n: u64) {
        let link = self.io.link(slot);
        if link.phase == Phase::Ending {
            return;
        }
        if let Some(Item::File(_, range)) = link.queue.front_mut() {
            range.start += n;
            if range.is_empty() {
                link.queue.pop_front();
            } else if n == 0 {
                return self.end(slot, Why::Truncated);
            }
        }
        self.progress(slot);
    }

    /// Something was sent; there may be room again.
    #[inline]
    fn progress(&mut self, slot: u32) {
        let link = self.io.link(slot);
        if link.has(Flags::HIGH) && link.load() <= LOW_WATER {
            self.io.call_again(slot);
        }
    }

    /// The queue is empty: goes on with a close that waited for that.
    pub(super) fn all_sent(&mut self, slot: u32) {
        let link = self.io.link(slot);
        if let Some(how) = link.close {
            self.go_on_closing(slot, how);
        }
    }

    fn go_on_closing(&mut self, slot: u32, how: Close) {
        let link = &mut self.io.links[slot as usize];
        if how != Close::Flush && !link.has(Flags::SHUT) {
            link.flags |= Flags::SHUT;
            if let Some(socket) = &link.socket {
                self.io.kernel.host_mut().shutdown(socket);
            }
        }
        let link = self.io.link(slot);
        // Bytes that the application left while paused are still to come again.
        let waits = link.has(Flags::RESUMED) || link.has(Flags::PAUSED) && !link.tail.is_empty();
        let heard_out = link.has(Flags::TOLD) && !waits;
        match how {
            Close::Flush => self.end(slot, Why::Closed),
            Close::Half if heard_out => self.end(slot, Why::Closed),
            Close::Linger if link.has(Flags::EOF) => self.end(slot, Why::Closed),
            Close::Linger if link.phase == Phase::Flushing => {
                link.phase = Phase::Lingering;
                self.io.set_timer(slot, self.io.config.linger);
            }
            _ => {}
        }
    }
}
