//! Receive buffers: a pool for each kernel, and handles that return their buffer when dropped.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::{BufferError, BufferGroup, BufferMemory, Place};

/// A group of receive buffers of one kernel: `count` buffers of `size` bytes in one piece of memory.
///
/// A buffer is in exactly one of three states: free, held by the kernel, or lent out as an
/// [`RxBuf`]. All buffers pass through the CPU cache, so choose the pool's size to fit the
/// second-level cache, not by the number of connections.
pub struct BufferPool {
    memory: Memory,
    /// Its group, if a kernel receives into it.
    group: Option<BufferGroup>,
    size: usize,
    /// Distance between buffers in bytes. It is not a power of two: else the starts of all buffers,
    /// where the requests are, would map to the same few cache sets.
    stride: usize,
    count: u16,
    free: RefCell<Vec<u16>>,
    lent: Cell<u16>,
}

/// The memory of a pool.
struct Memory {
    start: NonNull<u8>,
    owner: MemoryOwner,
}

/// The owner of the memory of a pool, which releases it.
enum MemoryOwner {
    Allocator(Layout),
    /// Its drop releases the memory.
    Caller {
        _memory: Box<dyn BufferMemory>,
    },
}

impl BufferPool {
    const PAGE: usize = 4096;
    const CACHE_LINE: usize = 64;
    const MAX_SIZE: u32 = 1 << 24;

    /// Allocates `count` buffers of `size` bytes, zeroed and aligned to a page.
    ///
    /// # Panics
    /// If either is zero or the product overflows.
    pub fn new(count: u16, size: u32) -> Rc<Self> {
        assert!(count > 0 && size > 0, "a pool has at least one buffer of at least one byte");
        let size = size as usize;
        let extent = Self::extent(count, size).and_then(|(stride, len)| {
            Some((stride, Layout::from_size_align(len, Self::PAGE).ok()?))
        });
        let Some((stride, layout)) = extent else {
            panic!("{count} buffers of {size} bytes do not fit the address space")
        };
        // SAFETY: the layout's size is not zero, as asserted above.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        let memory = Memory { start, owner: MemoryOwner::Allocator(layout) };
        let free = RefCell::new((0..count).rev().collect());
        let (group, lent) = (Some(BufferGroup::DEFAULT), Cell::new(0));
        Rc::new(BufferPool { memory, group, size, stride, count, free, lent })
    }

    /// The same for what is not received, and so is in no group.
    pub(crate) fn for_reads(count: u16, size: u32) -> Rc<Self> {
        let mut pool = Self::new(count, size);
        Rc::get_mut(&mut pool).expect("it has one user").group = None;
        pool
    }

    /// Divides memory of the caller into `count` buffers of `size` bytes, for
    /// [`Submit::add_buffers`](crate::Submit::add_buffers).
    ///
    /// # Errors
    /// If the memory is smaller than [`memory_len`](Self::memory_len) or not aligned to a page, or if the
    /// count is not a power of two up to 32,768, or the size not from 1 byte to 16 MiB.
    pub fn over(memory: Box<dyn BufferMemory>, count: u16, size: u32) -> Result<Self, BufferError> {
        let needed = Self::memory_len(count, size)?;
        let bytes = memory.bytes();
        if bytes.len() < needed {
            return Err(BufferError::TooSmall { needed, len: bytes.len() });
        }
        let start = bytes.cast::<u8>();
        if !start.addr().get().is_multiple_of(Self::PAGE) {
            return Err(BufferError::Unaligned);
        }
        let size = size as usize;
        Ok(BufferPool {
            memory: Memory { start, owner: MemoryOwner::Caller { _memory: memory } },
            group: None,
            size,
            stride: needed / usize::from(count),
            count,
            free: RefCell::new((0..count).rev().collect()),
            lent: Cell::new(0),
        })
    }

    /// Returns the length of memory that `count` buffers of `size` bytes need, in bytes.
    ///
    /// # Errors
    /// Those of [`over`](Self::over) for the count and the size.
    pub fn memory_len(count: u16, size: u32) -> Result<usize, BufferError> {
        if !count.is_power_of_two() || count > 1 << 15 {
            return Err(BufferError::Count(count));
        }
        let is_size = (1..=Self::MAX_SIZE).contains(&size);
        let extent = is_size.then(|| Self::extent(count, size as usize)).flatten();
        extent.map(|(_, len)| len).ok_or(BufferError::Size(size))
    }

    /// Returns the distance between buffers of `size` bytes, and the length of `count` of them, unless these overflow.
    fn extent(count: u16, size: usize) -> Option<(usize, usize)> {
        let stride = size.checked_next_multiple_of(Self::CACHE_LINE)?;
        let stride = stride.checked_add(Self::CACHE_LINE)?;
        Some((stride, stride.checked_mul(count.into())?))
    }

