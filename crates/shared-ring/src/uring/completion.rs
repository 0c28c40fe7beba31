//! Conversion of the ring's completions to outcomes.

use bytes::Buf;
use io_uring::cqueue;
use rustix::io::Errno;

use super::sqe::{OpMemory, OpState, RoomPoll, has_room, opens, uses_file, waits_for_room};
use super::{Cqe, Mode, Multishot, RawCompletion, Ring, UringKernel};
use crate::file_op;
use crate::inflight::InFlight;
use crate::nonblocking::{is_aborted_accept, is_fd_limit};
use crate::{
    BufferGroup, Completion, Datagram, Executor, Fd, FileOp, FileOutcome, Host, JobOutcome,
    Offload, Op, OpKind, Outcome, RxBuf, Socket, Submit, Submitted, System, Token, WriteAt,
};

impl<R: Ring> UringKernel<R> {
    /// Returns the next completion that the ring has reported.
    pub(super) fn next_of_ring(&mut self) -> Option<Completion> {
        while let Some(cqe) = self.landed.pop_front() {
            // Each kind returns by itself: a common return would copy the completion once more.
            match Token::from_bits(cqe.user_data).kind() {
                OpKind::Receive => {
                    let Some(completion) = self.receive_completed(&cqe) else { continue };
                    return Some(completion);
                }
                OpKind::Send => {
                    let Some(completion) = self.send_completed(&cqe) else { continue };
                    return Some(completion);
                }
                _ => {
                    self.note_stream(&cqe);
                    let Some(completion) = self.completed(&cqe) else { continue };
                    return Some(completion);
                }
            }
        }
        None
    }

    /// Converts the completion of a receive. Most report bytes of a receive that stays in flight.
    #[inline]
    fn receive_completed(&mut self, cqe: &Cqe) -> Option<Completion> {
        let token = Token::from_bits(cqe.user_data);
        if let Some(InFlight { op: Op::Receive { group, .. }, .. }) = self.owned.inflight.get(token)
            && let (1.., group) = (cqe.result, *group)
            && cqueue::more(cqe.flags)
        {
            self.multishot = Multishot::Works;
            // SAFETY: the result and the flags are those of this completion, which is used once.
            let bytes = unsafe { self.filled(group, Ok(cqe.result as u32), cqe.flags) };
            if let Some(bytes) = bytes {
                return Some(Completion::more(token, Outcome::Received(bytes)));
            }
        }
        self.completed(cqe)
    }

    /// Converts the completion of a send. Most report that bytes were sent.
    #[inline]
    fn send_completed(&mut self, cqe: &Cqe) -> Option<Completion> {
        let token = Token::from_bits(cqe.user_data);
        let is_send =
            |sent: &InFlight<OpState>| matches!(sent.op, Op::Send { .. }) && !sent.state.polls;
        if cqe.result >= 0
            && let Some(InFlight { op: Op::Send { mut data, .. }, .. }) =
                self.owned.inflight.remove_if(token, is_send)
        {
            let n = cqe.result as usize;
            data.advance(n);
            self.counters.short_sends += u64::from(!data.is_empty());
            return Some(Completion::last(token, Outcome::Sent(data, n)));
        }
        self.completed(cqe)
    }

    /// Returns the next raw completion, to be [decoded](UringKernel::decode) later. It allocates no
    /// memory and makes no system call, so it is safe to call in a signal handler.
    pub fn next_raw(&mut self) -> Option<RawCompletion> {
        // Completions that are decoded later may bring more sends.
        self.sends_at_once = false;
        if self.landed.is_empty() {
            // Its capacity is that of the ring's queue.
            self.ring.reap(&mut self.landed);
        }
        self.pop_landed().map(RawCompletion)
    }

    fn pop_landed(&mut self) -> Option<Cqe> {
        let cqe = self.landed.pop_front()?;
        self.note_stream(&cqe);
        Some(cqe)
    }

    /// Returns the number of raw completions that wait to be taken. Safe to call in a signal handler.
    pub fn raw_pending(&self) -> u32 {
        self.ring.landed() + self.landed.len() as u32
    }

