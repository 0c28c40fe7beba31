//! Command-line flags.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Parser;
use evring_httpd::evring::{Admission, Order, SymlinkPolicy};
use evring_httpd::server::Builder;
use evring_httpd::{AccessLog, Config, Limits, Server};
use tracing::level_filters::LevelFilter;

use crate::descriptors::{DescriptorBudget, DescriptorDemand};

/// evring's web server: HTTP/1.1 on any event mechanism of Linux
///
/// Serves the files below --root, or evring's page without it. On SIGTERM or SIGINT the server stops
/// accepting, finishes the responses in progress within --shutdown-timeout, and exits. A second
/// signal exits at once.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// Directory to serve; without it, only evring's page is served
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Address or host name, and port, to listen on, such as 0.0.0.0:80 for all IPv4 interfaces; can be
    /// repeated. Port 0 selects a free port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080", value_parser = addresses)]
    listen: Vec<Addresses>,

    /// Event mechanism, one of --list-backends. `auto` selects uring, or epoll if io_uring is not
    /// available
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) backend: String,

    /// Worker threads, each with its own listening socket (SO_REUSEPORT) and connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: u16,

    /// List the event mechanisms, with the reason if one is unavailable, and exit
    #[arg(long)]
    pub(crate) list_backends: bool,

    /// Print the list as JSON
    #[arg(long, requires = "list_backends")]
    pub(crate) json: bool,

    /// Do not serve precompressed files: `a.css.br`, `a.css.zst` or `a.css.gz` instead of `a.css`, to
    /// clients that accept the coding. They are served even if older than the plain file
    #[arg(long)]
    no_precompressed: bool,

    /// List the files of a directory that has no index.html
    #[arg(long)]
    autoindex: bool,

    /// Follow symbolic links that are absolute or lead out of --root
    #[arg(long)]
    follow_symlinks: bool,

    /// Send `Cache-Control: max-age` with files, so that caches use them this long without revalidation
    #[arg(long, value_name = "SECONDS")]
    max_age: Option<u32>,

    /// Add /spin?us=N, /bytes?n=N and /echo for experiments; do not expose them to the public
    #[arg(long)]
    lab: bool,

    /// File to append the access log to, one line per response in the combined format; `-` for standard
    /// output. SIGHUP or SIGUSR1 reopens it, for log rotation
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// Serve metrics at /.httpd/status.json; always enabled without --root
    #[arg(long)]
    status: bool,

    /// Log level on standard error (off, error, warn, info, debug, trace); `debug` logs each request
    /// answered with an error
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub(crate) log_level: LevelFilter,

    #[command(flatten)]
    limits: LimitArguments,
}

/// The socket addresses of one --listen.
type Addresses = Vec<SocketAddr>;

fn addresses(text: &str) -> Result<Addresses, String> {
    let resolved = text.to_socket_addrs().map(Iterator::collect);
    resolved.map_err(|error| {
        format!("expected ADDR:PORT, such as 0.0.0.0:8080, [::]:8080 or localhost:8080: {error}")
    })
}

/// Limits and timeouts.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
struct LimitArguments {
    /// Maximum connections per worker, fewer if the descriptor limit is too low; further ones wait in
    /// the listen backlog
    #[arg(long, value_name = "N", default_value_t = Config::default().max_connections, value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    max_connections: u32,

    /// Maximum connections per client address and worker; further ones are reset. An IPv6 /64 network
    /// counts as one address. Unlimited by default, as many clients may share an address
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_address: Option<u32>,

    /// Length of the listen backlog
    #[arg(long, value_name = "N", default_value_t = Config::default().backlog)]
    backlog: u32,

    /// Under overload, maximum time that connections wait in the listen backlog: it is limited to the
    /// connections that are served in this time. 0 disables admission control
    #[arg(long, value_name = "SECONDS", default_value = "0.05", value_parser = seconds_or_none)]
    max_queue_delay: Duration,

    /// Under overload, connections that have waited longer than this are reset without being served
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    max_wait: Duration,

    /// Under overload, accept the newest connections first
    #[arg(long)]
    newest_first: bool,

