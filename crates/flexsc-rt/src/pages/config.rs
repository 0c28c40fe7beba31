//! How pages are registered.

use std::thread;
use std::time::Duration;

use crate::call::Executor;
use crate::specialization::Specialization;

/// How pages are registered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Number of entries, rounded up to whole pages of 64; at most 2^24. Each takes 64 bytes, and 384 beside it.
    pub entries: u32,
    /// Entries that only bounded calls may use: all others have at most the rest. So bounded calls make progress while all
    /// other entries wait.
    pub reserve: u32,
    /// Maximum number of syscall threads. Without any, the owner makes their calls in place, and
    /// waits where they wait. Of two or more, one is kept for calls that do not wait indefinitely. While the system starts
    /// no further one, and all that run are blocked, the owner makes bounded calls in place, and those
    /// that would block a thread end with `EAGAIN`.
    pub threads: u16,
    /// Maximum number of active syscall threads of these pages; by default one per core. Beyond the first one, a thread
    /// begins only if fewer are active in the process than this, or than the registering thread may use cores. It is tried
    /// again at each heartbeat.
    pub active_threads: usize,
    /// Time after which the heartbeat counts a thread as blocked, once or twice. A thread that computes in the kernel, or
    /// waits for a core, is not blocked, if proc(5) is there to show it. At least 100 us; less counts as that.
    pub heartbeat: Duration,
    /// When syscall threads leave the owner's core.
    pub specialization: Specialization,
    /// Pins the executor of bounded calls, instead of the choice by cost.
    pub executor: Option<Executor>,
    /// Whether calls may use io_uring. It is set up when one is first given to it.
    pub uses_ring: bool,
    /// Whether the owner sleeps in io_uring, and calls that wait for a descriptor wait there instead of in an epoll
    /// set. Then one entry into the kernel submits a batch, waits, and takes completions; but of several calls that
    /// wait for one descriptor, none is the first. In either case, calls on one stream have no order among them, unless
    /// each is posted after the last one has ended. Without effect where the kernel lacks an operation for it, and in a
    /// [`Runtime`](crate::Runtime).
    pub sleep_in_ring: bool,
    /// Number of places for files that are registered with the ring ([`Pages::register_file`](crate::Pages)); no more than
    /// the limit on descriptors, or the kernel refuses the table.
    pub registered_files: u32,
}

/// Maximum of [`Config::entries`].
pub(crate) const MAX_ENTRIES: u32 = 1 << 24;

impl Default for Config {
    fn default() -> Self {
        Config {
            entries: 1024,
            reserve: 64,
            threads: 64,
            active_threads: thread::available_parallelism().map_or(1, |cores| cores.get()),
            heartbeat: Duration::from_millis(1),
            specialization: Specialization::Adaptive,
            executor: None,
            uses_ring: true,
            sleep_in_ring: false,
            registered_files: 256,
        }
    }
}

impl Config {
    /// Returns the default configuration with a number of entries.
    pub fn with_entries(entries: u32) -> Self {
        Config { entries, ..Config::default() }
    }
}
