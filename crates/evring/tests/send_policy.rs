//! A send policy that holds bytes back until there is room, on every mechanism.

use crate::server;

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::mpsc::{self, Sender};

use evring::{
    Access, Application, BufferSizes, Chunk, Close, CloseReason, Commands, Config, ConnId, Cx,
    FileOp, FileOutcome, FilePath, Root, Rx, SendPolicy, SendResult, SendState, SendStep,
};

use server::{Server, TIMEOUT, listening, side_by_side};

const PIECE: u32 = 20_000;
const FILE_BYTES: usize = 3_000_000;

/// Sends a piece of a file only after the socket had room, and never two pieces for one wait.
#[derive(Default)]
struct Holds {
    has_room: HashSet<ConnId>,
}

impl SendPolicy for Holds {
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
            SendResult::Memory(_) => {}
            SendResult::Cold | SendResult::Read(_) => panic!("{result:?} without such a step"),
        }
    }

    fn closed(&mut self, id: ConnId) {
        self.has_room.remove(&id);
    }
}

/// Sends a head, a file and a tail to each client, and reports why connections close.
struct SendsFile(Sender<bool>);

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
        let (file, _) = *opened;
        x.io.send(x.id, Chunk::Static(b"head"));
        x.io.send(x.id, Chunk::File(file, 0..FILE_BYTES as u64));
        x.io.send(x.id, Chunk::Static(b"tail"));
        x.io.close(x.id, Close::Flush);
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.0.send(matches!(reason, CloseReason::Truncated)).unwrap();
    }
}

fn contents() -> Vec<u8> {
    (0..FILE_BYTES).map(|i| (i % 251) as u8).collect()
}

fn config(root: &Path) -> Config {
    listening(1).with(|config| {
        config.roots = vec![root.to_owned()];
        config.socket_buffers = BufferSizes { send: Some(8192), receive: None };
        config.send_policy = Some(|| Box::<Holds>::default());
    })
}

#[test]
fn held_back_bytes_arrive_exactly_after_a_reset_of_another_client() {
    side_by_side(|name| {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), contents()).unwrap();
        let (sender, closed) = mpsc::channel();
        let server = Server::start(name, config(root.path()), move || SendsFile(sender));
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
        assert!(file == contents() && tail == b"tail", "{name}");
        assert_eq!(closed.recv_timeout(TIMEOUT), Ok(false), "{name}");
        server.stop();
    });
}

#[test]
fn file_truncated_while_held_back_is_cut_and_closed() {
    side_by_side(|name| {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, contents()).unwrap();
        let (sender, closed) = mpsc::channel();
        let server = Server::start(name, config(root.path()), move || SendsFile(sender));
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        // Not to another length: the kernel would clear the rest of a page, which sockets may still refer to.
        OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        let mut got = Vec::new();
        let ended = client.read_to_end(&mut got);
        let is_reset = |error: &io::Error| error.kind() == ErrorKind::ConnectionReset;
        assert!(ended.as_ref().map_or_else(is_reset, |_| true), "{name}: {ended:?}");
        assert!(got.len() < FILE_BYTES && contents().starts_with(&got), "{name}");
        assert_eq!(closed.recv_timeout(TIMEOUT), Ok(true), "{name}");
        server.stop();
    });
}
