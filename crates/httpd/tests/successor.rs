//! Successors of the running program.
#![cfg(feature = "cli")]

use crate::service_manager::notification;
use crate::serving;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::net::sockopt::set_socket_passcred;
use rustix::process::{Pid, Signal, kill_process};
use serving::program::{Serving, httpd, limited};
use serving::refused::refuse;
use serving::{Client, available};

/// Successors for each mechanism, unless `SUCCESSORS` says another number. `BACKEND` selects one mechanism.
const SUCCESSORS: usize = 3;

const CLIENTS: usize = 4;

/// Returns the process whose number is in a file.
pub(crate) fn process(file: &Path) -> Pid {
    Pid::from_raw(fs::read_to_string(file).unwrap().trim_end().parse().unwrap()).unwrap()
}

/// Makes requests until `stop` is set, on connections that the server may end with a response only.
fn request(at: SocketAddr, stop: &AtomicBool, requests: &AtomicU64) {
    let connect = || Client::new(TcpStream::connect(at).unwrap());
    let mut client = connect();
    while !stop.load(Ordering::Relaxed) {
        let response = client.get("/a.txt");
        assert_eq!((response.status, &response.body[..]), (200, &b"text"[..]));
        requests.fetch_add(1, Ordering::Relaxed);
        if response.field("Connection") == Some("close") {
            client = connect();
        }
    }
}

