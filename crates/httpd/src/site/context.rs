//! The state that all parts of a site use.

use std::cell::Cell;
use std::mem::take;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use evring::{Close, Commands, Cx, Others};
use tracing::{Level, debug, enabled};

use crate::decision::options::ResponseOptions;
use crate::limits::Limits;
use crate::message::request::{KeptHead, RequestHead};
use crate::message::status::Status;
use crate::response::prepared::PreparedResponse;
use crate::response::responder::ResponseSender;
use crate::site::log::{LogEntry, LogSender, LoggedRequest};
use crate::site::metrics::Metrics;
use crate::site::state::State;

/// Maximum idle time between two requests at workers that others have replaced. A client that is about to send its next
/// request has time to do so, and learns by the response that the connection ends: one that is closed may lose a request
/// (RFC 9112, section 9.5).
const RETIRED_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Time between queuing a response that fills the send queue and the first measurement of its unsent bytes. What the
/// kernels of both sides buffer in that time is not progress of the client. Most responses are sent by then.
const FIRST_CHECK: Duration = Duration::from_millis(100);

/// Looks per progress interval at the unsent bytes of a connection that is idle otherwise. If the first one after a
/// response finds some, the client is watched; else the keep-alive timeout continues. After that it begins at the first
/// look that finds none.
const LOOKS: u8 = 16;

/// The limits of a site, and the responses that it sends, counts and logs.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) limits: Limits,
    pub(crate) responder: ResponseSender,
    pub(crate) metrics: Metrics,
    pub(crate) log: Option<LogSender>,
    /// Bytes of memory held for request bodies.
    pub(crate) bodies: Rc<Cell<usize>>,
    /// Whether the time of each request is measured, for the log or the metrics.
    pub(crate) measures: bool,
}

impl Context {
    pub(crate) fn new() -> Self {
        let (limits, responder) = (Limits::default(), ResponseSender::new());
        Context {
            limits,
            responder,
            metrics: Metrics::default(),
            log: None,
            bodies: Rc::default(),
            measures: false,
        }
    }

    /// Counts a request of its connection, after whose head `remaining` bytes have arrived. Returns the options for
    /// its response.
    #[inline]
    pub(crate) fn options(
        &self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        remaining: usize,
    ) -> ResponseOptions {
        x.state.requests += 1;
        let max_requests = self.limits.max_keep_alive_requests;
        let is_last = x.state.requests >= max_requests || x.io.is_stopping();
        ResponseOptions::new(request, remaining, is_last)
    }

    /// Sends a response that has only a status. Returns whether the next request may be processed.
    #[cold]
    pub(crate) fn send_error(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        status: Status,
        options: ResponseOptions,
    ) -> bool {
        let sent = self.responder.send_error((x.io, x.id), status, options);
        x.state.record(sent)
    }

    /// Answers a request with a prepared response, or the part that it requests. Returns whether the
    /// next request may be processed.
    pub(crate) fn send_planned(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        prepared: &mut PreparedResponse,
        request: &RequestHead<'_>,
        options: ResponseOptions,
    ) -> bool {
        let sent = self.responder.send_planned((x.io, x.id), prepared, request, options);
        x.state.record(sent)
    }

    /// Counts and logs the last response, if there was one. One that fills the send queue is counted when it was sent,
    /// as its client may leave; up to [`HIGH_WATER`](evring::HIGH_WATER) bytes count as sent when they are queued.
    #[inline]
    pub(crate) fn count(&mut self, state: &mut State, logged: LoggedRequest<'_>) {
        if state.last_status == 0 {
            return;
        }
        if let Some(exchange) = state.exchange() {
            // The handler still sends the body; the response is counted when it has ended.
            if let LoggedRequest::Request(request) = logged
                && self.logs_requests()
            {
                exchange.head = Some(KeptHead::new(request, exchange.head.take()));
            }
            return;
        }
        if state.full {
            return self.await_end(state, logged);
        }
        self.count_sent(state, logged);
    }

    /// Keeps a response to be counted and logged when it was sent, or its connection has closed.
    #[cold]
    fn await_end(&self, state: &mut State, logged: LoggedRequest<'_>) {
        if self.logs_requests()
            && let LoggedRequest::Request(request) = logged
        {
            state.observed.get_or_insert_default().head = Some(KeptHead::new(request, None));
        }
    }

