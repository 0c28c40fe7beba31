//! A simulated io_uring.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use io_uring::opcode;
use io_uring::squeue::Entry as Sqe;
use rustix::io::Errno;

use super::fault::Fault;
use super::machine::Machine;
use super::memory::MemoryHold;
use super::plan::Unsupported;
use super::provided::Buffers;
use super::state::{DescriptorKind, Event, Passed};
use super::submission::{
    ACCEPT_MULTISHOT, BUFFER_SELECT, CANCEL_ALL, CQE_BUFFER, CQE_MORE, RECV_MULTISHOT,
    SKIP_SUCCESS, Submission, socket_address,
};
use crate::nonblocking::FileRange;
use crate::uring::{Cqe, Entries, Feature, Mode, Ring};
use crate::{Fd, System, Token};

/// What an operation in flight does.
#[derive(Debug)]
enum Task {
    Accept {
        multishot: bool,
    },
    Receive {
        multishot: bool,
    },
    /// What is sent, piece by piece, behind what describes it.
    Send {
        pieces: Vec<MemoryHold>,
        header: Vec<MemoryHold>,
    },
    Connect {
        address: MemoryHold,
    },
    Poll,
    /// A read of a waker's counter.
    Count {
        into: MemoryHold,
    },
    /// An open, which is done when its time has come.
    Open {
        path: MemoryHold,
    },
    /// A read of a file, which is done when its time has come.
    Read {
        into: MemoryHold,
        part: FileRange,
    },
}

impl Task {
    /// Whether it is done by a worker, at its time.
    fn is_timed(&self) -> bool {
        matches!(self, Task::Open { .. } | Task::Read { .. })
    }

    /// Whether nobody but the kernel has written to the memory that it was given.
    fn is_untouched(&self) -> bool {
        match self {
            Task::Accept { .. } | Task::Receive { .. } | Task::Poll => true,
            Task::Send { pieces, header } => {
                pieces.iter().chain(header).all(MemoryHold::is_untouched)
            }
            Task::Connect { address: hold } | Task::Count { into: hold } => hold.is_untouched(),
            Task::Open { path: hold } | Task::Read { into: hold, .. } => hold.is_untouched(),
        }
    }
}

#[derive(Debug)]
struct RingOp {
    /// Names an operation for good.
    serial: u64,
    user_data: u64,
    fd: Fd,
    task: Task,
    /// A worker has begun with it.
    begun: bool,
}

/// A simulated ring.
pub struct SimRing {
    machine: Machine,
    mode: Mode,
    /// What waits to be taken, and the memory that it gives to the kernel.
    submissions: VecDeque<(Submission, Vec<MemoryHold>)>,
    most_submissions: usize,
    completions: VecDeque<Cqe>,
    most_completions: usize,
    overflow: VecDeque<Cqe>,
    overflowed: bool,
    in_flight: Vec<RingOp>,
    serial: u64,
    /// File work that no worker has begun.
    waiting: VecDeque<u64>,
    most_workers: usize,
    buffers: Option<Buffers>,
}

/// File work that is not begun usually takes less than so many microseconds.
const USUAL: usize = 5_000;

impl SimRing {
    fn fail(&self, what: impl Into<String>) {
        self.machine.state().fail(what);
    }

    /// Whether an operation may be named so: none of the name is in flight, but for the copies of
    /// one accept.
    fn check_name(&self, sqe: &Submission) {
        let token = Token::from_bits(sqe.user_data);
        let twin = self.in_flight.iter().find(|op| op.user_data == sqe.user_data);
        let copies = matches!(twin, Some(RingOp { task: Task::Accept { .. }, fd, .. })
            if sqe.opcode == opcode::Accept::CODE && fd.raw() == sqe.fd);
        if twin.is_some() && !copies && sqe.opcode != opcode::AsyncCancel::CODE {
            self.fail(format!("{token:?} is submitted while one of its name is in flight"));
        }
    }

