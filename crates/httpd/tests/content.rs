//! Responses by rules of the settings, on every mechanism: fallback and error pages, media types, header
//! fields, redirects, listings in JSON.

use crate::serving;

use std::fs;
use std::path::Path;

use evring_httpd::options::{ErrorPage, FileOptions};
use evring_httpd::{Error, Request, Server};
use serving::{connect, on_every_backend};
use tempfile::TempDir;

/// The media types that a browser accepts for a page.
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

#[test]
fn navigations_without_a_file_get_the_fallback_page() {
    let root = tree();
    on_every_backend(|backend| {
        let fallback = "/app.html".parse().unwrap();
        let server = start(backend, root.path(), options(|o| o.fallback = Some(fallback)));
        let mut client = connect(&server);
        // Once from the file, then from the cache.
        for path in ["/users/7", "/users/7?tab=1", "/data/", "/data/inner/", "/other"] {
            let page = client.request(&format!("GET {path}"), NAVIGATION);
            assert_eq!((page.status, &page.body[..]), (200, &b"<h1>app</h1>"[..]), "{path}");
            assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
            assert!(page.head.contains("\r\nVary: Accept\r\n"), "{}", page.head);
        }
        let head = client.request("HEAD /users/7", NAVIGATION);
        assert_eq!((head.status, head.field("Content-Length")), (200, Some("12")));
        let navigation = format!("GET /users HTTP/1.1\r\nHost: a\r\n{NAVIGATION}\r\n");
        let fields = format!("{NAVIGATION}If-None-Match: {}\r\n", client.stable_tag(&navigation));
        assert_eq!(client.request("GET /users", &fields).status, 304);
        for fields in ["", "Accept: */*\r\n", "Accept: image/png\r\n", "Accept: text/html;q=0\r\n"]
        {
            let missing = client.request("GET /none.js", fields);
            assert_eq!((missing.status, missing.field("Vary")), (404, Some("Accept")), "{fields}");
        }
        assert_eq!(client.request("GET /data/a.gltf", NAVIGATION).body, b"{}");
        assert_eq!(client.request("GET /.git", NAVIGATION).status, 404);
        assert_eq!(client.request("POST /users/7", NAVIGATION).status, 405);
    });
}

#[test]
fn fallback_page_in_the_cache_replaced_routes_of_its_path() {
    let root = tree();
    fs::write(root.path().join("data/page.html"), "page").unwrap();
    on_every_backend(|backend| {
        for (fallback, page) in [("/data/page.html", "page"), ("/app.html", "<h1>app</h1>")] {
            let server = Server::builder().listen("127.0.0.1:0").backend(backend);
            let server = server.files(root.path());
            let server =
                server.file_options(options(|o| o.fallback = Some(fallback.parse().unwrap())));
            let server =
                server.route("/data/", |_: Request| "below").route("/{name}", |_: Request| "named");
            let server = server.start().unwrap();
            let mut client = connect(&server);
            // Only a file that is old enough is cached.
            client.stable_tag(&format!("GET /users/7 HTTP/1.1\r\nHost: a\r\n{NAVIGATION}\r\n"));
            let route = if fallback == "/app.html" { "named" } else { "below" };
            for _ in 0..2 {
                assert_eq!(client.get(fallback).body, route.as_bytes(), "{backend}");
                let found = client.request("GET /users/7", NAVIGATION);
                assert_eq!(found.body, page.as_bytes(), "{backend}");
            }
        }
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
            assert_eq!(client.request("GET /none", NAVIGATION).status, 404);
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
    let with_error_page = options(|o| o.error_pages = vec!["404=/none.html".parse().unwrap()]);
    let error = builder().files(root.path()).file_options(with_error_page).check().unwrap_err();
    assert!(matches!(error, Error::Page(..)), "{error}");
    fs::write(root.path().join("long.html"), vec![b'a'; ErrorPage::MAX_BYTES + 1]).unwrap();
    let too_long = options(|o| o.error_pages = vec!["404=/long.html".parse().unwrap()]);
    let error = builder().files(root.path()).file_options(too_long).start().unwrap_err();
    assert!(error.to_string().ends_with("error pages have at most 1 MiB"), "{error}");
    let redirected = options(|o| {
        o.fallback = Some("/app.html".parse().unwrap());
        o.redirects = vec!["/app.html=/".parse().unwrap()];
    });
    let error = builder().files(root.path()).file_options(redirected).start().unwrap_err();
    assert!(matches!(error, Error::Conflict(_)), "{error}");
    let error = builder().file_options(with("/app.html")).start().unwrap_err();
    assert_eq!(error.to_string(), "fallback and error-page need a directory of files");
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
            let response = client.request(&format!("GET {path}"), "");
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
        let response = client.request("GET /data/", "Accept: application/json\r\n");
        assert_eq!(response.field("Content-Type"), Some("application/json"));
        assert_eq!(response.field("Vary"), Some("Accept"));
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
            let page = client.request("GET /data/", fields);
            assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"), "{fields}");
        }
    });
}

