//! Sockets from a service manager, and successors of the running program.
#![cfg(feature = "cli")]

use crate::serving;

use std::fs;
use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::net::sockopt::{self, set_socket_passcred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    bind, recvmsg, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use serving::program::{Serving, httpd, limited, with_sockets};
use serving::refused::refuse;
use serving::{Client, available};

/// Successors for each mechanism, unless `SUCCESSORS` says another number. `BACKEND` selects one mechanism.
const SUCCESSORS: usize = 3;

const CLIENTS: usize = 4;

/// Returns the process whose number is in a file.
fn process(file: &Path) -> Pid {
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

/// Receives a notification, and the process that sent it.
fn notification(manager: &UnixDatagram) -> (Pid, String) {
    let mut message = [0; 1024];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut credentials = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut message)];
    let received =
        recvmsg(manager, &mut buffers, &mut credentials, RecvFlags::empty()).expect("in time");
    let sender = credentials.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid),
        _ => None,
    });
    (sender.unwrap(), String::from_utf8(message[..received.bytes].to_vec()).unwrap())
}

/// Returns the parent of a process.
fn parent(of: Pid) -> i32 {
    let status = fs::read_to_string(format!("/proc/{}/status", of.as_raw_pid())).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap()
}

#[test]
fn successor_was_reported_as_main_process_when_its_predecessor_could_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (path, pid_file) = (dir.path().join("notify"), dir.path().join("pid"));
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    set_socket_passcred(&manager, true).unwrap();
    let mut command = httpd(&["-p", "0", "--pid-file", pid_file.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", &path);
    let mut serving = Serving::of(command);
    let mut current = Pid::from_child(&serving.child);
    let (sender, message) = notification(&manager);
    assert!(sender == current && message.starts_with("READY=1\nSTATUS="), "{message}");
    // A successor, and one of its own.
    for _ in 0..2 {
        kill_process(current, Signal::USR2).unwrap();
        let (successor, message) = notification(&manager);
        assert!(message.starts_with("READY=1\nSTATUS="), "{message}");
        assert_ne!(successor, current);
        // The process before is the main one until then, so any manager believes it.
        let main = format!("MAINPID={}\n", successor.as_raw_pid());
        assert_eq!(notification(&manager), (current, main));
        // systemd waits for the end of its children only.
        assert_ne!(parent(successor), current.as_raw_pid());
        assert_eq!(process(&pid_file), successor);
        current = successor;
    }
    kill_process(current, Signal::TERM).unwrap();
    let (sender, message) = notification(&manager);
    assert_eq!((sender, &*message), (current, "STOPPING=1\n"));
    // Ends when all processes have ended.
    serving.errors.read_to_string(&mut String::new()).unwrap();
    assert!(serving.child.wait().unwrap().success());
}

#[test]
fn signals_for_a_process_with_a_successor_told_the_manager_that_the_service_stops() {
    let dir = tempfile::tempdir().unwrap();
    let (path, pid_file) = (dir.path().join("notify"), dir.path().join("pid"));
    let log = dir.path().join("access.log");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    set_socket_passcred(&manager, true).unwrap();
    let [pid_file, log_path] = [&pid_file, &log].map(|path| path.to_str().unwrap());
    let arguments = ["-p", "0", "--pid-file", pid_file, "--access-log", log_path];
    let mut command = httpd(&arguments);
    command.args(["--drain-delay", "60"]).env("NOTIFY_SOCKET", &path);
    let mut serving = Serving::of(command);
    let before = Pid::from_child(&serving.child);
    // The process before waits for the rest of a request.
    let mut client = TcpStream::connect(serving.address).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n").unwrap();
    assert_eq!(serving.connect().get("/").status, 200);
    serving.signal(Signal::USR2);
    while !notification(&manager).1.starts_with("MAINPID=") {}
    // Both processes have the log open.
    fs::remove_file(&log).unwrap();
    serving.signal(Signal::HUP);
    while !log.exists() {
        thread::yield_now();
    }
    serving.signal(Signal::TERM);
    client.write_all(b"\r\n").unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(serving.child.wait().unwrap().success());
    let successor = process(Path::new(pid_file));
    assert_ne!(successor, before);
    kill_process(successor, Signal::TERM).unwrap();
    let (sender, message) = notification(&manager);
    assert_eq!((sender, &*message), (successor, "STOPPING=1\n"));
    // A second signal, in the time of `drain-delay`.
    kill_process(successor, Signal::TERM).unwrap();
    serving.errors.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn manager_with_an_abstract_address_got_no_notification() {
    let name = format!("evring-httpd-test-{}", std::process::id());
    let address = unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let manager = UnixDatagram::bind_addr(&address).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    set_socket_passcred(&manager, true).unwrap();
    let mut command = httpd(&["-p", "0"]);
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let serving = Serving::of(command);
    let (sender, message) = notification(&manager);
    assert_eq!(sender, Pid::from_child(&serving.child));
    assert_eq!(message, format!("READY=1\nSTATUS={}\n", serving.line.trim_end()));
}

#[test]
fn socket_of_a_service_manager_was_lost_at_a_reload_that_did_not_name_it() {
    let dir = tempfile::tempdir().unwrap();
    let (file, pid_file) = (dir.path().join("httpd.toml"), dir.path().join("pid"));
    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    // The service manager keeps them open.
    let kept = sockets.each_ref().map(|socket| socket.try_clone().unwrap());
    let [first, second] = kept.each_ref().map(|socket| socket.local_addr().unwrap());
    let write = |addresses: &[SocketAddr]| {
        let addresses: Vec<_> = addresses.iter().map(|at| format!("'{at}'")).collect();
        let settings = format!("log-level = 'info'\nlisten = [{}]\n", addresses.join(", "));
        fs::write(&file, settings).unwrap();
    };
    write(&[first]);
    let arguments = ["--config", file.to_str().unwrap(), "--pid-file", pid_file.to_str().unwrap()];
    let mut serving = Serving::of(with_sockets(sockets, &arguments));
    let mut lines = Vec::new();
    let mut wait_for = |text: &str, errors: &mut BufReader<_>| loop {
        let mut line = String::new();
        assert!(errors.read_line(&mut line).unwrap() > 0, "{lines:?}");
        assert!(!line.contains("ERROR"), "{line}");
        if line.contains(text) {
            return;
        }
        lines.push(line);
    };
    let get = |at| Client::new(TcpStream::connect(at).unwrap()).get("/").status;
    for addresses in [&[first, second][..], &[first], &[first, second]] {
        write(addresses);
        serving.signal(Signal::HUP);
        if addresses.len() == 1 {
            wait_for(&format!("{second} was given to the server"), &mut serving.errors);
        }
        wait_for("settings reloaded", &mut serving.errors);
        for at in addresses {
            assert_eq!(get(*at), 200);
        }
    }
    // A successor gets those that are not used, too.
    write(&[first]);
    serving.signal(Signal::HUP);
    wait_for("settings reloaded", &mut serving.errors);
    write(&[second]);
    serving.signal(Signal::USR2);
    wait_for("listening on", &mut serving.errors);
    assert!(serving.child.wait().unwrap().success());
    assert_eq!(get(second), 200);
    kill_process(process(&pid_file), Signal::TERM).unwrap();
    serving.errors.read_to_string(&mut String::new()).unwrap();
    drop(kept);
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

#[test]
fn sockets_of_a_service_manager_are_used() {
    let (one, two) = (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
    let sockets = [one.unwrap(), two.unwrap()];
    let addresses = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
    let serving = Serving::of(with_sockets(sockets, &[]));
    for address in addresses {
        assert!(serving.line.contains(&address.to_string()), "{}", serving.line);
        let mut client = Client::new(TcpStream::connect(address).unwrap());
        assert_eq!(client.get("/").status, 200);
    }
    // A descriptor that is no listening socket.
    let mut command = httpd(&[]);
    command.env("EVRING_HTTPD_INHERITED", "1,1");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("the inherited descriptor 3 cannot be used"), "{text}");
    // It ended without the variable, too.
    let mut command = httpd(&["--root", "/does/not/exist"]);
    command.env("EVRING_HTTPD_INHERITED", "one");
    let text = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(text.contains("EVRING_HTTPD_INHERITED"), "{text}");
}

#[test]
fn ipv4_client_of_a_socket_for_both_families_was_logged_by_an_ipv6_address() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("access.log");
    let socket = TcpListener::bind("[::]:0").unwrap();
    let address = (Ipv4Addr::LOCALHOST, socket.local_addr().unwrap().port());
    let mut serving = Serving::of(with_sockets([socket], &["--access-log", log.to_str().unwrap()]));
    assert_eq!(Client::new(TcpStream::connect(address).unwrap()).get("/").status, 200);
    serving.signal(Signal::TERM);
    assert!(serving.child.wait().unwrap().success());
    let line = fs::read_to_string(log).unwrap();
    assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
}

#[test]
fn successor_did_not_know_which_sockets_are_of_a_service_manager() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut serving =
        Serving::of(with_sockets([socket], &["--pid-file", pid_file.to_str().unwrap()]));
    let mut current = process(&pid_file);
    // A successor, and one of its own.
    for _ in 0..2 {
        kill_process(current, Signal::USR2).unwrap();
        let mut line = String::new();
        serving.errors.read_line(&mut line).unwrap();
        assert_eq!(line, serving.line, "the settings have no address");
        current = process(&pid_file);
    }
    kill_process(current, Signal::TERM).unwrap();
    serving.errors.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn sockets_of_the_process_before_were_taken_for_those_of_a_service_manager() {
    let dir = tempfile::tempdir().unwrap();
    let (file, pid_file) = (dir.path().join("httpd.toml"), dir.path().join("pid"));
    fs::write(&file, "listen = ['127.0.0.1:0']\n").unwrap();
    let arguments = ["--config", file.to_str().unwrap(), "--pid-file", pid_file.to_str().unwrap()];
    let mut serving = Serving::start(&arguments);
    // The setting is gone, so the address is the default one, where another program may listen.
    fs::write(&file, "").unwrap();
    serving.signal(Signal::USR2);
    let mut line = String::new();
    serving.errors.read_line(&mut line).unwrap();
    assert!(line.contains("127.0.0.1:8080"), "{line}");
    let ends = line.contains("listening on");
    if ends {
        assert!(serving.child.wait().unwrap().success());
        kill_process(process(&pid_file), Signal::TERM).unwrap();
    } else {
        serving.signal(Signal::TERM);
    }
    serving.errors.read_to_string(&mut String::new()).unwrap();
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

/// Returns the status of a GET.
fn status(port: u16, target: &str) -> u16 {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    Client::new(stream).get(target).status
}

#[test]
#[cfg(all(feature = "tls", feature = "metrics"))]
fn inherited_sockets_of_both_families_were_not_those_of_ipv4_settings() {
    let sockets = [(); 3].map(|()| TcpListener::bind("[::]:0").unwrap());
    let [tls, redirect, metrics] =
        sockets.each_ref().map(|socket| socket.local_addr().unwrap().port());
    let arguments = [
        "--tls-self-signed".to_owned(),
        format!("--tls-redirect=0.0.0.0:{redirect}"),
        format!("--metrics-listen=0.0.0.0:{metrics}"),
        "--log-level=info".to_owned(),
    ];
    let mut serving = Serving::of(with_sockets(sockets, &arguments.each_ref().map(|a| &**a)));
    assert!(serving.line.contains(&format!("https://[::]:{tls} and http://")), "{}", serving.line);
    assert!(!serving.before.contains("was given to the server"), "{}", serving.before);
    for reloads in [true, false] {
        assert_eq!([status(redirect, "/"), status(metrics, "/readyz")], [308, 200]);
        // A request without TLS.
        assert_eq!(status(tls, "/"), 400);
        if reloads {
            serving.signal(Signal::HUP);
            let mut line = String::new();
            while !line.contains("settings reloaded") {
                line.clear();
                assert!(serving.errors.read_line(&mut line).unwrap() > 0);
                assert!(!line.contains("WARN") && !line.contains("ERROR"), "{line}");
            }
        }
    }
}

#[test]
#[cfg(feature = "tls")]
fn inherited_socket_of_ipv4_was_replaced_by_that_of_both_families() {
    let listen = |at: SocketAddr| {
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        // Else programs of other tests would have it, too.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None).unwrap();
        sockopt::set_socket_reuseport(&socket, true).unwrap();
        bind(&socket, &at).unwrap();
        rustix::net::listen(&socket, 16).unwrap();
        TcpListener::from(socket)
    };
    let both = listen((Ipv6Addr::UNSPECIFIED, 0).into());
    let redirect = both.local_addr().unwrap().port();
    let ipv4 = listen((Ipv4Addr::UNSPECIFIED, redirect).into());
    let tls = TcpListener::bind("[::]:0").unwrap();
    let tls_port = tls.local_addr().unwrap().port();
    let arguments = ["--tls-self-signed", &format!("--tls-redirect=:{redirect}")];
    let serving = Serving::of(with_sockets([both, ipv4, tls], &arguments));
    assert!(
        serving.line.contains(&format!("https://[::]:{tls_port} and http://")),
        "{}",
        serving.line
    );
    for _ in 0..20 {
        assert_eq!(status(redirect, "/"), 308);
    }
}
