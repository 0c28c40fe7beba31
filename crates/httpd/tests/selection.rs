//! Conditional requests, ranges and codings of files.

use crate::stage;

use std::fs;
use std::time::Duration;

use evring_httpd::evring::{Application as _, Others};
use evring_httpd::options::Limits;
use evring_httpd::{Root, Site};
use stage::{ParsedResponse, Stage, response};
use tempfile::TempDir;

/// Sizes of files that are sent inline, from memory, and from the file.
const SIZES: [usize; 3] = [1_000, 40_000, 70_000];

const MILLISECOND: Duration = Duration::from_millis(1);

fn contents(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn write(root: &TempDir, name: &str, contents: &[u8]) {
    let path = root.path().join(name);
    fs::write(&path, contents).unwrap();
}

fn site() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for size in SIZES {
        write(&root, &format!("{size}.txt"), &contents(size));
    }
    root
}

/// Sends a request with these fields, with a bar for each line end.
fn send(stage: &mut Stage, method: &str, target: &str, fields: &str) -> ParsedResponse {
    let fields = fields.replace('|', "\r\n");
    let bytes =
        stage.exchange(format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
    let status = &bytes[b"HTTP/1.1 ".len()..][..3];
    let has_body = method == "GET" && status != b"304";
    let (response, rest) = response(&bytes, has_body);
    assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(rest));
    response
}

fn get(stage: &mut Stage, target: &str, fields: &str) -> ParsedResponse {
    send(stage, "GET", target, fields)
}

#[test]
fn matching_validators_get_304() {
    let root = site();
    for size in SIZES {
        // The first round looks up the file, later ones use the cache.
        let mut stage = Stage::new(root.path());
        let target = format!("/{size}.txt");
        let whole = get(&mut stage, &target, "");
        let etag = whole.field("ETag").unwrap().to_owned();
        let modified = whole.field("Last-Modified").unwrap().to_owned();
        assert!(etag.starts_with('"') && etag.ends_with('"') && etag.len() > 2, "{etag}");
        let mut stage = Stage::new(root.path());
        for round in 0..3 {
            for fields in [
                format!("If-None-Match: {etag}|"),
                format!("If-None-Match: W/{etag}, \"x\"|"),
                "If-None-Match: *|".to_owned(),
                format!("If-Modified-Since: {modified}|"),
            ] {
                for method in ["GET", "HEAD"] {
                    let response = send(&mut stage, method, &target, &fields);
                    assert_eq!(response.status, 304, "{round} {method} {fields}");
                    assert_eq!(response.field("ETag"), Some(&etag[..]));
                    assert_eq!(response.field("Last-Modified"), Some(&modified[..]));
                    assert!(response.field("Date").is_some());
                    for name in ["Content-Length", "Content-Type", "Content-Range"] {
                        assert_eq!(response.field(name), None, "{name}");
                    }
                }
            }
            let changed = get(&mut stage, &target, "If-None-Match: \"x\"|");
            assert_eq!((changed.status, changed.body.len()), (200, size));
            let failed = get(&mut stage, &target, "If-Match: \"x\"|");
            assert_eq!(failed.status, 412);
            assert_eq!(get(&mut stage, &target, "").status, 200, "the connection stays open");
        }
    }
}

#[test]
fn ranges_are_sent_with_206() {
    let root = site();
    for size in SIZES {
        let (all, last) = (contents(size), size - 1);
        let mut stage = Stage::new(root.path());
        let target = format!("/{size}.txt");
        for _ in 0..2 {
            for (range, part) in [
                ("0-0", 0..1),
                ("0-499", 0..500),
                ("500-", 500..size),
                ("-100", size - 100..size),
                ("-999999", 0..size),
                ("10-999999", 10..size),
            ] {
                let response = get(&mut stage, &target, &format!("Range: bytes={range}|"));
                assert_eq!(response.status, 206, "{range}");
                let named = format!("bytes {}-{}/{size}", part.start, part.end - 1);
                assert_eq!(response.field("Content-Range"), Some(&named[..]));
                assert_eq!(response.field("Content-Type"), Some("text/plain; charset=utf-8"));
                assert!(response.field("ETag").is_some() && response.field("Date").is_some());
                assert!(response.body == all[part], "{range} of {size}");
            }
            let unsatisfiable = get(&mut stage, &target, &format!("Range: bytes={size}-|"));
            assert_eq!(
                (unsatisfiable.status, unsatisfiable.field("Content-Range")),
                (416, Some(&*format!("bytes */{size}")))
            );
            for field in
                ["Range: bytes=5-1|", "Range: lines=1-2|", "Range: bytes=0-1|If-Range: \"x\"|"]
            {
                let whole = get(&mut stage, &target, field);
                assert_eq!((whole.status, whole.body.len()), (200, size), "{field}");
                assert_eq!(whole.field("Accept-Ranges"), Some("bytes"));
            }
            let head = send(&mut stage, "HEAD", &target, &format!("Range: bytes=0-{last}|"));
            assert_eq!(
                (head.status, head.field("Content-Length")),
                (200, Some(&*size.to_string()))
            );
        }
    }
}

