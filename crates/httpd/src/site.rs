//! A site: what it does with received bytes.

use std::cell::Cell;
use std::mem::take;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evring::{Application, Close, Commands, Cx, FileOp, FileOutcome, Listener, Root, Rx};
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

/// Routes, and behind them the files below a root, or a page of its own when there is none.
///
/// A small file that was asked for before is served from memory with one look-up and one copy.
/// Any other goes through file work of the mechanism, during which the connection does not
/// receive; so replies are in the order of their requests without being kept in one.
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
    /// Where the heads of rarer replies are written.
    pub(crate) scratch: Vec<u8>,
    /// Where names for the cache are put together.
    pub(crate) key: Vec<u8>,
    /// Boxes of work that is done, to be used again.
    #[expect(clippy::vec_box, reason = "the boxes change hands with the connections' states")]
    pub(crate) spare: Vec<Box<PendingWork>>,
    /// Bytes of memory that bodies hold.
    pub(crate) bodies: Rc<Cell<usize>>,
    /// Larger files that are open.
    pub(crate) open_files: Rc<Cell<usize>>,
    /// Whether the cache hashes in a way that no client knows.
    seeded: bool,
    pub(crate) metrics: Metrics,
    pub(crate) log: Option<LogSender>,
    /// Whether the site shows itself: a page, where there are no files, and the counts. If that was
    /// not said, it does when there is nothing else to show.
    pub(crate) status: Option<bool>,
}

/// Boxes for work made at the start.
const READY: usize = 16;

