//! TCP connections: two ends, and a bounded stream each way.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) connection: u32,
    /// 0 for the end that has opened the connection, 1 for the other.
    pub(super) side: u8,
}

impl End {
    pub(super) fn other(self) -> End {
        End { side: 1 - self.side, ..self }
    }
}

/// Whose an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A descriptor of the program.
    Descriptor(u32),
    /// A peer.
    Peer(u32),
    /// Nobody yet: it waits to be accepted.
    Queue,
    /// Nobody any more.
    Closed,
}

/// What one end has sent and the other has not received.
#[derive(Debug, Default)]
struct Stream {
    /// Oldest first; the first `arrived` of them have reached the other end.
    bytes: VecDeque<u8>,
    arrived: usize,
    /// No more will be sent.
    finished: bool,
    /// Most bytes that have not arrived, and that have.
    room: usize,
    window: usize,
    /// The sender has found no room, and is to be told when there is some.
    wants_room: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    streams: [Stream; 2],
    pub(super) owners: [Owner; 2],
    /// What the next call of an end fails with.
    errors: [Option<Errno>; 2],
    broken: bool,
    /// Something went wrong on purpose that may end it early.
    pub(super) is_disrupted: bool,
    /// A peer was slow enough for a server to lose its patience.
    pub(super) has_stalled: bool,
    pub(super) address: [SocketAddr; 2],
    /// When something last arrived at each end; at first, when it was made.
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

    /// How much an end can send.
    pub(super) fn room(&self, side: u8) -> usize {
        let stream = &self.streams[usize::from(side)];
        stream.room - (stream.bytes.len() - stream.arrived)
    }

    /// How much an end can receive.
    pub(super) fn readable(&self, side: u8) -> usize {
        self.streams[usize::from(1 - side)].arrived
    }

    /// Whether an end has received all that there will be.
    pub(super) fn at_end(&self, side: u8) -> bool {
        let stream = &self.streams[usize::from(1 - side)];
        self.broken || stream.finished && stream.bytes.is_empty()
    }

    pub(super) fn has_error(&self, side: u8) -> bool {
        self.errors[usize::from(side)].is_some()
    }

    /// Whether a call would have something to say to a reader.
    pub(super) fn can_read(&self, side: u8) -> bool {
        self.readable(side) > 0 || self.at_end(side) || self.has_error(side)
    }

    /// Whether a writer is told that there is room: when a third is free, as on Linux.
    pub(super) fn can_write(&self, side: u8) -> bool {
        let third = self.streams[usize::from(side)].room.div_ceil(3);
        self.broken || self.has_error(side) || self.room(side) >= third
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Sends what there is room for of `bytes`.
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
            stream.wants_room = true;
        }
        if n == 0 && !bytes.is_empty() { Err(Errno::AGAIN) } else { Ok(n) }
    }

    /// Receives up to `max` bytes; 0 at the end of the stream.
    pub(super) fn receive(
        &mut self,
        side: u8,
        max: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<usize, Errno> {
        let n = self.readable(side).min(max);
        if n == 0 {
            // Whoever was told of the end is told of nothing else.
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

    /// Bytes on their way that the other end has room for.
    pub(super) fn under_way(&self, side: u8) -> usize {
        let stream = &self.streams[usize::from(side)];
        (stream.bytes.len() - stream.arrived).min(stream.window - stream.arrived)
    }

    /// Bytes that were sent and have not arrived.
    pub(super) fn unacked_bytes(&self, side: u8) -> usize {
        let stream = &self.streams[usize::from(side)];
        stream.bytes.len() - stream.arrived
    }

    /// Lets bytes of one end arrive at the other; whether the sender is to be told of room.
    pub(super) fn deliver(&mut self, side: u8, n: usize) -> bool {
        self.streams[usize::from(side)].arrived += n;
        let told = self.streams[usize::from(side)].wants_room && self.can_write(side);
        if told {
            self.streams[usize::from(side)].wants_room = false;
        }
        told
    }

    /// Asks to be told of room, if there is none.
    pub(super) fn ask_for_room(&mut self, side: u8) {
        if !self.can_write(side) {
            self.streams[usize::from(side)].wants_room = true;
        }
    }

    /// An end will send no more.
    pub(super) fn finish(&mut self, side: u8) {
        self.streams[usize::from(side)].finished |= !self.broken;
    }

    pub(super) fn is_finished(&self, side: u8) -> bool {
        self.streams[usize::from(side)].finished
    }

    /// The connection breaks. What has arrived can still be received; what is under way is lost.
    /// The ends in `told` learn of it by an error.
    pub(super) fn reset(&mut self, told: [bool; 2]) {
        if self.broken {
            return;
        }
        self.broken = true;
        for stream in &mut self.streams {
            // An end behind what is lost is lost too.
            stream.finished &= stream.bytes.len() == stream.arrived;
            stream.bytes.truncate(stream.arrived);
        }
        let ended = [self.streams[1].finished, self.streams[0].finished];
        for ((error, told), ended) in self.errors.iter_mut().zip(told).zip(ended) {
            if told {
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
        assert_eq!(c.under_way(0), 6);
        assert!(c.deliver(0, 6), "there is room again");
        assert_eq!(receive(&mut c, 1, 4), Ok(b"0123".to_vec()));
        assert_eq!(c.send(0, b"9abcdef"), Ok(6));
        assert_eq!(c.unacked_bytes(0), 9);
        c.finish(0);
        while c.unacked_bytes(0) > 0 {
            let n = c.under_way(0);
            c.deliver(0, n);
            assert!(!receive(&mut c, 1, 9).unwrap().is_empty());
        }
        assert_eq!(receive(&mut c, 1, 9), Ok(Vec::new()));
        assert_eq!(c.send(0, b"x"), Err(Errno::PIPE));
        assert_eq!(c.send(1, b"x"), Ok(1), "the other half is open");
    }

    #[test]
    fn behind_the_end_only_a_sender_learns_of_a_reset() {
        let mut c = connection();
        c.finish(1);
        c.send(0, b"abc").unwrap();
        c.reset([true, false]);
        assert_eq!(receive(&mut c, 0, 9), Ok(Vec::new()));
        assert_eq!(c.send(0, b"x"), Err(Errno::PIPE));
    }

    #[test]
    fn an_end_that_is_under_way_is_lost_with_the_connection() {
        let mut c = connection();
        c.send(1, b"abc").unwrap();
        c.finish(1);
        c.reset([true, true]);
        c.finish(1);
        assert_eq!(receive(&mut c, 0, 9), Err(Errno::CONNRESET));
    }

    #[test]
    fn a_reset_loses_what_is_under_way() {
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
