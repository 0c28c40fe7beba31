//! Configuration of a mechanism.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use shared_ring::files::SymlinkPolicy;
use shared_ring::sockets::{BufferSizes, ListeningSocket};

use crate::driver::MAX_FILE_OPS;
use crate::{Admission, Root, SendPolicy, StartError};

/// Configuration of a mechanism. The defaults suit a server on a small machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Addresses to listen on, at most 65,535; port 0 selects a free port. Default: none.
    pub listen: Vec<SocketAddr>,
    /// Sockets that listen already, at addresses in `listen`: of a service manager, or of the process before. The
    /// mechanism takes them when it is set up. They stay open as long as clones exist. [`ListeningSocket::shared`] marks
    /// those that another process keeps open.
    pub inherited: Vec<ListeningSocket>,
    /// Root directories for file operations, indexed by [`Root`](crate::Root).
    pub roots: Vec<PathBuf>,
    /// The roots, of those in `roots`, under which the application may open files for writing; none by default.
    pub writable_roots: Vec<Root>,
    /// Policy for symbolic links below the roots. Default: [`SymlinkPolicy::Beneath`].
    pub symlinks: SymlinkPolicy,
    /// Maximum number of open connections, from 1 to 4,194,304. Others wait in the listen backlog. Default: 10,000.
    pub max_connections: u32,
    /// Maximum number of connections from one client address, including those that are closing or not admitted
    /// yet; the driver resets one more at once. An IPv6 /64 network counts as one address. Each worker counts
    /// its own connections, so an address may have this many on each worker. At least 1. With `None`, the default, the
    /// driver does not ask for client addresses.
    pub max_per_address: Option<u32>,
    /// Maximum number of connections per client network, an IPv4 /24 or an IPv6 /64, counted like those of an
    /// address. At least 1. Default: `None`.
    pub max_per_network: Option<u32>,
    /// Length of the listen backlog. Default: 1,024.
    pub backlog: u32,
    /// Admission control under overload; `None` admits every connection. Default: [`Admission::default`].
    pub admission: Option<Admission>,
    /// Sets `SO_REUSEPORT`. Default: false.
    pub reuse_port: bool,
    /// Number of mechanisms that the process runs beside each other, this one included: at least 1. They divide what
    /// there is for each core: the active syscall threads of `flexsc`. Default: 1.
    pub workers: u16,
    /// Number of receive buffers, a power of two up to 32,768. All buffers together should fit the L2 cache. Default: 256.
    pub buffers: u16,
    /// Size of a receive buffer in bytes, from 1 to 16 MiB. Default: 4,096.
    pub buffer_size: u32,
    /// Sizes of the kernel's socket buffers. Default: those that the kernel chooses.
    pub socket_buffers: BufferSizes,
    /// Maximum number of unsent bytes in the kernel at which an accepted connection still has room
    /// (`TCP_NOTSENT_LOWAT`, tcp(7)). With `None`, the default, it has room until its socket buffer is full.
    pub max_unsent_bytes: Option<u32>,
    /// Maximum number of bytes queued on one connection; a file counts as [`HIGH_WATER`](crate::HIGH_WATER)
    /// bytes. Default: 16 MiB.
    pub max_queued_bytes: usize,
    /// Maximum number of bytes held for all connections together: unconsumed bytes, queued copies, and
    /// references to shared bytes. A connection that exceeds it ends with
    /// [`CloseReason::Overrun`](crate::CloseReason::Overrun), unless it holds at most 1 KiB. Default: 256 MiB.
    pub max_buffered_bytes: usize,
    /// Makes the send policy of a worker; `None`, the default, for [`DefaultSendPolicy`](crate::send_policy::DefaultSendPolicy).
    pub send_policy: Option<fn() -> Box<dyn SendPolicy>>,
    /// Maximum time that the driver holds back a read of the application; see
    /// [`SendPolicy::defers_reads`](crate::send_policy::SendPolicy::defers_reads). Default: 10 s.
    pub max_read_delay: Duration,
    /// Maximum number of file operations in flight, from 1 to 256; others are deferred. Each may hold one
    /// open file; listing a directory may briefly hold a second one. Default: 256.
    pub max_file_ops: u32,
    /// Number of timers of the application's own, at most 65,536; see
    /// [`Commands::set_timer`](crate::Commands::set_timer). Default: 16.
    pub max_timers: u32,
    /// Maximum time that [`Close::Linger`](crate::Close::Linger) waits for the peer. Default: 2 s.
    pub linger_timeout: Duration,
    /// Interval at which the progress of a closing connection is checked, after the first 100 ms; not 0. Open connections
    /// have no minimum rate: an application that wants one compares
    /// [`Commands::unsent_bytes`](crate::Commands::unsent_bytes) at its deadlines. Default: 30 s.
    pub progress_interval: Duration,
    /// Minimum rate, in bytes per second, at which the peer of a closing connection must acknowledge data. A slower
    /// connection is reset. 0 still requires one byte per interval. Default: 4,096.
    pub min_rate: u32,
    /// Maximum time that open connections get after a stop, and clients that wait for the places of those that close.
    /// Default: 10 s.
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: Vec::new(),
            inherited: Vec::new(),
            roots: Vec::new(),
            writable_roots: Vec::new(),
            symlinks: SymlinkPolicy::Beneath,
            max_connections: 10_000,
            max_per_address: None,
            max_per_network: None,
            backlog: 1024,
            admission: Some(Admission::default()),
            reuse_port: false,
            workers: 1,
            buffers: 256,
            buffer_size: 4096,
            socket_buffers: BufferSizes::default(),
            max_unsent_bytes: None,
            max_queued_bytes: 16 << 20,
            max_buffered_bytes: 256 << 20,
            send_policy: None,
            max_read_delay: Duration::from_secs(10),
            max_file_ops: 256,
            max_timers: 16,
            linger_timeout: Duration::from_secs(2),
            progress_interval: Duration::from_secs(30),
            min_rate: 4 * 1024,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Returns the configuration with changes.
    ///
    /// ```
    /// let config = evring::Config::default().with(|c| c.max_connections = 100);
    /// assert_eq!(config.max_connections, 100);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the number of bytes that a peer must acknowledge per progress interval.
    pub(crate) fn min_progress(&self) -> u128 {
        (self.progress_interval.as_nanos() * u128::from(self.min_rate))
            .div_ceil(1_000_000_000)
            .max(1)
    }

    /// Validates the configuration.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let problem = if self.max_connections == 0 || self.max_connections > 1 << 22 {
            "max_connections must be between 1 and 4194304"
        } else if self.max_per_address == Some(0) {
            "max_per_address must be at least 1, or None for no limit"
        } else if self.max_per_network == Some(0) {
            "max_per_network must be at least 1, or None for no limit"
        } else if self.max_timers > 1 << 16 {
            "max_timers must be at most 65536"
        } else if !(1..=MAX_FILE_OPS).contains(&self.max_file_ops) {
            "max_file_ops must be between 1 and 256"
        } else if self.progress_interval.is_zero() {
            "progress_interval must not be 0"
        } else if self.workers == 0 {
            "workers must be at least 1"
        } else if self.writable_roots.iter().any(|root| usize::from(root.0) >= self.roots.len()) {
            "writable_roots must be indices of directories in roots"
        } else if !self.buffers.is_power_of_two() || self.buffers > 1 << 15 {
            "the number of receive buffers must be a power of two up to 32768"
        } else if self.buffer_size == 0 || self.buffer_size > 1 << 24 {
            "the size of a receive buffer must be between 1 byte and 16 MiB"
        } else if self.listen.len() > usize::from(u16::MAX) {
            "the number of listen addresses must be at most 65535"
        } else {
            return Ok(());
        };
        Err(StartError::Config(problem))
    }
}
