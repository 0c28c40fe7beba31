//! A kernel that is watched from above.

use std::collections::HashMap;
use std::time::Instant;

use foldhash::fast::FixedState;

use super::machine::Machine;
use crate::{
    Completion, Counters, Errno, Fd, GatherList, Kernel, KernelError, Op, OpKind, Outcome, Submit,
    SubmitError, Submitted, Token, Waker,
};

/// A kernel over a simulated machine, and a watch on what passes between it and its user: every
/// completion belongs to an operation that was posted, every operation has one last completion, no
/// name is used twice at a time, none ends as cancelled that was not, and no descriptor is closed
/// while in use.
pub struct CheckedKernel<K> {
    kernel: K,
    machine: Machine,
    in_flight: HashMap<Token, PostedOp, FixedState>,
}

/// What was posted under a name.
#[derive(Clone, Copy, Debug)]
struct PostedOp {
    fd: Option<Fd>,
    /// The file that it may need a disk for.
    file: Option<Fd>,
    /// It may have completions before the last.
    is_multishot: bool,
    cancelled: bool,
}

impl PostedOp {
    fn of(op: &Op) -> Self {
        let fd = match op {
            Op::Accept { listener: fd, .. }
            | Op::Receive { fd }
            | Op::Send { fd, .. }
            | Op::SendFile { fd, .. }
            | Op::Connect { fd, .. } => Some(*fd),
            Op::Close { socket } => Some(socket.number()),
            Op::Open { .. } | Op::Stat { .. } | Op::List { .. } | Op::Read { .. } => None,
        };
        let file = match op {
            Op::Open { root: file, .. }
            | Op::Stat { root: file, .. }
            | Op::List { root: file, .. } => Some(file.fd()),
            Op::Read { file, .. } | Op::SendFile { file, .. } => Some(file.fd()),
            _ => None,
        };
        let is_multishot = matches!(op, Op::Accept { .. } | Op::Receive { .. });
        PostedOp { fd, file, is_multishot, cancelled: false }
    }
}

impl<K> CheckedKernel<K> {
    /// Watches a kernel over a machine.
    pub fn over(kernel: K, machine: &Machine) -> Self {
        CheckedKernel { kernel, machine: machine.clone(), in_flight: HashMap::default() }
    }

    /// Notes what an outcome gives to the program.
    fn look_at(&self, token: Token, outcome: &Outcome) {
        match outcome {
            Outcome::Accepted(socket) => self.machine.state().usage.told(socket.number()),
            Outcome::Received(bytes) => self.machine.state().usage.received(bytes),
            Outcome::Sent(_, n) if *n > GatherList::MAX_BYTES => {
                self.machine.fail(format!("{token:?} has sent {n} bytes at once"));
            }
            _ => {}
        }
    }

    /// While file work hangs, what has to do with files is left as it is: it hangs, or waits behind it.
    fn leave_stuck(&mut self) {
        let mut state = self.machine.state();
        if !state.stuck.is_empty() {
            let files = self.in_flight.extract_if(|_, posting| posting.file.is_some());
            state.left.extend(files.filter_map(|(_, posting)| posting.file));
        }
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}

impl<K> Drop for CheckedKernel<K> {
    fn drop(&mut self) {
        self.leave_stuck();
        let mut state = self.machine.state();
        state.usage.ending = true;
        state.unfinished.extend(self.in_flight.keys().map(|token| format!("{token:?}")));
    }
}

// SAFETY: it hands on what its kernel says, and keeps numbers to compare them only.
unsafe impl<K: Submit> Submit for CheckedKernel<K> {
    type Host = K::Host;

    const SCANS_ALL_FDS: bool = K::SCANS_ALL_FDS;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        let posting = PostedOp::of(&op);
        if let Op::Close { socket } = &op {
            let used = |(_, other): &(&Token, &PostedOp)| other.fd == posting.fd;
            if let Some((other, _)) = self.in_flight.iter().find(used) {
                self.machine
                    .fail(format!("{socket:?} is to be closed while {other:?} is in flight"));
            }
        }
        if let Op::Send { data, .. } = &op {
            self.machine.state().usage.sends(data);
        }
        if let Op::SendFile { len, .. } = &op
            && *len as usize > GatherList::MAX_BYTES
        {
            self.machine.fail(format!("{token:?} is to send {len} bytes of a file at once"));
        }
        let posted = self.kernel.submit(token, op)?;
        if let Submitted::Done(outcome) = &posted {
            self.look_at(token, outcome);
        }
        if self.in_flight.contains_key(&token) {
            self.machine.fail(format!("{token:?} is taken while one of its name is in flight"));
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

    fn finish(&mut self) {
        self.leave_stuck();
        self.machine.state().usage.ending = true;
        self.kernel.finish();
        self.machine.state().usage.ending = false;
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

    fn landed(&self) -> u32 {
        self.kernel.landed()
    }

    fn counters(&self) -> Counters {
        self.kernel.counters()
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
        self.look_at(token, &completion.outcome);
        match self.in_flight.get(&token) {
            None => {
                self.machine.fail(format!("a completion for nothing in flight: {completion:?}"));
            }
            Some(PostedOp { is_multishot: false, .. }) if !completion.last => {
                self.machine.fail(format!("it should be the last of its kind: {completion:?}"));
            }
            Some(PostedOp { cancelled: false, .. })
                if matches!(completion.outcome, Outcome::Failed(Errno::CANCELED, _)) =>
            {
                self.machine.fail(format!("{token:?} was cancelled, but not by its user"));
            }
            Some(_) if completion.last => {
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
