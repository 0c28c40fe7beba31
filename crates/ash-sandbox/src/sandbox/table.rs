//! A table that an application shares with handlers, which can only read it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::memory::Mapping;

/// Maximum size of a table in bytes.
pub const MAX_TABLE_BYTES: usize = 1 << 30;

/// Memory that an application writes and handlers read, such as the values that a handler answers requests from.
///
/// Handler and application may access it at the same time. So the application marks what it changes, for instance
/// by a version that is odd meanwhile, and a handler that finds a mark aborts instead of waiting (ASH, section
/// 5.4.1): the application then answers. `examples/handlers/kv_get.wat` does so.
#[derive(Debug)]
pub struct SharedTable {
    fd: OwnedFd,
    mapping: Mapping,
}

impl SharedTable {
    /// Creates a table of zeros, whose size is rounded up to whole pages.
    ///
    /// # Errors
    /// If `bytes` is 0 or above [`MAX_TABLE_BYTES`], or the operating system cannot provide the memory.
    pub fn new(bytes: usize) -> io::Result<Arc<Self>> {
        if bytes == 0 || bytes > MAX_TABLE_BYTES {
            let reason = format!("a table of {bytes} bytes; use 1 to {MAX_TABLE_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let len = bytes.next_multiple_of(rustix::param::page_size());
        let fd = memfd_create("ash-table", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, &fd, 0) }?;
        Ok(Arc::new(SharedTable { fd, mapping: Mapping::new(start, len)? }))
    }

    /// Returns the table as words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping begins at a page, has whole words, and lives as long as the value. All of this process
        // access it as atomics, or by copies that may see any value.
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

    pub(crate) fn start(&self) -> *const u8 {
        self.mapping.start()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
