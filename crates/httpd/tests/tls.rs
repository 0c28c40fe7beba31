//! TLS, on every mechanism.
#![cfg(feature = "tls")]

use crate::{bounds, serving};

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::iter;
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU16;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use evring_httpd::body::Body;
use evring_httpd::bytes::Bytes;
use evring_httpd::evring::{Config, Stats};
use evring_httpd::evring_tls::{ServerSession, rustls};
use evring_httpd::handlers::{Responder, with_client_info};
use evring_httpd::options::{HostOptions, Limits, TlsOptions};
use evring_httpd::{Request, Response, Server, TlsInfo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::process::Signal;
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore, StreamOwned,
};
use serving::program::{Serving, httpd};
use serving::{Client, on_every_backend, on_every_backend_at_once};

type Connection = StreamOwned<ClientConnection, TcpStream>;

/// An authority, and a directory for the files of the certificates that it signs.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { issuer, dir: tempfile::tempdir().unwrap() }
    }

    /// Signs a certificate for these names and returns it with its key.
    fn sign(&self, names: &[&str]) -> (CertificateDer<'static>, KeyPair) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        self.sign_with(CertificateParams::new(names).unwrap())
    }

    fn sign_with(&self, params: CertificateParams) -> (CertificateDer<'static>, KeyPair) {
        self.sign_key(params, KeyPair::generate().unwrap())
    }

    pub(crate) fn sign_key(
        &self,
        params: CertificateParams,
        key: KeyPair,
    ) -> (CertificateDer<'static>, KeyPair) {
        (params.signed_by(&key, &self.issuer).unwrap().der().clone(), key)
    }

    /// Writes a certificate for these names, and its key, to files called `name`.
    pub(crate) fn write(&self, name: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        self.write_files(name, self.sign(names))
    }

    /// Writes a certificate for localhost that is valid in these years, and its key, to files called `name`.
    fn write_of_years(&self, name: &str, years: Range<i32>) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        self.write_files(name, self.sign_with(params))
    }

    pub(crate) fn write_files(
        &self,
        name: &str,
        (certificate, key): (CertificateDer<'static>, KeyPair),
    ) -> (PathBuf, PathBuf) {
        let pem = |bytes: &[u8]| {
            let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
            text.push_str(&base64(bytes));
            text.push_str("\n-----END CERTIFICATE-----\n");
            text
        };
        let file = |extension| self.dir.path().join(format!("{name}.{extension}"));
        fs::write(file("crt"), pem(&certificate)).unwrap();
        fs::write(file("key"), key.serialize_pem()).unwrap();
        (file("crt"), file("key"))
    }

    pub(crate) fn options(&self, name: &str, names: &[&str]) -> TlsOptions {
        let (certificate, key) = self.write(name, names);
        TlsOptions::files(certificate, key)
    }

    /// Writes the authority's own certificate to a file.
    pub(crate) fn file(&self) -> PathBuf {
        let file = self.dir.path().join("authority.pem");
        fs::write(&file, self.issuer.pem()).unwrap();
        file
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        roots
    }

    /// Returns the configuration of a client that trusts the authority.
    pub(crate) fn trusting(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_protocol_versions(versions).unwrap();
        let mut config = config.with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, b| bits << 8 | u32::from(*b));
        let bits = bits << (8 * (3 - group.len()));
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

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

fn contents(len: usize) -> Vec<u8> {
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
fn sessions_were_not_resumed_after_a_reload() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let mut options = authority.options("a", &["localhost"]);
    let server = start("auto", dir.path(), options.clone());
    for version in BOTH {
        let config = Arc::new(authority.trusting(&[version]));
        for (n, kind) in [HandshakeKind::Full, HandshakeKind::Resumed].into_iter().enumerate() {
            let mut connection = connect(&server, &config, "localhost");
            get(&mut connection, "/a").unwrap();
            assert_eq!(connection.conn.handshake_kind(), Some(kind), "connection {n}");
            let next = Server::builder().files(dir.path()).tls(options.clone());
            server.handle().reload(next).unwrap();
        }
    }
    // The certificates that tickets have are of other authorities.
    let config = Arc::new(authority.trusting(&[BOTH[0]]));
    get(&mut connect(&server, &config, "localhost"), "/a").unwrap();
    options.client_ca = Some(authority.file());
    server.handle().reload(Server::builder().files(dir.path()).tls(options)).unwrap();
    assert!(get(&mut connect(&server, &config, "localhost"), "/a").is_err());
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
fn certificate_is_chosen_by_name_and_read_again() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    on_every_backend(|backend| {
        let mut options = authority.options("first", &["localhost"]);
        let (certificate, key) = authority.write("second", &["example.org", "*.example.org"]);
        options.certificates.push(certificate);
        options.keys.push(key);
        let server = start(backend, dir.path(), options);
        let presented = |name: &str| {
            // A session that is resumed presents no certificate.
            let config = Arc::new(authority.trusting(BOTH));
            let mut connection = connect(&server, &config, name);
            get(&mut connection, "/a").map(|response| {
                assert_eq!(body(&response), b"a");
                connection.conn.peer_certificates().unwrap()[0].to_vec()
            })
        };
        let second = presented("example.org").unwrap();
        assert_eq!(presented("www.example.org").unwrap(), second);
        assert_eq!(presented("WWW.EXAMPLE.ORG").unwrap(), second);
        let first = presented("localhost").unwrap();
        assert_ne!(first, second);
        // Names of no certificate get the first one, which clients do not accept.
        for name in ["example.com", "a.b.example.org", "xexample.org"] {
            presented(name).unwrap_err();
        }

        let config = Arc::new(authority.trusting(BOTH));
        let mut open = connect(&server, &config, "localhost");
        open.flush().unwrap();
        let certificates = server.certificates().unwrap();
        let path = authority.dir.path().join("first.crt");
        fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let error = certificates.reload().unwrap_err().to_string();
        assert!(error.contains("first.crt"), "{error}");
        assert_eq!(presented("localhost").unwrap(), first, "the old certificate stays");
        authority.write("first", &["localhost", "more.example.com"]);
        certificates.reload().unwrap();
        let third = presented("more.example.com").unwrap();
        assert_eq!(presented("localhost").unwrap(), third);
        assert_ne!(third, first);
        assert_eq!(body(&get(&mut open, "/a").unwrap()), b"a", "a connection ended");
    });
}

#[test]
fn virtual_host_has_its_own_certificate() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    for (name, root) in [("localhost", "first"), ("example.org", "second")] {
        fs::create_dir(dir.path().join(root)).unwrap();
        fs::write(dir.path().join(root).join("a"), name).unwrap();
    }
    let mut host = HostOptions::new("example.org".parse().unwrap(), dir.path().join("second"));
    host.certificate = Some(authority.write("second", &["example.org"]));
    let builder = || Server::builder().listen("127.0.0.1:0").files(dir.path().join("first"));
    let (plain, server) = (builder().memory_at_full_load(), builder().host(host));
    assert!(server.memory_at_full_load() >= plain + ServerSession::MAX_BYTES * 1000);
    let server = server.tls(authority.options("first", &["localhost"])).start().unwrap();
    let config = Arc::new(authority.trusting(BOTH));
    for name in ["localhost", "example.org"] {
        let mut connection = connect(&server, &config, name);
        let request = format!("GET /a HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).unwrap();
        let mut response = Vec::new();
        connection.read_to_end(&mut response).unwrap();
        assert_eq!(body(&response), name.as_bytes());
    }
}

#[test]
fn client_certificates_are_required_and_checked() {
    let (authority, other) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "a").unwrap();
    let roots = authority.file();
    on_every_backend(|backend| {
        let mut options = authority.options("a", &["localhost"]);
        options.client_ca = Some(roots.clone());
        let server = start(backend, dir.path(), options);
        let mut expired = CertificateParams::new(vec!["client".to_owned()]).unwrap();
        expired.not_after = rcgen::date_time_ymd(2003, 1, 1);
        for (n, version) in BOTH.iter().enumerate() {
            let with = |signed: Option<(CertificateDer<'static>, KeyPair)>, target: &str| {
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                let config = ClientConfig::builder_with_provider(provider);
                let config = config.with_protocol_versions(&[version]).unwrap();
                let config = config.with_root_certificates(authority.roots());
                let config = match signed {
                    None => config.with_no_client_auth(),
                    Some((certificate, key)) => {
                        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                        config.with_client_auth_cert(vec![certificate], key).unwrap()
                    }
                };
                get(&mut connect(&server, &Arc::new(config), "localhost"), target)
            };
            let right = || Some(authority.sign(&["client"]));
            assert_eq!(body(&with(right(), "/a").unwrap()), b"a");
            with(Some(other.sign(&["client"])), "/a").unwrap_err();
            with(Some(authority.sign_with(expired.clone())), "/a").unwrap_err();
            with(None, "/a").unwrap_err();
            // They are counted when both ends have closed.
            let refused = || {
                let response = with(right(), "/.httpd/status.json").unwrap();
                let status: serde_json::Value = serde_json::from_slice(body(&response)).unwrap();
                status["tls_errors"].as_u64().unwrap()
            };
            let expected = 3 * (n as u64 + 1);
            let until = Instant::now() + Duration::from_secs(10);
            while refused() < expected && Instant::now() < until {}
            assert_eq!(refused(), expected, "{backend} {version:?}");
        }
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

#[test]
fn handshake_that_does_not_end_is_closed_at_the_header_timeout() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let tls = authority.options("a", &["localhost"]);
    on_every_backend_at_once(|backend| {
        let mut limits = Limits::default();
        limits.header_timeout = Duration::from_secs(1);
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let server = server.tls(tls.clone()).limits(limits).status(true).start().unwrap();
        let config = Arc::new(authority.trusting(BOTH));
        let name = ServerName::try_from("localhost").unwrap();
        let mut hello = Vec::new();
        let mut session = ClientConnection::new(Arc::clone(&config), name).unwrap();
        session.write_tls(&mut hello).unwrap();
        // Nothing, a part of a record, a whole hello; and a session in which no request follows.
        for sent in [&b""[..], &hello[..3], &hello[..hello.len() - 1], &hello] {
            let mut client = tcp(server.addresses()[0]);
            client.write_all(sent).unwrap();
            // Ends without waiting for the timeout of the test's client.
            client.read_to_end(&mut Vec::new()).unwrap();
        }
        let mut idle = connect(&server, &config, "localhost");
        idle.flush().unwrap();
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "a close_notify");
        let status = get(&mut connect(&server, &config, "localhost"), "/.httpd/status.json");
        let status: serde_json::Value = serde_json::from_slice(body(&status.unwrap())).unwrap();
        assert_eq!(status["handshakes_timed_out"], 4, "{backend}: {status}");
    });
}

#[test]
fn settings_that_cannot_work_are_refused_with_a_reason() {
    let authority = Authority::new();
    let (certificate, key) = authority.write("a", &["localhost"]);
    let (_, other) = authority.write("b", &["localhost"]);
    let missing = authority.dir.path().join("missing.pem");
    let mut two = TlsOptions::files(&certificate, &key);
    two.certificates.push(certificate.clone());
    let mut redirect = TlsOptions::default();
    redirect.redirect_from = vec!["127.0.0.1:0".parse().unwrap()];
    let mut authorities = TlsOptions::files(&certificate, &key);
    authorities.client_ca = Some(key.clone());
    let cases = [
        (TlsOptions::files(&missing, &key), "cannot read", "missing.pem"),
        (TlsOptions::files(&certificate, &missing), "cannot read", "missing.pem"),
        (TlsOptions::files(&key, &key), "has no certificate", "a.key"),
        (TlsOptions::files(&certificate, &certificate), "has no private key", "a.crt"),
        (TlsOptions::files(&certificate, other), "cannot be used", "b.key"),
        (two, "one key", "same order"),
        (redirect, "needs a certificate", "key"),
        (authorities, "has no certificate", "a.key"),
    ];
    for (tls, reason, name) in cases {
        let server = Server::builder().listen("127.0.0.1:0").backend("epoll").tls(tls);
        let error = server.start().unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(name), "{error}");
    }
}

