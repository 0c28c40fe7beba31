//! How much memory a list holds, for the simulated machine to see that it is bounded.

use super::{Gather, Part};

impl Gather {
    /// The memory that this list holds, in bytes: its own, and that of its parts. Shared bytes count with
    /// what is seen of them, and constants with nothing.
    pub fn held(&self) -> usize {
        let parts = self.rest.capacity() * size_of::<Part>();
        let owned: usize = self.first.iter().chain(&self.rest).map(Part::held).sum();
        size_of::<Self>() + self.copied.capacity() + parts + owned
    }
}

impl Part {
    fn held(&self) -> usize {
        match self {
            Part::Copied(_) | Part::Static(_) => 0,
            Part::Shared(bytes) => bytes.0.len(),
            Part::Received(bytes) => bytes.held(),
        }
    }
}
