//! One behaviour suite for all kernels: the ring in each mode, and the engine over each poller, on
//! this machine and, with the feature `sim`, on a simulated one.
//!
//! Where they may differ: a simulated disk has no symbolic links, and a simulated listener's queue
//! never makes a client wait.

mod far;
mod number;

use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use far::{Far, Here, Stream};
use number::number;
use shared_ring::poller::{DevPoll, Epoll, EpollEdge, InterestPoller, Poll, RtSig, Select};
use shared_ring::{
    Batch, BufferSizes, Completion, Counters, Engine, EngineConfig, Errno, File, FileKind,
    GatherList, Host, Kernel, KernelError, ListenOptions, Mode, Op, OpKind, Outcome, Socket,
    Submit, SubmitError, SubmitErrorKind, Submitted, SymlinkPolicy, Token, UringConfig,
    UringKernel, Waker,
};

#[cfg(feature = "sim")]
use far::simulated::There;
#[cfg(feature = "sim")]
use shared_ring::sim::{CheckedKernel, SimDevPoll, SimInterest, SimKernel, SimPoller, SimRtSig};

/// Memory that is freed while a simulated kernel holds it fails a test.
#[cfg(feature = "sim")]
#[global_allocator]
static ALLOCATOR: shared_ring::sim::WatchingAllocator<std::alloc::System> =
    shared_ring::sim::WatchingAllocator(std::alloc::System);

/// What a test wants of its kernel.
#[derive(Clone, Copy)]
struct Room {
    operations: u32,
    buffers: u16,
    buffer_size: u32,
}

const ROOM: Room = Room { operations: 64, buffers: 8, buffer_size: 512 };

/// Runs a test on every kernel that can run here, and says so of the others.
macro_rules! on_every_kernel {
    ($test:ident) => {
        on_every_kernel!($test, ROOM);
    };
    ($test:ident, $room:expr) => {
        #[test]
        fn $test() {
            let Room { operations, buffers, buffer_size } = $room;
            let engine = EngineConfig { operations, buffers, buffer_size };
            macro_rules! over {
                ($name:literal, $poller:expr) => {
                    println!("engine over {}", $name);
                    let kernel = Engine::new($poller, &engine).unwrap();
                    cases::$test(Tested::new(kernel), &Here::new());
                };
            }
            over!("epoll", Epoll::new().unwrap());
            over!("edge-triggered epoll", EpollEdge::new().unwrap());
            over!("poll", Poll::default());
            over!("select", Select::default());
            over!("/dev/poll", DevPoll::new().unwrap());
            over!("declared interests", InterestPoller::new().unwrap());
            over!("real-time signals", RtSig::new().unwrap());
            for mode in MODES {
                let ring = UringConfig { mode, operations, buffers, buffer_size };
                match UringKernel::new(&ring) {
                    Ok(kernel) => {
                        println!("ring, {mode:?}");
                        cases::$test(Tested::new(kernel), &Here::new());
                    }
                    Err(missing) => println!("ring, {mode:?}: {missing}"),
                }
            }
            #[cfg(feature = "sim")]
            for seed in 0..SEEDS {
                for mode in MODES {
                    println!("simulated ring, {mode:?}, seed {seed}");
                    let far = There::new(seed);
                    let ring = UringConfig { mode, operations, buffers, buffer_size };
                    let kernel = SimKernel::new(&far.machine, &ring).unwrap();
                    cases::$test(Tested::new(kernel), &far);
                    far.check();
                }
                macro_rules! over {
                    ($name:literal, $poller:expr) => {
                        println!("simulated engine over {}, seed {seed}", $name);
                        let far = There::new(seed);
                        let kernel =
                            CheckedKernel::polling(&far.machine, $poller(&far.machine), &engine);
                        cases::$test(Tested::new(kernel.unwrap()), &far);
                        far.check();
                    };
                }
                over!("epoll", SimPoller::<false>::new);
                over!("edge-triggered epoll", SimPoller::<true>::new);
                over!("/dev/poll", SimDevPoll::simulated);
                over!("declared interests", |machine| SimInterest::simulated(machine, 3));
                over!("real-time signals", |machine| SimRtSig::simulated(machine, 3));
            }
        }
    };
}

const MODES: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Immediate];

/// How often each test is run on each simulated kernel.
#[cfg(feature = "sim")]
const SEEDS: u64 = 4;

