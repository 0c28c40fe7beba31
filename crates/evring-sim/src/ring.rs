//! A simulated io_uring.

mod execute;
mod task;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;

use io_uring::opcode;
use io_uring::squeue::Entry as Sqe;
use rustix::io::Errno;
use shared_ring::Token;
use shared_ring::nonblocking::FileRange;
use shared_ring::sockets::Datagram;
use shared_ring::uring::Mode;
use shared_ring::uring::{Cqe, Entries, Feature, Ring};

use crate::fault::Fault;
use crate::machine::Machine;
use crate::memory::MemoryHold;
use crate::number;
use crate::plan::Unsupported;
use crate::provided::Buffers;
use crate::state::{DescriptorKind, Event, WaitOutcome};
use crate::submission::{
    ACCEPT_MULTISHOT, BUFFER_SELECT, CANCEL_ALL, CQE_MORE, POLL_MULTISHOT, RECV_MULTISHOT,
    RECVMSG_OUT_BYTES, SKIP_SUCCESS, Submission, message, open_access, socket_address,
};
use task::{RingOp, Task};

/// A simulated ring.
pub struct SimRing {
    machine: Machine,
    mode: Mode,
    /// Submissions not yet taken, and what they pass to the kernel.
    submissions: VecDeque<(Submission, Passed)>,
    max_submissions: usize,
    completions: VecDeque<Cqe>,
    max_completions: usize,
    overflow: VecDeque<Cqe>,
    overflowed: bool,
    in_flight: Vec<RingOp>,
    serial: u64,
    /// File operations that no worker has started.
    unstarted: VecDeque<u64>,
    max_workers: usize,
    /// The provided buffers of each group.
    buffers: BTreeMap<u16, Buffers>,
}

impl std::fmt::Debug for SimRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimRing").field("in_flight", &self.in_flight.len()).finish_non_exhaustive()
    }
}

/// What a submission passes to the kernel.
struct Passed {
    memory: Vec<MemoryHold>,
    /// Distinguishes its descriptor from a later one with the same number.
    opening: Option<u32>,
}

/// Usual maximum time of a worker's file operation, in microseconds.
const MAX_FILE_OP_MICROS: usize = 5_000;

impl SimRing {
    fn fail(&self, message: impl Into<String>) {
        self.machine.state().fail(message);
    }

    /// Fails the run if an operation with this token is in flight, except for copies of one accept.
    fn check_name(&self, sqe: &Submission) {
        let token = Token::from_bits(sqe.user_data);
        let twin = self.in_flight.iter().find(|op| op.user_data == sqe.user_data);
        let is_copy = matches!(twin, Some(RingOp { task: Task::Accept { .. }, fd, .. })
            if sqe.opcode == opcode::Accept::CODE && fd.raw() == sqe.fd);
        if twin.is_some() && !is_copy && sqe.opcode != opcode::AsyncCancel::CODE {
            self.fail(format!("{token:?} is submitted although it is in flight"));
        }
    }

