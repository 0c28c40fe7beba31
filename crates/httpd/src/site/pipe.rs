//! A bounded queue of bytes between a connection and a handler: bodies, in both directions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;

use crate::site::guard::{Guarded, guard};

/// Bytes in a pipe at which its writer has to wait, with [`PIECE_BYTES`] for each piece. One piece may exceed it.
pub(crate) const CAPACITY_BYTES: usize = 64 * 1024;

/// Memory of a piece beside its bytes: its place in the queue, which may have twice as many as needed, and the
/// header of its allocation.
const PIECE_BYTES: usize = 2 * size_of::<Bytes>() + 32;

/// Returns the memory of a piece.
fn cost(piece: &Bytes) -> usize {
    piece.len() + PIECE_BYTES
}

/// The writer ended before the bytes were complete, or the reader has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// How the bytes ended: completely, with trailer fields, or not.
type End = Result<HeaderMap, Broken>;

#[derive(Debug, Default)]
struct PipeState {
    pieces: VecDeque<Guarded<Bytes>>,
    /// Memory of `pieces`.
    queued_bytes: usize,
    /// Bytes that the reader has taken and keeps.
    held_bytes: usize,
    end: Option<End>,
    /// The reader has waited for bytes.
    is_wanted: bool,
    reader_gone: bool,
    /// Woken by the next piece or the end.
    reader: Option<Waker>,
    /// Woken when there is room.
    writer: Option<Waker>,
}

impl PipeState {
    fn has_room(&self) -> bool {
        self.reader_gone || self.queued_bytes < CAPACITY_BYTES
    }
}

#[derive(Debug, Default)]
struct Shared(Mutex<PipeState>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PipeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then wakes the waker that `change` returns, without the lock.
    fn change(&self, change: impl FnOnce(&mut PipeState) -> Option<Waker>) {
        let waker = change(&mut self.lock());
        if let Some(waker) = waker {
            // It may be one of the handler.
            let _ = guard(|| waker.wake());
        }
    }
}

/// Creates a pipe.
pub(crate) fn pipe() -> (Writer, Reader) {
    let shared = Arc::new(Shared::default());
    (Writer(Arc::clone(&shared)), Reader(shared))
}

/// The end of a pipe that takes bytes. Dropping it before [`Writer::end`] breaks the pipe.
#[derive(Debug)]
pub(crate) struct Writer(Arc<Shared>);

impl Writer {
    /// Adds a piece. The writer has made sure that there is room.
    pub(crate) fn push(&self, piece: Bytes) {
        // What is not added is dropped without the lock: its owner may use the pipe.
        let mut piece = Some(Guarded::new(piece));
        self.0.change(|state| {
            let piece = piece.take_if(|piece| !state.reader_gone && !piece.is_empty())?;
            state.queued_bytes += cost(&piece);
            state.pieces.push_back(piece);
            state.reader.take()
        });
    }

    /// Returns whether a piece can be added. Without a reader it can, and is dropped.
    pub(crate) fn has_room(&self) -> bool {
        self.0.lock().has_room()
    }

    /// Sets the waker for when there is room. Returns whether there is room already.
    pub(crate) fn wake_at_room(&self, waker: &Waker) -> bool {
        let mut waker = Some(waker.clone());
        let mut state = self.0.lock();
        // The one before is dropped after the lock: it may be one of the handler and use the pipe.
        std::mem::swap(&mut state.writer, &mut waker);
        state.has_room()
    }

