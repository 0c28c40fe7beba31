//! The site: the application that answers HTTP requests.

pub(crate) mod body_memory;
pub(crate) mod cache;
pub(crate) mod client_info;
#[cfg(feature = "compression")]
pub(crate) mod compress;
#[cfg(feature = "compression")]
pub(crate) mod compressor;
pub(crate) mod constant;
pub(crate) mod context;
pub(crate) mod deferred;
pub(crate) mod exchange;
pub(crate) mod files;
pub(crate) mod guard;
pub(crate) mod handler;
pub(crate) mod handlers;
pub(crate) mod head;
pub(crate) mod hosts;
#[cfg(feature = "tls")]
pub(crate) mod https_redirect;
pub(crate) mod into_handler;
pub(crate) mod into_response;
#[cfg(feature = "json")]
pub(crate) mod json;
pub(crate) mod listing;
pub(crate) mod log;
#[cfg(feature = "basic-auth")]
pub(crate) mod login;
pub(crate) mod lookup;
pub(crate) mod marked;
pub(crate) mod methods;
pub(crate) mod metrics;
pub(crate) mod middleware;
pub(crate) mod oneshot;
pub(crate) mod params;
pub(crate) mod pipe;
pub(crate) mod pool;
pub(crate) mod progress;
pub(crate) mod reply;
pub(crate) mod request_body;
pub(crate) mod response_body;
pub(crate) mod responses;
pub(crate) mod routes;
#[cfg(feature = "sandbox")]
pub(crate) mod sandbox;
#[cfg(feature = "tower")]
pub(crate) mod service;
pub(crate) mod shed;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod upgrade;
pub(crate) mod wakers;

use std::io;
use std::mem::take;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use evring::{
    Application, Close, CloseReason, Commands, ConnId, Cx, FileOutcome, Listener, Others,
    RemoteHandle, Root, Rx,
};
use tracing::debug;

use crate::decision::options::{HostIndex, ResponseOptions};
use crate::decision::plan::{check_file_method, is_plain};
use crate::decision::representation::RepresentationHeaders;
use crate::limits::Limits;
use crate::message::body::{Body, BodyPiece};
use crate::message::head_errors::{NoRequest, start_of_line};
use crate::message::path;
use crate::message::request::{
    Expects, HeadMemory, KeptHead, Method, Request, is_still_partial, parse,
};
use crate::message::status::Status;
use crate::redirect::Redirect;
use crate::response::prepared::PreparedResponse;
use crate::site::cache::Cache;
use crate::site::context::Context;
use crate::site::files::Files;
use crate::site::handlers::Handlers;
#[cfg(feature = "tls")]
use crate::site::https_redirect::HttpsRedirect;
use crate::site::into_handler::IntoHandler;
use crate::site::log::LoggedRequest;
#[cfg(feature = "basic-auth")]
use crate::site::login::Login;
use crate::site::lookup::FileLookup;
use crate::site::state::{AfterBody, BodyReceipt, PendingWork, State};
use crate::site::wakers::Wakers;

/// An HTTP site: handlers, and files below a root or evring's page.
///
/// A cached small file is served with one lookup and one copy. Other files require file operations
/// of the mechanism. The connection does not receive meanwhile, so responses are in the order
/// of their requests without a queue.
#[derive(Debug)]
pub struct Site {
    pub(crate) context: Context,
    pub(crate) files: Files,
    pub(crate) handlers: Handlers,
    #[cfg(feature = "sandbox")]
    pub(crate) sandbox: crate::site::sandbox::Sandbox,
    /// Verifies passwords, if paths need some.
    #[cfg(feature = "basic-auth")]
    pub(crate) logins: Option<login::Logins>,
    pub(crate) backend: String,
    /// Whether the cache has a random hash seed.
    seeded: bool,
    /// Whether the site serves its metrics and, without files, evring's page. `None` enables both if
    /// there are neither files nor handlers.
    pub(crate) status: Option<bool>,
    /// Redirects requests without TLS.
    #[cfg(feature = "tls")]
    pub(crate) redirect: Option<HttpsRedirect>,
}

/// Tag of the wake-up after which each connection ends with its next response.
pub(crate) const DRAIN_TAG: u64 = u64::from_be_bytes(*b"draining");

/// The path of the server's metrics.
const STATUS: &str = "/.httpd/status.json";

