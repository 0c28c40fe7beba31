//! The progress of exchanges: polls of handlers and bodies, and what they wait for.

use std::task::{self, Poll, Waker};

use bytes::Bytes;
use evring::{Chunk, Close, Commands, Cx, HIGH_WATER, Rx};
use http::HeaderMap;
use tracing::error;

use crate::limits::Limits;
use crate::message::body::{BodyDecoder, BodyPiece};
use crate::message::conversion::{HttpConversion, trailers};
use crate::message::request::{KeptHead, begins_request};
use crate::message::status::Status;
use crate::response::sent::Sent;
use crate::site::any_response::AnyResponse;
use crate::site::body_memory::BodyMemory;
use crate::site::context::Context;
use crate::site::exchange::{Exchange, Stage, WaitsFor};
use crate::site::guard::guard;
use crate::site::log::LoggedRequest;
use crate::site::responses::{self, SendProgress};
use crate::site::state::{PendingWork, State};
use crate::site::stream::Streamed;

/// How far an exchange has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It waits.
    Waits,
    /// It has ended; true if the next request may be processed.
    Ended(bool),
}

/// Begins an exchange: polls it, and keeps it in the connection's state if it waits.
pub(crate) fn begin(
    context: &mut Context,
    conversion: &mut HttpConversion,
    x: &mut Cx<'_, impl Commands, State>,
    exchange: Exchange,
) -> Progress {
    x.state.work = Some(Box::new(PendingWork::Exchange(exchange)));
    advance(context, conversion, x)
}

/// Polls the exchange of a connection until it waits or ends.
fn advance(
    context: &mut Context,
    conversion: &mut HttpConversion,
    x: &mut Cx<'_, impl Commands, State>,
) -> Progress {
    let Some(mut work) = x.state.work.take() else { return Progress::Waits };
    let progress = match &mut *work {
        PendingWork::Exchange(exchange) => poll(context, conversion, x, exchange),
        _ => Progress::Waits,
    };
    if progress == Progress::Waits {
        x.state.work = Some(work);
    }
    progress
}

/// How an exchange continues after a poll of its handler or body.
enum Polled {
    /// Its next stage has begun.
    NextStage,
    Waits(WaitsFor),
    /// It has ended; true if the next request may be processed.
    Ended(bool),
}

fn poll(
    context: &mut Context,
    conversion: &mut HttpConversion,
    x: &mut Cx<'_, impl Commands, State>,
    exchange: &mut Exchange,
) -> Progress {
    let waker = match &exchange.task {
        Some(task) => {
            task.begin_poll();
            task.waker()
        }
        None => Waker::noop().clone(),
    };
    let task = &mut task::Context::from_waker(&waker);
    let mut has_sent = false;
    loop {
        let polled = match &mut exchange.stage {
            Stage::Handler(response) => match guard(|| response.as_mut().poll(task)) {
                Ok(Poll::Pending) => Polled::Waits(WaitsFor::Handler),
                Ok(Poll::Ready(response)) => respond(context, conversion, x, exchange, response),
                Err(status) => respond(context, conversion, x, exchange, Err(status)),
            },
            // A wake-up, or received bytes, before the send queue has drained.
            Stage::Body(_) if x.state.full => Polled::Waits(WaitsFor::Room),
            Stage::Body(body) => {
                let streamed = body.send(x.io, x.id, task);
                let sent_bytes = body.take_count();
                x.state.last_body_bytes += sent_bytes;
                has_sent |= sent_bytes > 0;
                match streamed {
                    Streamed::Ended(proceed) => {
                        if x.state.last_body_bytes >= HIGH_WATER as u64 {
                            // The kernel may have bytes that the client does not take.
                            x.state.start_watching();
                        }
                        Polled::Ended(proceed)
                    }
                    Streamed::CutShort => {
                        context.subtract_unsent(x);
                        x.io.close(x.id, Close::Reset);
                        Polled::Ended(false)
                    }
                    Streamed::Full => Polled::Waits(WaitsFor::Room),
                    Streamed::Waits => Polled::Waits(WaitsFor::Piece),
                }
            }
        };
        match polled {
            Polled::NextStage => {}
            Polled::Waits(waits_for) => return wait(context, x, exchange, waits_for, has_sent),
            Polled::Ended(proceed) => return Progress::Ended(proceed),
        }
    }
}

