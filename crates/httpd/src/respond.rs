//! Replies with a file, as the request's conditions and ranges want it.

use multiplex::{Chunk, Commands, Conn, HIGH_WATER};

use crate::clock::Clock;
use crate::conditions::Verdict;
use crate::range::{self, Asked};
use crate::reply::{self, About, Manner, Ready};
use crate::request::{Method, Persist, Request};
use crate::state::State;
use crate::status::Status;
use crate::work::give;

/// Where and with which date heads are written.
pub(crate) struct Pen<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) clock: &'a Clock,
}

/// Answers a request for a file that is at hand; true if the next request may be looked at.
pub(crate) fn respond(
    ready: &mut Ready,
    io: &mut impl Commands,
    id: Conn,
    state: &mut State,
    request: &Request<'_, '_>,
    manner: Manner,
    pen: Pen<'_>,
) -> bool {
    let Some(validators) = ready.about.validators.as_ref().filter(|_| request.conditional) else {
        return give(ready, io, id, state, pen.clock, manner);
    };
    match validators.judge(request) {
        Verdict::NotModified => return not_modified(&ready.about, io, id, state, manner, pen),
        Verdict::Failed => return brief(io, id, state, Status::PRECONDITION, b"", manner, pen),
        Verdict::Proceed => {}
    }
    let range = validators.range(request).filter(|_| request.method == Method::Get);
    let asked = range.map_or(Asked::Whole, |range| range::asked(range, ready.len()));
    let sum = match &asked {
        Asked::One(part) => part.end - part.start,
        Asked::Several(parts) => parts.iter().map(|part| part.end - part.start).sum(),
        Asked::Whole | Asked::Nothing => 0,
    };
    let queued = match asked {
        Asked::Whole => return give(ready, io, id, state, pen.clock, manner),
        Asked::Nothing => {
            let field = format!("Content-Range: bytes */{}\r\n", ready.len());
            return brief(io, id, state, Status::RANGE, field.as_bytes(), manner, pen);
        }
        Asked::One(part) => ready.send_one(io, id, pen, manner, part),
        Asked::Several(parts) => ready.send_several(io, id, pen, manner, parts),
    };
    state.full = queued >= HIGH_WATER;
    state.tell(Status::PARTIAL, sum);
    manner.persist != Persist::Ends
}

fn not_modified(
    about: &About,
    io: &mut impl Commands,
    id: Conn,
    state: &mut State,
    manner: Manner,
    pen: Pen<'_>,
) -> bool {
    pen.out.clear();
    reply::begin_head(pen.out, Status::NOT_MODIFIED, pen.clock);
    about.put_validators(pen.out);
    reply::end_head(pen.out, manner);
    state.full = io.send(id, Chunk::Copy(pen.out)) >= HIGH_WATER;
    state.tell(Status::NOT_MODIFIED, 0);
    manner.finish(io, id)
}

/// Sends a reply with no more to it than its status and perhaps a field; true if the connection
/// goes on.
pub(crate) fn brief(
    io: &mut impl Commands,
    id: Conn,
    state: &mut State,
    status: Status,
    field: &[u8],
    manner: Manner,
    pen: Pen<'_>,
) -> bool {
    let (Status(code, phrase), out) = (status, pen.out);
    out.clear();
    reply::begin_head(out, status, pen.clock);
    out.extend_from_slice(field);
    let has_body = status != Status::NO_CONTENT;
    let len = b"000 \n".len() + phrase.len();
    state.tell(status, if manner.body && has_body { len as u64 } else { 0 });
    if has_body {
        out.extend_from_slice(b"Content-Type: text/plain; charset=utf-8\r\n");
        reply::put_length(out, len as u64);
    }
    reply::end_head(out, manner);
    if manner.body && has_body {
        reply::put(out, format_args!("{code} {phrase}\n"));
    }
    state.full = io.send(id, Chunk::Copy(out)) >= HIGH_WATER;
    manner.finish(io, id)
}