#[test]
fn several_ranges_are_sent_as_multipart() {
    let root = site();
    for size in SIZES {
        let all = contents(size);
        let mut stage = Stage::new(root.path());
        for _ in 0..2 {
            let fields = "Range: bytes=0-9, 500-509, -5|";
            let response = get(&mut stage, &format!("/{size}.txt"), fields);
            assert_eq!(response.status, 206);
            let kind = response.field("Content-Type").unwrap();
            let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
            let mut expected = Vec::new();
            for part in [0..10, 500..510, size - 5..size] {
                let (first, last) = (part.start, part.end - 1);
                expected.extend_from_slice(
                    format!(
                        "\r\n--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\n\
                         Content-Range: bytes {first}-{last}/{size}\r\n\r\n"
                    )
                    .as_bytes(),
                );
                expected.extend_from_slice(&all[part]);
            }
            expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
            assert!(response.body == expected, "{:?}", String::from_utf8_lossy(&response.body));
        }
    }
}

#[test]
fn precompressed_file_is_sent_to_clients_that_accept_it() {
    let root = site();
    for size in SIZES {
        let plain = contents(size);
        let (gz, br) = (vec![b'g'; size / 2], vec![b'b'; size / 3]);
        write(&root, &format!("{size}.txt.gz"), &gz);
        write(&root, &format!("{size}.txt.br"), &br);
        let target = format!("/{size}.txt");
        // Each of them is the first once.
        for first in 0..3 {
            let mut stage = Stage::new(root.path());
            for round in first..first + 7 {
                let (fields, coding, body) = [
                    ("", None, &plain),
                    ("Accept-Encoding: gzip|", Some("gzip"), &gz),
                    ("Accept-Encoding: gzip, br, zstd|", Some("br"), &br),
                ][round % 3];
                let response = get(&mut stage, &target, fields);
                assert_eq!((response.status, response.field("Content-Encoding")), (200, coding));
                assert_eq!(response.field("Vary"), Some("Accept-Encoding"), "{round}");
                assert_eq!(response.field("Content-Type"), Some("text/plain; charset=utf-8"));
                assert!(response.body == *body, "{fields} of {size}");
                if round == first + 4 {
                    stage.pass(Duration::from_millis(1100));
                }
            }
        }
    }
}

#[test]
fn precompressed_files_of_a_missing_file_were_looked_for() {
    let root = site();
    fs::create_dir(root.path().join("sub")).unwrap();
    write(&root, "1000.txt.gz", b"coded");
    let mut stage = Stage::new(root.path());
    for (target, status) in [("/none", 404), ("/sub/", 404), ("/sub", 301)] {
        let before = stage.io.file_ops;
        assert_eq!(get(&mut stage, target, "Accept-Encoding: gzip|").status, status);
        assert_eq!(stage.io.file_ops, (before.0 + 1, before.1, before.2), "{target}");
    }
    fs::remove_file(root.path().join("1000.txt")).unwrap();
    assert_eq!(get(&mut stage, "/1000.txt", "Accept-Encoding: gzip|").status, 404);
}

