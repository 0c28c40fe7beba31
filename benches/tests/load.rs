//! `lab load` as its users see it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use serde_json::Value;

/// A web server of the lab, ended when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(root: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(["serve", "--what", "httpd", "--mechanism", "epoll", "--root"])
            .arg(root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        Server { child, address: line.trim().parse().unwrap() }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.arg("load").args(["--warm-up", "0.1", "--duration", "0.5"]);
    command.args(arguments).output().expect("the lab runs")
}

fn seen(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn sentence(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// An address that refuses connections.
fn deserted() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn a_closed_loop_tells_rate_and_times() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path());
    let output = load(&[&server.url("/hello"), "-c", "4", "--expect", "12"]);
    assert!(output.status.success(), "{}", sentence(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("closed loop of 4 clients"), "{text}");
    assert!(text.contains("per second") && text.contains("response"), "{text}");
}

#[test]
fn an_open_loop_makes_what_was_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path());
    let url = server.url("/hello");
    let words = ["--rate", "200", "--arrivals", "fixed", "-n", "2", "--json", "-"];
    for busy in [&[][..], &["--busy"]] {
        let output = load(&[&[url.as_str()], &words[..], busy].concat());
        assert!(output.status.success(), "{}", sentence(&output));
        let seen = seen(&output);
        assert_eq!(seen["connects"], 100, "{seen}");
        // The second request of a session is due when the first is answered: in time or not for those that
        // began just before the measurement (20 at most), or just before its end.
        let due = seen["due"].as_u64().unwrap();
        assert!((100..=220).contains(&due), "{seen}");
        assert_eq!((&seen["replies"], &seen["body_bytes"]), (&due.into(), &(12 * due).into()));
        assert_eq!(seen["failed"], serde_json::json!({}));
        assert_eq!(seen["partial"], Value::Null);
    }
}

#[test]
fn a_generator_that_never_sleeps_uses_its_core() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path());
    let url = server.url("/hello");
    let words = ["--rate", "10", "--json", "-"];
    let own = |more: &[&str]| {
        let output = load(&[&[url.as_str()], &words[..], more].concat());
        seen(&output)["generator_us"].as_f64().unwrap()
    };
    let (asleep, awake) = (own(&[]), own(&["--busy"]));
    assert!(awake > asleep * 3.0, "{asleep} and {awake}");
}

#[test]
fn sessions_series_and_log_are_files() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path());
    let file = |name: &str| root.path().join(name).display().to_string();
    let (sessions, csv, log) = (file("sessions"), file("series.csv"), file("log.csv"));
    std::fs::write(&sessions, "/hello size=12\n/hello size=13\n\n/nowhere\n").unwrap();
    let files = ["--sessions", &sessions, "--csv", &csv, "--log", &log, "--json", "-"];
    let words = ["--rate", "100", "--arrivals", "fixed", "--interval", "0.1"];
    let output = load(&[&[server.url("").as_str()], &files[..], &words[..]].concat());
    assert!(output.status.success(), "{}", sentence(&output));
    // Of 50 sessions every other has two requests, the second of which is said to be longer.
    let seen = seen(&output);
    assert_eq!(seen["replies"], 25, "{seen}");
    assert_eq!(seen["failed"], serde_json::json!({ "short_body": 25, "status_other": 25 }));
    let series = std::fs::read_to_string(&csv).unwrap();
    assert!(series.starts_with("until_s,due,") && series.lines().count() >= 6, "{series}");
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.lines().any(|line| line.ends_with(",short_body")), "{log}");
}

#[test]
fn a_server_that_is_not_there_is_a_sentence_and_partial_results() {
    let url = format!("http://{}/", deserted());
    let output = load(&[&url, "--json", "-"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(sentence(&output).contains("the server refuses connections"), "{}", sentence(&output));
    let seen = seen(&output);
    assert_eq!(seen["partial"], "the server refuses connections");
    assert!(seen["failed"]["refused"].as_u64().unwrap() > 0);
    let output = load(&[&url, "--cold", "3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(sentence(&output).contains("refused the connections to open"));
}

#[test]
fn a_server_that_dies_midway_leaves_partial_results() {
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::start(root.path());
    let url = server.url("/hello");
    let mut generator = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["load", &url, "-c", "4", "--duration", "60", "--warm-up", "0", "--json", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It has begun when the server is busy.
    while processor_ticks(server.child.id()) < 20 {
        thread::yield_now();
    }
    server.child.kill().unwrap();
    let mut text = String::new();
    generator.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(generator.wait().unwrap().code(), Some(1));
    let seen: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(seen["partial"], "the server refuses connections");
    assert!(seen["replies"].as_u64().unwrap() > 0, "{seen}");
    assert!(seen["seconds"].as_f64().unwrap() < 50.0);
}

/// `utime` and `stime` in proc_pid_stat(5).
fn processor_ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_ascii_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn what_can_not_be_is_refused_with_exit_code_2() {
    let refused = |arguments: &[&str], what: &str| {
        let output = load(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(sentence(&output).contains(what), "{}", sentence(&output));
    };
    refused(&["http://127.0.0.1/", "--rate", "0"], "the rate must be between");
    refused(&["http://127.0.0.1/", "-c", "4000000000"], "descriptors, but the limit is");
    refused(&["https://127.0.0.1/"], "only http:// is supported");
}

#[test]
fn slow_clients_are_told_of() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path());
    let url = server.url("/bytes?n=1000");
    let words = ["-c", "2", "--slow-readers", "3", "--slow-senders", "3", "--slow-rate", "5000"];
    let output = load(&[&[url.as_str()], &words[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("slow clients"), "{text}");
}

#[test]
fn a_peer_that_resets_is_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            // Closed with bytes unread, it is reset.
            let mut stream = stream.unwrap();
            let mut byte = [0];
            let _ = stream.read(&mut byte);
            let _ = stream.flush();
        }
    });
    let output = load(&[&url, "--rate", "50", "--arrivals", "fixed", "--json", "-"]);
    let seen = seen(&output);
    assert_eq!(seen["failed"]["reset"], 25, "{seen}");
}
