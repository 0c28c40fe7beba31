//! Lists of bytes to send, gathered from memory of several owners.

mod held;

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;

use bytes::{Buf, Bytes};

use crate::RxBuf;
use crate::panics::catch_panic;

/// Bytes to send, in order: copies, constants, shared and received memory.
///
/// The list owns or shares all memory it points to, so an operation that owns the list keeps that
/// memory alive until its last completion. A cleared list keeps its capacity and can be reused.
#[derive(Default)]
pub struct GatherList {
    copied: Vec<u8>,
    /// The first segment. Most lists have only this one, which needs no allocation.
    first: Option<Segment>,
    rest: VecDeque<Segment>,
    len: usize,
    /// Memory of segments, in bytes: those in `rest`, until the list is cleared, and the receive
    /// buffers that segments hold.
    parts: usize,
    /// Part of the list was sent.
    started: bool,
    pub(crate) msghdr: MsgHdr,
}

enum Segment {
    Copied(Range<usize>),
    Static(&'static [u8]),
    Shared(SharedBytes),
    Received(RxBuf),
}

/// Bytes shared with an owner whose destructor may panic; see [`discard`].
struct SharedBytes(ManuallyDrop<Bytes>);

impl Drop for SharedBytes {
    fn drop(&mut self) {
        // SAFETY: the value is not used again.
        discard(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

/// Drops shared bytes, whose owner's destructor may panic. That panic is caught: it no longer concerns
/// the connection, and the bytes can be dropped anywhere. The panic hook has reported it.
#[inline]
pub fn discard(bytes: Bytes) {
    catch_panic(|| drop(bytes));
}

/// A gather list in the format of sendmsg(2); it must not move while the kernel reads it.
pub(crate) struct MsgHdr {
    pub(crate) slices: [libc::iovec; GatherList::MAX_SLICES],
    pub(crate) header: libc::msghdr,
}

impl Default for MsgHdr {
    fn default() -> Self {
        // SAFETY: both are plain C structures for which all zero bytes are a valid value.
        unsafe { mem::zeroed() }
    }
}

impl GatherList {
    /// Maximum number of segments that one operation sends.
    pub const MAX_SLICES: usize = 16;
    /// Maximum number of bytes that one operation sends, so that progress is reported.
    pub const MAX_BYTES: usize = 256 * 1024;
    /// Bytes up to this number are copied: a segment takes about as much memory, and a slice of
    /// its own more time.
    const COPY_MAX_BYTES: usize = 64;
    /// Received bytes that fill less than one in this many parts of their buffer are copied, so
    /// that memory stays in proportion to the queued bytes.
    const MIN_FILL_DIVISOR: usize = 4;
    /// A cleared list frees capacity beyond this many bytes and segments.
    const KEEP_BYTES: usize = 16 * 1024;
    const KEEP_SEGMENTS: usize = 64;

    /// Memory of a segment, in bytes.
    const SEGMENT_BYTES: usize = size_of::<Segment>();
    /// Maximum memory that a cleared list keeps, in bytes.
    pub const MAX_KEPT_BYTES: usize =
        Self::KEEP_BYTES + 2 * Self::KEEP_SEGMENTS * Self::SEGMENT_BYTES;

    /// Creates an empty list with capacity for copies of that many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        GatherList { copied: Vec::with_capacity(bytes), ..GatherList::default() }
    }

    /// Returns the number of unsent bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether everything was sent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the memory of the queued bytes: copies (until all are sent), segments and receive
    /// buffers. Shared bytes count with their owners.
    #[inline]
    pub fn cost(&self) -> usize {
        self.copied.len() + self.parts
    }

    /// Returns whether part of the list was sent. Appending then does not reuse the sent bytes'
    /// memory, so append to a new list instead.
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Appends a copy of `bytes`.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) {
        self.grow(bytes.len());
        self.copied.extend_from_slice(bytes);
    }

    /// Appends `n` zero bytes and returns them for writing.
    pub fn reserve(&mut self, n: usize) -> &mut [u8] {
        self.grow(n);
        let start = self.copied.len();
        self.copied.resize(start + n, 0);
        &mut self.copied[start..]
    }

    /// Makes the next `n` copied bytes part of the list. Most lists are one copy.
    #[inline]
    fn grow(&mut self, n: usize) {
        if n > 0 && self.len == 0 {
            self.first = Some(Segment::Copied(0..n));
            self.len = n;
        } else if n > 0 {
            self.extend(n);
        }
    }

    fn extend(&mut self, n: usize) {
        let start = self.copied.len();
        match self.rest.back_mut().or(self.first.as_mut()) {
            Some(Segment::Copied(range)) if range.end == start => {
                range.end += n;
                self.len += n;
            }
            _ => self.append(n, Segment::Copied(start..start + n)),
        }
    }

    /// Appends static bytes.
    pub fn constant(&mut self, bytes: &'static [u8]) {
        if bytes.len() <= Self::COPY_MAX_BYTES {
            return self.copy(bytes);
        }
        self.append(bytes.len(), Segment::Static(bytes));
    }

    /// Appends shared bytes, which are copied only if they are few.
    pub fn shared(&mut self, bytes: Bytes) {
        let bytes = SharedBytes(ManuallyDrop::new(bytes));
        if bytes.0.len() <= Self::COPY_MAX_BYTES {
            return self.copy(&bytes.0);
        }
        self.append(bytes.0.len(), Segment::Shared(bytes));
    }

    /// Returns whether [`received`](Self::received) appends `len` bytes in a buffer of `buffer_size` bytes
    /// without a copy.
    #[inline]
    pub fn keeps(len: usize, buffer_size: usize) -> bool {
        len > Self::COPY_MAX_BYTES && len * Self::MIN_FILL_DIVISOR >= buffer_size
    }

    /// Appends received bytes, which are copied only if they are few or fill little of their buffer.
    #[inline(always)]
    pub fn received(&mut self, bytes: RxBuf) {
        if !Self::keeps(bytes.len(), bytes.buffer_size()) {
            return self.copy(&bytes);
        }
        self.hold(bytes);
    }

    /// Appends received bytes without a copy, however few they are. The list holds their buffer, so the caller bounds
    /// the number of lists.
    #[inline]
    pub fn hold(&mut self, bytes: RxBuf) {
        self.append(bytes.len(), Segment::Received(bytes));
    }

    #[inline]
    fn append(&mut self, len: usize, segment: Segment) {
        if len == 0 {
            return;
        }
        self.len += len;
        self.parts += segment.buffer();
        if self.first.is_none() {
            self.first = Some(segment);
        } else {
            self.parts += Self::SEGMENT_BYTES;
            self.rest.push_back(segment);
        }
    }

    /// Removes the first `n` bytes, which were sent, and drops segments that were sent whole.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline(always)]
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len, "{n} bytes sent of {}", self.len);
        if n == self.len {
            return self.clear();
        }
        self.advance_within(n);
    }

