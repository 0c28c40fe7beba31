//! Layers around applications: rustls, and a transform without certificates.

use crate::contract::{expect_bytes_left, leaves_bytes};
use crate::support;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use evring::files::{Access, File, FileOp, FileOutcome};
use evring::{Application, Chunk, Close, Commands, ConnId, Cx, HIGH_WATER, Root, Rx};
use evring_tls::{Certificates, Layer, Tls, TlsConfig, server_config};
use examples::{Echo, Proxy, Timeouts, Xor};
use kv::Kv;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use support::client::{Client, End};
use support::script::{Ended, Event, script};
use support::{Server, TIMEOUT, config, on_each, on_each_at_once, pattern, tiny};

/// Returns the configuration of a server and of a client that trusts it.
fn settings() -> (TlsConfig, Arc<ClientConfig>) {
    let certificates = Arc::new(Certificates::self_signed(&["localhost"]).unwrap());
    let mut roots = RootCertStore::empty();
    roots.add(certificates.first_chain().remove(0)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider);
    let client = client.with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    (TlsConfig::from(server_config(certificates, None, &[]).unwrap()), Arc::new(client))
}

type Stream<S> = StreamOwned<ClientConnection, S>;

fn secure<S: Read + Write>(settings: &Arc<ClientConfig>, stream: S) -> Stream<S> {
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::clone(settings), name).unwrap(), stream)
}

#[track_caller]
fn expect(stream: &mut impl Read, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == expected, "the bytes differ");
}

/// Sends close_notify and expects the same and nothing else.
fn close_notify<S: Read + Write>(mut stream: Stream<S>) {
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "a close_notify, not a truncation");
}

/// Transfers one byte at a time.
struct OneByOne(std::net::TcpStream);

impl Read for OneByOne {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(&mut to[..1])
    }
}

