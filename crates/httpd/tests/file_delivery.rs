//! Downloads by each policy for sending files, on every mechanism.

use crate::downloads::changes::{Change, restore};
use crate::downloads::{Files, LARGE, contents, directory, evict, name, on_all, write};
use crate::serving::Server;

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use evring_httpd::Config;
use evring_httpd::evring::sockets::BufferSizes;
use evring_httpd::options::Limits;
use evring_httpd::{evring::FileDelivery, evring::Stats};
use rustix::net::sockopt::set_socket_recv_buffer_size;

fn start(policy: FileDelivery, backend: &'static str, root: &Path) -> Server {
    // Every file is sent from disk.
    let mut limits = Limits::default();
    limits.max_cached_file_bytes = 0;
    start_with(policy, backend, root, limits)
}

fn start_with(policy: FileDelivery, backend: &'static str, root: &Path, limits: Limits) -> Server {
    let config = Config::default().with(|c| {
        c.roots = vec![root.to_owned()];
        c.send_policy = policy.send_policy();
        c.socket_buffers = BufferSizes { send: Some(16 * 1024), receive: None };
    });
    Server::start(backend, config, limits)
}

#[test]
fn random_downloads_are_exact_on_every_policy_and_mechanism() {
    let files = Files::new();
    on_all(|policy, backend| {
        let server = start(policy, backend, files.root.path());
        files.download(policy, backend, || server.connect().stream);
        server.stop();
    });
}

#[test]
fn changed_file_is_cut_or_sent_as_promised() {
    for change in Change::ALL {
        on_all(|policy, backend| {
            let root = tempfile::tempdir().unwrap();
            restore(root.path());
            let server = start(policy, backend, root.path());
            let stream = server.connect().stream;
            change.download(root.path(), stream, &format!("{policy} {backend}"));
            server.stop();
        });
    }
}

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

/// See `slow_readers.rs` of `evring` for a simulated minute of it.
#[test]
fn client_that_reads_a_byte_at_a_time_is_reset_and_does_not_delay_others() {
    let root = directory();
    let file = write(&root.path().join(name(LARGE)), contents(LARGE));
    on_all(|policy, backend| {
        let mut limits = Limits::default();
        limits.max_cached_file_bytes = 0;
        limits.progress_interval = Duration::from_millis(300);
        let server = start_with(policy, backend, root.path(), limits);
        let mut slow = server.connect();
        set_socket_recv_buffer_size(&slow.stream, 4_096).unwrap();
        evict(&file);
        slow.send(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", name(LARGE)).as_bytes());
        let mut byte = [0];
        slow.stream.read_exact(&mut byte).unwrap();
        let response = server.connect().get(&format!("/{}", name(LARGE)));
        assert!(response.body == contents(LARGE), "{policy} {backend}");
        let begin = Instant::now();
        while !slow.is_reset_within(Duration::from_millis(20)) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{policy} {backend}");
            if let Err(error) = slow.stream.read_exact(&mut byte) {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{policy} {backend}");
                break;
            }
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (2, 2), "{policy} {backend}");
    });
}

#[test]
fn evicted_file_is_sent_exactly() {
    let root = directory();
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
