//! The memory of a handler: a memfd that is mapped twice. The message area, the reply area and,
//! if the application shares one, its table follow the module's own memory. In the handler's mapping, the message area and
//! the table are read-only. The other mapping is that of the host and of the kernel.
//!
//! For wasmtime, the memory ends with the module's own. The areas are in the range behind it, which wasmtime
//! reserves and does not check, as accesses there fault. So loads from the areas succeed, and stores to the
//! reply area; a store to the message area faults in the handler's code, which wasmtime turns into a trap,
//! and nothing of wasmtime itself accesses the areas.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

use super::SharedTable;

/// A mapped address range.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

impl Mapping {
    /// Takes a range that was just mapped.
    pub(crate) fn new(start: *mut c_void, len: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: an address range belongs to the process; the owner decides which code accesses it.
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
    /// A table of the application, behind the areas.
    table: Option<Arc<SharedTable>>,
}

/// The sizes of the areas behind the memory of a module, in bytes; multiples of the page size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Areas {
    pub(crate) replies: usize,
    pub(crate) messages: usize,
}

impl HandlerMemory {
    /// Maps `own` bytes, and the areas and the table behind them, at the start of a range of `reserved` bytes for
    /// the handler. `own` is a multiple of the page size.
    pub(crate) fn new(
        own: usize,
        areas: Areas,
        table: Option<Arc<SharedTable>>,
        reserved: usize,
    ) -> io::Result<Self> {
        let Areas { replies, messages } = areas;
        let len = own + replies + messages;
        let end = len + table.as_ref().map_or(0, |table| table.len());
        if reserved <= end {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Calls return offsets as i32; negative ones are errors.
        if i32::try_from(end).is_err() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it has 2 GiB or more with its areas",
            ));
        }
        let fd = memfd_create("ash", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, len as u64)?;
        let map = |start, flags| {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // No message waits for a page.
            let flags = flags | MapFlags::POPULATE;
            // SAFETY: a new mapping, or one that replaces a part of the range reserved below.
            unsafe { mmap(start, len, protection, flags, &fd, 0) }
        };
        let host = Mapping::new(map(ptr::null_mut(), MapFlags::SHARED)?, len)?;
        // SAFETY: a new mapping, which nothing can access.
        let range = unsafe {
            mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE)
        }?;
        let guest = Mapping::new(range, reserved)?;
        map(guest.start.as_ptr(), MapFlags::SHARED | MapFlags::FIXED)?;
        let start = guest.start.as_ptr().wrapping_byte_add(own);
        // SAFETY: the area is a part of the handler's mapping, of whole pages.
        unsafe { mprotect(start, messages, MprotectFlags::READ) }?;
        if let Some(table) = &table {
            let start = guest.start.as_ptr().wrapping_byte_add(len);
            // All its pages exist since it was created, so that they only have to be mapped.
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            // SAFETY: it replaces a part of the reserved range, which nothing else uses.
            unsafe { mmap(start, table.len(), ProtFlags::READ, flags, table.fd(), 0) }?;
        }
        Ok(HandlerMemory { guest, host, own, replies, messages, table })
    }

    /// Returns the size in bytes, with the areas and without a table.
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

    /// Returns the offset of the table, if there is one.
    pub(crate) fn table_offset(&self) -> Option<usize> {
        self.table.as_ref().map(|_| self.len())
    }

    /// Returns the table, if there is one.
    pub(crate) fn table(&self) -> Option<&SharedTable> {
        self.table.as_deref()
    }

    /// Returns the place of bytes in the table, if they lie there.
    pub(crate) fn in_table(&self, offset: u32, len: u32) -> Option<Range<usize>> {
        let start = (offset as usize).checked_sub(self.len())?;
        let end = start + len as usize;
        (end <= self.table()?.len()).then_some(start..end)
    }

    /// Returns the range, if it lies in the memory.
    pub(crate) fn range(&self, offset: u32, len: u32) -> Option<Range<usize>> {
        let end = offset as usize + len as usize;
        (end <= self.len()).then_some(offset as usize..end)
    }
}

/// An area of a handler's memory, for the kernel: see [`Handler::take_areas`](super::Handler::take_areas).
/// There is one value of each area, or of the part that the kernel gets, and it keeps the memory mapped.
#[derive(Debug)]
pub struct Area {
    memory: Arc<HandlerMemory>,
    range: Range<usize>,
    _taken: Arc<()>,
}

