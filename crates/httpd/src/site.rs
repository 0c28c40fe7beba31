//! The site: the application that answers HTTP requests.

use std::cell::Cell;
use std::io;
use std::mem::take;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evring::{Application, Close, Commands, Cx, FileOutcome, Listener, MAX_READ_BYTES, Root, Rx};
use tracing::{Level, debug, enabled};

use crate::Limits;
use crate::body::{Body, BodyMemory, BodyPiece};
use crate::cache::{Cache, CacheLookup};
use crate::clock::Clock;
use crate::conversion::HttpConversion;
use crate::files::FileOptions;
use crate::handler::Handler;
use crate::head_errors::{as_http_1_1, start_of_line};
use crate::log::{Entry, LogSender, LoggedRequest};
use crate::metrics::Metrics;
use crate::path;
use crate::reply::ResponseOptions;
use crate::request::{self, Expects, Framing, MEMORY, Method, Parsed, Persistence, Request};
use crate::routes::Routes;
use crate::state::{ReceiveOutcome, State};
use crate::status::Status;
use crate::work::{AfterBody, BodyReceipt, FileLookup, PendingWork, send_prepared};

/// An HTTP site: handlers, and files below a root or evring's page.
///
/// A cached small file is served with one lookup and one copy. Other files require file operations
/// of the mechanism. The connection does not receive meanwhile, so responses are in the order
/// of their requests without a queue.
#[derive(Debug)]
pub struct Site {
    pub(crate) root: Option<Root>,
    pub(crate) routes: Routes,
    pub(crate) backend: String,
    pub(crate) limits: Limits,
    pub(crate) file_options: FileOptions,
    pub(crate) cache: Cache,
    pub(crate) clock: Clock,
    pub(crate) conversion: HttpConversion,
    /// Buffer for the heads of less frequent responses.
    pub(crate) scratch: Vec<u8>,
    /// Buffer for keys of the cache.
    pub(crate) key: Vec<u8>,
    /// Boxes of completed work, for reuse.
    #[expect(clippy::vec_box, reason = "the boxes move to and from the connections' states")]
    pub(crate) spare: Vec<Box<PendingWork>>,
    /// Bytes of memory held for request bodies.
    pub(crate) bodies: Rc<Cell<usize>>,
    /// Open files that are too large for the cache.
    pub(crate) open_files: Rc<Cell<usize>>,
    /// Whether the cache has a random hash seed.
    seeded: bool,
    pub(crate) metrics: Metrics,
    pub(crate) log: Option<LogSender>,
    /// Whether the site serves its metrics and, without files, evring's page. `None` enables both if
    /// there are neither files nor handlers.
    pub(crate) status: Option<bool>,
}

/// Number of boxes for pending work that are allocated at the start.
const INITIAL_SPARE: usize = 16;

impl Site {
    /// Creates a site that serves the files below `root`, or evring's page without one.
    pub fn new(root: Option<Root>) -> Self {
        let limits = Limits::default();
        Site {
            root,
            routes: Routes::default(),
            backend: "unnamed".to_owned(),
            cache: Cache::new(&limits),
            limits,
            file_options: FileOptions::default(),
            clock: Clock::new(),
            conversion: HttpConversion::default(),
            scratch: Vec::with_capacity(1024),
            key: Vec::with_capacity(256),
            spare: (0..INITIAL_SPARE).map(|_| Box::default()).collect(),
            bodies: Rc::default(),
            open_files: Rc::default(),
            seeded: false,
            metrics: Metrics::new(1),
            log: None,
            status: None,
        }
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        let clamp = |time: Duration| time.min(Limits::MAX_TIMEOUT);
        let limits = Limits {
            header_timeout: clamp(limits.header_timeout),
            keep_alive_timeout: clamp(limits.keep_alive_timeout),
            progress_interval: clamp(limits.progress_interval),
            cache_ttl: clamp(limits.cache_ttl),
            max_head_bytes: limits.max_head_bytes.min(Limits::MAX_HEAD_BYTES),
            max_headers: limits.max_headers.min(Limits::MAX_HEADERS),
            max_cached_file_bytes: limits.max_cached_file_bytes.min(MAX_READ_BYTES),
            min_rate: limits.min_rate.max(1),
            ..limits
        };
        Site { cache: Cache::new(&limits), limits, ..self }
    }