#[test]
fn self_signed_server_serves() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "a").unwrap();
    let server = start("auto", dir.path(), TlsOptions::self_signed());
    let mut roots = RootCertStore::empty();
    roots.add(server.certificates().unwrap().first_chain().remove(0)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    for name in ["localhost", "127.0.0.1"] {
        let mut connection = connect(&server, &config, name);
        assert_eq!(body(&get(&mut connection, "/a").unwrap()), b"a");
        assert_eq!(connection.conn.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    }
}

/// Describes the TLS of a request's connection.
fn describe(request: &Request) -> String {
    let Some(tls) = request.extensions().get::<TlsInfo>() else { return "none".to_owned() };
    let protocol = tls.protocol().map(|name| String::from_utf8_lossy(name).into_owned());
    format!(
        "{:?} {:?} {:?} {protocol:?} {:?} {:?}",
        tls.version(),
        tls.cipher_suite(),
        tls.server_name(),
        if tls.is_resumed() { HandshakeKind::Resumed } else { HandshakeKind::Full },
        tls.client_certificates(),
    )
}

#[test]
fn handlers_learn_the_details_of_the_tls_of_their_client() {
    let authority = Authority::new();
    let roots = authority.file();
    on_every_backend(|backend| {
        let server = || {
            Server::builder()
                .listen("127.0.0.1:0")
                .backend(backend)
                .route("/waits", async |request: Request| describe(&request))
                .route("/asks", with_client_info(|request: Request| describe(&request)))
                .route("/", |request: Request| describe(&request))
        };
        let mut options = authority.options("a", &["localhost"]);
        options.client_ca = Some(roots.clone());
        let with_tls = server().tls(options).start().unwrap();
        for version in BOTH {
            let (certificate, key) = authority.sign(&["client"]);
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider);
            let config = config.with_protocol_versions(&[version]).unwrap();
            let config = config.with_root_certificates(authority.roots());
            let mut config = config.with_client_auth_cert(vec![certificate.clone()], key).unwrap();
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            let config = Arc::new(config);
            for (n, target) in ["/waits", "/asks", "/waits"].into_iter().enumerate() {
                let mut connection = connect(&with_tls, &config, "localhost");
                let response = get(&mut connection, target).unwrap();
                let session = &connection.conn;
                let kind = session.handshake_kind().unwrap();
                assert_eq!(kind == HandshakeKind::Resumed, n > 0, "connection {n}");
                let expected = format!(
                    "{:?} {:?} {:?} {:?} {kind:?} {:?}",
                    session.protocol_version().unwrap(),
                    session.negotiated_cipher_suite().unwrap().suite(),
                    Some("localhost"),
                    Some("http/1.1"),
                    [&certificate],
                );
                assert_eq!(String::from_utf8_lossy(body(&response)), expected);
            }
            let mut connection = connect(&with_tls, &config, "localhost");
            assert_eq!(body(&get(&mut connection, "/").unwrap()), b"none", "it did not ask");
        }
        let without_tls = server().start().unwrap();
        let mut client = Client::new(tcp(without_tls.addresses()[0]));
        for target in ["/waits", "/asks", "/"] {
            assert_eq!(client.get(target).body, b"none");
        }
    });
}

