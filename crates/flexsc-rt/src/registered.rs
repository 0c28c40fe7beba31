//! Files that are registered with the ring of some pages: a call on one takes no reference to its file.
//!
//! The ring keeps a file of its table open. So a [`Descriptor`](crate::Descriptor) is registered, not a number: its calls
//! keep it alive, and when it is dropped its place is released. The descriptor may be dropped in any thread, so the owner
//! of the pages is woken if it sleeps, and empties the place.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::shared::Shared;

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
    /// The pages, whose owner empties the places.
    shared: Weak<Shared>,
}

impl Released {
    fn add(&self, place: u32) {
        self.places[place as usize / 64].fetch_or(1 << (place % 64), Ordering::Release);
        self.any.store(true, Ordering::Release);
        if let Some(shared) = self.shared.upgrade() {
            shared.bell.ring();
        }
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
    /// Places that were released, and which the kernel refused to empty.
    refused: Vec<u32>,
    released: Arc<Released>,
}

impl FileTable {
    /// Creates a table with so many free places, of the ring of some pages.
    pub(crate) fn new(places: u32, shared: &Arc<Shared>) -> Self {
        let next = |tables: u32| tables.checked_add(1);
        let former = TABLES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        // Without a number of its own, it has no places.
        let (number, places) = former.map_or((0, 0), |former| (former + 1, places));
        let words = (0..places.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let (any, shared) = (AtomicBool::new(false), Arc::downgrade(shared));
        let released = Arc::new(Released { any, places: words, shared });
        FileTable { number, free: (0..places).rev().collect(), refused: Vec::new(), released }
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

    /// Returns whether places were released since they were emptied last.
    #[inline]
    pub(crate) fn has_released(&self) -> bool {
        self.released.any.load(Ordering::Relaxed)
    }

    /// Returns whether there are places to empty, those included that the kernel has refused to empty.
    #[inline]
    pub(crate) fn has_places_to_empty(&self) -> bool {
        self.has_released() || !self.refused.is_empty()
    }

    /// Empties the places that were released, and those that were refused before.
    pub(crate) fn empty_released(&mut self, mut empty: impl FnMut(u32) -> bool) {
        let (free, refused) = (&mut self.free, &mut self.refused);
        let mut is_emptied = |place| {
            let emptied = empty(place);
            free.extend(emptied.then_some(place));
            emptied
        };
        refused.retain(|place| !is_emptied(*place));
        // A place that is added later sets it again.
        self.released.any.swap(false, Ordering::Acquire);
        for (word, places) in self.released.places.iter().enumerate() {
            if places.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = places.swap(0, Ordering::Acquire);
            while bits != 0 {
                let place = word as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if !is_emptied(place) {
                    refused.push(place);
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
        let shared = Arc::new(Shared::new(1).unwrap());
        let mut table = FileTable::new(65, &shared);
        let places: Vec<_> = std::iter::from_fn(|| table.take()).collect();
        assert_eq!(places, (0..65).collect::<Vec<_>>());
        let other = FileTable::new(65, &shared);
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
        // The other one was refused. The owner sleeps nevertheless, and tries it again later.
        assert!(!table.has_released() && table.has_places_to_empty());
        table.empty_released(|place| place == 0);
        assert_eq!((table.take(), table.has_places_to_empty()), (Some(0), false));
    }
}
