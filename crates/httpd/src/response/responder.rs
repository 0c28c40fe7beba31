//! Responses according to a plan, and responses that consist of a status only.

use evring::{Chunk, Commands, ConnId};

use crate::decision::options::{HostIndex, ResponseOptions};
use crate::decision::plan::Plan;
use crate::decision::representation::RepresentationHeaders;
use crate::error_page::LoadedPage;
use crate::message::request::RequestHead;
use crate::message::status::Status;
use crate::response::clock::Clock;
use crate::response::head::{begin_head, end_head, put, put_field, put_length, put_validators};
use crate::response::plain::PlainHeads;
use crate::response::prepared::PreparedResponse;
use crate::response::sent::Sent;

/// Sends responses to a connection, which is the first parameter of its methods.
#[derive(Debug)]
pub(crate) struct ResponseSender {
    pub(crate) clock: Clock,
    /// Buffer for the heads of less frequent responses.
    pub(crate) scratch: Vec<u8>,
    /// The heads of responses that have only a type and bytes.
    pub(crate) plain: PlainHeads,
    /// Pages that replace the text of a status at a host.
    pub(crate) error_pages: Vec<(HostIndex, LoadedPage)>,
    /// The hosts where clients that accept HTML get a page instead of 404.
    pub(crate) with_fallback: Vec<HostIndex>,
    /// Header fields of errors and redirects of each host.
    pub(crate) fields: Vec<Vec<u8>>,
}

impl ResponseSender {
    pub(crate) fn new() -> Self {
        ResponseSender {
            clock: Clock::new(),
            scratch: Vec::with_capacity(1024),
            plain: PlainHeads::default(),
            error_pages: Vec::new(),
            with_fallback: Vec::new(),
            fields: Vec::new(),
        }
    }

    /// Answers a request with a prepared response, or the part that it requests.
    pub(crate) fn send_planned(
        &mut self,
        (io, to): (&mut impl Commands, ConnId),
        prepared: &mut PreparedResponse,
        request: &RequestHead<'_>,
        options: ResponseOptions,
    ) -> Sent {
        let plan = Plan::new(request, prepared.representation.validators.as_ref(), prepared.len());
        let writer = (&mut self.scratch, &self.clock);
        let (queued, len) = match plan {
            Plan::Whole => return prepared.send(io, to, &self.clock, options),
            Plan::NotModified => {
                return self.send_not_modified((io, to), &prepared.representation, options);
            }
            Plan::PreconditionFailed => {
                return self.send_status((io, to), Status::PRECONDITION, b"", options);
            }
            Plan::RangeNotSatisfiable => {
                let field = format!("Content-Range: bytes */{}\r\n", prepared.len());
                return self.send_status((io, to), Status::RANGE, field.as_bytes(), options);
            }
            Plan::Part(part) => prepared.send_one(io, to, writer, options, part),
            Plan::Parts(parts) => prepared.send_several(io, to, writer, options, parts),
        };
        Sent::new(Status::PARTIAL, len, queued).close(io, to, options)
    }

    fn send_not_modified(
        &mut self,
        (io, to): (&mut impl Commands, ConnId),
        representation: &RepresentationHeaders,
        options: ResponseOptions,
    ) -> Sent {
        let out = &mut self.scratch;
        out.clear();
        begin_head(out, Status::NOT_MODIFIED, &self.clock);
        put_validators(out, representation);
        end_head(out, options);
        let queued = io.send(to, Chunk::Copy(out));
        Sent::new(Status::NOT_MODIFIED, 0, queued).close(io, to, options)
    }

    /// Sends a response that has only a status, with the fields that belong to it.
    #[cold]
    pub(crate) fn send_error(
        &mut self,
        to: (&mut impl Commands, ConnId),
        status: Status,
        options: ResponseOptions,
    ) -> Sent {
        let field = match status {
            Status::METHOD | Status::NO_CONTENT => "Allow: GET, HEAD, OPTIONS\r\n",
            // The shortage is usually brief.
            Status::BUSY => "Retry-After: 1\r\n",
            Status::NOT_FOUND if self.with_fallback.contains(&options.host) => "Vary: Accept\r\n",
            _ => "",
        };
        self.send_status(to, status, field.as_bytes(), options)
    }

    /// Redirects from a directory's canonical path to the same path with a slash.
    pub(crate) fn redirect(
        &mut self,
        to: (&mut impl Commands, ConnId),
        (path, query): (&[u8], Option<&[u8]>),
        options: ResponseOptions,
    ) -> Sent {
        let mut location = b"Location: ".to_vec();
        // A canonical path has no second slash in front, which would name another host.
        location.extend_from_slice(path);
        location.push(b'/');
        if let Some(query) = query {
            location.push(b'?');
            location.extend_from_slice(query);
        }
        location.extend_from_slice(b"\r\n");
        self.send_status(to, Status::MOVED, &location, options)
    }

    /// Sends a response that has only a status and optional header fields.
    pub(crate) fn send_status(
        &mut self,
        (io, to): (&mut impl Commands, ConnId),
        status: Status,
        fields: &[u8],
        options: ResponseOptions,
    ) -> Sent {
        let (Status(code, phrase), out) = (status, &mut self.scratch);
        out.clear();
        begin_head(out, status, &self.clock);
        out.extend_from_slice(fields);
        if let Some(fields) = self.fields.get(usize::from(options.host.0)) {
            out.extend_from_slice(fields);
        }
        let is_page =
            |(host, page): &&(HostIndex, LoadedPage)| *host == options.host && page.status == code;
        if let Some((_, page)) = self.error_pages.iter().rfind(is_page) {
            put_field(out, "Content-Type", page.content_type.as_bytes());
            put_length(out, page.body.len() as u64);
            end_head(out, options);
            let mut queued = io.send(to, Chunk::Copy(out));
            let sends_body = options.body && !page.body.is_empty();
            if sends_body {
                queued = io.send(to, Chunk::Shared(page.body.clone()));
            }
            let body_bytes = if sends_body { page.body.len() as u64 } else { 0 };
            return Sent::new(status, body_bytes, queued).close(io, to, options);
        }
        let has_body = status != Status::NO_CONTENT;
        let len = b"000 \n".len() + phrase.len();
        if has_body {
            out.extend_from_slice(b"Content-Type: text/plain; charset=utf-8\r\n");
            put_length(out, len as u64);
        }
        end_head(out, options);
        let sends_body = options.body && has_body;
        if sends_body {
            put(out, format_args!("{code} {phrase}\n"));
        }
        let queued = io.send(to, Chunk::Copy(out));
        let body_bytes = if sends_body { len as u64 } else { 0 };
        Sent::new(status, body_bytes, queued).close(io, to, options)
    }
}