#[test]
fn certificates_that_are_not_valid_now_are_reported_with_file_and_date() {
    let authority = Authority::new();
    let all = [("old", 2001..2003), ("new", 2500..2501), ("good", 2001..2500)];
    let mut arguments = vec!["--listen".to_owned(), "127.0.0.1:0".to_owned()];
    for (name, years) in all {
        let (certificate, key) = authority.write_of_years(name, years);
        for (flag, file) in [("--tls-cert", certificate), ("--tls-key", key)] {
            arguments.extend([flag.to_owned(), file.to_str().unwrap().to_owned()]);
        }
    }
    let expected = [
        "old.crt expired on Wed, 01 Jan 2003 00:00:00 GMT",
        "new.crt is not valid before Fri, 01 Jan 2500 00:00:00 GMT",
    ];
    let check = |text: &str| {
        let warnings: Vec<_> =
            text.lines().filter(|line| line.contains("clients refuse")).collect();
        assert_eq!(warnings.len(), expected.len(), "{text}");
        for (warning, expected) in warnings.into_iter().zip(expected) {
            assert!(warning.contains(expected), "{warning}");
        }
    };
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let output = httpd(&[&arguments[..], &["--check-config"]].concat()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && text.contains("the settings are valid"), "{text}");
    check(&text);

    let mut child = httpd(&arguments).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let before: Vec<_> = lines.take_while(|line| !line.starts_with("listening on ")).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    check(&before.join("\n"));
}

