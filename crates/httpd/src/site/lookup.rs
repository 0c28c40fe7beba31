//! The search for a file: a request that waits for file operations.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use evring::files::{File, FilePath, Metadata};

use crate::decision::coding::{Coding, Codings};
use crate::decision::conditions::Validators;
use crate::decision::options::ResponseOptions;
use crate::message::path;
use crate::message::status::Status;
use crate::site::cache::{Paths, put_key, target_len};
#[cfg(feature = "compression")]
use crate::site::reservation::Reservation;

/// Suffix of the cache keys of fallback pages; no target contains a NUL.
const FALLBACK_SUFFIX: &[u8] = b"\0fb";

/// A request that waits for a file operation.
#[derive(Debug)]
pub(crate) struct FileLookup {
    /// Canonical path of the target, or the file's key in the cache.
    pub(crate) target: Arc<[u8]>,
    /// Length of the path in `target`, in bytes.
    name_len: usize,
    /// The file's paths below the root.
    pub(crate) paths: Arc<Paths>,
    /// The coding that is being looked up.
    pub(crate) coding: Option<Coding>,
    /// The codings in which the file can be sent.
    pub(crate) codings: Codings,
    /// Whether the plain file is sent to a client that would accept a coding.
    pub(crate) only_plain: bool,
    /// Whether this is the fallback page, instead of a file that does not exist.
    pub(crate) is_fallback: bool,
    pub(crate) options: ResponseOptions,
    pub(crate) step: LookupStep,
}

/// An open file with its metadata, and the time of the open.
pub(crate) type OpenedAt = (Box<(File, Metadata)>, SystemTime);

#[derive(Debug, Default)]
pub(crate) enum LookupStep {
    /// Stats the file, to revalidate a cached response.
    Revalidate,
    /// Opens the plain file. If there is one, its coded siblings are looked for.
    Find,
    /// Stats the file in coding number `at`, to send the file that is open or, without one, to revalidate a cached
    /// response.
    Sibling {
        at: usize,
        opened: Option<OpenedAt>,
    },
    /// Opens the file, whose codings are known.
    #[default]
    Open,
    /// Reads a small file, with the validators of when it was opened.
    Read(Metadata, Validators),
    List,
    /// Reads a file in pieces, to be compressed.
    #[cfg(feature = "compression")]
    Collect(Box<Collection>),
    /// Waits for the threads that compress the file.
    #[cfg(feature = "compression")]
    Compress,
}

/// A file that is being read, to be compressed.
#[cfg(feature = "compression")]
#[derive(Debug)]
pub(crate) struct Collection {
    pub(crate) from: File,
    pub(crate) meta: Metadata,
    pub(crate) validators: Validators,
    /// The bytes read so far.
    pub(crate) bytes: Vec<u8>,
    pub(crate) place: Reservation,
}

impl FileLookup {
    /// Starts with revalidating a cached response, in a coding or plain.
    pub(crate) fn revalidate(
        target: Arc<[u8]>,
        paths: Arc<Paths>,
        coding: Option<Coding>,
        options: ResponseOptions,
    ) -> Self {
        let name_len = target_len(&target, options.host, coding);
        let step = LookupStep::Revalidate;
        FileLookup { coding, step, ..Self::new(target, name_len, paths, options) }
    }

    /// Starts with opening the file of a canonical path.
    ///
    /// # Errors
    /// Those of [`path::resolve`].
    pub(crate) fn open(name: &[u8], options: ResponseOptions) -> Result<Self, Status> {
        let paths = Paths::new(&path::resolve(name)?);
        Ok(Self::new(name.into(), name.len(), paths, options))
    }

    /// Returns a lookup of the same file, for what becomes of it later.
    #[cfg(feature = "compression")]
    pub(crate) fn again(&self) -> Self {
        let FileLookup { coding, codings, is_fallback, options, name_len, .. } = *self;
        let (target, paths) = (Arc::clone(&self.target), Arc::clone(&self.paths));
        FileLookup { coding, codings, is_fallback, ..Self::new(target, name_len, paths, options) }
    }

    fn new(
        target: Arc<[u8]>,
        name_len: usize,
        paths: Arc<Paths>,
        options: ResponseOptions,
    ) -> Self {
        FileLookup {
            target,
            name_len,
            paths,
            coding: None,
            codings: Codings::default(),
            only_plain: false,
            is_fallback: false,
            options,
            step: LookupStep::Find,
        }
    }

    /// Returns the path of the file to open: the precompressed one in the current coding, or the plain one.
    pub(crate) fn path(&self) -> FilePath {
        let coding = self.coding.filter(|coding| !self.codings.is_on_the_fly(*coding));
        self.paths.of(coding)
    }

    /// Returns the path of the directory that contains the file.
    pub(crate) fn directory(&self) -> FilePath {
        let parent = self.paths.plain.as_path().parent();
        let parent = parent.filter(|path| !path.as_os_str().is_empty());
        FilePath::new(parent.unwrap_or(".".as_ref()))
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.target[..self.name_len]
    }

    /// Writes the file's key in the cache, in the current coding. That of a fallback page is no target: a route may have
    /// the page's path.
    pub(crate) fn put_key(&self, out: &mut Vec<u8>) {
        put_key(out, self.name(), self.options.host, self.coding);
        if self.is_fallback {
            out.extend_from_slice(FALLBACK_SUFFIX);
        }
    }

    /// Falls back to the plain file, as there is none in the coding.
    pub(crate) fn fall_back(&mut self) {
        if let Some(coding) = self.coding.take() {
            self.codings.remove(coding);
        }
        self.step = LookupStep::Open;
    }

    /// Returns the codings of the plain file; a coded file has none.
    pub(crate) fn codings_beside(&self) -> Codings {
        if self.coding.is_none() { self.codings } else { Codings::default() }
    }
}

/// What follows a step of a lookup.
pub(crate) enum LookupResult {
    /// The next step's operation is to be submitted.
    NextStep,
    /// A range of bytes of a file is to be read.
    Read(File, Range<u64>),
    /// The threads that compress files report the next step.
    #[cfg(feature = "compression")]
    Waits,
    /// A response was sent; true if the next request may be processed.
    Answered(bool),
}

/// The content of a response.
pub(crate) enum FileContent<'a> {
    Bytes(&'a [u8]),
    /// Bytes of a file that has changed while it was read.
    Unstable(&'a [u8]),
    /// An open file of this length.
    Open(File, u64),
}