    /// Makes the pool a group of a kernel.
    pub(crate) fn into_group(self, group: BufferGroup) -> Rc<Self> {
        Rc::new(BufferPool { group: Some(group), ..self })
    }

    /// Returns the number of buffers that are not lent out.
    pub fn available(&self) -> u16 {
        self.count - self.lent.get()
    }

    /// Returns the number of buffers.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Returns the size of a buffer in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of buffers lent out as [`RxBuf`]s.
    pub fn lent(&self) -> u16 {
        self.lent.get()
    }

    /// Returns whether more than three quarters of the buffers are lent out. Holders should then
    /// copy the bytes instead of keeping a buffer.
    pub fn is_scarce(&self) -> bool {
        u32::from(self.lent.get()) * 4 > u32::from(self.count) * 3
    }

    /// Lends out a free buffer, to receive into. Its length is its size, and its content any.
    pub fn lend_free(self: &Rc<Self>) -> Option<RxBuf> {
        let id = self.take()?;
        // SAFETY: `id` was just taken and has no other owner; the view covers one whole buffer.
        Some(unsafe { self.lend(id, self.size()) })
    }

    /// Takes a free buffer and returns its number.
    pub(crate) fn take(&self) -> Option<u16> {
        self.free.borrow_mut().pop()
    }

    /// Returns a buffer to the pool.
    pub(crate) fn put_back(&self, id: u16) {
        self.free.borrow_mut().push(id);
    }

    /// Returns the start of buffer `id`. Only the buffer's holder may write to it.
    pub(crate) fn address(&self, id: u16) -> *mut u8 {
        debug_assert!(id < self.count);
        // SAFETY: `id` is below `count`, so the offset lies within the pool's memory.
        unsafe { self.memory.start.as_ptr().add(self.offset(id)) }
    }

    /// Returns the offset of buffer `id` in the pool's memory, in bytes.
    fn offset(&self, id: u16) -> usize {
        usize::from(id) * self.stride
    }

    /// Lends out the first `len` bytes of a buffer.
    ///
    /// # Safety
    /// The caller took `id` from this pool (or the kernel reported having filled it), it has no other
    /// holder, and neither kernel nor thread writes to it before the returned value is dropped.
    pub(crate) unsafe fn lend(self: &Rc<Self>, id: u16, len: usize) -> RxBuf {
        debug_assert!(id < self.count && len <= self.size);
        self.lent.set(self.lent.get() + 1);
        RxBuf { pool: Rc::clone(self), id, start: 0, len: len as u32 }
    }
}

impl Drop for Memory {
    /// Releases the memory: every `RxBuf` keeps the pool alive, and a kernel that may still write leaks
    /// its handle instead of dropping it.
    fn drop(&mut self) {
        if let MemoryOwner::Allocator(layout) = self.owner
            && layout.size() > 0
        {
            // SAFETY: allocated in `new` or by a vector with this layout, and no longer used.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferPool({} of {} x {} bytes lent)", self.lent.get(), self.count, self.size)
    }
}

/// Received bytes, which the holder may keep, modify in place, or send without a copy.
///
/// Dropping the value returns the buffer to its pool.
pub struct RxBuf {
    pool: Rc<BufferPool>,
    id: u16,
    start: u32,
    len: u32,
}

impl RxBuf {
    /// Removes the first `n` bytes from the view.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len as usize, "advance of {n} past {} bytes", self.len);
        self.start += n as u32;
        self.len -= n as u32;
    }

    /// Shortens the view to at most `n` bytes.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(u32::try_from(n).unwrap_or(u32::MAX));
    }

    /// Returns where the bytes lie: the buffer group, and the offset in its memory. `None` for bytes that
    /// were not received, such as decrypted ones.
    pub fn place(&self) -> Option<Place> {
        let offset = self.pool.offset(self.id) + self.start as usize;
        self.pool.group.map(|group| Place { group, offset })
    }

    /// Returns whether the bytes fill their buffer, so that the socket may have more.
    pub fn fills_buffer(&self) -> bool {
        self.len as usize == self.pool.size
    }

    /// Returns the bytes of the buffer in front of the view.
    pub(crate) fn front(&self) -> &[u8] {
        // SAFETY: as in `deref`: they are a part of the buffer, too.
        unsafe { std::slice::from_raw_parts(self.pool.address(self.id), self.start as usize) }
    }

    /// Returns the size of the underlying buffer in bytes.
    pub(crate) fn buffer_size(&self) -> usize {
        self.pool.size
    }

    /// Returns whether this buffer is the pool's only user.
    fn is_sole_owner(&self) -> bool {
        Rc::strong_count(&self.pool) == 1
    }

    /// Returns whether the [buffers of its pool are scarce](BufferPool::is_scarce), so that a holder should not keep this one.
    pub fn is_scarce(&self) -> bool {
        !self.is_sole_owner() && self.pool.is_scarce()
    }

    /// Copies the bytes out of the pool if its buffers are scarce, else returns the value itself.
    ///
    /// Call it before keeping bytes for long, so that one connection cannot starve the others.
    #[must_use]
    pub fn copy_if_scarce(self) -> RxBuf {
        if self.is_scarce() { RxBuf::from(self.to_vec()) } else { self }
    }
}

