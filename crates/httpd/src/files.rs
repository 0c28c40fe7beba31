//! Requests for files.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use multiplex::{Commands, Conn, File, FileDone, FileKind, FileOp, Meta};
use tracing::error;

use crate::body::Body;
use crate::cache::{Found, Source, variant};
use crate::coding::{self, Coding, Codings};
use crate::conditions::Validators;
use crate::listing;
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

    /// A file that changed this short a time ago may change again without its time of change
    /// telling: the kernel's clock for these ticks every 1 to 10 ms.
    const RESTLESS: Duration = Duration::from_millis(20);

    /// Answers a request for what may be in memory as `name`, in the coding that the client takes;
    /// `codings` lie beside it. Nothing if it is not in memory.
    #[cold]
    pub(crate) fn answer_known(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        request: &Request<'_, '_>,
        manner: Manner,
        (name, codings): (&[u8], Codings),
    ) -> Option<bool> {
        let name = match choose(request, codings) {
            Some(coding) => {
                variant(&mut self.key, name, coding);
                &self.key
            }
            None => name,
        };
        match self.cache.find(name, io.now()) {
            Found::Fresh(ready, _) => {
                let pen = Pen { out: &mut self.scratch, clock: &self.clock };
                Some(respond(ready, io, id, state, request, manner, pen))
            }
            Found::Stale(target, paths) => {
                self.begin(io, id, state, request, FileWork::confirm(target, paths, manner));
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
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        request: &Request<'_, '_>,
        manner: Manner,
    ) -> bool {
        if let Ok((name, _)) = path::split(request.target) {
            if let Some(route) = self.routes.find(name) {
                return self.call(io, id, state, request, Body::default(), manner, route);
            }
            if self.shows_status && name == STATUS.as_bytes() {
                return self.show_status(io, id, state, manner);
            }
        }
        let mut work = match FileWork::open(request.target, manner) {
            Ok(work) => work,
            Err(Status::NOT_FOUND) => return self.refuse(io, id, state, Status::NOT_FOUND, manner),
            Err(status) => return self.refuse(io, id, state, status, manner.ending()),
        };
        if self.root.is_none() {
            return self.answer_itself(io, id, state, request, work.paths.plain.as_path(), manner);
        }
        // The same file may be in memory without query or host.
        match self.cache.find(work.name(), io.now()) {
            Found::Fresh(_, codings) => {
                let known = (work.name(), codings);
                if let Some(goes_on) = self.answer_known(io, id, state, request, manner, known) {
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
        self.begin(io, id, state, request, work);
        false
    }

    /// Without a root there is one page.
    fn answer_itself(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        request: &Request<'_, '_>,
        path: &Path,
        manner: Manner,
    ) -> bool {
        if path != Path::new(path::INDEX) {
            return self.refuse(io, id, state, Status::NOT_FOUND, manner);
        }
        let page = include_str!("page.html")
            .replace("{backend}", &self.backend)
            .replace("{version}", env!("CARGO_PKG_VERSION"));
        let about = About::plain("text/html; charset=utf-8");
        let mut ready = Ready::new(about, page.as_bytes(), &self.clock);
        let pen = Pen { out: &mut self.scratch, clock: &self.clock };
        let goes_on = respond(&mut ready, io, id, state, request, manner, pen);
        self.cache.keep(b"/", ready, None, io.now());
        goes_on
    }

    /// Tells what the server has done.
    fn show_status(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        manner: Manner,
    ) -> bool {
        self.board.own().take_over(io);
        let uptime = self.begun.map_or(Duration::ZERO, |begun| io.now() - begun);
        let text = self.board.json(&self.backend, uptime.as_millis());
        let about = About { caching: Caching::Not, ..About::plain("application/json") };
        let mut ready = Ready::new(about, text.as_bytes(), &self.clock);
        give(&mut ready, io, id, state, &self.clock, manner)
    }

    /// Begins file work; meanwhile the connection does not receive.
    #[cold]
    pub(crate) fn begin(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        request: &Request<'_, '_>,
        mut work: FileWork,
    ) {
        io.receive(id, false);
        io.deadline(id, Some(io.now() + self.limits.stall_time));
        let mut spare = self.spare.pop();
        if let Some(Work::File(old)) = spare.as_deref_mut() {
            work.head = std::mem::take(&mut old.head);
        }
        work.head.clear();
        if request.conditional || request.accepts || self.log.is_some() {
            work.head.extend_from_slice(request.head);
        }
        let work = match spare {
            Some(mut spare) => {
                *spare = Work::File(work);
                spare
            }
            None => Box::new(Work::File(work)),
        };
        self.look(io, id, state, work);
    }

    /// Begins the next step of file work.
    fn look(&self, io: &mut impl Commands, id: Conn, state: &mut State, work: Box<Work>) {
        let (Some(root), Work::File(file)) = (self.root, &*work) else { return };
        let op = match file.step {
            Step::Confirm => FileOp::Stat(root, file.paths.of(file.coding)),
            Step::Sibling { at, .. } => FileOp::Stat(root, file.paths.of(Some(Coding::ALL[at]))),
            Step::List => FileOp::List(root, file.directory()),
            Step::Open | Step::Read(_) => FileOp::Open(root, file.paths.of(file.coding)),
        };
        io.file(id, 0, op);
        state.work = Some(work);
    }

    /// Goes on with a request after file work.
    pub(crate) fn file_done(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        done: FileDone,
    ) {
        let Some(mut work) = state.work.take() else { return };
        let Work::File(file) = &mut *work else {
            state.work = Some(work);
            return;
        };
        if io.stopping() && file.manner.persist != Persist::Ends {
            file.manner = file.manner.ending();
        }
        match self.go_on(io, id, state, file, done) {
            After::Look => self.look(io, id, state, work),
            After::Read(from, len) => {
                state.work = Some(work);
                // One byte more than there should be, to see whether the file grows.
                io.file(id, 0, FileOp::Read(from, 0..len + 1));
            }
            After::Answered(goes_on) => {
                if let Work::File(file) = &*work {
                    self.count_head(state, &file.head);
                }
                if self.spare.len() < Self::SPARE {
                    self.spare.push(work);
                }
                if goes_on {
                    io.receive(id, true);
                }
            }
        }
    }

    fn go_on(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        file: &mut FileWork,
        done: FileDone,
    ) -> After {
        match (file.step, done) {
            (Step::Confirm, FileDone::Stat(result)) => {
                let same = |source: &Source| Some(source.meta) == result.ok();
                file.put_key(&mut self.key);
                let is_same = self.cache.confirm(&self.key, same, io.now());
                let siblings = self.serving.precompressed && file.coding.is_none();
                file.step = match is_same {
                    true if siblings => Step::Sibling { at: 0, confirms: true },
                    true => return self.answer_again(io, id, state, file),
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
                if confirms && self.cache.confirm(file.name(), same, io.now()) {
                    return self.answer_again(io, id, state, file);
                }
                file.step = Step::Open;
                After::Look
            }
            (Step::Open, FileDone::Opened(Ok((from, meta)))) => match meta.kind {
                FileKind::Regular if meta.len <= u64::from(self.limits.cached_file) => {
                    file.step = Step::Read(meta);
                    After::Read(from, meta.len)
                }
                FileKind::Regular => self.have(io, id, state, file, meta, Have::Open(from)),
                _ if file.coding.is_some() => {
                    file.fall_back();
                    After::Look
                }
                FileKind::Directory if !file.name().ends_with(b"/") => {
                    let target = (file.name(), file.query());
                    After::Answered(self.redirect(io, id, state, target, file.manner))
                }
                _ => After::Answered(self.refuse(io, id, state, Status::NOT_FOUND, file.manner)),
            },
            (Step::Read(meta), FileDone::Read(Ok(bytes))) => {
                self.have(io, id, state, file, meta, Have::Bytes(&bytes))
            }
            (Step::List, FileDone::Listed(Ok(listing))) => {
                let about =
                    About { caching: Caching::Not, ..About::plain("text/html; charset=utf-8") };
                let page = listing::page(file.name(), listing);
                let mut ready = Ready::new(about, &page, &self.clock);
                After::Answered(give(&mut ready, io, id, state, &self.clock, file.manner))
            }
            (Step::List, FileDone::Listed(Err(error))) => {
                let status = Status::of(&error);
                After::Answered(self.refuse(io, id, state, status, file.manner))
            }
            (_, FileDone::Opened(Err(error)) | FileDone::Read(Err(error))) => {
                if file.coding.is_some() {
                    file.fall_back();
                    return After::Look;
                }
                let status = Status::of(&error);
                let is_directory = file.name().ends_with(b"/");
                if self.serving.listing && is_directory && status == Status::NOT_FOUND {
                    file.step = Step::List;
                    return After::Look;
                }
                let mild = status.0 < 500;
                if !mild {
                    error!("{}: {error}", file.paths.plain.as_path().display());
                }
                let manner = if mild { file.manner } else { file.manner.ending() };
                After::Answered(self.refuse(io, id, state, status, manner))
            }
            _ => {
                let manner = file.manner.ending();
                After::Answered(self.refuse(io, id, state, Status::INTERNAL, manner))
            }
        }
    }

    /// Answers from the cache, which was just told that what it has is good.
    fn answer_again(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        file: &mut FileWork,
    ) -> After {
        file.put_key(&mut self.key);
        let Some((ready, codings)) = self.cache.kept(&self.key) else {
            file.step = Step::Open;
            return After::Look;
        };
        let manner = file.manner;
        let mut memory = MEMORY;
        let Parsed::Request(request) = request::parse(&file.head, &mut memory, &self.limits) else {
            return After::Answered(give(ready, io, id, state, &self.clock, manner));
        };
        match choose(&request, codings).filter(|_| file.coding.is_none()) {
            None => {
                let pen = Pen { out: &mut self.scratch, clock: &self.clock };
                After::Answered(respond(ready, io, id, state, &request, manner, pen))
            }
            Some(coding) => {
                file.codings = codings;
                self.choose_coding(io, id, state, file, coding)
            }
        }
    }

    /// Gives the file in a coding that was found beside it, from memory or by opening it.
    fn choose_coding(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        file: &mut FileWork,
        coding: Coding,
    ) -> After {
        file.coding = Some(coding);
        file.put_key(&mut self.key);
        let mut memory = MEMORY;
        let request = request::parse(&file.head, &mut memory, &self.limits);
        if let (Found::Fresh(ready, _), Parsed::Request(request)) =
            (self.cache.find(&self.key, io.now()), request)
        {
            let pen = Pen { out: &mut self.scratch, clock: &self.clock };
            return After::Answered(respond(ready, io, id, state, &request, file.manner, pen));
        }
        file.step = Step::Open;
        After::Look
    }

    /// Answers with a file that is at hand now, and keeps it unless it is changing.
    fn have(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        file: &mut FileWork,
        meta: Meta,
        have: Have<'_>,
    ) -> After {
        let (wall, now) = (io.wall(), io.now());
        let about = About {
            content_type: content_type(file.paths.plain.as_path()),
            validators: Some(Validators::of(&meta, wall)),
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
        let mut memory = MEMORY;
        let request = request::parse(&file.head, &mut memory, &self.limits);
        let chosen = match &request {
            Parsed::Request(request) if file.coding.is_none() => choose(request, file.codings),
            _ => None,
        };
        let goes_on = match &request {
            _ if chosen.is_some() => false,
            Parsed::Request(request) => {
                let pen = Pen { out: &mut self.scratch, clock: &self.clock };
                respond(&mut ready, io, id, state, request, file.manner, pen)
            }
            _ => give(&mut ready, io, id, state, &self.clock, file.manner),
        };
        let rests = wall.duration_since(meta.modified()).map_or(true, |age| age > Self::RESTLESS);
        if whole && rests {
            let codings = if file.coding.is_none() { file.codings } else { Codings::default() };
            file.put_key(&mut self.key);
            let source = Source { paths: Arc::clone(&file.paths), meta, codings };
            self.cache.keep(&self.key, ready, Some(source), now);
        }
        match chosen {
            Some(coding) => self.choose_coding(io, id, state, file, coding),
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
    let is_text =
        essence.starts_with("text/") || matches!(essence, "application/json" | "image/svg+xml");
    let charset = if is_text { "; charset=utf-8" } else { "" };
    format!("{essence}{charset}")
}
