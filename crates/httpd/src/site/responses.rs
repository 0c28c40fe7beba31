//! The responses of handlers.

use std::iter;

use evring::{Chunk, Commands, Cx};
use http::header::{self, HeaderValue};
use http::response::Parts;
use http::{Extensions, HeaderMap, StatusCode};
use tracing::error;

use crate::decision::options::ResponseOptions;
use crate::message::conversion::{HttpConversion, is_framing};
use crate::message::status::Status;
use crate::response::head::{begin_head, end_head, put_field, put_length};
use crate::response::prepared::PreparedResponse;
use crate::response::responder::ResponseSender;
use crate::response::sent::Sent;
use crate::site::any_response::{AnyResponse, PlainResponse, Response, ResponseKind};
use crate::site::context::Context;
use crate::site::guard::Guarded;
use crate::site::response_body::{Body, Kind, Pieces};
use crate::site::state::State;
use crate::site::stream::{PART_BYTES, StreamedBody};
use crate::site::upgrade::Protocol;

/// How far a response was sent.
pub(crate) enum SendProgress {
    /// All of it was queued; true if the next request may be processed.
    Sent(bool),
    /// Its head was queued. The body follows in pieces.
    Streams(StreamedBody),
    /// Its head was queued. The connection switches to another protocol.
    Upgrades(Protocol),
}

/// Sends a handler's response, or an error that closes the connection.
pub(crate) fn send(
    context: &mut Context,
    conversion: &mut HttpConversion,
    x: &mut Cx<'_, impl Commands, State>,
    response: Result<AnyResponse, Status>,
    options: ResponseOptions,
) -> SendProgress {
    match response {
        Ok(AnyResponse(ResponseKind::Plain(response))) if is_simple(&response) => {
            SendProgress::Sent(send_plain(context, x, response, options))
        }
        Ok(response) => send_full(context, conversion, x, response.into(), options),
        Err(status) => SendProgress::Sent(context.send_error(x, status, options.ending())),
    }
}

/// Returns whether a response has a body, and is sent at once.
#[inline]
pub(crate) fn is_simple(response: &PlainResponse) -> bool {
    response.body.len() <= PART_BYTES && !is_bodiless(response.status.as_u16())
}

/// Returns whether responses with this status have no body and no length, or are not final (RFC 9110,
/// sections 6.4.1 and 15.2).
fn is_bodiless(status: u16) -> bool {
    matches!(status, ..200 | 204 | 304)
}

/// Sends a response without further fields. Returns whether the next request may be processed.
pub(crate) fn send_plain(
    context: &mut Context,
    x: &mut Cx<'_, impl Commands, State>,
    response: PlainResponse,
    options: ResponseOptions,
) -> bool {
    let PlainResponse { status, content_type, body } = response;
    let ResponseSender { clock, scratch, plain, .. } = &mut context.responder;
    let len = body.len() as u64;
    let (status, out) = match (status, content_type) {
        (StatusCode::OK, Some(content_type)) => {
            (Status::OK, plain.begin(content_type, len, options, clock))
        }
        (status, content_type) => {
            let status = Status(status.as_u16(), status.canonical_reason().unwrap_or(""));
            scratch.clear();
            begin_head(scratch, status, clock);
            if let Some(content_type) = content_type {
                put_field(scratch, "Content-Type", content_type.as_bytes());
            }
            put_length(scratch, len);
            end_head(scratch, options);
            (status, scratch)
        }
    };
    let is_short = body.len() <= PreparedResponse::MAX_INLINE_BYTES;
    if options.body && is_short {
        out.extend_from_slice(&body);
    }
    let mut queued = x.io.send(x.id, Chunk::Copy(out));
    if options.body && !is_short {
        queued = x.io.send(x.id, Chunk::Shared(body));
    } else {
        // The handler's memory may have an owner whose drop panics.
        drop(Guarded::new(body));
    }
    let sent = Sent::new(status, if options.body { len } else { 0 }, queued);
    x.state.record(sent.close(x.io, x.id, options))
}

