//! Open files.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use crate::cached::CachedParts;
use crate::version::Opened;
use crate::{Fd, Metadata, Socket};

/// An open file or directory. Clones share it, and dropping the last one closes it.
#[derive(Clone)]
pub struct File(Rc<Handle>);

struct Handle {
    fd: Fd,
    cached: Cell<CachedParts>,
    /// Whether the kernel reads ahead; it does so in files that were just opened.
    has_read_ahead: Cell<bool>,
    /// The metadata when the file was opened; `None` if it is not looked at.
    opened: Cell<Option<Opened>>,
    _owner: FdOwner,
}

impl Handle {
    fn new(fd: Fd, owner: FdOwner) -> Rc<Self> {
        Rc::new(Handle {
            fd,
            cached: Cell::default(),
            has_read_ahead: Cell::new(true),
            opened: Cell::default(),
            _owner: owner,
        })
    }
}

/// Closes the descriptor when dropped.
#[expect(dead_code, reason = "held to be dropped")]
enum FdOwner {
    Linux(OwnedFd),
    Other(Box<dyn Any>),
}

impl File {
    /// Sends of a file know for a second whether a block of this size is in the page cache. Parts that end with a
    /// block need fewer system calls.
    pub const BLOCK_BYTES: u64 = 256 * 1024;

    /// Maximum number of bytes of a file that one operation sends: so many blocks.
    pub const MAX_PIECE_BYTES: u64 = 4 * File::BLOCK_BYTES;

    /// Returns the open file of another machine. `owner` closes the descriptor when dropped.
    pub fn of(opened: Socket, owner: impl Any) -> Self {
        File(Handle::new(opened.number(), FdOwner::Other(Box::new(owner))))
    }

    /// Attaches a value to the file. It is dropped after the file, with the last clone of the
    /// returned value.
    #[must_use]
    pub fn with(self, value: impl Any) -> Self {
        let (fd, opened) = (self.fd(), self.opened());
        let has_read_ahead = self.0.has_read_ahead.get();
        let handle = Handle::new(fd, FdOwner::Other(Box::new((self, value))));
        handle.opened.set(opened);
        handle.has_read_ahead.set(has_read_ahead);
        File(handle)
    }

    /// Returns whether another clone exists.
    pub fn is_shared(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    /// Notes the metadata with which the file was opened for reading. From now on it is looked at for changes.
    pub fn note_metadata(&self, meta: &Metadata) {
        self.0.opened.set(Some(meta.into()));
    }

    /// Returns the length of the file when it was opened, if it is looked at for changes.
    pub fn opened_len(&self) -> Option<u64> {
        self.opened().map(|opened| opened.len)
    }

    /// Returns the metadata when the file was opened, if it is looked at for changes.
    pub(crate) fn opened(&self) -> Option<Opened> {
        self.0.opened.get()
    }

    /// Returns the descriptor's number, which is open as long as the value lives.
    pub(crate) fn fd(&self) -> Fd {
        self.0.fd
    }

    /// Notes whether the kernel reads ahead. Returns whether that changes.
    pub(crate) fn note_read_ahead(&self, on: bool) -> bool {
        self.0.has_read_ahead.replace(on) != on
    }

    /// Returns the parts that were found in the page cache, for all clones.
    pub(crate) fn cached(&self) -> &Cell<CachedParts> {
        &self.0.cached
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> Self {
        let number = Fd::from_raw(fd.as_raw_fd());
        File(Handle::new(number, FdOwner::Linux(fd)))
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd.raw()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({:?})", self.0.fd)
    }
}