    /// Sets the name of the mechanism, for the page and the metrics.
    #[must_use]
    pub fn backend(self, name: &str) -> Self {
        Site { backend: name.to_owned(), ..self }
    }

    /// Enables precompressed files: a client that accepts gzip gets `a.css.gz` instead of `a.css`.
    /// Enabled by default.
    #[must_use]
    pub fn precompressed(self, on: bool) -> Self {
        Site { file_options: FileOptions { precompressed: on, ..self.file_options }, ..self }
    }

    /// Enables listings of directories without an `index.html`. Disabled by default.
    #[must_use]
    pub fn listing(self, on: bool) -> Self {
        Site { file_options: FileOptions { listing: on, ..self.file_options }, ..self }
    }

    /// Sets `Cache-Control: max-age` of files, in seconds. The default is no field, which leaves
    /// caching to heuristics.
    #[must_use]
    pub fn max_age(self, seconds: Option<u32>) -> Self {
        Site { file_options: FileOptions { max_age: seconds, ..self.file_options }, ..self }
    }

    /// Enables the metrics at `/.httpd/status.json` and, without files, evring's page at `/`. By
    /// default they are enabled if the site has neither files nor handlers.
    #[must_use]
    pub fn status(self, on: bool) -> Self {
        Site { status: Some(on), ..self }
    }

    /// Returns whether the metrics and evring's page are enabled.
    pub(crate) fn shows_status(&self) -> bool {
        self.status.unwrap_or(self.root.is_none() && self.routes.is_empty())
    }

    /// Routes all requests for a path, with any method, to a handler. A path that ends in a slash also
    /// matches everything below it. The longest match wins. A missing leading slash is added.
    /// Handlers take precedence over files. Request paths are matched in canonical form: decoded,
    /// without dot segments and empty segments.
    #[must_use]
    pub fn route(mut self, path: &str, handler: impl Handler) -> Self {
        self.routes.add(path, Arc::new(handler));
        self
    }

    /// Answers a request. Returns whether the next request may be processed.
    #[inline]
    fn answer(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        remaining: usize,
    ) -> bool {
        let options = self.options(x.io, x.state, request, remaining);
        let is_plain = matches!(request.method, Method::Get | Method::Head)
            && request.framing == Framing::Length(0)
            && request.expects != Expects::Unknown;
        if is_plain {
            return self.answer_for_file(x, request, options);
        }
        match self.answer_unusual(x, request, options) {
            Ok(proceed) => proceed,
            Err(status) => self.send_error(x, status, options.ending()),
        }
    }

    #[inline]
    fn options(
        &self,
        io: &impl Commands,
        state: &mut State,
        request: &Request<'_, '_>,
        remaining: usize,
    ) -> ResponseOptions {
        let body = request.method != Method::Head;
        let options = ResponseOptions {
            body,
            persistence: request.persistence,
            close: Close::Flush,
            is_http10: request.is_http10,
        };
        state.requests += 1;
        // A reset caused by further bytes would destroy the last response, so linger.
        let sends_more = remaining > 0 || request.framing != Framing::Length(0);
        match request.persistence {
            Persistence::Close if sends_more => options.ending(),
            _ if state.requests >= self.limits.max_keep_alive_requests || io.is_stopping() => {
                options.ending()
            }
            _ => options,
        }
    }

    /// Answers a GET or HEAD.
    #[inline]
    pub(crate) fn answer_for_file(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        options: ResponseOptions,
    ) -> bool {
        match self.cache.find(request.target, x.io.now()) {
            CacheLookup::Fresh(prepared, codings) => {
                if request.conditional || request.has_accept_encoding && !codings.is_empty() {
                    let cached = (request.target, codings);
                    let answered = self.answer_cached(x, request, options, cached);
                    return answered.unwrap_or_else(|| self.answer_uncached(x, request, options));
                }
                send_prepared(prepared, x, &self.clock, options)
            }
            CacheLookup::Stale(target, paths) => {
                let work = FileLookup::revalidate(target, paths, None, options);
                self.begin_lookup(x, request, work);
                false
            }
            CacheLookup::Miss => self.answer_uncached(x, request, options),
        }
    }