#[test]
fn no_request_fails_while_successors_take_over() {
    let successors = std::env::var("SUCCESSORS").map_or(SUCCESSORS, |n| n.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.txt"), "text").unwrap();
    let pid_file = dir.path().join("pid");
    let only = std::env::var("BACKEND").ok();
    let is_tested = |name: &str| only.as_ref().is_none_or(|only| only == name);
    for backend in available().filter(|name| is_tested(name)) {
        let root = dir.path().to_str().unwrap();
        let mut serving = Serving::start(&[
            "--listen",
            "127.0.0.1:0",
            "--root",
            root,
            "--listing",
            "--backend",
            backend,
            "--workers",
            "2",
            "--pid-file",
            pid_file.to_str().unwrap(),
        ]);
        let (stop, requests) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; CLIENTS]);
        let mut current = Pid::from_child(&serving.child);
        thread::scope(|scope| {
            let (address, stop, requests) = (serving.address, &stop, &requests);
            let spawn = |requests| scope.spawn(move || request(address, stop, requests));
            let clients: Vec<_> = requests.iter().map(spawn).collect();
            for n in 0..successors {
                assert_eq!(process(&pid_file), current);
                kill_process(current, Signal::USR2).unwrap();
                let mut line = String::new();
                serving.errors.read_line(&mut line).unwrap();
                assert_eq!(line, serving.line, "successor {n}");
                assert_ne!(process(&pid_file), current);
                current = process(&pid_file);
                // Each client gets responses: the next one would hide a lost request.
                let made = || requests.each_ref().map(|made| made.load(Ordering::Relaxed));
                let before = made();
                while made().iter().zip(before).any(|(made, before)| *made < before + 25) {
                    if clients.iter().any(ScopedJoinHandle::is_finished) {
                        stop.store(true, Ordering::Relaxed);
                        panic!("a request failed");
                    }
                    thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        kill_process(current, Signal::TERM).unwrap();
        // Ends when all processes have ended.
        let mut output = String::new();
        serving.errors.read_to_string(&mut output).unwrap();
        assert_eq!((serving.child.wait().unwrap().code(), &*output), (Some(0), ""));
        assert!(!pid_file.exists());
        println!("{}: {requests:?} requests", backend);
    }
}

#[test]
fn program_that_cannot_start_again_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (file, pid_file) = (dir.path().join("httpd.toml"), dir.path().join("pid"));
    fs::write(&file, "listen = ['127.0.0.1:0']\n").unwrap();
    let arguments = ["--config", file.to_str().unwrap(), "--pid-file", pid_file.to_str().unwrap()];
    let mut serving = Serving::start(&arguments);
    fs::write(&file, "workers = 0\n").unwrap();
    serving.signal(Signal::USR2);
    let (mut reason, mut line) = (String::new(), String::new());
    serving.errors.read_line(&mut reason).unwrap();
    assert!(reason.contains("httpd.toml:1:11: `workers`"), "{reason}");
    serving.errors.read_line(&mut line).unwrap();
    assert!(line.contains("this process continues: the new process ended"), "{line}");
    assert_eq!(serving.connect().get("/").status, 200);
    assert_eq!(process(&pid_file), Pid::from_child(&serving.child));
    fs::write(&file, "listen = ['127.0.0.1:0']\n").unwrap();
    serving.signal(Signal::USR2);
    line.clear();
    serving.errors.read_line(&mut line).unwrap();
    assert_eq!(line, serving.line, "a second try works");
    assert!(serving.child.wait().unwrap().success());
    assert_eq!(serving.connect().get("/").status, 200);
    let successor = process(&pid_file);
    for entry in fs::read_dir(format!("/proc/{successor}/fd")).unwrap() {
        let (fd, entry) = (entry.as_ref().unwrap().file_name(), entry.unwrap().path());
        let file = fs::read_link(entry).unwrap_or_default();
        if !file.to_string_lossy().starts_with("socket:") {
            continue;
        }
        let info = Path::new(&format!("/proc/{successor}/fdinfo")).join(fd);
        let info = fs::read_to_string(info).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        // Else it would reach the next successor beside the sockets that are passed on.
        let is_closed_at_exec = u32::from_str_radix(flags.trim(), 8).unwrap() & 0o2000000 != 0;
        assert!(is_closed_at_exec, "{file:?}: {info}");
    }
    kill_process(successor, Signal::TERM).unwrap();
    serving.errors.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn successor_served_beside_a_process_that_failed_to_wait_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    // As by a filter of a container. Without a descriptor of the process there is its number.
    for (refused, is_upgraded) in [
        (&[libc::SYS_pidfd_open][..], true),
        (&[libc::SYS_ppoll], false),
        (&[libc::SYS_pidfd_open, libc::SYS_ppoll], false),
    ] {
        let mut command = httpd(&["-p", "0", "--pid-file", pid_file.to_str().unwrap()]);
        for number in refused {
            // SAFETY: between fork and exec it makes system calls, and allocates nothing.
            unsafe { command.pre_exec(|| refuse(*number, libc::EPERM)) };
        }
        let mut serving = Serving::of(command);
        serving.signal(Signal::USR2);
        if is_upgraded {
            assert!(serving.child.wait().unwrap().success());
            assert_eq!(serving.connect().get("/").status, 200);
            kill_process(process(&pid_file), Signal::TERM).unwrap();
        } else {
            let mut lines = serving.errors.by_ref().lines().map(Result::unwrap);
            // The successor may have reported its address before.
            let line = lines.find(|line| line.contains("no successor")).unwrap();
            assert!(line.contains("this process continues: Operation not permitted"), "{line}");
            serving.signal(Signal::TERM);
            assert!(serving.child.wait().unwrap().success());
            let start = Instant::now();
            while TcpStream::connect(serving.address).is_ok() {
                assert!(start.elapsed() < Duration::from_secs(20), "the successor serves");
                thread::yield_now();
            }
        }
        serving.errors.read_to_string(&mut String::new()).unwrap();
    }
}

/// Returns what a process says of its capacity at the start, without the times.
fn capacity<'a>(before: &'a str, line: &'a str) -> Vec<&'a str> {
    let messages = before.lines().filter(|line| line.contains("instead of"));
    let messages = messages.map(|line| line.split_once(' ').unwrap().1);
    messages.chain([line]).collect()
}

#[test]
fn successor_had_fewer_workers_and_connections_than_the_process_before() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let arguments = [
        "--workers=8",
        "--max-connections=1000",
        "--backend=epoll",
        "--listen=127.0.0.1:0",
        "--listen=127.0.0.2:0",
        "--metrics-listen=127.0.0.3:0",
        "--pid-file",
        pid_file.to_str().unwrap(),
    ];
    let mut serving = Serving::of(limited("ulimit -n 256", &arguments));
    let expected = capacity(&serving.before, &serving.line);
    assert!(expected.len() == 2 && expected[1].contains("8 workers"), "{expected:?}");
    // A successor, and one of its own.
    for _ in 0..2 {
        kill_process(process(&pid_file), Signal::USR2).unwrap();
        let (mut before, mut line) = (String::new(), String::new());
        loop {
            assert!(serving.errors.read_line(&mut line).unwrap() > 0, "{before}");
            if line.starts_with("listening on") {
                break;
            }
            before += &std::mem::take(&mut line);
        }
        assert_eq!(capacity(&before, &line), expected);
    }
    kill_process(process(&pid_file), Signal::TERM).unwrap();
    serving.errors.read_to_string(&mut String::new()).unwrap();
}

/// Makes a pipe with a name, which blocks a program that opens it until the other side is open, too.
fn make_pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

#[test]
fn successor_survived_the_stop_of_its_predecessor() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("httpd.toml");
    make_pipe(&file);
    let command = httpd(&["--config", file.to_str().unwrap()]);
    let settings = "listen = ['127.0.0.1:0']\n";
    let mut serving = thread::scope(|scope| {
        scope.spawn(|| fs::write(&file, settings).unwrap());
        Serving::of(command)
    });
    serving.signal(Signal::USR2);
    // The successor reads its settings once this is open.
    let mut pipe = fs::File::options().write(true).open(&file).unwrap();
    serving.signal(Signal::TERM);
    assert!(serving.child.wait().unwrap().success());
    pipe.write_all(settings.as_bytes()).unwrap();
    drop(pipe);
    // Ends when all processes have ended.
    let mut output = String::new();
    serving.errors.read_to_string(&mut output).unwrap();
    assert!(output.contains("the process whose place this one takes stops"), "{output}");
    assert!(TcpStream::connect(serving.address).is_err());
}