impl Write for OneByOne {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn echo_under_tls() {
    let (serves, trusts) = settings();
    on_each(|backend| {
        let tls = serves.clone();
        let server = Server::start(backend, config(), || Tls::new(tls, Echo).unwrap());
        let mut stream = secure(&trusts, Client::connect(server.address).0);
        for message in [&b"hello"[..], &pattern(70_000)] {
            stream.write_all(message).unwrap();
            stream.flush().unwrap();
            expect(&mut stream, message);
        }
        close_notify(stream);

        let mut stream = secure(&trusts, OneByOne(Client::connect(server.address).0));
        stream.write_all(b"slowly").unwrap();
        stream.flush().unwrap();
        expect(&mut stream, b"slowly");
        close_notify(stream);
        server.stop();
    });
}

#[test]
fn kv_under_tls_through_tiny_buffers() {
    let (serves, trusts) = settings();
    on_each(|backend| {
        for settings in [config(), tiny().with(|c| c.buffer_size = 7)] {
            let tls = serves.clone();
            let server = Server::start(backend, settings, || {
                Tls::new(tls, Kv::with_memory(1 << 22, 0).unwrap()).unwrap()
            });
            let mut stream = secure(&trusts, Client::narrow(server.address).0);
            let value = pattern(60_000);
            write!(stream, "set k 0 0 {}\r\n", value.len()).unwrap();
            stream.write_all(&value).unwrap();
            stream.write_all(b"\r\nget k k k k\r\n").unwrap();
            stream.flush().unwrap();
            expect(&mut stream, b"STORED\r\n");
            for _ in 0..4 {
                expect(&mut stream, format!("VALUE k 0 {}\r\n", value.len()).as_bytes());
                expect(&mut stream, &value);
                expect(&mut stream, b"\r\n");
            }
            expect(&mut stream, b"END\r\n");
            close_notify(stream);
            server.stop();
        }
    });
}

#[test]
fn tls_proxy_sends_plain_bytes_upstream() {
    let (serves, trusts) = settings();
    on_each(|backend| {
        let echo = Server::start(backend, config(), || Echo);
        let (tls, upstream) = (serves.clone(), echo.address);
        let proxy = move || Tls::new(tls, Proxy::new(upstream, Timeouts::default())).unwrap();
        let server = Server::start(backend, config(), proxy);
        let mut stream = secure(&trusts, Client::connect(server.address).0);
        let message = pattern(50_000);
        stream.write_all(&message).unwrap();
        stream.flush().unwrap();
        expect(&mut stream, &message);
        close_notify(stream);
        server.stop();
        echo.stop();
    });
}

#[test]
fn invalid_tls_gets_an_alert() {
    let (serves, _) = settings();
    on_each(|backend| {
        let tls = serves.clone();
        let (make, log) = script(|turn| turn.consume());
        let server = Server::start(backend, config(), || Tls::new(tls, make()).unwrap());
        let mut client = Client::connect(server.address);
        client.send(b"GET / HTTP/1.1\r\n\r\n");
        let (alert, end) = client.read_to_end();
        assert_eq!((alert[0], end), (21, End::Eof), "an alert is a record of type 21");
        drop(client);
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(log.next(), Event::Closed(Ended::Failed));
        server.stop();
    });
}

#[test]
fn close_before_the_end_of_a_handshake_sends_a_close_notify() {
    let (serves, _) = settings();
    on_each(|backend| {
        let tls = serves.clone();
        let (make, log) = script(|turn| {
            if turn.event == Event::Accepted {
                turn.io.close(turn.conn(), Close::Flush);
            }
        });
        let server = Server::start(backend, config(), || Tls::new(tls, make()).unwrap());
        let (bytes, end) = Client::connect(server.address).read_to_end();
        let is_alert = matches!(bytes[..], [21, 3, _, 0, 2, 1, 0]);
        assert!(is_alert && end == End::Eof, "{backend}: {bytes:?}, {end:?}");
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(log.next(), Event::Closed(Ended::Closed));
        server.stop();
    });
}

#[test]
fn bytes_queued_before_the_end_of_a_handshake_are_sent_after_it() {
    let (serves, trusts) = settings();
    on_each(|backend| {
        let tls = serves.clone();
        let (make, _log) = script(|turn| {
            if turn.event == Event::Accepted {
                turn.io.send(turn.conn(), Chunk::Static(b"hello"));
                turn.io.close(turn.conn(), Close::Flush);
            }
        });
        let server = Server::start(backend, config(), || Tls::new(tls, make()).unwrap());
        let mut stream = secure(&trusts, Client::connect(server.address).0);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap(); // fails without a close_notify
        assert_eq!(bytes, b"hello", "{backend}");
        server.stop();
    });
}

#[test]
fn connection_that_was_closed_waited_for_a_handshake_without_end() {
    let (serves, _) = settings();
    on_each(|backend| {
        let tls = serves.clone();
        let (make, log) = script(|turn| {
            if turn.event == Event::Accepted {
                turn.io.send(turn.conn(), Chunk::Static(b"hello"));
                turn.io.close(turn.conn(), Close::Flush);
                // As after other closes, the deadline is not the application's.
                turn.io.set_deadline(turn.conn(), None);
            }
        });
        let server = Server::start(backend, config(), || {
            Tls::new(tls, make()).unwrap().min_rate(1, Duration::from_millis(20))
        });
        let (bytes, end) = Client::connect(server.address).read_to_end();
        assert_eq!((bytes.len(), end), (0, End::Reset), "{backend}");
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(log.next(), Event::Closed(Ended::Failed));
        server.stop();
    });
}

#[test]
fn half_close_before_the_end_of_a_handshake_ended_it() {
    let (serves, trusts) = settings();
    on_each(|backend| {
        let tls = serves.clone();
        let (make, log) = script(|turn| {
            turn.consume();
            if turn.event == Event::Accepted {
                turn.io.close(turn.conn(), Close::Half);
            }
        });
        let server = Server::start(backend, config(), || Tls::new(tls, make()).unwrap());
        let mut stream = secure(&trusts, Client::connect(server.address).0);
        stream.write_all(b"bytes").unwrap();
        stream.flush().unwrap();
        assert_eq!(log.next(), Event::Accepted);
        let bytes = b"bytes".to_vec();
        assert_eq!(log.next(), Event::Received { bytes, eof: false }, "{backend}");
        close_notify(stream);
        server.stop();
    });
}

#[test]
fn truncated_stream_is_not_a_regular_end() {
    let (serves, trusts) = settings();
    on_each(|backend| {
        let tls = serves.clone();
        let (make, log) = script(|turn| turn.consume());
        let server = Server::start(backend, config(), || Tls::new(tls, make()).unwrap());
        let mut stream = secure(&trusts, Client::connect(server.address).0);
        stream.write_all(b"half a message").unwrap();
        stream.flush().unwrap();
        assert_eq!(log.next(), Event::Accepted);
        let bytes = b"half a message".to_vec();
        assert_eq!(log.next(), Event::Received { bytes, eof: false });
        stream.sock.shutdown(Shutdown::Write).unwrap();
        assert_eq!(log.next(), Event::Closed(Ended::Failed));
        let kind = stream.read(&mut [0]).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof), "{kind}");
        server.stop();
    });
}