#[test]
fn conditions_and_ranges_apply_to_the_coded_file() {
    let root = site();
    write(&root, "1000.txt.gz", b"0123456789");
    let mut stage = Stage::new(root.path());
    for _ in 0..2 {
        let plain = get(&mut stage, "/1000.txt", "").field("ETag").unwrap().to_owned();
        let response = get(&mut stage, "/1000.txt", "Accept-Encoding: gzip|Range: bytes=2-4|");
        assert_eq!((response.status, &response.body[..]), (206, &b"234"[..]));
        assert_eq!(response.field("Content-Range"), Some("bytes 2-4/10"));
        let coded = response.field("ETag").unwrap().to_owned();
        assert_ne!(plain, coded);
        let condition = |etag: &str| format!("Accept-Encoding: gzip|If-None-Match: {etag}|");
        let same = get(&mut stage, "/1000.txt", &condition(&coded));
        assert_eq!((same.status, same.field("Vary")), (304, Some("Accept-Encoding")));
        assert_eq!(get(&mut stage, "/1000.txt", &condition(&plain)).status, 200);
    }
}

#[test]
fn added_and_removed_coded_files_are_noticed() {
    let root = site();
    let mut stage = Stage::new(root.path());
    let mut coding = |fields: &str| {
        stage.pass(Duration::from_millis(1100));
        let response = get(&mut stage, "/1000.txt", fields);
        assert_eq!(response.status, 200);
        let field = |name| response.field(name).map(str::to_owned);
        (field("Content-Encoding"), field("Vary").is_some())
    };
    let accepts = "Accept-Encoding: gzip|";
    assert_eq!(coding(accepts), (None, false));
    write(&root, "1000.txt.gz", b"coded");
    assert_eq!(coding(""), (None, true));
    assert_eq!(coding(accepts), (Some("gzip".to_owned()), true));
    fs::remove_file(root.path().join("1000.txt.gz")).unwrap();
    assert_eq!(coding(accepts), (None, false));
    fs::create_dir(root.path().join("1000.txt.gz")).unwrap();
    assert_eq!(coding(accepts), (None, false), "a directory is not a coded file");
}

#[test]
fn coded_file_was_opened_for_each_request_with_a_query() {
    let root = site();
    write(&root, "1000.txt.gz", b"coded");
    let mut stage = Stage::new(root.path());
    for n in 0..5 {
        let response = get(&mut stage, &format!("/1000.txt?v={n}"), "Accept-Encoding: gzip|");
        assert_eq!((response.status, &response.body[..]), (200, &b"coded"[..]));
    }
    assert_eq!(stage.io.file_ops.0, 2, "the plain file and the coded one");
}

#[test]
fn changed_coded_file_lacked_vary() {
    let root = site();
    write(&root, "1000.txt.gz", b"coded");
    let mut stage = Stage::new(root.path());
    let fetch = |stage: &mut Stage| get(stage, "/1000.txt", "Accept-Encoding: gzip|");
    assert_eq!(fetch(&mut stage).body, b"coded");
    stage.pass(Limits::default().cache_ttl);
    // The plain file is revalidated, then the coded one changes.
    get(&mut stage, "/1000.txt", "");
    write(&root, "1000.txt.gz", b"coded anew");
    for _ in 0..2 {
        let response = fetch(&mut stage);
        assert_eq!(response.body, b"coded anew");
        assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
    }
}

#[test]
fn file_that_was_changing_at_its_open_was_kept_as_stats_took_time() {
    const APPENDED: usize = 100;
    let root = site();
    for size in [1_000, 70_000] {
        let mut stage = Stage::new(root.path());
        let path = root.path().join(format!("{size}.txt"));
        fs::write(&path, contents(size - APPENDED)).unwrap();
        stage.io.wall = fs::metadata(&path).unwrap().modified().unwrap() + MILLISECOND;
        stage.io.stat_time = 25 * MILLISECOND;
        let target = format!("/{size}.txt");
        assert_eq!(get(&mut stage, &target, "").body, contents(size - APPENDED));
        fs::write(&path, contents(size)).unwrap();
        assert_eq!(get(&mut stage, &target, "").body, contents(size));
    }
}

#[test]
fn each_coding_has_its_own_entity_tag() {
    let root = site();
    for name in ["1000.txt.gz", "1000.txt.br", "1000.txt.zst"] {
        write(&root, name, b"coded");
    }
    let mut stage = Stage::new(root.path());
    let tags = ["identity", "gzip", "br", "zstd"].map(|coding| {
        let response = get(&mut stage, "/1000.txt", &format!("Accept-Encoding: {coding}|"));
        response.field("ETag").unwrap().to_owned()
    });
    let distinct: std::collections::HashSet<_> = tags.iter().collect();
    assert_eq!(distinct.len(), 4, "{tags:?}");
}

