//! Reads of the application that are held back until what it sent before was taken, on every mechanism.

use crate::server;

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use evring::buffers::RxBuf;
use evring::files::{Access, File, FileOp, FileOutcome, FilePath, MAX_READ_BYTES};
use evring::sockets::BufferSizes;
use evring::{Application, Chunk, Close, Commands, Config, Cx, FileDelivery, Listener, Root, Rx};

use server::{Server, TIMEOUT, listening, side_by_side};

const PIECE: usize = MAX_READ_BYTES as usize;
/// More than the buffers of a connection take.
const PIECES: usize = 40;

/// Sends a file with inverted bytes: reads the next piece while the one before is sent.
struct Inverts {
    /// Gets the number of bytes that were queued when a piece arrived.
    queued: Sender<usize>,
}

#[derive(Default)]
struct Reading {
    file: Option<File>,
    at: u64,
}

impl Inverts {
    fn read_next(x: &mut Cx<'_, impl Commands, Reading>) {
        if let Some(file) = x.state.file.clone() {
            let end = x.state.at + PIECE as u64;
            x.io.file_op(x.id, 0, FileOp::Read(file, x.state.at..end));
            x.state.at = end;
        }
    }
}

impl Application for Inverts {
    type State = Reading;
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, Reading>, rx: &mut Rx<'_>) {
        if !rx.take().is_empty() {
            x.io.file_op(x.id, 0, FileOp::Open((Root(0), FilePath::new("file")), Access::Read));
        }
    }

    fn file(
        &mut self,
        mut x: Cx<'_, impl Commands, Reading>,
        _tag: u32,
        done: io::Result<FileOutcome>,
    ) {
        match done.unwrap() {
            FileOutcome::Opened(opened) => x.state.file = Some(opened.0),
            FileOutcome::Read(bytes) if bytes.is_empty() => x.io.close(x.id, Close::Flush),
            FileOutcome::Read(bytes) => {
                let inverted: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
                let sent = inverted.len();
                let load = x.io.send(x.id, Chunk::Received(RxBuf::from(inverted)));
                self.queued.send(load - sent).unwrap();
            }
            other => panic!("{other:?}"),
        }
        Self::read_next(&mut x);
    }
}

fn contents() -> Vec<u8> {
    crate::disk_file::contents((PIECE * PIECES) as u64)
}

fn config(root: &Path) -> Config {
    listening(1).with(|config| {
        config.roots = vec![root.to_owned()];
        config.socket_buffers = BufferSizes { send: Some(8192), receive: None };
        config.send_policy = FileDelivery::Ded.send_policy();
        config.max_read_delay = Duration::MAX;
    })
}

fn write_file() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), contents()).unwrap();
    root
}

#[test]
fn read_is_delivered_when_the_socket_has_taken_everything() {
    side_by_side(|name| {
        let root = write_file();
        let (queued, loads) = mpsc::channel();
        let server = Server::start(name, config(root.path()), move || Inverts { queued });
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        got.iter_mut().for_each(|byte| *byte = !*byte);
        assert!(got == contents(), "{name}");
        let stats = server.stop();
        assert!(stats.deferred_reads > 0, "{name}");
        assert_eq!(Vec::from_iter(loads), [0; PIECES], "{name}");
    });
}

#[test]
fn read_is_held_back_for_a_maximum_time() {
    side_by_side(|name| {
        let root = write_file();
        let config = config(root.path()).with(|c| c.max_read_delay = Duration::from_millis(10));
        let (queued, loads) = mpsc::channel();
        let server = Server::start(name, config, move || Inverts { queued });
        // This client does not read.
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        // The first pieces fit into the buffers of the connection.
        while loads.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("{name}: held back")) == 0 {}
        drop(client);
        assert!(server.stop().deferred_reads > 0, "{name}");
    });
}

#[test]
fn read_of_a_closed_connection_is_dropped() {
    side_by_side(|name| {
        let root = write_file();
        let (queued, loads) = mpsc::channel();
        let server = Server::start(name, config(root.path()), move || Inverts { queued });
        let mut broken = server.connect();
        broken.write_all(b"x").unwrap();
        broken.read_exact(&mut [0; 10]).unwrap();
        // Unread bytes make this close a reset.
        drop(broken);
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), PIECE * PIECES, "{name}");
        server.stop();
        assert!(loads.into_iter().all(|load| load == 0), "{name}");
    });
}

/// Sends each client a file, and meanwhile reads it often.
struct ReadsOften {
    delivered: Sender<()>,
}

impl ReadsOften {
    /// As many as a connection may have.
    const READS: u32 = 16;
}

impl Application for ReadsOften {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        x.io.file_op(x.id, 0, FileOp::Open((Root(0), FilePath::new("file")), Access::Read));
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        match done.unwrap() {
            FileOutcome::Opened(opened) => {
                x.io.send(x.id, Chunk::File(opened.0.clone(), 0..(PIECE * PIECES) as u64));
                for tag in 1..=Self::READS {
                    x.io.file_op(x.id, tag, FileOp::Read(opened.0.clone(), 0..100));
                }
            }
            _ => self.delivered.send(()).unwrap(),
        }
    }
}

#[test]
fn reads_beyond_the_maximum_are_not_held_back() {
    const CLIENTS: usize = 40;
    const MAX_HELD_BACK: usize = 256;
    const ALL: usize = CLIENTS * ReadsOften::READS as usize;
    side_by_side(|name| {
        let root = write_file();
        let config = config(root.path()).with(|c| c.drain_timeout = Duration::ZERO);
        let (delivered, receiver) = mpsc::channel();
        let server = Server::start(name, config, move || ReadsOften { delivered });
        // None of them reads.
        let clients: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        for at in MAX_HELD_BACK..ALL {
            assert!(receiver.recv_timeout(TIMEOUT).is_ok(), "{name}: {at} of {ALL} held back");
        }
        server.stop();
        drop(clients);
        assert_eq!(receiver.iter().count(), 0, "{name}: too few were held back");
    });
}