    /// Answers a request that is not a plain GET or HEAD.
    #[cold]
    fn answer_unusual(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        options: ResponseOptions,
    ) -> Result<bool, Status> {
        if request.expects == Expects::Unknown {
            return Err(Status::EXPECTATION);
        }
        let body = Body::new(request.framing, &self.limits)?;
        if request.target == b"*" && request.method != Method::Options {
            return Err(Status::BAD_REQUEST);
        }
        match path::split(request.target) {
            Ok((path, _)) => {
                if let Some(route) = self.routes.find(&path::canonical(path)) {
                    return Ok(self.dispatch(x, request, body, options, route));
                }
            }
            // CONNECT has an authority as its target, OPTIONS may have an asterisk.
            Err(status) if request.target != b"*" && request.name != "CONNECT" => {
                return Err(status);
            }
            Err(_) => {}
        }
        match request.method {
            Method::Unknown => Err(Status::NOT_IMPLEMENTED),
            Method::Known => Err(Status::METHOD),
            // The body is not used. A client that waits for 100 Continue need not send it.
            _ if body.is_open() && request.expects == Expects::Continue => {
                Ok(self.answer_without_body(x, request, options.ending()))
            }
            _ if body.is_open() => {
                let head = request.head.to_vec();
                let held = BodyMemory::new(&self.bodies);
                let work =
                    BodyReceipt { body, received: 0, options, head, held, then: AfterBody::Answer };
                x.state.work = Some(Box::new(PendingWork::Body(work)));
                Ok(true)
            }
            _ => Ok(self.answer_without_body(x, request, options)),
        }
    }

    /// Answers a request whose body has arrived, by its head.
    pub(crate) fn answer_head(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        head: &[u8],
        options: ResponseOptions,
    ) -> bool {
        match request::parse(head, &mut { MEMORY }, &self.limits) {
            Parsed::Request(request) => self.answer_without_body(x, &request, options),
            _ => unreachable!("the head was parsed before"),
        }
    }

