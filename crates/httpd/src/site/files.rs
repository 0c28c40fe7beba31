//! Requests for files: lookup, revalidation and responses.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use evring::files::{Access, File, FileKind, FileOp, FileOutcome, Metadata};
use evring::{Commands, Cx, Root};
use tracing::error;

use crate::decision::accept::{is_navigation, prefers_json};
use crate::decision::coding::{Coding, Codings, choose};
use crate::decision::conditions::Validators;
use crate::decision::options::{HostIndex, ResponseOptions};
use crate::decision::representation::RepresentationHeaders;
use crate::file_options::FileOptions;
use crate::limits::Limits;
use crate::message::request::{KeptHead, RequestHead};
use crate::message::status::Status;
use crate::response::prepared::PreparedResponse;
use crate::site::cache::{Cache, CacheLookup, CachedFile, put_key};
#[cfg(feature = "compression")]
use crate::site::compressor::Compressor;
use crate::site::context::Context;
use crate::site::hosts::{FileHost, Hosts};
use crate::site::listing;
use crate::site::log::LoggedRequest;
use crate::site::lookup::{FileContent, FileLookup, LookupResult, LookupStep};
use crate::site::state::{PendingWork, State};

/// Returns the metadata that a stat has found.
fn metadata(outcome: &io::Result<FileOutcome>) -> Option<Metadata> {
    match outcome {
        Ok(FileOutcome::Stat(meta)) => Some(*meta),
        _ => None,
    }
}

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
            #[cfg(feature = "compression")]
            compressor: None,
        }
    }

    /// Returns the settings for the file of a lookup.
    pub(super) fn options(&self, lookup: &FileLookup) -> &FileOptions {
        &self.hosts.get(lookup.options.host).options
    }

    /// Answers a GET or HEAD if its target is a key of the cache. Returns whether the next request may
    /// be processed, or `None` if it is no key.
    #[inline(always)]
    pub(crate) fn answer(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        options: ResponseOptions,
    ) -> Option<bool> {
        let found = match options.host {
            HostIndex(0) => self.cache.find(request.target, x.io.now()),
            host => {
                put_key(&mut self.key, request.target, host, None);
                self.cache.find(&self.key, x.io.now())
            }
        };
        match found {
            CacheLookup::Fresh(prepared, codings) => {
                if request.conditional || request.has_accept_encoding && !codings.is_empty() {
                    let cached = (request.target, codings);
                    return self.answer_cached(context, x, request, options, cached);
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

    /// Answers a request for the file of a lookup, which may be cached under its canonical name.
    /// Returns whether the next request may be processed.
    pub(crate) fn look_up(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        request: &RequestHead<'_>,
        mut lookup: FileLookup,
    ) -> bool {
        let precompressed = !self.options(&lookup).no_precompressed;
        lookup.put_key(&mut self.key);
        match self.cache.find(&self.key, x.io.now()) {
            CacheLookup::Fresh(_, codings) => {
                let (options, cached) = (lookup.options, (lookup.name(), codings));
                if let Some(proceed) = self.answer_cached(context, x, request, options, cached) {
                    return proceed;
                }
                lookup.codings = codings;
                lookup.coding = choose(request, codings);
            }
            CacheLookup::Stale(..) => lookup.step = LookupStep::Revalidate,
            CacheLookup::Miss => lookup.step = LookupStep::first(precompressed),
        }
        self.begin(context, x, request, lookup);
        false
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
            LookupStep::Open | LookupStep::Read(..) => {
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

    /// Advances a lookup by one step.
    fn advance(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        outcome: io::Result<FileOutcome>,
    ) -> LookupResult {
        match (std::mem::take(&mut file.step), outcome) {
            (LookupStep::Revalidate, outcome) => {
                let meta = metadata(&outcome);
                let same = |source: &CachedFile| source.is_dated && Some(source.meta) == meta;
                file.put_key(&mut self.key);
                let is_same = self.cache.revalidate(&self.key, same, x.io.now());
                let check_siblings = !self.options(file).no_precompressed && file.coding.is_none();
                file.step = match is_same {
                    true if check_siblings => LookupStep::Sibling { at: 0, revalidates: true },
                    true => return self.answer_revalidated(context, x, file, request),
                    false => LookupStep::first(check_siblings),
                };
                LookupResult::NextStep
            }
            (LookupStep::Sibling { at, revalidates }, outcome) => {
                if metadata(&outcome).is_some_and(|meta| meta.kind == FileKind::Regular) {
                    file.codings.add(Coding::ALL[at]);
                }
                if at + 1 < Coding::ALL.len() {
                    file.step = LookupStep::Sibling { at: at + 1, revalidates };
                    return LookupResult::NextStep;
                }
                let codings = file.codings;
                let same = |source: &CachedFile| source.codings.precompressed() == codings;
                file.put_key(&mut self.key);
                if revalidates && self.cache.revalidate(&self.key, same, x.io.now()) {
                    return self.answer_revalidated(context, x, file, request);
                }
                file.step = LookupStep::Open;
                LookupResult::NextStep
            }
            (LookupStep::Open, Ok(FileOutcome::Opened(opened))) => match opened.1.kind {
                #[cfg(feature = "compression")]
                FileKind::Regular if file.compresses().is_some() => {
                    let (from, meta) = *opened;
                    self.begin_compression(context, x, file, from, meta)
                }
                FileKind::Regular => {
                    let (from, meta) = *opened;
                    #[cfg(feature = "compression")]
                    self.add_codings(file, meta.len);
                    let validators = Validators::of(&meta, file.coding, x.io.wall_time());
                    if meta.len <= u64::from(context.limits.max_cached_file_bytes) {
                        file.step = LookupStep::Read(meta, validators);
                        // One byte more than the expected length shows whether the file has grown.
                        return LookupResult::Read(from, 0..meta.len + 1);
                    }
                    if self.revalidate_opened(x, file, &meta, &validators) {
                        return self.answer_revalidated(context, x, file, request);
                    }
                    let Some(from) = self.reserve_slot(context, from) else {
                        context.metrics.own().rejected_files.add(1);
                        return LookupResult::Answered(context.send_error(
                            x,
                            Status::BUSY,
                            file.options,
                        ));
                    };
                    self.answer_with_file(
                        context,
                        x,
                        file,
                        request,
                        (meta, validators),
                        FileContent::Open(from, meta.len),
                    )
                }
                _ if file.coding.is_some() => {
                    file.fall_back();
                    LookupResult::NextStep
                }
                FileKind::Directory if !file.name().ends_with(b"/") => {
                    let target = (file.name(), file.query());
                    let sent = context.responder.redirect((x.io, x.id), target, file.options);
                    LookupResult::Answered(x.state.record(sent))
                }
                _ => self.fail(context, x, file, request, Status::NOT_FOUND),
            },
            (LookupStep::Read(meta, validators), Ok(FileOutcome::Read(bytes))) => {
                let content = match bytes.get(..meta.len as usize) {
                    Some(body) if body.len() == bytes.len() => FileContent::Bytes(body),
                    // The file has changed meanwhile.
                    start => FileContent::Unstable(start.unwrap_or(&bytes)),
                };
                self.answer_with_file(context, x, file, request, (meta, validators), content)
            }
            #[cfg(feature = "compression")]
            (LookupStep::Collect(read), Ok(FileOutcome::Read(bytes))) => {
                self.collect(context, x, file, read, &bytes)
            }
            (LookupStep::List, Ok(FileOutcome::Listed(listing))) => {
                let (content_type, page) = match prefers_json(request) {
                    true => ("application/json", listing::json(file.name(), listing)),
                    false => ("text/html; charset=utf-8", listing::page(file.name(), listing)),
                };
                let mut representation = RepresentationHeaders::uncached(content_type).with_fields(
                    &self.options(file).headers,
                    file.name(),
                    file.paths.plain.as_path(),
                );
                representation.varies_by_type = true;
                let clock = &context.responder.clock;
                let mut prepared = PreparedResponse::uncached(representation, &page, clock);
                let sent = prepared.send(x.io, x.id, clock, file.options);
                LookupResult::Answered(x.state.record(sent))
            }
            (LookupStep::List, Err(error)) => {
                self.fail(context, x, file, request, Status::of(&error))
            }
            (_, Err(error)) => {
                if file.coding.is_some() {
                    file.fall_back();
                    return LookupResult::NextStep;
                }
                let status = Status::of(&error);
                let is_directory = file.name().ends_with(b"/");
                let has_no_index = is_directory && error.kind() == ErrorKind::NotFound;
                if self.options(file).listing && has_no_index {
                    file.step = LookupStep::List;
                    return LookupResult::NextStep;
                }
                let is_server_error = status.0 >= 500;
                if is_server_error {
                    error!("cannot read {:?}: {error}", file.paths.plain.as_path());
                    file.options = file.options.ending();
                }
                self.fail(context, x, file, request, status)
            }
            _ => {
                let options = file.options.ending();
                LookupResult::Answered(context.send_error(x, Status::INTERNAL, options))
            }
        }
    }

    /// Answers a request for a file that cannot be sent: with the fallback page, or an error.
    fn fail(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        status: Status,
    ) -> LookupResult {
        let fallback =
            self.options(file).fallback.as_ref().filter(|_| {
                status == Status::NOT_FOUND && !file.is_fallback && is_navigation(request)
            });
        let lookup =
            fallback.and_then(|page| FileLookup::open(page.canonical(), None, file.options).ok());
        let Some(mut lookup) = lookup else {
            return LookupResult::Answered(context.send_error(x, status, file.options));
        };
        lookup.is_fallback = true;
        *file = lookup;
        let precompressed = !self.options(file).no_precompressed;
        file.put_key(&mut self.key);
        match self.cache.find(&self.key, x.io.now()) {
            CacheLookup::Fresh(..) => return self.answer_revalidated(context, x, file, request),
            CacheLookup::Stale(..) => file.step = LookupStep::Revalidate,
            CacheLookup::Miss => file.step = LookupStep::first(precompressed),
        }
        LookupResult::NextStep
    }

    /// Revalidates the cache entry of a large file that was just opened. Returns true if another
    /// request has cached the same file, so that its descriptor is used.
    fn revalidate_opened(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        file: &FileLookup,
        meta: &Metadata,
        validators: &Validators,
    ) -> bool {
        let (codings, is_dated) = (file.codings_beside(), validators.is_dated);
        let same = |source: &CachedFile| {
            (source.meta, source.codings) == (*meta, codings) && source.is_dated == is_dated
        };
        file.put_key(&mut self.key);
        self.cache.revalidate(&self.key, same, x.io.now())
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

    /// Answers from the cache after a successful revalidation.
    fn answer_revalidated(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
    ) -> LookupResult {
        file.put_key(&mut self.key);
        let Some((prepared, codings)) = self.cache.get(&self.key) else {
            file.step = LookupStep::Open;
            return LookupResult::NextStep;
        };
        match choose_unless_coded(file, request, codings) {
            None => {
                LookupResult::Answered(context.send_planned(x, prepared, request, file.options))
            }
            Some(coding) => {
                file.codings = codings;
                self.choose_coding(context, x, file, request, coding)
            }
        }
    }

    /// Answers with the file in a coding, from the cache or by opening it.
    fn choose_coding(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        coding: Coding,
    ) -> LookupResult {
        file.coding = Some(coding);
        file.put_key(&mut self.key);
        file.step = match self.cache.find(&self.key, x.io.now()) {
            CacheLookup::Fresh(prepared, _) => {
                let proceed = context.send_planned(x, prepared, request, file.options);
                return LookupResult::Answered(proceed);
            }
            CacheLookup::Stale(..) => LookupStep::Revalidate,
            CacheLookup::Miss => LookupStep::Open,
        };
        LookupResult::NextStep
    }

    /// Answers with a file and caches it, unless it may still be changing.
    pub(super) fn answer_with_file(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        (meta, validators): (Metadata, Validators),
        content: FileContent<'_>,
    ) -> LookupResult {
        let is_kept = validators.is_stable && !matches!(content, FileContent::Unstable(_));
        let is_dated = validators.is_dated;
        let mut prepared = self.prepare(context, file, validators, content);
        let chosen = choose_unless_coded(file, request, file.codings);
        let proceed =
            chosen.is_none() && context.send_planned(x, &mut prepared, request, file.options);
        if is_kept {
            self.keep(file, prepared, (meta, is_dated), x.io.now());
        }
        match chosen {
            Some(coding) => self.choose_coding(context, x, file, request, coding),
            None => LookupResult::Answered(proceed),
        }
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
            .with_fields(&rules.headers, file.name(), path)
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

    /// Caches the response for a file.
    pub(super) fn keep(
        &mut self,
        file: &FileLookup,
        prepared: PreparedResponse,
        (meta, is_dated): (Metadata, bool),
        now: Instant,
    ) {
        let codings = file.codings_beside();
        file.put_key(&mut self.key);
        let source = CachedFile { paths: Arc::clone(&file.paths), meta, codings, is_dated };
        self.cache.insert(&self.key, prepared, Some(source), now);
    }
}

/// Returns the preferred coding of a file, unless a coded file is being looked up.
fn choose_unless_coded(
    file: &FileLookup,
    request: &RequestHead<'_>,
    codings: Codings,
) -> Option<Coding> {
    if file.coding.is_none() && !file.only_plain { choose(request, codings) } else { None }
}
