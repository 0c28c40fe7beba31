//! Requests that handlers answer.

use std::fmt;
use std::iter;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use evring::{Chunk, Close, Commands, ConnId, Cx, HIGH_WATER, Lateness};
use http::header::{self, HeaderMap, HeaderValue};
use tracing::error;

use crate::body::{Body, BodyMemory};
use crate::conversion::{is_framing, trailers};
use crate::guard::{Guarded, guard};
use crate::handler::{self, Answer, Kind, Pieces, Response};
use crate::reply::{self, PreparedResponse, ResponseOptions};
use crate::request::{Expects, Request};
use crate::routes::Route;
use crate::site::Site;
use crate::state::State;
use crate::status::Status;
use crate::work::{AfterBody, BodyReceipt, PendingWork};

/// A reply that is sent in pieces.
pub(crate) struct StreamedBody {
    pieces: Guarded<Pieces>,
    /// What is left of the last piece.
    rest: Bytes,
    /// Bytes of the pieces still to come; unknown for a body without a length.
    left: Option<u64>,
    /// Whether each piece is sent as a chunk.
    chunked: bool,
    /// How the reply ends.
    options: ResponseOptions,
}

impl fmt::Debug for StreamedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?} left)", self.left)
    }
}

/// Longer bodies and pieces are queued part by part, as the client takes them.
const PART: usize = 256 * 1024;

/// Most empty pieces in a row.
const EMPTY: u32 = 1000;

impl Site {
    /// Has a handler answer; true if what comes next may be looked at.
    pub(crate) fn dispatch(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        body: Body,
        options: ResponseOptions,
        route: Route,
    ) -> bool {
        if self.routes.handler(route).sheds_if_late() {
            let options = if body.is_open() { options.ending() } else { options };
            match x.io.lateness(x.id) {
                Lateness::InTime => {}
                Lateness::Late => {
                    self.metrics.own().refused_late.add(1);
                    return self.send_error(x, Status::BUSY, options);
                }
                Lateness::Abandoned => {
                    self.metrics.own().reset_late.add(1);
                    x.io.close(x.id, Close::Reset);
                    return false;
                }
            }
        }
        let Ok(mut head) = self.conversion.parts(request) else {
            return self.send_error(x, Status::BAD_REQUEST, options.ending());
        };
        let handler = self.routes.handler(route);
        if !body.is_open() {
            head = match guard(|| handler.handle_without_body(head)) {
                Ok(ControlFlow::Continue(head)) => head,
                Ok(ControlFlow::Break(response)) => {
                    return self.reply(x, Ok(response), options);
                }
                Err(status) => return self.reply(x, Err(status), options),
            }
        }
        match guard(|| Arc::clone(handler).handle(head)) {
            Ok(Answer::Receive(upload)) if !body.is_open() => {
                let response = guard(|| upload.end(HeaderMap::new()));
                self.reply(x, response, options)
            }
            Ok(Answer::Receive(upload)) => {
                if request.expects == Expects::Continue {
                    x.io.send(x.id, Chunk::Static(b"HTTP/1.1 100 Continue\r\n\r\n"));
                }
                let head = if self.tells_requests() { request.head.to_vec() } else { Vec::new() };
                let (held, then) =
                    (BodyMemory::of(&self.bodies), AfterBody::BodySink(Guarded::new(upload)));
                let work = BodyReceipt { body, taken: 0, options, head, held, then };
                x.state.work = Some(Box::new(PendingWork::Body(work)));
                true
            }
            Ok(Answer::Respond(response)) => {
                let options = if body.is_open() { options.ending() } else { options };
                self.reply(x, Ok(response), options)
            }
            Err(status) => self.send_error(x, status, options.ending()),
        }
    }

