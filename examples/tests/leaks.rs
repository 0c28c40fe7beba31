//! No leaks, whatever peers do. A single test in a separate process, as it counts the process' descriptors.

mod support;

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use evring::{AnyMechanism, Application};
use evring_tls::{Certificates, Layer, Tls, TlsConfig, server_config};
use examples::{Echo, Proxy, Timeouts, Xor};
use kv::Kv;
use support::client::Client;
use support::{Server, config, on_each, pattern, refuse};

/// Returns the open descriptors of this process.
fn open_descriptors() -> Vec<PathBuf> {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let mut open: Vec<_> = all.map(|fd| fs::read_link(fd.unwrap().path()).unwrap()).collect();
    open.sort_unstable();
    open
}

fn kv() -> Kv {
    Kv::with_memory(1 << 20, 0).unwrap()
}

/// Behaves like broken clients.
///
/// Returns connections that are still open.
fn connect_broken_clients(server: &Server) -> Vec<Client> {
    let connect = || Client::connect(server.address);
    for round in 0..4 {
        connect().reset();
        drop(connect());

        let mut client = connect();
        client.send(b"x");
        client.reset();

        let mut client = connect();
        client.send(&pattern(5_000 * round));
        client.end();
        drop(client);

        let mut client = connect();
        for byte in b"get a\r\nset b 0 0 4\r\nab" {
            client.send(&[*byte]);
        }
        drop(client);

        let mut never_reads = Client::narrow(server.address);
        never_reads.send(b"get a b c d\r\n");
        never_reads.reset();
    }
    let mut idle = connect();
    idle.send(b"\x16\x03\x01");
    // All applications reply to this; once the reply arrives, all earlier connections were accepted.
    let mut last = connect();
    last.send(b"\r\n\x0c\x0b and a few bytes more");
    last.0.read_exact(&mut [0]).expect("a reply");
    vec![last, idle]
}

/// Connects clients that are rejected.
fn connect_rejected_clients(server: &Server) -> Vec<Client> {
    for _ in 0..10 {
        if let Ok(mut client) = Client::try_connect(server.address) {
            client.read_to_end();
        }
    }
    Vec::new()
}

/// Serves these clients. Returns the open connections and the number of accepted ones.
fn serve<A: Application + 'static>(
    backend: &'static str,
    app: impl FnOnce() -> A + Send + 'static,
    peers: impl FnOnce(&Server) -> Vec<Client>,
) -> (Vec<Client>, u64) {
    let server = Server::start(backend, config().with(|c| c.buffers = 4), app);
    let open = peers(&server);
    (open, server.stop().accepted)
}

fn run<A: Application + 'static>(
    backend: &'static str,
    name: &str,
    app: impl FnOnce() -> A + Send + 'static,
    peers: impl FnOnce(&Server) -> Vec<Client>,
) {
    let before = open_descriptors();
    let (open, accepted) = serve(backend, app, peers);
    drop(open);
    assert!(accepted >= 10, "{name}: only {accepted} were accepted");
    assert_eq!(open_descriptors(), before, "{name} left descriptors open");
}

#[test]
fn no_descriptor_and_no_connection_leaks() {
    let certificates = Arc::new(Certificates::self_signed(&["localhost"]).unwrap());
    let tls = TlsConfig::from(server_config(certificates, None, &[]).unwrap());
    on_each(|backend| {
        let before = open_descriptors();
        for _ in 0..20 {
            drop(AnyMechanism::new(backend, &config()).unwrap());
        }
        assert_eq!(open_descriptors(), before, "dropped mechanisms left descriptors open");

        run(backend, "echo", || Echo, connect_broken_clients);
        run(backend, "kv", kv, connect_broken_clients);
        run(backend, "xor", || Layer::<_, Xor>::new(1, kv()).unwrap(), connect_broken_clients);
        let tls = tls.clone();
        run(backend, "tls", || Tls::new(tls, kv()).unwrap(), connect_broken_clients);

        let before = open_descriptors();
        let echo = Server::start(backend, config(), || Echo);
        let upstream = echo.address;
        let proxy = move || Proxy::new(upstream, Timeouts::default());
        let (peers, _) = serve(backend, proxy, connect_broken_clients);
        // The upstream server is notified slightly later than the proxy.
        drop((peers, echo.stop()));
        assert_eq!(open_descriptors(), before, "proxy and echo left descriptors open");
        let (_socket, refused) = refuse();
        let proxy = move || Proxy::new(refused, Timeouts::default());
        run(backend, "proxy without upstream", proxy, connect_rejected_clients);
    });
}
