//! A memory map of the test: a memfd that is mapped twice.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use shared_ring::buffers::BufferMemory;

struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `mapped` with this length; its owner no longer uses it.
        unsafe { munmap(self.start.as_ptr(), self.len) }.unwrap();
    }
}

/// The writable mapping, for a buffer pool.
pub(crate) struct Writable {
    mapping: Mapping,
    is_unmapped: Rc<Cell<bool>>,
}

// SAFETY: the mapping lives as long as the value; only `View` reads the same pages, at other addresses.
unsafe impl BufferMemory for Writable {
    fn bytes(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.mapping.start.cast(), self.mapping.len)
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        self.is_unmapped.set(true);
    }
}

/// The read-only mapping of the same pages.
pub(crate) struct View {
    mapping: Mapping,
    is_unmapped: Rc<Cell<bool>>,
}

impl View {
    /// Returns `len` bytes from `offset` on.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.mapping.len, "{len} bytes at {offset} are not in the map");
        let mut bytes = vec![0; len];
        // SAFETY: the range is in the mapping, as asserted.
        unsafe {
            let start = self.mapping.start.as_ptr().cast::<u8>().add(offset);
            ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), len);
        }
        bytes
    }

    /// Returns whether the writable mapping is gone.
    #[allow(dead_code, reason = "only some test programs use it")]
    pub(crate) fn is_unmapped(&self) -> bool {
        self.is_unmapped.get()
    }
}

/// Maps `len` bytes twice.
pub(crate) fn mapped(len: usize) -> (Box<Writable>, View) {
    let file = memfd_create("buffers", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len as u64).unwrap();
    let map = |protection| {
        // SAFETY: a new mapping affects no other memory.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0) };
        Mapping { start: NonNull::new(start.unwrap()).unwrap(), len }
    };
    let is_unmapped = Rc::new(Cell::new(false));
    let view = View { mapping: map(ProtFlags::READ), is_unmapped: Rc::clone(&is_unmapped) };
    (Box::new(Writable { mapping: map(ProtFlags::READ | ProtFlags::WRITE), is_unmapped }), view)
}
