//! Reloads of the program: its file of settings is read again.
#![cfg(feature = "cli")]

use crate::serving;

use std::fs;
use std::io::{BufRead, Read};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serving::Client;
use serving::program::{Serving, httpd, limited};

/// A program with a file of settings.
struct Configured {
    dir: tempfile::TempDir,
    serving: Serving,
}

impl Configured {
    /// Starts the program; `DIR` stands for a directory.
    fn start(settings: &str, arguments: &[&str]) -> Self {
        Self::of(httpd, settings, arguments)
    }

    /// As [`Configured::start`], after a shell command.
    fn limited(line: &str, settings: &str) -> Self {
        Self::of(|arguments| limited(line, arguments), settings, &[])
    }

    fn of(command: impl Fn(&[&str]) -> Command, settings: &str, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.txt"), "text").unwrap();
        let file = dir.path().join("httpd.toml");
        fs::write(&file, settings.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        let file = file.to_str().unwrap();
        let arguments: Vec<_> = ["--config", file].iter().chain(arguments).copied().collect();
        Configured { serving: Serving::of(command(&arguments)), dir }
    }

    fn reload(&self, settings: &str) {
        let settings = settings.replace("DIR", self.dir.path().to_str().unwrap());
        fs::write(self.dir.path().join("httpd.toml"), settings).unwrap();
        self.serving.signal(Signal::HUP);
    }

    /// Returns the next line of standard error.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.serving.errors.read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn hangup_reads_the_settings_again() {
    let mut program =
        Configured::start("listen = ['127.0.0.1:0']\nroot = 'DIR'\nlog-level = 'info'\n", &[]);
    assert_eq!(program.serving.connect().get("/").status, 404);
    program.reload("listen = ['127.0.0.1:0']\nroot = 'DIR'\nlisting = true\nworkers = 3\n");
    while program.serving.connect().get("/").status != 200 {}
    assert_eq!(program.serving.connect().get("/a.txt").body, b"text");
    // The log level is set after the new workers serve, and before the next reload.
    program.reload("no-such-setting = 1\n");
    while !program.line().contains("the settings stay as they were") {}
    program.serving.signal(Signal::TERM);
    let mut rest = String::new();
    program.serving.errors.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("shutting down"), "the log level is that of the new settings: {rest}");
    assert!(program.serving.child.wait().unwrap().success());
}

/// Answers requests of up to 200 bytes, and aborts for longer ones.
#[cfg(feature = "sandbox")]
const SHORT: &str = r#"(module
    (import "ash" "send" (func $send (param i32 i32) (result i32)))
    (memory (export "memory") 1 1)
    (data (i32.const 0) "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nhandler")
    (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
        (if (i32.gt_u (local.get 1) (i32.const 200)) (then (unreachable)))
        (drop (call $send (i32.const 0) (i32.const 45)))
        (i32.const 1)))"#;

#[cfg(feature = "sandbox")]
#[test]
fn reload_enables_a_handler_that_was_disabled() {
    let modules = tempfile::tempdir().unwrap();
    let file = modules.path().join("short.wasm");
    fs::write(&file, wat::parse_str(SHORT).unwrap()).unwrap();
    // Overload would switch the handler off.
    let settings = format!(
        "listen = ['127.0.0.1:0']\nroot = 'DIR'\nmax-queue-delay = 0\nhandler = ['{}']\n",
        file.display()
    );
    let program = Configured::start(&settings, &[]);
    let get = |path: &str| program.serving.connect().get(path).body;
    assert_eq!(get("/a.txt"), b"handler");
    let long = format!("/a.txt?{}", "x".repeat(300));
    for _ in 0..3 {
        assert_eq!(get(&long), b"text");
    }
    assert_eq!(get("/a.txt"), b"text", "the handler is disabled");
    program.reload(&settings);
    while get("/a.txt") != b"handler" {}
}

#[test]
fn wrong_settings_are_reported_and_the_old_ones_stay() {
    let settings = "listen = ['127.0.0.1:0']\nroot = 'DIR'\n";
    let mut program = Configured::start(settings, &["--listing"]);
    let cases = [
        ("root = 'DIR'\nlisen = []\n", ":2:1: there is no setting `lisen`"),
        ("root = 'DIR/none'\n", "cannot read the directory"),
        ("root = 'DIR'\nbackend = 'uirng'\n", ":2:11: `backend`: unknown mechanism `uirng`"),
        (
            "root = 'DIR'\ntls-cert = ['a']\ntls-key = ['b']\n",
            ":2:12: `tls-cert`: cannot read the file a",
        ),
        (
            "listen = ['192.0.2.1:1']\nroot = 'DIR'\n",
            "192.0.2.1:1: Cannot assign requested address (os error 99); no interface of this machine has",
        ),
    ];
    for (settings, reason) in cases {
        program.reload(settings);
        let line = program.line();
        assert!(line.contains("the settings stay as they were: "), "{line}");
        assert!(line.contains(reason), "{line}");
        assert_eq!(program.serving.connect().get("/").status, 200, "as by the command line");
    }
    program.serving.signal(Signal::TERM);
    assert!(program.serving.child.wait().unwrap().success());
}