/// How a client finds the end of a response's body (RFC 9112, section 6.3).
#[derive(Clone, Copy)]
enum Framing {
    /// There is none, and no length: 204, 304 (RFC 9110, section 6.4.1), or an unknown length for HEAD by HTTP/1.0.
    Bodiless,
    Length(u64),
    Chunked,
    UntilClose,
}

impl Framing {
    fn of(status: Status, fields: &HeaderMap, body: &Kind, options: ResponseOptions) -> Self {
        let len = match body {
            Kind::Bytes(bytes) => Some(bytes.len() as u64),
            Kind::Pieces(len, _) => *len,
        };
        // For HEAD, a handler may have left out a body whose length it gives (RFC 9110, section 8.6).
        let is_left_out = !options.body && len == Some(0);
        match if is_left_out { declared_length(fields).or(len) } else { len } {
            _ if matches!(status.0, 204 | 304) => Framing::Bodiless,
            Some(len) => Framing::Length(len),
            None if options.is_http10 && !options.body => Framing::Bodiless,
            None if options.is_http10 => Framing::UntilClose,
            None => Framing::Chunked,
        }
    }
}

/// Sends a response with fields.
#[inline(never)]
fn send_full(
    context: &mut Context,
    conversion: &mut HttpConversion,
    x: &mut Cx<'_, impl Commands, State>,
    response: Response,
    options: ResponseOptions,
) -> SendProgress {
    let (Parts { status, mut headers, extensions, .. }, Body(body)) = response.into_parts();
    let progress = send_parts(context, x, (status, &headers), extensions, body, options);
    // The handler's memory may have owners whose drops panic.
    headers.drain().for_each(|field| drop(Guarded::new(field)));
    conversion.recycle(headers);
    progress
}

/// Sends the parts of a response with fields.
fn send_parts(
    context: &mut Context,
    x: &mut Cx<'_, impl Commands, State>,
    (status, fields): (StatusCode, &HeaderMap),
    mut extensions: Extensions,
    body: Kind,
    options: ResponseOptions,
) -> SendProgress {
    let protocol = match status {
        StatusCode::SWITCHING_PROTOCOLS => extensions.remove::<Protocol>(),
        _ => None,
    };
    if !extensions.is_empty() {
        drop(Guarded::new(extensions));
    }
    if let Some(protocol) = protocol {
        drop(Guarded::new(body));
        return switch(context, x, fields, protocol, options);
    }
    let status = Status(status.as_u16(), status.canonical_reason().unwrap_or(""));
    // 1xx is not a final status.
    if status.0 < 200 {
        drop(Guarded::new(body));
        let advice = match status.0 {
            101 => "make it by `upgrade`, and keep its extensions",
            _ => "answer with a final status, from 200",
        };
        error!("500 instead of a handler's response with the status {}: {advice}", status.0);
        return SendProgress::Sent(context.send_error(x, Status::INTERNAL, options.ending()));
    }
    let framing = Framing::of(status, fields, &body, options);
    let options = put_full_head(&mut context.responder, status, fields, framing, options);
    send_body(&mut context.responder.scratch, x, body, (status, framing, options))
}

/// Writes the head of a response to the scratch buffer. Returns its options, as a field may end the connection.
fn put_full_head(
    responder: &mut ResponseSender,
    status: Status,
    fields: &HeaderMap,
    framing: Framing,
    mut options: ResponseOptions,
) -> ResponseOptions {
    let out = &mut responder.scratch;
    out.clear();
    begin_head(out, status, &responder.clock);
    for (name, value) in fields {
        if !is_framing(name) {
            put_field(out, name.as_str(), value.as_bytes());
            if name == header::UPGRADE {
                // It is for this connection (RFC 9110, section 7.8).
                out.extend_from_slice(b"Connection: Upgrade\r\n");
            }
        } else if name == header::CONNECTION && has_close(value.as_bytes()) {
            options = options.ending();
        }
    }
    match framing {
        Framing::Bodiless => {}
        Framing::Length(len) => put_length(out, len),
        Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        Framing::UntilClose => options = options.ending(),
    }
    end_head(out, options);
    options
}

