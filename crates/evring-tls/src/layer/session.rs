//! State of one connection of a layer.

mod sealing;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::mem;
use std::time::Duration;

use evring::layers::Tail;
use evring::{Chunk, Close, CloseReason, Commands, ConnId, Rx};

use super::order::abruptness;
use super::transform::Transform;

/// Maximum number of bytes that wait to be sealed.
pub(super) const MAX_HELD: usize = 16 << 20;

/// Maximum number of bytes sealed at once, which bounds the memory of a transform.
const PIECE: usize = 16 * 1024;

/// The kind of bytes that have arrived on a connection so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arrived {
    Nothing,
    /// Bytes for the transform only, such as those of a handshake.
    Wire,
    /// Bytes for the application, too.
    Plain,
}

/// The minimum progress of a peer while a connection closes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    interval: Duration,
    min_bytes: u128,
}

impl Pace {
    /// Time until the first check. Most connections close earlier.
    const FIRST_CHECK: Duration = Duration::from_millis(100);

    pub(super) fn new(bytes_per_second: u32, interval: Duration) -> Self {
        // An `Instant` holds no more than some centuries.
        let interval = interval.min(Duration::from_secs(365 * 24 * 3600));
        let bytes = interval.as_nanos() * u128::from(bytes_per_second);
        Pace { interval, min_bytes: bytes.div_ceil(1_000_000_000).max(1) }
    }
}

/// State of one connection.
#[derive(Debug)]
pub(super) struct Session<T> {
    pub id: ConnId,
    pub transform: T,
    arrived: Arrived,

    /// Decoded bytes that the application has not consumed.
    pub plain: Tail,
    /// The peer has shut down its sending side.
    pub eof: bool,
    /// The application was notified of the end. Not set during the callback.
    pub eof_notified: bool,
    /// The application was notified of a part of a record.
    partial_notified: bool,
    /// The application has paused receiving.
    paused: bool,
    /// The application has resumed receiving and has not been called since.
    resumed: bool,

    /// Chunks that cannot be sealed yet, as the handshake continues or a file comes first. Never `Copy`.
    queue: VecDeque<Chunk<'static>>,
    /// Number of queued bytes, without files.
    held: usize,
    /// Number of queued files.
    files: usize,
    /// Memory for bytes reserved after the connection closed.
    ignored: Vec<u8>,
    /// A read of the file at the front of the queue is in flight.
    reading: bool,
    /// Bytes in the mechanism's queue after the last send.
    below: usize,
    /// The mechanism's queue is full, and `drained` will follow.
    below_is_full: bool,
    /// Both queues together were full, and the application must be notified once they drain.
    full: bool,

    /// The close that the application requested.
    closing: Option<Close>,
    /// The close that was passed to the mechanism.
    closed: Option<Close>,
    /// Bytes that the peer had not acknowledged when the progress of a close was checked.
    unsent: Option<u64>,
    /// Bytes that were dropped before they were sealed.
    dropped: u64,
    /// The reason why the layer itself closed the connection.
    pub reason: Option<CloseReason>,
    /// The layer calls the application's `stopping` when the bytes that the peer has begun to send are complete.
    stops: bool,
}

impl<T> Drop for Session<T> {
    fn drop(&mut self) {
        self.queue.drain(..).for_each(Chunk::discard);
    }
}

impl<T: Transform> Session<T> {
    pub(super) fn new(id: ConnId, transform: T) -> Self {
        Session {
            id,
            transform,
            arrived: Arrived::Nothing,
            plain: Tail::default(),
            eof: false,
            eof_notified: false,
            partial_notified: false,
            paused: false,
            resumed: false,
            queue: VecDeque::new(),
            held: 0,
            files: 0,
            ignored: Vec::new(),
            reading: false,
            below: 0,
            below_is_full: false,
            full: false,
            closing: None,
            closed: None,
            unsent: None,
            dropped: 0,
            reason: None,
            stops: false,
        }
    }