/// Returns another process with the command line of this one.
fn other_process(of: Pid) -> Pid {
    let command_line = |pid: Pid| fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).ok();
    let all = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| Pid::from_raw(entry.unwrap().file_name().to_str()?.parse().ok()?));
    let is_other = |pid: &Pid| *pid != of && command_line(*pid) == command_line(of);
    all.into_iter().find(is_other).unwrap()
}

#[test]
#[cfg(feature = "tls")]
fn stop_of_both_processes_was_a_second_signal_for_the_successor() {
    let dir = tempfile::tempdir().unwrap();
    let [certificate, key, path] =
        ["cert.pem", "key.pem", "notify"].map(|name| dir.path().join(name));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = made.signing_key.serialize_pem();
    fs::write(&certificate, made.cert.pem()).unwrap();
    make_pipe(&key);
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    set_socket_passcred(&manager, true).unwrap();
    let mut command = httpd(&["-p", "0", "--drain-delay", "60", "--tls-cert"]);
    command.arg(&certificate).arg("--tls-key").arg(&key).env("NOTIFY_SOCKET", &path);
    let mut serving = thread::scope(|scope| {
        scope.spawn(|| fs::write(&key, &pem).unwrap());
        Serving::of(command)
    });
    let first = Pid::from_child(&serving.child);
    serving.signal(Signal::USR2);
    // The successor reads its key, and has prepared for signals.
    let mut pipe = fs::File::options().write(true).open(&key).unwrap();
    let successor = other_process(first);
    // As systemd ends a service.
    kill_process(successor, Signal::TERM).unwrap();
    kill_process(first, Signal::TERM).unwrap();
    while notification(&manager) != (first, "STOPPING=1\n".to_owned()) {}
    pipe.write_all(pem.as_bytes()).unwrap();
    drop(pipe);
    let mut lines = serving.errors.by_ref().lines().map(Result::unwrap);
    let end = "the process whose place this one takes stops";
    assert!(lines.any(|line| line.contains(end)), "the successor was cut");
    serving.signal(Signal::TERM);
    serving.errors.read_to_string(&mut String::new()).unwrap();
}

