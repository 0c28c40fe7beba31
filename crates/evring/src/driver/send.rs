//! Sending of queued bytes.

use shared_ring::buffers::GatherList;
use shared_ring::files::{Contents, File, FileOutcome};
use shared_ring::{Errno, Fd, Host, Op, OpKind, Outcome, Submit, Submitted, Token, WhenCold};

use super::connection::{ConnFlags, Connection, Phase, QueuedFile, SendItem};
use super::io::changes::LOOK_AGAIN;
use super::{Driver, Io};
use crate::{Application, Close, CloseReason, DefaultSendPolicy, SendResult, SendState, SendStep};

/// Maximum number of steps per connection and turn if they complete at once.
const SENDS: u32 = 4;

/// Maximum number of bytes of a piece of a file. A connection sends so many of files per turn, and less than as many more, so
/// that others wait for less than the time of two pieces.
const MAX_FILE_BYTES: u32 = File::MAX_PIECE_BYTES as u32;

/// The next step of a connection that sends its queue.
enum Next {
    /// Submits this operation.
    Submit(Op),
    /// Goes on with the next step.
    Again,
    /// Submits nothing now: it waits, or is ending.
    Wait,
}

/// Returns the length of a piece of at most `max` bytes, of a kernel that sends up to `longest` at a time. A piece that begins
/// with a block has several, and another one, behind what a socket has taken, ends with its block: a slow client takes
/// less than that, and the file is looked at, and the end of it waited for, at each piece that could be longer.
fn piece_at(start: u64, max: u32, longest: u64) -> u64 {
    const BLOCK: u64 = File::BLOCK_BYTES;
    let aligned_to = if start.is_multiple_of(BLOCK) { longest } else { BLOCK };
    let len = u64::from(max).min(aligned_to - start % aligned_to);
    if len > BLOCK { len - len % BLOCK } else { len }
}

/// Takes the next item to send from the queue. A file stays there until it is sent.
fn next_send(
    connection: &mut Connection,
    fd: Fd,
    (max_file_bytes, longest): (u32, u64),
    when_cold: WhenCold,
) -> Option<Op> {
    if let SendItem::File(QueuedFile { file, left, .. }) = connection.queue.front()? {
        let max = max_file_bytes.clamp(1, MAX_FILE_BYTES);
        let bytes_left = left.end - left.start;
        let len = bytes_left.min(piece_at(left.start, max, longest)) as u32;
        let (file, offset, is_last) = (file.clone(), left.start, bytes_left == u64::from(len));
        let op = Op::SendFile { fd, file, offset, len, is_last, when_cold };
        return Some(op);
    }
    connection.take_list().map(|data| Op::Send { fd, data })
}

/// Returns whether a send of `n` bytes has filled the socket: more was offered, of which these bytes are left. What is left
/// of longer lists may not have been offered.
fn has_filled(n: usize, left: &GatherList) -> bool {
    n < GatherList::MAX_BYTES && left.single().is_some()
}