    /// Decodes received bytes, unless the application has left `max` decoded bytes: then they stay with the
    /// mechanism, which bounds them. Returns whether to call the application.
    pub(super) fn received(&mut self, io: &mut dyn Commands, rx: &mut Rx<'_>, max: usize) -> bool {
        if self.reason.is_some() {
            rx.consume(rx.bytes().len());
            return false;
        }
        if self.plain.len() >= max && self.app_reads() {
            return !self.paused && mem::take(&mut self.resumed);
        }
        let (had, had_eof) = (self.plain.len(), self.eof);
        if !rx.bytes().is_empty() {
            self.arrived = self.arrived.max(Arrived::Wire);
        }
        let opened = self.plain.append_with(|plain| self.transform.open(rx.bytes(), plain));
        rx.consume(rx.bytes().len());
        if self.plain.len() > had {
            self.arrived = Arrived::Plain;
        }
        match opened {
            Ok(eof) => self.eof |= eof,
            // The transform may have an alert for the peer, which a reset could destroy.
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
        if !self.app_reads() {
            self.plain.clear();
            return false;
        }
        let is_partial = self.has_partial_record();
        let begins_record = !mem::replace(&mut self.partial_notified, is_partial) && is_partial;
        let has_news =
            self.plain.len() > had || self.eof != had_eof || self.resumed || begins_record;
        let call = has_news && !self.paused;
        self.resumed &= !call;
        call
    }

    /// Returns whether what the mechanism has is not decoded yet.
    pub(super) fn has_undecoded(&self, rx: &Rx<'_>) -> bool {
        !rx.bytes().is_empty() || rx.eof() && !self.eof
    }

    /// Returns whether the application reads, now or after a pause.
    pub(super) fn app_reads(&self) -> bool {
        self.reason.is_none() && matches!(self.closing, None | Some(Close::Half))
    }

    /// Returns whether decoded bytes, or their end, wait for the application.
    pub(super) fn has_unread(&self) -> bool {
        self.app_reads() && (!self.plain.is_empty() || self.eof && !self.eof_notified)
    }

    /// Returns whether no bytes are pending, so that only the application knows whether it is idle. The mechanism does not
    /// know of those that are decoded or not sealed.
    pub(super) fn is_quiet(&self) -> bool {
        let has_bytes = !self.plain.is_empty() || !self.queue.is_empty() || self.is_partial();
        self.app_may_send() && !self.paused && !self.eof && !has_bytes
    }

    /// Returns whether the peer has sent a part of something.
    fn is_partial(&self) -> bool {
        self.reason.is_none() && !self.eof && self.transform.is_partial()
    }

    /// Returns whether the peer has sent a part of a record for the application, after the handshake.
    pub(super) fn has_partial_record(&self) -> bool {
        self.transform.ready() && self.is_partial()
    }

    /// Returns whether bytes for the application follow what the peer has sent: the rest of a part, or the first ones
    /// after a handshake, which it made for them.
    fn awaits_bytes(&self) -> bool {
        let is_first = self.arrived == Arrived::Wire && self.reason.is_none() && !self.eof;
        is_first || self.is_partial()
    }

    /// Defers a stop while bytes for the application follow. Returns whether it does.
    pub(super) fn defer_stop(&mut self) -> bool {
        self.stops = self.awaits_bytes();
        self.stops
    }

    /// Returns whether a stop was deferred whose reason is gone.
    pub(super) fn take_stop(&mut self) -> bool {
        let is_due = self.stops && !self.awaits_bytes();
        self.stops &= !is_due;
        is_due && self.app_reads()
    }

    /// Returns whether the application may still send.
    fn app_may_send(&self) -> bool {
        self.reason.is_none() && self.closing.is_none()
    }

    /// Returns whether the application waits for more bytes.
    pub(super) fn wants_more(&self) -> bool {
        self.app_reads() && !self.paused && !self.eof
    }

    /// Returns whether the application receives. A handshake does even if the application has paused.
    pub(super) fn is_receiving(&self) -> bool {
        self.app_reads() && !self.paused
    }

    /// Pauses or resumes receiving.
    pub(super) fn receive(&mut self, io: &mut dyn Commands, on: bool) {
        if self.paused != on {
            return;
        }
        (self.paused, self.resumed) = (!on, on);
        if self.transform.ready() {
            io.set_receiving(self.id, on);
        } else if on {
            // A handshake receives even if the application has paused. The mechanism must see a resume to
            // call the application.
            io.set_receiving(self.id, false);
            io.set_receiving(self.id, true);
        }
    }

    pub(super) fn close(&mut self, io: &mut dyn Commands, how: Close) {
        if abruptness(Some(how)) <= abruptness(self.closing) {
            return;
        }
        self.closing = Some(how);
        if how == Close::Reset {
            self.drop_queue();
        }
        self.pump(io);
        if self.is_flushing() {
            self.unsent = None;
            io.set_deadline(self.id, Some(io.now() + Pace::FIRST_CHECK));
        }
    }

    /// Returns whether the application has closed the connection, and the layer has not, as bytes are to be sealed
    /// first.
    pub(super) fn is_flushing(&self) -> bool {
        matches!(self.closing, Some(Close::Flush | Close::Linger))
            && abruptness(self.closed) < abruptness(self.closing)
    }

    /// Resets a connection that closes if the peer receives too slowly, or does not go on with the handshake.
    pub(super) fn check_progress(&mut self, io: &mut dyn Commands, pace: Pace) {
        // The difference is right without the upper bits.
        let unsent = (self.unsealed() as u64).wrapping_add(io.unsent_bytes(self.id));
        let before = self.unsent.replace(unsent);
        let sent = before.map(|before| before.wrapping_sub(unsent).cast_signed().max(0));
        if sent.is_some_and(|sent| (sent as u128) < pace.min_bytes) {
            let reason = CloseReason::Failed(ErrorKind::TimedOut.into());
            return self.fail(io, reason, Close::Reset);
        }
        io.set_deadline(self.id, Some(io.now() + pace.interval));
    }

    /// Ends the session of a connection that has closed. Returns the reason if it is one of the layer.
    pub(super) fn end(&mut self) -> Option<CloseReason> {
        self.drop_queue();
        (self.closing, self.closed) = (Some(Close::Reset), Some(Close::Reset));
        self.reason.take()
    }

    /// Executes the requested close once all bytes are sealed. A handshake ends before a half-close, since it needs
    /// both directions.
    fn finish(&mut self, io: &mut dyn Commands) {
        let Some(how) = self.closing else { return };
        let is_early = how == Close::Half && !self.transform.ready();
        if is_early || abruptness(Some(how)) <= abruptness(self.closed) {
            return;
        }
        if self.closed.is_none() && how != Close::Reset {
            self.transform.end();
            self.flush(io);
        }
        self.closed = Some(how);
        io.close(self.id, how);
        self.end_half_close(io);
    }

    /// Closes a half-closed connection once the application has got all bytes and their end. The peer may have announced the
    /// end without shutting down its sending side, for which the mechanism would wait.
    pub(super) fn end_half_close(&mut self, io: &mut dyn Commands) {
        let left = self.resumed || self.paused && !self.plain.is_empty();
        if self.closed == Some(Close::Half) && self.app_reads() && self.eof_notified && !left {
            self.close(io, Close::Linger);
        }
    }

    /// Closes the connection for a reason of the layer.
    pub(super) fn fail(&mut self, io: &mut dyn Commands, reason: CloseReason, how: Close) {
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
