//! Virtual hosts.

use crate::serving;

use std::fs;
use std::net::TcpStream;
use std::path::Path;

use evring_httpd::body::RequestBody;
use evring_httpd::options::{AccessLog, FileOptions, HostName, HostOptions, Limits, LogFormat};
use evring_httpd::{Head, Request, Server};
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
    let mut nothing = same();
    nothing.root = None;
    let error = start(vec![nothing]).unwrap_err().to_string();
    assert!(error.contains("a directory, or redirects"), "{error}");
}

#[test]
fn handlers_saw_the_host_of_the_field_and_not_that_of_the_target() {
    on_every_backend(|backend| {
        let of_head = |head: &Head<'_>| head.field("host").unwrap_or_default().to_vec();
        let of_request =
            async |request: Request<RequestBody>| request.headers()["host"].as_bytes().to_vec();
        let server = Server::builder().backend(backend).listen("127.0.0.1:0");
        let server = server.route("/head", of_head).route("/request", of_request).start().unwrap();
        let mut client = connect(&server);
        for path in ["/head", "/request"] {
            for (target, host) in [("", "field"), ("http://target", "target")] {
                let response = get(&mut client, "field", &format!("{target}{path}"), "");
                assert_eq!(text(&response), host, "{backend}: {target}{path}");
            }
        }
    });
}

/// Writes a file of users with one user, whose password is `word`.
#[cfg(feature = "basic-auth")]
fn write_user(file: &Path, user: &str) -> String {
    fs::write(file, format!("{user}:{}\n", bcrypt::hash("word", 4).unwrap())).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Returns the field with the credentials of a user.
#[cfg(feature = "basic-auth")]
fn credentials(user: &str) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(format!("{user}:word"));
    format!("Authorization: Basic {text}\r\n")
}

#[cfg(feature = "basic-auth")]
#[test]
fn host_has_users_of_its_own_or_those_of_the_server() {
    let dir = files();
    let ann = write_user(&dir.path().join("ann"), "ann");
    let bob = write_user(&dir.path().join("bob"), "bob");
    let auth = |text: String| text.parse::<evring_httpd::options::BasicAuth>().unwrap();
    on_every_backend(|backend| {
        let root = |name: &str| dir.path().join(name);
        let mut one = host(&root("one"), &["one.test"], |files| {
            files.error_pages = vec!["401=/404.html".parse().unwrap()];
        });
        one.basic_auth = Some(vec![auth(format!("{bob},realm=one"))]);
        let mut two = host(&root("two"), &["two.test"], |_| {});
        two.basic_auth = Some(Vec::new());
        let three = host(&root("two"), &["three.test"], |_| {});
        let server = Server::builder().backend(backend).listen("127.0.0.1:0").files(root("d"));
        let server = server.basic_auth(auth(format!("{ann},path=/dir")));
        let server = server.status(true).host(one).host(two).host(three).start().unwrap();
        let mut client = connect(&server);
        let none = String::new();
        // The second round is answered from the cache.
        for _ in 0..2 {
            for (name, target, fields, status) in [
                ("d.test", "/a.txt", &none, 200),
                ("d.test", "/.httpd/status.json", &none, 200),
                ("two.test", "/.httpd/status.json", &none, 404),
                ("d.test", "/dir/file", &none, 401),
                ("d.test", "/dir/file", &credentials("ann"), 200),
                ("d.test", "/dir/file", &credentials("bob"), 401),
                ("one.test", "/a.txt", &none, 401),
                ("one.test", "/dir/file", &credentials("ann"), 401),
                ("one.test", "/a.txt", &credentials("bob"), 200),
                ("two.test", "/dir/file", &none, 200),
                ("three.test", "/dir/file", &none, 401),
                ("three.test", "/dir/file", &credentials("ann"), 200),
                ("two.test", "http://one.test/a.txt", &none, 401),
                ("one.test", "http://two.test/dir/file", &none, 200),
            ] {
                let response = get(&mut client, name, target, fields);
                assert_eq!(response.status, status, "{backend}: {name}{target} {fields}");
            }
            let refused = get(&mut client, "one.test", "/a.txt", "");
            let challenge = refused.field("WWW-Authenticate").unwrap();
            assert!(challenge.contains("realm=\"one\""), "{challenge}");
            assert_eq!(text(&refused), "404.html of one", "the page of the host");
        }
    });
}

