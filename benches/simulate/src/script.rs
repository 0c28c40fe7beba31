//! A client that does what bytes say, for a fuzzer to write them.
//!
//! The first bytes choose the mechanism, the machine and the configuration; each further pair is a thing
//! to do on one of a few connections, and a number. When they are used up the client sends what is left
//! to be sent, ends its side of each connection, and hears the server out.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use evring::{Config, RemoteHandle};
use shared_ring::sim::{Fault, Faults, Net, Next, Peer, PeerConn, Plan, ReceiveResult};

use super::case::{Case, Mechanism, Program};
use super::http::Browsing;
use super::talker::{Dialogue, Shared};

/// How many connections there may be at a time.
const LINES: usize = 4;

/// Steps for each byte, before which nothing ends by itself.
const STEPS: u64 = 8;

/// Longer than this a client does nothing only if the server may lose its patience with it.
const PATIENCE: Duration = Duration::from_millis(5);

/// No more than so many bytes are used.
const MOST: usize = 4_000;

/// What bytes say.
pub(super) struct Script {
    bytes: VecDeque<u8>,
}

impl Script {
    /// Reads the case and the configuration, and keeps the rest.
    pub(super) fn read(bytes: &[u8]) -> (Case, Config, Self) {
        let mut script = Script { bytes: bytes.iter().copied().take(MOST).collect() };
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
        let plan = Plan {
            seed,
            steps: 100 + STEPS * script.bytes.len() as u64,
            faults,
            descriptors: [8, 12, 1_000, 1_000][script.below(4)],
            room: [None, Some(64), Some(300), Some(4_000)][script.below(4)],
            ..Plan::default()
        };
        let config = Config {
            max_connections: [1, 2, 3, 1_000][script.below(4)],
            max_queued_bytes: 300_000,
            backlog: [1, 100][script.below(2)],
            buffers: [1, 4, 16, 64][script.below(4)],
            buffer_size: [1, 16, 512, 2_048][script.below(4)],
            linger_timeout: Duration::from_millis([10, 2_000][script.below(2)]),
            progress_interval: Duration::from_millis([200, 30_000][script.below(2)]),
            drain_timeout: Duration::from_millis([10, 10_000][script.below(2)]),
            // Clients would take it for a failure to be refused.
            admission: None,
            ..Config::default()
        };
        (Case { program: Program::Httpd, mechanism, clients: 1, plan }, config, script)
    }

    /// The client of a server that has room for so many connections.
    pub(super) fn player(&self, server: SocketAddr, most: u32, remote: RemoteHandle) -> Player {
        let bytes = self.bytes.clone();
        let lines = [const { None }; LINES];
        let shared = Shared::default();
        shared.crowded.set((most as usize) < LINES);
        Player { script: Script { bytes }, server, remote, shared, lines, next: 0 }
    }

    /// A number below `n`, by the next byte; 0 when there is none left.
    fn below(&mut self, n: usize) -> usize {
        usize::from(self.bytes.pop_front().unwrap_or(0)) % n
    }
}

/// A client that follows a [`Script`].
pub(super) struct Player {
    script: Script,
    server: SocketAddr,
    remote: RemoteHandle,
    shared: Shared,
    lines: [Option<Talk>; LINES],
    /// The connection that has its turn when the script is over.
    next: usize,
}

/// A connection of such a client.
struct Talk {
    line: PeerConn,
    dialogue: Browsing,
    /// What is to be sent.
    out: Vec<u8>,
    heard: Vec<u8>,
    /// Everything that was said makes sense: it is known what is owed for it.
    sound: bool,
    /// No more may be asked: what was asked last ends the connection.
    asked_last: bool,
    finished: bool,
}

impl Talk {
    fn send(&mut self, net: &mut Net<'_>, most: usize) -> bool {
        if self.finished || self.out.is_empty() {
            return false;
        }
        let sent = net.send(&self.line, &self.out[..most.min(self.out.len())]);
        self.out.drain(..sent);
        sent > 0
    }

    /// Tells the server that no more will be sent. What was not sent is not owed.
    fn finish(&mut self, net: &mut Net<'_>) {
        self.sound &= self.out.is_empty();
        self.out.clear();
        self.finished = true;
        net.finish(&self.line);
    }

    /// Receives some.
    fn receive(&mut self, net: &mut Net<'_>, most: usize) -> ReceiveResult {
        let got = net.receive(&self.line, most, &mut self.heard);
        if let ReceiveResult::Bytes(_) = got {
            let heard = match self.sound {
                true => self.dialogue.hear(net, &self.line, &self.heard),
                false => well_formed(&self.heard),
            };
            match heard {
                Ok(n) => drop(self.heard.drain(..n)),
                Err(what) => net.fail(what),
            }
        }
        got
    }