    /// Removes the first `n` bytes of more.
    fn advance_within(&mut self, mut n: usize) {
        self.started = true;
        self.len -= n;
        while n > 0 {
            let segment = self.first.as_mut().expect("the segments add up to the length");
            let len = segment.len();
            if n < len {
                segment.advance(n);
                return;
            }
            n -= len;
            self.parts -= segment.buffer();
            self.first = self.rest.pop_front();
        }
    }

    /// Drops all segments and keeps capacity for reuse.
    #[inline]
    pub fn clear(&mut self) {
        self.first = None;
        self.copied.clear();
        // Most lists never had a second segment.
        if self.copied.capacity() > Self::KEEP_BYTES || self.rest.capacity() > 0 {
            self.shrink();
        }
        self.len = 0;
        self.parts = 0;
        self.started = false;
    }

    /// Drops the segments behind the first one, and capacity beyond what is kept.
    #[cold]
    fn shrink(&mut self) {
        self.copied.shrink_to(Self::KEEP_BYTES);
        self.rest.clear();
        self.rest.shrink_to(Self::KEEP_SEGMENTS);
    }

    /// Returns the whole list if it is one segment that one operation can send.
    #[inline]
    pub fn single(&self) -> Option<&[u8]> {
        let bytes = self.first.as_ref()?.bytes(&self.copied);
        (self.rest.is_empty() && bytes.len() <= Self::MAX_BYTES).then_some(bytes)
    }

