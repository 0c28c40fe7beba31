//! Serialization of responses.

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

/// How a response is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseOptions {
    /// Whether the body is sent; false for HEAD.
    pub(crate) body: bool,
    /// Whether the connection stays open.
    pub(crate) persistence: Persistence,
    /// How the connection is closed, if it is.
    pub(crate) close: Close,
    /// Whether the request is HTTP/1.0.
    pub(crate) is_http10: bool,
}

impl ResponseOptions {
    /// Returns the options for a response to an invalid or late request: the connection closes.
    pub(crate) fn last(body: bool) -> Self {
        ResponseOptions {
            body,
            persistence: Persistence::Close,
            close: Close::Linger,
            is_http10: false,
        }
    }

    /// Returns the options with the connection closing afterwards. Bytes that the client still sends
    /// are discarded first, so that a reset does not destroy the response.
    pub(crate) fn ending(self) -> Self {
        ResponseOptions { persistence: Persistence::Close, close: Close::Linger, ..self }
    }

    /// Closes the connection if the options require it. Returns whether it stays open.
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

/// Header fields that describe a representation.
#[derive(Clone, Debug, Default)]
pub(crate) struct RepresentationHeaders {
    pub(crate) content_type: String,
    /// `None` if conditional requests are not supported.
    pub(crate) validators: Option<Validators>,
    pub(crate) coding: Option<Coding>,
    /// Whether another client may get another coding.
    pub(crate) varies: bool,
    pub(crate) caching: Caching,
}

/// The Cache-Control of a response.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Caching {
    #[default]
    /// No Cache-Control field.
    Unspecified,
    /// `no-store`, for content that changes with every response.
    NoStore,
    /// `max-age`, in seconds.
    MaxAge(u32),
}

impl RepresentationHeaders {
    pub(crate) fn plain(content_type: &str) -> Self {
        RepresentationHeaders {
            content_type: content_type.to_owned(),
            ..RepresentationHeaders::default()
        }
    }

    /// Writes the fields that a 304 has, too (RFC 9110, section 15.4.5).
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
            Caching::Unspecified => {}
            Caching::NoStore => out.extend_from_slice(b"Cache-Control: no-store\r\n"),
            Caching::MaxAge(n) => put(out, format_args!("Cache-Control: max-age={n}\r\n")),
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

/// Writes the status line and the fields of every response.
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

/// Writes the Connection field and the end of a head.
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

/// Appends formatted text; writing to a vector cannot fail.
pub(crate) fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// The body of a prepared response.
#[derive(Debug)]
pub(crate) enum Content {
    /// Stored after the head, as it is short or made for one client.
    Inline,
    /// Sent without a copy.
    Memory(Bytes),
    File(File),
}

/// A 200 response that can be sent repeatedly; only its Date is updated.
#[derive(Debug)]
pub(crate) struct PreparedResponse {
    /// The head for HTTP/1.1 without a Connection field; an inline body follows.
    bytes: Vec<u8>,
    /// Length of the head.
    head: usize,
    content: Content,
    len: u64,
    pub(crate) representation: RepresentationHeaders,
    /// The clock's tick count for the Date in `bytes`.
    ticks: u64,
}

impl PreparedResponse {
    /// Maximum length of a body that is copied after its head: one copy of so few bytes costs
    /// less than a second element in the kernel's I/O vector.
    pub(crate) const MAX_INLINE_BYTES: usize = 4096;

    /// Prepares a response from memory.
    pub(crate) fn new(representation: RepresentationHeaders, body: &[u8], clock: &Clock) -> Self {
        if body.len() > Self::MAX_INLINE_BYTES {
            let content = Content::Memory(Bytes::copy_from_slice(body));
            return Self::with(representation, content, body.len() as u64, clock);
        }
        Self::uncached(representation, body, clock)
    }

    /// Prepares a response for one client. Its body is copied, so unsent bytes count as buffered for
    /// the connection.
    pub(crate) fn uncached(
        representation: RepresentationHeaders,
        body: &[u8],
        clock: &Clock,
    ) -> Self {
        let mut prepared = Self::with(representation, Content::Inline, body.len() as u64, clock);
        prepared.bytes.extend_from_slice(body);
        prepared.bytes.shrink_to_fit();
        prepared
    }

    /// Prepares a response from a file of `len` bytes.
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
        PreparedResponse { bytes, head, content, len, representation, ticks: clock.ticks() }
    }

    /// Returns the bytes of memory for head and body.
    pub(crate) fn memory_bytes(&self) -> usize {
        let content = match &self.content {
            Content::Inline | Content::File(_) => 0,
            Content::Memory(bytes) => bytes.len(),
        };
        self.bytes.len() + content
    }

    /// Returns whether the body is an open file.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.content, Content::File(_))
    }

    /// Returns whether the body is an open file that is not being sent.
    pub(crate) fn is_open_and_idle(&self) -> bool {
        matches!(&self.content, Content::File(file) if !file.is_shared())
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Sends the response. Returns the number of bytes queued.
    #[inline]
    pub(crate) fn send(
        &mut self,
        io: &mut impl Commands,
        to: ConnId,
        clock: &Clock,
        options: ResponseOptions,
    ) -> usize {
        if self.ticks != clock.ticks() {
            self.bytes[OK_LINE.len()..][..clock.fields().len()].copy_from_slice(clock.fields());
            self.ticks = clock.ticks();
        }
        if !(options.body && options.persistence == Persistence::Implicit) {
            return self.send_with_changed_head(io, to, options);
        }
        let queued = io.send(to, Chunk::Copy(&self.bytes));
        match &self.content {
            Content::Inline => queued,
            Content::Memory(bytes) => io.send(to, Chunk::Shared(bytes.clone())),
            Content::File(file) => io.send(to, Chunk::File(file.clone(), 0..self.len)),
        }
    }

    /// Sends the response without a body (HEAD) or with a Connection field, the last one in the head.
    fn send_with_changed_head(
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

    /// Sends part of the body. Returns the number of bytes queued.
    fn send_part(&self, io: &mut impl Commands, to: ConnId, part: Range<u64>) -> usize {
        let within = part.start as usize..part.end as usize;
        match &self.content {
            Content::Inline => io.send(to, Chunk::Copy(&self.bytes[self.head..][within])),
            Content::Memory(bytes) => io.send(to, Chunk::Shared(bytes.slice(within))),
            Content::File(file) => io.send(to, Chunk::File(file.clone(), part)),
        }
    }

    /// Sends one part of the body with 206. Returns the number of bytes queued, and the length of
    /// the response's body.
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

    /// Sends several parts of the body with 206 as multipart/byteranges (RFC 9110, section 14.6).
    /// Returns the number of bytes queued, and the length of the response's body.
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
