//! The access log of the program, and the lines of standard error.

use crate::program::output;
use crate::serving;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serving::program::{Serving, httpd, limited};
use serving::{Client, available};

#[test]
fn every_response_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let arguments = ["--listen", "127.0.0.1:0", "--workers", "2", "--lab", "--access-log"];
    let serving = Serving::start(&[&arguments[..], &[path.to_str().unwrap()]].concat());
    let mut client = serving.connect();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: test \"1\"\r\nReferer: from\r\n\r\n");
    let page = client.response(true).body.len();
    client.get("/none?a=b");
    client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    client.response(true);
    client.send(b"nonsense\r\n\r\n");
    client.response(true);
    // The writer thread writes the log asynchronously.
    let lines = |path: &std::path::Path, n: usize| loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if text.lines().count() >= n {
            break text;
        }
        std::thread::yield_now();
    };
    let text = lines(&path, 4);
    let lines_now: Vec<_> = text.lines().collect();
    let expected = [
        format!("\"GET / HTTP/1.1\" 200 {page} \"from\" \"test \\x221\\x22\""),
        "\"GET /none?a=b HTTP/1.1\" 404 14 \"-\" \"-\"".to_owned(),
        "\"POST /echo HTTP/1.1\" 200 4 \"-\" \"-\"".to_owned(),
        "\"nonsense\" 400 16 \"-\" \"-\"".to_owned(),
    ];
    assert_eq!(lines_now.len(), expected.len(), "{text}");
    for (line, expected) in lines_now.iter().zip(expected) {
        assert!(line.starts_with("127.0.0.1 - - [") && line.ends_with(&expected), "{line}");
    }
    serving.signal(Signal::TERM);
    serving.expect_success();
}

#[test]
fn access_log_with_times_ends_with_microseconds() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let arguments = ["--listen", "127.0.0.1:0", "--log-format", "timed", "--access-log"];
    let serving = Serving::start(&[&arguments[..], &[path.to_str().unwrap()]].concat());
    assert_eq!(serving.connect().get("/none").status, 404);
    serving.signal(Signal::TERM);
    serving.expect_success();
    let text = std::fs::read_to_string(path).unwrap();
    let (combined, time) = text.strip_suffix('\n').unwrap().rsplit_once(' ').unwrap();
    assert!(combined.ends_with("\"GET /none HTTP/1.1\" 404 14 \"-\" \"-\""), "{text}");
    assert!(time.parse::<u64>().is_ok(), "{text}");
}

#[test]
fn access_log_is_rotated_at_either_signal() {
    let directory = tempfile::tempdir().unwrap();
    let (path, old) = (directory.path().join("log"), directory.path().join("old"));
    let log = path.to_str().unwrap();
    let serving = Serving::start(&["--listen", "127.0.0.1:0", "--access-log", log]);
    for signal in [Signal::HUP, Signal::USR1] {
        serving.connect().get("/");
        std::fs::rename(&path, &old).unwrap();
        serving.signal(signal);
        // The server may handle the signal after some of these requests.
        while std::fs::read_to_string(&path).unwrap_or_default().is_empty() {
            serving.connect().get("/");
        }
    }
    serving.signal(Signal::TERM);
    serving.expect_success();
}

#[test]
fn failed_reopening_of_the_access_log_is_reported_and_the_old_file_kept() {
    let directory = tempfile::tempdir().unwrap();
    let (inner, moved) = (directory.path().join("inner"), directory.path().join("moved"));
    std::fs::create_dir(&inner).unwrap();
    let path = inner.join("log");
    let arguments = ["--listen", "127.0.0.1:0", "--access-log", path.to_str().unwrap()];
    let mut serving = Serving::start(&arguments);
    std::fs::rename(&inner, &moved).unwrap();
    for _ in 0..2 {
        serving.signal(Signal::USR1);
        serving.line.clear();
        serving.errors.read_line(&mut serving.line).unwrap();
        assert!(serving.line.contains("cannot reopen the access log"), "{}", serving.line);
    }
    serving.connect().get("/");
    serving.signal(Signal::TERM);
    serving.expect_success();
    let text = std::fs::read_to_string(moved.join("log")).unwrap();
    assert!(text.contains("\"GET / HTTP/1.1\" 200"), "{text}");
}

/// Makes a pipe that is not read.
fn unread_pipe(directory: &Path) -> (PathBuf, File) {
    let path = directory.join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // Open for both directions, it never gets EOF.
    let reader = File::options().read(true).write(true).open(&path).unwrap();
    (path, reader)
}

