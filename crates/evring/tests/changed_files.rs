//! Files that are written to while they are sent, on every mechanism.

use crate::sends_file::SendsFile;
use crate::server;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, SystemTime};

use evring::sockets::BufferSizes;
use evring::{Application, Chunk, Close, CloseReason, Commands, FileDelivery};
use server::{Server, TIMEOUT, listening, side_by_side};

const FILE_BYTES: usize = 4 << 20;

/// Returns an application that sends the file to each client, and reports why connections closed.
fn sends_file(reasons: Sender<CloseReason>) -> impl Application {
    SendsFile {
        send: |io: &mut dyn Commands, id, file| {
            io.send(id, Chunk::File(file, 0..FILE_BYTES as u64));
            io.close(id, Close::Flush);
        },
        // The receiver may be gone.
        closed: move |reason| drop(reasons.send(reason)),
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
            let server = Server::start(name, config, move || sends_file(sender));
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
        let server = Server::start(name, config, move || sends_file(sender));
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