impl<K: Submit> Io<K> {
    /// Asks the policy for the next step of a connection with something to send.
    fn ask_policy(&mut self, slot: u32) -> SendStep {
        let Some(mut policy) = self.send_policy.take() else { return DefaultSendPolicy::STEP };
        let connection = &self.connections[slot as usize];
        let host = self.kernel.host();
        let unacked_bytes =
            || connection.socket.as_ref().map_or(0, |socket| host.unacked_bytes(socket));
        let state = SendState {
            id: self.conn(slot),
            queued_bytes: connection.queued,
            file_bytes: connection.queue.front().and_then(SendItem::file_bytes_left),
            is_full: connection.has(ConnFlags::SOCKET_FULL),
            now: self.kernel.now(),
            can_read: &|| self.can_read_ahead(slot),
            unacked_bytes: &unacked_bytes,
        };
        let step = policy.next(&state);
        self.send_policy = Some(policy);
        step
    }
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Sends queued bytes while sends complete at once; the remaining ones when the socket is writable, or
    /// in the next turn.
    pub(super) fn send(&mut self, slot: u32) {
        let mut file_bytes = 0;
        for _ in 0..SENDS {
            let policy_decides_memory = self.io.policy_decides_memory;
            let connection = self.io.connection(slot);
            let waits = connection.flags.intersects(ConnFlags::SENDING | ConnFlags::SEND_PAUSED);
            let (false, Some(fd)) = (waits, connection.fd()) else { return };
            if file_bytes >= MAX_FILE_BYTES {
                self.send_no_more_files(slot);
            }
            let connection = self.io.connection(slot);
            if connection.queue.is_empty() {
                return self.all_sent(slot);
            }
            if connection.has(ConnFlags::HAS_SENT_FILES) {
                return;
            }
            let token = Token::new(OpKind::Send, slot, connection.generation);
            let op = if !policy_decides_memory
                && connection.queue.files() == 0
                && let Some(data) = connection.take_list()
            {
                Op::Send { fd, data }
            } else {
                match self.next_step(slot, fd) {
                    Next::Submit(op) => op,
                    Next::Again => continue,
                    Next::Wait => return,
                }
            };
            match self.io.kernel.submit(token, op) {
                Ok(Submitted::InFlight) => {
                    self.io.connection(slot).flags |= ConnFlags::SENDING;
                    return;
                }
                Ok(Submitted::Done(Outcome::Sent(list, n))) => self.sent(slot, list, n),
                Ok(Submitted::Done(Outcome::SentFile { bytes, is_full })) => {
                    self.sent_file(slot, bytes, is_full);
                    file_bytes += bytes;
                }
                Ok(Submitted::Done(Outcome::Cold)) => self.note_send(slot, SendResult::Cold),
                Ok(Submitted::Done(Outcome::Writable)) => self.has_room(slot),
                Ok(Submitted::Done(Outcome::Failed(errno, list))) => {
                    return self.failed(slot, OpKind::Send, errno, list);
                }
                Ok(Submitted::Done(other)) => unreachable!("a send cannot end with {other:?}"),
                Err(_) => return self.end(slot, CloseReason::Failed(Errno::NOBUFS.into())),
            }
        }
        match file_bytes {
            0 if self.io.connection(slot).queue.files() == 0 => self.io.schedule_revisit(slot),
            _ => self.send_no_more_files(slot),
        }
    }

    /// Lets a connection wait for its revisit, so that further completions of this turn do not add to what it sends of files.
    fn send_no_more_files(&mut self, slot: u32) {
        self.io.connection(slot).flags |= ConnFlags::HAS_SENT_FILES;
        self.io.schedule_revisit(slot);
    }

    /// Returns what to do next, as the policy decides.
    fn next_step(&mut self, slot: u32, fd: Fd) -> Next {
        let connection = self.io.connection(slot);
        let is_file = matches!(connection.queue.front(), Some(SendItem::File(..)));
        if connection.is_reading_ahead && is_file {
            // The end of the read continues.
            return Next::Wait;
        }
        let (max_file_bytes, when_cold) = match self.io.ask_policy(slot) {
            SendStep::Send { max_file_bytes } => (max_file_bytes, WhenCold::Read),
            SendStep::SendCached { max_file_bytes } => (max_file_bytes, WhenCold::Report),
            SendStep::Read { max_bytes } if self.io.can_read_ahead(slot) => {
                if let Some(outcome) = self.io.read_ahead(slot, max_bytes)
                    && !self.read_ahead_done(slot, outcome, false)
                {
                    return Next::Wait;
                }
                return Next::Again;
            }
            // A policy that asked for it again and again would keep the driver busy.
            SendStep::Read { .. } => (MAX_FILE_BYTES, WhenCold::Read),
            SendStep::WaitForRoom => return Next::Submit(Op::Writable { fd }),
            SendStep::Pause(time) => {
                self.io.stats.send_pauses += 1;
                self.io.pause_send(slot, time);
                return Next::Wait;
            }
            SendStep::Yield => {
                self.send_no_more_files(slot);
                return Next::Wait;
            }
        };
        let connection = self.io.connection(slot);
        let Some(op) = next_send(connection, fd, (max_file_bytes, K::MAX_PIECE_BYTES), when_cold)
        else {
            return Next::Wait;
        };
        if let Op::SendFile { offset, len, is_last, .. } = op {
            let waits = ConnFlags::SOCKET_FULL
                | if is_last { ConnFlags::MAY_BE_FULL } else { ConnFlags::empty() };
            if connection.flags.intersects(waits) {
                // A send would wait in the kernel, and then send what the file has become since it was looked at.
                return Next::Submit(Op::Writable { fd });
            }
            match self.io.contents_before(slot, offset + u64::from(len)) {
                Contents::Same => {}
                Contents::Changed => {
                    self.end(slot, CloseReason::Truncated);
                    return Next::Wait;
                }
                Contents::Written => {
                    self.io.pause_send(slot, LOOK_AGAIN);
                    return Next::Wait;
                }
            }
        }
        Next::Submit(op)
    }

