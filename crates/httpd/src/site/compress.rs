//! Requests for files that are compressed on the fly.

use std::io::{self, ErrorKind};

use evring::files::{File, FileChanged, Metadata};
use evring::{Commands, Cx, Others};
use tracing::error;

use crate::decision::coding::Coding;
use crate::decision::conditions::{PreconditionResult, Validators};
use crate::site::compressor::{Compressed, CompressedContent, Origin};
use crate::site::context::Context;
use crate::site::files::Files;
use crate::site::lookup::{Collection, FileContent, FileLookup, LookupResult, LookupStep};
use crate::site::lookup_steps::StepContext;
use crate::site::state::{PendingWork, State};

/// Bytes that one operation reads.
const READ_BYTES: u64 = evring::files::MAX_READ_BYTES as u64;

/// Returns whether a read failed because of the file, not because it changes, or too many operations wait.
fn is_of_the_file(error: &io::Error) -> bool {
    !FileChanged::is_reason_of(error) && error.kind() != ErrorKind::ResourceBusy
}

impl FileLookup {
    /// Returns the coding in which the server compresses the file for this request.
    pub(crate) fn compresses(&self) -> Option<Coding> {
        self.coding.filter(|coding| self.codings.is_on_the_fly(*coding))
    }

    /// Sends the plain file instead of the compressed one, in the next step.
    fn send_plain(&mut self) -> LookupResult {
        (self.coding, self.only_plain, self.step) = (None, true, LookupStep::Open);
        LookupResult::NextStep
    }
}

impl<C: Commands> StepContext<'_, '_, C> {
    /// Starts to compress a file that was just opened, unless the response to a conditional request has no content.
    pub(super) fn begin_compression(&mut self, from: File, meta: Metadata) -> LookupResult {
        let StepContext { files, context, x, file, request } = self;
        let validators = Validators::of(&meta, file.coding, x.io.wall_time()).of_compressed();
        if validators.evaluate(request) != PreconditionResult::Proceed {
            let mut prepared = files.prepare(context, file, validators, FileContent::Bytes(b""));
            let proceed = context.send_planned(x, &mut prepared, request, file.options);
            return LookupResult::Answered(proceed);
        }
        file.put_key(&mut files.key);
        let fits = meta.len <= u64::from(files.options(file).compression.max_bytes);
        let compressor = files.compressor.as_ref().filter(|_| fits);
        let place = compressor.and_then(|compressor| compressor.reserve(&files.key));
        let Some(place) = place else {
            context.metrics.own().uncompressed_files.add(1);
            return file.send_plain();
        };
        let bytes = Vec::with_capacity(meta.len as usize);
        let next = LookupResult::Read(from.clone(), 0..meta.len.min(READ_BYTES));
        file.step =
            LookupStep::Collect(Box::new(Collection { from, meta, validators, bytes, place }));
        next
    }

    /// Takes bytes of a file to be compressed. When it has all, the threads compress them.
    pub(super) fn collect(&mut self, mut read: Box<Collection>, bytes: &[u8]) -> LookupResult {
        let StepContext { files, context, x, file, .. } = self;
        read.bytes.extend_from_slice(bytes);
        let (len, at) = (read.meta.len, read.bytes.len() as u64);
        if !bytes.is_empty() && at < len {
            let next = LookupResult::Read(read.from.clone(), at..len.min(at + READ_BYTES));
            file.step = LookupStep::Collect(read);
            return next;
        }
        let Collection { meta, validators, bytes, place, .. } = *read;
        let max_cached = context.limits.max_cached_file_bytes as usize;
        let levels = files.options(file).compression.levels;
        let coding = file.coding.and_then(|coding| Some((coding, levels.get(coding)?)));
        let is_queued = match (&mut files.compressor, coding) {
            (Some(compressor), Some(coding)) if at == len => {
                let origin = Origin { file: file.again(), meta, validators };
                compressor.compress((x.id, origin), place, coding, bytes, max_cached)
            }
            // The file was truncated meanwhile.
            _ => false,
        };
        if !is_queued {
            context.metrics.own().uncompressed_files.add(1);
            return file.send_plain();
        }
        context.metrics.own().compressed_files.add(1);
        file.step = LookupStep::Compress;
        LookupResult::Waits
    }

    /// Sends the plain file, as the read of one that is to be compressed has failed.
    pub(super) fn collect_failed(&mut self, error: &io::Error) -> LookupResult {
        if is_of_the_file(error) {
            error!("cannot read {:?} to compress it: {error}", self.file.paths.plain.as_path());
        }
        self.context.metrics.own().uncompressed_files.add(1);
        self.file.send_plain()
    }

