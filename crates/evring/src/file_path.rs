//! Paths of files, and operations on them.

use std::error::Error;
use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::Root;

/// A path below a [`Root`]. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(Option<Arc<CStr>>);

impl FilePath {
    /// Creates a relative path. File operations on a path with a zero byte fail with `EINVAL`.
    pub fn new(path: impl AsRef<Path>) -> Self {
        FilePath(CString::new(path.as_ref().as_os_str().as_bytes()).ok().map(Arc::from))
    }

    /// Returns the path; empty if it contained a zero byte.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.0.as_ref().map_or(b"", |path| path.to_bytes())))
    }

    pub(crate) fn as_c(&self) -> Option<Arc<CStr>> {
        self.0.clone()
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for FilePath {
    fn from(path: &P) -> Self {
        FilePath::new(path)
    }
}

/// A file operation. It never blocks other connections. One read returns at most
/// [`MAX_READ_BYTES`](crate::files::MAX_READ_BYTES); one write has at most
/// [`MAX_WRITE_BYTES`](crate::files::MAX_WRITE_BYTES), else it fails with `EMSGSIZE`. Opening a file for writing fails
/// with `EROFS` under a root that is not in [`Config::writable_roots`](crate::Config::writable_roots).
///
/// A read that continues a file that was opened for reading fails with [`FileChanged`] if the contents are others than at
/// the open. The driver looks at the file when a read enters a block of [`File::BLOCK_BYTES`](crate::files::File::BLOCK_BYTES),
/// or reaches the length that the file had then. It keeps a few bytes only of the file that a connection has read last: of
/// files that are read by turns, one that is overwritten by a longer one is not noticed.
pub type FileOp = shared_ring::files::FileOp<(Root, FilePath)>;

/// The error of a read of a file whose contents have changed, or whose server does not have it any more (ESTALE). The bytes
/// would not follow those that were read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileChanged;

impl FileChanged {
    /// Returns whether this is the reason of an error.
    pub fn is_reason_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|reason| reason.is::<FileChanged>())
    }
}

impl fmt::Display for FileChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the file has changed since it was opened; open it again, and read it from its start",
        )
    }
}

impl Error for FileChanged {}

impl From<FileChanged> for io::Error {
    fn from(changed: FileChanged) -> Self {
        io::Error::other(changed)
    }
}
