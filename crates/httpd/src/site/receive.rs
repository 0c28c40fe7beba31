//! Requests in the order in which they arrive, with their bodies.

use evring::{Commands, Cx, Rx};

use crate::decision::options::ResponseOptions;
use crate::message::body::BodyPiece;
use crate::message::head_errors::{EMPTY_LINE, NoRequest, start_of_line};
use crate::message::request::{HeadMemory, KeptHead, is_still_partial, parse};
use crate::message::status::Status;
use crate::response::sent::Sent;
use crate::site::Site;
use crate::site::log::LoggedRequest;
#[cfg(feature = "basic-auth")]
use crate::site::login::Login;
use crate::site::state::{AfterBody, Arrival, BodyReceipt, PendingWork, State};

impl Site {
    /// Processes received bytes of a request's body. Returns false if processing stops here.
    #[cold]
    fn receive_body(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        rx: &mut Rx<'_>,
    ) -> Result<bool, Status> {
        if x.state.exchange().is_some() {
            return Ok(self.handlers.receive(&mut self.context, x, rx));
        }
        loop {
            let Some(work) = x.state.body() else { return Ok(true) };
            match work.body.next(rx, &self.context.limits)? {
                BodyPiece::Partial => return Ok(true),
                BodyPiece::Content(n) => {
                    work.received += n as u64;
                    let proceed = self.handlers.data(&mut self.context, x, &rx.bytes()[..n]);
                    rx.consume(n);
                    if !proceed {
                        return Ok(false);
                    }
                }
                BodyPiece::End(n) => {
                    x.state.arrival = Arrival::Nothing;
                    let proceed = self.end_body(x, &rx.bytes()[..n]);
                    rx.consume(n);
                    return Ok(proceed);
                }
            }
        }
    }

    /// Ends a body, with its trailer section. Returns whether the next request may be processed.
    fn end_body(&mut self, x: &mut Cx<'_, impl Commands, State>, bytes: &[u8]) -> bool {
        let Some(PendingWork::Body(receipt)) = x.state.work.take().map(|work| *work) else {
            return true;
        };
        // The body's memory stays counted until the handler has returned.
        let BodyReceipt { options, then, held: _held, .. } = receipt;
        let options = options.ending_if(x.io.is_stopping());
        let (head, proceed) = match then {
            AfterBody::BodySink(sink, head) => {
                (head, self.handlers.end(&mut self.context, x, sink, bytes, options))
            }
            AfterBody::Answer(head) => {
                let proceed = self.answer_without_body(x, &head.request(), options);
                (Some(head), proceed)
            }
        };
        let request = head.as_ref().map(KeptHead::request);
        self.context.count(x.state, LoggedRequest::new(request.as_ref(), b""));
        proceed
    }

    /// Answers all requests that have arrived, until one has to wait.
    #[inline]
    pub(super) fn answer_all(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        rx: &mut Rx<'_>,
        memory: &mut HeadMemory,
    ) -> Received {
        loop {
            if x.state.work.is_some() {
                match self.receive_body(x, rx) {
                    // The bytes that follow belong to the exchange that the body has begun.
                    Ok(true) if x.state.exchange().is_some() => continue,
                    Ok(true) if x.state.work.is_some() => return Received::Partial,
                    Ok(true) => {}
                    Ok(false) => return Received::Waits,
                    Err(status) => return self.reject(x, rx, status),
                }
            }
            let bytes = rx.bytes();
            if bytes.is_empty() {
                return match rx.is_partial() {
                    true if x.state.full => Received::Full,
                    true => Received::Partial,
                    false => Received::All,
                };
            }
            // A second empty line begins a request, so that a client cannot stay by sending them.
            if bytes.starts_with(EMPTY_LINE) && x.state.requests > 0 && !x.state.arrival.has_line()
            {
                (x.state.scanned, x.state.arrival) = (0, Arrival::EmptyLine);
                // Left unconsumed, it would keep the connection from being idle.
                rx.consume(EMPTY_LINE.len());
                continue;
            }
            if x.state.full {
                return Received::Full;
            }
            let (limits, scanned) = (&self.context.limits, x.state.scanned as usize);
            if scanned > 0 && !rx.eof() && is_still_partial(bytes, scanned, limits) {
                x.state.scanned = bytes.len() as u16;
                return Received::Partial;
            }
            match parse(bytes, memory, limits) {
                Ok(request) => {
                    let len = request.head.len();
                    (x.state.scanned, x.state.arrival) = (0, Arrival::Nothing);
                    self.context.begin(x.state, x.io.now());
                    let (for_host, remaining) =
                        ((&request, self.files.hosts.of(&request)), bytes.len() - len);
                    #[cfg(feature = "basic-auth")]
                    let login = match &mut self.logins {
                        Some(logins) => logins.decide(&mut self.context, x, for_host, remaining),
                        None => Login::Granted,
                    };
                    #[cfg(feature = "basic-auth")]
                    let proceed = match login {
                        Login::Granted => self.answer(x, for_host, remaining),
                        Login::Answered(proceed) => proceed,
                        Login::Waits => return Received::Waits,
                    };
                    #[cfg(not(feature = "basic-auth"))]
                    let proceed = self.answer(x, for_host, remaining);
                    self.context.count(x.state, LoggedRequest::Request(&request));
                    rx.consume(len);
                    if !proceed {
                        return Received::Waits;
                    }
                }
                Err(NoRequest::Partial) => {
                    x.state.scanned = bytes.len() as u16;
                    return Received::Partial;
                }
                Err(NoRequest::Rejected(status)) => return self.reject(x, rx, status),
            }
        }
    }

    /// Rejects bytes that are not a valid request, and closes the connection.
    fn reject(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        rx: &mut Rx<'_>,
        status: Status,
    ) -> Received {
        let options = match x.state.body() {
            Some(receipt) => receipt.options.ending(),
            None => {
                let is_head = rx.bytes()[start_of_line(rx.bytes())..].starts_with(b"HEAD ");
                ResponseOptions::last(!is_head)
            }
        };
        self.reject_request(x, status, options, rx.bytes());
        rx.consume(rx.bytes().len());
        Received::Waits
    }

    /// Rejects the request that is being received, which starts with `bytes`, and closes the
    /// connection.
    pub(super) fn reject_request(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        status: Status,
        options: ResponseOptions,
        bytes: &[u8],
    ) {
        let work = x.state.work.take();
        let options = ResponseOptions { host: x.state.host(options.host), ..options };
        self.context.send_error(x, status, options);
        let (request, bytes) = match work.as_deref() {
            Some(PendingWork::Body(receipt)) => (receipt.then.request(), &b""[..]),
            _ => (None, bytes),
        };
        self.context.count(x.state, LoggedRequest::new(request.as_ref(), bytes));
    }

    /// Counts a request whose client has left before the end of its body.
    pub(super) fn cancel_body(&mut self, x: &mut Cx<'_, impl Commands, State>) {
        let work = x.state.work.take();
        if let Some(PendingWork::Body(receipt)) = work.as_deref() {
            let _ = x.state.record(Sent::new(Status::CANCELLED, 0, 0));
            let request = receipt.then.request();
            self.context.count(x.state, LoggedRequest::new(request.as_ref(), b""));
        }
    }
}

/// What became of the bytes received.
pub(super) enum Received {
    /// All were processed.
    All,
    /// The last request is incomplete.
    Partial,
    /// The send queue is full, so a request waits.
    Full,
    /// A request waits for a file operation, or the connection is closed.
    Waits,
}
