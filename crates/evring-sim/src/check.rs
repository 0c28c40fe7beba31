//! A kernel that checks its interface.

use std::collections::HashMap;
use std::time::Instant;

use foldhash::fast::FixedState;
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool, GatherList};
use shared_ring::calls::Executor;
use shared_ring::files::{File, FileOp};
use shared_ring::{
    Completion, Counters, Errno, Fd, Kernel, KernelError, Occupancy, Op, OpKind, Outcome, Submit,
    SubmitError, Submitted, Token, Waker,
};

use crate::machine::Machine;
use crate::number;

/// A wrapper that checks the operations and completions of a kernel on a simulated machine.
///
/// Every completion belongs to an operation that was posted, and every operation has one last
/// completion. Tokens are unique among operations in flight. No operation ends as cancelled that
/// was not cancelled, and no descriptor is closed while in use.
pub struct CheckedKernel<K> {
    kernel: K,
    machine: Machine,
    in_flight: HashMap<Token, PostedOp, FixedState>,
}

impl<K> std::fmt::Debug for CheckedKernel<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckedKernel")
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}

/// The operation posted with a token.
#[derive(Clone, Copy, Debug)]
struct PostedOp {
    fd: Option<Fd>,
    /// The file or directory that it accesses.
    file: Option<Fd>,
    /// The offset of the part that it sends of a file.
    sends_from: Option<u64>,
    /// Several completions are possible.
    is_multishot: bool,
    cancelled: bool,
}

impl PostedOp {
    fn of(op: &Op) -> Self {
        let fd = match op {
            Op::Close { socket } => Some(number::of(socket)),
            Op::Call(_, Executor::InPlace | Executor::Ring | Executor::Thread) => None,
            op => op.fd(),
        };
        let file = match op {
            Op::File(FileOp::Open(at, _) | FileOp::Stat(at) | FileOp::List(at)) => {
                Some(number::of(&at.root))
            }
            Op::File(FileOp::Write(write)) => Some(number::of(&write.file)),
            Op::File(FileOp::Read(file, _)) | Op::SendFile { file, .. } => Some(number::of(file)),
            _ => None,
        };
        let is_multishot =
            matches!(op, Op::Accept { .. } | Op::Receive { .. } | Op::ReceiveFrom { .. });
        let sends_from = match op {
            Op::SendFile { offset, .. } => Some(*offset),
            _ => None,
        };
        PostedOp { fd, file, sends_from, is_multishot, cancelled: false }
    }
}

impl<K> CheckedKernel<K> {
    /// Wraps a kernel over a machine.
    pub fn over(kernel: K, machine: &Machine) -> Self {
        CheckedKernel { kernel, machine: machine.clone(), in_flight: HashMap::default() }
    }

    /// Notes what an outcome passes to the program.
    fn note_outcome(&self, token: Token, outcome: &Outcome) {
        match outcome {
            Outcome::Accepted(socket) => self.machine.state().usage.reported(number::of(socket)),
            Outcome::Received(bytes) => self.machine.state().usage.received(bytes),
            Outcome::Sent(_, n) if *n > GatherList::MAX_BYTES => {
                self.machine.fail(format!("{token:?} has sent {n} bytes at once"));
            }
            _ => {}
        }
    }

    /// Abandons the file operations if one hangs: any of them may hang, or be queued behind it.
    fn abandon_file_ops(&mut self) {
        let mut state = self.machine.state();
        if !state.blocked.is_empty() {
            let file_ops = self.in_flight.extract_if(|_, posting| posting.file.is_some());
            state.abandoned_files.extend(file_ops.filter_map(|(_, posting)| posting.file));
        }
    }

    /// Returns the machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}

impl<K> Drop for CheckedKernel<K> {
    fn drop(&mut self) {
        self.abandon_file_ops();
        let mut state = self.machine.state();
        state.usage.is_finishing = true;
        // After a panic nothing takes the completions; the rings check that the operations have ended.
        if std::thread::panicking() {
            return;
        }
        state.unfinished.extend(self.in_flight.keys().map(|token| format!("{token:?}")));
    }
}

// SAFETY: every call is passed on to the inner kernel; descriptors are kept only to be compared.
unsafe impl<K: Submit> Submit for CheckedKernel<K> {
    type Host = K::Host;
    const MAX_PIECE_BYTES: u64 = K::MAX_PIECE_BYTES;