    /// Converts a raw completion, if it is that of an operation that was posted.
    ///
    /// # Safety
    /// The raw completion is one of this kernel's, and is decoded only once.
    pub unsafe fn decode(&mut self, raw: RawCompletion) -> Option<Completion> {
        let completion = self.completed(&raw.0)?;
        self.counters.completions += 1;
        Some(completion)
    }

    /// Returns the next completion that did not come from the ring.
    pub fn next_done(&mut self) -> Option<Completion> {
        self.done.append(&mut self.later);
        let completion = self.done.pop_front()?;
        self.counters.completions += 1;
        Some(completion)
    }

    /// Converts any completion.
    #[inline(never)]
    fn completed(&mut self, cqe: &Cqe) -> Option<Completion> {
        let token = Token::from_bits(cqe.user_data);
        match token.kind() {
            // The cancellation failed because the operation had ended, or was ending.
            OpKind::Cancel => return None,
            // For callers of `next_raw`.
            OpKind::Watch | OpKind::Stream => return None,
            OpKind::Wake => return self.woken(cqe.result),
            _ => {}
        }
        let more = cqueue::more(cqe.flags);
        let Some(entry) = self.owned.inflight.get(token) else {
            debug_assert!(false, "a completion for {token:?}, which is not in flight");
            return None;
        };
        // Multishot polls are older than the other multishot operations.
        if more
            && matches!(entry.op, Op::Accept { .. } | Op::Receive { .. } | Op::ReceiveFrom { .. })
        {
            self.multishot = Multishot::Works;
        }
        entry.state.in_ring -= u16::from(!more);
        let mut result = match cqe.result {
            n if n < 0 => Err(Errno::from_raw_os_error(-n)),
            n => Ok(n as u32),
        };
        if waits_for_room(&entry.op, &entry.state) {
            let state = &mut entry.state;
            match (state.room_poll, result) {
                (RoomPoll::Changes, Ok(events)) if more && has_room(events) => {
                    state.room_poll = RoomPoll::Ending;
                    self.cancels.push_back(token);
                    return None;
                }
                _ if more => return None,
                (RoomPoll::Once | RoomPoll::Changes, Ok(events)) if !has_room(events) => {
                    state.room_poll = RoomPoll::Changes;
                    return self.rearm(token);
                }
                // Some kernels end a multishot poll with ECANCELED when the completion queue is full.
                (RoomPoll::Changes, Err(Errno::CANCELED)) if !state.cancelled => {
                    return self.rearm(token);
                }
                (RoomPoll::Ending, Err(_)) if !state.cancelled => result = Ok(0),
                _ => {}
            }
            state.room_poll = RoomPoll::Once;
            // A send from memory is made once there is room.
            state.polls &= result.is_err();
            if matches!(entry.op, Op::Send { .. }) && !entry.state.polls {
                if self.filled == Some(token) {
                    self.filled = None;
                }
                return self.rearm(token);
            }
        } else if matches!(entry.op, Op::Send { .. }) && result == Err(Errno::AGAIN) {
            entry.state.polls = true;
            return self.rearm(token);
        } else if result == Err(Errno::AGAIN)
            && (uses_file(&entry.op, &entry.state) || opens(&entry.op))
        {
            return self.refused_by_ring(token);
        }
        match entry.op {
            // The kernel may not support multishot operations. Then post a single-shot one, which
            // fails again if the reason was another.
            Op::Accept { per_turn: None, .. } | Op::Receive { .. }
                if result == Err(Errno::INVAL)
                    && entry.state.multishot
                    && self.multishot != Multishot::Works =>
            {
                self.multishot = Multishot::Unsupported;
                self.rearm(token)
            }
            Op::Accept { .. } => self.accepted(token, result, more),
            Op::Receive { group, .. } => self.received(token, group, result, cqe.flags),
            Op::ReceiveFrom { group, .. } => self.received_from(token, group, result, cqe.flags),
            Op::SendFile { .. } => self.resume_file_send(token, result),
            Op::File(FileOp::Read(_, ref range)) => {
                let len = file_op::len(range);
                self.read_done(token, len, result)
            }
            Op::File(FileOp::Write(_)) => self.write_done(token, result),
            Op::Call(_, by) if by != Executor::Ring => self.resume_call(token, result),
            _ => self.finished_op(token, result),
        }
    }

