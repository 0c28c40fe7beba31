//! What a client may use up.

use std::time::Duration;

use evring::{FileOp, HIGH_WATER};

/// What a client may use up, and what the server keeps in memory. Everything is bounded.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request line and its line end; beyond that the reply is 414.
    pub max_request_line_bytes: usize,
    /// Bytes of a request's head, at most [`Limits::MAX_HEAD_BYTES`]; beyond that the reply is 431.
    pub max_head_bytes: usize,
    /// Header fields of a request, at most [`Limits::MAX_HEADERS`]; beyond that the reply is 431.
    pub max_headers: usize,
    /// Bytes of a request's body; beyond that the reply is 413.
    pub max_body_bytes: u64,
    /// Bytes of memory for the bodies of all requests that are on their way in; a request that needs
    /// more is answered with 503.
    pub max_body_memory: usize,
    /// Requests that a connection may make.
    pub max_keep_alive_requests: u32,
    /// Time for a request's head to arrive, from its first byte or from the connect.
    pub header_timeout: Duration,
    /// Time between two requests.
    pub keep_alive_timeout: Duration,
    /// How often it is seen to that the client takes what is queued for it; also the time for the
    /// file system to answer.
    pub progress_interval: Duration,
    /// Bytes per second that the client has to take between two such looks while there are any to
    /// take, or its connection is reset; and that it has to send of a body, or the reply is 408.
    pub min_rate: u32,
    /// Largest file that is kept in memory, at most 64 KiB.
    pub max_cached_file_bytes: u32,
    /// Bytes of files kept in memory.
    pub cache_bytes: usize,
    /// Number of files kept in memory.
    pub cache_files: usize,
    /// Larger files that are open at a time. Those that no client takes make room for others; when
    /// clients take so many, a request for another one is answered with 503.
    pub max_open_files: usize,
    /// How long a file in memory is believed to be unchanged without asking.
    pub cache_ttl: Duration,
}

impl Limits {
    /// The most bytes a request's head can have.
    pub const MAX_HEAD_BYTES: usize = 16 * 1024;
    /// Longer times are taken for this one, a year.
    pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
    /// The most header fields a request can have.
    pub const MAX_HEADERS: usize = 64;

    /// What a field of a request, or a file in memory, needs beside its bytes, at most.
    const OVERHEAD: usize = 1024;

    /// The most memory that a site holds for so many connections, beside what the mechanism holds, its
    /// handlers and lists of directories.
    pub(crate) fn memory(&self, connections: u32) -> usize {
        let head = self.max_head_bytes.min(Self::MAX_HEAD_BYTES);
        // A request that waits for a file has its head, its target, and the file's path in each coding;
        // one that waits for its body has its head twice, the second time as fields.
        let file = head + 5 * self.max_request_line_bytes.min(head);
        let body = 2 * head + self.max_headers.min(Self::MAX_HEADERS) * Self::OVERHEAD / 4;
        // Files that have left the memory for others stay until the replies with them are sent.
        let replies = HIGH_WATER + self.max_cached_file_bytes.min(FileOp::MAX_READ_BYTES) as usize;
        let each = file.max(body) + replies + Self::OVERHEAD;
        let cache =
            self.cache_files.saturating_mul(Self::OVERHEAD).saturating_add(self.cache_bytes);
        // A body that grows is there twice for a moment.
        let growing = usize::try_from(self.max_body_bytes.saturating_mul(2)).unwrap_or(usize::MAX);
        let bodies = self.max_body_memory.saturating_add(self.max_body_memory.min(growing));
        (connections as usize).saturating_mul(each).saturating_add(cache).saturating_add(bodies)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_request_line_bytes: 8 * 1024,
            max_head_bytes: Self::MAX_HEAD_BYTES,
            max_headers: Self::MAX_HEADERS,
            max_body_bytes: 1 << 20,
            max_body_memory: 64 << 20,
            max_keep_alive_requests: 100_000,
            header_timeout: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(60),
            progress_interval: Duration::from_secs(30),
            min_rate: 4 * 1024,
            max_cached_file_bytes: 64 * 1024,
            cache_bytes: 32 << 20,
            cache_files: 4096,
            max_open_files: 1024,
            cache_ttl: Duration::from_secs(1),
        }
    }
}
