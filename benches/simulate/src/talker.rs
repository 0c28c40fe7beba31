//! A client that opens one connection after another.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evring_sim::{Fault, Net, Next, Peer, PeerConn, ReceiveResult};

/// The requests of a client and the replies that it expects: a model of one protocol.
pub(super) trait ProtocolModel {
    /// Begins a new connection.
    fn reset(&mut self);

    /// Appends a request. Returns whether more may follow on this connection.
    fn next_request(&mut self, net: &mut Net<'_>, out: &mut Vec<u8>) -> bool;

    /// Checks replies, or parts of them, at the front. Returns the number of bytes used.
    ///
    /// # Errors
    /// If a reply is wrong.
    fn check_replies(
        &mut self,
        net: &mut Net<'_>,
        conn: &PeerConn,
        bytes: &[u8],
    ) -> Result<usize, String>;

    /// Checks the first bytes of a reply that the end of the connection has cut.
    ///
    /// # Errors
    /// If they are wrong.
    fn check_cut(&self, _net: &Net<'_>, _bytes: &[u8]) -> Result<(), String> {
        Ok(())
    }

    /// Describes the outstanding replies; `None` if all were received.
    fn outstanding(&self) -> Option<String>;

    /// Returns whether the server may close the connection now.
    fn may_close(&self) -> bool {
        false
    }

    /// Returns the faults, except those of the disk and of files, that may end the connection, given
    /// the outstanding replies.
    fn depends_on(&self) -> &'static [Fault] {
        &[]
    }

    /// Returns whether the outstanding replies need the disk.
    fn needs_disk(&self) -> bool {
        false
    }

    /// Returns whether a file that the outstanding replies need could not be read or written, or has
    /// changed.
    fn has_file_fault(&self, _net: &Net<'_>) -> bool {
        false
    }

    /// Returns whether a fault may have ended the connection.
    fn is_excused(&self, net: &Net<'_>) -> bool {
        let disk = if self.needs_disk() { DISK_FAULTS } else { &[] };
        self.depends_on().iter().chain(disk).any(|fault| net.has_happened(*fault))
            || self.has_file_fault(net)
    }
}

/// The faults that may end a connection whose outstanding replies need the disk, whatever the file: others wait behind
/// an operation that is slow or hangs.
const DISK_FAULTS: &[Fault] = &[Fault::SlowDisk, Fault::DiskHangs];

/// Returns whether this fault has happened to a file of the site, or to its directory.
pub(super) fn has_happened_to(net: &Net<'_>, fault: Fault, name: &str) -> bool {
    let directory = name.rsplit_once('/').map(|(directory, _)| directory);
    directory
        .into_iter()
        .chain([name])
        .any(|name| net.has_happened_to(fault, &format!("site/{name}")))
}

/// Maximum time that a client waits for a disk that hangs.
pub(super) const DISK_TIMEOUT: Duration = Duration::from_secs(5);

/// The tags of wake-ups that are to come, oldest first, and when they were requested.
pub(super) type Tags = Rc<RefCell<VecDeque<(u64, Duration)>>>;

/// State shared by all clients of a run.
#[derive(Clone, Default)]
pub(super) struct Shared {
    /// The server is stopping, or has panicked, while clients are connected.
    pub(super) stopping: Rc<Cell<bool>>,
    /// The server accepts no further connections, and those that it has served go on.
    pub(super) retiring: Rc<Cell<bool>>,
    /// The server has no room for all clients: it closes idle connections, even if a request is in
    /// transit on one.
    pub(super) crowded: Rc<Cell<bool>>,
    /// Hung file operations may use up what all clients need: room for connections, or descriptors.
    pub(super) is_scarce: Rc<Cell<bool>>,
    /// The server may refuse a connection, because connections per address are limited.
    pub(super) may_refuse: Rc<Cell<bool>>,
    /// The memory of all connections is so short that the server ends some.
    pub(super) is_short_of_memory: Rc<Cell<bool>>,
    /// The wake-ups of the server that are to come.
    pub(super) tags: Tags,
    /// Number of requests so far.
    pub(super) requests: Rc<Cell<u64>>,
}

/// A client makes no further request while this many bytes are unsent.
const MAX_UNSENT_BYTES: usize = 4_000;

/// A client.
pub(super) struct Client<D> {
    model: D,
    server: SocketAddr,
    shared: Shared,
    conn: Option<PeerConn>,
    /// The sending side is shut down.
    finished: bool,
    out: Vec<u8>,
    received: Vec<u8>,
    /// Remaining requests on this connection.
    requests: usize,
    ending: Ending,
    /// The client has received a reply on this connection.
    is_served: bool,
    /// The time at which the client last sent or received.
    last_progress: Duration,
}

/// The behaviour of a client after its last request.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    /// Shuts down the sending side and receives the remaining replies.
    Finish,
    /// Receives the remaining replies, then closes.
    Close,
    /// Resets the connection at any time.
    Reset,
}

impl<D: ProtocolModel> Client<D> {
    pub(super) fn new(model: D, server: SocketAddr, shared: &Shared) -> Self {
        Client {
            model,
            server,
            shared: shared.clone(),
            conn: None,
            finished: false,
            out: Vec::new(),
            received: Vec::new(),
            requests: 0,
            ending: Ending::Close,
            is_served: false,
            last_progress: Duration::ZERO,
        }
    }