impl Area {
    /// The caller makes one value of each area while `taken` has other owners.
    pub(crate) fn new(memory: &Arc<HandlerMemory>, range: Range<usize>, taken: &Arc<()>) -> Self {
        Area { memory: Arc::clone(memory), range, _taken: Arc::clone(taken) }
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
// the reply area, and those of the message area and of a table, where a write faults. Nothing else there can be
// accessed.
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
    /// The table of the instance that is being created.
    table: Mutex<Option<Arc<SharedTable>>>,
    last: Mutex<Option<Arc<HandlerMemory>>>,
    /// Held during an instantiation: those of other threads wait, so that none takes another one's memory.
    turn: Mutex<()>,
}

impl Memories {
    pub(crate) fn new(areas: Areas) -> Arc<Self> {
        Arc::new(Memories {
            areas,
            table: Mutex::default(),
            last: Mutex::default(),
            turn: Mutex::default(),
        })
    }

    /// Instantiates a module, and returns its memory with the instance.
    pub(crate) fn with<T>(
        &self,
        table: Option<Arc<SharedTable>>,
        instantiate: impl FnOnce() -> wasmtime::Result<T>,
    ) -> wasmtime::Result<(T, Arc<HandlerMemory>)> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        *self.table.lock().unwrap_or_else(PoisonError::into_inner) = table;
        let instance = instantiate();
        self.table.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Also after a failure, when nothing else keeps it mapped.
        let memory = self.last().take();
        let instance = instance?;
        let memory = memory.ok_or_else(|| wasmtime::Error::msg("the module has no memory"))?;
        Ok((instance, memory))
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<Arc<HandlerMemory>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
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
        let table = self.0.table.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let memory = HandlerMemory::new(minimum, self.0.areas, table, range);
        let memory = Arc::new(memory.map_err(|error| error.to_string())?);
        *self.0.last() = Some(Arc::clone(&memory));
        Ok(Box::new(Linear(memory)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that accesses to the pages from an address do not fault.
    fn assert_mapped(start: *const u8, len: usize) {
        use std::os::unix::fs::FileExt;
        let page = rustix::param::page_size();
        // Eight bytes for each page of the process, whose highest bit says that an access does not fault.
        let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
        let first = start.addr() / page;
        for n in 0..len / page {
            let mut entry = [0; 8];
            pages.read_exact_at(&mut entry, (first + n) as u64 * 8).unwrap();
            assert!(entry[7] & 0x80 != 0, "page {n} is not there");
        }
    }

    #[test]
    fn first_messages_waited_for_the_pages_of_the_memory() {
        let page = rustix::param::page_size();
        let areas = Areas { replies: 16 * page, messages: 64 * page };
        let memory = HandlerMemory::new(32 * page, areas, None, 1 << 30).unwrap();
        for mapping in [&memory.host, &memory.guest] {
            assert_mapped(mapping.start(), memory.len());
        }
    }

    #[test]
    fn first_messages_waited_for_the_pages_of_the_table() {
        let page = rustix::param::page_size();
        let areas = Areas { replies: page, messages: page };
        let table = SharedTable::new(300 * page).unwrap();
        assert_mapped(table.words().as_ptr().cast(), table.len());
        let memory = HandlerMemory::new(page, areas, Some(Arc::clone(&table)), 1 << 30).unwrap();
        assert_mapped(memory.guest.start().wrapping_add(memory.len()), table.len());
    }

    #[test]
    fn memory_of_an_instantiation_that_failed_stayed_mapped() {
        let page = rustix::param::page_size();
        let memories = Memories::new(Areas { replies: page, messages: page });
        let creator = Creator(Arc::clone(&memories));
        let mut created = std::sync::Weak::new();
        let failed = memories.with(None, || -> wasmtime::Result<()> {
            let ty = MemoryType::new(1, Some(1));
            let memory = creator.new_memory(ty, 1 << 16, None, Some(1 << 20), 1 << 16);
            created = memories.last().as_ref().map(Arc::downgrade).unwrap();
            drop(memory);
            Err(wasmtime::Error::msg("out of memory for tables"))
        });
        assert!(failed.is_err());
        assert!(created.upgrade().is_none());
    }
}
