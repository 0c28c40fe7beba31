//! Basic authentication, on every mechanism.
#![cfg(feature = "basic-auth")]

use crate::serving;

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evring_httpd::options::{AccessLog, BasicAuth, Limits};
use evring_httpd::{Builder, Error, Request, Server};
use serving::{Client, connect, on_every_backend};
use tempfile::TempDir;

/// A directory with files, and users of `/private` beside it.
fn tree(cost: u32) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("files/private")).unwrap();
    fs::write(root.path().join("files/private/a.txt"), "secret").unwrap();
    fs::write(root.path().join("files/privates.txt"), "public").unwrap();
    let hash = bcrypt::hash("pass:word", cost).unwrap();
    fs::write(root.path().join("users"), format!("# users\nann:{hash}\n")).unwrap();
    root
}

fn auth(root: &Path, rest: &str) -> BasicAuth {
    format!("{}{rest}", root.join("users").display()).parse().unwrap()
}

fn server(backend: &str, root: &Path) -> Builder {
    let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(root.join("files"));
    let server = server.route("/private/echo", |request: Request| request.into_body());
    server.basic_auth(auth(root, ",path=/private/,realm=the staff"))
}

/// A request with credentials, and a body if it is not empty.
fn request(line: &str, credentials: Option<&str>, body: &str) -> String {
    let field =
        credentials.map(|text| format!("Authorization: basic {}\r\n", STANDARD.encode(text)));
    let length = format!("Content-Length: {}\r\n", body.len());
    let length = if body.is_empty() { "" } else { &length };
    format!("{line} HTTP/1.1\r\nHost: a\r\n{}{length}\r\n{body}", field.unwrap_or_default())
}

fn status(client: &mut Client, line: &str, credentials: Option<&str>) -> u16 {
    client.send(request(line, credentials, "").as_bytes());
    client.response(!line.starts_with("HEAD")).status
}

#[test]
fn paths_with_users_need_their_passwords() {
    let root = tree(4);
    on_every_backend(|backend| {
        let server = server(backend, root.path()).start().unwrap();
        let mut client = connect(&server);
        client.send(request("GET /private/a.txt", None, "").as_bytes());
        let refused = client.response(true);
        assert_eq!(refused.status, 401, "{backend}");
        let challenge = "Basic realm=\"the staff\", charset=\"UTF-8\"";
        assert_eq!(refused.field("WWW-Authenticate"), Some(challenge));
        for line in [
            "GET /private",
            "GET /private/",
            "HEAD /private/a.txt",
            "GET /%70rivate/a.txt",
            "GET //private//a.txt",
            "GET /x/../private/a.txt",
            "GET /private/none",
            "GET http://a/private/a.txt",
            "OPTIONS /private/a.txt",
            "GET /private/echo",
        ] {
            assert_eq!(status(&mut client, line, None), 401, "{backend}: {line}");
        }
        for wrong in ["ann:", "ann:pass:wor", "ann:pass:word\0", "bob:pass:word", "ann", ":", ""] {
            let status = status(&mut client, "GET /private/a.txt", Some(wrong));
            assert_eq!(status, 401, "{backend}: {wrong}");
        }
        assert_eq!(status(&mut client, "GET /privates.txt", None), 200, "{backend}");
        assert_eq!(status(&mut client, "GET /privates.txt", Some("ann:no")), 200, "{backend}");
        // Verified once, then known.
        for _ in 0..3 {
            client.send(request("GET /private/a.txt", Some("ann:pass:word"), "").as_bytes());
            let response = client.response(true);
            assert_eq!((response.status, &response.body[..]), (200, &b"secret"[..]), "{backend}");
        }
        assert_eq!(status(&mut client, "GET /private/a.txt", Some("ann:other")), 401, "{backend}");
    });
}

#[test]
fn paths_without_a_canonical_form_reached_handlers_without_a_password() {
    let root = tree(4);
    on_every_backend(|backend| {
        let server = Server::builder().listen("127.0.0.1:0").backend(backend);
        let server = server.route("/", |request: Request| request.uri().path().to_owned());
        let server = server.basic_auth(auth(root.path(), ",path=/private")).start().unwrap();
        for path in ["/private%2Fa", "/x/../private/a%2Fb", "//private/%2F", "/private/%", "/../a"]
        {
            for line in
                ["GET", "HEAD", "OPTIONS", "DELETE"].map(|method| format!("{method} {path}"))
            {
                let status = status(&mut connect(&server), &line, Some("ann:pass:word"));
                assert_eq!(status, 400, "{backend}: {line}");
            }
        }
        let mut client = connect(&server);
        assert_eq!(status(&mut client, "GET /%70rivate", None), 401, "{backend}");
        assert_eq!(client.get("/privat%65s").body, b"/privat%65s", "{backend}");
    });
}

#[test]
fn precompressed_forms_of_a_file_needed_no_password() {
    let root = tree(4);
    for name in ["a.html", "a.html.gz", "a.html.br", "a.html.zst", "a.html.txt"] {
        std::fs::write(root.path().join("files").join(name), name).unwrap();
    }
    on_every_backend(|backend| {
        let server = server(backend, root.path());
        let server = server.basic_auth(auth(root.path(), ",path=/a.html")).start().unwrap();
        let mut client = connect(&server);
        for name in ["a.html", "a.html.gz", "a.html.br", "a.html.zst"] {
            let line = format!("GET /{name}");
            assert_eq!(status(&mut client, &line, None), 401, "{backend}: {name}");
            assert_eq!(status(&mut client, &line, Some("ann:pass:word")), 200, "{backend}: {name}");
        }
        assert_eq!(status(&mut client, "GET /a.html.txt", None), 200, "{backend}");
    });
}

