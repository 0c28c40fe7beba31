//! The program's flags.

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

/// A web server that runs on every event mechanism of Linux.
///
/// Serves the files below a directory, or without one a page of its own. Ends on SIGTERM or
/// SIGINT when the replies under way are sent, within the time of --shutdown-timeout; a second such signal
/// ends it at once.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// Directory to serve; without it, a page that is part of the program
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Address or name, and port, to listen at, such as 0.0.0.0:80 for everybody; may be given more
    /// than once. Port 0 takes any free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080", value_parser = addresses)]
    listen: Vec<Addresses>,

    /// Event mechanism; --list-backends shows them. `auto` takes uring or, where io_uring is
    /// refused, epoll
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) backend: String,

    /// Threads, each with a listening socket of its own at the same address
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: u16,

    /// List the event mechanisms, and why some can't run here, then exit
    #[arg(long)]
    pub(crate) list_backends: bool,

    /// With --list-backends: as JSON
    #[arg(long, requires = "list_backends")]
    pub(crate) json: bool,

    /// Do not look for `a.css.br`, `a.css.zst` and `a.css.gz` beside `a.css`. They are sent to who
    /// takes them, also when they are older than the plain file
    #[arg(long)]
    no_precompressed: bool,

    /// Show what is in a directory that has no index.html
    #[arg(long)]
    autoindex: bool,

    /// Follow symbolic links that are absolute or lead out of DIR, too
    #[arg(long)]
    follow_symlinks: bool,

    /// Let clients and proxies keep files for this many seconds without asking again
    #[arg(long, value_name = "SECONDS")]
    max_age: Option<u32>,

    /// Add /spin?us=N, /bytes?n=N and /echo, for experiments and not for the public
    #[arg(long)]
    lab: bool,

    /// File to append a line to for each reply as it begins, in the combined format; `-` for standard
    /// output. SIGHUP and SIGUSR1 have it opened anew
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// Show what the server has done at /.httpd/status.json, also with --root
    #[arg(long)]
    status: bool,

    /// How much is said on standard error (off, error, warn, info, debug, trace); `debug` has each
    /// request that was answered with an error
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub(crate) log_level: LevelFilter,

    #[command(flatten)]
    bounds: Bounds,
}

/// Where to listen.
type Addresses = Vec<SocketAddr>;

fn addresses(text: &str) -> Result<Addresses, String> {
    let found = text.to_socket_addrs().map(Iterator::collect);
    found.map_err(|error| {
        format!("it must be ADDR:PORT, such as 0.0.0.0:8080, [::]:8080 or localhost:8080: {error}")
    })
}

/// What clients may use up.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Bounds")]
struct Bounds {
    /// Connections at a time for each worker, or fewer if descriptors are short; more wait in the
    /// listener's queue
    #[arg(long, value_name = "N", default_value_t = Config::default().max_connections, value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    max_connections: u32,

    /// Connections of one address at a time for each worker; one more is reset. A network of 2^64 IPv6
    /// addresses (/64) counts as one. Without it there is no such bound, as many clients may share an
    /// address
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_address: Option<u32>,

    /// Length of the listener's queue
    #[arg(long, value_name = "N", default_value_t = Config::default().backlog)]
    backlog: u32,

    /// Time that connections may wait in that queue when more come than can be served: it is made as
    /// long as what is served meanwhile. 0 leaves it as it is, and lets in whatever comes
    #[arg(long, value_name = "SECONDS", default_value = "0.05", value_parser = seconds_or_none)]
    max_queue_delay: Duration,

    /// Time after which nothing is begun any more for a connection that has waited, when more come
    /// than can be served
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    max_wait: Duration,

    /// When more connections come than can be served, serve the newest first
    #[arg(long)]
    newest_first: bool,

