//! TCP connections: two ends, and a bounded stream in each direction.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) connection: u32,
    /// 0 for the end that opened the connection, 1 for the other.
    pub(super) side: u8,
}

impl End {
    pub(super) fn other(self) -> End {
        End { side: 1 - self.side, ..self }
    }
}

/// The owner of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A descriptor of the program.
    Descriptor(u32),
    Peer(u32),
    /// None yet: the connection is queued for accept.
    Queue,
    /// None any more.
    Closed,
}

/// Bytes that one end has sent and the other has not received.
#[derive(Debug, Default)]
struct Stream {
    /// Oldest first; the first `arrived` of them have reached the other end.
    bytes: VecDeque<u8>,
    arrived: usize,
    /// The sending side is shut down.
    finished: bool,
    /// Maximum number of bytes in transit, and of bytes arrived.
    room: usize,
    window: usize,
    /// Number of bytes in transit from which on the sender has no room.
    unsent_limit: Option<usize>,
    /// The sender is notified when there is room.
    writable_armed: bool,
}

impl Stream {
    /// Maximum number of bytes in transit.
    fn capacity(&self) -> usize {
        self.unsent_limit.map_or(self.room, |limit| limit.min(self.room))
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    streams: [Stream; 2],
    pub(super) owners: [Owner; 2],
    /// Error of the next call at each end.
    errors: [Option<Errno>; 2],
    broken: bool,
    /// A fault may end it early.
    pub(super) is_disrupted: bool,
    /// A peer stalled, possibly beyond a timeout of the server.
    pub(super) has_stalled: bool,
    pub(super) address: [SocketAddr; 2],
    /// Time of the last arrival at each end; initially the time of the connect.
    pub(super) last_activity: [Duration; 2],
}

impl Connection {
    pub(super) fn new(
        address: [SocketAddr; 2],
        room: [usize; 2],
        window: [usize; 2],
        now: Duration,
    ) -> Self {
        let stream =
            |side: usize| Stream { room: room[side], window: window[side], ..Stream::default() };
        Connection {
            streams: [stream(0), stream(1)],
            owners: [Owner::Closed, Owner::Queue],
            errors: [None, None],
            broken: false,
            is_disrupted: false,
            has_stalled: false,
            address,
            last_activity: [now; 2],
        }
    }

    /// Returns the number of bytes that an end can send.
    pub(super) fn room(&self, side: u8) -> usize {
        let stream = &self.streams[usize::from(side)];
        let unacked = stream.bytes.len() - stream.arrived;
        stream.capacity().saturating_sub(unacked)
    }

    /// Returns the number of bytes that an end can receive.
    pub(super) fn readable_bytes(&self, side: u8) -> usize {
        self.streams[usize::from(1 - side)].arrived
    }

    /// Returns whether an end has received everything.
    pub(super) fn at_end(&self, side: u8) -> bool {
        let stream = &self.streams[usize::from(1 - side)];
        self.broken || stream.finished && stream.bytes.is_empty()
    }

    pub(super) fn has_error(&self, side: u8) -> bool {
        self.errors[usize::from(side)].is_some()
    }

    /// Returns whether a receive would not block.
    pub(super) fn is_readable(&self, side: u8) -> bool {
        self.readable_bytes(side) > 0 || self.at_end(side) || self.has_error(side)
    }

    /// Returns whether an end is writable: a third of the buffer is free, as on Linux.
    pub(super) fn is_writable(&self, side: u8) -> bool {
        let stream = &self.streams[usize::from(side)];
        let has_room = self.room(side) >= stream.capacity().div_ceil(3);
        self.broken || self.has_error(side) || has_room
    }

