//! File operations and their results.
//!
//! One type describes an operation for a server, which names roots by number, for a kernel, which owns
//! files, and for a thread, which has numbers of descriptors.

use std::ffi::CStr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::Errno;

use crate::beneath::may_leave_root;
use crate::{Fd, File, Listing, Metadata, RxBuf};

/// A file operation that names paths as `P` and files as `F`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileOp<P = PathAt, F = File> {
    /// Opens a file. The path cannot leave its root through `..`, nor through symbolic links unless the
    /// [`SymlinkPolicy`] permits it.
    Open(P, Access),
    /// Queries the metadata of a path (stat), restricted like `Open`.
    Stat(P),
    /// Lists a directory, up to [`Listing::MAX_ENTRIES`] entries.
    List(P),
    /// Reads a range of a file, fewer bytes only at its end.
    Read(F, Range<u64>),
    /// Writes to a file. (Boxed, as the frequent operations are smaller.)
    Write(Box<FileWrite<F>>),
}

/// A path and the directory `D` at which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathAt<D = File, P = Arc<CStr>> {
    /// The directory.
    pub root: D,
    /// A relative path.
    pub path: P,
    /// The policy for its links.
    pub symlinks: SymlinkPolicy,
}

/// The purpose for which a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    #[default]
    Read,
    /// Reading and writing.
    Write,
    /// Reading and writing. A file that does not exist is created, with the permissions 0666 less the
    /// process's umask.
    Create,
    /// As `Create`; the content of a file that exists is discarded.
    Replace,
}

/// Whether a file operation may block on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// It may block.
    MayBlock,
    /// It must not block; it fails with `EAGAIN` if it would.
    NoBlock,
}

/// The policy for symbolic links of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SymlinkPolicy {
    /// Only beneath the root. A path that leads out of it fails with `EXDEV`.
    #[default]
    Beneath,
    /// Anywhere. A path that is absolute or has a `..` fails with `EXDEV`; the targets of links may be so. Where openat2(2)
    /// exists, links of /proc are not followed.
    Anywhere,
}

/// A range of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileRange {
    /// A regular file.
    pub file: Fd,
    /// Offset of its first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl FileRange {
    /// Returns the offsets of its bytes.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len.into())
    }

    /// Where its last byte is.
    pub(crate) fn last(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.len).saturating_sub(1))
    }
}

/// Bytes to write to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileWrite<F = File> {
    /// A regular file that was opened for writing.
    pub file: F,
    /// The position of the write.
    pub at: WriteAt,
    /// The bytes. After a failure the file may contain the first of them.
    pub bytes: Bytes,
}

/// The position at which a write begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At the end of the file, or of the bytes in a pipe.
    End,
    /// At an offset, which may be beyond the end. One above `i64::MAX` fails with `EINVAL`.
    Offset(u64),
}

/// The result of a file operation, with an open file `O` and bytes `B`.
#[derive(Debug)]
pub enum FileOutcome<O = Box<(File, Metadata)>, B = RxBuf> {
    /// The file is open. (Boxed, as the frequent outcomes are smaller.)
    Opened(O),
    /// Metadata of the path.
    Stat(Metadata),
    /// Entries of the directory.
    Listed(Listing),
    /// Bytes that were read; empty at the end of the file.
    Read(B),
    /// All bytes were written.
    Written,
}

/// A file operation that names descriptors by number, for a thread that executes it. The caller keeps the
/// descriptors open until it is done.
pub type FileJob = FileOp<PathAt<Fd>, Fd>;

/// The result of a [`FileJob`].
pub type FileJobOutcome = FileOutcome<(OwnedFd, Metadata), Vec<u8>>;

impl<P, F> FileOp<P, F> {
    /// Creates an operation that writes all `bytes`.
    pub fn write(file: F, at: WriteAt, bytes: impl Into<Bytes>) -> Self {
        FileOp::Write(Box::new(FileWrite { file, at, bytes: bytes.into() }))
    }