#[test]
fn reload_opened_the_pid_file_as_access_log() {
    let settings = "listen = ['127.0.0.1:0']\nroot = 'DIR'\npid-file = 'DIR/pid'\n";
    let mut program = Configured::start(settings, &[]);
    program.reload(&format!("{settings}access-log = 'DIR/pid'\n"));
    let line = program.line();
    assert!(line.contains("the settings stay as they were: "), "{line}");
    assert!(line.contains("httpd.toml:3:12: `pid-file`: cannot write the pid file"), "{line}");
    let number = program.serving.connect().get("/pid").body;
    assert_eq!(number, format!("{}\n", program.serving.child.id()).as_bytes());
}

/// Starts a program at a port of one address, then at that of all, or the reverse; returns its last settings, and
/// the advice.
fn narrow_or_widen(from: &str, to: &str) -> (Configured, [String; 2]) {
    let settings = |ip: &str, port| format!("listen = ['{ip}:{port}']\nroot = 'DIR'\n");
    let program = Configured::start(&settings(from, 0), &[]);
    let port = program.serving.address.port();
    let advice = format!(
        "`listen`: cannot listen on {to}:{port}: this server listens on {from}:{port}: restart it"
    );
    (program, [settings(to, port), advice])
}

#[test]
fn reload_that_narrows_or_widens_an_address_had_no_advice() {
    for (from, to) in [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")] {
        let (mut program, [settings, advice]) = narrow_or_widen(from, to);
        program.reload(&settings);
        let line = program.line();
        assert!(line.contains("the settings stay as they were: "), "{line}");
        assert!(line.contains(&format!("httpd.toml:1:10: {advice}")), "{line}");
        let at = ("127.0.0.1", program.serving.address.port());
        let mut client = Client::new(TcpStream::connect(at).unwrap());
        assert_eq!(client.get("/a.txt").status, 200);
    }
}

#[test]
fn successor_that_narrows_an_address_was_told_of_another_program() {
    let (mut program, [settings, advice]) = narrow_or_widen("0.0.0.0", "127.0.0.1");
    fs::write(
        program.dir.path().join("httpd.toml"),
        settings.replace("DIR", program.dir.path().to_str().unwrap()),
    )
    .unwrap();
    program.serving.signal(Signal::USR2);
    let line = program.line();
    assert!(line.contains(&format!("httpd.toml:1:10: {advice}")), "{line}");
    let line = program.line();
    assert!(line.contains("this process continues"), "{line}");
}

#[test]
fn failed_look_up_at_a_reload_ended_the_server() {
    let settings = "root = 'DIR'\n";
    let mut program = Configured::start(settings, &["--listen", "localhost:0"]);
    // Without descriptors, no name can be looked up.
    let pid = Pid::from_child(&program.serving.child);
    let limit = getrlimit(Resource::Nofile);
    let none = Rlimit { current: Some(0), maximum: limit.maximum };
    let before = prlimit(Some(pid), Resource::Nofile, none).unwrap();
    program.reload(settings);
    let line = program.line();
    assert!(line.contains("the settings stay as they were: invalid value 'localhost:0'"), "{line}");
    prlimit(Some(pid), Resource::Nofile, before).unwrap();
    assert_eq!(program.serving.connect().get("/a.txt").status, 200);
}

/// Returns the number of workers.
fn workers(program: &Configured) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", program.serving.child.id())).unwrap();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    let names = tasks.filter_map(|task| name(task.unwrap()).ok());
    names.filter(|name| name == "worker\n").count()
}

#[test]
fn generations_that_had_ended_were_counted() {
    let settings = "listen = ['127.0.0.1:0']\nroot = 'DIR'\nshutdown-timeout = 0.1\n";
    let mut program = Configured::start(settings, &["--log-level", "info"]);
    let content = vec![b'x'; 30 << 20];
    fs::write(program.dir.path().join("large"), &content).unwrap();
    let mut client = program.serving.connect();
    client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    // The worker has the request.
    client.wait_readable();
    for _ in 0..6 {
        program.reload(settings);
        while !program.line().contains("settings reloaded") {}
        while workers(&program) > 2 {
            thread::yield_now();
        }
    }
    let response = client.response(true);
    assert_eq!((response.status, response.body.len()), (200, content.len()));
    program.serving.signal(Signal::TERM);
    assert!(program.serving.child.wait().unwrap().success());
}