    /// Waits for room.
    pub(crate) fn poll_room(&self, context: &Context<'_>) -> Poll<Result<(), Broken>> {
        match self.wake_at_room(context.waker()) {
            _ if self.is_unread() => Poll::Ready(Err(Broken)),
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// Ends the bytes. Only the first end counts.
    pub(crate) fn end(&self, end: End) {
        let mut end = Some(end);
        self.0.change(|state| {
            if state.end.is_none() {
                state.end = end.take();
            }
            state.reader.take()
        });
    }

    /// Returns the memory of the pieces in the pipe, and of the bytes that the reader keeps.
    pub(crate) fn held_bytes(&self) -> usize {
        let state = self.0.lock();
        state.queued_bytes + state.held_bytes
    }

    /// Makes what the reader has kept so far count no more.
    pub(crate) fn release(&self) {
        self.0.lock().held_bytes = 0;
    }

    /// Returns whether the reader has waited for bytes.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.lock().is_wanted
    }

    /// Returns whether the reader has gone.
    pub(crate) fn is_unread(&self) -> bool {
        self.0.lock().reader_gone
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end(Err(Broken));
    }
}

/// The end of a pipe that returns bytes.
#[derive(Debug)]
pub(crate) struct Reader(Arc<Shared>);

impl Reader {
    /// Returns the next piece, or `None` at the end. An error is returned once.
    pub(crate) fn poll_piece(
        &mut self,
        context: &Context<'_>,
    ) -> Poll<Option<Result<Bytes, Broken>>> {
        let mut waker = Some(context.waker().clone());
        let mut state = self.0.lock();
        state.is_wanted = true;
        if let Some(piece) = state.pieces.pop_front() {
            state.queued_bytes -= cost(&piece);
            let writer = if state.has_room() { state.writer.take() } else { None };
            drop(state);
            if let Some(writer) = writer {
                writer.wake();
            }
            return Poll::Ready(Some(Ok(piece.into_inner())));
        }
        match state.end {
            Some(Ok(_)) => Poll::Ready(None),
            Some(Err(broken)) => {
                state.end = Some(Ok(HeaderMap::new()));
                Poll::Ready(Some(Err(broken)))
            }
            None => {
                // The one before is dropped after the lock, as in `wake_at_room`.
                std::mem::swap(&mut state.reader, &mut waker);
                Poll::Pending
            }
        }
    }

    /// Returns the trailer fields, once, after the end.
    pub(crate) fn trailers(&self) -> Option<HeaderMap> {
        match self.0.lock().end.as_mut() {
            Some(Ok(trailers)) if !trailers.is_empty() => Some(std::mem::take(trailers)),
            _ => None,
        }
    }

