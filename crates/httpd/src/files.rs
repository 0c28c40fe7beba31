//! Requests for files: lookup, revalidation and responses.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use evring::{Access, Commands, Cx, File, FileKind, FileOp, FileOutcome, Metadata};
use tracing::error;

use crate::body::Body;
use crate::cache::{CacheLookup, Source, put_coded_key};
use crate::coding::{self, Coding, Codings};
use crate::conditions::Validators;
use crate::listing;
use crate::log::LoggedRequest;
use crate::path;
use crate::reply::{Caching, PreparedResponse, RepresentationHeaders, ResponseOptions};
use crate::request::{self, MEMORY, Parsed, Persistence, Request};
use crate::respond::{ResponseWriter, respond};
use crate::site::Site;
use crate::state::State;
use crate::status::Status;
use crate::work::{FileLookup, LookupStep, PendingWork, send_prepared};

#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOptions {
    /// Whether to look for compressed files next to a file.
    pub(crate) precompressed: bool,
    /// Whether a directory without an index is listed.
    pub(crate) listing: bool,
    /// Value of `Cache-Control: max-age` in seconds; `None` omits the field.
    pub(crate) max_age: Option<u32>,
}

/// A slot for an open file, released on drop.
struct OpenFileSlot(Rc<Cell<usize>>);

impl Drop for OpenFileSlot {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Default for FileOptions {
    fn default() -> Self {
        FileOptions { precompressed: true, listing: false, max_age: None }
    }
}

/// The path of the server's metrics.
pub(crate) const STATUS: &str = "/.httpd/status.json";

/// Returns the metadata that a stat has found.
fn metadata(outcome: &io::Result<FileOutcome>) -> Option<Metadata> {
    match outcome {
        Ok(FileOutcome::Stat(meta)) => Some(*meta),
        _ => None,
    }
}

impl Site {
    /// Maximum number of boxes kept for reuse.
    const MAX_SPARE: usize = 64;

    /// Answers a request from the cache entry `name`, in the preferred coding of `codings`. Returns
    /// `None` if the entry is not cached. With If-Range the file is revalidated first.
    #[cold]
    pub(crate) fn answer_cached(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        options: ResponseOptions,
        (name, codings): (&[u8], Codings),
    ) -> Option<bool> {
        let coding = choose(request, codings);
        let name = match coding {
            Some(coding) => {
                put_coded_key(&mut self.key, name, coding);
                &self.key
            }
            None => name,
        };
        let revalidation = request.has("if-range").then(|| self.cache.paths(name)).flatten();
        let found = match revalidation {
            Some((target, paths)) => CacheLookup::Stale(target, paths),
            None => self.cache.find(name, x.io.now()),
        };
        match found {
            CacheLookup::Fresh(prepared, _) => {
                let writer = ResponseWriter { out: &mut self.scratch, clock: &self.clock };
                Some(respond(prepared, x, Some(request), options, writer))
            }
            CacheLookup::Stale(target, paths) => {
                let mut work = FileLookup::revalidate(target, paths, coding, options);
                work.codings = codings;
                self.begin_lookup(x, request, work);
                Some(false)
            }
            CacheLookup::Miss => None,
        }
    }

    /// Answers a request whose target is not a key of the cache. Returns whether the next request
    /// may be processed.
    #[cold]
    pub(crate) fn answer_uncached(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        options: ResponseOptions,
    ) -> bool {
        let (name, query) = match path::split(request.target) {
            Ok((name, query)) => (path::canonical(name), query),
            Err(status) => return self.send_error(x, status, options.ending()),
        };
        if let Some(route) = self.routes.find(&name) {
            return self.dispatch(x, request, Body::default(), options, route);
        }
        if *name == *STATUS.as_bytes() && self.shows_status() {
            return self.show_status(x, options);
        }
        let mut work = match FileLookup::open(&name, query, options) {
            Ok(work) => work,
            Err(Status::NOT_FOUND) => return self.send_error(x, Status::NOT_FOUND, options),
            Err(status) => return self.send_error(x, status, options.ending()),
        };
        if self.root.is_none() {
            return self.answer_page(x, request, work.paths.plain.as_path(), options);
        }
        // The file may be cached under its canonical name.
        match self.cache.find(work.name(), x.io.now()) {
            CacheLookup::Fresh(_, codings) => {
                let cached = (work.name(), codings);
                if let Some(proceed) = self.answer_cached(x, request, options, cached) {
                    return proceed;
                }
                work.codings = codings;
                work.coding = choose(request, codings);
            }
            CacheLookup::Stale(..) => work.step = LookupStep::Revalidate,
            CacheLookup::Miss if self.file_options.precompressed => {
                work.step = LookupStep::Sibling { at: 0, revalidates: false };
            }
            CacheLookup::Miss => {}
        }
        self.begin_lookup(x, request, work);
        false
    }

