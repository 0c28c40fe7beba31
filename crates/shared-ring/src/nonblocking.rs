//! One try at an operation, without waiting for a peer or, where asked, for a disk.
//!
//! Everything that works on non-blocking sockets is built from these: the [engine](crate::Engine)
//! and whatever else waits for readiness by its own means.

use std::ffi::{CString, OsString};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;

use rustix::fs;
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use crate::beneath;
use crate::linux::borrow;
use crate::{
    BufferPool, Fd, GatherList, Listing, Metadata, Op, Outcome, PathAt, RxBuf, Socket, System,
};

/// Whether file work may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// It may.
    MayBlock,
    /// It must not; `EAGAIN` says that it would have.
    NoBlock,
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// The stream has ended.
    End,
    /// No receive buffer is free.
    NoBuffer,
    /// The system said so; `EAGAIN` when nothing has arrived.
    Failed(Errno),
}

/// Why nothing of a file was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFileError {
    /// That part of the file is not in memory. Read it, then try again.
    Cold,
    /// The system said so; `EAGAIN` when the socket is full.
    Failed(Errno),
}

/// Accepts one connection, which will be non-blocking.
///
/// # Errors
/// Those of accept4(2); `EAGAIN` when none waits.
pub fn accept(system: &mut impl System, listener: Fd) -> Result<Socket, Errno> {
    // Its owner is elsewhere; to drop an alias closes nothing.
    let listener = Socket::of(listener);
    retry_on_intr(|| system.accept(&listener))
}

/// The connection was gone before it was accepted; accept(2) lists these for TCP.
#[must_use]
pub fn is_aborted_accept(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::CONNABORTED
            | Errno::PROTO
            | Errno::PERM
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
    )
}

