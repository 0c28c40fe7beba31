//! Replies to `get` in memory that handlers in a sandbox read (ASH, section 5.4.1), while workers write it.
//!
//! The memory has a header of 1,024 bytes, then buckets of 512 bytes. All numbers are words of eight bytes.
//!
//! | offset | header |
//! |---|---|
//! | 0 | the number of buckets, a power of two |
//! | 8 | the generation: replies of others are void |
//! | 64 | for each of 64 tenants, the nanoseconds from the start of the server to that of its handler's clock |
//!
//! | offset | bucket |
//! |---|---|
//! | 0 | version: odd while a worker writes the bucket |
//! | 8 | generation in which it was written |
//! | 16 | the time at which it becomes void, in nanoseconds since the start of the server |
//! | 24 | length of the reply |
//! | 32 | reply, up to 480 bytes: `VALUE KEY FLAGS LENGTH\r\nDATA\r\nEND\r\n` |
//!
//! The bucket of a key is the lowest bits of its FNV-1a hash of 32 bits. A reply takes the place of any other.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// The end of a reply to `get`.
pub(crate) const END: &[u8] = b"END\r\n";

/// Words of the header and of a bucket.
const HEADER: usize = 1024 / 8;
const BUCKET: usize = 512 / 8;
/// Words of a bucket in front of its reply.
const BUCKET_HEADER: usize = 4;

const VERSION: usize = 0;
const GENERATION: usize = 1;
const DEADLINE: usize = 2;
const LEN: usize = 3;

/// Memory that handlers can read.
pub trait MirrorMemory: Send + Sync {
    /// Returns the words, the same at each call.
    fn words(&self) -> &[AtomicU64];
}

/// Replies to `get` that handlers may send. Workers share it by cloning it.
///
/// A worker writes a reply when it has answered a `get`, under the lock of the key's store, and voids it there before
/// the value changes. Once a change has been acknowledged, no handler sends the older value.
#[derive(Clone)]
pub struct Mirror {
    memory: Arc<dyn MirrorMemory>,
    buckets: usize,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("buckets", &self.buckets).finish_non_exhaustive()
    }
}

impl Mirror {
    /// Maximum length of a reply in bytes; longer ones are not mirrored.
    pub const MAX_REPLY: usize = (BUCKET - BUCKET_HEADER) * 8;

    /// Maximum number of tenants that have clocks of their own.
    pub const MAX_TENANTS: u64 = 64;

    /// Returns the bytes that a mirror needs whose buckets, a power of two, have at most this many bytes. It has one at
    /// least.
    pub fn bytes_for(bytes_of_buckets: usize) -> usize {
        let buckets = (bytes_of_buckets / (BUCKET * 8)).max(1);
        (HEADER + (1 << buckets.ilog2()) * BUCKET) * 8
    }

    /// Creates a mirror in memory of zeros.
    ///
    /// # Panics
    /// If there is no room for a bucket.
    pub fn over(memory: Arc<dyn MirrorMemory>) -> Self {
        let room = memory.words().len().saturating_sub(HEADER) / BUCKET;
        let buckets = 1 << room.checked_ilog2().expect("memory for at least one bucket");
        memory.words()[0].store(buckets as u64, Ordering::Relaxed);
        memory.words()[1].store(1, Ordering::Release);
        Mirror { memory, buckets }
    }

    /// Sets the time from the start of the server to that of the clock of a tenant's handler. Of several times, also of
    /// tenants above [`MAX_TENANTS`](Self::MAX_TENANTS), which share clocks, the longest is valid: a time that is too long
    /// voids replies early.
    pub fn set_clock(&self, tenant: u64, since_start: Duration) {
        let word = 8 + (tenant % Self::MAX_TENANTS) as usize;
        self.memory.words()[word].fetch_max(since_start.as_nanos() as u64, Ordering::AcqRel);
    }

