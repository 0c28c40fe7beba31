//! The steps of a lookup: what the outcome of each file operation leads to.

use std::io::{self, ErrorKind};
use std::time::SystemTime;

use evring::files::{File, FileKind, FileOutcome, Listing, Metadata};
use evring::{Commands, Cx};
use tracing::error;

use crate::decision::accept::{is_navigation, prefers_json};
use crate::decision::coding::{Coding, Codings, choose};
use crate::decision::conditions::Validators;
use crate::decision::representation::RepresentationHeaders;
use crate::file_options::FileOptions;
use crate::message::path;
use crate::message::request::RequestHead;
use crate::message::status::Status;
use crate::response::prepared::PreparedResponse;
use crate::site::cache::{CacheLookup, CachedFile};
use crate::site::context::Context;
use crate::site::files::Files;
use crate::site::listing;
use crate::site::lookup::{FileContent, FileLookup, LookupResult, LookupStep, OpenedAt};
use crate::site::state::State;

/// Returns the metadata that a stat has found.
fn metadata(outcome: &io::Result<FileOutcome>) -> Option<Metadata> {
    match outcome {
        Ok(FileOutcome::Stat(meta)) => Some(*meta),
        _ => None,
    }
}

/// What a step of a lookup works on.
pub(super) struct StepContext<'a, 'x, C> {
    pub(super) files: &'a mut Files,
    pub(super) context: &'a mut Context,
    pub(super) x: &'a mut Cx<'x, C, State>,
    pub(super) file: &'a mut FileLookup,
    pub(super) request: &'a RequestHead<'a>,
}

impl Files {
    /// Advances a lookup by one step.
    pub(super) fn advance<C: Commands>(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, C, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        outcome: io::Result<FileOutcome>,
    ) -> LookupResult {
        StepContext { files: self, context, x, file, request }.advance(outcome)
    }
}

impl<C: Commands> StepContext<'_, '_, C> {
    fn advance(&mut self, outcome: io::Result<FileOutcome>) -> LookupResult {
        match (std::mem::take(&mut self.file.step), outcome) {
            (LookupStep::Revalidate, outcome) => self.revalidate(metadata(&outcome)),
            (LookupStep::Sibling { at, opened }, outcome) => {
                if metadata(&outcome).is_some_and(|meta| meta.kind == FileKind::Regular) {
                    self.file.codings.add(Coding::ALL[at]);
                }
                self.after_sibling(at, opened)
            }
            (LookupStep::Find, Ok(FileOutcome::Opened(opened)))
                if opened.1.kind == FileKind::Regular && self.looks_for_siblings() =>
            {
                let opened = Some((opened, self.x.io.wall_time()));
                self.file.step = LookupStep::Sibling { at: 0, opened };
                LookupResult::NextStep
            }
            (LookupStep::Find | LookupStep::Open, Ok(FileOutcome::Opened(opened))) => {
                let (from, meta) = *opened;
                self.opened(from, meta)
            }
            (LookupStep::Read(meta, validators), Ok(FileOutcome::Read(bytes))) => {
                let content = match bytes.get(..meta.len as usize) {
                    Some(body) if body.len() == bytes.len() => FileContent::Bytes(body),
                    // The file has changed meanwhile.
                    start => FileContent::Unstable(start.unwrap_or(&bytes)),
                };
                self.answer_with_file(meta, validators, content)
            }
            #[cfg(feature = "compression")]
            (LookupStep::Collect(read), Ok(FileOutcome::Read(bytes))) => self.collect(read, &bytes),
            #[cfg(feature = "compression")]
            (LookupStep::Collect(_), Err(error)) => self.collect_failed(&error),
            (LookupStep::List, Ok(FileOutcome::Listed(listing))) => {
                self.answer_with_listing(listing)
            }
            (LookupStep::List, Err(error)) => self.fail(Status::of(&error)),
            (_, Err(error)) => self.after_error(&error),
            _ => {
                self.file.options = self.file.options.ending();
                self.answer_with_error(Status::INTERNAL)
            }
        }
    }

    fn options(&self) -> &FileOptions {
        self.files.options(self.file)
    }

    fn looks_for_siblings(&self) -> bool {
        self.file.coding.is_none() && !self.options().no_precompressed
    }

