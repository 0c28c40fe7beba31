//! Limits for clients and for the server's memory.

use std::time::Duration;

use evring::{HIGH_WATER, MAX_READ_BYTES};

/// Limits per client and for the server's memory. Every resource is bounded.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum bytes of a request line with its line end; a longer one gets 414.
    pub max_request_line_bytes: usize,
    /// Maximum bytes of a request's head, up to [`Limits::MAX_HEAD_BYTES`]; a longer one gets 431.
    pub max_head_bytes: usize,
    /// Maximum header fields of a request, up to [`Limits::MAX_HEADERS`]; more get 431.
    pub max_headers: usize,
    /// Maximum bytes of a request's body; a longer one gets 413.
    pub max_body_bytes: u64,
    /// Maximum bytes of memory for all request bodies that are being received. A request that
    /// needs more gets 503.
    pub max_body_memory: usize,
    /// Maximum requests per connection.
    pub max_keep_alive_requests: u32,
    /// Maximum time to receive a request's head, from its first byte or from the connect.
    pub header_timeout: Duration,
    /// Maximum idle time between two requests.
    pub keep_alive_timeout: Duration,
    /// Interval at which a client's progress is checked, in sending a body and in receiving
    /// responses. Also the maximum time of a file operation.
    pub progress_interval: Duration,
    /// Minimum rate, in bytes per second, averaged over `progress_interval`. A client that receives
    /// more slowly is reset; one that sends a body more slowly gets 408.
    pub min_rate: u32,
    /// Maximum bytes of a file that is cached in memory, up to 64 KiB.
    pub max_cached_file_bytes: u32,
    /// Maximum bytes of the cache.
    pub cache_bytes: usize,
    /// Maximum files in the cache.
    pub cache_files: usize,
    /// Maximum open files that are too large for the cache. Files that are not being sent are
    /// closed to make room; if all are being sent, a request for another one gets 503.
    pub max_open_files: usize,
    /// Time that a cached file is used without revalidation.
    pub cache_ttl: Duration,
}

impl Limits {
    /// Maximum of [`Limits::max_head_bytes`].
    pub const MAX_HEAD_BYTES: usize = 16 * 1024;
    /// Maximum duration, one year; longer ones are clamped to it.
    pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
    /// Maximum of [`Limits::max_headers`].
    pub const MAX_HEADERS: usize = 64;

    /// Maximum overhead of a request's field or of a cached file, in bytes.
    const OVERHEAD: usize = 1024;

    /// Returns the maximum bytes that a site holds for `connections`, without the memory of the
    /// mechanism, of handlers and of directory listings.
    pub(crate) fn memory(&self, connections: u32) -> usize {
        let head = self.max_head_bytes.min(Self::MAX_HEAD_BYTES);
        // A request that waits for a file holds its head, its target, and the file's path in each coding.
        // One that receives its body holds its head twice: as bytes and as header fields.
        let file = head + 5 * self.max_request_line_bytes.min(head);
        let body = 2 * head + self.max_headers.min(Self::MAX_HEADERS) * Self::OVERHEAD / 4;
        // A file evicted from the cache stays in memory until the responses with it are sent.
        let responses = HIGH_WATER + self.max_cached_file_bytes.min(MAX_READ_BYTES) as usize;
        let each = file.max(body) + responses + Self::OVERHEAD;
        let cache =
            self.cache_files.saturating_mul(Self::OVERHEAD).saturating_add(self.cache_bytes);
        // A growing buffer exists twice while it is copied.
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