impl RxBuf {
    /// Returns the memory that it holds, in bytes: a buffer of its pool, or its own pool.
    pub(crate) fn held(&self) -> usize {
        self.pool.size + if self.is_sole_owner() { size_of::<BufferPool>() } else { 0 }
    }

    pub(crate) fn pool(&self) -> &Rc<BufferPool> {
        &self.pool
    }
}

impl From<Vec<u8>> for RxBuf {
    /// Wraps bytes that were not received into a pool, such as decrypted ones, in a pool of their own.
    ///
    /// # Panics
    /// If there are 4 GiB or more.
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        if bytes.capacity() / 2 > bytes.len() {
            bytes.shrink_to_fit();
        }
        let len = u32::try_from(bytes.len()).expect("received bytes are shorter than 4 GiB");
        let size = bytes.capacity();
        let layout = Layout::array::<u8>(size).expect("the vector has allocated it");
        let pool = BufferPool {
            memory: Memory {
                start: NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is not null"),
                owner: MemoryOwner::Allocator(layout),
            },
            group: None,
            size,
            stride: size,
            count: 1,
            free: RefCell::default(),
            lent: Cell::new(1),
        };
        RxBuf { pool: Rc::new(pool), id: 0, start: 0, len }
    }
}

impl Deref for RxBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, len) = (self.start as usize, self.len as usize);
        // SAFETY: `start + len` never exceeds the buffer, and by the promise of `BufferPool::lend` only
        // this value has access to it.
        unsafe { std::slice::from_raw_parts(self.pool.address(self.id).add(start), len) }
    }
}

impl DerefMut for RxBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, len) = (self.start as usize, self.len as usize);
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pool.address(self.id).add(start), len) }
    }
}

impl Drop for RxBuf {
    fn drop(&mut self) {
        if !self.is_sole_owner() {
            self.pool.lent.set(self.pool.lent.get() - 1);
            self.pool.put_back(self.id);
        }
    }
}

