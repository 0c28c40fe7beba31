//! Response bodies that are sent in pieces.

use std::fmt;
use std::mem;
use std::task::{self, Poll};

use bytes::Bytes;
use evring::{Chunk, Commands, ConnId, HIGH_WATER};
use tracing::error;

use crate::decision::options::ResponseOptions;
use crate::response::head::put;
use crate::response::sent::finish;
use crate::site::guard::{Guarded, guard};
use crate::site::response_body::{Piece, Pieces};

/// A response body that is sent in pieces.
pub(crate) struct StreamedBody {
    pieces: Guarded<Pieces>,
    /// The unsent part of the last piece.
    unsent: Guarded<Bytes>,
    /// Bytes of the pieces not produced yet; `None` for a body of unknown length.
    remaining: Option<u64>,
    /// Bytes of the body that were queued and not counted.
    uncounted: u64,
    /// Whether each piece is sent as a chunk.
    chunked: bool,
    options: ResponseOptions,
}

impl fmt::Debug for StreamedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamedBody({:?} remaining)", self.remaining)
    }
}

/// Bodies and pieces longer than this are queued in parts of this size as the send queue drains.
pub(crate) const PART_BYTES: usize = 256 * 1024;

/// Maximum bytes of a part that is copied between its size and its end: TLS encrypts each chunk of the queue by itself.
const MAX_COPIED_BYTES: usize = 512;

/// Maximum number of consecutive empty pieces.
const MAX_EMPTY_PIECES: u32 = 1000;

/// The state of a streamed body after its pieces were queued.
pub(crate) enum Streamed {
    /// The send queue is full; more pieces may follow.
    Full,
    /// The next piece does not exist yet; the waker is woken when it may.
    Waits,
    /// The body has ended; true if the next request may be processed.
    Ended(bool),
    /// The body cannot be completed. A reset shows the client that it is incomplete.
    CutShort,
}

impl StreamedBody {
    /// Creates a body of `len` bytes, or of unknown length.
    pub(crate) fn new(
        pieces: Pieces,
        len: Option<u64>,
        chunked: bool,
        options: ResponseOptions,
    ) -> Self {
        let pieces = Guarded::new(pieces);
        StreamedBody {
            pieces,
            unsent: Guarded::new(Bytes::new()),
            remaining: len,
            uncounted: 0,
            chunked,
            options,
        }
    }

    /// Returns whether pieces may have to be waited for.
    pub(crate) fn waits(&self) -> bool {
        self.pieces.waits
    }

    /// Returns whether the client finds its end by that of the connection (RFC 9112, section 6.3).
    pub(crate) fn is_ended_by_close(&self) -> bool {
        self.remaining.is_none() && !self.chunked
    }

    /// Returns the number of bytes that were queued since the last call.
    pub(crate) fn take_count(&mut self) -> u64 {
        mem::take(&mut self.uncounted)
    }

    /// Sends pieces until the send queue is full, the next piece does not exist yet, or the body ends.
    pub(crate) fn send(
        &mut self,
        io: &mut impl Commands,
        to: ConnId,
        context: &mut task::Context<'_>,
    ) -> Streamed {
        let mut empty = 0;
        loop {
            // Its send queue stays empty, so nothing would bound the pieces.
            if io.is_closing(to) {
                return Streamed::CutShort;
            }
            if !self.unsent.is_empty() {
                let len = self.unsent.len().min(PART_BYTES);
                let part = self.unsent.split_to(len);
                if self.send_part(io, to, part) >= HIGH_WATER {
                    return Streamed::Full;
                }
                empty = 0;
                continue;
            }
            let piece = match guard(|| (self.pieces.next)(context)) {
                // The client has the whole body, and may send its next request.
                Ok(Poll::Pending) if self.remaining == Some(0) => return self.end(io, to, b""),
                Ok(Poll::Pending) => return Streamed::Waits,
                Ok(Poll::Ready(piece)) => Ok(piece),
                Err(status) => Err(status),
            };
            let piece = match piece {
                Ok(Some(Ok(Piece::Bytes(piece)))) => Guarded::new(piece),
                Ok(Some(Ok(Piece::Trailers(lines)))) => return self.end(io, to, &lines),
                Ok(None) => return self.end(io, to, b""),
                Ok(Some(Err(error))) => {
                    let reason = guard(|| error.to_string());
                    drop(Guarded::new(error));
                    return cut_short(reason.as_deref().unwrap_or("its error panicked"));
                }
                Err(_) => return cut_short("its iterator panicked"),
            };
            if let Some(remaining) = &mut self.remaining {
                let Some(after) = remaining.checked_sub(piece.len() as u64) else {
                    return cut_short("it is longer than its declared length");
                };
                *remaining = after;
            }
            empty += 1;
            if empty > MAX_EMPTY_PIECES {
                return cut_short("it yields only empty pieces");
            }
            self.unsent = piece;
        }
    }

    /// Ends the body, with the lines of a trailer section if it is chunked.
    fn end(&self, io: &mut impl Commands, to: ConnId, trailers: &[u8]) -> Streamed {
        if self.remaining.is_some_and(|bytes| bytes > 0) {
            return cut_short("it is shorter than its declared length");
        }
        if self.chunked && trailers.is_empty() {
            io.send(to, Chunk::Static(b"0\r\n\r\n"));
        } else if self.chunked {
            io.send(to, Chunk::Static(b"0\r\n"));
            io.send(to, Chunk::Copy(trailers));
            io.send(to, Chunk::Static(b"\r\n"));
        }
        Streamed::Ended(finish(io, to, self.options))
    }

    /// Queues a part, as a chunk if the body is chunked, and returns how many bytes are queued. An
    /// empty part would be the last chunk, so `part` is not empty.
    fn send_part(&mut self, io: &mut impl Commands, to: ConnId, part: Bytes) -> usize {
        self.uncounted += part.len() as u64;
        if !self.chunked {
            return io.send(to, Chunk::Shared(part));
        }
        let is_short = part.len() <= MAX_COPIED_BYTES;
        let mut copied = Vec::with_capacity(if is_short { 12 + part.len() } else { 10 });
        put(&mut copied, format_args!("{:x}\r\n", part.len()));
        if is_short {
            copied.extend_from_slice(&part);
            copied.extend_from_slice(b"\r\n");
            drop(Guarded::new(part));
            return io.send(to, Chunk::Copy(&copied));
        }
        io.send(to, Chunk::Copy(&copied));
        io.send(to, Chunk::Shared(part));
        io.send(to, Chunk::Static(b"\r\n"))
    }
}

/// Ends a response that cannot be completed.
#[cold]
fn cut_short(reason: &str) -> Streamed {
    error!("connection reset, the handler's body failed: {reason}");
    Streamed::CutShort
}