    /// Writes a reply, without the final `END`, valid until a time after the start of the server. Returns whether it fits.
    pub(crate) fn publish(&self, key: &[u8], reply: &[u8], deadline: Duration) -> bool {
        let len = reply.len() + END.len();
        if len > Self::MAX_REPLY {
            return false;
        }
        let mut bytes = [0; Self::MAX_REPLY];
        bytes[..reply.len()].copy_from_slice(reply);
        bytes[reply.len()..len].copy_from_slice(END);
        let generation = self.memory.words()[1].load(Ordering::Acquire);
        self.write(key, |bucket| {
            bucket[GENERATION].store(generation, Ordering::Relaxed);
            bucket[DEADLINE].store(deadline.as_nanos() as u64, Ordering::Relaxed);
            bucket[LEN].store(len as u64, Ordering::Relaxed);
            let words = bytes.as_chunks().0.iter().take(len.div_ceil(8));
            for (to, word) in bucket[BUCKET_HEADER..].iter().zip(words) {
                to.store(u64::from_le_bytes(*word), Ordering::Relaxed);
            }
        });
        true
    }

    /// Voids the reply for a key; perhaps that for another one.
    pub(crate) fn void(&self, key: &[u8]) {
        self.write(key, |bucket| bucket[DEADLINE].store(0, Ordering::Relaxed));
    }

    /// Voids all replies.
    pub(crate) fn void_all(&self) {
        self.memory.words()[1].fetch_add(1, Ordering::AcqRel);
    }

    /// Writes a bucket, alone: workers whose keys fall into one bucket hold the locks of different stores.
    fn write(&self, key: &[u8], write: impl FnOnce(&[AtomicU64])) {
        let hash = key
            .iter()
            .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        let start = HEADER + (hash as usize & (self.buckets - 1)) * BUCKET;
        let bucket = &self.memory.words()[start..start + BUCKET];
        let version = loop {
            let version = bucket[VERSION].load(Ordering::Relaxed) & !1;
            let odd = bucket[VERSION].compare_exchange_weak(
                version,
                version + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match odd {
                Ok(_) => break version,
                // The other worker writes a few hundred bytes, unless its core runs another thread.
                Err(_) => std::thread::yield_now(),
            }
        };
        // A reader that sees a word written below sees the odd version, too.
        fence(Ordering::Release);
        write(bucket);
        bucket[VERSION].store(version + 2, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Words(Box<[AtomicU64]>);

    impl MirrorMemory for Words {
        fn words(&self) -> &[AtomicU64] {
            &self.0
        }
    }

    /// Returns a mirror of one bucket, and its memory.
    fn mirror() -> (Mirror, Arc<Words>) {
        let words = (0..Mirror::bytes_for(0) / 8).map(|_| AtomicU64::new(0)).collect();
        let memory = Arc::new(Words(words));
        (Mirror::over(Arc::clone(&memory) as Arc<dyn MirrorMemory>), memory)
    }

    #[test]
    fn replies_that_do_not_fit_are_not_mirrored() {
        let (mirror, memory) = mirror();
        let len = || memory.0[HEADER + LEN].load(Ordering::Relaxed) as usize;
        assert!(!mirror.publish(b"key", &[b'a'; Mirror::MAX_REPLY - 4], Duration::MAX));
        assert_eq!(len(), 0);
        assert!(mirror.publish(b"key", &[b'a'; Mirror::MAX_REPLY - 5], Duration::MAX));
        assert_eq!(len(), Mirror::MAX_REPLY);
    }

    #[test]
    fn mirror_was_larger_than_the_memory_for_it() {
        for bytes in (9..40).flat_map(|n| [(1 << n) - 1, 1 << n, (1 << n) + 1]) {
            let buckets = Mirror::bytes_for(bytes) - HEADER * 8;
            assert!(buckets <= bytes.max(512) && buckets > bytes / 2, "{buckets} of {bytes}");
        }
    }

    #[test]
    fn clock_of_a_tenant_went_back_for_another_with_the_same_word() {
        let (mirror, memory) = mirror();
        mirror.set_clock(3, Duration::from_nanos(9));
        mirror.set_clock(3 + Mirror::MAX_TENANTS, Duration::from_nanos(7));
        assert_eq!(memory.0[8 + 3].load(Ordering::Relaxed), 9);
    }
}