fn xored(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|b| b ^ 0x5a).collect()
}

#[test]
fn unconsumed_bytes_stay_in_one_piece_under_a_layer() {
    on_each(|backend| {
        // Waits for a whole line.
        let (make, log) = script(|turn| {
            let id = turn.id.unwrap();
            let Some(rx) = turn.rx.as_mut() else { return };
            if rx.bytes().ends_with(b"\n") {
                turn.io.send(id, Chunk::Copy(rx.bytes()));
                rx.consume(rx.bytes().len());
            } else if rx.eof() {
                turn.io.close(id, Close::Flush);
            }
        });
        let server =
            Server::start(backend, config(), || Layer::<_, Xor>::new(0x5a, make()).unwrap());
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        for upto in 1..10 {
            client.send(&xored(b"x"));
            assert_eq!(log.next(), Event::Received { bytes: vec![b'x'; upto], eof: false });
        }
        client.ask(xored(b"\n"), xored(b"xxxxxxxxx\n"));
        log.next();
        client.send(&xored(&[b'y'; 63]));
        log.next();
        client.send(&xored(b"y")); // exceeds the maximum of unconsumed bytes
        log.next();
        assert_eq!(log.next(), Event::Closed(Ended::Overrun));
        assert_eq!(client.read_to_end().1, End::Reset);
        server.stop();
    });
}