    /// Answers a request whose body has arrived or is not used.
    pub(crate) fn answer_without_body(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        options: ResponseOptions,
    ) -> bool {
        match request.method {
            Method::Options => self.send_error(x, Status::NO_CONTENT, options),
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
        loop {
            let Some(work) = x.state.body() else { return Ok(true) };
            match work.body.next(rx, &self.limits)? {
                BodyPiece::Partial => return Ok(true),
                BodyPiece::Content(n) => {
                    work.received += n as u64;
                    let proceed = self.body_data(x, &rx.bytes()[..n]);
                    rx.consume(n);
                    if !proceed {
                        return Ok(false);
                    }
                }
                BodyPiece::End(n) => {
                    x.state.read_deadline_armed = false;
                    let proceed = self.body_end(x, &rx.bytes()[..n]);
                    rx.consume(n);
                    return Ok(proceed);
                }
            }
        }
    }

    /// Answers all requests that have arrived, until one has to wait.
    #[inline]
    fn answer_all(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        rx: &mut Rx<'_>,
    ) -> ReceiveOutcome {
        loop {
            if x.state.work.is_some() {
                match self.receive_body(x, rx) {
                    Ok(true) if x.state.work.is_some() => return ReceiveOutcome::More,
                    Ok(true) => {}
                    Ok(false) => return ReceiveOutcome::Nothing,
                    Err(status) => return self.reject(x, rx, status),
                }
            }
            let bytes = rx.bytes();
            if bytes.is_empty() {
                return ReceiveOutcome::Idle;
            }
            if x.state.full {
                return ReceiveOutcome::Full;
            }
            if x.state.scanned > 0 && !rx.eof() && x.state.is_partial(bytes, &self.limits) {
                return ReceiveOutcome::More;
            }
            // A copy, for a later minor version.
            let copy;
            let (mut memory, mut copy_memory) = (MEMORY, MEMORY);
            let mut parsed = request::parse(bytes, &mut memory, &self.limits);
            if let Parsed::LaterMinor(digit) = parsed {
                copy = as_http_1_1(bytes, digit);
                parsed = request::parse(&copy, &mut copy_memory, &self.limits);
            }
            match parsed {
                Parsed::Request(request) => {
                    let len = request.head.len();
                    let remaining = bytes.len() - len;
                    x.state.scanned = 0;
                    x.state.read_deadline_armed = false;
                    let proceed = self.answer(x, &request, remaining);
                    self.count(x.state, LoggedRequest::Request(&request));
                    rx.consume(len);
                    if !proceed {
                        return ReceiveOutcome::Nothing;
                    }
                }
                Parsed::Partial => {
                    x.state.scanned = bytes.len() as u32;
                    return ReceiveOutcome::More;
                }
                Parsed::Rejected(status) => return self.reject(x, rx, status),
                Parsed::LaterMinor(_) => return self.reject(x, rx, Status::BAD_REQUEST),
            }
        }
    }

    /// Rejects bytes that are not a valid request, and closes the connection.
    fn reject(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        rx: &mut Rx<'_>,
        status: Status,
    ) -> ReceiveOutcome {
        let has_body = match x.state.body() {
            Some(work) => work.options.body,
            None => !rx.bytes()[start_of_line(rx.bytes())..].starts_with(b"HEAD "),
        };
        let options = ResponseOptions::last(has_body);
        self.reject_request(x, status, options, rx.bytes());
        rx.consume(rx.bytes().len());
        ReceiveOutcome::Nothing
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
        self.send_error(x, status, options);
        match work.as_deref() {
            Some(PendingWork::Body(work)) => self.count_head(x.state, &work.head),
            _ => self.count(x.state, LoggedRequest::Bytes(bytes)),
        }
    }

    /// Counts and logs the last response, if there was one.
    #[inline]
    pub(crate) fn count(&mut self, state: &mut State, logged: LoggedRequest<'_, '_, '_>) {
        if state.last_status == 0 {
            return;
        }
        let (status, body) = (take(&mut state.last_status), state.last_body_bytes);
        self.metrics.own().count_response(status, body);
        if status >= 400 {
            log_error_response(status, logged);
        }
        if let Some(log) = &mut self.log {
            let peer = state.peer.as_deref().copied();
            let entry = Entry { peer, date: self.clock.stamp(), logged, status, body };
            if !log.write(&entry) {
                self.metrics.own().log_lines_lost.add(1);
            }
        }
    }

    /// Returns whether requests are logged, so that deferred work has to keep their heads.
    pub(crate) fn logs_requests(&self) -> bool {
        self.log.is_some() || enabled!(Level::DEBUG)
    }

    /// Counts a response to a request with this head; the head is empty if requests are not logged.
    #[cold]
    pub(crate) fn count_head(&mut self, state: &mut State, head: &[u8]) {
        match request::parse(head, &mut { MEMORY }, &self.limits) {
            Parsed::Request(request) => self.count(state, LoggedRequest::Request(&request)),
            _ => self.count(state, LoggedRequest::Bytes(head)),
        }
    }

    /// Sets the deadline for the next step of a connection; one store for a plain request.
    #[inline]
    fn set_deadline(
        &self,
        x: &mut Cx<'_, impl Commands, State>,
        now: Instant,
        next: ReceiveOutcome,
    ) {
        match next {
            ReceiveOutcome::Idle if x.state.full => self.watch_progress(x),
            // The last request before shutdown is complete.
            ReceiveOutcome::Idle if x.io.is_stopping() => x.io.close(x.id, Close::Flush),
            ReceiveOutcome::Idle => {
                x.state.unsent = 0;
                x.io.set_deadline(x.id, Some(now + self.limits.keep_alive_timeout));
            }
            // The deadline stays, so that single bytes do not extend it.
            ReceiveOutcome::More if x.state.read_deadline_armed => {}
            ReceiveOutcome::More => {
                x.state.read_deadline_armed = true;
                x.state.unsent = 0;
                let time = match x.state.body() {
                    Some(_) => self.limits.progress_interval,
                    None => self.limits.header_timeout,
                };
                x.io.set_deadline(x.id, Some(now + time));
            }
            ReceiveOutcome::Full => {
                x.state.paused = true;
                x.io.set_receiving(x.id, false);
                self.watch_progress(x);
            }
            ReceiveOutcome::Nothing => {}
        }
    }

    /// Sets the deadline for the client to take some of the unsent bytes.
    pub(crate) fn watch_progress(&self, x: &mut Cx<'_, impl Commands, State>) {
        x.state.unsent = x.io.unsent_bytes(x.id);
        x.io.set_deadline(x.id, Some(x.io.now() + self.limits.progress_interval));
    }

    /// Returns the minimum bytes that a client has to send or take per interval, at least 1.
    fn min_progress(&self) -> u128 {
        let Limits { progress_interval, min_rate, .. } = self.limits;
        (progress_interval.as_nanos() * u128::from(min_rate)).div_ceil(1_000_000_000).max(1)
    }

    /// Returns whether the client took too few of the unsent bytes since the deadline was set.
    fn is_stalled(&self, before: u64, unsent: u64) -> bool {
        before > 0 && unsent > 0 && u128::from(before.saturating_sub(unsent)) < self.min_progress()
    }
}

/// Logs a request that was answered with an error.
#[cold]
fn log_error_response(status: u16, logged: LoggedRequest<'_, '_, '_>) {
    match logged {
        LoggedRequest::Request(request) => {
            debug!("{status} for {} {:?}", request.name, String::from_utf8_lossy(request.target));
        }
        LoggedRequest::Bytes(bytes) => {
            debug!("{status} for an invalid request of {} bytes", bytes.len())
        }
    }
}

impl Application for Site {
    type State = State;
    const MAX_UNCONSUMED: usize = Limits::MAX_HEAD_BYTES;

