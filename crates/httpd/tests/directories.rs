//! Directory listings and symbolic links.

use crate::serving;
use crate::stage;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use evring_httpd::evring::files::SymlinkPolicy;
use evring_httpd::options::Limits;
use evring_httpd::{Config, Root, Site};
use serving::{Server, on_every_backend};
use stage::{ParsedResponse, Stage, response};
use tempfile::TempDir;

fn tree() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("bare/inner")).unwrap();
    fs::create_dir_all(root.path().join("whole")).unwrap();
    fs::write(root.path().join("bare/b.txt"), "text").unwrap();
    fs::write(root.path().join("bare/.hidden"), "").unwrap();
    fs::write(root.path().join("whole/index.html"), "index").unwrap();
    root
}

fn stage(root: &Path, listing: bool) -> Stage {
    Stage::with(Site::new(Some(Root(0))).listing(listing), root)
}

fn send(stage: &mut Stage, method: &str, target: &str) -> ParsedResponse {
    let request = format!("{method} {target} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    let bytes = stage.exchange(request.as_bytes());
    let (response, rest) = response(&bytes, method == "GET");
    assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(rest));
    response
}

#[test]
fn directory_without_an_index_is_listed_if_enabled() {
    let root = tree();
    let mut allowed = stage(root.path(), true);
    for _ in 0..2 {
        let page = send(&mut allowed, "GET", "/bare/?sorted");
        assert_eq!(page.status, 200);
        assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
        assert_eq!(page.field("Cache-Control"), Some("no-store"));
        let text = String::from_utf8(page.body).unwrap();
        let links: Vec<_> = text.split("href=\"").skip(1).map(|s| s.split('"').next()).collect();
        assert_eq!(links, [Some("../"), Some("./inner/"), Some("./b.txt")]);
    }
    let head = send(&mut allowed, "HEAD", "/bare/");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(head.field("Content-Length").unwrap().parse::<usize>().unwrap() > 100);
    assert_eq!(send(&mut allowed, "GET", "/whole/").body, b"index");
    assert_eq!(send(&mut allowed, "GET", "/bare").status, 301);
    assert_eq!(send(&mut allowed, "GET", "/none/").status, 404);
    assert_eq!(send(&mut allowed, "GET", "/bare/none").status, 404);
    let mut forbidden = stage(root.path(), false);
    assert_eq!(send(&mut forbidden, "GET", "/bare/").status, 404);
}

#[test]
fn names_in_listings_are_escaped_and_dotfiles_are_hidden() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("<b> c");
    fs::create_dir_all(directory.join("a b")).unwrap();
    for name in [&b"javascript:x"[..], b"<b>&\"", b".git", b"\xff\n"] {
        fs::write(directory.join(OsStr::from_bytes(name)), "1234567").unwrap();
    }
    rustix::fs::mkfifoat(rustix::fs::CWD, directory.join("pipe"), 0o600.into()).unwrap();
    for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
        if entry.file_name() != "pipe" {
            let at = UNIX_EPOCH + Duration::from_secs(784_111_777);
            File::open(entry.path()).unwrap().set_modified(at).unwrap();
        }
    }
    let mut stage = stage(root.path(), true);
    let page = String::from_utf8(send(&mut stage, "GET", "/%3cb%3e%20c/").body).unwrap();
    assert!(page.contains("<h1>/&lt;b&gt; c/</h1>"), "{page}");
    let rows: Vec<_> = page.lines().filter(|line| line.starts_with("<tr>")).collect();
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let expected = [
        "<tr><td><a href=\"../\">../</a><td><td>".to_owned(),
        format!("<tr><td><a href=\"./a%20b/\">a b/</a><td><td>{date}"),
        format!("<tr><td><a href=\"./%3Cb%3E%26%22\">&lt;b&gt;&amp;&quot;</a><td>7<td>{date}"),
        format!("<tr><td><a href=\"./javascript%3Ax\">javascript:x</a><td>7<td>{date}"),
        format!("<tr><td><a href=\"./%FF%0A\">\u{fffd}\u{fffd}</a><td>7<td>{date}"),
    ];
    assert_eq!(rows, expected);
    let page = String::from_utf8(send(&mut stage, "GET", "//").body).unwrap();
    assert!(!page.contains("../"), "the root has no parent: {page}");
}

#[test]
fn new_index_replaces_the_listing() {
    let root = tree();
    let mut stage = stage(root.path(), true);
    assert_eq!(send(&mut stage, "GET", "/bare/").status, 200);
    fs::write(root.path().join("bare/index.html"), "new").unwrap();
    assert_eq!(send(&mut stage, "GET", "/bare/").body, b"new");
}

#[test]
fn links_out_of_the_root_are_followed_if_enabled() {
    let (root, outside) = (tree(), tree());
    let far = outside.path().join("bare");
    std::os::unix::fs::symlink(far, root.path().join("far")).unwrap();
    on_every_backend(|backend| {
        for (links, status) in [(SymlinkPolicy::Beneath, 404), (SymlinkPolicy::Anywhere, 200)] {
            let roots = vec![root.path().to_owned()];
            let config = Config::default().with(|c| {
                c.roots = roots;
                c.symlinks = links;
            });
            let server = Server::start_with(backend, config, Limits::default(), || ());
            assert_eq!(server.connect().get("/far/b.txt").status, status, "{backend} {links:?}");
        }
    });
}
