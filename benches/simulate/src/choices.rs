//! What a run chooses by its seed alone, so that it is not in its line.

use evring::FileDelivery;

/// The choices of a run. Each is drawn from a generator of its own, so that all combinations occur, and a further choice
/// leaves the others as they are.
#[derive(Clone, Copy, Debug)]
pub struct Choices {
    /// The way in which the server ends before its clients, if it does.
    pub end: End,
    /// The number of callbacks after which the application panics, if it does.
    pub panics_after: Option<u32>,
    /// A peer wakes the server from time to time.
    pub wakes: bool,
    /// io_uring has multishot accepts and receives.
    pub has_multishot: bool,
    /// The policy for sending; `None` for one that holds bytes back until the socket has room.
    pub delivery: Option<FileDelivery>,
    /// The listener has a second group of receive buffers.
    pub has_second_group: bool,
    /// The web server is behind a layer that transforms its bytes.
    pub has_layer: bool,
    /// The memory of all connections together is short.
    pub is_short_of_memory: bool,
    /// Few file operations run at a time.
    pub has_few_file_ops: bool,
    /// Reads are held back for a while.
    pub delays_reads: bool,
    /// The first client requests a long file, too.
    pub has_long_file: bool,
    /// The proxy connects to its origin when it has bytes for it.
    pub connects_late: bool,
    /// The values of the cache are in several stores, as if shared by workers.
    pub shares_stores: bool,
    /// The length of the queue of hints or signals.
    pub queue_len: usize,
    /// Posted system calls wait in a ring.
    pub waits_in_ring: bool,
}

/// The way in which a server ends before its clients, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It does not.
    None,
    /// It stops.
    Stop,
    /// It accepts no further connections, and those that it has served go on.
    Retire,
}

impl Choices {
    /// Returns the choices of a seed.
    pub fn of(seed: u64) -> Self {
        let below = |name, n| below(seed, name, n);
        let one_in = |name, n| below(name, n) == 0;
        Choices {
            end: match below("end", 8) {
                0 | 1 => End::Stop,
                2 => End::Retire,
                _ => End::None,
            },
            panics_after: one_in("panic", 16).then(|| {
                let most = [4, 40, 400][below("callbacks", 3)];
                1 + below("callback", most) as u32
            }),
            wakes: one_in("wake", 2),
            has_multishot: !one_in("multishot", 4),
            delivery: match below("hold back", 4) {
                0 => None,
                _ => Some(FileDelivery::ALL[below("delivery", FileDelivery::ALL.len())]),
            },
            has_second_group: one_in("group", 4),
            has_layer: one_in("layer", 8),
            is_short_of_memory: one_in("memory", 8),
            has_few_file_ops: one_in("file operations", 4),
            delays_reads: one_in("read delay", 2),
            has_long_file: one_in("long file", 7),
            connects_late: one_in("connect", 8),
            shares_stores: one_in("stores", 4),
            queue_len: [1, 4, 20, 1_000][below("queue", 4)],
            waits_in_ring: !one_in("ring", 3),
        }
    }
}

/// Returns a number below `n` that follows from a seed and the name of a choice.
fn below(seed: u64, name: &str, n: usize) -> usize {
    // FNV-1a.
    let salt = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    fastrand::Rng::with_seed(seed ^ salt).usize(..n)
}
