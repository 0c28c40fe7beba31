//! The stages of an operation: what follows when a call has ended.

use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::rc::Rc;

use rustix::io::Errno;
use shared_ring::author::InFlight;
use shared_ring::nonblocking::{self, is_aborted_accept, is_fd_limit};
use shared_ring::{Completion, Op, Outcome, Socket, Token, WhenCold};

use super::{FlexScKernel, Stage, calls};
use crate::error::Busy;
use crate::pages::EntryId;

type CallResult = Result<usize, Errno>;

impl FlexScKernel {
    /// Posts the first call of an operation in the table, or posts it again.
    pub(super) fn post(&mut self, token: Token) -> Result<(), Busy> {
        let Some(InFlight { op, state, .. }) = self.in_flight.get(token) else { return Ok(()) };
        // SAFETY: the table owns the memory until the call has ended, or leaks it. The descriptors are
        // open until the operation has ended.
        let id = unsafe { self.pages.post_with(|scratch| calls::first(op, scratch)) }?;
        self.owners[id.index()] = token;
        self.has_posted |= matches!(op, Op::SendFile { .. });
        match (&mut state.stage, op) {
            (Stage::Accepting(ids, _), _) => ids.push(id),
            (stage, Op::Receive { .. }) => *stage = Stage::Waiting(id),
            (stage, _) => *stage = Stage::Calling(id),
        }
        Ok(())
    }

    /// Posts the call again. It had an entry, so there is one.
    pub(super) fn post_again(&mut self, token: Token) {
        if self.post(token).is_err() {
            self.end_with(token, Errno::BUSY);
        }
    }

    /// Posts a send of a part of a file, which `was_read`, or the read that must precede it.
    pub(super) fn send_file(&mut self, token: Token, was_read: bool) -> Result<(), Busy> {
        let Some(InFlight {
            op: Op::SendFile { fd, file, offset, len, is_last, when_cold },
            state,
            ..
        }) = self.in_flight.get(token)
        else {
            return Ok(());
        };
        let (socket, when_cold) = (*fd, *when_cold);
        let system = &mut self.operations.system;
        self.operations.counters.system_calls += 1;
        let all = *len;
        if was_read || !nonblocking::must_read(system, file, *offset, len) {
            *is_last &= *len == all;
            return self.post(token);
        }
        self.operations.counters.cold_file_reads += 1;
        if when_cold == WhenCold::Report {
            self.end(token, |_| Outcome::Cold);
            return Ok(());
        }
        let ahead = &mut self.read_ahead;
        let read = nonblocking::read_first(system, ahead, socket, (file, *offset), (len, is_last));
        let into = Rc::clone(&self.discarded);
        let call = calls::read_cold(file.as_raw_fd(), &read, into.as_mut_ptr());
        // SAFETY: the stage keeps the memory, which is as long as the longest part to read; the operation the file.
        let id = unsafe { self.pages.post(&call) }?;
        self.owners[id.index()] = token;
        state.stage = Stage::Reading(id, into);
        Ok(())
    }

    /// Continues a send of a file, one of whose calls has ended.
    fn file_send_called(&mut self, token: Token, result: CallResult) {
        let Some(InFlight { op: Op::SendFile { fd, len, is_last, .. }, state, .. }) =
            self.in_flight.get(token)
        else {
            return;
        };
        let stage = mem::replace(&mut state.stage, Stage::Idle);
        let sends = matches!(stage, Stage::Calling(_));
        let posted = match (state.end, stage, result) {
            // The bytes that were sent count, even if the operation is to end.
            (_, _, Ok(sent)) if sends => {
                let (bytes, is_full) = (sent as u32, (sent as u32) < *len);
                if *is_last && !is_full {
                    self.read_ahead.forget(*fd);
                }
                return self.end(token, |_| Outcome::SentFile { bytes, is_full });
            }
            (Some(errno), ..) => return self.end(token, |op| op.fail(errno)),
            (None, Stage::Reading(..), Ok(n)) => {
                // The read may be short. If the file has ended before, a send of a byte reports it.
                *len = (*len).min(n as u32).max(u32::from(n == 0));
                self.send_file(token, true)
            }
            (None, _, Ok(_) | Err(Errno::INTR)) => self.send_file(token, false),
            (None, _, Err(Errno::AGAIN)) if sends => self.wait_for_room(token),
            (None, _, Err(errno)) => return self.end(token, |op| op.fail(errno)),
        };
        if posted.is_err() {
            self.end(token, |op| op.fail(Errno::BUSY));
        }
    }

