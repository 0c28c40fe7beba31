//! Limits for clients and for the server's memory.

use std::time::Duration;

use evring::HIGH_WATER;
use evring::files::MAX_READ_BYTES;

#[cfg(feature = "cli")]
use crate::flags;

/// Limits per client and for the server's memory. Every resource is bounded.
///
/// The text of a field is the help of the program's flag for it, so it names other settings by their flags. `httpd --help`
/// shows the defaults, which `Limits::default()` has, too.
///
/// ```
/// let mut limits = evring_httpd::options::Limits::default();
/// limits.max_body_bytes = 8 << 20;
/// let server = evring_httpd::Server::builder().limits(limits);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = "Limits"))]
pub struct Limits {
    /// Maximum bytes of a request line, including the URI, up to 16384; longer ones get 414
    #[cfg_attr(feature = "cli", arg(long = "max-request-line", value_name = "BYTES", default_value_t = Limits::default().max_request_line_bytes, value_parser = flags::range::<usize>(64, Limits::MAX_HEAD_BYTES as u64)))]
    pub max_request_line_bytes: usize,
    /// Maximum bytes of a request's head, up to 16384; longer ones get 431
    #[cfg_attr(feature = "cli", arg(long = "max-header-size", value_name = "BYTES", default_value_t = Limits::default().max_head_bytes, value_parser = flags::range::<usize>(64, Limits::MAX_HEAD_BYTES as u64)))]
    pub max_head_bytes: usize,
    /// Maximum header fields of a request, up to 64; more get 431
    #[cfg_attr(feature = "cli", arg(long, value_name = "N", default_value_t = Limits::default().max_headers, value_parser = flags::range::<usize>(1, Limits::MAX_HEADERS as u64)))]
    pub max_headers: usize,
    /// Maximum bytes of a request's body; longer ones get 413
    #[cfg_attr(feature = "cli", arg(long = "max-body-size", value_name = "BYTES", default_value_t = Limits::default().max_body_bytes, value_parser = flags::bytes::<u64>))]
    pub max_body_bytes: u64,
    /// Maximum bytes of memory per worker for request bodies that are being received; a request that
    /// needs more gets 503
    #[cfg_attr(feature = "cli", arg(long, value_name = "BYTES", default_value_t = Limits::default().max_body_memory, value_parser = flags::bytes::<usize>))]
    pub max_body_memory: usize,
    /// Maximum requests per connection
    #[cfg_attr(feature = "cli", arg(long = "keep-alive-requests", value_name = "N", default_value_t = Limits::default().max_keep_alive_requests, value_parser = flags::range::<u32>(1, u32::MAX.into())))]
    pub max_keep_alive_requests: u32,
    /// Maximum time to receive a request's head, from its first byte or from the connect
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS", default_value = flags::text(Limits::default().header_timeout), value_parser = flags::seconds))]
    pub header_timeout: Duration,
    /// Maximum idle time between two requests
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS", default_value = flags::text(Limits::default().keep_alive_timeout), value_parser = flags::seconds))]
    pub keep_alive_timeout: Duration,
    /// Interval at which a client's progress in receiving a response or sending a body is checked; also the
    /// maximum time of a file operation
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS", default_value = flags::text(Limits::default().progress_interval), value_parser = flags::seconds))]
    pub progress_interval: Duration,
    /// Minimum rate of a client, in bytes per second, averaged over --progress-interval. One that receives
    /// more slowly is reset; one that sends a body more slowly gets 408
    #[cfg_attr(feature = "cli", arg(long, value_name = "BYTES", default_value_t = Limits::default().min_rate, value_parser = flags::range::<u32>(1, u32::MAX.into())))]
    pub min_rate: u32,
    /// Maximum time in which a handler that waits has to answer, after the request has arrived; then the
    /// client gets 503. Also the maximum time for the next piece of a response while the server does not receive, or
    /// the client has shut down its sending side; then the connection is reset
    #[cfg_attr(feature = "cli", arg(skip = Limits::default().handler_timeout))]
    pub handler_timeout: Duration,
    /// Whether a client that has shut down its sending side still gets the response of a handler that waits.
    /// By default it counts as gone, as one that has closed its connection looks the same
    #[cfg_attr(feature = "cli", arg(skip = Limits::default().half_close))]
    pub half_close: bool,
    /// Maximum bytes of a file that is cached in memory, up to 64 KiB
    #[cfg_attr(feature = "cli", arg(skip = Limits::default().max_cached_file_bytes))]
    pub max_cached_file_bytes: u32,
    /// Maximum bytes of the file cache per worker
    #[cfg_attr(feature = "cli", arg(long = "cache-size", value_name = "BYTES", default_value_t = Limits::default().cache_bytes, value_parser = flags::bytes::<usize>))]
    pub cache_bytes: usize,
    /// Maximum files in the cache, per worker
    #[cfg_attr(feature = "cli", arg(skip = Limits::default().cache_files))]
    pub cache_files: usize,
    /// Maximum open files per worker that are too large for the cache. Files that are not being sent are
    /// closed to make room; if all are being sent, a request for another one gets 503
    #[cfg_attr(feature = "cli", arg(long, value_name = "N", default_value_t = Limits::default().max_open_files, value_parser = flags::range::<usize>(1, u32::MAX.into())))]
    pub max_open_files: usize,
    /// Time that a cached file is used without revalidation; 0 revalidates at each request
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS", default_value = flags::text(Limits::default().cache_ttl), value_parser = flags::seconds_or_none))]
    pub cache_ttl: Duration,
    /// Maximum bytes of memory for compressed files that are too large for the cache, of all workers and hosts
    #[cfg(feature = "compression")]
    #[cfg_attr(feature = "cli", arg(long = "compress-memory", value_name = "BYTES", default_value_t = Limits::default().max_compressed_memory, value_parser = flags::bytes::<usize>))]
    pub max_compressed_memory: usize,
}

