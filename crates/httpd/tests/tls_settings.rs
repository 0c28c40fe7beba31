//! The effects of TLS settings on clients: the certificate for each, and fields for TLS only.
#![cfg(feature = "tls")]

use crate::authority::Authority;
use crate::serving;
use crate::tls::{BOTH, body, connect, get, start, tcp};
use crate::tls_certificates::sent_certificate;

use std::fs;
use std::io::{BufRead, Read, Write};
use std::sync::Arc;

use evring_httpd::body::Body;
use evring_httpd::bytes::Bytes;
use evring_httpd::evring::Config;
use evring_httpd::evring_tls::rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use evring_httpd::evring_tls::rustls::version::TLS12;
use evring_httpd::evring_tls::rustls::{ClientConfig, SignatureScheme};
use evring_httpd::evring_tls::{MAX_KEPT_SESSIONS_BYTES, ServerSession};
use evring_httpd::handlers::{Upgraded, upgrade};
use evring_httpd::options::{FileOptions, TlsOptions};
use evring_httpd::{Request, Response, Server};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384};
use rustix::process::Signal;
use serving::program::Serving;
use serving::{Client, on_every_backend};

#[test]
fn first_certificate_of_a_name_was_sent_to_clients_that_cannot_verify_it() {
    expect_second_certificate("localhost", "localhost");
}

#[test]
fn certificate_of_a_wildcard_was_not_sent_to_clients_that_cannot_verify_that_of_the_name() {
    expect_second_certificate("www.example.org", "*.example.org");
}

/// Expects that a client that asks for `name` gets the second certificate if it cannot verify the first.
#[track_caller]
fn expect_second_certificate(name: &str, second_name: &str) {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "a").unwrap();
    let mut options = authority.options("p256", &[name]);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    let (certificate, key) =
        authority.sign_key(CertificateParams::new(vec![second_name.to_owned()]).unwrap(), key);
    let second = certificate.clone();
    let (certificate, key) = authority.write_files("p384", (certificate, key));
    options.certificates.push(certificate);
    options.keys.push(key);
    let server = start("auto", dir.path(), options);
    let all = ring::default_provider().signature_verification_algorithms;
    let only = |scheme: SignatureScheme| {
        let mapping: Vec<_> =
            all.mapping.iter().filter(|(known, _)| *known == scheme).copied().collect();
        let mut provider = ring::default_provider();
        provider.signature_verification_algorithms =
            WebPkiSupportedAlgorithms { mapping: mapping.leak(), ..all };
        let config = ClientConfig::builder_with_provider(Arc::new(provider));
        let config = config.with_protocol_versions(BOTH).unwrap();
        Arc::new(config.with_root_certificates(authority.roots()).with_no_client_auth())
    };
    for (scheme, is_second) in [
        (SignatureScheme::ECDSA_NISTP256_SHA256, false),
        (SignatureScheme::ECDSA_NISTP384_SHA384, true),
    ] {
        let mut connection = connect(&server, &only(scheme), name);
        assert_eq!(body(&get(&mut connection, "/a").unwrap()), b"a");
        let sent = &connection.conn.peer_certificates().unwrap()[0];
        assert_eq!(*sent == second, is_second, "{scheme:?}");
    }
}

#[test]
fn memory_at_full_load_had_no_certificates_of_clients() {
    let authority = Authority::new();
    let of = |tls| Server::builder().listen("127.0.0.1:0").tls(tls).memory_at_full_load();
    let mut tls = authority.options("a", &["localhost"]);
    let without = of(tls.clone());
    tls.client_ca = Some(authority.file());
    let more = ServerSession::MAX_BYTES_WITH_CLIENT_CERTIFICATES - ServerSession::MAX_BYTES;
    let connections = Config::default().max_connections as usize;
    assert_eq!(of(tls), without + more * connections + MAX_KEPT_SESSIONS_BYTES);
}

#[cfg(feature = "cli")]
#[test]
fn hangup_serves_a_renewed_certificate() {
    let authority = Authority::new();
    let (certificate, key) = authority.write("site", &["localhost"]);
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let flags = ["--listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key];
    let mut program = Serving::start(&[&flags[..], &["--log-level", "info"]].concat());
    let at = program.address;
    // A session that is resumed presents no certificate.
    let sent = || sent_certificate(at, &Arc::new(authority.trusting(BOTH)));
    let before = sent();
    authority.write("site", &["localhost"]);
    assert_eq!(sent(), before);
    program.signal(Signal::HUP);
    let mut lines = program.errors.by_ref().lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("settings reloaded")));
    assert_ne!(sent(), before);
}

