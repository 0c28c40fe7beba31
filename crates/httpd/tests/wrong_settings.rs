//! Settings that cannot be used: the check finds them, and names file, line, key and reason.
#![cfg(feature = "cli")]

use crate::serving;

use std::fs;
use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serving::Client;
use serving::program::{Serving, httpd, with_sockets};

/// Runs the program with a file of settings. Returns whether it ended with success, and its messages. It is stopped
/// after a minute if it serves.
fn run(dir: &Path, text: &str, flags: &[&str]) -> (bool, String) {
    let file = dir.join("httpd.toml");
    fs::write(&file, text).unwrap();
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_httpd"), "--config", file.to_str().unwrap()]);
    let output = command.args(flags).output().unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    (output.status.success(), messages.replace(dir.to_str().unwrap(), "DIR"))
}

/// A certificate without extensions.
const OF_VERSION_1: &str = "-----BEGIN CERTIFICATE-----
MIHeMIGRAhQtCOuhcwDbK86IxARurnO+4ol8yTAFBgMrZXAwETEPMA0GA1UEAwwG
YS50ZXN0MCAXDTI2MTEyODIxNDE1MFoYDzIxMjYxMTA0MjE0MTUwWjARMQ8wDQYD
VQQDDAZhLnRlc3QwKjAFBgMrZXADIQBGxFX2XYQKSbPLqyMiPrsvj6tL1pWoaIVV
7SeXuhwDgzAFBgMrZXADQQCvQQ0aA4EgMcQ7BF7ygLTWPwqEaBywe1r7pXFRHHa7
5iGYK92TOMnSxorxZ1rehIeW9YqVQmfiNWI0LI+SPOEE
-----END CERTIFICATE-----
";

/// A key of a type that TLS does not have.
const OF_SECP256K1: &str = "-----BEGIN PRIVATE KEY-----
MIGEAgEAMBAGByqGSM49AgEGBSuBBAAKBG0wawIBAQQgRH58fPn+f9Bmhsavy/et
BedPtkAurZKXAXQ4Hgx4DgOhRANCAARgm39vQvLvbmAycVinkmkaMSiPF4U0UpyZ
1V4oiS/xzWxHH7vhglrns8J65pQW5Dt4SSoVYwiJPzMZAOZPtvpL
-----END PRIVATE KEY-----
";

