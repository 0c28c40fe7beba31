//! The memory of a store: blocks of one size, of which each item has a chain.
//!
//! With one size there is no fragmentation: any free block serves any item, so what is counted is
//! what the process holds. The price is half a block for an item, and four bytes for a block.

use std::collections::TryReserveError;

/// The size of a block in bytes: two cache lines.
pub(super) const BLOCK: usize = 128;

/// The index of no block.
pub(super) const NONE: u32 = 0;

/// The bytes at the beginning of a block that name the next one of its chain.
const LINK: usize = 4;

/// The bytes at the beginning of a chain that hold the item's header, the link included.
pub(super) const HEADER: usize = 48;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Block([u8; BLOCK]);

/// Where the bytes of an item are read or written next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    block: u32,
    offset: u32,
}

/// All blocks. Their memory becomes resident when they are used for the first time.
pub(super) struct Blocks {
    /// Those that were used at least once; the first is never used, as its index is [`NONE`].
    blocks: Vec<Block>,
    /// How many there may be, without the first.
    capacity: usize,
    /// The chain of those that are free again.
    free: u32,
    free_count: usize,
}

impl Blocks {
    pub(super) fn new(capacity: usize) -> Result<Self, TryReserveError> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(capacity + 1)?;
        blocks.push(Block([0; BLOCK]));
        Ok(Blocks { blocks, capacity, free: NONE, free_count: 0 })
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Blocks that are part of an item.
    pub(super) fn used(&self) -> usize {
        self.blocks.len() - 1 - self.free_count
    }

    /// Blocks that are not.
    pub(super) fn available(&self) -> usize {
        self.capacity - self.used()
    }

    /// The blocks that an item of `len` bytes needs.
    pub(super) fn count_for(len: usize) -> usize {
        1 + len.saturating_sub(BLOCK - HEADER).div_ceil(BLOCK - LINK)
    }

    /// Takes a chain of `n` blocks, at least one. Returns its first and last.
    ///
    /// # Panics
    /// When fewer are [available](Blocks::available).
    pub(super) fn take(&mut self, n: usize) -> (u32, u32) {
        assert!((1..=self.available()).contains(&n), "{n} blocks of {}", self.available());
        let first = self.take_one();
        let mut last = first;
        for _ in 1..n {
            let next = self.take_one();
            self.set_u32(last, 0, next);
            last = next;
        }
        self.set_u32(last, 0, NONE);
        (first, last)
    }

    fn take_one(&mut self) -> u32 {
        if self.free == NONE {
            self.blocks.push(Block([0; BLOCK]));
            return (self.blocks.len() - 1) as u32;
        }
        let block = self.free;
        self.free = self.u32(block, 0);
        self.free_count -= 1;
        block
    }

    /// Gives a chain of `n` blocks back.
    pub(super) fn give(&mut self, first: u32, last: u32, n: usize) {
        self.set_u32(last, 0, self.free);
        self.free = first;
        self.free_count += n;
    }

    /// The position of the first byte behind an item's header.
    pub(super) fn cursor(first: u32) -> Cursor {
        Cursor { block: first, offset: HEADER as u32 }
    }

    /// Moves a cursor forward by `n` bytes.
    pub(super) fn advance(&self, cursor: &mut Cursor, mut n: usize) {
        while n > 0 {
            let step = self.contiguous(cursor).min(n);
            cursor.offset += step as u32;
            n -= step;
        }
    }

    /// How many bytes follow in the cursor's block; goes to the next one when there are none.
    fn contiguous(&self, cursor: &mut Cursor) -> usize {
        if cursor.offset as usize == BLOCK {
            *cursor = Cursor { block: self.u32(cursor.block, 0), offset: LINK as u32 };
        }
        BLOCK - cursor.offset as usize
    }

