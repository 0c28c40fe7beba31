//! Files that are written to while they are sent, on every mechanism.

use crate::sends_file::sends_whole_file;
use crate::server;

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use evring::__private::Usage;
use evring::files::{Access, File, FileChanged, FileOp, FileOutcome, FilePath, MAX_READ_BYTES};
use evring::sockets::BufferSizes;
use evring::{
    Application, Chunk, Close, CloseReason, Commands, Config, ConnId, Cx, FileDelivery, Root, Rx,
};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use server::{Server, TIMEOUT, ask, in_time, listening, one_by_one, side_by_side};

const FILE_BYTES: usize = 4 << 20;

/// Less than a block, and more than the buffers of a connection take.
const ONE_BLOCK: usize = 250_000;

/// Less than the longest piece, and of several blocks.
const ONE_PIECE: usize = 900_000;

/// A server whose root has `file`, in a directory that is removed with it.
struct Served {
    server: Server,
    /// What the server used after its last step.
    used: Arc<Mutex<Usage>>,
    path: PathBuf,
    _root: tempfile::TempDir,
}

impl Served {
    /// Starts an application on a file of `len` bytes, all 1, that was written long ago.
    fn start<A: Application + 'static>(
        name: &'static str,
        len: usize,
        change: impl FnOnce(&mut Config),
        app: impl FnOnce() -> A + Send + 'static,
    ) -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, vec![1; len]).unwrap();
        set_modified(&path, 1);
        let config = listening(1).with(|c| {
            c.roots = vec![root.path().to_owned()];
            c.socket_buffers = BufferSizes { send: Some(8192), receive: None };
            change(c);
        });
        let used = Arc::new(Mutex::new(Usage::default()));
        let sees = Arc::clone(&used);
        let inspect = move |usage: &Usage| *sees.lock().unwrap() = *usage;
        let server = Server::start_inspected(name, config, app, inspect);
        Served { server, used, path, _root: root }
    }

    /// Starts a server that sends the file with this policy.
    fn sends(
        name: &'static str,
        len: usize,
        policy: FileDelivery,
    ) -> (Self, Receiver<CloseReason>) {
        let (sender, reasons) = mpsc::channel();
        let send = |c: &mut Config| c.send_policy = policy.send_policy();
        (Served::start(name, len, send, move || sends_file(len, sender)), reasons)
    }

    /// Connects a client that has received the first bytes of the file.
    fn begin(&self) -> (TcpStream, Vec<u8>) {
        let mut client = self.server.connect();
        client.write_all(b"x").unwrap();
        let mut got = vec![0; 100];
        client.read_exact(&mut got).unwrap();
        (client, got)
    }

    /// Waits until the server uses as much. Returns false if it does not in this time.
    fn wait_until(&self, time: Duration, is_used: impl Fn(&Usage) -> bool) -> bool {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let used = *self.used.lock().unwrap();
            if is_used(&used) {
                return true;
            }
            thread::yield_now();
        }
        false
    }
}

/// Sets the time at which a file was written to.
fn set_modified(path: &Path, secs: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(secs)).unwrap();
}

/// Adds bytes to a file.
fn append(path: &Path) {
    let mut file = fs::File::options().append(true).open(path).unwrap();
    file.write_all(&[2; 100_000]).unwrap();
}

/// Returns an application that sends a file of this length to each client, and reports why connections closed.
fn sends_file(len: usize, reasons: Sender<CloseReason>) -> impl Application {
    // The receiver may be gone.
    sends_whole_file(len as u64, move |reason| drop(reasons.send(reason)))
}

