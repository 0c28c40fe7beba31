//! Sending of queued bytes.

use shared_ring::{Errno, Fd, GatherList, Host, Op, OpKind, Outcome, Submit, Submitted, Token};

use super::Driver;
use super::connection::{ConnFlags, Connection, Phase, SendItem};
use crate::{Application, Close, CloseReason, LOW_WATER};

/// Maximum number of file bytes per operation, so that progress is visible.
const FILE_PIECE: u64 = 256 * 1024;

/// Maximum number of sends per connection and turn if they complete at once.
const SENDS: u32 = 4;

/// Takes the next item to send from the queue. A file stays there until it is sent.
#[inline]
fn next_send(connection: &mut Connection, fd: Fd) -> Option<Op> {
    if let SendItem::File(file, range) = connection.queue.front()? {
        let len = (range.end - range.start).min(FILE_PIECE) as u32;
        return Some(Op::SendFile { fd, file: file.clone(), offset: range.start, len });
    }
    connection.take_list().map(|data| Op::Send { fd, data })
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Sends queued bytes while sends complete at once; the remaining ones when the socket is writable, or
    /// in the next turn.
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
                Ok(Submitted::Done(other)) => unreachable!("a send cannot end with {other:?}"),
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

    /// Schedules a revisit if the queue has drained.
    #[inline]
    fn progress(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        if connection.has(ConnFlags::ABOVE_HIGH_WATER) && connection.load() <= LOW_WATER {
            self.io.schedule_revisit(slot);
        }
    }

    /// Continues a close that waited for the empty queue.
    pub(super) fn all_sent(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        if let Some(how) = connection.close {
            self.continue_closing(slot, how);
        }
    }

    fn continue_closing(&mut self, slot: u32, how: Close) {
        let connection = &mut self.io.connections[slot as usize];
        if how != Close::Flush && !connection.has(ConnFlags::SHUT_DOWN) {
            connection.flags |= ConnFlags::SHUT_DOWN;
            if let Some(socket) = &connection.socket {
                self.io.kernel.host_mut().shutdown(socket);
            }
        }
        let connection = self.io.connection(slot);
        // The application will get the bytes left during a pause.
        let has_unread = connection.has(ConnFlags::RESUMED)
            || connection.has(ConnFlags::PAUSED) && !connection.tail.is_empty();
        let eof_delivered = connection.has(ConnFlags::EOF_NOTIFIED) && !has_unread;
        match how {
            Close::Flush => self.end(slot, CloseReason::Closed),
            Close::Half if eof_delivered => self.end(slot, CloseReason::Closed),
            Close::Linger if connection.has(ConnFlags::EOF) => self.end(slot, CloseReason::Closed),
            Close::Linger if connection.phase == Phase::Flushing => {
                connection.phase = Phase::Lingering;
                self.io.set_timer(slot, self.io.config.linger_timeout);
            }
            _ => {}
        }
    }
}
