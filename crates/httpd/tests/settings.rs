//! The sources of settings: flags, variables, the file.

use crate::program::output;
use crate::serving;

use serving::program::{Serving, httpd};

#[test]
fn invalid_flags_are_rejected() {
    for arguments in [
        &["--nonsense"][..],
        &["--listen", "nowhere"],
        &["--workers", "0"],
        &["--workers", "many"],
        &["--max-connections", "0"],
        &["--max-header-size", "1000000"],
        &["--max-request-line", "1"],
        &["--keep-alive-timeout", "-1"],
        &["--keep-alive-timeout", "soon"],
        &["--progress-interval", "0"],
        &["--keep-alive-requests", "0"],
        &["--max-buffered", "-1"],
        &["--cache-size", "much"],
        &["--min-rate", "0"],
        &["--json"],
        &["one", "two"],
        &["one", "--root", "two"],
        &["--port", "1", "--listen", "127.0.0.1:0"],
        &["--tls-cert", "a.pem"],
    ] {
        assert_eq!(output(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let text = String::from_utf8(output(&["--shutdown-timeout", "-1"]).stderr).unwrap();
    assert!(text.contains("seconds above 0"), "{text}");
}

#[test]
fn file_of_settings_and_variables_configure_the_server() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.txt"), "text").unwrap();
    let (root, file) = (dir.path().to_str().unwrap(), dir.path().join("httpd.toml"));
    let text =
        format!("listen = ['127.0.0.1:0']\nroot = {root:?}\nworkers = 2\nbackend = 'epoll'\n");
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let serving = Serving::start(&["--config", file]);
    assert!(serving.line.contains("(backend epoll, 2 workers)"), "{}", serving.line);
    assert_eq!(serving.connect().get("/a.txt").body, b"text");
    let mut command = httpd(&["--workers", "1"]);
    command.env("EVRING_HTTPD_CONFIG", file).env("EVRING_HTTPD_BACKEND", "poll");
    let serving = Serving::of(command);
    assert!(serving.line.contains("(backend poll, 1 worker)"), "{}", serving.line);
}

#[test]
fn settings_are_checked_without_serving() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("httpd.toml");
    let path = file.to_str().unwrap();
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = output(&["--config", path, "--check-config"]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(check("workers = 2\n"), (Some(0), "the settings are valid\n".to_owned()));
    let cases = [
        ("\nworkers = 0", "httpd.toml:2:11: `workers`"),
        ("lisen = 1", "httpd.toml:1:1: there is no setting `lisen`; did you mean `listen`?"),
        ("root = '/does/not/exist'", "/does/not/exist"),
        (
            "tls-cert = '/a.pem'\ntls-key = '/b.pem'",
            "httpd.toml:1:12: `tls-cert`: cannot read the file /a.pem",
        ),
        ("access-log = '/does/not/exist/log'", "/does/not/exist/log"),
        #[cfg(feature = "sandbox")]
        ("handler = ['/a.wasm']", "/a.wasm"),
    ];
    for (text, reason) in cases {
        let (code, error) = check(text);
        assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.starts_with("httpd: ") && error.contains(reason), "{error}");
    }
    std::fs::write(&file, b"workers = 2\nroot = '/\xc3\xa4\xff'\n").unwrap();
    let text = String::from_utf8(output(&["--config", path, "--check-config"]).stderr).unwrap();
    assert!(text.contains("httpd.toml:2:11: it is not UTF-8 text"), "{text}");
    let refused = output(&["--config", "/does/not/exist.toml"]);
    let text = String::from_utf8(refused.stderr).unwrap();
    let expected = "/does/not/exist.toml: cannot read the settings: No such file or directory (os error 2); \
                    check the path of --config";
    assert!(text.contains(expected), "{text}");
    // A flag that names a file.
    let output = output(&["--tls-cert", "/none.crt", "--tls-key", "/none.key"]);
    let text = String::from_utf8(output.stderr).unwrap();
    let expected = "httpd: cannot read the certificate or key /none.crt: No such file or directory (os error 2); \
                    check the path of --tls-cert, --tls-key or --tls-client-ca";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn variable_that_says_false_turned_a_setting_of_hosts_on() {
    let dir = tempfile::tempdir().unwrap();
    let (root, file) = (dir.path().join("root"), dir.path().join("httpd.toml"));
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("a.css"), "plain").unwrap();
    std::fs::write(root.join("a.css.gz"), "coded").unwrap();
    let text = format!("listen = ['127.0.0.1:0']\n[[host]]\nname = ['h']\nroot = {root:?}\n");
    std::fs::write(&file, text).unwrap();
    for (on, status, body) in [("true", 200, &b"plain"[..]), ("false", 404, b"coded")] {
        let mut command = httpd(&["--config", file.to_str().unwrap(), "--root"]);
        command.arg(&root);
        command.env("EVRING_HTTPD_LISTING", on).env("EVRING_HTTPD_NO_PRECOMPRESSED", on);
        let serving = Serving::of(command);
        for host in ["h", "other"] {
            let mut client = serving.connect();
            client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
            assert_eq!(client.response(true).status, status, "{host}");
            let fields = "Accept-Encoding: gzip\r\n\r\n";
            client.send(format!("GET /a.css HTTP/1.1\r\nHost: {host}\r\n{fields}").as_bytes());
            assert_eq!(client.response(true).body, body, "{host}");
        }
    }
}

#[test]
fn variable_was_in_conflict_with_the_command_line_or_the_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.txt"), "text").unwrap();
    let (root, file) = (dir.path().to_str().unwrap(), dir.path().join("httpd.toml"));
    std::fs::write(&file, "tls-cert = '/none.pem'\ntls-key = '/none.key'\n").unwrap();
    let file = file.to_str().unwrap();
    let cases: [(&[&str], [&str; 2]); 3] = [
        (&[root, "-p", "0"], ["LISTEN", "127.0.0.1:1"]),
        (&[root, "-p", "0"], ["ROOT", "/none"]),
        (&[root, "-p", "0", "--config", file, "--tls-self-signed"], ["TLS_CERT", "/none.pem"]),
    ];
    for (flags, [variable, value]) in cases {
        let mut command = httpd(flags);
        command.env(format!("EVRING_HTTPD_{variable}"), value);
        let serving = Serving::of(command);
        if serving.line.contains("http://") {
            assert_eq!(serving.connect().get("/a.txt").status, 200, "{variable}");
        }
    }
    let mut command = httpd(&["--config", file, "-p", "0"]);
    command.env("EVRING_HTTPD_TLS_SELF_SIGNED", "true");
    assert!(Serving::of(command).line.contains("https://"));
    // A variable that says false replaces nothing.
    let mut command = httpd(&["--config", file, "-p", "0"]);
    let output = command.env("EVRING_HTTPD_TLS_SELF_SIGNED", "false").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn variable_that_kubernetes_sets_for_a_service_ended_the_server() {
    for value in ["tcp://10.0.0.1:80", "1"] {
        let mut command = httpd(&[]);
        command.env("EVRING_HTTPD_LISTEN", "127.0.0.1:0").env("EVRING_HTTPD_PORT", value);
        let serving = Serving::of(command);
        assert_eq!(serving.connect().get("/").status, 200);
        let expected = "there is no setting for the variable EVRING_HTTPD_PORT";
        assert!(serving.before.contains(expected), "{}", serving.before);
    }
}

#[test]
fn newline_at_the_end_of_a_variable_was_another_value() {
    let mut command = httpd(&[]);
    command.env("EVRING_HTTPD_LISTEN", "127.0.0.1:0,127.0.0.2:0\n");
    command.env("EVRING_HTTPD_HEADER", "always A: 1\nalways B: 2\n");
    command.env("EVRING_HTTPD_WORKERS", "1\n");
    let serving = Serving::of(command);
    assert_eq!(serving.line.matches("http://").count(), 2, "{}", serving.line);
    let response = serving.connect().get("/none");
    assert_eq!((response.field("A"), response.field("B")), (Some("1"), Some("2")));
    // One newline only.
    let output = httpd(&[]).env("EVRING_HTTPD_HEADER", "always A: 1\n\n").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn variable_with_a_wrong_value_is_named() {
    let error = |variable: &str, flags: &[&str]| {
        let output = httpd(flags).env("EVRING_HTTPD_MAX_CONNECTIONS", variable).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let text = error("none", &["--check-config"]);
    assert!(text.starts_with("error: the variable EVRING_HTTPD_MAX_CONNECTIONS: "), "{text}");
    assert!(text.contains("'none'"), "{text}");
    let text = error("5", &["--max-connections", "none"]);
    assert!(!text.contains("EVRING_HTTPD"), "{text}");
}

#[test]
fn repeated_setting_had_one_value_in_a_variable() {
    let listens = |addresses: &str, flags: &[&str]| {
        let serving = Serving::of({
            let mut command = httpd(flags);
            command.env("EVRING_HTTPD_LISTEN", addresses);
            command
        });
        serving.line.matches("http://").count()
    };
    assert_eq!(listens("127.0.0.1:0,127.0.0.2:0", &[]), 2);
    assert_eq!(listens("127.0.0.1:0,127.0.0.2:0", &["-p", "0"]), 1, "the flag replaces it");
    let mut command = httpd(&["-p", "0"]);
    command.env("EVRING_HTTPD_HEADER", "always A: 1, 2\nalways B: 3");
    let response = Serving::of(command).connect().get("/none");
    assert_eq!((response.field("A"), response.field("B")), (Some("1, 2"), Some("3")));
}

#[test]
fn errors_of_variables_named_flags() {
    let cases = [
        ("TLS_CERT", "x", "the variable EVRING_HTTPD_TLS_CERT: a setting is missing: --tls-key"),
        ("LISTING", "", "the variable EVRING_HTTPD_LISTING: "),
        ("WORKERS", "", "the variable EVRING_HTTPD_WORKERS: "),
        ("LISTEN", "127.0.0.1", "the variable EVRING_HTTPD_LISTEN: "),
    ];
    for (variable, value, expected) in cases {
        let mut command = httpd(&["--check-config"]);
        let output = command.env(format!("EVRING_HTTPD_{variable}"), value).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn help_lists_every_flag() {
    let output = output(&["--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for flag in [
        "--root",
        "--listen",
        "--backend",
        "--workers",
        "--list-backends",
        "--json",
        "--lab",
        "--no-precompressed",
        "--listing",
        "--follow-symlinks",
        "--max-age",
        "--max-headers",
        "--log-level",
        "--max-connections",
        "--max-body-size",
        "--max-body-memory",
        "--max-buffered",
        "--cache-size",
        "--keep-alive-timeout",
        "--shutdown-timeout",
    ] {
        assert!(text.contains(flag), "{text}");
    }
}