    /// Requests that one connection may make
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_keep_alive_requests, value_parser = clap::value_parser!(u32).range(1..))]
    keep_alive_requests: u32,

    /// Bytes of a request's first line, its URI with it, 16384 at most; more is answered with 414
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_request_line_bytes, value_parser = head_bytes)]
    max_request_line: usize,

    /// Bytes of a request's head, 16384 at most; more is answered with 431
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_head_bytes, value_parser = head_bytes)]
    max_header_size: usize,

    /// Header fields of a request, 64 at most; more are answered with 431
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_headers, value_parser = fields)]
    max_headers: usize,

    /// Bytes of a request's body; more is answered with 413
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_body_bytes)]
    max_body_size: u64,

    /// Bytes of memory for the bodies of all requests on their way in, for each worker; a request that
    /// needs more is answered with 503
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_body_memory)]
    max_body_memory: usize,

    /// Bytes of memory for what all connections of a worker have sent and wait to be sent, without bodies
    /// and files; the connection that would need more ends
    #[arg(long, value_name = "BYTES", default_value_t = Config::default().max_buffered_bytes)]
    max_buffered: usize,

    /// Bytes of files kept in memory, for each worker
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().cache_bytes)]
    cache_size: usize,

    /// Files too large for memory that are open at a time, for each worker, or fewer if descriptors are
    /// short; a request for another one is answered with 503
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_open_files as u32, value_parser = clap::value_parser!(u32).range(1..))]
    max_open_files: u32,

    /// Time for a request's head to arrive
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    header_timeout: Duration,

    /// Time that a connection may rest between two requests
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    keep_alive_timeout: Duration,

    /// How often it is seen to that a client takes its reply, or sends its body, fast enough
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    progress_interval: Duration,

    /// How long a file in memory is believed to be unchanged; 0 has each request look
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds_or_none)]
    cache_ttl: Duration,

    /// Bytes per second that are fast enough
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().min_rate, value_parser = clap::value_parser!(u32).range(1..))]
    min_rate: u32,

    /// Time that replies under way have after SIGTERM or SIGINT
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    shutdown_timeout: Duration,
}

impl Bounds {
    fn admission(&self) -> Option<Admission> {
        let order = if self.newest_first { Order::Newest } else { Order::Oldest };
        let usual = Admission::default();
        (!self.max_queue_delay.is_zero()).then_some(Admission {
            max_queue_delay: self.max_queue_delay,
            max_wait: self.max_wait,
            order,
            ..usual
        })
    }
}

/// A time in seconds, such as `0.5`.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = seconds_or_none(text).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| "it must be a number of seconds above 0, such as 30 or 0.5".to_owned())
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "it must be a number of seconds, such as 30 or 0.5".to_owned())
}

/// Bytes of a head, at least those of the shortest request.
fn head_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes| (64..=Limits::MAX_HEAD_BYTES).contains(bytes));
    bytes.ok_or_else(|| format!("it must be a number from 64 to {}", Limits::MAX_HEAD_BYTES))
}

/// A number of fields; every request has at least one.
fn fields(text: &str) -> Result<usize, String> {
    let fields = text.parse().ok().filter(|fields| (1..=Limits::MAX_HEADERS).contains(fields));
    fields.ok_or_else(|| format!("it must be a number from 1 to {}", Limits::MAX_HEADERS))
}

impl Arguments {
    /// What the flags want to have open.
    pub(crate) fn wanted(&self) -> DescriptorDemand {
        DescriptorDemand {
            workers: self.workers,
            listeners: self.listen.iter().map(Vec::len).sum::<usize>() as u64,
            connections: self.bounds.max_connections,
            open_files: self.bounds.max_open_files,
        }
    }

    /// The server that the flags ask for, on `backend`, with its share of descriptors; `reopen` has
    /// it open its log anew.
    pub(crate) fn server(
        &self,
        backend: &str,
        share: DescriptorBudget,
        reopen: &Arc<AtomicBool>,
    ) -> Builder {
        let bounds = &self.bounds;
        let config = Config {
            max_connections: share.connections,
            max_per_address: bounds.max_connections_per_address,
            max_file_ops: share.max_file_ops,
            backlog: bounds.backlog,
            admission: bounds.admission(),
            max_buffered_bytes: bounds.max_buffered,
            drain_timeout: bounds.shutdown_timeout,
            symlinks: if self.follow_symlinks {
                SymlinkPolicy::Anywhere
            } else {
                SymlinkPolicy::Beneath
            },
            ..Config::default()
        };
        let limits = Limits {
            max_request_line_bytes: bounds.max_request_line,
            max_head_bytes: bounds.max_header_size,
            max_headers: bounds.max_headers,
            max_body_bytes: bounds.max_body_size,
            max_body_memory: bounds.max_body_memory,
            cache_bytes: bounds.cache_size,
            max_open_files: share.open_files as usize,
            max_keep_alive_requests: bounds.keep_alive_requests,
            header_timeout: bounds.header_timeout,
            keep_alive_timeout: bounds.keep_alive_timeout,
            progress_interval: bounds.progress_interval,
            cache_ttl: bounds.cache_ttl,
            min_rate: bounds.min_rate,
            ..Limits::default()
        };
        let mut server = Server::builder().backend(backend).workers(share.workers).config(config);
        server = server.limits(limits).precompressed(!self.no_precompressed);
        server = server.listing(self.autoindex).max_age(self.max_age);
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
        if self.lab { server.lab() } else { server }
    }
}
