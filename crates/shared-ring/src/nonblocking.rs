//! Single attempts at operations, which do not wait for a peer or, if requested, for the disk.
//!
//! The [engine](crate::Engine) and other event loops over non-blocking sockets use them.

use std::io::IoSlice;
use std::ops::Range;
use std::rc::Rc;

use rustix::io::{Errno, retry_on_intr};

use crate::cached::CachedParts;
use crate::discard::DiscardBuffer;
pub use crate::file_op::{Blocking, FileRange};
use crate::read_ahead::ReadAhead;
use crate::{
    BufferPool, Datagram, Fd, File, GatherList, Op, Outcome, RxBuf, Socket, System, Transmit,
    WhenCold,
};

/// The reason why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
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

/// Returns whether the connection was aborted before it was accepted; accept(2) lists these errors. (It also lists `EPERM`,
/// which a security module returns, and then the connection stays in the queue.)
#[must_use]
pub fn is_aborted_accept(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::CONNABORTED
            | Errno::PROTO
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
    )
}

/// Returns whether the process or the kernel has no free descriptor.
#[must_use]
pub fn is_fd_limit(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

/// Receives the bytes that have arrived, up to the size of a buffer.
///
/// # Errors
/// Those of recv(2), no free buffer, and the end of the stream.
#[inline(always)]
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
#[inline(always)]
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

/// Maximum number of bytes that are read before a send whose part was cold, while Linux reads ahead.
pub const MAX_READ_BYTES: u32 = DiscardBuffer::BYTES as u32;

/// The same, if Linux reads nothing ahead for the socket.
pub const MAX_EXACT_READ_BYTES: u32 = 32 * 1024;

const _: () = assert!(MAX_EXACT_READ_BYTES <= MAX_READ_BYTES);

/// Sends up to `len` bytes of a file, [`File::MAX_PIECE_BYTES`] at most. Returns their number: 0 if the file ends before
/// `offset`. They must be cached ([`must_read`]) or `was_read`: then this does not look, and blocks only if the kernel has
/// evicted them since. Cuts `len` to what is cached. SIGPIPE must be ignored, as it is in Rust programs.
///
/// # Errors
/// Those of sendfile(2), and [`SendFileError::Cold`].
pub fn send_file(
    system: &mut impl System,
    fd: Fd,
    (file, offset, len): (&File, u64, &mut u32),
    was_read: bool,
) -> Result<u32, SendFileError> {
    *len = (*len).min(File::MAX_PIECE_BYTES as u32);
    if !was_read && must_read(system, file, offset, len) {
        return Err(SendFileError::Cold);
    }
    let part = FileRange { file: file.fd(), offset, len: *len };
    retry_on_intr(|| system.sendfile(fd, part)).map(|n| n as u32).map_err(SendFileError::Failed)
}

/// Returns the outcome of a send of `sent` of `len` bytes of a file.
pub(crate) fn sent_file(sent: u32, len: u32) -> Outcome {
    Outcome::SentFile { bytes: sent, is_full: sent < len }
}

/// Returns whether a part of a file, of a piece at most, must be read before it is sent, as it is cold
/// ([`System::is_cold`]), now or a second ago. If its first bytes are cached, cuts its `len` to these: to a
/// block, or to what is read at a time.
pub fn must_read(system: &mut impl System, file: &File, offset: u64, len: &mut u32) -> bool {
    const BLOCK: u32 = File::BLOCK_BYTES as u32;
    const { assert!(BLOCK > MAX_READ_BYTES) };
    let shorter = [BLOCK, MAX_READ_BYTES].into_iter().filter(|shorter| shorter < len);
    let lens = std::iter::once(*len).chain(shorter);
    let mut parts = lens.map(|len| FileRange { file: file.fd(), offset, len });
    let Some(cached) = parts.find(|part| !is_part_cold(system, file, *part)) else { return true };
    *len = cached.len;
    false
}

/// Begins to wait for the disk, as a send to a socket found its part cold. Cuts the `len` of the send to what can be sent
/// after the wait, within a block, which then `is_last` no longer, and returns the range to read.
pub fn read_first(
    system: &mut impl System,
    ahead: &mut ReadAhead,
    socket: Fd,
    (file, offset): (&File, u64),
    (len, is_last): (&mut u32, &mut bool),
) -> Range<u64> {
    let reads_ahead = ahead.begin(socket);
    set_read_ahead(system, file, reads_ahead);
    cut_to_block(offset, (len, is_last));
    let max = if reads_ahead { MAX_READ_BYTES } else { MAX_EXACT_READ_BYTES };
    *is_last &= *len <= max;
    *len = (*len).min(max);
    FileRange { file: file.fd(), offset, len: *len }.range()
}

/// Sets whether the kernel reads ahead in a file, if that changes.
pub(crate) fn set_read_ahead(system: &mut impl System, file: &File, on: bool) {
    if file.note_read_ahead(on) {
        system.set_read_ahead(file.fd(), on);
    }
}

/// Cuts the `len` of a part that is not sent at once to the rest of its block; then the part `is_last` no longer. The file may
/// change before it is sent, and its sender looks for changes before each block.
pub fn cut_to_block(offset: u64, (len, is_last): (&mut u32, &mut bool)) {
    let rest = File::BLOCK_BYTES - offset % File::BLOCK_BYTES;
    if u64::from(*len) > rest {
        (*len, *is_last) = (rest as u32, false);
    }
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

/// The result of an attempt to send.
#[derive(Debug)]
pub(crate) enum SendAttempt {
    /// The attempt sent at least a part, or failed.
    Done(Outcome),
    /// The socket's buffer is full.
    Full(Op),
    /// That part of the file must be read first.
    Cold(Op),
}

/// Attempts an [`Op::Send`], an [`Op::SendTo`] or an [`Op::SendFile`] once. The part of the last one `was_read`.
///
/// # Panics
/// For any other operation.
#[inline]
pub(crate) fn try_to_send(system: &mut impl System, op: Op, was_read: bool) -> SendAttempt {
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
        Op::SendFile { fd, ref file, offset, mut len, when_cold, .. } => {
            match send_file(system, fd, (file, offset, &mut len), was_read) {
                Ok(n) => SendAttempt::Done(sent_file(n, len)),
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::Linux;

    #[test]
    fn part_is_read_before_it_is_sent_if_the_file_system_does_not_report_what_is_cached() {
        // The files of proc(5) have no RWF_NOWAIT.
        let file = File::from(OwnedFd::from(std::fs::File::open("/proc/version").unwrap()));
        let mut len = 1;
        assert!(must_read(&mut Linux::default(), &file, 0, &mut len));
        assert_eq!(len, 1);
    }

    #[test]
    fn part_that_waits_ends_with_its_block() {
        const BLOCK: u64 = File::BLOCK_BYTES;
        let cut = |offset, mut len: u32| {
            let mut is_last = true;
            cut_to_block(offset, (&mut len, &mut is_last));
            (u64::from(len), is_last)
        };
        assert_eq!(cut(0, BLOCK as u32), (BLOCK, true));
        assert_eq!(cut(0, BLOCK as u32 + 1), (BLOCK, false));
        assert_eq!(cut(BLOCK - 1, 1), (1, true));
        assert_eq!(cut(2 * BLOCK - 1, 2), (1, false));
    }

    #[test]
    fn socket_gave_up_its_read_ahead_before_the_end_of_its_file() {
        let file = File::from(OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap()));
        let (mut system, mut ahead) = (Linux::default(), ReadAhead::default());
        let mut begin = |mut len, mut is_last| {
            let part = (&mut len, &mut is_last);
            let _ = read_first(&mut system, &mut ahead, Fd::from_raw(3), (&file, 0), part);
            (len, is_last)
        };
        assert_eq!(begin(MAX_READ_BYTES + 1, true), (MAX_READ_BYTES, false));
        assert_eq!(begin(MAX_READ_BYTES, true), (MAX_READ_BYTES, true));
        assert_eq!(begin(MAX_READ_BYTES, false), (MAX_READ_BYTES, false));
    }
}
