//! The server of files: what it does with received bytes.

use std::time::Instant;

use multiplex::{Application, Close, Commands, Conn, Cx, FileDone, FileOp, Listener, Root, Rx};

use crate::Limits;
use crate::cache::{Cache, Found};
use crate::clock::Clock;
use crate::reply::Manner;
use crate::request::{self, Method, Parsed, Persist, Request};
use crate::state::{Next, State};
use crate::status::Status;
use crate::work::{Work, give};

/// Serves the files below a root, or a page of its own when there is none.
///
/// A small file that was asked for before is served from memory with one look-up and one copy.
/// Any other goes through file work of the mechanism, during which the connection does not
/// receive; so replies are in the order of their requests without being kept in one.
#[derive(Debug)]
pub struct Files {
    pub(crate) root: Option<Root>,
    pub(crate) backend: String,
    pub(crate) limits: Limits,
    pub(crate) cache: Cache,
    pub(crate) clock: Clock,
    /// Where the heads of rarer replies are written.
    pub(crate) scratch: Vec<u8>,
    /// Boxes of work that is done, to be used again.
    #[expect(clippy::vec_box, reason = "the boxes change hands with the connections' states")]
    pub(crate) spare: Vec<Box<Work>>,
    is_seeded: bool,
}

impl Files {
    /// Serves the files below `root`, or a page of its own.
    pub fn new(root: Option<Root>) -> Self {
        let limits = Limits::default();
        Files {
            root,
            backend: "unnamed".to_owned(),
            cache: Cache::new(&limits),
            limits,
            clock: Clock::new(),
            scratch: Vec::new(),
            spare: Vec::new(),
            is_seeded: false,
        }
    }

    /// Sets other limits than the default ones.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        let limits = Limits {
            head: limits.head.min(Limits::HEAD),
            cached_file: limits.cached_file.min(FileOp::MOST),
            least_rate: limits.least_rate.max(1),
            ..limits
        };
        Files { cache: Cache::new(&limits), limits, ..self }
    }

    /// Names the mechanism on the page.
    #[must_use]
    pub fn backend(self, name: &str) -> Self {
        Files { backend: name.to_owned(), ..self }
    }

    /// Answers a request: true if the next one may be looked at.
    #[inline]
    fn answer(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        request: &Request<'_>,
        rest: usize,
    ) -> bool {
        let manner = self.manner(io, request, rest);
        if !matches!(request.method, Method::Get | Method::Head) || request.body > 0 {
            if let Some(status) = self.objection(request) {
                return self.refuse(io, id, state, status, manner.ending());
            }
            state.body = request.body;
        }
        match self.cache.find(request.target, io.now()) {
            Found::Fresh(ready) => give(ready, io, id, state, &self.clock, manner),
            Found::Stale(target, path) => {
                let work = Work::confirm(target, path, manner);
                self.begin(io, id, state, work);
                false
            }
            Found::Nothing => self.answer_unknown(io, id, state, request.target, manner),
        }
    }

    #[inline]
    fn manner(&self, io: &impl Commands, request: &Request<'_>, rest: usize) -> Manner {
        let body = request.method != Method::Head;
        let manner = Manner { body, persist: request.persist, close: Close::Flush };
        // Whoever sends on after the last request would have the last reply destroyed by a reset.
        let sends_on = rest > 0 || request.body > 0;
        match request.persist {
            Persist::Ends if sends_on => manner.ending(),
            _ if io.stopping() => manner.ending(),
            _ => manner,
        }
    }

    /// Why a request that is no plain GET or HEAD is refused, if it is.
    #[cold]
    fn objection(&self, request: &Request<'_>) -> Option<Status> {
        match request.method {
            Method::Unknown => Some(Status::NOT_IMPLEMENTED),
            Method::NotAllowed => Some(Status::METHOD),
            _ if request.body > self.limits.body => Some(Status::BODY),
            _ if request.body > 0 && request.expects => Some(Status::EXPECTATION),
            _ => None,
        }
    }

    /// Answers all requests that have arrived, as far as possible.
    #[inline]
    fn answer_all(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        rx: &mut Rx<'_>,
    ) -> Next {
        loop {
            state.drop_body(rx);
            let bytes = rx.bytes();
            if bytes.is_empty() {
                return if state.body > 0 { Next::More } else { Next::Idle };
            }
            if state.full {
                return Next::Full;
            }
            if state.scanned > 0 && state.is_partial(bytes, &self.limits) {
                return Next::More;
            }
            match request::parse(bytes, &self.limits) {
                Parsed::Request(request) => {
                    let (len, rest) = (request.len, bytes.len() - request.len);
                    state.scanned = 0;
                    state.hurried = false;
                    let goes_on = self.answer(io, id, state, &request, rest);
                    rx.consume(len);
                    if !goes_on {
                        return Next::Nothing;
                    }
                }
                Parsed::Partial => {
                    state.scanned = bytes.len() as u32;
                    return Next::More;
                }
                Parsed::Refused(status) => {
                    let body = !bytes.starts_with(b"HEAD ");
                    let manner = Manner { body, persist: Persist::Ends, close: Close::Linger };
                    self.refuse(io, id, state, status, manner);
                    rx.consume(rx.bytes().len());
                    return Next::Nothing;
                }
            }
        }
    }

    /// Sets the deadline for what a connection does next; one store for a plain request.
    #[inline]
    fn wait(&self, io: &mut impl Commands, id: Conn, state: &mut State, now: Instant, next: Next) {
        match next {
            Next::Idle if state.full => self.watch(io, id, state),
            Next::Idle => {
                state.unsent = 0;
                io.deadline(id, Some(now + self.limits.idle_time));
            }
            // A client that sends a byte now and then gains no time by it.
            Next::More if state.hurried => {}
            Next::More => {
                state.hurried = true;
                state.unsent = 0;
                io.deadline(id, Some(now + self.limits.head_time));
            }
            Next::Full => {
                state.paused = true;
                io.receive(id, false);
                self.watch(io, id, state);
            }
            Next::Nothing => {}
        }
    }

    /// Gives the client time to take some of what is unsent now.
    fn watch(&self, io: &mut impl Commands, id: Conn, state: &mut State) {
        state.unsent = io.unsent(id);
        io.deadline(id, Some(io.now() + self.limits.stall_time));
    }

    /// Whether the client took too little for the time that it was given.
    fn is_stalled(&self, before: u64, unsent: u64) -> bool {
        let Limits { stall_time, least_rate, .. } = self.limits;
        // At least something, however short the time.
        let least = (stall_time.as_nanos() * u128::from(least_rate)).div_ceil(1_000_000_000).max(1);
        before > 0 && unsent > 0 && u128::from(before.saturating_sub(unsent)) < least
    }
}

