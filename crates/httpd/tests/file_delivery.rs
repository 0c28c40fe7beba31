//! Downloads by each policy for sending files, on every mechanism.

use crate::downloads::changes::{Change, ranges, restore};
use crate::downloads::{Files, LARGE, contents, directory, evict, name, on_all, write};
use crate::serving::{Client, Server, connect_with_small_buffer};

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use evring_httpd::Config;
use evring_httpd::evring::files::MAX_READ_BYTES;
use evring_httpd::evring::sockets::BufferSizes;
use evring_httpd::options::Limits;
use evring_httpd::{evring::FileDelivery, evring::Stats};
use rustix::net::sockopt::set_socket_recv_buffer_size;

fn start(policy: FileDelivery, backend: &'static str, root: &Path) -> Server {
    // Every file is sent from disk.
    let mut limits = Limits::default();
    limits.max_cached_file_bytes = 0;
    Server::start(backend, config(policy, root), limits)
}

fn config(policy: FileDelivery, root: &Path) -> Config {
    Config::default().with(|c| {
        c.roots = vec![root.to_owned()];
        c.send_policy = policy.send_policy();
        c.socket_buffers = BufferSizes { send: Some(16 * 1024), receive: None };
    })
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
fn ranges_of_a_changed_file_were_of_two_versions() {
    for change in [Change::Overwritten, Change::Copied] {
        on_all(|policy, backend| {
            let root = tempfile::tempdir().unwrap();
            let server = start(policy, backend, root.path());
            for ranges in ranges() {
                restore(root.path());
                let stream = server.connect().stream;
                let what = format!("{policy} {backend}");
                change.download_ranges(root.path(), stream, &ranges, &what);
            }
            server.stop();
        });
    }
}

#[test]
fn client_that_never_reads_does_not_delay_others() {
    const SILENT: usize = 8;
    let root = directory();
    let file = write(&root.path().join(name(LARGE)), contents(LARGE));
    on_all(|policy, backend| {
        let mut limits = Limits::default();
        limits.max_cached_file_bytes = 0;
        limits.progress_interval = Duration::from_secs(600);
        let drain_timeout = Duration::from_millis(100);
        let config = config(policy, root.path()).with(|c| c.drain_timeout = drain_timeout);
        let server = Server::start(backend, config, limits);
        let request = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", name(LARGE));
        let connect = |_| connect_with_small_buffer(server.address);
        evict(&file);
        let mut silent: Vec<_> = (0..SILENT).map(connect).collect();
        silent.iter_mut().for_each(|client| client.send(request.as_bytes()));
        silent.iter().for_each(Client::wait_readable);
        let response = server.connect().get(&format!("/{}", name(LARGE)));
        assert!(response.body == contents(LARGE), "{policy} {backend}");
        // The silent clients are there until the end.
        let stats: Stats = server.stop();
        assert_eq!(stats.cut_at_stop, SILENT as u64, "{policy} {backend}");
        silent.iter_mut().for_each(Client::expect_reset);
        if policy == FileDelivery::Plain {
            assert_eq!(stats.read_ahead, 0, "{backend}");
        }
        if policy == FileDelivery::Ded {
            let min = LARGE.div_ceil(MAX_READ_BYTES as usize) as u64;
            assert!(stats.read_ahead >= min, "{backend}: {}", stats.read_ahead);
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
        limits.progress_interval = Duration::from_secs(2);
        let server = Server::start(backend, config(policy, root.path()), limits);
        evict(&file);
        let mut slow = server.connect();
        set_socket_recv_buffer_size(&slow.stream, 4_096).unwrap();
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
