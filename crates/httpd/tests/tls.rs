//! TLS, on every mechanism.
#![cfg(feature = "tls")]

use crate::authority::Authority;
use crate::serving;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use evring_httpd::bytes::Bytes;
use evring_httpd::evring_tls::rustls;
use evring_httpd::options::TlsOptions;
use evring_httpd::{Request, Server};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};
use serving::{Client, on_every_backend, on_every_backend_at_once};

pub(crate) type Connection = StreamOwned<ClientConnection, TcpStream>;

pub(crate) const BOTH: &[&rustls::SupportedProtocolVersion] = rustls::ALL_VERSIONS;

pub(crate) fn start(backend: &str, root: &Path, tls: TlsOptions) -> Server {
    let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(root);
    server.tls(tls).status(true).start().unwrap()
}

pub(crate) fn tcp(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

pub(crate) fn connect(server: &Server, config: &Arc<ClientConfig>, name: &str) -> Connection {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let session = ClientConnection::new(Arc::clone(config), name).unwrap();
    StreamOwned::new(session, tcp(server.addresses()[0]))
}

/// Sends a GET, which asks to close, and returns all that comes, up to the close_notify.
pub(crate) fn get(connection: &mut Connection, target: &str) -> std::io::Result<Vec<u8>> {
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    connection.read_to_end(&mut response)?;
    Ok(response)
}

pub(crate) fn body(response: &[u8]) -> &[u8] {
    let end = response.windows(4).position(|w| w == b"\r\n\r\n").expect("no head");
    &response[end + 4..]
}

pub(crate) fn contents(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at % 251) ^ (at >> 12)) as u8).collect()
}

#[test]
fn files_of_all_sizes_arrive_by_both_versions_and_sessions_are_resumed() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let sizes = [0, 1, 1024, 65_536, 65_537, 1_000_000];
    for size in sizes {
        fs::write(dir.path().join(size.to_string()), contents(size)).unwrap();
    }
    on_every_backend(|backend| {
        let server = start(backend, dir.path(), authority.options("a", &["localhost"]));
        assert_eq!(server.scheme(), "https");
        for version in BOTH {
            let config = Arc::new(authority.trusting(&[version]));
            for (n, size) in sizes.into_iter().enumerate() {
                let mut connection = connect(&server, &config, "localhost");
                let response = get(&mut connection, &format!("/{size}")).unwrap();
                assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"), "{size}");
                assert!(body(&response) == contents(size), "{size} bytes differ");
                let session = &connection.conn;
                assert_eq!(session.protocol_version(), Some(version.version));
                assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
                let kind = if n == 0 { HandshakeKind::Full } else { HandshakeKind::Resumed };
                assert_eq!(session.handshake_kind(), Some(kind), "connection {n}");
            }
        }
    });
}

#[test]
fn keep_alive_and_pipelined_requests_work() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), contents(30_000)).unwrap();
    fs::write(dir.path().join("b"), contents(300_000)).unwrap();
    on_every_backend(|backend| {
        let server = start(backend, dir.path(), authority.options("a", &["localhost"]));
        let config = Arc::new(authority.trusting(BOTH));
        let mut connection = connect(&server, &config, "localhost");
        let one = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        connection.write_all([one("/a"), one("/b"), one("/a")].concat().as_bytes()).unwrap();
        let response = get(&mut connection, "/b").unwrap();
        let mut remaining = &response[..];
        for size in [30_000, 300_000, 30_000, 300_000] {
            let found = &body(remaining)[..size];
            assert!(found == contents(size), "{size} bytes differ");
            remaining = &body(remaining)[size..];
        }
        assert_eq!(remaining, b"");
    });
}

/// Memory whose owner panics when it is dropped.
struct Fragile(Vec<u8>);

impl AsRef<[u8]> for Fragile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn panic_in_drop_of_a_body_ended_a_worker_with_tls() {
    let authority = Authority::new();
    on_every_backend(|backend| {
        let tls = authority.options("a", &["localhost"]);
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).tls(tls);
        let fragile = |len| move |_: Request| Bytes::from_owner(Fragile(contents(len)));
        let server = server.route("/short", fragile(10_000)).route("/long", fragile(1_000_000));
        let server = server.start().unwrap();
        let config = Arc::new(authority.trusting(BOTH));
        for (target, len) in [("/short", 10_000), ("/long", 1_000_000)] {
            // This client leaves before it has all.
            let mut leaves = connect(&server, &config, "localhost");
            leaves.write_all(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            leaves.read_exact(&mut [0]).unwrap();
            drop(leaves);
            let response = get(&mut connect(&server, &config, "localhost"), target).unwrap();
            assert!(body(&response) == contents(len), "{len} bytes differ");
        }
        server.handle().stop();
        server.wait().unwrap();
    });
}