impl Site {
    /// Creates a site that serves the files below `root`, or evring's page without one.
    pub fn new(root: Option<Root>) -> Self {
        let context = Context::new();
        Site {
            files: Files::new(root, &context.limits),
            context,
            handlers: Handlers::default(),
            #[cfg(feature = "sandbox")]
            sandbox: crate::site::sandbox::Sandbox::default(),
            #[cfg(feature = "basic-auth")]
            logins: None,
            backend: "unnamed".to_owned(),
            seeded: false,
            status: None,
            #[cfg(feature = "tls")]
            redirect: None,
        }
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        let limits = limits.clamped();
        self.files.cache = Cache::new(&limits);
        self.context.limits = limits;
        self
    }

    /// Sets the name of the mechanism, for the page and the metrics.
    #[must_use]
    pub fn backend(self, name: &str) -> Self {
        Site { backend: name.to_owned(), ..self }
    }

    /// Enables precompressed files: a client that accepts gzip gets `a.css.gz` instead of `a.css`.
    /// Enabled by default.
    #[must_use]
    pub fn precompressed(mut self, on: bool) -> Self {
        self.files.hosts.first_mut().options.no_precompressed = !on;
        self
    }

    /// Enables listings of directories without an `index.html`. Disabled by default.
    #[must_use]
    pub fn listing(mut self, on: bool) -> Self {
        self.files.hosts.first_mut().options.listing = on;
        self
    }

    /// Sets `Cache-Control: max-age` of files, in seconds. The default is no field, which leaves
    /// caching to heuristics.
    #[must_use]
    pub fn max_age(mut self, seconds: Option<u32>) -> Self {
        self.files.hosts.first_mut().options.max_age = seconds;
        self
    }

    /// Enables the metrics at `/.httpd/status.json` and, without files, evring's page at `/`. By
    /// default they are enabled if the site has neither files nor handlers.
    #[must_use]
    pub fn status(self, on: bool) -> Self {
        Site { status: Some(on), ..self }
    }

    /// Returns whether a host serves files.
    fn has_root(&self, host: HostIndex) -> bool {
        self.files.hosts.get(host).root.is_some()
    }

    /// Returns whether the metrics and evring's page are enabled.
    fn shows_status(&self) -> bool {
        let has_files = self.files.hosts.count() > 1 || self.has_root(HostIndex::default());
        self.status.unwrap_or(!has_files && self.handlers.routes.is_empty())
    }

    /// Routes all requests for a path, with any method, to a handler. A path that ends in a slash also
    /// matches everything below it. The longest match wins. A missing leading slash is added.
    /// Handlers take precedence over files. Request paths are matched in canonical form: decoded,
    /// without dot segments and empty segments.
    #[must_use]
    pub fn route<K>(mut self, path: &str, handler: impl IntoHandler<K>) -> Self {
        self.handlers.routes.add(path, Arc::new(handler.into_handler()));
        self
    }

    /// Sets the handle of the mechanism that runs the site. Handlers that wait need it, else they are
    /// answered with 500; a [`Server`](crate::Server) sets it.
    #[must_use]
    pub fn remote(mut self, handle: &RemoteHandle) -> Self {
        self.handlers.wakers = Some(Wakers::new(handle));
        self
    }

