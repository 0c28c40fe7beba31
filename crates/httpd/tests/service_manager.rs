//! Sockets from a service manager, and notifications to it.
#![cfg(feature = "cli")]

use crate::serving;
use crate::successor::process;

use std::fs;
use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread::{self};
use std::time::Duration;

use rustix::net::sockopt::{self, set_socket_passcred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    bind, recvmsg, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use serving::Client;
use serving::program::{Serving, httpd, with_sockets};

/// Receives a notification, and the process that sent it.
pub(crate) fn notification(manager: &UnixDatagram) -> (Pid, String) {
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

#[test]
fn service_manager_that_reads_nothing_kept_the_server_from_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let _manager = UnixDatagram::bind(&path).unwrap();
    let other = UnixDatagram::unbound().unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send_to(b"full", &path).is_ok() {}
    let mut command = httpd(&["-p", "0"]);
    command.env("NOTIFY_SOCKET", &path);
    let mut serving = Serving::of(command);
    assert_eq!(serving.connect().get("/").status, 200);
    serving.signal(Signal::TERM);
    let lines: Vec<_> = serving.errors.by_ref().lines().map(Result::unwrap).collect();
    let expected = "cannot notify the service manager: it reads no messages";
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains(expected)), "{lines:?}");
    assert!(serving.child.wait().unwrap().success());
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

#[test]
fn service_manager_is_notified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let receive = || {
        let mut message = [0; 1024];
        let n = manager.recv(&mut message).unwrap();
        String::from_utf8(message[..n].to_vec()).unwrap()
    };
    let mut command = httpd(&["-p", "0", "--workers", "auto"]);
    command.env("NOTIFY_SOCKET", &path);
    let serving = Serving::of(command);
    let processors = std::thread::available_parallelism().unwrap();
    assert!(serving.line.contains(&format!(", {processors} worker")), "{}", serving.line);
    let message = receive();
    assert!(message.contains("READY=1\n"), "{message}");
    assert!(message.contains(&format!("STATUS={}", serving.line.trim_end())), "{message}");
    serving.signal(Signal::TERM);
    assert!(receive().contains("STOPPING=1"));
    serving.expect_success();
}
