//! Writing replies.

use std::io::Write;
use std::ops::Range;

use bytes::Bytes;
use evring::{Chunk, Close, Commands, ConnId, File};

use crate::clock::{Clock, stamp};
use crate::coding::Coding;
use crate::conditions::Validators;
use crate::request::Persistence;
use crate::respond::ResponseWriter;
use crate::status::Status;

/// How a reply is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseOptions {
    /// Whether the body is sent, which it isn't in reply to HEAD.
    pub(crate) body: bool,
    /// Whether the connection goes on.
    pub(crate) persistence: Persistence,
    /// How it ends if it doesn't.
    pub(crate) close: Close,
    /// Whether the client speaks HTTP/1.0.
    pub(crate) is_http10: bool,
}

impl ResponseOptions {
    /// That of a reply to what is no request, or not in time.
    pub(crate) fn last(body: bool) -> Self {
        ResponseOptions {
            body,
            persistence: Persistence::Close,
            close: Close::Linger,
            is_http10: false,
        }
    }

    /// The connection ends, whatever was asked for. What the client still sends is dropped, so
    /// that it does not destroy the reply.
    pub(crate) fn ending(self) -> Self {
        ResponseOptions { persistence: Persistence::Close, close: Close::Linger, ..self }
    }

    /// Ends the connection if it is to end.
    /// Returns whether it goes on.
    pub(crate) fn finish(self, io: &mut impl Commands, to: ConnId) -> bool {
        if self.persistence == Persistence::Close {
            io.close(to, self.close);
            return false;
        }
        true
    }

    fn connection(self) -> &'static [u8] {
        match self.persistence {
            Persistence::Implicit => b"",
            Persistence::Explicit => b"Connection: keep-alive\r\n",
            Persistence::Close => b"Connection: close\r\n",
        }
    }
}

/// What the head of a reply says of the file that it is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct RepresentationHeaders {
    pub(crate) content_type: String,
    /// Nothing for what can't be asked for again on a condition.
    pub(crate) validators: Option<Validators>,
    pub(crate) coding: Option<Coding>,
    /// Whether another client might get another coding.
    pub(crate) varies: bool,
    pub(crate) caching: Caching,
}

/// What is said of how long others may keep a reply.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Caching {
    #[default]
    Unsaid,
    /// Not at all, as it is another the next moment.
    Not,
    /// So many seconds without asking.
    Seconds(u32),
}

impl RepresentationHeaders {
    /// Something of that type.
    pub(crate) fn plain(content_type: &str) -> Self {
        RepresentationHeaders {
            content_type: content_type.to_owned(),
            ..RepresentationHeaders::default()
        }
    }

    /// Writes the fields that also a reply without the file has (RFC 9110, section 15.4.5).
    pub(crate) fn put_validators(&self, out: &mut Vec<u8>) {
        if let Some(Validators { etag, modified, .. }) = &self.validators {
            if let Some(modified) = modified {
                out.extend_from_slice(b"Last-Modified: ");
                out.extend_from_slice(&stamp(*modified));
                out.extend_from_slice(b"\r\n");
            }
            if let Some(etag) = etag {
                put(out, format_args!("ETag: {etag}\r\n"));
            }
        }
        if self.varies {
            out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
        }
        match self.caching {
            Caching::Unsaid => {}
            Caching::Not => out.extend_from_slice(b"Cache-Control: no-store\r\n"),
            Caching::Seconds(n) => put(out, format_args!("Cache-Control: max-age={n}\r\n")),
        }
    }

    fn put_all(&self, out: &mut Vec<u8>) {
        self.put_validators(out);
        if self.validators.is_some() {
            out.extend_from_slice(b"Accept-Ranges: bytes\r\n");
        }
        if let Some(coding) = self.coding {
            put(out, format_args!("Content-Encoding: {}\r\n", coding.name()));
        }
    }

    fn put_type(&self, out: &mut Vec<u8>) {
        put(out, format_args!("Content-Type: {}\r\n", self.content_type));
    }
}

const OK_LINE: &[u8] = b"HTTP/1.1 200 OK\r\n";