#[test]
fn requests_without_tls_are_redirected_at_their_listener_only() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    on_every_backend(|backend| {
        let mut options = authority.options("a", &["localhost"]);
        options.redirect_from = vec!["127.0.0.1:0".parse().unwrap()];
        let server = start(backend, dir.path(), options);
        assert_eq!((server.addresses().len(), server.redirecting_addresses().len()), (1, 1));
        let port = server.addresses()[0].port();
        let redirecting = server.redirecting_addresses()[0];
        let mut client = Client::new(tcp(redirecting));
        for target in ["/a", "/missing?x=y"] {
            let named = redirecting.port();
            client.send(format!("GET {target} HTTP/1.1\r\nHost: a:{named}\r\n\r\n").as_bytes());
            let response = client.response(true);
            assert_eq!(response.status, 308);
            let location = format!("https://a:{port}{target}");
            assert_eq!(response.field("Location"), Some(&location[..]));
        }
        client.send(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345");
        assert_eq!(client.response(true).status, 308);
        client.expect_end();
        let config = Arc::new(authority.trusting(BOTH));
        let mut connection = connect(&server, &config, "localhost");
        assert_eq!(body(&get(&mut connection, "/a").unwrap()), b"a");

        // Without TLS at the port that has it.
        let mut client = Client::new(tcp(server.addresses()[0]));
        let response = client.get("/a");
        assert_eq!(response.status, 400);
        let text = String::from_utf8(response.body).unwrap();
        assert!(text.contains("expects TLS"), "{text}");
        client.expect_end();
    });
}

#[test]
fn redirects_behind_a_mapping_of_ports_had_no_setting_for_the_port_of_https() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    on_every_backend(|backend| {
        let mut options = authority.options("a", &["localhost"]);
        options.redirect_from = vec!["127.0.0.1:0".parse().unwrap()];
        options.redirect_port = NonZeroU16::new(8443);
        let server = start(backend, dir.path(), options);
        let redirecting = server.redirecting_addresses()[0];
        let mut client = Client::new(tcp(redirecting));
        for named in ["a".to_owned(), "a:9080".to_owned(), format!("a:{}", redirecting.port())] {
            client.send(format!("GET / HTTP/1.1\r\nHost: {named}\r\n\r\n").as_bytes());
            let response = client.response(true);
            assert_eq!(response.field("Location"), Some("https://a:8443/"), "{named}");
        }
    });
}

#[test]
fn clients_that_speak_no_tls_or_another_protocol_are_refused_and_counted() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    on_every_backend(|backend| {
        let server = start(backend, dir.path(), authority.options("a", &["localhost"]));
        let config = Arc::new(authority.trusting(BOTH));
        let status = || {
            let response = get(&mut connect(&server, &config, "localhost"), "/.httpd/status.json");
            let status: serde_json::Value =
                serde_json::from_slice(body(&response.unwrap())).unwrap();
            status["tls_errors"].as_u64().unwrap()
        };
        assert_eq!(status(), 0);
        let mut client = tcp(server.addresses()[0]);
        client.write_all(&[0; 100]).unwrap();
        let mut alert = Vec::new();
        client.read_to_end(&mut alert).unwrap();
        assert_eq!(alert.first(), Some(&21), "an alert is a record of type 21");
        let mut only_h2 = authority.trusting(BOTH);
        only_h2.alpn_protocols = vec![b"h2".to_vec()];
        let mut connection = connect(&server, &Arc::new(only_h2), "localhost");
        let error = get(&mut connection, "/").unwrap_err().to_string();
        assert!(error.contains("NoApplicationProtocol"), "{error}");
        let mut plain = Client::new(tcp(server.addresses()[0]));
        assert_eq!(plain.get("/").status, 400);
        drop((client, connection, plain));
        // They are counted when both ends have closed.
        while status() != 3 {}
    });
}

#[test]
fn tls_bytes_at_a_port_without_tls_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    on_every_backend(|backend| {
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let server = server.status(true).start().unwrap();
        let config = Arc::new(Authority::new().trusting(BOTH));
        get(&mut connect(&server, &config, "localhost"), "/").unwrap_err();
        let mut client = Client::new(tcp(server.addresses()[0]));
        assert_eq!(client.status()["responses_4xx"], 1, "{backend}");
    });
}

/// Returns the bytes that `session` has to send.
pub(crate) fn wire(session: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut bytes).unwrap();
    }
    bytes
}

