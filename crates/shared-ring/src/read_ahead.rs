//! Parts of files that were requested from the disk before they are sent.
//!
//! The kernel requests a part that is not cached, and the next one, as hints. When a send reaches the last part that
//! was requested, the kernel requests what follows. So a file that is not cached waits for the disk once, as long as
//! the disk is faster than the client, and a cached file needs no request at all.

use crate::nonblocking::FileRange;
use crate::table::Table;
use crate::{Fd, File};

/// The requested parts of the files that the sockets of a kernel send.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// By the number of the socket.
    requests: Table<Request>,
    /// Requested bytes of all sockets that are not sent yet.
    bytes: u64,
}

/// What was requested of the file that a socket sends.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    file: Option<Fd>,
    /// Where the bytes that are not sent yet begin and end.
    from: u64,
    to: u64,
}

impl ReadAhead {
    /// Number of bytes requested and not sent, of all sockets, beyond which each further socket requests only
    /// [`MAX_PIECE_BYTES`](Self::MAX_PIECE_BYTES) at a time: two blocks for each of 256.
    pub const MAX_BYTES: u64 = 512 * File::BLOCK_BYTES;

    /// Maximum number of bytes that a socket has requested and not sent if it began beyond
    /// [`MAX_BYTES`](Self::MAX_BYTES).
    pub const MAX_PIECE_BYTES: u32 = 32 * 1024;

    /// Notes that a socket has to wait for a part, which `next` bytes of the file follow. Returns what to request. Only
    /// the bytes of the part in it can be sent after the wait.
    #[must_use]
    pub fn begin(&mut self, socket: Fd, part: FileRange, next: u32) -> FileRange {
        self.forget(socket);
        let len = block(part.len);
        let whole = len + block(next);
        let has_room = self.bytes + u64::from(whole) <= Self::MAX_BYTES;
        let len = if has_room { whole } else { len.min(Self::MAX_PIECE_BYTES) };
        let requested = FileRange { len, ..part };
        let to = requested.range().end;
        self.bytes += to - part.offset;
        *self.requests.at(socket.index()) =
            Request { file: Some(part.file), from: part.offset, to };
        requested
    }

    /// Notes that a socket has sent the first `sent` bytes of a part, which `next` bytes of the file follow. Returns
    /// what to request now.
    #[must_use]
    #[inline]
    pub fn sent(&mut self, socket: Fd, part: FileRange, next: u32, sent: u32) -> Option<FileRange> {
        if self.bytes == 0 { None } else { self.continue_after(socket, part, next, sent) }
    }

    #[cold]
    fn continue_after(
        &mut self,
        socket: Fd,
        part: FileRange,
        next: u32,
        sent: u32,
    ) -> Option<FileRange> {
        let part = FileRange { len: block(part.len), ..part };
        let request = self.requests.get_mut(socket.index())?;
        if request.file != Some(part.file) || request.from != part.offset {
            self.forget(socket);
            return None;
        }
        let from = part.offset.saturating_add(sent.into()).min(request.to);
        self.bytes -= from - request.from;
        request.from = from;
        let offset = request.to;
        let wanted = part.range().end.saturating_add(block(next).into()).saturating_sub(offset);
        if sent > 0 && wanted > 0 && self.bytes + wanted <= Self::MAX_BYTES {
            request.to = offset + wanted;
            self.bytes += wanted;
            return Some(FileRange { file: part.file, offset, len: wanted as u32 });
        }
        if request.from == request.to {
            *request = Request::default();
        }
        None
    }

    /// Forgets what was requested for a socket. Its kernel calls this before it closes the socket.
    #[inline]
    pub fn forget(&mut self, socket: Fd) {
        if self.bytes > 0
            && let Some(request) = self.requests.get_mut(socket.index())
        {
            self.bytes -= request.to - request.from;
            *request = Request::default();
        }
    }
}

/// Cuts a length to that of a block.
fn block(len: u32) -> u32 {
    len.min(File::BLOCK_BYTES as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = File::BLOCK_BYTES as u32;

    fn fd(number: i32) -> Fd {
        Fd::from_raw(number)
    }

    fn part(offset: u64, len: u32) -> FileRange {
        FileRange { file: fd(100), offset, len }
    }

    fn range(requested: Option<FileRange>) -> Option<std::ops::Range<u64>> {
        requested.map(|part| part.range())
    }

    #[test]
    fn only_every_second_part_was_requested_ahead() {
        let (mut ahead, block) = (ReadAhead::default(), File::BLOCK_BYTES);
        assert_eq!(ahead.begin(fd(1), part(0, BLOCK), BLOCK).range(), 0..2 * block);
        assert_eq!(range(ahead.sent(fd(1), part(0, BLOCK), BLOCK, BLOCK)), None);
        // The socket takes the next part in two pieces, of which the first requests what follows.
        let next = ahead.sent(fd(1), part(block, BLOCK), BLOCK, 1);
        assert_eq!(range(next), Some(2 * block..3 * block));
        let next = ahead.sent(fd(1), part(block + 1, BLOCK - 1), BLOCK, BLOCK - 1);
        assert_eq!(range(next), None);
        let next = ahead.sent(fd(1), part(2 * block, BLOCK), 10, BLOCK);
        assert_eq!(range(next), Some(3 * block..3 * block + 10));
        assert_eq!(range(ahead.sent(fd(1), part(3 * block, 10), 0, 10)), None);
        assert_eq!(ahead.bytes, 0);
    }

    #[test]
    fn what_slow_clients_had_requested_was_unbounded() {
        let mut ahead = ReadAhead::default();
        let full = (ReadAhead::MAX_BYTES / (2 * File::BLOCK_BYTES)) as i32;
        for socket in 0..full {
            assert_eq!(ahead.begin(fd(socket), part(0, u32::MAX), u32::MAX).len, 2 * BLOCK);
        }
        assert_eq!(ahead.bytes, ReadAhead::MAX_BYTES);
        let piece = ReadAhead::MAX_PIECE_BYTES;
        assert_eq!(ahead.begin(fd(full), part(0, BLOCK), BLOCK).len, piece);
        assert_eq!(range(ahead.sent(fd(full), part(0, piece), BLOCK, piece)), None);
        assert_eq!(ahead.bytes, ReadAhead::MAX_BYTES, "the piece is sent");
        // Once another client has received its file or is gone, there is room.
        ahead.forget(fd(0));
        ahead.forget(fd(0));
        assert_eq!(ahead.begin(fd(full), part(0, BLOCK), BLOCK).len, 2 * BLOCK);
        (0..=full).for_each(|socket| ahead.forget(fd(socket)));
        assert_eq!(ahead.bytes, 0);
    }

    #[test]
    fn another_part_or_file_ends_the_requests() {
        let mut ahead = ReadAhead::default();
        for other in [part(7, 1), FileRange { file: fd(101), ..part(0, 1) }] {
            assert_eq!(ahead.begin(fd(3), part(0, BLOCK), BLOCK).len, 2 * BLOCK);
            assert!(ahead.sent(fd(3), other, BLOCK, 1).is_none());
            assert_eq!(ahead.bytes, 0);
        }
        assert_eq!(ahead.begin(fd(3), part(u64::MAX - 9, BLOCK), BLOCK).range().end, u64::MAX);
        assert!(ahead.sent(fd(3), part(u64::MAX - 9, BLOCK), BLOCK, 9).is_none());
        assert_eq!(ahead.bytes, 0);
    }
}