on_every_kernel!(a_connection_lives_and_ends);
on_every_kernel!(a_receive_goes_on_until_it_is_cancelled);
on_every_kernel!(a_cancelled_name_can_be_used_again);
on_every_kernel!(a_cancel_does_not_reach_the_next_of_its_name);
on_every_kernel!(what_was_said_of_a_closed_socket_does_not_reach_the_next);
on_every_kernel!(connections_share_few_buffers, Room { buffers: 2, ..ROOM });
on_every_kernel!(a_starved_receive_can_be_cancelled, Room { buffers: 1, ..ROOM });
on_every_kernel!(a_long_list_arrives_in_order);
on_every_kernel!(a_send_to_a_full_socket_can_be_cancelled);
on_every_kernel!(connecting_succeeds_and_fails);
on_every_kernel!(files_are_opened_looked_at_and_read);
on_every_kernel!(no_path_leads_out_of_its_root);
on_every_kernel!(directories_are_listed);
on_every_kernel!(a_listing_in_flight_is_cancelled_or_left_behind);
on_every_kernel!(a_file_is_sent_and_its_end_shows);
on_every_kernel!(another_thread_ends_a_wait);
on_every_kernel!(a_wait_ends_at_its_deadline);
on_every_kernel!(no_turn_waits_while_a_completion_is_left);
on_every_kernel!(a_full_table_refuses, Room { operations: 2, ..ROOM });
on_every_kernel!(a_name_in_use_is_refused);
on_every_kernel!(accepts_are_bounded_in_each_turn);
on_every_kernel!(
    more_operations_than_the_queue_holds,
    Room { operations: 2000, buffers: 1024, ..ROOM }
);
on_every_kernel!(a_dropped_kernel_leaves_nothing_in_flight);
on_every_kernel!(a_dropped_kernel_closes_what_it_was_told_to, Room { operations: 2000, ..ROOM });

/// A kernel that delivers what is done at once with everything else.
struct Tested<K> {
    kernel: K,
    early: Batch,
}

impl<K: Kernel> Tested<K> {
    fn new(kernel: K) -> Self {
        Tested { kernel, early: Batch::new() }
    }
}

// SAFETY: it hands on what its kernel says.
unsafe impl<K: Kernel> Submit for Tested<K> {
    type Host = K::Host;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        if let Submitted::Done(outcome) = self.kernel.submit(token, op)? {
            self.early.push_back(Completion { token, outcome, last: true });
        }
        Ok(Submitted::InFlight)
    }

    fn cancel(&mut self, token: Token) {
        self.kernel.cancel(token);
    }

    fn finish(&mut self) {
        self.kernel.finish();
    }

    fn host(&self) -> &K::Host {
        self.kernel.host()
    }

    fn host_mut(&mut self) -> &mut K::Host {
        self.kernel.host_mut()
    }

    fn now(&self) -> Instant {
        self.kernel.now()
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn landed(&self) -> u32 {
        self.kernel.landed()
    }

    fn counters(&self) -> Counters {
        self.kernel.counters()
    }
}

impl<K: Kernel> Kernel for Tested<K> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        let until = if self.early.is_empty() { until } else { Some(self.now()) };
        self.kernel.turn(until)
    }

    fn next(&mut self) -> Option<Completion> {
        self.early.pop_front().or_else(|| self.kernel.next())
    }

    fn reap(&mut self) {
        self.kernel.reap();
    }
}

fn receive(slot: u32) -> Token {
    Token::new(OpKind::Receive, slot, 7)
}

fn send(slot: u32) -> Token {
    Token::new(OpKind::Send, slot, 7)
}

const ACCEPT: Token = Token::new(OpKind::Accept, 0, 0);
const FILE: Token = Token::new(OpKind::File, 0, 0);

const SMALL: BufferSizes = BufferSizes { send: Some(4096), receive: None };

/// A time at which a test that still waits has failed.
fn later(kernel: &impl Kernel) -> Instant {
    kernel.now() + Duration::from_secs(10)
}

/// Turns the kernel until it has something to say of `token`; the rest waits in `batch`.
fn next(kernel: &mut impl Kernel, batch: &mut Batch, token: Token) -> Completion {
    let until = later(kernel);
    loop {
        if let Some(at) = batch.iter().position(|c| c.token == token) {
            return batch.remove(at).unwrap();
        }
        assert!(kernel.now() < until, "nothing comes of {token:?}; got {batch:?}");
        kernel.turn_into(Some(until), batch).unwrap();
    }
}

/// Turns the kernel, and waits no longer than for what happens on its own.
fn soon(kernel: &mut impl Kernel, batch: &mut Batch) {
    kernel.turn_into(Some(kernel.now()), batch).unwrap();
    let until = kernel.now() + Duration::from_millis(50);
    kernel.turn_into(Some(until), batch).unwrap();
}

fn failure(completion: Completion) -> Errno {
    assert!(completion.last);
    match completion.outcome {
        Outcome::Failed(errno, _) => errno,
        other => panic!("not a failure: {other:?}"),
    }
}