impl Application for Files {
    type State = State;
    const MAX_UNCONSUMED: usize = Limits::HEAD;

    fn accepted(&mut self, x: Cx<'_, impl Commands, State>, _: Listener) {
        if !self.is_seeded {
            self.cache.seed(x.io.random());
            self.is_seeded = true;
        }
        x.state.hurried = true;
        x.io.deadline(x.id, Some(x.io.now() + self.limits.head_time));
    }

    fn received(&mut self, x: Cx<'_, impl Commands, State>, rx: &mut Rx<'_>) {
        let Cx { io, id, state } = x;
        let now = io.now();
        self.clock.tick(now, io);
        let next = self.answer_all(io, id, state, rx);
        if rx.eof() && matches!(next, Next::Idle | Next::More) {
            return io.close(id, Close::Flush);
        }
        self.wait(io, id, state, now, next);
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, State>) {
        let Cx { io, id, state } = x;
        let was_full = std::mem::take(&mut state.full);
        if std::mem::take(&mut state.paused) {
            io.receive(id, true);
        } else if was_full && !state.hurried {
            self.wait(io, id, state, io.now(), Next::Idle);
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, State>, _: u32, done: FileDone) {
        let Cx { io, id, state } = x;
        let Some(work) = state.work.take() else { return };
        self.clock.tick(io.now(), io);
        self.go_on(io, id, state, work, done);
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, State>) {
        let Cx { io, id, state } = x;
        let unsent = io.unsent(id);
        if state.work.is_some() || self.is_stalled(state.unsent, unsent) {
            // The file system hangs, or the client does not take its replies.
            io.close(id, Close::Reset);
        } else if unsent > 0 || state.full {
            // With all sent, `drained` is on its way.
            self.watch(io, id, state);
        } else if state.scanned > 0 || state.body > 0 {
            self.clock.tick(io.now(), io);
            let manner = Manner { body: true, persist: Persist::Ends, close: Close::Linger };
            self.refuse(io, id, state, Status::TIMEOUT, manner);
        } else {
            io.close(id, Close::Flush);
        }
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, State>) {
        // What is being received or looked for is still answered.
        let State { work, body, scanned, paused, .. } = x.state;
        if work.is_none() && *body == 0 && *scanned == 0 && !*paused {
            x.io.close(x.id, Close::Flush);
        }
    }
}