impl Limits {
    /// Maximum of [`Limits::max_head_bytes`].
    pub const MAX_HEAD_BYTES: usize = 16 * 1024;
    /// Maximum duration, one year; longer ones are clamped to it.
    pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
    /// Maximum of [`Limits::max_headers`].
    pub const MAX_HEADERS: usize = 64;

    /// Memory of the positions of a field in a head that waits, in bytes.
    pub(crate) const FIELD_BYTES: usize = 8;

    /// Maximum overhead of a request's field or of a cached file, in bytes.
    const OVERHEAD: usize = 1024;

    /// Returns the limits within their own bounds.
    pub(crate) fn clamped(self) -> Self {
        let clamp = |time: Duration| time.min(Self::MAX_TIMEOUT);
        Limits {
            header_timeout: clamp(self.header_timeout),
            keep_alive_timeout: clamp(self.keep_alive_timeout),
            progress_interval: clamp(self.progress_interval),
            handler_timeout: clamp(self.handler_timeout),
            cache_ttl: clamp(self.cache_ttl),
            max_head_bytes: self.max_head_bytes.min(Self::MAX_HEAD_BYTES),
            max_headers: self.max_headers.min(Self::MAX_HEADERS),
            max_cached_file_bytes: self.max_cached_file_bytes.min(MAX_READ_BYTES),
            min_rate: self.min_rate.max(1),
            ..self
        }
    }

    /// Returns the maximum bytes that a site holds for `connections`, without the memory of the
    /// mechanism, of handlers and of directory listings.
    pub(crate) fn memory(&self, connections: u32) -> usize {
        let Limits { max_head_bytes: max_head, max_headers, max_cached_file_bytes, .. } =
            self.clone().clamped();
        let head = max_head + max_headers * Self::FIELD_BYTES;
        // A request that waits for a file holds its head, its target, and the file's path in each coding.
        // One that receives its body holds its head twice: as bytes and as header fields.
        let file = head + self.lookup_bytes();
        let body = head + max_head + max_headers * Self::OVERHEAD / 4;
        // A file evicted from the cache stays in memory until the responses with it are sent.
        let responses = HIGH_WATER + max_cached_file_bytes as usize;
        let each = file.max(body) + responses + Self::OVERHEAD;
        let cache =
            self.cache_files.saturating_mul(Self::OVERHEAD).saturating_add(self.cache_bytes);
        // A growing buffer exists twice while it is copied.
        let growing = usize::try_from(self.max_body_bytes.saturating_mul(2)).unwrap_or(usize::MAX);
        let bodies = self.max_body_memory.saturating_add(self.max_body_memory.min(growing));
        (connections as usize).saturating_mul(each).saturating_add(cache).saturating_add(bodies)
    }

    /// Returns the maximum bytes of the target and the paths of a request that waits for a file.
    fn lookup_bytes(&self) -> usize {
        let line = self.max_request_line_bytes.min(self.max_head_bytes);
        // In canonical form, a byte may take three. Only a file that was opened has paths in the codings.
        3 * line + line + 3 * line.min(libc::PATH_MAX as usize)
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
            handler_timeout: Duration::from_secs(60),
            half_close: false,
            max_cached_file_bytes: 64 * 1024,
            cache_bytes: 32 << 20,
            cache_files: 4096,
            max_open_files: 1024,
            cache_ttl: Duration::from_secs(1),
            #[cfg(feature = "compression")]
            max_compressed_memory: 64 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::coding::Coding;
    use crate::decision::options::ResponseOptions;
    use crate::message::path;
    use crate::site::lookup::FileLookup;

    #[test]
    fn paths_in_all_codings_took_more_memory_than_was_counted() {
        for line in [1 << 10, 4 << 10, 8 << 10, 16 << 10] {
            let limits = Limits { max_request_line_bytes: line, ..Limits::default() };
            let target = [b"/", &b"|".repeat(line - b"GET / HTTP/1.1\r\n".len())[..]].concat();
            let options = ResponseOptions::last(true);
            let lookup = FileLookup::open(&path::canonical(&target), options).unwrap();
            let len = |coding| lookup.paths.of(coding).as_path().as_os_str().len();
            let mut held = lookup.target.len() + len(None);
            if target.len() < libc::PATH_MAX as usize {
                held += Coding::ALL.iter().map(|coding| len(Some(*coding))).sum::<usize>();
            }
            assert!(held <= limits.lookup_bytes(), "{held} bytes with a line of {line}");
        }
    }
}