/// Sends the response of the exchange's handler, whose body may follow in pieces.
fn respond(
    context: &mut Context,
    conversion: &mut HttpConversion,
    x: &mut Cx<'_, impl Commands, State>,
    exchange: &mut Exchange,
    response: Result<AnyResponse, Status>,
) -> Polled {
    // The rest of the request's body is discarded.
    let is_last = exchange.open_incoming().is_some() || x.io.is_stopping();
    let options = exchange.options.ending_if(is_last);
    match responses::send(context, conversion, x, response, options) {
        SendProgress::Sent(proceed) => return Polled::Ended(proceed),
        SendProgress::Streams(body) => {
            if let Some(incoming) = &exchange.incoming {
                incoming.writer.release();
            }
            exchange.stage = Stage::Body(body);
        }
        SendProgress::Upgrades(protocol) => {
            let memory = BodyMemory::new(&context.bodies);
            let Ok((sent, incoming)) = protocol.start(options, memory) else {
                x.io.close(x.id, Close::Reset);
                return Polled::Ended(false);
            };
            exchange.stage = Stage::Body(sent);
            exchange.incoming = Some(incoming);
            exchange.is_upgraded = true;
            // What has arrived behind the request is the protocol's. The resume that follows passes it on.
            if exchange.next_bytes > 0 || exchange.at_end {
                x.io.set_receiving(x.id, false);
                exchange.paused = true;
            }
            (exchange.next_bytes, exchange.at_end) = (0, false);
        }
    }
    Polled::NextStage
}

/// Makes the connection wait: for what, and whether it receives meanwhile. `has_sent` is whether it has sent bytes of the
/// response's body.
fn wait(
    context: &mut Context,
    x: &mut Cx<'_, impl Commands, State>,
    exchange: &mut Exchange,
    mut waits_for: WaitsFor,
    has_sent: bool,
) -> Progress {
    let (mut receives, is_upgraded) = (exchange.receives_next(), exchange.is_upgraded);
    if let Some(incoming) = &mut exchange.incoming {
        let bytes = incoming.writer.held_bytes();
        if incoming.memory.set(bytes) > context.limits.max_body_memory && bytes > 0 {
            context.metrics.own().rejected_bodies.add(1);
            return fail(context, x, exchange, Status::BUSY);
        }
        if incoming.expects_continue && incoming.writer.is_wanted() {
            incoming.expects_continue = false;
            if matches!(exchange.stage, Stage::Handler(_)) {
                x.io.send(x.id, Chunk::Static(b"HTTP/1.1 100 Continue\r\n\r\n"));
            }
        }
        if incoming.body.is_open() {
            receives = match &exchange.task {
                Some(task) => {
                    incoming.writer.has_room() || incoming.writer.wake_at_room(&task.waker())
                }
                None => incoming.writer.has_room(),
            };
            let is_paced = !incoming.expects_continue && !is_upgraded;
            if receives && waits_for != WaitsFor::Room && is_paced {
                waits_for = WaitsFor::Client;
            }
        }
    }
    if waits_for == WaitsFor::Room {
        // A wake-up does not extend the client's time.
        if !std::mem::replace(&mut x.state.full, true) {
            context.await_progress(x);
        }
        receives = false;
    }
    let (changes, is_new) = (receives == exchange.paused, waits_for != exchange.waits_for);
    exchange.waits_for = waits_for;
    if changes {
        x.io.set_receiving(x.id, receives);
        exchange.paused = !receives;
    }
    let is_piece = waits_for == WaitsFor::Piece;
    let is_later = is_piece && (changes || has_sent && exchange.is_unwatched());
    if waits_for != WaitsFor::Room && (is_new || is_later) {
        set_deadline(context, x, exchange);
    }
    Progress::Waits
}

/// Sets the deadline for what an exchange waits for.
fn set_deadline(context: &Context, x: &mut Cx<'_, impl Commands, State>, exchange: &mut Exchange) {
    let time = match exchange.waits_for {
        WaitsFor::Handler => Some(context.limits.handler_timeout),
        WaitsFor::Client => Some(context.limits.progress_interval),
        WaitsFor::Piece if exchange.is_unwatched() => Some(context.limits.handler_timeout),
        // The client may wait for events as long as the server sees that it stays connected.
        WaitsFor::Piece | WaitsFor::Nothing | WaitsFor::Room => None,
    };
    if let Some(incoming) = &mut exchange.incoming {
        incoming.received = 0;
    }
    x.state.stop_watching();
    x.io.set_deadline(x.id, time.map(|time| x.io.now() + time));
}

/// Answers with an error, or resets the connection if the response has begun.
#[cold]
fn fail(
    context: &mut Context,
    x: &mut Cx<'_, impl Commands, State>,
    exchange: &Exchange,
    status: Status,
) -> Progress {
    match exchange.stage {
        Stage::Handler(_) => {
            context.send_error(x, status, exchange.options.ending());
        }
        Stage::Body(_) => {
            error!("connection reset: {} {} after its response had begun", status.0, status.1);
            context.subtract_unsent(x);
            x.io.close(x.id, Close::Reset);
        }
    }
    Progress::Ended(false)
}