    /// Maximum requests per connection
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_keep_alive_requests, value_parser = clap::value_parser!(u32).range(1..))]
    keep_alive_requests: u32,

    /// Maximum bytes of a request line, including the URI, up to 16384; longer ones get 414
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_request_line_bytes, value_parser = head_bytes)]
    max_request_line: usize,

    /// Maximum bytes of a request's head, up to 16384; longer ones get 431
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_head_bytes, value_parser = head_bytes)]
    max_header_size: usize,

    /// Maximum header fields of a request, up to 64; more get 431
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_headers, value_parser = header_count)]
    max_headers: usize,

    /// Maximum bytes of a request's body; longer ones get 413
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_body_bytes)]
    max_body_size: u64,

    /// Maximum bytes of memory per worker for request bodies that are being received; a request that
    /// needs more gets 503
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_body_memory)]
    max_body_memory: usize,

    /// Maximum bytes buffered per worker, received or to be sent, without bodies and files; a
    /// connection that would need more is closed
    #[arg(long, value_name = "BYTES", default_value_t = Config::default().max_buffered_bytes)]
    max_buffered: usize,

    /// Maximum bytes of the file cache per worker
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().cache_bytes)]
    cache_size: usize,

    /// Maximum open files per worker that are too large for the cache, fewer if the descriptor limit is
    /// too low; a request for another one gets 503
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_open_files as u32, value_parser = clap::value_parser!(u32).range(1..))]
    max_open_files: u32,

    /// Maximum time to receive a request's head
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    header_timeout: Duration,

    /// Maximum idle time between two requests
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    keep_alive_timeout: Duration,

    /// Interval at which a client's progress in receiving a response or sending a body is checked
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    progress_interval: Duration,

    /// Time that a cached file is used without revalidation; 0 revalidates at each request
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds_or_none)]
    cache_ttl: Duration,

    /// Minimum rate of a client, in bytes per second, averaged over --progress-interval
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().min_rate, value_parser = clap::value_parser!(u32).range(1..))]
    min_rate: u32,

    /// Maximum time to finish the responses in progress after SIGTERM or SIGINT
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    shutdown_timeout: Duration,
}

impl LimitArguments {
    fn admission(&self) -> Option<Admission> {
        let order = if self.newest_first { Order::Newest } else { Order::Oldest };
        let default = Admission::default();
        (!self.max_queue_delay.is_zero()).then_some(Admission {
            max_queue_delay: self.max_queue_delay,
            max_wait: self.max_wait,
            order,
            ..default
        })
    }
}

/// Parses a positive time in seconds, such as `0.5`.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = seconds_or_none(text).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| "expected a number of seconds above 0, such as 30 or 0.5".to_owned())
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "expected a number of seconds, such as 30 or 0.5".to_owned())
}

/// Parses a size of a head; the minimum has room for a short request.
fn head_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes| (64..=Limits::MAX_HEAD_BYTES).contains(bytes));
    bytes.ok_or_else(|| format!("expected a number from 64 to {}", Limits::MAX_HEAD_BYTES))
}

/// Parses a number of header fields; every request has at least one.
fn header_count(text: &str) -> Result<usize, String> {
    let fields = text.parse().ok().filter(|fields| (1..=Limits::MAX_HEADERS).contains(fields));
    fields.ok_or_else(|| format!("expected a number from 1 to {}", Limits::MAX_HEADERS))
}

impl Arguments {
    /// Returns the descriptors that the flags ask for.
    pub(crate) fn descriptor_demand(&self) -> DescriptorDemand {
        DescriptorDemand {
            workers: self.workers,
            listeners: self.listen.iter().map(Vec::len).sum::<usize>() as u64,
            connections: self.limits.max_connections,
            open_files: self.limits.max_open_files,
        }
    }

    /// Configures the server on `backend`, within `budget`. Setting `reopen` reopens its access log.
    pub(crate) fn server(
        &self,
        backend: &str,
        budget: DescriptorBudget,
        reopen: &Arc<AtomicBool>,
    ) -> Builder {
        let flags = &self.limits;
        let config = Config {
            max_connections: budget.connections,
            max_per_address: flags.max_connections_per_address,
            max_file_ops: budget.max_file_ops,
            backlog: flags.backlog,
            admission: flags.admission(),
            max_buffered_bytes: flags.max_buffered,
            drain_timeout: flags.shutdown_timeout,
            symlinks: if self.follow_symlinks {
                SymlinkPolicy::Anywhere
            } else {
                SymlinkPolicy::Beneath
            },
            ..Config::default()
        };
        let limits = Limits {
            max_request_line_bytes: flags.max_request_line,
            max_head_bytes: flags.max_header_size,
            max_headers: flags.max_headers,
            max_body_bytes: flags.max_body_size,
            max_body_memory: flags.max_body_memory,
            cache_bytes: flags.cache_size,
            max_open_files: budget.open_files as usize,
            max_keep_alive_requests: flags.keep_alive_requests,
            header_timeout: flags.header_timeout,
            keep_alive_timeout: flags.keep_alive_timeout,
            progress_interval: flags.progress_interval,
            cache_ttl: flags.cache_ttl,
            min_rate: flags.min_rate,
            ..Limits::default()
        };
        let mut server = Server::builder().backend(backend).workers(budget.workers).config(config);
        server = server.limits(limits).precompressed(!self.no_precompressed);
        server = server.autoindex(self.autoindex).max_age(self.max_age);
        for addresses in &self.listen {
            server = server.listen(&addresses[..]);
        }
        if let Some(root) = &self.root {
            server = server.files(root);
        }
        if self.status || self.root.is_none() {
            server = server.status(true);
        }
        if let Some(path) = &self.access_log {
            let path = (path.as_os_str() != "-").then(|| path.clone());
            server = server.access_log(AccessLog { path, reopen: Arc::clone(reopen) });
        }
        if self.lab { server.lab_routes() } else { server }
    }
}
