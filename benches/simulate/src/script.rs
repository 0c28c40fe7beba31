//! A client that bytes control, for fuzzing.
//!
//! The first bytes choose the mechanism, the machine and the configuration. Each further pair is an
//! action on one of a few connections, and its argument. After the last one, the client sends the
//! rest, shuts down the sending side of each connection and receives the remaining replies.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use evring::{Config, RemoteHandle};
use evring_sim::{Fault, Faults, Net, Next, Peer, PeerConn, Plan, ReceiveResult};

use super::case::{Case, Program};
use super::choices::Choices;
use super::http::HttpModel;
use super::mechanism::Mechanism;
use super::run::SHORT_MEMORY_BYTES;
use super::talker::{DISK_TIMEOUT, ProtocolModel, Shared};

/// Maximum number of connections at a time.
const MAX_CONNECTIONS: usize = 4;

/// Planned steps for each byte.
const STEPS_PER_BYTE: u64 = 8;

/// A longer pause may exceed a timeout of the server, and counts as a stall.
const MAX_PAUSE: Duration = Duration::from_millis(5);

/// Maximum number of bytes used.
const MAX_BYTES: usize = 4_000;

/// The bytes of a script.
pub(super) struct Script {
    bytes: VecDeque<u8>,
}

impl Script {
    /// Decodes the case and the configuration, and keeps the remaining bytes.
    pub(super) fn read(bytes: &[u8]) -> (Case, Config, Self) {
        let mut script = Script { bytes: bytes.iter().copied().take(MAX_BYTES).collect() };
        let mechanism = Mechanism::ALL[script.below(Mechanism::ALL.len())];
        let seed = script.below(1 << 8) as u64 * 12 + script.below(12) as u64;
        let mut faults = Faults::NONE;
        for byte in 0..Fault::COUNT.div_ceil(8) {
            let bits = script.below(1 << 8);
            let of_byte = Fault::ALL.into_iter().skip(8 * byte).take(8);
            faults = of_byte
                .enumerate()
                .filter(|(bit, _)| bits >> bit & 1 == 1)
                .fold(faults, |faults, (_, fault)| faults.with(fault));
        }
        let mut plan = Plan::default();
        plan.seed = seed;
        plan.steps = 100 + STEPS_PER_BYTE * script.bytes.len() as u64;
        plan.faults = faults;
        plan.descriptors = [8, 12, 1_000, 1_000][script.below(4)];
        plan.room = [None, Some(64), Some(300), Some(4_000)][script.below(4)];
        let mut config = Config::default();
        config.max_connections = [1, 2, 3, 1_000][script.below(4)];
        config.max_queued_bytes = 300_000;
        config.backlog = [1, 100][script.below(2)];
        config.buffers = [1, 4, 16, 64][script.below(4)];
        config.buffer_size = [1, 16, 512, 2_048][script.below(4)];
        config.linger_timeout = Duration::from_millis([10, 2_000][script.below(2)]);
        config.progress_interval = Duration::from_millis([200, 30_000][script.below(2)]);
        config.drain_timeout = Duration::from_millis([10, 10_000][script.below(2)]);
        if Choices::of(seed).is_short_of_memory {
            config.max_buffered_bytes = SHORT_MEMORY_BYTES;
        }
        // Clients count a refused connection as a failure.
        config.admission = None;
        (Case { program: Program::Httpd, mechanism, clients: 1, plan }, config, script)
    }

    /// Returns the client of a server.
    pub(super) fn client(
        &self,
        server: SocketAddr,
        plan: &Plan,
        config: &Config,
        remote: RemoteHandle,
    ) -> ScriptClient {
        let bytes = self.bytes.clone();
        let sessions = [const { None }; MAX_CONNECTIONS];
        let shared = Shared::default();
        let is_crowded = (config.max_connections as usize) < MAX_CONNECTIONS;
        shared.crowded.set(is_crowded);
        shared.is_scarce.set(is_crowded || plan.descriptors < 100);
        shared.is_short_of_memory.set(config.max_buffered_bytes == SHORT_MEMORY_BYTES);
        let (script, last_progress) = (Script { bytes }, Duration::ZERO);
        ScriptClient { script, server, remote, shared, sessions, next: 0, last_progress }
    }

    /// Returns a number below `n` from the next byte; 0 after the last.
    fn below(&mut self, n: usize) -> usize {
        usize::from(self.bytes.pop_front().unwrap_or(0)) % n
    }
}