    fn scans_all_fds(&self) -> bool {
        self.kernel.scans_all_fds()
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        let posting = PostedOp::of(&op);
        if let Op::Close { socket } = &op {
            // The number of a socket that was closed may be in use again before its close is reported.
            let used = |(token, other): &(&Token, &PostedOp)| {
                token.kind() != OpKind::Close && other.fd == posting.fd
            };
            if let Some((other, _)) = self.in_flight.iter().find(used) {
                self.machine.fail(format!("{socket:?} is closed while {other:?} is in flight"));
            }
        }
        if let Op::Send { data, .. } = &op {
            self.machine.state().usage.note_send(data);
        }
        if let Op::SendFile { len, .. } = &op
            && u64::from(*len) > File::MAX_PIECE_BYTES
        {
            self.machine.fail(format!("{token:?} sends {len} bytes of a file at once"));
        }
        let posted = self.kernel.submit(token, op)?;
        if let Submitted::Done(outcome) = &posted {
            self.note_outcome(token, outcome);
        }
        if self.in_flight.contains_key(&token) {
            self.machine.fail(format!("{token:?} is accepted although it is in flight"));
        }
        if let Submitted::InFlight = posted {
            self.in_flight.insert(token, posting);
            let usage = &mut self.machine.state().usage;
            usage.operations += 1;
            usage.file_operations += usize::from(token.kind() == OpKind::File);
        }
        Ok(posted)
    }

    fn cancel(&mut self, token: Token) {
        if let Some(posting) = self.in_flight.get_mut(&token) {
            posting.cancelled = true;
        }
        self.kernel.cancel(token);
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.kernel.add_buffers(buffers)
    }

    fn finish(&mut self) {
        self.abandon_file_ops();
        self.machine.state().usage.is_finishing = true;
        self.kernel.finish();
        self.machine.state().usage.is_finishing = false;
    }

    fn host(&self) -> &K::Host {
        self.kernel.host()
    }

    fn host_mut(&mut self) -> &mut K::Host {
        self.kernel.host_mut()
    }

    fn now(&self) -> Instant {
        self.kernel.now()
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn counters(&self) -> Counters {
        self.kernel.counters()
    }

    fn occupancy(&self) -> Occupancy {
        self.kernel.occupancy()
    }
}

impl<K: Kernel> Kernel for CheckedKernel<K> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        self.kernel.turn(until)
    }

    fn next(&mut self) -> Option<Completion> {
        let completion = self.kernel.next()?;
        let token = completion.token;
        if token.kind() == OpKind::Wake && matches!(completion.outcome, Outcome::Woken) {
            return Some(completion);
        }
        self.note_outcome(token, &completion.outcome);
        match self.in_flight.get(&token) {
            None => {
                self.machine.fail(format!("a completion without an operation: {completion:?}"));
            }
            Some(PostedOp { is_multishot: false, .. }) if !completion.is_last => {
                self.machine.fail(format!("a single-shot operation continues: {completion:?}"));
            }
            Some(PostedOp { cancelled: false, .. })
                if matches!(
                    completion.outcome,
                    Outcome::Failed(Errno::CANCELED, _)
                        | Outcome::Called(_, Err(Errno::CANCELED))
                        | Outcome::SentTo(_, Err(Errno::CANCELED))
                ) =>
            {
                self.machine.fail(format!("{token:?} ended as cancelled without a cancel"));
            }
            Some(posted) if completion.is_last => {
                // The file may have changed since it was looked at.
                if let (Some(from), Outcome::SentFile { bytes, .. }) =
                    (posted.sends_from, &completion.outcome)
                    && from % File::BLOCK_BYTES + u64::from(*bytes) > File::BLOCK_BYTES
                {
                    self.machine.fail(format!("{token:?} waited, and sent bytes of two blocks"));
                }
                self.in_flight.remove(&token);
                let usage = &mut self.machine.state().usage;
                usage.operations -= 1;
                usage.file_operations -= usize::from(token.kind() == OpKind::File);
            }
            Some(_) => {}
        }
        Some(completion)
    }

    fn reap(&mut self) {
        self.kernel.reap();
    }
}
