//! Places, time, memory and processor time of clients that speak TLS, on every mechanism.
#![cfg(feature = "tls")]

use crate::authority::Authority;
use crate::tls::{BOTH, Connection, body, connect, contents, get, start, tcp, wire};
use crate::{bounds, serving};

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::iter;
use std::net::TcpStream;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use evring_httpd::body::Body;
use evring_httpd::bytes::Bytes;
use evring_httpd::evring::{Config, Stats};
use evring_httpd::evring_tls::{ServerSession, rustls};
use evring_httpd::handlers::Responder;
use evring_httpd::options::{Limits, TlsOptions};
use evring_httpd::{Request, Response, Server};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serving::program::Serving;
use serving::{on_every_backend, on_every_backend_at_once};

#[test]
fn handshake_that_does_not_end_is_closed_at_the_header_timeout() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let tls = authority.options("a", &["localhost"]);
    on_every_backend_at_once(|backend| {
        let mut limits = Limits::default();
        limits.header_timeout = Duration::from_secs(4);
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let server = server.tls(tls.clone()).limits(limits).status(true).start().unwrap();
        let config = Arc::new(authority.trusting(BOTH));
        let name = ServerName::try_from("localhost").unwrap();
        let mut hello = Vec::new();
        let mut session = ClientConnection::new(Arc::clone(&config), name).unwrap();
        session.write_tls(&mut hello).unwrap();
        // Nothing, a part of a record, a whole hello; and a session in which no request follows.
        let parts = [&b""[..], &hello[..3], &hello[..hello.len() - 1], &hello];
        let clients = parts.map(|sent| {
            let mut client = tcp(server.addresses()[0]);
            client.write_all(sent).unwrap();
            client
        });
        let mut idle = connect(&server, &config, "localhost");
        idle.flush().unwrap();
        for mut client in clients {
            // Ends without waiting for the timeout of the test's client.
            client.read_to_end(&mut Vec::new()).unwrap();
        }
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "a close_notify");
        let status = get(&mut connect(&server, &config, "localhost"), "/.httpd/status.json");
        let status: serde_json::Value = serde_json::from_slice(body(&status.unwrap())).unwrap();
        assert_eq!(status["handshakes_timed_out"], 4, "{backend}: {status}");
    });
}

#[test]
fn flood_of_handshakes_does_not_keep_others_from_being_served() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    on_every_backend(|backend| {
        let server = start(backend, dir.path(), authority.options("a", &["localhost"]));
        let config = Arc::new(authority.trusting(BOTH));
        let name = ServerName::try_from("localhost").unwrap();
        let mut hello = Vec::new();
        let mut session = ClientConnection::new(Arc::clone(&config), name).unwrap();
        session.write_tls(&mut hello).unwrap();
        let broken = [&hello[..], &[22, 3, 3, 0, 1, 255]].concat();
        let status = || -> serde_json::Value {
            let response = get(&mut connect(&server, &config, "localhost"), "/.httpd/status.json");
            serde_json::from_slice(body(&response.unwrap())).unwrap()
        };
        // A third stops in the middle of the hello, a third after it, and a third breaks the protocol.
        let mut flood = Vec::new();
        for n in 0..300 {
            let mut client = tcp(server.addresses()[0]);
            let sent = [&hello[..hello.len() / 2], &hello, &broken][n % 3];
            client.write_all(sent).unwrap();
            flood.push(client);
            if n % 50 == 49 {
                let mut other = connect(&server, &config, "localhost");
                assert_eq!(body(&get(&mut other, "/a").unwrap()), b"a");
            }
        }
        // Those that break the protocol get an alert, although they stay.
        for client in flood.iter_mut().skip(2).step_by(3) {
            client.read_to_end(&mut Vec::new()).unwrap();
        }
        drop(flood);
        // Nothing remains of them but the count.
        let status = loop {
            let status = status();
            let count = |name: &str| status[name].as_u64().unwrap();
            if count("connections_accepted") - count("connections_closed") == 1 {
                break status;
            }
        };
        assert_eq!(status["tls_errors"], 100);
    });
}

/// Returns the CPU time of the only worker of a server, which it stops.
fn processor_time(server: Server) -> (Duration, Stats) {
    server.handle().stop();
    let stats = server.wait().unwrap().remove(0);
    (stats.cpu_time, stats)
}