    fn woken(&mut self, result: i32) -> Option<Completion> {
        self.wake_in_flight = false;
        if result <= 0 {
            return None;
        }
        self.waker.acknowledge();
        while let Some((token, result)) = self.offload.take() {
            let ended = self.offloaded(token, result);
            self.done.extend(ended);
        }
        Some(Completion::woken())
    }

    /// Continues an operation whose job a thread has run.
    fn offloaded(&mut self, token: Token, result: Result<JobOutcome, Errno>) -> Option<Completion> {
        let entry = self.owned.inflight.get(token)?;
        if let Op::SendFile { .. } = entry.op {
            entry.state.on_thread = false;
            // All that it waits for was read.
            return self.resume_file_send(token, result.map(|_| 0));
        }
        let InFlight { op, state, .. } = self.owned.inflight.remove(token)?;
        let outcome = match op {
            // A call may have had an effect, so its result counts.
            Op::Call(..) => op.executed(result),
            _ if state.cancelled => op.fail(Errno::CANCELED),
            _ => op.executed(result),
        };
        Some(Completion::by_thread(token, outcome, state.was_cold))
    }

    /// Lets a thread do what the ring has refused: read, write or open. Linux 6.1 to 6.4 does so for a file that is open with
    /// `O_NONBLOCK` and lies on a block device without a non-blocking mode, such as an encrypted one. Every version does for
    /// a path with a link, if anything is renamed meanwhile.
    #[cold]
    fn refused_by_ring(&mut self, token: Token) -> Option<Completion> {
        if self.owned.inflight.get(token)?.state.cancelled {
            return self.end_if_idle(token);
        }
        self.post_to_thread(token);
        None
    }

    /// Posts an operation again that the kernel ended early; ends it if it was cancelled.
    fn rearm(&mut self, token: Token) -> Option<Completion> {
        if self.owned.inflight.get(token)?.state.cancelled {
            return self.end_if_idle(token);
        }
        self.arm_later(token);
        None
    }

    /// The same, after a completion with a result.
    fn rearm_after(&mut self, token: Token) {
        let ended = self.rearm(token);
        self.done.extend(ended);
    }

    fn accepted(
        &mut self,
        token: Token,
        result: Result<u32, Errno>,
        more: bool,
    ) -> Option<Completion> {
        match result {
            Ok(fd) => {
                if !more {
                    let op = &self.owned.inflight.get(token)?.op;
                    let multishot = matches!(op, Op::Accept { per_turn: None, .. });
                    let ended = multishot && self.multishot != Multishot::Unsupported;
                    self.counters.rearmed += u64::from(ended);
                    self.rearm_after(token);
                }
                let accepted = Socket::of(Fd::from_raw(fd as i32));
                Some(Completion::more(token, Outcome::Accepted(accepted)))
            }
            Err(errno) if is_aborted_accept(errno) => {
                self.counters.accepts_aborted += 1;
                if more { None } else { self.rearm(token) }
            }
            Err(errno) => {
                self.counters.fd_limit_hits += u64::from(is_fd_limit(errno));
                self.accept_failed(token, errno)
            }
        }
    }

    /// Handles a failed accept. It ends with the last of its submissions; a failure cancels the others.
    fn accept_failed(&mut self, token: Token, errno: Errno) -> Option<Completion> {
        let state = &mut self.owned.inflight.get(token)?.state;
        if errno != Errno::CANCELED {
            state.errno.get_or_insert(errno);
        }
        let ended = self.end_if_idle(token);
        if ended.is_none() && errno != Errno::CANCELED {
            self.cancel(token);
        }
        ended
    }

