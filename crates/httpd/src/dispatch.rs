//! Dispatch of requests to handlers, and the responses of handlers.

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

/// A response body that is sent in pieces.
pub(crate) struct StreamedBody {
    pieces: Guarded<Pieces>,
    /// The unsent part of the last piece.
    unsent: Bytes,
    /// Bytes of the pieces not produced yet; `None` for a body of unknown length.
    remaining: Option<u64>,
    /// Whether each piece is sent as a chunk.
    chunked: bool,
    options: ResponseOptions,
}

impl fmt::Debug for StreamedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?} remaining)", self.remaining)
    }
}

/// Bodies and pieces longer than this are queued in parts of this size as the send queue drains.
const PART_BYTES: usize = 256 * 1024;

/// Maximum number of consecutive empty pieces.
const MAX_EMPTY_PIECES: u32 = 1000;

impl Site {
    /// Calls a handler. Returns whether the next request may be processed.
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
                    self.metrics.own().rejected_late.add(1);
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
                    return self.send_response(x, Ok(response), options);
                }
                Err(status) => return self.send_response(x, Err(status), options),
            }
        }
        match guard(|| Arc::clone(handler).handle(head)) {
            Ok(Answer::Receive(sink)) if !body.is_open() => {
                let response = guard(|| sink.end(HeaderMap::new()));
                self.send_response(x, response, options)
            }
            Ok(Answer::Receive(sink)) => {
                if request.expects == Expects::Continue {
                    x.io.send(x.id, Chunk::Static(b"HTTP/1.1 100 Continue\r\n\r\n"));
                }
                let head = if self.logs_requests() { request.head.to_vec() } else { Vec::new() };
                let (held, then) =
                    (BodyMemory::new(&self.bodies), AfterBody::BodySink(Guarded::new(sink)));
                let work = BodyReceipt { body, received: 0, options, head, held, then };
                x.state.work = Some(Box::new(PendingWork::Body(work)));
                true
            }
            Ok(Answer::Respond(response)) => {
                let options = if body.is_open() { options.ending() } else { options };
                self.send_response(x, Ok(response), options)
            }
            Err(status) => self.send_error(x, status, options.ending()),
        }
    }

    /// Passes received bytes of a body to its sink. Returns false if processing stops here.
    pub(crate) fn body_data(&mut self, x: &mut Cx<'_, impl Commands, State>, bytes: &[u8]) -> bool {
        let Some(BodyReceipt { options, held, then: AfterBody::BodySink(sink), .. }) =
            x.state.body()
        else {
            return true;
        };
        let options = options.ending();
        let response = match guard(|| (sink.data(bytes), sink.held_bytes())) {
            // A sink that holds nothing is not rejected for the memory of others.
            Ok((None, bytes)) if held.set(bytes) <= self.limits.max_body_memory || bytes == 0 => {
                return true;
            }
            Ok((None, _)) => {
                self.metrics.own().rejected_bodies.add(1);
                Err(Status::BUSY)
            }
            Ok((Some(response), _)) => Ok(response),
            Err(status) => Err(status),
        };
        let work = x.state.work.take();
        let proceed = self.send_response(x, response, options);
        if let Some(PendingWork::Body(work)) = work.as_deref() {
            self.count_head(x.state, &work.head);
        }
        proceed
    }

    /// Ends a body, with its trailer section. Returns whether the next request may be processed.
    pub(crate) fn body_end(&mut self, x: &mut Cx<'_, impl Commands, State>, bytes: &[u8]) -> bool {
        let Some(PendingWork::Body(work)) = x.state.work.take().map(|work| *work) else {
            return true;
        };
        // The body's memory stays counted until the handler has returned.
        let BodyReceipt { mut options, head, then, held: _held, .. } = work;
        if x.io.is_stopping() {
            options = options.ending();
        }
        let proceed = match then {
            AfterBody::BodySink(sink) => {
                let response = guard(|| sink.into_inner().end(trailers(bytes)));
                self.send_response(x, response, options)
            }
            AfterBody::Answer => self.answer_head(x, &head, options),
        };
        self.count_head(x.state, &head);
        proceed
    }

    /// Sends a handler's response. Returns whether the next request may be processed.
    fn send_response(
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
        // 204 and 304 have no body and no length (RFC 9110, section 6.4.1). 1xx is not a final status.
        let bodiless = matches!(status.0, 204 | 304);
        if status.0 < 200 {
            drop(Guarded::new(body));
            return self.send_error(x, Status::INTERNAL, options.ending());
        }
        let body = match body {
            Kind::Bytes(bytes) if bytes.len() > PART_BYTES => {
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
            } else if name == header::CONNECTION && has_close(value) {
                options = options.ending();
            }
        }
        self.conversion.recycle(head.headers);
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
        let is_short = |bytes: &Bytes| bytes.len() <= PreparedResponse::MAX_INLINE_BYTES;
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
            Kind::Pieces(remaining, pieces) => {
                let pieces = Guarded::new(pieces);
                let unsent = Bytes::new();
                return self
                    .stream(x, StreamedBody { pieces, unsent, remaining, chunked, options });
            }
        }
        x.state.full = queued >= HIGH_WATER;
        options.finish(x.io, x.id)
    }

    /// Sends the pieces of a body until the send queue is full. Returns true if the body is
    /// complete and the next request may be processed.
    fn stream(&mut self, x: &mut Cx<'_, impl Commands, State>, mut stream: StreamedBody) -> bool {
        let mut empty = 0;
        loop {
            if !stream.unsent.is_empty() {
                let part = stream.unsent.split_to(stream.unsent.len().min(PART_BYTES));
                if stream.send(x.io, x.id, part) >= HIGH_WATER {
                    x.io.set_receiving(x.id, false);
                    x.state.full = true;
                    x.state.work = Some(Box::new(PendingWork::StreamedBody(stream)));
                    self.watch_progress(x);
                    return false;
                }
                empty = 0;
                continue;
            }
            let piece = match guard(|| stream.pieces.next()) {
                Ok(Some(Ok(piece))) => piece,
                Ok(None) if stream.remaining.unwrap_or(0) == 0 => {
                    if stream.chunked {
                        x.io.send(x.id, Chunk::Static(b"0\r\n\r\n"));
                    }
                    return stream.options.finish(x.io, x.id);
                }
                // A reset shows the client that the body is incomplete.
                Ok(None) => return cut_short(x.io, x.id, "it is shorter than its declared length"),
                Ok(Some(Err(error))) => {
                    let reason = guard(|| error.to_string());
                    drop(Guarded::new(error));
                    return cut_short(
                        x.io,
                        x.id,
                        reason.as_deref().unwrap_or("its error panicked"),
                    );
                }
                Err(_) => return cut_short(x.io, x.id, "its iterator panicked"),
            };
            if let Some(remaining) = &mut stream.remaining {
                let Some(after) = remaining.checked_sub(piece.len() as u64) else {
                    return cut_short(x.io, x.id, "it is longer than its declared length");
                };
                *remaining = after;
            }
            empty += 1;
            if empty > MAX_EMPTY_PIECES {
                return cut_short(x.io, x.id, "it yields only empty pieces");
            }
            stream.unsent = piece;
        }
    }

    /// Continues a streamed body after the send queue has drained.
    pub(crate) fn resume_stream(&mut self, x: &mut Cx<'_, impl Commands, State>) {
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

/// Returns whether a Connection field has the option `close`.
fn has_close(value: &HeaderValue) -> bool {
    let mut options = value.as_bytes().split(|b| *b == b',');
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// Resets a connection whose response cannot be completed. Returns false.
#[cold]
fn cut_short(io: &mut impl Commands, id: ConnId, reason: impl fmt::Display) -> bool {
    error!("connection reset, the handler's body failed: {reason}");
    io.close(id, Close::Reset);
    false
}

impl StreamedBody {
    /// Queues a part, as a chunk if the body is chunked, and returns how many bytes are queued. An
    /// empty part would be the last chunk, so `part` is not empty.
    fn send(&self, io: &mut impl Commands, id: ConnId, part: Bytes) -> usize {
        if !self.chunked {
            return io.send(id, Chunk::Shared(part));
        }
        let mut size = Vec::with_capacity(10);
        reply::put(&mut size, format_args!("{:x}\r\n", part.len()));
        io.send(id, Chunk::Copy(&size));
        io.send(id, Chunk::Shared(part));
        io.send(id, Chunk::Static(b"\r\n"))
    }
}
