//! The interface of a kernel to the other crates.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::{
    Blocking, BufferError, BufferGroup, BufferPool, BufferSizes, Completion, Errno, File,
    KernelError, ListenOptions, ListeningSocket, Metadata, Op, Outcome, Socket, SubmitError,
    Submitted, Token, Waker,
};

/// Completions, oldest first.
pub(crate) type Batch = VecDeque<Completion>;

/// Accepts operations.
///
/// # Safety
/// A descriptor that an operation names by number ([`Fd`](crate::Fd)) is used until the operation
/// ends, and not after that: until its last completion is returned, or the operation is handed
/// back, or [`finish`](Submit::finish) has returned and no turn follows.
pub unsafe trait Submit {
    /// The machine of the descriptors.
    type Host: Host;

    /// Maximum number of bytes of a file that one operation sends: of longer ones it sends as many.
    const MAX_PIECE_BYTES: u64 = File::MAX_PIECE_BYTES;

    /// Returns whether each turn scans all descriptors, so that its cost grows with their number.
    fn scans_all_fds(&self) -> bool {
        false
    }

    /// Posts an operation. If it can't be done at once, its completions carry `token`. The token's
    /// kind is [`OpKind::Accept`](crate::OpKind::Accept) for an accept,
    /// [`OpKind::Receive`](crate::OpKind::Receive) for a receive,
    /// [`OpKind::Call`](crate::OpKind::Call) for a system call, and another one for the rest. The
    /// close of a listening socket may have that of its accept.
    ///
    /// # Errors
    /// Hands the operation back if the table of operations is full, or if an operation with `token`
    /// is in flight.
    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError>;

    /// Requests cancellation. The request is never lost, but the operation may complete first; in
    /// both cases exactly one last completion follows. A token that is not in flight is ignored.
    fn cancel(&mut self, token: Token);

    /// Adds a group of receive buffers, whose memory the kernel owns from now on.
    ///
    /// A receive whose group has no free buffer waits for one ([`Counters::buffer_shortages`]); other
    /// groups are not affected.
    ///
    /// # Errors
    /// If there are [`BufferGroup::MAX`] groups, or the kernel rejects the buffers. Then the
    /// memory is released.
    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError>;

    /// Ends all operations within a bounded time. Afterwards the kernel does not use the
    /// descriptors that they name, so these can be closed. Their completions are discarded, and
    /// nothing may be submitted.
    fn finish(&mut self);

    /// Returns the machine.
    fn host(&self) -> &Self::Host;

    /// Returns the machine mutably.
    fn host_mut(&mut self) -> &mut Self::Host;

    /// Returns the time at which the current turn began.
    fn now(&self) -> Instant;

    /// Returns a handle with which other threads end a wait.
    fn waker(&self) -> Waker;

    /// Returns the counters since the start.
    fn counters(&self) -> Counters;

    /// Returns what the kernel holds at the moment; nothing if it does not know.
    fn occupancy(&self) -> Occupancy {
        Occupancy::default()
    }
}

/// The resources that a kernel holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupancy {
    /// Operations in flight, including those not submitted yet.
    pub in_flight: u32,
    /// Operations that wait for room in the submission queue of io_uring, or for the next turn; 0 of other kernels.
    pub unsubmitted: u32,
    /// Receive buffers of all groups that are not lent out.
    pub free_buffers: u32,
    /// Events that a control block has delivered and the application has not taken (SEND 3.2).
    pub delivered: u32,
    /// Events that wait for delivery, the block's `num_queued` (SEND 3.2).
    pub queued: u32,
    /// No event interrupts the application: the mask `notify` is empty (SEND 3.2). It always is with PS1 and PS2.
    pub is_masked: bool,
}

/// The kernel's side of a ring: takes operations, returns completions.
pub trait Kernel: Submit {
    /// Begins a turn. Waits for the first completion until the given time, or without limit with
    /// `None`. Does not wait if that time has passed or if completions of the last turn remain.
    ///
    /// # Errors
    /// Only if the kernel is unusable from now on.
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError>;

    /// Returns the next completion of this turn. A kernel over a poller makes the system call here,
    /// so that a request can be answered while it is in the CPU cache.
    fn next(&mut self) -> Option<Completion>;

    /// Adds completions that have landed since to this turn, without a system call. By default, there are none; a kernel
    /// that wraps another one calls its.
    fn reap(&mut self) {}
}

/// Calls of a machine that need no operation: socket setup, clocks, randomness.
pub trait Host {
    /// Opens a listening socket. Returns it and its bound address.
    ///
    /// # Errors
    /// Those of socket(2), bind(2) and listen(2).
    fn listen(
        &mut self,
        at: SocketAddr,
        options: &ListenOptions,
    ) -> io::Result<(Socket, SocketAddr)>;

