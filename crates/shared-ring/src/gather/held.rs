//! Memory held by a list, with which a simulation checks its bound.

use super::{GatherList, Segment};

impl GatherList {
    /// Returns the memory of the list and its segments, in bytes. Shared bytes count with their
    /// visible length, constants with nothing.
    pub(crate) fn held(&self) -> usize {
        let segments = self.rest.capacity() * size_of::<Segment>();
        let owned: usize = self.first.iter().chain(&self.rest).map(Segment::held).sum();
        size_of::<Self>() + self.copied.capacity() + segments + owned
    }
}

impl Segment {
    fn held(&self) -> usize {
        match self {
            Segment::Copied(_) | Segment::Static(_) => 0,
            Segment::Shared(bytes) => bytes.0.len(),
            Segment::Received(bytes) => bytes.held(),
        }
    }
}
