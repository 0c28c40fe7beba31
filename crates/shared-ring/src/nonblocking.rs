//! Single attempts at operations, which do not wait for a peer or, if requested, for the disk.
//!
//! The [engine](crate::Engine) and other event loops over non-blocking sockets use them.

use std::ffi::{CStr, CString, OsString};
use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;

use rustix::fs;
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use crate::beneath;
use crate::cached::CachedParts;
use crate::descriptor::borrow;
use crate::read_ahead::ReadAhead;
use crate::{
    Access, BufferPool, Datagram, Fd, File, GatherList, Listing, Metadata, Op, Outcome, PathAt,
    RxBuf, Socket, System, Transmit, WhenCold, WriteAt,
};

/// Whether a file operation may block on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// It may block.
    MayBlock,
    /// It must not block; it fails with `EAGAIN` if it would.
    NoBlock,
}

/// The reason why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// The stream has ended, or the receiving side of a socket for datagrams is shut down.
    End,
    /// No receive buffer is free.
    NoBuffer,
    /// The system call failed; `EAGAIN` if nothing has arrived.
    Failed(Errno),
}

/// The reason why nothing of a file was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFileError {
    /// That part of the file is not cached. Read it, then try again.
    Cold,
    /// The system call failed; `EAGAIN` if the socket's buffer is full.
    Failed(Errno),
}

/// Accepts one connection as a non-blocking socket.
///
/// # Errors
/// Those of accept4(2); `EAGAIN` if the queue is empty.
pub fn accept(system: &mut impl System, listener: Fd) -> Result<Socket, Errno> {
    // An alias of the caller's socket; dropping it closes nothing.
    let listener = Socket::of(listener);
    retry_on_intr(|| system.accept(&listener))
}

/// Returns whether the connection was aborted before it was accepted; accept(2) lists these errors.
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

