//! An application that is idle between its replies.

use std::io::Read;
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, Sender};

use evring::{Application, Chunk, Close, Commands, Config, ConnId, Cx, Rx};

use crate::server::{Server, TIMEOUT};

/// More than the socket of a narrow client takes.
pub(crate) static LARGE: [u8; 200_000] = [7; 200_000];

/// Replies to each message and is idle in between. On `wait`, blocks until the test continues it.
pub(crate) struct RepliesOk {
    pub(crate) waiting: Sender<()>,
    pub(crate) resumed: Receiver<()>,
}

impl Application for RepliesOk {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes() == b"wait" {
            self.waiting.send(()).unwrap();
            self.resumed.recv_timeout(TIMEOUT).expect("the test continues the application");
        }
        match rx.take().as_ref() {
            [] => {}
            b"large" => drop(x.io.send(x.id, Chunk::Static(&LARGE))),
            _ => drop(x.io.send(x.id, Chunk::Static(b"ok"))),
        }
        if rx.eof() || x.io.is_stopping() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn is_idle(&self, _id: ConnId, _state: &()) -> bool {
        true
    }
}

pub(crate) fn answers(name: &'static str, config: Config) -> (Server, Receiver<()>, Sender<()>) {
    let (waiting, is_waiting) = mpsc::channel();
    let (resume, resumed) = mpsc::channel();
    let server = Server::start(name, config, move || RepliesOk { waiting, resumed });
    (server, is_waiting, resume)
}

pub(crate) fn expect_ok(name: &str, client: &mut TcpStream) {
    let mut reply = [0; 2];
    client.read_exact(&mut reply).unwrap_or_else(|error| panic!("{name}: no reply: {error}"));
    assert_eq!(&reply, b"ok");
}
