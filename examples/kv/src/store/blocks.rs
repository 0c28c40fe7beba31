//! Memory of a store: blocks of one size; each item is a chain of blocks.
//!
//! One size avoids fragmentation: any free block fits any item, so the counted memory is what the process
//! holds. The cost is on average half a block per item, and four bytes per block.

use std::collections::TryReserveError;

/// Size of a block in bytes: two cache lines.
pub(super) const BLOCK: usize = 128;

/// Index that stands for no block.
pub(super) const NONE: u32 = 0;

/// Size of the link to the next block, at the beginning of each block.
const LINK: usize = 4;

/// Size of an item's header, at the beginning of its first block, including the link.
pub(super) const HEADER: usize = 48;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Block([u8; BLOCK]);

/// Read or write position in an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    block: u32,
    offset: u32,
}

/// All blocks. Their memory becomes resident on first use.
pub(super) struct Blocks {
    /// Blocks that were ever used. The first never is, as its index is [`NONE`].
    blocks: Vec<Block>,
    /// Maximum number of blocks, without the first.
    capacity: usize,
    /// Chain of free blocks.
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

    /// Returns the number of blocks that belong to items.
    pub(super) fn used(&self) -> usize {
        self.blocks.len() - 1 - self.free_count
    }

    /// Returns the number of available blocks.
    pub(super) fn available(&self) -> usize {
        self.capacity - self.used()
    }

    /// Returns the number of blocks for an item of `len` bytes.
    pub(super) fn count_for(len: usize) -> usize {
        1 + len.saturating_sub(BLOCK - HEADER).div_ceil(BLOCK - LINK)
    }

    /// Takes a chain of `n` blocks, at least one. Returns its first and last.
    ///
    /// # Panics
    /// Panics if fewer are [available](Blocks::available).
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

    /// Frees a chain of `n` blocks.
    pub(super) fn give(&mut self, first: u32, last: u32, n: usize) {
        self.set_u32(last, 0, self.free);
        self.free = first;
        self.free_count += n;
    }

    /// Returns the position after an item's header.
    pub(super) fn cursor(first: u32) -> Cursor {
        Cursor { block: first, offset: HEADER as u32 }
    }

    /// Advances a cursor by `n` bytes.
    pub(super) fn advance(&self, cursor: &mut Cursor, mut n: usize) {
        while n > 0 {
            let step = self.contiguous(cursor).min(n);
            cursor.offset += step as u32;
            n -= step;
        }
    }

    /// Returns the number of bytes left in the cursor's block. At its end, moves to the next block.
    fn contiguous(&self, cursor: &mut Cursor) -> usize {
        if cursor.offset as usize == BLOCK {
            *cursor = Cursor { block: self.u32(cursor.block, 0), offset: LINK as u32 };
        }
        BLOCK - cursor.offset as usize
    }

    /// Writes at the cursor and advances it.
    pub(super) fn write(&mut self, cursor: &mut Cursor, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = self.contiguous(cursor).min(bytes.len());
            let at = cursor.offset as usize;
            self.blocks[cursor.block as usize].0[at..at + n].copy_from_slice(&bytes[..n]);
            cursor.offset += n as u32;
            bytes = &bytes[n..];
        }
    }

    /// Returns the next contiguous bytes, from one to `max`, and advances the cursor.
    fn piece(&self, cursor: &mut Cursor, max: usize) -> &[u8] {
        let n = self.contiguous(cursor).min(max);
        let at = cursor.offset as usize;
        cursor.offset += n as u32;
        &self.blocks[cursor.block as usize].0[at..at + n]
    }

    /// Appends the next `n` bytes to `to` and advances the cursor.
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

    /// Compares the next bytes. Advances the cursor, behind them if they are equal.
    pub(super) fn is_next(&self, cursor: &mut Cursor, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let piece = self.piece(cursor, bytes.len());
            let Some(remaining) = bytes.strip_prefix(piece) else { return false };
            bytes = remaining;
        }
        true
    }

    /// Copies `n` bytes from one item to another and advances both cursors.
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

    /// Iterates over the next `n` bytes.
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
        bytes[at..at + N].try_into().expect("the slice has N bytes")
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
    fn item_wastes_less_than_one_block() {
        for n in [0, 1, 79, 80, 81, 203, 204, 205, 100_000] {
            let room = (BLOCK - HEADER) + (Blocks::count_for(n) - 1) * (BLOCK - LINK);
            assert!(room >= n, "{n}");
            assert!(Blocks::count_for(n) == 1 || room - n < BLOCK - LINK, "{n}");
        }
    }

    #[test]
    fn bytes_written_in_pieces_are_read_unchanged() {
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
    fn every_block_can_be_reused() {
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