#[test]
fn each_reload_that_changed_a_limit_left_descriptors_of_the_metrics() {
    const RELOADS: usize = 20;
    let settings = |seconds: usize| {
        let addresses = "listen = ['127.0.0.1:0']\nmetrics-listen = '127.0.0.1:0'\n";
        format!("{addresses}keep-alive-timeout = {seconds}\n")
    };
    let mut program = Configured::start(&settings(60), &["--log-level", "info"]);
    let files = format!("/proc/{}/fd", program.serving.child.id());
    let descriptors = || fs::read_dir(&files).unwrap().count();
    let before = descriptors();
    for n in 0..RELOADS {
        program.reload(&settings(30 + n % 2));
        while !program.line().contains("settings reloaded") {}
    }
    // The last workers that were replaced end soon.
    let start = Instant::now();
    while descriptors() >= before + RELOADS {
        let now = descriptors();
        assert!(start.elapsed() < Duration::from_secs(20), "{now} instead of {before}");
        thread::yield_now();
    }
}

#[test]
fn descriptors_of_workers_that_still_live_were_given_to_new_ones() {
    let settings = "listen = ['127.0.0.1:0']\nlog-level = 'info'\nmax-connections = 1000\n";
    let mut program = Configured::limited("ulimit -n 128", settings);
    let granted = |text: &str| {
        let (before, _) = text.split_once(" connections per worker instead of 1000")?;
        before.rsplit(' ').next()?.parse::<u32>().ok()
    };
    let at_start = granted(&program.serving.before).unwrap();
    let mut clients: Vec<_> = (0..20).map(|_| program.serving.connect()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200));
    program.reload(settings);
    let at_reload = loop {
        if let Some(connections) = granted(&program.line()) {
            break connections;
        }
    };
    // Files have a part, too.
    assert!(at_reload + 15 <= at_start, "{at_reload} of {at_start}");
}

#[test]
fn log_did_not_say_how_long_a_reload_limits_connections() {
    let settings = "listen = ['127.0.0.1:0']\nlog-level = 'info'\nmax-connections = 1000\n";
    let mut program = Configured::limited("ulimit -n 128", settings);
    program.reload(settings);
    let mut lines = program.serving.errors.by_ref().lines().map(Result::unwrap);
    let lines: Vec<_> =
        lines.by_ref().take_while(|line| !line.contains("settings reloaded")).collect();
    assert!(lines.iter().any(|line| line.contains("until the next reload")), "{lines:?}");
}

#[test]
fn reload_beyond_the_maximum_waits_for_the_end_of_a_download() {
    // The clients wait longer than a slow client may.
    let settings = |listing: bool| {
        let fixed = "listen = ['127.0.0.1:0']\nroot = 'DIR'\nprogress-interval = 600\n";
        format!("{fixed}listing = {listing}\n")
    };
    let mut program = Configured::start(&settings(false), &["--log-level", "info"]);
    let content = vec![b'x'; 30 << 20];
    fs::write(program.dir.path().join("large"), &content).unwrap();
    let mut clients = Vec::new();
    for n in 0..4 {
        let mut client = program.serving.connect();
        client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
        // The worker has the request.
        client.wait_readable();
        clients.push(client);
        program.reload(&settings(n == 3));
        let expected =
            if n == 3 { "the reload waits, for at most 600 s: " } else { "settings reloaded" };
        while !program.line().contains(expected) {}
    }
    let status = |program: &Configured| program.serving.connect().get("/").status;
    assert_eq!(status(&program), 404, "the settings have stayed");
    let whole = |client: &mut Client| {
        let response = client.response(true);
        assert_eq!((response.status, response.body.len()), (200, content.len()));
    };
    whole(&mut clients[0]);
    while !program.line().contains("WARN settings reloaded after a deferral") {}
    assert_eq!(status(&program), 200);
    clients[1..].iter_mut().for_each(whole);
    program.serving.signal(Signal::TERM);
    assert!(program.serving.child.wait().unwrap().success());
}

