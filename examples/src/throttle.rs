//! Streams a file to each client, at a limited rate.

use std::io;
use std::time::{Duration, Instant};

use evring::files::{Access, File, FileKind, FileOp, FileOutcome, FilePath};
use evring::{Application, Chunk, Close, Commands, ConnId, Cx, HIGH_WATER, Listener, Root, Rx};

/// Streams a file to each client that sends an HTTP request of any kind, at a limited rate.
///
/// The bytes pass through the process, so they can be limited. With a send policy that defers reads, such as
/// [`FileDelivery::Ded`](evring::FileDelivery::Ded), a client slower than the rate causes no work: the driver
/// delivers the next piece when the client has room for it. When [`HIGH_WATER`] bytes are queued for a client, the next piece
/// waits until they have drained. A client that takes nothing for half a minute, while more than a piece waits for it, is
/// reset.
#[derive(Clone, Debug)]
pub struct Throttle {
    path: FilePath,
    bytes_per_second: u32,
    max_stall: Duration,
}

/// The progress of a connection's stream.
#[derive(Debug, Default)]
pub struct Stream {
    file: Option<File>,
    at: u64,
    len: u64,
    /// When the next piece may be sent; `None` without a request.
    due: Option<Instant>,
    /// The bytes that the client had not taken when the last piece was sent, with this piece.
    unsent: u64,
    /// When it was last seen that the client had taken some of these; `None` before the first piece.
    taken_at: Option<Instant>,
    /// The queue is full: the bytes that the client had not taken when this was checked last.
    untaken: Option<u64>,
}

impl Throttle {
    /// Maximum number of bytes of a piece.
    pub const MAX_PIECE_BYTES: u32 = 16 * 1024;

    /// Default of [`with_max_stall`](Self::with_max_stall).
    pub const MAX_STALL: Duration = Duration::from_secs(30);

    /// Creates a server for the file at a path below [`Root`] 0. Timers have a resolution of a millisecond, so a client gets a
    /// few percent less than the rate, and may get only 8 MB/s if the rate is higher.
    pub fn new(path: &str, bytes_per_second: u32) -> Self {
        Throttle {
            path: FilePath::new(path),
            bytes_per_second: bytes_per_second.max(1),
            max_stall: Self::MAX_STALL,
        }
    }

    /// Sets the time after which a client is reset that takes nothing although bytes wait for it, and after which one is closed
    /// that requests nothing.
    #[must_use]
    pub fn with_max_stall(self, max_stall: Duration) -> Self {
        Throttle { max_stall, ..self }
    }

    /// Returns the number of bytes of a piece: at most those of a tenth of a second.
    fn piece(&self) -> u32 {
        (self.bytes_per_second / 10).clamp(1, Self::MAX_PIECE_BYTES)
    }

    /// Sends a piece, and sets the time of the next one, unless the client stalls.
    fn send(&self, x: &mut Cx<'_, impl Commands, Stream>, bytes: evring::buffers::RxBuf) {
        let now = x.io.now();
        let n = bytes.len() as u32;
        let unsent = x.io.unsent_bytes(x.id);
        if self.has_stalled(x.state, unsent, now) {
            return x.io.close(x.id, Close::Reset);
        }
        x.state.unsent = unsent + u64::from(n);
        // A client that was slower than the rate does not get more afterwards.
        let begin = x.state.due.map_or(now, |due| due.max(now));
        let due = begin + Duration::from_secs(1) * n / self.bytes_per_second;
        x.state.at += u64::from(n);
        x.state.due = Some(due);
        let load = x.io.send(x.id, Chunk::Received(bytes));
        if x.state.at == x.state.len {
            x.io.close(x.id, Close::Linger);
        } else if load < HIGH_WATER {
            x.io.set_deadline(x.id, Some(due));
        } else {
            self.wait(x);
        }
    }

