//! File operations beyond what may be in flight, or that hang, on every mechanism.

use std::io::{self, ErrorKind, PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use evring::files::{Access, File, FileOp, FileOutcome, FilePath, WriteAt};
use evring::{Application, CloseReason, Commands, ConnId, Cx, Listener, Root, Rx};

use crate::server::{Server, TIMEOUT, listening, next, one_by_one, side_by_side};

/// A directory with an existing file, and one that is never cached.
fn roots() -> Vec<std::path::PathBuf> {
    vec![env!("CARGO_MANIFEST_DIR").into(), "/proc".into()]
}

const CACHED: FilePathOf = FilePathOf(Root(0), "Cargo.toml");

/// Never in the page cache, so a thread reads it.
const SLOW: FilePathOf = FilePathOf(Root(1), "version");

#[derive(Clone, Copy)]
struct FilePathOf(Root, &'static str);

impl FilePathOf {
    fn stat(self) -> FileOp {
        FileOp::Stat((self.0, FilePath::new(self.1)))
    }

    fn open(self) -> FileOp {
        FileOp::Open((self.0, FilePath::new(self.1)), Access::Read)
    }
}

/// Maximum number of file operations per connection.
const OPS_PER_CONNECTION: u32 = 16;

/// Enough connections for three times the maximum of file operations in flight.
const CONNECTIONS: usize = 48;

/// Starts file operations for all connections once they are open. The operations of the first third are
/// slow and use all slots; those of the others are fast and deferred.
struct FileOps {
    connections: Vec<ConnId>,
    file: Option<File>,
    ended: Sender<bool>,
}

impl FileOps {
    fn begin(&self, io: &mut impl Commands) {
        let Some(file) = self.file.as_ref().filter(|_| self.connections.len() == CONNECTIONS)
        else {
            return;
        };
        for (i, id) in self.connections.iter().enumerate() {
            for tag in 1..=OPS_PER_CONNECTION {
                let slow = i < CONNECTIONS / 3;
                let op = if slow { FileOp::Read(file.clone(), 0..100) } else { CACHED.stat() };
                io.file_op(*id, tag, op);
            }
        }
    }
}

impl Application for FileOps {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        self.connections.push(x.id);
        if self.connections.len() == 1 {
            x.io.file_op(x.id, 0, SLOW.open());
        }
        self.begin(x.io);
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        if let Ok(FileOutcome::Opened(opened)) = done {
            self.file = Some(opened.0);
            return self.begin(x.io);
        }
        let _ = self.ended.send(done.is_ok());
    }
}

#[test]
fn deferred_file_operations_never_started() {
    const ALL: usize = CONNECTIONS * OPS_PER_CONNECTION as usize;
    one_by_one(|name| {
        let (ended, receiver) = mpsc::channel();
        let app = move || FileOps { connections: Vec::new(), file: None, ended };
        let server = Server::start(name, listening(1).with(|c| c.roots = roots()), app);
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| server.connect()).collect();
        for at in 0..ALL {
            let succeeded = receiver.recv_timeout(TIMEOUT);
            assert_eq!(succeeded, Ok(true), "{name}: {at} of {ALL} completed");
        }
        drop(clients);
        server.stop();
        assert!(receiver.try_recv().is_err(), "{name}: more operations completed than started");
    });
}

#[test]
fn deferred_file_operations_were_unbounded() {
    const ALL: usize = CONNECTIONS * OPS_PER_CONNECTION as usize;
    const MAX_CONNECTIONS: u32 = 64;
    one_by_one(|name| {
        let (ended, receiver) = mpsc::channel();
        let app = move || FileOps { connections: Vec::new(), file: None, ended };
        let config = listening(1).with(|c| {
            c.roots = roots();
            c.max_connections = MAX_CONNECTIONS;
        });
        let server = Server::start(name, config, app);
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| server.connect()).collect();
        let outcomes = (0..ALL).map(|_| receiver.recv_timeout(TIMEOUT).unwrap());
        let refused = outcomes.filter(|succeeded| !succeeded).count();
        // A third is in flight, and one per possible connection is deferred.
        assert_eq!(refused, ALL - ALL / 3 - MAX_CONNECTIONS as usize, "{name}");
        drop(clients);
        server.stop();
    });
}

/// Starts this many file operations at once for each client, and reports their results.
struct StartsFileOps {
    file_ops: u32,
    ended: Sender<Result<(), ErrorKind>>,
}

impl Application for StartsFileOps {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        for tag in 0..self.file_ops {
            x.io.file_op(x.id, tag, CACHED.stat());
        }
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn file(&mut self, _x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        let _ = self.ended.send(done.map(drop).map_err(|error| error.kind()));
    }
}

#[test]
fn file_operations_per_connection_were_unbounded() {
    one_by_one(|name| {
        for file_ops in [40, 300] {
            let (ended, receiver) = mpsc::channel();
            let config = listening(1).with(|c| c.roots = roots());
            let server = Server::start(name, config, move || StartsFileOps { file_ops, ended });
            let client = server.connect();
            let results: Vec<_> = (0..file_ops).map(|_| next(&receiver)).collect();
            let count = |result| results.iter().filter(|r| **r == result).count() as u32;
            assert_eq!(
                (count(Ok(())), count(Err(ErrorKind::ResourceBusy))),
                (OPS_PER_CONNECTION, file_ops - OPS_PER_CONNECTION),
                "{name}: of {file_ops}"
            );
            drop(client);
            server.stop();
        }
    });
}

/// Writes to a pipe that is full when it receives bytes.
struct WritesToAFullPipe {
    pipe: Option<PipeWriter>,
    begun: Sender<()>,
    ended: Sender<CloseReason>,
}

impl Application for WritesToAFullPipe {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        if let Some(pipe) = self.pipe.take() {
            let file = File::from(OwnedFd::from(pipe));
            x.io.file_op(x.id, 0, FileOp::write(file, WriteAt::End, "x"));
            self.begun.send(()).unwrap();
        }
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.ended.send(reason).unwrap();
    }
}

/// `stop` waited until the file system answered.
#[test]
fn stop_waited_for_a_file_operation_that_hangs() {
    side_by_side(|name| {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(&[0; 64 * 1024]).unwrap();
        let ((begun, has_begun), (ended, reasons)) = (mpsc::channel(), mpsc::channel());
        let config = listening(1).with(|c| c.drain_timeout = Duration::ZERO);
        let server =
            Server::start(name, config, || WritesToAFullPipe { pipe: Some(writer), begun, ended });
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        next(&has_begun);
        // It panics if the server has not ended within a time limit.
        server.stop();
        // With nothing to send, it may have been closed before the time was over.
        let reason = next(&reasons);
        assert!(matches!(reason, CloseReason::Stopped | CloseReason::Closed), "{name}: {reason:?}");
        drop(reader);
    });
}
