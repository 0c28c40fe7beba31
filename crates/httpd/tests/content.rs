//! What is sent by rules of the settings, on every mechanism: fallback pages, media types, listings in JSON.

mod serving;

use std::fs;
use std::net::TcpStream;
use std::path::Path;

use evring_httpd::{Error, FileOptions, Server};
use serving::{Client, ParsedResponse, on_every_backend};
use tempfile::TempDir;

/// What a browser accepts for a page.
const NAVIGATION: &str = "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

fn tree() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("data/inner")).unwrap();
    fs::write(root.path().join("app.html"), "<h1>app</h1>").unwrap();
    fs::write(root.path().join("data/b \"1\".txt"), "text").unwrap();
    fs::write(root.path().join("data/a.gltf"), "{}").unwrap();
    fs::write(root.path().join("data/.hidden"), "").unwrap();
    root
}

fn options(change: impl FnOnce(&mut FileOptions)) -> FileOptions {
    let mut options = FileOptions::default();
    change(&mut options);
    options
}

fn start(backend: &str, root: &Path, options: FileOptions) -> Server {
    let server = Server::builder().listen("127.0.0.1:0").backend(backend).files(root);
    server.file_options(options).start().unwrap()
}

fn connect(server: &Server) -> Client {
    Client::new(TcpStream::connect(server.addresses()[0]).unwrap())
}

fn request(client: &mut Client, line: &str, fields: &str) -> ParsedResponse {
    client.send(format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
    client.response(!line.starts_with("HEAD"))
}

#[test]
fn navigations_without_a_file_get_the_fallback_page() {
    let root = tree();
    on_every_backend(|backend| {
        let fallback = "/app.html".parse().unwrap();
        let server = start(backend, root.path(), options(|o| o.fallback = Some(fallback)));
        let mut client = connect(&server);
        // Once from the file, then from the cache.
        for path in ["/users/7", "/users/7?tab=1", "/data/", "/data/inner/", "/other"] {
            let page = request(&mut client, &format!("GET {path}"), NAVIGATION);
            assert_eq!((page.status, &page.body[..]), (200, &b"<h1>app</h1>"[..]), "{path}");
            assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
        }
        let head = request(&mut client, "HEAD /users/7", NAVIGATION);
        assert_eq!((head.status, head.field("Content-Length")), (200, Some("12")));
        // Tags are stable once the resolution of the clock hides no change of the file.
        let mut tag =
            || request(&mut client, "GET /users", NAVIGATION).field("ETag").map(str::to_owned);
        while tag() != tag() {}
        let fields = format!("{NAVIGATION}If-None-Match: {}\r\n", tag().unwrap());
        assert_eq!(request(&mut client, "GET /users", &fields).status, 304);
        for fields in ["", "Accept: */*\r\n", "Accept: image/png\r\n", "Accept: text/html;q=0\r\n"]
        {
            assert_eq!(request(&mut client, "GET /none.js", fields).status, 404, "{fields}");
        }
        assert_eq!(request(&mut client, "GET /data/a.gltf", NAVIGATION).body, b"{}");
        assert_eq!(request(&mut client, "GET /.git", NAVIGATION).status, 404);
        assert_eq!(request(&mut client, "POST /users/7", NAVIGATION).status, 405);
    });
}

#[test]
fn removed_fallback_page_is_not_found() {
    let root = tree();
    on_every_backend(|backend| {
        fs::write(root.path().join("app.html"), "<h1>app</h1>").unwrap();
        let fallback = "/app.html".parse().unwrap();
        let server = start(backend, root.path(), options(|o| o.fallback = Some(fallback)));
        fs::remove_file(root.path().join("app.html")).unwrap();
        let mut client = connect(&server);
        for _ in 0..2 {
            assert_eq!(request(&mut client, "GET /none", NAVIGATION).status, 404);
        }
    });
}

#[test]
fn server_without_its_pages_does_not_start() {
    let root = tree();
    let with = |page: &str| options(|o| o.fallback = Some(page.parse().unwrap()));
    let builder = || Server::builder().listen("127.0.0.1:0");
    let server = builder().files(root.path()).file_options(with("/none.html"));
    for error in [server.check().unwrap_err(), server.start().unwrap_err()] {
        assert!(matches!(error, Error::Page(..)), "{error}");
        assert!(error.to_string().contains("none.html: No such file"), "{error}");
    }
    let error = builder().file_options(with("/app.html")).start().unwrap_err();
    assert_eq!(error.to_string(), "a fallback page needs a directory of files");
}

#[test]
fn media_types_follow_the_settings() {
    let root = tree();
    let types = ["gltf=model/gltf+json", "TXT=text/x-log", "html=text/html; charset=latin1"];
    on_every_backend(|backend| {
        let types = types.iter().map(|text| text.parse().unwrap()).collect();
        let server = start(backend, root.path(), options(|o| o.mime_types = types));
        let mut client = connect(&server);
        for (path, expected) in [
            ("/data/a.gltf", "model/gltf+json"),
            ("/data/b%20%221%22.txt", "text/x-log; charset=utf-8"),
            ("/app.html", "text/html; charset=latin1"),
        ] {
            let response = request(&mut client, &format!("GET {path}"), "");
            assert_eq!(response.field("Content-Type"), Some(expected), "{path}");
        }
    });
}

#[test]
fn listing_is_json_for_clients_that_prefer_it() {
    let root = tree();
    on_every_backend(|backend| {
        let server = start(backend, root.path(), options(|o| o.listing = true));
        let mut client = connect(&server);
        let response = request(&mut client, "GET /data/", "Accept: application/json\r\n");
        assert_eq!(response.field("Content-Type"), Some("application/json"));
        let list: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
        assert_eq!((&list["path"], &list["complete"]), (&"/data/".into(), &true.into()));
        let entries = list["entries"].as_array().unwrap();
        let rows: Vec<_> = entries
            .iter()
            .map(|e| (e["name"].as_str(), e["href"].as_str(), e["type"].as_str(), &e["size"]))
            .collect();
        let expected = [
            (Some("inner"), Some("./inner/"), Some("directory"), &serde_json::Value::Null),
            (Some("a.gltf"), Some("./a.gltf"), Some("file"), &2.into()),
            (Some("b \"1\".txt"), Some("./b%20%221%22.txt"), Some("file"), &4.into()),
        ];
        assert_eq!(rows, expected);
        assert!(entries.iter().all(|e| e["modified"].as_str().unwrap().ends_with(" GMT")));
        for fields in ["", NAVIGATION, "Accept: */*\r\n"] {
            let page = request(&mut client, "GET /data/", fields);
            assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"), "{fields}");
        }
    });
}