    /// Fills `out` with the first segments, up to [`GatherList::MAX_BYTES`] bytes. Returns the
    /// number of slices.
    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>; GatherList::MAX_SLICES]) -> usize {
        let mut remaining = Self::MAX_BYTES;
        let mut used = 0;
        for (segment, slot) in self.first.iter().chain(&self.rest).zip(out) {
            if remaining == 0 {
                break;
            }
            let bytes = segment.bytes(&self.copied);
            let bytes = &bytes[..bytes.len().min(remaining)];
            remaining -= bytes.len();
            *slot = IoSlice::new(bytes);
            used += 1;
        }
        used
    }
}

impl GatherList {
    /// Returns the first segments in the format of sendmsg(2), up to [`GatherList::MAX_BYTES`] bytes. Valid
    /// as long as the list neither moves nor changes.
    pub fn message(&mut self) -> *const libc::msghdr {
        self.fill_msghdr();
        &raw const self.msghdr.header
    }

    /// Writes the first segments to `msghdr`.
    pub(crate) fn fill_msghdr(&mut self) {
        let mut slices = [IoSlice::new(&[]); Self::MAX_SLICES];
        let used = self.slices(&mut slices);
        let mut msghdr = [EMPTY; Self::MAX_SLICES];
        for (to, from) in msghdr.iter_mut().zip(&slices[..used]) {
            *to = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        }
        self.msghdr.slices = msghdr;
        // The destination of a `Transmit` that had the list before may be gone.
        self.msghdr.header.msg_name = std::ptr::null_mut();
        self.msghdr.header.msg_namelen = 0;
        self.msghdr.header.msg_iov = self.msghdr.slices.as_mut_ptr();
        self.msghdr.header.msg_iovlen = used;
    }
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

impl Segment {
    fn len(&self) -> usize {
        match self {
            Segment::Copied(range) => range.len(),
            Segment::Static(bytes) => bytes.len(),
            Segment::Shared(bytes) => bytes.0.len(),
            Segment::Received(bytes) => bytes.len(),
        }
    }

    /// Returns the size of the receive buffer that it holds, in bytes.
    fn buffer(&self) -> usize {
        match self {
            Segment::Received(bytes) => bytes.buffer_size(),
            _ => 0,
        }
    }

    fn bytes<'a>(&'a self, copied: &'a [u8]) -> &'a [u8] {
        match self {
            Segment::Copied(range) => &copied[range.clone()],
            Segment::Static(bytes) => bytes,
            Segment::Shared(bytes) => &bytes.0,
            Segment::Received(bytes) => bytes,
        }
    }

    fn advance(&mut self, n: usize) {
        match self {
            Segment::Copied(range) => range.start += n,
            Segment::Static(bytes) => *bytes = &bytes[n..],
            Segment::Shared(bytes) => bytes.0.advance(n),
            Segment::Received(bytes) => bytes.advance(n),
        }
    }
}

impl fmt::Debug for GatherList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segments = self.first.iter().len() + self.rest.len();
        write!(f, "GatherList({} bytes in {segments} segments)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferPool;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn contents(gather: &GatherList) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); GatherList::MAX_SLICES];
        let used = gather.slices(&mut slices);
        slices[..used].iter().flat_map(|slice| slice.iter().copied()).collect()
    }

    /// Returns whether the cost is that of the memory held plus at most `max` segments.
    fn cost_matches(gather: &GatherList, max: usize) -> bool {
        let segments = gather.first.iter().chain(&gather.rest);
        let held = gather.copied.len() + segments.map(Segment::buffer).sum::<usize>();
        let bounds =
            gather.rest.len() * GatherList::SEGMENT_BYTES..=max * GatherList::SEGMENT_BYTES;
        gather.cost().checked_sub(held).is_some_and(|cost| bounds.contains(&cost))
    }