#[test]
fn protocol_after_an_upgrade_under_tls_exchanges_bytes_until_the_client_ends() {
    async fn echo(mut connection: Upgraded) {
        while let Some(bytes) = connection.read().await {
            connection.write(bytes).await.unwrap();
        }
    }
    let authority = Authority::new();
    on_every_backend(|backend| {
        let server = Server::builder().listen("127.0.0.1:0").backend(backend);
        let server = server.tls(authority.options("a", &["localhost"]));
        let server = server.route("/", |_: Request| -> Response { upgrade("echo", echo) });
        let server = server.start().unwrap();
        for version in BOTH {
            let config = Arc::new(authority.trusting(&[version]));
            let mut connection = connect(&server, &config, "localhost");
            let request =
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
            // The bytes of the protocol may come with the request.
            connection.write_all(format!("{request}hello").as_bytes()).unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                connection.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", head.escape_ascii());
            let mut echoed = [0; 5];
            connection.read_exact(&mut echoed).unwrap();
            assert_eq!(&echoed, b"hello", "{backend}");
            let long = vec![b'x'; 50_000];
            connection.write_all(&long).unwrap();
            connection.flush().unwrap();
            let mut echoed = vec![0; long.len()];
            connection.read_exact(&mut echoed).unwrap();
            assert!(echoed == long, "{backend}: the bytes differ");
            connection.conn.send_close_notify();
            connection.flush().unwrap();
            // Fails without a close_notify of the server.
            assert_eq!(connection.read(&mut [0]).unwrap(), 0, "{backend}");
        }
    });
}

#[test]
fn small_chunks_had_three_records_each() {
    const PIECES: usize = 100;
    let authority = Authority::new();
    on_every_backend(|backend| {
        let server = Server::builder().listen("127.0.0.1:0").backend(backend);
        let server = server.tls(authority.options("a", &["localhost"]));
        let pieces =
            |_: Request| Response::new(Body::pieces((0..PIECES).map(|_| Ok(Bytes::from("piece")))));
        let server = server.route("/", pieces).start().unwrap();
        // With TLS 1.3 records of the handshake have the type of those with bytes of the application.
        let config = Arc::new(authority.trusting(&[&TLS12]));
        let mut connection = connect(&server, &config, "localhost");
        connection.conn.complete_io(&mut connection.sock).unwrap();
        connection.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut wire = Vec::new();
        connection.sock.read_to_end(&mut wire).unwrap();
        let (mut remaining, mut records) = (&wire[..], 0);
        while let [kind, _, _, high, low, others @ ..] = remaining {
            const APPLICATION_DATA: u8 = 23;
            records += usize::from(*kind == APPLICATION_DATA);
            remaining = &others[u16::from_be_bytes([*high, *low]).into()..];
        }
        // The head, the pieces and the last chunk.
        assert_eq!(records, 1 + PIECES + 1, "{backend}");
    });
}

#[test]
fn reload_made_another_self_signed_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let server = start("auto", dir.path(), TlsOptions::self_signed());
    let chain = || server.certificates().unwrap().first_chain();
    let before = chain();
    let next = || Server::builder().files(dir.path()).tls(TlsOptions::self_signed());
    server.handle().reload(next()).unwrap();
    assert_eq!(chain(), before);
    let authority = Authority::new();
    let options = authority.options("a", &["localhost"]);
    server.handle().reload(Server::builder().files(dir.path()).tls(options)).unwrap();
    assert_ne!(chain(), before);
}

#[test]
fn strict_transport_security_was_sent_without_tls() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let name = "Strict-Transport-Security";
    on_every_backend(|backend| {
        let mut tls = authority.options("a", &["localhost"]);
        tls.redirect_from = vec!["127.0.0.1:0".parse().unwrap()];
        let mut files = FileOptions::default();
        files.headers = vec![format!("always {name}: max-age=9").parse().unwrap()];
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(dir.path());
        let server = server.file_options(files).tls(tls).start().unwrap();
        let mut client = Client::new(tcp(server.redirecting_addresses()[0]));
        let response = client.get("/a");
        assert_eq!((response.status, response.field(name)), (308, None), "{backend}");
        client.send(b"nonsense\r\n\r\n");
        let response = client.response(true);
        assert_eq!((response.status, response.field(name)), (400, None), "{backend}");
        let config = Arc::new(authority.trusting(BOTH));
        let mut connection = connect(&server, &config, "localhost");
        let response = String::from_utf8(get(&mut connection, "/none").unwrap()).unwrap();
        assert!(response.contains("404") && response.contains(name), "{response}");
    });
}
