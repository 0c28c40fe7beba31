//! The submission of each kind of operation: the part that it does at once, and the part that it leaves to the ring.
//! How sends of files and system calls continue.

use std::ops::Range;
use std::rc::Rc;

use rustix::io::Errno;

use super::provided::BufferRing;
use super::sqe::{OpMemory, OpState};
use super::{Mode, Owned, Ring, UringKernel};
use crate::inflight::InFlight;
use crate::nonblocking::{self, SendAttempt, SendFileError};
use crate::{
    BufferGroup, Call, Counters, Executor, Fd, FileJob, FileOp, FileOutcome, FileRange, Job,
    JobOutcome, Offload, Op, Outcome, SubmitError, SubmitErrorKind, Submitted, System, Token,
    WhenCold,
};

/// Minimum number of bytes of a send for which the copy takes so long that a system call of its own costs little. In
/// exchange, it copies what the CPU has in its cache, as it was just read.
const LONG_SEND: usize = 32 * 1024;

impl<R: Ring> UringKernel<R> {
    /// Inserts an operation into the table, and submits it.
    #[inline(always)]
    pub(super) fn submit_to_ring(
        &mut self,
        token: Token,
        op: Op,
        state: OpState,
    ) -> Result<Submitted, SubmitError> {
        let entry = self.owned.inflight.insert(token, op, state)?;
        let in_turn = self.unsubmitted.is_empty();
        if !(in_turn && Self::arm_now(&mut self.ring, entry, self.multishot)) {
            self.arm_later(token);
        }
        Ok(Submitted::InFlight)
    }

    /// Sends at once if the send is alone or long, else by the ring.
    #[inline]
    pub(super) fn submit_send(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        let len = match &op {
            Op::Send { fd, data } => {
                self.read_ahead.forget(*fd);
                data.len()
            }
            _ => 0,
        };
        if self.filled == Some(token) {
            return self.submit_when_room(token, op);
        }
        let at_once = self.is_alone() || len >= LONG_SEND && self.makes_calls();
        if at_once && self.owned.inflight.get(token).is_none() {
            return match self.send_now(op) {
                Ok(outcome) => {
                    let is_filled = matches!(outcome, Outcome::Sent(_, n) if n < len);
                    self.filled = is_filled.then_some(token);
                    Ok(Submitted::Done(outcome))
                }
                Err(op) => self.submit_when_room(token, op),
            };
        }
        self.submit_to_ring(token, op, OpState::default())
    }

    /// Polls a socket that is full, and then sends.
    fn submit_when_room(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        let state = OpState { polls: true, ..OpState::default() };
        self.owned.inflight.insert(token, op, state)?;
        self.arm_later(token);
        Ok(Submitted::InFlight)
    }

    /// Returns whether a system call for an operation may precede what waits to be submitted.
    fn makes_calls(&mut self) -> bool {
        self.mode == Mode::Deferred && self.finished.is_none() && !self.ring.is_parents()
    }

    /// Reads a part of a file at once if it is cached, and has a thread list a directory. The ring does the rest.
    pub(super) fn submit_file(
        &mut self,
        token: Token,
        op: FileOp,
    ) -> Result<Submitted, SubmitError> {
        if let Err(errno) = op.check() {
            return Ok(Submitted::Done(Outcome::Failed(errno, None)));
        }
        let mut was_cold = false;
        match &op {
            FileOp::List(_) => return self.list(token, op),
            FileOp::Read(file, part) => {
                match self.read_now(token, file.fd(), part) {
                    Some(Err(errno)) if FileJob::would_block(errno) => {
                        was_cold = FileJob::is_cold(errno);
                    }
                    Some(done) => return Ok(Submitted::Done(done.into())),
                    None => {}
                }
                // Sends of the file may have switched it off.
                nonblocking::set_read_ahead(&mut self.system, file, true);
            }
            FileOp::Open(..) | FileOp::Stat(_) | FileOp::Write(_) => {}
        }
        self.submit_to_ring(token, Op::File(op), OpState { was_cold, ..OpState::default() })
    }

