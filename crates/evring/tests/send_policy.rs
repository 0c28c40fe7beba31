//! A send policy that holds bytes back until there is room, on every mechanism.

use crate::disk_file::contents;
use crate::sends_file::SendsFile;
use crate::server;

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::mpsc::{self, Sender};

use evring::send_policy::{SendPolicy, SendResult, SendState, SendStep};
use evring::sockets::BufferSizes;
use evring::{Application, Chunk, Close, CloseReason, Commands, Config, ConnId};

use server::{Server, TIMEOUT, listening, side_by_side};

const PIECE: u32 = 20_000;
const FILE_BYTES: usize = 3_000_000;

/// Sends a piece of a file only after the socket had room, and never two pieces for one wait.
#[derive(Default)]
struct Holds<const DECIDES_MEMORY: bool> {
    has_room: HashSet<ConnId>,
}

impl<const DECIDES_MEMORY: bool> SendPolicy for Holds<DECIDES_MEMORY> {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        match state.file_bytes {
            Some(_) if !self.has_room.contains(&state.id) => SendStep::WaitForRoom,
            _ => SendStep::Send { max_file_bytes: PIECE },
        }
    }

    fn completed(&mut self, id: ConnId, result: SendResult) {
        match result {
            SendResult::HasRoom => assert!(self.has_room.insert(id), "the policy did not wait"),
            SendResult::File(n) => {
                assert!(n <= PIECE, "{n} bytes in a piece");
                assert!(self.has_room.remove(&id), "the driver sent without room");
            }
            SendResult::Memory(_) => {
                assert!(DECIDES_MEMORY, "it does not decide about bytes in memory")
            }
            _ => panic!("{result:?} without such a step"),
        }
    }

    fn closed(&mut self, id: ConnId) {
        self.has_room.remove(&id);
    }

    fn decides_memory(&self) -> bool {
        DECIDES_MEMORY
    }
}

/// Returns an application that sends a head, the file and a tail to each client, and reports whether the file was
/// shorter.
fn sends_file(closed: Sender<bool>) -> impl Application {
    SendsFile {
        send: |io: &mut dyn Commands, id, file| {
            io.send(id, Chunk::Static(b"head"));
            io.send(id, Chunk::File(file, 0..FILE_BYTES as u64));
            io.send(id, Chunk::Static(b"tail"));
            io.close(id, Close::Flush);
        },
        closed: move |reason| closed.send(matches!(reason, CloseReason::Truncated)).unwrap(),
    }
}

fn config_with(root: &Path, policy: fn() -> Box<dyn SendPolicy>) -> Config {
    listening(1).with(|config| {
        config.roots = vec![root.to_owned()];
        config.socket_buffers = BufferSizes { send: Some(8192), receive: None };
        config.send_policy = Some(policy);
    })
}

fn config<const DECIDES_MEMORY: bool>(root: &Path) -> Config {
    config_with(root, || Box::<Holds<DECIDES_MEMORY>>::default())
}

#[test]
fn held_back_bytes_arrive_exactly_after_a_reset_of_another_client() {
    check_held_back_bytes(config::<true>);
}

#[test]
fn policy_of_files_holds_them_back_and_bytes_in_memory_go() {
    check_held_back_bytes(config::<false>);
}

fn check_held_back_bytes(config: fn(&Path) -> Config) {
    side_by_side(|name| {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), contents(FILE_BYTES as u64)).unwrap();
        let (sender, closed) = mpsc::channel();
        let server = Server::start(name, config(root.path()), move || sends_file(sender));
        let (mut slow, mut broken) = (server.connect(), server.connect());
        for client in [&mut slow, &mut broken] {
            client.write_all(b"x").unwrap();
            client.read_exact(&mut [0; 4]).unwrap();
        }
        // Unread bytes make this close a reset.
        drop(broken);
        assert_eq!(closed.recv_timeout(TIMEOUT), Ok(false), "{name}: the client reset it");
        let mut got = Vec::new();
        slow.read_to_end(&mut got).unwrap();
        let (file, tail) = got.split_at(FILE_BYTES);
        assert!(file == contents(FILE_BYTES as u64) && tail == b"tail", "{name}");
        assert_eq!(closed.recv_timeout(TIMEOUT), Ok(false), "{name}");
        server.stop();
    });
}

/// Waits for room whenever the socket is full. Its pieces are larger than what a socket takes at once beyond its limit.
struct WaitsIfFull;

impl SendPolicy for WaitsIfFull {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        match state.is_full {
            true => SendStep::WaitForRoom,
            false => SendStep::Send { max_file_bytes: 256 * 1024 },
        }
    }
}

#[test]
fn socket_counted_as_full_after_the_wait_for_room() {
    side_by_side(|name| {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), contents(FILE_BYTES as u64)).unwrap();
        let (sender, closed) = mpsc::channel();
        let config = config_with(root.path(), || Box::new(WaitsIfFull));
        let server = Server::start(name, config, move || sends_file(sender));
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        let expected = [b"head", &contents(FILE_BYTES as u64)[..], b"tail"].concat();
        assert!(got == expected, "{name}: {} bytes", got.len());
        assert_eq!(closed.recv_timeout(TIMEOUT), Ok(false), "{name}");
        server.stop();
    });
}

#[test]
fn file_truncated_while_held_back_is_cut_and_closed() {
    side_by_side(|name| {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, contents(FILE_BYTES as u64)).unwrap();
        let (sender, closed) = mpsc::channel();
        let server = Server::start(name, config::<true>(root.path()), move || sends_file(sender));
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        // Not to another length: the kernel would clear the rest of a page, which sockets may still refer to.
        OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        let mut got = Vec::new();
        let ended = client.read_to_end(&mut got);
        let is_reset = |error: &io::Error| error.kind() == ErrorKind::ConnectionReset;
        assert!(ended.as_ref().map_or_else(is_reset, |_| true), "{name}: {ended:?}");
        assert!(got.len() < FILE_BYTES && contents(FILE_BYTES as u64).starts_with(&got), "{name}");
        assert_eq!(closed.recv_timeout(TIMEOUT), Ok(true), "{name}");
        server.stop();
    });
}