    fn issue(&mut self, sqe: &Submission, mut holds: Vec<MemoryHold>) {
        let token = Token::from_bits(sqe.user_data);
        self.machine.state().note(|| format!("issue {token:?} on fd {}", sqe.fd));
        if holds.iter().any(|hold| !hold.is_untouched()) {
            self.fail(format!("{token:?}: what was submitted has changed since"));
        }
        self.check_name(sqe);
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
                assert!(sqe.flags & BUFFER_SELECT != 0, "receives take provided buffers");
                let multishot = sqe.ioprio & RECV_MULTISHOT != 0;
                if multishot && multishot_is_refused {
                    return self.report(sqe.user_data, Err(Errno::INVAL));
                }
                Task::Receive { multishot }
            }
            opcode::Send::CODE => Task::Send { pieces: holds, header: Vec::new() },
            opcode::SendMsg::CODE => {
                let pieces = holds.split_off(2);
                Task::Send { pieces, header: holds }
            }
            opcode::Connect::CODE => {
                let address = holds.remove(0);
                let to = socket_address(address.bytes());
                let begun = self.machine.state().start_connect(Fd::from_raw(sqe.fd), to);
                if let Err(errno) = begun {
                    return self.report(sqe.user_data, Err(errno));
                }
                Task::Connect { address }
            }
            opcode::Close::CODE => return self.close(sqe),
            opcode::PollAdd::CODE => Task::Poll,
            opcode::OpenAt2::CODE => Task::Open { path: holds.remove(0) },
            opcode::Read::CODE => self.read(sqe, holds.remove(0)),
            opcode::AsyncCancel::CODE => return self.cancel(sqe),
            other => return self.fail(format!("an operation of code {other} is not known")),
        };
        self.begin(sqe, task);
    }

    /// A waker's counter or part of a file.
    fn read(&self, sqe: &Submission, into: MemoryHold) -> Task {
        let file = Fd::from_raw(sqe.fd);
        let mut state = self.machine.state();
        match state.what(file, "read") {
            Ok(DescriptorKind::Event(_)) => Task::Count { into },
            _ => Task::Read { into, part: FileRange { file, offset: sqe.offset, len: sqe.len } },
        }
    }

    fn begin(&mut self, sqe: &Submission, task: Task) {
        self.serial += 1;
        let (serial, fd) = (self.serial, Fd::from_raw(sqe.fd));
        let timed = task.is_timed();
        let inline = matches!(task, Task::Send { .. } | Task::Poll);
        let begun = false;
        self.in_flight.push(RingOp { serial, user_data: sqe.user_data, fd, task, begun });
        if timed {
            let mut state = self.machine.state();
            if state.rng.fault(Fault::Cold) {
                drop(state);
                self.waiting.push_back(serial);
                self.begin_waiting();
            } else {
                state.after(Duration::ZERO, Event::Operation(serial));
            }
        } else if inline && !self.machine.state().rng.once_in(8) {
            self.go_on(serial);
        } else {
            self.machine.state().mark_changed(fd.raw() as u32);
        }
    }

    /// Has workers that have nothing to do begin file work that waits.
    fn begin_waiting(&mut self) {
        while !self.waiting.is_empty()
            && self.in_flight.iter().filter(|op| op.begun).count() < self.most_workers
            && let Some(serial) = self.waiting.pop_front()
        {
            // It may have been cancelled.
            let op = self.in_flight.iter_mut().find(|op| op.serial == serial);
            if let Some(op) = op {
                op.begun = true;
                let end = Event::Operation(serial);
                let _ = self.machine.state().begin_file_work(op.fd, USUAL, end);
            }
        }
    }

    fn close(&mut self, sqe: &Submission) {
        let fd = Fd::from_raw(sqe.fd);
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
            let waits = self.waiting.contains(&serial);
            let stuck = self.machine.state().is_stuck(Event::Operation(serial));
            if !waits && !stuck && self.machine.state().rng.fault(Fault::CancelLoses) {
                self.due(serial);
                self.go_on(serial);
            }
            let Some(op) = self.in_flight.iter().find(|op| op.serial == serial) else { continue };
            found += 1;
            // What a worker has begun goes on to its end.
            let goes_on = !waits && op.task.is_timed() && self.machine.state().rng.once_in(2);
            if stuck || goes_on {
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

    /// Puts a completion into the queue, or behind it.
    fn post(&mut self, user_data: u64, result: Result<u32, Errno>, flags: u32) {
        let result = result.map_or_else(|errno| -errno.raw_os_error(), |n| n as i32);
        let cqe = Cqe { user_data, result, flags };
        let token = Token::from_bits(user_data);
        self.machine.state().note(|| format!("completion of {token:?}: {result}, {flags:#x}"));
        if self.is_crowded() {
            self.overflowed = true;
            self.overflow.push_back(cqe);
        } else {
            self.completions.push_back(cqe);
        }
    }

    fn is_crowded(&self) -> bool {
        self.completions.len() >= self.most_completions || !self.overflow.is_empty()
    }

    /// Ends an operation.
    fn end(&mut self, serial: u64, result: Result<u32, Errno>, flags: u32) {
        let Some(at) = self.in_flight.iter().position(|op| op.serial == serial) else { return };
        let op = self.in_flight.swap_remove(at);
        if !op.task.is_untouched() {
            let token = Token::from_bits(op.user_data);
            self.fail(format!("{token:?}: the memory that it was given was written to"));
        }
        if op.begun {
            self.machine.state().end_file_work(Event::Operation(serial));
            self.begin_waiting();
        }
        self.post(op.user_data, result, flags);
    }

    /// Reports something of an operation that goes on, unless it ends here.
    fn tell(&mut self, serial: u64, multishot: bool, result: u32, flags: u32) {
        let ends = self.machine.state().rng.fault(Fault::MultishotEnds);
        if !multishot || ends || self.is_crowded() {
            return self.end(serial, Ok(result), flags);
        }
        let op = self.in_flight.iter().find(|op| op.serial == serial);
        let user_data = op.expect("it is in flight").user_data;
        self.post(user_data, Ok(result), flags | CQE_MORE);
    }

    /// Does what is possible now of an operation.
    fn go_on(&mut self, serial: u64) {
        let Some(at) = self.in_flight.iter().position(|op| op.serial == serial) else { return };
        let fd = self.in_flight[at].fd;
        match &self.in_flight[at].task {
            Task::Accept { multishot } => self.accept(serial, fd, *multishot),
            Task::Receive { multishot } => self.receive(serial, fd, *multishot),
            Task::Send { .. } => self.send(at),
            Task::Connect { .. } => {
                let outcome = self.machine.clone().connected(fd);
                if outcome != Err(Errno::INPROGRESS) {
                    self.end(serial, outcome.map(|()| 0), 0);
                }
            }
            Task::Poll => {
                let mut state = self.machine.state();
                let Ok(end) = state.connected(fd, "poll") else { return };
                let ready = state.of(end).can_write(end.side);
                state.of(end).ask_for_room(end.side);
                drop(state);
                if ready {
                    self.end(serial, Ok(libc::POLLOUT as u32), 0);
                }
            }
            Task::Count { .. } => self.count(at),
            Task::Open { .. } | Task::Read { .. } => {}
        }
    }

    fn accept(&mut self, serial: u64, fd: Fd, multishot: bool) {
        let accepted = self.machine.state().accept(fd);
        match accepted {
            Ok(new) => self.tell(serial, multishot, new.raw() as u32, 0),
            Err(Errno::AGAIN) => return,
            Err(errno) => self.end(serial, Err(errno), 0),
        }
        // There may be more, for this one or for another.
        self.machine.state().mark_changed(fd.raw() as u32);
    }

    fn receive(&mut self, serial: u64, fd: Fd, multishot: bool) {
        let mut state = self.machine.state();
        let Ok(end) = state.connected(fd, "receive") else {
            drop(state);
            return self.end(serial, Err(Errno::NOTCONN), 0);
        };
        let can_read = state.of(end).can_read(end.side);
        let refused = state.rng.fault(Fault::NoBuffers);
        drop(state);
        // A buffer is looked for first, whether there is something to receive or not.
        let Some((id, mut hold)) = self.buffers.as_mut().and_then(Buffers::take) else {
            return self.end(serial, Err(Errno::NOBUFS), 0);
        };
        if refused || !can_read {
            self.give_back(id, hold);
            return if refused {
                self.end(serial, Err(Errno::NOBUFS), 0)
            };
        }
        if !hold.is_untouched() {
            self.fail(format!("buffer {id} was written to while the kernel held it"));
        }
        let max = self.machine.short(hold.bytes().len(), Fault::ShortReceive);
        let mut bytes = vec![0; max];
        match self.machine.receive(fd, &mut bytes) {
            Ok(n @ 1..) => {
                hold.fill(&bytes[..n]);
                drop(hold);
                self.tell(serial, multishot, n as u32, CQE_BUFFER | u32::from(id) << 16);
                self.machine.state().mark_changed(fd.raw() as u32);
            }
            Ok(0) => {
                self.give_back(id, hold);
                self.end(serial, Ok(0), 0);
            }
            Err(errno) => {
                self.give_back(id, hold);
                self.end(serial, Err(errno), 0);
            }
        }
    }

    fn give_back(&mut self, id: u16, hold: MemoryHold) {
        if let Some(buffers) = &mut self.buffers {
            buffers.put_back(id, hold);
        }
    }

    fn send(&mut self, at: usize) {
        let RingOp { serial, fd, ref task, .. } = self.in_flight[at];
        let Task::Send { pieces, .. } = task else { return };
        let slices: Vec<_> = pieces.iter().map(|hold| IoSlice::new(hold.bytes())).collect();
        match self.machine.send_all(fd, &slices) {
            Ok(n) => self.end(serial, Ok(n as u32), 0),
            Err(Errno::AGAIN) => {}
            Err(errno) => self.end(serial, Err(errno), 0),
        }
    }

    fn count(&mut self, at: usize) {
        let RingOp { serial, fd, .. } = self.in_flight[at];
        let count = match self.machine.state().what(fd, "read") {
            Ok(DescriptorKind::Event(counter)) => {
                counter.swap(0, std::sync::atomic::Ordering::AcqRel)
            }
            _ => 0,
        };
        if count == 0 {
            return;
        }
        if let Task::Count { into } = &mut self.in_flight[at].task {
            if !into.is_untouched() {
                self.machine.state().fail("a waker's counter was written to by the program");
            }
            into.fill(&count.to_ne_bytes());
        }
        self.end(serial, Ok(8), 0);
    }

    /// The time of an operation has come.
    fn due(&mut self, serial: u64) {
        let Some(at) = self.in_flight.iter().position(|op| op.serial == serial) else { return };
        let (fd, user_data) = (self.in_flight[at].fd, self.in_flight[at].user_data);
        match &mut self.in_flight[at].task {
            Task::Open { path } => {
                let path = path.bytes().strip_suffix(b"\0").unwrap_or_default();
                let opened = self.machine.open(fd, path);
                self.end(serial, opened.map(|fd| fd.raw() as u32), 0);
            }
            Task::Read { into, part } => {
                if !into.is_untouched() {
                    let token = Token::from_bits(user_data);
                    let what = format!("{token:?}: what is being read into was written to");
                    return self.machine.state().fail(what);
                }
                let read = self.machine.read(*part);
                if let Ok(bytes) = &read {
                    into.fill(bytes);
                }
                self.end(serial, read.map(|bytes| bytes.len() as u32), 0);
            }
            _ => {}
        }
    }

    /// Has the kernel do what has become possible, or some of it.
    fn work(&mut self) {
        self.machine.state().check_freed();
        if self.machine.state().failure().is_some() {
            return;
        }
        if let Some(buffers) = &mut self.buffers
            && let Err(what) = buffers.look()
        {
            self.fail(what);
        }
        let due = std::mem::take(&mut self.machine.state().due);
        due.into_iter().for_each(|serial| self.due(serial));
        loop {
            let mut state = self.machine.state();
            let Some(fd) = state.take_changed() else { return };
            let later = state.rng.once_in(16);
            drop(state);
            let mut serials: Vec<_> =
                self.in_flight.iter().filter(|op| op.fd == fd).map(|op| op.serial).collect();
            while !serials.is_empty() {
                let at = self.machine.state().rng.below(serials.len());
                self.go_on(serials.swap_remove(at));
            }
            if later {
                return;
            }
        }
    }

    /// Moves what had no room into the queue.
    fn flush(&mut self) {
        while self.completions.len() < self.most_completions {
            let Some(cqe) = self.overflow.pop_front() else { break };
            self.completions.push_back(cqe);
        }
        self.overflowed = !self.overflow.is_empty();
    }
}

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
        let most_submissions = [2, 4, 16, 64][state.rng.below(4)].min(entries.submissions);
        let most_completions = [4, 8, 32, 128][state.rng.below(4)].min(entries.completions);
        drop(state);
        Ok(SimRing {
            machine: machine.clone(),
            mode,
            submissions: VecDeque::new(),
            most_submissions: most_submissions as usize,
            completions: VecDeque::new(),
            most_completions: most_completions as usize,
            overflow: VecDeque::new(),
            overflowed: false,
            in_flight: Vec::new(),
            serial: 0,
            waiting: VecDeque::new(),
            most_workers: usize::MAX,
            buffers: None,
        })
    }

    fn has_feature(&self, what: Feature) -> bool {
        !self.machine.unsupported(Unsupported::Without(what))
    }

    fn first_unsupported(
        &self,
        operations: &[(u8, &'static str)],
    ) -> io::Result<Option<&'static str>> {
        let mut operations = operations.iter();
        let unsupported =
            operations.find(|(code, _)| self.machine.unsupported(Unsupported::Operation(*code)));
        Ok(unsupported.map(|(_, name)| *name))
    }

    unsafe fn register_buffers(&mut self, address: u64, count: u16, _group: u16) -> io::Result<()> {
        if self.machine.unsupported(Unsupported::BufferRings) {
            return Err(Errno::INVAL.into());
        }
        self.buffers = Some(Buffers::new(address, count));
        Ok(())
    }

    fn unregister_buffers(&mut self, _group: u16) {
        self.machine.state().check_freed();
        if self.machine.state().failure().is_none()
            && self.buffers.take().is_some_and(|buffers| !buffers.are_untouched())
        {
            self.fail("a buffer was written to before it was withdrawn");
        }
        self.buffers = None;
    }

    fn limit_workers(&mut self, timeout: [u32; 2]) -> io::Result<()> {
        if self.machine.unsupported(Unsupported::WorkerBound) {
            return Err(Errno::INVAL.into());
        }
        // Of files that wait for a disk.
        self.most_workers = timeout[0] as usize;
        Ok(())
    }

    unsafe fn push(&mut self, sqe: &Sqe) -> bool {
        if self.is_full() {
            return false;
        }
        let sqe = Submission::read(sqe);
        // SAFETY: by the caller's promise.
        let holds = unsafe { sqe.holds() };
        self.submissions.push_back((sqe, holds));
        // Otherwise completions land while the program does something else.
        if self.mode != Mode::Deferred && self.machine.state().rng.once_in(8) {
            self.work();
        }
        true
    }

    fn queued(&mut self) -> u32 {
        self.submissions.len() as u32
    }

    fn is_full(&mut self) -> bool {
        self.submissions.len() >= self.most_submissions
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
            if let Some((sqe, holds)) = self.submissions.pop_front() {
                self.issue(&sqe, holds);
            }
        }
        self.work();
        let taken = takes as u32;
        let done = |errno| if taken > 0 { Ok(taken) } else { Err(errno) };
        if takes < queued {
            // Then the kernel does not wait.
            return done(Errno::AGAIN);
        }
        if interrupted {
            return done(Errno::INTR);
        }
        while self.completions.len() < wanted as usize {
            let passed = self.machine.state().wait(until);
            if self.machine.state().failure().is_some() {
                return Err(Errno::CANCELED);
            }
            self.work();
            if passed == Passed::Over {
                return done(Errno::TIME);
            }
        }
        Ok(taken)
    }

    fn landed(&self) -> u32 {
        self.completions.len() as u32
    }

    fn reap(&mut self, into: &mut VecDeque<Cqe>) {
        if self.machine.state().ring_is_used {
            self.fail("a signal handler takes completions while their kernel is at work");
        }
        // Otherwise completions land at any time.
        if self.mode != Mode::Deferred {
            self.work();
        }
        into.extend(self.completions.drain(..));
    }
}

impl Drop for SimRing {
    fn drop(&mut self) {
        if self.machine.state().failure().is_none() {
            for op in std::mem::take(&mut self.in_flight) {
                if self.machine.state().is_stuck(Event::Operation(op.serial)) {
                    // It writes to its memory still, if it ever ends.
                    let (Task::Open { path: hold } | Task::Read { into: hold, .. }) = op.task
                    else {
                        unreachable!("nothing else hangs")
                    };
                    self.machine.state().kept.push(hold);
                    continue;
                }
                let token = Token::from_bits(op.user_data);
                self.fail(format!("{token:?} is in flight still when the ring is closed"));
            }
        }
    }
}
