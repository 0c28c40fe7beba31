//! Compression of files by threads of their own.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evring::files::Metadata;
use evring::mailbox::{Mailbox, Sender};
use evring::{ConnId, RemoteHandle};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::decision::coding::Coding;
use crate::decision::conditions::Validators;
use crate::site::lookup::FileLookup;
use crate::site::pool::Pool;
use crate::site::reservation::{Places, Reservation};

/// Tag of the wake-ups.
pub(crate) const TAG: u64 = u64::from_be_bytes(*b"compress");

/// Files of a worker that are compressed, or wait for it, at a time. Clients get further ones plain.
const MAX_PENDING: usize = 16;

/// The part that the workers share: threads, and the memory of compressed files.
#[derive(Clone, Debug)]
pub(crate) struct CompressorThreads {
    pool: Pool,
    memory: Arc<AtomicUsize>,
    max_memory: usize,
}

impl CompressorThreads {
    const THREADS: usize = 2;

    /// Maximum memory of an encoder. Measured: 89 MiB for zstd:19 and a file of 64 MiB, 74 MiB for br:11 and 16 MiB, 30 MiB
    /// for br:5 and 4 MiB.
    const ENCODER_BYTES: usize = 96 << 20;

    /// Starts the threads, with at most `max_memory` bytes for compressed files that are too large for the cache.
    pub(crate) fn start(max_memory: usize, workers: usize) -> io::Result<Self> {
        let pool = Pool::new(Self::THREADS, MAX_PENDING * workers)?;
        Ok(CompressorThreads { pool, memory: Arc::default(), max_memory })
    }

    /// Returns the maximum memory for files of at most `max_bytes` that are being compressed.
    pub(crate) fn memory(max_bytes: usize, workers: usize) -> usize {
        // The files, and in each thread a compressed form while it grows and what the encoder needs.
        MAX_PENDING * workers * max_bytes + Self::THREADS * (2 * max_bytes + Self::ENCODER_BYTES)
    }
}

/// The files of a worker that are being compressed.
#[derive(Debug)]
pub(crate) struct Compressor {
    threads: CompressorThreads,
    mailbox: Mailbox<Compressed>,
    sender: Sender<Compressed>,
    /// Of the files that are being read to be compressed, or compressed.
    places: Places,
    /// The files that the threads have, by their keys in the cache.
    pending: HashMap<Arc<[u8]>, Origin>,
}

/// A file that is being compressed.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) file: FileLookup,
    /// Its state when it was opened.
    pub(crate) meta: Metadata,
    pub(crate) validators: Validators,
}

/// The result for a connection, `None` if the file has to be sent plain.
#[derive(Debug)]
pub(crate) struct Compressed {
    pub(crate) id: ConnId,
    pub(crate) key: Arc<[u8]>,
    pub(crate) content: Option<CompressedContent>,
}

/// A compressed file.
#[derive(Debug)]
pub(crate) enum CompressedContent {
    Bytes(Vec<u8>),
    /// In a memory file of this length.
    Memfd(OwnedFd, u64, Charge),
}

/// Memory that counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Arc<AtomicUsize>,
    bytes: usize,
}