    /// Returns the buffer that a receive has filled. The buffer of one that has failed is given back.
    ///
    /// # Safety
    /// A completion of a receive with this group has just reported the result and the flags, and they are used only
    /// once.
    unsafe fn filled(
        &mut self,
        group: BufferGroup,
        result: Result<u32, Errno>,
        flags: u32,
    ) -> Option<RxBuf> {
        let id = cqueue::buffer_select(flags)?;
        let len = result.unwrap_or(0) as usize;
        // SAFETY: by the caller's promise.
        let bytes = unsafe { self.owned.groups[group.index()].filled(id, len) };
        result.is_ok().then_some(bytes)
    }

    fn received(
        &mut self,
        token: Token,
        group: BufferGroup,
        result: Result<u32, Errno>,
        flags: u32,
    ) -> Option<Completion> {
        // SAFETY: the result and the flags are those of this completion, which is used once.
        let bytes = unsafe { self.filled(group, result, flags) };
        match (result, bytes) {
            (Ok(0), _) => {
                self.owned.inflight.remove(token);
                Some(Completion::last(token, Outcome::Eof))
            }
            (Ok(_), Some(bytes)) => {
                if !cqueue::more(flags) {
                    self.counters.rearmed += u64::from(self.multishot != Multishot::Unsupported);
                    self.rearm_after(token);
                }
                Some(Completion::more(token, Outcome::Received(bytes)))
            }
            (Err(Errno::NOBUFS), _) => self.wait_for_buffer(token, group),
            (Err(errno), _) => Some(self.fail(token, errno)),
            (Ok(_), None) => {
                debug_assert!(false, "a receive without a buffer");
                self.rearm(token)
            }
        }
    }

    /// Handles a receive of datagrams. The kernel ends it after an empty datagram.
    fn received_from(
        &mut self,
        token: Token,
        group: BufferGroup,
        result: Result<u32, Errno>,
        flags: u32,
    ) -> Option<Completion> {
        let more = cqueue::more(flags);
        // SAFETY: the result and the flags are those of this completion, which is used once.
        let buffer = unsafe { self.filled(group, result, flags) };
        match (result, buffer.and_then(Datagram::decode)) {
            (Ok(_), Some(datagram)) => {
                if !more {
                    self.counters.rearmed += 1;
                    self.rearm_after(token);
                }
                Some(Completion::more(token, Outcome::Datagram(datagram)))
            }
            (Err(Errno::NOBUFS), _) => self.wait_for_buffer(token, group),
            (Err(errno), _) => Some(self.fail(token, errno)),
            // Without an address: the socket is shut down.
            (Ok(_), None) if !more => {
                self.owned.inflight.remove(token);
                Some(Completion::last(token, Outcome::Eof))
            }
            (Ok(_), None) => None,
        }
    }

    /// Makes a receive wait for a free buffer.
    fn wait_for_buffer(&mut self, token: Token, group: BufferGroup) -> Option<Completion> {
        self.counters.buffer_shortages += 1;
        let state = &mut self.owned.inflight.get(token)?.state;
        if state.cancelled {
            return self.end_if_idle(token);
        }
        state.queued += 1;
        self.owned.groups[group.index()].starved.push_back(token);
        None
    }

    /// Continues a send of a file: the socket is writable, or the uncached part was read.
    fn resume_file_send(&mut self, token: Token, result: Result<u32, Errno>) -> Option<Completion> {
        let InFlight { op, state, .. } = self.owned.inflight.get(token)?;
        let was_read = matches!(state.memory, OpMemory::Discarded(_));
        if let (Op::SendFile { len, .. }, Ok(n @ 1..), true) = (op, result, was_read) {
            // The read may be short.
            *len = n.min(*len);
        }
        match result {
            _ if state.cancelled => Some(self.fail(token, Errno::CANCELED)),
            Err(errno) => Some(self.fail(token, errno)),
            Ok(_) => match self.send_file(token, was_read) {
                Submitted::Done(outcome) => Some(Completion::last(token, outcome)),
                Submitted::InFlight => None,
            },
        }
    }

    /// Continues a system call whose descriptor is ready.
    fn resume_call(&mut self, token: Token, result: Result<u32, Errno>) -> Option<Completion> {
        match result {
            _ if self.owned.inflight.get(token)?.state.cancelled => {
                Some(self.fail(token, Errno::CANCELED))
            }
            Err(errno) => Some(self.fail(token, errno)),
            Ok(_) => match self.try_call(token) {
                Submitted::Done(outcome) => Some(Completion::last(token, outcome)),
                Submitted::InFlight => None,
            },
        }
    }