#[test]
fn paths_without_a_canonical_form_need_the_password_of_all_paths() {
    let root = tree(4);
    on_every_backend(|backend| {
        let server = Server::builder().listen("127.0.0.1:0").backend(backend);
        let server = server.route("/all/", |request: Request| request.uri().path().to_owned());
        let server = server.basic_auth(auth(root.path(), "")).start().unwrap();
        let mut client = connect(&server);
        assert_eq!(status(&mut client, "GET /all/a%2Fb", None), 401, "{backend}");
        assert_eq!(status(&mut client, "GET /all/a%2Fb", Some("ann:pass:word")), 200, "{backend}");
    });
}

#[test]
fn requests_behind_a_password_are_answered_in_order_with_their_bodies() {
    let root = tree(4);
    on_every_backend(|backend| {
        let server = server(backend, root.path()).start().unwrap();
        let right = Some("ann:pass:word");
        let mut client = connect(&server);
        let requests = [
            request("POST /private/echo", right, "first"),
            request("GET /private/a.txt", Some("ann:no"), ""),
            request("GET /privates.txt", None, ""),
            request("POST /private/echo", right, "last"),
        ];
        client.send(requests.concat().as_bytes());
        let responses =
            [(200, "first"), (401, "401 Unauthorized\n"), (200, "public"), (200, "last")];
        for (status, body) in responses {
            let response = client.response(true);
            assert_eq!(
                (response.status, &response.body[..]),
                (status, body.as_bytes()),
                "{backend}"
            );
        }
        // The body of a refused request is not read.
        for wrong in [None, Some("ann:no")] {
            let mut client = connect(&server);
            client.send(request("POST /private/echo", wrong, "body").as_bytes());
            let refused = client.response(true);
            assert_eq!((refused.status, refused.field("Connection")), (401, Some("close")));
            client.expect_end();
        }
        // A client that leaves before its password is verified disturbs nobody.
        for _ in 0..8 {
            connect(&server).send(request("GET /private/a.txt", Some("ann:gone"), "").as_bytes());
        }
        assert_eq!(status(&mut client, "GET /private/a.txt", right), 200, "{backend}");
    });
}

#[test]
fn requests_get_503_while_too_many_passwords_are_verified() {
    let root = tree(8);
    on_every_backend(|backend| {
        let server = server(backend, root.path()).start().unwrap();
        let mut clients: Vec<_> = (0..96).map(|_| connect(&server)).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(request("GET /private/a.txt", Some(&format!("ann:{n}")), "").as_bytes());
        }
        // Served while the passwords are verified.
        assert_eq!(status(&mut connect(&server), "GET /privates.txt", None), 200, "{backend}");
        let mut counts = [0, 0];
        for client in &mut clients {
            let response = client.response(true);
            match response.status {
                401 => counts[0] += 1,
                503 => {
                    assert_eq!(response.field("Retry-After"), Some("1"), "{backend}");
                    counts[1] += 1;
                }
                other => panic!("{backend}: {other}"),
            }
        }
        assert!(counts[0] >= 32 && counts[1] > 0, "{backend}: {counts:?}");
        assert_eq!(status(&mut clients[0], "GET /private/a.txt", Some("ann:pass:word")), 200);
    });
}

#[test]
fn passwords_that_were_not_verified_in_time_were_not_counted() {
    let root = tree(8);
    let mut limits = Limits::default();
    limits.progress_interval = Duration::from_millis(1);
    on_every_backend(|backend| {
        let server = server(backend, root.path()).limits(limits.clone()).status(true);
        let server = server.start().unwrap();
        let is_reset = |n: &u32| {
            let mut client = connect(&server);
            client.send(request("GET /private/a.txt", Some(&format!("ann:{n}")), "").as_bytes());
            client.stream.read(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
        };
        // The machine may be so slow that a password is verified at the time at which it is too late.
        (0..).find(is_reset).unwrap();
        assert_eq!(connect(&server).status()["logins_timed_out"], 1, "{backend}");
    });
}

#[test]
fn name_of_the_user_is_logged() {
    let root = tree(4);
    let path = root.path().join("access.log");
    let log = AccessLog::from(path.clone());
    let server = server("auto", root.path()).access_log(log).start().unwrap();
    let mut client = connect(&server);
    assert_eq!(status(&mut client, "GET /private/a.txt", Some("ann:pass:word")), 200);
    assert_eq!(status(&mut client, "GET /private/a.txt", Some("b \"\nc:x")), 401);
    assert_eq!(status(&mut client, "GET /privates.txt", None), 200);
    drop(client);
    server.handle().stop();
    server.wait().unwrap();
    let text = fs::read_to_string(path).unwrap();
    let users: Vec<_> = text.lines().map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(users, ["ann", "b\\x20\\x22\\x0Ac", "-"], "{text}");
}

#[test]
fn server_without_its_users_does_not_start() {
    let root = tree(4);
    fs::write(root.path().join("users"), "ann:plain\n").unwrap();
    let builder = || server("auto", root.path());
    for error in [builder().check().unwrap_err(), builder().start().unwrap_err()] {
        assert!(matches!(error, Error::Users(..)), "{error}");
        assert!(error.to_string().ends_with("make it with `htpasswd -B`"), "{error}");
    }
}
