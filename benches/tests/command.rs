//! The lab as its users see it.

use std::process::{Command, Output};

use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments).output().expect("the lab runs")
}

#[test]
fn the_list_is_json_with_id_title_and_source() {
    let output = lab(&["list", "--json"]);
    assert!(output.status.success());
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let floors = list.as_array().unwrap().iter().find(|e| e["id"] == "floors").unwrap();
    assert!(floors["title"].is_string() && floors["source"].is_string());
}

#[test]
fn the_list_for_people_names_every_experiment() {
    let text = String::from_utf8(lab(&["list"]).stdout).unwrap();
    assert!(text.contains("floors"), "{text}");
}

#[test]
fn an_unknown_experiment_is_a_sentence_and_exit_code_2() {
    let output = lab(&["run", "no-such-thing"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("lab: there is no experiment `no-such-thing`"), "{text}");
    assert!(text.contains("floors"), "{text}");
}

#[test]
fn helpers_of_a_measurement_are_not_shown() {
    let text = String::from_utf8(lab(&["--help"]).stdout).unwrap();
    assert!(!text.contains("serve") && !text.contains("client"), "{text}");
}

#[test]
fn a_peer_that_is_not_there_is_named_with_its_package() {
    let empty = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["run", "peers", "--quick"])
        .env("PATH", empty.path())
        .output()
        .expect("the lab runs");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("wrk is not installed (Debian package: wrk)"), "{text}");
}

/// Hello, from hyper: what is measured beside us does the same work.
#[test]
fn hyper_and_the_web_server_say_the_same() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::process::Stdio;

    let site = tempfile::tempdir().unwrap();
    for (what, mechanism) in [("hyper", "tokio"), ("httpd", "epoll")] {
        let mut server = Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(["serve", "--what", what, "--mechanism", mechanism, "--root"])
            .arg(site.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        // Kept to the end, as the server has last words.
        let mut output = BufReader::new(server.stdout.take().unwrap());
        output.read_line(&mut address).unwrap();
        let mut stream = TcpStream::connect(address.trim()).unwrap();
        stream.write_all(b"GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{what}: {reply}");
        assert!(reply.ends_with("\r\n\r\nHello world\n"), "{what}: {reply}");
        let lower = reply.to_ascii_lowercase();
        for field in ["date: ", "content-length: 12", "content-type: text/plain; charset=utf-8"] {
            assert!(lower.contains(field), "{what}: {reply}");
        }
        drop(server.stdin.take());
        server.wait().unwrap();
    }
}
