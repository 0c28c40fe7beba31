//! Requests that wait for something: a file, their own body, room to send.

use std::sync::Arc;

use evring::{Commands, Cx, FilePath, HIGH_WATER, Metadata};

use crate::body::{Body, BodyMemory};
use crate::cache::{Paths, VARIANT, variant};
use crate::clock::Clock;
use crate::coding::{Coding, Codings};
use crate::conditions::Validators;
use crate::dispatch::StreamedBody;
use crate::guard::Guarded;
use crate::handler::BodySink;
use crate::path;
use crate::reply::{PreparedResponse, ResponseOptions};
use crate::request::Persistence;
use crate::state::State;
use crate::status::Status;

/// What a request waits for.
#[derive(Debug, Default)]
pub(crate) enum PendingWork {
    /// Nothing: its box is kept for later use.
    #[default]
    Done,
    /// A file.
    File(FileLookup),
    /// The end of its body.
    Body(BodyReceipt),
    /// Room to send more of its reply.
    StreamedBody(StreamedBody),
}

/// A request that waits for its body.
#[derive(Debug)]
pub(crate) struct BodyReceipt {
    pub(crate) body: Body,
    /// Bytes of it that came since the deadline was set.
    pub(crate) taken: u64,
    pub(crate) options: ResponseOptions,
    /// The request's head, if something needs it still.
    pub(crate) head: Vec<u8>,
    pub(crate) held: BodyMemory,
    pub(crate) then: AfterBody,
}

/// What is to be done with a body.
#[derive(Debug)]
pub(crate) enum AfterBody {
    /// Nothing; the request is answered when it is over.
    Answer,
    /// It is handed on.
    BodySink(Guarded<Box<dyn BodySink>>),
}

/// A request that waits for a file.
#[derive(Debug)]
pub(crate) struct FileLookup {
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
    pub(crate) options: ResponseOptions,
    pub(crate) step: LookupStep,
}

/// The file work that is being done.
#[derive(Clone, Debug, Default)]
pub(crate) enum LookupStep {
    /// Asking whether what the cache has is still good.
    Confirm,
    /// Asking for the file in a coding, of those before opening it or of those that are confirmed.
    Sibling { at: usize, confirms: bool },
    #[default]
    Open,
    /// Reading a small file, which had these validators when it was opened.
    Read(Metadata, Validators),
    /// There is no index: asking what is in the directory.
    List,
}

impl FileLookup {
    /// A reply in memory is to be confirmed, in a coding or as it is.
    pub(crate) fn confirm(
        target: Arc<[u8]>,
        paths: Arc<Paths>,
        coding: Option<Coding>,
        options: ResponseOptions,
    ) -> Self {
        let suffix = coding.map_or(0, |coding| VARIANT[coding as usize].len());
        FileLookup {
            name_len: target.len() - suffix,
            target,
            paths,
            coding,
            codings: Codings::default(),
            head: Vec::new(),
            options,
            step: LookupStep::Confirm,
        }
    }

    /// A file is to be opened: that of a target's canonical path.
    pub(crate) fn open(
        name: &[u8],
        query: Option<&[u8]>,
        options: ResponseOptions,
    ) -> Result<Self, Status> {
        let paths = Paths::new(&path::resolve(name)?);
        let mut target = name.to_vec();
        if let Some(query) = query {
            target.push(b'?');
            target.extend_from_slice(query);
        }
        let (target, name_len) = (target.into(), name.len());
        Ok(FileLookup {
            target,
            name_len,
            paths,
            coding: None,
            codings: Codings::default(),
            head: Vec::new(),
            options,
            step: LookupStep::Open,
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
        self.step = LookupStep::Open;
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
pub(crate) fn send_prepared(
    prepared: &mut PreparedResponse,
    x: &mut Cx<'_, impl Commands, State>,
    clock: &Clock,
    options: ResponseOptions,
) -> bool {
    x.state.full = prepared.send(x.io, x.id, clock, options) >= HIGH_WATER;
    x.state.set_last_response(Status::OK, if options.body { prepared.len() } else { 0 });
    options.persistence != Persistence::Close
}