    /// Revalidates the file's entry in the cache if `same` accepts it. Returns false if not, or if there is none.
    fn revalidate_entry(&mut self, same: impl FnOnce(&CachedFile) -> bool) -> bool {
        let files = &mut *self.files;
        self.file.put_key(&mut files.key);
        files.cache.revalidate(&files.key, same, self.x.io.now())
    }

    /// Compares the file with its entry in the cache, if there is one.
    fn revalidate(&mut self, meta: Option<Metadata>) -> LookupResult {
        let is_same = self.revalidate_entry(|source| source.is_dated && Some(source.meta) == meta);
        self.file.step = match is_same {
            true if self.looks_for_siblings() => LookupStep::Sibling { at: 0, opened: None },
            true => return self.answer_revalidated(),
            false => LookupStep::Find,
        };
        LookupResult::NextStep
    }

    /// Looks for the next precompressed file; after the last one, continues with the open file, answers from the cache or
    /// opens the file.
    fn after_sibling(&mut self, at: usize, opened: Option<OpenedAt>) -> LookupResult {
        if at + 1 < Coding::ALL.len() {
            self.file.step = LookupStep::Sibling { at: at + 1, opened };
            return LookupResult::NextStep;
        }
        if let Some((opened, wall)) = opened {
            let (from, meta) = *opened;
            return self.opened_file(from, meta, wall);
        }
        let codings = self.file.codings;
        let same = |source: &CachedFile| source.codings.precompressed() == codings;
        if self.revalidate_entry(same) {
            return self.answer_revalidated();
        }
        self.file.step = LookupStep::Open;
        LookupResult::NextStep
    }

    /// Continues with what was opened: a file, a directory, or neither.
    fn opened(&mut self, from: File, meta: Metadata) -> LookupResult {
        match meta.kind {
            #[cfg(feature = "compression")]
            FileKind::Regular if self.file.compresses().is_some() => {
                self.begin_compression(from, meta)
            }
            FileKind::Regular => self.opened_file(from, meta, self.x.io.wall_time()),
            _ if self.file.coding.is_some() => {
                self.file.fall_back();
                LookupResult::NextStep
            }
            FileKind::Directory if !self.file.name().ends_with(b"/") => {
                let query = path::split(self.request.target).ok().and_then(|(_, query)| query);
                let (to, target) = ((&mut *self.x.io, self.x.id), (self.file.name(), query));
                let sent = self.context.responder.redirect(to, target, self.file.options);
                LookupResult::Answered(self.x.state.record(sent))
            }
            _ => self.fail(Status::NOT_FOUND),
        }
    }

    /// Reads a small file whole; answers with a large one, whose descriptor stays open. It was opened at `wall`.
    fn opened_file(&mut self, from: File, meta: Metadata, wall: SystemTime) -> LookupResult {
        #[cfg(feature = "compression")]
        self.files.add_codings(self.file, meta.len);
        let validators = Validators::of(&meta, self.file.coding, wall);
        if meta.len <= u64::from(self.context.limits.max_cached_file_bytes) {
            self.file.step = LookupStep::Read(meta, validators);
            // One byte more than the expected length shows whether the file has grown.
            return LookupResult::Read(from, 0..meta.len + 1);
        }
        // Another request may have cached the same file meanwhile; then its descriptor is used.
        let (codings, is_dated) = (self.file.codings_beside(), validators.is_dated);
        let same = |source: &CachedFile| {
            (source.meta, source.codings) == (meta, codings) && source.is_dated == is_dated
        };
        if self.revalidate_entry(same) {
            return self.answer_revalidated();
        }
        let Some(from) = self.files.reserve_slot(self.context, from) else {
            self.context.metrics.own().rejected_files.add(1);
            return self.answer_with_error(Status::BUSY);
        };
        self.answer_with_file(meta, validators, FileContent::Open(from, meta.len))
    }

