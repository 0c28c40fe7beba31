//! How files are sent: the policies of ECEM, deferred event delivery and disk-to-network splicing.
//!
//! | concept of ECEM | section | here |
//! |---|---|---|
//! | pair of DED: disk read response => network write request | 3.2 | [`FileDelivery::Ded`] |
//! | state RW is deferred | 3.2 | what was read waits in the send queue, or for the application ([`SendPolicy::defers_reads`]) |
//! | pair of DNS: arrival of ACK => disk read request | 4 | [`FileDelivery::Dns`] |
//! | data is sent in the context that handles the acknowledgement | 4 | the kernel of `shared-ring` sends, in the turn in which the socket has room; neither application nor policy runs |
//! | arrival of an ACK | 4 | `POLLOUT`: the peer has acknowledged so much that a third of the send buffer is free |
//! | as many bytes as were acknowledged | 4 | as many as sendfile(2) takes |
//! | not in the page cache: return, try again at the next ACK | 5.2 | the part is read asynchronously; the end of that read sends it, so that no ACK is needed |
//!
//! What is in the page cache is sent by sendfile(2). Splicing through a pipe took the same or more CPU time per
//! byte for pieces of 4 to 256 KiB, with twice the system calls; reading into memory and sending took two to
//! three times as much. So a policy reads only if the part is not cached, or has to pass through memory.
//!
//! The policies leave `TCP_NOTSENT_LOWAT` alone. With a send buffer that the kernel sizes, and a client that takes
//! 64 KiB at a time, sendfile(2) waited 0.7 times per megabyte; with a limit of 16 KiB 16.5 times, with 128 KiB 10.9
//! times, for more than twice the CPU time. With a fixed send buffer of 64 KiB the limit made no difference.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use crate::{ConnId, SendPolicy, SendResult, SendState, SendStep};

/// A policy for sending files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileDelivery {
    /// [`Dns`](FileDelivery::Dns) for files that are sent as they are,
    /// [`Ded`](FileDelivery::Ded) for those that the application reads and transforms.
    #[default]
    Auto,
    /// Sends as soon as the socket has room; reads what is not cached only then.
    Plain,
    /// Deferred event delivery: files are read into memory ahead of the client, at most 64 KiB, and sent when
    /// the socket has room. What the application reads is held back in the same way.
    Ded,
    /// Disk-to-network splicing: files are sent from the page cache whenever the socket has room, without
    /// waiting for the disk. A part that is not cached is read meanwhile.
    Dns,
}

impl FileDelivery {
    /// All policies.
    pub const ALL: [FileDelivery; 4] =
        [FileDelivery::Auto, FileDelivery::Plain, FileDelivery::Ded, FileDelivery::Dns];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            FileDelivery::Auto => "auto",
            FileDelivery::Plain => "plain",
            FileDelivery::Ded => "ded",
            FileDelivery::Dns => "dns",
        }
    }

    /// Returns the function that makes the policy, for [`Config::send_policy`](crate::Config::send_policy).
    pub fn send_policy(self) -> Option<fn() -> Box<dyn SendPolicy>> {
        match self {
            FileDelivery::Plain => None,
            FileDelivery::Ded => Some(|| Box::new(Ded)),
            FileDelivery::Dns => Some(|| Box::<Dns>::default()),
            FileDelivery::Auto => Some(|| Box::new(Dns { defers_reads: true, ..Dns::default() })),
        }
    }
}

impl fmt::Display for FileDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FileDelivery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = FileDelivery::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| format!("expected auto, plain, ded or dns, not `{text}`"))
    }
}

/// Number of bytes of a piece that is sent from the page cache.
const PIECE: u32 = 256 * 1024;

/// Number of bytes read at a time.
const READ: u32 = 32 * 1024;

/// Number of bytes in memory from which on a connection reads no further.
const READ_AHEAD: usize = 2 * READ as usize;

/// Number of bytes of a piece that is sent though it may not be cached, as memory for reads is short.
const SMALL_PIECE: u32 = 16 * 1024;

/// Deferred event delivery.
struct Ded;

impl SendPolicy for Ded {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        match state.can_read && state.queued_bytes + READ as usize <= READ_AHEAD {
            true => SendStep::Read { max_bytes: READ },
            false => SendStep::Send { max_file_bytes: SMALL_PIECE },
        }
    }

    fn decides_memory(&self) -> bool {
        false
    }

    fn defers_reads(&self) -> bool {
        true
    }
}

/// Disk-to-network splicing.
#[derive(Default)]
struct Dns {
    /// Connections whose next piece is not in the page cache.
    cold: HashSet<ConnId>,
    defers_reads: bool,
}

impl SendPolicy for Dns {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        if state.file_bytes.is_none() || !self.cold.remove(&state.id) {
            return SendStep::SendCached { max_file_bytes: PIECE };
        }
        match state.can_read {
            true => SendStep::Read { max_bytes: 2 * READ },
            false => SendStep::Send { max_file_bytes: SMALL_PIECE },
        }
    }

    fn completed(&mut self, id: ConnId, result: SendResult) {
        if result == SendResult::Cold {
            self.cold.insert(id);
        }
    }

    fn closed(&mut self, id: ConnId) {
        // Most servers have no cold files.
        if !self.cold.is_empty() {
            self.cold.remove(&id);
        }
    }

    fn decides_memory(&self) -> bool {
        false
    }

    fn defers_reads(&self) -> bool {
        self.defers_reads
    }
}
