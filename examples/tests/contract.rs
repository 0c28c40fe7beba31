//! The contract of `Application` and `Commands`, on every mechanism.

use crate::support;

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use evring::{AcceptPolicy, Chunk, Close, HIGH_WATER, LOW_WATER, Listener, RemoteHandle};
use support::client::{Client, End};
use support::script::{Ended, Event, Log, MAX_UNCONSUMED, Script, Turn, script};
use support::{Server, TIMEOUT, config, on_each, on_each_at_once, pattern, tiny};

fn received(bytes: &[u8]) -> Event {
    Event::Received { bytes: bytes.to_vec(), eof: false }
}

fn end_of_stream() -> Event {
    Event::Received { bytes: Vec::new(), eof: true }
}

#[test]
fn accepted_is_first_and_closed_is_last() {
    on_each(|backend| {
        let (make, log) = script(|turn| {
            if matches!(turn.event, Event::Received { eof: true, .. }) {
                turn.io.close(turn.conn(), Close::Flush);
            }
            turn.consume();
        });
        let server = Server::start(backend, config(), make);
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        client.send(b"one");
        assert_eq!(log.next(), received(b"one"));
        client.end();
        assert_eq!(log.next(), end_of_stream());
        assert_eq!(log.next(), Event::Closed(Ended::Closed));
        assert_eq!(client.read_to_end().1, End::Eof);
        server.stop();
        assert_eq!(log.remaining(), []);
    });
}

#[test]
fn reset_by_the_peer_is_reported_as_failed() {
    on_each(|backend| {
        let (make, log) = script(|turn| turn.consume());
        let server = Server::start(backend, config(), make);
        let client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        client.reset();
        assert_eq!(log.next(), Event::Closed(Ended::Failed));
        server.stop();
        assert_eq!(log.remaining(), []);
    });
}

#[test]
fn unconsumed_bytes_are_passed_again_in_one_piece() {
    on_each(|backend| {
        for buffer_size in [1, 3, 4096] {
            let (make, log) = script(|turn| {
                let rx = turn.rx.as_mut();
                if let Some(rx) = rx.filter(|rx| rx.bytes().len() == MAX_UNCONSUMED - 1) {
                    rx.consume(10);
                }
            });
            let server =
                Server::start(backend, config().with(|c| c.buffer_size = buffer_size), make);
            let mut client = Client::connect(server.address);
            assert_eq!(log.next(), Event::Accepted);
            let message = pattern(MAX_UNCONSUMED + 10);
            for upto in 1..MAX_UNCONSUMED {
                client.send(&message[upto - 1..upto]);
                assert_eq!(log.next(), received(&message[..upto]));
            }
            // Ten bytes were consumed, so ten more fit, but not eleven.
            for upto in MAX_UNCONSUMED..MAX_UNCONSUMED + 9 {
                client.send(&message[upto - 1..upto]);
                assert_eq!(log.next(), received(&message[10..upto]));
            }
            server.stop();
        }
    });
}

#[test]
fn too_many_unconsumed_bytes_are_an_overrun() {
    on_each(|backend| {
        let (make, log) = script(|_| {});
        let server = Server::start(backend, config(), make);
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        client.send(&pattern(MAX_UNCONSUMED));
        assert_eq!(log.skip_received(), Event::Closed(Ended::Overrun));
        client.read_to_end();
        assert_eq!(server.stop().overruns, 1);
    });
}

#[test]
fn paused_application_may_leave_more_bytes() {
    on_each(|backend| {
        let mut id = None;
        let (make, log) = script(move |turn| match turn.event {
            Event::Accepted => id = turn.id,
            Event::Received { .. } => turn.io.set_receiving(turn.conn(), false),
            Event::Woken(1) => turn.io.set_receiving(id.unwrap(), true),
            _ => {}
        });
        let server = Server::start(backend, config(), make);
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        let message = pattern(MAX_UNCONSUMED * 3);
        client.send(&message);
        let Event::Received { bytes, .. } = log.next() else { panic!() };
        assert_eq!(bytes, message[..bytes.len()]);
        assert!(server.remote.wake(1));
        assert_eq!(log.next(), Event::Woken(1));
        let Event::Received { bytes, .. } = log.next() else { panic!() };
        assert_eq!(bytes, message, "more than the maximum is permitted while paused");
        server.stop();
    });
}