    /// Without a root: answers with evring's page, at `/` only.
    fn answer_page(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        path: &Path,
        options: ResponseOptions,
    ) -> bool {
        if path != Path::new(path::INDEX) || !self.shows_status() {
            return self.send_error(x, Status::NOT_FOUND, options);
        }
        let page = include_str!("page.html")
            .replace("{backend}", &self.backend)
            .replace("{version}", env!("CARGO_PKG_VERSION"));
        let representation = RepresentationHeaders::plain("text/html; charset=utf-8");
        let mut prepared = PreparedResponse::new(representation, page.as_bytes(), &self.clock);
        let writer = ResponseWriter { out: &mut self.scratch, clock: &self.clock };
        let proceed = respond(&mut prepared, x, Some(request), options, writer);
        self.cache.insert(b"/", prepared, None, x.io.now());
        proceed
    }

    fn show_status(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        options: ResponseOptions,
    ) -> bool {
        self.metrics.own().copy_stats(x.io);
        let text = self.metrics.json(&self.backend, x.io.now());
        let representation = RepresentationHeaders {
            caching: Caching::NoStore,
            ..RepresentationHeaders::plain("application/json")
        };
        let mut prepared = PreparedResponse::new(representation, text.as_bytes(), &self.clock);
        send_prepared(&mut prepared, x, &self.clock, options)
    }

    /// Starts a file lookup and pauses receiving until it is done.
    #[cold]
    pub(crate) fn begin_lookup(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        mut work: FileLookup,
    ) {
        x.io.set_receiving(x.id, false);
        x.io.set_deadline(x.id, Some(x.io.now() + self.limits.progress_interval));
        let mut spare = self.spare.pop();
        if let Some(PendingWork::File(finished)) = spare.as_deref_mut() {
            work.head = std::mem::take(&mut finished.head);
        }
        work.head.clear();
        if request.conditional || request.has_accept_encoding || self.logs_requests() {
            work.head.extend_from_slice(request.head);
        }
        let work = match spare {
            Some(mut spare) => {
                *spare = PendingWork::File(work);
                spare
            }
            None => Box::new(PendingWork::File(work)),
        };
        self.submit(x, work);
    }

    /// Submits the file operation of the current step.
    fn submit(&self, x: &mut Cx<'_, impl Commands, State>, work: Box<PendingWork>) {
        let (Some(root), PendingWork::File(file)) = (self.root, &*work) else { return };
        let op = match file.step {
            LookupStep::Revalidate => FileOp::Stat((root, file.paths.of(file.coding))),
            LookupStep::Sibling { at, .. } => {
                FileOp::Stat((root, file.paths.of(Some(Coding::ALL[at]))))
            }
            LookupStep::List => FileOp::List((root, file.directory())),
            LookupStep::Open | LookupStep::Read(..) => {
                FileOp::Open((root, file.paths.of(file.coding)), Access::Read)
            }
        };
        x.io.file_op(x.id, 0, op);
        x.state.work = Some(work);
    }

