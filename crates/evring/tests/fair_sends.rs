//! Connections whose sockets have room for all of a file take turns.

use crate::cold_files::By;
use crate::disk_file::contents;
use crate::sends_file::SendsFile;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use evring::files::File;
use evring::send_policy::{SendPolicy, SendResult, SendState, SendStep};
use evring::{Chunk, Close, Commands, Config, ConnId};
use evring_sim::{Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult};

const FILE_BYTES: u64 = 3 * File::MAX_PIECE_BYTES;

thread_local! {
    /// The pieces of files that were sent, in order.
    static SENT: RefCell<Vec<(ConnId, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Sends at once, in the longest pieces, and notes them.
struct NotesPieces;

impl SendPolicy for NotesPieces {
    fn next(&mut self, _: &SendState<'_>) -> SendStep {
        SendStep::Send { max_file_bytes: u32::MAX }
    }

    fn completed(&mut self, id: ConnId, result: SendResult) {
        if let SendResult::File(bytes) = result {
            SENT.with_borrow_mut(|sent| sent.push((id, bytes)));
        }
    }
}

/// A client that takes whatever arrives.
#[derive(Default)]
struct Client {
    line: Option<PeerConn>,
    received: Vec<u8>,
}

fn at() -> SocketAddr {
    "10.0.0.1:7".parse().unwrap()
}

impl Peer for Client {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let Some(line) = &self.line else {
            self.line = net.connect(at());
            if let Some(line) = &self.line {
                net.send(line, b"x");
            }
            return Next::After(Duration::from_micros(1));
        };
        match net.receive(line, FILE_BYTES as usize, &mut self.received) {
            ReceiveResult::Bytes(_) => return Next::Ready,
            ReceiveResult::Nothing => return Next::Wait,
            _ if self.received == contents(FILE_BYTES) => {}
            got => net.fail(format!("{got:?} after {} other bytes", self.received.len())),
        }
        net.close(self.line.take().expect("just used"));
        Next::Done
    }

    fn waits_for(&self) -> String {
        "a file".to_owned()
    }
}

#[test]
fn connection_sends_one_long_piece_of_a_file_per_turn() {
    for by in By::ALL {
        SENT.take();
        let machine = Machine::new(&Plan::default().with(|p| {
            p.seed = 1;
            p.faults = Faults::NONE;
            p.room = Some(2 * FILE_BYTES as usize);
            p.steps = 10_000_000;
        }));
        machine.add_file("site/file", contents(FILE_BYTES));
        let config = Config::default().with(|c| {
            c.listen = vec![at()];
            c.roots = vec!["/site".into()];
            c.send_policy = Some(|| Box::new(NotesPieces));
        });
        let mut waiting = Vec::new();
        // Both begin at once.
        let app = SendsFile {
            send: |io: &mut dyn Commands, id, file: File| {
                waiting.push((id, file));
                if waiting.len() == 2 {
                    for (id, file) in waiting.drain(..) {
                        io.send(id, Chunk::File(file, 0..FILE_BYTES));
                        io.close(id, Close::Flush);
                    }
                }
            },
            closed: |_| {},
        };
        machine.add_peer(Client::default());
        machine.add_peer(Client::default());
        by.serve(&machine, &config, app, |_| {}).unwrap();
        assert_eq!(machine.verdict().failure, None, "{by:?}");
        let sent = SENT.take();
        let longest = match by {
            By::FlexSc => File::BLOCK_BYTES,
            By::Ring | By::Engine => File::MAX_PIECE_BYTES,
        };
        assert_eq!(sent.len() as u64, 2 * FILE_BYTES / longest, "{by:?}: {sent:?}");
        assert!(sent.iter().all(|(_, bytes)| u64::from(*bytes) == longest));
        assert!(sent.windows(2).all(|pair| pair[0].0 != pair[1].0), "{by:?}: {sent:?}");
    }
}
