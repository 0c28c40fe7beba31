//! The ring: operations and completions, one by one and in batches.
//!
//! A round sends 64 bytes through each of a number of socket pairs, and ends when all have been
//! sent and received. The same over epoll, through the same trait, is the comparison.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shared_ring::buffers::{BufferGroup, GatherList};
use shared_ring::poller::Epoll;
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    Engine, EngineConfig, Fd, Kernel, Op, OpKind, Outcome, Socket, Submitted, Token,
};

const BYTES: &[u8] = &[b'r'; 64];

/// Socket pairs, each with a receive in flight at one end.
struct Pairs<K> {
    kernel: K,
    senders: Vec<Fd>,
    #[expect(clippy::vec_box, reason = "operations take and return boxes")]
    lists: Vec<Box<GatherList>>,
}

/// Returns the number of a socket, which stays open.
fn number(socket: UnixStream) -> Fd {
    // SAFETY: the owner is consumed, so nothing closes the descriptor.
    unsafe { Socket::from(OwnedFd::from(socket)).fd() }
}

impl<K: Kernel> Pairs<K> {
    fn new(mut kernel: K, count: u32) -> Self {
        let mut senders = Vec::new();
        for slot in 0..count {
            let (ours, theirs) = UnixStream::pair().expect("a socket pair can be created");
            for end in [&ours, &theirs] {
                end.set_nonblocking(true).expect("O_NONBLOCK can be set");
            }
            senders.push(number(ours));
            let receive = Op::Receive { fd: number(theirs), group: BufferGroup::DEFAULT };
            kernel
                .submit(Token::new(OpKind::Receive, slot, 0), receive)
                .expect("the queue has space");
        }
        let lists = (0..count).map(|_| Box::default()).collect();
        Pairs { kernel, senders, lists }
    }

    fn round(&mut self) {
        let mut open = 2 * self.senders.len();
        let mut sent = Vec::with_capacity(self.senders.len());
        for (slot, fd) in self.senders.iter().enumerate() {
            let mut data = self.lists.pop().expect("all lists have been returned");
            data.constant(BYTES);
            let token = Token::new(OpKind::Send, slot as u32, 0);
            match self
                .kernel
                .submit(token, Op::Send { fd: *fd, data })
                .expect("the queue has space")
            {
                Submitted::InFlight => {}
                Submitted::Done(Outcome::Sent(list, _)) => sent.push(list),
                Submitted::Done(other) => panic!("{other:?}"),
            }
        }
        open -= sent.len();
        self.lists.append(&mut sent);
        while open > 0 {
            self.kernel.turn(None).expect("the turn succeeds");
            while let Some(completion) = self.kernel.next() {
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
    let config = UringConfig::new(Mode::Deferred, 1024, 256, 4096);
    UringKernel::new(&config).inspect_err(|reason| eprintln!("uring is skipped: {reason}")).ok()
}

fn epoll() -> Engine<Epoll> {
    let config = EngineConfig::new(1024, 256, 4096);
    Engine::new(Epoll::new().expect("epoll is available"), &config)
        .expect("the waker can be created")
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

/// Runs a turn that ends at once.
fn empty_turn(kernel: &mut impl Kernel, past: Instant) {
    kernel.turn(Some(past)).expect("the turn succeeds");
    while kernel.next().is_some() {}
}

/// A turn without completions: the minimum cost of a loop iteration.
fn empty_turns(c: &mut Criterion) {
    let mut group = c.benchmark_group("empty turn");
    let past = Instant::now().checked_sub(Duration::from_secs(1));
    let past = past.expect("the machine has been up for a second");
    if let Some(mut kernel) = uring() {
        group.bench_function("uring", |b| {
            b.iter(|| empty_turn(&mut kernel, past));
        });
    }
    let mut kernel = epoll();
    group.bench_function("epoll", |b| {
        b.iter(|| empty_turn(&mut kernel, past));
    });
    group.finish();
}

criterion_group!(benches, rounds, empty_turns);
criterion_main!(benches);
