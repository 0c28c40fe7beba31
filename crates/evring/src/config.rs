//! How a mechanism is set up, and what can go wrong then.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use shared_ring::{BufferSizes, GatherList, Listing, SymlinkPolicy};

use crate::driver::{Connection, MAX_FILE_OPS, MAX_LISTS, MIN_HELD, spare_memory};
use crate::{Admission, Application, FileOp, NAMES};

/// Memory of an event queue, its rings and batches, and of all else that a mechanism has once.
const FIXED_BYTES: usize = 4 << 20;

/// Memory of a connection beside its link and its state: its timer, its entries in the tables of
/// operations, sockets and addresses, its task where there are tasks.
const CONNECTION_BYTES: usize = 3 * 1024;

/// Lists of a connection: what is being sent, what waits behind it, and what waits behind a file. An
/// application that queues more files at a time has more of them.
const LISTS_PER_CONNECTION: usize = 3;

/// How a mechanism is set up. The defaults suit a server on a small machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 takes any free one.
    pub listen: Vec<SocketAddr>,
    /// Directories for file work, in the order of their [`Root`](crate::Root) numbers.
    pub roots: Vec<PathBuf>,
    /// Where symbolic links below the roots may lead.
    pub symlinks: SymlinkPolicy,
    /// Most connections at a time. Further ones wait in the listener's queue.
    pub max_connections: u32,
    /// Maximum number of connections from one client address, including those that are closing or not admitted
    /// yet; the driver resets one more at once. An IPv6 /64 network counts as one address. Each worker counts
    /// its own connections, so an address may have this many on each worker. With `None`, the default, the
    /// driver does not ask for client addresses.
    pub max_per_address: Option<u32>,
    /// Length of the listener's queue.
    pub backlog: u32,
    /// How much is let in when more comes than can be served; all of it with `None`.
    pub admission: Option<Admission>,
    /// Let other workers and processes listen at the same address.
    pub reuse_port: bool,
    /// Number of receive buffers; with their size it should fit the second-level cache.
    pub buffers: u16,
    /// Size of a receive buffer in bytes.
    pub buffer_size: u32,
    /// Sizes of the sockets' own buffers.
    pub socket_buffers: BufferSizes,
    /// Most bytes queued to be sent on one connection; a file counts as
    /// [`HIGH_WATER`](crate::HIGH_WATER) bytes.
    pub max_queued_bytes: usize,
    /// Most bytes held for all connections together: received and not consumed, and queued to be sent, as
    /// copies or as notes of what is shared. The connection that would hold more ends with [`CloseReason::Overrun`](crate::CloseReason::Overrun),
    /// unless it holds 1 KiB or less.
    pub max_buffered_bytes: usize,
    /// Most file work in flight at a time, from 1 to 256; more waits its turn. Each may have a file
    /// open, and one that lists a directory has another one now and then.
    pub max_file_ops: u32,
    /// How long [`Close::Linger`](crate::Close::Linger) waits for the peer.
    pub linger_timeout: Duration,
    /// How often it is seen to that a peer takes what is left when its connection is closed, from the first
    /// tenth of a second on.
    pub progress_interval: Duration,
    /// Bytes per second that it has to acknowledge meanwhile, or the connection is reset; at least
    /// something.
    pub min_rate: u32,
    /// How long open connections may go on after a stop.
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: Vec::new(),
            roots: Vec::new(),
            symlinks: SymlinkPolicy::Beneath,
            max_connections: 10_000,
            max_per_address: None,
            backlog: 1024,
            admission: Some(Admission::default()),
            reuse_port: false,
            buffers: 256,
            buffer_size: 4096,
            socket_buffers: BufferSizes::default(),
            max_queued_bytes: 16 << 20,
            max_buffered_bytes: 256 << 20,
            max_file_ops: 256,
            linger_timeout: Duration::from_secs(2),
            progress_interval: Duration::from_secs(30),
            min_rate: 4 * 1024,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// The most memory, in bytes, that a mechanism holds for such an application when all its bounds are
    /// reached at once.
    ///
    /// Not counted are the sockets' own buffers, which are the kernel's; what the application holds beside
    /// the states of its connections, shared bytes that it has queued to be sent with that; and what the
    /// allocator loses between its pieces.
    pub fn memory_at_full_load<A: Application>(&self) -> usize {
        // While a table or a list of bytes grows, the old one is there beside the new one.
        let connection = 2 * (size_of::<Connection>() + size_of::<A::State>());
        // A list has its room from earlier uses.
        let each = connection
            + CONNECTION_BYTES
            + MIN_HELD
            + LISTS_PER_CONNECTION * (size_of::<GatherList>() + GatherList::MAX_KEPT_BYTES);
        let connections = (self.max_connections as usize).saturating_mul(each);
        let buffers = usize::from(self.buffers).saturating_mul(self.buffer_size as usize + 128);
        // The last connection to have something queued for it ends when that is done.
        let held = self
            .max_buffered_bytes
            .saturating_add(self.max_queued_bytes.min(self.max_buffered_bytes));
        let files =
            self.max_file_ops.clamp(1, MAX_FILE_OPS) as usize * FileOp::MAX_READ_BYTES as usize;
        let lists = MAX_LISTS * Listing::MAX_BYTES;
        [
            connections,
            buffers,
            held.saturating_mul(2),
            files,
            lists,
            spare_memory(self),
            FIXED_BYTES,
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }

    /// What a peer has to acknowledge between two looks.
    pub(crate) fn min_progress(&self) -> u128 {
        (self.progress_interval.as_nanos() * u128::from(self.min_rate))
            .div_ceil(1_000_000_000)
            .max(1)
    }

    /// Whether the numbers make sense.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let wrong = if self.max_connections == 0 || self.max_connections > 1 << 22 {
            "max_connections must lie between 1 and 4194304"
        } else if self.max_per_address == Some(0) {
            "max_per_address must be at least 1, or None for no bound"
        } else if !self.buffers.is_power_of_two() || self.buffers > 1 << 15 {
            "the number of receive buffers must be a power of two up to 32768"
        } else if self.buffer_size == 0 || self.buffer_size > 1 << 24 {
            "the size of a receive buffer must lie between 1 byte and 16 MiB"
        } else if self.listen.len() > usize::from(u16::MAX) {
            "there are more than 65535 addresses to listen at"
        } else {
            return Ok(());
        };
        Err(StartError::Config(wrong))
    }
}

