//! A server that uses everything in the interface of applications, and its clients.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evring::files::{Access, File, FileOp, FileOutcome, FilePath, WriteAt};
use evring::{
    AcceptPolicy, Application, Chunk, Close, CloseReason, Commands, ConnId, Cx, HIGH_WATER,
    Listener, Others, Root, Rx,
};
use evring_sim::{Fault, Net, PeerConn};

use super::echo::ORIGIN_FAULTS;
use super::pattern::{LONG_FILE, PATTERN};
use super::replies::Replies;
use super::talker::{ProtocolModel, has_happened_to};

/// Its files: name and length.
pub(super) const FILES: [(&str, usize); 3] = [("small", 50), ("middle", 9_000), ("large", 90_000)];

/// More than the server may queue for a connection.
const OVERFLOW_BYTES: usize = 3 * MAX_QUEUED_BYTES;

/// Maximum number of bytes queued for a connection.
pub(super) const MAX_QUEUED_BYTES: usize = 300_000;

/// The server.
pub(super) struct Wild {
    origin: SocketAddr,
    /// For each connection to the origin: its client, and the number of bytes to come.
    calls: BTreeMap<(u32, u32), (ConnId, usize)>,
    /// The connection that waits for each timer.
    timers: [Option<ConnId>; 3],
}

/// The event that a connection waits for; it does not receive meanwhile.
#[derive(Default)]
pub(super) enum Waiting {
    #[default]
    Nothing,
    File {
        range: std::ops::Range<u64>,
        /// Read the file instead of sending it.
        read: bool,
    },
    Stats(usize),
    /// Writes so many bytes to a file of this number.
    Write(usize, usize),
    Deadline,
    Call,
}

impl Wild {
    pub(super) fn new(origin: SocketAddr) -> Self {
        Wild { origin, calls: BTreeMap::new(), timers: [None; 3] }
    }

    /// Executes a command. Returns whether the next one may be executed.
    fn execute(&mut self, x: &mut Cx<'_, impl Commands, Waiting>, line: &[u8]) -> bool {
        let text = std::str::from_utf8(line).expect("clients send text");
        let mut words = text.split(' ');
        let command = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0_usize);
        let path = |file: usize| FilePath::new(FILES[file % FILES.len()].0);
        match command {
            "say" => send_bytes(x, number(), number()),
            "file" | "read" | "long" => {
                let path = match command {
                    "long" => FilePath::new(LONG_FILE.0),
                    _ => path(number()),
                };
                let (start, len) = (number() as u64, number() as u64);
                let read = command == "read";
                *x.state = Waiting::File { range: start..start + len, read };
                x.io.file_op(x.id, 1, FileOp::Open((Root(0), path), Access::Read));
            }
            // In two writes; the second one opens the file again.
            "write" => {
                let (file, len) = (number(), number());
                *x.state = Waiting::Write(file, len);
                x.io.file_op(x.id, 4, FileOp::Open(written(file), Access::Replace));
            }
            "stats" => {
                let n = number();
                *x.state = Waiting::Stats(n);
                for at in 0..n {
                    let op = match at % 3 {
                        0 => FileOp::List((Root(0), FilePath::new("."))),
                        _ => FileOp::Stat((Root(0), path(at))),
                    };
                    x.io.file_op(x.id, 2, op);
                }
            }
            // The second deadline replaces the first, and may be earlier or later.
            "later" => {
                *x.state = Waiting::Deadline;
                for _ in 0..2 {
                    let time = Duration::from_micros(number() as u64);
                    x.io.set_deadline(x.id, Some(x.io.now() + time));
                }
            }
            "never" => {
                let time = Duration::from_micros(number() as u64);
                x.io.set_deadline(x.id, Some(x.io.now() + time));
                x.io.set_deadline(x.id, None);
                x.io.send(x.id, Chunk::Static(b"never\n"));
            }
            "wait" => {
                *x.state = Waiting::Deadline;
                x.io.set_deadline(x.id, Some(x.io.now() + Duration::from_micros(number() as u64)));
            }
            // A timer of the server instead of a deadline, if one is free.
            "timer" => {
                *x.state = Waiting::Deadline;
                let at = x.io.now() + Duration::from_micros(number() as u64);
                match self.timers.iter().position(Option::is_none) {
                    Some(timer) => {
                        self.timers[timer] = Some(x.id);
                        x.io.set_timer(timer as u32, Some(at)).expect("there are more timers");
                    }
                    None => x.io.set_deadline(x.id, Some(at)),
                }
            }
            "call" => {
                let n = number();
                *x.state = Waiting::Call;
                let call = x.io.connect(self.origin);
                x.io.send(call, Chunk::Static(&PATTERN[..n]));
                self.calls.insert((call.slot(), call.generation()), (x.id, n));
            }
            "admit" => {
                let how = match number() {
                    0 => AcceptPolicy::PerTurn(1),
                    1 => AcceptPolicy::PerTurn(3),
                    2 => AcceptPolicy::Backlog(5),
                    _ => AcceptPolicy::All,
                };
                x.io.set_accept_policy(Listener(0), how);
                x.io.send(x.id, Chunk::Static(b"ok\n"));
            }
            "parts" => {
                for byte in &PATTERN[..number()] {
                    x.io.send(x.id, Chunk::Received(vec![*byte].into()));
                }
            }
            // The server accepts no connection for a while.
            "shut" => {
                *x.state = Waiting::Deadline;
                x.io.set_accept_policy(Listener(0), AcceptPolicy::Off);
                x.io.set_deadline(x.id, Some(x.io.now() + Duration::from_micros(number() as u64)));
            }
            "over" => drop(x.io.send(x.id, Chunk::Shared(Bytes::from(vec![0; OVERFLOW_BYTES])))),
            "end" => {
                x.io.send(x.id, Chunk::Static(b"bye\n"));
                let how = [Close::Flush, Close::Linger, Close::Half, Close::Reset];
                x.io.close(x.id, how[number() % how.len()]);
            }
            _ => panic!("unknown command: {text}"),
        }
        matches!(x.state, Waiting::Nothing)
    }

    /// Resumes receiving after a wait.
    fn resume(x: &mut Cx<'_, impl Commands, Waiting>) {
        *x.state = Waiting::Nothing;
        x.io.set_receiving(x.id, true);
    }

    fn opened(x: &mut Cx<'_, impl Commands, Waiting>, opened: io::Result<File>) {
        let Waiting::File { range, read } = x.state else { return };
        let range = range.clone();
        match opened {
            Ok(file) if *read => x.io.file_op(x.id, 3, FileOp::Read(file, range)),
            Ok(file) => {
                x.io.send(x.id, Chunk::File(file, range));
                Self::resume(x);
            }
            Err(_) => x.io.close(x.id, Close::Reset),
        }
    }
}

