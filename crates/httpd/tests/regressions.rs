//! What was wrong once, each named after it.

mod stage;

use std::fs;
use std::time::{Duration, SystemTime};

use httpd::{Limits, Request, Root, Site};
use proptest::prelude::*;
use stage::{Reply, Stage, replies};
use tempfile::TempDir;

/// Files that have not changed for an hour, by name.
fn site(files: &[(&str, &[u8])]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }
    root
}

fn get(stage: &mut Stage, target: &str) -> Reply {
    ask(stage, target, "")
}

/// A request with more fields.
fn ask(stage: &mut Stage, target: &str, fields: &str) -> Reply {
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let mut all = replies(&stage.exchange(request.as_bytes()));
    assert_eq!(all.len(), 1, "{target}");
    all.remove(0)
}

#[test]
fn a_request_of_http_1_2_was_refused_with_505() {
    let root = site(&[("a", b"text")]);
    let mut stage = Stage::new(root.path());
    for minor in 2..=9 {
        let request = format!("GET /a HTTP/1.{minor}\r\nHost: a\r\n\r\n").repeat(2);
        for piece in [request.len(), 1] {
            request.as_bytes().chunks(piece).for_each(|bytes| stage.feed(bytes));
            let all = replies(&std::mem::take(&mut stage.io.sent));
            let found: Vec<_> = all.iter().map(|reply| (reply.status, &reply.body[..])).collect();
            assert_eq!(found, [(200, &b"text"[..]); 2], "{minor} in pieces of {piece}");
        }
    }
    assert_eq!(stage.io.close, None);
}

/// Pieces of heads, broken and sound, of which some pass small limits.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let fixed = prop::sample::select(vec![
        "\r\n",
        "\n",
        "\r",
        " ",
        "\0",
        ":",
        "GET",
        "GET / ",
        "GET /a ",
        "HEAD / ",
        "POST /a ",
        "M ",
        "http://h/",
        "http://h:x/",
        "HTTP/1.1",
        "HTTP/1.1\r\n",
        "HTTP/1.0\r\n",
        "HTTP/1.2\r\n",
        "HTTP/2.0\r\n",
        "HTTP/1.1\n",
        "HTTP/1.1 \r\n",
        "HTTQ",
        "Host: a\r\n",
        "Host: [a\r\n",
        "Host: a\n",
        "A: b\r\n",
        "A : b\r\n",
        " b\r\n",
        "\r\n\r\n",
        "Content-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "1\r\nx\r\n",
        "0\r\n",
        "abc",
        "\u{e4}",
    ]);
    prop_oneof![
        8 => fixed.prop_map(|text| text.as_bytes().to_vec()),
        1 => (0..30usize).prop_map(|n| vec![b'a'; n]),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_head_beyond_a_limit_had_another_status_when_it_came_in_pieces(
        pieces in prop::collection::vec(piece(), 0..12),
        start in prop::sample::select(vec!["", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: a\r\n"]),
        line in 16..40usize,
        head in 16..90usize,
        fields in 1..4usize,
    ) {
        let bytes = [start.as_bytes(), &pieces.concat()].concat();
        let limits = Limits { line, head, fields, body: 5, ..Limits::default() };
        let site = Site::new(None).limits(limits).route("/", |request: Request| request.into_body());
        let mut stage = Stage::with(site, "/nowhere".as_ref());
        let mut outcome = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            stage.connect();
            pieces.for_each(|bytes| stage.feed(bytes));
            stage.end();
            (String::from_utf8_lossy(&stage.io.sent).into_owned(), stage.io.close.is_some())
        };
        let whole = outcome(&mut [&bytes[..]].into_iter());
        prop_assert_eq!(&outcome(&mut bytes.chunks(1)), &whole);
        for at in 1..bytes.len() {
            let (first, second) = bytes.split_at(at);
            prop_assert_eq!(&outcome(&mut [first, second].into_iter()), &whole, "cut at {}", at);
        }
    }
}

#[test]
fn a_directory_by_a_path_that_ends_in_dots_was_not_found() {
    let root = site(&[("sub/a", b""), ("sub/inner/b", b"")]);
    let mut stage = Stage::with(Site::new(Some(Root(0))).listing(true), root.path());
    let known = |stage: &mut Stage, target: &str| {
        let reply = get(stage, target);
        assert_eq!(reply.status, 200, "{target}");
        reply.body
    };
    let (top, sub) = (known(&mut stage, "/"), known(&mut stage, "/sub/"));
    for target in ["/.", "/./", "/sub/..", "/sub/../", "/sub/inner/../..", "/%2e", "/sub/%2e%2e"] {
        assert_eq!(known(&mut stage, target), top, "{target}");
    }
    for target in ["/sub/.", "/sub/./", "/sub/inner/..", "/sub//", "/./sub/%2E"] {
        assert_eq!(known(&mut stage, target), sub, "{target}");
    }
    assert_eq!(get(&mut stage, "/..").status, 400);
}

#[test]
fn aliases_of_a_path_each_opened_the_file_anew() {
    let root = site(&[("big", &[7; 100_000]), ("a?b", b"other")]);
    let mut stage = Stage::new(root.path());
    for target in
        ["/big", "//big", "/./big", "/%62ig", "/x/../big", "/big?a", "http://h//big", "/big"]
    {
        assert_eq!(get(&mut stage, target).body.len(), 100_000, "{target}");
        assert_eq!(stage.io.works.0, 1, "{target}");
    }
    // The name of another file is not a path with a query.
    assert_eq!(get(&mut stage, "/a%3fb").body, b"other");
    assert_eq!(get(&mut stage, "/a?b").status, 404);
}