    proptest! {
        /// The model is one vector.
        #[test]
        fn slices_equal_one_vector(
            pieces in prop::collection::vec((0..5u8, 0..200usize), 0..12),
            cuts in prop::collection::vec(0..250usize, 0..20),
        ) {
            static CONSTANT: [u8; 200] = [7; 200];
            let (mut gather, mut model) = (GatherList::default(), Vec::new());
            let count = pieces.len();
            for (i, (source, n)) in pieces.into_iter().enumerate() {
                let bytes = vec![i as u8; n];
                match source {
                    0 => gather.copy(&bytes),
                    1 => gather.reserve(n).copy_from_slice(&bytes),
                    2 => gather.shared(Bytes::from(bytes.clone())),
                    3 => gather.received(RxBuf::from(bytes.clone())),
                    _ => gather.constant(&CONSTANT[..n]),
                }
                model.extend(if source == 4 { vec![7; n] } else { bytes });
            }
            for cut in cuts {
                prop_assert_eq!(gather.len(), model.len());
                prop_assert_eq!(contents(&gather), model.clone());
                prop_assert!(cost_matches(&gather, count));
                let cut = cut.min(model.len());
                gather.advance(cut);
                model.drain(..cut);
            }
            gather.clear();
            prop_assert!(gather.is_empty() && contents(&gather).is_empty());
            prop_assert_eq!(gather.cost(), 0);
        }
    }

    #[test]
    fn one_received_byte_kept_its_buffer() {
        let pool = BufferPool::new(1, 4096);
        let mut gather = GatherList::default();
        for _ in 0..100 {
            let id = pool.take().expect("the previous buffer was returned");
            // SAFETY: `id` was just taken and has no other holder.
            gather.received(unsafe { pool.lend(id, 1) });
        }
        assert_eq!((gather.len(), gather.rest.len()), (100, 0));
    }

    #[test]
    fn sent_segments_are_dropped_before_the_rest_is_sent() {
        let owners = [1, 2].map(|byte| Arc::<[u8]>::from([byte; 100]));
        let mut gather = GatherList::default();
        for owner in &owners {
            gather.shared(Bytes::from_owner(owner.clone()));
        }
        let held = || owners.each_ref().map(Arc::strong_count);
        gather.advance(99);
        assert_eq!(held(), [2, 2]);
        gather.advance(1);
        assert_eq!(held(), [1, 2]);
        assert_eq!(contents(&gather), [2; 100]);
    }

    #[test]
    fn parts_of_one_byte_each_took_the_memory_of_a_part() {
        let mut gather = GatherList::default();
        for _ in 0..1_000 {
            gather.constant(b"a");
            gather.shared(Bytes::from_static(b"b"));
            gather.received(RxBuf::from(vec![b'c']));
        }
        assert_eq!((gather.len(), gather.rest.len()), (3_000, 0));
        assert_eq!(contents(&gather), b"abc".repeat(1_000));
    }

    #[test]
    fn clear_kept_segment_capacity() {
        static BYTES: [u8; 100] = [7; 100];
        let mut gather = GatherList::default();
        (0..10_000).for_each(|_| gather.constant(&BYTES));
        gather.clear();
        assert!(
            gather.rest.capacity() <= 2 * GatherList::KEEP_SEGMENTS,
            "{}",
            gather.rest.capacity()
        );
    }

    #[test]
    fn a_cleared_list_keeps_as_much_room_as_it_says() {
        static PART: [u8; 100] = [7; 100];
        let mut gather = GatherList::default();
        gather.copy(&[0; 2 * GatherList::KEEP_BYTES]);
        (0..1_000).for_each(|_| gather.constant(&PART));
        gather.clear();
        let room = gather.copied.capacity() + gather.rest.capacity() * GatherList::SEGMENT_BYTES;
        assert!(room <= GatherList::MAX_KEPT_BYTES, "{room} bytes");
    }

    #[test]
    fn slices_are_bounded_by_max_bytes() {
        let mut gather = GatherList::default();
        gather.shared(Bytes::from(vec![1; GatherList::MAX_BYTES - 1]));
        gather.copy(&[2; 10]);
        assert_eq!(contents(&gather).len(), GatherList::MAX_BYTES);
        gather.advance(GatherList::MAX_BYTES);
        assert_eq!(contents(&gather), [2; 9]);
    }
}
