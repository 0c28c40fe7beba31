//! The object of a call, for the choice of its executor: its kind, and the file system of a file.

use std::sync::atomic::{AtomicU64, Ordering};

/// The file systems of this process that were seen, in order: their device numbers plus one, then 0. One that is
/// unmounted keeps its place.
static SEEN: [AtomicU64; FileSystem::MAX] = [const { AtomicU64::new(0) }; FileSystem::MAX];

/// The kind of object that a call is about, for the choice of its executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// Not known, or none.
    #[default]
    Unknown,
    /// A file or directory on a disk, of any file system.
    Disk,
    /// A file or directory in memory (tmpfs, ramfs, ...).
    Memory,
    /// A socket.
    Socket,
    /// A pipe.
    Pipe,
    /// A device.
    Device,
    /// Another object with a descriptor (eventfd, epoll, ...).
    Other,
    /// A file or directory of a pseudo file system (proc, sys, ...), whose reads and writes may block
    /// without limit.
    Pseudo,
}

impl Kind {
    pub(crate) const COUNT: usize = 8;
}

/// A file system: calls on its files have costs of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileSystem(u8);

impl FileSystem {
    /// Maximum number of file systems with costs of their own; further ones share those of their [`Kind`].
    pub(crate) const MAX: usize = 15;

    /// Returns the file system of a device number: that of a file's metadata (stat(2), `st_dev`).
    pub(crate) fn of(device: u64) -> Self {
        FileSystem::find(&SEEN, device)
    }

    fn find(seen: &[AtomicU64], device: u64) -> Self {
        let own = device.wrapping_add(1);
        let is_own = |place: &AtomicU64| {
            // Another thread may take the place.
            let taken = place.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok() || taken == Err(own)
        };
        FileSystem(seen.iter().position(is_own).map_or(0, |at| at as u8 + 1))
    }

    /// Returns the number of file systems with costs of their own.
    pub(crate) fn count() -> usize {
        SEEN.iter().filter(|seen| seen.load(Ordering::Relaxed) != 0).count()
    }

    /// Returns the number, from which [`FileSystem::from_number`] makes it again; 0 of none.
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    #[inline]
    pub(crate) fn from_number(number: u8) -> Self {
        FileSystem(number)
    }
}

/// The object of calls whose costs are learnt together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object(u8);

impl Object {
    /// Those of files that are not registered with the ring; as many follow of those that are.
    const UNREGISTERED: usize = Kind::COUNT + FileSystem::MAX;

    pub(crate) const COUNT: usize = 2 * Object::UNREGISTERED;

    /// Returns the objects of such files that are registered with the ring.
    #[inline]
    pub(crate) fn registered(self) -> Self {
        Object(self.0 + Object::UNREGISTERED as u8)
    }

    /// Returns the objects of a file system, or of a kind if there is none.
    #[inline]
    pub(crate) fn new(kind: Kind, file_system: FileSystem) -> Self {
        match file_system.0 {
            0 => Object(kind as u8),
            number => Object(Kind::COUNT as u8 - 1 + number),
        }
    }

    /// Returns the number, below [`Object::COUNT`].
    #[inline]
    pub(crate) fn number(self) -> usize {
        self.0.into()
    }
}

impl From<Kind> for Object {
    #[inline]
    fn from(kind: Kind) -> Self {
        Object(kind as u8)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn file_systems_beyond_the_places_have_the_object_of_their_kind() {
        let seen: [AtomicU64; 3] = Default::default();
        let objects = [7, 0, 7, u64::MAX - 1, 9, 0].map(|device| {
            let file_system = FileSystem::find(&seen, device);
            assert_eq!(FileSystem::from_number(file_system.number()), file_system);
            Object::new(Kind::Disk, file_system).number()
        });
        let first = Kind::COUNT;
        let beyond = Kind::Disk as usize;
        assert_eq!(objects, [first, first + 1, first, first + 2, beyond, first + 1]);
        let last = FileSystem::from_number(FileSystem::MAX as u8);
        assert_eq!(Object::new(Kind::Disk, last).registered().number(), Object::COUNT - 1);
        assert_eq!(Object::default().registered().number(), Object::COUNT / 2);
    }
}
