//! Tables that an application shares with handlers, which can read them, and change their sections by locks.

use std::fmt;
use std::hint;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::memory::Mapping;

/// Maximum size of a table in bytes.
pub const MAX_TABLE_BYTES: usize = 1 << 30;

/// Memory that an application writes and handlers read, such as the values that a handler answers requests from.
///
/// Handler and application may access it at the same time. So the application marks what it changes, for instance
/// by a version that is odd meanwhile, and a handler that finds a mark aborts instead of waiting (ASH, section
/// 5.4.1): the application then answers. `examples/handlers/kv_get.rs` does so.
///
/// Handlers can write to a table that has [sections](Self::with_sections), each with a lock. The application holds the
/// lock while it accesses the section:
///
/// ```
/// use ash_sandbox::sandbox::SharedTable;
/// use std::sync::atomic::Ordering::Relaxed;
///
/// # fn main() -> std::io::Result<()> {
/// let table = SharedTable::with_sections(16, 64)?;
/// if let Some(section) = table.try_lock(3) {
///     section[0].store(section[0].load(Relaxed) + 1, Relaxed);
/// }
/// # Ok(())
/// # }
/// ```
///
/// A handler that finds the lock taken aborts. One that has it reads the section, and writes to it when it has handled
/// the message: all its writes together, as one step of the host that nothing interrupts. So a voluntary or involuntary
/// abort after taking a lock changes nothing. The host releases the lock in any case when the handler has
/// returned. `examples/handlers/account.rs` is an example.
///
/// All pages of a table exist when it is created, and each instance of a handler maps them all, so that no message waits for
/// one, unless it was swapped out. Creating a table or an instance takes time for each page, and 2 MiB of page tables for each
/// GiB. The memory is in use until the application and all handlers have dropped the table.
///
/// A table serves the process that has created it. A child of fork(2) shares its words, but not its locks, and its copies of the
/// handlers pass all messages on: it must not use the table.
#[derive(Debug)]
pub struct SharedTable {
    fd: OwnedFd,
    mapping: Mapping,
    locks: Box<[AtomicBool]>,
    /// Size of a section; 0 if there are none.
    section_bytes: usize,
}

impl SharedTable {
    /// Creates a table of zeros that handlers can only read, whose size is rounded up to whole pages.
    ///
    /// # Errors
    /// If `bytes` is 0 or above [`MAX_TABLE_BYTES`], or the operating system cannot provide the memory.
    pub fn new(bytes: usize) -> io::Result<Arc<Self>> {
        Self::create(bytes, 0, 0)
    }

    /// Creates a table of zeros with `count` sections that handlers can write to with their locks. `bytes`, the size of a
    /// section, is a multiple of eight.
    ///
    /// # Errors
    /// As [`new`](Self::new) for all sections together, or if `bytes` is no multiple of eight.
    pub fn with_sections(count: usize, bytes: usize) -> io::Result<Arc<Self>> {
        if !bytes.is_multiple_of(size_of::<u64>()) {
            let reason = format!("sections of {bytes} bytes; use a multiple of eight");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        Self::create(count.saturating_mul(bytes), count, bytes)
    }

    fn create(bytes: usize, sections: usize, section_bytes: usize) -> io::Result<Arc<Self>> {
        if bytes == 0 || bytes > MAX_TABLE_BYTES {
            let reason = format!("a table of {bytes} bytes; use 1 to {MAX_TABLE_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let len = bytes.next_multiple_of(rustix::param::page_size());
        let fd = memfd_create("ash-table", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Neither the application nor a handler waits for a page.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, flags, &fd, 0) }?;
        let mapping = Mapping::new(start, len)?;
        let locks = (0..sections).map(|_| AtomicBool::new(false)).collect();
        Ok(Arc::new(SharedTable { fd, mapping, locks, section_bytes }))
    }

    /// Returns the table as words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping begins at a page, has whole words, and lives as long as the value. All code of this process
        // accesses it as these atomics; handlers, whose code is not Rust, only load from it.
        unsafe {
            std::slice::from_raw_parts(self.mapping.start().cast(), self.len() / size_of::<u64>())
        }
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Returns false: a table has at least a page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Locks a section, unless its lock is taken.
    ///
    /// # Panics
    /// If there is no such section.
    pub fn try_lock(&self, section: usize) -> Option<Section<'_>> {
        self.acquire(section).then(|| Section { table: self, section })
    }

    /// Waits for the lock of a section, which a handler holds until the end of one invocation at most. Not for handlers,
    /// and not for the thread in which they run while it handles a message.
    ///
    /// # Panics
    /// If there is no such section.
    pub fn lock(&self, section: usize) -> Section<'_> {
        /// An invocation takes less time than a sleep, unless its core runs another thread.
        const SPINS: u32 = 100;
        /// Then its thread waits for a core, which a real-time caller would not leave to it by a yield.
        const SPINS_AND_YIELDS: u32 = SPINS + 10;
        const SLEEP: Duration = Duration::from_micros(50);
        let mut tries = 0u32;
        loop {
            if let Some(section) = self.try_lock(section) {
                return section;
            }
            match tries {
                0..SPINS => hint::spin_loop(),
                SPINS..SPINS_AND_YIELDS => thread::yield_now(),
                _ => thread::sleep(SLEEP),
            }
            tries = tries.saturating_add(1);
        }
    }

    /// Takes a lock. Returns whether it was free.
    pub(crate) fn acquire(&self, section: usize) -> bool {
        let lock = &self.locks[section];
        !lock.load(Ordering::Relaxed) && !lock.swap(true, Ordering::Acquire)
    }

    pub(crate) fn release(&self, section: usize) {
        self.locks[section].store(false, Ordering::Release);
    }

    /// Returns the bytes of a section in the table.
    pub(crate) fn section(&self, section: usize) -> Option<Range<usize>> {
        let start = section * self.section_bytes;
        (section < self.locks.len()).then_some(start..start + self.section_bytes)
    }

    /// Returns the number of sections.
    pub fn sections(&self) -> usize {
        self.locks.len()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A section of a [`SharedTable`] whose lock is held, as words. It is released when this is dropped.
pub struct Section<'a> {
    table: &'a SharedTable,
    section: usize,
}

impl fmt::Debug for Section<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Section").field(&self.section).finish()
    }
}

impl Deref for Section<'_> {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        let bytes = self.table.section(self.section).unwrap_or_default();
        &self.table.words()[bytes.start / size_of::<u64>()..bytes.end / size_of::<u64>()]
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.table.release(self.section);
    }
}
