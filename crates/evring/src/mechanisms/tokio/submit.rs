//! The operations of sockets and files, which their tasks make.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker as TaskWaker;
use std::time::Instant;

use shared_ring::author::{Continued, Operations, Read, SocketState};
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};
use shared_ring::{
    Completion, Counters, Errno, Fd, Host, Linux, Occupancy, Op, Outcome, Socket, Submit,
    SubmitError, Submitted, Token, Waker,
};

use super::jobs::Jobs;
use crate::{Config, StartError};

/// Operations on sockets, each of which has a task.
pub(super) struct TokioSubmit {
    pub(super) operations: Operations<Linux, TaskState, Jobs>,
    pub(super) done: VecDeque<Completion>,
    /// Sockets without a task whose operations wait.
    pub(super) without_task: Vec<Fd>,
    /// For each buffer group, the sockets whose tasks wait for a buffer, in order.
    starved: Vec<VecDeque<Fd>>,
    pub(super) waker: Waker,
    pub(super) now: Instant,
}

/// The task of a socket.
#[derive(Default)]
pub(super) struct TaskState {
    closing: Option<(Token, Socket)>,
    is_spawned: bool,
    task: Option<TaskWaker>,
    /// It is in the list of those that wait for a buffer.
    is_starved: bool,
}

/// The result of an attempt to read.
pub(super) enum ReadAttempt {
    /// A completion, and whether the socket may have more.
    Done(Completion, bool),
    Empty,
    NoBuffer,
    /// Nothing was read; try again later.
    Later,
}

impl TokioSubmit {
    pub(super) fn jobs(&self) -> &Jobs {
        self.operations.offload()
    }

    pub(super) fn new(config: &Config) -> Result<Self, StartError> {
        Ok(TokioSubmit {
            operations: Operations::new(
                Linux::default(),
                &config.engine_config()?,
                Jobs::default(),
            ),
            done: VecDeque::new(),
            without_task: Vec::new(),
            starved: vec![VecDeque::new()],
            waker: Waker::new().map_err(system_error)?,
            now: Instant::now(),
        })
    }

    fn socket(&mut self, fd: Fd) -> &mut SocketState<TaskState> {
        self.operations.socket(fd)
    }

    fn complete(&mut self, token: Token, outcome: Outcome) {
        self.done.push_back(Completion::last(token, outcome));
    }

    /// Has a socket's task look for what it has to wait for.
    fn notify_task(&mut self, fd: Fd) {
        let TaskState { task, is_spawned, .. } = &mut self.operations.socket(fd).notes;
        if let Some(task) = task {
            task.wake_by_ref();
        } else if !mem::replace(is_spawned, true) {
            self.without_task.push(fd);
        }
    }

    /// Continues the operations whose jobs have ended.
    pub(super) fn continue_offloaded(&mut self) {
        while let Some(continued) = self.operations.next_offloaded() {
            match continued {
                Continued::Completed(completion) => self.done.push_back(completion),
                Continued::Waits(fd, _) => self.notify_task(fd),
            }
        }
    }

    /// Receives or accepts once.
    pub(super) fn try_to_read(&mut self, fd: Fd) -> ReadAttempt {
        let Some(token) = self.socket(fd).reader else { return ReadAttempt::Later };
        match self.operations.read(fd, token) {
            Read::Completed(completion) => {
                // A receive that fills less than its buffer has emptied the socket.
                let may_have_more = match &completion.outcome {
                    Outcome::Received(bytes) => bytes.fills_buffer(),
                    _ => true,
                };
                ReadAttempt::Done(completion, may_have_more)
            }
            Read::Empty => ReadAttempt::Empty,
            Read::NoBuffer => {
                let socket = self.operations.socket(fd);
                if !mem::replace(&mut socket.notes.is_starved, true) {
                    self.starved[socket.group.index()].push_back(fd);
                }
                ReadAttempt::NoBuffer
            }
            Read::Aborted => ReadAttempt::Later,
        }
    }

