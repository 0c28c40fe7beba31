//! The memory of a handler: a memfd that is mapped twice. The module's own memory is followed by the message
//! area, which can only be read in the handler's mapping, and by the reply area; the other mapping is that of
//! the host and of the kernel.
//!
//! For wasmtime, the memory ends with the module's own. The areas are in the range behind it, which wasmtime
//! reserves and does not check, as accesses there fault. So loads from the areas succeed, and stores to the
//! reply area; a store to the message area faults in the handler's code, which wasmtime turns into a trap,
//! and nothing of wasmtime itself accesses the areas.

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
    own: usize,
    replies: usize,
    messages: usize,
}

/// The sizes of the areas behind the memory of a module, in bytes; multiples of the page size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Areas {
    pub(crate) replies: usize,
    pub(crate) messages: usize,
}

impl HandlerMemory {
    /// Maps `own` bytes and the areas behind them at the start of a range of `reserved` bytes for the
    /// handler. `own` is a multiple of the page size.
    pub(crate) fn new(own: usize, areas: Areas, reserved: usize) -> io::Result<Self> {
        let Areas { replies, messages } = areas;
        let len = own + replies + messages;
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
        unsafe { mprotect(start, messages, MprotectFlags::READ) }?;
        Ok(HandlerMemory { guest, host, own, replies, messages })
    }

    /// Returns the size in bytes, with the areas.
    pub fn len(&self) -> usize {
        self.own + self.replies + self.messages
    }

    /// Returns false: a memory has at least a page.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the offsets of the reply area, where replies lie that leave without a copy.
    pub fn reply_area(&self) -> Range<usize> {
        self.own + self.messages..self.len()
    }

    /// Returns the offsets of the message area.
    pub fn message_area(&self) -> Range<usize> {
        self.own..self.own + self.messages
    }

    /// Returns the address of an offset in the mapping of the host, where all can be written.
    pub fn host_pointer(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len(), "offset {offset} of {} bytes", self.len());
        self.host.start.as_ptr().cast::<u8>().wrapping_add(offset)
    }

    /// Returns the range, if it lies in the memory.
    pub(crate) fn range(&self, offset: u32, len: u32) -> Option<Range<usize>> {
        let end = offset as usize + len as usize;
        (end <= self.len()).then_some(offset as usize..end)
    }
}

/// An area of a handler's memory, for the kernel: see [`Handler::take_areas`](super::Handler::take_areas).
/// There is one value of each area, and it keeps the memory mapped.
#[derive(Debug)]
pub struct Area {
    memory: Arc<HandlerMemory>,
    range: Range<usize>,
}

impl Area {
    /// The caller makes one value of each area.
    pub(crate) fn new(memory: &Arc<HandlerMemory>, range: Range<usize>) -> Self {
        Area { memory: Arc::clone(memory), range }
    }

    /// Returns the bytes, in the mapping of the host. They start at a page.
    pub fn bytes(&self) -> NonNull<[u8]> {
        // SAFETY: the mapping begins at an address that is not null, and the range is in it.
        let start = unsafe { self.memory.host.start.cast::<u8>().add(self.range.start) };
        NonNull::slice_from_raw_parts(start, self.range.len())
    }

    /// Returns the offsets of the area in the handler's memory.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

/// A memory as wasmtime sees it.
struct Linear(Arc<HandlerMemory>);

// SAFETY: the handler's mapping begins with these bytes. It has the range that wasmtime asked for, and
// stays where it is until the value is dropped. Behind the memory lie bytes that are the handler's: those of
// the reply area, and those of the message area, where a write faults. Nothing else there can be accessed.
unsafe impl LinearMemory for Linear {
    fn byte_size(&self) -> usize {
        self.0.own
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
    pub(crate) areas: Areas,
    last: Mutex<Option<Arc<HandlerMemory>>>,
}

impl Memories {
    pub(crate) fn new(areas: Areas) -> Arc<Self> {
        Arc::new(Memories { areas, last: Mutex::new(None) })
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
        let memory = HandlerMemory::new(minimum, self.0.areas, range);
        let memory = Arc::new(memory.map_err(|error| error.to_string())?);
        *self.0.last() = Some(Arc::clone(&memory));
        Ok(Box::new(Linear(memory)))
    }
}
