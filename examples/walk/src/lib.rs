//! Walks a directory tree: each directory is a task, and its files are asked for in batches.
//!
//! Directories wait on a stack, so that a deep tree needs little memory. Their paths begin at the root, which is
//! open, so that none of them leads through a link; one that the kernel would refuse for its length begins at another
//! open directory, an anchor.

mod batch;
mod queue;
mod tree;

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fmt, io};

use flexsc_rt::Config;

/// The bounds of a walk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Directories that are read at a time. Each has one descriptor.
    pub directories: usize,
    /// Calls of one directory that are posted at a time.
    pub batch: usize,
    /// Directories that are kept open as the beginnings of long paths, one for every 2 KiB of a path. The root is open,
    /// too, and not counted.
    pub anchors: usize,
    /// Memory for the paths of directories that were found and not read.
    pub pending_bytes: usize,
    /// Files with several links that are remembered, so that each counts once.
    pub links: usize,
    /// The syscall pages.
    pub pages: Config,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            directories: 16,
            batch: 64,
            anchors: 256,
            pending_bytes: 256 << 20,
            links: 8 << 20,
            pages: Config::with_entries(2048),
        }
    }
}

/// What a walk finds.
#[derive(Debug)]
pub enum Found<'a> {
    /// A file, directory, symbolic link or another object.
    Entry(Entry<'a>),
    /// Something that could not be read.
    Unreadable(&'a Path, io::Error),
}

/// An object of a tree. Symbolic links are not followed.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The path, beginning with that of the root.
    pub path: &'a Path,
    /// The type, as find(1) abbreviates it (`%y`).
    pub letter: char,
    /// Its inode.
    pub inode: u64,
    /// Its number of hard links.
    pub links: u32,
    /// Its size in bytes.
    pub size: u64,
}

impl<'a> Entry<'a> {
    fn new(path: &'a [u8], stat: &libc::statx) -> Self {
        let letter = match u32::from(stat.stx_mode) & libc::S_IFMT {
            libc::S_IFREG => 'f',
            libc::S_IFDIR => 'd',
            libc::S_IFLNK => 'l',
            libc::S_IFIFO => 'p',
            libc::S_IFSOCK => 's',
            libc::S_IFCHR => 'c',
            libc::S_IFBLK => 'b',
            _ => 'U',
        };
        Entry {
            path: Path::new(OsStr::from_bytes(path)),
            letter,
            inode: stat.stx_ino,
            links: stat.stx_nlink,
            size: stat.stx_size,
        }
    }
}

/// The sums of a walk. Sums of sizes beyond 64 bits are [`u64::MAX`], as those of du(1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Objects found.
    pub entries: u64,
    /// Sizes of directories.
    pub directory_bytes: u64,
    /// Sizes of all other objects; a file with several links counts once.
    pub file_bytes: u64,
    /// Objects that could not be read.
    pub unreadable: u64,
}

/// Why a walk ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The syscall pages cannot be used.
    Pages(flexsc_rt::Error),
    /// The root does not exist, or its metadata cannot be read. A directory that cannot be opened is [`Found::Unreadable`].
    Root(io::Error),
    /// The paths of directories that wait exceed [`Options::pending_bytes`].
    TooManyDirectories,
    /// More files have several links than [`Options::links`].
    TooManyLinks,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Pages(error) => error.fmt(f),
            Error::Root(error) => error.fmt(f),
            Error::TooManyDirectories => f.write_str(
                "the paths of directories that wait are too long; walk the subdirectories one by one",
            ),
            Error::TooManyLinks => {
                f.write_str("more files have several links than `Options::links` permits")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Walks a tree, and reports what it finds, in no order. A directory comes before its content. If `found` returns a break,
/// it is not called again, and the walk ends with the sums of what was reported.
///
/// # Errors
/// If the root does not exist or its metadata cannot be read, or a bound is reached.
pub fn walk(
    root: &Path,
    options: &Options,
    found: impl FnMut(Found<'_>) -> ControlFlow<()>,
) -> Result<Totals, Error> {
    tree::walk(root.as_os_str().as_bytes(), options, found)
}