/// Writes its number as this program does, and fails.
const FAILURE: &str = "#!/bin/sh\necho $$ > \"${0%/*}/pid\"\nexit 1\n";

#[test]
fn failed_successor_left_its_number_in_the_pid_file() {
    let dir = tempfile::tempdir().unwrap();
    let [program, other, pid_file] = ["httpd", "other", "pid"].map(|name| dir.path().join(name));
    symlink(env!("CARGO_BIN_EXE_httpd"), &program).unwrap();
    fs::write(&other, FAILURE).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = Command::new(&program);
    command.args(["-p", "0", "--pid-file"]).arg(&pid_file).stderr(Stdio::piped());
    let mut serving = Serving::of(command);
    fs::rename(&other, &program).unwrap();
    serving.signal(Signal::USR2);
    let mut lines = serving.errors.by_ref().lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("no successor, this process continues")));
    assert_eq!(process(&pid_file), Pid::from_child(&serving.child));
    serving.signal(Signal::TERM);
    serving.expect_success();
    assert!(!pid_file.exists());
}

#[test]
fn failed_successor_did_not_name_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("httpd");
    // No copy: a program that another thread starts has its descriptor for a moment, and what is open for writing cannot
    // be executed.
    symlink(env!("CARGO_BIN_EXE_httpd"), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["-p", "0"]).stderr(Stdio::piped());
    let mut serving = Serving::of(command);
    fs::remove_file(&program).unwrap();
    serving.signal(Signal::USR2);
    let mut line = String::new();
    serving.errors.read_line(&mut line).unwrap();
    assert!(line.contains(program.to_str().unwrap()), "{line}");
}

#[test]
fn successor_after_a_stop_started_another_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    set_socket_passcred(&manager, true).unwrap();
    let mut command = httpd(&["-p", "0", "--drain-delay", "60"]);
    command.env("NOTIFY_SOCKET", &path);
    let mut serving = Serving::of(command);
    serving.signal(Signal::TERM);
    while notification(&manager).1 != "STOPPING=1\n" {}
    serving.signal(Signal::USR2);
    let mut line = String::new();
    serving.errors.read_line(&mut line).unwrap();
    assert!(
        line.contains("no successor, this process continues: the server is about to stop"),
        "{line}"
    );
    serving.signal(Signal::TERM);
    assert_eq!(serving.child.wait().unwrap().code(), Some(1));
    line.clear();
    serving.errors.read_to_string(&mut line).unwrap();
    assert_eq!(line, "");
}

/// Reports as a program of before that waits for no answer, once the test has sent it a line. Ends at SIGTERM, or
/// later than any test waits.
const OLDER_PROGRAM: &str = r#"#!/bin/sh
trap 'echo stopped >&2; kill $!; exit' TERM
read line < "${0%/*}/pipe"
printf 1 >&4
sleep 20 2> /dev/null &
wait
echo survived >&2
"#;