/// Returns whether the process or the system has no free descriptor.
#[must_use]
pub fn is_fd_limit(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

/// Receives the bytes that have arrived, up to the size of a buffer.
///
/// # Errors
/// Those of recv(2), no free buffer, and the end of the stream.
#[inline]
pub fn receive(
    system: &mut impl System,
    fd: Fd,
    pool: &Rc<BufferPool>,
) -> Result<RxBuf, ReceiveError> {
    let mut buffer = pool.lend_free().ok_or(ReceiveError::NoBuffer)?;
    let n = retry_on_intr(|| system.recv(fd, &mut buffer)).map_err(ReceiveError::Failed)?;
    buffer.truncate(n);
    if n > 0 { Ok(buffer) } else { Err(ReceiveError::End) }
}

/// Receives one datagram.
///
/// # Errors
/// Those of recvmsg(2), no free buffer, and the end: the receiving side of the socket is shut down.
pub fn receive_from(
    system: &mut impl System,
    fd: Fd,
    pool: &Rc<BufferPool>,
) -> Result<Datagram, ReceiveError> {
    let mut buffer = pool.lend_free().ok_or(ReceiveError::NoBuffer)?;
    let n = retry_on_intr(|| system.receive_from(fd, &mut buffer)).map_err(ReceiveError::Failed)?;
    buffer.truncate(n);
    Datagram::decode(buffer).ok_or(ReceiveError::End)
}

/// Sends a datagram, whole, and clears its list.
///
/// # Errors
/// Those of sendmsg(2); `EAGAIN` if the socket's buffer is full.
pub fn send_to(system: &mut impl System, fd: Fd, message: &mut Transmit) -> Result<(), Errno> {
    let mut slices = [IoSlice::new(&[]); GatherList::MAX_SLICES];
    let used = message.data.slices(&mut slices);
    retry_on_intr(|| system.send_to(fd, &slices[..used], message.to))?;
    message.data.clear();
    Ok(())
}

/// Sends from the front of `data`, removes the sent bytes, and returns their number.
///
/// # Errors
/// Those of sendmsg(2); `EAGAIN` if the socket's buffer is full.
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

/// Sends up to `len` bytes of a file, and returns their number: 0 if the file ends before `offset`.
/// With [`Blocking::NoBlock`], it sends [`File::BLOCK_BYTES`] at most, which must be cached ([`System::is_cold`]), now
/// or a second ago. SIGPIPE must be ignored, as it is in Rust programs.
///
/// # Errors
/// Those of sendfile(2), and [`SendFileError::Cold`].
pub fn send_file(
    system: &mut impl System,
    fd: Fd,
    (file, offset, len): (&File, u64, u32),
    disk: Blocking,
) -> Result<u32, SendFileError> {
    let mut part = FileRange { file: file.fd(), offset, len };
    if disk == Blocking::NoBlock {
        // To find out may take a copy of all of it.
        part.len = len.min(File::BLOCK_BYTES as u32);
        if is_part_cold(system, file, part) {
            return Err(SendFileError::Cold);
        }
    }
    retry_on_intr(|| system.sendfile(fd, part)).map(|n| n as u32).map_err(SendFileError::Failed)
}

/// Maximum number of waits for the disk before a send may block.
pub const MAX_DISK_WAITS: u8 = 2;

/// Maximum number of bytes that are read before a send whose part was still cold after the first wait: the kernel
/// dropped a hint, read the pages in another order, or has evicted one. They are read into memory.
pub const MAX_REREAD_BYTES: u32 = 16 * 1024;

/// Sends up to `len` bytes of a file after `waits` waits for the disk. The second wait was for all `len` bytes, so this
/// one does not look whether they are cached: it blocks only if the kernel has evicted them since.
///
/// # Errors
/// Those of [`send_file`].
pub(crate) fn send_file_after(
    system: &mut impl System,
    fd: Fd,
    (file, offset, len): (&File, u64, u32),
    waits: u8,
) -> Result<u32, SendFileError> {
    let part = FileRange { file: file.fd(), offset, len: len.min(File::BLOCK_BYTES as u32) };
    if needs_disk(system, file, part, waits) {
        return Err(SendFileError::Cold);
    }
    retry_on_intr(|| system.sendfile(fd, part)).map(|n| n as u32).map_err(SendFileError::Failed)
}

/// Returns whether a send of a part, of a block at most, has to wait for the disk first, after `waits` other waits.
pub fn needs_disk(system: &mut impl System, file: &File, part: FileRange, waits: u8) -> bool {
    waits < MAX_DISK_WAITS
        && is_part_cold(system, file, part)
        && (waits == 0 || system.reports_cached(part))
}

/// Begins the next wait for the disk of a send that found its part cold after `waits` others. Cuts the `len` of the send
/// to what can be sent after the wait, and returns the range whose read is waited for.
pub fn read_first(
    system: &mut impl System,
    ahead: &mut ReadAhead,
    socket: Fd,
    (part, next): (FileRange, u32),
    waits: u8,
    len: &mut u32,
) -> Range<u64> {
    if waits == 0 {
        let requested = ahead.begin(socket, part, next);
        system.prefetch(requested);
        *len = part.len.min(requested.len).min(File::BLOCK_BYTES as u32);
        let last = FileRange { len: *len, ..part }.last();
        return last..last.saturating_add(1);
    }
    *len = part.len.min(MAX_REREAD_BYTES);
    FileRange { len: *len, ..part }.range()
}

/// Returns whether a part of a file is cold, as found now or a second ago.
fn is_part_cold(system: &mut impl System, file: &File, part: FileRange) -> bool {
    let (mut cached, now) = (file.cached().get(), system.clock());
    if cached.contains(&part.range(), now) {
        return false;
    }
    if system.is_cold(part) {
        return true;
    }
    // A block is remembered as a whole. Its bytes before the part may be missing, as no client has requested them.
    let to_find = CachedParts::part_to_find(&part.range());
    let len = (part.offset - to_find.start) as u32;
    let before = FileRange { offset: to_find.start, len, ..part };
    if len == 0 || !system.is_cold(before) {
        cached.add(&to_find, now);
        file.cached().set(cached);
    }
    false
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

/// What came of a try to send.
#[derive(Debug)]
pub(crate) enum SendAttempt {
    /// The attempt sent at least a part, or failed.
    Done(Outcome),
    /// The socket's buffer is full.
    Full(Op),
    /// That part of the file must be read first.
    Cold(Op),
}

/// Attempts an [`Op::Send`], an [`Op::SendTo`] or an [`Op::SendFile`] once, the last after `waits` waits for the disk.
///
/// # Panics
/// For any other operation.
#[inline]
pub(crate) fn try_to_send(system: &mut impl System, op: Op, waits: u8) -> SendAttempt {
    match op {
        Op::Send { fd, mut data } => match send(system, fd, &mut data) {
            Ok(n) => SendAttempt::Done(Outcome::Sent(data, n)),
            Err(Errno::AGAIN) => SendAttempt::Full(Op::Send { fd, data }),
            Err(errno) => SendAttempt::Done(Outcome::Failed(errno, Some(data))),
        },
        Op::SendTo { fd, mut message } => match send_to(system, fd, &mut message) {
            Err(Errno::AGAIN) => SendAttempt::Full(Op::SendTo { fd, message }),
            result => SendAttempt::Done(Outcome::SentTo(message, result)),
        },
        Op::SendFile { fd, ref file, offset, len, when_cold, .. } => {
            match send_file_after(system, fd, (file, offset, len), waits) {
                Ok(n) => SendAttempt::Done(Outcome::SentFile(n)),
                Err(SendFileError::Failed(Errno::AGAIN)) => SendAttempt::Full(op),
                Err(SendFileError::Cold) if when_cold == WhenCold::Report => {
                    SendAttempt::Done(Outcome::Cold)
                }
                Err(SendFileError::Cold) => SendAttempt::Cold(op),
                Err(SendFileError::Failed(errno)) => {
                    SendAttempt::Done(Outcome::Failed(errno, None))
                }
            }
        }
        op => unreachable!("not a send: {op:?}"),
    }
}

/// Returns whether reading a part of a file would block, as far as the file system reports it.
///
/// cachestat(2) finds a missing page. preadv2(2) with `RWF_NOWAIT` tells for the first and the last byte whether their
/// reads have ended, which cachestat(2) does not. It comes second, because it begins to read a missing page, alone.
/// Where cachestat(2) is not permitted, preadv2(2) reads all of the part. Overlayfs supports neither, so there every
/// part counts as cold.
pub(crate) fn is_cold(part: FileRange) -> bool {
    match has_gap(part) {
        Some(true) => true,
        Some(false) => is_byte_cold(part.file, part.offset) || is_byte_cold(part.file, part.last()),
        None => would_read_block(part),
    }
}

/// Returns whether pages of a part are missing in the page cache (cachestat(2)). `None` if that is unknown: the kernel
/// is older than Linux 6.5, or the file is of another user, who has not permitted writing.
fn has_gap(part: FileRange) -> Option<bool> {
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

/// Bytes of one hint. The kernel cuts a hint to the read-ahead of the device, by default 128 KiB.
const HINT_BYTES: u64 = 128 * 1024;

/// Begins to read a part of a file into the page cache.
///
/// The kernel then reads nothing else ahead: with the windows of fast disks, several megabytes, that takes
/// milliseconds of the event loop's time, for bytes that a slow client may never get.
pub(crate) fn prefetch(part: FileRange) {
    let file = borrow(&part.file);
    // Without these hints, the read that follows waits longer.
    let _ = fs::fadvise(file, 0, None, fs::Advice::Random);
    let end = part.range().end;
    for at in (part.offset..end).step_by(HINT_BYTES as usize) {
        let len = NonZeroU64::new(HINT_BYTES.min(end - at));
        let _ = fs::fadvise(file, at, len, fs::Advice::WillNeed);
    }
}

/// Returns whether the file system reports what is cached: whether it has `RWF_NOWAIT`. The last byte of the part was
/// just read, so that this begins to read no other page.
pub(crate) fn reports_cached(part: FileRange) -> bool {
    read_cached(part.file, part.last(), &mut [0]) != Err(Errno::OPNOTSUPP)
}

/// The number of cachestat(2), the same on all architectures but alpha.
const SYS_CACHESTAT: libc::c_long = 451;

fn is_byte_cold(file: Fd, offset: u64) -> bool {
    // A file system without RWF_NOWAIT counts as uncached.
    matches!(read_cached(file, offset, &mut [0]), Err(Errno::AGAIN | Errno::OPNOTSUPP))
}

/// Reads a part to find out whether that blocks. The copies take less time than a system call for each page.
fn would_read_block(part: FileRange) -> bool {
    let mut bytes = [0; 32 * 1024];
    let Range { start: mut at, end } = part.range();
    while at < end {
        let len = (end - at).min(bytes.len() as u64) as usize;
        match read_cached(part.file, at, &mut bytes[..len]) {
            Ok(0) => break,
            Ok(n) => at += n as u64,
            Err(errno) => return matches!(errno, Errno::AGAIN | Errno::OPNOTSUPP),
        }
    }
    false
}

fn read_cached(file: Fd, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let mut into = [IoSliceMut::new(into)];
    let flags = ReadWriteFlags::NOWAIT;
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
/// Those of preadv2(2); with [`Blocking::NoBlock`] also `EOPNOTSUPP` for a file system without
/// RWF_NOWAIT.
pub(crate) fn read(file: Fd, offset: u64, len: u32, disk: Blocking) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len as usize];
    let mut filled = 0;
    let flags = match disk {
        Blocking::MayBlock => ReadWriteFlags::empty(),
        Blocking::NoBlock => ReadWriteFlags::NOWAIT,
    };
    while let remaining @ [_, ..] = &mut bytes[filled..] {
        let mut into = [IoSliceMut::new(remaining)];
        let from = offset + filled as u64;
        match retry_on_intr(|| rustix::io::preadv2(borrow(&file), &mut into, from, flags))? {
            0 => break,
            n => filled += n,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
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
    use super::*;

    #[test]
    fn a_part_ends_before_the_next_begins() {
        let part = |offset, len| FileRange { file: Fd::from_raw(0), offset, len };
        assert_eq!(part(4096, 4096).last(), 8191);
        assert_eq!(part(4096, 1).last(), 4096);
        assert_eq!(part(4096, 0).last(), 4096, "there is none, so where it would be");
    }
}
