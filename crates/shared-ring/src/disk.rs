//! System calls on files, which do not wait for the disk if requested.

use std::ffi::{CStr, CString, OsString};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs;
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use crate::beneath;
use crate::descriptor::borrow;
use crate::discard::DiscardBuffer;
use crate::{Access, Blocking, Fd, File, FileRange, Listing, Metadata, PathAt, WriteAt};

/// Returns whether reading a part of a file would block, as far as the file system reports it.
///
/// cachestat(2) finds a missing page. preadv2(2) with `RWF_NOWAIT` finds for a byte of each block and the last one
/// whether their reads have ended, which cachestat(2) does not. It comes second, because it begins to read a missing page,
/// alone. Where cachestat(2) is not permitted, preadv2(2) reads all of the part, and one that is longer than a block counts
/// as cold. Overlayfs supports neither, so there every part counts as cold.
pub(crate) fn is_cold(part: FileRange) -> bool {
    match has_gap(part) {
        Some(true) => true,
        Some(false) => {
            let mut ends = (part.offset..part.last()).step_by(File::BLOCK_BYTES as usize);
            ends.any(|at| is_byte_cold(part.file, at)) || is_byte_cold(part.file, part.last())
        }
        None => u64::from(part.len) > File::BLOCK_BYTES || would_read_block(part),
    }
}

/// Returns whether pages of a part are missing in the page cache (cachestat(2)). `None` if that is unknown: the kernel
/// is older than Linux 6.5, or the file is of another user and may not be written to.
pub(crate) fn has_gap(part: FileRange) -> Option<bool> {
    let page_bytes = rustix::param::page_size() as u64;
    let pages = part.last() / page_bytes - part.offset / page_bytes + 1;
    let range = [part.offset, part.len.into()];
    let mut counts = [0_u64; 5];
    // SAFETY: the kernel reads a `cachestat_range`, two integers, and writes a `cachestat`, five.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, part.file.raw(), range.as_ptr(), counts.as_mut_ptr(), 0)
    };
    (result == 0).then_some(counts[0] < pages)
}

/// Makes the kernel read ahead in an open file, or not.
pub(crate) fn set_read_ahead(file: Fd, on: bool) {
    let advice = if on { fs::Advice::Normal } else { fs::Advice::Random };
    let _ = fs::fadvise(borrow(&file), 0, None, advice);
}

/// The number of cachestat(2), the same on all architectures but alpha.
const SYS_CACHESTAT: libc::c_long = 451;

fn is_byte_cold(file: Fd, offset: u64) -> bool {
    // A file system without RWF_NOWAIT counts as uncached.
    let read = read_once(file, offset, &mut [0], ReadWriteFlags::NOWAIT);
    matches!(read, Err(Errno::AGAIN | Errno::OPNOTSUPP))
}

/// Reads a part to find out whether that blocks. The copies take less time than a system call for each page.
fn would_read_block(part: FileRange) -> bool {
    let read = read_and_discard::<{ 32 * 1024 }>(part.file, part.range(), ReadWriteFlags::NOWAIT);
    matches!(read, Err(Errno::AGAIN | Errno::OPNOTSUPP))
}

/// Reads a part of a file, so that the page cache has it.
///
/// # Errors
/// Those of preadv2(2).
pub(crate) fn cache(file: Fd, part: Range<u64>) -> Result<(), Errno> {
    read_and_discard::<{ DiscardBuffer::BYTES }>(file, part, ReadWriteFlags::empty())
}

/// Reads a part of a file, `SIZE` bytes at a time; less if the file ends before.
fn read_and_discard<const SIZE: usize>(
    file: Fd,
    part: Range<u64>,
    flags: ReadWriteFlags,
) -> Result<(), Errno> {
    let mut bytes = [0; SIZE];
    let Range { start: mut at, end } = part;
    while at < end {
        let len = (end - at).min(bytes.len() as u64) as usize;
        match read_once(file, at, &mut bytes[..len], flags)? {
            0 => break,
            n => at += n as u64,
        }
    }
    Ok(())
}

fn read_once(
    file: Fd,
    offset: u64,
    into: &mut [u8],
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    let mut into = [IoSliceMut::new(into)];
    retry_on_intr(|| rustix::io::preadv2(borrow(&file), &mut into, offset, flags))
}

/// Opens a file beneath `root`, and returns it with its metadata.
///
/// # Errors
/// Those of openat2(2); `EXDEV` for a path that leads out of the root.
pub(crate) fn open(
    at: PathAt<Fd, &CStr>,
    access: Access,
    disk: Blocking,
) -> Result<(OwnedFd, Metadata), Errno> {
    let file = beneath::open(at, access.flags(), disk)?;
    let meta = meta(&file)?;
    Ok((file, meta))
}

/// Returns the metadata of an open file.
pub(crate) fn meta(file: impl AsFd) -> Result<Metadata, Errno> {
    let stat = fs::fstat(file)?;
    Ok(Metadata::from_parts(
        stat.st_mode,
        stat.st_size.unsigned_abs(),
        stat.st_ino,
        (stat.st_mtime, stat.st_mtime_nsec as u32),
        (stat.st_ctime, stat.st_ctime_nsec as u32),
    ))
}

