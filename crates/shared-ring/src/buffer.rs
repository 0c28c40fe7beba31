//! Receive buffers: a pool for each kernel, and handles that return their buffer when dropped.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

/// The receive buffers of one kernel: `count` buffers of `size` bytes in one allocation.
///
/// A buffer is in exactly one of three states: free, held by the kernel, or lent out as an
/// [`RxBuf`]. All buffers pass through the CPU cache, so choose the pool's size to fit the
/// second-level cache, not by the number of connections.
pub struct BufferPool {
    memory: NonNull<u8>,
    layout: Layout,
    size: usize,
    /// Distance between buffers in bytes. It is not a power of two: else the starts of all buffers,
    /// where the requests are, would map to the same few cache sets.
    stride: usize,
    count: u16,
    free: RefCell<Vec<u16>>,
    lent: Cell<u16>,
}

impl BufferPool {
    const PAGE: usize = 4096;
    const CACHE_LINE: usize = 64;

    /// Allocates `count` buffers of `size` bytes, zeroed and aligned to a page.
    ///
    /// # Panics
    /// If either is zero or the product overflows.
    pub fn new(count: u16, size: u32) -> Rc<Self> {
        assert!(count > 0 && size > 0, "a pool has at least one buffer of at least one byte");
        let size = size as usize;
        let stride = size.checked_next_multiple_of(Self::CACHE_LINE);
        let stride = stride.and_then(|stride| stride.checked_add(Self::CACHE_LINE));
        let layout = stride
            .and_then(|stride| stride.checked_mul(count.into()))
            .and_then(|bytes| Layout::from_size_align(bytes, Self::PAGE).ok());
        let (Some(stride), Some(layout)) = (stride, layout) else {
            panic!("{count} buffers of {size} bytes do not fit the address space")
        };
        // SAFETY: the layout's size is not zero, as asserted above.
        let memory = unsafe { alloc_zeroed(layout) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        let free = RefCell::new((0..count).rev().collect());
        Rc::new(BufferPool { memory, layout, size, stride, count, free, lent: Cell::new(0) })
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
        // SAFETY: `id` is below `count`, so the offset lies within the one allocation.
        unsafe { self.memory.as_ptr().add(usize::from(id) * self.stride) }
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

impl Drop for BufferPool {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated in `new` or by a vector with this layout; every `RxBuf` keeps the
            // pool alive, and a kernel that may still write leaks its handle instead of dropping
            // it.
            unsafe { dealloc(self.memory.as_ptr(), self.layout) }
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

    /// Returns the size of the underlying buffer in bytes.
    pub(crate) fn buffer_size(&self) -> usize {
        self.pool.size
    }

    /// Returns whether this buffer is the pool's only user.
    fn is_sole_owner(&self) -> bool {
        Rc::strong_count(&self.pool) == 1
    }

    /// Copies the bytes out of the pool if its buffers are scarce, else returns the value itself.
    ///
    /// Call it before keeping bytes for long, so that one connection cannot starve the others.
    #[must_use]
    pub fn copy_if_scarce(self) -> RxBuf {
        if self.is_sole_owner() || !self.pool.is_scarce() {
            self
        } else {
            RxBuf::from(self.to_vec())
        }
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
        let pool = BufferPool {
            memory: NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is not null"),
            layout: Layout::array::<u8>(size).expect("the vector has allocated it"),
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
    fn buffers_do_not_overlap() {
        let pool = BufferPool::new(3, 5);
        let mut bufs: Vec<_> = (0..3u8).map(|i| lend(&pool, &[i; 5])).collect();
        bufs[1].fill(9);
        assert_eq!((&*bufs[0], &*bufs[1], &*bufs[2]), (&[0; 5][..], &[9; 5][..], &[2; 5][..]));
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
