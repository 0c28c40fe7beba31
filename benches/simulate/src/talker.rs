//! A client that talks to the server on one connection after another.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use shared_ring::sim::{Fault, Net, Next, Peer, PeerConn, ReceiveResult};

/// What a client says and what it expects to hear: the model of one protocol.
pub(super) trait Dialogue {
    /// Forgets what belonged to the last connection.
    fn begin(&mut self);

    /// Appends a request; whether more may follow on this connection.
    fn ask(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) -> bool;

    /// Uses whole replies, or parts of them, from the front; returns how many bytes.
    fn hear(&mut self, net: &mut Net<'_>, line: &PeerConn, bytes: &[u8]) -> Result<usize, String>;

    /// What is still to be heard, in words; none if nothing is.
    fn owed(&self) -> Option<String>;

    /// Whether the server may end the connection after what was heard.
    fn may_end(&self) -> bool {
        false
    }

    /// What may cost it the connection though it happens to others: what is owed depends on them.
    fn depends_on(&self) -> &'static [Fault] {
        &[]
    }

    /// Whether what is owed needs the disk.
    fn needs_disk(&self) -> bool {
        false
    }

    /// Whether something has happened that may cost it the connection.
    fn is_excused(&self, net: &Net<'_>) -> bool {
        let disk = if self.needs_disk() { DISK } else { &[] };
        self.depends_on().iter().chain(disk).any(|fault| net.has_happened(*fault))
    }
}

/// What may cost a connection what it is owed from the disk.
const DISK: &[Fault] = &[Fault::DiskError, Fault::FileChanges, Fault::SlowDisk, Fault::DiskHangs];

/// So long a client waits for a disk that hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// What all clients of a run know.
#[derive(Clone, Default)]
pub(super) struct Shared {
    /// The server is being stopped while clients are about.
    pub(super) stopping: Rc<Cell<bool>>,
    /// There is not room for all clients: the server ends idle connections, though a request may be on
    /// its way on them.
    pub(super) crowded: Rc<Cell<bool>>,
    /// Hung work may keep what all clients need: places of connections, or descriptors.
    pub(super) tight: Rc<Cell<bool>>,
    /// An address may have so few connections that a client may be refused one.
    pub(super) bounded: Rc<Cell<bool>>,
    /// Requests that clients have made.
    pub(super) requests: Rc<Cell<u64>>,
}

/// A client asks no more while this much waits to be sent.
const MOST: usize = 4_000;

/// A client.
pub(super) struct Talker<D> {
    dialogue: D,
    server: SocketAddr,
    shared: Shared,
    line: Option<PeerConn>,
    /// It has told the server that it will send no more.
    finished: bool,
    out: Vec<u8>,
    heard: Vec<u8>,
    /// Requests that this connection may still make.
    requests: usize,
    ending: Ending,
    /// Something has arrived on this connection.
    is_heard: bool,
    /// When something was last sent or received.
    moved: Duration,
}

/// What a client does when it has asked everything.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    /// It tells so, and hears the server out.
    Finish,
    /// It hears the replies, then closes.
    Close,
    /// It resets the connection at any time.
    Reset,
}

impl<D: Dialogue> Talker<D> {
    pub(super) fn new(dialogue: D, server: SocketAddr, shared: &Shared) -> Self {
        Talker {
            dialogue,
            server,
            shared: shared.clone(),
            line: None,
            finished: false,
            out: Vec::new(),
            heard: Vec::new(),
            requests: 0,
            ending: Ending::Close,
            is_heard: false,
            moved: Duration::ZERO,
        }
    }

    fn open(&mut self, net: &mut Net<'_>) -> Next {
        if net.is_late() || self.shared.stopping.get() {
            return Next::Done;
        }
        let Some(line) = net.connect(self.server) else {
            return Next::After(Duration::from_millis(1 + net.below(20) as u64));
        };
        self.line = Some(line);
        self.finished = false;
        self.is_heard = false;
        self.moved = net.now();
        self.dialogue.begin();
        self.out.clear();
        self.heard.clear();
        self.requests = [1, 3, 20, 100][net.below(4)];
        self.ending = match net.below(8) {
            0 => Ending::Reset,
            1..4 => Ending::Close,
            _ => Ending::Finish,
        };
        Next::Ready
    }

