//! Compares the system calls counted by floors with those of strace(1).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

const REQUESTS: u64 = 2_000;

#[test]
fn system_call_counts_of_floors_match_strace() {
    let probe = Command::new("strace").args(["-f", "-c", "-o", "/dev/null", "true"]).status();
    if !probe.is_ok_and(|s| s.success()) {
        return println!(
            "not tested: strace is not installed (Debian package: strace) or not permitted to trace"
        );
    }
    for mechanism in ["epoll", "poll", "select", "uring"] {
        // The difference to a run with one request excludes start and end.
        let (traced, counted) = run(mechanism, REQUESTS);
        let (traced_before, counted_before) = run(mechanism, 1);
        let (traced, counted) = (traced - traced_before, counted - counted_before);
        let error = traced.abs_diff(counted) as f64 / counted as f64;
        assert!(error < 0.05, "{mechanism}: {traced} by strace, {counted} by the floor");
    }
}

/// Returns the system calls counted by strace and by the floor.
fn run(mechanism: &str, requests: u64) -> (u64, u64) {
    let log = std::env::temp_dir().join(format!("lab-strace-{}", std::process::id()));
    let lab = env!("CARGO_BIN_EXE_lab");
    let mut server = Command::new("strace");
    server.args(["-f", "-c", "-o"]).arg(&log).args([lab, "serve", "--what", "floor"]);
    server.args(["--work", "echo", "--mechanism", mechanism]);
    let (mut server, mut from_server) = start(&mut server);
    let address = line(&mut from_server);

    let mut client = Command::new(lab);
    client.args(["client", "--work", "echo", "--connections", "8", "--reply-bytes", "64"]);
    let (mut client, mut from_client) = start(client.args(["--connect", address.trim()]));
    assert_eq!(line(&mut from_client), "ready\n");
    writeln!(client.stdin.take().unwrap(), "{requests}").unwrap();
    assert!(line(&mut from_client).contains("requests"));
    assert!(client.wait().unwrap().success());

    drop(server.stdin.take());
    let ended: Value = serde_json::from_str(&line(&mut from_server)).unwrap();
    assert!(server.wait().unwrap().success());
    let table = fs::read_to_string(&log).unwrap();
    fs::remove_file(&log).unwrap();
    (total(&table), ended["system_calls"].as_u64().unwrap())
}

fn start(command: &mut Command) -> (Child, BufReader<ChildStdout>) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn line(from: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line
}

/// Parses the sum at the end of strace's table: `100.00 0.1 14 8061 12 total`.
fn total(table: &str) -> u64 {
    let last = table.lines().find(|l| l.ends_with(" total")).expect("the table has a sum");
    last.split_ascii_whitespace().nth(3).unwrap().parse().unwrap()
}