    /// Counts and logs the last response if it was to be sent first.
    pub(crate) fn count_awaited(&mut self, state: &mut State) {
        if state.last_status == 0 || state.exchange().is_some() {
            return;
        }
        let head = state.observed.as_mut().and_then(|observed| observed.head.take());
        let request = head.as_ref().map(KeptHead::request);
        self.count_sent(state, LoggedRequest::new(request.as_ref(), b""));
    }

    /// Subtracts what the kernel has not taken from the bytes of the last response, as it is dropped.
    pub(crate) fn subtract_unsent(&self, x: &mut Cx<'_, impl Commands, State>) {
        let unsent = x.io.queued_bytes(x.id);
        x.state.last_body_bytes = x.state.last_body_bytes.saturating_sub(unsent);
        x.state.full = false;
    }

    #[inline]
    fn count_sent(&mut self, state: &mut State, logged: LoggedRequest<'_>) {
        let status = take(&mut state.last_status);
        self.metrics.own().count_response(status, state.last_body_bytes);
        if status >= 400 || self.measures {
            self.log_response(state, status, logged);
        }
    }

    /// Ends each connection with its next response, from now on.
    pub(crate) fn drain(&mut self) {
        self.limits.max_keep_alive_requests = 0;
    }

    /// As [`Context::drain`], and closes connections that stay idle.
    pub(crate) fn retire<C: Commands>(&mut self, io: &mut C, mut all: Others<'_, State>) {
        self.drain();
        self.limits.keep_alive_timeout = self.limits.keep_alive_timeout.min(RETIRED_KEEP_ALIVE);
        let until = io.now() + self.limits.keep_alive_timeout;
        all.for_each(io, |io, id, state| {
            if !state.is_idle() || state.full || state.requests == 0 {
                return;
            }
            // While the client still receives, the deadline is that of its progress.
            if state.unsent > 0 {
                if io.unsent_bytes(id) > 0 {
                    return;
                }
                state.stop_watching();
                io.set_deadline(id, Some(until));
            } else if io.deadline(id).is_none_or(|at| at > until) {
                // A nearer deadline stays.
                state.stop_watching();
                io.set_deadline(id, Some(until));
            }
        });
    }

    /// Records that a request has arrived. One that waits for its password arrives again.
    #[inline]
    pub(crate) fn begin(&self, state: &mut State, now: Instant) {
        if self.measures
            && let Some(observed) = &mut state.observed
        {
            observed.since.get_or_insert(now);
        }
    }

    #[inline(never)]
    fn log_response(&mut self, state: &mut State, status: u16, logged: LoggedRequest<'_>) {
        if status >= 400 {
            log_error_response(status, logged);
        }
        let observed = state.observed.as_deref_mut();
        let peer = observed.as_ref().and_then(|observed| observed.peer);
        let since = observed.and_then(|observed| observed.since.take());
        // The turn's time is that of its beginning.
        let time = since.map(|since| Instant::now().saturating_duration_since(since));
        if let Some(time) = time {
            self.metrics.own().count_time(time);
        }
        if let Some(log) = &mut self.log {
            let (peer, body) = (peer.as_ref().map(SocketAddr::ip), state.last_body_bytes);
            let date = self.responder.clock.stamp();
            let entry = LogEntry { peer, date, now: SystemTime::now, logged, status, body, time };
            if !log.write(&entry) {
                self.metrics.own().log_lines_lost.add(1);
            }
        }
    }

    /// Returns the address of a connection's client, that of IPv4 also at a socket for both families.
    pub(crate) fn client_addr(&self, x: &mut Cx<'_, impl Commands, State>) -> Option<SocketAddr> {
        let observed = x.state.observed.get_or_insert_default();
        if observed.peer.is_none() {
            observed.peer = x.io.peer_addr(x.id).map(|mut peer| {
                peer.set_ip(peer.ip().to_canonical());
                peer
            });
        }
        observed.peer
    }

    /// Returns whether requests are logged, so that their heads have to be kept.
    pub(crate) fn logs_requests(&self) -> bool {
        self.log.is_some() || enabled!(Level::DEBUG)
    }

