//! A table indexed by small numbers.

use std::ops::{Index, IndexMut};

/// Values by number: those of numbers never asked for are the default. It grows by an eighth at a
/// time, so that what is kept for each connection stays little.
#[derive(Debug)]
pub struct Table<T>(Vec<T>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<T: Default> Table<T> {
    /// The value at `index`, made if it was not there.
    #[inline]
    pub fn at(&mut self, index: usize) -> &mut T {
        if index >= self.0.len() {
            self.grow(index + 1);
        }
        &mut self.0[index]
    }

    /// Makes the values of the first `len` numbers.
    pub fn fill(&mut self, len: usize) {
        if len > self.0.len() {
            self.grow(len);
        }
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        if len > self.0.capacity() {
            let room = len + (len / 8).max(16);
            self.0.reserve_exact(room - self.0.len());
        }
        self.0.resize_with(len, T::default);
    }
}

impl<T> Table<T> {
    /// One more than the highest number asked for.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no number was asked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value at `index`, if it was asked for before.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index)
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index)
    }

    /// All values, by number.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// The same, to be changed.
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
    fn grows_by_little() {
        let mut table = Table::default();
        for index in 0..10_000 {
            *table.at(index) = index;
        }
        assert!(table.iter().copied().eq(0..10_000));
        assert!(table.0.capacity() < 10_000 * 9 / 8 + 32);
        assert_eq!(table.get(10_000), None);
    }

    #[test]
    fn uses_up_its_room_before_it_takes_more() {
        let mut table = Table::<u8>::default();
        table.fill(10);
        let room = table.0.capacity();
        table.fill(room);
        assert_eq!((table.len(), table.0.capacity()), (room, room));
    }
}
