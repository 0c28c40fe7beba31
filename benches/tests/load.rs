//! The command line of `lab load`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use rustix::net::{self, AddressFamily, SocketType};
use serde_json::Value;

/// A web server of the lab, killed on drop.
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

fn observation(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("the output is JSON")
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// A socket that does not listen, whose address thus refuses connections.
fn refuse() -> (OwnedFd, SocketAddr) {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

#[test]
fn closed_loop_reports_rate_and_times() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path());
    let output = load(&[&server.url("/hello"), "-c", "4", "--expect", "12"]);
    assert!(output.status.success(), "{}", message(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("closed loop of 4 clients"), "{text}");
    assert!(text.contains("per second") && text.contains("response"), "{text}");
}

#[test]
fn open_loop_makes_the_given_rate() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path());
    let url = server.url("/hello");
    let args = ["--rate", "200", "--arrivals", "fixed", "-n", "2", "--json", "-"];
    for busy in [&[][..], &["--busy-poll"]] {
        let output = load(&[&[url.as_str()], &args[..], busy].concat());
        assert!(output.status.success(), "{}", message(&output));
        let observation = observation(&output);
        assert_eq!(observation["connects"], 100, "{observation}");
        // The second request of a session is due once the first is answered: before or after the limits
        // of the measurement for sessions that start just before them (at most 20).
        let due = observation["due"].as_u64().unwrap();
        assert!((100..=220).contains(&due), "{observation}");
        assert_eq!(
            (&observation["replies"], &observation["body_bytes"]),
            (&due.into(), &(12 * due).into())
        );
        assert_eq!(observation["failed"], serde_json::json!({}));
        assert_eq!(observation["partial"], Value::Null);
    }
}

#[test]
fn busy_generator_uses_more_cpu_time() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path());
    let url = server.url("/hello");
    let args = ["--rate", "10", "--json", "-"];
    let generator_us = |more: &[&str]| {
        let output = load(&[&[url.as_str()], &args[..], more].concat());
        observation(&output)["generator_us"].as_f64().unwrap()
    };
    let (asleep, awake) = (generator_us(&[]), generator_us(&["--busy-poll"]));
    assert!(awake > asleep * 3.0, "{asleep} and {awake}");
}

#[test]
fn sessions_are_read_and_series_and_log_written() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path());
    let file = |name: &str| root.path().join(name).display().to_string();
    let (sessions, csv, log) = (file("sessions"), file("series.csv"), file("log.csv"));
    std::fs::write(&sessions, "/hello size=12\n/hello size=13\n\n/nowhere\n").unwrap();
    let files = ["--sessions", &sessions, "--csv", &csv, "--log", &log, "--json", "-"];
    let args = ["--rate", "100", "--arrivals", "fixed", "--interval", "0.1"];
    let undisturbed = (0..20).find_map(|_| {
        let output = load(&[&[server.url("").as_str()], &files[..], &args[..]].concat());
        assert!(output.status.success(), "{}", message(&output));
        let observation = observation(&output);
        // While the machine pauses, sessions begin late, and the measurement ends before their second requests.
        let lag_us = observation["lag_us"]["max"].as_f64().unwrap();
        (lag_us < 250_000.0).then_some(observation)
    });
    let observation = undisturbed.expect("a run in which no session begins late");
    // Every other of 50 sessions has two requests; the second expects a longer body.
    // A request counts in the period in which it is due, so at the edges one more or less does.
    let about_25 = |count: &Value| matches!(count.as_u64(), Some(24..=26));
    let failed = &observation["failed"];
    assert!(about_25(&observation["replies"]), "{observation}");
    assert!(about_25(&failed["status_other"]), "{observation}");
    // The second request is due when the first is answered. If that is late, those of the warm-up count, and those of the
    // last sessions do not.
    assert!(matches!(failed["short_body"].as_u64(), Some(1..=30)), "{observation}");
    let series = std::fs::read_to_string(&csv).unwrap();
    assert!(series.starts_with("until_s,due,") && series.lines().count() >= 6, "{series}");
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.lines().any(|line| line.ends_with(",short_body")), "{log}");
}

#[test]
fn refused_connections_fail_with_partial_results() {
    let (_socket, address) = refuse();
    let url = format!("http://{address}/");
    let output = load(&[&url, "--json", "-"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(message(&output).contains("the server refuses connections"), "{}", message(&output));
    let observation = observation(&output);
    assert_eq!(observation["partial"], "the server refuses connections");
    assert!(observation["failed"]["refused"].as_u64().unwrap() > 0);
    let output = load(&[&url, "--idle-connections", "3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(message(&output).contains("refused the connections to open"));
}

#[test]
fn killed_server_leaves_partial_results() {
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::start(root.path());
    let url = server.url("/hello");
    let mut generator = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["load", &url, "-c", "4", "--duration", "60", "--warm-up", "0", "--json", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The load has started once the server has used CPU time.
    while cpu_ticks(server.child.id()) < 20 {
        thread::yield_now();
    }
    server.child.kill().unwrap();
    let mut text = String::new();
    generator.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(generator.wait().unwrap().code(), Some(1));
    let observation: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(observation["partial"], "the server refuses connections");
    assert!(observation["replies"].as_u64().unwrap() > 0, "{observation}");
    assert!(observation["seconds"].as_f64().unwrap() < 50.0);
}

/// Returns `utime` plus `stime` from proc_pid_stat(5).
fn cpu_ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_ascii_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn invalid_options_fail_with_exit_code_2() {
    let refused = |arguments: &[&str], what: &str| {
        let output = load(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(message(&output).contains(what), "{}", message(&output));
    };
    refused(&["http://127.0.0.1/", "--rate", "0"], "the rate must be between");
    refused(&["http://127.0.0.1/", "-c", "4000000000"], "descriptors, but the limit is");
    refused(&["https://127.0.0.1/"], "only http:// is supported");
}

#[test]
fn slow_clients_are_reported() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path());
    let url = server.url("/bytes?n=1000");
    let args = ["-c", "2", "--slow-readers", "3", "--slow-senders", "3", "--slow-rate", "5000"];
    let output = load(&[&[url.as_str()], &args[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("slow clients"), "{text}");
}

#[test]
fn resets_by_the_server_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            // Closing with unread bytes resets the connection.
            let mut stream = stream.unwrap();
            let mut byte = [0];
            let _ = stream.read(&mut byte);
            let _ = stream.flush();
        }
    });
    let output = load(&[&url, "--rate", "50", "--arrivals", "fixed", "--json", "-"]);
    let observation = observation(&output);
    assert_eq!(observation["failed"]["reset"], 25, "{observation}");
}
