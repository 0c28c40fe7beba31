//! Downloads by each policy for sending files, on every mechanism.

use crate::serving;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use evring_httpd::evring::{BufferSizes, FileDelivery, Stats};
use evring_httpd::{Config, Limits};
use rustix::fs::{Advice, fadvise};
use serving::random::Random;
use serving::{Client, Server, available};

/// Downloads for each policy and mechanism, unless `DOWNLOADS` says another number.
const DOWNLOADS: usize = 20;

/// Downloads for each policy on all mechanisms together, if the variable `EXHAUSTIVE` is set.
const ALL_DOWNLOADS: usize = 10_000;

/// Clients at a time.
const CLIENTS: usize = 4;

const SIZES: [usize; 7] = [0, 1, 4_096, 65_536, 65_537, 300_000, LARGE];

/// More than the buffers of a connection take.
const LARGE: usize = 1_000_000;

fn contents(len: usize) -> &'static [u8] {
    static ALL: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..LARGE).map(|at| ((at % 251) ^ (at >> 12)) as u8).collect());
    &ALL[..len]
}

fn start(policy: FileDelivery, backend: &'static str, root: &Path) -> Server {
    let config = Config::default().with(|c| {
        c.roots = vec![root.to_owned()];
        c.send_policy = policy.send_policy();
        c.socket_buffers = BufferSizes { send: Some(16 * 1024), receive: None };
    });
    // Every file is sent from disk.
    let mut limits = Limits::default();
    limits.max_cached_file_bytes = 0;
    Server::start(backend, config, limits)
}

/// Runs `test` with each policy on every available mechanism, those of a policy concurrently.
fn on_all(test: impl Fn(FileDelivery, &'static str) + Sync) {
    for policy in FileDelivery::ALL {
        thread::scope(|scope| {
            for name in available() {
                let test = &test;
                scope.spawn(move || {
                    test(policy, name);
                    println!("{policy} on {name}: passed");
                });
            }
        });
    }
}

fn name(len: usize) -> String {
    format!("{len}.bin")
}

/// Writes a file to the disk, so that it can leave the page cache.
fn write(path: &Path, bytes: &[u8]) -> File {
    fs::write(path, bytes).unwrap();
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    file
}

fn evict(file: &File) {
    fadvise(file, 0, None, Advice::DontNeed).unwrap();
}

/// Downloads a random range of a random file with random reads, or a part of it before a reset.
fn download(server: &Server, random: &mut Random, files: &[File]) {
    let which = random.below(SIZES.len());
    let (len, all) = (SIZES[which], contents(SIZES[which]));
    if random.below(3) == 0 {
        evict(&files[which]);
    }
    let (begin, end) = match random.below(2) {
        1 if len > 0 => {
            let begin = random.below(len);
            (begin, begin + 1 + random.below(len - begin))
        }
        _ => (0, len),
    };
    let mut client = server.connect();
    let whole = (begin, end) == (0, len);
    let range = if whole { String::new() } else { format!("Range: bytes={begin}-{}\r\n", end - 1) };
    client.send(format!("GET /{} HTTP/1.1\r\nHost: a\r\n{range}\r\n", name(len)).as_bytes());
    if random.below(4) == 0 {
        // Unread bytes make this close a reset.
        let _ = client.stream.read(&mut vec![0; 1 + random.below(100_000)]).unwrap();
        return;
    }
    let pieces = [1_000, 20_000, 1 << 16][random.below(3)];
    let pause = if random.below(8) == 0 { Duration::from_millis(1) } else { Duration::ZERO };
    let pieces = if pause.is_zero() { pieces } else { 1 << 16 };
    let response = client.slow_response(pieces, pause);
    assert_eq!(response.status, if whole { 200 } else { 206 }, "{}", response.head);
    assert!(response.body == all[begin..end], "{begin}..{end} of {len} bytes");
}

#[test]
fn random_downloads_are_exact_on_every_policy_and_mechanism() {
    let default = match std::env::var_os("EXHAUSTIVE") {
        Some(_) => ALL_DOWNLOADS.div_ceil(available().count()),
        None => DOWNLOADS,
    };
    let each: usize = std::env::var("DOWNLOADS").map_or(default, |n| n.parse().unwrap());
    let root = tempfile::tempdir().unwrap();
    let write = |len: usize| write(&root.path().join(name(len)), contents(len));
    let files = SIZES.map(write);
    on_all(|policy, backend| {
        let server = start(policy, backend, root.path());
        // Each policy and mechanism has cases of its own.
        let salt = backend.bytes().fold(policy as u64 + 1, |salt, b| salt * 31 + u64::from(b));
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (server, files) = (&server, &files);
                scope.spawn(move || {
                    let mut random =
                        Random(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) + client as u64);
                    (0..each.div_ceil(CLIENTS)).for_each(|_| download(server, &mut random, files));
                });
            }
        });
        server.stop();
    });
}

