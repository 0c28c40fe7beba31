//! The origin server behind a proxy, an echo server.

use evring_sim::{Net, Next, Peer, PeerConn, ReceiveResult};

/// An echo server that serves until the end of the run.
#[derive(Default)]
pub(super) struct Origin {
    sessions: Vec<Session>,
}

struct Session {
    conn: PeerConn,
    held: Vec<u8>,
    ended: bool,
}

impl Session {
    /// Receives and sends. Returns whether it made progress, and whether the session is over.
    fn advance(&mut self, net: &mut Net<'_>) -> (bool, bool) {
        let mut progressed = false;
        if self.held.len() < 2_000 && !self.ended {
            let max = [1, 100, 5_000][net.below(3)];
            match net.receive(&self.conn, max, &mut self.held) {
                ReceiveResult::Bytes(_) => progressed = true,
                ReceiveResult::Nothing => {}
                ReceiveResult::End => (self.ended, progressed) = (true, true),
                ReceiveResult::Reset => return (true, true),
            }
        }
        if !self.held.is_empty() {
            let sent = net.send(&self.conn, &self.held);
            self.held.drain(..sent);
            progressed |= sent > 0;
            if sent == 0 && self.ended && net.is_broken(&self.conn) {
                return (true, true);
            }
        }
        (progressed, self.ended && self.held.is_empty())
    }
}

impl Peer for Origin {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let mut progressed = false;
        while let Some(conn) = net.accept() {
            self.sessions.push(Session { conn, held: Vec::new(), ended: false });
            progressed = true;
        }
        let mut at = 0;
        while at < self.sessions.len() {
            let (has_progressed, is_done) = self.sessions[at].advance(net);
            progressed |= has_progressed;
            if is_done {
                net.close(self.sessions.swap_remove(at).conn);
            } else {
                at += 1;
            }
        }
        if progressed { Next::Ready } else { Next::Wait }
    }

    fn waits_for(&self) -> String {
        format!("a server with {} connections", self.sessions.len())
    }
}
