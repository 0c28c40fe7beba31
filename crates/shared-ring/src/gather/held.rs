//! How much memory a list holds, for the simulated machine to see that it is bounded.

use super::{GatherList, Segment};

impl GatherList {
    /// The memory that this list holds, in bytes: its own, and that of its parts. Shared bytes count with
    /// what is seen of them, and constants with nothing.
    pub fn held(&self) -> usize {
        let parts = self.rest.capacity() * size_of::<Segment>();
        let owned: usize = self.first.iter().chain(&self.rest).map(Segment::held).sum();
        size_of::<Self>() + self.copied.capacity() + parts + owned
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
