use std::io::{self, ErrorKind};

use evring::files::FileChanged;
use evring::{AnyMechanism, Config, Root};
use tempfile::TempDir;

use crate::compression::Compression;
use crate::site::Site;
use crate::site::compress::is_of_the_file;
use crate::site::compressor::{Compressor, CompressorThreads};
use stage::{ParsedResponse, Stage, response};

#[path = "../../tests/stage/mod.rs"]
mod stage;

/// A directory with a page that is too large for the cache, and a site that compresses it.
fn stage() -> (TempDir, Stage) {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.html"), PAGE).unwrap();
    let mechanism = AnyMechanism::new("auto", &Config::default()).unwrap();
    let threads = CompressorThreads::start(1 << 20, 1).unwrap();
    let mut site = Site::new(Some(Root(0)));
    site.files.compressor = Some(Compressor::new(threads, &mechanism.remote()));
    site.files.hosts.first_mut().options.compression = Compression::enabled();
    let stage = Stage::with(site, root.path());
    (root, stage)
}

static PAGE: [u8; 100_000] = [b'a'; 100_000];

fn get(stage: &mut Stage, fields: &str) -> ParsedResponse {
    let head = format!("GET /a.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br\r\n{fields}\r\n");
    let sent = stage.exchange(head.as_bytes());
    let has_body = !sent.starts_with(b"HTTP/1.1 304 ");
    response(&sent, has_body).0
}

#[test]
fn file_that_cannot_be_read_was_read_again_to_compress_it_without_end() {
    let (_root, mut stage) = stage();
    stage.io.failing_reads = 10;
    let plain = get(&mut stage, "");
    assert_eq!((plain.status, plain.field("Content-Encoding")), (200, None));
    assert_eq!(plain.body, PAGE);
    assert_eq!(stage.io.file_ops.2, 1);
    let metrics = stage.app.context.metrics.own();
    assert_eq!(metrics.uncompressed_files.get(), 1);
}

#[test]
fn file_was_compressed_for_a_response_without_content() {
    let (_root, mut stage) = stage();
    stage.io.failing_reads = 1;
    let plain = get(&mut stage, "");
    let tag = format!("W/{}.br\"", plain.field("ETag").unwrap().trim_end_matches('"'));
    for _ in 0..2 {
        let response = get(&mut stage, &format!("If-None-Match: {tag}\r\n"));
        assert_eq!((response.status, response.field("ETag")), (304, Some(&tag[..])));
        assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
    }
    let before = stage.io.file_ops.2;
    let failed = get(&mut stage, "If-Match: \"other\"\r\n");
    assert_eq!(failed.status, 412);
    assert_eq!(stage.io.file_ops.2, before);
    assert_eq!(stage.app.context.metrics.own().compressed_files.get(), 0);
}

#[test]
fn file_that_had_changed_was_logged_as_one_that_cannot_be_read() {
    assert!(!is_of_the_file(&FileChanged.into()));
    assert!(!is_of_the_file(&ErrorKind::ResourceBusy.into()));
    assert!(is_of_the_file(&io::Error::from_raw_os_error(libc::EIO)));
}
