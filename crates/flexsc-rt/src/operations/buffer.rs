//! Bytes that a call reads.

use std::sync::Arc;

/// Bytes whose address does not change when their owner moves.
///
/// # Safety
/// `bytes` returns the same address and length until the value is dropped.
pub unsafe trait Bytes: 'static {
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];
}

// SAFETY: the bytes are on the heap, and a vector that is not changed does not move them.
unsafe impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: the bytes are on the heap.
unsafe impl Bytes for Box<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: the bytes are on the heap.
unsafe impl Bytes for Arc<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: static bytes do not move.
unsafe impl Bytes for &'static [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}
