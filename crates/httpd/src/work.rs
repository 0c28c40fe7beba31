//! Requests that have to look at the file system.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use multiplex::{
    Chunk, Commands, Conn, File, FileDone, FileKind, FileOp, FilePath, HIGH_WATER, Meta, Root,
};

use crate::cache::{Found, Source};
use crate::clock::Clock;
use crate::files::Files;
use crate::path;
use crate::reply::{self, About, Manner, Ready};
use crate::request::Persist;
use crate::state::State;
use crate::status::Status;

/// A request that waits for file work.
#[derive(Debug)]
pub(crate) struct Work {
    /// Path and query of the target; shared with the cache if that knows it.
    target: Arc<[u8]>,
    /// Length of the path; the path is what the cache knows the file by.
    path_len: usize,
    /// What the path means below the root.
    path: FilePath,
    manner: Manner,
    step: Step,
}

/// The file work that is being done.
#[derive(Clone, Copy, Debug)]
enum Step {
    Confirm,
    Open,
    Read(Meta),
}

impl Work {
    /// A reply in memory is to be confirmed.
    pub(crate) fn confirm(target: Arc<[u8]>, path: FilePath, manner: Manner) -> Self {
        Work { path_len: target.len(), target, path, manner, step: Step::Confirm }
    }

    /// A file is to be opened. Also returns the target's path.
    fn open(target: &[u8], manner: Manner) -> Result<(Self, &[u8]), Status> {
        let (name, query) = path::split(target)?;
        let path = FilePath::new(path::resolve(name)?);
        let mut target = name.to_vec();
        if let Some(query) = query {
            target.push(b'?');
            target.extend_from_slice(query);
        }
        let (target, path_len) = (target.into(), name.len());
        Ok((Work { target, path_len, path, manner, step: Step::Open }, name))
    }

    fn name(&self) -> &[u8] {
        &self.target[..self.path_len]
    }

    fn query(&self) -> Option<&[u8]> {
        self.target.get(self.path_len + 1..)
    }
}

impl Files {
    /// Most boxes kept for later use.
    const SPARE: usize = 64;

    /// A file that changed this short a time ago may change again without its time of change
    /// telling: the kernel's clock for these ticks every 1 to 10 ms.
    const RESTLESS: Duration = Duration::from_millis(20);

    /// Begins file work; meanwhile the connection does not receive.
    pub(crate) fn begin(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        work: Work,
    ) {
        let Some(root) = self.root else { return };
        io.receive(id, false);
        io.deadline(id, Some(io.now() + self.limits.stall_time));
        let work = match self.spare.pop() {
            Some(mut spare) => {
                *spare = work;
                spare
            }
            None => Box::new(work),
        };
        self.look(io, id, state, work, root);
    }

    /// Confirms or opens what a path leads to.
    fn look(
        &self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        work: Box<Work>,
        root: Root,
    ) {
        let path = work.path.clone();
        let confirm = matches!(work.step, Step::Confirm);
        io.file(id, 0, if confirm { FileOp::Stat(root, path) } else { FileOp::Open(root, path) });
        state.work = Some(work);
    }

    /// Answers a request for a target that is not in memory as it stands; true if the next
    /// request may be looked at.
    #[cold]
    pub(crate) fn answer_unknown(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        target: &[u8],
        manner: Manner,
    ) -> bool {
        let (mut work, name) = match Work::open(target, manner) {
            Ok(work) => work,
            Err(Status::NOT_FOUND) => return self.refuse(io, id, state, Status::NOT_FOUND, manner),
            Err(status) => return self.refuse(io, id, state, status, manner.ending()),
        };
        if self.root.is_none() {
            return self.answer_itself(io, id, state, work.path.as_path(), manner);
        }
        // The same file may be in memory without query or host.
        match self.cache.find(name, io.now()) {
            Found::Fresh(ready) => return give(ready, io, id, state, &self.clock, manner),
            Found::Stale(..) => work.step = Step::Confirm,
            Found::Nothing => {}
        }
        self.begin(io, id, state, work);
        false
    }

    /// Without a root there is one page.
    fn answer_itself(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        path: &Path,
        manner: Manner,
    ) -> bool {
        if path != Path::new(path::INDEX) {
            return self.refuse(io, id, state, Status::NOT_FOUND, manner);
        }
        let page = include_str!("page.html")
            .replace("{backend}", &self.backend)
            .replace("{version}", env!("CARGO_PKG_VERSION"));
        let about = About { content_type: "text/html; charset=utf-8", modified: None, len: 0 };
        let mut ready = Ready::new(about, page.as_bytes(), &self.clock);
        let goes_on = give(&mut ready, io, id, state, &self.clock, manner);
        self.cache.keep(b"/", ready, None, io.now());
        goes_on
    }