/// Writes a certificate and its key.
fn write_certificate(dir: &Path, name: &str) {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    fs::write(dir.join(format!("{name}.pem")), made.cert.pem()).unwrap();
    fs::write(dir.join(format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
}

#[test]
fn check_accepted_what_no_server_starts_with() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("f.html"), "page").unwrap();
    let users = format!("ann:{}\n", bcrypt::hash("secret", 4).unwrap());
    fs::write(dir.path().join("users"), users).unwrap();
    fs::write(dir.path().join("text"), "no module").unwrap();
    #[cfg(feature = "sandbox")]
    {
        let hello = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/handlers/hello.wasm");
        fs::copy(hello, dir.path().join("hello.wasm")).unwrap();
        let elements = r#"(module (memory (export "memory") 1 1)
            (table 1 funcref) (elem (i32.const 1) $handle)
            (func $handle (export "ash_handle") (param i32 i32 i64 i32) (result i32) (i32.const 0)))"#;
        let elements = wat::parse_str(elements).unwrap();
        fs::write(dir.path().join("elements.wasm"), elements).unwrap();
        fs::File::create(dir.path().join("large")).unwrap().set_len(1 << 40).unwrap();
    }
    std::os::unix::fs::symlink("/etc/hosts", dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("f.html"), dir.path().join("absolute")).unwrap();
    mknodat(CWD, dir.path().join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    for (text, reason) in [
        ("\nbackend = 'abacus'", "DIR/httpd.toml:2:11: `backend`: unknown mechanism `abacus`"),
        (
            "listen = ['127.0.0.1:1', '127.0.0.1:1']\nworkers = 2",
            "DIR/httpd.toml:1:10: `listen`: there are two listeners on 127.0.0.1:1;",
        ),
        (
            "listen = ['127.0.0.1:1']\nmetrics-listen = '127.0.0.1:1'",
            "DIR/httpd.toml:2:18: `metrics-listen`, with `listen` at 1:10: there are two listeners on 127.0.0.1:1;",
        ),
        (
            "tls-self-signed = true\nlisten = [':1']\ntls-redirect = [':1']\nworkers = 2",
            "DIR/httpd.toml:3:16: `tls-redirect`, with `listen` at 2:10: there are two listeners on 0.0.0.0:1;",
        ),
        (
            "listen = [':1', '127.0.0.1:1']",
            "DIR/httpd.toml:1:10: `listen`: there are two listeners on 127.0.0.1:1;",
        ),
        (
            "listen = ['127.0.0.1:1', '0.0.0.0:1']\nworkers = 2",
            "DIR/httpd.toml:1:10: `listen`: there are two listeners on 0.0.0.0:1;",
        ),
        (
            "listen = [':1']\nmetrics-listen = '127.0.0.1:1'",
            "DIR/httpd.toml:2:18: `metrics-listen`: there are two listeners on 127.0.0.1:1;",
        ),
        (
            "workers = 1\naccess-log = '/'",
            "DIR/httpd.toml:2:14: `access-log`: cannot open the access log /: Is a directory (os error 21); name a file",
        ),
        (
            "[[host]]\nname = 'a'\nroot = '/'\naccess-log = '/none/a.log'",
            "DIR/httpd.toml:4:14: `access-log`: cannot open the access log /none/a.log: No such file",
        ),
        (
            "access-log = '/tmp/a.log'\n[[host]]\nname = 'a'\nroot = '/'\naccess-log = '/tmp/a.log'\n\
             log-format = 'json'",
            "DIR/httpd.toml:6:14: `log-format`, with `access-log` at 5:14: access-log names the file of \
             another log, which has another log-format;",
        ),
        // Those of another host were said to be the cause.
        (
            "compress = 'gzip'\n[[host]]\nname = 'a'\nroot = '/'\ncompress-max = 1\n\
             [[host]]\nname = 'b'\nroot = '/'\ncompress-max = 1000000\ncompress-min = 2",
            "DIR/httpd.toml:5:16: `compress-max`: no file is compressed: compress-min is above",
        ),
        (
            "[[host]]\nname = 'a'\nroot = 'DIR'\nfallback = 'f.html'\nredirect = ['/x=/']\n\
             [[host]]\nname = ['b', 'c']\nroot = 'DIR'\nredirect = ['/f=/x', '/f.html=/x']\n\
             fallback = 'f.html'",
            "DIR/httpd.toml:10:12: `fallback`, with `redirect` at 9:12: a redirect matches the page of fallback;",
        ),
        // One of the host and one that it has from the server.
        (
            "compress = 'gzip'\ncompress-min = 5000\n[[host]]\nname = 'a'\nroot = '/'\ncompress-max = 4000\n",
            "DIR/httpd.toml:6:16: `compress-max`, with `compress-min` at 2:16: no file is compressed:",
        ),
        (
            "access-log = '/tmp/a.log'\n[[host]]\nname = 'a'\nroot = '/'\naccess-log = '/tmp/b.log'\n\
             log-format = 'json'\n[[host]]\nname = 'b'\nroot = '/'\naccess-log = '/tmp/b.log'",
            "DIR/httpd.toml:10:14: `access-log`: access-log names the file of another log,",
        ),
        (
            "workers = 1\nredirect = ['/a=/b', '/c=/d', '/a=/c']",
            "DIR/httpd.toml:2:12: `redirect`: the redirect /a=/c never applies: /a=/b, before it, has its paths",
        ),
        (
            "redirect = ['/a/=/b/', '/a/c/=/d']",
            "DIR/httpd.toml:1:12: `redirect`: the redirect /a/c/=/d never applies: /a/=/b/, before it, has its paths",
        ),
        (
            "[[host]]\nname = 'a..b'\nroot = '/'",
            "DIR/httpd.toml:2:8: `name`: invalid value 'a..b' for '--name <NAME>': expected a host name",
        ),
        (
            "root = 'DIR'\nfallback = 'f.html'\nbasic-auth = ['DIR/users,path=/f.html']",
            "DIR/httpd.toml:3:14: `basic-auth`, with `fallback` at 2:12: other paths send the page of",
        ),
        (
            "root = 'DIR'\nerror-page = ['404=f.html']\nbasic-auth = ['DIR/users,path=/f.html']",
            "DIR/httpd.toml:3:14: `basic-auth`, with `error-page` at 2:14: a page of error-page is sent without",
        ),
        ("root = 'DIR'\nfallback = 'sub'", "DIR/sub: it is no file"),
        (
            "root = 'DIR'\nfallback = 'absolute'",
            "DIR/absolute: a link leads out of the directory or is absolute",
        ),
        ("root = 'DIR'\nfallback = 'pipe'", "DIR/pipe: it is no file"),
        ("root = 'DIR'\nerror-page = ['404=pipe']", "DIR/pipe: it is no file"),
        ("root = 'DIR'\nfallback = 'link'", "DIR/link: a link leads out of the directory"),
        ("root = 'DIR'\nerror-page = ['404=link']", "DIR/link: a link leads out of the directory"),
        (
            "compress = 'gzip'\ncompress-min = 2\ncompress-max = 1",
            "DIR/httpd.toml:3:16: `compress-max`, with `compress-min` at 2:16: no file is compressed: compress-min",
        ),
        ("pid-file = '/'", "DIR/httpd.toml:1:12: `pid-file`: cannot write the pid file /: "),
        (
            "pid-file = '/none/pid'",
            "DIR/httpd.toml:1:12: `pid-file`: cannot write the pid file /none/pid: No such file",
        ),
        // The number overwrote the log, or the log followed the number.
        (
            "access-log = 'DIR/new'\npid-file = 'DIR/sub/../new'",
            "DIR/httpd.toml:2:12: `pid-file`: cannot write the pid file DIR/sub/../new: it is the file of access-log",
        ),
        (
            "pid-file = 'DIR/new'\n[[host]]\nname = 'a'\nroot = '/'\naccess-log = 'DIR/new'",
            "DIR/httpd.toml:1:12: `pid-file`: cannot write the pid file DIR/new: it is the file of access-log",
        ),
        ("[server]\nworkers = 2", "DIR/httpd.toml:1:2: settings have no section `server`"),
        (
            "root = 'DIR'\nfallback = 'f.html'\nredirect = ['/f.html=/x']",
            "DIR/httpd.toml:3:12: `redirect`, with `fallback` at 2:12: a redirect matches the page of fallback;",
        ),
        (
            "error-page = ['404=/e.html']",
            "DIR/httpd.toml:1:14: `error-page`: fallback and error-page need a directory of files",
        ),
        #[cfg(feature = "sandbox")]
        (
            "\nhandler = ['DIR/text,path=/x']",
            "DIR/httpd.toml:2:11: `handler`: cannot use the handler DIR/text: it is no WebAssembly module",
        ),
        // The server started, or the check of the settings waited for the writer of the pipe.
        #[cfg(feature = "sandbox")]
        (
            "\nhandler = ['DIR/elements.wasm']",
            "DIR/httpd.toml:2:11: `handler`: cannot use the handler DIR/elements.wasm: the element segment 0 must lie",
        ),
        #[cfg(feature = "sandbox")]
        (
            "\nhandler = ['DIR/pipe']",
            "DIR/httpd.toml:2:11: `handler`: cannot read the handler DIR/pipe: it is no file",
        ),
        #[cfg(feature = "sandbox")]
        (
            "\nhandler = ['/dev/zero']",
            "DIR/httpd.toml:2:11: `handler`: cannot read the handler /dev/zero: it is no file",
        ),
        #[cfg(feature = "sandbox")]
        (
            "\nhandler = ['DIR/large']",
            "DIR/httpd.toml:2:11: `handler`: cannot read the handler DIR/large: it has more than 1048576 bytes",
        ),
        #[cfg(feature = "sandbox")]
        (
            "listen = ['127.0.0.1:0']\nhandler = ['DIR/hello.wasm,listen=127.0.0.2:1']",
            "DIR/httpd.toml:2:11: `handler`: the handler DIR/hello.wasm is for 127.0.0.2:1, where",
        ),
    ] {
        let text = &text.replace("DIR", dir.path().to_str().unwrap());
        let (is_valid, messages) = run(dir.path(), text, &["--check-config"]);
        assert!(!is_valid && messages.contains(reason), "{text}\n{messages}");
        let (_, of_start) = run(dir.path(), text, &[]);
        // The start may have another reason for the same setting.
        let cause: String = reason.split_inclusive(": ").take(2).collect();
        assert!(of_start.contains(&cause), "{text}\n{of_start}");
    }
    // Without compression, its limits do not matter.
    let (is_valid, messages) = run(dir.path(), "compress-max = 500", &["--check-config"]);
    assert!(is_valid, "{messages}");
}

