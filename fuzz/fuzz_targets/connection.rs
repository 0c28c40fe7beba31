//! Fuzzes a connection: the replies are well-formed and independent of how the bytes are split.
#![no_main]

#[path = "../../crates/httpd/tests/stage/mod.rs"]
mod stage;

use std::path::PathBuf;
use std::sync::LazyLock;
use std::{fs, process};

use evring_httpd::options::Limits;
use evring_httpd::{Request, Root, Site};
use libfuzzer_sys::fuzz_target;
use stage::Stage;

/// The root directory, with a few files.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = std::env::temp_dir().join(format!("fuzz-connection-{}", process::id()));
    fs::create_dir_all(root.join("d")).unwrap();
    for (name, len) in [("a", 100), ("a.gz", 50), ("b", 5_000), ("c", 70_000), ("d/index.html", 9)]
    {
        fs::write(root.join(name), vec![b'x'; len]).unwrap();
    }
    root
});

fn new() -> Stage {
    // Small limits, so that inputs reach them.
    let (line, head, fields) = (200, 600, 12);
    let mut limits = Limits::default();
    limits.max_request_line_bytes = line;
    limits.max_head_bytes = head;
    limits.max_headers = fields;
    limits.max_body_bytes = 300;
    limits.max_keep_alive_requests = 20;
    let echo = |request: Request| request.into_body().to_vec();
    Stage::with(Site::new(Some(Root(0))).limits(limits).route("/echo", echo), &ROOT)
}

fuzz_target!(|bytes: &[u8]| {
    // A malformed line is rejected at its end at the latest.
    let bytes = &[&bytes[..bytes.len().min(2_000)], b"\r\n"].concat()[..];
    let mut whole = new();
    whole.feed(bytes);
    let mut single = new();
    (single.io.now, single.io.wall) = (whole.io.now, whole.io.wall);
    bytes.iter().for_each(|byte| single.feed(&[*byte]));
    assert_eq!(whole.io.close.is_some(), single.io.close.is_some());
    let (whole, single) = (whole.io.sent, single.io.sent);
    assert!(whole == single, "{}\n{}", whole.escape_ascii(), single.escape_ascii());
    assert!(whole.is_empty() || whole.starts_with(b"HTTP/1.1 "));
});
