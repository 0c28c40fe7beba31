//! Files that are registered with the ring of some pages: a call on one takes no reference to its file.
//!
//! The ring keeps a file of its table open. So a [`Descriptor`](crate::Descriptor) is registered, not a number: its calls
//! keep it alive, and when it is dropped its place is released. The owner of the pages empties the place later, as the
//! descriptor may be dropped in any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The number of tables so far.
static TABLES: AtomicU32 = AtomicU32::new(0);

/// A place in the table of some pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilePlace {
    /// The number of the table, from 1.
    table: u32,
    place: u32,
}

impl FilePlace {
    /// No place of any table.
    pub(crate) const NONE: FilePlace = FilePlace { table: 0, place: NO_PLACE };
}

/// No place. An option would make the notes on an entry larger.
pub(crate) const NO_PLACE: u32 = u32::MAX;

/// The places of which no descriptor is left, and which contain a file.
#[derive(Debug)]
struct Released {
    any: AtomicBool,
    /// A bit for each place.
    places: Box<[AtomicU64]>,
}

impl Released {
    fn add(&self, place: u32) {
        self.places[place as usize / 64].fetch_or(1 << (place % 64), Ordering::Release);
        self.any.store(true, Ordering::Release);
    }
}

/// The registration of a descriptor, which lives as long as its last clone.
#[derive(Debug)]
pub(crate) struct Registration {
    at: FilePlace,
    released: Arc<Released>,
}

impl Registration {
    #[inline]
    pub(crate) fn place(&self) -> FilePlace {
        self.at
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.released.add(self.at.place);
    }
}

/// The free places of the table of the ring. The pages' owner has it.
#[derive(Debug)]
pub(crate) struct FileTable {
    number: u32,
    free: Vec<u32>,
    released: Arc<Released>,
}

impl FileTable {
    /// Creates a table with so many free places.
    pub(crate) fn new(places: u32) -> Self {
        let next = |tables: u32| tables.checked_add(1);
        let former = TABLES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        // Without a number of its own, none of its places is ever used.
        let (number, places) = former.map_or((u32::MAX, 0), |former| (former + 1, places));
        let words = (0..places.div_ceil(64)).map(|_| AtomicU64::new(0));
        let released = Released { any: AtomicBool::new(false), places: words.collect() };
        FileTable { number, free: (0..places).rev().collect(), released: Arc::new(released) }
    }

    /// Takes a free place.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Returns a place that contains no file.
    pub(crate) fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }

    /// Returns the registration of a descriptor whose file is in a place.
    pub(crate) fn registration(&self, place: u32) -> Registration {
        let at = FilePlace { table: self.number, place };
        Registration { at, released: Arc::clone(&self.released) }
    }

    /// Returns whether a place is of this table.
    #[inline]
    pub(crate) fn has(&self, at: FilePlace) -> bool {
        at.table == self.number
    }

    /// Returns the number of the place, or [`NO_PLACE`] if it is of another table.
    #[inline]
    pub(crate) fn place(&self, at: FilePlace) -> u32 {
        if self.has(at) { at.place } else { NO_PLACE }
    }

    /// Returns whether places were released.
    #[inline]
    pub(crate) fn has_released(&self) -> bool {
        self.released.any.load(Ordering::Relaxed)
    }

    /// Empties the places that were released. One that cannot be emptied is tried again.
    pub(crate) fn empty_released(&mut self, mut empty: impl FnMut(u32) -> bool) {
        // A place that is added later sets it again.
        self.released.any.swap(false, Ordering::Acquire);
        let released = Arc::clone(&self.released);
        for (word, places) in released.places.iter().enumerate() {
            let mut bits = places.swap(0, Ordering::Acquire);
            while bits != 0 {
                let place = word as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if empty(place) {
                    self.free.push(place);
                } else {
                    released.add(place);
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn place_is_free_again_when_it_was_emptied() {
        let mut table = FileTable::new(65);
        let places: Vec<_> = std::iter::from_fn(|| table.take()).collect();
        assert_eq!(places, (0..65).collect::<Vec<_>>());
        let other = FileTable::new(65);
        let registered = [0, 64].map(|place| table.registration(place));
        for one in &registered {
            assert_eq!(table.place(one.place()), one.place().place);
            assert_eq!(other.place(one.place()), NO_PLACE);
        }
        assert_eq!(table.place(FilePlace::NONE), NO_PLACE);
        assert!(!table.has_released());
        drop(registered);
        assert!(table.has_released());
        table.empty_released(|place| place == 64);
        assert_eq!((table.take(), table.take()), (Some(64), None));
        // The other one was refused.
        assert!(table.has_released());
        table.empty_released(|place| place == 0);
        assert_eq!((table.take(), table.has_released()), (Some(0), false));
    }
}