/// Returns the number of open files below a directory.
fn open_below(root: &TempDir) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours = links.filter_map(|link| fs::read_link(link.path()).ok());
    ours.filter(|path| path.starts_with(root.path())).count()
}

#[test]
fn timer_of_a_hook_was_that_of_the_site() {
    let root = site();
    let mut stage = Stage::new(root.path());
    get(&mut stage, "/70000.txt", "");
    let (now, set) = (stage.io.now, stage.io.timer.unwrap());
    stage.io.now = set;
    // Other timers are not the site's.
    for timer in [0, stage.io.max_timers - 2, stage.io.max_timers - 1] {
        assert_eq!((open_below(&root), stage.io.timer), (1, Some(set)), "{timer}");
        stage.app.timer(&mut stage.io, Others::none(), timer);
    }
    assert_eq!((open_below(&root), stage.io.timer), (0, None));

    // Without timers, an event closes it.
    let mut stage = Stage::new(root.path());
    stage.io.max_timers = 0;
    stage.app = Site::new(Some(Root(0)));
    stage.connect();
    stage.io.now = now;
    get(&mut stage, "/70000.txt", "");
    stage.io.now = set;
    get(&mut stage, "/1000.txt", "");
    assert_eq!((open_below(&root), stage.io.timer), (0, None));
}

#[test]
fn unused_large_file_stayed_open_until_the_next_event() {
    let root = site();
    let mut stage = Stage::new(root.path());
    let open = || open_below(&root);
    let time = Limits::default().cache_ttl + Duration::from_secs(10);
    for _ in 0..2 {
        let bytes = b"GET /70000.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        stage.exchange(bytes);
        stage.io.deadline = None;
        stage.pass(time - MILLISECOND);
        assert_eq!(open(), 1);
        stage.pass(MILLISECOND);
        assert_eq!((open(), stage.io.timer), (0, None));
        stage.connect();
    }
    // A file that is being sent stays open, and closes soon afterwards.
    stage.io.slow = true;
    get(&mut stage, "/70000.txt", "");
    stage.pass(Duration::from_secs(60));
    assert_eq!(open(), 1);
    stage.io.files.clear();
    stage.pass(Duration::from_secs(10));
    assert_eq!((open(), stage.io.timer), (0, None));
}

#[test]
fn precompressed_files_can_be_disabled() {
    let root = site();
    write(&root, "1000.txt.gz", b"coded");
    let app = Site::new(Some(Root(0))).precompressed(false);
    let mut stage = Stage::with(app, root.path());
    let response = get(&mut stage, "/1000.txt", "Accept-Encoding: gzip|");
    assert_eq!((response.field("Content-Encoding"), response.field("Vary")), (None, None));
    assert_eq!(stage.io.file_ops.1, 0);
}

#[test]
fn requests_are_answered_without_a_cache() {
    let root = site();
    write(&root, "1000.txt.gz", b"coded");
    let mut limits = Limits::default();
    limits.cache_files = 0;
    let mut stage = Stage::with(Site::new(Some(Root(0))).limits(limits), root.path());
    for _ in 0..2 {
        let response = get(&mut stage, "/1000.txt", "Accept-Encoding: gzip|Range: bytes=1-2|");
        assert_eq!((response.status, &response.body[..]), (206, &b"od"[..]));
        assert_eq!(get(&mut stage, "/1000.txt", "Range: bytes=1-2|").body, contents(1000)[1..3]);
        assert_eq!(get(&mut stage, "/70000.txt", "").body, contents(70_000));
    }
}

#[test]
fn max_age_is_sent_with_every_response_about_a_file() {
    let root = site();
    let site = Site::new(Some(Root(0))).max_age(Some(300));
    let mut stage = Stage::with(site, root.path());
    for fields in ["", "If-None-Match: *|", "Range: bytes=0-9|"] {
        let response = get(&mut stage, "/1000.txt", fields);
        assert_eq!(response.field("Cache-Control"), Some("max-age=300"), "{}", response.status);
    }
    assert_eq!(get(&mut stage, "/none", "").field("Cache-Control"), None);
}
