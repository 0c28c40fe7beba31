//! What waits to be sent: pieces of memory from several owners, in order.

#[cfg(feature = "sim")]
mod held;

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::{Buf, Bytes};

use crate::RxBuf;

/// Bytes on their way out, gathered from copies, constants, shared and received memory.
///
/// The value owns or shares everything it points to, so an operation that owns the value keeps
/// its memory alive until the kernel has reported the end. Cleared values keep their room and
/// are used again.
#[derive(Default)]
pub struct GatherList {
    copied: Vec<u8>,
    /// Mostly it is one part, which needs no memory of its own.
    first: Option<Segment>,
    rest: VecDeque<Segment>,
    len: usize,
    /// Bytes of memory that parts take: the notes of those behind the first one, whose room stays until
    /// the list is cleared, and the receive buffers that they hold.
    parts: usize,
    /// Part of it was sent.
    started: bool,
    pub(crate) msghdr: MsgHdr,
}

enum Segment {
    Copied(Range<usize>),
    Static(&'static [u8]),
    Shared(Shared),
    Received(RxBuf),
}

/// Bytes of somebody else. Their owner's end may panic; it has come too late to concern the connection,
/// and happens wherever a list ends, so it costs nothing else. The panic hook has told of it.
struct Shared(ManuallyDrop<Bytes>);

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the value is not used again.
        let bytes = unsafe { ManuallyDrop::take(&mut self.0) };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(bytes))) {
            // Its end may panic, too.
            mem::forget(panic);
        }
    }
}

/// The form in which the ring wants a gather list; it must not move while the kernel reads it.
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
    /// The most pieces that one operation sends.
    pub const MAX_SLICES: usize = 16;
    /// The most bytes that one operation sends, so that progress can be seen.
    pub const MAX_BYTES: usize = 256 * 1024;
    /// A piece of at most this many bytes is copied, as a part costs about as much memory, and a
    /// slice of its own more time.
    const COPY_MAX_BYTES: usize = 64;
    /// A received piece that fills less than this share of its buffer is copied, so that memory stays
    /// in proportion to what waits.
    const MIN_FILL_DIVISOR: usize = 4;
    /// A cleared value gives back room beyond this many bytes, and this many parts.
    const KEEP_BYTES: usize = 16 * 1024;
    const KEEP_SEGMENTS: usize = 64;

    /// Bytes of memory of the note of a piece.
    const SEGMENT_BYTES: usize = size_of::<Segment>();
    /// Bytes of memory that a cleared value keeps for later use, at most.
    pub const MAX_KEPT_BYTES: usize =
        Self::KEEP_BYTES + 2 * Self::KEEP_SEGMENTS * Self::SEGMENT_BYTES;

    /// An empty list with room for copies of that many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        GatherList { copied: Vec::with_capacity(bytes), ..GatherList::default() }
    }

    /// Bytes not sent yet.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether everything has been sent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that it takes for what is queued: copies, which stay until all is sent, notes of
    /// pieces, and receive buffers. Shared bytes are their owners'.
    #[inline]
    pub fn cost(&self) -> usize {
        self.copied.len() + self.parts
    }

    /// Whether part of it was sent. What is appended then finds no memory of what was sent to use
    /// again, so a new list is the better place.
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Appends a copy of `bytes`.
    pub fn copy(&mut self, bytes: &[u8]) {
        self.grow(bytes.len());
        self.copied.extend_from_slice(bytes);
    }

    /// Appends `n` bytes, zero for now, and returns them to be filled in.
    pub fn reserve(&mut self, n: usize) -> &mut [u8] {
        self.grow(n);
        let start = self.copied.len();
        self.copied.resize(start + n, 0);
        &mut self.copied[start..]
    }

    fn grow(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        let start = self.copied.len();
        match self.rest.back_mut().or(self.first.as_mut()) {
            Some(Segment::Copied(range)) if range.end == start => {
                range.end += n;
                self.len += n;
            }
            _ => self.append(n, Segment::Copied(start..start + n)),
        }
    }

    /// Appends bytes that live as long as the program.
    pub fn constant(&mut self, bytes: &'static [u8]) {
        if bytes.len() <= Self::COPY_MAX_BYTES {
            return self.copy(bytes);
        }
        self.append(bytes.len(), Segment::Static(bytes));
    }

    /// Appends shared bytes, without copying them unless they are few.
    pub fn shared(&mut self, bytes: Bytes) {
        let bytes = Shared(ManuallyDrop::new(bytes));
        if bytes.0.len() <= Self::COPY_MAX_BYTES {
            return self.copy(&bytes.0);
        }
        self.append(bytes.0.len(), Segment::Shared(bytes));
    }

    /// Appends a receive buffer, without copying it unless it holds little.
    #[inline]
    pub fn received(&mut self, bytes: RxBuf) {
        if bytes.len() <= Self::COPY_MAX_BYTES
            || bytes.len() * Self::MIN_FILL_DIVISOR < bytes.buffer_size()
        {
            return self.copy(&bytes);
        }
        self.append(bytes.len(), Segment::Received(bytes));
    }

    #[inline]
    fn append(&mut self, len: usize, part: Segment) {
        if len == 0 {
            return;
        }
        self.len += len;
        self.parts += part.buffer();
        if self.first.is_none() {
            self.first = Some(part);
        } else {
            self.parts += Self::SEGMENT_BYTES;
            self.rest.push_back(part);
        }
    }

    /// Removes the first `n` bytes, which have been sent, and lets go of their owners.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline]
    pub fn advance(&mut self, mut n: usize) {
        assert!(n <= self.len, "{n} bytes sent of {}", self.len);
        if n == self.len {
            return self.clear();
        }
        self.started = true;
        self.len -= n;
        while n > 0 {
            let part = self.first.as_mut().expect("the parts add up to the length");
            let here = part.len();
            if n < here {
                part.advance(n);
                return;
            }
            n -= here;
            self.parts -= part.buffer();
            self.first = self.rest.pop_front();
        }
    }

    /// Drops everything and keeps the room for the next use.
    #[inline]
    pub fn clear(&mut self) {
        self.first = None;
        self.rest.clear();
        self.copied.clear();
        self.copied.shrink_to(Self::KEEP_BYTES);
        self.rest.shrink_to(Self::KEEP_SEGMENTS);
        self.len = 0;
        self.parts = 0;
        self.started = false;
    }

    /// The whole list, if it is one piece that one operation can send.
    #[inline]
    pub(crate) fn single(&self) -> Option<&[u8]> {
        let bytes = self.first.as_ref()?.bytes(&self.copied);
        (self.rest.is_empty() && bytes.len() <= Self::MAX_BYTES).then_some(bytes)
    }

    /// Fills `out` with the first pieces, up to [`GatherList::MAX_BYTES`] bytes; returns how many.
    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>; GatherList::MAX_SLICES]) -> usize {
        let mut room = Self::MAX_BYTES;
        let mut used = 0;
        for (part, slot) in self.first.iter().chain(&self.rest).zip(out) {
            if room == 0 {
                break;
            }
            let bytes = part.bytes(&self.copied);
            let bytes = &bytes[..bytes.len().min(room)];
            room -= bytes.len();
            *slot = IoSlice::new(bytes);
            used += 1;
        }
        used
    }
}

