//! The last reply to a client that reads slowly or not at all, on every mechanism.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use evring::sockets::BufferSizes;
use evring::{Application, Chunk, Close, CloseReason, Commands, Cx, Listener, Rx};
use shared_ring::author::System;
use shared_ring::{Host, Linux};

use crate::listener::into_owned_fd;
use crate::replies_ok::LARGE;
use crate::server::{Server, TIMEOUT, listening, next, side_by_side};

/// Progress interval of a closing connection whose client does not read, or not enough.
const STALL: Duration = Duration::from_millis(800);

/// That of one whose client reads: longer than a busy machine stops this process.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends a reply to each client, closes, and reports the close reason.
struct Replies {
    len: usize,
    ended: Sender<CloseReason>,
}

impl Application for Replies {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        x.io.send(x.id, Chunk::Shared(vec![7; self.len].into()));
        x.io.close(x.id, Close::Flush);
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.ended.send(reason).unwrap();
    }
}

/// A server that sends `len` bytes through small socket buffers, and a client with a small one.
fn narrow(
    name: &'static str,
    len: usize,
    interval: Duration,
) -> (Server, TcpStream, Receiver<CloseReason>) {
    let (ended, receiver) = mpsc::channel();
    let sockets = BufferSizes { send: Some(16 * 1024), receive: None };
    let config = listening(1).with(|c| {
        c.progress_interval = interval;
        c.min_rate = 1;
        c.socket_buffers = sockets;
    });
    let server = Server::start(name, config, move || Replies { len, ended });
    let client = connect_narrow(&server);
    (server, client, receiver)
}

/// Connects a client with a small receive buffer.
pub(crate) fn connect_narrow(server: &Server) -> TcpStream {
    let mut host = Linux::default();
    let narrow = BufferSizes { send: None, receive: Some(16 * 1024) };
    let socket = host.socket(server.address, None, narrow).unwrap();
    // The connect may still be in flight; a read waits for it.
    // SAFETY: the socket stays open during the call.
    let _ = host.connect(unsafe { socket.fd() }, server.address);
    let client = TcpStream::from(into_owned_fd(socket));
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client
}

#[test]
fn slow_reader_got_only_part_of_the_last_reply() {
    // Less than one operation may send, so progress within an operation must count.
    const LEN: usize = 240_000;
    side_by_side(|name| {
        let (server, mut client, receiver) = narrow(name, LEN, PATIENCE);
        let (begin, mut got, mut piece) = (Instant::now(), 0, [0; 8192]);
        let end = loop {
            match client.read(&mut piece) {
                Ok(0) => break Ok(()),
                Ok(n) => got += n,
                Err(error) => break Err(error),
            }
            thread::sleep(Duration::from_millis(180));
        };
        assert!(end.is_ok() && got == LEN, "{name}: {got} bytes of {LEN}, then {end:?}");
        assert!(
            begin.elapsed() > 2 * PATIENCE,
            "{name}: the reader was not slow: {:?}",
            begin.elapsed()
        );
        let reason = next(&receiver);
        assert!(matches!(reason, CloseReason::Closed), "{name}: {reason:?}");
        server.stop();
    });
}

#[test]
fn stalled_reply_ended_like_a_complete_one() {
    // Much more than the socket buffers of both ends hold.
    const LEN: usize = 8 << 20;
    side_by_side(|name| {
        let begin = Instant::now();
        let (server, mut client, receiver) = narrow(name, LEN, STALL);
        let reason = next(&receiver);
        assert!(matches!(reason, CloseReason::Failed(_)), "{name}: {reason:?}");
        assert!(begin.elapsed() >= STALL / 2, "{name}: after {:?}", begin.elapsed());
        let mut got = Vec::new();
        let end = client.read_to_end(&mut got).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{name}: {} bytes", got.len());
        assert!(got.len() < LEN);
        server.stop();
    });
}

/// Reads at a steady pace until the end. Returns the number of bytes and the result of the last read.
fn read_steadily(
    client: &mut TcpStream,
    piece: usize,
    pause: Duration,
) -> (usize, Result<usize, ErrorKind>) {
    let (mut got, mut buffer) = (0, vec![0; piece]);
    loop {
        match client.read(&mut buffer) {
            Ok(n) if n > 0 => got += n,
            end => return (got, end.map_err(|error| error.kind())),
        }
        thread::sleep(pause);
    }
}

#[test]
fn steady_reader_was_reset_while_the_send_buffer_was_full() {
    // More than the socket buffers hold; the kernel accepts more only when a third is free.
    const LEN: usize = 8 << 20;
    side_by_side(|name| {
        let (ended, receiver) = mpsc::channel();
        let config = listening(1).with(|c| {
            c.progress_interval = PATIENCE;
            c.min_rate = 1000;
        });
        let server = Server::start(name, config, move || Replies { len: LEN, ended });
        let mut client = server.connect();
        let (got, end) = read_steadily(&mut client, 40_000, Duration::from_millis(38));
        assert_eq!((got, end), (LEN, Ok(0)), "{name}");
        assert!(matches!(next(&receiver), CloseReason::Closed), "{name}");
        server.stop();
    });
}

#[test]
fn last_reply_had_no_minimum_rate() {
    const LEN: usize = 8 << 20;
    side_by_side(|name| {
        let (ended, receiver) = mpsc::channel();
        let config = listening(1).with(|c| {
            c.progress_interval = STALL;
            c.min_rate = 100_000_000;
        });
        let server = Server::start(name, config, move || Replies { len: LEN, ended });
        let mut client = server.connect();
        let (got, end) = read_steadily(&mut client, 40_000, Duration::from_millis(15));
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{name}: {got} bytes");
        assert!(matches!(next(&receiver), CloseReason::Failed(_)), "{name}");
        server.stop();
    });
}

/// For each byte, sends some copied bytes and more shared ones.
struct SendsMixedChunks;

impl SendsMixedChunks {
    const COPIED: usize = 8 * 1024;
    const LEN: usize = Self::COPIED + LARGE.len();
}

impl Application for SendsMixedChunks {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        for _ in rx.take().iter() {
            x.io.send(x.id, Chunk::Copy(&[7; Self::COPIED]));
            x.io.send(x.id, Chunk::Static(&LARGE));
        }
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }
}

#[test]
fn sent_copies_counted_until_the_queue_was_empty() {
    // Room for a few copies at a time.
    const MAX_HELD: usize = 8 * SendsMixedChunks::COPIED;
    side_by_side(|name| {
        let sockets = BufferSizes { send: Some(16 * 1024), receive: None };
        let config = listening(1).with(|c| {
            c.max_buffered_bytes = MAX_HELD;
            c.socket_buffers = sockets;
        });
        let server = Server::start(name, config, || SendsMixedChunks);
        let mut client = connect_narrow(&server);
        // The next reply is queued before the last one is received.
        client.write_all(b"x").unwrap();
        for round in 0..20 {
            client.write_all(b"x").unwrap();
            let result = client.read_exact(&mut [0; SendsMixedChunks::LEN]);
            assert!(result.is_ok(), "{name}: round {round}: {result:?}");
        }
        drop(client);
        assert_eq!(server.stop().overruns, 0, "{name}");
    });
}
