//! Fuzzes sessions of the memcached server: bounds hold for all input, and the replies do not depend
//! on how the bytes are split, unless a line is so long that it has to arrive whole.
#![no_main]

use std::time::Duration;

use kv::{Clock, Database, Limits, Next, Session};

/// A clock that does not advance.
struct FixedClock;

impl Clock for FixedClock {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn unix(&self) -> Duration {
        Duration::from_secs(1_700_000_000)
    }
}

/// Returns the replies of a server with little memory to `bytes` in pieces of `size` bytes.
fn replies(bytes: &[u8], size: usize) -> Vec<u8> {
    let limits = Limits { memory: 64 << 10, max_item: 16 << 10, ..Limits::default() };
    let mut database = Database::new(limits, 7).expect("64 KiB can be allocated");
    let (mut session, mut unused, mut out) = (Session::default(), Vec::new(), Vec::new());
    let mut all = Vec::new();
    'session: for piece in bytes.chunks(size) {
        unused.extend_from_slice(piece);
        loop {
            let (used, next) = session.serve(&mut database, &FixedClock, &unused, &mut out);
            unused.drain(..used);
            assert!(out.len() <= Session::OUTPUT + (8 << 10));
            all.append(&mut out);
            match next {
                Next::Output => {}
                Next::Input => break,
                Next::Close => break 'session,
            }
        }
        assert!(unused.len() <= Session::MAX_UNUSED);
    }
    session.end(&mut database);
    all
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let pieces = replies(bytes, usize::from(*size) + 1);
    let whole = replies(bytes, bytes.len().max(1));
    if bytes.split(|byte| *byte == b'\n').all(|line| line.len() <= Session::MAX_LINE) {
        assert_eq!(pieces, whole);
    }
});
