//! Upcalls across a protection boundary (section 5.6): handlers that run in another process.
//!
//! The server and the process share a mapped file with a number of places for messages, and two sets of bits:
//! the messages that are submitted, and those that are done. The process takes all submitted messages at
//! once, so that messages that arrive together cost one switch to it, and says of each when it is done. The server sleeps, or does other work,
//! until it answers; it trusts nothing in the shared memory: numbers are masked, lengths are bounded, and a
//! reply is copied before it is looked at. A process that dies, hangs or floods costs its messages a bounded
//! delay, after which they go to the application. One that wakes the server without answers costs a thread of the server 100
//! wake-ups a second.
//!
//! The server's side is [`Channel`], which `evring::hooks::Upcalls` drives; the other side is [`Peer`]:
//!
//! ```
//! use std::os::unix::net::UnixStream;
//! use std::time::{Duration, Instant};
//! use ash_sandbox::upcall::{Channel, Peer, Policy};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (ours, theirs) = UnixStream::pair()?;
//! let mut channel = Channel::new(ours, Policy::default())?;
//! // In another process, whose standard input is the other end: `Peer::from_stdin`.
//! # let process = std::thread::spawn(move || {
//! let peer = Peer::connect(theirs)?;
//! peer.serve(|call| {
//!     let reply = call.message().to_ascii_uppercase();
//!     call.send(&reply);
//!     1
//! })
//! # });
//! # ;
//! assert!(channel.submit(b"ping", 7, Instant::now()).is_some());
//! channel.answer_event().wait(Duration::from_secs(10))?;
//! let done = channel.next_done().expect("an answer");
//! assert_eq!((done.result, channel.reply()), (1, &b"PING"[..]));
//! # drop(channel);
//! # process.join().unwrap()?;
//! # Ok(())
//! # }
//! ```

mod channel;
mod peer;
mod shared;

pub use channel::{AnswerEvent, Channel, ChannelError, Done, MessageRejection};
pub use peer::{Peer, PeerError, Upcall};

use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Maximum number of messages that a process has at a time: the bits of a set.
pub const MAX_PLACES: usize = 64;

/// Bounds of the upcalls to one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Number of messages that the process has at a time, up to [`MAX_PLACES`]. Further ones take the normal
    /// path.
    pub places: usize,
    /// Maximum length of a message in bytes. Longer ones take the normal path.
    pub max_message_bytes: usize,
    /// Maximum length of what the process sends in reply to a message, in bytes.
    pub max_reply_bytes: usize,
    /// Time after which an upcall ends and its message goes to the application, as the two clock ticks of the
    /// thesis.
    pub timeout: Duration,
    /// Number of failures in a row after which the process gets no more messages: upcalls without an answer in time, or with
    /// an impossible one. Upcalls that were submitted before the process was late are no failures of their own.
    pub max_aborts: u32,
}

impl Policy {
    /// Returns the policy with changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            places: MAX_PLACES,
            max_message_bytes: 4096,
            max_reply_bytes: 4096,
            timeout: Duration::from_millis(10),
            max_aborts: 3,
        }
    }
}

/// Wakes the other end of a stream, if it sleeps.
fn wake(stream: &UnixStream, sleeps: &AtomicU32) {
    if sleeps.load(SeqCst) == 0 || sleeps.swap(0, SeqCst) == 0 {
        return;
    }
    match send(stream, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        // Without room, there are wake-ups that it has not taken.
        Ok(_) | Err(Errno::AGAIN) => {}
        // The kernel has no memory: the next call tries again.
        Err(_) => sleeps.store(1, SeqCst),
    }
}

/// Takes the wake-ups from the other end of a stream. Returns whether that end is open.
fn take_wake_ups(stream: &UnixStream) -> bool {
    match recv(stream, &mut [0; 64], RecvFlags::DONTWAIT) {
        Ok((_, len)) => len > 0,
        Err(error) => error == Errno::AGAIN || error == Errno::INTR,
    }
}
