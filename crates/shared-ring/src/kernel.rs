//! The seam: what the rest of the workspace knows of a kernel.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::{Completion, Errno, File, Op, Outcome, Socket, SubmitError, Submitted, Token, Waker};

/// Completions on their way to the application, oldest first.
pub type Batch = VecDeque<Completion>;

/// Where operations are posted.
///
/// # Safety
/// What an operation names by its number ([`Fd`](crate::Fd)) is used until the operation ends, and then no
/// more: until its last completion is handed out, or it is handed back, or [`finish`](Submit::finish) has
/// returned and no turn is taken after that.
pub unsafe trait Submit {
    /// The machine that the descriptors live on.
    type Host: Host;

    /// Whether the kernel looks at every descriptor in each turn, so that a turn costs the more the more there
    /// are.
    const SCANS_ALL_FDS: bool = false;

    /// Posts an operation. If it can't be done at once, its completions will carry `token`, which
    /// is of kind [`OpKind::Accept`](crate::OpKind::Accept) for an accept and of kind
    /// [`OpKind::Receive`](crate::OpKind::Receive) for a receive, and for nothing else that goes on.
    ///
    /// # Errors
    /// Hands the operation back when the table of operations is full, or when one named `token`
    /// is in flight.
    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError>;

    /// Asks that an operation end early. The request itself is never lost, but the operation may
    /// complete before it is carried out; either way exactly one last completion follows. A token
    /// that is not in flight is ignored.
    fn cancel(&mut self, token: Token);

    /// Ends all operations, within bounds of time: the kernel carries out nothing of theirs after this,
    /// so what they name by number can be closed. Their completions are not seen any more, and nothing
    /// is to be submitted.
    fn finish(&mut self);

    /// The machine.
    fn host(&self) -> &Self::Host;

    /// The machine, to be changed.
    fn host_mut(&mut self) -> &mut Self::Host;

    /// The time at which the current turn began.
    fn now(&self) -> Instant;

    /// A handle with which other threads end a wait.
    fn waker(&self) -> Waker;

    /// How many completions are known to wait beyond those of this turn; there may be more. No system call.
    fn landed(&self) -> u32;

    /// What has been done so far.
    fn counters(&self) -> Counters;
}

/// The far side of the ring: operations go in, completions come out.
pub trait Kernel: Submit {
    /// Begins a turn. Waits for the first completion until the given time, or for ever with
    /// `None`; does not wait for a time that has passed, nor when the last turn left something.
    ///
    /// # Errors
    /// Only when the kernel can't be used any more.
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError>;

    /// The next completion of this turn. A kernel over a poller does the work now, so that what
    /// one connection received can be answered while it is in the processor's cache.
    fn next(&mut self) -> Option<Completion>;

    /// Adds what has landed since to this turn; no system call.
    fn reap(&mut self);

    /// Takes a whole turn at once.
    ///
    /// # Errors
    /// Only when the kernel can't be used any more.
    fn turn_into(&mut self, until: Option<Instant>, out: &mut Batch) -> Result<(), KernelError> {
        self.turn(until)?;
        out.extend(iter::from_fn(|| self.next()));
        Ok(())
    }
}

/// What a machine does at once, without an operation: sockets made and set up, time, chance.
pub trait Host {
    /// Opens a listening socket; returns it and the address it got.
    ///
    /// # Errors
    /// Those of socket(2), bind(2) and listen(2).
    fn listen(
        &mut self,
        at: SocketAddr,
        options: &ListenOptions,
    ) -> io::Result<(Socket, SocketAddr)>;

    /// Accepts one connection, which will be non-blocking.
    ///
    /// # Errors
    /// Those of accept4(2); `EAGAIN` when none waits.
    fn accept(&mut self, listener: &Socket) -> Result<Socket, Errno>;

    /// Changes the length of a listener's queue.
    ///
    /// # Errors
    /// Those of listen(2).
    fn backlog(&mut self, listener: &Socket, length: u32) -> io::Result<()>;