/// Ends the exchange of a connection with an error, and drops its future.
#[cold]
fn abort(context: &mut Context, x: &mut Cx<'_, impl Commands, State>, status: Status) {
    if let Some(exchange) = end(x) {
        fail(context, x, &exchange, status);
        count(context, x, exchange.head.as_ref());
    }
}

/// Takes the exchange of a connection.
fn end(x: &mut Cx<'_, impl Commands, State>) -> Option<Exchange> {
    x.state.exchange()?;
    match x.state.work.take().map(|work| *work) {
        Some(PendingWork::Exchange(exchange)) => Some(exchange),
        _ => None,
    }
}

/// Counts and logs the response of an exchange, if it was sent.
fn count(context: &mut Context, x: &mut Cx<'_, impl Commands, State>, head: Option<&KeptHead>) {
    let request = head.map(KeptHead::request);
    context.count(x.state, LoggedRequest::new(request.as_ref(), b""));
}

/// Polls the exchange of a connection after an event, and counts its response.
fn proceed(
    context: &mut Context,
    conversion: &mut HttpConversion,
    x: &mut Cx<'_, impl Commands, State>,
) -> Progress {
    let head = x.state.exchange().and_then(|exchange| exchange.head.take());
    let progress = advance(context, conversion, x);
    match x.state.exchange() {
        Some(exchange) => exchange.head = head,
        None => count(context, x, head.as_ref()),
    }
    progress
}

/// Continues the exchange of a connection that was woken, or whose send queue has drained.
pub(crate) fn resume(
    context: &mut Context,
    conversion: &mut HttpConversion,
    x: &mut Cx<'_, impl Commands, State>,
) {
    let Some(exchange) = x.state.exchange() else { return };
    if x.io.is_closing(x.id) {
        // A layer has closed it, and takes nothing: the session of TLS has failed.
        context.subtract_unsent(x);
        return cancel(context, x, true);
    }
    let (paused, at_end, has_next) = (exchange.paused, exchange.at_end, exchange.next_bytes > 0);
    if proceed(context, conversion, x) != Progress::Ended(true) {
        return;
    }
    if x.io.is_stopping() {
        x.io.close(x.id, Close::Flush);
    } else if paused || has_next {
        // A resume passes on the bytes that wait.
        x.io.set_receiving(x.id, false);
        x.io.set_receiving(x.id, true);
    } else if at_end {
        x.io.close(x.id, Close::Flush);
    } else {
        context.await_request(x);
    }
}

/// Passes received bytes to the exchange of a connection. Returns true if it has ended and the next request
/// may be processed.
pub(crate) fn receive(
    context: &mut Context,
    conversion: &mut HttpConversion,
    x: &mut Cx<'_, impl Commands, State>,
    rx: &mut Rx<'_>,
) -> bool {
    loop {
        let is_receiving = x.io.is_receiving(x.id);
        let Some(exchange) = x.state.exchange() else { return true };
        // A wrapper may have resumed what the exchange has paused.
        exchange.paused = !is_receiving;
        let was_upgraded = exchange.is_upgraded;
        let fed = match feed(&context.limits, exchange, rx) {
            Ok(fed) => fed,
            Err(status) => {
                abort(context, x, status);
                rx.consume(rx.bytes().len());
                return false;
            }
        };
        exchange.next_bytes = if exchange.open_incoming().is_none() { rx.bytes().len() } else { 0 };
        exchange.at_end |= rx.eof() && exchange.next_bytes > 0 && begins_request(rx.bytes());
        let is_full = !exchange.paused && !exchange.receives_next();
        // It was not polled yet, so that it has first what arrived with the head.
        let is_new = exchange.waits_for == WaitsFor::Nothing;
        if (fed != Fed::Nothing || is_full || is_new)
            && let Progress::Ended(proceed) = proceed(context, conversion, x)
        {
            return proceed;
        }
        let Some(exchange) = x.state.exchange().filter(|exchange| !exchange.paused) else { break };
        if fed != Fed::UntilFull && exchange.is_upgraded == was_upgraded {
            break;
        }
        // The handler has made room, or the bytes belong to the protocol that it has switched to.
    }
    if rx.eof() && x.state.exchange().is_some_and(|exchange| exchange.is_upgraded) {
        // It ends once all bytes are taken.
        return rx.bytes().is_empty() && end_input(context, conversion, x);
    }
    if rx.eof()
        && let Some(exchange) = x.state.exchange()
    {
        // A client that has sent another request still gets this response, and so does one whose response does not wait
        // for a handler. Without `half_close`, the handler of the last request is cancelled if it waits.
        let is_made = matches!(&exchange.stage, Stage::Body(body) if !body.waits());
        let has_next = exchange.next_bytes > 0 && begins_request(rx.bytes());
        let is_permitted = context.limits.half_close || has_next || is_made;
        if is_permitted && exchange.open_incoming().is_none() {
            exchange.at_end = true;
            if exchange.waits_for == WaitsFor::Piece {
                let time = context.limits.handler_timeout;
                x.io.set_deadline(x.id, Some(x.io.now() + time));
            }
        } else {
            // The client must not take a part for a body that the close ends (RFC 9112, section 8).
            let is_ended_by_close =
                matches!(&exchange.stage, Stage::Body(body) if body.is_ended_by_close());
            if is_ended_by_close {
                context.subtract_unsent(x);
            }
            cancel(context, x, true);
            x.io.close(x.id, if is_ended_by_close { Close::Reset } else { Close::Flush });
        }
    }
    false
}

