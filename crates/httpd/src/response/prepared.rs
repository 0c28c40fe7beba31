//! Prepared responses: a head and a body that can be sent repeatedly.

use std::ops::Range;

use bytes::Bytes;
use evring::files::File;
use evring::{Chunk, Commands, ConnId};

use crate::decision::options::ResponseOptions;
use crate::decision::representation::RepresentationHeaders;
use crate::message::request::Persistence;
use crate::message::status::Status;
use crate::response::clock::Clock;
use crate::response::head::{
    OK_LINE, begin_head, connection, end_head, put, put_length, put_representation, put_type,
};
use crate::response::sent::Sent;

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

    /// Length of most heads, at most.
    const HEAD_BYTES: usize = 384;

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
        let body = if let Content::Inline = content { len as usize } else { 0 };
        let mut bytes = Vec::with_capacity(Self::HEAD_BYTES + body);
        begin_head(&mut bytes, Status::OK, clock);
        put_representation(&mut bytes, &representation);
        put_type(&mut bytes, &representation);
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
        self.bytes.len() + self.representation.fields.len() + content
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

    /// Sends the response, and closes the connection if it is the last one.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        io: &mut impl Commands,
        to: ConnId,
        clock: &Clock,
        options: ResponseOptions,
    ) -> Sent {
        if self.ticks != clock.ticks() {
            self.set_date(clock);
        }
        if !(options.body && options.persistence == Persistence::Implicit) {
            return self.send_with_changed_head(io, to, options);
        }
        let mut queued = io.send(to, Chunk::Copy(&self.bytes));
        match &self.content {
            Content::Inline => {}
            Content::Memory(bytes) => queued = io.send(to, Chunk::Shared(bytes.clone())),
            Content::File(file) => queued = io.send(to, Chunk::File(file.clone(), 0..self.len)),
        }
        Sent::new(Status::OK, self.len, queued)
    }

    #[cold]
    fn set_date(&mut self, clock: &Clock) {
        self.bytes[OK_LINE.len()..][..clock.fields().len()].copy_from_slice(clock.fields());
        self.ticks = clock.ticks();
    }

    /// Sends the response without a body (HEAD) or with a Connection field, the last one in the head.
    fn send_with_changed_head(
        &self,
        io: &mut impl Commands,
        to: ConnId,
        options: ResponseOptions,
    ) -> Sent {
        io.send(to, Chunk::Copy(&self.bytes[..self.head - b"\r\n".len()]));
        io.send(to, Chunk::Copy(connection(options)));
        let mut queued = io.send(to, Chunk::Copy(b"\r\n"));
        if options.body {
            queued = self.send_part(io, to, 0..self.len);
        }
        let body_bytes = if options.body { self.len } else { 0 };
        Sent::new(Status::OK, body_bytes, queued).close(io, to, options)
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
    pub(super) fn send_one(
        &self,
        io: &mut impl Commands,
        to: ConnId,
        (out, clock): (&mut Vec<u8>, &Clock),
        options: ResponseOptions,
        part: Range<u64>,
    ) -> (usize, u64) {
        out.clear();
        begin_head(out, Status::PARTIAL, clock);
        put_representation(out, &self.representation);
        put_type(out, &self.representation);
        self.put_range(out, &part);
        let len = part.end - part.start;
        put_length(out, len);
        end_head(out, options);
        io.send(to, Chunk::Copy(out));
        let queued = self.send_part(io, to, part);
        (queued, len)
    }

    /// Sends several parts of the body with 206 as multipart/byteranges (RFC 9110, section 14.6).
    /// Returns the number of bytes queued, and the length of the response's body.
    pub(super) fn send_several(
        &self,
        io: &mut impl Commands,
        to: ConnId,
        (out, clock): (&mut Vec<u8>, &Clock),
        options: ResponseOptions,
        parts: Vec<Range<u64>>,
    ) -> (usize, u64) {
        let boundary = io.random();
        let mut heads = Vec::new();
        let mut ends = Vec::new();
        let mut len = 0;
        for part in &parts {
            put(&mut heads, format_args!("\r\n--{boundary:016x}\r\n"));
            put_type(&mut heads, &self.representation);
            self.put_range(&mut heads, part);
            heads.extend_from_slice(b"\r\n");
            ends.push(heads.len());
            len += part.end - part.start;
        }
        put(&mut heads, format_args!("\r\n--{boundary:016x}--\r\n"));
        len += heads.len() as u64;

        out.clear();
        begin_head(out, Status::PARTIAL, clock);
        put_representation(out, &self.representation);
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
        (queued, len)
    }

    fn put_range(&self, out: &mut Vec<u8>, part: &Range<u64>) {
        let (first, last, len) = (part.start, part.end - 1, self.len);
        put(out, format_args!("Content-Range: bytes {first}-{last}/{len}\r\n"));
    }
}
