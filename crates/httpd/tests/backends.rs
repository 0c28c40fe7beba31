//! The same server on every mechanism, over real sockets.

use crate::serving;
use crate::stage::bad;

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bad::{Bad, bad};
use evring_httpd::Config;
use evring_httpd::evring::sockets::BufferSizes;
use evring_httpd::options::Limits;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use serving::{Client, Server, on_every_backend, on_every_backend_at_once};
use tempfile::TempDir;

const SIZES: [usize; 12] =
    [0, 1, 12, 100, 4095, 4096, 4097, 65535, 65536, 65537, 1_000_000, 10_000_000];

/// Contents with a long period, so that a shifted part is noticed.
fn contents(len: usize) -> Vec<u8> {
    let mut x = 1u32;
    let next = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    (0..len).map(next).collect()
}

fn site(sizes: &[usize]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for size in sizes {
        write(root.path(), &format!("{size}.bin"), &contents(*size));
    }
    root
}

fn write(root: &Path, name: &str, contents: &[u8]) {
    fs::write(root.join(name), contents).unwrap();
}

fn config(root: &TempDir) -> Config {
    Config::default().with(|c| c.roots = vec![root.path().to_owned()])
}

fn serve(backend: &'static str, root: &TempDir) -> Server {
    Server::start(backend, config(root), Limits::default())
}

#[test]
fn files_of_every_size_are_sent_unchanged() {
    let root = site(&SIZES);
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        let mut client = server.connect();
        for size in SIZES.into_iter().chain(SIZES) {
            let target = format!("/{size}.bin");
            let response = client.get(&target);
            assert_eq!((response.status, response.body.len()), (200, size), "{backend} {target}");
            assert!(response.body == contents(size), "{backend} {target}");
            client.send(format!("HEAD {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            let head = client.response(false);
            assert_eq!(head.field("Content-Length"), Some(&*size.to_string()));
        }
    });
}

#[test]
fn http_1_0_requests_use_one_connection_each() {
    let root = site(&SIZES);
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        for size in SIZES.into_iter().chain(SIZES) {
            let mut client = server.connect();
            client.send(format!("GET /{size}.bin HTTP/1.0\r\n\r\n").as_bytes());
            let response = client.response(true);
            assert_eq!(response.field("Connection"), Some("close"));
            assert!(response.body == contents(size), "{backend} {size}");
            client.expect_end();
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (24, 24), "{backend}");
    });
}

#[test]
fn sixteen_pipelined_requests_are_answered_in_order() {
    let root = site(&SIZES);
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        let mut client = server.connect();
        for sizes in [[12; 16], std::array::from_fn(|i| SIZES[i % 11]), [65_537; 16]] {
            let request = |size| format!("GET /{size}.bin HTTP/1.1\r\nHost: a\r\n\r\n");
            client.send(sizes.map(request).concat().as_bytes());
            for (i, size) in sizes.into_iter().enumerate() {
                let response = client.response(true);
                assert!(response.body == contents(size), "{backend} {i} {size}");
                assert_eq!(response.field("Connection"), None);
            }
        }
    });
}

#[test]
fn twenty_pipelined_large_files_are_sent_in_order() {
    let root = site(&SIZES);
    let all = contents(1_000_000);
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        let mut client = server.connect();
        let sizes: [usize; 20] = std::array::from_fn(|i| [65_537, 1_000_000][i % 2]);
        let request = |size| format!("GET /{size}.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        client.send(sizes.map(request).concat().as_bytes());
        for (i, size) in sizes.into_iter().enumerate() {
            let response = client.response(true);
            assert!(response.body == all[..size], "{backend} {i} {size}");
            assert_eq!(response.field("Connection"), None);
        }
        assert!(client.get("/12.bin").body == contents(12), "{backend}");
    });
}

#[test]
fn requests_can_be_split_anywhere() {
    let root = site(&SIZES);
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        let mut client = server.connect();
        let request =
            b"GET /100.bin HTTP/1.1\r\nHost: a\r\n\r\nHEAD /1.bin HTTP/1.1\r\nHost: a\r\n\r\n";
        for at in 0..request.len() {
            client.send(&request[..at]);
            std::thread::yield_now();
            client.send(&request[at..]);
            assert!(client.response(true).body == contents(100), "{backend} {at}");
            assert_eq!(client.response(false).field("Content-Length"), Some("1"));
        }
        for byte in request {
            client.send(&[*byte]);
        }
        assert!(client.response(true).body == contents(100), "{backend}");
        client.response(false);
    });
}

#[test]
fn malformed_requests_get_the_same_error_on_every_backend() {
    let root = site(&SIZES);
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        for Bad(request, status) in bad() {
            let name = String::from_utf8_lossy(&request[..request.len().min(80)]).into_owned();
            let mut client = server.connect();
            client.send_rejected(&request);
            let response = client.response(true);
            assert_eq!(response.status, status, "{backend} {name:?}");
            assert_eq!(response.field("Connection"), Some("close"), "{backend} {name:?}");
            client.expect_end();
        }
        assert!(server.connect().get("/1.bin").status == 200);
    });
}