/// A client that follows a [`Script`].
pub(super) struct ScriptClient {
    script: Script,
    server: SocketAddr,
    remote: RemoteHandle,
    shared: Shared,
    sessions: [Option<Session>; MAX_CONNECTIONS],
    /// The session to continue after the end of the script.
    next: usize,
    /// The time of the last scripted step, or at which the client last sent or received.
    last_progress: Duration,
}

/// A connection of the client.
struct Session {
    conn: PeerConn,
    model: HttpModel,
    /// Bytes to send.
    out: Vec<u8>,
    received: Vec<u8>,
    /// All requests were valid, so the model predicts the replies.
    is_valid: bool,
    /// The last request closes the connection, so none may follow.
    is_last_request_sent: bool,
    finished: bool,
}

impl Session {
    fn send(&mut self, net: &mut Net<'_>, max: usize) -> bool {
        if self.finished || self.out.is_empty() {
            return false;
        }
        let sent = net.send(&self.conn, &self.out[..max.min(self.out.len())]);
        self.out.drain(..sent);
        sent > 0
    }

    /// Shuts down the sending side. Replies to unsent requests are not expected.
    fn finish(&mut self, net: &mut Net<'_>) {
        self.is_valid &= self.out.is_empty();
        self.out.clear();
        self.finished = true;
        net.finish(&self.conn);
    }

    /// Receives and checks replies.
    fn receive(&mut self, net: &mut Net<'_>, max: usize) -> ReceiveResult {
        let result = net.receive(&self.conn, max, &mut self.received);
        if let ReceiveResult::Bytes(_) = result {
            let checked = match self.is_valid {
                true => self.model.check_replies(net, &self.conn, &self.received),
                false => well_formed(&self.received),
            };
            match checked {
                Ok(n) => drop(self.received.drain(..n)),
                Err(message) => net.fail(message),
            }
        }
        result
    }

    /// Fails the run if the connection ended with replies outstanding, and no fault excuses that.
    fn ended(&mut self, net: &mut Net<'_>, result: ReceiveResult, shared: &Shared) {
        if self.is_valid
            && let Err(message) = self.model.check_cut(net, &self.received)
        {
            net.fail(message);
        }
        let evicted = shared.crowded.get() && self.received.is_empty();
        let excused = self.model.is_excused(net)
            || evicted
            || shared.stopping.get()
            || shared.is_short_of_memory.get();
        if !self.is_valid || excused || net.is_disrupted(&self.conn) {
            return;
        }
        let all_received = self.model.outstanding().is_none() && self.received.is_empty();
        let is_expected = self.finished && all_received && result == ReceiveResult::End;
        if !is_expected && !self.model.may_close() {
            let outstanding = self.model.outstanding().unwrap_or_else(|| "nothing".to_owned());
            net.fail(format!("a connection ended ({result:?}); outstanding: {outstanding}"));
        }
    }
}

/// Returns the length of the complete replies at the front, whatever the requests were. The reply to
/// an earlier HEAD request may come first.
fn well_formed(bytes: &[u8]) -> Result<usize, String> {
    let mut used = 0;
    while !bytes[used..].is_empty() {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut reply = httparse::Response::new(&mut fields);
        match reply.parse(&bytes[used..]) {
            Ok(httparse::Status::Complete(head)) => {
                let len =
                    reply.headers.iter().find(|f| f.name.eq_ignore_ascii_case("content-length"));
                let len =
                    len.and_then(|f| std::str::from_utf8(f.value).ok()?.parse::<usize>().ok());
                let status = reply.code.unwrap_or(0);
                let len = match len {
                    Some(len) => len,
                    None if matches!(status, 100 | 204 | 304) => 0,
                    None => return Err(format!("a reply {status} without Content-Length")),
                };
                let body = &bytes[used + head..];
                // A reply to HEAD has no body.
                let has_no_body = body.starts_with(b"HTTP/1.1 ");
                let len = if has_no_body { 0 } else { len };
                if body.len() < len {
                    break;
                }
                used += head + len;
            }
            Ok(httparse::Status::Partial) => break,
            Err(error) => {
                let invalid = &bytes[used..];
                let invalid = invalid[..invalid.len().min(100)].escape_ascii();
                return Err(format!("invalid reply: {error}: {invalid}"));
            }
        }
    }
    Ok(used)
}

