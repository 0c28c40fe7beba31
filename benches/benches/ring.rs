//! The ring: operations go in, completions come out, one by one and in batches.
//!
//! A round sends 64 bytes through each of a number of socket pairs and ends when all have been
//! sent and received. The same over epoll, through the same trait, is there to compare with.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shared_ring::poller::Epoll;
use shared_ring::{
    Batch, Engine, EngineConfig, Fd, GatherList, Kernel, Mode, Op, OpKind, Outcome, Socket,
    Submitted, Token, UringConfig, UringKernel,
};

const BYTES: &[u8] = &[b'r'; 64];

/// Socket pairs, each with a receive in flight at one end.
struct Pairs<K> {
    kernel: K,
    senders: Vec<Fd>,
    #[expect(clippy::vec_box, reason = "operations want them in boxes, and give them back so")]
    lists: Vec<Box<GatherList>>,
    batch: Batch,
}

/// The number of a socket that stays open.
fn number(socket: UnixStream) -> Fd {
    // SAFETY: the owner is dropped, so nobody closes it.
    unsafe { Socket::from(OwnedFd::from(socket)).fd() }
}

impl<K: Kernel> Pairs<K> {
    fn new(mut kernel: K, count: u32) -> Self {
        let mut senders = Vec::new();
        for slot in 0..count {
            let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
            for end in [&ours, &theirs] {
                end.set_nonblocking(true).expect("a socket can be non-blocking");
            }
            senders.push(number(ours));
            let receive = Op::Receive { fd: number(theirs) };
            kernel.submit(Token::new(OpKind::Receive, slot, 0), receive).expect("there is room");
        }
        let lists = (0..count).map(|_| Box::default()).collect();
        Pairs { kernel, senders, lists, batch: Batch::new() }
    }

    fn round(&mut self) {
        let mut open = 2 * self.senders.len();
        let mut sent = Vec::with_capacity(self.senders.len());
        for (slot, fd) in self.senders.iter().enumerate() {
            let mut data = self.lists.pop().expect("all have come back");
            data.constant(BYTES);
            let token = Token::new(OpKind::Send, slot as u32, 0);
            match self.kernel.submit(token, Op::Send { fd: *fd, data }).expect("there is room") {
                Submitted::InFlight => {}
                Submitted::Done(Outcome::Sent(list, _)) => sent.push(list),
                Submitted::Done(other) => panic!("{other:?}"),
            }
        }
        open -= sent.len();
        self.lists.append(&mut sent);
        while open > 0 {
            self.kernel.turn_into(None, &mut self.batch).expect("the kernel goes on");
            for completion in self.batch.drain(..) {
                match completion.outcome {
                    Outcome::Sent(list, n) if n == BYTES.len() => self.lists.push(list),
                    Outcome::Received(bytes) if bytes.len() == BYTES.len() => {}
                    other => panic!("{other:?}"),
                }
                open -= 1;
            }
        }
    }
}

fn uring() -> Option<UringKernel> {
    let config =
        UringConfig { mode: Mode::Deferred, operations: 1024, buffers: 256, buffer_size: 4096 };
    UringKernel::new(&config).inspect_err(|why| eprintln!("uring is left out: {why}")).ok()
}

fn epoll() -> Engine<Epoll> {
    let config = EngineConfig { operations: 1024, buffers: 256, buffer_size: 4096 };
    Engine::new(Epoll::new().expect("epoll"), &config).expect("a descriptor for the waker")
}

fn rounds(c: &mut Criterion) {
    let mut group = c.benchmark_group("send and receive 64 bytes");
    for count in [1, 8, 32, 128] {
        group.throughput(Throughput::Elements(u64::from(count)));
        if let Some(kernel) = uring() {
            let mut pairs = Pairs::new(kernel, count);
            group.bench_function(BenchmarkId::new("uring", count), |b| b.iter(|| pairs.round()));
        }
        let mut pairs = Pairs::new(epoll(), count);
        group.bench_function(BenchmarkId::new("epoll", count), |b| b.iter(|| pairs.round()));
    }
    group.finish();
}

/// A turn that finds nothing: the least that a loop pays for looking.
fn empty_turns(c: &mut Criterion) {
    let mut group = c.benchmark_group("empty turn");
    let mut batch = Batch::new();
    let past = Instant::now().checked_sub(Duration::from_secs(1));
    let past = past.expect("the machine has been up for a second");
    if let Some(mut kernel) = uring() {
        group.bench_function("uring", |b| {
            b.iter(|| kernel.turn_into(Some(past), &mut batch).expect("the kernel goes on"));
        });
    }
    let mut kernel = epoll();
    group.bench_function("epoll", |b| {
        b.iter(|| kernel.turn_into(Some(past), &mut batch).expect("the kernel goes on"));
    });
    group.finish();
}

criterion_group!(benches, rounds, empty_turns);
criterion_main!(benches);