/// Changes a file of `len` bytes after its first bytes have arrived, with each policy on each mechanism. Calls `check` with
/// a name, all bytes that arrived and the reason of the close.
fn change_while_sent(
    len: usize,
    change: fn(&Path),
    check: impl Fn(&str, &[u8], CloseReason) + Sync,
) {
    for policy in FileDelivery::ALL {
        side_by_side(|name| {
            let (served, reasons) = Served::sends(name, len, policy);
            let (mut client, mut got) = served.begin();
            change(&served.path);
            // The connection may be reset.
            let _ = client.read_to_end(&mut got);
            let reason = reasons.recv_timeout(TIMEOUT).unwrap();
            check(&format!("{name}, {policy}"), &got, reason);
            served.server.stop();
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

/// The bytes that were noted were at the end of a piece, of which the socket had taken a part.
#[test]
fn beginning_that_was_overwritten_was_not_noticed_as_the_file_has_grown() {
    let change = |path: &Path| {
        overwrite(path, 512 * 1024);
        append(path);
    };
    change_while_sent(FILE_BYTES, change, is_cut);
}

#[test]
fn file_of_one_block_was_not_looked_at_again() {
    change_while_sent(ONE_BLOCK, |path| overwrite(path, ONE_BLOCK), is_cut);
    change_while_sent(ONE_BLOCK, |path| fs::write(path, vec![2; ONE_BLOCK]).unwrap(), is_cut);
}

#[test]
fn file_that_is_appended_to_is_sent_to_its_promised_length() {
    for len in [FILE_BYTES, ONE_PIECE, ONE_BLOCK] {
        change_while_sent(len, append, |name, got, reason| {
            assert!(matches!(reason, CloseReason::Closed), "{name}: {reason:?}");
            assert!(got.iter().all(|byte| *byte == 1), "{name}");
            assert_eq!(got.len(), len, "{name}");
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
            let send = |c: &mut Config| c.send_policy = policy.send_policy();
            let served = Served::start(name, FILE_BYTES, send, || SendsShared(None));
            let mut ahead = served.server.connect();
            // The server is ahead of the client by no more than this.
            set_socket_recv_buffer_size(&ahead, 65_536).unwrap();
            ahead.write_all(b"x").unwrap();
            let mut got = vec![0; AHEAD];
            ahead.read_exact(&mut got).unwrap();
            let (mut behind, _) = served.begin();
            let file = fs::File::options().write(true).open(&served.path).unwrap();
            // All bytes but those at the start, and one more.
            file.write_all_at(&vec![2; FILE_BYTES - AHEAD / 2 + 1], AHEAD as u64 / 2).unwrap();
            // Looks at the bytes at the start.
            let mut rest = Vec::new();
            let _ = behind.read_to_end(&mut rest);
            let mut got = Vec::new();
            let _ = ahead.read_to_end(&mut got);
            let received = AHEAD + got.len();
            assert!(received < FILE_BYTES, "{name}, {policy}: {received} bytes");
            served.server.stop();
        });
    }
}

/// A write(2) that adds bytes sets mtime first. Here more time is between the two.
#[test]
fn reply_is_resumed_after_the_pause_if_bytes_were_added() {
    for len in [FILE_BYTES, ONE_PIECE, ONE_BLOCK] {
        for policy in FileDelivery::ALL {
            side_by_side(|name| {
                in_time(name, || is_resumed(name, len, policy));
            });
        }
    }
}

/// Adds bytes to a file of which a client receives nothing more. Returns false if this took too long.
fn is_resumed(name: &'static str, len: usize, policy: FileDelivery) -> bool {
    let (served, reasons) = Served::sends(name, len, policy);
    let (mut client, mut got) = served.begin();
    set_modified(&served.path, 2);
    let written = Instant::now();
    // Until the server pauses.
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let _ = client.read_to_end(&mut got);
    append(&served.path);
    let is_late = written.elapsed() > Duration::from_millis(300);
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let _ = client.read_to_end(&mut got);
    let reason = reasons.recv_timeout(TIMEOUT).unwrap();
    served.server.stop();
    if !is_late {
        assert!(matches!(reason, CloseReason::Closed), "{name}, {policy}: {reason:?}");
        assert!(got == vec![1; len], "{name}, {policy}: {} bytes", got.len());
    }
    !is_late
}

/// Does what each byte of a client commands, and replies with a word of 6 bytes. Reports the commands that are done, and why
/// connections closed.
struct Commanded {
    done: Sender<u8>,
    reasons: Sender<CloseReason>,
}

impl Commanded {
    /// Starts a server whose root has `other`, too.
    fn start(
        name: &'static str,
        change: impl FnOnce(&mut Config),
    ) -> (Served, Receiver<u8>, Receiver<CloseReason>) {
        let ((done, commands), (closed, reasons)) = (mpsc::channel(), mpsc::channel());
        let app = move || Commanded { done, reasons: closed };
        let served = Served::start(name, FILE_BYTES, change, app);
        fs::write(served.path.with_file_name("other"), vec![3; FILE_BYTES]).unwrap();
        (served, commands, reasons)
    }
}

#[derive(Default)]
struct Files {
    file: Option<File>,
    other: Option<File>,
}

impl Application for Commanded {
    type State = Files;
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, Files>, rx: &mut Rx<'_>) {
        for command in &*rx.take() {
            let (file, other) = (x.state.file.clone(), x.state.other.clone());
            let path = |name| (Root(0), FilePath::new(name));
            let op = match command {
                b'o' => FileOp::Open(path("file"), Access::Read),
                b'O' => FileOp::Open(path("other"), Access::Read),
                b'1' => FileOp::Read(file.unwrap(), 0..100),
                // A part that enters a block, of more bytes than are read at a time.
                b'2' => FileOp::Read(file.unwrap(), File::BLOCK_BYTES - 100..FILE_BYTES as u64),
                b'r' => FileOp::Read(other.unwrap(), 0..100),
                b'i' => FileOp::Stat(path("other")),
                _ => {
                    x.io.send(x.id, Chunk::File(file.unwrap(), 0..FILE_BYTES as u64));
                    continue;
                }
            };
            x.io.file_op(x.id, u32::from(*command), op);
        }
        if rx.eof() {
            x.io.close(x.id, Close::Reset);
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, Files>, tag: u32, done: io::Result<FileOutcome>) {
        let word: &[u8] = match done {
            Ok(FileOutcome::Opened(opened)) if tag == u32::from(b'o') => {
                x.state.file = Some(opened.0);
                b"opened"
            }
            Ok(FileOutcome::Opened(opened)) => {
                x.state.other = Some(opened.0);
                b"opened"
            }
            Ok(FileOutcome::Read(bytes)) if bytes.len() > MAX_READ_BYTES as usize => b"long  ",
            Ok(FileOutcome::Read(_)) => b"reads ",
            Ok(FileOutcome::Stat(_)) => b"stat  ",
            Err(error) if FileChanged::is_reason_of(&error) => b"change",
            _ => b"fails ",
        };
        x.io.send(x.id, Chunk::Static(word));
        // The test may need neither.
        let _ = self.done.send(tag as u8);
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, Files>, reason: CloseReason) {
        let _ = self.reasons.send(reason);
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
        let (served, ..) = Commanded::start(name, |_| {});
        let mut client = served.server.connect();
        ask(&mut client, "o", "opened");
        ask(&mut client, "1", "reads ");
        fs::write(&served.path, vec![2; new_len]).unwrap();
        ask(&mut client, "2", "change");
        drop(client);
        served.server.stop();
    });
}

/// Less than the time until a read is repeated.
const SOON: Duration = Duration::from_millis(300);

/// Has the server read a second part of the file, which seems to be written to, and waits until that is to be repeated.
/// Returns the client and the time before, or `None` if this took too long.
fn read_while_written(served: &Served, reads: usize) -> Option<(TcpStream, Instant)> {
    let mut client = served.server.connect();
    ask(&mut client, "O", "opened");
    ask(&mut client, "o", "opened");
    ask(&mut client, "1", "reads ");
    let modified = fs::metadata(&served.path).unwrap().modified().unwrap();
    let secs = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    set_modified(&served.path, secs + 1);
    let before = Instant::now();
    client.write_all(&vec![b'2'; reads]).unwrap();
    let waits = served.wait_until(SOON, |usage| usage.deferred_file_ops == reads);
    waits.then_some((client, before))
}

/// Adds bytes to the file before the read is repeated. Returns false if this took too long.
fn append_in_time(served: &Served, mut client: TcpStream, before: Instant) -> bool {
    append(&served.path);
    let is_in_time = before.elapsed() < SOON;
    if is_in_time {
        ask(&mut client, "", "reads ");
    }
    is_in_time
}

#[test]
fn repeated_read_was_of_any_length() {
    one_by_one(|name| {
        in_time(name, || {
            let (served, ..) = Commanded::start(name, |_| {});
            let is_in_time = read_while_written(&served, 1)
                .is_some_and(|(client, before)| append_in_time(&served, client, before));
            served.server.stop();
            is_in_time
        });
    });
}

#[test]
fn reads_that_closed_connections_would_repeat_took_the_places_of_others() {
    one_by_one(|name| {
        in_time(name, || {
            // As many reads wait as there may be connections.
            let (served, ..) = Commanded::start(name, |c| c.max_connections = 2);
            let is_in_time = read_while_written(&served, 2).is_some_and(|(client, start)| {
                drop(client);
                assert!(served.wait_until(TIMEOUT, |usage| usage.connections == 0), "{name}");
                read_while_written(&served, 1).is_some_and(|(client, before)| {
                    // Else the places have become free.
                    start.elapsed() < SOON && append_in_time(&served, client, before)
                })
            });
            served.server.stop();
            is_in_time
        });
    });
}

/// They took places of operations in flight.
#[test]
fn reads_that_are_repeated_later_held_up_other_operations() {
    one_by_one(|name| {
        in_time(name, || {
            let (served, commands, _) = Commanded::start(name, |c| c.max_file_ops = 2);
            let is_first = read_while_written(&served, 2).is_some_and(|(mut client, _)| {
                client.write_all(b"i").unwrap();
                commands.iter().nth(3) == Some(b'i')
            });
            served.server.stop();
            is_first
        });
    });
}

/// The connection reads another file again and again, so that the driver does not know how long the first one has been
/// written to.
#[test]
fn read_of_a_file_that_is_written_to_is_repeated_once() {
    one_by_one(|name| {
        in_time(name, || {
            let (served, ..) = Commanded::start(name, |_| {});
            let is_in_time = read_while_written(&served, 1).map(|(mut client, before)| {
                let mut word = [0; 6];
                while word != *b"change" {
                    assert!(before.elapsed() < TIMEOUT, "{name}: the read does not end");
                    client.write_all(b"r").unwrap();
                    client.read_exact(&mut word).unwrap();
                    assert!([*b"change", *b"reads "].contains(&word), "{}", word.escape_ascii());
                }
            });
            served.server.stop();
            is_in_time.is_some()
        });
    });
}

/// The bytes that are noted of the file that is sent are kept.
#[test]
fn longer_file_was_continued_if_the_application_had_read_another_one() {
    for policy in FileDelivery::ALL {
        side_by_side(|name| {
            let (served, commands, reasons) = Commanded::start(name, |c| {
                c.send_policy = policy.send_policy();
                // The client does not receive the reply before the file.
                c.max_read_delay = Duration::ZERO;
            });
            let mut client = served.server.connect();
            ask(&mut client, "o", "opened");
            ask(&mut client, "O", "opened");
            client.write_all(b"f").unwrap();
            client.read_exact(&mut [0; 100]).unwrap();
            client.write_all(b"r").unwrap();
            while commands.recv_timeout(TIMEOUT).unwrap() != b'r' {}
            overwrite(&served.path, FILE_BYTES + 1);
            let mut got = Vec::new();
            let _ = client.read_to_end(&mut got);
            let reason = reasons.recv_timeout(TIMEOUT).unwrap();
            is_cut(&format!("{name}, {policy}"), &got, reason);
            served.server.stop();
        });
    }
}

#[test]
fn file_whose_name_another_one_takes_is_sent_to_its_end() {
    side_by_side(|name| {
        let (served, _reasons) = Served::sends(name, FILE_BYTES, FileDelivery::Auto);
        let (mut client, mut got) = served.begin();
        let other = served.path.with_file_name("other");
        fs::write(&other, "other").unwrap();
        fs::rename(&other, &served.path).unwrap();
        client.read_to_end(&mut got).unwrap();
        assert!(got == vec![1; FILE_BYTES], "{name}: {} bytes", got.len());
        served.server.stop();
    });
}