#[test]
fn errors_of_certificates_had_no_line() {
    let dir = tempfile::tempdir().unwrap();
    write_certificate(dir.path(), "a.test");
    write_certificate(dir.path(), "b.test");
    fs::write(dir.path().join("garbage"), "text").unwrap();
    fs::write(dir.path().join("v1.pem"), OF_VERSION_1).unwrap();
    fs::write(dir.path().join("k1.key"), OF_SECP256K1).unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (a, a_key, b_key) = (path("a.test.pem"), path("a.test.key"), path("b.test.key"));
    let garbage = path("garbage");
    for (text, reason) in [
        (
            format!("tls-cert = {a:?}\ntls-key = {b_key:?}"),
            "DIR/httpd.toml:2:11: `tls-key`: the key DIR/b.test.key cannot be used with the certificate \
             DIR/a.test.pem: it is the key of another certificate",
        ),
        // It was said to be of another type than its key.
        (
            format!("tls-cert = {:?}\ntls-key = {a_key:?}", path("v1.pem")),
            "DIR/httpd.toml:1:12: `tls-cert`: DIR/v1.pem has an invalid certificate or key: it is of X.509 version 1;",
        ),
        (
            format!("tls-cert = {a:?}\ntls-key = {:?}", path("k1.key")),
            "DIR/httpd.toml:2:11: `tls-key`: the key DIR/k1.key cannot be used with the certificate \
             DIR/a.test.pem: its type is not supported: use RSA of 2048",
        ),
        (
            format!("tls-key = {a_key:?}\n tls-cert = {garbage:?}"),
            "DIR/httpd.toml:2:13: `tls-cert`: DIR/garbage has no certificate",
        ),
        (
            format!("tls-cert = {a:?}\ntls-key = {a_key:?}\ntls-client-ca = {garbage:?}"),
            "DIR/httpd.toml:3:17: `tls-client-ca`: DIR/garbage has no certificate",
        ),
        (
            format!("[[host]]\nname = 'b'\nroot = '/'\ntls-cert = {a:?}\ntls-key = {b_key:?}"),
            "DIR/httpd.toml:5:11: `tls-key`: the key DIR/b.test.key cannot be used with",
        ),
        (
            format!("tls-self-signed = true\ntls-cert = {a:?}\ntls-key = {a_key:?}"),
            "DIR/httpd.toml:2:12: `tls-cert`, with `tls-self-signed` at 1:19: tls-self-signed makes a",
        ),
        (
            "tls-redirect = [':1']".to_owned(),
            "DIR/httpd.toml:1:16: `tls-redirect`: TLS needs a certificate and its key; --tls-redirect and",
        ),
    ] {
        for flags in [&["--check-config"][..], &[]] {
            let (is_valid, messages) = run(dir.path(), &text, flags);
            assert!(!is_valid && messages.contains(reason), "{text}\n{messages}");
        }
    }
}

