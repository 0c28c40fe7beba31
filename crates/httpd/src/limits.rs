//! What a client may use up.

use std::time::Duration;

use multiplex::{FileOp, HIGH_WATER};

/// What a client may use up, and what the server keeps in memory. Everything is bounded.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request line and its line end; beyond that the reply is 414.
    pub line: usize,
    /// Bytes of a request's head, at most [`Limits::HEAD`]; beyond that the reply is 431.
    pub head: usize,
    /// Header fields of a request, at most [`Limits::FIELDS`]; beyond that the reply is 431.
    pub fields: usize,
    /// Bytes of a request's body; beyond that the reply is 413.
    pub body: u64,
    /// Bytes of memory for the bodies of all requests that are on their way in; a request that needs
    /// more is answered with 503.
    pub bodies: usize,
    /// Requests that a connection may make.
    pub requests: u32,
    /// Time for a request's head to arrive, from its first byte or from the connect.
    pub head_time: Duration,
    /// Time between two requests.
    pub idle_time: Duration,
    /// How often it is seen to that the client takes what is queued for it; also the time for the
    /// file system to answer.
    pub stall_time: Duration,
    /// Bytes per second that the client has to take between two such looks while there are any to
    /// take, or its connection is reset; and that it has to send of a body, or the reply is 408.
    pub least_rate: u32,
    /// Largest file that is kept in memory, at most 64 KiB.
    pub cached_file: u32,
    /// Bytes of files kept in memory.
    pub cached_bytes: usize,
    /// Number of files kept in memory.
    pub cached_files: usize,
    /// Larger files that are open at a time. Those that no client takes make room for others; when
    /// clients take so many, a request for another one is answered with 503.
    pub open_files: usize,
    /// How long a file in memory is believed to be unchanged without asking.
    pub cached_time: Duration,
}

impl Limits {
    /// The most bytes a request's head can have.
    pub const HEAD: usize = 16 * 1024;
    /// Longer times are taken for this one, a year.
    pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
    /// The most header fields a request can have.
    pub const FIELDS: usize = 64;

    /// What a field of a request, or a file in memory, needs beside its bytes, at most.
    const OVERHEAD: usize = 1024;

    /// The most memory that a site holds for so many connections, beside what the mechanism holds, its
    /// handlers and lists of directories.
    pub(crate) fn memory(&self, connections: u32) -> usize {
        let head = self.head.min(Self::HEAD);
        // A request that waits for a file has its head, its target, and the file's path in each coding;
        // one that waits for its body has its head twice, the second time as fields.
        let file = head + 5 * self.line.min(head);
        let body = 2 * head + self.fields.min(Self::FIELDS) * Self::OVERHEAD / 4;
        // Files that have left the memory for others stay until the replies with them are sent.
        let replies = HIGH_WATER + self.cached_file.min(FileOp::MOST) as usize;
        let each = file.max(body) + replies + Self::OVERHEAD;
        let cache =
            self.cached_files.saturating_mul(Self::OVERHEAD).saturating_add(self.cached_bytes);
        // A body that grows is there twice for a moment.
        let growing = usize::try_from(self.body.saturating_mul(2)).unwrap_or(usize::MAX);
        let bodies = self.bodies.saturating_add(self.bodies.min(growing));
        (connections as usize).saturating_mul(each).saturating_add(cache).saturating_add(bodies)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            line: 8 * 1024,
            head: Self::HEAD,
            fields: Self::FIELDS,
            body: 1 << 20,
            bodies: 64 << 20,
            requests: 100_000,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(30),
            least_rate: 4 * 1024,
            cached_file: 64 * 1024,
            cached_bytes: 32 << 20,
            cached_files: 4096,
            open_files: 1024,
            cached_time: Duration::from_secs(1),
        }
    }
}