    /// Hands on what came of a body; false if the connection goes no further.
    pub(crate) fn body_came(&mut self, x: &mut Cx<'_, impl Commands, State>, bytes: &[u8]) -> bool {
        let Some(BodyReceipt { options, held, then: AfterBody::BodySink(upload), .. }) =
            x.state.body()
        else {
            return true;
        };
        let options = options.ending();
        let response = match guard(|| (upload.data(bytes), upload.held_bytes())) {
            // One that holds nothing is not to blame for what the others hold.
            Ok((None, bytes)) if held.set(bytes) <= self.limits.max_body_memory || bytes == 0 => {
                return true;
            }
            Ok((None, _)) => {
                self.metrics.own().refused_bodies.add(1);
                Err(Status::BUSY)
            }
            Ok((Some(response), _)) => Ok(response),
            Err(status) => Err(status),
        };
        let work = x.state.work.take();
        let goes_on = self.reply(x, response, options);
        if let Some(PendingWork::Body(work)) = work.as_deref() {
            self.count_head(x.state, &work.head);
        }
        goes_on
    }

    /// A body is whole, and these are its trailers; true if the next request may be looked at.
    pub(crate) fn body_ended(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        bytes: &[u8],
    ) -> bool {
        let Some(PendingWork::Body(work)) = x.state.work.take().map(|work| *work) else {
            return true;
        };
        // What the body holds counts until the handler has returned.
        let BodyReceipt { mut options, head, then, held: _held, .. } = work;
        if x.io.is_stopping() {
            options = options.ending();
        }
        let goes_on = match then {
            AfterBody::BodySink(upload) => {
                let response = guard(|| upload.into_inner().end(trailers(bytes)));
                self.reply(x, response, options)
            }
            AfterBody::Answer => self.answer_head(x, &head, options),
        };
        self.count_head(x.state, &head);
        goes_on
    }

    /// Sends a handler's reply; true if the next request may be looked at.
    fn reply(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        response: Result<Response, Status>,
        mut options: ResponseOptions,
    ) -> bool {
        let response = match response {
            Ok(response) => response,
            Err(status) => return self.send_error(x, status, options.ending()),
        };
        let (head, handler::Body(body)) = response.into_parts();
        let extensions = (!head.extensions.is_empty()).then(|| Guarded::new(head.extensions));
        drop(extensions);
        let status = Status(head.status.as_u16(), head.status.canonical_reason().unwrap_or(""));
        // These have no body and no length (RFC 9110, section 6.4.1). What is below 200 is no end.
        let bodiless = matches!(status.0, 204 | 304);
        if status.0 < 200 {
            drop(Guarded::new(body));
            return self.send_error(x, Status::INTERNAL, options.ending());
        }
        let body = match body {
            Kind::Bytes(bytes) if bytes.len() > PART => {
                Kind::Pieces(Some(bytes.len() as u64), Box::new(iter::once(Ok(bytes))))
            }
            body => body,
        };
        let len = match &body {
            Kind::Bytes(bytes) => Some(bytes.len() as u64),
            Kind::Pieces(len, _) => *len,
        };
        if len.is_none() && options.is_http10 && !bodiless {
            options = options.ending();
        }
        let chunked = len.is_none() && !options.is_http10 && !bodiless;
        self.scratch.clear();
        let out = &mut self.scratch;
        reply::begin_head(out, status, &self.clock);
        for (name, value) in &head.headers {
            if !is_framing(name) {
                out.extend_from_slice(name.as_str().as_bytes());
                out.extend_from_slice(b": ");
                out.extend_from_slice(value.as_bytes());
                out.extend_from_slice(b"\r\n");
            } else if name == header::CONNECTION && says_close(value) {
                options = options.ending();
            }
        }
        self.conversion.keep(head.headers);
        match len {
            _ if bodiless => {}
            Some(len) => reply::put_length(out, len),
            None if chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            None => {}
        }
        reply::end_head(out, options);
        x.state.set_last_response(
            status,
            if bodiless || !options.body { 0 } else { len.unwrap_or(0) },
        );
        let is_short = |bytes: &Bytes| bytes.len() <= PreparedResponse::SHORT;
        let body = match body {
            body if bodiless || !options.body => {
                drop(Guarded::new(body));
                Kind::default()
            }
            Kind::Bytes(bytes) if is_short(&bytes) => {
                out.extend_from_slice(&bytes);
                Kind::default()
            }
            body => body,
        };
        let mut queued = x.io.send(x.id, Chunk::Copy(out));
        match body {
            Kind::Bytes(bytes) if bytes.is_empty() => {}
            Kind::Bytes(bytes) => queued = x.io.send(x.id, Chunk::Shared(bytes)),
            Kind::Pieces(left, pieces) => {
                let pieces = Guarded::new(pieces);
                let stream = StreamedBody { pieces, rest: Bytes::new(), left, chunked, options };
                return self.stream(x, stream);
            }
        }
        x.state.full = queued >= HIGH_WATER;
        options.finish(x.io, x.id)
    }

