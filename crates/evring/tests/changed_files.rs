//! Files that are written to while they are sent, on every mechanism.

use crate::sends_file::SendsFile;
use crate::server;

use std::fs;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant, SystemTime};

use evring::files::{Access, File, FileChanged, FileOp, FileOutcome, FilePath};
use evring::sockets::BufferSizes;
use evring::{
    Application, Chunk, Close, CloseReason, Commands, ConnId, Cx, FileDelivery, Root, Rx,
};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use server::{Server, TIMEOUT, ask, listening, side_by_side};

const FILE_BYTES: usize = 4 << 20;

/// Less than a block, and more than the buffers of a connection take.
const ONE_BLOCK: usize = 250_000;

/// Returns an application that sends a file of this length to each client, and reports why connections closed.
fn sends_file(len: usize, reasons: Sender<CloseReason>) -> impl Application {
    SendsFile {
        send: move |io: &mut dyn Commands, id, file| {
            io.send(id, Chunk::File(file, 0..len as u64));
            io.close(id, Close::Flush);
        },
        // The receiver may be gone.
        closed: move |reason| drop(reasons.send(reason)),
    }
}

/// Changes a file of `len` bytes after its first bytes have arrived, with each policy on each mechanism. Calls `check` with
/// a name, all bytes that arrived and the reason of the close.
fn change_while_sent(len: usize, change: fn(&Path), check: fn(&str, &[u8], CloseReason)) {
    for policy in FileDelivery::ALL {
        side_by_side(|name| {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join("file");
            fs::write(&path, vec![1; len]).unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
            let config = listening(1).with(|c| {
                c.roots = vec![root.path().to_owned()];
                c.socket_buffers = BufferSizes { send: Some(8192), receive: None };
                c.send_policy = policy.send_policy();
            });
            let (sender, reasons) = mpsc::channel();
            let server = Server::start(name, config, move || sends_file(len, sender));
            let mut client = server.connect();
            client.write_all(b"x").unwrap();
            let mut got = vec![0; 100];
            client.read_exact(&mut got).unwrap();
            change(&path);
            // The connection may be reset.
            let _ = client.read_to_end(&mut got);
            let reason = reasons.recv_timeout(TIMEOUT).unwrap();
            check(&format!("{name}, {policy}"), &got, reason);
            server.stop();
        });
    }
}

/// Checks that the reply was cut.
fn is_cut(name: &str, got: &[u8], reason: CloseReason) {
    assert!(matches!(reason, CloseReason::Truncated), "{name}: {reason:?}, {} bytes", got.len());
}

/// Writes `len` bytes over the file.
fn overwrite(path: &Path, len: usize) {
    let mut file = fs::File::options().write(true).open(path).unwrap();
    file.write_all(&vec![2; len]).unwrap();
}

#[test]
fn file_that_was_written_to_was_continued_with_the_new_bytes() {
    let change = |path: &Path| overwrite(path, FILE_BYTES);
    change_while_sent(FILE_BYTES, change, |name, got, reason| {
        is_cut(name, got, reason);
        assert!(got.len() < FILE_BYTES / 2, "{name}: {} bytes", got.len());
    });
}

#[test]
fn file_overwritten_by_a_longer_one_counted_as_grown() {
    change_while_sent(FILE_BYTES, |path| overwrite(path, FILE_BYTES + 1), is_cut);
    change_while_sent(FILE_BYTES, |path| fs::write(path, vec![2; FILE_BYTES + 1]).unwrap(), is_cut);
}

#[test]
fn file_of_one_block_was_not_looked_at_again() {
    change_while_sent(ONE_BLOCK, |path| overwrite(path, ONE_BLOCK), is_cut);
    change_while_sent(ONE_BLOCK, |path| fs::write(path, vec![2; ONE_BLOCK]).unwrap(), is_cut);
}

#[test]
fn file_that_is_appended_to_is_sent_to_its_promised_length() {
    let append = |path: &Path| {
        let mut file = fs::File::options().append(true).open(path).unwrap();
        file.write_all(&[2; 100_000]).unwrap();
    };
    for len in [FILE_BYTES, ONE_BLOCK] {
        change_while_sent(len, append, |name, got, reason| {
            assert!(matches!(reason, CloseReason::Closed), "{name}: {reason:?}");
            assert!(got.iter().all(|byte| *byte == 1), "{name}");
            assert!([FILE_BYTES, ONE_BLOCK].contains(&got.len()), "{name}: {} bytes", got.len());
        });
    }
}

/// Sends one open file to all clients, as a cache of open files does.
struct SendsShared(Option<File>);

impl SendsShared {
    fn send(io: &mut impl Commands, id: ConnId, file: &File) {
        io.send(id, Chunk::File(file.clone(), 0..FILE_BYTES as u64));
        io.close(id, Close::Flush);
    }
}

impl Application for SendsShared {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        match &self.0 {
            _ if rx.take().is_empty() => {}
            None => {
                x.io.file_op(x.id, 0, FileOp::Open((Root(0), FilePath::new("file")), Access::Read));
            }
            Some(file) => SendsShared::send(x.io, x.id, file),
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        let Ok(FileOutcome::Opened(opened)) = done else { panic!("{done:?}") };
        SendsShared::send(x.io, x.id, &opened.0);
        self.0 = Some(opened.0);
    }
}

