//! Sends of files that wait until the socket has room, on the simulated machine.

use crate::cold_files::By;
use crate::disk_file::contents;

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evring::files::{Access, FileOp, FileOutcome, FilePath, WriteAt};
use evring::send_policy::{SendPolicy, SendState, SendStep};
use evring::{Application, Chunk, CloseReason, Commands, Config, Cx, FileDelivery, Root, Rx};
use evring_sim::{Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, RunReport};

/// Less than a block, so each piece may be the last. The buffers of both sockets take less.
const FILE_BYTES: u64 = 250_000;
const ROOM: usize = 100_000;

const SECOND: Duration = Duration::from_secs(1);

fn at() -> SocketAddr {
    "10.0.0.1:7".parse().unwrap()
}

/// Sends a file to a client that sends `x`, and writes over the end of that file if the client then sends `w`.
struct SendsAndOverwrites<'a> {
    is_truncated: &'a Cell<bool>,
}

impl Application for SendsAndOverwrites<'_> {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if let Some(&command) = rx.take().first() {
            let access = if command == b'w' { Access::Write } else { Access::Read };
            let open = FileOp::Open((Root(0), FilePath::new("file")), access);
            x.io.file_op(x.id, command.into(), open);
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, tag: u32, done: io::Result<FileOutcome>) {
        let FileOutcome::Opened(opened) = done.unwrap() else { return };
        if tag == u32::from(b'w') {
            let (at, bytes) = (WriteAt::Offset(FILE_BYTES - 1_000), vec![255; 1_000]);
            x.io.file_op(x.id, tag, FileOp::write(opened.0, at, bytes));
        } else {
            x.io.send(x.id, Chunk::File(opened.0, 0..FILE_BYTES));
        }
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.is_truncated.set(matches!(reason, CloseReason::Truncated));
    }
}

/// A client that reads nothing until both sockets are full, and may have the file overwritten then.
struct Client {
    line: Option<PeerConn>,
    received: Vec<u8>,
    next_at: Duration,
    overwrites: bool,
    len: Rc<Cell<usize>>,
}

impl Client {
    fn command(&mut self, net: &mut Net<'_>, command: &[u8]) -> Next {
        let line = self.line.as_ref().expect("it is connected");
        assert_eq!(net.send(line, command), 1);
        self.next_at = net.now() + SECOND;
        Next::After(SECOND)
    }
}

impl Peer for Client {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        if self.line.is_none() {
            self.line = Some(net.connect(at()).expect("the server has room"));
            return self.command(net, b"x");
        }
        // It is called for bytes that have arrived, too.
        let early = self.next_at.saturating_sub(net.now());
        if !early.is_zero() {
            return Next::After(early);
        }
        if std::mem::take(&mut self.overwrites) {
            return self.command(net, b"w");
        }
        let line = self.line.as_ref().expect("it is connected");
        match net.receive(line, ROOM, &mut self.received) {
            ReceiveResult::Nothing => return Next::Wait,
            ReceiveResult::Bytes(_) if (self.received.len() as u64) < FILE_BYTES => {
                return Next::Ready;
            }
            _ if contents(FILE_BYTES).starts_with(&self.received) => {}
            got => net.fail(format!("{got:?} after {} bytes of two contents", self.received.len())),
        }
        net.close(self.line.take().expect("just used"));
        self.len.set(self.received.len());
        Next::Done
    }

    fn waits_for(&self) -> String {
        "a file".to_owned()
    }
}

/// Pauses if the socket is full, for less time than the client reads nothing.
struct PausesIfFull;

impl SendPolicy for PausesIfFull {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        match state.is_full {
            true => SendStep::Pause(SECOND / 4),
            false => SendStep::Send { max_file_bytes: FILE_BYTES as u32 },
        }
    }
}

type MakesPolicy = Option<fn() -> Box<dyn SendPolicy>>;

fn policies() -> [MakesPolicy; 3] {
    let [plain, dns] = [FileDelivery::Plain, FileDelivery::Dns].map(FileDelivery::send_policy);
    [plain, dns, Some(|| Box::new(PausesIfFull))]
}

/// The results of a run.
struct Run {
    /// Number of bytes that the client has received.
    len: u64,
    is_truncated: bool,
    report: RunReport,
}

fn run(by: By, policy: MakesPolicy, overwrites: bool) -> Run {
    let machine = Machine::new(&Plan::default().with(|p| {
        p.faults = Faults::NONE;
        p.room = Some(ROOM);
        p.steps = 1_000_000;
        p.trace_steps = true;
    }));
    machine.add_file("site/file", contents(FILE_BYTES));
    let config = Config::default().with(|c| {
        c.listen = vec![at()];
        c.roots = vec!["/site".into()];
        c.writable_roots = vec![Root(0)];
        c.send_policy = policy;
    });
    let (len, is_truncated) = (Rc::new(Cell::new(0)), Cell::new(false));
    machine.add_peer(Client {
        line: None,
        received: Vec::new(),
        next_at: Duration::ZERO,
        overwrites,
        len: Rc::clone(&len),
    });
    let app = SendsAndOverwrites { is_truncated: &is_truncated };
    let stats = by.serve(&machine, &config, app, |_| {});
    let report = machine.verdict();
    assert_eq!(report.failure, None, "{by:?}");
    stats.unwrap();
    Run { len: len.get() as u64, is_truncated: is_truncated.get(), report }
}

#[test]
fn send_that_had_waited_for_room_sent_what_the_file_had_become() {
    for by in By::ALL {
        for (at, policy) in policies().into_iter().enumerate() {
            let run = run(by, policy, true);
            assert!(run.is_truncated, "{by:?}, policy {at}");
            assert!(run.len < FILE_BYTES, "{by:?}, policy {at}: {} bytes", run.len);
        }
    }
}

#[test]
fn full_socket_was_sent_to_again_before_it_had_room() {
    for by in By::ALL {
        for (at, policy) in policies().into_iter().enumerate() {
            let run = run(by, policy, false);
            assert!(run.len == FILE_BYTES && !run.is_truncated, "{by:?}, policy {at}");
            let is_vain = |line: &&String| line.contains("send") && line.contains("WouldBlock");
            let vain = run.report.trace.iter().filter(is_vain).count();
            assert_eq!(vain, 0, "{by:?}, policy {at}");
        }
    }
}