#[test]
fn deferred_reload_stops_the_oldest_workers_at_its_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The clients wait longer than a slow client may.
    let settings = |listing: bool| {
        let fixed = "listen = ['127.0.0.1:0']\nroot = 'DIR'\nprogress-interval = 600\n\
                     shutdown-timeout = 0.1\nreload-timeout = 0.5\n";
        let workers = if listing { 2 } else { 1 };
        format!("{fixed}listing = {listing}\nworkers = {workers}\n")
    };
    let with_manager = |arguments: &[&str]| {
        let mut command = httpd(arguments);
        command.env("NOTIFY_SOCKET", dir.path().join("notify"));
        command
    };
    let arguments = ["--log-level", "info"];
    let mut program = Configured::of(with_manager, &settings(false), &arguments);
    fs::File::create(program.dir.path().join("large")).unwrap().set_len(64 << 20).unwrap();
    let mut clients = Vec::new();
    for n in 0..4 {
        let mut client = program.serving.connect();
        client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
        // The worker has the request.
        client.wait_readable();
        clients.push(client);
        program.reload(&settings(n == 3));
        let expected =
            if n == 3 { "the reload waits, for at most 0.5 s: " } else { "settings reloaded" };
        while !program.line().contains(expected) {}
    }
    while !program.line().contains("the deferred reload stops the oldest workers") {}
    clients[0].expect_reset();
    while !program.line().contains("WARN settings reloaded after a deferral") {}
    assert_eq!(program.serving.connect().get("/").status, 200);
    for client in &clients[1..] {
        assert!(!client.is_reset_within(Duration::ZERO), "only the oldest workers stop");
    }
    let mut statuses = Vec::new();
    while statuses.len() < 6 {
        let mut message = [0; 1024];
        let n = manager.recv(&mut message).unwrap();
        let message = std::str::from_utf8(&message[..n]).unwrap();
        let lines = message.lines().filter_map(|line| line.strip_prefix("STATUS="));
        statuses.extend(lines.map(str::to_owned));
    }
    let ready = program.serving.line.trim_end();
    assert_eq!(statuses[..4], [ready; 4], "at the start, and after three reloads");
    assert_eq!(statuses[4], "a reload waits for the workers of earlier ones");
    assert_eq!(statuses[5], ready.replace("1 worker", "2 workers"));
}

#[test]
fn reload_during_the_drain_delay_stopped_announcing_the_end() {
    let settings = "listen = ['127.0.0.1:0']\nroot = 'DIR'\ndrain-delay = 600\nlisting = LISTING\n";
    let settings = |listing: &str| settings.replace("LISTING", listing);
    let mut program = Configured::start(&settings("false"), &["--log-level", "info"]);
    program.serving.signal(Signal::TERM);
    let ends = |response: &serving::ParsedResponse| response.field("Connection") == Some("close");
    while !ends(&program.serving.connect().get("/a.txt")) {}
    program.reload(&settings("true"));
    while !program.line().contains("settings reloaded") {}
    let response = program.serving.connect().get("/");
    assert_eq!(response.status, 200, "the settings are the new ones");
    assert!(ends(&response), "{}", response.head);
}

#[test]
fn log_was_not_reopened_while_a_reload_waits_for_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let [notify, pipe, log, old] =
        ["notify", "cert.pem", "log", "old"].map(|name| dir.path().join(name));
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    // It has a writer, which does not write.
    let _writer = fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let settings = format!("listen = ['127.0.0.1:0']\naccess-log = '{}'\n", log.display());
    let with_manager = |arguments: &[&str]| {
        let mut command = httpd(arguments);
        command.env("NOTIFY_SOCKET", &notify);
        command
    };
    let program = Configured::of(with_manager, &settings, &[]);
    let reopens = || {
        let start = Instant::now();
        while !log.exists() {
            assert!(start.elapsed() < Duration::from_secs(20), "the log was not opened again");
            thread::yield_now();
        }
    };
    fs::rename(&log, &old).unwrap();
    let pipe = pipe.display();
    program.reload(&format!("{settings}tls-cert = '{pipe}'\ntls-key = '{pipe}'\n"));
    let mut message = [0; 1024];
    loop {
        let n = manager.recv(&mut message).unwrap();
        if message[..n].starts_with(b"RELOADING=1") {
            break;
        }
    }
    reopens();
    // Now the reload waits for the pipe.
    fs::rename(&log, &old).unwrap();
    program.serving.signal(Signal::USR1);
    reopens();
}

#[test]
fn downloads_outlive_a_reload() {
    let settings = "listen = ['127.0.0.1:0']\nroot = 'DIR'\nshutdown-timeout = 0.1\n";
    let mut program = Configured::start(settings, &["--log-level", "info"]);
    let content = vec![b'x'; 30 << 20];
    fs::write(program.dir.path().join("large"), &content).unwrap();
    let mut client = program.serving.connect();
    client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    program.reload(settings);
    while !program.line().contains("settings reloaded") {}
    assert_eq!(program.serving.connect().get("/a.txt").status, 200);
    let response = client.response(true);
    assert_eq!((response.status, response.body.len()), (200, content.len()));
    program.serving.signal(Signal::TERM);
    assert!(program.serving.child.wait().unwrap().success());
}