#[test]
fn unread_access_log_takes_1_mib_and_loses_further_lines() {
    const REQUESTS: u64 = 1_000;
    for backend in available() {
        let directory = tempfile::tempdir().unwrap();
        let (path, _reader) = unread_pipe(directory.path());
        let path = path.to_str().unwrap();
        let arguments = ["-p", "0", "--workers", "1", "--backend", backend, "--access-log", path];
        let serving = Serving::start(&arguments);
        let mut client = serving.connect();
        let target = format!("/{}", "x".repeat(4000));
        for _ in 0..REQUESTS {
            assert_eq!(client.get(&target).status, 404);
        }
        // The buffer has 256 lines, and the pipe 16.
        let lost = client.status()["log_lines_lost"].as_u64().unwrap();
        let kept = REQUESTS - lost;
        assert!((230..=300).contains(&kept), "{backend}: {kept} of {REQUESTS} are kept");
    }
}

#[test]
fn unread_access_log_prevented_exit() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _reader) = unread_pipe(directory.path());
    let arguments = ["--listen", "127.0.0.1:0", "--access-log", path.to_str().unwrap()];
    let mut serving = Serving::start(&arguments);
    let mut client = serving.connect();
    // A pipe holds 64 KiB.
    for _ in 0..50 {
        client.get(&format!("/{}", "x".repeat(4000)));
    }
    serving.signal(Signal::TERM);
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
    serving.line.clear();
    serving.errors.read_line(&mut serving.line).unwrap();
    assert!(serving.line.contains("its last lines are lost"), "{}", serving.line);
}

#[test]
fn unwritable_access_log_lines_are_counted() {
    let arguments = ["--listen", "127.0.0.1:0", "--access-log", "/dev/full"];
    let mut serving = Serving::start(&arguments);
    let mut client = serving.connect();
    client.get("/");
    serving.line.clear();
    serving.errors.read_line(&mut serving.line).unwrap();
    assert!(serving.line.contains("lines are lost"), "{}", serving.line);
    assert_eq!(client.status()["log_lines_lost"], 1);
    serving.signal(Signal::TERM);
    serving.expect_success();
}

/// SIGXFSZ ended the server when its log reached the maximum size of a file.
#[test]
fn access_log_at_the_maximum_size_of_a_file_ended_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("access.log");
    // The unit of the limit is at most 1,024 bytes.
    std::fs::write(&log, [b'x'; 1024]).unwrap();
    let flags = ["--listen", "127.0.0.1:0", "--access-log", log.to_str().unwrap()];
    let mut serving = Serving::of(limited("ulimit -f 1", &flags));
    let mut client = serving.connect();
    client.get("/");
    serving.line.clear();
    serving.errors.read_line(&mut serving.line).unwrap();
    assert!(serving.line.contains("lines are lost"), "{}", serving.line);
    assert_eq!(client.status()["log_lines_lost"], 1);
    serving.signal(Signal::TERM);
    serving.expect_success();
}

#[test]
fn lost_lines_of_standard_error_were_not_counted() {
    let arguments = ["--listen", "127.0.0.1:0", "--log-level", "debug"];
    let mut child = httpd(&arguments).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let lines = errors.by_ref().lines().map(Result::unwrap);
    let addresses = lines.filter_map(|line| {
        let address = line.strip_prefix("listening on http://")?.split(' ').next()?;
        Some(address.to_owned())
    });
    let address = addresses.take(1).last().unwrap();
    let mut client = Client::new(TcpStream::connect(address).unwrap());
    drop(errors);
    assert_eq!(client.get("/none").status, 404);
    let start = Instant::now();
    while client.status()["messages_lost"].as_u64().expect("a metric") == 0 {
        if start.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("no line was counted");
        }
        thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn unopenable_access_log_is_a_start_error() {
    let output = output(&["--listen", "127.0.0.1:0", "--access-log", "/does/not/exist"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot open the access log /does/not/exist: "), "{text}");
}

#[test]
fn pipe_without_a_reader_stopped_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut command = std::process::Command::new("timeout");
    command.args(["-s", "KILL", "20", env!("CARGO_BIN_EXE_httpd"), "-p", "0"]);
    command.arg("--access-log").arg(&path);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("a pipe without a reader"), "{text}");
}

#[test]
fn access_log_that_is_off_was_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = httpd(&["-p", "0", "--access-log", "off"]);
    command.current_dir(directory.path());
    let serving = Serving::of(command);
    assert_eq!(serving.connect().get("/").status, 200);
    assert!(!directory.path().join("off").exists());
}