#[cfg(feature = "basic-auth")]
#[test]
fn hosts_with_the_users_of_the_server_need_no_memory_for_them() {
    let builder = || Server::builder().basic_auth("users".parse().unwrap());
    let same = || HostOptions::new("a".parse().unwrap(), "a");
    assert_eq!(builder().host(same()).memory_at_full_load(), builder().memory_at_full_load());
    let mut other = same();
    other.basic_auth = Some(vec!["others".parse().unwrap()]);
    let max = evring_httpd::options::BasicAuth::MAX_FILE_BYTES;
    let grown = builder().host(other).memory_at_full_load() - builder().memory_at_full_load();
    assert!(grown > max, "{grown}");
}

#[cfg(feature = "compression")]
#[test]
fn host_compresses_files_or_not() {
    use evring_httpd::Builder;
    use evring_httpd::options::Compression;

    let dir = files();
    for host in ["d", "one", "two"] {
        fs::write(dir.path().join(host).join("c.css"), format!("{host} ").repeat(2000)).unwrap();
    }
    let with = |codings: &str| {
        let mut compression = Compression::enabled();
        compression.levels = codings.parse().unwrap();
        compression
    };
    on_every_backend(|backend| {
        let start = |of_first: &str| -> Builder {
            let one = host(&dir.path().join("one"), &["one.test"], |_| {});
            let two = host(&dir.path().join("two"), &["two.test"], |files| {
                files.compression = with("br,gzip");
            });
            let small = host(&dir.path().join("two"), &["small.test"], |files| {
                files.compression = with("gzip");
                (files.compression.min_bytes, files.compression.max_bytes) = (1, 1000);
            });
            let server = Server::builder().backend(backend).listen("127.0.0.1:0");
            let server = server.files(dir.path().join("d")).compression(with(of_first));
            server.host(one).host(two).host(small)
        };
        for (of_first, expected) in [("gzip", Some("gzip")), ("off", None)] {
            let server = start(of_first).start().unwrap();
            let mut client = connect(&server);
            for name in ["d.test", "one.test", "two.test", "small.test"] {
                let head = format!("GET /c.css HTTP/1.1\r\nHost: {name}\r\n\r\n");
                client.stable_tag(&head);
            }
            // The second round is answered from the cache.
            for _ in 0..2 {
                for (name, coding) in [
                    ("d.test", expected),
                    ("one.test", None),
                    ("two.test", Some("br")),
                    ("small.test", None),
                ] {
                    let fields = "Accept-Encoding: gzip, br\r\n";
                    let response = get(&mut client, name, "/c.css", fields);
                    let found = response.field("Content-Encoding");
                    assert_eq!(found, coding, "{backend}: {name} of {of_first}");
                    assert_eq!(response.field("Vary").is_some(), coding.is_some(), "{name}");
                }
            }
        }
        let builder = || Server::builder().files(dir.path().join("d"));
        assert!(start("off").memory_at_full_load() > builder().memory_at_full_load() + (64 << 20));
    });
}

#[test]
fn host_without_a_root_redirects() {
    let dir = files();
    let redirecting = |name: &str, redirect: &str| {
        let mut host = host(Path::new(""), &[name], |files| {
            files.redirects = vec![redirect.parse().unwrap()];
        });
        host.root = None;
        host
    };
    on_every_backend(|backend| {
        let server = Server::builder().backend(backend).listen("127.0.0.1:0").status(true);
        let server = server
            .host(redirecting("www.test", "/=https://d.test/,308"))
            .host(host(&dir.path().join("two"), &["two.test"], |_| {}))
            .host(redirecting("some.test", "/old=/new"))
            .files(dir.path().join("d"))
            .start()
            .unwrap();
        let mut client = connect(&server);
        for (name, target, status, location) in [
            ("www.test", "/", 308, Some("https://d.test/")),
            ("www.test", "/a.txt?b", 308, Some("https://d.test/a.txt?b")),
            ("some.test", "/old", 301, Some("/new")),
            ("some.test", "/", 404, None),
            ("some.test", "/a.txt", 404, None),
            ("d.test", "/", 200, None),
            ("two.test", "/old", 404, None),
        ] {
            let response = get(&mut client, name, target, "");
            let found = (response.status, response.field("Location"));
            assert_eq!(found, (status, location), "{backend}: {name}{target}");
        }
        assert_eq!(text(&get(&mut client, "d.test", "/a.txt", "")), "a.txt of d");
        assert_eq!(text(&get(&mut client, "two.test", "/a.txt", "")), "a.txt of two");
    });
}