#[test]
fn older_successor_is_stopped_with_its_predecessor() {
    // Without a descriptor of the process there is its number, which may be that of another process by then.
    for refused in [libc::SYS_pidfd_open, libc::SYS_kill] {
        let dir = tempfile::tempdir().unwrap();
        let [program, older, notify, pipe] =
            ["httpd", "older", "notify", "pipe"].map(|name| dir.path().join(name));
        symlink(env!("CARGO_BIN_EXE_httpd"), &program).unwrap();
        fs::write(&older, OLDER_PROGRAM).unwrap();
        fs::set_permissions(&older, fs::Permissions::from_mode(0o700)).unwrap();
        make_pipe(&pipe);
        let manager = UnixDatagram::bind(&notify).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        set_socket_passcred(&manager, true).unwrap();
        let mut command = Command::new(&program);
        command.args(["-p", "0", "--drain-delay", "60"]).env("NOTIFY_SOCKET", &notify);
        command.stderr(Stdio::piped());
        // SAFETY: between fork and exec it makes system calls, and allocates nothing.
        unsafe { command.pre_exec(move || refuse(refused, libc::EPERM)) };
        let mut serving = Serving::of(command);
        fs::rename(&older, &program).unwrap();
        serving.signal(Signal::USR2);
        // The older program runs once this is open, and has not reported.
        let mut pipe = fs::File::options().write(true).open(&pipe).unwrap();
        serving.signal(Signal::TERM);
        while notification(&manager).1 != "STOPPING=1\n" {}
        pipe.write_all(b"go on\n").unwrap();
        let mut lines = serving.errors.by_ref().lines().map(Result::unwrap);
        let end = lines.find(|line| matches!(&line[..], "stopped" | "survived"));
        assert_eq!(end.as_deref(), Some("stopped"), "without the system call {refused}");
        serving.signal(Signal::TERM);
        serving.errors.read_to_string(&mut String::new()).unwrap();
    }
}

/// Reports as this program does, once the test has sent it a line, and says which signals follow the answer.
const TRAPS: &str = r#"#!/bin/sh
trap 'echo reloads >&2; n=x$n' HUP
trap 'echo reopens >&2; n=x$n' USR1
read line < "${0%/*}/pipe"
printf 2 >&4
head -c 1 <&4 > /dev/null
sleep 20 2> /dev/null &
while [ "$n" != xx ] && kill -0 $! 2> /dev/null; do wait; done
kill $!
echo serves >&2
"#;

#[test]
fn signals_while_a_successor_started_were_lost() {
    let dir = tempfile::tempdir().unwrap();
    let [program, other, pipe] = ["httpd", "other", "pipe"].map(|name| dir.path().join(name));
    symlink(env!("CARGO_BIN_EXE_httpd"), &program).unwrap();
    fs::write(&other, TRAPS).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).unwrap();
    make_pipe(&pipe);
    let mut command = Command::new(&program);
    command.args(["-p", "0", "--log-level", "info"]).stderr(Stdio::piped());
    let mut serving = Serving::of(command);
    fs::rename(&other, &program).unwrap();
    serving.signal(Signal::USR2);
    // The successor runs once this is open, and has not reported.
    let mut pipe = fs::File::options().write(true).open(&pipe).unwrap();
    serving.signal(Signal::USR1);
    serving.signal(Signal::HUP);
    let mut lines = serving.errors.by_ref().lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("settings reloaded")));
    pipe.write_all(b"go on\n").unwrap();
    let said = lines.take_while(|line| line != "serves");
    let mut said: Vec<_> = said.filter(|line| line.starts_with("re")).collect();
    said.sort();
    assert_eq!(said, ["reloads", "reopens"]);
}

#[test]
#[cfg(feature = "tls")]
fn signal_for_a_successor_ended_a_process_that_was_starting() {
    let dir = tempfile::tempdir().unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(&certificate, made.cert.pem()).unwrap();
    make_pipe(&key);
    let mut command = httpd(&["-p", "0", "--tls-cert"]);
    command.arg(&certificate).arg("--tls-key").arg(&key);
    let mut child = command.spawn().unwrap();
    let mut pipe = fs::File::options().write(true).open(&key).unwrap();
    // The process reads its key, and serves not yet.
    kill_process(Pid::from_child(&child), Signal::USR2).unwrap();
    pipe.write_all(made.signing_key.serialize_pem().as_bytes()).unwrap();
    drop(pipe);
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on"), "{line}");
    // The signal is obeyed then. The successor ends with this process.
    let mut pipe = fs::File::options().write(true).open(&key).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    pipe.write_all(made.signing_key.serialize_pem().as_bytes()).unwrap();
    drop(pipe);
    errors.read_to_string(&mut line).unwrap();
}
