//! The memory of a handler: a memfd that is mapped twice. In the handler's mapping, the message area
//! at the end can only be read; the other mapping is that of the host and of the kernel.
//!
//! For wasmtime, the memory ends where the message area begins, in the range that it reserves and does
//! not check, as accesses there fault. So loads from the area succeed, a store faults in the handler's
//! code, which wasmtime turns into a trap, and nothing of wasmtime itself accesses the area.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

/// A mapped address range.
#[derive(Debug)]
struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: an address range belongs to the process; the owner decides who accesses it.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives its address only.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value, and nothing uses it any more.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len) };
    }
}

/// The memory of a handler, alive as long as the handler or an operation of the kernel uses it.
#[derive(Debug)]
pub struct HandlerMemory {
    guest: Mapping,
    host: Mapping,
    len: usize,
    area: usize,
}

impl HandlerMemory {
    /// Maps `own` bytes and a message area behind them at the start of a range of `reserved` bytes
    /// for the handler. All are multiples of the page size.
    fn new(own: usize, area: usize, reserved: usize) -> io::Result<Self> {
        let len = own + area;
        if reserved <= len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fd = memfd_create("ash", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, len as u64)?;
        let map = |start, flags| {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, or one that replaces a part of the range reserved below.
            unsafe { mmap(start, len, protection, flags, &fd, 0) }
        };
        let mapping = |start, len| {
            let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok::<_, io::Error>(Mapping { start, len })
        };
        let host = mapping(map(ptr::null_mut(), MapFlags::SHARED)?, len)?;
        // SAFETY: a new mapping, which nothing can access.
        let range = unsafe {
            mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE)
        }?;
        let guest = mapping(range, reserved)?;
        map(guest.start.as_ptr(), MapFlags::SHARED | MapFlags::FIXED)?;
        let start = guest.start.as_ptr().wrapping_byte_add(own);
        // SAFETY: the area is a part of the handler's mapping, of whole pages.
        unsafe { mprotect(start, area, MprotectFlags::READ) }?;
        Ok(HandlerMemory { guest, host, len, area })
    }

    /// Returns the size in bytes, with the message area.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: a memory has at least a page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the offsets of the message area.
    pub fn message_area(&self) -> Range<usize> {
        self.len - self.area..self.len
    }

    /// Returns the address of an offset in the mapping of the host, where all can be written.
    pub fn host_pointer(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "offset {offset} of {} bytes", self.len);
        self.host.start.as_ptr().cast::<u8>().wrapping_add(offset)
    }

    /// Returns the range, if it lies in the memory.
    pub(crate) fn range(&self, offset: u32, len: u32) -> Option<Range<usize>> {
        let end = offset as usize + len as usize;
        (end <= self.len).then_some(offset as usize..end)
    }
}

/// A memory as wasmtime sees it.
struct Linear(Arc<HandlerMemory>);

// SAFETY: the handler's mapping begins with these bytes. It has the range that wasmtime asked for, and
// stays where it is until the value is dropped. A write behind the memory faults; a read of the message
// area gives bytes that are the handler's, and nothing else behind the memory can be read.
unsafe impl LinearMemory for Linear {
    fn byte_size(&self) -> usize {
        self.0.message_area().start
    }

    fn byte_capacity(&self) -> usize {
        self.byte_size()
    }

    fn grow_to(&mut self, new_size: usize) -> wasmtime::Result<()> {
        if new_size == self.byte_size() {
            return Ok(());
        }
        Err(wasmtime::Error::msg("the memory of a handler does not grow"))
    }

    fn as_ptr(&self) -> *mut u8 {
        self.0.guest.start.as_ptr().cast()
    }
}

/// Creates memories, and hands the last one to the instance that it was created for.
#[derive(Debug)]
pub(crate) struct Memories {
    area: usize,
    last: Mutex<Option<Arc<HandlerMemory>>>,
}

impl Memories {
    pub(crate) fn new(area: usize) -> Arc<Self> {
        Arc::new(Memories { area, last: Mutex::new(None) })
    }

    /// Instantiates a module, and returns its memory with the instance.
    pub(crate) fn with<T>(
        &self,
        instantiate: impl FnOnce() -> wasmtime::Result<T>,
    ) -> wasmtime::Result<(T, Arc<HandlerMemory>)> {
        // Instances of other threads wait here, so that none takes another one's memory.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let instance = instantiate()?;
        let memory = self.last().take();
        let memory = memory.ok_or_else(|| wasmtime::Error::msg("the module has no memory"))?;
        Ok((instance, memory))
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<Arc<HandlerMemory>>> {
        self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A reference to the creator, as wasmtime takes it.
pub(crate) struct Creator(pub(crate) Arc<Memories>);

// SAFETY: the memory is zero, has the size that was asked for, does not move, and is followed by a
// reserved range and a guard that nothing can access.
unsafe impl MemoryCreator for Creator {
    fn new_memory(
        &self,
        _: MemoryType,
        minimum: usize,
        _: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let range = reserved.unwrap_or(minimum).max(minimum) + guard;
        let memory = HandlerMemory::new(minimum, self.0.area, range);
        let memory = Arc::new(memory.map_err(|error| error.to_string())?);
        *self.0.last() = Some(Arc::clone(&memory));
        Ok(Box::new(Linear(memory)))
    }
}