    /// Writes at the cursor and moves it.
    pub(super) fn write(&mut self, cursor: &mut Cursor, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = self.contiguous(cursor).min(bytes.len());
            let at = cursor.offset as usize;
            self.blocks[cursor.block as usize].0[at..at + n].copy_from_slice(&bytes[..n]);
            cursor.offset += n as u32;
            bytes = &bytes[n..];
        }
    }

    /// The next bytes that lie together, at most `max` and at least one; moves the cursor behind them.
    fn piece(&self, cursor: &mut Cursor, max: usize) -> &[u8] {
        let n = self.contiguous(cursor).min(max);
        let at = cursor.offset as usize;
        cursor.offset += n as u32;
        &self.blocks[cursor.block as usize].0[at..at + n]
    }

    /// Appends the next `n` bytes to `to` and moves the cursor.
    pub(super) fn read(&self, cursor: &mut Cursor, mut n: usize, to: &mut Vec<u8>) {
        while n > 0 {
            let piece = self.piece(cursor, n);
            to.extend_from_slice(piece);
            n -= piece.len();
        }
    }

    /// Fills `to` with the next bytes.
    pub(super) fn read_into(&self, mut cursor: Cursor, mut to: &mut [u8]) {
        while !to.is_empty() {
            let piece = self.piece(&mut cursor, to.len());
            let (front, back) = to.split_at_mut(piece.len());
            front.copy_from_slice(piece);
            to = back;
        }
    }

    /// Whether the next bytes are these; moves the cursor, behind them if so.
    pub(super) fn is_next(&self, cursor: &mut Cursor, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let piece = self.piece(cursor, bytes.len());
            let Some(remaining) = bytes.strip_prefix(piece) else { return false };
            bytes = remaining;
        }
        true
    }

    /// Copies `n` bytes from one item to another and moves both cursors.
    pub(super) fn copy(&mut self, from: &mut Cursor, to: &mut Cursor, mut n: usize) {
        let mut buffer = [0; BLOCK];
        while n > 0 {
            let piece = self.piece(from, n);
            let len = piece.len();
            buffer[..len].copy_from_slice(piece);
            self.write(to, &buffer[..len]);
            n -= len;
        }
    }

    /// The next `n` bytes, one at a time.
    pub(super) fn bytes(&self, mut cursor: Cursor, n: usize) -> impl Iterator<Item = u8> + '_ {
        (0..n).map(move |_| self.piece(&mut cursor, 1)[0])
    }

    pub(super) fn u32(&self, block: u32, at: usize) -> u32 {
        u32::from_le_bytes(self.field(block, at))
    }

    pub(super) fn set_u32(&mut self, block: u32, at: usize, value: u32) {
        self.set_field(block, at, value.to_le_bytes());
    }

    #[inline]
    pub(super) fn field<const N: usize>(&self, block: u32, at: usize) -> [u8; N] {
        let bytes = &self.blocks[block as usize].0;
        bytes[at..at + N].try_into().expect("as long as it was cut")
    }

    #[inline]
    pub(super) fn set_field<const N: usize>(&mut self, block: u32, at: usize, value: [u8; N]) {
        self.blocks[block as usize].0[at..at + N].copy_from_slice(&value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn an_item_has_room_for_its_bytes_and_less_than_a_block_more() {
        for n in [0, 1, 79, 80, 81, 203, 204, 205, 100_000] {
            let room = (BLOCK - HEADER) + (Blocks::count_for(n) - 1) * (BLOCK - LINK);
            assert!(room >= n, "{n}");
            assert!(Blocks::count_for(n) == 1 || room - n < BLOCK - LINK, "{n}");
        }
    }

    #[test]
    fn bytes_come_back_as_they_were_written_in_pieces_of_any_size() {
        let mut blocks = Blocks::new(100).unwrap();
        let bytes = pattern(5_000);
        for step in [1, 7, 80, 124, 500, 5_000] {
            let n = Blocks::count_for(bytes.len());
            let (first, last) = blocks.take(n);
            let mut cursor = Blocks::cursor(first);
            bytes.chunks(step).for_each(|piece| blocks.write(&mut cursor, piece));
            let (mut cursor, mut read) = (Blocks::cursor(first), Vec::new());
            while read.len() < bytes.len() {
                blocks.read(&mut cursor, step.min(bytes.len() - read.len()), &mut read);
            }
            assert_eq!(read, bytes, "{step}");
            assert!(blocks.bytes(Blocks::cursor(first), bytes.len()).eq(bytes.iter().copied()));
            let mut cursor = Blocks::cursor(first);
            blocks.advance(&mut cursor, step);
            assert!(blocks.is_next(&mut cursor, &bytes[step..]));
            blocks.give(first, last, n);
        }
        assert_eq!((blocks.used(), blocks.available()), (0, 100));
    }

    #[test]
    fn every_block_can_be_used_again() {
        let mut blocks = Blocks::new(10).unwrap();
        for _ in 0..3 {
            let all: Vec<_> = [4, 5, 1].map(|n| (blocks.take(n), n)).into();
            assert_eq!(blocks.available(), 0);
            for ((first, last), n) in all {
                blocks.give(first, last, n);
            }
        }
        assert_eq!(blocks.blocks.len(), 11);
    }

    #[test]
    fn items_are_copied_across_their_blocks() {
        let mut blocks = Blocks::new(100).unwrap();
        let bytes = pattern(1_000);
        let ((from, _), (to, _)) = (blocks.take(20), blocks.take(20));
        blocks.write(&mut Blocks::cursor(from), &bytes);
        let mut target = Blocks::cursor(to);
        blocks.write(&mut target, b"before");
        blocks.copy(&mut Blocks::cursor(from), &mut target, bytes.len());
        assert!(blocks.is_next(&mut Blocks::cursor(to), &[b"before", &bytes[..]].concat()));
        assert!(!blocks.is_next(&mut Blocks::cursor(to), &[b"before", &bytes[1..]].concat()));
    }
}
