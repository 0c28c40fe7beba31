//! Bytes that are held for all connections together, on every mechanism.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use evring::__private::Usage;
use evring::files::{Access, FileOp, FileOutcome, FilePath};
use evring::sockets::BufferSizes;
use evring::{Application, Chunk, CloseReason, Commands, Cx, Others, RemoteHandle, Root, Rx};

use crate::server::{Server, listening, next, side_by_side};

/// Pauses at once, so that received bytes are kept, and reports the close reasons.
pub(crate) struct Pauses(pub(crate) Sender<CloseReason>);

impl Application for Pauses {
    type State = ();
    const MAX_UNCONSUMED: usize = 1024;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, _rx: &mut Rx<'_>) {
        x.io.set_receiving(x.id, false);
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.0.send(reason).unwrap();
    }
}

#[test]
fn unconsumed_bytes_of_all_connections_were_unbounded() {
    const MAX_HELD: usize = 64 * 1024;
    side_by_side(|name| {
        let (ended, receiver) = mpsc::channel();
        let config = listening(1).with(|c| c.max_buffered_bytes = MAX_HELD);
        let server = Server::start(name, config, move || Pauses(ended));
        // Each keeps a few KiB, which exceeds the maximum.
        let mut clients: Vec<_> = (0..40).map(|_| server.connect()).collect();
        for client in &mut clients {
            // The server may have closed it already.
            let _ = client.write_all(&[7; 4096]);
        }
        assert!(matches!(next(&receiver), CloseReason::Overrun));
        drop(clients);
        let stats = server.stop();
        assert!((1..40).contains(&stats.overruns), "{name}: {} overruns", stats.overruns);
    });
}

/// The callback that resumes a connection.
#[derive(Clone, Copy)]
enum ResumedBy {
    Deadline,
    WakeUp,
    FileOperation,
}

/// Consumes a byte of what has come and pauses, again and again. Reports the largest number of bytes.
struct ResumesLater {
    by: ResumedBy,
    remote: RemoteHandle,
    max: usize,
    rounds: u32,
    result: Sender<usize>,
}

impl ResumesLater {
    /// Enough for a tail that grows to exceed its bound.
    const ROUNDS: u32 = 100;
}

impl Application for ResumesLater {
    type State = ();
    const MAX_UNCONSUMED: usize = 1024;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        self.max = self.max.max(rx.bytes().len());
        rx.consume(1.min(rx.bytes().len()));
        self.rounds += 1;
        if self.rounds == Self::ROUNDS {
            self.result.send(self.max).unwrap();
        }
        x.io.set_receiving(x.id, false);
        match self.by {
            ResumedBy::Deadline => {
                let now = x.io.now();
                x.io.set_deadline(x.id, Some(now));
            }
            ResumedBy::WakeUp => assert!(self.remote.wake(0)),
            ResumedBy::FileOperation => {
                x.io.file_op(x.id, 0, FileOp::Stat((Root(0), FilePath::new("absent"))));
            }
        }
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, ()>) {
        x.io.set_receiving(x.id, true);
    }

    fn woken(&mut self, io: &mut impl Commands, _: Others<'_, ()>, _: u64) {
        if let Some(id) = io.next_open(0) {
            io.set_receiving(id, true);
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _: u32, _: io::Result<FileOutcome>) {
        x.io.set_receiving(x.id, true);
    }
}

#[test]
fn each_resume_added_a_buffer_to_the_unconsumed_bytes() {
    const BUFFERS: u16 = 16;
    let root = tempfile::tempdir().unwrap();
    side_by_side(|name| {
        for by in [ResumedBy::Deadline, ResumedBy::WakeUp, ResumedBy::FileOperation] {
            let (result, max) = mpsc::channel();
            let config = listening(1).with(|c| {
                (c.buffers, c.buffer_size) = (BUFFERS, 512);
                c.roots = vec![root.path().to_owned()];
            });
            let (server, ()) = Server::start_with(name, config, move |server| {
                let remote = server.remote();
                (ResumesLater { by, remote, max: 0, rounds: 0, result }, ())
            });
            let mut client = server.connect();
            let writes = thread::spawn(move || {
                // Until the server resets it.
                while client.write_all(&[7; 4096]).is_ok() {}
            });
            // On a ring, all buffers may land before a pause takes effect.
            let max = next(&max);
            assert!(
                max <= ResumesLater::MAX_UNCONSUMED + usize::from(BUFFERS) * 512,
                "{name}: {max} bytes"
            );
            server.stop();
            writes.join().unwrap();
        }
    });
}