/// The process or the machine has no descriptor left.
#[must_use]
pub fn is_fd_limit(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

/// Receives what has arrived, up to the size of a buffer.
///
/// # Errors
/// Those of recv(2), a lack of buffers, and the end of the stream.
#[inline]
pub fn receive(
    system: &mut impl System,
    fd: Fd,
    pool: &Rc<BufferPool>,
) -> Result<RxBuf, ReceiveError> {
    let id = pool.take().ok_or(ReceiveError::NoBuffer)?;
    // SAFETY: `id` was just taken and belongs to nobody else; the view covers one whole buffer.
    let mut buffer = unsafe { pool.lend(id, pool.size()) };
    let n = retry_on_intr(|| system.recv(fd, &mut buffer)).map_err(ReceiveError::Failed)?;
    buffer.truncate(n);
    if n > 0 { Ok(buffer) } else { Err(ReceiveError::End) }
}

/// Sends from the front of `data`, removes what was sent, and returns how much that was.
///
/// # Errors
/// Those of sendmsg(2); `EAGAIN` when the socket is full.
#[inline]
pub fn send(system: &mut impl System, fd: Fd, data: &mut GatherList) -> Result<usize, Errno> {
    let sent = if let Some(one) = data.single() {
        retry_on_intr(|| system.send(fd, one))?
    } else {
        let mut slices = [IoSlice::new(&[]); GatherList::MAX_SLICES];
        let used = data.slices(&mut slices);
        retry_on_intr(|| system.sendmsg(fd, &slices[..used]))?
    };
    data.advance(sent);
    Ok(sent)
}

/// Sends up to `len` bytes of a file; 0 when the file ends before `offset`. With
/// [`Blocking::NoBlock`] both ends of the range must be in memory; a hole between them is waited for.
/// The signal SIGPIPE must be ignored, as it is in Rust programs.
///
/// # Errors
/// Those of sendfile(2), and a cold file.
pub fn send_file(
    system: &mut impl System,
    fd: Fd,
    part: FileRange,
    disk: Blocking,
) -> Result<u32, SendFileError> {
    let mut is_cold = |offset| system.is_cold(part.file, offset);
    if disk == Blocking::NoBlock && (is_cold(part.offset) || is_cold(part.last())) {
        return Err(SendFileError::Cold);
    }
    retry_on_intr(|| system.sendfile(fd, part)).map(|n| n as u32).map_err(SendFileError::Failed)
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileRange {
    /// A regular file.
    pub file: Fd,
    /// Where it begins.
    pub offset: u64,
    /// How many bytes it has.
    pub len: u32,
}

impl FileRange {
    /// Where its last byte is.
    fn last(&self) -> u64 {
        self.offset + u64::from(self.len).saturating_sub(1)
    }
}

/// What came of a try to send.
#[derive(Debug)]
pub enum SendAttempt {
    /// It was sent as far as it went, or failed.
    Done(Outcome),
    /// The socket is full.
    Full(Op),
    /// The file is to be read first; [`FileJob::of`](crate::FileJob::of) the operation does that.
    Cold(Op),
}

/// Tries an [`Op::Send`] or an [`Op::SendFile`].
///
/// # Panics
/// For any other operation.
#[inline]
pub fn try_to_send(system: &mut impl System, op: Op, disk: Blocking) -> SendAttempt {
    match op {
        Op::Send { fd, mut data } => match send(system, fd, &mut data) {
            Ok(n) => SendAttempt::Done(Outcome::Sent(data, n)),
            Err(Errno::AGAIN) => SendAttempt::Full(Op::Send { fd, data }),
            Err(errno) => SendAttempt::Done(Outcome::Failed(errno, Some(data))),
        },
        Op::SendFile { fd, ref file, offset, len } => {
            match send_file(system, fd, FileRange { file: file.fd(), offset, len }, disk) {
                Ok(n) => SendAttempt::Done(Outcome::SentFile(n)),
                Err(SendFileError::Failed(Errno::AGAIN)) => SendAttempt::Full(op),
                Err(SendFileError::Cold) => SendAttempt::Cold(op),
                Err(SendFileError::Failed(errno)) => {
                    SendAttempt::Done(Outcome::Failed(errno, None))
                }
            }
        }
        op => unreachable!("not a send: {op:?}"),
    }
}

/// Whether reading the byte at `offset` would wait for the disk, as far as can be known.
pub(crate) fn is_cold(file: Fd, offset: u64) -> bool {
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(borrow(&file), &mut into, offset, ReadWriteFlags::NOWAIT);
    // A file system that can't tell is taken for a slow one.
    matches!(read, Err(Errno::AGAIN | Errno::OPNOTSUPP))
}

/// Opens a file for reading beneath `root`, and says what it is.
///
/// # Errors
/// Those of openat2(2); `EXDEV` for a path that leads out of the root.
pub fn open(at: PathAt<'_>, disk: Blocking) -> Result<(OwnedFd, Metadata), Errno> {
    let file = beneath::open(at, beneath::OPEN_FLAGS, disk)?;
    let meta = meta(&file)?;
    Ok((file, meta))
}

/// What an open file is.
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

/// What a path leads to.
///
/// # Errors
/// Those of openat2(2) and fstat(2).
pub fn stat(at: PathAt<'_>, disk: Blocking) -> Result<Metadata, Errno> {
    meta(beneath::open(at, beneath::STAT_FLAGS, disk)?)
}

/// What is in the directory that a path leads to. What leads where it may not, or nowhere, is left
/// out.
///
/// # Errors
/// Those of openat2(2) and getdents(2).
pub fn list(at: PathAt<'_>) -> Result<Listing, Errno> {
    let opened =
        beneath::open(at, beneath::OPEN_FLAGS | fs::OFlags::DIRECTORY, Blocking::MayBlock)?;
    let mut listing = Listing { entries: Vec::new(), is_complete: true };
    let mut path = at.path.to_bytes().to_vec();
    path.push(b'/');
    let start = path.len();
    for entry in fs::Dir::new(opened)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if listing.entries.len() == Listing::MAX_ENTRIES {
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
/// Those of preadv2(2); with [`Blocking::NoBlock`] also `EOPNOTSUPP` where a file system can't tell.
pub fn read(file: Fd, offset: u64, len: u32, disk: Blocking) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len as usize];
    let mut filled = 0;
    let flags = match disk {
        Blocking::MayBlock => ReadWriteFlags::empty(),
        Blocking::NoBlock => ReadWriteFlags::NOWAIT,
    };
    while let rest @ [_, ..] = &mut bytes[filled..] {
        let mut into = [IoSliceMut::new(rest)];
        let from = offset + filled as u64;
        match retry_on_intr(|| rustix::io::preadv2(borrow(&file), &mut into, from, flags))? {
            0 => break,
            n => filled += n,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
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