    /// Answers a request for a host, after whose head `remaining` bytes have arrived. Returns whether the next
    /// request may be processed.
    #[inline]
    fn answer(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        (request, host): (&Request<'_>, HostIndex),
        remaining: usize,
    ) -> bool {
        let options = ResponseOptions { host, ..self.context.options(x, request, remaining) };
        #[cfg(feature = "tls")]
        if x.state.redirects {
            return self.redirect_to_https(x, request, options);
        }
        #[cfg(feature = "sandbox")]
        if let Some(sent) = self.sandbox.answer(self.context.metrics.own(), x, request, options) {
            return x.state.record(sent);
        }
        if is_plain(request) {
            if let Some(route) = self.handlers.routes.find_exact(request.target) {
                let body = (Body::default(), options);
                return self.handlers.call(&mut self.context, x, request, body, route);
            }
            return self.answer_for_file(x, request, options);
        }
        match self.answer_unusual(x, request, options) {
            Ok(proceed) => proceed,
            Err(status) => self.context.send_error(x, status, options.ending()),
        }
    }

    /// Redirects a request to https. The connection ends if the request has a body.
    #[cfg(feature = "tls")]
    #[cold]
    fn redirect_to_https(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_>,
        options: ResponseOptions,
    ) -> bool {
        let options = options.ending_if(request.has_body());
        let location = self.redirect.as_ref().and_then(|redirect| redirect.location(request));
        match location {
            Some(location) => {
                let to = (&mut *x.io, x.id);
                let responder = &mut self.context.responder;
                let sent = responder.send_status(to, Status::PERMANENT, &location, options);
                x.state.record(sent)
            }
            None => self.context.send_error(x, Status::BAD_REQUEST, options.ending()),
        }
    }

    /// Answers a GET or HEAD.
    #[inline(always)]
    fn answer_for_file(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_>,
        options: ResponseOptions,
    ) -> bool {
        match self.files.answer(&mut self.context, x, request, options) {
            Some(proceed) => proceed,
            None => self.answer_uncached(x, request, options),
        }
    }

    /// Answers a request whose target is not a key of the cache. Returns whether the next request
    /// may be processed.
    #[cold]
    fn answer_uncached(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_>,
        options: ResponseOptions,
    ) -> bool {
        let (name, query) = match path::split(request.target) {
            Ok((name, query)) => (path::canonical(name), query),
            Err(status) => return self.context.send_error(x, status, options.ending()),
        };
        if let Some(route) = self.handlers.routes.find(&name) {
            let body = (Body::default(), options);
            return self.handlers.call(&mut self.context, x, request, body, route);
        }
        if let Some(proceed) = self.redirect(x, (&name, query), options) {
            return proceed;
        }
        if *name == *STATUS.as_bytes() && self.shows_status() {
            return self.show_status(x, options);
        }
        let lookup = match FileLookup::open(&name, query, options) {
            Ok(lookup) => lookup,
            Err(Status::NOT_FOUND) => {
                return self.context.send_error(x, Status::NOT_FOUND, options);
            }
            Err(status) => return self.context.send_error(x, status, options.ending()),
        };
        if !self.has_root(options.host) {
            return self.answer_page(x, request, lookup.paths.plain.as_path(), options);
        }
        self.files.look_up(&mut self.context, x, request, lookup)
    }

    /// Answers a request for a canonical path that is redirected. Returns `None` if it is not, else whether the next
    /// request may be processed.
    fn redirect(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        (name, query): (&[u8], Option<&[u8]>),
        options: ResponseOptions,
    ) -> Option<bool> {
        let (status, location) =
            Redirect::find(&self.files.hosts.get(options.host).options.redirects, name, query)?;
        let to = (&mut *x.io, x.id);
        let sent = self.context.responder.send_status(to, status, &location, options);
        Some(x.state.record(sent))
    }

    /// Without a root: answers with evring's page, at `/` of the first host only.
    fn answer_page(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_>,
        path: &Path,
        options: ResponseOptions,
    ) -> bool {
        let is_page = path == Path::new(path::INDEX) && options.host == HostIndex::default();
        if !is_page || !self.shows_status() {
            return self.context.send_error(x, Status::NOT_FOUND, options);
        }
        let page = include_str!("page.html")
            .replace("{backend}", &self.backend)
            .replace("{version}", env!("CARGO_PKG_VERSION"));
        let representation = RepresentationHeaders::plain("text/html; charset=utf-8");
        let clock = &self.context.responder.clock;
        let mut prepared = PreparedResponse::new(representation, page.as_bytes(), clock);
        let proceed = self.context.send_planned(x, &mut prepared, request, options);
        self.files.cache.insert(b"/", prepared, None, x.io.now());
        proceed
    }

    /// Brings the clock of responses to the time of this turn, which it returns. Does each second's work once.
    #[inline]
    fn tick(&mut self, io: &mut impl Commands) -> Instant {
        let now = io.now();
        if self.context.responder.clock.tick(now, io) {
            self.context.metrics.own().copy_stats(io);
            self.files.cache.close_idle(now);
        }
        now
    }

    fn show_status(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        options: ResponseOptions,
    ) -> bool {
        let Context { metrics, responder, .. } = &self.context;
        metrics.own().copy_stats(x.io);
        let text = metrics.json(&self.backend, x.io.now());
        let representation = RepresentationHeaders::uncached("application/json");
        let mut prepared = PreparedResponse::new(representation, text.as_bytes(), &responder.clock);
        let sent = prepared.send(x.io, x.id, &responder.clock, options);
        x.state.record(sent)
    }

    /// Answers a request that is not a plain GET or HEAD.
    #[cold]
    fn answer_unusual(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_>,
        options: ResponseOptions,
    ) -> Result<bool, Status> {
        if request.expects == Expects::Unknown {
            return Err(Status::EXPECTATION);
        }
        let body = Body::new(request.framing, &self.context.limits)?;
        if request.target == b"*" && request.method != Method::Options {
            return Err(Status::BAD_REQUEST);
        }
        match path::split(request.target) {
            Ok((path, query)) => {
                let name = path::canonical(path);
                if let Some(route) = self.handlers.routes.find(&name) {
                    let body = (body, options);
                    return Ok(self.handlers.call(&mut self.context, x, request, body, route));
                }
                let options = options.ending_if(body.is_open());
                if let Some(proceed) = self.redirect(x, (&name, query), options) {
                    return Ok(proceed);
                }
            }
            // CONNECT has an authority as its target, OPTIONS may have an asterisk.
            Err(status) if request.target != b"*" && request.name != b"CONNECT" => {
                return Err(status);
            }
            Err(_) => {}
        }
        check_file_method(request.method)?;
        if !body.is_open() {
            return Ok(self.answer_without_body(x, request, options));
        }
        // The body is not used. A client that waits for 100 Continue need not send it.
        if request.expects == Expects::Continue {
            return Ok(self.answer_without_body(x, request, options.ending()));
        }
        let then = AfterBody::Answer(KeptHead::new(request, None));
        Handlers::receive_body(&self.context, x, (body, options), then);
        Ok(true)
    }

    /// Answers a request whose body has arrived or is not used.
    fn answer_without_body(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_>,
        options: ResponseOptions,
    ) -> bool {
        match request.method {
            Method::Options => self.context.send_error(x, Status::NO_CONTENT, options),
            _ => self.answer_for_file(x, request, options),
        }
    }

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
                    x.state.read_deadline_armed = false;
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
    fn answer_all(&mut self, x: &mut Cx<'_, impl Commands, State>, rx: &mut Rx<'_>) -> Received {
        loop {
            if x.state.work.is_some() {
                match self.receive_body(x, rx) {
                    Ok(true) if x.state.work.is_some() => return Received::Partial,
                    Ok(true) => {}
                    Ok(false) => return Received::Waits,
                    Err(status) => return self.reject(x, rx, status),
                }
            }
            let bytes = rx.bytes();
            if bytes.is_empty() {
                return Received::All;
            }
            if x.state.full {
                return Received::Full;
            }
            let (limits, scanned) = (&self.context.limits, x.state.scanned as usize);
            if scanned > 0 && !rx.eof() && is_still_partial(bytes, scanned, limits) {
                x.state.scanned = bytes.len() as u32;
                return Received::Partial;
            }
            match parse(bytes, &mut HeadMemory::new(), limits) {
                Ok(request) => {
                    let len = request.head.len();
                    x.state.scanned = 0;
                    x.state.read_deadline_armed = false;
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
                    x.state.scanned = bytes.len() as u32;
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
    fn reject_request(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        status: Status,
        options: ResponseOptions,
        bytes: &[u8],
    ) {
        let work = x.state.work.take();
        self.context.send_error(x, status, options);
        let (request, bytes) = match work.as_deref() {
            Some(PendingWork::Body(receipt)) => (receipt.then.request(), &b""[..]),
            _ => (None, bytes),
        };
        self.context.count(x.state, LoggedRequest::new(request.as_ref(), bytes));
    }

    /// Sets the deadline for the next step of a connection; one store for a plain request.
    #[inline]
    fn set_deadline(&self, x: &mut Cx<'_, impl Commands, State>, now: Instant, next: Received) {
        match next {
            Received::All => self.context.await_request(x),
            // The deadline stays, so that single bytes do not extend it.
            Received::Partial if x.state.read_deadline_armed => {}
            Received::Partial => {
                x.state.read_deadline_armed = true;
                x.state.unsent = 0;
                let time = match x.state.body() {
                    Some(_) => self.context.limits.progress_interval,
                    None => self.context.limits.header_timeout,
                };
                x.io.set_deadline(x.id, Some(now + time));
            }
            Received::Full => {
                x.state.paused = true;
                x.io.set_receiving(x.id, false);
                self.context.watch_progress(x);
            }
            Received::Waits => {}
        }
    }
}

/// What became of the bytes received.
enum Received {
    /// All were processed.
    All,
    /// The last request is incomplete.
    Partial,
    /// The send queue is full, so a request waits.
    Full,
    /// A request waits for a file operation, or the connection is closed.
    Waits,
}

impl Application for Site {
    type State = State;
    const MAX_UNCONSUMED: usize = Limits::MAX_HEAD_BYTES;

    #[cfg_attr(not(feature = "tls"), expect(unused_variables))]
    fn accepted(&mut self, mut x: Cx<'_, impl Commands, State>, at: Listener) {
        #[cfg(feature = "tls")]
        if let Some(redirect) = &self.redirect {
            x.state.redirects = redirect.listeners.contains(&at.0);
        }
        if !self.seeded {
            self.files.cache.seed(x.io.random());
            self.seeded = true;
            self.context.metrics.set_started(x.io.now());
        }
        if self.context.measures {
            self.context.client_addr(&mut x);
        }
        x.state.read_deadline_armed = true;
        x.io.set_deadline(x.id, Some(x.io.now() + self.context.limits.header_timeout));
    }

    fn received(&mut self, mut x: Cx<'_, impl Commands, State>, rx: &mut Rx<'_>) {
        let now = self.tick(x.io);
        let next = self.answer_all(&mut x, rx);
        if rx.eof() && matches!(next, Received::All | Received::Partial) {
            return x.io.close(x.id, Close::Flush);
        }
        self.set_deadline(&mut x, now, next);
    }

    fn drained(&mut self, mut x: Cx<'_, impl Commands, State>) {
        let was_full = take(&mut x.state.full);
        if self.handlers.drained(&mut self.context, &mut x) {
            return;
        }
        if take(&mut x.state.paused) {
            x.io.set_receiving(x.id, true);
        } else if was_full && !x.state.read_deadline_armed {
            let now = x.io.now();
            self.set_deadline(&mut x, now, Received::All);
        }
    }

    fn file(
        &mut self,
        mut x: Cx<'_, impl Commands, State>,
        _: u32,
        outcome: io::Result<FileOutcome>,
    ) {
        self.tick(x.io);
        self.files.completed(&mut self.context, &mut x, outcome);
    }

    fn expired(&mut self, mut x: Cx<'_, impl Commands, State>) {
        self.tick(x.io);
        if progress::expired(&mut self.context, &mut x) {
            return;
        }
        let unsent = x.io.unsent_bytes(x.id);
        #[cfg(feature = "basic-auth")]
        if matches!(x.state.work.as_deref(), Some(PendingWork::Login)) {
            debug!("connection reset: the password was not verified in time");
            return x.io.close(x.id, Close::Reset);
        }
        let waits_for_file = matches!(x.state.work.as_deref(), Some(PendingWork::File(..)));
        if waits_for_file || self.context.is_stalled(x.state.unsent, unsent) {
            // The file system hangs, or the client does not take its responses.
            self.context.metrics.own().reset_slow.add(u64::from(!waits_for_file));
            debug!(
                "connection reset: {}",
                if waits_for_file { "file operation timed out" } else { "client is too slow" }
            );
            x.io.close(x.id, Close::Reset);
        } else if unsent > 0 || x.state.full {
            // If everything is sent, `drained` follows.
            self.context.watch_progress(&mut x);
        } else if x
            .state
            .body()
            .is_some_and(|w| u128::from(take(&mut w.received)) >= self.context.min_progress())
        {
            // The body arrives fast enough.
            x.io.set_deadline(x.id, Some(x.io.now() + self.context.limits.progress_interval));
        } else if x.state.scanned > 0 || x.state.body().is_some() {
            let receipt = x.state.body();
            let options =
                receipt.map_or(ResponseOptions::last(true), |receipt| receipt.options.ending());
            self.reject_request(&mut x, Status::TIMEOUT, options, b"");
        } else {
            x.io.close(x.id, Close::Flush);
        }
    }

    #[cfg_attr(not(feature = "tls"), expect(unused_variables))]
    fn closed(&mut self, mut x: Cx<'_, impl Commands, State>, reason: CloseReason) {
        #[cfg(feature = "tls")]
        if matches!(&reason, CloseReason::Failed(error) if error.kind() == io::ErrorKind::InvalidData)
        {
            self.context.metrics.own().tls_errors.add(1);
            debug!("connection closed: {reason:?}");
        }
        progress::cancel(&mut self.context, &mut x);
    }

    fn woken(&mut self, io: &mut impl Commands, all: Others<'_, State>, tag: u64) {
        self.tick(io);
        match tag {
            wakers::TAG => self.handlers.woken(&mut self.context, io, all),
            #[cfg(feature = "compression")]
            compressor::TAG => self.files.woken(&mut self.context, io, all),
            #[cfg(feature = "basic-auth")]
            login::TAG => {
                if let Some(logins) = &mut self.logins {
                    logins.woken(io, all);
                }
            }
            DRAIN_TAG => self.context.drain(),
            _ => {}
        }
    }

    fn stopping(&mut self, mut x: Cx<'_, impl Commands, State>) {
        if self.handlers.stop_protocol(&mut self.context, &mut x) {
            return;
        }
        // Requests that are being received or looked up are still answered.
        if x.state.is_idle() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn is_idle(&self, _id: ConnId, state: &State) -> bool {
        state.is_idle()
    }

    fn is_unserved(&self, _id: ConnId, state: &State) -> bool {
        state.requests == 0
    }
}
