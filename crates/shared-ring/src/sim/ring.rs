//! A simulated io_uring.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use io_uring::opcode;
use io_uring::squeue::Entry as Sqe;
use rustix::io::Errno;

use super::fault::Fault;
use super::machine::Machine;
use super::memory::Hold;
use super::plan::Refuses;
use super::provided::Buffers;
use super::submission::{
    ACCEPT_MULTISHOT, BUFFER_SELECT, CANCEL_ALL, CQE_BUFFER, CQE_MORE, RECV_MULTISHOT,
    SKIP_SUCCESS, Submission, socket_address,
};
use super::world::{Event, Passed, What};
use crate::nonblocking::Part;
use crate::uring::{Ability, Cqe, Entries, Mode, Ring};
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
        pieces: Vec<Hold>,
        header: Vec<Hold>,
    },
    Connect {
        address: Hold,
    },
    Poll,
    /// A read of a waker's counter.
    Count {
        into: Hold,
    },
    /// An open, which is done when its time has come.
    Open {
        path: Hold,
    },
    /// A read of a file, which is done when its time has come.
    Read {
        into: Hold,
        part: Part,
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
            Task::Send { pieces, header } => pieces.iter().chain(header).all(Hold::is_untouched),
            Task::Connect { address: hold } | Task::Count { into: hold } => hold.is_untouched(),
            Task::Open { path: hold } | Task::Read { into: hold, .. } => hold.is_untouched(),
        }
    }
}

#[derive(Debug)]
struct InFlight {
    /// Names an operation for good.
    serial: u64,
    user_data: u64,
    fd: Fd,
    task: Task,
}

/// A simulated ring.
pub struct SimRing {
    machine: Machine,
    mode: Mode,
    /// What waits to be taken, and the memory that it gives to the kernel.
    submissions: VecDeque<(Submission, Vec<Hold>)>,
    most_submissions: usize,
    completions: VecDeque<Cqe>,
    most_completions: usize,
    overflow: VecDeque<Cqe>,
    overflowed: bool,
    in_flight: Vec<InFlight>,
    serial: u64,
    buffers: Option<Buffers>,
}

impl SimRing {
    fn fail(&self, what: impl Into<String>) {
        self.machine.world().fail(what);
    }

    /// Whether an operation may be named so: none of the name is in flight, but for the copies of
    /// one accept.
    fn check_name(&self, sqe: &Submission) {
        let token = Token::from_bits(sqe.user_data);
        let twin = self.in_flight.iter().find(|op| op.user_data == sqe.user_data);
        let copies = matches!(twin, Some(InFlight { task: Task::Accept { .. }, fd, .. })
            if sqe.opcode == opcode::Accept::CODE && fd.raw() == sqe.fd);
        if twin.is_some() && !copies && sqe.opcode != opcode::AsyncCancel::CODE {
            self.fail(format!("{token:?} is submitted while one of its name is in flight"));
        }
    }

