//! What the application has queued, on its way out.

use shared_ring::{Errno, Fd, GatherList, Host, Op, OpKind, Outcome, Submit, Submitted, Token};

use super::Driver;
use super::connection::{ConnFlags, Connection, Phase, SendItem};
use crate::{Application, Close, CloseReason, LOW_WATER};

/// The most bytes of a file that one operation sends, so that progress can be seen.
const FILE_PIECE: u64 = 256 * 1024;

/// The most operations that a connection sends by in one turn, if they are done at once.
const SENDS: u32 = 4;

/// Takes the next thing to send from the queue. A file stays there until it is sent.
#[inline]
fn next_send(connection: &mut Connection, fd: Fd) -> Option<Op> {
    if let SendItem::File(file, range) = connection.queue.front()? {
        let len = (range.end - range.start).min(FILE_PIECE) as u32;
        return Some(Op::SendFile { fd, file: file.clone(), offset: range.start, len });
    }
    connection.take_list().map(|data| Op::Send { fd, data })
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Sends what is queued, as far as it goes at once; the rest when there is room, or in the
    /// next turn.
    pub(super) fn send(&mut self, slot: u32) {
        for _ in 0..SENDS {
            let connection = self.io.connection(slot);
            let (false, Some(fd)) = (connection.has(ConnFlags::SENDING), connection.fd()) else {
                return;
            };
            let Some(op) = next_send(connection, fd) else { return self.all_sent(slot) };
            let token = Token::new(OpKind::Send, slot, connection.generation);
            match self.io.kernel.submit(token, op) {
                Ok(Submitted::InFlight) => self.io.connection(slot).flags |= ConnFlags::SENDING,
                Ok(Submitted::Done(Outcome::Sent(list, n))) => self.sent(slot, list, n),
                Ok(Submitted::Done(Outcome::SentFile(n))) => self.sent_file(slot, n.into()),
                Ok(Submitted::Done(Outcome::Failed(errno, list))) => {
                    return self.failed(slot, OpKind::Send, errno, list);
                }
                Ok(Submitted::Done(other)) => unreachable!("not the end of a send: {other:?}"),
                Err(_) => return self.end(slot, CloseReason::Failed(Errno::NOBUFS.into())),
            }
        }
        self.io.schedule_revisit(slot);
    }

    #[inline]
    pub(super) fn sent(&mut self, slot: u32, list: Box<GatherList>, n: usize) {
        let connection = self.io.connection(slot);
        connection.note_sent(n);
        self.progress(slot);
        let connection = self.io.connection(slot);
        if connection.phase == Phase::Ending || list.is_empty() {
            self.io.recycle(list);
        } else {
            connection.queue.push_front(SendItem::Memory(list));
        }
    }

    pub(super) fn sent_file(&mut self, slot: u32, n: u64) {
        let connection = self.io.connection(slot);
        if connection.phase == Phase::Ending {
            return;
        }
        if let Some(SendItem::File(_, range)) = connection.queue.front_mut() {
            range.start += n;
            if range.is_empty() {
                connection.queue.pop_front();
            } else if n == 0 {
                return self.end(slot, CloseReason::Truncated);
            }
        }
        self.progress(slot);
    }

    /// Something was sent; there may be room again.
    #[inline]
    fn progress(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        if connection.has(ConnFlags::ABOVE_HIGH_WATER) && connection.load() <= LOW_WATER {
            self.io.schedule_revisit(slot);
        }
    }

    /// The queue is empty: goes on with a close that waited for that.
    pub(super) fn all_sent(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        if let Some(how) = connection.close {
            self.go_on_closing(slot, how);
        }
    }

    fn go_on_closing(&mut self, slot: u32, how: Close) {
        let connection = &mut self.io.connections[slot as usize];
        if how != Close::Flush && !connection.has(ConnFlags::SHUT_DOWN) {
            connection.flags |= ConnFlags::SHUT_DOWN;
            if let Some(socket) = &connection.socket {
                self.io.kernel.host_mut().shutdown(socket);
            }
        }
        let connection = self.io.connection(slot);
        // Bytes that the application left while paused are still to come again.
        let waits = connection.has(ConnFlags::RESUMED)
            || connection.has(ConnFlags::PAUSED) && !connection.tail.is_empty();
        let heard_out = connection.has(ConnFlags::EOF_NOTIFIED) && !waits;
        match how {
            Close::Flush => self.end(slot, CloseReason::Closed),
            Close::Half if heard_out => self.end(slot, CloseReason::Closed),
            Close::Linger if connection.has(ConnFlags::EOF) => self.end(slot, CloseReason::Closed),
            Close::Linger if connection.phase == Phase::Flushing => {
                connection.phase = Phase::Lingering;
                self.io.set_timer(slot, self.io.config.linger_timeout);
            }
            _ => {}
        }
    }
}