    /// Returns whether a client has taken nothing for the maximum time although more than a piece waits for it. At small
    /// rates the queue would take hours to fill.
    fn has_stalled(&self, stream: &mut Stream, unsent: u64, now: Instant) -> bool {
        let has_taken = unsent < stream.unsent;
        let taken_at = stream.taken_at.filter(|_| !has_taken).unwrap_or(now);
        stream.taken_at = Some(taken_at);
        let time = now.saturating_duration_since(taken_at);
        unsent > u64::from(self.piece()) && time >= self.max_stall
    }

    /// Sends nothing until the queue has drained, unless the client stalls.
    fn wait(&self, x: &mut Cx<'_, impl Commands, Stream>) {
        x.state.untaken = Some(x.io.unsent_bytes(x.id));
        x.io.set_deadline(x.id, Some(x.io.now() + self.max_stall));
    }

    /// Reads the next piece.
    fn read(&self, x: &mut Cx<'_, impl Commands, Stream>) {
        let Some(file) = x.state.file.clone() else { return };
        let end = x.state.len.min(x.state.at + u64::from(self.piece()));
        x.io.file_op(x.id, 0, FileOp::Read(file, x.state.at..end));
    }
}

impl Application for Throttle {
    type State = Stream;
    const MAX_UNCONSUMED: usize = 1; // consumes everything

    fn accepted(&mut self, x: Cx<'_, impl Commands, Stream>, _: Listener) {
        x.io.set_deadline(x.id, Some(x.io.now() + self.max_stall));
    }

    fn received(&mut self, x: Cx<'_, impl Commands, Stream>, rx: &mut Rx<'_>) {
        let ended = rx.eof();
        if !rx.take().is_empty() && x.state.due.is_none() {
            x.state.due = Some(x.io.now());
            x.io.set_deadline(x.id, None);
            x.io.file_op(x.id, 0, FileOp::Open((Root(0), self.path.clone()), Access::Read));
        } else if ended && x.state.due.is_none() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn file(
        &mut self,
        mut x: Cx<'_, impl Commands, Stream>,
        _tag: u32,
        done: io::Result<FileOutcome>,
    ) {
        match done {
            Ok(FileOutcome::Opened(opened)) if opened.1.kind == FileKind::Regular => {
                let (file, meta) = *opened;
                (x.state.file, x.state.len) = (Some(file), meta.len);
                let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", meta.len);
                x.io.send(x.id, Chunk::Copy(head.as_bytes()));
                match meta.len {
                    0 => x.io.close(x.id, Close::Linger),
                    _ => self.read(&mut x),
                }
            }
            Ok(FileOutcome::Read(bytes)) if !bytes.is_empty() => self.send(&mut x, bytes),
            // The length was promised.
            _ if x.state.file.is_some() => x.io.close(x.id, Close::Reset),
            // There is no such file, or it cannot be read.
            _ => {
                let head = b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n";
                x.io.send(x.id, Chunk::Static(head));
                x.io.close(x.id, Close::Linger);
            }
        }
    }

    /// Closes connections without a stream; a running stream closes its connection at its end.
    fn stopping(&mut self, x: Cx<'_, impl Commands, Stream>) {
        if x.state.due.is_none() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, Stream>) {
        if x.state.untaken.take().is_some() {
            x.io.set_deadline(x.id, x.state.due);
        }
    }

    /// The next piece is due, or the time for a request or for the progress of the client is over.
    fn expired(&mut self, mut x: Cx<'_, impl Commands, Stream>) {
        match (x.state.due, x.state.untaken) {
            (None, _) => x.io.close(x.id, Close::Flush),
            (_, None) => self.read(&mut x),
            (_, Some(untaken)) if x.io.unsent_bytes(x.id) < untaken => self.wait(&mut x),
            _ => x.io.close(x.id, Close::Reset),
        }
    }

    /// Those that have not requested anything.
    fn is_idle(&self, _: ConnId, stream: &Stream) -> bool {
        stream.due.is_none()
    }
}
