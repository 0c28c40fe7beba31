//! The program's memory stays within its limit, for values of any size, on every mechanism.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Memory of the program besides values, in MiB: for itself and its connections.
const OVERHEAD: usize = 16;
const LIMIT: usize = 24;

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn resident_mib(child: &Child) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 1024
}

#[test]
fn resident_memory_stays_within_the_limit() {
    support::on_each(check_resident_memory);
}

fn check_resident_memory(backend: &str) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kv"))
        .args(["-p", "0", "-m", &LIMIT.to_string(), "--backend", backend])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let child = Running(child);
    let address = line.strip_prefix("listening on ").unwrap().split(' ').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut number = 0;
    // Each round stores twice the limit. Rounds of small values take long, and test the store, which is the same
    // on all mechanisms.
    let rounds = [10..11, 1_000..1_001, 0..100_000, 900_000..1_000_000, 1..300];
    for sizes in rounds.into_iter().filter(|sizes| sizes.end >= 1_000 || backend == "epoll") {
        let mut sent = 0;
        while sent < (2 * LIMIT) << 20 {
            let mut batch = Vec::new();
            while batch.len() < 1 << 20 {
                let len = random.usize(sizes.clone());
                // Some keys stay in use, others are replaced or deleted.
                let line = format!(
                    "get key{}\r\ndelete key{} noreply\r\nset key{number} 0 0 {len} noreply\r\n",
                    number / 2,
                    number / 3
                );
                batch.extend_from_slice(line.as_bytes());
                batch.resize(batch.len() + len, b'v');
                batch.extend_from_slice(b"\r\n");
                number += 1;
                // Approximate overhead.
                sent += len + 128;
            }
            batch.extend_from_slice(b"version\r\n");
            let mut reader = stream.try_clone().unwrap();
            std::thread::scope(|scope| {
                let read = scope.spawn(move || {
                    let (mut piece, mut last) = (vec![0; 1 << 16], Vec::new());
                    while !last.windows(9).any(|part| part == b"\nVERSION ") {
                        let n = reader.read(&mut piece).expect("the server answers");
                        assert!(n > 0, "the server closed the connection");
                        let keep = last.len().min(8);
                        last.drain(..last.len() - keep);
                        last.extend_from_slice(&piece[..n]);
                    }
                });
                stream.write_all(&batch).unwrap();
                read.join().unwrap();
            });
        }
        let resident = resident_mib(&child.0);
        assert!(resident <= LIMIT + OVERHEAD, "{resident} MiB with values of {sizes:?}");
        assert!(resident >= LIMIT * 3 / 4, "only {resident} MiB are used with values of {sizes:?}");
    }
}
