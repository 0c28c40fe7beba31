//! Requests that wait for something: a file, their own body, room to send.

use std::sync::Arc;

use multiplex::{Commands, Cx, FilePath, HIGH_WATER, Meta};

use crate::body::{Body, Held};
use crate::cache::{Paths, VARIANT, variant};
use crate::call::Stream;
use crate::clock::Clock;
use crate::coding::{Coding, Codings};
use crate::conditions::Validators;
use crate::guard::Guarded;
use crate::handler::Upload;
use crate::path;
use crate::reply::{Manner, Ready};
use crate::request::Persist;
use crate::state::State;
use crate::status::Status;

/// What a request waits for.
#[derive(Debug, Default)]
pub(crate) enum Work {
    /// Nothing: its box is kept for later use.
    #[default]
    Done,
    /// A file.
    File(FileWork),
    /// The end of its body.
    Body(BodyWork),
    /// Room to send more of its reply.
    Stream(Stream),
}

/// A request that waits for its body.
#[derive(Debug)]
pub(crate) struct BodyWork {
    pub(crate) body: Body,
    /// Bytes of it that came since the deadline was set.
    pub(crate) taken: u64,
    pub(crate) manner: Manner,
    /// The request's head, if something needs it still.
    pub(crate) head: Vec<u8>,
    pub(crate) held: Held,
    pub(crate) then: Then,
}

/// What is to be done with a body.
#[derive(Debug)]
pub(crate) enum Then {
    /// Nothing; the request is answered when it is over.
    Answer,
    /// It is handed on.
    Upload(Guarded<Box<dyn Upload>>),
}

/// A request that waits for a file.
#[derive(Debug)]
pub(crate) struct FileWork {
    /// Canonical path and query of the target, or what the cache knows the file by.
    pub(crate) target: Arc<[u8]>,
    /// Length of its path.
    name_len: usize,
    /// What it means below the root.
    pub(crate) paths: Arc<Paths>,
    /// The coding of the file that is wanted now.
    pub(crate) coding: Option<Coding>,
    /// The codings that were found beside the file.
    pub(crate) codings: Codings,
    /// The request's head, if there is more to it than its target.
    pub(crate) head: Vec<u8>,
    pub(crate) manner: Manner,
    pub(crate) step: Step,
}

/// The file work that is being done.
#[derive(Clone, Debug, Default)]
pub(crate) enum Step {
    /// Asking whether what the cache has is still good.
    Confirm,
    /// Asking for the file in a coding, of those before opening it or of those that are confirmed.
    Sibling { at: usize, confirms: bool },
    #[default]
    Open,
    /// Reading a small file, which had these validators when it was opened.
    Read(Meta, Validators),
    /// There is no index: asking what is in the directory.
    List,
}

impl FileWork {
    /// A reply in memory is to be confirmed, in a coding or as it is.
    pub(crate) fn confirm(
        target: Arc<[u8]>,
        paths: Arc<Paths>,
        coding: Option<Coding>,
        manner: Manner,
    ) -> Self {
        let suffix = coding.map_or(0, |coding| VARIANT[coding as usize].len());
        FileWork {
            name_len: target.len() - suffix,
            target,
            paths,
            coding,
            codings: Codings::default(),
            head: Vec::new(),
            manner,
            step: Step::Confirm,
        }
    }

    /// A file is to be opened: that of a target's canonical path.
    pub(crate) fn open(name: &[u8], query: Option<&[u8]>, manner: Manner) -> Result<Self, Status> {
        let paths = Paths::new(&path::resolve(name)?);
        let mut target = name.to_vec();
        if let Some(query) = query {
            target.push(b'?');
            target.extend_from_slice(query);
        }
        let (target, name_len) = (target.into(), name.len());
        Ok(FileWork {
            target,
            name_len,
            paths,
            coding: None,
            codings: Codings::default(),
            head: Vec::new(),
            manner,
            step: Step::Open,
        })
    }

    /// The directory that the file is in.
    pub(crate) fn directory(&self) -> FilePath {
        let parent = self.paths.plain.as_path().parent();
        let parent = parent.filter(|path| !path.as_os_str().is_empty());
        FilePath::new(parent.unwrap_or(".".as_ref()))
    }

    /// The target's path.
    pub(crate) fn name(&self) -> &[u8] {
        &self.target[..self.name_len]
    }

    /// Writes what the cache knows the file by, in the coding that is wanted.
    pub(crate) fn put_key(&self, out: &mut Vec<u8>) {
        match self.coding {
            Some(coding) => variant(out, self.name(), coding),
            None => {
                out.clear();
                out.extend_from_slice(self.name());
            }
        }
    }

    /// Goes back to the plain file, as there is nothing in the coding.
    pub(crate) fn fall_back(&mut self) {
        if let Some(coding) = self.coding.take() {
            self.codings.remove(coding);
        }
        self.step = Step::Open;
    }

    /// The codings that lie beside the file: none beside one in a coding.
    pub(crate) fn codings_beside(&self) -> Codings {
        if self.coding.is_none() { self.codings } else { Codings::default() }
    }

    /// The query of the target.
    pub(crate) fn query(&self) -> Option<&[u8]> {
        self.target.get(self.name_len + 1..)
    }
}

/// Sends a reply from memory; true if the next request may be looked at.
#[inline]
pub(crate) fn give(
    ready: &mut Ready,
    x: &mut Cx<'_, impl Commands, State>,
    clock: &Clock,
    manner: Manner,
) -> bool {
    x.state.full = ready.send(x.io, x.id, clock, manner) >= HIGH_WATER;
    x.state.tell(Status::OK, if manner.body { ready.len() } else { 0 });
    manner.persist != Persist::Ends
}
