//! Sealing: chunks wait for the handshake, or behind a file being read.

use std::io;
use std::mem;

use evring::buffers::RxBuf;
use evring::files::{FileChanged, FileOp, MAX_READ_BYTES};
use evring::layers::FILE_TAG;
use evring::{Chunk, Close, CloseReason, Commands, HIGH_WATER, LOW_WATER};

use super::{MAX_HELD, PIECE, Session};
use crate::layer::Transform;
use crate::layer::Wire;
use crate::layer::order::{bytes_of, owned};

impl<T: Transform> Session<T> {
    /// Seals a chunk or queues it. Returns the number of buffered bytes.
    pub(in crate::layer) fn send(&mut self, io: &mut dyn Commands, chunk: Chunk<'_>) -> usize {
        if !self.app_may_send() {
            chunk.discard();
            return 0;
        }
        self.pump(io); // the caller has filled any reserved memory
        let is_file = matches!(chunk, Chunk::File(..));
        if self.queue.is_empty() && self.transform.ready() && !is_file {
            self.seal(io, bytes_of(&chunk));
            chunk.discard();
        } else {
            self.enqueue(io, owned(chunk));
            self.pump(io);
        }
        self.buffered()
    }

    /// Queues `n` bytes, which the caller fills before the next command for this connection.
    pub(in crate::layer) fn reserve(&mut self, io: &mut dyn Commands, n: usize) -> &mut [u8] {
        if self.app_may_send() {
            self.pump(io);
            self.enqueue(io, Chunk::Received(RxBuf::from(vec![0; n])));
        }
        if !self.app_may_send() {
            self.ignored.resize(n, 0);
            return &mut self.ignored;
        }
        match self.queue.back_mut() {
            Some(Chunk::Received(bytes)) => bytes,
            _ => unreachable!("the reserved bytes were queued last"),
        }
    }

    fn enqueue(&mut self, io: &mut dyn Commands, chunk: Chunk<'static>) {
        self.held += bytes_of(&chunk).len();
        self.files += usize::from(matches!(chunk, Chunk::File(..)));
        self.queue.push_back(chunk);
        if self.held > MAX_HELD {
            self.fail(io, CloseReason::Overrun, Close::Reset);
        }
    }

    /// Returns the number of bytes that are not sealed, with what is left of files.
    pub(super) fn unsealed(&self) -> u128 {
        let unsealed = |chunk: &Chunk<'_>| match chunk {
            // It may extend far beyond the end of the file.
            Chunk::File(_, range) => range.end.saturating_sub(range.start).into(),
            chunk => bytes_of(chunk).len() as u128,
        };
        self.queue.iter().map(unsealed).sum()
    }

    /// Returns the same number, or the largest one.
    pub(in crate::layer) fn unsealed_bytes(&self) -> u64 {
        self.unsealed().try_into().unwrap_or(u64::MAX)
    }

    /// Returns the number of bytes buffered in the layer and in the mechanism. As there, a file counts as
    /// [`HIGH_WATER`] bytes until it is sealed.
    fn buffered(&mut self) -> usize {
        let buffered = self.held + self.below + self.files * HIGH_WATER;
        self.full |= buffered >= HIGH_WATER;
        buffered
    }

    /// Seals queued chunks, starts to read a file, or closes at the end of the queue.
    pub(in crate::layer) fn pump(&mut self, io: &mut dyn Commands) {
        while !self.reading && self.transform.ready() {
            match self.queue.pop_front() {
                None => break,
                Some(Chunk::File(file, range)) => {
                    if range.is_empty() {
                        self.files -= 1;
                        continue;
                    }
                    let end = range.end.min(range.start.saturating_add(MAX_READ_BYTES.into()));
                    if !self.below_is_full {
                        self.reading = true;
                        let op = FileOp::Read(file.clone(), range.start..end);
                        io.file_op(self.id, FILE_TAG, op);
                    }
                    self.queue.push_front(Chunk::File(file, range));
                    break;
                }
                Some(chunk) => {
                    self.held -= bytes_of(&chunk).len();
                    self.seal(io, bytes_of(&chunk));
                    chunk.discard();
                    self.buffered();
                }
            }
        }
        if self.queue.is_empty() {
            self.finish(io);
        }
    }

    /// Handles the result of a file read.
    pub(in crate::layer) fn read(&mut self, io: &mut dyn Commands, result: io::Result<RxBuf>) {
        self.reading = false;
        let Some(Chunk::File(_, range)) = self.queue.front_mut() else { return };
        match result {
            Ok(bytes) if bytes.is_empty() => self.fail(io, CloseReason::Truncated, Close::Reset),
            Ok(bytes) => {
                range.start += bytes.len() as u64;
                self.seal(io, &bytes);
                self.pump(io);
            }
            Err(error) if FileChanged::is_reason_of(&error) => {
                self.fail(io, CloseReason::Truncated, Close::Reset);
            }
            Err(error) => self.fail(io, CloseReason::Failed(error), Close::Reset),
        }
    }

    /// Handles the notification that the mechanism's queue has drained.
    pub(in crate::layer) fn drained(&mut self, io: &mut dyn Commands) {
        self.below_is_full = false;
        self.below = self.below.min(LOW_WATER);
        self.pump(io);
    }

    /// Returns whether the application must be notified that its queue has drained, and resets that state.
    pub(in crate::layer) fn take_drained(&mut self) -> bool {
        let is_empty = self.held == 0 && self.files == 0 && !self.below_is_full;
        let drained = is_empty && self.app_reads();
        drained && mem::take(&mut self.full)
    }

    fn seal(&mut self, io: &mut dyn Commands, plain: &[u8]) {
        for piece in plain.chunks(PIECE) {
            if let Err(error) = self.transform.seal(piece) {
                return self.fail(io, CloseReason::Failed(error), Close::Reset);
            }
            self.flush(io);
        }
    }

    /// Sends the bytes that the transform has ready.
    pub(super) fn flush(&mut self, io: &mut dyn Commands) {
        let mut wire = Wire { io, to: self.id, queued: None };
        let result = self.transform.wire(&mut wire);
        if let Some(queued) = wire.queued {
            self.below = queued;
            self.below_is_full |= queued >= HIGH_WATER;
        }
        if let Err(error) = result {
            self.fail(io, CloseReason::Failed(error), Close::Reset);
        }
    }

    /// Returns the number of bytes that the layer has not passed to the mechanism, also of those that it has dropped.
    pub(in crate::layer) fn queued_bytes(&self) -> u64 {
        self.unsealed_bytes().saturating_add(self.dropped)
    }

    pub(super) fn drop_queue(&mut self) {
        self.dropped = self.queued_bytes();
        self.queue.drain(..).for_each(Chunk::discard);
        (self.held, self.files, self.reading) = (0, 0, false);
    }
}
