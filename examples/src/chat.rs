//! A chat: every line goes to all clients of all workers.

use std::sync::Arc;
use std::time::Duration;

use evring::mailbox::{Mailbox, SendError, Sender};
use evring::{Application, Chunk, Close, Commands, Cx, HIGH_WATER, Others, RemoteHandle, Rx};

/// Interval of the [`Chat`]'s own lines.
const TICK: Duration = Duration::from_secs(60);

/// Maximum length of a line in bytes.
const MAX_LINE: usize = 1024;

/// Lines that may wait for a worker.
const WAITING: usize = 256;

/// A worker of a chat. A client that reads slowly misses lines, and so does a worker whose mailbox is full.
#[derive(Debug)]
pub struct Chat {
    mailbox: Mailbox<Arc<str>>,
    peers: Vec<Sender<Arc<str>>>,
    missed: u64,
    is_ticking: bool,
}

/// State of a client: whether it has sent a line, and so receives those of others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Joined(bool);

impl Chat {
    /// Creates the workers for these mechanisms.
    pub fn workers(remotes: &[RemoteHandle]) -> Vec<Chat> {
        let boxes = remotes.iter().map(|remote| Mailbox::new(remote, 0, WAITING));
        let (mailboxes, senders): (Vec<_>, Vec<_>) = boxes.unzip();
        let worker = |(own, mailbox)| {
            let mut peers = senders.clone();
            peers.remove(own);
            Chat { mailbox, peers, missed: 0, is_ticking: false }
        };
        mailboxes.into_iter().enumerate().map(worker).collect()
    }

    /// Sends a line to the clients of this worker.
    fn broadcast(&mut self, io: &mut impl Commands, all: &mut Others<'_, Joined>, line: &str) {
        all.for_each(io, |io, id, joined| {
            if joined.0 && io.send(id, Chunk::Copy(line.as_bytes())) >= HIGH_WATER {
                // It gets no lines until its queue has drained.
                joined.0 = false;
                self.missed += 1;
            }
        });
    }
}

impl Application for Chat {
    type State = Joined;
    const MAX_UNCONSUMED: usize = MAX_LINE;

    fn received(&mut self, mut x: Cx<'_, impl Commands, Joined>, rx: &mut Rx<'_>) {
        // A client that does not read joins again when its queue has drained.
        x.state.0 |= x.io.queued_bytes(x.id) < HIGH_WATER as u64;
        if !std::mem::replace(&mut self.is_ticking, true) {
            x.io.set_timer(0, Some(x.io.now() + TICK)).expect("max_timers is at least 1");
        }
        // What is longer stays unconsumed, and the connection is closed.
        let end = |bytes: &[u8]| bytes.iter().take(MAX_LINE).position(|byte| *byte == b'\n');
        while let Some(end) = end(rx.bytes()) {
            let line: Arc<str> = String::from_utf8_lossy(&rx.bytes()[..=end]).into();
            rx.consume(end + 1);
            let queued = x.io.send(x.id, Chunk::Copy(line.as_bytes()));
            self.broadcast(x.io, &mut x.others, &line);
            for peer in &self.peers {
                self.missed +=
                    u64::from(matches!(peer.send(line.clone()), Err(SendError::Full(_))));
            }
            if queued >= HIGH_WATER {
                // The rest, and the end, are passed again after a resume.
                return x.io.set_receiving(x.id, false);
            }
        }
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, Joined>) {
        x.state.0 = true;
        x.io.set_receiving(x.id, true);
    }

    fn woken(&mut self, io: &mut impl Commands, mut all: Others<'_, Joined>, _: u64) {
        let lines: Vec<_> = self.mailbox.drain().collect();
        lines.iter().for_each(|line| self.broadcast(io, &mut all, line));
    }

    fn timer(&mut self, io: &mut impl Commands, mut all: Others<'_, Joined>, _: u32) {
        let line = format!("{} lines missed\n", self.missed);
        self.broadcast(io, &mut all, &line);
        io.set_timer(0, Some(io.now() + TICK)).expect("the timer exists");
    }
}
