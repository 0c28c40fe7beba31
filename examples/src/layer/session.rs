//! One connection of a layer: what was opened and what waits to be sealed.

use std::collections::VecDeque;
use std::io;
use std::mem;

use multiplex::{Chunk, Close, Commands, Conn, FileOp, HIGH_WATER, Rx, RxBuf, Why};

use super::Wire;
use super::order::{abruptness, bytes_of, owned};
use crate::Transform;

/// Names the layer's own reads.
pub(super) const READ_TAG: u32 = 1 << 31;

/// The most bytes that wait to be sealed.
pub(super) const MAX_HELD: usize = 16 << 20;

/// What is sealed in one piece, so that a transform need not hold much.
const PIECE: usize = 16 * 1024;

/// One connection.
#[derive(Debug)]
pub(super) struct Session<T> {
    pub id: Conn,
    transform: T,

    /// Opened bytes that the application has not consumed.
    pub plain: Vec<u8>,
    /// The peer has ended its side.
    pub eof: bool,
    /// The application wants no bytes.
    paused: bool,
    /// It wants them again, and has not been called since.
    resumed: bool,

    /// What can't be sealed yet: the handshake goes on, or a file comes first. Never `Copy`.
    queue: VecDeque<Chunk<'static>>,
    /// How many bytes that is, not counting files.
    held: usize,
    /// What was reserved when nothing could be sent any more.
    ignored: Vec<u8>,
    /// A read of the file at the head of the queue is under way.
    reading: bool,
    /// What the mechanism's queue held when last heard of.
    below: usize,
    /// That queue is full, and the mechanism will tell when it has drained.
    crowded: bool,
    /// The two queues together were full, and the application is to be told when no more.
    full: bool,

    /// How the application wants to close.
    closing: Option<Close>,
    /// What of that the mechanism was told.
    closed: Option<Close>,
    /// Why the layer itself ended the connection.
    pub why: Option<Why>,
}

impl<T: Transform> Session<T> {
    pub(super) fn new(id: Conn, transform: T) -> Self {
        Session {
            id,
            transform,
            plain: Vec::new(),
            eof: false,
            paused: false,
            resumed: false,
            queue: VecDeque::new(),
            held: 0,
            ignored: Vec::new(),
            reading: false,
            below: 0,
            crowded: false,
            full: false,
            closing: None,
            closed: None,
            why: None,
        }
    }

    /// Opens what came; says whether the application is to be called.
    pub(super) fn received(&mut self, io: &mut impl Commands, rx: &mut Rx<'_>) -> bool {
        if self.why.is_some() {
            rx.consume(rx.bytes().len());
            return false;
        }
        let (had, had_eof) = (self.plain.len(), self.eof);
        let opened = self.transform.open(rx.bytes(), &mut self.plain);
        rx.consume(rx.bytes().len());
        match opened {
            Ok(eof) => self.eof |= eof,
            // The transform may have words for the peer, which must not be lost to a reset.
            Err(error) => self.fail(io, Why::Failed(error), Close::Linger),
        }
        if rx.eof() && !self.eof {
            self.eof = true;
            if let Err(error) = self.transform.ended() {
                self.fail(io, Why::Failed(error), Close::Reset);
            }
        }
        self.flush(io);
        self.pump(io);
        if self.paused && self.transform.ready() {
            io.receive(self.id, false);
        }
        if !self.listens() {
            self.plain.clear();
            return false;
        }
        let news = self.plain.len() > had || self.eof != had_eof || self.resumed;
        let call = news && !self.paused;
        self.resumed &= !call;
        call
    }

    /// Whether the application takes bytes, now or after a pause.
    fn listens(&self) -> bool {
        self.why.is_none() && matches!(self.closing, None | Some(Close::Half))
    }

    /// Whether the application may still send.
    fn talks(&self) -> bool {
        self.why.is_none() && self.closing.is_none()
    }

    /// Whether the application waits for more bytes.
    pub(super) fn wants_more(&self) -> bool {
        self.listens() && !self.paused && !self.eof
    }

    /// Pauses or resumes.
    pub(super) fn receive(&mut self, io: &mut impl Commands, on: bool) {
        if self.paused != on {
            return;
        }
        (self.paused, self.resumed) = (!on, on);
        if self.transform.ready() {
            io.receive(self.id, on);
        } else if on {
            // A handshake receives even for an application that pauses. To have it called, the
            // mechanism must see a resume.
            io.receive(self.id, false);
            io.receive(self.id, true);
        }
    }

    /// Seals a chunk, or queues it; returns how many bytes wait.
    pub(super) fn send(&mut self, io: &mut impl Commands, chunk: Chunk<'_>) -> usize {
        if !self.talks() {
            return 0;
        }
        self.pump(io); // memory reserved before has been filled in by now
        let is_file = matches!(chunk, Chunk::File(..));
        if self.queue.is_empty() && self.transform.ready() && !is_file {
            self.seal(io, bytes_of(&chunk));
        } else {
            self.hold(io, owned(chunk));
            self.pump(io);
        }
        self.waiting()
    }