#[test]
fn errors_and_redirects_have_the_fields_that_are_always_sent() {
    let dir = files();
    on_every_backend(|backend| {
        let set = |value: &str| {
            let headers = [format!("always X-Host: {value}"), "X-Files: yes".to_owned()];
            let headers = headers.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
            move |files: &mut FileOptions| {
                files.headers = headers;
                files.redirects = vec!["/old=/a.txt".parse().unwrap()];
                files.error_pages = vec!["405=/404.html".parse().unwrap()];
            }
        };
        let mut of_first = FileOptions::default();
        set("d")(&mut of_first);
        let server = Server::builder().backend(backend).listen("127.0.0.1:0");
        let server = server.files(dir.path().join("d")).file_options(of_first);
        let server = server
            .host(host(&dir.path().join("one"), &["one.test"], set("one")))
            .host(host(&dir.path().join("two"), &["two.test"], |_| {}))
            .start()
            .unwrap();
        for (name, expected) in
            [("d.test", Some("d")), ("one.test", Some("one")), ("two.test", None)]
        {
            for (line, status) in [
                ("GET /a.txt", 200),
                ("GET /dir", 301),
                ("GET /old", if expected.is_some() { 301 } else { 404 }),
                ("GET /none", 404),
                ("POST /a.txt", 405),
            ] {
                let head = format!("{line} HTTP/1.1\r\nHost: {name}\r\n\r\n");
                let mut client = connect(&server);
                client.send(head.as_bytes());
                let response = client.response(true);
                assert_eq!(response.status, status, "{backend}: {name} {line}");
                assert_eq!(response.field("X-Host"), expected, "{name} {line}");
                let is_file = status == 200 && expected.is_some();
                assert_eq!(response.field("X-Files").is_some(), is_file, "{name} {line}");
            }
        }
        let mut client = connect(&server);
        client.send(b"GET / HTTP/1.1\r\n\r\n");
        let response = client.response(true);
        assert_eq!((response.status, response.field("X-Host")), (400, Some("d")));
    });
}

