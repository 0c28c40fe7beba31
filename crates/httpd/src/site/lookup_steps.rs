//! The steps of a lookup: what the outcome of each file operation leads to.

use std::io::{self, ErrorKind};

use evring::files::{File, FileKind, FileOutcome, Listing, Metadata};
use evring::{Commands, Cx};
use tracing::error;

use crate::decision::accept::{is_navigation, prefers_json};
use crate::decision::coding::Coding;
use crate::decision::conditions::Validators;
use crate::decision::representation::RepresentationHeaders;
use crate::message::request::RequestHead;
use crate::message::status::Status;
use crate::response::prepared::PreparedResponse;
use crate::site::cache::{CacheLookup, CachedFile};
use crate::site::context::Context;
use crate::site::files::Files;
use crate::site::listing;
use crate::site::lookup::{FileContent, FileLookup, LookupResult, LookupStep};
use crate::site::state::State;

/// Returns the metadata that a stat has found.
fn metadata(outcome: &io::Result<FileOutcome>) -> Option<Metadata> {
    match outcome {
        Ok(FileOutcome::Stat(meta)) => Some(*meta),
        _ => None,
    }
}

impl Files {
    /// Advances a lookup by one step.
    pub(super) fn advance(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        outcome: io::Result<FileOutcome>,
    ) -> LookupResult {
        match (std::mem::take(&mut file.step), outcome) {
            (LookupStep::Revalidate, outcome) => {
                self.revalidate(context, x, file, request, metadata(&outcome))
            }
            (LookupStep::Sibling { at, revalidates }, outcome) => {
                if metadata(&outcome).is_some_and(|meta| meta.kind == FileKind::Regular) {
                    file.codings.add(Coding::ALL[at]);
                }
                self.after_sibling(context, x, file, request, (at, revalidates))
            }
            (LookupStep::Open, Ok(FileOutcome::Opened(opened))) => {
                self.opened(context, x, file, request, *opened)
            }
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
                self.answer_with_listing(context, x, file, request, listing)
            }
            (LookupStep::List, Err(error)) => {
                self.fail(context, x, file, request, Status::of(&error))
            }
            (_, Err(error)) => self.after_error(context, x, file, request, &error),
            _ => {
                let options = file.options.ending();
                LookupResult::Answered(context.send_error(x, Status::INTERNAL, options))
            }
        }
    }

    /// Compares the file with its entry in the cache, if there is one.
    fn revalidate(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        meta: Option<Metadata>,
    ) -> LookupResult {
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

    /// Looks for the next precompressed file; after the last one, answers from the cache or opens the file.
    fn after_sibling(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        (at, revalidates): (usize, bool),
    ) -> LookupResult {
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

    /// Continues with what was opened: a file, a directory, or neither.
    fn opened(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        (from, meta): (File, Metadata),
    ) -> LookupResult {
        match meta.kind {
            #[cfg(feature = "compression")]
            FileKind::Regular if file.compresses().is_some() => {
                self.begin_compression(context, x, file, from, meta)
            }
            FileKind::Regular => self.opened_file(context, x, file, request, (from, meta)),
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
        }
    }

    /// Reads a small file whole; answers with a large one, whose descriptor stays open.
    fn opened_file(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        (from, meta): (File, Metadata),
    ) -> LookupResult {
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
            let proceed = context.send_error(x, Status::BUSY, file.options);
            return LookupResult::Answered(proceed);
        };
        let content = FileContent::Open(from, meta.len);
        self.answer_with_file(context, x, file, request, (meta, validators), content)
    }

    /// Answers with a page that lists a directory.
    fn answer_with_listing(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        listing: Listing,
    ) -> LookupResult {
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

    /// Continues after an error of a step: without the coding, with a listing, or with an error.
    fn after_error(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: &RequestHead<'_>,
        error: &io::Error,
    ) -> LookupResult {
        if file.coding.is_some() {
            file.fall_back();
            return LookupResult::NextStep;
        }
        let status = Status::of(error);
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
}
