use super::vector::{BLOCK_BYTES, Registers, Slots, Stage, VECTOR_BYTES, Vector};

const WORD_BYTES: usize = size_of::<u64>();

/// The loop: blocks of four vectors, then vectors, words, and the last bytes. Everything passes
/// through the stages `before`, `change` and `after`, in registers, and is stored if `WRITE`.
///
/// Each part is loaded before it is stored, so source and destination may be the same.
///
/// # Safety
///
/// `len` bytes can be read at `source` and, if `WRITE`, written at `destination`, which is `source` or
/// does not overlap it; there are as many of the keystream if a stage takes it, and the registers that the
/// slots name. `len` is at most [`PIECE_BYTES`](super::vector::PIECE_BYTES). The processor has what the tier needs.
#[inline(always)]
pub(crate) unsafe fn fused<V, A, M, B, const WRITE: bool>(
    slots: &Slots,
    registers: Registers,
    mut source: *const u8,
    mut destination: *mut u8,
    len: usize,
    keystream: *const u8,
) where
    V: Vector,
    A: Stage<V>,
    M: Stage<V>,
    B: Stage<V>,
{
    // SAFETY: the stages take as much of the keystream as they see of the message. Each load and
    // store is of bytes below `len`, as blocks, vectors, words and `bytes` add up to it, and the
    // pointers move by what was loaded.
    unsafe {
        let mut before = A::begin(slots, registers, keystream);
        let mut change = M::begin(slots, registers, keystream);
        let mut after = B::begin(slots, registers, keystream);
        let blocks = len / BLOCK_BYTES;
        for _ in 0..blocks {
            let mut block = [
                V::load(source),
                V::load(source.add(VECTOR_BYTES)),
                V::load(source.add(2 * VECTOR_BYTES)),
                V::load(source.add(3 * VECTOR_BYTES)),
            ];
            before.block(&mut block);
            change.block(&mut block);
            after.block(&mut block);
            source = source.add(BLOCK_BYTES);
            if WRITE {
                block[0].store(destination);
                block[1].store(destination.add(VECTOR_BYTES));
                block[2].store(destination.add(2 * VECTOR_BYTES));
                block[3].store(destination.add(3 * VECTOR_BYTES));
                destination = destination.add(BLOCK_BYTES);
            }
        }
        if blocks > 0 {
            before.end_blocks();
            after.end_blocks();
        }
        let rest = len % BLOCK_BYTES;
        // One look for all that a message of whole blocks does not have.
        if rest > 0 {
            for _ in 0..rest / VECTOR_BYTES {
                let vector = before.vector(V::load(source), 0);
                let vector = after.vector(change.vector(vector, 0), 0);
                source = source.add(VECTOR_BYTES);
                if WRITE {
                    vector.store(destination);
                    destination = destination.add(VECTOR_BYTES);
                }
            }
            for _ in 0..rest % VECTOR_BYTES / WORD_BYTES {
                let word = before.word(u64::from_le(source.cast::<u64>().read_unaligned()));
                let word = after.word(change.word(word));
                source = source.add(WORD_BYTES);
                if WRITE {
                    destination.cast::<u64>().write_unaligned(word.to_le());
                    destination = destination.add(WORD_BYTES);
                }
            }
            let bytes = rest % WORD_BYTES;
            if bytes > 0 {
                let word = before.tail(slots, load_tail(source, bytes), bytes);
                let word = change.tail(slots, word, bytes);
                let word = after.tail(slots, word, bytes);
                if WRITE {
                    store_tail(word, destination, bytes);
                }
            }
        }
        before.end(slots, registers, len);
        after.end(slots, registers, len);
    }
}

/// A mask of the lowest 1 to 7 bytes of a word.
#[inline(always)]
pub(crate) fn tail_mask(bytes: usize) -> u64 {
    (1 << (bytes * 8)) - 1
}

/// Loads 1 to 7 bytes into the low bytes of a word.
///
/// # Safety
///
/// They can be read.
#[inline(always)]
unsafe fn load_tail(source: *const u8, bytes: usize) -> u64 {
    let mut word = 0;
    let mut at = 0;
    // SAFETY: the parts have 4, 2 and 1 bytes, and add up to `bytes`.
    unsafe {
        if bytes & 4 != 0 {
            word = u64::from(u32::from_le(source.cast::<u32>().read_unaligned()));
            at = 4;
        }
        if bytes & 2 != 0 {
            let part = u16::from_le(source.add(at).cast::<u16>().read_unaligned());
            word |= u64::from(part) << (at * 8);
            at += 2;
        }
        if bytes & 1 != 0 {
            word |= u64::from(source.add(at).read()) << (at * 8);
        }
    }
    word
}

/// Stores the lowest 1 to 7 bytes of a word.
///
/// # Safety
///
/// They can be written.
#[inline(always)]
unsafe fn store_tail(mut word: u64, mut destination: *mut u8, bytes: usize) {
    // SAFETY: the parts have 4, 2 and 1 bytes, and add up to `bytes`.
    unsafe {
        if bytes & 4 != 0 {
            destination.cast::<u32>().write_unaligned((word as u32).to_le());
            destination = destination.add(4);
            word >>= 32;
        }
        if bytes & 2 != 0 {
            destination.cast::<u16>().write_unaligned((word as u16).to_le());
            destination = destination.add(2);
            word >>= 16;
        }
        if bytes & 1 != 0 {
            destination.write(word as u8);
        }
    }
}
