//! The settings of a server. Each is defined once: its default, its documentation, and its flag of the
//! program `httpd`.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
#[cfg(feature = "sandbox")]
use std::str::FromStr;
use std::time::Duration;

use evring::files::SymlinkPolicy;
use evring::{Admission, Config, FileDelivery, Order};

use crate::access_log::LogFormat;
#[cfg(feature = "basic-auth")]
use crate::basic_auth::BasicAuth;
use crate::file_options::FileOptions;
#[cfg(feature = "cli")]
use crate::flags;
use crate::host_options::HostOptions;
use crate::limits::Limits;
use crate::server::addresses::Addresses;
#[cfg(feature = "tls")]
use crate::server::tls::TlsOptions;
#[cfg(feature = "user")]
use crate::server::user::User;
#[cfg(feature = "sandbox")]
use crate::site::sandbox;

/// The settings of a server, from which a [`Builder`](crate::Builder) can be made.
///
/// With the feature `cli`, they are flags of a program that uses `clap`.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[non_exhaustive]
pub struct Options {
    /// Address or host name, and port, to listen on; `:80` or `*:80` is port 80 of all interfaces; can be repeated. Port 0
    /// selects a free port. Without it, the server listens where a service manager does for it, or else at
    /// 127.0.0.1:8080
    #[cfg_attr(feature = "cli", arg(help_heading = "Server", long, value_name = "ADDR:PORT"))]
    pub listen: Vec<Addresses>,

    /// Event mechanism, one of --list-backends. `auto` selects uring, or epoll if io_uring is not
    /// available
    #[cfg_attr(feature = "cli", arg(help_heading = "Server", long, visible_alias = "mechanism", value_name = "NAME", default_value_t = Options::default().backend))]
    pub backend: String,

    /// Worker threads, each with its own connections, and its own listening socket (SO_REUSEPORT) unless the socket was
    /// inherited; `auto` is one per processor
    #[cfg_attr(feature = "cli", arg(help_heading = "Server", long, value_name = "N", default_value_t = Options::default().workers, value_parser = flags::workers))]
    pub workers: u16,

    /// User, and group if not the user's own, to run as once the server listens and has read the certificates. This user
    /// has to be able to open the access log, which is created for it, to read the pages of errors, and at SIGHUP and SIGUSR2 to read
    /// the certificates
    #[cfg(feature = "user")]
    #[cfg_attr(feature = "cli", arg(help_heading = "Server", long, value_name = "USER[:GROUP]"))]
    pub user: Option<User>,