    /// Wakes as many of the tasks that wait for a buffer as their group has free buffers. Called after each
    /// step, because only steps give buffers back.
    pub(super) fn wake_starved(&mut self) {
        for starved in &mut self.starved {
            let Some(first) = starved.front() else { continue };
            let group = self.operations.socket(*first).group;
            let mut available = self.operations.buffers(group).available();
            while available > 0
                && let Some(fd) = starved.pop_front()
            {
                let SocketState { reader, notes, .. } = self.operations.socket(fd);
                notes.is_starved = false;
                // A task whose receive was cancelled needs none, and takes no step.
                if reader.is_some()
                    && let Some(task) = &notes.task
                {
                    task.wake_by_ref();
                    available -= 1;
                }
            }
        }
    }

    /// Goes on with a send or a connect; false if the socket is full.
    pub(super) fn try_to_write(&mut self, fd: Fd) -> bool {
        let Some(token) = self.socket(fd).writer else { return true };
        match self.operations.write(fd, token) {
            Some(Continued::Completed(completion)) => self.done.push_back(completion),
            // The task waits for it anyway.
            Some(Continued::Waits(..)) => return false,
            None => {}
        }
        true
    }
}

// SAFETY: an operation is tried when it is submitted, and by its socket's task while it is in the table, which it
// leaves with its last completion. Threads have the numbers of files only, whose operations own them.
unsafe impl Submit for TokioSubmit {
    type Host = Linux;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        let Op::Close { socket } = op else {
            let submitted = self.operations.submit(token, op);
            if let Some(fd) = self.operations.take_waiting() {
                self.notify_task(fd);
            }
            return submitted;
        };
        // SAFETY: the socket stays open until its task, which uses the number, has ended.
        let fd = unsafe { socket.fd() };
        let notes = &mut self.socket(fd).notes;
        notes.closing = Some((token, socket));
        match &notes.task {
            Some(task) => task.wake_by_ref(),
            None if notes.is_spawned => {}
            None => self.close(fd),
        }
        Ok(Submitted::InFlight)
    }

    fn cancel(&mut self, token: Token) {
        self.done.extend(self.operations.cancel(token));
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        let group = self.operations.add_buffers(buffers)?;
        self.starved.push(VecDeque::new());
        Ok(group)
    }

    /// The kernel has nothing in flight; sockets that tasks were to close are still open.
    fn finish(&mut self) {
        let closing = self.operations.notes().filter_map(|notes| notes.closing.take());
        let closing: Vec<Socket> = closing.map(|(_, socket)| socket).collect();
        for socket in closing {
            self.operations.system.close_unused(socket);
        }
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

    fn occupancy(&self) -> Occupancy {
        self.operations.occupancy()
    }
}

impl TokioSubmit {
    /// Closes a socket whose task has ended, or that never had one.
    pub(super) fn close(&mut self, fd: Fd) {
        let SocketState { notes, group, .. } = self.operations.socket(fd);
        let Some((token, socket)) = notes.closing.take() else { return };
        if notes.is_starved {
            self.starved[group.index()].retain(|starved| *starved != fd);
        }
        self.operations.close(socket);
        self.complete(token, Outcome::Closed);
    }

    /// Returns what a socket's task has to do, after noting the task to wake for more.
    pub(super) fn todo(&mut self, fd: Fd, task: &TaskWaker) -> Todo {
        let socket = self.socket(fd);
        let notes = &mut socket.notes;
        if !notes.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            notes.task = Some(task.clone());
        }
        Todo {
            read: socket.reader.is_some(),
            write: socket.writer.is_some(),
            close: notes.closing.is_some(),
        }
    }

    /// Fails the operations of a socket that cannot be waited for.
    pub(super) fn fail_all(&mut self, fd: Fd, errno: Errno) {
        let socket = self.socket(fd);
        for token in [socket.reader, socket.writer].into_iter().flatten() {
            let failed = self.operations.fail(fd, token, errno);
            self.done.push_back(failed);
        }
    }
}

/// Pending work of a socket's task.
pub(super) struct Todo {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) close: bool,
}

/// Converts an error of the setup.
pub(super) fn system_error(error: std::io::Error) -> StartError {
    StartError::System("cannot set up the event loop", error)
}