/// Writes the first lines of a head.
pub(crate) fn begin_head(out: &mut Vec<u8>, status: Status, clock: &Clock) {
    if status == Status::OK {
        out.extend_from_slice(OK_LINE);
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        put_number(out, status.0.into());
        out.push(b' ');
        out.extend_from_slice(status.1.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(clock.fields());
}

/// Writes the rest of a head.
pub(crate) fn end_head(out: &mut Vec<u8>, options: ResponseOptions) {
    out.extend_from_slice(options.connection());
    out.extend_from_slice(b"\r\n");
}

/// Writes a Content-Length.
pub(crate) fn put_length(out: &mut Vec<u8>, len: u64) {
    out.extend_from_slice(b"Content-Length: ");
    put_number(out, len);
    out.extend_from_slice(b"\r\n");
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends formatted text; a vector takes everything.
pub(crate) fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// What a reply has to give.
#[derive(Debug)]
pub(crate) enum Content {
    /// It is short, or made for one client, and stands behind the head.
    Short,
    /// To be sent from where it is.
    Memory(Bytes),
    /// An open file.
    File(File),
}

/// A reply of 200 that is ready to be sent over and over, but for its Date.
#[derive(Debug)]
pub(crate) struct PreparedResponse {
    /// The head as HTTP/1.1 wants it while the connection goes on; a short body follows.
    bytes: Vec<u8>,
    /// Length of the head.
    head: usize,
    content: Content,
    len: u64,
    pub(crate) representation: RepresentationHeaders,
    /// Of which turn of the clock the Date is.
    turns: u64,
}

impl PreparedResponse {
    /// Bodies up to this length are copied behind their head: one copy of so few bytes costs
    /// less than a second piece in the list that the kernel walks.
    pub(crate) const SHORT: usize = 4096;

    /// Prepares a reply from memory.
    pub(crate) fn new(representation: RepresentationHeaders, body: &[u8], clock: &Clock) -> Self {
        if body.len() > Self::SHORT {
            let content = Content::Memory(Bytes::copy_from_slice(body));
            return Self::with(representation, content, body.len() as u64, clock);
        }
        Self::once(representation, body, clock)
    }

    /// Prepares a reply that is sent to one client only. It is copied, so what waits of it counts as held
    /// for its connection.
    pub(crate) fn once(representation: RepresentationHeaders, body: &[u8], clock: &Clock) -> Self {
        let mut prepared = Self::with(representation, Content::Short, body.len() as u64, clock);
        prepared.bytes.extend_from_slice(body);
        prepared.bytes.shrink_to_fit();
        prepared
    }

    /// Prepares a reply from a file of `len` bytes.
    pub(crate) fn from_file(
        representation: RepresentationHeaders,
        file: File,
        len: u64,
        clock: &Clock,
    ) -> Self {
        Self::with(representation, Content::File(file), len, clock)
    }

    fn with(
        representation: RepresentationHeaders,
        content: Content,
        len: u64,
        clock: &Clock,
    ) -> Self {
        let mut bytes = Vec::with_capacity(384);
        begin_head(&mut bytes, Status::OK, clock);
        representation.put_all(&mut bytes);
        representation.put_type(&mut bytes);
        put_length(&mut bytes, len);
        bytes.extend_from_slice(b"\r\n");
        let head = bytes.len();
        PreparedResponse { bytes, head, content, len, representation, turns: clock.turns() }
    }

    /// Bytes of memory.
    pub(crate) fn weight(&self) -> usize {
        let content = match &self.content {
            Content::Short | Content::File(_) => 0,
            Content::Memory(bytes) => bytes.len(),
        };
        self.bytes.len() + content
    }

    /// Whether a file is kept open for it.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.content, Content::File(_))
    }

    /// Whether a file is open for it and for nobody else.
    pub(crate) fn is_open_and_idle(&self) -> bool {
        matches!(&self.content, Content::File(file) if !file.is_shared())
    }

    /// Length of the body.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Sends the reply; returns how many bytes are queued now.
    #[inline]
    pub(crate) fn send(
        &mut self,
        io: &mut impl Commands,
        to: ConnId,
        clock: &Clock,
        options: ResponseOptions,
    ) -> usize {
        if self.turns != clock.turns() {
            self.bytes[OK_LINE.len()..][..clock.fields().len()].copy_from_slice(clock.fields());
            self.turns = clock.turns();
        }
        if !(options.body && options.persistence == Persistence::Implicit) {
            return self.send_otherwise(io, to, options);
        }
        let queued = io.send(to, Chunk::Copy(&self.bytes));
        match &self.content {
            Content::Short => queued,
            Content::Memory(bytes) => io.send(to, Chunk::Shared(bytes.clone())),
            Content::File(file) => io.send(to, Chunk::File(file.clone(), 0..self.len)),
        }
    }

    /// Sends the reply to HEAD, or with a Connection field, which comes last in the head.
    fn send_otherwise(
        &self,
        io: &mut impl Commands,
        to: ConnId,
        options: ResponseOptions,
    ) -> usize {
        io.send(to, Chunk::Copy(&self.bytes[..self.head - b"\r\n".len()]));
        io.send(to, Chunk::Copy(options.connection()));
        let mut queued = io.send(to, Chunk::Copy(b"\r\n"));
        if options.body {
            queued = self.send_part(io, to, 0..self.len);
        }
        options.finish(io, to);
        queued
    }

    /// Sends part of the body; returns how many bytes are queued now.
    fn send_part(&self, io: &mut impl Commands, to: ConnId, part: Range<u64>) -> usize {
        let within = part.start as usize..part.end as usize;
        match &self.content {
            Content::Short => io.send(to, Chunk::Copy(&self.bytes[self.head..][within])),
            Content::Memory(bytes) => io.send(to, Chunk::Shared(bytes.slice(within))),
            Content::File(file) => io.send(to, Chunk::File(file.clone(), part)),
        }
    }

    /// Sends one part of the body with 206; returns how many bytes are queued now, and the length of
    /// the reply's body.
    pub(crate) fn send_one(
        &self,
        io: &mut impl Commands,
        to: ConnId,
        writer: ResponseWriter<'_>,
        options: ResponseOptions,
        part: Range<u64>,
    ) -> (usize, u64) {
        let out = writer.out;
        out.clear();
        begin_head(out, Status::PARTIAL, writer.clock);
        self.representation.put_all(out);
        self.representation.put_type(out);
        self.put_range(out, &part);
        let len = part.end - part.start;
        put_length(out, len);
        end_head(out, options);
        io.send(to, Chunk::Copy(out));
        let queued = self.send_part(io, to, part);
        options.finish(io, to);
        (queued, len)
    }

    /// Sends several parts of the body with 206, each with a head of its own (RFC 9110, section
    /// 14.6); returns how many bytes are queued now, and the length of the reply's body.
    pub(crate) fn send_several(
        &self,
        io: &mut impl Commands,
        to: ConnId,
        writer: ResponseWriter<'_>,
        options: ResponseOptions,
        parts: Vec<Range<u64>>,
    ) -> (usize, u64) {
        let boundary = io.random();
        let mut heads = Vec::new();
        let mut ends = Vec::new();
        let mut len = 0;
        for part in &parts {
            put(&mut heads, format_args!("\r\n--{boundary:016x}\r\n"));
            self.representation.put_type(&mut heads);
            self.put_range(&mut heads, part);
            heads.extend_from_slice(b"\r\n");
            ends.push(heads.len());
            len += part.end - part.start;
        }
        put(&mut heads, format_args!("\r\n--{boundary:016x}--\r\n"));
        len += heads.len() as u64;

        let out = writer.out;
        out.clear();
        begin_head(out, Status::PARTIAL, writer.clock);
        self.representation.put_all(out);
        put(out, format_args!("Content-Type: multipart/byteranges; boundary={boundary:016x}\r\n"));
        put_length(out, len);
        end_head(out, options);
        io.send(to, Chunk::Copy(out));
        let mut start = 0;
        for (part, end) in parts.into_iter().zip(ends) {
            io.send(to, Chunk::Copy(&heads[start..end]));
            self.send_part(io, to, part);
            start = end;
        }
        let queued = io.send(to, Chunk::Copy(&heads[start..]));
        options.finish(io, to);
        (queued, len)
    }

    fn put_range(&self, out: &mut Vec<u8>, part: &Range<u64>) {
        let (first, last, len) = (part.start, part.end - 1, self.len);
        put(out, format_args!("Content-Range: bytes {first}-{last}/{len}\r\n"));
    }
}