#[test]
fn pause_and_resume_work_under_a_layer() {
    on_each(|backend| {
        let mut id = None;
        let (make, log) = script(move |turn| {
            match turn.event {
                Event::Accepted => {
                    id = turn.id;
                    turn.io.set_receiving(turn.conn(), false);
                }
                Event::Woken(on) => turn.io.set_receiving(id.unwrap(), on == 1),
                _ => {}
            }
            turn.consume();
        });
        let server =
            Server::start(backend, config(), || Layer::<_, Xor>::new(0x5a, make()).unwrap());
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        client.send(&xored(b"held back"));
        assert!(server.remote.wake(0));
        assert_eq!(log.next(), Event::Woken(0));
        assert!(server.remote.wake(1));
        assert_eq!(log.next(), Event::Woken(1));
        let mut got = Vec::new();
        while got != b"held back" {
            match log.next() {
                Event::Received { bytes, .. } => got.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
        assert!(server.remote.wake(0));
        assert!(server.remote.wake(1));
        assert_eq!((log.next(), log.next()), (Event::Woken(0), Event::Woken(1)));
        assert_eq!(
            log.next(),
            Event::Received { bytes: vec![], eof: false },
            "a resume calls `received`"
        );
        drop(client);
        server.stop();
    });
}

/// Sends text, a file, reserved memory and text, then closes.
struct SendsFileBetweenTexts;

impl Application for SendsFileBetweenTexts {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if !rx.bytes().is_empty() {
            x.io.file_op(x.id, 1, FileOp::Open((Root(0), "file".into()), Access::Read));
        }
        rx.consume(rx.bytes().len());
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _: u32, done: io::Result<FileOutcome>) {
        let Ok(FileOutcome::Opened(opened)) = done else { panic!("{done:?}") };
        let (file, meta) = *opened;
        x.io.send(x.id, Chunk::Copy(b"before "));
        x.io.send(x.id, Chunk::File(file.clone(), 0..meta.len));
        x.io.reserve(x.id, 8).copy_from_slice(b" between");
        x.io.send(x.id, Chunk::File(file, 5..6));
        x.io.send(x.id, Chunk::Static(b" after"));
        x.io.close(x.id, Close::Half);
    }
}

#[test]
fn files_are_sent_in_order_under_tls() {
    let (serves, trusts) = settings();
    let root = tempfile::tempdir().unwrap();
    let contents = pattern(1 << 20);
    fs::write(root.path().join("file"), &contents).unwrap();
    on_each(|backend| {
        for settings in [config(), tiny()] {
            let tls = serves.clone();
            let settings = settings.with(|c| c.roots = vec![root.path().into()]);
            let server =
                Server::start(backend, settings, || Tls::new(tls, SendsFileBetweenTexts).unwrap());
            let mut stream = secure(&trusts, Client::narrow(server.address).0);
            stream.write_all(b"go").unwrap();
            stream.flush().unwrap();
            expect(&mut stream, b"before ");
            expect(&mut stream, &contents);
            expect(&mut stream, b" between");
            expect(&mut stream, &contents[5..6]);
            let mut remaining = Vec::new();
            stream.read_to_end(&mut remaining).unwrap(); // fails without a close_notify
            assert_eq!(remaining, b" after");
            drop(stream);
            server.stop();
        }
    });
}

/// Has an application in a layer send more of a file of `contents` than it has. Returns what the client receives.
fn truncated_file(
    backend: &'static str,
    contents: &[u8],
    send: fn(&mut dyn Commands, ConnId, File),
) -> (Vec<u8>, End) {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), contents).unwrap();
    let (make, log) = script(move |turn| {
        turn.consume();
        let Some(id) = turn.id else { return };
        match turn.event {
            Event::Received { eof: false, .. } => {
                turn.io.file_op(id, 7, FileOp::Open((Root(0), "file".into()), Access::Read));
            }
            Event::File(7, _) => send(turn.io, id, turn.file.take().unwrap()),
            _ => {}
        }
    });
    let settings = config().with(|c| c.roots = vec![root.path().into()]);
    let server = Server::start(backend, settings, || Layer::<_, Xor>::new(0x5a, make()).unwrap());
    let mut client = Client::connect(server.address);
    client.send(&xored(b"go"));
    assert_eq!(log.next(), Event::Accepted);
    assert_eq!(log.next(), Event::Received { bytes: b"go".to_vec(), eof: false });
    assert!(matches!(log.next(), Event::File(7, _)));
    assert_eq!(log.next(), Event::Closed(Ended::Truncated));
    let received = client.read_to_end();
    server.stop();
    received
}

#[test]
fn file_that_shrinks_under_a_layer_ends_the_connection() {
    on_each(|backend| {
        let received = truncated_file(backend, &pattern(1000), |io, id, file| {
            io.send(id, Chunk::File(file, 0..2000));
        });
        assert_eq!(received.1, End::Reset);
    });
}

#[test]
fn number_of_unsent_bytes_under_a_layer_overflowed_with_files_that_are_sent_to_their_end() {
    let contents = pattern(1000);
    on_each(|backend| {
        let (received, _) = truncated_file(backend, &contents, |io, id, file| {
            io.send(id, Chunk::Static(b"head"));
            for _ in 0..2 {
                io.send(id, Chunk::File(file.clone(), 0..u64::MAX));
            }
            assert_eq!((io.unsent_bytes(id), io.queued_bytes(id)), (u64::MAX, u64::MAX));
        });
        // The connection may be reset.
        assert!(xored(&[b"head", &contents[..]].concat()).starts_with(&received), "{backend}");
    });
}

#[test]
fn command_may_refer_to_another_connection() {
    on_each(|backend| {
        let mut first = None;
        let (make, log) = script(move |turn| {
            let id = *first.get_or_insert(turn.conn());
            if turn.rx.is_some() {
                turn.io.reserve(id, 3).copy_from_slice(b"to ");
                turn.io.send(id, Chunk::Static(b"the first"));
            }
            turn.consume();
        });
        let server =
            Server::start(backend, config(), || Layer::<_, Xor>::new(0x5a, make()).unwrap());
        let mut one = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        let mut two = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        two.send(b"?");
        one.expect(&xored(b"to the first"));
        drop((one, two));
        server.stop();
    });
}

