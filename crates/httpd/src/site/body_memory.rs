//! Memory held for the bodies of requests.

use std::cell::Cell;
use std::rc::Rc;

/// Memory held for one request body, included in the total of all bodies.
#[derive(Debug, Default)]
pub(crate) struct BodyMemory {
    total: Rc<Cell<usize>>,
    bytes: usize,
}

impl BodyMemory {
    /// Holds no bytes yet; `total` is the sum over all bodies.
    pub(crate) fn new(total: &Rc<Cell<usize>>) -> Self {
        BodyMemory { total: Rc::clone(total), bytes: 0 }
    }

    /// Sets the bytes held for this body. Returns the total of all bodies.
    pub(crate) fn set(&mut self, bytes: usize) -> usize {
        // A handler may report any number; more than 1 TiB is implausible.
        let bytes = bytes.min(1 << 40);
        self.total.set(self.total.get() - self.bytes + bytes);
        self.bytes = bytes;
        self.total.get()
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_memory_total_is_the_sum_of_current_bodies() {
        let total = Rc::default();
        let (mut one, mut other) = (BodyMemory::new(&total), BodyMemory::new(&total));
        assert_eq!([one.set(5), other.set(7), one.set(2), one.set(4)], [5, 12, 9, 11]);
        drop(one);
        assert_eq!(total.get(), 7);
        // A number reported by a handler is capped.
        let mut excessive = BodyMemory::new(&total);
        assert_eq!(excessive.set(usize::MAX), (1 << 40) + 7);
        assert_eq!(other.set(usize::MAX), 2 << 40);
        drop((excessive, other));
        assert_eq!(total.get(), 0);
    }
}