    /// Ask clients for a name and a password of a file with lines USER:HASH, as `htpasswd -B` writes them: for all
    /// paths, or those at and below one; can be repeated. Read at the start and at SIGHUP. Passwords need TLS
    #[cfg(feature = "basic-auth")]
    #[cfg_attr(
        feature = "cli",
        arg(help_heading = "Server", long, value_name = "FILE[,path=/PREFIX][,realm=NAME]")
    )]
    pub basic_auth: Vec<BasicAuth>,

    /// Directory to serve; without it and without virtual hosts, only evring's page is served
    #[cfg_attr(feature = "cli", arg(help_heading = "Files", long, value_name = "DIR"))]
    pub root: Option<PathBuf>,

    /// Settings for files
    #[cfg_attr(feature = "cli", command(flatten))]
    pub files: FileOptions,

    /// TLS
    #[cfg(feature = "tls")]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub tls: TlsOptions,

    /// How files that are not in the server's cache are sent. `plain`: as soon as the client has room. `ded`: read into
    /// memory; the next part is read when the client has taken the previous one, or already while it is being sent if the
    /// disk is slow (deferred event delivery). `dns`: from the page cache, without waiting for the disk; steady clients
    /// get more when half of their socket is empty, many at once (disk-to-network splicing). `auto`: `dns`, and `ded` for
    /// files that TLS encrypts. The page docs/file-delivery.md has measurements
    #[cfg_attr(feature = "cli", arg(help_heading = "Files", long, value_name = "POLICY", default_value_t = Options::default().file_delivery))]
    pub file_delivery: FileDelivery,

    /// Follow symbolic links that are absolute or lead out of --root
    #[cfg_attr(feature = "cli", arg(help_heading = "Files", long))]
    pub follow_symlinks: bool,

    /// Add /spin?us=N, /bytes?n=N and /echo for experiments; do not expose them to the public
    #[cfg_attr(feature = "cli", arg(help_heading = "Server", long, alias = "lab"))]
    pub lab_routes: bool,

    /// File to append the access log to, `-` for standard output, or `off`. A line per response when it was sent, in
    /// the combined format, with the bytes of its body that were sent; 499 if the client leaves before a handler has
    /// answered. SIGHUP or SIGUSR1 reopens it, for log rotation
    #[cfg_attr(feature = "cli", arg(help_heading = "Logging", long, value_name = "FILE"))]
    pub access_log: Option<PathBuf>,

    /// Format of the access log: `combined`, as of Apache and nginx, `timed`, which adds the microseconds of each
    /// response, or `json`, which has them, too
    #[cfg_attr(feature = "cli", arg(help_heading = "Logging", long, value_name = "FORMAT", value_enum, default_value_t = Options::default().log_format))]
    pub log_format: LogFormat,

    /// Address to listen on for /metrics in the format of Prometheus, /healthz, and /readyz, which turns to 503 when
    /// the server is about to stop
    #[cfg(feature = "metrics")]
    #[cfg_attr(feature = "cli", arg(help_heading = "Logging", long, value_name = "ADDR:PORT"))]
    pub metrics_listen: Option<Addresses>,

    /// Serve metrics of all workers at /.httpd/status.json of the first host. Without --root and virtual hosts, `httpd`
    /// serves them in any case
    #[cfg_attr(feature = "cli", arg(help_heading = "Logging", long))]
    pub status: bool,

    /// Handler in a sandbox, a WebAssembly module that sees requests first and may answer them: those
    /// whose target begins with the path, `/` by default. The tenant is a number that the handler can ask
    /// for, or a name that gets one. With an address of --listen, it sees only the requests that arrive there, which the
    /// kernel receives into its memory: without TLS, it can read all that arrives there, also requests that it does not
    /// see; can be repeated
    #[cfg(feature = "sandbox")]
    #[cfg_attr(
        feature = "cli",
        arg(
            long = "handler",
            help_heading = "Server",
            value_name = "FILE.wasm[,path=/PREFIX][,tenant=NAME][,listen=ADDR:PORT]"
        )
    )]
    pub handlers: Vec<HandlerModule>,

    /// Directory in which compiled handlers are kept for the next start; only the user of the server may write to it
    #[cfg(feature = "sandbox")]
    #[cfg_attr(feature = "cli", arg(help_heading = "Server", long, value_name = "DIR"))]
    pub handler_cache: Option<PathBuf>,

    /// Virtual hosts other than the first, which has the root and the settings for files of these options.
    #[cfg_attr(feature = "cli", arg(skip))]
    pub hosts: Vec<HostOptions>,

    /// Limits of connections
    #[cfg_attr(feature = "cli", command(flatten))]
    pub connections: ConnectionLimits,

    /// Limits of requests and of the server's memory
    #[cfg_attr(feature = "cli", command(flatten))]
    pub limits: Limits,
}

