//! Requests for files.

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use multiplex::{Commands, Cx, File, FileDone, FileKind, FileOp, Meta};
use tracing::error;

use crate::body::Body;
use crate::cache::{Found, Source, variant};
use crate::coding::{self, Coding, Codings};
use crate::conditions::Validators;
use crate::listing;
use crate::log::Seen;
use crate::path;
use crate::reply::{About, Caching, Manner, Ready};
use crate::request::{self, MEMORY, Parsed, Persist, Request};
use crate::respond::{Pen, respond};
use crate::site::Site;
use crate::state::State;
use crate::status::Status;
use crate::work::{FileWork, Step, Work, give};

/// How files are served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Serving {
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

impl Default for Serving {
    fn default() -> Self {
        Serving { precompressed: true, listing: false, max_age: None }
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
        manner: Manner,
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
            Some((target, paths)) => Found::Stale(target, paths),
            None => self.cache.find(name, x.io.now()),
        };
        match found {
            Found::Fresh(ready, _) => {
                let pen = Pen { out: &mut self.scratch, clock: &self.clock };
                Some(respond(ready, x, Some(request), manner, pen))
            }
            Found::Stale(target, paths) => {
                let mut work = FileWork::confirm(target, paths, coding, manner);
                work.codings = codings;
                self.begin(x, request, work);
                Some(false)
            }
            Found::Nothing => None,
        }
    }

    /// Answers a request for a target that is not in memory as it stands; true if the next
    /// request may be looked at.
    #[cold]
    pub(crate) fn answer_unknown(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        manner: Manner,
    ) -> bool {
        let (name, query) = match path::split(request.target) {
            Ok((name, query)) => (path::canonical(name), query),
            Err(status) => return self.refuse(x, status, manner.ending()),
        };
        if let Some(route) = self.routes.find(&name) {
            return self.call(x, request, Body::default(), manner, route);
        }
        if *name == *STATUS.as_bytes() && self.shows_itself() {
            return self.show_status(x, manner);
        }
        let mut work = match FileWork::open(&name, query, manner) {
            Ok(work) => work,
            Err(Status::NOT_FOUND) => return self.refuse(x, Status::NOT_FOUND, manner),
            Err(status) => return self.refuse(x, status, manner.ending()),
        };
        if self.root.is_none() {
            return self.answer_itself(x, request, work.paths.plain.as_path(), manner);
        }
        // The same file may be in memory by its canonical name.
        match self.cache.find(work.name(), x.io.now()) {
            Found::Fresh(_, codings) => {
                let known = (work.name(), codings);
                if let Some(goes_on) = self.answer_known(x, request, manner, known) {
                    return goes_on;
                }
                work.codings = codings;
                work.coding = choose(request, codings);
            }
            Found::Stale(..) => work.step = Step::Confirm,
            Found::Nothing if self.serving.precompressed => {
                work.step = Step::Sibling { at: 0, confirms: false };
            }
            Found::Nothing => {}
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
        manner: Manner,
    ) -> bool {
        if path != Path::new(path::INDEX) || !self.shows_itself() {
            return self.refuse(x, Status::NOT_FOUND, manner);
        }
        let page = include_str!("page.html")
            .replace("{backend}", &self.backend)
            .replace("{version}", env!("CARGO_PKG_VERSION"));
        let about = About::plain("text/html; charset=utf-8");
        let mut ready = Ready::new(about, page.as_bytes(), &self.clock);
        let pen = Pen { out: &mut self.scratch, clock: &self.clock };
        let goes_on = respond(&mut ready, x, Some(request), manner, pen);
        self.cache.keep(b"/", ready, None, x.io.now());
        goes_on
    }

    /// Tells what the server has done.
    fn show_status(&mut self, x: &mut Cx<'_, impl Commands, State>, manner: Manner) -> bool {
        self.board.own().take_over(x.io);
        let text = self.board.json(&self.backend, x.io.now());
        let about = About { caching: Caching::Not, ..About::plain("application/json") };
        let mut ready = Ready::new(about, text.as_bytes(), &self.clock);
        give(&mut ready, x, &self.clock, manner)
    }

    /// Begins file work; meanwhile the connection does not receive.
    #[cold]
    pub(crate) fn begin(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        request: &Request<'_, '_>,
        mut work: FileWork,
    ) {
        x.io.receive(x.id, false);
        x.io.deadline(x.id, Some(x.io.now() + self.limits.stall_time));
        let mut spare = self.spare.pop();
        if let Some(Work::File(old)) = spare.as_deref_mut() {
            work.head = std::mem::take(&mut old.head);
        }
        work.head.clear();
        if request.conditional || request.accepts || self.tells_requests() {
            work.head.extend_from_slice(request.head);
        }
        let work = match spare {
            Some(mut spare) => {
                *spare = Work::File(work);
                spare
            }
            None => Box::new(Work::File(work)),
        };
        self.look(x, work);
    }

    /// Begins the next step of file work.
    fn look(&self, x: &mut Cx<'_, impl Commands, State>, work: Box<Work>) {
        let (Some(root), Work::File(file)) = (self.root, &*work) else { return };
        let op = match file.step {
            Step::Confirm => FileOp::Stat(root, file.paths.of(file.coding)),
            Step::Sibling { at, .. } => FileOp::Stat(root, file.paths.of(Some(Coding::ALL[at]))),
            Step::List => FileOp::List(root, file.directory()),
            Step::Open | Step::Read(..) => FileOp::Open(root, file.paths.of(file.coding)),
        };
        x.io.file(x.id, 0, op);
        x.state.work = Some(work);
    }

    /// Goes on with a request after file work.
    pub(crate) fn file_done(&mut self, x: &mut Cx<'_, impl Commands, State>, done: FileDone) {
        let Some(mut work) = x.state.work.take() else { return };
        let Work::File(file) = &mut *work else {
            x.state.work = Some(work);
            return;
        };
        if x.io.stopping() && file.manner.persist != Persist::Ends {
            file.manner = file.manner.ending();
        }
        let head = std::mem::take(&mut file.head);
        let mut memory = MEMORY;
        let request = match request::parse(&head, &mut memory, &self.limits) {
            Parsed::Request(request) => Some(request),
            // Nothing was kept, as there was nothing to it but its target.
            _ => None,
        };
        let after = self.go_on(x, file, request.as_ref(), done);
        if matches!(after, After::Answered(_)) {
            let seen = request.as_ref().map_or(Seen::Bytes(&head), Seen::Request);
            self.count(x.state, seen);
        }
        file.head = head;
        match after {
            After::Look => self.look(x, work),
            After::Read(from, len) => {
                x.state.work = Some(work);
                // One byte more than there should be, to see whether the file grows.
                x.io.file(x.id, 0, FileOp::Read(from, 0..len + 1));
            }
            After::Answered(goes_on) => {
                if self.spare.len() < Self::SPARE {
                    self.spare.push(work);
                }
                if goes_on {
                    x.io.receive(x.id, true);
                }
            }
        }
    }

    fn go_on(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileWork,
        request: Option<&Request<'_, '_>>,
        done: FileDone,
    ) -> After {
        match (std::mem::take(&mut file.step), done) {
            (Step::Confirm, FileDone::Stat(result)) => {
                let same = |source: &Source| source.is_dated && Some(source.meta) == result.ok();
                file.put_key(&mut self.key);
                let is_same = self.cache.confirm(&self.key, same, x.io.now());
                let siblings = self.serving.precompressed && file.coding.is_none();
                file.step = match is_same {
                    true if siblings => Step::Sibling { at: 0, confirms: true },
                    true => return self.answer_again(x, file, request),
                    false if siblings => Step::Sibling { at: 0, confirms: false },
                    false => Step::Open,
                };
                After::Look
            }
            (Step::Sibling { at, confirms }, FileDone::Stat(result)) => {
                if result.is_ok_and(|meta| meta.kind == FileKind::Regular) {
                    file.codings.add(Coding::ALL[at]);
                }
                if at + 1 < Coding::ALL.len() {
                    file.step = Step::Sibling { at: at + 1, confirms };
                    return After::Look;
                }
                let codings = file.codings;
                let same = |source: &Source| source.codings == codings;
                if confirms && self.cache.confirm(file.name(), same, x.io.now()) {
                    return self.answer_again(x, file, request);
                }
                file.step = Step::Open;
                After::Look
            }
            (Step::Open, FileDone::Opened(Ok((from, meta)))) => match meta.kind {
                FileKind::Regular => {
                    let validators = Validators::of(&meta, file.coding, x.io.wall());
                    if meta.len <= u64::from(self.limits.cached_file) {
                        file.step = Step::Read(meta, validators);
                        return After::Read(from, meta.len);
                    }
                    if self.has_meanwhile(x, file, &meta, &validators) {
                        return self.answer_again(x, file, request);
                    }
                    let Some(from) = self.hold(from) else {
                        self.board.own().refused_files.add(1);
                        return After::Answered(self.refuse(x, Status::BUSY, file.manner));
                    };
                    self.have(x, file, request, (meta, validators), Have::Open(from))
                }
                _ if file.coding.is_some() => {
                    file.fall_back();
                    After::Look
                }
                FileKind::Directory if !file.name().ends_with(b"/") => {
                    let target = (file.name(), file.query());
                    After::Answered(self.redirect(x, target, file.manner))
                }
                _ => After::Answered(self.refuse(x, Status::NOT_FOUND, file.manner)),
            },
            (Step::Read(meta, validators), FileDone::Read(Ok(bytes))) => {
                self.have(x, file, request, (meta, validators), Have::Bytes(&bytes))
            }
            (Step::List, FileDone::Listed(Ok(listing))) => {
                let about =
                    About { caching: Caching::Not, ..About::plain("text/html; charset=utf-8") };
                let page = listing::page(file.name(), listing);
                let mut ready = Ready::once(about, &page, &self.clock);
                After::Answered(give(&mut ready, x, &self.clock, file.manner))
            }
            (Step::List, FileDone::Listed(Err(error))) => {
                let status = Status::of(&error);
                After::Answered(self.refuse(x, status, file.manner))
            }
            (_, FileDone::Opened(Err(error)) | FileDone::Read(Err(error))) => {
                if file.coding.is_some() {
                    file.fall_back();
                    return After::Look;
                }
                let status = Status::of(&error);
                let is_directory = file.name().ends_with(b"/");
                let has_no_index = is_directory && error.kind() == ErrorKind::NotFound;
                if self.serving.listing && has_no_index {
                    file.step = Step::List;
                    return After::Look;
                }
                let mild = status.0 < 500;
                if !mild {
                    error!("{:?}: {error}", file.paths.plain.as_path());
                }
                let manner = if mild { file.manner } else { file.manner.ending() };
                After::Answered(self.refuse(x, status, manner))
            }
            _ => {
                let manner = file.manner.ending();
                After::Answered(self.refuse(x, Status::INTERNAL, manner))
            }
        }
    }

    /// Whether the same file was opened and kept while it was being opened once more.
    fn has_meanwhile(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        file: &FileWork,
        meta: &Meta,
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
        while count.get() >= self.limits.open_files {
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
        file: &mut FileWork,
        request: Option<&Request<'_, '_>>,
    ) -> After {
        file.put_key(&mut self.key);
        let Some((ready, codings)) = self.cache.kept(&self.key) else {
            file.step = Step::Open;
            return After::Look;
        };
        match request.filter(|_| file.coding.is_none()).and_then(|r| choose(r, codings)) {
            None => {
                let pen = Pen { out: &mut self.scratch, clock: &self.clock };
                After::Answered(respond(ready, x, request, file.manner, pen))
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
        file: &mut FileWork,
        request: Option<&Request<'_, '_>>,
        coding: Coding,
    ) -> After {
        file.coding = Some(coding);
        file.put_key(&mut self.key);
        if let Found::Fresh(ready, _) = self.cache.find(&self.key, x.io.now()) {
            let pen = Pen { out: &mut self.scratch, clock: &self.clock };
            return After::Answered(respond(ready, x, request, file.manner, pen));
        }
        file.step = Step::Open;
        After::Look
    }

    /// Answers with a file that is at hand now, and keeps it unless it is changing.
    fn have(
        &mut self,
        x: &mut Cx<'_, impl Commands, State>,
        file: &mut FileWork,
        request: Option<&Request<'_, '_>>,
        (meta, validators): (Meta, Validators),
        have: Have<'_>,
    ) -> After {
        let (is_settled, is_dated) = (validators.is_settled, validators.is_dated);
        let about = About {
            content_type: content_type(file.paths.plain.as_path()),
            validators: Some(validators),
            coding: file.coding,
            varies: !file.codings.is_empty(),
            caching: self.serving.max_age.map_or(Caching::Unsaid, Caching::Seconds),
        };
        let (mut ready, whole) = match have {
            Have::Bytes(bytes) => {
                let body = &bytes[..bytes.len().min(meta.len as usize)];
                (Ready::new(about, body, &self.clock), meta.len == bytes.len() as u64)
            }
            Have::Open(from) => (Ready::from_file(about, from, meta.len, &self.clock), true),
        };
        let chosen =
            request.filter(|_| file.coding.is_none()).and_then(|r| choose(r, file.codings));
        let pen = Pen { out: &mut self.scratch, clock: &self.clock };
        let goes_on = chosen.is_none() && respond(&mut ready, x, request, file.manner, pen);
        if whole && is_settled {
            let codings = file.codings_beside();
            file.put_key(&mut self.key);
            let source = Source { paths: Arc::clone(&file.paths), meta, codings, is_dated };
            self.cache.keep(&self.key, ready, Some(source), x.io.now());
        }
        match chosen {
            Some(coding) => self.choose_coding(x, file, request, coding),
            None => After::Answered(goes_on),
        }
    }
}

/// What comes after a step of file work.
enum After {
    /// The next step.
    Look,
    /// A file of so many bytes is to be read.
    Read(File, u64),
    /// Nothing; true if the next request may be looked at.
    Answered(bool),
}

/// A file that is at hand.
enum Have<'a> {
    Bytes(&'a [u8]),
    Open(File),
}

/// The coding that a request gets of those that there are.
fn choose(request: &Request<'_, '_>, there: Codings) -> Option<Coding> {
    if there.is_empty() || !request.accepts {
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