/// Data queued for a client that does not read.
enum Queued {
    Copies,
    Pieces,
    Files,
}

/// Queues more data than permitted.
struct Queues {
    what: Queued,
    ended: Sender<CloseReason>,
}

impl Application for Queues {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        // More than the socket buffers take at once.
        match self.what {
            Queued::Copies => drop(x.io.send(x.id, Chunk::Copy(&vec![7; 12 << 20]))),
            Queued::Pieces => {
                for _ in 0..120_000 {
                    x.io.send(x.id, Chunk::Static(&[7; 100]));
                }
            }
            Queued::Files => {
                x.io.file_op(x.id, 0, FileOp::Open((Root(0), FilePath::new("file")), Access::Read))
            }
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        let Ok(FileOutcome::Opened(opened)) = done else { panic!("{done:?}") };
        let file = opened.0;
        for at in 0..1_000 {
            x.io.send(x.id, Chunk::File(file.clone(), at..at + 1));
        }
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.ended.send(reason).unwrap();
    }
}

/// Queues data with a low maximum for all connections.
fn queue_too_much(name: &'static str, what: Queued) {
    let (ended, receiver) = mpsc::channel();
    let sockets = BufferSizes { send: Some(16 * 1024), receive: None };
    let config = listening(1).with(|c| {
        c.max_buffered_bytes = 64 * 1024;
        c.socket_buffers = sockets;
    });
    let server = Server::start(name, config, move || Queues { what, ended });
    let mut client = server.connect();
    client.write_all(b"x").unwrap();
    assert!(matches!(next(&receiver), CloseReason::Overrun), "{name}");
    drop(client);
    assert_eq!(server.stop().overruns, 1);
}

#[test]
fn queued_copies_of_all_connections_were_unbounded() {
    side_by_side(|name| queue_too_much(name, Queued::Copies));
}

#[test]
fn references_to_shared_bytes_were_not_counted() {
    side_by_side(|name| queue_too_much(name, Queued::Pieces));
}

#[test]
fn queued_files_were_unbounded() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), vec![7; 4096]).unwrap();
    side_by_side(|name| {
        let (ended, receiver) = mpsc::channel();
        let config = listening(1).with(|c| c.roots = vec![root.path().to_owned()]);
        let server = Server::start(name, config, move || Queues { what: Queued::Files, ended });
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        assert!(matches!(next(&receiver), CloseReason::Overrun), "{name}");
        drop(client);
        assert_eq!(server.stop().overruns, 1);
    });
}

/// Answers each message, and pauses for a moment, so that the next one arrives meanwhile.
struct Hesitates;

impl Application for Hesitates {
    type State = ();
    const MAX_UNCONSUMED: usize = 1024;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.consume(rx.bytes().len());
        x.io.send(x.id, Chunk::Copy(b"y"));
        x.io.set_receiving(x.id, false);
        x.io.set_deadline(x.id, Some(x.io.now() + Duration::from_millis(2)));
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, ()>) {
        x.io.set_receiving(x.id, true);
    }
}

#[test]
fn each_message_that_arrived_in_a_pause_left_another_spare_buffer() {
    side_by_side(|name| {
        let (first, max) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let [before, most] = [&first, &max].map(Arc::clone);
        let inspect = move |usage: &Usage| {
            let _ = before.compare_exchange(0, usage.spare, Ordering::Relaxed, Ordering::Relaxed);
            most.fetch_max(usage.spare, Ordering::Relaxed);
        };
        let server = Server::start_inspected(name, listening(1), || Hesitates, inspect);
        let mut client = server.connect();
        for _ in 0..200 {
            client.write_all(b"x").unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
        drop(client);
        server.stop();
        let [first, max] = [first, max].map(|spare| spare.load(Ordering::Relaxed));
        assert!(max <= first + 4, "{name}: {first}, then {max}");
    });
}