    /// Processes the result of a file operation.
    pub(crate) fn file_completed(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        outcome: io::Result<FileOutcome>,
    ) {
        let Some(mut work) = x.state.work.take() else { return };
        let PendingWork::File(file) = &mut *work else {
            x.state.work = Some(work);
            return;
        };
        if x.io.is_stopping() && file.options.persistence != Persistence::Close {
            file.options = file.options.ending();
        }
        let head = std::mem::take(&mut file.head);
        let mut memory = MEMORY;
        let request = match request::parse(&head, &mut memory, &self.limits) {
            Parsed::Request(request) => Some(request),
            // The head was not kept, as only the target matters.
            _ => None,
        };
        let result = self.advance(x, file, request.as_ref(), outcome);
        if matches!(result, LookupResult::Answered(_)) {
            let logged =
                request.as_ref().map_or(LoggedRequest::Bytes(&head), LoggedRequest::Request);
            self.count(x.state, logged);
        }
        file.head = head;
        match result {
            LookupResult::NextStep => self.submit(x, work),
            LookupResult::Read(from, len) => {
                x.state.work = Some(work);
                // One byte more than the expected length shows whether the file has grown.
                x.io.file_op(x.id, 0, FileOp::Read(from, 0..len + 1));
            }
            LookupResult::Answered(proceed) => {
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
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: Option<&Request<'_, '_>>,
        outcome: io::Result<FileOutcome>,
    ) -> LookupResult {
        match (std::mem::take(&mut file.step), outcome) {
            (LookupStep::Revalidate, outcome) => {
                let meta = metadata(&outcome);
                let same = |source: &Source| source.is_dated && Some(source.meta) == meta;
                file.put_key(&mut self.key);
                let is_same = self.cache.revalidate(&self.key, same, x.io.now());
                let check_siblings = self.file_options.precompressed && file.coding.is_none();
                file.step = match is_same {
                    true if check_siblings => LookupStep::Sibling { at: 0, revalidates: true },
                    true => return self.answer_revalidated(x, file, request),
                    false if check_siblings => LookupStep::Sibling { at: 0, revalidates: false },
                    false => LookupStep::Open,
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
                let same = |source: &Source| source.codings == codings;
                if revalidates && self.cache.revalidate(file.name(), same, x.io.now()) {
                    return self.answer_revalidated(x, file, request);
                }
                file.step = LookupStep::Open;
                LookupResult::NextStep
            }
            (LookupStep::Open, Ok(FileOutcome::Opened(opened))) => match opened.1.kind {
                FileKind::Regular => {
                    let (from, meta) = *opened;
                    let validators = Validators::of(&meta, file.coding, x.io.wall_time());
                    if meta.len <= u64::from(self.limits.max_cached_file_bytes) {
                        file.step = LookupStep::Read(meta, validators);
                        return LookupResult::Read(from, meta.len);
                    }
                    if self.revalidate_opened(x, file, &meta, &validators) {
                        return self.answer_revalidated(x, file, request);
                    }
                    let Some(from) = self.reserve_slot(from) else {
                        self.metrics.own().refused_files.add(1);
                        return LookupResult::Answered(self.send_error(
                            x,
                            Status::BUSY,
                            file.options,
                        ));
                    };
                    self.answer_with_file(
                        x,
                        file,
                        request,
                        (meta, validators),
                        FileContent::Open(from),
                    )
                }
                _ if file.coding.is_some() => {
                    file.fall_back();
                    LookupResult::NextStep
                }
                FileKind::Directory if !file.name().ends_with(b"/") => {
                    let target = (file.name(), file.query());
                    LookupResult::Answered(self.redirect(x, target, file.options))
                }
                _ => LookupResult::Answered(self.send_error(x, Status::NOT_FOUND, file.options)),
            },
            (LookupStep::Read(meta, validators), Ok(FileOutcome::Read(bytes))) => self
                .answer_with_file(x, file, request, (meta, validators), FileContent::Bytes(&bytes)),
            (LookupStep::List, Ok(FileOutcome::Listed(listing))) => {
                let representation = RepresentationHeaders {
                    caching: Caching::NoStore,
                    ..RepresentationHeaders::plain("text/html; charset=utf-8")
                };
                let page = listing::page(file.name(), listing);
                let mut prepared = PreparedResponse::uncached(representation, &page, &self.clock);
                LookupResult::Answered(send_prepared(&mut prepared, x, &self.clock, file.options))
            }
            (LookupStep::List, Err(error)) => {
                let status = Status::of(&error);
                LookupResult::Answered(self.send_error(x, status, file.options))
            }
            (_, Err(error)) => {
                if file.coding.is_some() {
                    file.fall_back();
                    return LookupResult::NextStep;
                }
                let status = Status::of(&error);
                let is_directory = file.name().ends_with(b"/");
                let has_no_index = is_directory && error.kind() == ErrorKind::NotFound;
                if self.file_options.listing && has_no_index {
                    file.step = LookupStep::List;
                    return LookupResult::NextStep;
                }
                let is_server_error = status.0 >= 500;
                if is_server_error {
                    error!("cannot read {:?}: {error}", file.paths.plain.as_path());
                }
                let options = if is_server_error { file.options.ending() } else { file.options };
                LookupResult::Answered(self.send_error(x, status, options))
            }
            _ => {
                let options = file.options.ending();
                LookupResult::Answered(self.send_error(x, Status::INTERNAL, options))
            }
        }
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
        let same = |source: &Source| {
            (source.meta, source.codings) == (*meta, codings) && source.is_dated == is_dated
        };
        file.put_key(&mut self.key);
        self.cache.revalidate(&self.key, same, x.io.now())
    }

    /// Reserves a slot for an open file, released on drop. Returns `None` at the limit.
    fn reserve_slot(&mut self, file: File) -> Option<File> {
        let count = Rc::clone(&self.open_files);
        while count.get() >= self.limits.max_open_files {
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
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: Option<&Request<'_, '_>>,
    ) -> LookupResult {
        file.put_key(&mut self.key);
        let Some((prepared, codings)) = self.cache.get(&self.key) else {
            file.step = LookupStep::Open;
            return LookupResult::NextStep;
        };
        match request.filter(|_| file.coding.is_none()).and_then(|r| choose(r, codings)) {
            None => {
                let writer = ResponseWriter { out: &mut self.scratch, clock: &self.clock };
                LookupResult::Answered(respond(prepared, x, request, file.options, writer))
            }
            Some(coding) => {
                file.codings = codings;
                self.choose_coding(x, file, request, coding)
            }
        }
    }

    /// Answers with the file in a coding, from the cache or by opening it.
    fn choose_coding(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: Option<&Request<'_, '_>>,
        coding: Coding,
    ) -> LookupResult {
        file.coding = Some(coding);
        file.put_key(&mut self.key);
        if let CacheLookup::Fresh(prepared, _) = self.cache.find(&self.key, x.io.now()) {
            let writer = ResponseWriter { out: &mut self.scratch, clock: &self.clock };
            return LookupResult::Answered(respond(prepared, x, request, file.options, writer));
        }
        file.step = LookupStep::Open;
        LookupResult::NextStep
    }

    /// Answers with a file and caches it, unless it may still be changing.
    fn answer_with_file(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: Option<&Request<'_, '_>>,
        (meta, validators): (Metadata, Validators),
        content: FileContent<'_>,
    ) -> LookupResult {
        let (is_stable, is_dated) = (validators.is_stable, validators.is_dated);
        let representation = RepresentationHeaders {
            content_type: content_type(file.paths.plain.as_path()),
            validators: Some(validators),
            coding: file.coding,
            varies: !file.codings.is_empty(),
            caching: self.file_options.max_age.map_or(Caching::Unspecified, Caching::MaxAge),
        };
        let (mut prepared, is_complete) = match content {
            FileContent::Bytes(bytes) => {
                let body = &bytes[..bytes.len().min(meta.len as usize)];
                (
                    PreparedResponse::new(representation, body, &self.clock),
                    meta.len == bytes.len() as u64,
                )
            }
            FileContent::Open(from) => {
                (PreparedResponse::from_file(representation, from, meta.len, &self.clock), true)
            }
        };
        let chosen =
            request.filter(|_| file.coding.is_none()).and_then(|r| choose(r, file.codings));
        let writer = ResponseWriter { out: &mut self.scratch, clock: &self.clock };
        let proceed = chosen.is_none() && respond(&mut prepared, x, request, file.options, writer);
        if is_complete && is_stable {
            let codings = file.codings_beside();
            file.put_key(&mut self.key);
            let source = Source { paths: Arc::clone(&file.paths), meta, codings, is_dated };
            self.cache.insert(&self.key, prepared, Some(source), x.io.now());
        }
        match chosen {
            Some(coding) => self.choose_coding(x, file, request, coding),
            None => LookupResult::Answered(proceed),
        }
    }
}

enum LookupResult {
    /// The next step's operation is to be submitted.
    NextStep,
    /// A file of this length in bytes is to be read.
    Read(File, u64),
    /// A response was sent; true if the next request may be processed.
    Answered(bool),
}

enum FileContent<'a> {
    Bytes(&'a [u8]),
    Open(File),
}

/// Returns the preferred coding of a request among the available ones.
fn choose(request: &Request<'_, '_>, available: Codings) -> Option<Coding> {
    if available.is_empty() || !request.has_accept_encoding {
        return None;
    }
    coding::choose(request.all("accept-encoding"), available)
}

fn content_type(path: &Path) -> String {
    let guess = mime_guess::from_path(path);
    let essence = match guess.first_raw().unwrap_or("application/octet-stream") {
        // RFC 9239.
        "application/javascript" => "text/javascript",
        other => other,
    };
    let is_text = essence.starts_with("text/") || essence == "image/svg+xml";
    let charset = if is_text { "; charset=utf-8" } else { "" };
    format!("{essence}{charset}")
}