#[test]
fn resume_calls_received_without_bytes() {
    on_each(|backend| {
        let mut id = None;
        let (make, log) = script(move |turn| {
            match turn.event {
                Event::Accepted => id = turn.id,
                Event::Woken(on) => turn.io.set_receiving(id.unwrap(), on == 1),
                _ => {}
            }
            turn.consume();
        });
        let server = Server::start(backend, config(), make);
        let wake = |tag| {
            assert!(server.remote.wake(tag));
            assert_eq!(log.next(), Event::Woken(tag), "no event came before");
        };
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        wake(0);
        wake(1);
        assert_eq!(log.next(), received(b""));
        wake(0);
        client.send(b"later");
        client.end();
        wake(0);
        wake(0);
        wake(1);
        let (mut got, mut ended) = (Vec::new(), false);
        while !ended {
            let Event::Received { bytes, eof } = log.next() else { panic!() };
            got.extend(bytes);
            ended = eof;
        }
        assert_eq!(got, b"later");
        server.stop();
    });
}

/// The function of a script.
pub(crate) type Act = Box<dyn FnMut(&mut Turn<'_, '_>) + Send>;

/// Returns an application that leaves what it gets and pauses, after a half-close if `half`.
pub(crate) fn leaves_bytes(half: bool) -> (impl FnOnce() -> Script<Act> + Send, Log) {
    let mut id = None;
    let act: Act = Box::new(move |turn| match turn.event {
        Event::Accepted => {
            id = turn.id;
            turn.io.set_receiving(turn.conn(), false);
        }
        Event::Woken(0) => turn.io.set_receiving(id.unwrap(), true),
        Event::Woken(1) => turn.io.close(id.unwrap(), Close::Flush),
        Event::Received { .. } => {
            turn.io.set_receiving(turn.conn(), false);
            if half {
                turn.io.close(turn.conn(), Close::Half);
            }
        }
        _ => {}
    });
    script(act)
}

/// Has that application get `left` and the end three times, then close.
pub(crate) fn expect_bytes_left(server: &Server, log: &Log) {
    let wake = |tag| {
        assert!(server.remote.wake(tag));
        assert_eq!(log.next(), Event::Woken(tag));
    };
    // The end may be passed with the bytes or after them.
    let mut times = 0;
    while times < 3 {
        wake(0);
        let Event::Received { bytes, eof } = log.next() else { panic!("an event of receiving") };
        assert!(bytes == b"left" || bytes.is_empty() && !eof, "{bytes:?} {eof}");
        times += usize::from(eof);
    }
    wake(1);
    assert_eq!(log.next(), Event::Closed(Ended::Closed));
}

#[test]
fn bytes_left_at_the_end_are_passed_again_after_a_pause() {
    on_each(|backend| {
        for half in [false, true] {
            let (make, log) = leaves_bytes(half);
            let server = Server::start(backend, config(), make);
            let mut client = Client::connect(server.address);
            assert_eq!(log.next(), Event::Accepted);
            client.send(b"left");
            client.end();
            expect_bytes_left(&server, &log);
            client.expect_last(b"", End::Eof);
            server.stop();
        }
    });
}

#[test]
fn deadline_expires_once_and_can_be_cleared() {
    on_each_at_once(|backend| {
        let (make, log) = script(|turn| {
            let (now, id) = (turn.io.now(), turn.id);
            let at = |ms| Some(now + Duration::from_millis(ms));
            match turn.event {
                Event::Accepted => turn.io.set_deadline(id.unwrap(), at(60)),
                Event::Received { .. } => {
                    turn.io.set_deadline(id.unwrap(), at(60));
                    turn.io.set_deadline(id.unwrap(), None);
                    turn.io.set_deadline(id.unwrap(), at(120));
                }
                _ => {}
            }
            turn.consume();
        });
        let server = Server::start(backend, config(), make);
        let begin = Instant::now();
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(log.next(), Event::Expired);
        assert!(begin.elapsed() >= Duration::from_millis(60));
        let begin = Instant::now();
        client.send(b"x");
        assert_eq!(log.next(), received(b"x"));
        assert_eq!(log.next(), Event::Expired);
        assert!(begin.elapsed() >= Duration::from_millis(120));
        server.stop();
        assert_eq!(log.remaining(), [Event::Stopping, Event::Closed(Ended::Stopped)]);
    });
}