    fn open(&mut self, net: &mut Net<'_>) -> Next {
        if net.is_late() || self.shared.stopping.get() || self.shared.retiring.get() {
            return Next::Done;
        }
        let Some(conn) = net.connect(self.server) else {
            return Next::After(Duration::from_millis(1 + net.below(20) as u64));
        };
        self.conn = Some(conn);
        self.finished = false;
        self.is_served = false;
        self.last_progress = net.now();
        self.model.reset();
        self.out.clear();
        self.received.clear();
        self.requests = [1, 3, 20, 100][net.below(4)];
        self.ending = match net.below(8) {
            0 => Ending::Reset,
            1..4 => Ending::Close,
            _ => Ending::Finish,
        };
        Next::Ready
    }

    /// Returns whether a fault, eviction or the stop of the server may have ended the connection.
    fn is_excused(&self, net: &mut Net<'_>, conn: &PeerConn) -> bool {
        let evicted = self.shared.crowded.get() && self.received.is_empty();
        self.model.is_excused(net)
            || evicted
            || self.shared.stopping.get()
            || self.shared.is_short_of_memory.get()
            // It was in the backlog, for which there was no room.
            || self.shared.retiring.get() && !self.is_served
            || net.is_disrupted(conn)
    }

    /// Returns whether the connection may wait forever: for a disk that hangs, or for a resource that
    /// such connections hold. All others must be served, so they wait without a timeout.
    fn may_hang(&self, net: &Net<'_>) -> bool {
        net.has_happened(Fault::DiskHangs)
            && (self.model.needs_disk() || self.shared.is_scarce.get())
    }

    /// Handles a connection that the server or a fault has ended.
    fn ended(&mut self, net: &mut Net<'_>, conn: PeerConn, result: ReceiveResult) -> Next {
        if !self.is_served && self.shared.may_refuse.get() && net.is_broken(&conn) {
            // The client's address has its maximum of connections.
            net.close(conn);
            return Next::After(Duration::from_millis(1 + net.below(20) as u64));
        }
        if let Err(message) = self.model.check_cut(net, &self.received) {
            net.fail(message);
        }
        let all_received = self.model.outstanding().is_none() && self.received.is_empty();
        let is_expected =
            self.finished && self.out.is_empty() && all_received && result == ReceiveResult::End;
        if !is_expected && !self.model.may_close() && !self.is_excused(net, &conn) {
            let outstanding = self.model.outstanding().unwrap_or_else(|| "nothing".to_owned());
            let (unsent, partial) = (self.out.len(), self.received.len());
            net.fail(format!(
                "the connection ended ({result:?}) with {unsent} bytes unsent and {partial} bytes of an \
                 incomplete reply; outstanding: {outstanding}"
            ));
        }
        net.close(conn);
        Next::Ready
    }

    fn exchange(&mut self, net: &mut Net<'_>, conn: PeerConn) -> Next {
        if self.ending == Ending::Reset && net.once_in(30) {
            net.reset(conn);
            return Next::Ready;
        }
        let mut progressed = false;
        if self.requests > 0 && self.out.len() < MAX_UNSENT_BYTES && !net.once_in(3) {
            let more = self.model.next_request(net, &mut self.out);
            self.shared.requests.update(|n| n + 1);
            self.requests = if more && !net.is_late() { self.requests - 1 } else { 0 };
            progressed = true;
        }
        if !self.out.is_empty() {
            let max = if net.once_in(4) { 1 + net.below(self.out.len()) } else { self.out.len() };
            let sent = net.send(&conn, &self.out[..max]);
            self.out.drain(..sent);
            progressed |= sent > 0;
        }
        let max = [1, 10, 1_000, 100_000][net.below(4)];
        match net.receive(&conn, max, &mut self.received) {
            ReceiveResult::Bytes(_) => match self.model.check_replies(net, &conn, &self.received) {
                Ok(n) => {
                    self.received.drain(..n);
                    self.is_served = true;
                    progressed = true;
                }
                Err(message) => net.fail(message),
            },
            ReceiveResult::Nothing => {}
            result @ (ReceiveResult::End | ReceiveResult::Reset) => {
                return self.ended(net, conn, result);
            }
        }
        if self.requests == 0 && self.out.is_empty() && !self.finished {
            if self.ending == Ending::Finish {
                net.finish(&conn);
                self.finished = true;
                progressed = true;
            } else if self.model.outstanding().is_none() {
                net.close(conn);
                return Next::Ready;
            }
        }
        let may_hang = self.may_hang(net);
        if progressed {
            self.last_progress = net.now();
        } else if may_hang && net.now() > self.last_progress + DISK_TIMEOUT {
            net.note(|| "does not wait for the disk any longer".to_owned());
            net.close(conn);
            return Next::Ready;
        }
        self.conn = Some(conn);
        match progressed || self.requests > 0 && self.out.len() < MAX_UNSENT_BYTES {
            true => Next::Ready,
            false if self.ending == Ending::Reset => Next::After(Duration::from_millis(1)),
            false if may_hang => Next::After(DISK_TIMEOUT / 2),
            false => Next::Wait,
        }
    }
}

impl<D: ProtocolModel> Peer for Client<D> {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        match self.conn.take() {
            None => self.open(net),
            Some(conn) => self.exchange(net, conn),
        }
    }

    fn waits_for(&self) -> String {
        let outstanding = self.model.outstanding().unwrap_or_else(|| "nothing".to_owned());
        let place = match (&self.conn, self.finished) {
            (None, _) => "not connected",
            (Some(_), false) => "connected",
            (Some(_), true) => "connected, sending side shut down",
        };
        format!("{place}, {} bytes unsent, outstanding {outstanding}", self.out.len())
    }
}