/// Returns the path of a file that a connection writes.
fn written(file: usize) -> (Root, FilePath) {
    (Root(0), FilePath::new(written_name(file)))
}

fn written_name(file: usize) -> String {
    format!("written-{file}")
}

/// Writes half of the bytes to the file that was just opened, or continues after a write.
fn write(x: &mut Cx<'_, impl Commands, Waiting>, tag: u32, done: FileOutcome) {
    let Waiting::Write(file, len) = *x.state else { return x.io.close(x.id, Close::Reset) };
    let half = len / 2;
    let op = match (tag, done) {
        (4, FileOutcome::Opened(opened)) => FileOp::write(opened.0, WriteAt::End, &PATTERN[..half]),
        (5, FileOutcome::Written) => FileOp::Open(written(file), Access::Write),
        (6, FileOutcome::Opened(opened)) => {
            FileOp::write(opened.0, WriteAt::Offset(half as u64), &PATTERN[half..len])
        }
        (7, FileOutcome::Written) => FileOp::Stat(written(file)),
        (8, FileOutcome::Stat(meta)) => {
            x.io.send(x.id, Chunk::Copy(format!("wrote {}\n", meta.len).as_bytes()));
            return Wild::resume(x);
        }
        (_, other) => panic!("{other:?}"),
    };
    x.io.file_op(x.id, tag + 1, op);
}

/// Sends `n` bytes in one of several ways.
fn send_bytes(x: &mut Cx<'_, impl Commands, Waiting>, how: usize, n: usize) {
    let bytes = &PATTERN[..n];
    match how {
        0 => drop(x.io.send(x.id, Chunk::Copy(bytes))),
        1 => drop(x.io.send(x.id, Chunk::Static(bytes))),
        2 => drop(x.io.send(x.id, Chunk::Shared(Bytes::copy_from_slice(bytes)))),
        3 => x.io.reserve(x.id, n).copy_from_slice(bytes),
        _ => {
            for (at, piece) in bytes.chunks(n / 20 + 1).enumerate() {
                match at % 3 {
                    0 => x.io.send(x.id, Chunk::Copy(piece)),
                    1 => x.io.send(x.id, Chunk::Shared(Bytes::copy_from_slice(piece))),
                    _ => x.io.send(x.id, Chunk::Received(piece.to_vec().into())),
                };
            }
        }
    }
}

impl Application for Wild {
    type State = Waiting;
    const MAX_UNCONSUMED: usize = 64;

    fn connected(&mut self, x: Cx<'_, impl Commands, Waiting>, result: io::Result<()>) {
        if result.is_err()
            && let Some((client, _)) = self.calls.remove(&(x.id.slot(), x.id.generation()))
        {
            x.io.close(client, Close::Reset);
        }
    }