    /// Posts an entry that waits until the socket of a send of a file has room. The next attempt checks again which
    /// bytes are cached.
    fn wait_for_room(&mut self, token: Token) -> Result<(), Busy> {
        let Some(InFlight { op: Op::SendFile { fd, .. }, state, .. }) = self.in_flight.get(token)
        else {
            return Ok(());
        };
        // SAFETY: the descriptor is open until the operation has ended.
        let id = unsafe { self.pages.post(&calls::until_writable(fd.raw())) }?;
        self.owners[id.index()] = token;
        state.stage = Stage::Waiting(id);
        Ok(())
    }

    /// Posts the call that receives into a buffer. Returns false if no buffer is free.
    pub(super) fn receive(&mut self, token: Token) -> bool {
        let Some(InFlight { op: Op::Receive { fd, group }, state, .. }) = self.in_flight.get(token)
        else {
            return true;
        };
        let Some(mut buffer) = self.operations.buffers(*group).lend_free() else { return false };
        // SAFETY: the stage owns the buffer until the call has ended, or leaks it.
        match unsafe { self.pages.post(&calls::receive(fd.raw(), &mut buffer)) } {
            Ok(id) => {
                self.owners[id.index()] = token;
                state.stage = Stage::Receiving(id, buffer);
                self.has_posted = true;
            }
            Err(Busy) => {
                state.stage = Stage::Idle;
                self.end_with(token, Errno::BUSY);
            }
        }
        true
    }

    /// Receives, or waits for a buffer.
    fn receive_or_starve(&mut self, token: Token) {
        if !self.receive(token)
            && let Some(InFlight { op: Op::Receive { group, .. }, state, .. }) =
                self.in_flight.get(token)
        {
            state.stage = Stage::Idle;
            self.operations.counters.buffer_shortages += 1;
            self.starved[group.index()].push_back(token);
        }
    }

    /// Goes on with an operation, one of whose calls has ended.
    pub(super) fn proceed(&mut self, token: Token, id: EntryId, result: CallResult) {
        let Some(InFlight { op, .. }) = self.in_flight.get(token) else { return };
        match op {
            Op::Accept { .. } => self.accepted(token, id, result),
            Op::Receive { .. } => self.received(token, result),
            Op::File(_) => self.file_called(token, result),
            Op::SendFile { .. } => self.file_send_called(token, result),
            _ => self.called(token, result),
        }
    }

    fn accepted(&mut self, token: Token, id: EntryId, result: CallResult) {
        let Some(InFlight { state, .. }) = self.in_flight.get(token) else { return };
        let Stage::Accepting(ids, _) = &mut state.stage else { return };
        ids.retain(|other| *other != id);
        let (end, none_left) = (state.end, ids.is_empty());
        let counters = &mut self.operations.counters;
        match result {
            Ok(fd) => {
                // SAFETY: the kernel has just opened it.
                let socket = unsafe { Socket::from_raw_fd(fd as RawFd) };
                self.done.push_back(Completion::more(token, Outcome::Accepted(socket)));
            }
            Err(Errno::INTR) => {}
            Err(errno) if is_aborted_accept(errno) => counters.accepts_aborted += 1,
            Err(errno) => {
                counters.fd_limit_hits += u64::from(is_fd_limit(errno));
                return self.end_with(token, end.unwrap_or(errno));
            }
        }
        match end {
            None => self.next_accepts.push(token),
            Some(errno) if none_left => self.end(token, |op| op.fail(errno)),
            Some(_) => {}
        }
    }