    /// Sets how many bytes the reader keeps.
    pub(crate) fn hold(&self, bytes: usize) {
        self.0.lock().held_bytes = bytes;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut unread = VecDeque::new();
        self.0.change(|state| {
            state.reader_gone = true;
            state.queued_bytes = 0;
            unread = std::mem::take(&mut state.pieces);
            state.writer.take()
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;
    use std::task::Wake;
    use std::thread;
    use std::time::Duration;

    use http::HeaderValue;

    use super::*;

    /// Runs what deadlocks if values of a handler are dropped under a lock that they need.
    pub(crate) fn assert_ends(run: impl FnOnce() + Send + 'static) {
        let (ended, has_ended) = mpsc::channel();
        thread::spawn(move || {
            run();
            let _ = ended.send(());
        });
        has_ended.recv_timeout(Duration::from_secs(20)).expect("it waits for its own lock");
    }

    /// A waker, or the owner of bytes, that uses a pipe when it is dropped.
    struct UsesPipe(Arc<Writer>);

    impl Drop for UsesPipe {
        fn drop(&mut self) {
            self.0.held_bytes();
        }
    }

    impl Wake for UsesPipe {
        fn wake(self: Arc<Self>) {}
    }

    impl AsRef<[u8]> for UsesPipe {
        fn as_ref(&self) -> &[u8] {
            b"x"
        }
    }

    #[test]
    fn waker_that_used_its_pipe_when_it_was_replaced_waited_for_itself() {
        assert_ends(|| {
            let (writer, mut reader) = pipe();
            let writer = Arc::new(writer);
            let waker = || Waker::from(Arc::new(UsesPipe(Arc::clone(&writer))));
            writer.push(Bytes::from_static(&[0; CAPACITY_BYTES]));
            assert!(!writer.wake_at_room(&waker()));
            assert!(!writer.wake_at_room(Waker::noop()));
            let Poll::Ready(Some(Ok(_))) = reader.poll_piece(&context()) else { panic!() };
            assert_eq!(reader.poll_piece(&Context::from_waker(&waker())), Poll::Pending);
            assert_eq!(reader.poll_piece(&context()), Poll::Pending);
        });
    }

    #[test]
    fn bytes_that_used_the_pipe_which_dropped_them_waited_for_it() {
        assert_ends(|| {
            let (writer, reader) = pipe();
            let writer = Arc::new(writer);
            let bytes = || Bytes::from_owner(UsesPipe(Arc::clone(&writer)));
            writer.end(Ok(HeaderMap::new()));
            let value = HeaderValue::from_maybe_shared(bytes()).unwrap();
            writer.end(Ok(HeaderMap::from_iter([(http::header::ETAG, value)])));
            drop(reader);
            writer.push(bytes());
            assert_eq!(writer.held_bytes(), 0);
        });
    }

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn writer_waits_at_the_capacity_until_the_reader_takes_bytes() {
        let (writer, mut reader) = pipe();
        assert!(!writer.is_wanted());
        assert_eq!(reader.poll_piece(&context()), Poll::Pending);
        assert!(writer.is_wanted());
        writer.push(Bytes::from_static(&[0; CAPACITY_BYTES - PIECE_BYTES - 1]));
        assert_eq!(writer.poll_room(&context()), Poll::Ready(Ok(())));
        writer.push(Bytes::from_static(b"x"));
        assert_eq!(writer.poll_room(&context()), Poll::Pending);
        assert_eq!(writer.held_bytes(), CAPACITY_BYTES + PIECE_BYTES);
        let Poll::Ready(Some(Ok(piece))) = reader.poll_piece(&context()) else { panic!() };
        reader.hold(piece.len());
        assert!(writer.has_room());
        assert_eq!(writer.held_bytes(), CAPACITY_BYTES);
        writer.release();
        assert_eq!(writer.held_bytes(), 1 + PIECE_BYTES);
        writer.end(Ok(HeaderMap::new()));
        writer.end(Err(Broken));
        assert_eq!(reader.poll_piece(&context()), Poll::Ready(Some(Ok(Bytes::from_static(b"x")))));
        assert_eq!(reader.poll_piece(&context()), Poll::Ready(None));
    }

    #[test]
    fn pieces_of_one_byte_were_counted_as_one_byte_each() {
        let (writer, _reader) = pipe();
        let mut count = 0;
        while writer.has_room() {
            writer.push(Bytes::copy_from_slice(b"x"));
            count += 1;
        }
        // Their places in the queue alone are a vector of these.
        assert!(count * size_of::<Bytes>() <= CAPACITY_BYTES, "{count} pieces");
        assert!(writer.held_bytes() >= CAPACITY_BYTES);
    }

    #[test]
    fn either_end_notices_when_the_other_is_dropped() {
        let (writer, mut reader) = pipe();
        writer.push(Bytes::from_static(b"x"));
        drop(writer);
        assert_eq!(reader.poll_piece(&context()), Poll::Ready(Some(Ok(Bytes::from_static(b"x")))));
        assert_eq!(reader.poll_piece(&context()), Poll::Ready(Some(Err(Broken))));
        let (writer, reader) = pipe();
        drop(reader);
        writer.push(Bytes::from_static(b"x"));
        assert_eq!((writer.held_bytes(), writer.has_room()), (0, true));
        assert_eq!(writer.poll_room(&context()), Poll::Ready(Err(Broken)));
    }

    #[test]
    fn broken_pipe_returned_its_error_again_and_again() {
        let (writer, mut reader) = pipe();
        writer.end(Err(Broken));
        assert_eq!(reader.poll_piece(&context()), Poll::Ready(Some(Err(Broken))));
        assert_eq!(reader.poll_piece(&context()), Poll::Ready(None));
        drop(writer);
        assert_eq!(reader.poll_piece(&context()), Poll::Ready(None));
        assert_eq!(reader.trailers(), None);
    }
}
