//! Completions as the ring reports them, turned into outcomes.

use std::mem;
use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::cqueue::{self, Entry as Cqe};
use rustix::io::Errno;

use super::sqe::Memory;
use super::{Mode, UringKernel};
use crate::engine::file_outcome;
use crate::nonblocking::{self, Disk, is_lost_peer, is_table_full};
use crate::offload::Done;
use crate::{Batch, Completion, Fd, Kind, Op, Outcome, Posted, Submit, Token};

impl UringKernel {
    /// Takes everything out of the completion queue.
    pub(super) fn take_completions(&mut self, out: &mut Batch) {
        if self.ring.submission().cq_overflow() {
            self.counters.overflows += 1;
        }
        // Copied out in one go, so that the queue's head moves once.
        let mut landed = mem::take(&mut self.landed);
        landed.extend(self.ring.completion());
        for cqe in landed.drain(..) {
            self.completed(&cqe, out);
        }
        self.landed = landed;
        out.append(&mut self.done);
    }

    fn completed(&mut self, cqe: &Cqe, out: &mut Batch) {
        let token = Token::from_bits(cqe.user_data());
        match token.kind() {
            // It failed because the operation had ended, or was ending.
            Kind::Cancel => return,
            Kind::Wake => return self.woken(cqe.result(), out),
            _ => {}
        }
        let more = cqueue::more(cqe.flags());
        let Some(entry) = self.owned.inflight.get(token) else {
            debug_assert!(false, "a completion for {token:?}, which is not in flight");
            return;
        };
        entry.note.inside -= u16::from(!more);
        let result = match cqe.result() {
            n if n < 0 => Err(Errno::from_raw_os_error(-n)),
            n => Ok(n as u32),
        };
        match entry.op {
            Op::Accept { .. } => self.accepted(token, result, more, out),
            Op::Receive { .. } => self.received(token, result, cqe.flags(), out),
            Op::SendFile { .. } => self.file_can_go_on(token, result),
            _ => self.ended(token, result, out),
        }
    }

    fn woken(&mut self, result: i32, out: &mut Batch) {
        self.wake_in_flight = false;
        if result > 0 {
            self.waker.heard();
            out.push_back(Completion::more(Token::new(Kind::Wake, 0, 0), Outcome::Woken));
        }
    }

    /// Posts an operation again that the kernel ended early.
    fn rearm(&mut self, token: Token) {
        let Some(entry) = self.owned.inflight.get(token) else { return };
        if entry.note.cancelled {
            self.end_if_idle(token);
        } else {
            self.arm_later(token);
        }
    }

    fn accepted(&mut self, token: Token, result: Result<u32, Errno>, more: bool, out: &mut Batch) {
        match result {
            Ok(fd) => {
                out.push_back(Completion::more(token, Outcome::Accepted(Fd::from_raw(fd as i32))));
                if !more {
                    let multishot = self
                        .owned
                        .inflight
                        .get(token)
                        .is_some_and(|e| matches!(e.op, Op::Accept { per_turn: None, .. }));
                    self.counters.rearmed += u64::from(multishot);
                    self.rearm(token);
                }
            }
            Err(errno) if is_lost_peer(errno) => {
                self.counters.accept_aborts += 1;
                if !more {
                    self.rearm(token);
                }
            }
            Err(errno) => {
                self.counters.table_full += u64::from(is_table_full(errno));
                self.accept_failed(token, errno);
            }
        }
    }

    /// An accept ends when the last of its submissions has: the failure of one cancels the rest.
    fn accept_failed(&mut self, token: Token, errno: Errno) {
        let Some(entry) = self.owned.inflight.get(token) else { return };
        if errno != Errno::CANCELED {
            entry.note.errno.get_or_insert(errno);
        }
        if entry.note.inside == 0 && entry.note.queued == 0 {
            self.end_if_idle(token);
        } else if errno != Errno::CANCELED {
            self.cancel(token);
        }
    }

