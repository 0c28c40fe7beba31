//! Responses with a file, according to conditions and ranges.

use evring::{Chunk, Commands, Cx, HIGH_WATER};

use crate::clock::Clock;
use crate::conditions::PreconditionResult;
use crate::range::{self, RangeRequest};
use crate::reply::{self, PreparedResponse, RepresentationHeaders, ResponseOptions};
use crate::request::{Method, Persistence, Request};
use crate::state::State;
use crate::status::Status;
use crate::work::send_prepared;

/// Buffer and clock for writing heads.
pub(crate) struct ResponseWriter<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) clock: &'a Clock,
}

/// Answers a request with a prepared response. Returns whether the next request may be processed.
/// `request` may be `None` if it has no conditions or ranges.
pub(crate) fn respond(
    prepared: &mut PreparedResponse,
    x: &mut Cx<'_, impl Commands, State>,
    request: Option<&Request<'_, '_>>,
    options: ResponseOptions,
    writer: ResponseWriter<'_>,
) -> bool {
    let conditional = request.filter(|request| request.conditional);
    let Some((request, validators)) = conditional.zip(prepared.representation.validators.as_ref())
    else {
        return send_prepared(prepared, x, writer.clock, options);
    };
    match validators.evaluate(request) {
        PreconditionResult::NotModified => {
            return not_modified(&prepared.representation, x, options, writer);
        }
        PreconditionResult::Failed => {
            return send_status(x, Status::PRECONDITION, b"", options, writer);
        }
        PreconditionResult::Proceed => {}
    }
    let range = validators.range(request).filter(|_| request.method == Method::Get);
    let requested =
        range.map_or(RangeRequest::Whole, |range| range::parse_range(range, prepared.len()));
    let (queued, len) = match requested {
        RangeRequest::Whole => return send_prepared(prepared, x, writer.clock, options),
        RangeRequest::NotSatisfiable => {
            let field = format!("Content-Range: bytes */{}\r\n", prepared.len());
            return send_status(x, Status::RANGE, field.as_bytes(), options, writer);
        }
        RangeRequest::One(part) => prepared.send_one(x.io, x.id, writer, options, part),
        RangeRequest::Several(parts) => prepared.send_several(x.io, x.id, writer, options, parts),
    };
    x.state.full = queued >= HIGH_WATER;
    x.state.set_last_response(Status::PARTIAL, len);
    options.persistence != Persistence::Close
}

fn not_modified(
    representation: &RepresentationHeaders,
    x: &mut Cx<'_, impl Commands, State>,
    options: ResponseOptions,
    writer: ResponseWriter<'_>,
) -> bool {
    writer.out.clear();
    reply::begin_head(writer.out, Status::NOT_MODIFIED, writer.clock);
    representation.put_validators(writer.out);
    reply::end_head(writer.out, options);
    x.state.full = x.io.send(x.id, Chunk::Copy(writer.out)) >= HIGH_WATER;
    x.state.set_last_response(Status::NOT_MODIFIED, 0);
    options.finish(x.io, x.id)
}

/// Sends a response that has only a status and optional header fields. Returns whether the
/// connection stays open.
pub(crate) fn send_status(
    x: &mut Cx<'_, impl Commands, State>,
    status: Status,
    fields: &[u8],
    options: ResponseOptions,
    writer: ResponseWriter<'_>,
) -> bool {
    let (Status(code, phrase), out) = (status, writer.out);
    out.clear();
    reply::begin_head(out, status, writer.clock);
    out.extend_from_slice(fields);
    let has_body = status != Status::NO_CONTENT;
    let len = b"000 \n".len() + phrase.len();
    x.state.set_last_response(status, if options.body && has_body { len as u64 } else { 0 });
    if has_body {
        out.extend_from_slice(b"Content-Type: text/plain; charset=utf-8\r\n");
        reply::put_length(out, len as u64);
    }
    reply::end_head(out, options);
    if options.body && has_body {
        reply::put(out, format_args!("{code} {phrase}\n"));
    }
    x.state.full = x.io.send(x.id, Chunk::Copy(out)) >= HIGH_WATER;
    options.finish(x.io, x.id)
}
