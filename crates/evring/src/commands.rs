//! What an application can ask for.

use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use crate::{AcceptPolicy, Chunk, Close, ConnId, FileOp, Lateness, Listener, Stats};

/// A connection whose queue to send holds this many bytes is told when it has
/// [drained](crate::Application::drained).
pub const HIGH_WATER: usize = 64 * 1024;

/// A queue has drained when it holds no more than this many bytes.
pub const LOW_WATER: usize = 16 * 1024;

/// What an application can ask for, of any connection at any time.
///
/// No command calls the application back before it returns, and none fails: what goes wrong is
/// told by a later callback. `send`, `receive` and `close` take effect when the callback has returned;
/// `connect` and `file` begin their work, and `admit` and `deadline` change what they are about, before
/// they return. Commands for a connection that is gone have no effect.
pub trait Commands {
    /// The time, as of the beginning of this turn of the loop.
    fn now(&self) -> Instant;

    /// The time of day.
    fn wall_time(&self) -> SystemTime;

    /// A random number.
    fn random(&mut self) -> u64;

    /// Queues bytes to be sent and returns how many are queued now. A file counts as
    /// [`HIGH_WATER`] bytes until it is sent, whatever its length.
    ///
    /// Everything that one callback queues leaves together. Who is told [`HIGH_WATER`] or more
    /// should wait for [`drained`](crate::Application::drained).
    fn send(&mut self, to: ConnId, chunk: Chunk<'_>) -> usize;

    /// Queues `n` bytes, zero for now, and returns them to be filled in.
    fn reserve(&mut self, to: ConnId, n: usize) -> &mut [u8];

    /// Opens a connection; [`connected`](crate::Application::connected) tells the outcome. What
    /// is queued before goes out first thing.
    fn connect(&mut self, to: SocketAddr) -> ConnId;

    /// Begins file work for a connection; [`file`](crate::Application::file) with the same `tag`
    /// tells the outcome, unless the connection has ended by then.
    fn file_op(&mut self, on: ConnId, tag: u32, op: FileOp);

    /// Pauses or resumes receiving. A resume always leads to a call of
    /// [`received`](crate::Application::received), with what was left unconsumed.
    fn set_receiving(&mut self, id: ConnId, on: bool);

    /// Sets the connection's one deadline, or clears it.
    fn set_deadline(&mut self, id: ConnId, at: Option<Instant>);

    /// Closes a connection; of several calls the most abrupt wins.
    fn close(&mut self, id: ConnId, how: Close);

    /// Bytes queued and not acknowledged by the peer yet, those of files included: what a least
    /// rate is judged by. What the system's own queue takes would tell little, as it takes
    /// megabytes at a time. A system call.
    fn unsent_bytes(&self, id: ConnId) -> u64;

    /// The address of the other end, while the connection is open.
    fn peer_addr(&self, id: ConnId) -> Option<SocketAddr>;

    /// Says how connections are to be accepted.
    fn set_accept_policy(&mut self, at: Listener, how: AcceptPolicy);

    /// How late the work on a connection is, by the newest of its bytes. As long as there are not too many, or without
    /// [`Config::admission`](crate::Config::admission), it is in time; else this is a system call. Who
    /// is about to do something costly asks before.
    fn lateness(&self, id: ConnId) -> Lateness;

    /// What the mechanism has done so far.
    fn stats(&self) -> Stats;

    /// Whether the server is stopping, and connections should end with their current work.
    fn is_stopping(&self) -> bool;

    /// Whether something has landed since the events that are being worked on were taken; no system
    /// call. A long computation asks between two steps and comes back to its work later if so.
    /// On `send` new connections are told of, as long as they wait. Where nothing lands in between, as on
    /// all others, the answer is no but for work that was cancelled.
    fn has_pending(&self) -> bool;
}
