//! Files as the runtime hands them out.

use std::any::Any;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use crate::Fd;

/// An open file or directory; clones share it, and the last one to go closes it.
#[derive(Clone)]
pub struct File(Rc<Handle>);

struct Handle {
    fd: Fd,
    _owner: Owner,
}

/// What closes the descriptor as it is dropped.
#[expect(dead_code, reason = "they are there to be dropped")]
enum Owner {
    Linux(OwnedFd),
    Other(Box<dyn Any>),
}

impl File {
    /// A file of another machine, which `owner` closes as it is dropped.
    #[cfg(feature = "sim")]
    pub(crate) fn owned_by(fd: Fd, owner: impl Any) -> Self {
        File(Rc::new(Handle { fd, _owner: Owner::Other(Box::new(owner)) }))
    }

    /// The same file, which holds something else as well: `what` is dropped behind it, when the last
    /// clone of what is returned goes.
    #[must_use]
    pub fn with(self, what: impl Any) -> Self {
        let fd = self.fd();
        File(Rc::new(Handle { fd, _owner: Owner::Other(Box::new((self, what))) }))
    }

    /// Whether another clone is in use.
    pub fn is_shared(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    /// The number of the descriptor, which is open as long as the value lives.
    pub(crate) fn fd(&self) -> Fd {
        self.0.fd
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> Self {
        let number = Fd::from_raw(fd.as_raw_fd());
        File(Rc::new(Handle { fd: number, _owner: Owner::Linux(fd) }))
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

/// What kind of thing a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// Anything else: a device, a pipe, a socket.
    Other,
}

/// What the kernel knows of a file. Unequal values mean a changed file; equal ones an unchanged one
/// as far as its times tell, which tick every few milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub kind: FileKind,
    /// Length in bytes.
    pub len: u64,
    /// Last change of the contents, in nanoseconds since 1970. Programs can set it.
    pub modified_ns: i64,
    /// Last change of the contents or of what else the kernel knows of the file, in nanoseconds since
    /// 1970, by a clock that ticks every few milliseconds. Nobody can set it: inode(7).
    pub changed_ns: i64,
    /// Number of the file on its device.
    pub inode: u64,
}

/// What is in a directory, in no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Each name but `.` and `..`, and what it leads to.
    pub entries: Vec<(OsString, Metadata)>,
    /// Whether that is all; the rest of a very large directory is left out.
    pub is_complete: bool,
}

impl Listing {
    /// The most entries of a directory that are listed.
    pub const MAX_ENTRIES: usize = 4096;

    /// The most memory of a list, in bytes: its names have up to 255 bytes, and while it grows its old half is
    /// there beside it.
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

    /// Last change of the contents, between the years 1677 and 2262.
    pub fn modified(&self) -> SystemTime {
        time(self.modified_ns)
    }

    /// Last change of anything, between the years 1677 and 2262.
    pub fn changed(&self) -> SystemTime {
        time(self.changed_ns)
    }
}

/// A time so many nanoseconds after 1970, or before.
fn time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    match ns {
        ..0 => SystemTime::UNIX_EPOCH - distance,
        0.. => SystemTime::UNIX_EPOCH + distance,
    }
}
