//! Hostile input: for any bytes and any segmentation, every mechanism sends the same responses and
//! closes the connection in the same way as the site without a mechanism.

use crate::cases;
use crate::serving;
use crate::stage;

use std::io::Read;
use std::net::Shutdown;
use std::thread;
use std::time::Duration;
use std::{env, fs};

use cases::{CHUNKED, LLHTTP, PICO, PICO_CHUNKS};
use evring_httpd::Config;
use evring_httpd::options::Limits;
use serving::random::Random;
use serving::{Server, available, refuse_io_uring};
use stage::Stage;
use tempfile::TempDir;

fn site() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("index.html"), "the index").unwrap();
    fs::write(root.path().join("test"), vec![b'x'; 3000]).unwrap();
    // The dates of a file are stable in the second after its change.
    thread::sleep(Duration::from_millis(1_100));
    root
}

/// Masks the Date fields.
fn undated(mut bytes: Vec<u8>) -> Vec<u8> {
    const DATE: &[u8] = b"\r\nDate: ";
    let mut from = 0;
    while let Some(at) = bytes[from..].windows(DATE.len()).position(|w| w == DATE) {
        from += at + DATE.len();
        bytes[from..][..29].fill(b'-');
    }
    bytes
}

/// Returns the site's response without a mechanism.
fn expected(root: &TempDir, bytes: &[u8]) -> Vec<u8> {
    let mut stage = Stage::new(root.path());
    stage.feed(bytes);
    stage.end();
    undated(std::mem::take(&mut stage.io.sent))
}

/// Returns a server's response to bytes sent in two pieces, then EOF.
fn responses(server: &Server, bytes: &[u8], at: usize) -> Vec<u8> {
    let mut client = server.connect();
    client.send(&bytes[..at]);
    if at > 0 {
        thread::yield_now();
    }
    client.send_rejected(&bytes[at..]);
    // The server may have closed the connection already.
    let _ = client.stream.shutdown(Shutdown::Write);
    let mut received = Vec::new();
    client.stream.read_to_end(&mut received).unwrap();
    undated(received)
}

/// Sends all inputs to all mechanisms, each in its own thread, split at the offsets that `cuts`
/// returns. Tests `auto` without io_uring, too.
fn compare(inputs: &[Vec<u8>], cuts: fn(usize) -> Vec<usize>) {
    let root = site();
    let all: Vec<_> = inputs.iter().map(|input| (input, expected(&root, input))).collect();
    thread::scope(|scope| {
        for backend in available().chain(["auto"]) {
            let (all, root) = (&all, &root);
            scope.spawn(move || {
                if backend == "auto" {
                    refuse_io_uring().expect("cannot install a seccomp filter");
                }
                let config = Config::default().with(|c| c.roots = vec![root.path().to_owned()]);
                let server = Server::start(backend, config, Limits::default());
                for (input, expected) in all {
                    for at in cuts(input.len()) {
                        let found = responses(&server, input, at);
                        let text = String::from_utf8_lossy;
                        assert!(
                            found == *expected,
                            "{} cut at {at}: {:?}\nfound {:?}\nexpected {:?}",
                            backend,
                            text(input),
                            text(&found),
                            text(expected)
                        );
                    }
                }
                let stats = server.stop();
                assert_eq!(stats.accepted, stats.closed, "{backend}");
            });
        }
    });
}

/// The inputs of two parsers' test suites.
fn suites() -> Vec<Vec<u8>> {
    let whole = LLHTTP.iter().chain(PICO).map(|(_, bytes, _)| bytes.to_vec());
    let chunks = PICO_CHUNKS.iter().map(|(_, bytes, _)| [CHUNKED, bytes].concat());
    whole.chain(chunks).collect()
}

#[test]
fn parser_suites_get_the_same_responses() {
    compare(&suites(), |_| vec![0]);
}

#[test]
fn parser_suites_get_the_same_responses_for_any_split() {
    // Every fourth, without the variable `EXHAUSTIVE`.
    compare(&suites(), |len| {
        (1..len).step_by(if env::var_os("EXHAUSTIVE").is_some() { 1 } else { 4 }).collect()
    });
}

fn mangled(count: usize) -> Vec<Vec<u8>> {
    let (suites, mut numbers) = (suites(), Random(0x9e37_79b9_7f4a_7c15));
    let mangle = |_| {
        let mut bytes = suites[numbers.below(suites.len())].clone();
        for _ in 0..=numbers.below(4) {
            let at = numbers.below(bytes.len() + 1);
            match numbers.below(5) {
                0 => bytes.insert(at, numbers.below(256) as u8),
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 if at < bytes.len() => bytes[at] = b"\r\n :,;%\0/?\x7f"[numbers.below(11)],
                3 => bytes.truncate(at.max(1)),
                _ => {
                    let other = &suites[numbers.below(suites.len())];
                    let piece = &other[numbers.below(other.len())..];
                    bytes.splice(at..at, piece.iter().copied());
                }
            }
        }
        bytes
    };
    (0..count).map(mangle).collect()
}

#[test]
fn mutated_requests_get_the_same_responses() {
    compare(&mangled(1_000), |len| vec![0, len / 2]);
}

#[test]
fn random_bytes_get_the_same_responses() {
    let mut numbers = Random(42);
    let random = |_| (0..numbers.below(300)).map(|_| numbers.below(256) as u8).collect();
    compare(&(0..300).map(random).collect::<Vec<_>>(), |len| vec![0, len / 3]);
}