/// Limits of connections.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = "Limits"))]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// Maximum connections per worker, fewer if the descriptor limit is too low; further ones wait in
    /// the listen backlog
    #[cfg_attr(feature = "cli", arg(help_heading = "Overload", long, value_name = "N", default_value_t = ConnectionLimits::default().max_connections, value_parser = flags::range::<u32>(1, 1 << 22)))]
    pub max_connections: u32,

    /// Maximum connections per client address in each worker, so the server permits --workers times as many; further
    /// ones are reset. An IPv6 /64 network counts as one address. Unlimited by default, as many clients may share an
    /// address
    #[cfg_attr(feature = "cli", arg(help_heading = "Overload", long, value_name = "N", value_parser = flags::range::<u32>(1, u32::MAX.into())))]
    pub max_connections_per_address: Option<u32>,

    /// Maximum connections per client network in each worker, an IPv4 /24 or an IPv6 /64, so the server permits
    /// --workers times as many; further ones are reset. Unlimited by default
    #[cfg_attr(feature = "cli", arg(help_heading = "Overload", long, value_name = "N", value_parser = flags::range::<u32>(1, u32::MAX.into())))]
    pub max_connections_per_network: Option<u32>,

    /// Length of the listen backlog
    #[cfg_attr(feature = "cli", arg(help_heading = "Overload", long, value_name = "N", default_value_t = ConnectionLimits::default().backlog, value_parser = flags::range::<u32>(0, u32::MAX.into())))]
    pub backlog: u32,

    /// Under overload, maximum time that connections wait in the listen backlog: it is limited to the
    /// connections that are served in this time. 0 disables admission control; `tokio` has none
    #[cfg_attr(feature = "cli", arg(help_heading = "Overload", long, value_name = "SECONDS", default_value = flags::text(ConnectionLimits::default().max_queue_delay), value_parser = flags::seconds_or_none))]
    pub max_queue_delay: Duration,

    /// Under overload, connections that have waited longer than this are reset without being served
    #[cfg_attr(feature = "cli", arg(help_heading = "Overload", long, value_name = "SECONDS", default_value = flags::text(ConnectionLimits::default().max_wait), value_parser = flags::seconds))]
    pub max_wait: Duration,

    /// Under overload, accept the newest connections first
    #[cfg_attr(feature = "cli", arg(help_heading = "Overload", long))]
    pub newest_first: bool,

    /// Maximum bytes buffered per worker, received or to be sent, without bodies and files; a
    /// connection that would need more is closed
    #[cfg_attr(feature = "cli", arg(long = "max-buffered", value_name = "BYTES", default_value_t = ConnectionLimits::default().max_buffered_bytes, value_parser = flags::bytes::<usize>))]
    pub max_buffered_bytes: usize,

    /// Time for which the server still serves after SIGTERM or SIGINT, while /readyz answers with 503 so that load
    /// balancers send new clients elsewhere
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS", default_value = flags::text(ConnectionLimits::default().drain_delay), value_parser = flags::seconds_or_none))]
    pub drain_delay: Duration,

    /// Maximum time to finish the responses in progress after SIGTERM or SIGINT
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS", default_value = flags::text(ConnectionLimits::default().shutdown_timeout), value_parser = flags::seconds))]
    pub shutdown_timeout: Duration,

    // The program observes it: a reload by `Handle::reload` fails at once with `Error::StillEnding`.
    /// Maximum time that a reload waits if the workers of three earlier ones are still sending responses; then the
    /// oldest ones end within --shutdown-timeout
    #[cfg_attr(feature = "cli", arg(long, value_name = "SECONDS", default_value = flags::text(ConnectionLimits::default().reload_timeout), value_parser = flags::seconds))]
    pub reload_timeout: Duration,
}

impl Options {
    /// The address of a server without [`Options::listen`] and without sockets of a service manager.
    pub const DEFAULT_LISTEN: SocketAddr =
        SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080));
}