    /// Answers a request whose file was compressed, or has to be sent plain.
    fn answer_with_compressed(
        &mut self,
        meta: Metadata,
        validators: Validators,
        content: Option<CompressedContent>,
    ) -> LookupResult {
        match content {
            Some(CompressedContent::Bytes(bytes)) => {
                self.answer_with_file(meta, validators, FileContent::Bytes(&bytes))
            }
            Some(CompressedContent::Memfd(fd, len, charge)) => {
                match self.files.reserve_slot(self.context, File::from(fd).with(charge)) {
                    Some(from) => {
                        self.answer_with_file(meta, validators, FileContent::Open(from, len))
                    }
                    None => self.file.send_plain(),
                }
            }
            None => self.file.send_plain(),
        }
    }
}

impl Files {
    /// Adds the codings in which a plain file of `len` bytes is compressed.
    pub(crate) fn add_codings(&self, file: &mut FileLookup, len: u64) {
        if self.compressor.is_some() && file.coding.is_none() {
            let options = self.options(file);
            let path = (file.paths.plain.as_path(), &options.mime_types[..]);
            options.compression.add_codings(path, len, &mut file.codings);
        }
    }

    /// Answers the requests whose files were compressed.
    pub(crate) fn woken(
        &mut self,
        context: &mut Context,
        io: &mut impl Commands,
        mut all: Others<'_, State>,
    ) {
        let Some(compressor) = &mut self.compressor else { return };
        for (Compressed { id, key, content }, origin) in compressor.take_results() {
            match all.get(io, id) {
                Some(state) if self.awaits(state, &key) => {
                    let mut x = Cx { io, id, state, others: Others::none() };
                    self.compressed(context, &mut x, origin, content);
                }
                // The client has gone, or has got the plain file. The next one gets this.
                _ => self.keep_compressed(context, origin, content, io),
            }
        }
    }

    /// Returns whether a connection waits for the compressed file with this key.
    fn awaits(&mut self, state: &State, key: &[u8]) -> bool {
        match state.work.as_deref() {
            Some(PendingWork::File(file, _)) if matches!(file.step, LookupStep::Compress) => {
                file.put_key(&mut self.key);
                self.key == key
            }
            _ => false,
        }
    }

    /// Caches a compressed file.
    fn keep_compressed(
        &mut self,
        context: &Context,
        Origin { file, meta, validators }: Origin,
        content: Option<CompressedContent>,
        io: &mut impl Commands,
    ) {
        if !validators.is_stable {
            return;
        }
        let is_dated = validators.is_dated;
        let prepared = match content {
            Some(CompressedContent::Bytes(bytes)) => {
                self.prepare(context, &file, validators, FileContent::Bytes(&bytes))
            }
            Some(CompressedContent::Memfd(fd, len, charge)) => {
                let from = self.reserve_slot(context, File::from(fd).with(charge));
                let Some(from) = from else { return };
                self.prepare(context, &file, validators, FileContent::Open(from, len))
            }
            None => return,
        };
        self.keep(&file, prepared, (meta, is_dated), io);
    }

    /// Takes the work of a connection that waits for a compressed file.
    fn take_waiting(x: &mut Cx<'_, impl Commands, State>) -> Option<Box<PendingWork>> {
        let waits = |work: &mut Box<PendingWork>| matches!(&**work, PendingWork::File(file, _) if matches!(file.step, LookupStep::Compress));
        x.state.work.take_if(waits)
    }

    /// Sends the plain file to a connection whose file was not compressed in time. Returns false if it waits for
    /// something else.
    pub(crate) fn compression_expired(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
    ) -> bool {
        let Some(mut work) = Self::take_waiting(x) else { return false };
        let PendingWork::File(file, _) = &mut *work else { return false };
        context.metrics.own().uncompressed_files.add(1);
        let result = file.send_plain();
        x.io.set_deadline(x.id, Some(x.io.now() + context.limits.progress_interval));
        self.continue_lookup(context, x, work, result);
        true
    }

    /// Continues a request whose file was compressed, or has to be sent plain.
    fn compressed(
        &mut self,
        context: &mut Context,
        x: &mut Cx<'_, impl Commands, State>,
        Origin { meta, validators, .. }: Origin,
        content: Option<CompressedContent>,
    ) {
        let Some(mut work) = Self::take_waiting(x) else { return };
        let PendingWork::File(file, head) = &mut *work else { return };
        file.options = file.options.ending_if(x.io.is_stopping() && file.options.stays_open());
        let request = head.request();
        let mut step = StepContext { files: self, context, x, file, request: &request };
        let result = step.answer_with_compressed(meta, validators, content);
        self.continue_lookup(context, x, work, result);
    }
}

#[cfg(test)]
#[path = "compress_tests.rs"]
mod tests;