/// Each hello costs the server a signature, and no more than a client that is served. How such a client ends: `handshake_that_does_not_end_is_closed_at_the_header_timeout`.
#[test]
fn flood_of_complete_hellos_delays_no_one() {
    const CLIENTS: u32 = 300;
    const SERVED: u32 = 50;
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let tls = authority.options("a", &["localhost"]);
    let mut config = authority.trusting(BOTH);
    config.resumption = Resumption::disabled();
    let config = Arc::new(config);
    let flood = |backend: &str| {
        let server = start_full(backend, dir.path(), tls.clone(), 2 * CLIENTS);
        let name = ServerName::try_from("localhost").unwrap();
        let hello = wire(&mut ClientConnection::new(Arc::clone(&config), name).unwrap());
        let mut flood = Vec::new();
        for n in 0..CLIENTS {
            let mut client = tcp(server.addresses()[0]);
            client.write_all(&hello).unwrap();
            flood.push(client);
            if n % 50 == 49 {
                let mut other = connect(&server, &config, "localhost");
                assert_eq!(body(&get(&mut other, "/a").unwrap()), b"a", "{backend}");
            }
        }
        for client in &mut flood {
            let mut received = [0];
            client.read_exact(&mut received).unwrap();
            assert_eq!(received, [22], "{backend}: the hello of the server");
        }
        let mut other = connect(&server, &config, "localhost");
        assert_eq!(body(&get(&mut other, "/a").unwrap()), b"a", "{backend}");
        drop((flood, other));
        let (of_flood, stats) = processor_time(server);
        let others = 1 + u64::from(CLIENTS) / 50;
        assert_eq!(stats.accepted, u64::from(CLIENTS) + others, "{backend}");
        assert_eq!((stats.closed, stats.abandoned), (stats.accepted, 0), "{backend}");
        of_flood / CLIENTS
    };
    let serve = |backend: &str| {
        let server = start_full(backend, dir.path(), tls.clone(), 2 * CLIENTS);
        for _ in 0..SERVED {
            let mut client = connect(&server, &config, "localhost");
            assert_eq!(body(&get(&mut client, "/a").unwrap()), b"a", "{backend}");
        }
        processor_time(server).0 / SERVED
    };
    on_every_backend(|backend| {
        let (mut hello, mut served) = (Duration::MAX, Duration::MAX);
        // Other threads that run meanwhile make both dearer: the least of up to three times.
        for _ in 0..3 {
            hello = hello.min(flood(backend));
            served = served.min(serve(backend));
            if hello < 2 * served {
                return;
            }
        }
        panic!("{backend}: {hello:?} and {served:?}");
    });
}

#[test]
fn client_that_received_a_long_response_was_reset() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let long = contents(12_000_000);
    fs::write(dir.path().join("long"), &long).unwrap();
    let mut limits = Limits::default();
    limits.header_timeout = Duration::from_secs(2);
    limits.keep_alive_timeout = Duration::from_secs(2);
    limits.progress_interval = Duration::from_secs(2);
    let server = Server::builder().listen("127.0.0.1:0").files(dir.path()).limits(limits);
    let server = server.tls(authority.options("a", &["localhost"])).start().unwrap();
    let config = Arc::new(authority.trusting(BOTH));
    let mut connection = connect(&server, &config, "localhost");
    connection.write_all(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    // It takes several times the limits: 60 pieces with a pause of 100 ms.
    let (mut response, mut piece) = (Vec::new(), vec![0; 200_000]);
    while response.len() < long.len() {
        let mut filled = 0;
        while filled < piece.len() && response.len() + filled < long.len() {
            filled += connection.read(&mut piece[filled..]).unwrap();
        }
        response.extend_from_slice(&piece[..filled]);
        thread::sleep(Duration::from_millis(100));
    }
    let mut rest = vec![0; body(&response).len().abs_diff(long.len())];
    connection.read_exact(&mut rest).unwrap();
    response.extend(rest);
    assert!(body(&response) == long);
}

/// Starts a server on `backend` with at most `max` connections, and no time limits that a test would reach.
fn start_full(backend: &str, root: &Path, tls: TlsOptions, max: u32) -> Server {
    let config = Config::default().with(|c| {
        c.listen = vec![([127, 0, 0, 1], 0).into()];
        c.max_connections = max;
        c.admission = None;
    });
    let mut limits = Limits::default();
    limits.header_timeout = Duration::from_secs(600);
    limits.keep_alive_timeout = Duration::from_secs(6000);
    let server = Server::builder().config(config).backend(backend).workers(1).limits(limits);
    server.files(root).tls(tls).start().unwrap()
}

/// Sends a request, receives the response, and leaves the connection open.
fn head(connection: &mut Connection) {
    connection.write_all(b"HEAD /a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte).unwrap();
        response.extend(byte);
    }
    assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
}

/// Returns whether the server has closed a connection with a close_notify. Waits for the end.
fn has_close_notify(connection: &mut Connection) -> bool {
    match connection.read(&mut [0]) {
        Ok(n) => n == 0,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
            false
        }
    }
}