    /// Goes on with a request after file work.
    pub(crate) fn go_on(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        mut work: Box<Work>,
        done: FileDone,
    ) {
        let Some(root) = self.root else { return };
        if io.stopping() && work.manner.persist != Persist::Ends {
            work.manner = work.manner.ending();
        }
        let goes_on = match (work.step, done) {
            (Step::Confirm, FileDone::Stat(result)) => {
                match self.cache.confirm(work.name(), result.ok(), io.now()) {
                    Some(ready) => give(ready, io, id, state, &self.clock, work.manner),
                    None => {
                        work.step = Step::Open;
                        return self.look(io, id, state, work, root);
                    }
                }
            }
            (Step::Open, FileDone::Opened(Ok((file, meta)))) => match meta.kind {
                FileKind::Regular if meta.len <= u64::from(self.limits.cached_file) => {
                    work.step = Step::Read(meta);
                    state.work = Some(work);
                    // One byte more than there should be, to see whether the file grows.
                    return io.file(id, 0, FileOp::Read(file, 0..meta.len + 1));
                }
                FileKind::Regular => self.send_large(io, id, state, &work, file, meta),
                FileKind::Directory if !work.name().ends_with(b"/") => {
                    self.redirect(io, id, state, (work.name(), work.query()), work.manner)
                }
                _ => self.refuse(io, id, state, Status::NOT_FOUND, work.manner),
            },
            (Step::Read(meta), FileDone::Read(Ok(bytes))) => {
                self.send_small(io, id, state, &work, meta, &bytes)
            }
            (_, FileDone::Opened(Err(error)) | FileDone::Read(Err(error))) => {
                let status = Status::of(&error);
                let mild = status.0 < 500;
                let manner = if mild { work.manner } else { work.manner.ending() };
                self.refuse(io, id, state, status, manner)
            }
            _ => self.refuse(io, id, state, Status::INTERNAL, work.manner.ending()),
        };
        if self.spare.len() < Self::SPARE {
            self.spare.push(work);
        }
        if goes_on {
            io.receive(id, true);
        }
    }

    /// Sends a file that was read whole, and keeps it unless it is changing.
    fn send_small(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        work: &Work,
        meta: Meta,
        bytes: &[u8],
    ) -> bool {
        let wall = io.wall();
        let content_type = content_type(work.path.as_path());
        let about = About::file(&content_type, meta, wall);
        let body = &bytes[..bytes.len().min(meta.len as usize)];
        let mut ready = Ready::new(about, body, &self.clock);
        let goes_on = give(&mut ready, io, id, state, &self.clock, work.manner);
        let is_whole = meta.len == bytes.len() as u64;
        let rests = wall.duration_since(meta.modified()).map_or(true, |age| age > Self::RESTLESS);
        if is_whole && rests {
            let source = Source { path: work.path.clone(), meta };
            self.cache.keep(work.name(), ready, Some(source), io.now());
        }
        goes_on
    }

    /// Sends a file that is not kept in memory.
    fn send_large(
        &mut self,
        io: &mut impl Commands,
        id: Conn,
        state: &mut State,
        work: &Work,
        file: File,
        meta: Meta,
    ) -> bool {
        let content_type = content_type(work.path.as_path());
        let about = About::file(&content_type, meta, io.wall());
        self.scratch.clear();
        reply::head(&mut self.scratch, Status::OK, self.clock.stamp(), about);
        reply::end_head(&mut self.scratch, work.manner);
        let mut queued = io.send(id, Chunk::Copy(&self.scratch));
        if work.manner.body {
            queued = io.send(id, Chunk::File(file, 0..meta.len));
        }
        state.full = queued >= HIGH_WATER;
        work.manner.finish(io, id)
    }
}

/// Sends a reply from memory; true if the next request may be looked at.
#[inline]
pub(crate) fn give(
    ready: &mut Ready,
    io: &mut impl Commands,
    id: Conn,
    state: &mut State,
    clock: &Clock,
    manner: Manner,
) -> bool {
    state.full = ready.send(io, id, clock, manner) >= HIGH_WATER;
    manner.persist != Persist::Ends
}

/// The type of a file by its name.
fn content_type(path: &Path) -> String {
    let guess = mime_guess::from_path(path);
    let essence = guess.first_raw().unwrap_or("application/octet-stream");
    let charset = if essence.starts_with("text/") { "; charset=utf-8" } else { "" };
    format!("{essence}{charset}")
}