#[test]
fn tags_from_other_threads_arrive_in_order() {
    on_each(|backend| {
        let (make, log) = script(|_| {});
        let server = Server::start(backend, config().with(|c| c.listen = Vec::new()), make);
        let mut expected = 0;
        for tag in 0..5 * RemoteHandle::MAX_TAGS as u64 {
            while !server.remote.wake(tag) {
                assert_eq!(log.next(), Event::Woken(expected));
                expected += 1;
            }
        }
        for tag in expected..5 * RemoteHandle::MAX_TAGS as u64 {
            assert_eq!(log.next(), Event::Woken(tag));
        }
        server.stop();
    });
}

#[test]
fn commands_for_closed_connections_have_no_effect() {
    on_each(|backend| {
        let mut closed = None;
        let (make, log) = script(move |turn| {
            match turn.event {
                Event::Closed(_) => closed = turn.id,
                Event::Received { eof: false, .. } if closed.is_some() => {
                    let closed = closed.unwrap();
                    assert_eq!(closed.slot(), turn.conn().slot(), "the slot is used again");
                    assert_eq!(turn.io.send(closed, Chunk::Static(b"lost")), 0);
                    turn.io.reserve(closed, 3).fill(b'!');
                    turn.io.set_receiving(closed, false);
                    turn.io.set_deadline(closed, Some(turn.io.now()));
                    assert_eq!(turn.io.peer_addr(closed), None);
                    turn.io.close(closed, Close::Reset);
                    turn.io.send(turn.conn(), Chunk::Static(b"alive"));
                }
                Event::Received { eof: true, .. } => turn.io.close(turn.conn(), Close::Flush),
                _ => {}
            }
            turn.consume();
        });
        let server = Server::start(backend, config(), make);
        let mut first = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        first.end();
        assert_eq!(log.next(), end_of_stream());
        assert_eq!(log.next(), Event::Closed(Ended::Closed));
        let mut second = Client::connect(server.address);
        second.ask(b"one", b"alive");
        second.ask(b"two", b"alive");
        second.end();
        second.expect_last(b"", End::Eof);
        server.stop();
    });
}

/// Sends 200,000 bytes and closes as the first received byte requests.
fn closing(backend: &'static str) -> (Server, Log) {
    let (make, log) = script(|turn| {
        if let Event::Received { bytes, .. } = &turn.event {
            let how = match bytes.first() {
                Some(b'h') => Some(Close::Half),
                Some(b'f') => Some(Close::Flush),
                Some(b'l') => Some(Close::Linger),
                Some(b'r') => Some(Close::Reset),
                _ => None,
            };
            if let Some(how) = how {
                turn.io.send(turn.conn(), Chunk::Shared(pattern(200_000).into()));
                turn.io.close(turn.conn(), how);
                turn.io.send(turn.conn(), Chunk::Static(b"too late"));
            }
        }
        turn.consume();
    });
    (Server::start(backend, tiny(), make), log)
}

#[test]
fn each_close_ends_as_documented() {
    on_each(|backend| {
        let (server, log) = closing(backend);
        let all = pattern(200_000);
        let begin = |how: &[u8]| {
            let mut client = Client::narrow(server.address);
            client.send(how);
            assert_eq!(log.next(), Event::Accepted);
            assert_eq!(log.next(), received(how));
            client
        };

        let mut half = begin(b"h");
        half.expect_last(&all, End::Eof);
        assert_eq!(log.next(), Event::Drained, "a half-closed connection may wait for room");
        half.send(b"x");
        assert_eq!(log.next(), received(b"x"), "a half-closed connection still receives");
        half.end();
        assert_eq!(log.next(), end_of_stream());
        assert_eq!(log.next(), Event::Closed(Ended::Closed));

        let mut flush = begin(b"f");
        flush.expect_last(&all, End::Eof);
        assert_eq!(log.next(), Event::Closed(Ended::Closed));

        let mut linger = begin(b"l");
        linger.send(&pattern(20_000)); // unread, it would cause a reset
        linger.expect_last(&all, End::Eof);
        drop(linger);
        assert_eq!(log.next(), Event::Closed(Ended::Closed));

        let mut reset = begin(b"r");
        let (got, end) = reset.read_to_end();
        assert_eq!(end, End::Reset);
        assert!(got.len() < all.len());
        assert_eq!(log.next(), Event::Closed(Ended::Closed));
        server.stop();
        assert_eq!(log.remaining(), []);
    });
}

#[test]
fn linger_times_out() {
    on_each_at_once(|backend| {
        let (make, log) = script(|turn| {
            if turn.event == Event::Accepted {
                turn.io.close(turn.conn(), Close::Linger);
            }
        });
        let linger = Duration::from_millis(100);
        let server = Server::start(backend, config().with(|c| c.linger_timeout = linger), make);
        let begin = Instant::now();
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(log.next(), Event::Closed(Ended::Closed));
        assert!(begin.elapsed() >= linger);
        client.read_to_end();
        server.stop();
    });
}