#[test]
fn variable_with_a_wrong_name_of_a_mechanism_was_not_named() {
    let with_variable = |flags: &[&str]| {
        let output = httpd(flags).env("EVRING_HTTPD_BACKEND", "abacus").output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let expected = "httpd: the variable EVRING_HTTPD_BACKEND: unknown mechanism `abacus`";
    for flags in [&[][..], &["--check-config"]] {
        let messages = with_variable(flags);
        assert!(messages.starts_with(expected), "{messages}");
    }
    let messages = with_variable(&["--mechanism", "loom", "--check-config"]);
    assert!(messages.starts_with("httpd: unknown mechanism `loom`"), "{messages}");
}

#[test]
fn settings_without_effect_were_accepted_silently() {
    let dir = tempfile::tempdir().unwrap();
    for (text, setting, needed) in [
        ("log-format = 'json'", "log-format", "access-log"),
        ("tls-redirect-port = 8443", "tls-redirect-port", "tls-redirect"),
        ("compress-min = 1", "compress-min", "compress"),
        ("compress-max = 500", "compress-max", "compress"),
        ("listing = true", "listing", "a directory of files"),
        ("max-age = 1", "max-age", "a directory of files"),
        ("compress = 'gzip'", "compress", "a directory of files"),
    ] {
        let (is_valid, messages) = run(dir.path(), text, &["--check-config"]);
        let expected = format!("WARN {setting} has no effect without {needed}\n");
        assert!(is_valid && messages.contains(&expected), "{text}\n{messages}");
    }
    let text = "access-log = 'off'\nlog-format = 'json'\n[[host]]\nname = 'a'\nroot = '/'\n\n";
    let with_effect =
        ["--listing", "--max-age=1", "--compress=gzip", "--compress-min=1", "--check-config"];
    let (is_valid, messages) = run(dir.path(), text, &with_effect);
    assert!(is_valid && messages == "the settings are valid\n", "{messages}");
    // Of a host, which has the settings of the server.
    let text = "log-format = 'json'\ncompress-min = 1\n[[host]]\nname = 'a'\nroot = '/'\n\
                access-log = 'off'\ncompress = 'gzip'";
    let (is_valid, messages) = run(dir.path(), text, &["--check-config"]);
    assert!(is_valid && messages == "the settings are valid\n", "{messages}");
}

#[test]
fn variables_that_are_no_settings_are_reported() {
    // The last three are flags.
    for name in ["WROKERS", "CHECK_CONFIG", "LIST_BACKENDS", "JSON"] {
        let mut command = httpd(&["--check-config"]);
        let output = command.env(format!("EVRING_HTTPD_{name}"), "true").output().unwrap();
        let messages = String::from_utf8(output.stderr).unwrap();
        let expected = format!("no setting for the variable EVRING_HTTPD_{name}");
        assert!(messages.contains(&expected), "{messages}");
    }
}

#[test]
#[cfg(feature = "metrics")]
fn check_took_the_default_address_for_one_that_sockets_of_a_service_manager_replace() {
    let dir = tempfile::tempdir().unwrap();
    let (valid, messages) =
        run(dir.path(), "metrics-listen = '127.0.0.1:8080'\n", &["--check-config"]);
    assert!(valid, "{messages}");
}

#[test]
fn wrong_variable_that_a_flag_replaces_was_taken_for_an_error_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("httpd.toml");
    fs::write(&file, "workers = 2\n").unwrap();
    let arguments =
        ["--config", file.to_str().unwrap(), "--listen", "127.0.0.1:0", "--check-config"];
    let output = httpd(&arguments).env("EVRING_HTTPD_LISTEN", "no such host").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn socket_that_no_setting_names_was_ignored_silently() {
    let given = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = given.local_addr().unwrap();
    let serving = Serving::of(with_sockets([given], &["--listen", "127.0.0.2:0"]));
    let expected = format!("the socket on {at} was given to the server, but no setting names");
    assert!(serving.before.contains(&expected), "{}", serving.before);
}

#[test]
fn socket_of_both_families_was_used_for_one() {
    let given = TcpListener::bind("[::]:0").unwrap();
    let port = given.local_addr().unwrap().port();
    let serving = Serving::of(with_sockets([given], &["--listen", &format!(":{port}")]));
    assert_eq!(serving.before, "");
    for host in ["127.0.0.1", "::1"] {
        let mut client = Client::new(TcpStream::connect((host, port)).unwrap());
        assert_eq!(client.get("/").status, 200, "{host}");
    }
}

/// `--check-config` and SIGHUP blocked while they read a pipe that no program writes to.
#[test]
fn pipe_without_a_writer_was_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    write_certificate(dir.path(), "a.test");
    mknodat(CWD, dir.path().join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (a, a_key, pipe) = (path("a.test.pem"), path("a.test.key"), path("pipe"));
    let tls = |pem: &str, key: &str| format!("tls-cert = {pem:?}\ntls-key = {key:?}\n");
    let cases = [
        (tls(&a, &pipe), "DIR/httpd.toml:2:11: `tls-key`: "),
        (tls(&pipe, &a_key), "DIR/httpd.toml:1:12: `tls-cert`: "),
        (
            tls(&a, &a_key) + &format!("tls-client-ca = {pipe:?}"),
            "DIR/httpd.toml:3:17: `tls-client-ca`: ",
        ),
        (format!("basic-auth = [{pipe:?}]"), "DIR/httpd.toml:1:14: `basic-auth`: "),
    ];
    for (text, place) in &cases {
        let (is_valid, messages) = run(dir.path(), text, &["--check-config"]);
        assert!(!is_valid && messages.contains(place), "{messages}");
        assert!(messages.contains("DIR/pipe: nothing was written to this pipe"), "{messages}");
    }
    // The settings themselves.
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_httpd"), "--check-config", "--config", &pipe]);
    let output = command.output().unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    assert!(
        messages.contains("/pipe: cannot read the settings: nothing was written"),
        "{messages}"
    );
    // A reload.
    let file = path("httpd.toml");
    fs::write(&file, "").unwrap();
    let mut serving = Serving::start(&["-p", "0", "--config", &file]);
    fs::write(&file, &cases[3].0).unwrap();
    serving.signal(Signal::HUP);
    serving.line.clear();
    serving.errors.read_line(&mut serving.line).unwrap();
    assert!(serving.line.contains("the settings stay as they were"), "{}", serving.line);
    serving.signal(Signal::TERM);
    serving.expect_success();
}

/// The files of a shell's process substitution are pipes: `--tls-key <(command)`.
#[test]
fn pipes_with_writers_are_read() {
    let dir = tempfile::tempdir().unwrap();
    write_certificate(dir.path(), "a.test");
    let mut command = Command::new("bash");
    let line = "exec \"$0\" -p 0 --tls-cert <(cat a.test.pem) --tls-key <(cat a.test.key) --config <(echo workers=2)";
    command.args(["-c", line, env!("CARGO_BIN_EXE_httpd")]).current_dir(dir.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut serving = Serving::of(command);
    assert!(
        serving.line.contains("https://") && serving.line.contains("2 workers"),
        "{}",
        serving.line
    );
    // They have been read.
    serving.signal(Signal::HUP);
    serving.line.clear();
    serving.errors.read_line(&mut serving.line).unwrap();
    assert!(serving.line.contains("the settings stay as they were"), "{}", serving.line);
    assert!(serving.line.contains("nothing was written to this pipe"), "{}", serving.line);
    serving.signal(Signal::TERM);
    serving.expect_success();
}

#[test]
fn reload_read_each_pipe_twice() {
    let dir = tempfile::tempdir().unwrap();
    write_certificate(dir.path(), "a.test");
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (a, a_key, pipe) = (path("a.test.pem"), path("a.test.key"), path("pipe"));
    mknodat(CWD, &*pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    // Each write has been done and its pipe is open before the server reads, and the pipe closes once it is empty.
    let key = fs::read(&a_key).unwrap();
    let write_key = || {
        let mut writer = fs::File::options().read(true).write(true).open(&pipe).unwrap();
        writer.write_all(&key).unwrap();
        thread::spawn(move || {
            while rustix::io::ioctl_fionread(&writer).unwrap() > 0 {
                thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let writer = write_key();
    let arguments = ["-p", "0", "--tls-cert", &a, "--tls-key", &pipe, "--log-level", "info"];
    let mut serving = Serving::start(&arguments);
    writer.join().unwrap();
    let writer = write_key();
    serving.signal(Signal::HUP);
    let mut lines = serving.errors.by_ref().lines().map(Result::unwrap);
    let is_outcome = |line: &String| line.contains("reloaded") || line.contains("stay");
    let line = lines.find(is_outcome).unwrap();
    assert!(line.contains("settings reloaded"), "{line}");
    writer.join().unwrap();
    serving.signal(Signal::TERM);
    assert!(serving.child.wait().unwrap().success());
}

#[test]
fn key_with_a_password_was_said_to_be_no_certificate() {
    let dir = tempfile::tempdir().unwrap();
    write_certificate(dir.path(), "a.test");
    let traditional = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                       DEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF\n\nAAAA\n\
                       -----END EC PRIVATE KEY-----\n";
    let current =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    for key in [traditional, current] {
        fs::write(dir.path().join("key"), key).unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let text = format!("tls-cert = {:?}\ntls-key = {:?}", path("a.test.pem"), path("key"));
        let (is_valid, messages) = run(dir.path(), &text, &["--check-config"]);
        let expected = "DIR/httpd.toml:2:11: `tls-key`: the private key DIR/key has a password";
        assert!(!is_valid && messages.contains(expected), "{messages}");
    }
}

#[test]
fn wrong_number_had_the_message_invalid_digit() {
    let bytes = "expected a number of bytes without a unit, such as 1048576";
    for (flag, expected) in [
        ("--max-body-size=1M", bytes),
        ("--max-body-memory=64M", bytes),
        ("--cache-size=1k", bytes),
        ("--max-age=x", "expected a number from 0 to 4294967295"),
        ("--max-connections=x", "expected a number from 1 to 4194304"),
        ("--max-connections=0", "expected a number from 1 to 4194304"),
        ("--max-headers=many", "expected a number from 1 to 64"),
        ("--backlog=-", "expected a number from 0 to 4294967295"),
        ("--port=http", "expected a number from 0 to 65535"),
        ("--tls-redirect-port=0", "expected a number from 1 to 65535"),
    ] {
        let output = httpd(&[flag, "--check-config"]).output().unwrap();
        let messages = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && messages.contains(expected),
            "{flag}: {messages}"
        );
    }
}
