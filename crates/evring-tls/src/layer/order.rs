//! Properties of chunks and closes.

use bytes::Bytes;
use evring::{Chunk, Close};

/// The most abrupt close wins.
pub(super) fn abruptness(how: Option<Close>) -> u8 {
    match how {
        None => 0,
        Some(Close::Half) => 1,
        Some(Close::Linger) => 2,
        Some(Close::Flush) => 3,
        Some(Close::Reset) => 4,
    }
}

pub(super) fn bytes_of<'a>(chunk: &'a Chunk<'_>) -> &'a [u8] {
    match chunk {
        Chunk::Copy(bytes) => bytes,
        Chunk::Static(bytes) => bytes,
        Chunk::Shared(bytes) => bytes,
        Chunk::Received(bytes) => bytes,
        Chunk::File(..) => &[],
    }
}

pub(super) fn owned(chunk: Chunk<'_>) -> Chunk<'static> {
    match chunk {
        Chunk::Copy(bytes) => Chunk::Shared(Bytes::copy_from_slice(bytes)),
        Chunk::Static(bytes) => Chunk::Static(bytes),
        Chunk::Shared(bytes) => Chunk::Shared(bytes),
        Chunk::Received(bytes) => Chunk::Received(bytes),
        Chunk::File(file, range) => Chunk::File(file, range),
    }
}
