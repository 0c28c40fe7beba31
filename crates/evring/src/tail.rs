//! Unconsumed received bytes.

/// Unconsumed received bytes in one piece: appended at the end, consumed at the beginning.
///
/// The driver keeps one per connection; a layer that transforms received bytes needs another.
#[derive(Debug, Default)]
pub struct Tail {
    bytes: Vec<u8>,
    /// Number of consumed bytes. They are removed once they outnumber the others, so each byte is moved a
    /// bounded number of times, however little is consumed at a time.
    consumed: usize,
}

impl Tail {
    /// Capacity above which a tail releases unneeded memory when bytes are consumed.
    pub(crate) const MAX_KEPT_BYTES: usize = 16 * 1024;

    /// Returns the number of unconsumed bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.consumed
    }

    /// Returns whether there are no unconsumed bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the unconsumed bytes for modification in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.consumed..]
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) {
        if self.consumed > 0 && self.bytes.capacity() - self.bytes.len() < bytes.len() {
            self.compact();
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends the bytes that `write` appends to the vector; it must not remove others.
    pub fn append_with<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let before = self.bytes.len();
        let result = write(&mut self.bytes);
        self.bytes.resize(self.bytes.len().max(before), 0);
        result
    }

    /// Consumes all but the last `remaining` bytes.
    ///
    /// # Panics
    /// Panics if there are fewer.
    pub fn keep_last(&mut self, remaining: usize) {
        assert!(remaining <= self.len(), "{remaining} bytes kept of {}", self.len());
        self.consumed = self.bytes.len() - remaining;
        if self.consumed > remaining {
            self.compact();
            if self.bytes.capacity() > Self::MAX_KEPT_BYTES.max(4 * remaining) {
                self.bytes.shrink_to(2 * remaining);
            }
        }
    }

    fn compact(&mut self) {
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
    }

    /// Consumes all bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.consumed = 0;
    }

    /// Returns whether the memory should be kept for another connection.
    pub(crate) fn is_reusable(&self) -> bool {
        (1..=Self::MAX_KEPT_BYTES).contains(&self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Matches a plain vector, with memory in proportion to the length.
        #[test]
        fn matches_a_byte_queue(steps in prop::collection::vec((0..60_000usize, 0..=100usize), 1..40)) {
            let (mut tail, mut model) = (Tail::default(), Vec::new());
            for (i, (n, percent)) in steps.into_iter().enumerate() {
                let bytes = vec![i as u8; n];
                tail.append(&bytes);
                model.extend_from_slice(&bytes);
                let remaining = model.len() * percent / 100;
                tail.keep_last(remaining);
                model.drain(..model.len() - remaining);
                prop_assert_eq!(tail.bytes_mut(), &mut model[..]);
                prop_assert_eq!((tail.len(), tail.is_empty()), (model.len(), model.is_empty()));
            }
            let held = tail.len();
            tail.keep_last(held / 3);
            prop_assert!(tail.capacity() <= Tail::MAX_KEPT_BYTES.max(8 * tail.len()), "{}", tail.capacity());
        }
    }

    #[test]
    fn small_consumes_do_not_move_the_bytes_each_time() {
        let mut tail = Tail::default();
        tail.append(&[0; 100_000]);
        tail.keep_last(99_990);
        let address = tail.bytes_mut().as_ptr();
        tail.keep_last(99_980);
        assert_eq!(tail.bytes_mut().as_ptr(), address.wrapping_add(10));
    }
}