/// The bytes that are noted of a file are those that this client got. One client is far ahead of the other.
#[test]
fn longer_file_with_the_bytes_of_one_client_was_continued_for_another() {
    const AHEAD: usize = FILE_BYTES * 3 / 4;
    for policy in FileDelivery::ALL {
        side_by_side(|name| {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join("file");
            fs::write(&path, vec![1; FILE_BYTES]).unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
            let config = listening(1).with(|c| {
                c.roots = vec![root.path().to_owned()];
                c.socket_buffers = BufferSizes { send: Some(8192), receive: None };
                c.send_policy = policy.send_policy();
            });
            let server = Server::start(name, config, || SendsShared(None));
            let mut ahead = server.connect();
            // The server is ahead of the client by no more than this.
            set_socket_recv_buffer_size(&ahead, 65_536).unwrap();
            ahead.write_all(b"x").unwrap();
            let mut got = vec![0; AHEAD];
            ahead.read_exact(&mut got).unwrap();
            let mut behind = server.connect();
            behind.write_all(b"x").unwrap();
            behind.read_exact(&mut [0; 100]).unwrap();
            // All bytes but those at the start, and one more.
            file.write_all_at(&vec![2; FILE_BYTES - AHEAD / 2 + 1], AHEAD as u64 / 2).unwrap();
            // Looks at the bytes at the start.
            let mut rest = Vec::new();
            let _ = behind.read_to_end(&mut rest);
            let mut got = Vec::new();
            let _ = ahead.read_to_end(&mut got);
            let received = AHEAD + got.len();
            assert!(received < FILE_BYTES, "{name}, {policy}: {received} bytes");
            server.stop();
        });
    }
}

/// A write(2) that adds bytes sets mtime first. Here more time is between the two.
#[test]
fn reply_goes_on_after_the_pause_if_bytes_were_added() {
    for len in [FILE_BYTES, ONE_BLOCK] {
        for policy in FileDelivery::ALL {
            side_by_side(|name| {
                let is_in_time = (0..20).any(|_| goes_on(name, len, policy));
                assert!(is_in_time, "{name}, {policy}: the machine is too slow");
            });
        }
    }
}

/// Adds bytes to a file of which a client receives nothing more. Returns false if this took too long.
fn goes_on(name: &'static str, len: usize, policy: FileDelivery) -> bool {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("file");
    fs::write(&path, vec![1; len]).unwrap();
    let mut file = fs::File::options().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    let config = listening(1).with(|c| {
        c.roots = vec![root.path().to_owned()];
        c.socket_buffers = BufferSizes { send: Some(8192), receive: None };
        c.send_policy = policy.send_policy();
    });
    let (sender, reasons) = mpsc::channel();
    let server = Server::start(name, config, move || sends_file(len, sender));
    let mut client = server.connect();
    client.write_all(b"x").unwrap();
    let mut got = vec![0; 100];
    client.read_exact(&mut got).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(2)).unwrap();
    let written = Instant::now();
    // Until the server pauses.
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let _ = client.read_to_end(&mut got);
    file.write_all(&[2; 100_000]).unwrap();
    let is_late = written.elapsed() > Duration::from_millis(300);
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let _ = client.read_to_end(&mut got);
    let reason = reasons.recv_timeout(TIMEOUT).unwrap();
    server.stop();
    if !is_late {
        assert!(matches!(reason, CloseReason::Closed), "{name}, {policy}: {reason:?}");
        assert!(got == vec![1; len], "{name}, {policy}: {} bytes", got.len());
    }
    !is_late
}

/// Opens the file for each client, and reads a part of it for each byte that the client sends. Replies with one word of 6 bytes.
struct ReadsParts(Vec<Range<u64>>);

impl Application for ReadsParts {
    type State = Option<File>;
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, Self::State>, rx: &mut Rx<'_>) {
        if rx.take().is_empty() {
            return;
        }
        let op = match x.state {
            None => FileOp::Open((Root(0), FilePath::new("file")), Access::Read),
            Some(file) => FileOp::Read(file.clone(), self.0.remove(0)),
        };
        x.io.file_op(x.id, 0, op);
    }

    fn file(
        &mut self,
        x: Cx<'_, impl Commands, Self::State>,
        _tag: u32,
        done: io::Result<FileOutcome>,
    ) {
        let word: &[u8] = match done {
            Ok(FileOutcome::Opened(opened)) => {
                *x.state = Some(opened.0);
                b"opened"
            }
            Ok(FileOutcome::Read(_)) => b"reads ",
            Err(error) if FileChanged::is_reason_of(&error) => b"change",
            _ => b"fails ",
        };
        x.io.send(x.id, Chunk::Static(word));
    }
}

#[test]
fn application_did_not_learn_that_the_file_has_changed() {
    application_learns_of_contents(FILE_BYTES - 1);
    application_learns_of_contents(FILE_BYTES);
}

/// Overwrites a file of which an application has read the first bytes.
fn application_learns_of_contents(new_len: usize) {
    side_by_side(|name| {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, vec![1; FILE_BYTES]).unwrap();
        let config = listening(1).with(|c| c.roots = vec![root.path().to_owned()]);
        let parts = vec![0..100, File::BLOCK_BYTES - 100..FILE_BYTES as u64];
        let server = Server::start(name, config, || ReadsParts(parts));
        let mut client = server.connect();
        ask(&mut client, "x", "opened");
        ask(&mut client, "x", "reads ");
        fs::write(&path, vec![2; new_len]).unwrap();
        ask(&mut client, "x", "change");
        drop(client);
        server.stop();
    });
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
        let server = Server::start(name, config, move || sends_file(FILE_BYTES, sender));
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