    fn received(&mut self, mut x: Cx<'_, impl Commands, Waiting>, rx: &mut Rx<'_>) {
        let key = (x.id.slot(), x.id.generation());
        if let Some((client, remaining)) = self.calls.get_mut(&key) {
            let (client, n) = (*client, rx.bytes().len());
            *remaining -= n;
            let is_complete = *remaining == 0;
            x.io.send(client, Chunk::Received(rx.take()));
            if is_complete {
                self.calls.remove(&key);
                x.io.close(x.id, if n.is_multiple_of(2) { Close::Flush } else { Close::Linger });
                // This callback has no access to the client's state.
                x.io.set_deadline(client, Some(x.io.now()));
            }
            return;
        }
        loop {
            // Queues nothing; returns the length of the queue.
            let queued = x.io.send(x.id, Chunk::Static(b""));
            if queued >= HIGH_WATER || !matches!(x.state, Waiting::Nothing) {
                return x.io.set_receiving(x.id, false);
            }
            let Some(end) = rx.bytes().iter().position(|byte| *byte == b'\n') else { break };
            let line = rx.bytes()[..end].to_vec();
            rx.consume(end + 1);
            self.execute(&mut x, &line);
        }
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn file(
        &mut self,
        mut x: Cx<'_, impl Commands, Waiting>,
        tag: u32,
        done: io::Result<FileOutcome>,
    ) {
        match (tag, done) {
            (1, Ok(FileOutcome::Opened(opened))) => Self::opened(&mut x, Ok(opened.0)),
            (1, Err(error)) => Self::opened(&mut x, Err(error)),
            (3, Ok(FileOutcome::Read(bytes))) => {
                // The file may have been truncated.
                let whole = matches!(&x.state, Waiting::File { range, .. }
                    if range.end - range.start == bytes.len() as u64);
                x.io.send(x.id, Chunk::Received(bytes));
                if !whole {
                    return x.io.close(x.id, Close::Flush);
                }
                Self::resume(&mut x);
            }
            (4..=8, Ok(done)) => write(&mut x, tag, done),
            (2, Ok(FileOutcome::Stat(_) | FileOutcome::Listed(_)) | Err(_)) => {
                if let Waiting::Stats(remaining) = x.state {
                    *remaining -= 1;
                    if *remaining == 0 {
                        x.io.send(x.id, Chunk::Static(b"looked\n"));
                        Self::resume(&mut x);
                    }
                }
            }
            _ => x.io.close(x.id, Close::Reset),
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, Waiting>) {
        if matches!(x.state, Waiting::Nothing) {
            x.io.set_receiving(x.id, true);
        }
    }

    fn expired(&mut self, mut x: Cx<'_, impl Commands, Waiting>) {
        match x.state {
            Waiting::Deadline => {
                x.io.set_accept_policy(Listener(0), AcceptPolicy::All);
                x.io.send(x.id, Chunk::Static(b"waited\n"));
                Self::resume(&mut x);
            }
            Waiting::Call => Self::resume(&mut x),
            _ => panic!("a deadline that was not set"),
        }
    }

    fn timer(&mut self, io: &mut impl Commands, _: Others<'_, Waiting>, timer: u32) {
        let client = self.timers[timer as usize].take().expect("a timer that was not set");
        // This callback has no access to the client's state.
        io.set_deadline(client, Some(io.now()));
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, Waiting>, _: CloseReason) {
        let key = (x.id.slot(), x.id.generation());
        if let Some((client, _)) = self.calls.remove(&key) {
            x.io.close(client, Close::Reset);
        }
        for (timer, waiting) in (0..).zip(&mut self.timers) {
            if waiting.take_if(|id| *id == x.id).is_some() {
                x.io.set_timer(timer, None).expect("it was set");
            }
        }
        // The closed connection may be the one that was to accept again.
        x.io.set_accept_policy(Listener(0), AcceptPolicy::All);
        // The results of its calls are no longer needed.
        let called = self.calls.iter().filter(|(_, (client, _))| *client == x.id);
        let called: Vec<_> = called.map(|(key, _)| *key).collect();
        for (slot, generation) in called {
            self.calls.remove(&(slot, generation));
            x.io.close(ConnId::new(slot, generation), Close::Reset);
        }
    }
}

/// A model of the server.
#[derive(Default)]
pub(super) struct WildModel {
    expected: Replies,
    ends: bool,
    /// The replies depend on the disk, on these files, or on the origin.
    uses_disk: bool,
    files: Vec<String>,
    uses_origin: bool,
    /// It requests parts of the long file, too.
    requests_long: bool,
}

/// Number of outstanding bytes from which on a client requests no part of the long file.
const MAX_OUTSTANDING_BYTES: usize = 100_000;

impl WildModel {
    pub(super) fn new(requests_long: bool) -> Self {
        WildModel { requests_long, ..WildModel::default() }
    }

    /// Notes that a reply depends on a file.
    fn uses(&mut self, file: String) {
        self.uses_disk = true;
        if !self.files.contains(&file) {
            self.files.push(file);
        }
    }
}

impl ProtocolModel for WildModel {
    fn reset(&mut self) {
        *self = WildModel::new(self.requests_long);
    }

    fn next_request(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) -> bool {
        let mut line = |text: String| {
            out.extend_from_slice(text.as_bytes());
            out.push(b'\n');
        };
        if self.requests_long && self.expected.len() < MAX_OUTSTANDING_BYTES && net.below(8) == 0 {
            let start = net.below(LONG_FILE.1 / 2);
            let len = 1 + net.below(LONG_FILE.1 - start);
            line(format!("long {start} {len}"));
            self.expected.add_file(start..start + len);
            self.uses(LONG_FILE.0.to_owned());
            return true;
        }
        match net.below(27) {
            0..6 => {
                let (how, n) = (net.below(5), [0, 1, 90, 3_000, 80_000][net.below(5)]);
                line(format!("say {how} {n}"));
                self.expected.add(&PATTERN[..n]);
            }
            6..13 => {
                let (file, read) = (net.below(FILES.len()), net.once_in(2));
                let size = FILES[file].1;
                let start = net.below(size);
                let max = if read { 5_000 } else { size };
                let len = 1 + net.below((size - start).min(max));
                line(format!("{} {file} {start} {len}", if read { "read" } else { "file" }));
                self.expected.add_file(start..start + len);
                self.uses(FILES[file].0.to_owned());
            }
            13..15 => {
                line(format!("stats {}", 1 + net.below(20)));
                self.expected.add(b"looked\n");
                self.uses_disk = true;
            }
            15..18 => {
                match net.below(8) {
                    0 | 1 => line(format!("shut {}", net.below(3_000))),
                    2 => line(format!("later {} {}", net.below(3_000), net.below(3_000))),
                    3 => {
                        line(format!("never {}", net.below(3_000)));
                        self.expected.add(b"never\n");
                        return true;
                    }
                    4 => line(format!("wait {}", net.below(90_000))),
                    5 => line(format!("timer {}", net.below(90_000))),
                    6 => line(format!("timer {}", net.below(3_000))),
                    _ => line(format!("wait {}", net.below(3_000))),
                }
                self.expected.add(b"waited\n");
                // Without a further request, the client may shut down its sending side while the
                // server has paused.
                return !net.once_in(4);
            }
            18..21 => {
                let n = 1 + net.below(4_000);
                line(format!("call {n}"));
                self.expected.add(&PATTERN[..n]);
                self.uses_origin = true;
            }
            21 => {
                line(format!("admit {}", net.below(4)));
                self.expected.add(b"ok\n");
            }
            22 => {
                let n = [1, 300, 20_000][net.below(3)];
                line(format!("parts {n}"));
                self.expected.add(&PATTERN[..n]);
            }
            23 => {
                let how = net.below(3);
                line(format!("end {how}"));
                self.expected.add(b"bye\n");
                self.ends = true;
                return false;
            }
            24 | 25 => {
                let n = [1, 90, 3_000, 80_000][net.below(4)];
                // Of no other client.
                let file = net.below(usize::MAX);
                line(format!("write {file} {n}"));
                self.expected.add(format!("wrote {n}\n").as_bytes());
                self.uses(written_name(file));
            }
            // Replies to earlier requests could be lost with the connection.
            _ if self.expected.is_empty() && out.is_empty() => {
                let text = if net.once_in(2) { "over" } else { "end 3" };
                out.extend_from_slice(text.as_bytes());
                out.push(b'\n');
                self.ends = true;
                return false;
            }
            _ => {}
        }
        true
    }

    fn check_replies(
        &mut self,
        _net: &mut Net<'_>,
        _conn: &PeerConn,
        bytes: &[u8],
    ) -> Result<usize, String> {
        self.expected.compare(bytes)
    }

    fn outstanding(&self) -> Option<String> {
        self.expected.outstanding()
    }

    fn depends_on(&self) -> &'static [Fault] {
        match (self.uses_disk, self.uses_origin) {
            (_, true) => ORIGIN_FAULTS,
            (true, false) => &[Fault::TableFull],
            (false, false) => &[],
        }
    }

    fn needs_disk(&self) -> bool {
        self.uses_disk
    }

    fn has_file_fault(&self, net: &Net<'_>) -> bool {
        let mut faults = [Fault::DiskError, Fault::FileChanges].into_iter();
        faults.any(|fault| self.files.iter().any(|name| has_happened_to(net, fault, name)))
    }

    fn may_close(&self) -> bool {
        self.ends && self.expected.is_empty()
    }
}