    fn accepted(&mut self, x: Cx<'_, impl Commands, State>, _: Listener) {
        if !self.seeded {
            self.cache.seed(x.io.random());
            self.seeded = true;
            self.metrics.set_started(x.io.now());
        }
        if self.log.is_some() {
            x.state.peer = x.io.peer_addr(x.id).map(|peer| Box::new(peer.ip()));
        }
        x.state.read_deadline_armed = true;
        x.io.set_deadline(x.id, Some(x.io.now() + self.limits.header_timeout));
    }

    fn received(&mut self, mut x: Cx<'_, impl Commands, State>, rx: &mut Rx<'_>) {
        let now = x.io.now();
        if self.clock.tick(now, x.io) {
            self.metrics.own().copy_stats(x.io);
            self.cache.close_idle(now);
        }
        let next = self.answer_all(&mut x, rx);
        if rx.eof() && matches!(next, ReceiveOutcome::Idle | ReceiveOutcome::More) {
            return x.io.close(x.id, Close::Flush);
        }
        self.set_deadline(&mut x, now, next);
    }

    fn drained(&mut self, mut x: Cx<'_, impl Commands, State>) {
        let was_full = take(&mut x.state.full);
        if matches!(x.state.work.as_deref(), Some(PendingWork::StreamedBody(_))) {
            return self.resume_stream(&mut x);
        }
        if take(&mut x.state.paused) {
            x.io.set_receiving(x.id, true);
        } else if was_full && !x.state.read_deadline_armed {
            let now = x.io.now();
            self.set_deadline(&mut x, now, ReceiveOutcome::Idle);
        }
    }

    fn file(
        &mut self,
        mut x: Cx<'_, impl Commands, State>,
        _: u32,
        outcome: io::Result<FileOutcome>,
    ) {
        self.clock.tick(x.io.now(), x.io);
        self.file_completed(&mut x, outcome);
    }

    fn expired(&mut self, mut x: Cx<'_, impl Commands, State>) {
        let unsent = x.io.unsent_bytes(x.id);
        let waits_for_file = matches!(x.state.work.as_deref(), Some(PendingWork::File(_)));
        if waits_for_file || self.is_stalled(x.state.unsent, unsent) {
            // The file system hangs, or the client does not take its responses.
            self.metrics.own().reset_slow.add(u64::from(!waits_for_file));
            debug!(
                "connection reset: {}",
                if waits_for_file { "file operation timed out" } else { "client is too slow" }
            );
            x.io.close(x.id, Close::Reset);
        } else if unsent > 0 || x.state.full {
            // If everything is sent, `drained` follows.
            self.watch_progress(&mut x);
        } else if x
            .state
            .body()
            .is_some_and(|w| u128::from(take(&mut w.received)) >= self.min_progress())
        {
            // The body arrives fast enough.
            x.io.set_deadline(x.id, Some(x.io.now() + self.limits.progress_interval));
        } else if x.state.scanned > 0 || x.state.body().is_some() {
            self.clock.tick(x.io.now(), x.io);
            let has_body = x.state.body().is_none_or(|work| work.options.body);
            let options = ResponseOptions::last(has_body);
            self.reject_request(&mut x, Status::TIMEOUT, options, b"");
        } else {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, State>) {
        // Requests that are being received or looked up are still answered.
        if self.is_idle(x.state) {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn is_idle(&self, state: &State) -> bool {
        state.work.is_none() && state.scanned == 0 && !state.paused
    }
}
