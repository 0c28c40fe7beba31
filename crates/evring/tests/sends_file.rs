//! An application that sends a file to each client.

use std::io;

use evring::files::{Access, File, FileOp, FileOutcome, FilePath};
use evring::{Application, Chunk, Close, CloseReason, Commands, ConnId, Cx, Root, Rx};

/// Opens `file` for each client that sends something.
pub(crate) struct SendsFile<S, C> {
    /// Sends the file.
    pub(crate) send: S,
    /// Gets the reason why a connection closed.
    pub(crate) closed: C,
}

/// Returns an application that sends all of a file, after which the connection ends.
pub(crate) fn sends_whole_file(
    len: u64,
    closed: impl FnMut(CloseReason),
) -> SendsFile<impl FnMut(&mut dyn Commands, ConnId, File), impl FnMut(CloseReason)> {
    let send = move |io: &mut dyn Commands, id, file| {
        io.send(id, Chunk::File(file, 0..len));
        io.close(id, Close::Flush);
    };
    SendsFile { send, closed }
}

impl<S, C> Application for SendsFile<S, C>
where
    S: FnMut(&mut dyn Commands, ConnId, File),
    C: FnMut(CloseReason),
{
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if !rx.take().is_empty() {
            x.io.file_op(x.id, 0, FileOp::Open((Root(0), FilePath::new("file")), Access::Read));
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        match done {
            Ok(FileOutcome::Opened(opened)) => (self.send)(x.io, x.id, opened.0),
            _ => x.io.close(x.id, Close::Reset),
        }
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        (self.closed)(reason);
    }
}
