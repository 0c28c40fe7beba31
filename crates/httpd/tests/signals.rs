//! Servers that stop at a signal. Each test is itself the program, in a process of its own, as signals are of the process.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use evring_httpd::evring::sockets::ListeningSocket;
use evring_httpd::{Builder, Error, Handle, Request, Server};
use rustix::process::{Pid, Signal, kill_process};

use crate::serving::Client;

/// Set in the process that a test starts; its standard input is the socket of its server.
const CHILD: &str = "EVRING_TEST_SOCKET_IS_STDIN";

fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Returns a server with the socket of the process.
fn builder() -> Builder {
    let socket = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let server = Server::builder().inherit(vec![ListeningSocket::try_from(socket).unwrap()]);
    server.route("/", |_: Request| "served")
}

/// Starts a server where the one of the process listens.
fn fail_to_run() {
    let socket = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let at = TcpListener::from(socket).local_addr().unwrap().to_string();
    let outcome = Server::builder().listen(&*at).run_until_signal();
    assert!(matches!(outcome, Err(Error::Start(_))), "{outcome:?}");
}

/// The process of a test.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(test: &str) -> Self {
        Process::start_with(test, CHILD, OsStr::new(""))
    }

    /// Starts it with a variable of its environment.
    fn start_with(test: &str, name: &str, value: &OsStr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args([&format!("signals::{test}"), "--exact"])
            .env(CHILD, "")
            .env(name, value)
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Process { child, address }
    }

    fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn expect_success(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

#[test]
fn run_until_signal_serves_and_ends() {
    if is_child() {
        return builder().run_until_signal().unwrap();
    }
    for signal in [Signal::TERM, Signal::INT] {
        let process = Process::start("run_until_signal_serves_and_ends");
        let mut client = process.connect();
        assert_eq!(client.get("/").body, b"served");
        process.signal(signal);
        client.expect_end();
        process.expect_success();
    }
}

#[test]
fn process_ignored_signals_after_a_failed_start() {
    if is_child() {
        fail_to_run();
        // SAFETY: it has no arguments that could be invalid.
        unsafe { libc::raise(libc::SIGTERM) };
        return;
    }
    let mut process = Process::start("process_ignored_signals_after_a_failed_start");
    let status = process.child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
}

#[test]
fn process_ignored_signals_after_the_end_of_its_server() {
    if is_child() {
        let server = builder().start().unwrap();
        server.handle().stop();
        server.wait_until_signal().unwrap();
        // SAFETY: it has no arguments that could be invalid.
        unsafe { libc::raise(libc::SIGINT) };
        return;
    }
    let mut process = Process::start("process_ignored_signals_after_the_end_of_its_server");
    let status = process.child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGINT), "{status}");
}

#[test]
fn server_that_starts_at_the_second_attempt_ends_at_a_signal() {
    if is_child() {
        fail_to_run();
        return builder().run_until_signal().unwrap();
    }
    let process = Process::start("server_that_starts_at_the_second_attempt_ends_at_a_signal");
    assert_eq!(process.connect().get("/").body, b"served");
    process.signal(Signal::TERM);
    process.expect_success();
}

/// A time after which no test still runs.
const LONG: Duration = Duration::from_secs(600);

/// Sends a signal, and waits until the server drains.
fn drain(process: &Process) {
    process.signal(Signal::TERM);
    while process.connect().get("/").field("Connection") != Some("close") {}
}

#[test]
fn second_signal_waited_for_the_drain_delay() {
    if is_child() {
        return builder().drain_delay(LONG).run_until_signal().unwrap();
    }
    let process = Process::start("second_signal_waited_for_the_drain_delay");
    assert_eq!(process.connect().get("/").body, b"served");
    drain(&process);
    process.signal(Signal::TERM);
    process.expect_success();
}

#[test]
fn end_of_the_server_waited_for_the_drain_delay() {
    if is_child() {
        let handle = Arc::new(OnceLock::<Handle>::new());
        let stop = Arc::clone(&handle);
        let server = builder().drain_delay(LONG).route("/stop", move |_: Request| {
            stop.get().unwrap().stop();
            "stops"
        });
        let server = server.route("/status", |_: Request| fs::read("/proc/self/status").unwrap());
        let server = server.start().unwrap();
        handle.set(server.handle()).unwrap();
        return server.wait_until_signal().unwrap();
    }
    let process = Process::start("end_of_the_server_waited_for_the_drain_delay");
    let mut client = process.connect();
    let mut catches = || {
        let status = String::from_utf8(client.get("/status").body).unwrap();
        let (_, caught) = status.split_once("SigCgt:\t").unwrap();
        u64::from_str_radix(&caught[..16], 16).unwrap() & (1 << (libc::SIGTERM - 1)) != 0
    };
    while !catches() {}
    drain(&process);
    assert_eq!(process.connect().get("/stop").body, b"stops");
    process.expect_success();
}

/// The start reads a pipe as its certificate.
#[cfg(feature = "tls")]
#[test]
fn signal_during_a_start_that_failed_was_lost() {
    use evring_httpd::options::TlsOptions;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    const PIPE: &str = "EVRING_TEST_PIPE";
    if is_child() {
        let pipe = env::var_os(PIPE).unwrap();
        let outcome = builder().tls(TlsOptions::files(&pipe, &pipe)).run_until_signal();
        assert!(matches!(outcome, Err(Error::Certificate(_))), "{outcome:?}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    // Opened for both, it does not wait for a reader.
    let mut writer = fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let mut process =
        Process::start_with("signal_during_a_start_that_failed_was_lost", PIPE, pipe.as_os_str());
    // More than the pipe holds: the server has begun to read.
    writer.write_all(&[b'a'; 1 << 17]).unwrap();
    process.signal(Signal::TERM);
    drop(writer);
    let status = process.child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
}