    /// Reports the result of a step to the policy, unless the connection is ending.
    #[inline]
    pub(super) fn note_send(&mut self, slot: u32, result: SendResult) {
        let id = self.io.conn(slot);
        if let Some(policy) = &mut self.io.send_policy
            && self.io.connections[slot as usize].phase != Phase::Ending
        {
            policy.completed(id, result);
        }
    }

    /// Notes that the socket has room.
    pub(super) fn has_room(&mut self, slot: u32) {
        self.io.connection(slot).flags -= ConnFlags::SOCKET_FULL | ConnFlags::MAY_BE_FULL;
        self.note_send(slot, SendResult::HasRoom);
    }

    #[inline(always)]
    pub(super) fn sent(&mut self, slot: u32, list: Box<GatherList>, n: usize) {
        if self.io.policy_decides_memory {
            self.io.connection(slot).flags.set(ConnFlags::SOCKET_FULL, has_filled(n, &list));
            self.note_send(slot, SendResult::Memory(n));
        }
        let connection = self.io.connection(slot);
        connection.note_sent(n);
        let has_drained = connection.has_drained();
        if connection.phase == Phase::Ending || list.is_empty() {
            self.io.recycle(list);
        } else {
            connection.queue.push_front(SendItem::Memory(list));
        }
        let connection = self.io.connection(slot);
        if let Some(SendItem::File(QueuedFile { is_begun: true, .. })) = connection.queue.front() {
            // Another part follows, and these bytes may have left little room.
            connection.flags |= ConnFlags::MAY_BE_FULL;
        }
        if has_drained {
            self.io.schedule_revisit(slot);
        }
    }

    /// Has a connection serviced whose send in flight has ended, unless it only receives from now on. Then it has only
    /// less memory to count.
    #[inline]
    pub(super) fn send_ended(&mut self, slot: u32) {
        if !self.io.connection(slot).only_receives() {
            return self.io.mark_dirty(slot);
        }
        if self.io.account(slot) {
            self.overrun(slot);
        }
    }

    pub(super) fn sent_file(&mut self, slot: u32, bytes: u32, is_full: bool) {
        self.io.stats.file_sends += 1;
        self.note_send(slot, SendResult::File(bytes));
        let connection = self.io.connection(slot);
        if connection.phase == Phase::Ending {
            connection.queued -= bytes as usize;
            return;
        }
        connection.flags -= ConnFlags::MAY_BE_FULL;
        connection.flags.set(ConnFlags::SOCKET_FULL, is_full);
        if let Some(SendItem::File(queued)) = connection.queue.front_mut() {
            let is_sent = queued.advance(bytes.into());
            if bytes == 0 {
                return self.end(slot, CloseReason::Truncated);
            }
            if !is_sent || connection.queue.has_more_parts() {
                self.io.note_sent_bytes(slot);
            }
            if is_sent {
                self.io.connection(slot).queue.pop_front();
            }
        }
        self.progress(slot);
    }