fn listen(kernel: &mut impl Kernel) -> (Socket, SocketAddr) {
    let options =
        ListenOptions { backlog: 128, reuse_port: false, buffers: BufferSizes::default() };
    kernel.host_mut().listen("127.0.0.1:0".parse().unwrap(), &options).unwrap()
}

/// A connection: our end as the kernel's, theirs as a plain stream.
fn connection<F: Far>(
    kernel: &mut impl Kernel,
    far: &F,
    buffers: BufferSizes,
) -> (Socket, F::Stream) {
    let (listener, to) = far.listen();
    let socket = kernel.host_mut().socket(to, None, buffers).unwrap();
    let token = Token::new(OpKind::Connect, 99, 0);
    kernel.submit(token, Op::Connect { fd: number(&socket), to }).unwrap();
    let done = next(kernel, &mut Batch::new(), token);
    assert!(matches!(done.outcome, Outcome::Connected), "{done:?}");
    (socket, far.accept(&listener))
}

fn plain<F: Far>(kernel: &mut impl Kernel, far: &F) -> (Socket, F::Stream) {
    connection(kernel, far, BufferSizes::default())
}

fn gather(pieces: &[&[u8]]) -> Box<GatherList> {
    let mut list = Box::<GatherList>::default();
    for piece in pieces {
        list.shared(Bytes::copy_from_slice(piece));
    }
    list
}

fn close(kernel: &mut impl Kernel, socket: Socket) {
    let token = Token::new(OpKind::Close, 98, 0);
    kernel.submit(token, Op::Close { socket }).unwrap();
    let done = next(kernel, &mut Batch::new(), token);
    assert!(matches!(done.outcome, Outcome::Closed) && done.last);
}

fn path(text: &str) -> Arc<CStr> {
    CString::new(text).unwrap().into()
}

/// What comes in until the end or `n` bytes.
fn collect(kernel: &mut impl Kernel, batch: &mut Batch, token: Token, n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < n {
        match next(kernel, batch, token).outcome {
            Outcome::Received(buffer) => bytes.extend_from_slice(&buffer),
            Outcome::Eof => break,
            other => panic!("{other:?}"),
        }
    }
    bytes
}

/// What becomes of a send, while the other side takes what arrives.
fn next_while_reading(
    kernel: &mut impl Kernel,
    batch: &mut Batch,
    peer: &mut impl Stream,
    got: &mut Vec<u8>,
) -> Outcome {
    let until = later(kernel);
    loop {
        if let Some(at) = batch.iter().position(|c| c.token == send(0)) {
            return batch.remove(at).unwrap().outcome;
        }
        assert!(kernel.now() < until, "nothing comes of it");
        peer.read_some(got);
        let soon = kernel.now() + Duration::from_millis(1);
        kernel.turn_into(Some(soon), batch).unwrap();
    }
}

/// Cancels an operation and sees it end, once.
fn cancel(kernel: &mut impl Kernel, batch: &mut Batch, token: Token) {
    kernel.cancel(token);
    assert_eq!(failure(next(kernel, batch, token)), Errno::CANCELED);
}

mod cases {
    use super::*;

    pub(super) fn a_connection_lives_and_ends(mut kernel: impl Kernel, far: &impl Far) {
        let (listener, address) = listen(&mut kernel);
        kernel.submit(ACCEPT, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
        let mut batch = Batch::new();
        let mut peer = far.connect(address);
        let accepted = next(&mut kernel, &mut batch, ACCEPT);
        assert!(!accepted.last);
        let Outcome::Accepted(socket) = accepted.outcome else { panic!("{accepted:?}") };
        assert_eq!(kernel.host().peer_addr(&socket), Some(peer.address()));
        let fd = number(&socket);

        kernel.submit(receive(0), Op::Receive { fd }).unwrap();
        peer.write_all(b"ping");
        assert_eq!(collect(&mut kernel, &mut batch, receive(0), 4), b"ping");
        kernel.submit(send(0), Op::Send { fd, data: gather(&[b"po", b"ng"]) }).unwrap();
        let sent = next(&mut kernel, &mut batch, send(0));
        assert!(matches!(sent.outcome, Outcome::Sent(ref list, 4) if list.is_empty()), "{sent:?}");
        let mut back = [0; 4];
        peer.read_exact(&mut back);
        assert_eq!(&back, b"pong");

        peer.finish();
        let end = next(&mut kernel, &mut batch, receive(0));
        assert!(matches!(end.outcome, Outcome::Eof) && end.last);
        close(&mut kernel, socket);
        assert!(!peer.read_some(&mut Vec::new()), "the end");
        cancel(&mut kernel, &mut batch, ACCEPT);
        assert!(batch.is_empty(), "{batch:?}");
        kernel.host_mut().close_unused(listener);
    }

    pub(super) fn a_receive_goes_on_until_it_is_cancelled(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, mut peer) = plain(&mut kernel, far);
        let fd = number(&socket);
        let mut batch = Batch::new();
        kernel.submit(receive(3), Op::Receive { fd }).unwrap();
        for round in 0..50u8 {
            peer.write_all(&[round; 100]);
            assert_eq!(collect(&mut kernel, &mut batch, receive(3), 100), [round; 100]);
        }
        cancel(&mut kernel, &mut batch, receive(3));
        kernel.cancel(receive(3));
        close(&mut kernel, socket);
        assert!(batch.is_empty(), "one last completion and no more: {batch:?}");
    }