    /// Makes a socket fit to be connected to `peer`, if need be from an address of this machine.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    fn socket(
        &mut self,
        peer: SocketAddr,
        from: Option<IpAddr>,
        buffers: BufferSizes,
    ) -> io::Result<Socket>;

    /// Tells the peer that no more will be sent. Errors show in later operations.
    fn shutdown(&mut self, socket: &Socket);

    /// Makes the coming close a reset that discards what was not sent.
    fn reset_on_close(&mut self, socket: &Socket);

    /// Closes a socket at once. One that operations were posted for ends by [`Op::Close`], or so behind
    /// [`Submit::finish`]: else a kernel over a poller would not hear of it.
    fn close_unused(&mut self, socket: Socket);

    /// The address of the other end, while connected.
    fn peer_addr(&self, socket: &Socket) -> Option<SocketAddr>;

    /// Bytes that were sent and that the other end has not acknowledged.
    fn unacked_bytes(&self, socket: &Socket) -> u64;

    /// Bytes that have arrived and were not received.
    fn unread(&self, socket: &Socket) -> u64;

    /// For how long the other end of a connection has waited: the time since it was made, or something was
    /// last received or sent. None when it has been reset, or is closed on both sides.
    fn idle_time(&self, socket: &Socket) -> Option<Duration>;

    /// Opens a directory for [`Op::Open`], [`Op::Stat`] and [`Op::List`].
    ///
    /// # Errors
    /// Those of open(2).
    fn open_directory(&mut self, path: &Path) -> io::Result<File>;

    /// The time.
    fn clock(&self) -> Instant;

    /// The time of day.
    fn wall_time(&self) -> SystemTime;

    /// Processor time that the calling thread has used, in the kernel too.
    fn cpu_time(&self) -> Duration;

    /// A random number, unpredictable on a real machine.
    fn random(&mut self) -> u64;
}

/// How a listening socket is set up.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// Length of the queue of connections not yet accepted.
    pub backlog: u32,
    /// Let other sockets listen at the same address and share the connections (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// Sizes that accepted sockets inherit.
    pub buffers: BufferSizes,
}

/// Sizes of a socket's buffers in bytes; `None` leaves them to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct BufferSizes {
    /// `SO_SNDBUF`.
    pub send: Option<usize>,
    /// `SO_RCVBUF`.
    pub receive: Option<usize>,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of what a kernel did, from its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Every counter with its name, in order.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

impl Counters {
    /// Counts a send that took fewer bytes than were offered.
    pub fn note_send(&mut self, outcome: &Outcome) {
        if let Outcome::Sent(rest, _) = outcome {
            self.short_sends += u64::from(!rest.is_empty());
        }
    }
}

counters! {
    /// System calls made.
    system_calls,
    /// Turns taken.
    turns,
    /// Completions delivered.
    completions,
    /// Cancels requested.
    cancels,
    /// Times a receive found no free buffer and waited for one.
    buffer_shortages,
    /// Times the kernel ended an operation early that was posted again.
    rearmed,
    /// Times the queue of completions, of signals or of hints overflowed.
    overflows,
    /// Sends that took fewer bytes than were offered.
    short_sends,
    /// Times a listener had no descriptor for a connection (EMFILE, ENFILE).
    fd_limit_hits,
    /// Connections that were gone when they were accepted.
    accepts_aborted,
    /// Times part of a file to be sent had to be read from the disk first.
    cold_file_reads,
    /// File operations that were handed to a thread.
    offloaded_file_ops,
    /// Signals that interrupted the program to tell it of events.
    interruptions,
}

/// Why a kernel can't go on.
#[derive(Debug)]
pub struct KernelError {
    /// What was being done.
    pub context: &'static str,
    /// What the system said.
    pub error: io::Error,
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the event loop can't go on: {}: {}", self.context, self.error)
    }
}

impl std::error::Error for KernelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