    fn issue(&mut self, sqe: &Submission, mut holds: Vec<Hold>) {
        let token = Token::from_bits(sqe.user_data);
        self.machine.world().note(|| format!("issue {token:?} on fd {}", sqe.fd));
        if holds.iter().any(|hold| !hold.is_untouched()) {
            self.fail(format!("{token:?}: what was submitted has changed since"));
        }
        self.check_name(sqe);
        let multishot_is_refused = self.machine.refuses(Refuses::Multishot);
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
                let begun = self.machine.world().begin_connect(Fd::from_raw(sqe.fd), to);
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
    fn read(&self, sqe: &Submission, into: Hold) -> Task {
        let file = Fd::from_raw(sqe.fd);
        let mut world = self.machine.world();
        match world.what(file, "read") {
            Ok(What::Event(_)) => Task::Count { into },
            _ => Task::Read { into, part: Part { file, offset: sqe.offset, len: sqe.len } },
        }
    }

    fn begin(&mut self, sqe: &Submission, task: Task) {
        self.serial += 1;
        let (serial, fd) = (self.serial, Fd::from_raw(sqe.fd));
        let timed = task.is_timed();
        let inline = matches!(task, Task::Send { .. } | Task::Poll);
        self.in_flight.push(InFlight { serial, user_data: sqe.user_data, fd, task });
        if timed {
            let mut world = self.machine.world();
            let cold = world.dice.fault(Fault::Cold);
            let time = if cold { world.dice.below(5_000) } else { 0 };
            world.after(Duration::from_micros(time as u64), Event::Operation(serial));
        } else if inline && !self.machine.world().dice.once_in(8) {
            self.go_on(serial);
        } else {
            self.machine.world().stir(fd.raw() as u32);
        }
    }

    fn close(&mut self, sqe: &Submission) {
        let fd = Fd::from_raw(sqe.fd);
        if let Some(op) = self.in_flight.iter().find(|op| op.fd == fd) {
            let token = Token::from_bits(op.user_data);
            self.fail(format!("{fd:?} is closed while {token:?} is in flight on it"));
        }
        self.machine.world().close(fd);
        self.report(sqe.user_data, Ok(0));
    }

    fn cancel(&mut self, sqe: &Submission) {
        let target = sqe.address;
        let named = |op: &&InFlight| op.user_data == target;
        let serials: Vec<_> = self.in_flight.iter().filter(named).map(|op| op.serial).collect();
        let mut found = 0;
        let mut errno = Errno::NOENT;
        for serial in serials {
            if self.machine.world().dice.fault(Fault::CancelLoses) {
                self.due(serial);
                self.go_on(serial);
            }
            let Some(op) = self.in_flight.iter().find(|op| op.serial == serial) else { continue };
            found += 1;
            // What a worker has begun goes on to its end.
            if op.task.is_timed() && self.machine.world().dice.once_in(2) {
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
        self.machine.world().note(|| format!("completion of {token:?}: {result}, {flags:#x}"));
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
        self.post(op.user_data, result, flags);
    }

    /// Reports something of an operation that goes on, unless it ends here.
    fn tell(&mut self, serial: u64, multishot: bool, result: u32, flags: u32) {
        let ends = self.machine.world().dice.fault(Fault::MultishotEnds);
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
                let mut world = self.machine.world();
                let Ok(end) = world.connected(fd, "poll") else { return };
                let ready = world.of(end).can_write(end.side);
                world.of(end).ask_for_room(end.side);
                drop(world);
                if ready {
                    self.end(serial, Ok(libc::POLLOUT as u32), 0);
                }
            }
            Task::Count { .. } => self.count(at),
            Task::Open { .. } | Task::Read { .. } => {}
        }
    }

    fn accept(&mut self, serial: u64, fd: Fd, multishot: bool) {
        let accepted = self.machine.world().accept(fd);
        match accepted {
            Ok(new) => self.tell(serial, multishot, new.raw() as u32, 0),
            Err(Errno::AGAIN) => return,
            Err(errno) => self.end(serial, Err(errno), 0),
        }
        // There may be more, for this one or for another.
        self.machine.world().stir(fd.raw() as u32);
    }

    fn receive(&mut self, serial: u64, fd: Fd, multishot: bool) {
        let mut world = self.machine.world();
        let Ok(end) = world.connected(fd, "receive") else {
            drop(world);
            return self.end(serial, Err(Errno::NOTCONN), 0);
        };
        let can_read = world.of(end).can_read(end.side);
        let refused = world.dice.fault(Fault::NoBuffers);
        drop(world);
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
        let most = self.machine.short(hold.bytes().len(), Fault::ShortReceive);
        let mut bytes = vec![0; most];
        match self.machine.receive(fd, &mut bytes) {
            Ok(n @ 1..) => {
                hold.fill(&bytes[..n]);
                drop(hold);
                self.tell(serial, multishot, n as u32, CQE_BUFFER | u32::from(id) << 16);
                self.machine.world().stir(fd.raw() as u32);
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

    fn give_back(&mut self, id: u16, hold: Hold) {
        if let Some(buffers) = &mut self.buffers {
            buffers.put_back(id, hold);
        }
    }

    fn send(&mut self, at: usize) {
        let InFlight { serial, fd, ref task, .. } = self.in_flight[at];
        let Task::Send { pieces, .. } = task else { return };
        let slices: Vec<_> = pieces.iter().map(|hold| IoSlice::new(hold.bytes())).collect();
        match self.machine.send_all(fd, &slices) {
            Ok(n) => self.end(serial, Ok(n as u32), 0),
            Err(Errno::AGAIN) => {}
            Err(errno) => self.end(serial, Err(errno), 0),
        }
    }

    fn count(&mut self, at: usize) {
        let InFlight { serial, fd, .. } = self.in_flight[at];
        let count = match self.machine.world().what(fd, "read") {
            Ok(What::Event(counter)) => counter.swap(0, std::sync::atomic::Ordering::AcqRel),
            _ => 0,
        };
        if count == 0 {
            return;
        }
        if let Task::Count { into } = &mut self.in_flight[at].task {
            if !into.is_untouched() {
                self.machine.world().fail("a waker's counter was written to by the program");
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
                    return self.machine.world().fail(what);
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
        self.machine.world().look_for_freed();
        if self.machine.world().failure().is_some() {
            return;
        }
        if let Some(buffers) = &mut self.buffers
            && let Err(what) = buffers.look()
        {
            self.fail(what);
        }
        let due = std::mem::take(&mut self.machine.world().due);
        due.into_iter().for_each(|serial| self.due(serial));
        loop {
            let mut world = self.machine.world();
            let Some(fd) = world.take_stirred() else { return };
            let later = world.dice.once_in(16);
            drop(world);
            let mut serials: Vec<_> =
                self.in_flight.iter().filter(|op| op.fd == fd).map(|op| op.serial).collect();
            while !serials.is_empty() {
                let at = self.machine.world().dice.below(serials.len());
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

    fn set_up(machine: &Machine, mode: Mode, entries: Entries) -> io::Result<Self> {
        let refused = |errno: Errno| Err(errno.into());
        if machine.refuses(Refuses::Uring) {
            return refused(Errno::NOSYS);
        }
        if machine.refuses(Refuses::Permission) {
            return refused(Errno::PERM);
        }
        if machine.refuses(Refuses::Memory) {
            return refused(Errno::NOMEM);
        }
        if machine.refuses(Refuses::Modes) {
            return refused(Errno::INVAL);
        }
        // Short queues are full more often.
        let mut world = machine.world();
        let most_submissions = [2, 4, 16, 64][world.dice.below(4)].min(entries.submissions);
        let most_completions = [4, 8, 32, 128][world.dice.below(4)].min(entries.completions);
        drop(world);
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
            buffers: None,
        })
    }

    fn can(&self, what: Ability) -> bool {
        !self.machine.refuses(Refuses::Without(what))
    }

    fn lacks(&self, operations: &[(u8, &'static str)]) -> io::Result<Option<&'static str>> {
        let mut operations = operations.iter();
        let lacks = operations.find(|(code, _)| self.machine.refuses(Refuses::Operation(*code)));
        Ok(lacks.map(|(_, name)| *name))
    }

    unsafe fn provide(&mut self, address: u64, count: u16, _group: u16) -> io::Result<()> {
        if self.machine.refuses(Refuses::BufferRings) {
            return Err(Errno::INVAL.into());
        }
        self.buffers = Some(Buffers::new(address, count));
        Ok(())
    }

    fn withdraw(&mut self, _group: u16) {
        self.machine.world().look_for_freed();
        if self.machine.world().failure().is_none()
            && self.buffers.take().is_some_and(|buffers| !buffers.are_untouched())
        {
            self.fail("a buffer was written to before it was withdrawn");
        }
        self.buffers = None;
    }

    fn bound_workers(&mut self, _most: [u32; 2]) -> io::Result<()> {
        if self.machine.refuses(Refuses::WorkerBound) {
            return Err(Errno::INVAL.into());
        }
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
        if self.mode != Mode::Deferred && self.machine.world().dice.once_in(8) {
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
        !self.machine.world().stirred.is_empty()
    }

    fn has_overflowed(&mut self) -> bool {
        self.overflowed
    }

    fn enter(&mut self, wanted: u32, most: Option<Duration>) -> Result<u32, Errno> {
        let mut world = self.machine.world();
        world.enter();
        if world.failure().is_some() {
            return Err(Errno::CANCELED);
        }
        if world.dice.fault(Fault::Busy) {
            return Err(if world.dice.once_in(2) { Errno::BUSY } else { Errno::AGAIN });
        }
        let until = most.map(|most| world.now + most);
        let queued = self.submissions.len();
        let takes = match queued {
            1.. if world.dice.fault(Fault::TakesFew) => world.dice.below(queued),
            _ => queued,
        };
        let interrupted = world.dice.fault(Fault::Interrupted);
        drop(world);
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
            let passed = self.machine.world().wait(until);
            if self.machine.world().failure().is_some() {
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
        if self.machine.world().ring_is_used {
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
        if self.machine.world().failure().is_none() {
            for op in &self.in_flight {
                let token = Token::from_bits(op.user_data);
                self.fail(format!("{token:?} is in flight still when the ring is closed"));
            }
        }
    }
}