/// Returns the certificate that a client gets for localhost.
pub(crate) fn sent_certificate(at: SocketAddr, config: &Arc<ClientConfig>) -> Vec<u8> {
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut connection = StreamOwned::new(session, tcp(at));
    let _ = connection.conn.complete_io(&mut connection.sock);
    connection.conn.peer_certificates().unwrap()[0].to_vec()
}

#[test]
fn reload_replaced_a_valid_certificate_by_one_that_had_expired() {
    let authority = Authority::new();
    let (certificate, key) = authority.write("site", &["localhost"]);
    let options = TlsOptions::files(&certificate, &key);
    let server = start("auto", Path::new("."), options.clone());
    let (at, config) = (server.addresses()[0], Arc::new(authority.trusting(BOTH)));
    let valid = sent_certificate(at, &config);
    let reload = |options: &TlsOptions| {
        let builder = Server::builder().files(".").tls(options.clone());
        server.handle().reload(builder).map_err(|error| error.to_string())
    };
    let other = authority.write_of_years("old", 2000..2003);
    let later = {
        let mut params = CertificateParams::new(vec!["b.localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2500, 1, 1);
        params.not_after = rcgen::date_time_ymd(2501, 1, 1);
        authority.write_files("later", authority.sign_with(params))
    };
    // Another file for the same name.
    let error = reload(&TlsOptions::files(&other.0, &other.1)).unwrap_err();
    assert!(error.contains("old.crt expired on Wed, 01 Jan 2003 00:00:00 GMT"), "{error}");
    assert!(error.contains("stays in use"), "{error}");
    // The same file, by a reload of all settings and of the certificates only.
    authority.write_of_years("site", 2000..2003);
    assert!(reload(&options).unwrap_err().contains("site.crt expired on "));
    let certificates = server.certificates().unwrap();
    assert!(certificates.reload().unwrap_err().to_string().contains("site.crt expired on "));
    assert_eq!(sent_certificate(at, &config), valid);
    // A certificate for another name replaces none.
    authority.write("site", &["localhost"]);
    let mut both = options.clone();
    both.certificates.push(later.0);
    both.keys.push(later.1);
    reload(&both).unwrap();
    assert_ne!(sent_certificate(at, &config), valid);
    // It is not valid, as before, so other settings can change.
    reload(&both).unwrap();
}

#[cfg(feature = "cli")]
#[test]
fn reload_with_an_expired_certificate_names_file_line_and_date() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let (certificate, key) = authority.write("site", &["localhost"]);
    let file = dir.path().join("httpd.toml");
    let lines = [
        "listen = ['127.0.0.1:0']".to_owned(),
        format!("tls-cert = ['{}']", certificate.display()),
        format!("tls-key = ['{}']", key.display()),
    ];
    fs::write(&file, lines.join("\n")).unwrap();
    let mut program = Serving::start(&["--config", file.to_str().unwrap()]);
    authority.write_of_years("site", 2000..2003);
    program.signal(Signal::HUP);
    let expected = [
        "the settings stay as they were: ",
        ":2:12: `tls-cert`: ",
        "site.crt expired on Wed, 01 Jan 2003 00:00:00 GMT",
    ];
    let line =
        program.errors.by_ref().lines().map(Result::unwrap).find(|line| line.contains(expected[0]));
    let line = line.unwrap();
    assert!(expected.iter().all(|part| line.contains(part)), "{line}");
    // At a start there is no valid certificate to keep; refusing would end the service.
    program.signal(Signal::TERM);
    assert!(program.child.wait().unwrap().success());
    let mut program = Serving::start(&["--config", file.to_str().unwrap(), "--log-level", "info"]);
    assert!(program.before.contains("site.crt expired on "), "{}", program.before);
    // Both are expired, so other settings can change.
    program.signal(Signal::HUP);
    let mut lines = program.errors.by_ref().lines().map(Result::unwrap);
    let is_outcome = |line: &String| line.contains("settings reloaded") || line.contains("stay");
    let line = lines.find(is_outcome).unwrap();
    assert!(line.contains("settings reloaded"), "{line}");
}

#[cfg(feature = "metrics")]
#[test]
fn metrics_have_the_expiry_of_each_certificate() {
    let authority = Authority::new();
    let mut options = TlsOptions::default();
    for (name, year) in [("one", 2400), ("two", 2003)] {
        let (certificate, key) = authority.write_of_years(name, 2000..year);
        options.certificates.push(certificate);
        options.keys.push(key);
    }
    let builder = |options: &TlsOptions| {
        let builder = Server::builder().files(".").tls(options.clone());
        builder.metrics_listen("127.0.0.1:0")
    };
    let server = builder(&options).listen("127.0.0.1:0").start().unwrap();
    let expect = |expected: &[(&Path, u64)]| {
        let mut client = Client::new(TcpStream::connect(server.metrics_addresses()[0]).unwrap());
        let text = String::from_utf8(client.get("/metrics").body).unwrap();
        let name = "evring_tls_certificate_expiry_timestamp_seconds";
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with(name)).collect();
        let line =
            |(file, at): &(&Path, u64)| format!("{name}{{file=\"{}\"}} {at}", file.display());
        assert_eq!(lines, expected.iter().map(line).collect::<Vec<_>>(), "{text}");
    };
    let files = options.certificates.clone();
    // The first of January of 2400 and of 2003.
    expect(&[(&files[0], 13_569_465_600), (&files[1], 1_041_379_200)]);
    options.certificates.pop();
    options.keys.pop();
    authority.write_of_years("one", 2000..2500);
    server.handle().reload(builder(&options)).unwrap();
    expect(&[(&files[0], 16_725_225_600)]);
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
    on_every_backend(|backend| {
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
        let server = start_full(backend, dir.path(), tls.clone(), 2 * CLIENTS);
        for _ in 0..SERVED {
            let mut client = connect(&server, &config, "localhost");
            assert_eq!(body(&get(&mut client, "/a").unwrap()), b"a", "{backend}");
        }
        let (of_served, _) = processor_time(server);
        let (hello, served) = (of_flood / CLIENTS, of_served / SERVED);
        assert!(hello < 2 * served, "{backend}: {hello:?} and {served:?}");
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

/// Returns the bytes that `session` has to send.
fn wire(session: &mut ClientConnection) -> Vec<u8> {
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
        limits.header_timeout = Duration::from_millis(200);
        limits.keep_alive_timeout = Duration::from_secs(6000);
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let server = server.tls(tls.clone()).limits(limits).start().unwrap();
        for whole in [false, true] {
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
