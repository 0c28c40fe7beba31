//! Writing replies.

use std::io::Write;
use std::time::SystemTime;

use bytes::Bytes;
use multiplex::{Chunk, Close, Commands, Conn, Meta};

use crate::clock::{Clock, Stamp, stamp};
use crate::request::Persist;
use crate::status::Status;

/// How a reply is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Whether the body is sent, which it isn't in reply to HEAD.
    pub(crate) body: bool,
    /// Whether the connection goes on.
    pub(crate) persist: Persist,
    /// How it ends if it doesn't.
    pub(crate) close: Close,
}

impl Manner {
    /// The connection ends, whatever was asked for. What the client still sends is dropped, so
    /// that it does not destroy the reply.
    pub(crate) fn ending(self) -> Self {
        Manner { persist: Persist::Ends, close: Close::Linger, ..self }
    }

    /// Ends the connection if it is to end.
    /// Returns whether it goes on.
    pub(crate) fn finish(self, io: &mut impl Commands, to: Conn) -> bool {
        if self.persist == Persist::Ends {
            io.close(to, self.close);
            return false;
        }
        true
    }

    fn connection(self) -> &'static [u8] {
        match self.persist {
            Persist::Implied => b"",
            Persist::Stated => b"Connection: keep-alive\r\n",
            Persist::Ends => b"Connection: close\r\n",
        }
    }
}

/// What the head of a reply says after the first line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) content_type: &'a str,
    pub(crate) modified: Option<SystemTime>,
    pub(crate) len: u64,
}

impl<'a> About<'a> {
    /// What to say of a file at the time `wall`.
    pub(crate) fn file(content_type: &'a str, meta: Meta, wall: SystemTime) -> Self {
        // A time in the future would be a lie about this reply (RFC 9110, section 8.8.2.1).
        About { content_type, modified: Some(meta.modified().min(wall)), len: meta.len }
    }
}

/// Where in a head the Date is.
const fn date_at(status_line: usize) -> usize {
    status_line + b"Date: ".len()
}

/// The length of `HTTP/1.1 200 OK` with its line end.
const OK_LINE: usize = b"HTTP/1.1 200 OK\r\n".len();

/// Writes a head without its last, empty line.
pub(crate) fn head(out: &mut Vec<u8>, status: Status, date: &Stamp, about: About<'_>) {
    put(out, format_args!("HTTP/1.1 {} {}\r\nDate: ", status.0, status.1));
    out.extend_from_slice(date);
    out.extend_from_slice(concat!("\r\nServer: httpd/", env!("CARGO_PKG_VERSION")).as_bytes());
    if let Some(time) = about.modified {
        out.extend_from_slice(b"\r\nLast-Modified: ");
        out.extend_from_slice(&stamp(time));
    }
    put(out, format_args!("\r\nContent-Type: {}", about.content_type));
    put(out, format_args!("\r\nContent-Length: {}\r\n", about.len));
}

/// Writes the rest of a head.
pub(crate) fn end_head(out: &mut Vec<u8>, manner: Manner) {
    out.extend_from_slice(manner.connection());
    out.extend_from_slice(b"\r\n");
}

/// Appends formatted text; a vector takes everything.
pub(crate) fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// A reply of 200 that is ready to be sent over and over, but for its Date.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The head as HTTP/1.1 wants it while the connection goes on; a short body follows.
    bytes: Vec<u8>,
    /// Length of the head.
    head: usize,
    /// A body that is not short, to be sent from where it is.
    body: Bytes,
    /// Of which second the Date is.
    seconds: u64,
}

impl Ready {
    /// Bodies up to this length are copied behind their head: one copy of so few bytes costs
    /// less than a second piece in the list that the kernel walks.
    pub(crate) const SHORT: usize = 4096;

    /// Prepares a reply. `about.len` is taken from `body`.
    pub(crate) fn new(about: About<'_>, body: &[u8], clock: &Clock) -> Self {
        let mut bytes = Vec::with_capacity(256);
        head(&mut bytes, Status::OK, clock.stamp(), About { len: body.len() as u64, ..about });
        bytes.extend_from_slice(b"\r\n");
        let head = bytes.len();
        let is_short = body.len() <= Self::SHORT;
        bytes.extend_from_slice(if is_short { body } else { b"" });
        bytes.shrink_to_fit();
        let body = if is_short { Bytes::new() } else { Bytes::copy_from_slice(body) };
        Ready { bytes, head, body, seconds: clock.seconds() }
    }

    /// Bytes of memory.
    pub(crate) fn weight(&self) -> usize {
        self.bytes.len() + self.body.len()
    }

    /// Sends the reply; returns how many bytes are queued now.
    #[inline]
    pub(crate) fn send(
        &mut self,
        io: &mut impl Commands,
        to: Conn,
        clock: &Clock,
        manner: Manner,
    ) -> usize {
        if self.seconds != clock.seconds() {
            self.bytes[date_at(OK_LINE)..][..clock.stamp().len()].copy_from_slice(clock.stamp());
            self.seconds = clock.seconds();
        }
        if !(manner.body && manner.persist == Persist::Implied) {
            return self.send_otherwise(io, to, manner);
        }
        let queued = io.send(to, Chunk::Copy(&self.bytes));
        if self.body.is_empty() { queued } else { io.send(to, Chunk::Shared(self.body.clone())) }
    }

    /// Sends the reply to HEAD, or with a Connection field, which comes last in the head.
    fn send_otherwise(&self, io: &mut impl Commands, to: Conn, manner: Manner) -> usize {
        let (head, short) = self.bytes.split_at(self.head);
        io.send(to, Chunk::Copy(&head[..self.head - b"\r\n".len()]));
        io.send(to, Chunk::Copy(manner.connection()));
        let mut queued = io.send(to, Chunk::Copy(b"\r\n"));
        if manner.body {
            queued = io.send(to, Chunk::Copy(short));
            if !self.body.is_empty() {
                queued = io.send(to, Chunk::Shared(self.body.clone()));
            }
        }
        manner.finish(io, to);
        queued
    }
}
