//! Requests for files.

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use evring::{Commands, Cx, File, FileKind, FileOp, FileOutcome, Metadata};
use tracing::error;

use crate::body::Body;
use crate::cache::{CacheLookup, Source, variant};
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

/// How files are served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOptions {
    /// Whether compressed files are looked for beside a file.
    pub(crate) precompressed: bool,
    /// Whether a directory without an index shows what is in it.
    pub(crate) listing: bool,
    /// For how many seconds a file may be kept without asking.
    pub(crate) max_age: Option<u32>,
}

/// An open file, counted.
struct Counted(Rc<Cell<usize>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Default for FileOptions {
    fn default() -> Self {
        FileOptions { precompressed: true, listing: false, max_age: None }
    }
}

/// Where the counts are.
pub(crate) const STATUS: &str = "/.httpd/status.json";

impl Site {
    /// Most boxes kept for later use.
    const SPARE: usize = 64;

    /// Answers a request for what may be in memory as `name`, in the coding that the client takes;
    /// `codings` lie beside it. Nothing if it is not in memory. If-Range has the file asked about.
    #[cold]
    pub(crate) fn answer_known(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        options: ResponseOptions,
        (name, codings): (&[u8], Codings),
    ) -> Option<bool> {
        let coding = choose(request, codings);
        let name = match coding {
            Some(coding) => {
                variant(&mut self.key, name, coding);
                &self.key
            }
            None => name,
        };
        let asked_again = request.has("if-range").then(|| self.cache.paths(name)).flatten();
        let found = match asked_again {
            Some((target, paths)) => CacheLookup::Stale(target, paths),
            None => self.cache.find(name, x.io.now()),
        };
        match found {
            CacheLookup::Fresh(prepared, _) => {
                let writer = ResponseWriter { out: &mut self.scratch, clock: &self.clock };
                Some(respond(prepared, x, Some(request), options, writer))
            }
            CacheLookup::Stale(target, paths) => {
                let mut work = FileLookup::confirm(target, paths, coding, options);
                work.codings = codings;
                self.begin(x, request, work);
                Some(false)
            }
            CacheLookup::Nothing => None,
        }
    }

    /// Answers a request for a target that is not in memory as it stands; true if the next
    /// request may be looked at.
    #[cold]
    pub(crate) fn answer_unknown(
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
        if *name == *STATUS.as_bytes() && self.shows_itself() {
            return self.show_status(x, options);
        }
        let mut work = match FileLookup::open(&name, query, options) {
            Ok(work) => work,
            Err(Status::NOT_FOUND) => return self.send_error(x, Status::NOT_FOUND, options),
            Err(status) => return self.send_error(x, status, options.ending()),
        };
        if self.root.is_none() {
            return self.answer_itself(x, request, work.paths.plain.as_path(), options);
        }
        // The same file may be in memory by its canonical name.
        match self.cache.find(work.name(), x.io.now()) {
            CacheLookup::Fresh(_, codings) => {
                let known = (work.name(), codings);
                if let Some(goes_on) = self.answer_known(x, request, options, known) {
                    return goes_on;
                }
                work.codings = codings;
                work.coding = choose(request, codings);
            }
            CacheLookup::Stale(..) => work.step = LookupStep::Confirm,
            CacheLookup::Nothing if self.file_options.precompressed => {
                work.step = LookupStep::Sibling { at: 0, confirms: false };
            }
            CacheLookup::Nothing => {}
        }
        self.begin(x, request, work);
        false
    }

    /// Without a root there is one page.
    fn answer_itself(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        path: &Path,
        options: ResponseOptions,
    ) -> bool {
        if path != Path::new(path::INDEX) || !self.shows_itself() {
            return self.send_error(x, Status::NOT_FOUND, options);
        }
        let page = include_str!("page.html")
            .replace("{backend}", &self.backend)
            .replace("{version}", env!("CARGO_PKG_VERSION"));
        let representation = RepresentationHeaders::plain("text/html; charset=utf-8");
        let mut prepared = PreparedResponse::new(representation, page.as_bytes(), &self.clock);
        let writer = ResponseWriter { out: &mut self.scratch, clock: &self.clock };
        let goes_on = respond(&mut prepared, x, Some(request), options, writer);
        self.cache.keep(b"/", prepared, None, x.io.now());
        goes_on
    }

    /// Tells what the server has done.
    fn show_status(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        options: ResponseOptions,
    ) -> bool {
        self.metrics.own().take_over(x.io);
        let text = self.metrics.json(&self.backend, x.io.now());
        let representation = RepresentationHeaders {
            caching: Caching::Not,
            ..RepresentationHeaders::plain("application/json")
        };
        let mut prepared = PreparedResponse::new(representation, text.as_bytes(), &self.clock);
        send_prepared(&mut prepared, x, &self.clock, options)
    }

    /// Begins file work; meanwhile the connection does not receive.
    #[cold]
    pub(crate) fn begin(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        mut work: FileLookup,
    ) {
        x.io.set_receiving(x.id, false);
        x.io.set_deadline(x.id, Some(x.io.now() + self.limits.progress_interval));
        let mut spare = self.spare.pop();
        if let Some(PendingWork::File(former)) = spare.as_deref_mut() {
            work.head = std::mem::take(&mut former.head);
        }
        work.head.clear();
        if request.conditional || request.has_accept_encoding || self.tells_requests() {
            work.head.extend_from_slice(request.head);
        }
        let work = match spare {
            Some(mut spare) => {
                *spare = PendingWork::File(work);
                spare
            }
            None => Box::new(PendingWork::File(work)),
        };
        self.look(x, work);
    }

    /// Begins the next step of file work.
    fn look(&self, x: &mut Cx<'_, impl Commands, State>, work: Box<PendingWork>) {
        let (Some(root), PendingWork::File(file)) = (self.root, &*work) else { return };
        let op = match file.step {
            LookupStep::Confirm => FileOp::Stat(root, file.paths.of(file.coding)),
            LookupStep::Sibling { at, .. } => {
                FileOp::Stat(root, file.paths.of(Some(Coding::ALL[at])))
            }
            LookupStep::List => FileOp::List(root, file.directory()),
            LookupStep::Open | LookupStep::Read(..) => {
                FileOp::Open(root, file.paths.of(file.coding))
            }
        };
        x.io.file_op(x.id, 0, op);
        x.state.work = Some(work);
    }

    /// Goes on with a request after file work.
    pub(crate) fn file_done(&mut self, x: &mut Cx<'_, impl Commands, State>, done: FileOutcome) {
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
            // Nothing was kept, as there was nothing to it but its target.
            _ => None,
        };
        let after = self.go_on(x, file, request.as_ref(), done);
        if matches!(after, LookupResult::Answered(_)) {
            let logged =
                request.as_ref().map_or(LoggedRequest::Bytes(&head), LoggedRequest::Request);
            self.count(x.state, logged);
        }
        file.head = head;
        match after {
            LookupResult::Look => self.look(x, work),
            LookupResult::Read(from, len) => {
                x.state.work = Some(work);
                // One byte more than there should be, to see whether the file grows.
                x.io.file_op(x.id, 0, FileOp::Read(from, 0..len + 1));
            }
            LookupResult::Answered(goes_on) => {
                if self.spare.len() < Self::SPARE {
                    self.spare.push(work);
                }
                if goes_on {
                    x.io.set_receiving(x.id, true);
                }
            }
        }
    }

    fn go_on(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: Option<&Request<'_, '_>>,
        done: FileOutcome,
    ) -> LookupResult {
        match (std::mem::take(&mut file.step), done) {
            (LookupStep::Confirm, FileOutcome::Stat(result)) => {
                let same = |source: &Source| source.is_dated && Some(source.meta) == result.ok();
                file.put_key(&mut self.key);
                let is_same = self.cache.confirm(&self.key, same, x.io.now());
                let siblings = self.file_options.precompressed && file.coding.is_none();
                file.step = match is_same {
                    true if siblings => LookupStep::Sibling { at: 0, confirms: true },
                    true => return self.answer_again(x, file, request),
                    false if siblings => LookupStep::Sibling { at: 0, confirms: false },
                    false => LookupStep::Open,
                };
                LookupResult::Look
            }
            (LookupStep::Sibling { at, confirms }, FileOutcome::Stat(result)) => {
                if result.is_ok_and(|meta| meta.kind == FileKind::Regular) {
                    file.codings.add(Coding::ALL[at]);
                }
                if at + 1 < Coding::ALL.len() {
                    file.step = LookupStep::Sibling { at: at + 1, confirms };
                    return LookupResult::Look;
                }
                let codings = file.codings;
                let same = |source: &Source| source.codings == codings;
                if confirms && self.cache.confirm(file.name(), same, x.io.now()) {
                    return self.answer_again(x, file, request);
                }
                file.step = LookupStep::Open;
                LookupResult::Look
            }
            (LookupStep::Open, FileOutcome::Opened(Ok((from, meta)))) => match meta.kind {
                FileKind::Regular => {
                    let validators = Validators::of(&meta, file.coding, x.io.wall_time());
                    if meta.len <= u64::from(self.limits.max_cached_file_bytes) {
                        file.step = LookupStep::Read(meta, validators);
                        return LookupResult::Read(from, meta.len);
                    }
                    if self.has_meanwhile(x, file, &meta, &validators) {
                        return self.answer_again(x, file, request);
                    }
                    let Some(from) = self.hold(from) else {
                        self.metrics.own().refused_files.add(1);
                        return LookupResult::Answered(self.send_error(
                            x,
                            Status::BUSY,
                            file.options,
                        ));
                    };
                    self.have(x, file, request, (meta, validators), FileContent::Open(from))
                }
                _ if file.coding.is_some() => {
                    file.fall_back();
                    LookupResult::Look
                }
                FileKind::Directory if !file.name().ends_with(b"/") => {
                    let target = (file.name(), file.query());
                    LookupResult::Answered(self.redirect(x, target, file.options))
                }
                _ => LookupResult::Answered(self.send_error(x, Status::NOT_FOUND, file.options)),
            },
            (LookupStep::Read(meta, validators), FileOutcome::Read(Ok(bytes))) => {
                self.have(x, file, request, (meta, validators), FileContent::Bytes(&bytes))
            }
            (LookupStep::List, FileOutcome::Listed(Ok(listing))) => {
                let representation = RepresentationHeaders {
                    caching: Caching::Not,
                    ..RepresentationHeaders::plain("text/html; charset=utf-8")
                };
                let page = listing::page(file.name(), listing);
                let mut prepared = PreparedResponse::once(representation, &page, &self.clock);
                LookupResult::Answered(send_prepared(&mut prepared, x, &self.clock, file.options))
            }
            (LookupStep::List, FileOutcome::Listed(Err(error))) => {
                let status = Status::of(&error);
                LookupResult::Answered(self.send_error(x, status, file.options))
            }
            (_, FileOutcome::Opened(Err(error)) | FileOutcome::Read(Err(error))) => {
                if file.coding.is_some() {
                    file.fall_back();
                    return LookupResult::Look;
                }
                let status = Status::of(&error);
                let is_directory = file.name().ends_with(b"/");
                let has_no_index = is_directory && error.kind() == ErrorKind::NotFound;
                if self.file_options.listing && has_no_index {
                    file.step = LookupStep::List;
                    return LookupResult::Look;
                }
                let mild = status.0 < 500;
                if !mild {
                    error!("{:?}: {error}", file.paths.plain.as_path());
                }
                let options = if mild { file.options } else { file.options.ending() };
                LookupResult::Answered(self.send_error(x, status, options))
            }
            _ => {
                let options = file.options.ending();
                LookupResult::Answered(self.send_error(x, Status::INTERNAL, options))
            }
        }
    }

    /// Whether the same file was opened and kept while it was being opened once more.
    fn has_meanwhile(
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
        self.cache.confirm(&self.key, same, x.io.now())
    }

    /// Counts an open file until nobody needs it any more; nothing if there are too many.
    fn hold(&mut self, file: File) -> Option<File> {
        let count = Rc::clone(&self.open_files);
        while count.get() >= self.limits.max_open_files {
            if !self.cache.close_one() {
                return None;
            }
        }
        count.set(count.get() + 1);
        Some(file.with(Counted(count)))
    }

    /// Answers from the cache, which was just told that what it has is good.
    fn answer_again(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: Option<&Request<'_, '_>>,
    ) -> LookupResult {
        file.put_key(&mut self.key);
        let Some((prepared, codings)) = self.cache.kept(&self.key) else {
            file.step = LookupStep::Open;
            return LookupResult::Look;
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

    /// Gives the file in a coding that was found beside it, from memory or by opening it.
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
        LookupResult::Look
    }

    /// Answers with a file that is at hand now, and keeps it unless it is changing.
    fn have(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileLookup,
        request: Option<&Request<'_, '_>>,
        (meta, validators): (Metadata, Validators),
        have: FileContent<'_>,
    ) -> LookupResult {
        let (is_settled, is_dated) = (validators.is_settled, validators.is_dated);
        let representation = RepresentationHeaders {
            content_type: content_type(file.paths.plain.as_path()),
            validators: Some(validators),
            coding: file.coding,
            varies: !file.codings.is_empty(),
            caching: self.file_options.max_age.map_or(Caching::Unsaid, Caching::Seconds),
        };
        let (mut prepared, whole) = match have {
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
        let goes_on = chosen.is_none() && respond(&mut prepared, x, request, file.options, writer);
        if whole && is_settled {
            let codings = file.codings_beside();
            file.put_key(&mut self.key);
            let source = Source { paths: Arc::clone(&file.paths), meta, codings, is_dated };
            self.cache.keep(&self.key, prepared, Some(source), x.io.now());
        }
        match chosen {
            Some(coding) => self.choose_coding(x, file, request, coding),
            None => LookupResult::Answered(goes_on),
        }
    }
}

/// What comes after a step of file work.
enum LookupResult {
    /// The next step.
    Look,
    /// A file of so many bytes is to be read.
    Read(File, u64),
    /// Nothing; true if the next request may be looked at.
    Answered(bool),
}

/// A file that is at hand.
enum FileContent<'a> {
    Bytes(&'a [u8]),
    Open(File),
}

/// The coding that a request gets of those that there are.
fn choose(request: &Request<'_, '_>, there: Codings) -> Option<Coding> {
    if there.is_empty() || !request.has_accept_encoding {
        return None;
    }
    coding::choose(request.all("accept-encoding"), there)
}

/// The type of a file by its name.
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
