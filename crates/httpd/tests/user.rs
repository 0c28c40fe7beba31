//! The user that the program runs as.
#![cfg(feature = "cli")]

use crate::serving;

use std::fs;
use std::io::{BufRead, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serving::program::{Serving, httpd};
use serving::{Client, on_every_backend};

/// The user `nobody` of every system, and the number of `root`.
const NOBODY: u32 = 65534;

/// Returns a directory that all users can read.
fn readable_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Returns a command that runs a copy of the program: its own directory may be closed to other users.
fn program_in(dir: &Path) -> Command {
    let copy = dir.join("httpd");
    // Copied by another process: children of other tests would inherit the open file here, and a file that is open
    // for writing cannot be executed.
    assert!(
        Command::new("cp").arg(httpd(&[]).get_program()).arg(&copy).status().unwrap().success()
    );
    let mut command = Command::new(copy);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn failure(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the numbers in a field of each thread's proc_pid_status(5).
fn of_threads(serving: &Serving, name: &str) -> Vec<Vec<u32>> {
    let threads = fs::read_dir(format!("/proc/{}/task", serving.child.id())).unwrap();
    // A thread may have ended meanwhile.
    let fields =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let fields = fields.map(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
        line.split_ascii_whitespace().map(|number| number.parse().unwrap()).collect()
    });
    fields.collect()
}

#[test]
fn port_of_the_system_names_the_capability() {
    let start = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let start: u16 = start.trim().parse().unwrap();
    let Some(port) = start.checked_sub(1).filter(|port| *port > 0) else {
        println!("not tested: here every user may listen on every port");
        return;
    };
    let dir = readable_dir();
    let mut command = program_in(dir.path());
    command.current_dir(dir.path()).args([".", "-p", &port.to_string()]);
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let text = failure(&mut command);
    for expected in [
        &format!("httpd: cannot listen on 127.0.0.1:{port}: "),
        "setcap cap_net_bind_service=+ep",
        "AmbientCapabilities=CAP_NET_BIND_SERVICE",
        &format!("-p {}", u32::from(port) + 8000),
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn server_runs_as_the_user_on_all_threads() {
    let root = readable_dir();
    fs::write(root.path().join("a.txt"), "text").unwrap();
    fs::write(root.path().join("secret.txt"), "").unwrap();
    fs::set_permissions(root.path().join("secret.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    let path = root.path().to_str().unwrap();
    let log = root.path().join("access.log");
    // Without root, the own user is the only one; the groups of the process stay.
    let is_root = geteuid().is_root();
    let uid = if is_root { NOBODY } else { geteuid().as_raw() };
    if !is_root {
        println!("not tested: a change of the user needs root");
    }
    on_every_backend(|backend| {
        let user = uid.to_string();
        let arguments = [path, "--backend", backend, "--workers", "2", "--listen", "127.0.0.1:0"];
        let user = ["--user", &user, "--access-log", log.to_str().unwrap(), "--compress"];
        let serving = Serving::start(&[&arguments[..], &user[..]].concat());
        let mut client = serving.connect();
        assert_eq!(client.get("/a.txt").body, b"text", "{backend}");
        let status = client.get("/secret.txt").status;
        assert_eq!(status == 200, !is_root, "{backend}: {status}");
        let users = of_threads(&serving, "Uid:");
        assert!(users.len() > 3, "{backend}: {users:?}");
        assert!(users.iter().all(|ids| *ids == [uid; 4]), "{backend}: {users:?}");
        if is_root {
            for name in ["Gid:", "Groups:"] {
                let groups = of_threads(&serving, name);
                let are_nobodys = groups.iter().flatten().all(|id| *id == NOBODY);
                assert!(are_nobodys, "{backend}: {groups:?}");
            }
        }
    });
}

#[test]
fn access_log_that_root_created_could_not_be_opened_again() {
    if !geteuid().is_root() {
        return println!("not tested: a change of the user needs root");
    }
    let dir = readable_dir();
    let log = dir.path().join("new.log");
    let user = NOBODY.to_string();
    let arguments = ["-p", "0", "--user", &user, "--access-log", log.to_str().unwrap()];
    let mut serving = Serving::start(&arguments);
    assert_eq!(fs::metadata(&log).unwrap().uid(), NOBODY);
    serving.signal(Signal::USR1);
    serving.connect().get("/");
    serving.signal(Signal::TERM);
    let mut output = String::new();
    serving.errors.read_to_string(&mut output).unwrap();
    assert_eq!(output, "");
}

#[test]
fn access_log_was_opened_as_root_through_a_link_of_the_user() {
    if !geteuid().is_root() {
        return println!("not tested: a change of the user needs root");
    }
    let dir = readable_dir();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("logs")).unwrap();
    chown(path("logs"), Some(NOBODY), None).unwrap();
    fs::write(path("secret"), "secret").unwrap();
    fs::write(path("logs/of_root"), "").unwrap();
    symlink(path("secret"), path("logs/link")).unwrap();
    symlink(path("new"), path("logs/dangling")).unwrap();
    fs::hard_link(path("secret"), path("logs/name")).unwrap();
    let user = NOBODY.to_string();
    let arguments = ["--listen", "127.0.0.1:0", "--user", &user, "--access-log"];
    for name in ["link", "dangling", "name", "of_root"] {
        let mut command = httpd(&arguments);
        let error = failure(command.arg(path("logs").join(name)));
        let expected = format!("Permission denied (os error 13); the user {user} opens it");
        assert!(error.contains("cannot open the access log"), "{name}: {error}");
        assert!(error.contains(&expected), "{name}: {error}");
    }
    assert_eq!(fs::read_to_string(path("secret")).unwrap(), "secret");
    assert_eq!(fs::metadata(path("secret")).unwrap().uid(), 0);
    assert!(!path("new").exists());
    // A link to what the user may write is one like others.
    fs::write(path("of_user"), "").unwrap();
    chown(path("of_user"), Some(NOBODY), None).unwrap();
    symlink(path("of_user"), path("logs/own")).unwrap();
    let log = path("logs/own");
    let serving = Serving::start(&[&arguments[..], &[log.to_str().unwrap()]].concat());
    serving.connect().get("/");
    serving.signal(Signal::TERM);
    serving.expect_success();
    assert!(fs::read_to_string(log).unwrap().contains("GET / HTTP/1.1"));
}

#[test]
fn error_page_was_read_as_root() {
    if !geteuid().is_root() {
        return println!("not tested: a change of the user needs root");
    }
    let dir = readable_dir();
    let page = dir.path().join("404.html");
    let (root, user) = (dir.path().to_str().unwrap(), NOBODY.to_string());
    let arguments = [root, "-p", "0", "--user", &user, "--error-page", "404=404.html"];
    fs::write(&page, "secret").unwrap();
    fs::set_permissions(&page, fs::Permissions::from_mode(0o600)).unwrap();
    let error = failure(&mut httpd(&arguments));
    assert!(error.contains("404.html: Permission denied"), "{error}");
    fs::set_permissions(&page, fs::Permissions::from_mode(0o644)).unwrap();
    let serving = Serving::start(&arguments);
    assert_eq!(serving.connect().get("/none").body, b"secret");
}

#[test]
fn metrics_below_port_1024_were_bound_after_the_change_of_the_user() {
    if !geteuid().is_root() {
        return println!("not tested: ports below 1024 need root");
    }
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let at = format!("127.0.0.1:{}", (600..1024).find(is_free).expect("no free port"));
    let user = NOBODY.to_string();
    let arguments = ["--listen", "127.0.0.1:0", "--user", &user, "--metrics-listen", &at];
    let serving = Serving::start(&arguments);
    let mut client = Client::new(TcpStream::connect(&at).unwrap());
    assert_eq!(client.get("/healthz").status, 200);
    assert!(of_threads(&serving, "Uid:").iter().all(|ids| *ids == [NOBODY; 4]));
}

#[test]
fn settings_are_read_again_as_the_user() {
    let root = readable_dir();
    let (file, path) = (root.path().join("httpd.toml"), root.path().to_str().unwrap());
    let uid = if geteuid().is_root() { NOBODY } else { geteuid().as_raw() };
    let settings = format!("listen = ['127.0.0.1:0']\nroot = '{path}'\nuser = '{uid}'\n");
    fs::write(&file, &settings).unwrap();
    let mut serving = Serving::start(&["--config", file.to_str().unwrap()]);
    assert_eq!(serving.connect().get("/").status, 404);
    fs::write(&file, settings.clone() + "listing = true\n").unwrap();
    serving.signal(Signal::HUP);
    while serving.connect().get("/").status != 200 {}
    fs::write(&file, settings.replace(&uid.to_string(), "bin")).unwrap();
    serving.signal(Signal::HUP);
    let mut line = String::new();
    serving.errors.read_line(&mut line).unwrap();
    assert!(line.contains("the settings stay as they were: "), "{line}");
    assert!(line.contains("httpd.toml:3:8: `user`: cannot run as the user bin"), "{line}");
    assert_eq!(serving.connect().get("/").status, 200);
    serving.signal(Signal::TERM);
    serving.expect_success();
}

#[test]
fn reload_without_the_user_said_nothing() {
    let dir = readable_dir();
    let file = dir.path().join("httpd.toml");
    let uid = if geteuid().is_root() { NOBODY } else { geteuid().as_raw() };
    let settings = "listen = ['127.0.0.1:0']\n".to_owned();
    fs::write(&file, format!("{settings}user = '{uid}'\n")).unwrap();
    let mut serving = Serving::start(&["--config", file.to_str().unwrap()]);
    fs::write(&file, settings).unwrap();
    serving.signal(Signal::HUP);
    let mut line = String::new();
    serving.errors.read_line(&mut line).unwrap();
    let expected = format!("the process stays that of `user` {uid} until a restart");
    assert!(line.contains(&expected), "{line}");
    serving.signal(Signal::TERM);
    serving.expect_success();
}

#[test]
fn reload_that_could_fail_afterwards_changed_the_user() {
    if !geteuid().is_root() {
        return println!("not tested: a change of the user needs root");
    }
    let root = readable_dir();
    let (file, path) = (root.path().join("httpd.toml"), root.path().to_str().unwrap());
    // Not writable for others.
    let log = format!("access-log = '{path}/log'\n");
    let settings = format!("listen = ['127.0.0.1:0']\nroot = '{path}'\n{log}");
    fs::write(&file, &settings).unwrap();
    let mut serving = Serving::start(&["--config", file.to_str().unwrap()]);
    fs::write(&file, format!("{settings}listing = true\nuser = '{NOBODY}'\n")).unwrap();
    serving.signal(Signal::HUP);
    while serving.connect().get("/").status != 200 {}
    let mut line = String::new();
    serving.errors.read_line(&mut line).unwrap();
    let expected = format!("the process becomes that of `user` {NOBODY} after a restart");
    assert!(line.contains(&expected), "{line}");
    assert!(of_threads(&serving, "Uid:").iter().all(|ids| *ids == [0; 4]));
    serving.signal(Signal::TERM);
    serving.expect_success();
}

#[test]
fn successor_that_runs_as_the_user_replaces_the_pid_file() {
    if !geteuid().is_root() {
        return println!("not tested: a change of the user needs root");
    }
    let dir = readable_dir();
    let pid_file = dir.path().join("pid");
    let mut command = program_in(dir.path());
    let user = NOBODY.to_string();
    command.args(["--listen", "127.0.0.1:0", "--user", &user, "--pid-file"]).arg(&pid_file);
    let mut serving = Serving::of(command);
    let pid = || fs::read_to_string(&pid_file).unwrap();
    assert_eq!(pid(), format!("{}\n", serving.child.id()));
    serving.signal(Signal::USR2);
    let mut line = String::new();
    serving.errors.read_line(&mut line).unwrap();
    assert_eq!(line, serving.line);
    assert!(serving.child.wait().unwrap().success());
    let successor = Pid::from_raw(pid().trim_end().parse().unwrap()).unwrap();
    kill_process(successor, Signal::TERM).unwrap();
    serving.errors.read_line(&mut line).unwrap();
    // The user may write the file, but not remove it.
    assert_eq!(pid(), "");
}

#[test]
fn users_that_cannot_be_used_are_refused() {
    let error = failure(&mut httpd(&["--user", "no-such-user", "--check-config"]));
    assert!(error.contains("there is no user `no-such-user`: add one"), "{error}");
    let error = failure(&mut httpd(&["--user", "root:no-such-group", "--check-config"]));
    assert!(error.contains("there is no group `no-such-group`: add one"), "{error}");
    // A copy, as the program's directory may be closed to other users. Another process makes it: here, the children
    // of other tests would inherit the open file, and a file that is open for writing cannot be executed.
    let dir = readable_dir();
    let copy = dir.path().join("httpd");
    assert!(
        Command::new("cp").arg(httpd(&[]).get_program()).arg(&copy).status().unwrap().success()
    );
    let mut as_nobody = Command::new(copy);
    as_nobody.args(["--user", "root", "--listen", "127.0.0.1:0"]);
    if geteuid().is_root() {
        as_nobody.uid(NOBODY).gid(NOBODY);
    }
    let error = failure(&mut as_nobody);
    assert!(error.contains("cannot run as the user root: Operation not permitted"), "{error}");
    assert!(error.contains("start the program as root, or without --user"), "{error}");
}

#[test]
fn pid_file_that_is_a_link_gave_its_target_to_the_user() {
    let dir = readable_dir();
    let (target, pid_file) = (dir.path().join("target"), dir.path().join("pid"));
    fs::write(&target, "secret").unwrap();
    let uid = if geteuid().is_root() { NOBODY } else { geteuid().as_raw() };
    let user = uid.to_string();
    let owner = fs::metadata(&target).unwrap().uid();
    type Link = fn(&Path, &Path) -> std::io::Result<()>;
    let links: [Link; 2] = [|to, link| symlink(to, link), |to, link| fs::hard_link(to, link)];
    for link in links {
        link(&target, &pid_file).unwrap();
        let arguments = ["--listen", "127.0.0.1:0", "--user", &user, "--pid-file"];
        let mut command = httpd(&arguments);
        let error = failure(command.arg(&pid_file));
        assert!(error.contains("cannot write the pid file"), "{error}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "secret");
        assert_eq!(fs::metadata(&target).unwrap().uid(), owner);
        fs::remove_file(&pid_file).unwrap();
    }
}

#[test]
fn check_accepted_a_pid_file_of_another_user() {
    if !geteuid().is_root() {
        return println!("not tested: a change of the user needs root");
    }
    let dir = readable_dir();
    let pid_file = dir.path().join("pid");
    fs::write(&pid_file, "").unwrap();
    chown(&pid_file, Some(1), None).unwrap();
    let user = NOBODY.to_string();
    for check in [&["--check-config"][..], &[]] {
        let mut command = httpd(&["--listen", "127.0.0.1:0", "--user", &user, "--pid-file"]);
        let error = failure(command.arg(&pid_file).args(check));
        assert!(error.contains("it belongs to another user; remove it"), "{error}");
    }
}