#[test]
fn echo_under_a_layer_pauses_and_resumes() {
    on_each(|backend| {
        let server = Server::start(backend, tiny(), || Layer::<_, Xor>::new(0x5a, Echo).unwrap());
        let mut client = Client::narrow(server.address);
        let message = pattern(16 << 20);
        let sent = client.send_until_full(&message, 6 << 20);
        assert!(sent < message.len());
        client.expect(&message[..sent]); // encoded and decoded
        client.ask(b"and on", b"and on");
        drop(client);
        server.stop();
    });
}

#[test]
fn bytes_left_at_the_end_of_a_half_closed_connection_under_a_layer_were_lost() {
    let (serves, trusts) = settings();
    on_each(|backend| {
        for half in [false, true] {
            let (make, log) = leaves_bytes(half);
            let server =
                Server::start(backend, config(), || Layer::<_, Xor>::new(0x5a, make()).unwrap());
            let mut client = Client::connect(server.address);
            assert_eq!(log.next(), Event::Accepted);
            client.send(&xored(b"left"));
            client.end();
            expect_bytes_left(&server, &log);
            client.expect_last(b"", End::Eof);
            server.stop();

            let tls = serves.clone();
            let (make, log) = leaves_bytes(half);
            let server = Server::start(backend, config(), || Tls::new(tls, make()).unwrap());
            let mut stream = secure(&trusts, Client::connect(server.address).0);
            assert_eq!(log.next(), Event::Accepted);
            stream.write_all(b"left").unwrap();
            stream.conn.send_close_notify();
            stream.flush().unwrap();
            stream.sock.shutdown(Shutdown::Write).unwrap();
            expect_bytes_left(&server, &log);
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{backend}: a close_notify");
            server.stop();
        }
    });
}

/// Sends a file and starts as many file operations as a connection may have, before that or after it.
struct SendsFileAmongOperations {
    sends_first: bool,
    ended: u32,
}

impl SendsFileAmongOperations {
    const OPERATIONS: u32 = 16;
}

impl Application for SendsFileAmongOperations {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if !rx.take().is_empty() {
            x.io.file_op(x.id, 100, FileOp::Open((Root(0), "file".into()), Access::Read));
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, tag: u32, done: io::Result<FileOutcome>) {
        match done.unwrap_or_else(|error| panic!("operation {tag}: {error}")) {
            FileOutcome::Opened(opened) => {
                let (file, meta) = *opened;
                if self.sends_first {
                    x.io.send(x.id, Chunk::File(file.clone(), 0..meta.len));
                }
                for tag in 0..Self::OPERATIONS {
                    x.io.file_op(x.id, tag, FileOp::Stat((Root(0), "file".into())));
                }
                if !self.sends_first {
                    x.io.send(x.id, Chunk::File(file, 0..meta.len));
                }
            }
            _ => self.ended += 1,
        }
        if self.ended == Self::OPERATIONS {
            x.io.send(x.id, Chunk::Static(b"all"));
            x.io.close(x.id, Close::Flush);
        }
    }
}

#[test]
fn file_under_a_layer_was_cut_when_the_application_had_all_its_file_operations() {
    let root = tempfile::tempdir().unwrap();
    let contents = pattern(1000);
    fs::write(root.path().join("file"), &contents).unwrap();
    on_each(|backend| {
        for sends_first in [false, true] {
            let app = SendsFileAmongOperations { sends_first, ended: 0 };
            let settings = config().with(|c| c.roots = vec![root.path().into()]);
            let server =
                Server::start(backend, settings, || Layer::<_, Xor>::new(0x5a, app).unwrap());
            let mut client = Client::connect(server.address);
            client.send(&xored(b"x"));
            client.expect_last(&xored(&[&contents[..], b"all"].concat()), End::Eof);
            server.stop();
        }
    });
}

