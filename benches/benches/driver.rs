//! The driver: round trips of an echo server over loopback.
//!
//! The server runs in a thread. A round trip on one connection consists mostly of wake-ups; with 64
//! connections their cost is shared.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use evring::mechanisms::backends;
use evring::{AnyMechanism, Config, RemoteHandle};

const BYTES: [u8; 64] = [b'd'; 64];

struct Server {
    address: SocketAddr,
    remote: RemoteHandle,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(name: &'static str) -> Self {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
            let server = AnyMechanism::new(name, &Config::default().with(|c| c.listen = listen));
            let server = server.expect("the mechanism is available");
            sender.send((server.addresses()[0], server.remote())).expect("the receiver is waiting");
            server.run(examples::Echo).expect("the loop runs until it is stopped");
        });
        let (address, remote) = receiver.recv().expect("the server starts");
        Server { address, remote, thread: Some(thread) }
    }

    fn connect(&self, count: usize) -> Vec<TcpStream> {
        let connect = |_| {
            let stream = TcpStream::connect(self.address).expect("the server listens");
            stream.set_nodelay(true).expect("TCP_NODELAY can be set");
            stream
        };
        (0..count).map(connect).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.remote.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn round(streams: &mut [TcpStream]) {
    for stream in &mut *streams {
        stream.write_all(&BYTES).expect("the connection is open");
    }
    for stream in streams {
        stream.read_exact(&mut [0; BYTES.len()]).expect("the server replies");
    }
}

fn round_trips(c: &mut Criterion) {
    for count in [1, 64] {
        let mut group = c.benchmark_group(format!("echo of 64 bytes, {count} at once"));
        group.throughput(Throughput::Elements(count));
        for backend in backends().iter().filter(|b| b.available.is_ok()) {
            let server = Server::start(backend.name);
            let mut streams = server.connect(count as usize);
            let id = BenchmarkId::from_parameter(backend.name);
            group.bench_function(id, |b| b.iter(|| round(&mut streams)));
        }
        group.finish();
    }
}

criterion_group!(benches, round_trips);
criterion_main!(benches);