    /// Sets the number of bytes in transit from which on an end has no room; 0 for none.
    pub(super) fn set_unsent_limit(&mut self, side: u8, bytes: usize) {
        self.streams[usize::from(side)].unsent_limit = (bytes > 0).then_some(bytes);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Sends as many of `bytes` as there is room for.
    pub(super) fn send(&mut self, side: u8, bytes: &[u8]) -> Result<usize, Errno> {
        if let Some(error) = self.errors[usize::from(side)].take() {
            return Err(error);
        }
        if self.broken || self.streams[usize::from(side)].finished {
            return Err(Errno::PIPE);
        }
        let n = bytes.len().min(self.room(side));
        let stream = &mut self.streams[usize::from(side)];
        stream.bytes.extend(&bytes[..n]);
        if n < bytes.len() {
            stream.writable_armed = true;
        }
        if n == 0 && !bytes.is_empty() { Err(Errno::AGAIN) } else { Ok(n) }
    }

    /// Receives at most `max` bytes; 0 at the end of the stream.
    pub(super) fn receive(
        &mut self,
        side: u8,
        max: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<usize, Errno> {
        let n = self.readable_bytes(side).min(max);
        if n == 0 {
            // After the end of the stream, no error is reported.
            let stream = &self.streams[usize::from(1 - side)];
            if stream.finished && stream.bytes.is_empty() {
                return Ok(0);
            }
            let error = self.errors[usize::from(side)].take();
            return match error {
                Some(error) => Err(error),
                None if self.at_end(side) => Ok(0),
                None => Err(Errno::AGAIN),
            };
        }
        let stream = &mut self.streams[usize::from(1 - side)];
        let (head, tail) = stream.bytes.as_slices();
        let first = n.min(head.len());
        take(&head[..first]);
        if first < n {
            take(&tail[..n - first]);
        }
        stream.bytes.drain(..n);
        stream.arrived -= n;
        Ok(n)
    }

    /// Returns the number of bytes in transit for which the other end has room.
    pub(super) fn in_transit(&self, side: u8) -> usize {
        let stream = &self.streams[usize::from(side)];
        (stream.bytes.len() - stream.arrived).min(stream.window - stream.arrived)
    }

    /// Returns the number of bytes sent and not arrived.
    pub(super) fn unacked_bytes(&self, side: u8) -> usize {
        let stream = &self.streams[usize::from(side)];
        stream.bytes.len() - stream.arrived
    }

    /// Delivers bytes to the other end. Returns whether the sender must be notified that it is
    /// writable.
    pub(super) fn deliver(&mut self, side: u8, n: usize) -> bool {
        self.streams[usize::from(side)].arrived += n;
        let notified = self.streams[usize::from(side)].writable_armed && self.is_writable(side);
        if notified {
            self.streams[usize::from(side)].writable_armed = false;
        }
        notified
    }

    /// Requests a notification when the end becomes writable, unless it is.
    pub(super) fn arm_writable(&mut self, side: u8) {
        if !self.is_writable(side) {
            self.streams[usize::from(side)].writable_armed = true;
        }
    }

    pub(super) fn finish(&mut self, side: u8) {
        self.streams[usize::from(side)].finished |= !self.broken;
    }

    /// Returns whether the end of the other side's stream has arrived.
    pub(super) fn peer_has_ended(&self, side: u8) -> bool {
        self.is_finished(1 - side) && self.unacked_bytes(1 - side) == 0
    }

    pub(super) fn is_finished(&self, side: u8) -> bool {
        self.streams[usize::from(side)].finished
    }

    /// Breaks the connection. Bytes that have arrived can still be received; bytes in transit are
    /// lost. The ends in `notified` get an error.
    pub(super) fn reset(&mut self, notified: [bool; 2]) {
        if self.broken {
            return;
        }
        self.broken = true;
        for stream in &mut self.streams {
            // An end of the stream behind lost bytes is lost too.
            stream.finished &= stream.bytes.len() == stream.arrived;
            stream.bytes.truncate(stream.arrived);
        }
        let ended = [self.streams[1].finished, self.streams[0].finished];
        for ((error, notified), ended) in self.errors.iter_mut().zip(notified).zip(ended) {
            if notified {
                *error = Some(if ended { Errno::PIPE } else { Errno::CONNRESET });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Connection {
        let at = "127.0.0.1:1".parse().unwrap();
        Connection::new([at, at], [9, 9], [6, 6], Duration::ZERO)
    }

    fn receive(connection: &mut Connection, side: u8, max: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        connection.receive(side, max, |piece| bytes.extend_from_slice(piece))?;
        Ok(bytes)
    }

    #[test]
    fn bytes_arrive_in_order_and_within_bounds() {
        let mut c = connection();
        assert_eq!(c.send(0, b"0123456789"), Ok(9));
        assert_eq!(c.send(0, b"9"), Err(Errno::AGAIN));
        assert_eq!(receive(&mut c, 1, 9), Err(Errno::AGAIN), "nothing has arrived");
        assert_eq!(c.in_transit(0), 6);
        assert!(c.deliver(0, 6), "there is room again");
        assert_eq!(receive(&mut c, 1, 4), Ok(b"0123".to_vec()));
        assert_eq!(c.send(0, b"9abcdef"), Ok(6));
        assert_eq!(c.unacked_bytes(0), 9);
        c.finish(0);
        while c.unacked_bytes(0) > 0 {
            let n = c.in_transit(0);
            c.deliver(0, n);
            assert!(!receive(&mut c, 1, 9).unwrap().is_empty());
        }
        assert_eq!(receive(&mut c, 1, 9), Ok(Vec::new()));
        assert_eq!(c.send(0, b"x"), Err(Errno::PIPE));
        assert_eq!(c.send(1, b"x"), Ok(1), "the other half is open");
    }

    #[test]
    fn reset_after_eof_is_reported_only_to_sends() {
        let mut c = connection();
        c.finish(1);
        c.send(0, b"abc").unwrap();
        c.reset([true, false]);
        assert_eq!(receive(&mut c, 0, 9), Ok(Vec::new()));
        assert_eq!(c.send(0, b"x"), Err(Errno::PIPE));
    }

    #[test]
    fn eof_in_transit_is_lost_on_reset() {
        let mut c = connection();
        c.send(1, b"abc").unwrap();
        c.finish(1);
        c.reset([true, true]);
        c.finish(1);
        assert_eq!(receive(&mut c, 0, 9), Err(Errno::CONNRESET));
    }

    #[test]
    fn reset_loses_bytes_in_transit() {
        let mut c = connection();
        c.send(0, b"abcdef").unwrap();
        c.deliver(0, 2);
        c.reset([false, true]);
        assert_eq!(receive(&mut c, 1, 9), Ok(b"ab".to_vec()));
        assert_eq!(receive(&mut c, 1, 9), Err(Errno::CONNRESET));
        assert_eq!(receive(&mut c, 1, 9), Ok(Vec::new()));
        assert_eq!(c.send(0, b"x"), Err(Errno::PIPE));
    }
}