/// Why a mechanism can't run here; a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// Why a server did not start.
pub enum StartError {
    /// The mechanism can't run here.
    Unavailable(Unavailable),
    /// No mechanism of this name is built in.
    Unknown(String),
    /// An address can't be listened at.
    Listen(SocketAddr, io::Error),
    /// A root can't be opened.
    Root(PathBuf, io::Error),
    /// The configuration makes no sense.
    Config(&'static str),
    /// The system refused something that every mechanism needs.
    System(&'static str, io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Unavailable(reason) => reason.fmt(f),
            StartError::Unknown(name) => {
                write!(
                    f,
                    "no mechanism `{name}` is built in; there are: auto, {}",
                    NAMES.join(", ")
                )
            }
            StartError::Listen(at, error) => write!(f, "can't listen at {at}: {error}"),
            StartError::Root(path, error) => {
                let path = path.display();
                let advice = match error.kind() {
                    io::ErrorKind::PermissionDenied => {
                        "; let the user of this process enter it and all above it (chmod +x)"
                    }
                    io::ErrorKind::NotFound => "; make it, or name another one",
                    io::ErrorKind::NotADirectory => "; name the directory that it is in",
                    _ => "",
                };
                write!(f, "can't open the directory {path}: {error}{advice}")
            }
            StartError::Config(what) => f.write_str(what),
            StartError::System(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// The sentence, so that a `main` which returns the error shows it.
impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Unavailable> for StartError {
    fn from(reason: Unavailable) -> Self {
        StartError::Unavailable(reason)
    }
}