#[test]
fn client_in_its_handshake_was_closed_before_idle_ones() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let tls = authority.options("a", &["localhost"]);
    let config = Arc::new(authority.trusting(BOTH));
    on_every_backend_at_once(|backend| {
        let server = start_full(backend, dir.path(), tls.clone(), 3);
        let mut idle = connect(&server, &config, "localhost");
        head(&mut idle);
        let name = ServerName::try_from("localhost").unwrap();
        let mut hello = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut connecting = tcp(server.addresses()[0]);
        let flight = wire(&mut hello);
        connecting.write_all(&flight[..100]).unwrap();
        let mut connected = connect(&server, &config, "localhost");
        connected.flush().unwrap();
        let mut new = connect(&server, &config, "localhost");
        head(&mut new);
        assert!(has_close_notify(&mut idle), "{backend}");
        connecting.write_all(&flight[100..]).unwrap();
        let mut connecting = StreamOwned::new(hello, connecting);
        assert_eq!(body(&get(&mut connecting, "/a").unwrap()), b"a");
        assert_eq!(body(&get(&mut connected, "/a").unwrap()), b"a");
    });
}

#[test]
fn clients_without_a_request_after_the_handshake_kept_all_places() {
    const CLIENTS: usize = 8;
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let tls = authority.options("a", &["localhost"]);
    on_every_backend_at_once(|backend| {
        for version in BOTH {
            let server = start_full(backend, dir.path(), tls.clone(), CLIENTS as u32);
            let config = Arc::new(authority.trusting(&[version]));
            let mut hostile: Vec<_> =
                (0..CLIENTS).map(|_| connect(&server, &config, "localhost")).collect();
            for client in &mut hostile {
                client.flush().unwrap();
                assert!(!client.conn.is_handshaking());
            }
            for _ in 0..2 * CLIENTS {
                head(&mut connect(&server, &config, "localhost"));
            }
            assert!(has_close_notify(&mut hostile[0]), "{backend}: the oldest one");
        }
    });
}

#[test]
fn part_of_a_record_kept_a_connection_open_until_the_keep_alive_timeout() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let tls = authority.options("a", &["localhost"]);
    let config = Arc::new(authority.trusting(BOTH));
    on_every_backend_at_once(|backend| {
        let mut limits = Limits::default();
        limits.header_timeout = Duration::from_secs(4);
        limits.keep_alive_timeout = Duration::from_secs(6000);
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let server = server.tls(tls.clone()).limits(limits).start().unwrap();
        let clients = [false, true].map(|whole| {
            let mut client = connect(&server, &config, "localhost");
            head(&mut client);
            let mut bytes = Vec::new();
            if whole {
                // Behind a whole request.
                let request = b"HEAD /a HTTP/1.1\r\nHost: localhost\r\n\r\n";
                client.conn.writer().write_all(request).unwrap();
                bytes = wire(&mut client.conn);
            }
            bytes.extend(b"\x17\x03\x03");
            client.sock.write_all(&bytes).unwrap();
            (whole, client)
        });
        for (whole, mut client) in clients {
            // The time for the head of a request ends.
            let mut response = Vec::new();
            client.read_to_end(&mut response).unwrap();
            let response = String::from_utf8(response).unwrap();
            assert_eq!(response.starts_with("HTTP/1.1 200 "), whole, "{backend}: {response}");
        }
    });
}

#[test]
fn idle_connection_ends_with_a_close_notify() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let tls = authority.options("a", &["localhost"]);
    let config = Arc::new(authority.trusting(BOTH));
    on_every_backend_at_once(|backend| {
        let mut limits = Limits::default();
        limits.keep_alive_timeout = Duration::from_millis(200);
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let server = server.tls(tls.clone()).limits(limits).start().unwrap();
        let mut idle = connect(&server, &config, "localhost");
        head(&mut idle);
        assert!(has_close_notify(&mut idle), "{backend}");
    });
}

/// One end of a connection, for a thread that sends and another that receives.
#[derive(Clone)]
struct Shared {
    session: Arc<Mutex<ClientConnection>>,
    stream: Arc<TcpStream>,
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut session = self.session.lock().unwrap();
        let n = session.writer().write(bytes)?;
        let wire = wire(&mut session);
        drop(session);
        (&*self.stream).write_all(&wire)?;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Read for Shared {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.session.lock().unwrap().reader().read(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            let mut received = [0; 4096];
            let n = (&*self.stream).read(&mut received)?;
            let mut session = self.session.lock().unwrap();
            session.read_tls(&mut &received[..n])?;
            session.process_new_packets().unwrap();
        }
    }
}