impl Default for Options {
    fn default() -> Self {
        Options {
            root: None,
            listen: Vec::new(),
            backend: "auto".to_owned(),
            workers: 1,
            #[cfg(feature = "basic-auth")]
            basic_auth: Vec::new(),
            #[cfg(feature = "user")]
            user: None,
            files: FileOptions::default(),
            #[cfg(feature = "tls")]
            tls: TlsOptions::default(),
            file_delivery: FileDelivery::default(),
            follow_symlinks: false,
            lab_routes: false,
            access_log: None,
            log_format: LogFormat::default(),
            #[cfg(feature = "metrics")]
            metrics_listen: None,
            status: false,
            #[cfg(feature = "sandbox")]
            handlers: Vec::new(),
            #[cfg(feature = "sandbox")]
            handler_cache: None,
            hosts: Vec::new(),
            connections: ConnectionLimits::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        let (config, admission) = (Config::default(), Admission::default());
        ConnectionLimits {
            max_connections: config.max_connections,
            max_connections_per_address: config.max_per_address,
            max_connections_per_network: config.max_per_network,
            backlog: config.backlog,
            max_queue_delay: admission.max_queue_delay,
            max_wait: admission.max_wait,
            newest_first: admission.order == Order::Newest,
            max_buffered_bytes: config.max_buffered_bytes,
            drain_delay: Duration::ZERO,
            shutdown_timeout: config.drain_timeout,
            reload_timeout: Duration::from_secs(600),
        }
    }
}

impl From<&Options> for Config {
    /// Returns the settings of the mechanism.
    fn from(options: &Options) -> Self {
        let Options { connections, file_delivery, follow_symlinks, root, .. } = options;
        let order = if connections.newest_first { Order::Newest } else { Order::Oldest };
        let mut admission = Admission::default();
        admission.max_queue_delay = connections.max_queue_delay;
        admission.max_wait = connections.max_wait;
        admission.order = order;
        Config::default().with(|c| {
            c.roots = root.iter().cloned().collect();
            c.symlinks = match follow_symlinks {
                true => SymlinkPolicy::Anywhere,
                false => SymlinkPolicy::Beneath,
            };
            c.send_policy = file_delivery.send_policy();
            c.max_connections = connections.max_connections;
            c.max_per_address = connections.max_connections_per_address;
            c.max_per_network = connections.max_connections_per_network;
            c.backlog = connections.backlog;
            c.admission = (!connections.max_queue_delay.is_zero()).then_some(admission);
            c.max_buffered_bytes = connections.max_buffered_bytes;
            c.drain_timeout = connections.shutdown_timeout;
        })
    }
}

/// The file of a handler in a sandbox, and the requests that it sees.
#[cfg(feature = "sandbox")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerModule {
    /// The WebAssembly module.
    pub file: PathBuf,
    /// The beginning of the paths of these requests.
    pub path: String,
    /// The tenant; by default, handlers are numbered from 0.
    pub tenant: Option<HandlerTenant>,
    /// The address of the server to which it is bound; without one, it sees the requests of all. Without TLS, the
    /// handler can read all that arrives at this address, also requests that it does not see.
    pub listen: Option<Addresses>,
}

/// A tenant of handlers in a sandbox.
#[cfg(feature = "sandbox")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerTenant {
    /// The number that its handlers can ask for.
    Number(u64),
    /// A name, which gets a number that no other tenant has when the server starts.
    Name(String),
}

#[cfg(feature = "sandbox")]
impl FromStr for HandlerTenant {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        match text.parse() {
            Ok(number) => Ok(HandlerTenant::Number(number)),
            Err(_) if is_name => Ok(HandlerTenant::Name(text.to_owned())),
            Err(_) => Err("expected a tenant's number, or a name that begins with a letter"),
        }
    }
}

#[cfg(feature = "sandbox")]
impl FromStr for HandlerModule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let file = parts.next().filter(|file| !file.is_empty()).ok_or("expected a file")?;
        let mut module =
            HandlerModule { file: file.into(), path: "/".to_owned(), tenant: None, listen: None };
        for part in parts {
            match part.split_once('=') {
                Some(("path", path)) if sandbox::canonical_prefix(path).is_some() => {
                    module.path = path.to_owned();
                }
                Some(("path", _)) => {
                    let reason =
                        "expected a path that begins with a slash and stays below the root";
                    return Err(reason.to_owned());
                }
                Some(("tenant", tenant)) => module.tenant = Some(tenant.parse()?),
                Some(("listen", at)) => module.listen = Some(at.parse()?),
                _ => {
                    return Err(format!(
                        "expected path=/PREFIX, tenant=NAME or listen=ADDR:PORT, not `{part}`"
                    ));
                }
            }
        }
        Ok(module)
    }
}
