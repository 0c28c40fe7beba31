//! Requests for files: lookup, revalidation and responses.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use evring::files::{Access, File, FileOp, FileOutcome, Metadata};
use evring::{Commands, Cx, Root};

use crate::decision::coding::{Coding, Codings, choose};
use crate::decision::conditions::Validators;
use crate::decision::options::{HostIndex, ResponseOptions};
use crate::decision::representation::RepresentationHeaders;
use crate::file_options::FileOptions;
use crate::limits::Limits;
use crate::message::request::{KeptHead, RequestHead};
use crate::response::prepared::PreparedResponse;
use crate::site::cache::{Cache, CacheLookup, CachedFile, put_key};
#[cfg(feature = "compression")]
use crate::site::compressor::Compressor;
use crate::site::context::Context;
use crate::site::hosts::{FileHost, Hosts};
use crate::site::log::LoggedRequest;
use crate::site::lookup::{FileContent, FileLookup, LookupResult, LookupStep};
use crate::site::state::{PendingWork, State};

/// A slot for an open file, released on drop.
struct OpenFileSlot(Rc<Cell<usize>>);

impl Drop for OpenFileSlot {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Finds, caches and sends files.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) hosts: Hosts,
    pub(crate) cache: Cache,
    /// Buffer for keys of the cache.
    pub(super) key: Vec<u8>,
    /// Boxes of completed work, for reuse.
    #[expect(clippy::vec_box, reason = "the boxes move to and from the connections' states")]
    spare: Vec<Box<PendingWork>>,
    /// Open files that are too large for the cache.
    open_files: Rc<Cell<usize>>,
    /// The timer that closes unused ones; `None` without timers.
    pub(crate) close_timer: Option<u32>,
    /// Whether it is set.
    closes_unused: bool,
    /// Compresses files of which there is no precompressed one.
    #[cfg(feature = "compression")]
    pub(crate) compressor: Option<Compressor>,
}

impl Files {
    /// Number of boxes for pending work that are allocated at the start, and that are kept at most.
    const INITIAL_SPARE: usize = 16;
    const MAX_SPARE: usize = 64;

    pub(crate) fn new(root: Option<Root>, limits: &Limits) -> Self {
        Files {
            hosts: Hosts::new(FileHost { root, options: FileOptions::default() }),
            cache: Cache::new(limits),
            key: Vec::with_capacity(256),
            spare: (0..Self::INITIAL_SPARE).map(|_| Box::default()).collect(),
            open_files: Rc::default(),
            close_timer: None,
            closes_unused: false,
            #[cfg(feature = "compression")]
            compressor: None,
        }
    }

    /// Returns the settings for the file of a lookup.
    pub(super) fn options(&self, lookup: &FileLookup) -> &FileOptions {
        &self.hosts.get(lookup.options.host).options
    }

    /// Answers a GET or HEAD if the file `name` is cached. Returns whether the next request may be processed, or `None` if
    /// it is not cached.
    #[inline(always)]
    pub(crate) fn answer(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        name: &[u8],
        options: ResponseOptions,
    ) -> Option<bool> {
        let found = match options.host {
            HostIndex(0) => self.cache.find(name, x.io.now()),
            host => {
                put_key(&mut self.key, name, host, None);
                self.cache.find(&self.key, x.io.now())
            }
        };
        match found {
            CacheLookup::Fresh(prepared, codings) => {
                if request.conditional || request.has_accept_encoding && !codings.is_empty() {
                    return self.answer_cached(context, x, request, options, (name, codings));
                }
                let sent = prepared.send(x.io, x.id, &context.responder.clock, options);
                Some(x.state.record(sent))
            }
            CacheLookup::Stale(target, paths) => {
                let lookup = FileLookup::revalidate(target, paths, None, options);
                self.begin(context, x, request, lookup);
                Some(false)
            }
            CacheLookup::Miss => None,
        }
    }

    /// Answers a request from the cache entry `name`, in the preferred coding of `codings`. Returns
    /// `None` if the entry is not cached. With If-Range the file is revalidated first.
    #[cold]
    fn answer_cached(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        options: ResponseOptions,
        (name, codings): (&[u8], Codings),
    ) -> Option<bool> {
        let coding = choose(request, codings);
        put_key(&mut self.key, name, options.host, coding);
        let key = &self.key;
        let revalidation = request.has("if-range").then(|| self.cache.paths(key)).flatten();
        let found = match revalidation {
            Some((target, paths)) => CacheLookup::Stale(target, paths),
            None => self.cache.find(key, x.io.now()),
        };
        match found {
            CacheLookup::Fresh(prepared, _) => {
                Some(context.send_planned(x, prepared, request, options))
            }
            CacheLookup::Stale(target, paths) => {
                let mut lookup = FileLookup::revalidate(target, paths, coding, options);
                lookup.codings = codings;
                self.begin(context, x, request, lookup);
                Some(false)
            }
            CacheLookup::Miss => None,
        }
    }

    /// Looks up a file that is not cached, at least not in the preferred coding.
    pub(crate) fn look_up(
        &mut self,
        context: &Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        mut lookup: FileLookup,
    ) {
        if let CacheLookup::Fresh(_, codings) = self.find(&lookup, x.io.now()) {
            lookup.codings = codings;
            lookup.coding = choose(request, codings);
            lookup.step = LookupStep::Open;
        }
        self.begin(context, x, request, lookup);
    }

    /// Starts a lookup and pauses receiving until it is done.
    #[cold]
    fn begin(
        &mut self,
        context: &Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        lookup: FileLookup,
    ) {
        x.io.set_receiving(x.id, false);
        x.io.set_deadline(x.id, Some(x.io.now() + context.limits.progress_interval));
        let mut work = self.spare.pop().unwrap_or_default();
        let previous = match std::mem::take(&mut *work) {
            PendingWork::File(_, head) => Some(head),
            _ => None,
        };
        *work = PendingWork::File(lookup, KeptHead::new(request, previous));
        self.submit(x, work);
    }

