//! The effects of TLS settings on clients: the certificate for each, and fields for TLS only.
#![cfg(feature = "tls")]

use crate::serving;
use crate::tls::{Authority, BOTH, body, connect, get, start, tcp};

use std::fs;
use std::sync::Arc;

use evring_httpd::Server;
use evring_httpd::evring::Config;
use evring_httpd::evring_tls::rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use evring_httpd::evring_tls::rustls::{ClientConfig, SignatureScheme};
use evring_httpd::evring_tls::{MAX_KEPT_SESSIONS_BYTES, ServerSession};
use evring_httpd::options::{FileOptions, TlsOptions};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384};
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