/// Returns the metadata of a path.
///
/// # Errors
/// Those of openat2(2) and fstat(2).
pub(crate) fn stat(at: PathAt<Fd, &CStr>, disk: Blocking) -> Result<Metadata, Errno> {
    meta(beneath::open(at, beneath::STAT_FLAGS, disk)?)
}

/// Maximum number of entries of a directory that are looked at for a listing, also of those that it omits.
const MAX_VISITED: usize = 2 * Listing::MAX_ENTRIES;

/// Lists the directory at a path. Omits entries that cannot be opened, such as broken links and
/// those that the policy forbids.
///
/// # Errors
/// Those of openat2(2) and getdents(2).
pub(crate) fn list(at: PathAt<Fd, &CStr>) -> Result<Listing, Errno> {
    let flags = Access::Read.flags() | fs::OFlags::DIRECTORY;
    let opened = beneath::open(at, flags, Blocking::MayBlock)?;
    let mut listing = Listing { entries: Vec::new(), is_complete: true };
    let mut path = at.path.to_bytes().to_vec();
    path.push(b'/');
    let start = path.len();
    for (number, entry) in fs::Dir::new(opened)?.enumerate() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if listing.entries.len() == Listing::MAX_ENTRIES || number >= MAX_VISITED {
            listing.is_complete = false;
            break;
        }
        path.truncate(start);
        path.extend_from_slice(name);
        let Ok(path) = CString::new(&path[..]) else { continue };
        if let Ok(meta) = stat(PathAt { path: &path, ..at }, Blocking::MayBlock) {
            listing.entries.push((OsString::from_vec(name.to_vec()), meta));
        }
    }
    Ok(listing)
}

/// Reads `len` bytes of a file, fewer only at its end.
///
/// # Errors
/// Those of preadv2(2); with [`Blocking::NoBlock`] also `EOPNOTSUPP` for a file system without
/// RWF_NOWAIT.
pub(crate) fn read(file: Fd, offset: u64, len: u32, disk: Blocking) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len as usize];
    let filled = read_into(file, offset, &mut bytes, disk)?;
    bytes.truncate(filled);
    Ok(bytes)
}

/// Reads as many bytes of a file as `into` has, fewer only at its end. Returns their number.
///
/// # Errors
/// As for [`read`].
pub(crate) fn read_into(
    file: Fd,
    offset: u64,
    into: &mut [u8],
    disk: Blocking,
) -> Result<usize, Errno> {
    let mut filled = 0;
    let flags = match disk {
        Blocking::MayBlock => ReadWriteFlags::empty(),
        Blocking::NoBlock => ReadWriteFlags::NOWAIT,
    };
    while let remaining @ [_, ..] = &mut into[filled..] {
        match read_once(file, offset + filled as u64, remaining, flags)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

/// The offset that stands for the current position (pwritev2(2)), the only one that a pipe has.
pub(crate) const CURRENT: u64 = u64::MAX;

/// Writes all `bytes` to a file. May block.
///
/// # Errors
/// Those of pwritev2(2). The file may then contain the first of the bytes.
pub(crate) fn write(file: Fd, at: WriteAt, bytes: &[u8]) -> Result<(), Errno> {
    let mut written = 0;
    while written < bytes.len() {
        let from = [IoSlice::new(&bytes[written..])];
        let (offset, flags) = match at {
            WriteAt::End => (CURRENT, ReadWriteFlags::APPEND),
            WriteAt::Offset(start) => (start + written as u64, ReadWriteFlags::empty()),
        };
        match retry_on_intr(|| rustix::io::pwritev2(borrow(&file), &from, offset, flags))? {
            0 => return Err(Errno::IO),
            n => written += n,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::SymlinkPolicy;

    #[test]
    fn error_of_a_read_into_the_page_cache_is_reported() {
        let directory = std::fs::File::open("/proc").unwrap();
        let read = |file: &std::fs::File| cache(Fd::from_raw(file.as_raw_fd()), 0..1);
        assert_eq!(read(&directory), Err(Errno::ISDIR));
        assert_eq!(read(&std::fs::File::open("/proc/version").unwrap()), Ok(()));
    }

    #[test]
    fn any_number_of_entries_that_a_listing_omits_was_looked_at() {
        let root = tempfile::tempdir().unwrap();
        let directory = std::fs::File::open(root.path()).unwrap();
        let at = || PathAt {
            root: Fd::from_raw(directory.as_raw_fd()),
            path: c".",
            symlinks: SymlinkPolicy::Beneath,
        };
        for number in 0..MAX_VISITED + 2 {
            if number == MAX_VISITED - 2 {
                assert_eq!(list(at()), Ok(Listing { entries: Vec::new(), is_complete: true }));
            }
            std::os::unix::fs::symlink("nothing", root.path().join(number.to_string())).unwrap();
        }
        assert_eq!(list(at()), Ok(Listing { entries: Vec::new(), is_complete: false }));
    }
}