    /// Submits the file operation of the current step.
    fn submit(&self, x: &mut Cx<'_, impl Commands, State>, work: Box<PendingWork>) {
        let PendingWork::File(lookup, _) = &*work else { return };
        let Some(root) = self.hosts.get(lookup.options.host).root else { return };
        let op = match lookup.step {
            LookupStep::Revalidate => FileOp::Stat((root, lookup.path())),
            #[cfg(feature = "compression")]
            LookupStep::Collect(_) | LookupStep::Compress => return,
            LookupStep::Sibling { at, .. } => {
                FileOp::Stat((root, lookup.paths.of(Some(Coding::ALL[at]))))
            }
            LookupStep::List => FileOp::List((root, lookup.directory())),
            LookupStep::Find | LookupStep::Open | LookupStep::Read(..) => {
                FileOp::Open((root, lookup.path()), Access::Read)
            }
        };
        x.io.file_op(x.id, 0, op);
        x.state.work = Some(work);
    }

    /// Processes the result of a file operation.
    pub(crate) fn completed(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        outcome: io::Result<FileOutcome>,
    ) {
        let is_lookup = |work: &mut Box<PendingWork>| matches!(**work, PendingWork::File(..));
        let Some(mut work) = x.state.work.take_if(is_lookup) else { return };
        let PendingWork::File(lookup, head) = &mut *work else { return };
        lookup.options =
            lookup.options.ending_if(x.io.is_stopping() && lookup.options.stays_open());
        let request = head.request();
        let result = self.advance(context, x, lookup, &request, outcome);
        self.continue_lookup(context, x, work, result);
    }

    /// Continues or ends a lookup after one of its steps.
    pub(super) fn continue_lookup(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        work: Box<PendingWork>,
        result: LookupResult,
    ) {
        match result {
            LookupResult::NextStep => self.submit(x, work),
            LookupResult::Read(from, range) => {
                x.state.work = Some(work);
                x.io.file_op(x.id, 0, FileOp::Read(from, range));
            }
            #[cfg(feature = "compression")]
            LookupResult::Waits => x.state.work = Some(work),
            LookupResult::Answered(proceed) => {
                if let PendingWork::File(_, head) = &*work {
                    context.count(x.state, LoggedRequest::Request(&head.request()));
                }
                if self.spare.len() < Self::MAX_SPARE {
                    self.spare.push(work);
                }
                if proceed {
                    x.io.set_receiving(x.id, true);
                }
            }
        }
    }

    /// Reserves a slot for an open file, released on drop. Returns `None` at the limit.
    pub(super) fn reserve_slot(&mut self, context: &Context, file: File) -> Option<File> {
        let count = Rc::clone(&self.open_files);
        while count.get() >= context.limits.max_open_files {
            if !self.cache.close_one() {
                return None;
            }
        }
        count.set(count.get() + 1);
        Some(file.with(OpenFileSlot(count)))
    }

    /// Makes the response to a request for a file.
    pub(super) fn prepare(
        &self,
        context: &Context,
        file: &FileLookup,
        validators: Validators,
        content: FileContent<'_>,
    ) -> PreparedResponse {
        let path = file.paths.plain.as_path();
        let codings = file.codings;
        let rules = self.options(file);
        let (types, fallback) = (&rules.mime_types[..], rules.fallback.as_ref());
        let representation = RepresentationHeaders {
            varies_by_type: fallback.is_some_and(|page| page.canonical() == file.name()),
            ..RepresentationHeaders::of_file(
                path,
                validators,
                file.coding,
                codings,
                (types, rules.max_age),
            )
            .with_fields(&rules.headers, file.name(), Some(path))
        };
        let clock = &context.responder.clock;
        match content {
            FileContent::Bytes(body) | FileContent::Unstable(body) => {
                PreparedResponse::new(representation, body, clock)
            }
            FileContent::Open(from, len) => {
                PreparedResponse::from_file(representation, from, len, clock)
            }
        }
    }

    /// Finds the cache entry for the file of a lookup, in its coding.
    pub(super) fn find(&mut self, lookup: &FileLookup, now: Instant) -> CacheLookup<'_> {
        lookup.put_key(&mut self.key);
        self.cache.find(&self.key, now)
    }

    /// Caches the response for a file.
    pub(super) fn keep(
        &mut self,
        file: &FileLookup,
        prepared: PreparedResponse,
        (meta, is_dated): (Metadata, bool),
        io: &mut impl Commands,
    ) {
        let is_open = prepared.is_open();
        let codings = file.codings_beside();
        file.put_key(&mut self.key);
        let source = CachedFile { paths: Arc::clone(&file.paths), meta, codings, is_dated };
        self.cache.insert(&self.key, prepared, Some(source), io.now());
        if is_open && !self.closes_unused && self.close_timer.is_some() {
            self.close_unused(io);
        }
    }

    /// Closes unused files, and sets the timer to do so again while a file is open. Without timers, it is called each second.
    pub(crate) fn close_unused(&mut self, io: &mut impl Commands) {
        let next = self.cache.close_idle(io.now());
        let is_set = self.close_timer.is_some_and(|timer| io.set_timer(timer, next).is_ok());
        self.closes_unused = is_set && next.is_some();
    }
}

/// Returns the last timer of the configuration, as applications and hooks around the site have the first ones.
pub(crate) fn last_timer(io: &mut impl Commands) -> Option<u32> {
    // No configuration has this one: the error says how many there are.
    io.set_timer(u32::MAX, None).err()?.max_timers.checked_sub(1)
}
