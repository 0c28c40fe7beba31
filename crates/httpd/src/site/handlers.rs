//! Calls of handlers, and the responses of handlers.

use std::cell::Cell;
use std::iter;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use evring::{Chunk, Close, Commands, Cx, Lateness};
use http::header::{self, HeaderValue};

use crate::decision::options::ResponseOptions;
use crate::message::body::Body;
use crate::message::conversion::{HttpConversion, is_framing, trailers};
use crate::message::request::{Expects, KeptHead, Request};
use crate::message::status::Status;
use crate::response::head::{begin_head, end_head, put_length};
use crate::response::prepared::PreparedResponse;
use crate::response::sent::Sent;
use crate::site::context::Context;
use crate::site::guard::{Guarded, guard};
use crate::site::handler::{self, Answer, BodySink, Kind, Response};
use crate::site::log::LoggedRequest;
use crate::site::routes::{Route, Routes};
use crate::site::state::{AfterBody, BodyMemory, BodyReceipt, PendingWork, State};
use crate::site::stream::{PART_BYTES, Streamed, StreamedBody};

/// The handlers of a site.
#[derive(Debug, Default)]
pub(crate) struct Handlers {
    pub(crate) routes: Routes,
    conversion: HttpConversion,
    /// Bytes of memory held for request bodies.
    bodies: Rc<Cell<usize>>,
}

impl Handlers {
    /// Calls a handler. Returns whether the next request may be processed.
    pub(crate) fn call(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_>,
        (body, options): (Body, ResponseOptions),
        route: Route,
    ) -> bool {
        if self.routes.handler(route).sheds_if_late() {
            let options = if body.is_open() { options.ending() } else { options };
            match x.io.lateness(x.id) {
                Lateness::InTime => {}
                Lateness::Late => {
                    context.metrics.own().rejected_late.add(1);
                    return context.send_error(x, Status::BUSY, options);
                }
                Lateness::Abandoned => {
                    context.metrics.own().reset_late.add(1);
                    x.io.close(x.id, Close::Reset);
                    return false;
                }
            }
        }
        let Ok(mut head) = self.conversion.parts(request) else {
            return context.send_error(x, Status::BAD_REQUEST, options.ending());
        };
        let handler = self.routes.handler(route);
        if !body.is_open() {
            head = match guard(|| handler.handle_without_body(head)) {
                Ok(ControlFlow::Continue(head)) => head,
                Ok(ControlFlow::Break(response)) => {
                    return self.send(context, x, Ok(response), options);
                }
                Err(status) => return self.send(context, x, Err(status), options),
            }
        }
        match guard(|| Arc::clone(handler).handle(head)) {
            Ok(Answer::Receive(sink)) if !body.is_open() => {
                self.end(context, x, Guarded::new(sink), b"", options)
            }
            Ok(Answer::Receive(sink)) => {
                if request.expects == Expects::Continue {
                    x.io.send(x.id, Chunk::Static(b"HTTP/1.1 100 Continue\r\n\r\n"));
                }
                let head = context.logs_requests().then(|| KeptHead::new(request, None));
                let then = AfterBody::BodySink(Guarded::new(sink), head);
                self.receive_body(x, (body, options), then);
                true
            }
            Ok(Answer::Respond(response)) => {
                let options = if body.is_open() { options.ending() } else { options };
                self.send(context, x, Ok(response), options)
            }
            Err(status) => context.send_error(x, status, options.ending()),
        }
    }

    /// Makes the connection receive the body of a request.
    pub(crate) fn receive_body(
        &self,
        x: &mut Cx<'_, impl Commands, State>,
        (body, options): (Body, ResponseOptions),
        then: AfterBody,
    ) {
        let held = BodyMemory::new(&self.bodies);
        let receipt = BodyReceipt { body, received: 0, options, held, then };
        x.state.work = Some(Box::new(PendingWork::Body(receipt)));
    }