    /// Takes a socket that listens already.
    ///
    /// # Errors
    /// Those of dup(2); a simulated machine cannot take sockets of the real one.
    fn adopt(&mut self, socket: ListeningSocket) -> io::Result<Socket> {
        drop(socket);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Accepts one connection as a non-blocking socket.
    ///
    /// # Errors
    /// Those of accept4(2); `EAGAIN` if the queue is empty.
    fn accept(&mut self, listener: &Socket) -> Result<Socket, Errno>;

    /// Changes the length of a listen backlog.
    ///
    /// # Errors
    /// Those of listen(2).
    fn backlog(&mut self, listener: &Socket, length: u32) -> io::Result<()>;

    /// Returns the length of a listen backlog, which another process may have changed; `None` if the kernel does not
    /// tell it.
    fn backlog_length(&self, listener: &Socket) -> Option<u32>;

    /// Returns the number of connections in a listener's queue; `None` if the kernel does not tell it.
    fn queue_length(&self, listener: &Socket) -> Option<u32> {
        let _ = listener;
        None
    }

    /// Creates a socket to connect to `peer`, optionally bound to a local address.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    fn socket(
        &mut self,
        peer: SocketAddr,
        from: Option<IpAddr>,
        buffers: BufferSizes,
    ) -> io::Result<Socket>;

    /// Shuts down the sending side. Errors appear in later operations.
    fn shutdown(&mut self, socket: &Socket);

    /// Sets the number of unsent bytes from which on a socket has no room (`TCP_NOTSENT_LOWAT`); 0 for none. Bytes
    /// sent that the peer has not acknowledged do not count. Connections that a listener accepts inherit its number.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    fn set_unsent_limit(&mut self, socket: &Socket, bytes: u32) -> io::Result<()>;

    /// Makes the next close reset the connection, which discards unsent data (`SO_LINGER` 0).
    fn reset_on_close(&mut self, socket: &Socket);

    /// Closes a socket at once. After an operation was posted for it, use [`Op::Close`] until
    /// [`Submit::finish`] has returned, so that a kernel over a poller removes the socket.
    fn close_unused(&mut self, socket: Socket);

    /// Returns the peer's address, while connected.
    fn peer_addr(&self, socket: &Socket) -> Option<SocketAddr>;

    /// Returns the number of bytes sent that the peer has not acknowledged.
    fn unacked_bytes(&self, socket: &Socket) -> u64;

    /// Returns the metadata of an open file.
    ///
    /// # Errors
    /// Those of fstat(2).
    fn file_metadata(&self, file: &File) -> Result<Metadata, Errno>;

    /// Reads bytes of an open file. Returns their number, fewer only at its end.
    ///
    /// # Errors
    /// Those of preadv2(2); with [`Blocking::NoBlock`] also `EAGAIN` if the page cache does not have the bytes.
    fn read_file(
        &self,
        file: &File,
        offset: u64,
        into: &mut [u8],
        disk: Blocking,
    ) -> Result<usize, Errno>;

    /// Returns the number of bytes that have arrived and were not received.
    fn unread(&self, socket: &Socket) -> u64;

    /// Returns the time since the connection was made or last received or sent data. `None` if it
    /// has been reset or is closed on both sides.
    fn idle_time(&self, socket: &Socket) -> Option<Duration>;

    /// Opens a directory, the root of paths of file operations.
    ///
    /// # Errors
    /// Those of open(2).
    fn open_directory(&mut self, path: &Path) -> io::Result<File>;

    /// Returns the monotonic time.
    fn clock(&self) -> Instant;

    /// Returns the wall-clock time.
    fn wall_time(&self) -> SystemTime;

    /// Returns the CPU time of the calling thread, in user and kernel mode.
    fn cpu_time(&self) -> Duration;

    /// Returns a random number, unpredictable on a real machine.
    fn random(&mut self) -> u64;
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a kernel, from its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Iterates over all counters with their names.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Adds those of another kernel.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

impl Counters {
    /// Counts a send that sent fewer bytes than requested.
    pub fn note_send(&mut self, outcome: &Outcome) {
        if let Outcome::Sent(remaining, _) = outcome {
            self.short_sends += u64::from(!remaining.is_empty());
        }
    }
}

counters! {
    /// Number of system calls made.
    system_calls,
    /// Number of turns.
    turns,
    /// Number of completions returned.
    completions,
    /// Number of cancellations requested.
    cancels,
    /// Number of times a receive waited for a free buffer.
    buffer_shortages,
    /// Number of times an operation was posted again after the kernel had ended it early.
    rearmed,
    /// Number of overflows of the queue of completions, signals or hints.
    overflows,
    /// Number of sends that sent fewer bytes than requested.
    short_sends,
    /// Number of accepts that failed for lack of a descriptor (EMFILE, ENFILE).
    fd_limit_hits,
    /// Number of connections that were aborted before they were accepted.
    accepts_aborted,
    /// Number of file sends that had to read from the disk first.
    cold_file_reads,
    /// Number of file operations posted to offload threads.
    offloaded_file_ops,
    /// Number of system calls posted to offload threads.
    offloaded_calls,
    /// Number of signals that interrupted the program to notify it of events.
    interruptions,
}