    fn issue(&mut self, sqe: &Submission, passed: Passed) {
        let Passed { memory: mut holds, opening } = passed;
        let token = Token::from_bits(sqe.user_data);
        let mut state = self.machine.state();
        state.usage.queued -= 1;
        state.note(|| format!("issue {token:?} on fd {}", sqe.fd));
        if state.opening(sqe.fd) != opening {
            let fd = sqe.fd;
            state.fail(format!("{token:?} was queued on fd {fd}, which was closed before"));
        }
        drop(state);
        if holds.iter().any(|hold| !hold.is_untouched()) {
            self.fail(format!("{token:?}: the memory of the submission has changed"));
        }
        self.check_name(sqe);
        if self.refuses_file(sqe) {
            return self.report(sqe.user_data, Err(Errno::AGAIN));
        }
        let multishot_is_refused = self.machine.unsupported(Unsupported::Multishot);
        let task = match sqe.opcode {
            opcode::Accept::CODE => {
                let multishot = sqe.ioprio & ACCEPT_MULTISHOT != 0;
                if multishot && multishot_is_refused {
                    return self.report(sqe.user_data, Err(Errno::INVAL));
                }
                Task::Accept { multishot }
            }
            opcode::Recv::CODE => {
                assert!(sqe.flags & BUFFER_SELECT != 0, "receives use provided buffers");
                let multishot = sqe.ioprio & RECV_MULTISHOT != 0;
                if multishot && multishot_is_refused {
                    return self.report(sqe.user_data, Err(Errno::INVAL));
                }
                Task::Receive { multishot, group: sqe.buffer_group }
            }
            opcode::RecvMsg::CODE => {
                let header = message(holds[0].bytes());
                let room = header.msg_namelen as usize + header.msg_controllen;
                assert_eq!(room + RECVMSG_OUT_BYTES, Datagram::HEADER_BYTES);
                assert!(sqe.flags & BUFFER_SELECT != 0 && sqe.ioprio & RECV_MULTISHOT != 0);
                if multishot_is_refused {
                    return self.report(sqe.user_data, Err(Errno::INVAL));
                }
                Task::ReceiveFrom { group: sqe.buffer_group }
            }
            opcode::Send::CODE => {
                let waits = sqe.op_flags & libc::MSG_DONTWAIT as u32 == 0;
                Task::Send { pieces: holds, header: Vec::new(), to: None, waits }
            }
            opcode::SendMsg::CODE => {
                let has_name = !message(holds[0].bytes()).msg_name.is_null();
                let pieces = holds.split_off(2 + usize::from(has_name));
                let to = has_name.then(|| socket_address(holds[2].bytes()));
                let waits = sqe.op_flags & libc::MSG_DONTWAIT as u32 == 0;
                Task::Send { pieces, header: holds, to, waits }
            }
            opcode::Connect::CODE => {
                let address = holds.remove(0);
                let to = socket_address(address.bytes());
                let started = self.machine.state().start_connect(number::fd(sqe.fd), to);
                if let Err(errno) = started {
                    return self.report(sqe.user_data, Err(errno));
                }
                Task::Connect { address }
            }
            opcode::Close::CODE => return self.close(sqe),
            opcode::PollAdd::CODE => {
                let reported = (sqe.len & POLL_MULTISHOT != 0).then_some(0);
                Task::Poll { events: sqe.op_flags, reported }
            }
            opcode::OpenAt2::CODE => {
                let how = holds.pop().expect("an open has a path and its arguments");
                let access = open_access(how.bytes());
                Task::Open { path: holds.remove(0), access }
            }
            opcode::Read::CODE => self.read(sqe, holds.remove(0)),
            opcode::Write::CODE => Task::Write { from: holds.remove(0), at: sqe.write_at() },
            opcode::AsyncCancel::CODE => return self.cancel(sqe),
            other => return self.fail(format!("unknown operation code {other}")),
        };
        self.begin(sqe, task);
    }

    /// Returns whether a submission uses a file in a way that this machine's ring refuses.
    fn refuses_file(&self, sqe: &Submission) -> bool {
        matches!(sqe.opcode, opcode::Read::CODE | opcode::Write::CODE)
            && self.machine.unsupported(Unsupported::NonblockingDisk)
            && !matches!(
                self.machine.state().kind(number::fd(sqe.fd), "read"),
                Ok(DescriptorKind::Event(_))
            )
    }

    /// Begins a read of a waker's counter or of a file.
    fn read(&self, sqe: &Submission, into: MemoryHold) -> Task {
        let file = number::fd(sqe.fd);
        let mut state = self.machine.state();
        match state.kind(file, "read") {
            Ok(DescriptorKind::Event(_)) => Task::Counter { into },
            _ => Task::Read { into, part: FileRange { file, offset: sqe.offset, len: sqe.len } },
        }
    }

