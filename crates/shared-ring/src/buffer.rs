//! Receive buffers: one pool for each kernel, handles that give themselves back.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

/// The receive buffers of one kernel: `count` buffers of `size` bytes in one piece of memory.
///
/// A buffer is in exactly one of three places: free, with the kernel, or lent out as an
/// [`RxBuf`]. The pool is meant to fit the processor's second-level cache, not the number of
/// connections: all of it passes through the cache.
pub struct BufferPool {
    memory: NonNull<u8>,
    layout: Layout,
    size: usize,
    /// How far apart buffers begin: by a cache line more than a power of two, or the beginnings of
    /// all of them, where the requests are, would compete for the same few places in the cache.
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
    /// When either is zero or the product overflows.
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

    /// How many buffers there are.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// The size of each buffer in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many buffers are lent out as [`RxBuf`]s.
    pub fn lent(&self) -> u16 {
        self.lent.get()
    }

    /// Whether so many buffers are lent out that a holder should copy rather than keep one.
    pub fn is_scarce(&self) -> bool {
        u32::from(self.lent.get()) * 4 > u32::from(self.count) * 3
    }

    /// Takes a free buffer's number.
    pub(crate) fn take(&self) -> Option<u16> {
        self.free.borrow_mut().pop()
    }

    /// Puts back a buffer that was taken and not lent.
    pub(crate) fn put_back(&self, id: u16) {
        self.free.borrow_mut().push(id);
    }

    /// Where buffer `id` begins. Whoever writes there must hold the buffer.
    pub(crate) fn address(&self, id: u16) -> *mut u8 {
        debug_assert!(id < self.count);
        // SAFETY: `id` is below `count`, so the offset lies within the one allocation.
        unsafe { self.memory.as_ptr().add(usize::from(id) * self.stride) }
    }

    /// Hands out the first `len` bytes of a buffer.
    ///
    /// # Safety
    /// The caller took `id` from this pool (or the kernel reported having filled it), nobody else
    /// holds it, and neither kernel nor thread writes to it before the returned value is dropped.
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
        write!(f, "Pool({} of {} x {} bytes lent)", self.lent.get(), self.count, self.size)
    }
}

/// Received bytes that their holder may keep, change in place, or send on without a copy.
///
/// Dropping the value gives the buffer back to its pool.
pub struct RxBuf {
    pool: Rc<BufferPool>,
    id: u16,
    start: u32,
    len: u32,
}

impl RxBuf {
    /// Drops the first `n` bytes from view.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len as usize, "advance of {n} past {} bytes", self.len);
        self.start += n as u32;
        self.len -= n as u32;
    }

    /// Keeps the first `n` bytes in view, if there are more.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(u32::try_from(n).unwrap_or(u32::MAX));
    }

    /// The bytes of memory that the value keeps.
    pub(crate) fn buffer_size(&self) -> usize {
        self.pool.size
    }

    /// Whether the pool is only there for this buffer.
    fn is_sole_owner(&self) -> bool {
        Rc::strong_count(&self.pool) == 1
    }

    /// The same bytes outside the pool when the pool runs low, else the value itself.
    ///
    /// Whoever keeps bytes for long calls this, so that no connection can starve the others.
    #[must_use]
    pub fn copy_if_scarce(self) -> RxBuf {
        if self.is_sole_owner() || !self.pool.is_scarce() {
            self
        } else {
            RxBuf::from(self.to_vec())
        }
    }
}

#[cfg(feature = "sim")]
impl RxBuf {
    /// The memory that it keeps from other uses, in bytes: a buffer of its pool, or the pool that is
    /// there for it alone.
    pub(crate) fn held(&self) -> usize {
        self.pool.size + if self.is_sole_owner() { size_of::<BufferPool>() } else { 0 }
    }

    pub(crate) fn pool(&self) -> &Rc<BufferPool> {
        &self.pool
    }
}

impl From<Vec<u8>> for RxBuf {
    /// Wraps bytes that come from elsewhere, such as decrypted ones, as a pool of their own.
    ///
    /// # Panics
    /// When there are 4 GiB or more.
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        if bytes.capacity() / 2 > bytes.len() {
            bytes.shrink_to_fit();
        }
        let len = u32::try_from(bytes.len()).expect("a received piece is shorter than 4 GiB");
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
        // SAFETY: `start + len` never exceeds the buffer, and by the promise of `BufferPool::lend` this
        // value alone has access to it.
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
        // SAFETY: `id` was just taken and nobody else holds it.
        let mut buf = unsafe { pool.lend(id, text.len()) };
        buf.copy_from_slice(text);
        buf
    }

    #[test]
    fn a_dropped_buffer_is_free_again() {
        let pool = BufferPool::new(1, 16);
        let buf = lend(&pool, b"hello");
        assert_eq!((pool.lent(), pool.take()), (1, None));
        drop(buf);
        assert_eq!((pool.lent(), pool.take()), (0, Some(0)));
    }

    #[test]
    fn bytes_of_others_keep_at_most_as_much_again() {
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
    fn the_view_shrinks_from_both_ends() {
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
    fn a_buffer_outlives_the_handle_of_its_pool() {
        let pool = BufferPool::new(1, 16);
        let buf = lend(&pool, b"still here");
        drop(pool);
        assert_eq!(&*buf, b"still here");
    }

    #[cfg(feature = "sim")]
    #[test]
    fn it_holds_its_buffer_or_the_pool_that_is_there_for_it_alone() {
        let pool = BufferPool::new(2, 100);
        assert_eq!(lend(&pool, b"x").held(), 100);
        let alone = RxBuf::from(vec![7; 100]);
        assert_eq!(alone.held(), 100 + size_of::<BufferPool>());
    }

    #[test]
    fn kept_copies_only_when_buffers_are_scarce() {
        let pool = BufferPool::new(4, 8);
        let held: Vec<_> = (0..3).map(|_| lend(&pool, b"x")).collect();
        let roomy = held.into_iter().next().unwrap().copy_if_scarce();
        assert_eq!(pool.lent(), 1);
        let rest: Vec<_> = (0..3).map(|_| lend(&pool, b"y")).collect();
        assert!(pool.is_scarce());
        assert_eq!(&*roomy.copy_if_scarce(), b"x");
        assert_eq!(pool.lent(), 3);
        drop(rest);
    }
}