    /// Queues `n` bytes to be filled in before the next command for this connection.
    pub(super) fn reserve(&mut self, io: &mut impl Commands, n: usize) -> &mut [u8] {
        if self.talks() {
            self.pump(io);
            self.hold(io, Chunk::Received(RxBuf::from(vec![0; n])));
        }
        if !self.talks() {
            self.ignored.resize(n, 0);
            return &mut self.ignored;
        }
        match self.queue.back_mut() {
            Some(Chunk::Received(bytes)) => bytes,
            _ => unreachable!("the reserved bytes were queued last"),
        }
    }

    fn hold(&mut self, io: &mut impl Commands, chunk: Chunk<'static>) {
        self.held += bytes_of(&chunk).len();
        self.queue.push_back(chunk);
        if self.held > MAX_HELD {
            self.fail(io, Why::Overrun, Close::Reset);
        }
    }

    /// How many bytes wait, here and below.
    fn waiting(&mut self) -> usize {
        let waiting = self.held + self.below;
        self.full |= waiting >= HIGH_WATER;
        waiting
    }

    /// Moves on whatever can be sealed, begins to read a file, or closes when all is done.
    pub(super) fn pump(&mut self, io: &mut impl Commands) {
        while !self.reading && self.transform.ready() {
            match self.queue.pop_front() {
                None => break,
                Some(Chunk::File(file, range)) => {
                    if range.is_empty() {
                        continue;
                    }
                    let end = range.end.min(range.start + u64::from(FileOp::MOST));
                    if !self.crowded {
                        self.reading = true;
                        let op = FileOp::Read(file.clone(), range.start..end);
                        io.file(self.id, READ_TAG, op);
                    }
                    self.queue.push_front(Chunk::File(file, range));
                    break;
                }
                Some(chunk) => {
                    self.held -= bytes_of(&chunk).len();
                    self.seal(io, bytes_of(&chunk));
                    self.waiting();
                }
            }
        }
        if self.queue.is_empty() {
            self.finish(io);
        }
    }

    /// A part of the file at the head of the queue was read.
    pub(super) fn read(&mut self, io: &mut impl Commands, result: io::Result<RxBuf>) {
        self.reading = false;
        let Some(Chunk::File(_, range)) = self.queue.front_mut() else { return };
        match result {
            Ok(bytes) if bytes.is_empty() => self.fail(io, Why::Truncated, Close::Reset),
            Ok(bytes) => {
                range.start += bytes.len() as u64;
                self.seal(io, &bytes);
                self.pump(io);
            }
            Err(error) => self.fail(io, Why::Failed(error), Close::Reset),
        }
    }

    /// The mechanism's queue has drained.
    pub(super) fn drained(&mut self, io: &mut impl Commands) {
        self.crowded = false;
        self.pump(io);
    }

    /// Whether the application is to be told that its queue has drained, once.
    pub(super) fn take_relief(&mut self) -> bool {
        let relief = self.held == 0 && !self.crowded;
        relief && mem::take(&mut self.full)
    }

    fn seal(&mut self, io: &mut impl Commands, plain: &[u8]) {
        for piece in plain.chunks(PIECE) {
            if let Err(error) = self.transform.seal(piece) {
                return self.fail(io, Why::Failed(error), Close::Reset);
            }
            self.flush(io);
        }
    }

    /// Sends what the transform has ready.
    fn flush(&mut self, io: &mut impl Commands) {
        let mut wire = Wire { io, to: self.id, queued: None };
        let result = self.transform.wire(&mut wire);
        if let Some(queued) = wire.queued {
            self.below = queued;
            self.crowded |= queued >= HIGH_WATER;
        }
        if let Err(error) = result {
            self.fail(io, Why::Failed(error), Close::Reset);
        }
    }

    pub(super) fn close(&mut self, io: &mut impl Commands, how: Close) {
        if abruptness(Some(how)) <= abruptness(self.closing) {
            return;
        }
        self.closing = Some(how);
        if how == Close::Reset {
            self.drop_queue();
        }
        self.pump(io);
    }

    /// Carries out the close that was asked for, as all before it has been sealed.
    fn finish(&mut self, io: &mut impl Commands) {
        let Some(how) = self.closing else { return };
        if abruptness(Some(how)) <= abruptness(self.closed) {
            return;
        }
        if self.closed.is_none() && how != Close::Reset {
            self.transform.end();
            self.flush(io);
        }
        self.closed = Some(how);
        io.close(self.id, how);
    }

    /// Ends the connection for a reason of the layer's own.
    pub(super) fn fail(&mut self, io: &mut impl Commands, why: Why, how: Close) {
        if self.why.is_some() {
            return;
        }
        self.why = Some(why);
        self.drop_queue();
        if how != Close::Reset {
            self.flush(io);
        }
        self.closing = Some(how);
        self.closed = Some(how);
        io.close(self.id, how);
    }

    fn drop_queue(&mut self) {
        self.queue.clear();
        (self.held, self.reading) = (0, false);
    }
}