impl Charge {
    /// Counts `bytes`, unless they exceed the maximum.
    fn new(memory: &Arc<AtomicUsize>, bytes: usize, max: usize) -> Option<Self> {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
        #[allow(deprecated, reason = "its new name is not in Rust 1.88")]
        let counted = memory.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        counted.ok()?;
        Some(Charge { memory: Arc::clone(memory), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Compressor {
    pub(crate) fn new(threads: CompressorThreads, remote: &RemoteHandle) -> Self {
        let (mailbox, sender) = Mailbox::new(remote, TAG, MAX_PENDING);
        Compressor { threads, mailbox, sender, places: Places::default(), pending: HashMap::new() }
    }

    /// Reserves a place for a file that has this key in the cache. Returns `None` if there is none, or if the
    /// file is being compressed.
    pub(crate) fn reserve(&self, key: &[u8]) -> Option<Reservation> {
        self.places.reserve(key, MAX_PENDING)
    }

    /// Compresses a file for a connection. Contents of at most `max_cached` bytes come as bytes. Returns false
    /// if too many files wait for the threads.
    pub(crate) fn compress(
        &mut self,
        (id, origin): (ConnId, Origin),
        place: Reservation,
        (coding, level): (Coding, u8),
        plain: Vec<u8>,
        max_cached: usize,
    ) -> bool {
        let Some(key) = place.key() else { return false };
        let (sender, in_pending) = (self.sender.clone(), Arc::clone(&key));
        let (memory, max) = (Arc::clone(&self.threads.memory), self.threads.max_memory);
        let is_queued = self.threads.pool.post(move || {
            let mut result =
                ResultOnDrop { sender, compressed: Compressed { id, key, content: None } };
            let bytes = encode(coding, level, &plain);
            result.compressed.content =
                bytes.ok().and_then(|bytes| match bytes.len() <= max_cached {
                    true => Some(CompressedContent::Bytes(bytes)),
                    false => in_memfd(&bytes, &memory, max),
                });
        });
        if is_queued {
            // The place is given up when the result has arrived, even if the connection has gone.
            place.keep();
            self.pending.insert(in_pending, origin);
        }
        is_queued
    }

    /// Takes the results that have arrived.
    pub(crate) fn take_results(&mut self) -> Vec<(Compressed, Origin)> {
        let with_origin = |result: Compressed| {
            let origin = self.pending.remove(&result.key)?;
            self.places.release(&result.key);
            Some((result, origin))
        };
        self.mailbox.drain().filter_map(with_origin).collect()
    }
}

/// Sends the result of a call when the call ends, also by a panic.
struct ResultOnDrop {
    sender: Sender<Compressed>,
    compressed: Compressed,
}

impl Drop for ResultOnDrop {
    fn drop(&mut self) {
        let Compressed { id, key, content } = &mut self.compressed;
        let result = Compressed { id: *id, key: Arc::clone(key), content: content.take() };
        // The mailbox has room for all pending files; if it is closed, no connection waits.
        let _ = self.sender.send(result);
    }
}

/// Compresses bytes.
fn encode(coding: Coding, level: u8, plain: &[u8]) -> io::Result<Vec<u8>> {
    let out = Vec::with_capacity(plain.len() / 2);
    match coding {
        Coding::Gzip => {
            let mut encoder =
                flate2::write::GzEncoder::new(out, flate2::Compression::new(level.into()));
            encoder.write_all(plain)?;
            encoder.finish()
        }
        Coding::Zstd => {
            let mut encoder = zstd::Encoder::new(out, level.into())?;
            encoder.set_pledged_src_size(Some(plain.len() as u64))?;
            encoder.write_all(plain)?;
            encoder.finish()
        }
        Coding::Brotli => {
            const BUFFER_BYTES: usize = 16 * 1024;
            const WINDOW_BITS: u32 = 22;
            let mut encoder =
                brotli::CompressorWriter::new(out, BUFFER_BYTES, level.into(), WINDOW_BITS);
            encoder.write_all(plain)?;
            encoder.flush()?;
            Ok(encoder.into_inner())
        }
    }
}

/// Stores bytes in a memory file, if there is memory for them.
fn in_memfd(bytes: &[u8], memory: &Arc<AtomicUsize>, max: usize) -> Option<CompressedContent> {
    let charge = Charge::new(memory, bytes.len(), max)?;
    let fd = memfd_create("compressed", MemfdFlags::CLOEXEC).ok()?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes).ok()?;
    Some(CompressedContent::Memfd(file.into(), bytes.len() as u64, charge))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use evring::files::FileKind;
    use evring::{AnyMechanism, Config};

    use super::*;
    use crate::decision::options::ResponseOptions;
    use crate::limits::Limits;
    use crate::message::request::{HeadMemory, parse};

    fn origin() -> Origin {
        let mut memory = HeadMemory::new();
        let request = parse(b"GET /a HTTP/1.0\r\n\r\n", &mut memory, &Limits::default()).unwrap();
        let options = ResponseOptions::new(&request, 0, true);
        let kind = FileKind::Regular;
        Origin {
            file: FileLookup::open(b"/a", options).unwrap(),
            meta: Metadata { kind, len: 5, modified_ns: 0, changed_ns: 0, inode: 1 },
            validators: Validators::default(),
        }
    }

    #[test]
    fn number_of_files_that_are_compressed_is_bounded() {
        let mechanism = AnyMechanism::new("auto", &Config::default()).unwrap();
        // With room for those of two workers, of which this is one.
        let threads = CompressorThreads::start(0, 2).unwrap();
        let held = threads.pool.hold(CompressorThreads::THREADS);
        let mut compressor = Compressor::new(threads, &mechanism.remote());
        let has_place = |compressor: &Compressor| compressor.reserve(b"another").is_some();
        let mut places = Vec::new();
        for n in 0..MAX_PENDING {
            assert!(has_place(&compressor), "{n} are taken");
            places.push(compressor.reserve(&[n as u8]).unwrap());
        }
        assert!(!has_place(&compressor));
        // The file is sent plain after all.
        places.pop();
        assert!(has_place(&compressor));
        places.push(compressor.reserve(b"last").unwrap());
        for place in places {
            let of = (ConnId::new(0, 1), origin());
            assert!(compressor.compress(of, place, (Coding::Gzip, 1), b"plain".to_vec(), 100));
        }
        assert!(!has_place(&compressor));
        drop(held);
        let mut results = Vec::new();
        while results.is_empty() {
            // Until a result is taken.
            assert!(!has_place(&compressor));
            results = compressor.take_results();
            thread::yield_now();
        }
        assert!(has_place(&compressor));
    }

    #[test]
    fn encoders_took_more_memory_than_was_counted() {
        const LEN: usize = 1 << 20;
        let kb = |name: &str| {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
        };
        let lines = (0..).map(|n: u32| format!("<li>{n} {:x}</li>\n", n.wrapping_mul(0x9E37_79B9)));
        let text: Vec<u8> = lines.flat_map(String::into_bytes).take(LEN).collect();
        // Resets the peak (proc(5)).
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let before = kb("VmRSS:");
        encode(Coding::Brotli, 9, &text).unwrap();
        let grown = kb("VmHWM:").saturating_sub(before) << 10;
        println!("the encoder took {grown} bytes");
        assert!(grown <= 2 * LEN + CompressorThreads::ENCODER_BYTES, "{grown}");
    }

    #[test]
    fn memory_of_compressed_files_is_bounded_and_released() {
        let memory = Arc::new(AtomicUsize::new(0));
        let first = in_memfd(&[1; 60], &memory, 100).unwrap();
        assert!(in_memfd(&[2; 41], &memory, 100).is_none(), "101 of 100 bytes");
        let second = in_memfd(&[2; 40], &memory, 100).unwrap();
        assert_eq!(memory.load(Ordering::Relaxed), 100);
        drop(first);
        assert_eq!(memory.load(Ordering::Relaxed), 40);
        let CompressedContent::Memfd(_, len, charge) = second else { panic!("bytes") };
        assert_eq!(len, 40);
        drop(charge);
        assert_eq!(memory.load(Ordering::Relaxed), 0);
    }
}