    /// Handles a read of part of a file. Continues until all is read, or the file ends.
    fn read_done(
        &mut self,
        token: Token,
        len: u32,
        result: Result<u32, Errno>,
    ) -> Option<Completion> {
        let n = match result {
            Ok(n) => n as usize,
            Err(errno) => return Some(self.fail(token, errno)),
        };
        let state = &mut self.owned.inflight.get(token)?.state;
        let bytes = state.memory.bytes();
        assert!(n <= bytes.capacity() - bytes.len(), "the kernel reads no more than requested");
        // SAFETY: the kernel has written `n` bytes after the existing ones, within the capacity.
        unsafe { bytes.set_len(bytes.len() + n) };
        if n > 0 && bytes.len() < len as usize {
            return self.rearm(token);
        }
        let (bytes, was_cold) = (std::mem::take(bytes), state.was_cold);
        self.owned.inflight.remove(token);
        let read = Outcome::File(FileOutcome::Read(RxBuf::from(bytes)));
        Some(Completion { was_cold, ..Completion::last(token, read) })
    }

    /// Handles a write of part of the bytes. Continues until all are written.
    fn write_done(&mut self, token: Token, result: Result<u32, Errno>) -> Option<Completion> {
        let Op::File(FileOp::Write(write)) = &mut self.owned.inflight.get(token)?.op else {
            return None;
        };
        match result {
            Ok(0) if !write.bytes.is_empty() => return Some(self.fail(token, Errno::IO)),
            Ok(n) => {
                write.bytes.advance(n as usize);
                if let WriteAt::Offset(at) = &mut write.at {
                    *at += u64::from(n);
                }
            }
            Err(errno) => return Some(self.fail(token, errno)),
        }
        if !write.bytes.is_empty() {
            return self.rearm(token);
        }
        self.owned.inflight.remove(token);
        Some(Completion::last(token, Outcome::File(FileOutcome::Written)))
    }

    /// Handles the completion of an operation that has only one.
    fn finished_op(&mut self, token: Token, result: Result<u32, Errno>) -> Option<Completion> {
        let entry = self.owned.inflight.remove(token)?;
        let outcome = match (entry.op, result) {
            (Op::Send { mut data, .. }, Ok(n)) => {
                data.advance(n as usize);
                self.counters.short_sends += u64::from(!data.is_empty());
                Outcome::Sent(data, n as usize)
            }
            (Op::SendTo { mut message, .. }, Ok(_)) => {
                message.data.clear();
                Outcome::SentTo(message, Ok(()))
            }
            (Op::Close { .. }, _) => Outcome::Closed,
            (Op::Writable { .. }, Ok(_)) => Outcome::Writable,
            (op, Err(errno)) => op.fail(errno),
            (Op::Call(call, _), Ok(n)) => Outcome::Called(call, Ok(n as usize)),
            (Op::Connect { .. }, Ok(_)) => Outcome::Connected,
            (Op::File(op), Ok(fd)) => self.opened(&op, Socket::of(Fd::from_raw(fd as i32))).into(),
            (op, Ok(_)) => unreachable!("it has many completions: {op:?}"),
        };
        Some(Completion::last(token, outcome))
    }

    /// Converts the descriptor that an open or a stat has opened.
    fn opened(&mut self, op: &FileOp, opened: Socket) -> Result<FileOutcome, Errno> {
        self.counters.system_calls += 1;
        if let FileOp::Stat(_) = op {
            self.counters.system_calls += 1;
            let meta = self.system.meta(opened.number());
            self.system.close_unused(opened);
            return meta.map(FileOutcome::Stat);
        }
        let file = self.system.file(opened);
        let meta = self.system.meta(file.fd())?;
        Ok(FileOutcome::Opened(Box::new((file, meta))))
    }

    /// Returns the mode of the ring.
    pub fn mode(&self) -> Mode {
        self.mode
    }
}