    fn begin(&mut self, sqe: &Submission, task: Task) {
        self.serial += 1;
        let (serial, fd) = (self.serial, number::fd(sqe.fd));
        let is_timed = task.is_timed();
        let is_inline = matches!(task, Task::Send { .. } | Task::Poll { .. });
        let part = if let Task::Read { part, .. } = task { Some(part) } else { None };
        let user_data = sqe.user_data;
        let opening = self.machine.state().opening(sqe.fd);
        self.in_flight.push(RingOp { serial, user_data, fd, opening, task, started: false });
        if is_timed {
            let mut state = self.machine.state();
            let is_cold = state.rng.fault(Fault::Cold)
                || state.disk_time.is_some() && part.is_some_and(|part| state.misses(part));
            if is_cold {
                drop(state);
                self.unstarted.push_back(serial);
                self.start_file_ops();
            } else {
                state.after(Duration::ZERO, Event::Operation(serial));
            }
        } else if is_inline && !self.machine.state().rng.once_in(8) {
            self.advance(serial);
        } else {
            self.machine.state().mark_changed(fd.raw() as u32);
        }
    }

    /// Starts file operations on idle workers.
    fn start_file_ops(&mut self) {
        while !self.unstarted.is_empty()
            && self.in_flight.iter().filter(|op| op.started).count() < self.max_workers
            && let Some(serial) = self.unstarted.pop_front()
        {
            // It may have been cancelled.
            let op = self.in_flight.iter_mut().find(|op| op.serial == serial);
            if let Some(op) = op {
                op.started = true;
                let completion = Event::Operation(serial);
                self.machine.state().start_file_op(op.fd, MAX_FILE_OP_MICROS, completion);
            }
        }
    }

    fn close(&mut self, sqe: &Submission) {
        let fd = number::fd(sqe.fd);
        if let Some(op) = self.in_flight.iter().find(|op| op.fd == fd) {
            let token = Token::from_bits(op.user_data);
            self.fail(format!("{fd:?} is closed while {token:?} is in flight on it"));
        }
        self.machine.state().close(fd);
        self.report(sqe.user_data, Ok(0));
    }

    fn cancel(&mut self, sqe: &Submission) {
        let target = sqe.address;
        let named = |op: &&RingOp| op.user_data == target;
        let serials: Vec<_> = self.in_flight.iter().filter(named).map(|op| op.serial).collect();
        let mut found = 0;
        let mut errno = Errno::NOENT;
        for serial in serials {
            let unstarted = self.unstarted.contains(&serial);
            let blocked = self.machine.state().is_blocked(Event::Operation(serial));
            if !unstarted && !blocked && self.machine.state().rng.fault(Fault::CancelLoses) {
                self.complete_due(serial);
                self.advance(serial);
            }
            let Some(op) = self.in_flight.iter().find(|op| op.serial == serial) else { continue };
            found += 1;
            // An operation that a worker has started is not cancelled.
            let started = !unstarted && op.task.is_timed() && self.machine.state().rng.once_in(2);
            if blocked || started {
                errno = Errno::ALREADY;
            } else {
                self.end(serial, Err(Errno::CANCELED), 0);
            }
        }
        let all = sqe.op_flags & CANCEL_ALL != 0;
        if !all && (found == 0 || errno == Errno::ALREADY) {
            self.report(sqe.user_data, Err(errno));
        } else if sqe.flags & SKIP_SUCCESS == 0 {
            self.report(sqe.user_data, Ok(found));
        }
    }

    fn report(&mut self, user_data: u64, result: Result<u32, Errno>) {
        self.post(user_data, result, 0);
    }

    /// Posts a completion to the queue, or to the overflow list if the queue is full.
    fn post(&mut self, user_data: u64, result: Result<u32, Errno>, flags: u32) {
        let result = result.map_or_else(|errno| -errno.raw_os_error(), |n| n as i32);
        let cqe = Cqe { user_data, result, flags };
        let token = Token::from_bits(user_data);
        self.machine.state().note(|| format!("completion of {token:?}: {result}, {flags:#x}"));
        if self.queue_is_full() {
            self.overflowed = true;
            self.overflow.push_back(cqe);
        } else {
            self.completions.push_back(cqe);
        }
    }