    /// Queues bytes that were read from the first queued file, in its place. Returns false if the connection ends or pauses
    /// instead.
    pub(super) fn read_ahead_done(&mut self, slot: u32, outcome: Outcome, was_cold: bool) -> bool {
        self.io.connection(slot).is_reading_ahead = false;
        let bytes = match outcome {
            Outcome::File(FileOutcome::Read(bytes)) => bytes,
            Outcome::Failed(errno, _) => {
                self.end(slot, CloseReason::Failed(errno.into()));
                return false;
            }
            other => unreachable!("a read cannot end with {other:?}"),
        };
        let n = bytes.len();
        self.io.stats.read_ahead += u64::from(n > 0);
        let contents = match n {
            0 => Contents::Changed,
            _ => self.io.contents_after_read(slot, &bytes),
        };
        if contents == Contents::Written {
            // The bytes are read again.
            self.io.pause_send(slot, LOOK_AGAIN);
            return false;
        }
        self.note_send(slot, SendResult::Read { bytes: n as u32, was_cold });
        if contents == Contents::Changed {
            self.end(slot, CloseReason::Truncated);
            return false;
        }
        let mut list = self.io.spare_list();
        list.received(bytes);
        let connection = self.io.connection(slot);
        connection.queued += n;
        connection.queue.replace_file_bytes(n as u64, list);
        self.progress(slot);
        true
    }

    /// Schedules a revisit if the queue has drained.
    #[inline]
    fn progress(&mut self, slot: u32) {
        if self.io.connection(slot).has_drained() {
            self.io.schedule_revisit(slot);
        }
    }

    /// Continues a close that waited for the empty queue.
    pub(super) fn all_sent(&mut self, slot: u32) {
        let connection = self.io.connection(slot);
        let close = connection.close;
        if connection.defers_reads {
            self.io.release_reads(slot);
        }
        if let Some(how) = close {
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
        let got_all = how == Close::Half && self.has_got_all(slot);
        let connection = self.io.connection(slot);
        match how {
            Close::Flush => self.end(slot, CloseReason::Closed),
            Close::Half if got_all => self.end(slot, CloseReason::Closed),
            Close::Linger if connection.has(ConnFlags::EOF) => self.end(slot, CloseReason::Closed),
            Close::Linger if connection.phase == Phase::Flushing => {
                connection.phase = Phase::Lingering;
                self.io.set_timer(slot, self.io.config.linger_timeout);
            }
            _ => {}
        }
    }

    /// Returns whether the application has got all bytes and the end. What is left during a pause, it gets afterwards.
    fn has_got_all(&mut self, slot: u32) -> bool {
        let id = self.io.conn(slot);
        let connection = self.io.connection(slot);
        if !connection.has(ConnFlags::EOF_NOTIFIED) || connection.has(ConnFlags::RESUMED) {
            return false;
        }
        !connection.is_paused()
            || connection.tail.is_empty() && !self.app.has_unread(id, self.states.at(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_full_if_bytes_are_left_that_were_offered() {
        let list = |parts: &[&'static [u8]]| {
            let mut list = GatherList::default();
            parts.iter().for_each(|part| list.constant(part));
            list
        };
        let long = [7; 100].as_slice().to_vec().leak();
        assert!(has_filled(1, &list(&[long])));
        assert!(has_filled(0, &list(&[long])));
        assert!(!has_filled(1, &list(&[])), "all was sent");
        assert!(!has_filled(1, &list(&[long, long])), "the second part may not have been offered");
        assert!(has_filled(GatherList::MAX_BYTES - 1, &list(&[long])));
        assert!(!has_filled(GatherList::MAX_BYTES, &list(&[long])), "no more was offered");
    }

    #[test]
    fn piece_of_several_blocks_begins_and_ends_with_one() {
        const BLOCK: u64 = File::BLOCK_BYTES;
        let at = |start, max| piece_at(start, max, 4 * BLOCK);
        assert_eq!(at(0, MAX_FILE_BYTES), 4 * BLOCK);
        assert_eq!(at(BLOCK, MAX_FILE_BYTES), 3 * BLOCK);
        assert_eq!(at(7 * BLOCK, MAX_FILE_BYTES), BLOCK);
        assert_eq!(at(1, MAX_FILE_BYTES), BLOCK - 1);
        assert_eq!(at(BLOCK - 10, 20), 10);
        assert_eq!(at(BLOCK, 20), 20);
        assert_eq!(at(0, 2 * BLOCK as u32 + 1), 2 * BLOCK);
        assert_eq!(at(u64::MAX - 5, 20), 6);
        assert_eq!(piece_at(0, MAX_FILE_BYTES, BLOCK), BLOCK);
    }
}
