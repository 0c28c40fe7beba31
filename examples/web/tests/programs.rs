//! The examples without a database.

mod program;

use std::fs::{self, DirEntry};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use evring_httpd::evring::mechanisms::backends;
use program::Program;
use tempfile::TempDir;
use tungstenite::Message;

/// Runs a test for each mechanism that is available, in a thread of its own: this one has probed io_uring, and the end of a
/// ring interrupts calls of its thread.
fn on_each_mechanism(test: impl Fn(&str) + Sync) {
    for backend in backends().into_iter().filter(|backend| backend.available.is_ok()) {
        println!("on {}", backend.name);
        thread::scope(|scope| scope.spawn(|| test(backend.name)).join().unwrap());
    }
}

#[test]
fn router_of_axum_has_state_extractors_middleware_and_events() {
    on_each_mechanism(|name| {
        let arguments = ["127.0.0.1:0", name];
        test_router(Program::start(env!("CARGO_BIN_EXE_axum-router"), &arguments));
    });
}

fn test_router(program: Program) {
    assert_eq!(program.get("/greet").body, "Hello, World! (greeting 1)\n");
    let answer = program.get("/greet?name=Ada");
    assert_eq!(answer.body, "Hello, Ada! (greeting 2)\n");
    assert!(answer.head.contains("x-path: /greet"), "{answer:?}");
    // axum sets the length, then takes the body away; it was 0.
    let answer = program.request("HEAD /greet", "", b"");
    assert!(answer.head.contains("content-length: 27\r\n"), "{answer:?}");
    let json_type = "Content-Type: application/json\r\n";
    let point = br#"{"x": 1.5, "y": -2}"#;
    let answer = program.request("POST /scale/2", json_type, point);
    assert_eq!((answer.status, &*answer.body), (200, r#"{"x":3.0,"y":-4.0}"#));
    assert_eq!(program.request("POST /scale/0", json_type, point).status, 422);
    assert_eq!(program.request("POST /scale/two", json_type, point).status, 400);
    assert_eq!(program.request("POST /scale/2", "", point).status, 415);
    assert_eq!(program.request("POST /scale/2", json_type, b"{}").status, 422);
    assert_eq!(program.request("DELETE /greet", "", b"").status, 405);
    let answer = program.get("/count");
    assert!(answer.head.contains("content-type: text/event-stream"), "{answer:?}");
    assert_eq!(answer.body.matches("event: count\n").count(), 3, "{answer:?}");
    assert_eq!(program.get("/wait/1").body, "1 ms later\n");
    let long = vec![b'x'; 500_000];
    let answer = program.request("POST /echo", "", &long);
    assert_eq!(answer.body.matches('x').count(), long.len());
    assert_eq!((program.get("/none").status, &*program.get("/none").body), (404, "nothing here\n"));
    program.stop();
}

#[test]
fn websocket_in_a_router_of_axum_exchanges_messages() {
    on_each_mechanism(exchange_messages);
}

fn exchange_messages(backend: &str) {
    let program = Program::start(env!("CARGO_BIN_EXE_axum-websocket"), &["127.0.0.1:0", backend]);
    assert_eq!(program.get("/").status, 200);
    let older = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 12\r\n";
    for fields in ["", older] {
        let answer = program.request("GET /chat", fields, b"");
        assert_eq!(answer.status, 426, "{answer:?}");
        for field in ["upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13"] {
            assert!(answer.head.lines().any(|line| line == field), "{answer:?}");
        }
    }
    let current = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
    let of_16_bytes = "dGhlIHNhbXBsZSBub25jZQ==";
    for key in ["x", "dGhlIHNhbXBsZSBub25jZQ", "dGhlIHNhbXBsZSBub25=ZQ==", &of_16_bytes[2..]] {
        let fields = format!("{current}Sec-WebSocket-Key: {key}\r\n");
        assert_eq!(program.request("GET /chat", &fields, b"").status, 400, "{key}");
    }
    let fields = format!("{current}Sec-WebSocket-Key: {of_16_bytes}\r\n");
    // The router takes it for a GET.
    assert_eq!(program.request("HEAD /chat", &fields, b"").status, 405);
    let url = format!("ws://{}/chat", program.address);
    let (mut socket, response) = tungstenite::client(&url, program.connect()).unwrap();
    assert_eq!(response.status(), 101);
    socket.send(Message::text("hello")).unwrap();
    assert_eq!(socket.read().unwrap(), Message::text("HELLO"));
    let long = Message::binary(vec![b'x'; 500_000]);
    for _ in 0..3 {
        socket.send(long.clone()).unwrap();
        assert_eq!(socket.read().unwrap(), long);
    }
    socket.send(Message::Ping("are you there?".into())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Pong("are you there?".into()));
    socket.close(None).unwrap();
    assert!(matches!(socket.read().unwrap(), Message::Close(_)));
    assert!(matches!(socket.read(), Err(tungstenite::Error::ConnectionClosed)));
    // The program waits at its end for clients to close theirs.
    drop(socket);
    // A message that is too long ends the connection.
    let (mut socket, _) = tungstenite::client(&url, program.connect()).unwrap();
    let end = socket.send(Message::binary(vec![0; 2 << 20])).and_then(|()| socket.read());
    let is_over = match &end {
        Ok(message) => message.is_close(),
        Err(tungstenite::Error::Io(error)) => {
            !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
        }
        Err(_) => true,
    };
    assert!(is_over, "{end:?}");
    drop(socket);
    program.stop();
}

/// Starts the program that stores files, with an empty directory.
fn start_upload() -> (Program, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let arguments = [directory.path().to_str().unwrap(), "127.0.0.1:0"];
    (Program::start(env!("CARGO_BIN_EXE_upload"), &arguments), directory)
}

#[test]
fn upload_stores_files_and_serves_them() {
    let (program, _directory) = start_upload();
    let text: String = (0..200_000).map(|n| format!("{n}\n")).collect();
    let answer = program.request("PUT /files/numbers.txt", "", text.as_bytes());
    assert_eq!((answer.status, answer.body), (201, format!("{} bytes\n", text.len())));
    assert!(program.get("/numbers.txt").body == text);
    for name in ["..%2fx", ".hidden", "a%20b"] {
        let answer = program.request(&format!("PUT /files/{name}"), "", b"x");
        assert!(matches!(answer.status, 400 | 405), "{name}: {answer:?}");
    }
    program.stop();
}

/// Sends the first half of 8 bytes to a name, and waits until it is in a file. Returns its name, too.
fn upload_half(program: &Program, directory: &Path, name: &str) -> (TcpStream, String) {
    let mut stream = program.connect();
    let head = format!("PUT /files/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(b"AAAA").unwrap();
    let is_half = |entry: &DirEntry| entry.metadata().is_ok_and(|found| found.len() == 4);
    let part = within(|| fs::read_dir(directory).unwrap().map(Result::unwrap).find(is_half));
    (stream, part.file_name().into_string().unwrap())
}

/// Repeats a call until it returns something.
fn within<T>(call: impl Fn() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = call() {
            return found;
        }
        assert!(Instant::now() < until, "it has not happened");
        thread::yield_now();
    }
}

#[test]
fn uploads_at_the_same_time_were_mixed() {
    let (program, directory) = start_upload();
    let path = directory.path();
    for other in ["a.bin", "a.txt"] {
        let (mut stream, _) = upload_half(&program, path, "a.txt");
        assert_eq!(program.request(&format!("PUT /files/{other}"), "", b"BBBBBBBB").status, 201);
        assert_eq!(fs::read(path.join(other)).unwrap(), b"BBBBBBBB");
        stream.write_all(b"AAAA").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        assert_eq!(line, "HTTP/1.1 201 Created\r\n", "with {other}");
        assert_eq!(fs::read(path.join("a.txt")).unwrap(), b"AAAAAAAA", "with {other}");
    }
    assert_eq!(fs::read(path.join("a.bin")).unwrap(), b"BBBBBBBB");
    program.stop();
    assert_eq!(fs::read_dir(path).unwrap().count(), 2);
}

#[test]
fn half_of_an_upload_was_served() {
    let (program, directory) = start_upload();
    let path = directory.path();
    let (stream, part) = upload_half(&program, path, "a.txt");
    for name in ["a.txt", &part] {
        assert_eq!(program.get(&format!("/{name}")).status, 404, "{name}");
    }
    drop(stream);
    program.stop();
}

#[test]
fn upload_of_a_client_that_had_left_stayed() {
    let (program, directory) = start_upload();
    let path = directory.path();
    let (stream, _) = upload_half(&program, path, "a.txt");
    drop(stream);
    within(|| fs::read_dir(path).unwrap().next().is_none().then_some(()));
    program.stop();
}

#[test]
fn part_of_an_upload_stayed_after_the_program_was_killed() {
    let (program, directory) = start_upload();
    let path = directory.path();
    let (stream, name) = upload_half(&program, path, "a.txt");
    fs::write(path.join(".b.part"), "of another program").unwrap();
    program.kill();
    drop(stream);
    assert!(path.join(&name).exists());
    let arguments = [path.to_str().unwrap(), "127.0.0.1:0"];
    let program = Program::start(env!("CARGO_BIN_EXE_upload"), &arguments);
    assert!(!path.join(name).exists());
    assert!(path.join(".b.part").exists());
    program.stop();
}

#[test]
fn path_of_the_directory_was_in_the_answer_to_a_failed_upload() {
    let (program, directory) = start_upload();
    fs::remove_dir(directory.path()).unwrap();
    let answer = program.request("PUT /files/a.txt", "", b"x");
    assert_eq!((answer.status, &*answer.body), (500, "the file cannot be stored\n"));
    program.stop();
}

#[test]
fn events_reach_all_clients_until_they_go() {
    let program = Program::start(env!("CARGO_BIN_EXE_events"), &["127.0.0.1:0"]);
    let listen = || {
        let mut stream = program.connect();
        stream.write_all(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        assert!(lines.by_ref().any(|line| line == ": welcome"));
        lines
    };
    let (mut one, mut other) = (listen(), listen());
    let say = |text: &str| program.request("POST /say", "", text.as_bytes()).body;
    assert_eq!(say("hello\nthere"), "2 clients\n");
    for lines in [&mut one, &mut other] {
        assert!(lines.any(|line| line == "data: hello"));
        assert_eq!(lines.next().unwrap(), "data: there");
    }
    drop(other);
    while say("again") != "1 clients\n" {}
    assert!(one.any(|line| line == "data: again"));
    // The stream that is open ends with the program.
    program.stop();
}

/// A lone CR ends a line of an event, too.
#[test]
fn text_after_a_cr_was_lost_or_another_field() {
    let program = Program::start(env!("CARGO_BIN_EXE_events"), &["127.0.0.1:0"]);
    let mut stream = program.connect();
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut received = BufReader::new(stream);
    let mut event = || {
        let mut event = Vec::new();
        // Chunks begin and end with CR LF; an event with LF LF.
        while !event.ends_with(b"\n\n") {
            assert!(received.read_until(b'\n', &mut event).unwrap() > 0);
        }
        let event = String::from_utf8(event).unwrap();
        event.rsplit("\r\n").next().unwrap().to_owned()
    };
    assert_eq!(event(), ": welcome\n\n");
    for (text, lines) in [
        ("hello\rthere", "data: hello\ndata: there\n\n"),
        (
            "x\revent: admin\rid: 9\rretry: 86400000\r\rdata: forged",
            "data: x\ndata: event: admin\ndata: id: 9\ndata: retry: 86400000\ndata: \ndata: data: forged\n\n",
        ),
        ("each\r\nend\nis one\r", "data: each\ndata: end\ndata: is one\n\n"),
    ] {
        program.request("POST /say", "", text.as_bytes());
        assert_eq!(event(), lines, "{text:?}");
    }
    drop(received);
    program.stop();
}