#[test]
fn stop_dropped_a_request_whose_record_had_arrived_in_part() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let tls = authority.options("a", &["localhost"]);
    let config = Arc::new(authority.trusting(BOTH));
    on_every_backend_at_once(|backend| {
        let server = start(backend, dir.path(), tls.clone());
        let name = ServerName::try_from("localhost").unwrap();
        let mut hello = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut connecting = tcp(server.addresses()[0]);
        let flight = wire(&mut hello);
        connecting.write_all(&flight[..100]).unwrap();
        let mut open = connect(&server, &config, "localhost");
        open.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\na") {
            let mut byte = [0];
            open.read_exact(&mut byte).unwrap();
            response.extend(byte);
        }
        open.conn.writer().write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let record = wire(&mut open.conn);
        open.sock.write_all(&record[..record.len() / 2]).unwrap();
        server.handle().stop();
        // The listener is closed, so the stop has reached both connections.
        while TcpStream::connect(server.addresses()[0]).is_ok() {
            thread::yield_now();
        }
        open.sock.write_all(&record[record.len() / 2..]).unwrap();
        let mut response = Vec::new();
        open.read_to_end(&mut response).unwrap();
        assert_eq!(body(&response), b"a");
        connecting.write_all(&flight[100..]).unwrap();
        let mut connecting = StreamOwned::new(hello, connecting);
        assert_eq!(body(&get(&mut connecting, "/a").unwrap()), b"a");
    });
}

#[test]
fn client_that_sent_a_close_notify_with_its_request_got_a_part_of_the_response() {
    const BYTES: usize = 1 << 20;
    let authority = Authority::new();
    let tls = authority.options("a", &["localhost"]);
    let config = Arc::new(authority.trusting(BOTH));
    on_every_backend(|backend| {
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).tls(tls.clone());
        let server = server.route("/", |_: Request| vec![b'x'; BYTES]).start().unwrap();
        let mut client = connect(&server, &config, "localhost");
        while client.conn.is_handshaking() {
            client.conn.complete_io(&mut client.sock).unwrap();
        }
        client.conn.writer().write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        client.conn.send_close_notify();
        client.sock.write_all(&wire(&mut client.conn)).unwrap();
        let mut response = Vec::new();
        client.read_to_end(&mut response).unwrap();
        assert_eq!(body(&response).len(), BYTES, "{backend}");
    });
}

/// Ends its side of the TCP connection behind the request.
#[test]
fn client_without_a_close_notify_got_a_part_of_the_response() {
    const BYTES: usize = 1 << 20;
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("file"), contents(BYTES)).unwrap();
    let tls = authority.options("a", &["localhost"]);
    let config = Arc::new(authority.trusting(BOTH));
    on_every_backend(|backend| {
        let server = start(backend, dir.path(), tls.clone());
        for cut in [0, 1] {
            let mut client = connect(&server, &config, "localhost");
            while client.conn.is_handshaking() {
                client.conn.complete_io(&mut client.sock).unwrap();
            }
            let request = b"GET /file HTTP/1.1\r\nHost: localhost\r\n\r\n";
            client.conn.writer().write_all(request).unwrap();
            let mut bytes = wire(&mut client.conn);
            // A part of another record.
            bytes.extend(&b"\x17"[..cut]);
            client.sock.write_all(&bytes).unwrap();
            client.sock.shutdown(Shutdown::Write).unwrap();
            let mut response = Vec::new();
            let received = client.read_to_end(&mut response);
            if cut == 0 {
                received.unwrap_or_else(|error| panic!("{backend}: {error}"));
                assert!(body(&response) == contents(BYTES), "{backend}");
            } else {
                assert!(received.is_err(), "{backend}: the connection was not reset");
            }
        }
    });
}

#[test]
fn targets_of_https_were_served_without_tls() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let tls = authority.options("a", &["localhost"]);
    let config = Arc::new(authority.trusting(BOTH));
    on_every_backend_at_once(|backend| {
        let plain = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let plain = plain.route("/handler", |_: Request| "made").start().unwrap();
        for line in [
            "GET https://localhost/a",
            "GET HTTPS://localhost/handler",
            "OPTIONS https://localhost/a",
            "GET https://localhost/none",
        ] {
            let mut client = serving::connect(&plain);
            let response = client.request(line, "");
            assert_eq!(response.status, 421, "{backend}: {line}");
            client.expect_end();
        }
        assert_eq!(serving::connect(&plain).get("http://localhost/a").status, 200);
        let server = start(backend, dir.path(), tls.clone());
        for target in ["https://localhost/a", "http://localhost/a"] {
            let response = get(&mut connect(&server, &config, "localhost"), target).unwrap();
            assert!(response.starts_with(b"HTTP/1.1 200 "), "{backend}: {target}");
        }
    });
}
