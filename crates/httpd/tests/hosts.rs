//! Virtual hosts.

mod serving;

use std::fs;
use std::net::TcpStream;
use std::path::Path;

use evring_httpd::{FileOptions, HostName, HostOptions, Server};
use serving::{Client, ParsedResponse, on_every_backend};

const LARGE: usize = 200_000;

/// Writes the files of a host, whose contents name it.
fn write_files(root: &Path, host: &str) {
    fs::create_dir(root).unwrap();
    fs::create_dir(root.join("dir")).unwrap();
    for name in ["index.html", "a.txt", "404.html", "dir/file"] {
        fs::write(root.join(name), format!("{name} of {host}")).unwrap();
    }
    fs::write(root.join("large"), host.repeat(LARGE / host.len())).unwrap();
    fs::write(root.join("b.css"), format!("plain of {host}")).unwrap();
    fs::write(root.join("b.css.gz"), format!("gzip of {host}")).unwrap();
}

fn names(names: &[&str]) -> Vec<HostName> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn host(root: &Path, all: &[&str], set: impl FnOnce(&mut FileOptions)) -> HostOptions {
    let mut host = HostOptions::new(names(all).remove(0), root);
    host.names = names(all);
    set(&mut host.files);
    host
}

/// Starts a server with the default host `d`, and the hosts `one` and `two`.
fn start(dir: &Path, backend: &str) -> Server {
    let builder = Server::builder().backend(backend).listen("127.0.0.1:0").files(dir.join("d"));
    builder
        .host(host(&dir.join("one"), &["one.example", "[::1]"], |files| {
            files.listing = true;
            files.error_pages = vec!["404=/404.html".parse().unwrap()];
            files.headers = vec!["X-Host: one".parse().unwrap()];
            files.redirects = vec!["/old=/a.txt".parse().unwrap()];
        }))
        .host(host(&dir.join("two"), &["*.example", "two.test"], |files| {
            files.fallback = Some("index.html".parse().unwrap());
        }))
        .start()
        .unwrap()
}

fn files() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for host in ["d", "one", "two"] {
        write_files(&dir.path().join(host), host);
    }
    dir
}

fn connect(server: &Server) -> Client {
    Client::new(TcpStream::connect(server.addresses()[0]).unwrap())
}

fn get(client: &mut Client, host: &str, target: &str, fields: &str) -> ParsedResponse {
    client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").as_bytes());
    client.response(true)
}

fn text(response: &ParsedResponse) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

#[test]
fn host_of_a_request_decides_the_root_and_the_rules() {
    let dir = files();
    on_every_backend(|backend| {
        let server = start(dir.path(), backend);
        let mut client = connect(&server);
        // The second round is answered from the cache.
        for _ in 0..2 {
            for (name, root) in [
                ("one.example", "one"),
                ("ONE.example:8080", "one"),
                ("[::1]:80", "one"),
                ("x.example", "two"),
                ("x.y.example.", "two"),
                ("two.test", "two"),
                ("other.test", "d"),
                ("example", "d"),
                ("", "d"),
            ] {
                let mut get = |target, fields| get(&mut client, name, target, fields);
                assert_eq!(text(&get("/a.txt", "")), format!("a.txt of {root}"), "{name}");
                assert_eq!(text(&get("/", "")), format!("index.html of {root}"), "{name}");
                assert_eq!(text(&get("/./a.txt?q", "")), format!("a.txt of {root}"), "{name}");
                let large = root.repeat(LARGE / root.len());
                assert_eq!(text(&get("/large", "")), large, "{name}");
                assert_eq!(text(&get("/large", "Range: bytes=3-9\r\n")), large[3..10], "{name}");
                let gzip = "Accept-Encoding: gzip\r\n";
                assert_eq!(text(&get("/b.css", gzip)), format!("gzip of {root}"), "{name}");
                assert_eq!(text(&get("/b.css", "")), format!("plain of {root}"), "{name}");
                let response = get("/dir", "");
                assert_eq!((response.status, response.field("Location")), (301, Some("/dir/")));
                let is_one = root == "one";
                assert_eq!(get("/a.txt", "").field("X-Host"), is_one.then_some("one"));
                assert_eq!(get("/dir/", "").status, if is_one { 200 } else { 404 }, "{name}");
                assert_eq!(get("/old", "").status, if is_one { 301 } else { 404 }, "{name}");
                let missing = get("/none", "");
                assert_eq!(missing.status, 404);
                assert_eq!(text(&missing) == "404.html of one", is_one, "{name}");
                let page = get("/none", "Accept: text/html\r\n");
                assert_eq!(page.status, if root == "two" { 200 } else { 404 }, "{name}");
                assert_eq!(page.field("Vary").is_some(), root == "two", "{name}");
                let head = format!("GET /a.txt HTTP/1.1\r\nHost: {name}\r\n");
                let tag = client.stable_tag(&format!("{head}\r\n"));
                client.send(format!("{head}If-None-Match: {tag}\r\n\r\n").as_bytes());
                assert_eq!(client.response(false).status, 304, "{name}");
            }
        }
        // The host of a target in absolute form replaces that of the field.
        let target = "http://two.test/a.txt";
        assert_eq!(text(&get(&mut client, "one.example", target, "")), "a.txt of two");
        let target = "http://one.example:80";
        assert_eq!(text(&get(&mut client, "two.test", target, "")), "index.html of one");
    });
}

