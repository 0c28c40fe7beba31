//! Connections whose sockets have room for all of a file take turns.

use crate::cold_files::By;
use crate::downloader::{Downloader, config, machine};
use crate::sends_file::SendsFile;

use std::cell::RefCell;

use evring::files::File;
use evring::send_policy::{SendPolicy, SendResult, SendState, SendStep};
use evring::{Chunk, Close, Commands, ConnId};

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

#[test]
fn connection_sends_one_long_piece_of_a_file_per_turn() {
    for by in By::ALL {
        SENT.take();
        let machine = machine(FILE_BYTES, |p| p.room = Some(2 * FILE_BYTES as usize));
        let config = config(|c| c.send_policy = Some(|| Box::new(NotesPieces)));
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
        let ends = [(); 2].map(|()| Downloader::add(&machine, FILE_BYTES, None));
        by.serve(&machine, &config, app, |_| {}).unwrap();
        assert_eq!(machine.verdict().failure, None, "{by:?}");
        assert!(ends.iter().all(|end| end.get().unwrap().bytes == FILE_BYTES), "{by:?}");
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

#[test]
fn each_completion_of_a_turn_sent_another_piece() {
    const PIECE: u64 = File::MAX_PIECE_BYTES;
    const PARTS: u64 = 9;
    for by in By::ALL {
        SENT.take();
        let machine = machine(PARTS * PIECE, |p| p.room = Some(2 * (PARTS * PIECE) as usize));
        let config = config(|c| c.send_policy = Some(|| Box::new(NotesPieces)));
        let (mut first, mut parts) = (None, 0);
        // The files of all clients are opened in one turn. Each adds a part to what the first one gets.
        let app = SendsFile {
            send: |io: &mut dyn Commands, id, file: File| {
                let to = *first.get_or_insert(id);
                io.send(to, Chunk::File(file, parts * PIECE..(parts + 1) * PIECE));
                parts += 1;
                for (id, ends) in [(id, id != to), (to, parts == PARTS)] {
                    if ends {
                        io.close(id, Close::Flush);
                    }
                }
            },
            closed: |_| {},
        };
        let ends: Vec<_> =
            (0..PARTS).map(|_| Downloader::add(&machine, PARTS * PIECE, None)).collect();
        let mut longest = 0;
        let at_turn = |_: &_| {
            let sent = SENT.take().iter().map(|(_, bytes)| u64::from(*bytes)).sum();
            longest = longest.max(sent);
        };
        by.serve(&machine, &config, app, at_turn).unwrap();
        assert_eq!(machine.verdict().failure, None, "{by:?}");
        let received: u64 = ends.iter().map(|end| end.get().unwrap().bytes).sum();
        assert_eq!(received, PARTS * PIECE, "{by:?}");
        assert!(longest <= 2 * PIECE, "{by:?}: {longest}");
    }
}
