//! Hostile clients at each bound, on every mechanism: what the program holds stays what it was.

mod serving;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use httpd::multiplex::backends;
use serving::program::Serving;

/// The most kilobytes by which a server may grow beside a hostile client.
const GROWTH_KB: u64 = 2 * 1024;

/// Starts the program on each mechanism, with one worker and a directory of its own.
fn on_every_backend(arguments: &[&str], test: impl Fn(&'static str, &Serving)) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_str().unwrap();
    for backend in backends().into_iter().filter(|backend| backend.available.is_ok()) {
        println!("on {}", backend.name);
        let mut all = vec!["--listen", "127.0.0.1:0", "--workers", "1", "--root", path];
        all.extend(["--log-level", "error", "--backend", backend.name]);
        all.extend(arguments);
        let serving = Serving::start(&all);
        test(backend.name, &serving);
        drop(serving);
    }
}

/// Replies that are counted by the first line of each.
struct Replies {
    stream: TcpStream,
    buffer: Vec<u8>,
    matched: usize,
}

impl Replies {
    const LINE: &[u8] = b"HTTP/1.1 404";

    fn new(stream: TcpStream) -> Self {
        Replies { stream, buffer: vec![0; 64 * 1024], matched: 0 }
    }

    /// Reads until so many replies have begun.
    fn read(&mut self, mut count: u64) {
        while count > 0 {
            let n = self.stream.read(&mut self.buffer).unwrap();
            assert!(n > 0, "the server has closed the connection");
            for byte in &self.buffer[..n] {
                // The first byte of the line occurs nowhere else in it but behind a match.
                self.matched = match *byte == Self::LINE[self.matched] {
                    true => self.matched + 1,
                    false => usize::from(*byte == Self::LINE[0]),
                };
                if self.matched == Self::LINE.len() {
                    self.matched = 0;
                    count = count.saturating_sub(1);
                }
            }
        }
    }
}

#[test]
fn a_client_that_pipelines_requests_for_missing_files_made_the_server_grow() {
    const WARM: u64 = 2_000;
    const MEASURED: u64 = 20_000;
    on_every_backend(&[], |name, serving| {
        let stream = TcpStream::connect(serving.address).unwrap();
        let mut requests = stream.try_clone().unwrap();
        let writer = thread::spawn(move || {
            let block = b"GET /missing HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
            // Until the reader has seen enough and shuts the connection down.
            while requests.write_all(&block).is_ok() {}
        });
        let mut replies = Replies::new(stream);
        replies.read(WARM);
        let before = serving.resident_kb();
        replies.read(MEASURED);
        let after = serving.resident_kb();
        replies.stream.shutdown(Shutdown::Both).unwrap();
        writer.join().unwrap();
        assert!(after <= before + GROWTH_KB, "{name} grew from {before} to {after} KB");
    });
}
