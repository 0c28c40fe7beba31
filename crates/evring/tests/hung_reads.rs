//! Reads of send queues that hang, on the simulated machine.

use std::io;
use std::time::Duration;

use evring::files::{Access, File, FileOp, FileOutcome, FilePath};
use evring::{Application, Chunk, Close, Commands, Config, ConnId, Cx, Root, Rx};
use evring_sim::{Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult};

use crate::cold_files::{By, at};

const DISK_TIME: Duration = Duration::from_secs(10);

/// Sends a file to each client that sends `f`, and replies to others.
struct SendsColdFile;

impl Application for SendsColdFile {
    /// Whether the client has asked for the file.
    type State = bool;
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, bool>, rx: &mut Rx<'_>) {
        match rx.take().as_ref() {
            [] => x.io.close(x.id, Close::Flush),
            b"f" => {
                *x.state = true;
                let path = (Root(0), FilePath::new("file"));
                x.io.file_op(x.id, 0, FileOp::Open(path, Access::Read));
            }
            _ => drop(x.io.send(x.id, Chunk::Static(b"!"))),
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, bool>, _tag: u32, done: io::Result<FileOutcome>) {
        let Ok(FileOutcome::Opened(opened)) = done else { panic!("{done:?}") };
        x.io.send(x.id, Chunk::File(opened.0, 0..File::BLOCK_BYTES));
    }

    fn is_idle(&self, _id: ConnId, asked: &bool) -> bool {
        !asked
    }
}

/// Clients in turn: one becomes idle, one asks for the file and resets its connection, a new one asks.
#[derive(Default)]
struct Clients {
    idle: Option<PeerConn>,
    waits: Option<PeerConn>,
    new: Option<PeerConn>,
    has_waited: bool,
    /// When the new client has asked.
    asked: Duration,
}

impl Clients {
    fn ask(net: &mut Net<'_>, request: &[u8]) -> Option<PeerConn> {
        let connection = net.connect(at()).expect("the backlog has room");
        assert_eq!(net.send(&connection, request), request.len());
        Some(connection)
    }
}

impl Peer for Clients {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let mut reply = Vec::new();
        let Some(idle) = &self.idle else {
            self.idle = Clients::ask(net, b"x");
            return Next::Wait;
        };
        if self.new.is_none() {
            if self.waits.is_none() {
                if net.receive(idle, 1, &mut reply) == ReceiveResult::Nothing {
                    return Next::Wait;
                }
                self.waits = Clients::ask(net, b"f");
            }
            // The file has been opened, and its read has begun.
            if !std::mem::replace(&mut self.has_waited, true) {
                return Next::After(DISK_TIME / 2);
            }
            net.reset(self.waits.take().expect("it has asked"));
            self.new = Clients::ask(net, b"x");
            self.asked = net.now();
            return Next::Wait;
        }
        match net.receive(self.new.as_ref().expect("it has asked"), 1, &mut reply) {
            ReceiveResult::Nothing => return Next::Wait,
            ReceiveResult::Bytes(_) if net.now() - self.asked < DISK_TIME / 10 => {}
            ReceiveResult::Bytes(_) => net.fail("the reply waited for the disk"),
            other => net.fail(format!("{other:?} instead of a reply")),
        }
        for connection in [self.idle.take(), self.new.take()].into_iter().flatten() {
            net.close(connection);
        }
        Next::Done
    }

    fn waits_for(&self) -> String {
        "a reply".to_owned()
    }
}

#[test]
fn connection_whose_read_hangs_kept_others_from_making_room() {
    for by in By::ALL {
        let machine = Machine::new(&Plan::default().with(|p| p.faults = Faults::NONE));
        machine.add_file("site/file", vec![0; File::BLOCK_BYTES as usize]);
        machine.evict("site/file", false);
        machine.set_disk_time(DISK_TIME);
        machine.add_peer(Clients::default());
        let config = Config::default().with(|c| {
            c.listen = vec![at()];
            c.roots = vec!["/site".into()];
            c.max_connections = 2;
            c.admission = None;
        });
        let served = by.serve(&machine, &config, SendsColdFile, |_| {});
        assert_eq!(machine.verdict().failure, None, "{by:?}");
        assert!(served.is_ok(), "{by:?}");
    }
}