    /// Replaces the path by its conversion.
    ///
    /// # Errors
    /// The error of the conversion.
    pub fn try_map_path<Q, E>(
        self,
        convert: impl FnOnce(P) -> Result<Q, E>,
    ) -> Result<FileOp<Q, F>, E> {
        Ok(match self {
            FileOp::Open(path, access) => FileOp::Open(convert(path)?, access),
            FileOp::Stat(path) => FileOp::Stat(convert(path)?),
            FileOp::List(path) => FileOp::List(convert(path)?),
            FileOp::Read(file, range) => FileOp::Read(file, range),
            FileOp::Write(write) => FileOp::Write(write),
        })
    }

    /// Returns whether it has no non-blocking mode: getdents(2) may wait for the disk, and a write for
    /// memory, after a part of its bytes.
    pub fn may_always_block(&self) -> bool {
        matches!(self, FileOp::List(_) | FileOp::Write(_))
    }
}

impl FileOp {
    /// Returns why no kernel may begin the operation. Each calls it first.
    ///
    /// # Errors
    /// `EXDEV` for a path with [`SymlinkPolicy::Anywhere`] that is absolute or has a `..`; `EINVAL` for a write at an offset
    /// that no file has.
    pub fn check(&self) -> Result<(), Errno> {
        match self {
            FileOp::Open(at, _) | FileOp::Stat(at) | FileOp::List(at) => match at.symlinks {
                SymlinkPolicy::Anywhere if may_leave_root(&at.path) => Err(Errno::XDEV),
                // openat2(2) checks it.
                SymlinkPolicy::Anywhere | SymlinkPolicy::Beneath => Ok(()),
            },
            FileOp::Read(..) => Ok(()),
            FileOp::Write(write) => match write.at {
                // -1 would stand for the current position.
                WriteAt::Offset(at) if i64::try_from(at).is_err() => Err(Errno::INVAL),
                WriteAt::Offset(_) | WriteAt::End => Ok(()),
            },
        }
    }

    /// Returns the operation with the numbers of its descriptors.
    ///
    /// # Safety
    /// The operation lives until the returned one is no longer used.
    pub unsafe fn job(&self) -> FileJob {
        let by_number = |at: &PathAt| PathAt {
            root: at.root.fd(),
            path: Arc::clone(&at.path),
            symlinks: at.symlinks,
        };
        match self {
            FileOp::Open(at, access) => FileOp::Open(by_number(at), *access),
            FileOp::Stat(at) => FileOp::Stat(by_number(at)),
            FileOp::List(at) => FileOp::List(by_number(at)),
            FileOp::Read(file, range) => FileOp::Read(file.fd(), range.clone()),
            FileOp::Write(write) => FileOp::write(write.file.fd(), write.at, write.bytes.clone()),
        }
    }
}

impl From<FileJobOutcome> for FileOutcome {
    fn from(outcome: FileJobOutcome) -> Self {
        match outcome {
            FileOutcome::Opened((fd, meta)) => {
                FileOutcome::Opened(Box::new((File::from(fd), meta)))
            }
            FileOutcome::Stat(meta) => FileOutcome::Stat(meta),
            FileOutcome::Listed(listing) => FileOutcome::Listed(listing),
            FileOutcome::Read(bytes) => FileOutcome::Read(RxBuf::from(bytes)),
            FileOutcome::Written => FileOutcome::Written,
        }
    }
}

/// Returns the length of a range to read, up to 4 GiB.
pub(crate) fn len(range: &Range<u64>) -> u32 {
    u32::try_from(range.end.saturating_sub(range.start)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_before_the_next_begins() {
        let part = |offset, len| FileRange { file: Fd::from_raw(0), offset, len };
        assert_eq!(part(4096, 4096).last(), 8191);
        assert_eq!(part(4096, 1).last(), 4096);
        assert_eq!(part(4096, 0).last(), 4096, "there is none, so where it would be");
    }
}