impl fmt::Debug for RxBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RxBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lend(pool: &Rc<BufferPool>, text: &[u8]) -> RxBuf {
        let id = pool.take().unwrap();
        // SAFETY: `id` was just taken and has no other holder.
        let mut buf = unsafe { pool.lend(id, text.len()) };
        buf.copy_from_slice(text);
        buf
    }

    #[test]
    fn dropped_buffer_returns_to_pool() {
        let pool = BufferPool::new(1, 16);
        let buf = lend(&pool, b"hello");
        assert_eq!((pool.lent(), pool.take()), (1, None));
        drop(buf);
        assert_eq!((pool.lent(), pool.take()), (0, Some(0)));
    }

    #[test]
    fn buffer_of_a_vector_keeps_at_most_twice_its_length() {
        let with = |len: usize, capacity| {
            let mut bytes = Vec::with_capacity(capacity);
            bytes.resize(len, 7);
            let buf = RxBuf::from(bytes);
            assert_eq!(*buf, vec![7; len]);
            buf.pool.size()
        };
        assert!(with(3, 1_000) < 100);
        assert_eq!(with(500, 1_000), 1_000);
    }

    #[test]
    fn lengths_that_overflow_are_none() {
        assert_eq!(BufferPool::extent(4, 100), Some((192, 768)));
        assert_eq!(BufferPool::extent(1, usize::MAX), None);
        assert_eq!(BufferPool::extent(1, usize::MAX - 63), None);
        assert_eq!(BufferPool::extent(2, usize::MAX / 2), None);
        assert_eq!(BufferPool::extent(1 << 15, usize::MAX >> 15), None);
        assert!(BufferPool::extent(u16::MAX, u32::MAX as usize).is_some());
    }

    #[test]
    fn buffers_do_not_overlap() {
        let pool = BufferPool::new(3, 5);
        let mut bufs: Vec<_> = (0..3u8).map(|i| lend(&pool, &[i; 5])).collect();
        bufs[1].fill(9);
        assert_eq!((&*bufs[0], &*bufs[1], &*bufs[2]), (&[0; 5][..], &[9; 5][..], &[2; 5][..]));
    }

    /// Whole pages of the allocator.
    struct Pages(NonNull<u8>, Layout);

    impl Pages {
        fn new(len: usize) -> Box<Self> {
            let layout = Layout::from_size_align(len, BufferPool::PAGE).unwrap();
            // SAFETY: no test asks for an empty memory.
            Box::new(Pages(NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap(), layout))
        }
    }

    // SAFETY: the allocation lives as long as the value, and nothing else uses it.
    unsafe impl BufferMemory for Pages {
        fn bytes(&self) -> NonNull<[u8]> {
            NonNull::slice_from_raw_parts(self.0, self.1.size())
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.0.as_ptr(), self.1) }
        }
    }

    proptest::proptest! {
        #[test]
        fn buffers_lie_in_the_memory_of_the_caller(power in 0..6u32, size in 1..3_000u32) {
            let count = 1u16 << power;
            let len = BufferPool::memory_len(count, size).unwrap();
            let rejected = BufferPool::over(Pages::new(len - 1), count, size).unwrap_err();
            assert_eq!(rejected, BufferError::TooSmall { needed: len, len: len - 1 });
            let memory = Pages::new(len);
            let start = memory.0.addr().get();
            let pool = BufferPool::over(memory, count, size).unwrap();
            let group = BufferGroup::after(1).unwrap();
            let pool = pool.into_group(group);
            let text = |at: u16| vec![at as u8; size as usize];
            let bufs: Vec<_> = (0..count).map(|at| lend(&pool, &text(at))).collect();
            assert_eq!((pool.available(), pool.take()), (0, None));
            for (at, buf) in (0..).zip(&bufs) {
                assert!(buf.fills_buffer() && **buf == text(at));
                let place = buf.place().unwrap();
                assert_eq!((place.group, start + place.offset), (group, buf.as_ptr().addr()));
                assert!(place.offset + buf.len() <= len);
            }
        }
    }

    #[test]
    fn unusable_memory_is_rejected() {
        let over = |count, size| BufferPool::over(Pages::new(4096), count, size).err();
        assert_eq!(over(3, 16), Some(BufferError::Count(3)));
        assert_eq!(over(0, 16), Some(BufferError::Count(0)));
        assert_eq!(over(1, 0), Some(BufferError::Size(0)));
        assert_eq!(over(1, (1 << 24) + 1), Some(BufferError::Size((1 << 24) + 1)));
        struct Shifted(Box<Pages>);
        // SAFETY: all of it but the first byte.
        unsafe impl BufferMemory for Shifted {
            fn bytes(&self) -> NonNull<[u8]> {
                let len = self.0.1.size() - 1;
                // SAFETY: the memory has more than one byte.
                NonNull::slice_from_raw_parts(unsafe { self.0.0.add(1) }, len)
            }
        }
        let shifted = Box::new(Shifted(Pages::new(4096)));
        assert_eq!(BufferPool::over(shifted, 1, 16).err(), Some(BufferError::Unaligned));
        assert_eq!(BufferGroup::after(BufferGroup::MAX), Err(BufferError::TooMany));
    }

    #[test]
    fn bytes_that_were_not_received_have_no_place() {
        assert_eq!(RxBuf::from(vec![7; 100]).place(), None);
    }

    #[test]
    fn advance_and_truncate_narrow_the_view() {
        let pool = BufferPool::new(1, 16);
        let mut buf = lend(&pool, b"0123456789");
        buf.advance(2);
        buf.truncate(5);
        buf.advance(1);
        assert_eq!(&*buf, b"3456");
        buf.truncate(100);
        assert_eq!(&*buf, b"3456");
    }

    #[test]
    fn buffer_outlives_pool_handle() {
        let pool = BufferPool::new(1, 16);
        let buf = lend(&pool, b"still here");
        drop(pool);
        assert_eq!(&*buf, b"still here");
    }

    #[test]
    fn held_counts_its_buffer_or_its_own_pool() {
        let pool = BufferPool::new(2, 100);
        assert_eq!(lend(&pool, b"x").held(), 100);
        let own_pool = RxBuf::from(vec![7; 100]);
        assert_eq!(own_pool.held(), 100 + size_of::<BufferPool>());
    }

    #[test]
    fn copy_if_scarce_copies_only_when_scarce() {
        let pool = BufferPool::new(4, 8);
        let held: Vec<_> = (0..3).map(|_| lend(&pool, b"x")).collect();
        let first = held.into_iter().next().unwrap().copy_if_scarce();
        assert_eq!(pool.lent(), 1);
        let remaining: Vec<_> = (0..3).map(|_| lend(&pool, b"y")).collect();
        assert!(pool.is_scarce());
        assert_eq!(&*first.copy_if_scarce(), b"x");
        assert_eq!(pool.lent(), 3);
        drop(remaining);
    }
}
