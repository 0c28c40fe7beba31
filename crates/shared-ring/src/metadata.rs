//! Metadata of files, and directory listings.

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

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
    /// All entries are included. Entries beyond [`Listing::MAX_ENTRIES`] are omitted. At most twice as many are looked
    /// at, including those without metadata, such as links that lead nowhere; the others are omitted, too.
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