#[test]
fn error_response_is_received_while_the_client_still_sends() {
    let root = site(&SIZES);
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        let mut client = server.connect();
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
        client.send(&[b'x'; 500_000]);
        assert_eq!(client.response(true).status, 405, "{backend}");
        client.send_rejected(&[b'x'; 500_000]);
        client.expect_end();
    });
}

#[test]
fn small_socket_buffers_do_not_change_responses() {
    let root = site(&SIZES);
    on_every_backend(|backend| {
        let sockets = BufferSizes { send: Some(4096), receive: Some(4096) };
        let config = config(&root).with(|c| c.socket_buffers = sockets);
        let server = Server::start(backend, config, Limits::default());
        let mut client = server.connect();
        let sizes = [1_000_000, 65_536, 4097, 12, 65_537, 65_536, 100];
        let request = |size| format!("GET /{size}.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        client.send(sizes.map(request).concat().as_bytes());
        for size in sizes {
            assert!(client.response(true).body == contents(size), "{backend} {size}");
        }
    });
}

#[test]
fn changed_file_is_served_with_a_zero_ttl() {
    let root = site(&[12]);
    on_every_backend(|backend| {
        write(root.path(), "12.bin", b"before");
        let mut limits = Limits::default();
        limits.cache_ttl = Duration::ZERO;
        let server = Server::start(backend, config(&root), limits);
        let mut client = server.connect();
        for text in ["before", "before", "after", "longer than that", "short", "again"] {
            // A rename changes the inode, independent of the clocks.
            write(root.path(), "new", text.as_bytes());
            fs::rename(root.path().join("new"), root.path().join("12.bin")).unwrap();
            for _ in 0..2 {
                assert_eq!(client.get("/12.bin").body, text.as_bytes(), "{backend}");
            }
        }
        fs::remove_file(root.path().join("12.bin")).unwrap();
        assert_eq!(client.get("/12.bin").status, 404, "{backend}");
    });
}

#[test]
fn changed_file_is_served_after_the_default_ttl() {
    let root = site(&[12]);
    let backend = evring_httpd::evring::mechanisms::auto().unwrap().name;
    let server = serve(backend, &root);
    let mut client = server.connect();
    assert!(client.get("/12.bin").body == contents(12));
    write(root.path(), "12.bin", b"changed");
    let start = Instant::now();
    while client.get("/12.bin").body != b"changed" {
        assert!(start.elapsed() < Limits::default().cache_ttl + Duration::from_secs(5));
    }
}

#[test]
fn files_outside_the_root_are_not_served() {
    let outside = site(&[12]);
    let root = site(&[12]);
    let link = |to: &Path, name: &str| {
        std::os::unix::fs::symlink(to, root.path().join(name)).unwrap();
    };
    link(&outside.path().join("12.bin"), "file-link");
    link(outside.path(), "directory-link");
    link(Path::new("../"), "up-link");
    link(Path::new("12.bin"), "inner-link");
    link(Path::new("loop"), "loop");
    let outside_name = outside.path().file_name().unwrap().to_str().unwrap();
    let absolute = outside.path().join("12.bin");
    let escapes = [
        ("/file-link".to_owned(), 404),
        ("/directory-link".to_owned(), 404),
        ("/directory-link/12.bin".to_owned(), 404),
        (format!("/up-link/{outside_name}/12.bin"), 404),
        ("/loop".to_owned(), 404),
        (format!("/{}", absolute.display()), 404),
        (format!("/../{outside_name}/12.bin"), 400),
        (format!("/%2e%2e/{outside_name}/12.bin"), 400),
        (format!("/x/../../{outside_name}/12.bin"), 400),
        ("/..%2f12.bin".to_owned(), 400),
    ];
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        assert!(server.connect().get("/inner-link").body == contents(12), "{backend}");
        for (target, status) in &escapes {
            assert_eq!(server.connect().get(target).status, *status, "{backend} {target}");
        }
    });
}

#[test]
fn other_file_types_are_not_found() {
    let root = site(&[12]);
    let fifo = root.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o644.into(), 0)
        .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        let mut client = server.connect();
        for target in ["/fifo", "/socket", "/none", "/12.bin/x", "/12.bin/"] {
            assert_eq!(client.get(target).status, 404, "{backend} {target}");
        }
        let name = "n".repeat(300);
        assert_eq!(client.get(&format!("/{name}")).status, 404, "{backend}");
        assert_eq!(client.get("/12.bin").status, 200, "{backend}");
    });
}

#[test]
fn connections_closed_early_by_clients_are_closed() {
    let root = site(&SIZES);
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        for request in ["", "GET", "GET /10000000.bin HTTP/1.1\r\nHost: a\r\n\r\n"] {
            for _ in 0..4 {
                let mut stream = TcpStream::connect(server.address).unwrap();
                stream.write_all(request.as_bytes()).unwrap();
                if request.len() > 3 {
                    let mut client = Client::new(stream);
                    client.response(false);
                }
            }
        }
        assert_eq!(server.connect().get("/12.bin").status, 200);
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (13, 13), "{backend}");
    });
}

