//! What the program says to the person who runs it: each line leads to what to do.
#![cfg(feature = "cli")]

use crate::serving;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serving::available;
use serving::program::{Serving, httpd};

/// Runs the program until it ends, or for a minute if it serves. Returns whether it ended with success, and its
/// messages.
fn messages(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_httpd")]);
    let output = command.args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// Checks a file of settings.
fn check(dir: &Path, text: &str) -> (bool, String) {
    let file = dir.join("httpd.toml");
    fs::write(&file, text).unwrap();
    messages(&["--config", file.to_str().unwrap(), "--check-config"])
}

#[test]
fn responses_cut_at_shutdown_were_not_reported() {
    let dir = tempfile::tempdir().unwrap();
    // More than the buffers of two sockets hold.
    fs::File::create(dir.path().join("large")).unwrap().set_len(64 << 20).unwrap();
    for backend in available() {
        let mut serving = Serving::start(&[
            dir.path().to_str().unwrap(),
            "-p",
            "0",
            "--shutdown-timeout",
            "0.3",
            "--backend",
            backend,
        ]);
        let mut client = TcpStream::connect(serving.address).unwrap();
        client.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        client.read_exact(&mut [0; 9]).unwrap();
        serving.signal(Signal::TERM);
        let mut text = String::new();
        serving.errors.read_to_string(&mut text).unwrap();
        assert!(text.contains("connections cut at shutdown: 1; "), "{backend}: {text}");
        assert!(text.contains("--shutdown-timeout"), "{backend}: {text}");
    }
}

#[test]
fn help_began_with_limits() {
    let output = httpd(&["--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let headings: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_suffix(':'))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
        .collect();
    assert_eq!(
        headings,
        [
            "Arguments",
            "Options",
            "Server",
            "Files",
            "TLS",
            "Logging",
            "Overload",
            "Limits",
            "Examples"
        ]
    );
}