    /// The connection is over: was all said that was owed?
    fn ended(&mut self, net: &mut Net<'_>, got: ReceiveResult, shared: &Shared) {
        let made_room = shared.crowded.get() && self.heard.is_empty();
        let excused = self.dialogue.is_excused(net) || made_room || shared.stopping.get();
        if !self.sound || excused || net.is_disrupted(&self.line) {
            return;
        }
        let heard_out = self.dialogue.owed().is_none() && self.heard.is_empty();
        let asked_to = self.finished && heard_out && got == ReceiveResult::End;
        if !asked_to && !self.dialogue.may_end() {
            let owed = self.dialogue.owed().unwrap_or_else(|| "nothing".to_owned());
            net.fail(format!("a connection ended ({got:?}); owed is {owed}"));
        }
    }
}

/// How long whole replies are at the front, to whatever was asked; HEAD is not asked any more, but its
/// reply may be the first.
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
                // To HEAD there is none.
                let none = body.starts_with(b"HTTP/1.1 ");
                let len = if none { 0 } else { len };
                if body.len() < len {
                    break;
                }
                used += head + len;
            }
            Ok(httparse::Status::Partial) => break,
            Err(error) => {
                let all = &bytes[used..];
                let all = all[..all.len().min(100)].escape_ascii();
                return Err(format!("no reply: {error}: {all}"));
            }
        }
    }
    Ok(used)
}

impl Player {
    /// Does the next thing.
    fn act(&mut self, net: &mut Net<'_>) -> Next {
        let op = self.script.below(1 << 8);
        let number = self.script.below(1 << 8);
        let at = op / 64 % LINES;
        let Player { script, lines, shared, server, remote, .. } = self;
        let place = &mut lines[at];
        let Some(talk) = place else {
            if let Some(line) = net.connect(*server) {
                *place = Some(Talk {
                    line,
                    dialogue: Browsing::new(shared),
                    out: Vec::new(),
                    heard: Vec::new(),
                    sound: true,
                    asked_last: false,
                    finished: false,
                });
            }
            return Next::Ready;
        };
        match op % 16 {
            0..5 if !talk.finished && !talk.asked_last && talk.sound => {
                for _ in 0..if number >= 240 { number - 239 } else { 1 } {
                    let more = talk.dialogue.request(&mut |n| script.below(n), &mut talk.out);
                    talk.asked_last = !more;
                    if talk.asked_last {
                        break;
                    }
                }
                talk.send(net, usize::MAX);
            }
            // Anything at all.
            5 | 6 if !talk.finished && !talk.asked_last => {
                talk.sound = false;
                talk.out.extend((0..number).map_while(|_| script.bytes.pop_front()));
                talk.send(net, usize::MAX);
            }
            7 | 8 => drop(talk.send(net, 1 + number)),
            9 => talk.finish(net),
            10 => {
                if let Some(talk) = place.take() {
                    net.reset(talk.line);
                }
            }
            11 => {
                if let Some(talk) = place.take() {
                    net.close(talk.line);
                }
            }
            12 => {
                let time = Duration::from_micros((number * number * number / 4) as u64);
                return if time > PATIENCE { net.stall(time) } else { Next::After(time) };
            }
            13 if number > 250 => {
                shared.stopping.set(true);
                remote.stop();
            }
            13 => drop(remote.wake(number as u64)),
            _ => {
                let got = talk.receive(net, 1 << (number % 17));
                if let ReceiveResult::End | ReceiveResult::Reset = got {
                    talk.ended(net, got, shared);
                    if let Some(talk) = place.take() {
                        net.close(talk.line);
                    }
                }
            }
        }
        Next::Ready
    }

    /// Comes to an end with each connection, when the script is over.
    fn end(&mut self, net: &mut Net<'_>) -> Next {
        let mut moved = false;
        for _ in 0..LINES {
            self.next = (self.next + 1) % LINES;
            let place = &mut self.lines[self.next];
            let Some(talk) = place else { continue };
            moved |= talk.send(net, usize::MAX);
            if talk.out.is_empty() && !talk.finished {
                talk.finish(net);
                moved = true;
            }
            match talk.receive(net, 100_000) {
                ReceiveResult::Bytes(_) => moved = true,
                ReceiveResult::Nothing => {}
                got => {
                    talk.ended(net, got, &self.shared);
                    if let Some(talk) = place.take() {
                        net.close(talk.line);
                    }
                    moved = true;
                }
            }
        }
        match self.lines.iter().all(Option::is_none) {
            true => Next::Done,
            false if moved => Next::Ready,
            false => Next::Wait,
        }
    }
}

impl Peer for Player {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        if self.script.bytes.is_empty() { self.end(net) } else { self.act(net) }
    }

    fn waits_for(&self) -> String {
        let owed = |talk: &Talk| talk.dialogue.owed().filter(|_| talk.sound).unwrap_or_default();
        let owed: Vec<_> = self.lines.iter().flatten().map(owed).collect();
        format!("one that follows a script, with {} connections, owed {owed:?}", owed.len())
    }
}
