//! The table of files that are registered with the ring.

use std::os::fd::AsFd;

use super::Pages;
use crate::descriptor::Descriptor;
use crate::registered::FileTable;

impl Pages {
    /// Registers a file or socket with the ring: the kernel takes no reference to it for each call that the ring makes.
    /// That saves 37 of the 130 ns of a call without work (BENCHMARKS.md). It is for descriptors of very many calls.
    /// Returns whether it is registered; if not, as the table is full ([`Config::registered_files`](crate::Config)),
    /// there is no ring, or the file is registered with other pages, its calls name the descriptor. Both are counted.
    ///
    /// The typed operations, and raw calls with [`Call::about`](crate::Call::about), use the registration where the ring
    /// makes them and the descriptor is their first argument. The costs of such calls are learnt apart.
    ///
    /// It lasts until the last clone of the descriptor is dropped, which calls in flight keep. The ring keeps the file
    /// open until the next [`submit`](Pages::submit) or [`wait`](Pages::wait) after that, or the present wait, which the
    /// drop in another thread interrupts: so the peer of a socket, or the other end of a pipe, sees its end then. Before
    /// Linux 6.13, the kernel closes it only when earlier calls of registered files have ended.
    pub fn register_file(&mut self, descriptor: &Descriptor) -> bool {
        let is_registered = self.process.is_current() && self.put_into_table(descriptor);
        match is_registered {
            true => self.counters.files_registered += 1,
            false => self.counters.files_not_registered += 1,
        }
        is_registered
    }

    fn put_into_table(&mut self, descriptor: &Descriptor) -> bool {
        if let Some(place) = descriptor.place() {
            return self.files.as_ref().is_some_and(|files| files.has(place));
        }
        let is_set_up = self.ring_can_make(libc::SYS_read as u32, &[0; 6]);
        if self.files.is_none() {
            let places = self.registered_files;
            let has_table = is_set_up && places > 0 && self.ring.create_file_table(places);
            self.files = Some(FileTable::new(if has_table { places } else { 0 }, &self.shared));
        }
        self.empty_released_places();
        let Some(files) = &mut self.files else { return false };
        let Some(place) = files.take() else { return false };
        if !self.ring.set_file(place, Some(descriptor.as_fd())) {
            files.give_back(place);
            return false;
        }
        // If another thread has registered a clone with other pages meanwhile, the place is released.
        descriptor.set_registration(files.registration(place))
    }

    /// Returns whether places wait to be emptied, as their descriptors are gone.
    pub(super) fn has_released_places(&self) -> bool {
        self.files.as_ref().is_some_and(FileTable::has_released)
    }

    /// Empties places whose descriptors are gone.
    #[inline]
    pub(super) fn empty_released_places(&mut self) {
        if self.files.as_ref().is_some_and(FileTable::has_places_to_empty) {
            self.empty_places();
        }
    }

    /// Empties those places, and the ones that the kernel has refused to empty.
    #[cold]
    fn empty_places(&mut self) {
        if let Some(files) = &mut self.files {
            let ring = &mut self.ring;
            files.empty_released(|place| ring.set_file(place, None));
        }
    }
}