    /// Sends the pieces of a reply as far as there is room; true if that was all and the
    /// connection goes on.
    fn stream(&mut self, x: &mut Cx<'_, impl Commands, State>, mut stream: StreamedBody) -> bool {
        let mut empty = 0;
        loop {
            if !stream.rest.is_empty() {
                let part = stream.rest.split_to(stream.rest.len().min(PART));
                if stream.put(x.io, x.id, part) >= HIGH_WATER {
                    x.io.set_receiving(x.id, false);
                    x.state.full = true;
                    x.state.work = Some(Box::new(PendingWork::StreamedBody(stream)));
                    self.watch(x);
                    return false;
                }
                empty = 0;
                continue;
            }
            let piece = match guard(|| stream.pieces.next()) {
                Ok(Some(Ok(piece))) => piece,
                Ok(None) if stream.left.unwrap_or(0) == 0 => {
                    if stream.chunked {
                        x.io.send(x.id, Chunk::Static(b"0\r\n\r\n"));
                    }
                    return stream.options.finish(x.io, x.id);
                }
                // Nothing can tell a client better than a reset.
                Ok(None) => return cut_short(x.io, x.id, "it is shorter than was said"),
                Ok(Some(Err(error))) => {
                    let reason = guard(|| error.to_string());
                    drop(Guarded::new(error));
                    return cut_short(
                        x.io,
                        x.id,
                        reason.as_deref().unwrap_or("its error panicked"),
                    );
                }
                Err(_) => return cut_short(x.io, x.id, "it panicked"),
            };
            if let Some(left) = &mut stream.left {
                let Some(rest) = left.checked_sub(piece.len() as u64) else {
                    return cut_short(x.io, x.id, "it is longer than was said");
                };
                *left = rest;
            }
            empty += 1;
            if empty > EMPTY {
                return cut_short(x.io, x.id, "it gives empty pieces only");
            }
            stream.rest = piece;
        }
    }

    /// Goes on with a reply in pieces, as there is room again.
    pub(crate) fn stream_on(&mut self, x: &mut Cx<'_, impl Commands, State>) {
        let Some(PendingWork::StreamedBody(stream)) = x.state.work.take().map(|work| *work) else {
            return;
        };
        if self.stream(x, stream) {
            if x.io.is_stopping() {
                return x.io.close(x.id, Close::Flush);
            }
            x.io.set_receiving(x.id, true);
        }
    }
}

/// Whether a Connection field wants the connection to end.
fn says_close(value: &HeaderValue) -> bool {
    let mut options = value.as_bytes().split(|b| *b == b',');
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// Ends a reply that can't be given as it was begun; never goes on.
#[cold]
fn cut_short(io: &mut impl Commands, id: ConnId, reason: impl fmt::Display) -> bool {
    error!("a handler's body ends its connection: {reason}");
    io.close(id, Close::Reset);
    false
}

impl StreamedBody {
    /// Queues a part, which is not empty as that would be the last chunk, and returns how many bytes
    /// are queued now.
    fn put(&self, io: &mut impl Commands, id: ConnId, piece: Bytes) -> usize {
        if !self.chunked {
            return io.send(id, Chunk::Shared(piece));
        }
        let mut size = Vec::with_capacity(10);
        reply::put(&mut size, format_args!("{:x}\r\n", piece.len()));
        io.send(id, Chunk::Copy(&size));
        io.send(id, Chunk::Shared(piece));
        io.send(id, Chunk::Static(b"\r\n"))
    }
}
