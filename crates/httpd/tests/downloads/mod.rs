//! Files, and random downloads of them: each byte that arrives is compared, also of downloads that a reset cuts.
#![allow(dead_code, reason = "not every executable uses all of it")]

pub(crate) mod changes;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use evring_httpd::evring::FileDelivery;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use crate::serving::available;
use crate::serving::random::Random;

/// Downloads for each policy and mechanism, unless `DOWNLOADS` says another number.
const DOWNLOADS: usize = 20;

/// Downloads for each policy on all mechanisms together, if the variable `EXHAUSTIVE` is set.
const ALL_DOWNLOADS: usize = 10_000;

/// Clients at a time.
const CLIENTS: usize = 4;

const SIZES: [usize; 7] = [0, 1, 4_096, 65_536, 65_537, 300_000, LARGE];

/// More than the buffers of a connection take.
pub(crate) const LARGE: usize = 1_000_000;

pub(crate) fn contents(len: usize) -> &'static [u8] {
    static ALL: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..LARGE).map(|at| ((at % 251) ^ (at >> 12)) as u8).collect());
    &ALL[..len]
}

pub(crate) fn name(len: usize) -> String {
    format!("{len}.bin")
}

/// Writes a file to the disk, so that it can leave the page cache.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> File {
    fs::write(path, bytes).unwrap();
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    file
}

pub(crate) fn evict(file: &File) {
    fadvise(file, 0, None, Advice::DontNeed).unwrap();
}

/// Creates a directory on a disk; one in memory keeps its files cached.
pub(crate) fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Runs `test` with each policy on every available mechanism, those of a policy concurrently.
pub(crate) fn on_all(test: impl Fn(FileDelivery, &'static str) + Sync) {
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

/// Files of several sizes.
pub(crate) struct Files {
    pub(crate) root: TempDir,
    files: [File; SIZES.len()],
}

impl Files {
    pub(crate) fn new() -> Self {
        let root = directory();
        let files = SIZES.map(|len| write(&root.path().join(name(len)), contents(len)));
        Files { root, files }
    }

    /// Downloads random files from a server with this policy on this mechanism, which has cases of its own. `connect`
    /// opens a connection.
    pub(crate) fn download<S: Read + Write>(
        &self,
        policy: FileDelivery,
        backend: &str,
        connect: impl Fn() -> S + Sync,
    ) {
        let default = match std::env::var_os("EXHAUSTIVE") {
            Some(_) => ALL_DOWNLOADS.div_ceil(available().count()),
            None => DOWNLOADS,
        };
        let number: usize = std::env::var("DOWNLOADS").map_or(default, |n| n.parse().unwrap());
        let salt = backend.bytes().fold(policy as u64 + 1, |salt, b| salt * 31 + u64::from(b));
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let connect = &connect;
                scope.spawn(move || {
                    let mut random =
                        Random(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) + client as u64);
                    for _ in 0..number.div_ceil(CLIENTS) {
                        self.download_one(connect, &mut random);
                    }
                });
            }
        });
    }

    /// Downloads a random range of a random file with random reads, or a part of it before a reset.
    fn download_one<S: Read + Write>(&self, connect: &impl Fn() -> S, random: &mut Random) {
        let which = random.below(SIZES.len());
        let len = SIZES[which];
        if random.below(3) == 0 {
            evict(&self.files[which]);
        }
        let range = match random.below(2) {
            1 if len > 0 => {
                let begin = random.below(len);
                begin..begin + 1 + random.below(len - begin)
            }
            _ => 0..len,
        };
        let is_whole = range == (0..len);
        let field = match is_whole {
            true => String::new(),
            false => format!("Range: bytes={}-{}\r\n", range.start, range.end - 1),
        };
        let request = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n{field}\r\n", name(len));
        // It may take the disk longer to evict a file than the server waits for a request.
        let mut stream = connect();
        stream.write_all(request.as_bytes()).unwrap();
        let expected = &contents(len)[range];
        // The bytes of the body after which the client closes. Unread bytes make that a reset.
        let max = match random.below(4) {
            0 => random.below(expected.len() + 1),
            _ => expected.len(),
        };
        let piece = [1_000, 20_000, 1 << 16][random.below(3)];
        let (piece, pause) = match random.below(8) {
            0 => (1 << 16, Duration::from_millis(1)),
            _ => (piece, Duration::ZERO),
        };
        let (mut received, mut head_len) = (Vec::new(), None);
        while head_len.is_none_or(|head_len| received.len() < head_len + max) {
            let mut bytes = [0; 1 << 16];
            let n = match stream.read(&mut bytes[..piece]) {
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("{error} after {} bytes of {request:?}", received.len()),
            };
            assert!(n > 0, "it ended after {} bytes of {request:?}", received.len());
            received.extend_from_slice(&bytes[..n]);
            thread::sleep(pause);
            if head_len.is_none() {
                let end = received.windows(4).position(|w| w == b"\r\n\r\n");
                head_len = end.map(|end| end + 4);
            }
        }
        let (head, body) = received.split_at(head_len.expect("the loop has found it"));
        let head = String::from_utf8_lossy(head);
        let status = if is_whole { "HTTP/1.1 200 " } else { "HTTP/1.1 206 " };
        let length = format!("Content-Length: {}\r\n", expected.len());
        assert!(head.starts_with(status) && head.contains(&length), "{request:?}: {head}");
        assert!(expected.starts_with(body), "{} bytes of {request:?}", body.len());
    }
}
