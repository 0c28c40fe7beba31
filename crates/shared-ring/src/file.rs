//! Open files and their metadata.

use std::any::Any;
use std::cell::Cell;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use crate::cached::CachedParts;
use crate::version::Version;
use crate::{Blocking, Fd, Host, Socket};

/// An open file or directory. Clones share it, and dropping the last one closes it.
#[derive(Clone)]
pub struct File(Rc<Handle>);

struct Handle {
    fd: Fd,
    cached: Cell<CachedParts>,
    /// Whether the kernel reads ahead; it does so in files that were just opened.
    has_read_ahead: Cell<bool>,
    /// The contents since the file was opened; `None` if they are not looked at.
    version: Cell<Option<Version>>,
    _owner: FdOwner,
}

impl Handle {
    fn new(fd: Fd, owner: FdOwner) -> Rc<Self> {
        Rc::new(Handle {
            fd,
            cached: Cell::default(),
            has_read_ahead: Cell::new(true),
            version: Cell::default(),
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

    /// Returns the open file of another machine. `owner` closes the descriptor when dropped.
    pub fn of(opened: Socket, owner: impl Any) -> Self {
        File(Handle::new(opened.number(), FdOwner::Other(Box::new(owner))))
    }

    /// Attaches a value to the file. It is dropped after the file, with the last clone of the
    /// returned value.
    #[must_use]
    pub fn with(self, value: impl Any) -> Self {
        let (fd, version) = (self.fd(), self.0.version.get());
        let has_read_ahead = self.0.has_read_ahead.get();
        let handle = Handle::new(fd, FdOwner::Other(Box::new((self, value))));
        handle.version.set(version);
        handle.has_read_ahead.set(has_read_ahead);
        File(handle)
    }

    /// Returns whether another clone exists.
    pub fn is_shared(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    /// Notes the metadata with which the file was opened for reading.
    pub fn note_metadata(&self, meta: &Metadata) {
        self.0.version.set(Some(Version::new(meta)));
    }

    /// Returns the length of the file when it was opened, if it is looked for changes.
    pub fn opened_len(&self) -> Option<u64> {
        self.0.version.get().map(|version| version.opened_len)
    }

    /// Notes some bytes of the file, unless some are known: the last 64 before an offset, which are sent next, if the page
    /// cache has them, or which were just sent.
    pub fn note_bytes(&self, host: &impl Host, end: u64, disk: Blocking) {
        let has_sample = self.0.version.get().is_none_or(|version| version.has_sample());
        if !has_sample && let Some((sample, len)) = self.read_sample(host, end, disk) {
            self.note_read(end, &sample[..len]);
        }
    }

    /// Notes that these bytes before an offset were read from the file, to be sent.
    pub fn note_read(&self, end: u64, bytes: &[u8]) {
        if let Some(mut version) = self.0.version.get().filter(|version| version.lacks_sample(end))
        {
            version.set_sample(end, bytes);
            self.0.version.set(Some(version));
        }
    }

    /// Returns whether the contents have changed since [`note_metadata`](File::note_metadata), as the bytes before `sent_to`
    /// were sent: the file is shorter, or of the same length and was written to later, or is longer and has not the bytes that
    /// were noted last. A longer file with these is one to which bytes were added. The time of the last change of metadata
    /// does not count: it changes when another file takes the name of this one. If the metadata cannot be read, the file
    /// counts as changed.
    pub fn has_changed(&self, host: &impl Host, sent_to: u64) -> bool {
        let Some(mut version) = self.0.version.get() else { return false };
        // Read before the metadata, which then show whether these are still the bytes that were sent.
        let sample = self.read_sample(host, sent_to, Blocking::NoBlock);
        let has_changed = version.has_changed(host.file_metadata(self), |at, into| {
            host.read_file(self, at, into, Blocking::MayBlock).is_ok_and(|n| n == into.len())
        });
        if let (Some((sample, len)), false) = (sample, has_changed) {
            version.set_sample(sent_to, &sample[..len]);
        }
        self.0.version.set(Some(version));
        has_changed
    }

    /// Reads the last bytes before an offset, if none near it are known.
    fn read_sample(
        &self,
        host: &impl Host,
        end: u64,
        disk: Blocking,
    ) -> Option<([u8; Version::SAMPLE_BYTES], usize)> {
        self.0.version.get().filter(|version| version.lacks_sample(end))?;
        let mut sample = [0; Version::SAMPLE_BYTES];
        let len = end.min(sample.len() as u64) as usize;
        let read = host.read_file(self, end - len as u64, &mut sample[..len], disk);
        read.is_ok_and(|n| n == len).then_some((sample, len))
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

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// Another type: a device, a pipe, a socket.
    Other,
}

/// Metadata of a file. Unequal values mean that the file has changed. Equal values mean that it
/// has not, up to the resolution of its times of a few milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Type of the file.
    pub kind: FileKind,
    /// Length in bytes.
    pub len: u64,
    /// Last change of the contents, in nanoseconds since 1970 (mtime). Programs can set it.
    pub modified_ns: i64,
    /// Last change of the contents or metadata, in nanoseconds since 1970 (ctime). Its clock ticks
    /// every few milliseconds. Programs cannot set it: inode(7).
    pub changed_ns: i64,
    /// Inode number on the file's device.
    pub inode: u64,
}

/// Entries of a directory, in no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Each name except `.` and `..`, with the metadata of its target.
    pub entries: Vec<(OsString, Metadata)>,
    /// All entries are included. Entries beyond [`Listing::MAX_ENTRIES`] are omitted.
    pub is_complete: bool,
}

impl Listing {
    /// Maximum number of entries in a listing.
    pub const MAX_ENTRIES: usize = 4096;

    /// Maximum memory of a listing, in bytes. Names have up to 255 bytes; while the vector grows,
    /// its old allocation exists too.
    pub const MAX_BYTES: usize =
        Self::MAX_ENTRIES * (2 * size_of::<(OsString, Metadata)>() + 255 + 17);
}

impl Metadata {
    pub(crate) fn from_parts(
        mode: u32,
        len: u64,
        inode: u64,
        modified: (i64, u32),
        changed: (i64, u32),
    ) -> Self {
        let kind = match mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::Regular,
            libc::S_IFDIR => FileKind::Directory,
            _ => FileKind::Other,
        };
        let ns = |(seconds, ns): (i64, u32)| {
            seconds.saturating_mul(1_000_000_000).saturating_add(ns.into())
        };
        Metadata { kind, len, modified_ns: ns(modified), changed_ns: ns(changed), inode }
    }

    /// Returns the last change of the contents (mtime), between the years 1677 and 2262.
    pub fn modified(&self) -> SystemTime {
        time(self.modified_ns)
    }

    /// Returns the last change of contents or metadata (ctime), between the years 1677 and 2262.
    pub fn changed(&self) -> SystemTime {
        time(self.changed_ns)
    }
}

/// Converts nanoseconds since 1970, which may be negative.
fn time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    match ns {
        ..0 => SystemTime::UNIX_EPOCH - distance,
        0.. => SystemTime::UNIX_EPOCH + distance,
    }
}