#[test]
fn flush_to_a_peer_that_never_reads_times_out() {
    on_each_at_once(|backend| {
        let (make, log) = script(|turn| {
            if turn.event == Event::Accepted {
                turn.io.send(turn.conn(), Chunk::Shared(pattern(1 << 20).into()));
                turn.io.close(turn.conn(), Close::Flush);
            }
        });
        let stall = Duration::from_millis(300);
        let server = Server::start(backend, tiny().with(|c| c.progress_interval = stall), make);
        let client = Client::narrow(server.address);
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(
            log.next(),
            Event::Closed(Ended::Failed),
            "the close reason of an incomplete reply"
        );
        drop(client);
        server.stop();
    });
}

#[test]
fn drained_is_called_once_per_full_queue() {
    on_each(|backend| {
        let (make, log) = script(|turn| {
            if let Event::Received { bytes, .. } = &turn.event {
                let n = bytes.len();
                let queued = turn.io.send(turn.conn(), Chunk::Shared(pattern(n * 1024).into()));
                assert_eq!(queued, n * 1024);
            }
            turn.consume();
        });
        let server = Server::start(backend, config(), make);
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        let full = HIGH_WATER / 1024;
        for n in [full, full - 1, full] {
            client.ask(vec![b'x'; n], pattern(n * 1024));
            assert!(matches!(log.next(), Event::Received { .. }));
            if n == full {
                assert_eq!(log.next(), Event::Drained);
            }
        }
        const { assert!(LOW_WATER > 0) };
        server.stop();
        assert_eq!(log.remaining(), [Event::Stopping, Event::Closed(Ended::Stopped)]);
    });
}

#[test]
fn too_many_queued_bytes_are_an_overrun() {
    on_each(|backend| {
        let (make, log) = script(|turn| {
            if turn.rx.is_some() {
                turn.io.send(turn.conn(), Chunk::Shared(pattern(100_001).into()));
            }
            turn.consume();
        });
        let server = Server::start(backend, config().with(|c| c.max_queued_bytes = 100_000), make);
        let mut client = Client::connect(server.address);
        client.send(b"x");
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(log.skip_received(), Event::Closed(Ended::Overrun));
        client.read_to_end();
        assert_eq!(server.stop().overruns, 1);
    });
}

#[test]
fn connections_beyond_the_maximum_wait() {
    on_each(|backend| {
        let (make, log) = script(|turn| match &turn.event {
            Event::Received { eof: true, .. } => turn.io.close(turn.conn(), Close::Flush),
            Event::Received { .. } => {
                turn.io.send(turn.conn(), Chunk::Static(b"ok"));
                turn.consume();
            }
            _ => {}
        });
        let server = Server::start(backend, config().with(|c| c.max_connections = 3), make);
        let mut open: Vec<_> = (0..3).map(|_| Client::connect(server.address)).collect();
        open.iter_mut().for_each(|client| client.ask(b"x", b"ok"));
        let mut waiting: Vec<_> = (0..5).map(|_| Client::connect(server.address)).collect();
        waiting.iter_mut().for_each(|client| client.send(b"x"));
        open[1].ask(b"still served", b"ok");
        // Each close admits one connection, in the order of the backlog.
        for mut next in waiting {
            drop(open.remove(0));
            next.expect(b"ok");
            open.push(next);
        }
        drop(open);
        let stats = server.stop();
        assert_eq!(stats.accepted, 8);
        assert!(stats.accept_pauses > 0);
        let (mut now, mut peak) = (0, 0);
        for event in log.remaining() {
            match event {
                Event::Accepted => now += 1,
                Event::Closed(_) => now -= 1,
                _ => {}
            }
            peak = peak.max(now);
        }
        assert_eq!((now, peak), (0, 3));
    });
}

