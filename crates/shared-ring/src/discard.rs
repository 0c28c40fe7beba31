//! Memory for bytes that are read only so that the page cache has them.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;

/// The destination of any number of reads at a time. Nothing reads what they write.
///
/// A file is read into the page cache through memory, because the kernel does not report when a read into the cache alone
/// has ended. Shared memory costs nothing for each read, and reads on one CPU find it in that CPU's cache.
pub struct DiscardBuffer(UnsafeCell<MaybeUninit<[u8; Self::BYTES]>>);

impl DiscardBuffer {
    /// Its size.
    pub const BYTES: usize = 64 * 1024;

    /// Returns where it starts. It must outlive the reads into it.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.0.get().cast()
    }
}

impl Default for DiscardBuffer {
    fn default() -> Self {
        DiscardBuffer(UnsafeCell::new(MaybeUninit::uninit()))
    }
}

impl fmt::Debug for DiscardBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DiscardBuffer")
    }
}