impl GatherList {
    /// Writes the first pieces in the ring's form.
    pub(crate) fn fill_msghdr(&mut self) {
        let mut slices = [IoSlice::new(&[]); Self::MAX_SLICES];
        let used = self.slices(&mut slices);
        let mut msghdr = [EMPTY; Self::MAX_SLICES];
        for (to, from) in msghdr.iter_mut().zip(&slices[..used]) {
            *to = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        }
        self.msghdr.slices = msghdr;
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

    /// The bytes of memory of a receive buffer that it holds.
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
        let parts = self.first.iter().len() + self.rest.len();
        write!(f, "Gather({} bytes in {parts} parts)", self.len)
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

    /// Whether its cost is that of what it holds, and of the notes of at most so many pieces.
    fn costs_what_it_holds(gather: &GatherList, pieces: usize) -> bool {
        let parts = gather.first.iter().chain(&gather.rest);
        let held = gather.copied.len() + parts.map(Segment::buffer).sum::<usize>();
        let notes =
            gather.rest.len() * GatherList::SEGMENT_BYTES..=pieces * GatherList::SEGMENT_BYTES;
        gather.cost().checked_sub(held).is_some_and(|cost| notes.contains(&cost))
    }

    proptest! {
        /// Against the obvious model: one long vector.
        #[test]
        fn sends_what_was_appended_in_order(
            pieces in prop::collection::vec((0..5u8, 0..200usize), 0..12),
            cuts in prop::collection::vec(0..250usize, 0..20),
        ) {
            static CONSTANT: [u8; 200] = [7; 200];
            let (mut gather, mut model) = (GatherList::default(), Vec::new());
            let count = pieces.len();
            for (i, (how, n)) in pieces.into_iter().enumerate() {
                let bytes = vec![i as u8; n];
                match how {
                    0 => gather.copy(&bytes),
                    1 => gather.reserve(n).copy_from_slice(&bytes),
                    2 => gather.shared(Bytes::from(bytes.clone())),
                    3 => gather.received(RxBuf::from(bytes.clone())),
                    _ => gather.constant(&CONSTANT[..n]),
                }
                model.extend(if how == 4 { vec![7; n] } else { bytes });
            }
            for cut in cuts {
                prop_assert_eq!(gather.len(), model.len());
                prop_assert_eq!(contents(&gather), model.clone());
                prop_assert!(costs_what_it_holds(&gather, count));
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
    fn a_part_of_one_byte_held_a_receive_buffer() {
        let pool = BufferPool::new(1, 4096);
        let mut gather = GatherList::default();
        for _ in 0..100 {
            let id = pool.take().expect("the buffer before was given back");
            // SAFETY: `id` was just taken and nobody else holds it.
            gather.received(unsafe { pool.lend(id, 1) });
        }
        assert_eq!((gather.len(), gather.rest.len()), (100, 0));
    }

    #[test]
    fn what_was_sent_is_let_go_before_the_rest_is() {
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
    fn a_cleared_list_kept_the_room_of_its_parts() {
        static SEGMENT_BYTES: [u8; 100] = [7; 100];
        let mut gather = GatherList::default();
        (0..10_000).for_each(|_| gather.constant(&SEGMENT_BYTES));
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
    fn one_operation_is_bounded() {
        let mut gather = GatherList::default();
        gather.shared(Bytes::from(vec![1; GatherList::MAX_BYTES - 1]));
        gather.copy(&[2; 10]);
        assert_eq!(contents(&gather).len(), GatherList::MAX_BYTES);
        gather.advance(GatherList::MAX_BYTES);
        assert_eq!(contents(&gather), [2; 9]);
    }
}
