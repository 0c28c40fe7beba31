//! Certificates: their choice, validity, replacement by a reload, and those of clients, on every mechanism.
#![cfg(feature = "tls")]

use crate::authority::Authority;
use crate::serving;
use crate::tls::{BOTH, body, connect, get, start, tcp};

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evring_httpd::evring_tls::{ServerSession, rustls};
use evring_httpd::handlers::with_client_info;
use evring_httpd::options::{HostOptions, TlsOptions};
use evring_httpd::{Request, Server, TlsInfo};
use rcgen::{CertificateParams, KeyPair};
use rustix::process::Signal;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore, StreamOwned,
};
use serving::program::{Serving, httpd};
use serving::{Client, on_every_backend};

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
