//! Received bytes that an application has left unconsumed.

/// Received bytes that were left unconsumed: appended at the end, consumed at the beginning, in one piece.
///
/// The driver has one for each connection; a layer that transforms what is received needs another.
#[derive(Debug, Default)]
pub struct Tail {
    bytes: Vec<u8>,
    /// How many of them are consumed. They are moved out of the way once they outnumber the others, so
    /// that each byte is moved a bounded number of times, however little is consumed at a time.
    consumed: usize,
}

impl Tail {
    /// A tail that is consumed gives back the memory it does not need when it has more than this.
    pub(crate) const MAX_KEPT_BYTES: usize = 16 * 1024;

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.consumed
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of memory it holds.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The bytes, to be changed in place.
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

    /// Appends what `write` appends to the vector, in which it must leave what it finds.
    pub fn append_with<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let before = self.bytes.len();
        let result = write(&mut self.bytes);
        self.bytes.resize(self.bytes.len().max(before), 0);
        result
    }

    /// Consumes all but the last `remaining` bytes.
    ///
    /// # Panics
    /// When there are fewer.
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

    /// Consumes all and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.consumed = 0;
    }

    /// Whether its memory is worth keeping for another connection.
    pub(crate) fn is_reusable(&self) -> bool {
        (1..=Self::MAX_KEPT_BYTES).contains(&self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the obvious model, and with its memory in proportion to what it holds.
        #[test]
        fn is_a_queue_of_bytes(steps in prop::collection::vec((0..60_000usize, 0..=100usize), 1..40)) {
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
    fn consuming_a_little_at_a_time_does_not_move_the_rest_each_time() {
        let mut tail = Tail::default();
        tail.append(&[0; 100_000]);
        tail.keep_last(99_990);
        let address = tail.bytes_mut().as_ptr();
        tail.keep_last(99_980);
        assert_eq!(tail.bytes_mut().as_ptr(), address.wrapping_add(10));
    }
}
