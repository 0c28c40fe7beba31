//! Nothing is left over, whatever peers do. A single test in a process of its own, for it counts
//! the process' descriptors.

mod support;

use std::fs;
use std::sync::Arc;

use examples::{Echo, Kv, Layer, Proxy, Timeouts, Tls, Xor, server_config};
use multiplex::{Application, Config};
use support::client::Client;
use support::{Server, config, on_each, pattern};

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What bad peers do.
///
/// Returns connections that are still open.
fn misbehave(server: &Server) -> [Client; 2] {
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
    [connect(), idle]
}

fn run<A: Application + 'static>(
    backend: &'static str,
    name: &str,
    app: impl FnOnce() -> A + Send + 'static,
) {
    let before = open_descriptors();
    let server = Server::start(backend, Config { buffers: 4, ..config() }, app);
    let open = misbehave(&server);
    let stats = server.stop();
    drop(open);
    assert!(stats.accepted > 20, "{name}");
    assert_eq!(open_descriptors(), before, "{name} left descriptors open");
}

#[test]
fn no_descriptor_and_no_connection_is_left_over() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let tls = server_config(vec![made.cert.der().clone()], key).unwrap();
    on_each(|backend| {
        run(backend, "echo", || Echo);
        run(backend, "kv", || Kv::new(1 << 20));
        run(backend, "xor", || Layer::<_, Xor>::new(1, Kv::new(1 << 20)).unwrap());
        let tls = Arc::clone(&tls);
        run(backend, "tls", || Tls::new(tls, Kv::new(1 << 20)).unwrap());

        let behind = Server::start(backend, config(), || Echo);
        let upstream = behind.address;
        run(backend, "proxy", move || Proxy::new(upstream, Timeouts::default()));
        behind.stop();
        let gone = upstream;
        run(backend, "proxy to nobody", move || Proxy::new(gone, Timeouts::default()));
    });
}
