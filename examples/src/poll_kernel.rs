//! A kernel of one's own, over poll(2), and a mechanism of `evring` over it.
//!
//! It uses only public items of `shared-ring` and `evring`. It asks poll(2) about each socket that an
//! operation waits for, and tries the operations of those that are ready.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use evring::mechanisms::{Family, Mechanism};
use evring::{Config, StartError};
use shared_ring::author::{Continued, Operations, Process, Read, System, WakeSignal};
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};
use shared_ring::{
    Completion, Counters, EngineConfig, Errno, Fd, Kernel, KernelError, Linux, Op, Outcome, Submit,
    SubmitError, Submitted, Token, Waker,
};

/// A mechanism over [`PollKernel`].
#[derive(Debug)]
pub struct OwnPoll;

impl Mechanism for OwnPoll {
    const NAME: &'static str = "own-poll";
    const FAMILY: Family = Family::Readiness;
    const SUMMARY: &'static str = "poll(2), as a kernel outside of shared-ring";
    type Kernel = PollKernel;

    fn kernel(config: &Config) -> Result<PollKernel, StartError> {
        PollKernel::new(&config.engine_config()?)
            .map_err(|error| StartError::System("cannot set up the kernel", error))
    }
}

/// A kernel over poll(2).
#[derive(Debug)]
pub struct PollKernel {
    /// For each socket, whether it is in `waiting`.
    operations: Operations<Linux, bool>,
    /// Sockets that operations may wait for.
    waiting: Vec<Fd>,
    array: Vec<libc::pollfd>,
    done: VecDeque<Completion>,
    waker: Waker,
    now: Instant,
    process: Process,
}

impl PollKernel {
    /// Creates a kernel.
    ///
    /// # Errors
    /// If there is no descriptor for the waker.
    pub fn new(config: &EngineConfig) -> io::Result<Self> {
        let mut system = Linux::default();
        let waker = system.waker(WakeSignal::Polled)?;
        let offload = system.offload(waker.clone());
        Ok(PollKernel {
            operations: Operations::new(system, config, offload),
            waiting: Vec::new(),
            array: Vec::new(),
            done: VecDeque::new(),
            waker,
            now: Instant::now(),
            process: Process::current(),
        })
    }

    /// Asks poll(2) about a socket from now on.
    fn wait_for(&mut self, fd: Fd) {
        if !mem::replace(&mut self.operations.socket(fd).notes, true) {
            self.waiting.push(fd);
        }
    }

    /// Keeps the completion of an operation that was continued, or lets it wait.
    fn continued(&mut self, continued: Continued) {
        match continued {
            Continued::Completed(completion) => self.done.push_back(completion),
            Continued::Waits(fd, _) => self.wait_for(fd),
        }
    }

    /// Tries the operations of a socket that is ready.
    fn advance(&mut self, fd: Fd, revents: i16) {
        let broken = revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
        let socket = self.operations.socket(fd);
        let (reader, writer) = (socket.reader, socket.writer);
        if let Some(token) = reader.filter(|_| broken || revents & libc::POLLIN != 0)
            && let Read::Completed(completion) = self.operations.read(fd, token)
        {
            self.done.push_back(completion);
        }
        if let Some(token) = writer.filter(|_| broken || revents & libc::POLLOUT != 0)
            && let Some(continued) = self.operations.write(fd, token)
        {
            self.continued(continued);
        }
    }

    fn on_wake(&mut self) {
        self.waker.drain();
        while let Some(continued) = self.operations.next_offloaded() {
            self.continued(continued);
        }
        self.done.push_back(Completion::woken());
    }
}

// SAFETY: an operation is tried when it is submitted, and while it is in the table of `operations`. A socket
// leaves `waiting` when it is closed. Threads use numbers of files, which their operations own.
unsafe impl Submit for PollKernel {
    type Host = Linux;

    fn scans_all_fds(&self) -> bool {
        true
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        if let Op::Close { socket } = op {
            self.waiting.retain(|fd| fd.raw() != socket.as_raw_fd());
            self.operations.close(socket);
            return Ok(Submitted::Done(Outcome::Closed));
        }
        let submitted = self.operations.submit(token, op);
        if let Some(fd) = self.operations.take_waiting() {
            self.wait_for(fd);
        }
        submitted
    }

    fn cancel(&mut self, token: Token) {
        self.done.extend(self.operations.cancel(token));
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.operations.add_buffers(buffers)
    }

    fn finish(&mut self) {
        self.operations.stop_offload();
        self.operations.discard(self.done.drain(..));
    }

    fn host(&self) -> &Linux {
        &self.operations.system
    }

    fn host_mut(&mut self) -> &mut Linux {
        &mut self.operations.system
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn counters(&self) -> Counters {
        self.operations.counters
    }
}

impl Kernel for PollKernel {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        let failed = |error| KernelError::new("waiting for descriptors", error);
        if !self.process.is_current() {
            return Err(failed(Errno::PERM.into()));
        }
        let waker = libc::pollfd { fd: self.waker.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        self.array.clear();
        self.array.push(waker);
        for fd in &self.waiting {
            let socket = self.operations.socket(*fd);
            let reads = if socket.reader.is_some() { libc::POLLIN } else { 0 };
            let writes = if socket.writer.is_some() { libc::POLLOUT } else { 0 };
            // A negative number is ignored: nothing waits for this socket now.
            let number = if reads | writes == 0 { -1 } else { fd.raw() };
            self.array.push(libc::pollfd { fd: number, events: reads | writes, revents: 0 });
        }
        let timeout = match until {
            _ if !self.done.is_empty() => 0,
            None => -1,
            Some(at) => {
                let wait =
                    at.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
                i32::try_from(wait.as_millis()).unwrap_or(i32::MAX)
            }
        };
        self.operations.counters.turns += 1;
        self.operations.counters.system_calls += 1;
        let (array, len) = (self.array.as_mut_ptr(), self.array.len());
        // SAFETY: the array has this length.
        if unsafe { libc::poll(array, len as libc::nfds_t, timeout) } < 0 {
            let error = io::Error::last_os_error();
            let is_interrupted = error.kind() == io::ErrorKind::Interrupted;
            return if is_interrupted { Ok(()) } else { Err(failed(error)) };
        }
        self.now = Instant::now();
        for at in 1..len {
            if self.array[at].revents != 0 {
                self.advance(self.waiting[at - 1], self.array[at].revents);
            }
        }
        if self.array[0].revents != 0 {
            self.on_wake();
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        let completion = self.done.pop_front()?;
        self.operations.counters.completions += 1;
        Some(completion)
    }
}

impl Drop for PollKernel {
    fn drop(&mut self) {
        self.finish();
    }
}