#[test]
fn accept_policy_pauses_and_resumes_a_listener() {
    on_each(|backend| {
        let (make, log) = script(|turn| {
            if let Event::Woken(tag) = turn.event {
                let how = [
                    AcceptPolicy::Off,
                    AcceptPolicy::All,
                    AcceptPolicy::PerTurn(0),
                    AcceptPolicy::Backlog(5),
                ];
                turn.io.set_accept_policy(Listener(0), how[tag as usize]);
            }
            turn.consume();
        });
        let server = Server::start(backend, config(), make);
        let mut first = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        let wake = |tag| {
            assert!(server.remote.wake(tag));
            assert_eq!(log.next(), Event::Woken(tag), "no connection was accepted before");
        };
        // A policy takes effect in the next turn, which this byte completes.
        let mut turn = || {
            first.send(b"x");
            assert_eq!(log.next(), received(b"x"), "no connection was accepted before");
        };
        for open in [1, 2] {
            wake(0);
            turn();
            turn();
            let waiting: Vec<_> = (0..3).map(|_| Client::connect(server.address)).collect();
            turn();
            wake(3);
            turn();
            wake(0);
            turn();
            wake(open);
            (0..3).for_each(|_| assert_eq!(log.next(), Event::Accepted));
            drop(waiting);
            (0..3).for_each(|_| assert_eq!(log.next(), end_of_stream()));
        }
        server.stop();
    });
}

fn connecting(backend: &'static str, to: SocketAddr) -> (Server, Log) {
    let (make, log) = script(move |turn| {
        match turn.event {
            Event::Woken(_) => {
                let id = turn.io.connect(to);
                turn.io.send(id, Chunk::Static(b"first thing"));
            }
            Event::Received { eof: true, .. } => turn.io.close(turn.conn(), Close::Flush),
            _ => {}
        }
        turn.consume();
    });
    (Server::start(backend, config().with(|c| c.listen = Vec::new()), make), log)
}

#[test]
fn connect_reports_its_result_and_sends_queued_bytes() {
    on_each(|backend| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (server, log) = connecting(backend, listener.local_addr().unwrap());
        assert!(server.remote.wake(0));
        let mut peer = Client(listener.accept().unwrap().0);
        assert_eq!((log.next(), log.next()), (Event::Woken(0), Event::Connected(Ok(()))));
        peer.expect(b"first thing");
        peer.end();
        assert_eq!(log.next(), end_of_stream());
        assert_eq!(log.next(), Event::Closed(Ended::Closed));

        // It keeps its address, so that no other server gets it.
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        assert!(server.remote.wake(1));
        assert_eq!(log.next(), Event::Woken(1));
        let refused = Err(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(log.next(), Event::Connected(refused));
        assert_eq!(log.next(), Event::Closed(Ended::Failed));
        assert_eq!(server.stop().connected, 2);
    });
}

#[test]
fn stop_lets_current_work_end_within_the_drain_timeout() {
    on_each(|backend| {
        let (make, log) = script(|turn| {
            if matches!(&turn.event, Event::Received { bytes, .. } if bytes == b"end") {
                assert!(turn.io.is_stopping());
                turn.io.send(turn.conn(), Chunk::Static(b"done"));
                turn.io.close(turn.conn(), Close::Flush);
            }
            turn.consume();
        });
        let server = Server::start(backend, config().with(|c| c.drain_timeout = TIMEOUT), make);
        let mut busy = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        server.remote.stop();
        assert_eq!(log.next(), Event::Stopping);
        busy.ask(b"end", b"done");
        busy.expect_last(b"", End::Eof);
        let begin = Instant::now();
        server.stop();
        assert!(begin.elapsed() < TIMEOUT / 2, "the stop waited for a connection");
        assert_eq!(log.skip_received(), Event::Closed(Ended::Closed));
    });
}

#[test]
fn stop_resets_connections_after_the_drain_timeout() {
    on_each_at_once(|backend| {
        let (make, log) = script(|turn| turn.consume());
        let server = Server::start(backend, config(), make);
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        let address = server.address;
        server.stop();
        assert_eq!(client.read_to_end().1, End::Reset);
        assert_eq!(log.remaining(), [Event::Stopping, Event::Closed(Ended::Stopped)]);
        // A program that another test starts has the descriptor, too, until it is executed.
        let until = Instant::now() + TIMEOUT;
        while std::net::TcpStream::connect(address).is_ok() {
            assert!(Instant::now() < until, "the listener is still open");
        }
    });
}

#[test]
fn peer_address_is_available() {
    on_each(|backend| {
        let (sender, receiver) = mpsc::channel();
        let (make, log) = script(move |turn| {
            if turn.event == Event::Accepted {
                sender.send(turn.io.peer_addr(turn.conn())).unwrap();
            }
        });
        let server = Server::start(backend, config(), make);
        let client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(receiver.recv_timeout(TIMEOUT).unwrap(), client.0.local_addr().ok());
        server.stop();
    });
}