#[test]
fn errors_have_their_pages() {
    let root = tree();
    fs::write(root.path().join("404.html"), "<h1>nothing here</h1>").unwrap();
    let long = "x".repeat(100_000);
    fs::write(root.path().join("405.txt"), &long).unwrap();
    on_every_backend(|backend| {
        let pages = ["404=/404.html", "405=/405.txt", "400=/404.html", "414=/405.txt"];
        let pages = pages.iter().map(|text| text.parse().unwrap()).collect();
        let server = start(backend, root.path(), options(|o| o.error_pages = pages));
        let mut client = connect(&server);
        for path in ["/none", "/.git", "/data/", "/none/"] {
            let page = client.request(&format!("GET {path}"), "");
            assert_eq!((page.status, &page.body[..]), (404, &b"<h1>nothing here</h1>"[..]));
            assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
        }
        let head = client.request("HEAD /none", "");
        assert_eq!((head.status, head.field("Content-Length")), (404, Some("21")));
        let page = client.request("GET /404.html", "");
        assert_eq!((page.status, &page.body[..]), (200, &b"<h1>nothing here</h1>"[..]));
        // The connection ends after each of these; the page is complete.
        let post = client.request("POST /app.html", "Content-Length: 3\r\n");
        assert_eq!((post.status, post.body.len()), (405, long.len()));
        assert!(post.field("Allow").is_some());
        client.expect_end();
        let mut client = connect(&server);
        client.send(b"nonsense\r\n\r\n");
        let page = client.response(true);
        assert_eq!((page.status, &page.body[..]), (400, &b"<h1>nothing here</h1>"[..]));
        client.expect_end();
        let mut client = connect(&server);
        client.send_rejected(format!("GET /{long} HTTP/1.1\r\n").as_bytes());
        let page = client.response(true);
        assert_eq!((page.status, page.body.len()), (414, long.len()));
    });
}

#[test]
fn files_have_the_fields_of_the_settings() {
    let root = tree();
    on_every_backend(|backend| {
        let rules = [
            "X-Frame-Options: DENY",
            "/data/ Cache-Control: no-cache",
            "*.html Content-Security-Policy: default-src 'self'",
        ];
        let options = options(|o| {
            o.headers = rules.iter().map(|text| text.parse().unwrap()).collect();
            (o.max_age, o.listing) = (Some(60), true);
        });
        let server = start(backend, root.path(), options);
        let mut client = connect(&server);
        for fields in ["", "", "Range: bytes=0-0\r\n", "If-None-Match: *\r\n"] {
            let page = client.request("GET /app.html", fields);
            let field = |name| page.field(name);
            assert!([200, 206, 304].contains(&page.status), "{}", page.status);
            assert_eq!(field("X-Frame-Options"), Some("DENY"), "{fields}");
            assert_eq!(field("Content-Security-Policy"), Some("default-src 'self'"), "{fields}");
            assert_eq!(field("Cache-Control"), Some("max-age=60"), "{fields}");
        }
        let file = client.request("GET /data/a.gltf", "");
        assert_eq!(file.field("X-Frame-Options"), Some("DENY"));
        assert_eq!(file.field("Content-Security-Policy"), None);
        assert_eq!(file.head.matches("Cache-Control").count(), 1, "{}", file.head);
        assert_eq!(file.field("Cache-Control"), Some("no-cache"));
        let list = client.request("GET /data/", "");
        assert_eq!((list.status, list.field("Cache-Control")), (200, Some("no-cache")));
        assert_eq!(list.field("Content-Security-Policy"), None);
        assert_eq!(client.request("GET /none", "").field("X-Frame-Options"), None);
    });
}

#[test]
fn redirected_paths_have_a_location() {
    let root = tree();
    let rules = ["/old=/app.html", "/o/=https://example.org/n/,308", "/app=/app.html,302"];
    on_every_backend(|backend| {
        let redirects = rules.iter().map(|text| text.parse().unwrap()).collect();
        let server = start(backend, root.path(), options(|o| o.redirects = redirects));
        let mut client = connect(&server);
        for (line, status, location) in [
            ("GET /old?a=b", 301, "/app.html?a=b"),
            ("HEAD /old", 301, "/app.html"),
            ("GET /x/..//ol%64", 301, "/app.html"),
            ("GET /o/a%20b/?c", 308, "https://example.org/n/a%20b/?c"),
            ("GET /old?a=C:\\b", 301, "/app.html?a=C:\\b"),
            ("PUT /o/a", 308, "https://example.org/n/a"),
            ("OPTIONS /app", 302, "/app.html"),
        ] {
            let response = client.request(line, "");
            assert_eq!(response.status, status, "{line}");
            assert_eq!(response.field("Location"), Some(location), "{line}");
        }
        assert_eq!(client.request("GET /app.html", "").status, 200);
        assert_eq!(client.request("GET /older", "").status, 404);
        // The body is not read, so the connection ends.
        client.send(b"POST /old HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
        let response = client.response(true);
        assert_eq!((response.status, response.field("Connection")), (301, Some("close")));
        client.expect_end();
    });
}
