//! Files that are written to while they are sent, on every mechanism.

use crate::server;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, SystemTime};

use evring::{
    Access, Application, BufferSizes, Chunk, Close, CloseReason, Commands, Cx, FileDelivery,
    FileOp, FileOutcome, FilePath, Root, Rx,
};
use server::{Server, TIMEOUT, listening, side_by_side};

const FILE_BYTES: usize = 4 << 20;

/// Sends a file to each client, and reports why connections close.
struct SendsFile(Sender<CloseReason>);

impl Application for SendsFile {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if !rx.take().is_empty() {
            x.io.file_op(x.id, 0, FileOp::Open((Root(0), FilePath::new("file")), Access::Read));
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        let Ok(FileOutcome::Opened(opened)) = done else { panic!("{done:?}") };
        x.io.send(x.id, Chunk::File(opened.0, 0..FILE_BYTES as u64));
        x.io.close(x.id, Close::Flush);
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        // The receiver may be gone.
        let _ = self.0.send(reason);
    }
}

#[test]
fn file_that_was_written_to_was_continued_with_the_new_bytes() {
    for policy in FileDelivery::ALL {
        side_by_side(|name| {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join("file");
            fs::write(&path, vec![1; FILE_BYTES]).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
            let config = listening(1).with(|c| {
                c.roots = vec![root.path().to_owned()];
                c.socket_buffers = BufferSizes { send: Some(8192), receive: None };
                c.send_policy = policy.send_policy();
            });
            let (sender, reasons) = mpsc::channel();
            let server = Server::start(name, config, move || SendsFile(sender));
            let mut client = server.connect();
            client.write_all(b"x").unwrap();
            client.read_exact(&mut [0; 100]).unwrap();
            (&file).write_all(&[2; FILE_BYTES]).unwrap();
            let mut got = Vec::new();
            // The connection may be reset.
            let _ = client.read_to_end(&mut got);
            assert!(got.len() < FILE_BYTES / 2, "{name}, {policy}: {} bytes", got.len());
            let reason = reasons.recv_timeout(TIMEOUT).unwrap();
            assert!(matches!(reason, CloseReason::Truncated), "{name}, {policy}: {reason:?}");
            server.stop();
        });
    }
}

#[test]
fn file_whose_name_another_one_takes_is_sent_to_its_end() {
    side_by_side(|name| {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, vec![1; FILE_BYTES]).unwrap();
        let config = listening(1).with(|c| {
            c.roots = vec![root.path().to_owned()];
            c.socket_buffers = BufferSizes { send: Some(8192), receive: None };
        });
        let (sender, _reasons) = mpsc::channel();
        let server = Server::start(name, config, move || SendsFile(sender));
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0; 100]).unwrap();
        fs::write(root.path().join("other"), "other").unwrap();
        fs::rename(root.path().join("other"), &path).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got == vec![1; FILE_BYTES - 100], "{name}: {} bytes", got.len());
        server.stop();
    });
}