    fn queue_is_full(&self) -> bool {
        self.completions.len() >= self.max_completions || !self.overflow.is_empty()
    }

    /// Ends an operation.
    fn end(&mut self, serial: u64, result: Result<u32, Errno>, flags: u32) {
        let Some(at) = self.in_flight.iter().position(|op| op.serial == serial) else { return };
        let op = self.in_flight.swap_remove(at);
        if !op.task.is_untouched() {
            let token = Token::from_bits(op.user_data);
            self.fail(format!("{token:?}: the program has written to its memory"));
        }
        if op.started {
            self.machine.state().end_file_op(Event::Operation(serial));
            self.start_file_ops();
        }
        self.post(op.user_data, result, flags);
    }

    /// Posts a result of an operation that may have more; the last one of an operation that does
    /// not.
    fn post_result(&mut self, serial: u64, multishot: bool, result: u32, flags: u32) {
        let ends = self.machine.state().rng.fault(Fault::MultishotEnds);
        if !multishot || ends || self.queue_is_full() {
            return self.end(serial, Ok(result), flags);
        }
        let op = self.in_flight.iter().find(|op| op.serial == serial);
        let user_data = op.expect("it is in flight").user_data;
        self.post(user_data, Ok(result), flags | CQE_MORE);
    }

    /// Performs all or some of the work that has become possible.
    fn process(&mut self) {
        self.machine.state().check_freed();
        if self.machine.state().failure().is_some() {
            return;
        }
        let collected: Result<(), _> = self.buffers.values_mut().try_for_each(Buffers::collect);
        if let Err(message) = collected {
            self.fail(message);
        }
        let due = std::mem::take(&mut self.machine.state().due);
        due.into_iter().for_each(|serial| self.complete_due(serial));
        loop {
            let mut state = self.machine.state();
            let Some(fd) = state.take_changed() else { return };
            let pause = state.rng.once_in(16);
            drop(state);
            let mut serials: Vec<_> =
                self.in_flight.iter().filter(|op| op.fd == fd).map(|op| op.serial).collect();
            while !serials.is_empty() {
                let at = self.machine.state().rng.below(serials.len());
                self.advance(serials.swap_remove(at));
            }
            if pause {
                return;
            }
        }
    }

    /// Moves completions from the overflow list to the queue.
    fn flush(&mut self) {
        while self.completions.len() < self.max_completions {
            let Some(cqe) = self.overflow.pop_front() else { break };
            self.completions.push_back(cqe);
        }
        self.overflowed = !self.overflow.is_empty();
    }
}

/// The operations of the simulated ring.
const OPERATIONS: [u8; 12] = [
    opcode::Accept::CODE,
    opcode::Recv::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    opcode::RecvMsg::CODE,
    opcode::Connect::CODE,
    opcode::Close::CODE,
    opcode::PollAdd::CODE,
    opcode::OpenAt2::CODE,
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::AsyncCancel::CODE,
];

impl Ring for SimRing {
    type System = Machine;

    fn setup(machine: &Machine, mode: Mode, entries: Entries) -> io::Result<Self> {
        let refused = |errno: Errno| Err(errno.into());
        if machine.unsupported(Unsupported::Uring) {
            return refused(Errno::NOSYS);
        }
        if machine.unsupported(Unsupported::Permission) {
            return refused(Errno::PERM);
        }
        if machine.unsupported(Unsupported::Memory) {
            return refused(Errno::NOMEM);
        }
        if machine.unsupported(Unsupported::Modes) {
            return refused(Errno::INVAL);
        }
        // Short queues are full more often.
        let mut state = machine.state();
        let max_submissions = [2, 4, 16, 64][state.rng.below(4)].min(entries.submissions);
        let max_completions = [4, 8, 32, 128][state.rng.below(4)].min(entries.completions);
        drop(state);
        Ok(SimRing {
            machine: machine.clone(),
            mode,
            submissions: VecDeque::new(),
            max_submissions: max_submissions as usize,
            completions: VecDeque::new(),
            max_completions: max_completions as usize,
            overflow: VecDeque::new(),
            overflowed: false,
            in_flight: Vec::new(),
            serial: 0,
            unstarted: VecDeque::new(),
            max_workers: usize::MAX,
            buffers: BTreeMap::new(),
        })
    }