#[test]
fn body_that_was_too_long_got_the_error_page_of_another_host() {
    let dir = files();
    let mut limits = Limits::default();
    limits.max_body_bytes = 10;
    let page = |files: &mut FileOptions| {
        files.error_pages = vec!["413=/404.html".parse().unwrap()];
    };
    let mut of_first = FileOptions::default();
    page(&mut of_first);
    let server = Server::builder().listen("127.0.0.1:0").files(dir.path().join("d"));
    let server = server.file_options(of_first).limits(limits);
    let server = server.host(host(&dir.path().join("one"), &["one.test"], page)).start().unwrap();
    for (name, expected) in [("d.test", "404.html of d"), ("one.test", "404.html of one")] {
        let mut client = connect(&server);
        let head = format!("GET /a.txt HTTP/1.1\r\nHost: {name}\r\n");
        client.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n1F\r\n").as_bytes());
        let response = client.response(true);
        assert_eq!((response.status, &*text(&response)), (413, expected));
        client.expect_end();
    }
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

#[cfg(feature = "cli")]
#[test]
fn settings_of_the_server_are_those_of_hosts_that_have_none() {
    use rustix::process::Signal;
    use serving::program::Serving;

    let dir = files();
    for host in ["d", "one", "two"] {
        fs::write(dir.path().join(host).join("c.css"), host.repeat(2000)).unwrap();
    }
    write_user(&dir.path().join("users"), "ann");
    let file = dir.path().join("httpd.toml");
    let settings = "listen = ['127.0.0.1:0']\nroot = 'DIR/d'\nbasic-auth = ['DIR/users,path=/dir']\n\
                    access-log = 'DIR/log'\nlog-format = 'json'\n\
                    compress = 'gzip'\nerror-page = ['404=/404.html']\n\
                    [[host]]\nname = 'one.test'\nroot = 'DIR/one'\n\
                    [[host]]\nname = 'two.test'\nroot = 'DIR/two'\n\
                    basic-auth = []\ncompress = 'off'\nerror-page = []\naccess-log = 'off'\n\
                    [[host]]\nname = 'www.test'\nredirect = '/=https://d.test/'\n";
    fs::write(&file, settings.replace("DIR", dir.path().to_str().unwrap())).unwrap();
    let serving = Serving::start(&["--config", file.to_str().unwrap()]);
    let mut client = serving.connect();
    for (name, is_own) in [("d.test", false), ("one.test", false), ("two.test", true)] {
        let mut get = |target, fields: &str| get(&mut client, name, target, fields);
        let open = get("/dir/file", "").status;
        assert_eq!(open, if is_own { 200 } else { 401 }, "{name}");
        assert_eq!(get("/dir/file", &credentials("ann")).status, 200, "{name}");
        assert_eq!(text(&get("/none", "")).starts_with("404.html of "), !is_own, "{name}");
        let response = get("/c.css", "Accept-Encoding: gzip\r\n");
        assert_eq!(response.field("Content-Encoding").is_none(), is_own, "{name}");
    }
    let response = get(&mut client, "www.test", "/a", "");
    assert_eq!(response.field("Location"), Some("https://d.test/a"));
    drop(client);
    serving.signal(Signal::TERM);
    serving.expect_success();
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    let lines = |name: &str| log.matches(&format!("\"host\":\"{name}\"")).count();
    assert_eq!(["d.test", "one.test", "two.test", "www.test"].map(lines), [4, 4, 0, 1], "{log}");
}

#[test]
fn host_has_an_access_log_of_its_own() {
    on_every_backend(|backend| {
        let dir = tempfile::tempdir().unwrap();
        let [site, own] = ["site.log", "own.log"].map(|name| dir.path().join(name));
        let host = |name: &str, log: Option<Option<&Path>>| {
            let mut host = HostOptions::new(name.parse().unwrap(), dir.path());
            host.access_log = log.map(|path| {
                let mut log = AccessLog::from(path?.to_owned());
                log.format = LogFormat::Json;
                Some(log)
            });
            host
        };
        let server = |site: Option<&Path>| {
            let server = Server::builder()
                .listen("127.0.0.1:0")
                .backend(backend)
                .workers(2)
                .host(host("own.test", Some(Some(&own))))
                .host(host("unlogged.test", Some(None)))
                .host(host("other.test", None));
            let server = match site {
                Some(path) => server.access_log(AccessLog::from(path.to_owned())),
                None => server,
            };
            server.start().unwrap()
        };
        let request_all = |server: Server| {
            for name in ["own.test", "OWN.test:80", "unlogged.test", "other.test", "first.test"] {
                let mut client = connect(&server);
                client.send(format!("GET /{name} HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes());
                assert_eq!(client.response(true).status, 404);
            }
            let mut client = connect(&server);
            client.send(b"invalid\r\n\r\n");
            assert_eq!(client.response(true).status, 400);
            server.handle().stop();
            server.wait().unwrap();
        };
        request_all(server(Some(&site)));
        let lines = |path: &Path| {
            let text = fs::read_to_string(path).unwrap();
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let found = lines(&own);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|line| line.starts_with("{\"time\":") && line.ends_with('}')));
        assert!(found[0].contains("own.test") || found[0].contains("OWN.test"), "{found:?}");
        let found = lines(&site);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.iter().all(|line| line.starts_with("127.0.0.1 - - [")), "{found:?}");
        for what in ["\"GET /first.test ", "\"GET /other.test ", "\"invalid"] {
            assert_eq!(found.iter().filter(|line| line.contains(what)).count(), 1, "{found:?}");
        }
        // Only the host has a log.
        request_all(server(None));
        assert_eq!((lines(&own).len(), lines(&site).len()), (4, 3));
    });
}