    /// Whether the connection may have ended by other means than the dialogue.
    fn is_excused(&self, net: &mut Net<'_>, line: &PeerConn) -> bool {
        let made_room = self.shared.crowded.get() && self.heard.is_empty();
        self.dialogue.is_excused(net)
            || made_room
            || self.shared.stopping.get()
            || net.is_disrupted(line)
    }

    /// Whether the disk may keep it from being served for ever: it waits for the disk, or may wait for one
    /// that does. Whoever does not is served, so it goes on waiting.
    fn hangs(&self, net: &Net<'_>) -> bool {
        net.has_happened(Fault::DiskHangs)
            && (self.dialogue.needs_disk() || self.shared.tight.get())
    }

    /// The server, or a fault, has ended the connection.
    fn ended(&mut self, net: &mut Net<'_>, line: PeerConn, got: ReceiveResult) -> Next {
        if !self.is_heard && self.shared.bounded.get() && net.is_broken(&line) {
            // Its address has its share of connections.
            net.close(line);
            return Next::After(Duration::from_millis(1 + net.below(20) as u64));
        }
        let heard_out = self.dialogue.owed().is_none() && self.heard.is_empty();
        let asked_to =
            self.finished && self.out.is_empty() && heard_out && got == ReceiveResult::End;
        if !asked_to && !self.dialogue.may_end() && !self.is_excused(net, &line) {
            let owed = self.dialogue.owed().unwrap_or_else(|| "nothing".to_owned());
            let (left, rest) = (self.out.len(), self.heard.len());
            net.fail(format!(
                "the connection ended ({got:?}) with {left} bytes to be sent and {rest} that make \
                 no reply; owed is {owed}"
            ));
        }
        net.close(line);
        Next::Ready
    }

    fn talk(&mut self, net: &mut Net<'_>, line: PeerConn) -> Next {
        if self.ending == Ending::Reset && net.once_in(30) {
            net.reset(line);
            return Next::Ready;
        }
        let mut moved = false;
        if self.requests > 0 && self.out.len() < MOST && !net.once_in(3) {
            let more = self.dialogue.ask(net, &mut self.out);
            self.shared.requests.update(|n| n + 1);
            self.requests = if more && !net.is_late() { self.requests - 1 } else { 0 };
            moved = true;
        }
        if !self.out.is_empty() {
            let most = if net.once_in(4) { 1 + net.below(self.out.len()) } else { self.out.len() };
            let sent = net.send(&line, &self.out[..most]);
            self.out.drain(..sent);
            moved |= sent > 0;
        }
        let most = [1, 10, 1_000, 100_000][net.below(4)];
        match net.receive(&line, most, &mut self.heard) {
            ReceiveResult::Bytes(_) => match self.dialogue.hear(net, &line, &self.heard) {
                Ok(n) => {
                    self.heard.drain(..n);
                    self.is_heard = true;
                    moved = true;
                }
                Err(what) => net.fail(what),
            },
            ReceiveResult::Nothing => {}
            got @ (ReceiveResult::End | ReceiveResult::Reset) => return self.ended(net, line, got),
        }
        if self.requests == 0 && self.out.is_empty() && !self.finished {
            if self.ending == Ending::Finish {
                net.finish(&line);
                self.finished = true;
                moved = true;
            } else if self.dialogue.owed().is_none() {
                net.close(line);
                return Next::Ready;
            }
        }
        if moved {
            self.moved = net.now();
        } else if self.hangs(net) && net.now() > self.moved + PATIENCE {
            net.note(|| "does not wait for the disk any longer".to_owned());
            net.close(line);
            return Next::Ready;
        }
        let hangs = self.hangs(net);
        self.line = Some(line);
        match moved || self.requests > 0 && self.out.len() < MOST {
            true => Next::Ready,
            false if self.ending == Ending::Reset => Next::After(Duration::from_millis(1)),
            false if hangs => Next::After(PATIENCE / 2),
            false => Next::Wait,
        }
    }
}

impl<D: Dialogue> Peer for Talker<D> {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        match self.line.take() {
            None => self.open(net),
            Some(line) => self.talk(net, line),
        }
    }

    fn waits_for(&self) -> String {
        let owed = self.dialogue.owed().unwrap_or_else(|| "nothing".to_owned());
        let place = match (&self.line, self.finished) {
            (None, _) => "not connected",
            (Some(_), false) => "connected",
            (Some(_), true) => "connected, and has sent its last",
        };
        format!("{place}, {} bytes to send, owed {owed}", self.out.len())
    }
}