#[test]
fn half_closed_connection_gets_all_responses() {
    let root = site(&SIZES);
    on_every_backend(|backend| {
        let server = serve(backend, &root);
        let mut client = server.connect();
        for size in [12, 65_536, 1_000_000] {
            client.send(format!("GET /{size}.bin HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        }
        client.end();
        for size in [12, 65_536, 1_000_000] {
            assert!(client.response(true).body == contents(size), "{backend} {size}");
        }
        client.expect_end();
    });
}

#[test]
fn slow_clients_are_closed_at_their_timeouts() {
    let root = site(&SIZES);
    let mut limits = Limits::default();
    // Longer than a busy machine takes to run a client, or to acknowledge a response.
    limits.header_timeout = Duration::from_secs(4);
    limits.keep_alive_timeout = Duration::from_secs(4);
    limits.progress_interval = Duration::from_secs(2);
    limits.min_rate = u32::MAX;
    on_every_backend_at_once(|backend| {
        let sockets = BufferSizes { send: Some(4096), receive: Some(4096) };
        let config = config(&root).with(|c| {
            c.socket_buffers = sockets;
            c.progress_interval = limits.progress_interval;
        });
        let server = Server::start(backend, config, limits.clone());
        let mut silent = server.connect();
        let mut partial = server.connect();
        partial.send(b"GET / HTTP/1.1\r\n");
        let mut idle = server.connect();
        idle.get("/12.bin");
        let mut stuck = server.connect();
        stuck.send(b"GET /10000000.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        silent.expect_end();
        assert_eq!(partial.response(true).status, 408, "{backend}");
        partial.expect_end();
        idle.expect_end();
        drop((silent, partial, idle));
        // The client that reads nothing is reset, too; waiting for it would take longer.
        let start = Instant::now();
        let stats = server.stop();
        assert!(start.elapsed() < Config::default().drain_timeout / 2, "{backend}");
        assert_eq!((stats.accepted, stats.closed), (4, 4), "{backend}");
        drop(stuck);
    });
}

/// A server with short timeouts and small socket buffers, so that it notices the client's progress.
fn with_short_timeouts(
    backend: &'static str,
    root: &TempDir,
    progress_interval: Duration,
) -> Server {
    let sockets = BufferSizes { send: Some(4096), receive: Some(4096) };
    let keep_alive_timeout = Duration::from_millis(50);
    let mut limits = Limits::default();
    limits.keep_alive_timeout = keep_alive_timeout;
    limits.progress_interval = progress_interval;
    Server::start(backend, config(root).with(|c| c.socket_buffers = sockets), limits)
}

const LARGE: &[u8] = b"GET /10000000.bin HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn client_that_does_not_read_a_large_file_is_reset() {
    let root = site(&SIZES);
    on_every_backend(|backend| {
        let server = with_short_timeouts(backend, &root, Duration::from_millis(50));
        let mut client = server.connect();
        client.send(LARGE);
        client.expect_reset();
    });
}

/// The kernel of the server takes the whole file, so the queue is empty at once.
#[test]
fn client_that_takes_nothing_was_kept_until_the_keep_alive_timeout() {
    let root = site(&[1_000_000]);
    let mut limits = Limits::default();
    limits.keep_alive_timeout = Duration::from_secs(3600);
    limits.progress_interval = Duration::from_millis(50);
    on_every_backend_at_once(|backend| {
        let server = Server::start(backend, config(&root), limits.clone());
        let mut client = server.connect();
        client.send(b"GET /1000000.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        client.expect_reset();
    });
}

#[test]
fn slow_client_gets_a_large_file_completely() {
    let root = site(&[600_000]);
    // Concurrently, as they mostly wait.
    std::thread::scope(|scope| {
        on_every_backend(|backend| {
            let root = &root;
            scope.spawn(move || {
                let server = with_short_timeouts(backend, root, Duration::from_secs(2));
                let mut client = server.connect();
                // Its kernel then asks for more after every few pieces.
                set_socket_recv_buffer_size(&client.stream, 16_384).unwrap();
                client.send(b"GET /600000.bin HTTP/1.1\r\nHost: a\r\n\r\n");
                // This takes several times the keep-alive timeout and the progress interval.
                let response = client.slow_response(4096, Duration::from_millis(20));
                assert!(response.body == contents(600_000), "{backend}");
            });
        });
    });
}

/// The kernel's send buffer takes megabytes at once, and then nothing for a long time.
#[test]
fn steady_client_was_reset_while_the_send_buffer_was_full() {
    let root = site(&[10_000_000]);
    std::thread::scope(|scope| {
        on_every_backend(|backend| {
            let root = &root;
            scope.spawn(move || {
                let progress_interval = Duration::from_secs(2);
                let mut limits = Limits::default();
                limits.progress_interval = progress_interval;
                limits.min_rate = 100_000;
                let server = Server::start(backend, config(root), limits);
                let mut client = server.connect();
                client.send(LARGE);
                let response = client.slow_response(30_000, Duration::from_millis(10));
                assert!(response.body == contents(10_000_000), "{backend}");
            });
        });
    });
}