/// What happens to a file while it is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Truncated,
    Grown,
    Replaced,
}

#[test]
fn changed_file_is_cut_or_sent_as_promised() {
    for change in [Change::Truncated, Change::Grown, Change::Replaced] {
        on_all(|policy, backend| {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join(name(LARGE));
            fs::write(&path, contents(LARGE)).unwrap();
            let server = start(policy, backend, root.path());
            let mut client = server.connect();
            client.send(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", name(LARGE)).as_bytes());
            let head = client.response(false);
            assert_eq!(head.field("Content-Length"), Some("1000000"));
            match change {
                // Not to another length: the kernel would clear the rest of a page, which sockets may
                // still refer to.
                Change::Truncated => {
                    OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
                }
                Change::Grown => {
                    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
                    file.write_all(&[0xff; 100_000]).unwrap();
                }
                Change::Replaced => {
                    let new = root.path().join("new");
                    fs::write(&new, vec![0xff; LARGE]).unwrap();
                    fs::rename(new, &path).unwrap();
                }
            }
            if change == Change::Truncated {
                let got = rest(&mut client);
                assert!(
                    got.len() < LARGE && contents(LARGE).starts_with(&got),
                    "{policy} {backend}"
                );
            } else {
                let body = client.body(head).body;
                assert!(body == contents(LARGE), "{change:?} {policy} {backend}");
            }
            server.stop();
        });
    }
}

/// Receives what the server sends until it closes the connection.
fn rest(client: &mut Client) -> Vec<u8> {
    let mut got = client.take_received();
    if let Err(error) = client.stream.read_to_end(&mut got) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    got
}

/// A client that does not read occupies no more than the memory for read-ahead, and ends with the server.
#[test]
fn client_that_never_reads_does_not_delay_others() {
    let root = tempfile::tempdir().unwrap();
    let file = write(&root.path().join(name(LARGE)), contents(LARGE));
    on_all(|policy, backend| {
        let server = start(policy, backend, root.path());
        let request = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", name(LARGE));
        let mut silent: Vec<_> = (0..8).map(|_| server.connect()).collect();
        evict(&file);
        silent.iter_mut().for_each(|client| client.send(request.as_bytes()));
        let response = server.connect().get(&format!("/{}", name(LARGE)));
        assert!(response.body == contents(LARGE), "{policy} {backend}");
        drop(silent);
        let stats: Stats = server.stop();
        if policy == FileDelivery::Plain {
            assert_eq!(stats.read_ahead, 0, "{backend}");
        }
        if policy == FileDelivery::Ded {
            assert!(stats.read_ahead >= (LARGE / 32_768) as u64, "{backend}: {}", stats.read_ahead);
        }
    });
}

#[test]
fn evicted_file_is_sent_exactly() {
    // A directory in memory keeps its files cached.
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    on_all(|policy, backend| {
        let path = format!("{policy}-{backend}.bin");
        let file = write(&root.path().join(&path), contents(LARGE));
        evict(&file);
        let server = start(policy, backend, root.path());
        let response = server.connect().get(&format!("/{path}"));
        assert!(response.body == contents(LARGE), "{policy} {backend}");
        server.stop();
    });
}