    fn received(&mut self, token: Token, result: CallResult) {
        let Some(InFlight { state, .. }) = self.in_flight.get(token) else { return };
        if let (Stage::Waiting(_), None, Ok(_)) = (&state.stage, state.end, result) {
            return self.receive_or_starve(token);
        }
        let (stage, end) = (mem::replace(&mut state.stage, Stage::Idle), state.end);
        match (stage, result) {
            (Stage::Receiving(..), Ok(0)) => self.end(token, |_| Outcome::Eof),
            (Stage::Receiving(_, mut buffer), Ok(len)) => {
                let has_more = len == buffer.len();
                buffer.truncate(len);
                self.done.push_back(Completion::more(token, Outcome::Received(buffer)));
                match end {
                    Some(errno) => self.end(token, |op| op.fail(errno)),
                    None if has_more => self.receive_or_starve(token),
                    None => self.post_again(token),
                }
            }
            (_, Err(Errno::AGAIN | Errno::INTR)) if end.is_none() => self.post_again(token),
            (_, result) => {
                let errno = end.or(result.err()).unwrap_or(Errno::CANCELED);
                self.end(token, |op| op.fail(errno));
            }
        }
    }

    fn called(&mut self, token: Token, result: CallResult) {
        let Some(InFlight { op, state, .. }) = self.in_flight.get(token) else { return };
        let end = state.end;
        let is_interrupted = result == Err(Errno::INTR) && !matches!(op, Op::Call(..));
        if end.is_none() && is_interrupted {
            return self.post_again(token);
        }
        let result = match result {
            Err(Errno::INTR) => Err(end.unwrap_or(Errno::INTR)),
            result => result,
        };
        let counters = &mut self.operations.counters;
        let Some(InFlight { op, .. }) = self.in_flight.remove(token) else { return };
        let outcome = match (op, result) {
            (Op::Send { mut data, .. }, Ok(len)) => {
                data.advance(len);
                Outcome::Sent(data, len)
            }
            (Op::Writable { .. }, Ok(_)) => Outcome::Writable,
            (Op::Connect { .. }, Ok(_) | Err(Errno::ISCONN)) => Outcome::Connected,
            (Op::Close { .. }, _) => Outcome::Closed,
            (Op::Call(call, _), result) => Outcome::Called(call, result),
            (op, result) => op.fail(result.err().unwrap_or(Errno::IO)),
        };
        counters.note_send(&outcome);
        self.done.push_back(Completion::last(token, outcome));
    }

    /// Ends an operation with an error, once its calls have ended.
    pub(super) fn end_with(&mut self, token: Token, errno: Errno) {
        let Some(InFlight { op, state, .. }) = self.in_flight.get(token) else { return };
        state.end = Some(errno);
        match &state.stage {
            Stage::Accepting(ids, _) if !ids.is_empty() => {
                for id in ids {
                    self.pages.cancel(*id);
                }
            }
            Stage::Waiting(id)
            | Stage::Receiving(id, _)
            | Stage::Reading(id, ..)
            | Stage::File(id, _)
            | Stage::Calling(id) => self.pages.cancel(*id),
            Stage::Idle | Stage::Accepting(..) => {
                if let Op::Receive { group, .. } = op {
                    self.starved[group.index()].retain(|other| *other != token);
                }
                self.end(token, |op| op.fail(errno));
            }
        }
    }

    pub(super) fn end(&mut self, token: Token, outcome: impl FnOnce(Op) -> Outcome) {
        if let Some(InFlight { op, state, .. }) = self.in_flight.remove(token) {
            if let Stage::Accepting(_, accepts) = state.stage {
                self.more_accepts -= accepts - 1;
                // The next operation of the listener has the same token.
                self.next_accepts.retain(|other| *other != token);
            }
            self.done.push_back(Completion::last(token, outcome(op)));
        }
    }
}
