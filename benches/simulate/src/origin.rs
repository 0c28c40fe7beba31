//! The server behind a proxy: it sends back what it gets.

use shared_ring::sim::{Net, Next, Peer, PeerConn, ReceiveResult};

/// A server that echoes, for as long as the run goes.
#[derive(Default)]
pub(super) struct Origin {
    lines: Vec<Talk>,
}

struct Talk {
    line: PeerConn,
    held: Vec<u8>,
    ended: bool,
}

impl Talk {
    /// Goes on; whether anything moved, and whether it is over.
    fn go_on(&mut self, net: &mut Net<'_>) -> (bool, bool) {
        let mut moved = false;
        if self.held.len() < 2_000 && !self.ended {
            let most = [1, 100, 5_000][net.below(3)];
            match net.receive(&self.line, most, &mut self.held) {
                ReceiveResult::Bytes(_) => moved = true,
                ReceiveResult::Nothing => {}
                ReceiveResult::End => (self.ended, moved) = (true, true),
                ReceiveResult::Reset => return (true, true),
            }
        }
        if !self.held.is_empty() {
            let sent = net.send(&self.line, &self.held);
            self.held.drain(..sent);
            moved |= sent > 0;
            if sent == 0 && self.ended && net.is_broken(&self.line) {
                return (true, true);
            }
        }
        (moved, self.ended && self.held.is_empty())
    }
}

impl Peer for Origin {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let mut moved = false;
        while let Some(line) = net.accept() {
            self.lines.push(Talk { line, held: Vec::new(), ended: false });
            moved = true;
        }
        let mut at = 0;
        while at < self.lines.len() {
            let (more, over) = self.lines[at].go_on(net);
            moved |= more;
            if over {
                net.close(self.lines.swap_remove(at).line);
            } else {
                at += 1;
            }
        }
        if moved { Next::Ready } else { Next::Wait }
    }

    fn waits_for(&self) -> String {
        format!("a server with {} connections", self.lines.len())
    }
}