    pub(super) fn a_cancelled_name_can_be_used_again(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, mut peer) = plain(&mut kernel, far);
        let fd = number(&socket);
        let mut batch = Batch::new();
        for round in 0..100u8 {
            kernel.submit(receive(0), Op::Receive { fd }).unwrap();
            if round % 2 == 0 {
                kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
            }
            cancel(&mut kernel, &mut batch, receive(0));
        }
        kernel.submit(receive(0), Op::Receive { fd }).unwrap();
        peer.write_all(b"x");
        assert_eq!(collect(&mut kernel, &mut batch, receive(0), 1), b"x");
        assert!(batch.is_empty(), "{batch:?}");
    }

    pub(super) fn a_cancel_does_not_reach_the_next_of_its_name(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let (first, mut one) = plain(&mut kernel, far);
        let (second, mut two) = plain(&mut kernel, far);
        kernel.submit(receive(0), Op::Receive { fd: number(&first) }).unwrap();
        kernel.turn(Some(kernel.now())).unwrap();
        one.finish();
        kernel.turn(Some(later(&kernel))).unwrap();
        // Its end has landed, but was not looked at yet.
        kernel.cancel(receive(0));
        let mut end = kernel.next();
        while end.is_none() {
            kernel.turn(Some(kernel.now())).unwrap();
            end = kernel.next();
        }
        assert!(end.is_some_and(|end| end.token == receive(0) && end.last));
        kernel.submit(receive(0), Op::Receive { fd: number(&second) }).unwrap();
        let mut batch = Batch::new();
        kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
        two.write_all(b"x");
        assert_eq!(collect(&mut kernel, &mut batch, receive(0), 1), b"x");
    }

    pub(super) fn what_was_said_of_a_closed_socket_does_not_reach_the_next(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        if !far.makes_wait() {
            return;
        }
        let options =
            ListenOptions { backlog: 0, reuse_port: false, buffers: BufferSizes::default() };
        let (listener, to) =
            kernel.host_mut().listen("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        // It fills the queue, so that the next has to wait.
        let _queued = far.connect(to);
        let (socket, mut peer) = connection(&mut kernel, far, SMALL);
        let fd = number(&socket);
        let mut batch = Batch::new();
        let data = gather(&[&[b'x'; 8 << 20]]);
        kernel.submit(send(0), Op::Send { fd, data }).unwrap();
        let mut rest = match next(&mut kernel, &mut batch, send(0)).outcome {
            Outcome::Sent(rest, _) => Some(rest),
            other => panic!("{other:?}"),
        };
        let mut waits = false;
        while !waits {
            let data = rest.take().expect("what was sent comes back");
            kernel.submit(send(0), Op::Send { fd, data }).unwrap();
            kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
            match batch.pop_front() {
                Some(Completion { outcome: Outcome::Sent(list, _), .. }) => rest = Some(list),
                None => waits = true,
                other => panic!("{other:?}"),
            }
        }
        kernel.cancel(send(0));
        // Now there is room, which a poller reports along with the end of the send.
        peer.read_some(&mut Vec::new());
        kernel.turn(Some(later(&kernel))).unwrap();
        while !kernel.next().expect("the send ends").last {}
        kernel.submit(Token::new(OpKind::Close, 0, 0), Op::Close { socket }).unwrap();
        // Where the close is done already, one of these gets the number.
        let mut sockets: Vec<Socket> = Vec::new();
        while sockets.len() < 64 && sockets.last().map(number) != Some(fd) {
            sockets.push(kernel.host_mut().socket(to, None, BufferSizes::default()).unwrap());
        }
        let late = sockets.pop().unwrap();
        let token = Token::new(OpKind::Connect, 0, 0);
        kernel.submit(token, Op::Connect { fd: number(&late), to }).unwrap();
        kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
        assert!(!batch.iter().any(|c| c.token == token), "not connected yet: {batch:?}");
        cancel(&mut kernel, &mut batch, token);
        for socket in sockets.into_iter().chain([late, listener]) {
            kernel.host_mut().close_unused(socket);
        }
    }

    pub(super) fn connections_share_few_buffers(mut kernel: impl Kernel, far: &impl Far) {
        let mut batch = Batch::new();
        let mut connections: Vec<_> = (0..10).map(|_| plain(&mut kernel, far)).collect();
        for (slot, (socket, _)) in connections.iter().enumerate() {
            kernel.submit(receive(slot as u32), Op::Receive { fd: number(socket) }).unwrap();
        }
        // 2 buffers of 512 bytes for 10 times 5,000 bytes, all there at once.
        for (slot, (_, peer)) in connections.iter_mut().enumerate() {
            peer.write_all(&[slot as u8; 5000]);
        }
        let until = later(&kernel);
        let mut seen = [0; 10];
        while seen != [5000; 10] {
            assert!(kernel.now() < until, "stuck at {seen:?}");
            kernel.turn_into(Some(until), &mut batch).unwrap();
            for completion in batch.drain(..) {
                let slot = completion.token.slot() as usize;
                let Outcome::Received(bytes) = completion.outcome else { panic!("{completion:?}") };
                assert!(!completion.last && bytes.iter().all(|b| *b == slot as u8));
                seen[slot] += bytes.len();
            }
        }
        assert!(kernel.counters().buffer_shortages > 0);
    }

    pub(super) fn a_starved_receive_can_be_cancelled(mut kernel: impl Kernel, far: &impl Far) {
        let mut batch = Batch::new();
        let (first, mut one) = plain(&mut kernel, far);
        let (second, mut two) = plain(&mut kernel, far);
        kernel.submit(receive(0), Op::Receive { fd: number(&first) }).unwrap();
        one.write_all(b"x");
        let held = next(&mut kernel, &mut batch, receive(0));
        kernel.submit(receive(1), Op::Receive { fd: number(&second) }).unwrap();
        two.write_all(b"y");
        while kernel.counters().buffer_shortages == 0 {
            soon(&mut kernel, &mut batch);
        }
        cancel(&mut kernel, &mut batch, receive(1));
        drop(held);
        kernel.submit(receive(1), Op::Receive { fd: number(&second) }).unwrap();
        assert_eq!(collect(&mut kernel, &mut batch, receive(1), 1), b"y");
    }

    pub(super) fn a_long_list_arrives_in_order(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, mut peer) = connection(&mut kernel, far, SMALL);
        let fd = number(&socket);
        let pieces: Vec<Vec<u8>> = (0..60u8).map(|i| vec![i; 20_000]).collect();
        let expected = pieces.concat();
        let (mut got, mut batch) = (Vec::new(), Batch::new());
        let mut list = gather(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>());
        while !list.is_empty() {
            let before = list.len();
            kernel.submit(send(0), Op::Send { fd, data: list }).unwrap();
            let sent = next_while_reading(&mut kernel, &mut batch, &mut peer, &mut got);
            let Outcome::Sent(rest, n) = sent else { panic!("not sent") };
            assert!(n > 0 && n <= GatherList::MAX_BYTES && rest.len() == before - n);
            list = rest;
        }
        while got.len() < expected.len() && peer.read_some(&mut got) {}
        assert!(got == expected);
        assert!(kernel.counters().short_sends > 0);
    }

    pub(super) fn a_send_to_a_full_socket_can_be_cancelled(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let (socket, _peer) = connection(&mut kernel, far, SMALL);
        let fd = number(&socket);
        let mut batch = Batch::new();
        let block = vec![0; 250_000];
        // Fill it until a send stays in flight.
        for round in 0.. {
            assert!(round < 1000, "the socket takes everything");
            kernel.submit(send(0), Op::Send { fd, data: gather(&[&block]) }).unwrap();
            soon(&mut kernel, &mut batch);
            if batch.pop_front().is_none() {
                break;
            }
        }
        kernel.cancel(send(0));
        let done = next(&mut kernel, &mut batch, send(0));
        assert!(done.last);
        match done.outcome {
            Outcome::Failed(Errno::CANCELED, Some(list)) => assert!(!list.is_empty()),
            // The ring tells how much went out before.
            Outcome::Sent(list, n) => assert_eq!(list.len() + n, block.len()),
            other => panic!("{other:?}"),
        }
        close(&mut kernel, socket);
        assert!(batch.is_empty());
    }

    pub(super) fn connecting_succeeds_and_fails(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, _peer) = plain(&mut kernel, far);
        close(&mut kernel, socket);
        let gone = far.nobody();
        let socket = kernel.host_mut().socket(gone, None, BufferSizes::default()).unwrap();
        let token = Token::new(OpKind::Connect, 0, 0);
        kernel.submit(token, Op::Connect { fd: number(&socket), to: gone }).unwrap();
        let done = next(&mut kernel, &mut Batch::new(), token);
        assert_eq!(failure(done), Errno::CONNREFUSED);
        close(&mut kernel, socket);
    }

    fn folder(kernel: &mut impl Kernel, far: &impl Far) -> File {
        far.add_file("file", b"0123456789");
        far.add_file("inner/other", b"");
        kernel.host_mut().open_directory(&far.root()).unwrap()
    }

    fn open(kernel: &mut impl Kernel, root: &File, name: &str) -> Outcome {
        kernel
            .submit(
                FILE,
                Op::Open { root: root.clone(), path: path(name), symlinks: SymlinkPolicy::Beneath },
            )
            .unwrap();
        let done = next(kernel, &mut Batch::new(), FILE);
        assert!(done.last);
        done.outcome
    }

    pub(super) fn files_are_opened_looked_at_and_read(mut kernel: impl Kernel, far: &impl Far) {
        let root = folder(&mut kernel, far);
        let Outcome::Opened(opened) = open(&mut kernel, &root, "file") else { panic!() };
        let (file, meta) = *opened;
        assert_eq!((meta.kind, meta.len), (FileKind::Regular, 10));
        if far.has_links() {
            let expected = std::fs::metadata(far.root().join("file")).unwrap().modified().unwrap();
            assert_eq!(meta.modified(), expected);
        }
        let mut batch = Batch::new();
        for (offset, len, expected) in
            [(0, 10, "0123456789"), (3, 4, "3456"), (8, 100, "89"), (10, 1, ""), (99, 1, "")]
        {
            kernel.submit(FILE, Op::Read { file: file.clone(), offset, len }).unwrap();
            let Outcome::Read(bytes) = next(&mut kernel, &mut batch, FILE).outcome else {
                panic!()
            };
            assert_eq!(&*bytes, expected.as_bytes());
        }
        for (name, expected) in [("file", meta.kind), ("inner", FileKind::Directory)] {
            let (root, symlinks) = (root.clone(), SymlinkPolicy::Beneath);
            kernel.submit(FILE, Op::Stat { root, path: path(name), symlinks }).unwrap();
            let Outcome::Stat(meta) = next(&mut kernel, &mut batch, FILE).outcome else { panic!() };
            assert_eq!(meta.kind, expected);
        }
        let Outcome::Failed(errno, None) = open(&mut kernel, &root, "absent") else { panic!() };
        assert_eq!(errno, Errno::NOENT);
    }

    pub(super) fn no_path_leads_out_of_its_root(mut kernel: impl Kernel, far: &impl Far) {
        let root = folder(&mut kernel, far);
        let mut names = vec!["../file", "/etc/hostname", "inner/../../file"];
        if far.has_links() {
            symlink("/etc/hostname", far.root().join("far")).unwrap();
            symlink("../inner/../file", far.root().join("inner/near")).unwrap();
            names.push("far");
            assert!(matches!(open(&mut kernel, &root, "inner/near"), Outcome::Opened(..)));
        }
        for name in names {
            match open(&mut kernel, &root, name) {
                Outcome::Failed(errno, None) => assert_eq!(errno, Errno::XDEV, "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    pub(super) fn directories_are_listed(mut kernel: impl Kernel, far: &impl Far) {
        let root = folder(&mut kernel, far);
        if far.has_links() {
            symlink("/etc/hostname", far.root().join("far")).unwrap();
            symlink("../file", far.root().join("inner/near")).unwrap();
        }
        let mut names = |name: &str, symlinks| {
            let op = Op::List { root: root.clone(), path: path(name), symlinks };
            kernel.submit(FILE, op).unwrap();
            match next(&mut kernel, &mut Batch::new(), FILE).outcome {
                Outcome::Listed(listing) => {
                    assert!(listing.is_complete);
                    let entries = listing.entries.into_iter();
                    let mut names: Vec<_> = entries
                        .map(|(name, meta)| (name.into_string().unwrap(), meta.kind))
                        .collect();
                    names.sort_by(|a, b| a.0.cmp(&b.0));
                    Ok(names)
                }
                Outcome::Failed(errno, None) => Err(errno),
                other => panic!("{other:?}"),
            }
        };
        let entry = |name: &str, kind| (name.to_owned(), kind);
        let (file, inner) = (entry("file", FileKind::Regular), entry("inner", FileKind::Directory));
        assert_eq!(names(".", SymlinkPolicy::Beneath), Ok(vec![file.clone(), inner.clone()]));
        let other = entry("other", FileKind::Regular);
        if far.has_links() {
            let distant = entry("far", FileKind::Regular);
            assert_eq!(names(".", SymlinkPolicy::Anywhere), Ok(vec![distant, file, inner]));
            let near = entry("near", FileKind::Regular);
            assert_eq!(names("inner", SymlinkPolicy::Beneath), Ok(vec![near, other]));
        } else {
            assert_eq!(names("inner", SymlinkPolicy::Beneath), Ok(vec![other]));
        }
        assert_eq!(names("file", SymlinkPolicy::Beneath), Err(Errno::NOTDIR));
        assert_eq!(names("absent", SymlinkPolicy::Beneath), Err(Errno::NOENT));
        assert_eq!(names("..", SymlinkPolicy::Beneath), Err(Errno::XDEV));
    }

    pub(super) fn a_listing_in_flight_is_cancelled_or_left_behind(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let root = folder(&mut kernel, far);
        let list =
            || Op::List { root: root.clone(), path: path("."), symlinks: SymlinkPolicy::Beneath };
        kernel.submit(FILE, list()).unwrap();
        kernel.cancel(FILE);
        assert_eq!(failure(next(&mut kernel, &mut Batch::new(), FILE)), Errno::CANCELED);
        kernel.submit(FILE, list()).unwrap();
        // Dropped now.
    }

    pub(super) fn a_file_is_sent_and_its_end_shows(mut kernel: impl Kernel, far: &impl Far) {
        let root = folder(&mut kernel, far);
        let contents: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        far.add_file("big", &contents);
        let Outcome::Opened(opened) = open(&mut kernel, &root, "big") else { panic!() };
        let file = opened.0;
        let (socket, mut peer) = plain(&mut kernel, far);
        let fd = number(&socket);
        let (mut got, mut offset, mut batch) = (Vec::new(), 0, Batch::new());
        let end = loop {
            let op = Op::SendFile { fd, file: file.clone(), offset, len: 256 * 1024 };
            kernel.submit(send(0), op).unwrap();
            match next_while_reading(&mut kernel, &mut batch, &mut peer, &mut got) {
                Outcome::SentFile(0) => break offset,
                Outcome::SentFile(n) => offset += u64::from(n),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end, contents.len() as u64);
        while got.len() < contents.len() && peer.read_some(&mut got) {}
        assert!(got == contents);
    }

    pub(super) fn no_turn_waits_while_a_completion_is_left(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let mut connections = [0, 1].map(|slot| {
            let (socket, peer) = plain(&mut kernel, far);
            kernel.submit(receive(slot), Op::Receive { fd: number(&socket) }).unwrap();
            (socket, peer)
        });
        soon(&mut kernel, &mut Batch::new());
        connections.iter_mut().for_each(|(_, peer)| peer.write_all(b"x"));
        let until = later(&kernel);
        for _ in &connections {
            let completion = loop {
                kernel.turn(Some(until)).unwrap();
                assert!(kernel.now() < until, "it has waited for more");
                if let Some(completion) = kernel.next() {
                    break completion;
                }
            };
            assert!(matches!(completion.outcome, Outcome::Received(_)), "{completion:?}");
        }
        connections.into_iter().for_each(|(socket, _)| kernel.host_mut().close_unused(socket));
    }

    pub(super) fn another_thread_ends_a_wait(mut kernel: impl Kernel, far: &impl Far) {
        let waker = kernel.waker();
        let token = Token::new(OpKind::Wake, 0, 0);
        for _ in 0..20 {
            far.wake(waker.clone());
            let woken = next(&mut kernel, &mut Batch::new(), token);
            assert!(matches!(woken.outcome, Outcome::Woken) && !woken.last);
        }
    }

    pub(super) fn a_wait_ends_at_its_deadline(mut kernel: impl Kernel, _far: &impl Far) {
        kernel.turn(Some(kernel.now())).unwrap();
        let until = kernel.now() + Duration::from_millis(30);
        let mut batch = Batch::new();
        let mut turns = 0;
        while kernel.now() < until {
            kernel.turn_into(Some(until), &mut batch).unwrap();
            turns += 1;
        }
        assert!(batch.is_empty() && turns < 10, "{turns} turns");
    }

    pub(super) fn a_full_table_refuses(mut kernel: impl Kernel, far: &impl Far) {
        let connections: Vec<_> = (0..3).map(|_| plain(&mut kernel, far)).collect();
        let [fd, other, third] = [0, 1, 2].map(|i| number(&connections[i].0));
        kernel.submit(receive(0), Op::Receive { fd }).unwrap();
        kernel.submit(receive(1), Op::Receive { fd: other }).unwrap();
        let refused = kernel.submit(receive(2), Op::Receive { fd: third }).unwrap_err();
        assert_eq!(refused.kind, SubmitErrorKind::Full);
        assert!(matches!(refused.op, Op::Receive { fd } if fd == third));
        // A cancel finds room all the same.
        cancel(&mut kernel, &mut Batch::new(), receive(0));
        kernel.submit(receive(2), Op::Receive { fd: third }).unwrap();
    }

    pub(super) fn a_name_in_use_is_refused(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, _peer) = plain(&mut kernel, far);
        let fd = number(&socket);
        let successor = Token::new(OpKind::Receive, 0, 8);
        kernel.submit(receive(0), Op::Receive { fd }).unwrap();
        for name in [receive(0), successor] {
            let refused = kernel.submit(name, Op::Receive { fd }).unwrap_err();
            assert_eq!(refused.kind, SubmitErrorKind::TokenInUse);
        }
        kernel.cancel(successor);
        cancel(&mut kernel, &mut Batch::new(), receive(0));
    }

    pub(super) fn accepts_are_bounded_in_each_turn(mut kernel: impl Kernel, far: &impl Far) {
        let (listener, address) = listen(&mut kernel);
        let _peers: Vec<_> = (0..10).map(|_| far.connect(address)).collect();
        let per_turn = NonZeroU16::new(3);
        kernel.submit(ACCEPT, Op::Accept { listener: number(&listener), per_turn }).unwrap();
        let (mut batch, mut accepted) = (Batch::new(), 0);
        while accepted < 10 {
            kernel.turn_into(Some(later(&kernel)), &mut batch).unwrap();
            assert!(batch.len() <= 3, "{batch:?}");
            for completion in batch.drain(..) {
                let Outcome::Accepted(socket) = completion.outcome else {
                    panic!("{completion:?}")
                };
                kernel.host_mut().close_unused(socket);
                accepted += 1;
            }
        }
        cancel(&mut kernel, &mut batch, ACCEPT);
        kernel.host_mut().close_unused(listener);
    }

    pub(super) fn more_operations_than_the_queue_holds(mut kernel: impl Kernel, far: &impl Far) {
        let mut batch = Batch::new();
        let mut connections: Vec<_> = (0..700).map(|_| plain(&mut kernel, far)).collect();
        // Nothing turns the kernel between these.
        for (slot, (socket, _)) in connections.iter().enumerate() {
            let slot = slot as u32;
            kernel.submit(receive(slot), Op::Receive { fd: number(socket) }).unwrap();
            let data = gather(&[b"hello"]);
            kernel.submit(send(slot), Op::Send { fd: number(socket), data }).unwrap();
        }
        for (slot, (_, peer)) in connections.iter_mut().enumerate() {
            let sent = next(&mut kernel, &mut batch, send(slot as u32));
            assert!(matches!(sent.outcome, Outcome::Sent(_, 5)), "{sent:?}");
            peer.write_all(b"x");
        }
        for slot in 0..700 {
            assert_eq!(collect(&mut kernel, &mut batch, receive(slot), 1), b"x");
        }
        for slot in 0..700 {
            kernel.cancel(receive(slot));
        }
        for slot in 0..700 {
            let done = next(&mut kernel, &mut batch, receive(slot));
            assert_eq!(failure(done), Errno::CANCELED);
        }
    }

    pub(super) fn a_dropped_kernel_leaves_nothing_in_flight(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let (listener, address) = listen(&mut kernel);
        kernel.submit(ACCEPT, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
        let (socket, mut peer) = connection(&mut kernel, far, SMALL);
        let fd = number(&socket);
        kernel.submit(receive(0), Op::Receive { fd }).unwrap();
        let shared = Bytes::from(vec![0u8; 8 << 20]);
        let mut list = Box::<GatherList>::default();
        list.shared(shared.clone());
        kernel.submit(send(0), Op::Send { fd, data: list }).unwrap();
        peer.write_all(b"kept");
        let mut batch = Batch::new();
        let Outcome::Received(kept) = next(&mut kernel, &mut batch, receive(0)).outcome else {
            panic!("not received")
        };
        let started = Instant::now();
        let _unaccepted = far.connect(address);
        drop(kernel);
        assert!(started.elapsed() < Duration::from_secs(4), "it waited for what does not come");
        batch.clear();
        assert!(shared.is_unique(), "the send's memory was let go");
        assert_eq!(&*kept, b"kept", "what was lent stays");
    }

    pub(super) fn a_dropped_kernel_closes_what_it_was_told_to(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let (socket, mut peer) = connection(&mut kernel, far, SMALL);
        // Behind more than the queue holds.
        let root = folder(&mut kernel, far);
        for slot in 0..1500 {
            let (root, symlinks) = (root.clone(), SymlinkPolicy::Beneath);
            let stat = Op::Stat { root, path: path("file"), symlinks };
            kernel.submit(Token::new(OpKind::File, slot, 0), stat).unwrap();
        }
        kernel.submit(Token::new(OpKind::Close, 0, 0), Op::Close { socket }).unwrap();
        drop(kernel);
        assert!(!peer.read_some(&mut Vec::new()), "the connection has ended");
    }
}
