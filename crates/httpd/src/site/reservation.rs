//! Places of the files that are being compressed.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

/// The places that are taken, by the keys of their files in the cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places(Rc<RefCell<HashSet<Arc<[u8]>>>>);

impl Places {
    /// Takes a place for a file. Returns `None` if `max` are taken, or one for this file.
    pub(crate) fn reserve(&self, key: &[u8], max: usize) -> Option<Reservation> {
        let mut taken = self.0.borrow_mut();
        if taken.len() == max || taken.contains(key) {
            return None;
        }
        let key: Arc<[u8]> = key.into();
        taken.insert(Arc::clone(&key));
        Some(Reservation { places: self.clone(), key: Some(key) })
    }

    /// Gives up a place.
    pub(crate) fn release(&self, key: &[u8]) {
        self.0.borrow_mut().remove(key);
    }
}

/// A place, given up on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    places: Places,
    key: Option<Arc<[u8]>>,
}

impl Reservation {
    /// Returns the key of the file.
    pub(crate) fn key(&self) -> Option<Arc<[u8]>> {
        self.key.clone()
    }

    /// Keeps the place until [`Places::release`].
    pub(crate) fn keep(mut self) {
        self.key = None;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.places.release(&key);
        }
    }
}