    /// Passes received bytes of a body to its sink. Returns false if processing stops here.
    pub(crate) fn data(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        bytes: &[u8],
    ) -> bool {
        let Some(BodyReceipt { options, held, then: AfterBody::BodySink(sink, _), .. }) =
            x.state.body()
        else {
            return true;
        };
        let options = options.ending();
        let response = match guard(|| (sink.data(bytes), sink.held_bytes())) {
            // A sink that holds nothing is not rejected for the memory of others.
            Ok((None, bytes))
                if held.set(bytes) <= context.limits.max_body_memory || bytes == 0 =>
            {
                return true;
            }
            Ok((None, _)) => {
                context.metrics.own().rejected_bodies.add(1);
                Err(Status::BUSY)
            }
            Ok((Some(response), _)) => Ok(response),
            Err(status) => Err(status),
        };
        let work = x.state.work.take();
        let proceed = self.send(context, x, response, options);
        if let Some(PendingWork::Body(receipt)) = work.as_deref() {
            context.count(x.state, LoggedRequest::new(receipt.then.request().as_ref(), b""));
        }
        proceed
    }

    /// Ends the body of a sink, with its trailer section. Returns whether the next request may be
    /// processed.
    pub(crate) fn end(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        sink: Guarded<Box<dyn BodySink>>,
        bytes: &[u8],
        options: ResponseOptions,
    ) -> bool {
        let response = guard(|| sink.into_inner().end(trailers(bytes)));
        self.send(context, x, response, options)
    }

    /// Sends a handler's response. Returns whether the next request may be processed.
    fn send(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        response: Result<Response, Status>,
        mut options: ResponseOptions,
    ) -> bool {
        let response = match response {
            Ok(response) => response,
            Err(status) => return context.send_error(x, status, options.ending()),
        };
        let (head, handler::Body(body)) = response.into_parts();
        let extensions = (!head.extensions.is_empty()).then(|| Guarded::new(head.extensions));
        drop(extensions);
        let status = Status(head.status.as_u16(), head.status.canonical_reason().unwrap_or(""));
        // 204 and 304 have no body and no length (RFC 9110, section 6.4.1). 1xx is not a final status.
        let bodiless = matches!(status.0, 204 | 304);
        if status.0 < 200 {
            drop(Guarded::new(body));
            return context.send_error(x, Status::INTERNAL, options.ending());
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
        let out = &mut context.responder.scratch;
        out.clear();
        begin_head(out, status, &context.responder.clock);
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
            Some(len) => put_length(out, len),
            None if chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            None => {}
        }
        end_head(out, options);
        let is_short = |bytes: &bytes::Bytes| bytes.len() <= PreparedResponse::MAX_INLINE_BYTES;
        let sends_body = options.body && !bodiless;
        let body = match body {
            body if !sends_body => {
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
        let body_bytes = if sends_body { len.unwrap_or(0) } else { 0 };
        match body {
            Kind::Bytes(bytes) if bytes.is_empty() => {}
            Kind::Bytes(bytes) => queued = x.io.send(x.id, Chunk::Shared(bytes)),
            Kind::Pieces(len, pieces) => {
                // The parts that follow decide whether the send queue is full.
                x.state.record(Sent::new(status, body_bytes, 0));
                return stream(context, x, StreamedBody::new(pieces, len, chunked, options));
            }
        }
        x.state.record(Sent::new(status, body_bytes, queued).close(x.io, x.id, options))
    }

    /// Continues a streamed body after the send queue has drained. Returns false if no such body is
    /// being sent.
    pub(crate) fn resume_stream(
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
    ) -> bool {
        let Some(PendingWork::StreamedBody(body)) = x
            .state
            .work
            .take_if(|work| matches!(**work, PendingWork::StreamedBody(_)))
            .map(|work| *work)
        else {
            return false;
        };
        if stream(context, x, body) {
            if x.io.is_stopping() {
                x.io.close(x.id, Close::Flush);
            } else {
                x.io.set_receiving(x.id, true);
            }
        }
        true
    }
}

/// Sends the pieces of a body until the send queue is full. Returns true if the body is complete and
/// the next request may be processed.
fn stream(
    context: &mut Context,
    x: &mut Cx<'_, impl Commands, State>,
    mut body: StreamedBody,
) -> bool {
    match body.send(x.io, x.id) {
        Streamed::Ended(stays_open) => stays_open,
        Streamed::Full => {
            x.io.set_receiving(x.id, false);
            x.state.full = true;
            x.state.work = Some(Box::new(PendingWork::StreamedBody(body)));
            context.watch_progress(x);
            false
        }
    }
}

/// Returns whether a Connection field has the option `close`.
fn has_close(value: &HeaderValue) -> bool {
    let mut options = value.as_bytes().split(|b| *b == b',');
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}
