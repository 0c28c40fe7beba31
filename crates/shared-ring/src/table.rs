//! A table indexed by small integers.

use std::ops::{Index, IndexMut};

/// Values by index, default values where none was set. It grows by an eighth at a time, to keep
/// the memory per connection small.
#[derive(Debug)]
pub struct Table<T>(Vec<T>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<T: Default> Table<T> {
    /// Returns the value at `index`; extends the table with default values if necessary.
    #[inline]
    pub fn at(&mut self, index: usize) -> &mut T {
        if index >= self.0.len() {
            self.grow(index + 1);
        }
        &mut self.0[index]
    }

    /// Extends the table to at least `len` values.
    pub fn fill(&mut self, len: usize) {
        if len > self.0.len() {
            self.grow(len);
        }
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        if len > self.0.capacity() {
            let capacity = len + (len / 8).max(16);
            self.0.reserve_exact(capacity - self.0.len());
        }
        self.0.resize_with(len, T::default);
    }
}

impl<T> Table<T> {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the table has no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value at `index`, if the table extends to it.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index)
    }

    /// Returns the value at `index` mutably, if the table extends to it.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index)
    }

    /// Iterates over all values in order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Iterates over all values in order, mutably.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.0.iter_mut()
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.0[index]
    }
}

impl<T> IndexMut<usize> for Table<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.0[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_grows_by_an_eighth() {
        let mut table = Table::default();
        for index in 0..10_000 {
            *table.at(index) = index;
        }
        assert!(table.iter().copied().eq(0..10_000));
        assert!(table.0.capacity() < 10_000 * 9 / 8 + 32);
        assert_eq!(table.get(10_000), None);
    }

    #[test]
    fn capacity_is_used_up_before_it_grows() {
        let mut table = Table::<u8>::default();
        table.fill(10);
        let capacity = table.0.capacity();
        table.fill(capacity);
        assert_eq!((table.len(), table.0.capacity()), (capacity, capacity));
    }
}