impl Site {
    /// Serves the files below `root`, or a page of its own.
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
            spare: (0..READY).map(|_| Box::default()).collect(),
            bodies: Rc::default(),
            open_files: Rc::default(),
            seeded: false,
            metrics: Metrics::new(1),
            log: None,
            status: None,
        }
    }

    /// Sets other limits than the default ones.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        let bounded = |time: Duration| time.min(Limits::MAX_TIMEOUT);
        let limits = Limits {
            header_timeout: bounded(limits.header_timeout),
            keep_alive_timeout: bounded(limits.keep_alive_timeout),
            progress_interval: bounded(limits.progress_interval),
            cache_ttl: bounded(limits.cache_ttl),
            max_head_bytes: limits.max_head_bytes.min(Limits::MAX_HEAD_BYTES),
            max_headers: limits.max_headers.min(Limits::MAX_HEADERS),
            max_cached_file_bytes: limits.max_cached_file_bytes.min(FileOp::MAX_READ_BYTES),
            min_rate: limits.min_rate.max(1),
            ..limits
        };
        Site { cache: Cache::new(&limits), limits, ..self }
    }

    /// Names the mechanism on the page.
    #[must_use]
    pub fn backend(self, name: &str) -> Self {
        Site { backend: name.to_owned(), ..self }
    }

    /// Whether `a.css.gz` is looked for when `a.css` is asked for by a client that takes gzip, and
    /// so on. It is, by default.
    #[must_use]
    pub fn precompressed(self, on: bool) -> Self {
        Site { file_options: FileOptions { precompressed: on, ..self.file_options }, ..self }
    }

    /// Whether a directory without an `index.html` shows what is in it. By default it does not.
    #[must_use]
    pub fn listing(self, on: bool) -> Self {
        Site { file_options: FileOptions { listing: on, ..self.file_options }, ..self }
    }

    /// For how many seconds clients and proxies may keep a file without asking again
    /// (Cache-Control). By default nothing is said, and they guess.
    #[must_use]
    pub fn max_age(self, seconds: Option<u32>) -> Self {
        Site { file_options: FileOptions { max_age: seconds, ..self.file_options }, ..self }
    }

    /// Whether the site shows what it has done at `/.httpd/status.json` and, where there are no
    /// files, itself at `/`. By default it does when it has neither files nor handlers.
    #[must_use]
    pub fn status(self, on: bool) -> Self {
        Site { status: Some(on), ..self }
    }

    /// Whether it shows itself.
    pub(crate) fn shows_itself(&self) -> bool {
        self.status.unwrap_or(self.root.is_none() && self.routes.is_empty())
    }

    /// Has a handler answer all requests for a path, whatever the method; for a path that ends in
    /// a slash, also all for what lies beneath. The longest such path counts. A slash that is
    /// missing at its beginning is added. Handlers come before files, and are found by the same
    /// path: decoded, without dots and empty segments, but for a slash at its end.
    #[must_use]
    pub fn route(mut self, path: &str, handler: impl Handler) -> Self {
        self.routes.add(path, Arc::new(handler));
        self
    }

    /// Answers a request: true if the next one may be looked at.
    #[inline]
    fn answer(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        rest: usize,
    ) -> bool {
        let options = self.options(x.io, x.state, request, rest);
        let usual = matches!(request.method, Method::Get | Method::Head)
            && request.framing == Framing::Length(0)
            && request.expects != Expects::Unknown;
        if usual {
            return self.answer_for_file(x, request, options);
        }
        match self.answer_unusual(x, request, options) {
            Ok(goes_on) => goes_on,
            Err(status) => self.send_error(x, status, options.ending()),
        }
    }

    #[inline]
    fn options(
        &self,
        io: &impl Commands,
        state: &mut State,
        request: &Request<'_, '_>,
        rest: usize,
    ) -> ResponseOptions {
        let body = request.method != Method::Head;
        let options = ResponseOptions {
            body,
            persistence: request.persistence,
            close: Close::Flush,
            is_http10: request.is_http10,
        };
        state.requests += 1;
        // Whoever sends on after the last request would have the last reply destroyed by a reset.
        let sends_on = rest > 0 || request.framing != Framing::Length(0);
        match request.persistence {
            Persistence::Close if sends_on => options.ending(),
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
                    let known = (request.target, codings);
                    let answered = self.answer_known(x, request, options, known);
                    return answered.unwrap_or_else(|| self.answer_unknown(x, request, options));
                }
                send_prepared(prepared, x, &self.clock, options)
            }
            CacheLookup::Stale(target, paths) => {
                let work = FileLookup::confirm(target, paths, None, options);
                self.begin(x, request, work);
                false
            }
            CacheLookup::Nothing => self.answer_unknown(x, request, options),
        }
    }

    /// Answers a request that is no plain GET or HEAD.
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
            // CONNECT has an authority there, and OPTIONS may have an asterisk.
            Err(status) if request.target != b"*" && request.name != "CONNECT" => {
                return Err(status);
            }
            Err(_) => {}
        }
        match request.method {
            Method::Unknown => Err(Status::NOT_IMPLEMENTED),
            Method::Known => Err(Status::METHOD),
            // The body is of no use. Who waits for leave to send it need not.
            _ if body.is_open() && request.expects == Expects::Continue => {
                Ok(self.answer_without_body(x, request, options.ending()))
            }
            _ if body.is_open() => {
                let head = request.head.to_vec();
                let held = BodyMemory::of(&self.bodies);
                let work =
                    BodyReceipt { body, taken: 0, options, head, held, then: AfterBody::Answer };
                x.state.work = Some(Box::new(PendingWork::Body(work)));
                Ok(true)
            }
            _ => Ok(self.answer_without_body(x, request, options)),
        }
    }

    /// Answers a request whose body has come, of which this is the head.
    pub(crate) fn answer_head(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        head: &[u8],
        options: ResponseOptions,
    ) -> bool {
        match request::parse(head, &mut { MEMORY }, &self.limits) {
            Parsed::Request(request) => self.answer_without_body(x, &request, options),
            _ => unreachable!("it was parsed before"),
        }
    }

    /// Answers a request whose body has come, or is of no use.
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

    /// Takes what has arrived of a request's body: false if the connection goes no further now.
    #[cold]
    fn take_body(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        rx: &mut Rx<'_>,
    ) -> Result<bool, Status> {
        loop {
            let Some(work) = x.state.body() else { return Ok(true) };
            match work.body.next(rx, &self.limits)? {
                BodyPiece::Partial => return Ok(true),
                BodyPiece::Content(n) => {
                    work.taken += n as u64;
                    let goes_on = self.body_came(x, &rx.bytes()[..n]);
                    rx.consume(n);
                    if !goes_on {
                        return Ok(false);
                    }
                }
                BodyPiece::End(n) => {
                    x.state.read_deadline_armed = false;
                    let goes_on = self.body_ended(x, &rx.bytes()[..n]);
                    rx.consume(n);
                    return Ok(goes_on);
                }
            }
        }
    }

    /// Answers all requests that have arrived, as far as possible.
    #[inline]
    fn answer_all(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        rx: &mut Rx<'_>,
    ) -> ReceiveOutcome {
        loop {
            if x.state.work.is_some() {
                match self.take_body(x, rx) {
                    Ok(true) if x.state.work.is_some() => return ReceiveOutcome::More,
                    Ok(true) => {}
                    Ok(false) => return ReceiveOutcome::Nothing,
                    Err(status) => return self.break_off(x, rx, status),
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
            // What a request of a later minor version is read as.
            let later;
            let (mut memory, mut later_memory) = (MEMORY, MEMORY);
            let mut parsed = request::parse(bytes, &mut memory, &self.limits);
            if let Parsed::LaterMinor(digit) = parsed {
                later = as_http_1_1(bytes, digit);
                parsed = request::parse(&later, &mut later_memory, &self.limits);
            }
            match parsed {
                Parsed::Request(request) => {
                    let len = request.head.len();
                    let rest = bytes.len() - len;
                    x.state.scanned = 0;
                    x.state.read_deadline_armed = false;
                    let goes_on = self.answer(x, &request, rest);
                    self.count(x.state, LoggedRequest::Request(&request));
                    rx.consume(len);
                    if !goes_on {
                        return ReceiveOutcome::Nothing;
                    }
                }
                Parsed::Partial => {
                    x.state.scanned = bytes.len() as u32;
                    return ReceiveOutcome::More;
                }
                Parsed::Refused(status) => return self.break_off(x, rx, status),
                Parsed::LaterMinor(_) => return self.break_off(x, rx, Status::BAD_REQUEST),
            }
        }
    }

    /// Refuses what can't be read on, and ends the connection.
    fn break_off(
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
        self.give_up(x, status, options, rx.bytes());
        rx.consume(rx.bytes().len());
        ReceiveOutcome::Nothing
    }

    /// Refuses the request that is on its way in, of which there are these bytes, and ends the
    /// connection.
    fn give_up(
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

    /// Counts a reply and logs it, if there was one.
    #[inline]
    pub(crate) fn count(&mut self, state: &mut State, logged: LoggedRequest<'_, '_, '_>) {
        if state.last_status == 0 {
            return;
        }
        let (status, body) = (take(&mut state.last_status), state.last_body_bytes);
        self.metrics.own().reply(status, body);
        if status >= 400 {
            tell_refusal(status, logged);
        }
        if let Some(log) = &mut self.log {
            let peer = state.peer.as_deref().copied();
            let entry = Entry { peer, date: self.clock.stamp(), logged, status, body };
            if !log.write(&entry) {
                self.metrics.own().log_lines_lost.add(1);
            }
        }
    }

    /// Whether anybody is told which request a reply was for, when it comes after some work.
    pub(crate) fn tells_requests(&self) -> bool {
        self.log.is_some() || enabled!(Level::DEBUG)
    }

    /// Counts a reply to a request with this head, which may be empty if nobody wants to know.
    #[cold]
    pub(crate) fn count_head(&mut self, state: &mut State, head: &[u8]) {
        match request::parse(head, &mut { MEMORY }, &self.limits) {
            Parsed::Request(request) => self.count(state, LoggedRequest::Request(&request)),
            _ => self.count(state, LoggedRequest::Bytes(head)),
        }
    }

    /// Sets the deadline for what a connection does next; one store for a plain request.
    #[inline]
    fn wait(&self, x: &mut Cx<'_, impl Commands, State>, now: Instant, next: ReceiveOutcome) {
        match next {
            ReceiveOutcome::Idle if x.state.full => self.watch(x),
            // What was under way at the stop is over.
            ReceiveOutcome::Idle if x.io.is_stopping() => x.io.close(x.id, Close::Flush),
            ReceiveOutcome::Idle => {
                x.state.unsent = 0;
                x.io.set_deadline(x.id, Some(now + self.limits.keep_alive_timeout));
            }
            // A client that sends a byte now and then gains no time by it.
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
                self.watch(x);
            }
            ReceiveOutcome::Nothing => {}
        }
    }

    /// Gives the client time to take some of what is unsent now.
    pub(crate) fn watch(&self, x: &mut Cx<'_, impl Commands, State>) {
        x.state.unsent = x.io.unsent_bytes(x.id);
        x.io.set_deadline(x.id, Some(x.io.now() + self.limits.progress_interval));
    }

    /// What a client has to send or to take between two looks; at least something.
    fn min_progress(&self) -> u128 {
        let Limits { progress_interval, min_rate, .. } = self.limits;
        (progress_interval.as_nanos() * u128::from(min_rate)).div_ceil(1_000_000_000).max(1)
    }

    /// Whether the client took too little for the time that it was given.
    fn is_stalled(&self, before: u64, unsent: u64) -> bool {
        before > 0 && unsent > 0 && u128::from(before.saturating_sub(unsent)) < self.min_progress()
    }
}

/// Says which request was answered with an error.
#[cold]
fn tell_refusal(status: u16, logged: LoggedRequest<'_, '_, '_>) {
    match logged {
        LoggedRequest::Request(request) => {
            debug!("{status} for {} {:?}", request.name, String::from_utf8_lossy(request.target));
        }
        LoggedRequest::Bytes(bytes) => {
            debug!("{status} for what was no request, of {} bytes", bytes.len())
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
            self.metrics.begin(x.io.now());
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
            self.metrics.own().take_over(x.io);
            self.cache.close_idle(now);
        }
        let next = self.answer_all(&mut x, rx);
        if rx.eof() && matches!(next, ReceiveOutcome::Idle | ReceiveOutcome::More) {
            return x.io.close(x.id, Close::Flush);
        }
        self.wait(&mut x, now, next);
    }

    fn drained(&mut self, mut x: Cx<'_, impl Commands, State>) {
        let was_full = take(&mut x.state.full);
        if matches!(x.state.work.as_deref(), Some(PendingWork::StreamedBody(_))) {
            return self.stream_on(&mut x);
        }
        if take(&mut x.state.paused) {
            x.io.set_receiving(x.id, true);
        } else if was_full && !x.state.read_deadline_armed {
            let now = x.io.now();
            self.wait(&mut x, now, ReceiveOutcome::Idle);
        }
    }

    fn file(&mut self, mut x: Cx<'_, impl Commands, State>, _: u32, done: FileOutcome) {
        self.clock.tick(x.io.now(), x.io);
        self.file_done(&mut x, done);
    }

    fn expired(&mut self, mut x: Cx<'_, impl Commands, State>) {
        let unsent = x.io.unsent_bytes(x.id);
        let hangs = matches!(x.state.work.as_deref(), Some(PendingWork::File(_)));
        if hangs || self.is_stalled(x.state.unsent, unsent) {
            // The file system hangs, or the client does not take its replies.
            self.metrics.own().reset_slow.add(u64::from(!hangs));
            debug!(
                "a connection is reset: {}",
                if hangs { "its file does not come" } else { "it is too slow" }
            );
            x.io.close(x.id, Close::Reset);
        } else if unsent > 0 || x.state.full {
            // With all sent, `drained` is on its way.
            self.watch(&mut x);
        } else if x
            .state
            .body()
            .is_some_and(|w| u128::from(take(&mut w.taken)) >= self.min_progress())
        {
            // The body comes fast enough.
            x.io.set_deadline(x.id, Some(x.io.now() + self.limits.progress_interval));
        } else if x.state.scanned > 0 || x.state.body().is_some() {
            self.clock.tick(x.io.now(), x.io);
            let has_body = x.state.body().is_none_or(|work| work.options.body);
            let options = ResponseOptions::last(has_body);
            self.give_up(&mut x, Status::TIMEOUT, options, b"");
        } else {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, State>) {
        // What is being received or looked for is still answered.
        if self.is_idle(x.state) {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn is_idle(&self, state: &State) -> bool {
        state.work.is_none() && state.scanned == 0 && !state.paused
    }
}