#[test]
fn changed_file_is_that_of_its_host() {
    let dir = files();
    let server = start(dir.path(), "auto");
    let mut client = connect(&server);
    assert_eq!(text(&get(&mut client, "two.test", "/a.txt", "")), "a.txt of two");
    assert_eq!(text(&get(&mut client, "one.example", "/a.txt", "")), "a.txt of one");
    fs::remove_file(dir.path().join("one/a.txt")).unwrap();
    fs::create_dir(dir.path().join("one/a.txt")).unwrap();
    // The entry in the cache becomes stale.
    let response = loop {
        let response = get(&mut client, "one.example", "/a.txt", "");
        if response.status != 200 {
            break response;
        }
    };
    assert_eq!((response.status, response.field("Location")), (301, Some("/a.txt/")));
    assert_eq!(text(&get(&mut client, "two.test", "/a.txt", "")), "a.txt of two");
}

#[test]
fn without_a_default_root_unknown_hosts_get_404() {
    let dir = files();
    let one = host(&dir.path().join("one"), &["one.example"], |_| {});
    let server = Server::builder().listen("127.0.0.1:0").host(one).start().unwrap();
    let mut client = connect(&server);
    assert_eq!(get(&mut client, "one.example", "/", "").status, 200);
    for target in ["/", "/a.txt", "/.httpd/status.json"] {
        assert_eq!(get(&mut client, "other", target, "").status, 404, "{target}");
    }
}

#[test]
fn hosts_that_cannot_be_served_are_refused() {
    let dir = files();
    let root = |name: &str| dir.path().join(name);
    let start = |hosts: Vec<HostOptions>| {
        let builder = Server::builder().listen("127.0.0.1:0").files(root("d"));
        hosts.into_iter().fold(builder, |builder, host| builder.host(host)).start()
    };
    let same = || host(&root("one"), &["a"], |_| {});
    let error = start(vec![same(), same()]).unwrap_err().to_string();
    assert!(error.contains("names of its own"), "{error}");
    let error = start(vec![host(&root("none"), &["a"], |_| {})]).unwrap_err().to_string();
    assert!(error.contains("none"), "{error}");
    let missing = host(&root("one"), &["a"], |files| {
        files.error_pages = vec!["404=/nothing.html".parse().unwrap()];
    });
    let error = start(vec![missing]).unwrap_err().to_string();
    assert!(error.contains("nothing.html"), "{error}");
}

#[cfg(feature = "cli")]
#[test]
fn file_of_settings_has_hosts() {
    use rustix::process::Signal;
    use serving::program::Serving;

    let dir = files();
    let file = dir.path().join("httpd.toml");
    let settings = "listen = ['127.0.0.1:0']\nroot = 'DIR/d'\nheader = ['X-All: 1']\n\
                    [[host]]\nname = ['one.example', 'www.one.example']\nroot = 'DIR/one'\n\
                    listing = true\n[[host]]\nname = '*.two.example'\nroot = 'DIR/two'\n\
                    header = ['X-Two: 2']\n";
    fs::write(&file, settings.replace("DIR", dir.path().to_str().unwrap())).unwrap();
    let serving = Serving::start(&["--config", file.to_str().unwrap()]);
    let mut client = serving.connect();
    let mut get = |host, target| get(&mut client, host, target, "");
    let response = get("www.one.example", "/a.txt");
    assert_eq!((&*text(&response), response.field("X-All")), ("a.txt of one", Some("1")));
    let response = get("x.two.example", "/a.txt");
    assert_eq!((&*text(&response), response.field("X-Two")), ("a.txt of two", Some("2")));
    assert_eq!(response.field("X-All"), None, "the host has fields of its own");
    assert_eq!(text(&get("else", "/a.txt")), "a.txt of d");
    assert_eq!(get("one.example", "/dir/").status, 200);
    assert_eq!(get("else", "/dir/").status, 404);
    serving.signal(Signal::TERM);
    serving.expect_success();
}
