//! One connection of a layer: what was opened, and how it ends.

mod sealing;

use std::collections::VecDeque;

use evring::{Chunk, Close, CloseReason, Commands, ConnId, Rx, Tail};

use super::order::abruptness;
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
    pub id: ConnId,
    transform: T,

    /// Opened bytes that the application has not consumed.
    pub plain: Tail,
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
    pub reason: Option<CloseReason>,
}

impl<T: Transform> Session<T> {
    pub(super) fn new(id: ConnId, transform: T) -> Self {
        Session {
            id,
            transform,
            plain: Tail::default(),
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
            reason: None,
        }
    }

    /// Opens what came; says whether the application is to be called.
    pub(super) fn received(&mut self, io: &mut impl Commands, rx: &mut Rx<'_>) -> bool {
        if self.reason.is_some() {
            rx.consume(rx.bytes().len());
            return false;
        }
        let (had, had_eof) = (self.plain.len(), self.eof);
        let opened = self.plain.append_with(|plain| self.transform.open(rx.bytes(), plain));
        rx.consume(rx.bytes().len());
        match opened {
            Ok(eof) => self.eof |= eof,
            // The transform may have words for the peer, which must not be lost to a reset.
            Err(error) => self.fail(io, CloseReason::Failed(error), Close::Linger),
        }
        if rx.eof() && !self.eof {
            self.eof = true;
            if let Err(error) = self.transform.ended() {
                self.fail(io, CloseReason::Failed(error), Close::Reset);
            }
        }
        self.flush(io);
        self.pump(io);
        if self.paused && self.transform.ready() {
            io.set_receiving(self.id, false);
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
        self.reason.is_none() && matches!(self.closing, None | Some(Close::Half))
    }

    /// Whether the application may still send.
    fn talks(&self) -> bool {
        self.reason.is_none() && self.closing.is_none()
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
            io.set_receiving(self.id, on);
        } else if on {
            // A handshake receives even for an application that pauses. To have it called, the
            // mechanism must see a resume.
            io.set_receiving(self.id, false);
            io.set_receiving(self.id, true);
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
    pub(super) fn fail(&mut self, io: &mut impl Commands, reason: CloseReason, how: Close) {
        if self.reason.is_some() {
            return;
        }
        self.reason = Some(reason);
        self.drop_queue();
        if how != Close::Reset {
            self.flush(io);
        }
        self.closing = Some(how);
        self.closed = Some(how);
        io.close(self.id, how);
    }
}
