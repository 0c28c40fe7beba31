//! The messages of the program to the operator: each line leads to a remedy.
#![cfg(feature = "cli")]

use crate::serving;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serving::available;
use serving::program::{Serving, httpd};

/// Runs the program until it ends, or for a minute if it serves. Returns whether it ended with success, and its
/// messages.
fn messages(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_httpd")]);
    let output = command.args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// Checks a file of settings.
fn check(dir: &Path, text: &str) -> (bool, String) {
    let file = dir.join("httpd.toml");
    fs::write(&file, text).unwrap();
    messages(&["--config", file.to_str().unwrap(), "--check-config"])
}

#[test]
fn responses_cut_at_shutdown_were_not_reported() {
    let dir = tempfile::tempdir().unwrap();
    // More than the buffers of two sockets hold.
    fs::File::create(dir.path().join("large")).unwrap().set_len(64 << 20).unwrap();
    for backend in available() {
        let mut serving = Serving::start(&[
            dir.path().to_str().unwrap(),
            "-p",
            "0",
            "--shutdown-timeout",
            "0.3",
            "--backend",
            backend,
        ]);
        let mut client = TcpStream::connect(serving.address).unwrap();
        client.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        client.read_exact(&mut [0; 9]).unwrap();
        serving.signal(Signal::TERM);
        let mut text = String::new();
        serving.errors.read_to_string(&mut text).unwrap();
        assert!(text.contains("connections cut at shutdown: 1; "), "{backend}: {text}");
        assert!(text.contains("--shutdown-timeout"), "{backend}: {text}");
    }
}

#[test]
fn address_that_redirects_to_https_was_not_reported() {
    let serving = Serving::start(&["-p", "0", "--tls-self-signed", "--tls-redirect=127.0.0.1:0"]);
    let (before, after) = serving.line.split_once(" and http://127.0.0.1:").expect(&serving.line);
    assert!(before.starts_with("listening on https://127.0.0.1:"), "{}", serving.line);
    assert!(after.contains(", which redirects to https (backend "), "{}", serving.line);
}

#[test]
fn memory_at_full_load_was_reported_twice() {
    let arguments = ["-p", "0", "--metrics-listen", "127.0.0.1:0", "--log-level", "info"];
    let serving = Serving::start(&arguments);
    let lines: Vec<_> =
        serving.before.lines().filter(|line| line.contains("memory at full load")).collect();
    let of_metrics = lines.iter().filter(|line| line.contains("of the metrics listener")).count();
    assert_eq!((lines.len(), of_metrics), (2, 1), "{}", serving.before);
}

#[test]
fn coding_that_was_taken_for_a_directory_had_no_hint() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    for arguments in [
        &["--compress", "gzip"][..],
        &["--compress", "br:5,gzip", "-p", "0"],
        &["--compress", "gzip", "--check-config"],
        &[root, "--compress", "gzip"],
    ] {
        let (is_valid, text) = messages(arguments);
        assert!(!is_valid && text.contains("--compress="), "{arguments:?}: {text}");
    }
    let (is_valid, text) = check(dir.path(), "compress = true");
    assert!(!is_valid && text.contains("compress = \"br,zstd,gzip\""), "{text}");
}

#[test]
fn addresses_that_are_none_had_no_precise_reason() {
    for (address, reason) in [
        ("nosuchhost.invalid:80", "the host nosuchhost.invalid was not found"),
        ("http://127.0.0.1:8080", "a URL is no address: leave out http://"),
        ("127.0.0.1", "expected ADDR:PORT"),
        ("127.0.0.1:x", "expected ADDR:PORT"),
    ] {
        let (is_valid, text) = messages(&["--listen", address]);
        assert!(!is_valid && text.contains(reason), "{address}: {text}");
    }
}