    fn received(&mut self, token: Token, result: Result<u32, Errno>, flags: u32, out: &mut Batch) {
        let buffer = cqueue::buffer_select(flags);
        let bytes = match (result, buffer) {
            (Ok(n), Some(id)) => {
                // SAFETY: this completion reports the buffer, and is used once.
                Some(unsafe { self.owned.provided.filled(id, n as usize) })
            }
            _ => None,
        };
        match (result, bytes) {
            (Ok(0), _) => {
                self.owned.inflight.remove(token);
                out.push_back(Completion::last(token, Outcome::Eof));
            }
            (Ok(_), Some(bytes)) => {
                out.push_back(Completion::more(token, Outcome::Received(bytes)));
                if !cqueue::more(flags) {
                    self.counters.rearmed += 1;
                    self.rearm(token);
                }
            }
            (Err(Errno::NOBUFS), _) => self.starve(token),
            (Err(errno), _) => {
                self.owned.inflight.remove(token);
                out.push_back(Completion::last(token, Outcome::Failed(errno, None)));
            }
            (Ok(_), None) => {
                debug_assert!(false, "a receive without a buffer");
                self.rearm(token);
            }
        }
    }

    /// Lets a receive wait until there are buffers again.
    fn starve(&mut self, token: Token) {
        self.counters.buffer_shortages += 1;
        // Some may have been given back meanwhile.
        let fed = self.owned.provided.held() > 0;
        let Some(entry) = self.owned.inflight.get(token) else { return };
        if entry.note.cancelled {
            self.end_if_idle(token);
        } else if fed {
            self.arm_later(token);
        } else {
            entry.note.queued += 1;
            self.starved.push_back(token);
        }
    }

    /// The socket has room again, or the cold part of the file was read.
    fn file_can_go_on(&mut self, token: Token, result: Result<u32, Errno>) {
        let Some(entry) = self.owned.inflight.get(token) else { return };
        let disk = match entry.note.memory {
            Memory::Bytes(_) => Disk::Wait,
            _ => Disk::Cached,
        };
        match result {
            _ if entry.note.cancelled => self.fail(token, Errno::CANCELED),
            Err(errno) => self.fail(token, errno),
            Ok(_) => {
                if let Posted::Done(outcome) = self.send_file(token, disk) {
                    self.done.push_back(Completion::last(token, outcome));
                }
            }
        }
    }

    /// An operation with one answer has ended.
    fn ended(&mut self, token: Token, result: Result<u32, Errno>, out: &mut Batch) {
        let Some(entry) = self.owned.inflight.remove(token) else { return };
        let outcome = match (entry.op, result) {
            (Op::Send { mut data, .. }, Ok(n)) => {
                data.advance(n as usize);
                self.counters.short_sends += u64::from(!data.is_empty());
                Outcome::Sent(data, n as usize)
            }
            (Op::Send { data, .. }, Err(errno)) => Outcome::Failed(errno, Some(data)),
            (Op::Close { .. }, _) => Outcome::Closed,
            (_, Err(errno)) => Outcome::Failed(errno, None),
            (Op::Connect { .. }, Ok(_)) => Outcome::Connected,
            (Op::Open { .. }, Ok(fd)) => {
                self.counters.system_calls += 1;
                let fd = owned(fd);
                file_outcome(nonblocking::meta(&fd).map(|meta| Done::Opened(fd, meta)))
            }
            (Op::Stat { .. }, Ok(fd)) => {
                self.counters.system_calls += 2;
                file_outcome(nonblocking::meta(&owned(fd)).map(Done::Stat))
            }
            (Op::Read { .. }, Ok(n)) => read(entry.note.memory, n as usize),
            (op, Ok(_)) => unreachable!("it has many answers: {op:?}"),
        };
        out.push_back(Completion::last(token, outcome));
    }

    /// In which mode the ring runs.
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

fn owned(fd: u32) -> OwnedFd {
    // SAFETY: the kernel has just opened it for this operation, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

fn read(memory: Memory, n: usize) -> Outcome {
    let Memory::Bytes(mut bytes) = memory else { unreachable!("a read has memory") };
    assert!(n <= bytes.capacity(), "the kernel read no more than was asked for");
    // SAFETY: the kernel has written the first `n` bytes, which lie within the capacity.
    unsafe { bytes.set_len(n) };
    file_outcome(Ok(Done::Read(bytes)))
}
