//! Work in progress on a process ends whole when another process takes its place, with TLS and without.
#![cfg(all(feature = "cli", feature = "tls"))]

use crate::authority::Authority;
use crate::serving::available;
use crate::serving::program::{Serving, httpd};
use crate::successor::process;
use crate::tls::{BOTH, tcp};

use std::fs;
use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use evring_httpd::evring_tls::rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustix::process::{Signal, kill_process};

/// More than the sockets of a connection take.
const LARGE: usize = 24 << 20;

/// New connections that have to be served by each successor.
const CONNECTIONS: u64 = 10;

/// A connection, with TLS or without.
trait Stream: Read + Write + Send {}

impl Stream for TcpStream {}
impl Stream for StreamOwned<ClientConnection, TcpStream> {}

/// How clients connect.
struct Clients {
    at: SocketAddr,
    /// With TLS.
    config: Option<Arc<ClientConfig>>,
}

impl Clients {
    fn session(&self) -> Option<ClientConnection> {
        let config = self.config.as_ref()?;
        let name = "localhost".try_into().unwrap();
        Some(ClientConnection::new(Arc::clone(config), name).unwrap())
    }

    fn connect(&self) -> Box<dyn Stream> {
        with_session(self.session(), tcp(self.at))
    }

    /// Gets a small file on a connection of its own.
    fn get(&self) {
        let mut stream = self.connect();
        stream.write_all(&request("close")).unwrap();
        expect_end(&mut *stream);
    }

    /// Sends the first bytes of a connection: of the handshake, or of a request. Returns what sends the rest.
    fn begin(&self) -> impl FnOnce() + use<> {
        let mut session = self.session();
        let mut bytes = request("close");
        if let Some(session) = &mut session {
            bytes.clear();
            session.write_tls(&mut bytes).unwrap();
        }
        let mut stream = tcp(self.at);
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        stream.write_all(first).unwrap();
        let rest = rest.to_vec();
        move || {
            stream.write_all(&rest).unwrap();
            let is_request = session.is_none();
            let mut stream = with_session(session, stream);
            if !is_request {
                stream.write_all(&request("close")).unwrap();
            }
            expect_end(&mut *stream);
        }
    }
}

fn with_session(session: Option<ClientConnection>, stream: TcpStream) -> Box<dyn Stream> {
    match session {
        Some(session) => Box::new(StreamOwned::new(session, stream)),
        None => Box::new(stream),
    }
}

fn request(connection: &str) -> Vec<u8> {
    format!("GET /a.txt HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n").into()
}

/// Receives the response and then the end of the connection; with TLS, this is a close_notify.
fn expect_end(stream: &mut dyn Stream) {
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    let text = String::from_utf8(response).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n\r\ntext"), "{text}");
}

/// Receives bytes up to and including `end`.
fn receive_until(stream: &mut dyn Stream, end: &[u8]) -> Vec<u8> {
    let (mut received, mut byte) = (Vec::new(), [0]);
    while !received.ends_with(end) {
        stream.read_exact(&mut byte).unwrap();
        received.push(byte[0]);
    }
    received
}

/// Starts a successor, and waits until the process before accepts no more.
fn replace(serving: &mut Serving, pid_file: &Path) {
    kill_process(process(pid_file), Signal::USR2).unwrap();
    let expected = ["listening on", "another process serves"];
    let mut found = [false; 2];
    while found.contains(&false) {
        let mut line = String::new();
        assert!(serving.errors.read_line(&mut line).unwrap() > 0);
        assert!(!line.contains("ERROR"), "{line}");
        for (found, expected) in found.iter_mut().zip(expected) {
            *found |= line.contains(expected);
        }
    }
}

/// Ends the load, also after a failure.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Replaces a program twice while clients connect, and others are in the middle of something.
fn replace_twice(backend: &str, authority: &Authority, files: &Path, has_tls: bool) {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let mut command = httpd(&["-p", "0", "--workers", "2", "--backend", backend]);
    command.args(["--log-level", "info", "--root"]).arg(files).arg("--pid-file").arg(&pid_file);
    if has_tls {
        let (certificate, key) = authority.write(backend, &["localhost"]);
        command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
    }
    let mut serving = Serving::of(command);
    let config = has_tls.then(|| Arc::new(authority.trusting(BOTH)));
    let clients = Clients { at: serving.address, config };
    let content = fs::read(files.join("large")).unwrap();
    // The first process has these.
    let mut download = clients.connect();
    let request_large = "GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    download.write_all(request_large.as_bytes()).unwrap();
    let head = String::from_utf8(receive_until(&mut *download, b"\r\n\r\n")).unwrap();
    assert!(head.contains(&format!("Content-Length: {LARGE}\r\n")), "{head}");
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let load = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                clients.get();
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..2 {
            let mut idle = clients.connect();
            idle.write_all(&request("keep-alive")).unwrap();
            receive_until(&mut *idle, b"\r\n\r\ntext");
            let end_begun = clients.begin();
            replace(&mut serving, &pid_file);
            idle.write_all(&request("keep-alive")).unwrap();
            expect_end(&mut *idle);
            end_begun();
            let before = served.load(Ordering::Relaxed);
            while served.load(Ordering::Relaxed) < before + CONNECTIONS {
                assert!(!load.is_finished(), "a connection failed");
                thread::yield_now();
            }
        }
    });
    let mut received = vec![0; LARGE];
    download.read_exact(&mut received).unwrap();
    assert!(received == content, "the bytes of the download");
    assert_eq!(download.read(&mut [0]).unwrap(), 0, "its end is orderly");
    kill_process(process(&pid_file), Signal::TERM).unwrap();
    // Ends when all processes have ended.
    let mut output = String::new();
    serving.errors.read_to_string(&mut output).unwrap();
    assert_eq!(serving.child.wait().unwrap().code(), Some(0), "{output}");
    assert!(!output.contains("WARN") && !output.contains("ERROR"), "{output}");
}

#[test]
fn what_is_in_progress_ends_whole_while_successors_take_over() {
    let (authority, files) = (Authority::new(), tempfile::tempdir().unwrap());
    let content: Vec<u8> = (0..LARGE).map(|at| ((at % 251) ^ (at >> 12)) as u8).collect();
    fs::write(files.path().join("large"), content).unwrap();
    fs::write(files.path().join("a.txt"), "text").unwrap();
    for backend in available() {
        for has_tls in [true, false] {
            println!("{backend}, TLS: {has_tls}");
            replace_twice(backend, &authority, files.path(), has_tls);
        }
    }
}