#[test]
fn pipelined_requests_over_tls_made_memory_grow() {
    let authority = Authority::new();
    let (certificate, key) = authority.write("a", &["localhost"]);
    let tls = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let config = Arc::new(authority.trusting(BOTH));
    bounds::on_every_backend(&[&bounds::UNLIMITED[..], &tls].concat(), |name, serving| {
        let mut stream = tcp(serving.address);
        let name_of_server = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(Arc::clone(&config), name_of_server).unwrap();
        session.complete_io(&mut stream).unwrap();
        let stream = Arc::new(stream);
        let shared = Shared { session: Arc::new(Mutex::new(session)), stream: Arc::clone(&stream) };
        bounds::check_pipelining(name, serving, &stream, (shared.clone(), shared), 4_000);
    });
}

#[test]
fn memory_of_all_tls_clients_stays_within_the_logged_maximum() {
    let authority = Authority::new();
    let (certificate, key) = authority.write("a", &["localhost"]);
    let tls = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let config = Arc::new(authority.trusting(BOTH));
    let handshake = |serving: &Serving| {
        let mut stream = tcp(serving.address);
        let name = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(Arc::clone(&config), name).unwrap();
        session.complete_io(&mut stream).unwrap();
        session.set_buffer_limit(None);
        (session, stream)
    };
    let client = |serving: &Serving, bytes: Vec<u8>| {
        let (mut session, stream) = handshake(serving);
        session.writer().write_all(&bytes).unwrap();
        bounds::Sender::new(stream, wire(&mut session))
    };
    let other = |serving: &Serving| {
        let (session, stream) = handshake(serving);
        let mut connection = StreamOwned::new(session, stream);
        move || {
            connection.write_all(b"HEAD /none HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut response = Vec::new();
            while !response.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                connection.read_exact(&mut byte).unwrap();
                response.extend(byte);
            }
        }
    };
    bounds::check_memory_of_all_clients(&tls, client, other);
}

/// A record of the handshake.
fn handshake_record(bytes: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

#[test]
fn long_handshake_messages_take_no_more_memory_than_a_session_may() {
    const CLIENTS: usize = 40;
    let authority = Authority::new();
    let (certificate, key) = authority.write("a", &["localhost"]);
    let tls = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    bounds::on_every_backend(&tls, |name, serving| {
        let hostile = |message: &[u8], records: usize| {
            let mut stream = tcp(serving.address);
            for part in message.chunks(message.len().div_ceil(records)) {
                stream.write_all(&handshake_record(part)).unwrap();
            }
            stream
        };
        // A ClientHello that is longer than any may be.
        let refused = || hostile(&[1, 1, 0, 0], 1).read_to_end(&mut Vec::new()).unwrap();
        // The first session allocates the memory that all sessions share.
        refused();
        let before = serving.resident_kb();
        // A long one without its last byte, in records of the maximum length.
        let mut hello = vec![1, 0, 0xf0, 0];
        hello.resize(4 + 0xefff, 0);
        let clients: Vec<_> = (0..CLIENTS).map(|_| hostile(&hello, 4)).collect();
        // The server has received all of it once it has served others.
        for _ in 0..20 {
            refused();
        }
        let grown = serving.peak_kb().saturating_sub(before);
        println!("{name}: {grown} KB");
        assert!(grown <= (CLIENTS * ServerSession::MAX_BYTES / 1024) as u64, "{name}: {grown} KB");
        for client in &clients {
            assert!(!is_closed(client), "{name}: it may still be a handshake");
        }
    });
}

/// Returns whether the peer has closed a connection, or sent something.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    stream.peek(&mut [0]).is_ok()
}

/// Sends when it is dropped.
struct OnDrop(Sender<()>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn stream_without_end_to_a_client_whose_session_had_failed_kept_its_worker_busy() {
    const LONG: Duration = Duration::from_secs(20);
    let authority = Authority::new();
    let config = Arc::new(authority.trusting(BOTH));
    let tls = authority.options("a", &["localhost"]);
    on_every_backend(|backend| {
        let (requests, request) = channel();
        let requests = Mutex::new(requests);
        let later = move |_: Request, responder: Responder| {
            requests.lock().unwrap().send(responder).unwrap();
        };
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).tls(tls.clone());
        let server = server.route("/later", later).route("/", || "served").start().unwrap();
        let mut client = connect(&server, &config, "localhost");
        client.write_all(b"GET /later HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let responder = request.recv_timeout(LONG).unwrap();
        // No record of the session.
        client.sock.write_all(b"\x17\x03\x03\0\x05wrong").unwrap();
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{backend}: no alert: {error}");
        let (dropped, is_dropped) = channel();
        let guard = OnDrop(dropped);
        let pieces = iter::repeat_with(move || {
            let _ = &guard;
            Ok(Bytes::from_static(b"piece"))
        });
        responder.respond(Response::new(Body::pieces(pieces)));
        let response = get(&mut connect(&server, &config, "localhost"), "/").unwrap();
        assert_eq!(body(&response), b"served", "{backend}");
        is_dropped.recv_timeout(LONG).expect("the body is dropped");
    });
}