/// Ends the bytes that a connection receives after it has switched to another protocol. Returns whether the next
/// request may be processed.
pub(crate) fn end_input(
    context: &mut Context,
    conversion: &mut HttpConversion,
    x: &mut Cx<'_, impl Commands, State>,
) -> bool {
    let Some(exchange) = x.state.exchange().filter(|exchange| !exchange.at_end) else {
        return false;
    };
    exchange.at_end = true;
    exchange.suppress_wakeups();
    if let Some(incoming) = exchange.open_incoming() {
        incoming.writer.end(Ok(HeaderMap::new()));
        incoming.body = BodyDecoder::default();
    }
    if let Progress::Ended(proceed) = proceed(context, conversion, x) {
        return proceed;
    }
    if x.state.exchange().is_some_and(|exchange| exchange.waits_for == WaitsFor::Piece) {
        let time = context.limits.handler_timeout;
        x.io.set_deadline(x.id, Some(x.io.now() + time));
    }
    false
}

/// How much of the received bytes of a body was passed to the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fed {
    Nothing,
    /// All that can be used.
    All,
    /// As much as there was room for. The body goes on, or its end was not processed.
    UntilFull,
}

/// Passes received bytes of a request's body to the handler, as long as there is room.
fn feed(limits: &Limits, exchange: &mut Exchange, rx: &mut Rx<'_>) -> Result<Fed, Status> {
    let mut fed = Fed::Nothing;
    while let Some(incoming) = exchange.open_incoming() {
        if !incoming.writer.has_room() {
            return Ok(Fed::UntilFull);
        }
        let piece = incoming.body.next(rx, limits)?;
        if piece == BodyPiece::Partial {
            break;
        }
        // The exchange is polled after all pieces.
        exchange.suppress_wakeups();
        let Some(incoming) = exchange.incoming.as_mut() else { break };
        match piece {
            BodyPiece::Partial => {}
            BodyPiece::Content(n) => {
                incoming.received += n as u64;
                incoming.writer.push(Bytes::copy_from_slice(&rx.bytes()[..n]));
                rx.consume(n);
            }
            BodyPiece::End(n) => {
                incoming.writer.end(Ok(trailers(&rx.bytes()[..n])));
                rx.consume(n);
            }
        }
        fed = Fed::All;
    }
    Ok(fed)
}

/// Drops the exchange of a connection that ends or has ended, if there is one: as the client has left, or the server
/// stops.
pub(crate) fn cancel(context: &mut Context, x: &mut Cx<'_, impl Commands, State>, has_left: bool) {
    if let Some(exchange) = end(x) {
        context.metrics.own().handlers_cancelled.add(1);
        if has_left && matches!(exchange.stage, Stage::Handler(_)) {
            let _ = x.state.record(Sent::new(Status::CANCELLED, 0, 0));
        }
        count(context, x, exchange.head.as_ref());
    }
}

/// Ends an exchange whose time is over. Returns false if its deadline is that of sending a response.
pub(crate) fn expired(context: &mut Context, x: &mut Cx<'_, impl Commands, State>) -> bool {
    let Some(exchange) = x.state.exchange() else { return false };
    match exchange.waits_for {
        WaitsFor::Room => return false,
        WaitsFor::Nothing => {}
        WaitsFor::Handler | WaitsFor::Piece => {
            context.metrics.own().handlers_timed_out.add(1);
            abort(context, x, Status::BUSY);
        }
        WaitsFor::Client => {
            let received = exchange.incoming.as_ref().map_or(0, |incoming| incoming.received);
            if u128::from(received) < context.min_progress() {
                abort(context, x, Status::TIMEOUT);
            } else {
                let time = context.limits.progress_interval;
                if let Some(incoming) = &mut exchange.incoming {
                    incoming.received = 0;
                }
                x.io.set_deadline(x.id, Some(x.io.now() + time));
            }
        }
    }
    true
}