    /// Waits for the next request, of which nothing has arrived: one store for a plain request.
    #[inline]
    pub(crate) fn await_request(&self, x: &mut Cx<'_, impl Commands, State>) {
        if x.state.full {
            self.await_progress(x);
        } else if x.io.is_stopping() {
            // The last request before shutdown is complete.
            x.io.close(x.id, Close::Flush);
        } else if x.state.unsent > 0 {
            // The kernel has the rest of a response, and the client may not take it.
            self.await_progress(x);
        } else {
            let (look, keep_alive) = (self.look_interval(), self.limits.keep_alive_timeout);
            x.state.looks = if look < keep_alive { State::LOOK_AFTER_RESPONSE } else { 0 };
            x.io.set_deadline(x.id, Some(x.io.now() + look.min(keep_alive)));
        }
    }

    fn look_interval(&self) -> Duration {
        self.limits.progress_interval / u32::from(LOOKS)
    }

    /// Looks once whether the client has the response after which it is idle: its kernel and that of the server may have
    /// all of it, and the client takes nothing. Returns true if there are no unsent bytes, so that the keep-alive timeout
    /// continues.
    pub(crate) fn looks_after_response(
        &self,
        x: &mut Cx<'_, impl Commands, State>,
        unsent: u64,
    ) -> bool {
        if x.state.looks != State::LOOK_AFTER_RESPONSE {
            return false;
        }
        x.state.looks = 0;
        if unsent > 0 || !x.state.is_idle() || x.state.full {
            return false;
        }
        let left = self.limits.keep_alive_timeout.saturating_sub(self.look_interval());
        x.io.set_deadline(x.id, Some(x.io.now() + left));
        true
    }

    /// Sets the time of the first look at what the client takes of the unsent bytes.
    pub(crate) fn await_progress(&self, x: &mut Cx<'_, impl Commands, State>) {
        x.state.start_watching();
        let time = FIRST_CHECK.min(self.limits.progress_interval);
        x.io.set_deadline(x.id, Some(x.io.now() + time));
    }

    /// Sets the deadline for the client to take some of the `unsent` bytes, or that of the next look at them.
    pub(crate) fn watch_progress(&self, x: &mut Cx<'_, impl Commands, State>, unsent: u64) {
        let mut time = self.limits.progress_interval;
        if x.state.looks > 0 {
            x.state.looks -= 1;
            time /= LOOKS.into();
        } else {
            x.state.unsent = unsent;
            if x.state.is_idle() && !x.state.full {
                x.state.looks = LOOKS - 1;
                time /= LOOKS.into();
            }
        }
        x.io.set_deadline(x.id, Some(x.io.now() + time));
    }

    /// Returns the minimum bytes that a client has to send or take per interval, at least 1.
    pub(crate) fn min_progress(&self) -> u128 {
        let Limits { progress_interval, min_rate, .. } = self.limits;
        (progress_interval.as_nanos() * u128::from(min_rate)).div_ceil(1_000_000_000).max(1)
    }

    /// Returns whether the client took too few of the unsent bytes in the interval that has ended.
    pub(crate) fn is_stalled(&self, state: &State, unsent: u64) -> bool {
        let before = state.unsent;
        let is_measured = before > 0 && before != State::NOT_MEASURED && state.looks == 0;
        is_measured && unsent > 0 && u128::from(before.saturating_sub(unsent)) < self.min_progress()
    }
}

/// Logs a request that was answered with an error.
#[cold]
fn log_error_response(status: u16, logged: LoggedRequest<'_>) {
    match logged {
        LoggedRequest::Request(request) => {
            let (name, target) = (request.name, request.target);
            let (name, target) = (String::from_utf8_lossy(name), String::from_utf8_lossy(target));
            debug!("{status} for {name} {target:?}");
        }
        LoggedRequest::Bytes(bytes) => {
            debug!("{status} for an invalid request of {} bytes", bytes.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::sent::Sent;

    #[test]
    fn time_of_a_request_excluded_the_check_of_its_password() {
        let mut context = Context { measures: true, ..Context::new() };
        let mut state = State { observed: Some(Box::default()), ..State::default() };
        let since = |state: &State| state.observed.as_ref().and_then(|observed| observed.since);
        let first = Instant::now();
        let second = first + Duration::from_secs(1);
        context.begin(&mut state, first);
        // The head arrives again when the password was verified.
        context.begin(&mut state, second);
        assert_eq!(since(&state), Some(first));
        state.record(Sent::new(Status::OK, 0, 0));
        context.count(&mut state, LoggedRequest::Bytes(b""));
        context.begin(&mut state, second);
        assert_eq!(since(&state), Some(second));
    }
}