#[test]
fn passwords_without_tls_were_asked_for_silently() {
    let dir = tempfile::tempdir().unwrap();
    let users = dir.path().join("users");
    fs::write(&users, format!("u:{}\n", bcrypt::hash("p", 4).unwrap())).unwrap();
    let users = users.to_str().unwrap();
    let warning = "passwords of basic-auth";
    for (arguments, warns) in [
        (&["--listen", "0.0.0.0:0"][..], true),
        (&["--listen", "127.0.0.1:0"], false),
        (&["--listen", "[::1]:0"], false),
        (&["--listen", "0.0.0.0:0", "--tls-self-signed"], false),
    ] {
        let arguments = [arguments, &["--basic-auth", users]].concat();
        let (is_valid, text) = messages(&[&arguments[..], &["--check-config"]].concat());
        assert_eq!((is_valid, text.contains(warning)), (true, warns), "{arguments:?}: {text}");
    }
    let serving = Serving::start(&["--listen", "0.0.0.0:0", "--basic-auth", users]);
    assert!(serving.before.contains(warning), "{}", serving.before);
}

#[test]
fn directory_without_an_index_is_reported_with_the_flag_that_lists_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    let has_hint = |arguments: &[&str]| {
        let serving = Serving::start(&[&[root, "-p", "0"], arguments].concat());
        let before = &serving.before;
        before.contains("has no index.html") && before.contains("with --listing")
    };
    assert!(has_hint(&[]));
    assert!(!has_hint(&["--listing"]));
    fs::write(dir.path().join("index.html"), "").unwrap();
    assert!(!has_hint(&[]));
}

#[test]
fn redirects_that_lead_to_each_other_were_accepted() {
    let dir = tempfile::tempdir().unwrap();
    for (redirects, loops) in [
        ("['/a=/b', '/b=/a']", true),
        ("['/a/=/b/', '/b/=/a/']", true),
        ("['/a=/b?x', '/b=/c#d', '/c=/%61']", true),
        ("['/a/=/b/c/', '/b/=/a/']", true),
        ("['/start=/a', '/a=/b', '/b=/a']", true),
        ("['/a=/b', '/b=/c']", false),
        ("['/a=/b', '/b=https://example.org/a']", false),
        ("['/a/=/', '/x/=/a/a/a/']", false),
    ] {
        let (is_valid, text) = check(dir.path(), &format!("\nredirect = {redirects}"));
        assert_eq!(!is_valid, loops, "{redirects}: {text}");
        assert!(!loops || text.contains("httpd.toml:2:12: `redirect`: "), "{redirects}: {text}");
        assert!(!text.contains("redirect /start="), "{text}");
    }
}

#[test]
#[cfg(not(feature = "sandbox"))]
fn handlers_without_the_feature_sandbox_were_taken_for_header_fields() {
    let dir = tempfile::tempdir().unwrap();
    let reason = "needs a program with the feature `sandbox`";
    for flag in ["--handler", "--handler-cache"] {
        let (is_valid, text) = messages(&[flag, "x.wasm"]);
        assert!(!is_valid && text.contains(reason) && !text.contains("--header"), "{text}");
        let name = flag.trim_start_matches('-');
        let (is_valid, text) = check(dir.path(), &format!("\n{name} = 'x.wasm'"));
        assert!(!is_valid && text.contains(reason) && text.contains(":2:1: "), "{text}");
        assert!(!text.contains("did you mean"), "{text}");
    }
}

#[test]
#[cfg(feature = "sandbox")]
fn file_that_is_no_module_was_printed_as_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lib.rs");
    fs::write(&file, "//! A handler.\n").unwrap();
    let (is_valid, text) = messages(&["--handler", file.to_str().unwrap()]);
    assert!(!is_valid && text.contains("it is no WebAssembly module"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn help_began_with_limits() {
    let output = httpd(&["--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let headings: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_suffix(':'))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
        .collect();
    assert_eq!(
        headings,
        [
            "Arguments",
            "Options",
            "Server",
            "Files",
            "TLS",
            "Logging",
            "Overload",
            "Limits",
            "Examples"
        ]
    );
}

#[test]
fn variable_that_is_false_turns_off_what_the_file_turns_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("httpd.toml");
    fs::write(&file, format!("listing = true\nroot = {:?}\n", dir.path())).unwrap();
    for (value, status) in [("true", 200), ("false", 404)] {
        let mut command = httpd(&["-p", "0", "--config", file.to_str().unwrap()]);
        command.env("EVRING_HTTPD_LISTING", value);
        assert_eq!(Serving::of(command).connect().get("/").status, status, "{value}");
    }
}