    fn has_feature(&self, feature: Feature) -> bool {
        !self.machine.unsupported(Unsupported::Without(feature))
    }

    fn first_unsupported(
        &self,
        operations: &[(u8, &'static str)],
    ) -> io::Result<Option<&'static str>> {
        let mut operations = operations.iter();
        let unsupported = operations.find(|(code, _)| {
            !OPERATIONS.contains(code) || self.machine.unsupported(Unsupported::Operation(*code))
        });
        Ok(unsupported.map(|(_, name)| *name))
    }

    unsafe fn register_buffers(&mut self, address: u64, count: u16, group: u16) -> io::Result<()> {
        if self.machine.unsupported(Unsupported::BufferRings) {
            return Err(Errno::INVAL.into());
        }
        match self.buffers.insert(group, Buffers::new(address, count)) {
            None => Ok(()),
            Some(_) => Err(Errno::EXIST.into()),
        }
    }

    fn unregister_buffers(&mut self, group: u16) {
        self.machine.state().check_freed();
        let buffers = self.buffers.remove(&group);
        if self.machine.state().failure().is_none()
            && buffers.is_some_and(|buffers| !buffers.are_untouched())
        {
            self.fail("a buffer was written to before the ring was unregistered");
        }
    }

    fn limit_workers(&mut self, max: [u32; 2]) -> io::Result<()> {
        if self.machine.unsupported(Unsupported::WorkerBound) {
            return Err(Errno::INVAL.into());
        }
        // The first number limits the workers for files.
        self.max_workers = max[0] as usize;
        Ok(())
    }

    unsafe fn push(&mut self, sqe: &Sqe) -> bool {
        if self.is_full() {
            return false;
        }
        let sqe = Submission::read(sqe);
        // SAFETY: by the caller's promise.
        let holds = unsafe { sqe.holds() };
        let mut state = self.machine.state();
        state.usage.queued += 1;
        let opening = state.opening(sqe.fd);
        drop(state);
        self.submissions.push_back((sqe, Passed { memory: holds, opening }));
        // In other modes completions are posted while the program runs.
        if self.mode != Mode::Deferred && self.machine.state().rng.once_in(8) {
            self.process();
        }
        true
    }

    fn queued(&mut self) -> u32 {
        self.submissions.len() as u32
    }

    fn is_full(&mut self) -> bool {
        self.submissions.len() >= self.max_submissions
    }

    fn has_taskrun(&mut self) -> bool {
        !self.machine.state().changed_fds.is_empty()
    }

    fn has_overflowed(&mut self) -> bool {
        self.overflowed
    }

    fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, Errno> {
        let mut state = self.machine.state();
        state.enter();
        if state.failure().is_some() {
            return Err(Errno::CANCELED);
        }
        if state.rng.fault(Fault::Busy) {
            return Err(if state.rng.once_in(2) { Errno::BUSY } else { Errno::AGAIN });
        }
        let until = timeout.map(|timeout| state.now + timeout);
        let queued = self.submissions.len();
        let takes = match queued {
            1.. if state.rng.fault(Fault::TakesFew) => state.rng.below(queued),
            _ => queued,
        };
        let interrupted = state.rng.fault(Fault::Interrupted);
        drop(state);
        self.flush();
        for _ in 0..takes {
            if let Some((sqe, passed)) = self.submissions.pop_front() {
                self.issue(&sqe, passed);
            }
        }
        self.process();
        let taken = takes as u32;
        let done = |errno| if taken > 0 { Ok(taken) } else { Err(errno) };
        if takes < queued {
            // The kernel does not wait then.
            return done(Errno::AGAIN);
        }
        if interrupted {
            return done(Errno::INTR);
        }
        while self.completions.len() < wanted as usize {
            let waited = self.machine.state().wait(until);
            if self.machine.state().failure().is_some() {
                return Err(Errno::CANCELED);
            }
            self.process();
            if waited == WaitOutcome::TimedOut {
                return done(Errno::TIME);
            }
        }
        Ok(taken)
    }

    fn landed(&self) -> u32 {
        self.completions.len() as u32
    }

    fn reap(&mut self, into: &mut VecDeque<Cqe>) {
        if self.machine.state().ring_is_busy {
            self.fail("a signal handler takes completions while their kernel runs");
        }
        // In other modes completions are posted at any time.
        if self.mode != Mode::Deferred {
            self.process();
        }
        into.extend(self.completions.drain(..));
    }
}

impl Drop for SimRing {
    fn drop(&mut self) {
        self.machine.state().usage.queued -= self.submissions.len();
        if self.machine.state().failure().is_none() {
            for op in std::mem::take(&mut self.in_flight) {
                if self.machine.state().is_blocked(Event::Operation(op.serial)) {
                    // If it ever ends, it writes to its memory.
                    let (Task::Open { path: hold, .. }
                    | Task::Read { into: hold, .. }
                    | Task::Write { from: hold, .. }) = op.task
                    else {
                        unreachable!("only file operations hang")
                    };
                    self.machine.state().abandoned_memory.push(hold);
                    continue;
                }
                let token = Token::from_bits(op.user_data);
                self.fail(format!("{token:?} is still in flight when the ring is closed"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use io_uring::types;
    use shared_ring::sockets::ListenOptions;
    use shared_ring::{Host, OpKind};

    use super::*;
    use crate::{Faults, Plan};

    /// Polls a socket. Closes it when the ring has taken the poll, or before, and opens another one with its number.
    fn poll_and_close(is_taken: bool, closes: bool) -> Option<String> {
        let plan = Plan { faults: Faults::NONE, ..Plan::default() };
        let mut machine = Machine::new(&plan);
        let entries = Entries { submissions: 4, completions: 4 };
        let mut ring = SimRing::setup(&machine, Mode::Deferred, entries).unwrap();
        let at = ([127, 0, 0, 1], 0).into();
        let (listener, at) = machine.listen(at, &ListenOptions::new(4)).unwrap();
        let peer = machine.manual_peer();
        let accept = |machine: &mut Machine| {
            peer.with(|net| net.connect(at)).expect("the listener has room");
            machine.accept(&listener).unwrap()
        };
        let socket = accept(&mut machine);
        let fd = number::of(&socket);
        let poll = opcode::PollAdd::new(types::Fd(fd.raw()), libc::POLLIN as u32).build();
        // SAFETY: a poll has no memory.
        assert!(unsafe { ring.push(&poll.user_data(Token::new(OpKind::Send, 0, 0).bits())) });
        assert_eq!(machine.queued_submissions(), 1);
        if is_taken {
            assert_eq!(ring.enter(0, None), Ok(1));
        }
        if closes {
            machine.close_unused(socket);
            assert_eq!(number::of(&accept(&mut machine)), fd, "the number is in use again");
        }
        machine.state().mark_changed(fd.raw() as u32);
        let _ = ring.enter(0, None);
        assert_eq!(machine.queued_submissions(), 0);
        machine.failure()
    }

    #[test]
    fn operation_reached_the_next_socket_with_its_number() {
        for (is_taken, message) in [(false, "was queued on"), (true, "was in flight on it")] {
            assert_eq!(poll_and_close(is_taken, false), None);
            let failure = poll_and_close(is_taken, true);
            assert!(failure.is_some_and(|failure| failure.contains(message)), "{message}");
        }
    }
}