impl ScriptClient {
    /// Executes the next action.
    fn execute(&mut self, net: &mut Net<'_>) -> Next {
        let op = self.script.below(1 << 8);
        let number = self.script.below(1 << 8);
        let at = op / 64 % MAX_CONNECTIONS;
        let ScriptClient { script, sessions, shared, server, remote, .. } = self;
        let slot = &mut sessions[at];
        let Some(session) = slot else {
            if let Some(conn) = net.connect(*server) {
                *slot = Some(Session {
                    conn,
                    model: HttpModel::new(shared),
                    out: Vec::new(),
                    received: Vec::new(),
                    is_valid: true,
                    is_last_request_sent: false,
                    finished: false,
                });
            }
            return Next::Ready;
        };
        match op % 16 {
            0..5 if !session.finished && !session.is_last_request_sent && session.is_valid => {
                for _ in 0..if number >= 240 { number - 239 } else { 1 } {
                    let more = session.model.request(&mut |n| script.below(n), &mut session.out);
                    session.is_last_request_sent = !more;
                    if session.is_last_request_sent {
                        break;
                    }
                }
                session.send(net, usize::MAX);
            }
            // Arbitrary bytes.
            5 | 6 if !session.finished && !session.is_last_request_sent => {
                session.is_valid = false;
                session.out.extend((0..number).map_while(|_| script.bytes.pop_front()));
                session.send(net, usize::MAX);
            }
            7 | 8 => drop(session.send(net, 1 + number)),
            9 => session.finish(net),
            10 => {
                if let Some(session) = slot.take() {
                    net.reset(session.conn);
                }
            }
            11 => {
                if let Some(session) = slot.take() {
                    net.close(session.conn);
                }
            }
            12 => {
                let time = Duration::from_micros((number * number * number / 4) as u64);
                return if time > MAX_PAUSE { net.stall(time) } else { Next::After(time) };
            }
            13 if number > 250 => {
                shared.stopping.set(true);
                remote.stop();
            }
            13 => drop(remote.wake(number as u64)),
            _ => {
                let result = session.receive(net, 1 << (number % 17));
                if let ReceiveResult::End | ReceiveResult::Reset = result {
                    session.ended(net, result, shared);
                    if let Some(session) = slot.take() {
                        net.close(session.conn);
                    }
                }
            }
        }
        Next::Ready
    }

    /// Finishes all sessions after the end of the script.
    fn finish(&mut self, net: &mut Net<'_>) -> Next {
        let mut progressed = false;
        for _ in 0..MAX_CONNECTIONS {
            self.next = (self.next + 1) % MAX_CONNECTIONS;
            let slot = &mut self.sessions[self.next];
            let Some(session) = slot else { continue };
            progressed |= session.send(net, usize::MAX);
            if session.out.is_empty() && !session.finished {
                session.finish(net);
                progressed = true;
            }
            match session.receive(net, 100_000) {
                ReceiveResult::Bytes(_) => progressed = true,
                ReceiveResult::Nothing => {}
                result => {
                    session.ended(net, result, &self.shared);
                    if let Some(session) = slot.take() {
                        net.close(session.conn);
                    }
                    progressed = true;
                }
            }
        }
        let may_hang = net.has_happened(Fault::DiskHangs);
        if progressed {
            self.last_progress = net.now();
        } else if may_hang && net.now() > self.last_progress + DISK_TIMEOUT {
            net.note(|| "does not wait for the disk any longer".to_owned());
            let is_scarce = self.shared.is_scarce.get();
            let may_wait = |session: &mut Session| {
                is_scarce || !session.is_valid || session.model.needs_disk()
            };
            for slot in &mut self.sessions {
                if let Some(session) = slot.take_if(may_wait) {
                    net.close(session.conn);
                }
            }
        }
        match self.sessions.iter().all(Option::is_none) {
            true => Next::Done,
            false if progressed => Next::Ready,
            false if may_hang => Next::After(DISK_TIMEOUT / 2),
            false => Next::Wait,
        }
    }
}

impl Peer for ScriptClient {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        if self.script.bytes.is_empty() {
            return self.finish(net);
        }
        self.last_progress = net.now();
        self.execute(net)
    }

    fn waits_for(&self) -> String {
        let outstanding = |session: &Session| {
            session.model.outstanding().filter(|_| session.is_valid).unwrap_or_default()
        };
        let outstanding: Vec<_> = self.sessions.iter().flatten().map(outstanding).collect();
        format!(
            "a scripted client with {} connections, outstanding {outstanding:?}",
            outstanding.len()
        )
    }
}
