//! Replies with a file, as the request's conditions and ranges want it.

use multiplex::{Chunk, Commands, Cx, HIGH_WATER};

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

/// Answers a request for a file that is at hand; true if the next request may be looked at. None is
/// needed where it asks for no more than its target.
pub(crate) fn respond(
    ready: &mut Ready,
    x: &mut Cx<'_, impl Commands, State>,
    request: Option<&Request<'_, '_>>,
    manner: Manner,
    pen: Pen<'_>,
) -> bool {
    let conditional = request.filter(|request| request.conditional);
    let Some((request, validators)) = conditional.zip(ready.about.validators.as_ref()) else {
        return give(ready, x, pen.clock, manner);
    };
    match validators.judge(request) {
        Verdict::NotModified => return not_modified(&ready.about, x, manner, pen),
        Verdict::Failed => return brief(x, Status::PRECONDITION, b"", manner, pen),
        Verdict::Proceed => {}
    }
    let range = validators.range(request).filter(|_| request.method == Method::Get);
    let asked = range.map_or(Asked::Whole, |range| range::asked(range, ready.len()));
    let (queued, len) = match asked {
        Asked::Whole => return give(ready, x, pen.clock, manner),
        Asked::Nothing => {
            let field = format!("Content-Range: bytes */{}\r\n", ready.len());
            return brief(x, Status::RANGE, field.as_bytes(), manner, pen);
        }
        Asked::One(part) => ready.send_one(x.io, x.id, pen, manner, part),
        Asked::Several(parts) => ready.send_several(x.io, x.id, pen, manner, parts),
    };
    x.state.full = queued >= HIGH_WATER;
    x.state.tell(Status::PARTIAL, len);
    manner.persist != Persist::Ends
}

fn not_modified(
    about: &About,
    x: &mut Cx<'_, impl Commands, State>,
    manner: Manner,
    pen: Pen<'_>,
) -> bool {
    pen.out.clear();
    reply::begin_head(pen.out, Status::NOT_MODIFIED, pen.clock);
    about.put_validators(pen.out);
    reply::end_head(pen.out, manner);
    x.state.full = x.io.send(x.id, Chunk::Copy(pen.out)) >= HIGH_WATER;
    x.state.tell(Status::NOT_MODIFIED, 0);
    manner.finish(x.io, x.id)
}

/// Sends a reply with no more to it than its status and perhaps a field; true if the connection
/// goes on.
pub(crate) fn brief(
    x: &mut Cx<'_, impl Commands, State>,
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
    x.state.tell(status, if manner.body && has_body { len as u64 } else { 0 });
    if has_body {
        out.extend_from_slice(b"Content-Type: text/plain; charset=utf-8\r\n");
        reply::put_length(out, len as u64);
    }
    reply::end_head(out, manner);
    if manner.body && has_body {
        reply::put(out, format_args!("{code} {phrase}\n"));
    }
    x.state.full = x.io.send(x.id, Chunk::Copy(out)) >= HIGH_WATER;
    manner.finish(x.io, x.id)
}