/// Sends a head, and the body or its first part.
fn send_body(
    head: &mut Vec<u8>,
    x: &mut Cx<'_, impl Commands, State>,
    body: Kind,
    (status, framing, options): (Status, Framing, ResponseOptions),
) -> SendProgress {
    let body = match body {
        body if !options.body || matches!(framing, Framing::Bodiless) => {
            drop(Guarded::new(body));
            Kind::default()
        }
        Kind::Bytes(bytes) if bytes.len() > PART_BYTES => {
            Kind::Pieces(Some(bytes.len() as u64), Pieces::made(iter::once(Ok(bytes))))
        }
        Kind::Bytes(bytes) if bytes.len() <= PreparedResponse::MAX_INLINE_BYTES => {
            head.extend_from_slice(&bytes);
            drop(Guarded::new(bytes));
            Kind::default()
        }
        body => body,
    };
    let mut queued = x.io.send(x.id, Chunk::Copy(head));
    match body {
        Kind::Bytes(bytes) if bytes.is_empty() => {}
        Kind::Bytes(bytes) => queued = x.io.send(x.id, Chunk::Shared(bytes)),
        Kind::Pieces(len, pieces) => {
            // The parts that follow are counted, and decide whether the send queue is full.
            x.state.record(Sent::new(status, 0, 0));
            let chunked = matches!(framing, Framing::Chunked);
            return SendProgress::Streams(StreamedBody::new(pieces, len, chunked, options));
        }
    }
    let body_bytes = match framing {
        Framing::Length(len) if options.body => len,
        _ => 0,
    };
    let sent = Sent::new(status, body_bytes, queued).close(x.io, x.id, options);
    SendProgress::Sent(x.state.record(sent))
}

/// Sends the head with which the connection switches to another protocol, or an error if the client did not ask.
#[cold]
fn switch(
    context: &mut Context,
    x: &mut Cx<'_, impl Commands, State>,
    fields: &HeaderMap,
    protocol: Protocol,
    options: ResponseOptions,
) -> SendProgress {
    if x.io.is_stopping() {
        // The protocol would have to end at once. The client may try again, with the server's successor.
        drop(Guarded::new(protocol));
        return SendProgress::Sent(context.send_error(x, Status::BUSY, options.ending()));
    }
    let out = &mut context.responder.scratch;
    if !options.may_upgrade {
        drop(Guarded::new(protocol));
        let protocol_name = fields.get(header::UPGRADE).map_or(&b""[..], HeaderValue::as_bytes);
        let mut field = b"Connection: Upgrade\r\n".to_vec();
        put_field(&mut field, "Upgrade", protocol_name);
        let to = (&mut *x.io, x.id);
        let sent = context.responder.send_status(to, Status::UPGRADE, &field, options);
        return SendProgress::Sent(x.state.record(sent));
    }
    out.clear();
    begin_head(out, Status::SWITCHING, &context.responder.clock);
    for (name, value) in fields.iter().filter(|(name, _)| !is_framing(name)) {
        put_field(out, name.as_str(), value.as_bytes());
    }
    out.extend_from_slice(b"Connection: Upgrade\r\n\r\n");
    x.io.send(x.id, Chunk::Copy(out));
    x.state.record(Sent::new(Status::SWITCHING, 0, 0));
    SendProgress::Upgrades(protocol)
}

/// Returns the length of a response's body as its fields give it.
pub(crate) fn declared_length(fields: &HeaderMap) -> Option<u64> {
    let mut all = fields.get_all(header::CONTENT_LENGTH).iter();
    let (Some(one), None) = (all.next(), all.next()) else { return None };
    let digits = one.to_str().ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse().ok()
}

/// Returns whether a Connection field has the option `close`.
pub(crate) fn has_close(value: &[u8]) -> bool {
    let mut options = value.split(|b| *b == b',');
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}