    /// Answers from the cache after a successful revalidation.
    fn answer_revalidated(&mut self) -> LookupResult {
        let files = &mut *self.files;
        self.file.put_key(&mut files.key);
        let Some((prepared, codings)) = files.cache.get(&files.key) else {
            self.file.step = LookupStep::Open;
            return LookupResult::NextStep;
        };
        let Some(coding) = choose_unless_coded(self.file, self.request, codings) else {
            let options = self.file.options;
            let proceed = self.context.send_planned(self.x, prepared, self.request, options);
            return LookupResult::Answered(proceed);
        };
        self.file.codings = codings;
        self.choose_coding(coding)
    }

    /// Answers with the file in a coding, from the cache or by opening it.
    fn choose_coding(&mut self, coding: Coding) -> LookupResult {
        self.file.coding = Some(coding);
        self.file.step = match self.files.find(self.file, self.x.io.now()) {
            CacheLookup::Fresh(prepared, _) => {
                let options = self.file.options;
                let proceed = self.context.send_planned(self.x, prepared, self.request, options);
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
        meta: Metadata,
        validators: Validators,
        content: FileContent<'_>,
    ) -> LookupResult {
        let StepContext { files, context, x, file, request } = self;
        let is_kept = validators.is_stable && !matches!(content, FileContent::Unstable(_));
        let is_dated = validators.is_dated;
        let mut prepared = files.prepare(context, file, validators, content);
        let chosen = choose_unless_coded(file, request, file.codings);
        let proceed =
            chosen.is_none() && context.send_planned(x, &mut prepared, request, file.options);
        if is_kept {
            files.keep(file, prepared, (meta, is_dated), x.io);
        }
        match chosen {
            Some(coding) => self.choose_coding(coding),
            None => LookupResult::Answered(proceed),
        }
    }

    /// Answers with a page that lists a directory.
    fn answer_with_listing(&mut self, listing: Listing) -> LookupResult {
        let StepContext { files, context, x, file, request } = self;
        let (content_type, page) = match prefers_json(request) {
            true => ("application/json", listing::json(file.name(), listing)),
            false => ("text/html; charset=utf-8", listing::page(file.name(), listing)),
        };
        let mut representation = RepresentationHeaders::uncached(content_type).with_fields(
            &files.options(file).headers,
            file.name(),
            None,
        );
        representation.varies_by_type = true;
        let clock = &context.responder.clock;
        let mut prepared = PreparedResponse::uncached(representation, &page, clock);
        let sent = prepared.send(x.io, x.id, clock, file.options);
        LookupResult::Answered(x.state.record(sent))
    }

    /// Answers with an error.
    fn answer_with_error(&mut self, status: Status) -> LookupResult {
        LookupResult::Answered(self.context.send_error(self.x, status, self.file.options))
    }

    /// Continues after an error of a step: without the coding, with a listing, or with an error.
    fn after_error(&mut self, error: &io::Error) -> LookupResult {
        if self.file.coding.is_some() {
            self.file.fall_back();
            return LookupResult::NextStep;
        }
        let status = Status::of(error);
        let is_directory = self.file.name().ends_with(b"/");
        let has_no_index = is_directory && error.kind() == ErrorKind::NotFound;
        if self.options().listing && has_no_index {
            self.file.step = LookupStep::List;
            return LookupResult::NextStep;
        }
        let is_server_error = status.0 >= 500;
        if is_server_error {
            error!("cannot read {:?}: {error}", self.file.paths.plain.as_path());
            self.file.options = self.file.options.ending();
        }
        self.fail(status)
    }

    /// Answers a request for a file that cannot be sent: with the fallback page, or an error.
    fn fail(&mut self, status: Status) -> LookupResult {
        let fallback = self.options().fallback.as_ref().filter(|_| {
            status == Status::NOT_FOUND && !self.file.is_fallback && is_navigation(self.request)
        });
        let lookup =
            fallback.and_then(|page| FileLookup::open(page.canonical(), self.file.options).ok());
        let Some(mut lookup) = lookup else {
            return self.answer_with_error(status);
        };
        lookup.is_fallback = true;
        *self.file = lookup;
        self.file.step = match self.files.find(self.file, self.x.io.now()) {
            CacheLookup::Fresh(..) => return self.answer_revalidated(),
            CacheLookup::Stale(..) => LookupStep::Revalidate,
            CacheLookup::Miss => LookupStep::Find,
        };
        LookupResult::NextStep
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