    /// Reads a part of a file that is cached. The bytes are sent, or transformed, while they are in the CPU's cache; the
    /// ring would read for other connections first. Returns `None` if the ring has to read, and it is not known whether the
    /// part is cached.
    ///
    /// # Errors
    /// Those of preadv2(2). If it [would block](FileJob::would_block), the part may not be cached, and the ring has to
    /// read.
    fn read_now(
        &mut self,
        token: Token,
        file: Fd,
        part: &Range<u64>,
    ) -> Option<Result<FileOutcome, Errno>> {
        let at_once = self.finished.is_none() && self.owned.inflight.get(token).is_none();
        if !at_once || self.ring.is_parents() {
            return None;
        }
        let read = self.read_buffers.read(&mut self.system, file, part)?;
        self.counters.system_calls += 1;
        match read {
            // The ring reads pipes, too.
            Err(Errno::SPIPE) => None,
            done => Some(done),
        }
    }

    /// Submits a receive, behind older ones that wait for a buffer.
    pub(super) fn submit_receive(
        &mut self,
        token: Token,
        op: Op,
        group: BufferGroup,
    ) -> Result<Submitted, SubmitError> {
        let Owned { inflight, groups, .. } = &mut *self.owned;
        let Some(BufferRing { starved, .. }) = groups.get_mut(group.index()) else {
            return Err(SubmitError { op, kind: SubmitErrorKind::UnknownGroup });
        };
        if starved.is_empty() {
            return self.submit_to_ring(token, op, OpState::default());
        }
        inflight.insert(token, op, OpState::default())?.state.queued += 1;
        starved.push_back(token);
        Ok(Submitted::InFlight)
    }

    /// Has a thread list a directory, as the ring cannot.
    fn list(&mut self, token: Token, op: FileOp) -> Result<Submitted, SubmitError> {
        self.owned.inflight.insert(token, Op::File(op), OpState::default())?;
        self.post_to_thread(token);
        Ok(Submitted::InFlight)
    }

    /// Has a thread do the rest of a file operation in the table, make a call, or read what a send of a file waits for.
    pub(super) fn post_to_thread(&mut self, token: Token) {
        let Some(InFlight { op, state, .. }) = self.owned.inflight.get(token) else { return };
        let Counters { offloaded_file_ops, offloaded_calls, .. } = &mut self.counters;
        let (job, count) = match op {
            // SAFETY: the operation stays in the table until the job is done, and is leaked if the job hangs.
            Op::File(op) => (Job::File(unsafe { op.job() }), offloaded_file_ops),
            // SAFETY: as above. The call is accessed again after the job is done.
            Op::Call(call, _) => (Job::Call(unsafe { call.job() }), offloaded_calls),
            Op::SendFile { file, offset, len, .. } => {
                let part = FileRange { file: file.fd(), offset: *offset, len: *len };
                (Job::Cache(part.file, part.range()), offloaded_file_ops)
            }
            op => unreachable!("no thread can do it: {op:?}"),
        };
        *count += 1;
        state.on_thread = true;
        self.offload.post(token, job);
    }

    /// Returns whether a send would be alone: this turn has sent nothing at once, has reported all its completions, and
    /// nothing waits to be submitted.
    fn is_alone(&mut self) -> bool {
        self.sends_at_once
            && self.landed.is_empty()
            && self.done.is_empty()
            && self.later.is_empty()
            && self.cancels.is_empty()
            && self.unsubmitted.is_empty()
            && self.ring.queued() == 0
            && self.finished.is_none()
            && !self.ring.is_parents()
    }

    /// Tries a send at once. A system call of its own costs less than a submission and a completion, unless others share
    /// the next turn with it. The data also leaves before this turn ends. Further sends of the turn share the ring.
    ///
    /// # Errors
    /// Returns the operation if the socket is full.
    fn send_now(&mut self, op: Op) -> Result<Outcome, Op> {
        self.sends_at_once = false;
        self.counters.system_calls += 1;
        match nonblocking::try_to_send(&mut self.system, op, false) {
            SendAttempt::Done(outcome) => {
                self.counters.note_send(&outcome);
                Ok(outcome)
            }
            SendAttempt::Full(op) | SendAttempt::Cold(op) => Err(op),
        }
    }