#[test]
fn connection_of_which_both_sides_had_ended_waited_for_the_peer_to_shut_down_its_side() {
    let (serves, trusts) = settings();
    on_each_at_once(|backend| {
        for app_ends_first in [false, true] {
            let (make, log) = script(move |turn| {
                let ends = match turn.event {
                    Event::Received { eof, .. } => eof != app_ends_first,
                    _ => false,
                };
                if ends {
                    turn.io.close(turn.conn(), Close::Half);
                }
                turn.consume();
            });
            let (tls, linger) = (serves.clone(), Duration::from_millis(20));
            let settings = config().with(|c| c.linger_timeout = linger);
            let server = Server::start(backend, settings, || Tls::new(tls, make()).unwrap());
            let mut stream = secure(&trusts, Client::connect(server.address).0);
            stream.write_all(b"x").unwrap();
            stream.flush().unwrap();
            assert_eq!(log.next(), Event::Accepted);
            assert_eq!(log.next(), Event::Received { bytes: b"x".to_vec(), eof: false });
            if app_ends_first {
                assert_eq!(stream.read(&mut [0]).unwrap(), 0, "a close_notify");
            }
            stream.conn.send_close_notify();
            stream.flush().unwrap();
            assert_eq!(log.next(), Event::Received { bytes: Vec::new(), eof: true });
            assert_eq!(log.next(), Event::Closed(Ended::Closed));
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "a close_notify");
            server.stop();
        }
    });
}

#[test]
fn closed_application_was_told_of_a_stop_and_of_files_while_the_layer_sent() {
    let root = tempfile::tempdir().unwrap();
    let contents = pattern(300_000);
    fs::write(root.path().join("file"), &contents).unwrap();
    for how in [Close::Flush, Close::Linger] {
        on_each(|backend| {
            let (make, log) = script(move |turn| {
                turn.consume();
                match turn.event {
                    Event::Received { .. } => {
                        let open = FileOp::Open((Root(0), "file".into()), Access::Read);
                        turn.io.file_op(turn.conn(), 1, open);
                    }
                    Event::File(..) => {
                        let file = turn.file.take().expect("the file is opened");
                        turn.io.send(turn.conn(), Chunk::File(file, 0..300_000));
                        let stat = FileOp::Stat((Root(0), "file".into()));
                        turn.io.file_op(turn.conn(), 2, stat);
                        turn.io.close(turn.conn(), how);
                    }
                    Event::Stopping => turn.io.close(turn.conn(), Close::Reset),
                    _ => {}
                }
            });
            let settings = tiny().with(|c| {
                c.roots = vec![root.path().into()];
                c.drain_timeout = TIMEOUT;
            });
            let server =
                Server::start(backend, settings, || Layer::<_, Xor>::new(0x5a, make()).unwrap());
            let mut client = Client::narrow(server.address);
            client.send(&xored(b"x"));
            assert_eq!(log.next(), Event::Accepted);
            assert_eq!(log.next(), Event::Received { bytes: b"x".to_vec(), eof: false });
            assert!(matches!(log.next(), Event::File(1, Ok(_))));
            // The server stops a later connection after the first one.
            let witness = Client::connect(server.address);
            let (second, Event::Accepted) = log.next_of() else { panic!("a connection") };
            server.remote.stop();
            assert_eq!(log.next_of(), (second, Event::Stopping), "{backend} {how:?}");
            assert_eq!(log.next_of(), (second, Event::Closed(Ended::Closed)));
            drop(witness);
            client.expect_last(&xored(&contents), End::Eof);
            drop(client);
            assert_eq!(log.next(), Event::Closed(Ended::Closed));
            server.stop();
            assert_eq!(log.remaining(), []);
        });
    }
}

#[test]
fn half_closed_application_under_a_layer_was_not_told_that_its_queue_had_drained() {
    let contents = pattern(200_000);
    on_each(|backend| {
        let bytes = contents.clone();
        let (make, log) = script(move |turn| {
            if matches!(turn.event, Event::Received { .. }) {
                turn.io.send(turn.conn(), Chunk::Copy(&bytes));
                turn.io.close(turn.conn(), Close::Half);
            }
            turn.consume();
        });
        let server = Server::start(backend, tiny(), || Layer::<_, Xor>::new(0x5a, make()).unwrap());
        let mut client = Client::narrow(server.address);
        client.send(&xored(b"x"));
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(log.next(), Event::Received { bytes: b"x".to_vec(), eof: false });
        client.expect_last(&xored(&contents), End::Eof);
        assert_eq!(log.next(), Event::Drained, "{backend}");
        server.stop();
    });
}