    /// Sends part of a file at once, which `was_read`, or submits the poll or read that must precede it.
    pub(super) fn send_file(&mut self, token: Token, was_read: bool) -> Submitted {
        let Some(entry) = self.owned.inflight.get(token) else { return Submitted::InFlight };
        let Op::SendFile { fd, ref file, offset, ref mut len, ref mut is_last, when_cold } =
            entry.op
        else {
            return Submitted::InFlight;
        };
        self.counters.system_calls += 1;
        entry.state.memory = OpMemory::None;
        let system = &mut self.system;
        let mut cached = *len;
        let part = (file, offset, &mut cached);
        let outcome = match nonblocking::send_file(system, fd, part, was_read) {
            Ok(n) => {
                if *is_last && n == *len {
                    self.read_ahead.forget(fd);
                }
                nonblocking::sent_file(n, cached)
            }
            Err(SendFileError::Failed(Errno::AGAIN)) => {
                nonblocking::cut_to_block(offset, (len, is_last));
                self.arm(token);
                return Submitted::InFlight;
            }
            Err(SendFileError::Cold) if when_cold == WhenCold::Report => {
                self.counters.cold_file_reads += 1;
                Outcome::Cold
            }
            Err(SendFileError::Cold) => {
                self.counters.cold_file_reads += 1;
                let ahead = &mut self.read_ahead;
                // The submission reads the range: see `sqe`.
                let _ = nonblocking::read_first(system, ahead, fd, (file, offset), (len, is_last));
                entry.state.memory = OpMemory::Discarded(Rc::clone(&self.discarded));
                self.arm(token);
                return Submitted::InFlight;
            }
            Err(SendFileError::Failed(errno)) => Outcome::Failed(errno, None),
        };
        self.owned.inflight.remove(token);
        Submitted::Done(outcome)
    }

    /// Makes a system call, or lets its executor make it.
    #[cold]
    pub(super) fn call(
        &mut self,
        token: Token,
        mut call: Box<Call>,
        by: Executor,
    ) -> Result<Submitted, SubmitError> {
        let by = match by {
            Executor::Ring if !self.has_operation(&mut call) => Executor::Thread,
            by => by,
        };
        self.owned.inflight.insert(token, Op::Call(call, by), OpState::default())?;
        match by {
            Executor::Ring => self.arm(token),
            Executor::Thread => self.post_to_thread(token),
            Executor::InPlace | Executor::WhenReadable | Executor::WhenWritable => {
                return Ok(self.try_call(token));
            }
        }
        Ok(Submitted::InFlight)
    }

    /// Makes a system call at once, or submits the poll that must precede it.
    pub(super) fn try_call(&mut self, token: Token) -> Submitted {
        let Some(entry) = self.owned.inflight.get(token) else { return Submitted::InFlight };
        let Op::Call(call, by) = &mut entry.op else { return Submitted::InFlight };
        let waits = *by != Executor::InPlace && call.fd().is_some();
        self.counters.system_calls += 1;
        // SAFETY: the call is accessed again after the job is done.
        let job = unsafe { call.job() };
        let result = self.system.call(&job);
        if waits && result == Err(Errno::AGAIN) {
            self.arm(token);
            return Submitted::InFlight;
        }
        let entry = self.owned.inflight.remove(token).expect("it was just found");
        Submitted::Done(entry.op.executed(result.map(JobOutcome::Call)))
    }

    /// Returns whether the ring has an operation for a call, so that [`Executor::Ring`] needs no thread.
    pub fn has_operation(&mut self, call: &mut Call) -> bool {
        // SAFETY: the job is not used after this.
        let job = unsafe { call.job() };
        self.call_operations.sqe(&self.ring, &job).is_some()
    }
}