/// Echoes lines, and asks for the rest of a line. Idle connections may end.
struct EchoesLines;

impl Application for EchoesLines {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes().ends_with(b"\n") {
            x.io.send(x.id, Chunk::Copy(&rx.take()));
        } else if rx.eof() {
            x.io.close(x.id, Close::Flush);
        } else {
            x.io.send(x.id, Chunk::Static(b"?"));
        }
    }

    fn is_idle(&self, _id: ConnId, _state: &()) -> bool {
        true
    }

    fn evicting(&mut self, x: Cx<'_, impl Commands, ()>) {
        x.io.send(x.id, Chunk::Static(b"bye"));
    }
}

#[test]
fn connection_with_a_part_of_a_request_under_a_layer_was_closed_for_room() {
    on_each(|backend| {
        let settings = config().with(|c| c.max_connections = 2);
        let layer = || Layer::<_, Xor>::new(0x5a, EchoesLines).unwrap();
        let server = Server::start(backend, settings, layer);
        let mut partial = Client::connect(server.address);
        partial.ask(xored(b"a"), xored(b"?"));
        let mut idle = Client::connect(server.address);
        idle.ask(xored(b"b\n"), xored(b"b\n"));
        let mut new = Client::connect(server.address);
        new.ask(xored(b"c\n"), xored(b"c\n"));
        idle.expect_last(&xored(b"bye"), End::Eof);
        partial.ask(xored(b"\n"), xored(b"a\n"));
        drop((partial, new));
        assert_eq!(server.stop().idle_closed, 1, "{backend}");
    });
}

#[test]
fn connection_that_made_room_ended_without_a_close_notify() {
    let (serves, trusts) = settings();
    on_each(|backend| {
        let settings = config().with(|c| c.max_connections = 1);
        let tls = serves.clone();
        let server = Server::start(backend, settings, || Tls::new(tls, EchoesLines).unwrap());
        let ask = |line: &[u8]| {
            let mut stream = secure(&trusts, Client::connect(server.address).0);
            stream.write_all(line).unwrap();
            stream.flush().unwrap();
            expect(&mut stream, line);
            stream
        };
        let mut idle = ask(b"a\n");
        let new = ask(b"b\n");
        let mut last = Vec::new();
        idle.read_to_end(&mut last).unwrap(); // fails without a close_notify
        assert_eq!(last, b"bye", "{backend}");
        close_notify(new);
        assert_eq!(server.stop().idle_closed, 1, "{backend}");
    });
}

#[test]
fn empty_chunk_under_a_layer_filled_a_queue_that_had_drained() {
    let contents = pattern(HIGH_WATER + 1);
    on_each(|backend| {
        let (bytes, mut id) = (contents.clone(), None);
        let (make, log) = script(move |turn| {
            match turn.event {
                Event::Received { .. } => {
                    id = turn.id;
                    assert!(turn.io.send(turn.conn(), Chunk::Copy(&bytes)) >= HIGH_WATER);
                }
                Event::Woken(_) => {
                    let queued = turn.io.send(id.unwrap(), Chunk::Copy(b""));
                    assert!(queued < HIGH_WATER, "{queued} bytes are queued");
                }
                _ => {}
            }
            turn.consume();
        });
        let server =
            Server::start(backend, config(), || Layer::<_, Xor>::new(0x5a, make()).unwrap());
        let mut client = Client::connect(server.address);
        client.ask(xored(b"x"), xored(&contents));
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(log.next(), Event::Received { bytes: b"x".to_vec(), eof: false });
        assert_eq!(log.next(), Event::Drained);
        assert!(server.remote.wake(0));
        assert_eq!(log.next(), Event::Woken(0));
        server.stop();
    });
}
