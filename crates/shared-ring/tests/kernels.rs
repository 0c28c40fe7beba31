//! One test suite for all kernels: the ring in each mode, and the engine over each poller, on this
//! machine and on a simulated one.
//!
//! Differences: a simulated disk has no symbolic links, and a simulated connect never waits for room in
//! the listen backlog.

mod far;
mod mapped;
mod number;
mod turns;

use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evring_sim::{CheckedKernel, PollerKind, SimKernel};
use far::simulated::SimulatedMachine;
use far::{DatagramPeer, Far, LocalMachine, Stream};
use mapped::{View, mapped};
use number::number;
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool, GatherList};
use shared_ring::calls::{Arg, Call, Executor};
use shared_ring::files::{
    Access, File, FileKind, FileOp, FileOutcome, PathAt, SymlinkPolicy, WriteAt,
};
use shared_ring::poller::{POLLERS, Poll};
use shared_ring::sockets::{BufferSizes, Datagram, ListenOptions, Transmit};
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    Completion, Counters, Engine, EngineConfig, Errno, Fd, Host, Kernel, KernelError, Op, OpKind,
    Outcome, Socket, Submit, SubmitError, SubmitErrorKind, Submitted, Token, Waker, WhenCold,
};
use turns::{Batch, TurnInto};

/// Freeing memory that a simulated kernel holds fails a test.
#[global_allocator]
static ALLOCATOR: evring_sim::WatchingAllocator<std::alloc::System> =
    evring_sim::WatchingAllocator(std::alloc::System);

/// Capacity of the kernel under test.
#[derive(Clone, Copy)]
struct Capacity {
    operations: u32,
    buffers: u16,
    buffer_size: u32,
}

const CAPACITY: Capacity = Capacity { operations: 64, buffers: 8, buffer_size: 512 };

/// Runs a test on every available kernel, and prints which ones are unavailable.
macro_rules! on_every_kernel {
    ($test:ident) => {
        on_every_kernel!($test, CAPACITY);
    };
    ($test:ident, $capacity:expr) => {
        #[test]
        fn $test() {
            let Capacity { operations, buffers, buffer_size } = $capacity;
            let engine = EngineConfig::new(operations, buffers, buffer_size);
            for (name, open) in POLLERS {
                println!("engine over {name}");
                let kernel = Engine::new(open().unwrap(), &engine).unwrap();
                cases::$test(Tested::new(kernel), &LocalMachine::new());
            }
            for mode in MODES {
                let ring = UringConfig::new(mode, operations, buffers, buffer_size);
                match UringKernel::new(&ring) {
                    Ok(kernel) => {
                        println!("ring, {mode:?}");
                        cases::$test(Tested::new(kernel), &LocalMachine::new());
                    }
                    Err(missing) => println!("ring, {mode:?}: {missing}"),
                }
            }
            for seed in 0..SEEDS {
                for mode in MODES {
                    println!("simulated ring, {mode:?}, seed {seed}");
                    let far = SimulatedMachine::new(seed);
                    let ring = UringConfig::new(mode, operations, buffers, buffer_size);
                    let kernel = SimKernel::new(&far.machine, &ring).unwrap();
                    cases::$test(Tested::new(kernel), &far);
                    far.check();
                }
                for kind in PollerKind::ALL {
                    println!("simulated engine over {}, seed {seed}", kind.name());
                    let far = SimulatedMachine::new(seed);
                    let poller = kind.open(&far.machine, 3);
                    let kernel = CheckedKernel::polling(&far.machine, poller, &engine).unwrap();
                    cases::$test(Tested::new(kernel), &far);
                    far.check();
                }
            }
        }
    };
}

const MODES: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Immediate];

/// Number of runs of each test on each simulated kernel.
const SEEDS: u64 = 4;

on_every_kernel!(connection_receives_sends_and_ends);
on_every_kernel!(receive_continues_until_cancelled);
on_every_kernel!(cancelled_token_can_be_reused);
on_every_kernel!(cancel_does_not_reach_the_next_operation_of_its_token);
on_every_kernel!(event_of_a_closed_socket_does_not_reach_the_next);
on_every_kernel!(connections_share_few_buffers, Capacity { buffers: 2, ..CAPACITY });
on_every_kernel!(starved_receive_can_be_cancelled, Capacity { buffers: 1, ..CAPACITY });
on_every_kernel!(messages_lie_in_memory_of_the_caller);
on_every_kernel!(group_without_a_buffer_does_not_delay_another);
on_every_kernel!(starved_receive_of_a_group_can_be_cancelled);
on_every_kernel!(memory_outlives_receives_in_flight_and_messages);
on_every_kernel!(groups_are_bounded_and_unknown_ones_rejected);
on_every_kernel!(datagrams_keep_their_bytes_and_sources);
on_every_kernel!(receive_of_datagrams_waits_for_a_buffer);
on_every_kernel!(memory_outlives_receives_of_datagrams);
on_every_kernel!(long_list_arrives_in_order);
on_every_kernel!(send_to_a_full_socket_can_be_cancelled);
on_every_kernel!(wait_for_room_ends_when_the_peer_reads);
on_every_kernel!(wait_for_room_can_be_cancelled);
on_every_kernel!(full_socket_had_room_once_its_peer_had_ended);
on_every_kernel!(unsent_limit_bounds_what_a_socket_takes);
on_every_kernel!(connecting_succeeds_and_fails);
on_every_kernel!(files_are_opened_queried_and_read);
on_every_kernel!(files_are_created_and_written);
on_every_kernel!(file_opened_for_reading_cannot_be_written);
on_every_kernel!(write_in_flight_is_cancelled_or_done);
on_every_kernel!(calls_return_values_memory_and_errors);
on_every_kernel!(call_that_waits_completes);
on_every_kernel!(call_waits_until_its_descriptor_is_readable);
on_every_kernel!(second_call_that_waits_for_a_descriptor_is_busy);
on_every_kernel!(cancelled_call_keeps_its_memory_until_its_end);
on_every_kernel!(call_in_flight_is_dropped_with_its_kernel);
on_every_kernel!(call_beyond_the_table_is_handed_back, Capacity { operations: 1, ..CAPACITY });
on_every_kernel!(no_path_leads_out_of_its_root);
on_every_kernel!(directories_are_listed);
on_every_kernel!(listing_in_flight_is_cancelled_or_dropped);
on_every_kernel!(file_is_sent_up_to_its_end);
on_every_kernel!(wake_from_another_thread_ends_a_wait);
on_every_kernel!(wait_ends_at_its_deadline);
on_every_kernel!(turn_does_not_wait_while_completions_remain);
on_every_kernel!(full_table_rejects_operations, Capacity { operations: 2, ..CAPACITY });
on_every_kernel!(token_in_use_is_rejected);
on_every_kernel!(accepts_per_turn_are_bounded);
on_every_kernel!(
    more_operations_than_the_queue_holds_complete,
    Capacity { operations: 2000, buffers: 1024, ..CAPACITY }
);
on_every_kernel!(dropped_kernel_leaves_nothing_in_flight);
on_every_kernel!(dropped_kernel_completes_closes, Capacity { operations: 2000, ..CAPACITY });

/// A kernel that returns operations done at once as completions, too.
struct Tested<K> {
    kernel: K,
    early: Batch,
}

impl<K: Kernel> Tested<K> {
    fn new(kernel: K) -> Self {
        Tested { kernel, early: Batch::new() }
    }
}

// SAFETY: it forwards to its kernel.
unsafe impl<K: Kernel> Submit for Tested<K> {
    type Host = K::Host;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        if let Submitted::Done(outcome) = self.kernel.submit(token, op)? {
            self.early.push_back(Completion::last(token, outcome));
        }
        Ok(Submitted::InFlight)
    }

    fn cancel(&mut self, token: Token) {
        self.kernel.cancel(token);
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.kernel.add_buffers(buffers)
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

/// Adds a group of `count` buffers of 100 bytes over a memory map.
fn add_mapped(kernel: &mut impl Kernel, count: u16) -> (Result<BufferGroup, BufferError>, View) {
    let (memory, view) = mapped(BufferPool::memory_len(count, 100).unwrap());
    (kernel.add_buffers(BufferPool::over(memory, count, 100).unwrap()), view)
}

/// A group whose only buffer is held.
struct FullGroup<F: Far> {
    group: BufferGroup,
    view: View,
    /// The completion with the buffer. The receive continues for the first connection.
    held: Completion,
    first: (Socket, F::Stream),
}

/// Adds a group of one buffer, and has a connection receive a byte into it.
fn full_group<F: Far>(kernel: &mut impl Kernel, far: &F, batch: &mut Batch) -> FullGroup<F> {
    let (group, view) = add_mapped(kernel, 1);
    let group = group.unwrap();
    let (first, mut stream) = plain(kernel, far);
    kernel.submit(receive(0), Op::Receive { fd: number(&first), group }).unwrap();
    stream.write_all(b"x");
    let held = next(kernel, batch, receive(0));
    FullGroup { group, view, held, first: (first, stream) }
}

fn send(slot: u32) -> Token {
    Token::new(OpKind::Send, slot, 7)
}

const ACCEPT: Token = Token::new(OpKind::Accept, 0, 0);
const FILE: Token = Token::new(OpKind::File, 0, 0);

const SMALL: BufferSizes = BufferSizes { send: Some(4096), receive: None };

/// Returns the deadline of a wait in a test.
fn later(kernel: &impl Kernel) -> Instant {
    kernel.now() + Duration::from_secs(10)
}

/// Runs turns until a completion of `token`; others stay in `batch`.
fn next(kernel: &mut impl Kernel, batch: &mut Batch, token: Token) -> Completion {
    let until = later(kernel);
    loop {
        if let Some(at) = batch.iter().position(|c| c.token == token) {
            return batch.remove(at).unwrap();
        }
        assert!(kernel.now() < until, "{token:?} does not complete; got {batch:?}");
        kernel.turn_into(Some(until), batch).unwrap();
    }
}

/// Runs turns for 50 ms, or until they bring a completion.
fn soon(kernel: &mut impl Kernel, batch: &mut Batch) {
    kernel.turn_into(Some(kernel.now()), batch).unwrap();
    let until = kernel.now() + Duration::from_millis(50);
    // A turn may end with a completion of the ring that the kernel keeps to itself.
    while batch.is_empty() && kernel.now() < until {
        kernel.turn_into(Some(until), batch).unwrap();
    }
}

fn failure(completion: Completion) -> Errno {
    assert!(completion.is_last);
    match completion.outcome {
        Outcome::Failed(errno, _) => errno,
        other => panic!("not a failure: {other:?}"),
    }
}

fn listen(kernel: &mut impl Kernel) -> (Socket, SocketAddr) {
    let options = ListenOptions::new(128);
    kernel.host_mut().listen("127.0.0.1:0".parse().unwrap(), &options).unwrap()
}

/// Returns a connection: a socket of the kernel, and the far end as a stream.
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
    assert!(matches!(done.outcome, Outcome::Closed) && done.is_last);
}

fn path(text: &str) -> Arc<CStr> {
    CString::new(text).unwrap().into()
}

/// Receives until the end or `n` bytes.
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

/// Returns the outcome of a send, while the peer reads.
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
        assert!(kernel.now() < until, "the send does not complete");
        peer.read_some(got);
        let soon = kernel.now() + Duration::from_millis(1);
        kernel.turn_into(Some(soon), batch).unwrap();
    }
}

/// Cancels an operation and checks its last completion.
fn cancel(kernel: &mut impl Kernel, batch: &mut Batch, token: Token) {
    kernel.cancel(token);
    assert_eq!(failure(next(kernel, batch, token)), Errno::CANCELED);
}

mod cases {
    use super::*;

    pub(super) fn connection_receives_sends_and_ends(mut kernel: impl Kernel, far: &impl Far) {
        let (listener, address) = listen(&mut kernel);
        kernel.submit(ACCEPT, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
        let mut batch = Batch::new();
        let mut peer = far.connect(address);
        let accepted = next(&mut kernel, &mut batch, ACCEPT);
        assert!(!accepted.is_last);
        let Outcome::Accepted(socket) = accepted.outcome else { panic!("{accepted:?}") };
        assert_eq!(kernel.host().peer_addr(&socket), Some(peer.address()));
        let fd = number(&socket);

        kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
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
        assert!(matches!(end.outcome, Outcome::Eof) && end.is_last);
        close(&mut kernel, socket);
        assert!(!peer.read_some(&mut Vec::new()), "the stream has ended");
        cancel(&mut kernel, &mut batch, ACCEPT);
        assert!(batch.is_empty(), "{batch:?}");
        kernel.host_mut().close_unused(listener);
    }

    pub(super) fn receive_continues_until_cancelled(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, mut peer) = plain(&mut kernel, far);
        let fd = number(&socket);
        let mut batch = Batch::new();
        kernel.submit(receive(3), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
        for round in 0..50u8 {
            peer.write_all(&[round; 100]);
            assert_eq!(collect(&mut kernel, &mut batch, receive(3), 100), [round; 100]);
        }
        cancel(&mut kernel, &mut batch, receive(3));
        kernel.cancel(receive(3));
        close(&mut kernel, socket);
        assert!(batch.is_empty(), "one last completion and no more: {batch:?}");
    }

    pub(super) fn cancelled_token_can_be_reused(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, mut peer) = plain(&mut kernel, far);
        let fd = number(&socket);
        let mut batch = Batch::new();
        for round in 0..100u8 {
            kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
            if round % 2 == 0 {
                kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
            }
            cancel(&mut kernel, &mut batch, receive(0));
        }
        kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
        peer.write_all(b"x");
        assert_eq!(collect(&mut kernel, &mut batch, receive(0), 1), b"x");
        assert!(batch.is_empty(), "{batch:?}");
    }

    pub(super) fn cancel_does_not_reach_the_next_operation_of_its_token(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let (first, mut one) = plain(&mut kernel, far);
        let (second, mut two) = plain(&mut kernel, far);
        kernel
            .submit(receive(0), Op::Receive { fd: number(&first), group: BufferGroup::DEFAULT })
            .unwrap();
        kernel.turn(Some(kernel.now())).unwrap();
        one.finish();
        kernel.turn(Some(later(&kernel))).unwrap();
        // Its last completion has landed, but was not processed yet.
        kernel.cancel(receive(0));
        let mut end = kernel.next();
        while end.is_none() {
            kernel.turn(Some(kernel.now())).unwrap();
            end = kernel.next();
        }
        assert!(end.is_some_and(|end| end.token == receive(0) && end.is_last));
        kernel
            .submit(receive(0), Op::Receive { fd: number(&second), group: BufferGroup::DEFAULT })
            .unwrap();
        let mut batch = Batch::new();
        kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
        two.write_all(b"x");
        assert_eq!(collect(&mut kernel, &mut batch, receive(0), 1), b"x");
    }

    pub(super) fn event_of_a_closed_socket_does_not_reach_the_next(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        if !far.connect_waits_for_backlog() {
            return;
        }
        let options = ListenOptions::new(0);
        let (listener, to) =
            kernel.host_mut().listen("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        // It fills the backlog, so that the next connect waits.
        let _queued = far.connect(to);
        let (socket, mut peer) = connection(&mut kernel, far, SMALL);
        let fd = number(&socket);
        let mut batch = Batch::new();
        let data = gather(&[&[b'x'; 8 << 20]]);
        kernel.submit(send(0), Op::Send { fd, data }).unwrap();
        let mut unsent = match next(&mut kernel, &mut batch, send(0)).outcome {
            Outcome::Sent(list, _) => Some(list),
            other => panic!("{other:?}"),
        };
        let mut waits = false;
        while !waits {
            let data = unsent.take().expect("a send returns its list");
            kernel.submit(send(0), Op::Send { fd, data }).unwrap();
            kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
            match batch.pop_front() {
                Some(Completion { outcome: Outcome::Sent(list, _), .. }) => unsent = Some(list),
                None => waits = true,
                other => panic!("{other:?}"),
            }
        }
        kernel.cancel(send(0));
        // Now the socket is writable, which a poller reports along with the end of the send.
        peer.read_some(&mut Vec::new());
        kernel.turn(Some(later(&kernel))).unwrap();
        while !kernel.next().expect("the send ends").is_last {}
        kernel.submit(Token::new(OpKind::Close, 0, 0), Op::Close { socket }).unwrap();
        // If the close is already done, one of these gets the number.
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
            kernel
                .submit(
                    receive(slot as u32),
                    Op::Receive { fd: number(socket), group: BufferGroup::DEFAULT },
                )
                .unwrap();
        }
        // 2 buffers of 512 bytes for 10 times 5,000 bytes, which arrive at once.
        for (slot, (_, peer)) in connections.iter_mut().enumerate() {
            peer.write_all(&[slot as u8; 5000]);
        }
        let until = later(&kernel);
        let mut received = [0; 10];
        while received != [5000; 10] {
            assert!(kernel.now() < until, "stuck at {received:?}");
            kernel.turn_into(Some(until), &mut batch).unwrap();
            for completion in batch.drain(..) {
                let slot = completion.token.slot() as usize;
                let Outcome::Received(bytes) = completion.outcome else { panic!("{completion:?}") };
                assert!(!completion.is_last && bytes.iter().all(|b| *b == slot as u8));
                received[slot] += bytes.len();
            }
        }
        assert!(kernel.counters().buffer_shortages > 0);
    }

    pub(super) fn starved_receive_can_be_cancelled(mut kernel: impl Kernel, far: &impl Far) {
        let mut batch = Batch::new();
        let (first, mut one) = plain(&mut kernel, far);
        let (second, mut two) = plain(&mut kernel, far);
        kernel
            .submit(receive(0), Op::Receive { fd: number(&first), group: BufferGroup::DEFAULT })
            .unwrap();
        one.write_all(b"x");
        let held = next(&mut kernel, &mut batch, receive(0));
        kernel
            .submit(receive(1), Op::Receive { fd: number(&second), group: BufferGroup::DEFAULT })
            .unwrap();
        two.write_all(b"y");
        while kernel.counters().buffer_shortages == 0 {
            soon(&mut kernel, &mut batch);
        }
        cancel(&mut kernel, &mut batch, receive(1));
        drop(held);
        kernel
            .submit(receive(1), Op::Receive { fd: number(&second), group: BufferGroup::DEFAULT })
            .unwrap();
        assert_eq!(collect(&mut kernel, &mut batch, receive(1), 1), b"y");
    }

    pub(super) fn messages_lie_in_memory_of_the_caller(mut kernel: impl Kernel, far: &impl Far) {
        let (group, view) = add_mapped(&mut kernel, 2);
        let group = group.unwrap();
        let (other_group, other_view) = add_mapped(&mut kernel, 2);
        let other_group = other_group.unwrap();
        let groups = [(group, Some(view)), (other_group, Some(other_view))];
        let groups = groups.into_iter().chain([(BufferGroup::DEFAULT, None)]);
        let mut batch = Batch::new();
        for (slot, (group, view)) in groups.enumerate() {
            let slot = slot as u32;
            let (socket, mut peer) = plain(&mut kernel, far);
            let receives = Op::Receive { fd: number(&socket), group };
            kernel.submit(receive(slot), receives).unwrap();
            for round in 0..20u8 {
                peer.write_all(&[round; 150]);
                let mut n = 0;
                while n < 150 {
                    let received = next(&mut kernel, &mut batch, receive(slot)).outcome;
                    let Outcome::Received(mut bytes) = received else { panic!("{received:?}") };
                    assert!(*bytes == vec![round; bytes.len()]);
                    n += bytes.len();
                    let place = bytes.place().unwrap();
                    assert_eq!(place.group, group);
                    let Some(view) = &view else { continue };
                    assert_eq!(view.read(place.offset, bytes.len()), *bytes);
                    // A change in place by the program is in the map, too.
                    bytes[0] = 99;
                    assert_eq!(view.read(place.offset, 1), [99]);
                    bytes.advance(1);
                    assert_eq!(bytes.place().unwrap().offset, place.offset + 1);
                }
            }
            cancel(&mut kernel, &mut batch, receive(slot));
            close(&mut kernel, socket);
        }
    }

    pub(super) fn group_without_a_buffer_does_not_delay_another(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let mut batch = Batch::new();
        let FullGroup { view: _view, held, first: (_first, mut one), .. } =
            full_group(&mut kernel, far, &mut batch);
        let (second, mut two) = plain(&mut kernel, far);
        one.write_all(b"y");
        while kernel.counters().buffer_shortages == 0 {
            soon(&mut kernel, &mut batch);
        }
        let receives = Op::Receive { fd: number(&second), group: BufferGroup::DEFAULT };
        kernel.submit(receive(1), receives).unwrap();
        for _ in 0..20 {
            two.write_all(b"z");
            assert_eq!(collect(&mut kernel, &mut batch, receive(1), 1), b"z");
        }
        assert!(batch.is_empty(), "the full group has no buffer: {batch:?}");
        drop(held);
        assert_eq!(collect(&mut kernel, &mut batch, receive(0), 1), b"y");
    }

    pub(super) fn starved_receive_of_a_group_can_be_cancelled(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let mut batch = Batch::new();
        let FullGroup { group, view: _view, held, first: _first } =
            full_group(&mut kernel, far, &mut batch);
        let (second, mut two) = plain(&mut kernel, far);
        kernel.submit(receive(1), Op::Receive { fd: number(&second), group }).unwrap();
        two.write_all(b"y");
        while kernel.counters().buffer_shortages == 0 {
            soon(&mut kernel, &mut batch);
        }
        cancel(&mut kernel, &mut batch, receive(1));
        drop(held);
        kernel.submit(receive(1), Op::Receive { fd: number(&second), group }).unwrap();
        assert_eq!(collect(&mut kernel, &mut batch, receive(1), 1), b"y");
    }

    pub(super) fn memory_outlives_receives_in_flight_and_messages(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let (group, view) = add_mapped(&mut kernel, 4);
        let group = group.unwrap();
        let mut batch = Batch::new();
        let (first, mut one) = plain(&mut kernel, far);
        let (second, _two) = plain(&mut kernel, far);
        kernel.submit(receive(0), Op::Receive { fd: number(&first), group }).unwrap();
        kernel.submit(receive(1), Op::Receive { fd: number(&second), group }).unwrap();
        one.write_all(b"x");
        let received = next(&mut kernel, &mut batch, receive(0)).outcome;
        let Outcome::Received(bytes) = received else { panic!("{received:?}") };
        // Bytes that no completion was taken for.
        one.write_all(b"more");
        kernel.turn(Some(kernel.now())).unwrap();
        drop((kernel, batch));
        assert!(!view.is_unmapped(), "a message is in the map");
        let place = bytes.place().unwrap();
        assert_eq!((&*bytes, view.read(place.offset, 1)), (&b"x"[..], b"x".to_vec()));
        drop(bytes);
        assert!(view.is_unmapped(), "nothing uses the map");
    }

    pub(super) fn groups_are_bounded_and_unknown_ones_rejected(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let config = EngineConfig::new(1, 1, 1);
        let mut other = Engine::new(Poll::default(), &config).unwrap();
        let (unknown, _view) = add_mapped(&mut other, 1);
        let group = unknown.unwrap();
        let (socket, mut peer) = plain(&mut kernel, far);
        let receives = Op::Receive { fd: number(&socket), group };
        let error = kernel.submit(receive(0), receives).unwrap_err();
        assert_eq!(error.kind, SubmitErrorKind::UnknownGroup);
        let added = (1..BufferGroup::MAX).map(|_| add_mapped(&mut kernel, 1).0.unwrap());
        assert_eq!(added.last().unwrap().index(), BufferGroup::MAX - 1);
        let (refused, view) = add_mapped(&mut kernel, 1);
        assert_eq!(refused, Err(BufferError::TooMany));
        assert!(view.is_unmapped(), "a group that was refused keeps no memory");
        // The name is known now.
        kernel.submit(receive(0), error.op).unwrap();
        peer.write_all(b"x");
        assert_eq!(collect(&mut kernel, &mut Batch::new(), receive(0), 1), b"x");
    }

    pub(super) fn datagrams_keep_their_bytes_and_sources(mut kernel: impl Kernel, far: &impl Far) {
        let (group, view) = add_mapped(&mut kernel, 4);
        let group = group.unwrap();
        let (socket, peer) = far.datagrams();
        let (fd, mut batch) = (number(&socket), Batch::new());
        kernel.submit(receive(0), Op::ReceiveFrom { fd, group }).unwrap();
        let room = 100 - Datagram::HEADER_BYTES;
        let mut message = Transmit::new(peer.address());
        for len in [5, 0, 0, room, room + 1, 9_000, 1].into_iter().cycle().take(21) {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            peer.send(&bytes);
            let received = next(&mut kernel, &mut batch, receive(0));
            assert!(!received.is_last);
            let Outcome::Datagram(datagram) = received.outcome else { panic!("{received:?}") };
            let kept = &bytes[..len.min(room)];
            assert_eq!((datagram.bytes(), datagram.source()), (kept, peer.address()));
            assert_eq!((datagram.sent_len(), datagram.is_truncated()), (len, len > room));
            // It goes back from where it lies.
            let buffer = datagram.into_buffer();
            let place = buffer.place().unwrap();
            assert_eq!((place.group, view.read(place.offset, kept.len())), (group, kept.to_vec()));
            message.data.hold(buffer);
            kernel.submit(send(0), Op::SendTo { fd, message }).unwrap();
            let sent = next(&mut kernel, &mut batch, send(0)).outcome;
            let Outcome::SentTo(back, Ok(())) = sent else { panic!("{sent:?}") };
            assert!(back.data.is_empty());
            assert_eq!(peer.receive(), kept);
            message = back;
        }
        // Two at once.
        peer.send(b"a");
        peer.send(b"b");
        for expected in [b"a", b"b"] {
            let received = next(&mut kernel, &mut batch, receive(0)).outcome;
            let Outcome::Datagram(datagram) = received else { panic!("{received:?}") };
            assert_eq!(datagram.bytes(), expected);
        }
        cancel(&mut kernel, &mut batch, receive(0));
        close(&mut kernel, socket);
        assert!(batch.is_empty(), "{batch:?}");
    }

    pub(super) fn receive_of_datagrams_waits_for_a_buffer(mut kernel: impl Kernel, far: &impl Far) {
        let (group, _view) = add_mapped(&mut kernel, 1);
        let group = group.unwrap();
        let (socket, peer) = far.datagrams();
        let (fd, mut batch) = (number(&socket), Batch::new());
        kernel.submit(receive(0), Op::ReceiveFrom { fd, group }).unwrap();
        peer.send(b"x");
        let held = next(&mut kernel, &mut batch, receive(0));
        peer.send(b"y");
        while kernel.counters().buffer_shortages == 0 {
            soon(&mut kernel, &mut batch);
        }
        assert!(batch.is_empty(), "the group has no buffer: {batch:?}");
        let shortages = kernel.counters().buffer_shortages;
        drop(held);
        let received = next(&mut kernel, &mut batch, receive(0)).outcome;
        assert!(matches!(&received, Outcome::Datagram(datagram) if datagram.bytes() == b"y"));
        // While it waits, it can be cancelled.
        peer.send(b"z");
        while kernel.counters().buffer_shortages == shortages {
            soon(&mut kernel, &mut batch);
        }
        cancel(&mut kernel, &mut batch, receive(0));
    }

    pub(super) fn memory_outlives_receives_of_datagrams(mut kernel: impl Kernel, far: &impl Far) {
        let (group, view) = add_mapped(&mut kernel, 4);
        let group = group.unwrap();
        let (socket, peer) = far.datagrams();
        let (fd, mut batch) = (number(&socket), Batch::new());
        kernel.submit(receive(0), Op::ReceiveFrom { fd, group }).unwrap();
        peer.send(b"x");
        let received = next(&mut kernel, &mut batch, receive(0)).outcome;
        let Outcome::Datagram(datagram) = received else { panic!("{received:?}") };
        // Datagrams that no completion was taken for.
        peer.send(b"more");
        kernel.turn(Some(kernel.now())).unwrap();
        drop((kernel, batch));
        assert!(!view.is_unmapped(), "a datagram is in the map");
        assert_eq!((datagram.bytes(), datagram.source()), (&b"x"[..], peer.address()));
        drop(datagram);
        assert!(view.is_unmapped(), "nothing uses the map");
    }

    pub(super) fn long_list_arrives_in_order(mut kernel: impl Kernel, far: &impl Far) {
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
            let Outcome::Sent(unsent, n) = sent else { panic!("not sent") };
            assert!(n > 0 && n <= GatherList::MAX_BYTES && unsent.len() == before - n);
            list = unsent;
        }
        while got.len() < expected.len() && peer.read_some(&mut got) {}
        assert!(got == expected);
        assert!(kernel.counters().short_sends > 0);
    }

    pub(super) fn send_to_a_full_socket_can_be_cancelled(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, _peer) = connection(&mut kernel, far, SMALL);
        let fd = number(&socket);
        let mut batch = Batch::new();
        let block = vec![0; 250_000];
        // Send until an operation stays in flight.
        for round in 0.. {
            assert!(round < 1000, "the socket never fills");
            kernel.submit(send(0), Op::Send { fd, data: gather(&[&block]) }).unwrap();
            soon(&mut kernel, &mut batch);
            if batch.pop_front().is_none() {
                break;
            }
        }
        kernel.cancel(send(0));
        let done = next(&mut kernel, &mut batch, send(0));
        assert!(done.is_last);
        match done.outcome {
            Outcome::Failed(Errno::CANCELED, Some(list)) => assert!(!list.is_empty()),
            // The ring reports the bytes sent before.
            Outcome::Sent(list, n) => assert_eq!(list.len() + n, block.len()),
            other => panic!("{other:?}"),
        }
        close(&mut kernel, socket);
        assert!(batch.is_empty());
    }

    /// Sends until the socket has no room, and returns the number of bytes sent.
    fn fill(kernel: &mut impl Kernel, batch: &mut Batch, fd: Fd) -> usize {
        let (block, mut sent) = (vec![0; 250_000], 0);
        for round in 0.. {
            assert!(round < 1000, "the socket never fills");
            kernel.submit(send(0), Op::Send { fd, data: gather(&[&block]) }).unwrap();
            kernel.turn_into(Some(kernel.now()), batch).unwrap();
            if batch.is_empty() {
                soon(kernel, batch);
            }
            match batch.pop_front().map(|completion| completion.outcome) {
                Some(Outcome::Sent(_, n)) => sent += n,
                Some(other) => panic!("{other:?}"),
                None => break,
            }
        }
        kernel.cancel(send(0));
        if let Outcome::Sent(_, n) = next(kernel, batch, send(0)).outcome {
            sent += n;
        }
        sent
    }

    /// Sends until the socket has no room and waits for it. Returns the number of bytes sent.
    fn fill_and_wait(kernel: &mut impl Kernel, batch: &mut Batch, fd: Fd) -> usize {
        let mut sent = 0;
        loop {
            sent += fill(kernel, batch, fd);
            kernel.submit(send(0), Op::Writable { fd }).unwrap();
            soon(kernel, batch);
            // Bytes that were in transit may have left room.
            let Some(done) = batch.pop_front() else { return sent };
            assert!(matches!(done.outcome, Outcome::Writable), "{done:?}");
        }
    }

    pub(super) fn wait_for_room_ends_when_the_peer_reads(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, mut peer) = connection(&mut kernel, far, SMALL);
        let (fd, mut batch) = (number(&socket), Batch::new());
        for round in 0..3 {
            kernel.submit(send(0), Op::Writable { fd }).unwrap();
            let done = next(&mut kernel, &mut batch, send(0));
            assert!(matches!(done.outcome, Outcome::Writable) && done.is_last, "{round}: {done:?}");
            let sent = fill_and_wait(&mut kernel, &mut batch, fd);
            let again = kernel.submit(send(0), Op::Writable { fd }).unwrap_err();
            assert_eq!(again.kind, SubmitErrorKind::TokenInUse);
            let mut got = Vec::new();
            let outcome = next_while_reading(&mut kernel, &mut batch, &mut peer, &mut got);
            assert!(matches!(outcome, Outcome::Writable), "{outcome:?}");
            while got.len() < sent {
                peer.read_some(&mut got);
                kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
            }
            soon(&mut kernel, &mut batch);
            assert!(batch.is_empty(), "it completes once: {batch:?}");
        }
        close(&mut kernel, socket);
    }

    pub(super) fn wait_for_room_can_be_cancelled(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, _peer) = connection(&mut kernel, far, SMALL);
        let (fd, mut batch) = (number(&socket), Batch::new());
        for _ in 0..2 {
            fill_and_wait(&mut kernel, &mut batch, fd);
            cancel(&mut kernel, &mut batch, send(0));
        }
        close(&mut kernel, socket);
        assert!(batch.is_empty());
    }

    pub(super) fn full_socket_had_room_once_its_peer_had_ended(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let root = folder(&mut kernel, far);
        far.add_file("big", &[7; 200_000]);
        let Outcome::File(FileOutcome::Opened(opened)) = open(&mut kernel, &root, "big") else {
            panic!()
        };
        let file = opened.0;
        let (socket, mut peer) = connection(&mut kernel, far, SMALL);
        let (fd, mut batch) = (number(&socket), Batch::new());
        let mut sent = fill(&mut kernel, &mut batch, fd);
        peer.finish();
        let send_file = || {
            let (file, when_cold) = (file.clone(), WhenCold::Read);
            Op::SendFile { fd, file, offset: 0, len: 200_000, is_last: true, when_cold }
        };
        let writable = || Op::Writable { fd };
        for op in [&send_file as &dyn Fn() -> Op, &writable, &send_file, &writable] {
            let mut calls;
            loop {
                kernel.submit(send(0), op()).unwrap();
                calls = kernel.counters().system_calls;
                soon(&mut kernel, &mut batch);
                // Bytes that were in transit may have left room.
                let Some(done) = batch.pop_front() else { break };
                assert!(matches!(done.outcome, Outcome::Writable | Outcome::SentFile { .. }));
                sent += fill(&mut kernel, &mut batch, fd);
            }
            let calls = kernel.counters().system_calls - calls;
            assert!(calls < 20, "{calls} system calls");
            cancel(&mut kernel, &mut batch, send(0));
        }
        let mut calls;
        loop {
            calls = kernel.counters().system_calls;
            let write = Op::Call(Box::new(Call::write(fd, [7; 8])), Executor::WhenWritable);
            let done = match kernel.submit(CALL, write).unwrap() {
                Submitted::Done(outcome) => Some(outcome),
                Submitted::InFlight => {
                    soon(&mut kernel, &mut batch);
                    batch.pop_front().map(|completion| completion.outcome)
                }
            };
            let Some(outcome) = done else { break };
            match called(outcome).1 {
                Ok(n) => sent += n + fill(&mut kernel, &mut batch, fd),
                Err(errno) => assert_eq!(errno, Errno::INTR),
            }
        }
        let calls = kernel.counters().system_calls - calls;
        assert!(calls < 20, "{calls} system calls");
        kernel.cancel(CALL);
        let cancelled = called(next(&mut kernel, &mut batch, CALL).outcome);
        assert_eq!(cancelled.1, Err(Errno::CANCELED));
        kernel.submit(send(0), Op::Writable { fd }).unwrap();
        let mut got = Vec::new();
        let outcome = next_while_reading(&mut kernel, &mut batch, &mut peer, &mut got);
        assert!(matches!(outcome, Outcome::Writable), "{outcome:?}");
        while got.len() < sent {
            peer.read_some(&mut got);
            kernel.turn_into(Some(kernel.now()), &mut batch).unwrap();
        }
        close(&mut kernel, socket);
        assert!(batch.is_empty());
    }

    pub(super) fn unsent_limit_bounds_what_a_socket_takes(mut kernel: impl Kernel, far: &impl Far) {
        let mut batch = Batch::new();
        let [limited, unlimited] = [Some(16 * 1024), None].map(|limit| {
            let (socket, _peer) = plain(&mut kernel, far);
            if let Some(bytes) = limit {
                kernel.host_mut().set_unsent_limit(&socket, bytes).unwrap();
            }
            let sent = fill(&mut kernel, &mut batch, number(&socket));
            close(&mut kernel, socket);
            sent
        });
        assert!(0 < limited && limited < unlimited, "{limited} of {unlimited} bytes");
    }

    pub(super) fn connecting_succeeds_and_fails(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, _peer) = plain(&mut kernel, far);
        close(&mut kernel, socket);
        let closed = far.closed_address();
        let socket = kernel.host_mut().socket(closed, None, BufferSizes::default()).unwrap();
        let token = Token::new(OpKind::Connect, 0, 0);
        kernel.submit(token, Op::Connect { fd: number(&socket), to: closed }).unwrap();
        let done = next(&mut kernel, &mut Batch::new(), token);
        assert_eq!(failure(done), Errno::CONNREFUSED);
        close(&mut kernel, socket);
    }

    fn folder(kernel: &mut impl Kernel, far: &impl Far) -> File {
        far.add_file("file", b"0123456789");
        far.add_file("inner/other", b"");
        kernel.host_mut().open_directory(&far.root()).unwrap()
    }

    fn at(root: &File, name: &str, symlinks: SymlinkPolicy) -> PathAt {
        PathAt { root: root.clone(), path: path(name), symlinks }
    }

    fn open(kernel: &mut impl Kernel, root: &File, name: &str) -> Outcome {
        kernel
            .submit(
                FILE,
                Op::File(FileOp::Open(at(root, name, SymlinkPolicy::Beneath), Access::Read)),
            )
            .unwrap();
        let done = next(kernel, &mut Batch::new(), FILE);
        assert!(done.is_last);
        done.outcome
    }

    pub(super) fn files_are_opened_queried_and_read(mut kernel: impl Kernel, far: &impl Far) {
        let root = folder(&mut kernel, far);
        let Outcome::File(FileOutcome::Opened(opened)) = open(&mut kernel, &root, "file") else {
            panic!()
        };
        let (file, meta) = *opened;
        assert_eq!((meta.kind, meta.len), (FileKind::Regular, 10));
        if far.has_symlinks() {
            let expected = std::fs::metadata(far.root().join("file")).unwrap().modified().unwrap();
            assert_eq!(meta.modified(), expected);
        }
        let mut batch = Batch::new();
        for (range, expected) in
            [(0..10, "0123456789"), (3..7, "3456"), (8..108, "89"), (10..11, ""), (99..100, "")]
        {
            kernel.submit(FILE, Op::File(FileOp::Read(file.clone(), range))).unwrap();
            let done = next(&mut kernel, &mut batch, FILE).outcome;
            let Outcome::File(FileOutcome::Read(bytes)) = done else { panic!("{done:?}") };
            assert_eq!(&*bytes, expected.as_bytes());
        }
        for (name, expected) in [("file", meta.kind), ("inner", FileKind::Directory)] {
            let stat = FileOp::Stat(at(&root, name, SymlinkPolicy::Beneath));
            kernel.submit(FILE, Op::File(stat)).unwrap();
            let done = next(&mut kernel, &mut batch, FILE).outcome;
            let Outcome::File(FileOutcome::Stat(meta)) = done else { panic!("{done:?}") };
            assert_eq!(meta.kind, expected);
        }
        let Outcome::Failed(errno, None) = open(&mut kernel, &root, "absent") else { panic!() };
        assert_eq!(errno, Errno::NOENT);
    }

    /// Submits a file operation and returns its result.
    fn run(kernel: &mut impl Kernel, op: FileOp) -> Result<FileOutcome, Errno> {
        let outcome = match kernel.submit(FILE, Op::File(op)).unwrap() {
            Submitted::Done(outcome) => outcome,
            Submitted::InFlight => {
                let done = next(kernel, &mut Batch::new(), FILE);
                assert!(done.is_last);
                done.outcome
            }
        };
        match outcome {
            Outcome::File(done) => Ok(done),
            Outcome::Failed(errno, None) => Err(errno),
            other => panic!("{other:?}"),
        }
    }

    fn opened(done: Result<FileOutcome, Errno>) -> File {
        let Ok(FileOutcome::Opened(opened)) = done else { panic!("{done:?}") };
        opened.0
    }

    fn content(kernel: &mut impl Kernel, file: &File) -> Vec<u8> {
        let done = run(kernel, FileOp::Read(file.clone(), 0..1 << 20));
        let Ok(FileOutcome::Read(bytes)) = done else { panic!("{done:?}") };
        bytes.to_vec()
    }

    pub(super) fn files_are_created_and_written(mut kernel: impl Kernel, far: &impl Far) {
        let root = folder(&mut kernel, far);
        let path = |name: &str| at(&root, name, SymlinkPolicy::Beneath);
        let absent = run(&mut kernel, FileOp::Open(path("new"), Access::Write));
        assert_eq!(absent.unwrap_err(), Errno::NOENT);
        let file = opened(run(&mut kernel, FileOp::Open(path("inner/new"), Access::Create)));
        let big: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let mut expected = b"start, ".to_vec();
        expected.extend_from_slice(&big);
        for bytes in [b"start, ".to_vec(), big] {
            let done = run(&mut kernel, FileOp::write(file.clone(), WriteAt::End, bytes));
            assert!(matches!(done, Ok(FileOutcome::Written)), "{done:?}");
        }
        for (offset, bytes) in [(1, "TART"), (expected.len() as u64 + 3, "end"), (5, "")] {
            let write = FileOp::write(file.clone(), WriteAt::Offset(offset), bytes);
            assert!(matches!(run(&mut kernel, write), Ok(FileOutcome::Written)));
        }
        expected[1..5].copy_from_slice(b"TART");
        expected.extend_from_slice(b"\0\0\0end");
        assert!(content(&mut kernel, &file) == expected);
        let again = opened(run(&mut kernel, FileOp::Open(path("inner/new"), Access::Write)));
        assert!(content(&mut kernel, &again) == expected, "it is not truncated");
        let empty = opened(run(&mut kernel, FileOp::Open(path("inner/new"), Access::Replace)));
        assert!(content(&mut kernel, &empty).is_empty());
        for access in [Access::Write, Access::Create, Access::Replace] {
            let directory = run(&mut kernel, FileOp::Open(path("inner"), access));
            assert_eq!(directory.unwrap_err(), Errno::ISDIR);
            let outside = run(&mut kernel, FileOp::Open(path("../new"), access));
            assert_eq!(outside.unwrap_err(), Errno::XDEV);
        }
    }

    pub(super) fn file_opened_for_reading_cannot_be_written(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let root = folder(&mut kernel, far);
        let path = at(&root, "file", SymlinkPolicy::Beneath);
        let file = opened(run(&mut kernel, FileOp::Open(path, Access::Read)));
        for at in [WriteAt::End, WriteAt::Offset(0)] {
            let written = run(&mut kernel, FileOp::write(file.clone(), at, "x"));
            assert_eq!(written.unwrap_err(), Errno::BADF);
        }
        assert_eq!(content(&mut kernel, &file), b"0123456789");
    }

    pub(super) fn write_in_flight_is_cancelled_or_done(mut kernel: impl Kernel, far: &impl Far) {
        let root = folder(&mut kernel, far);
        let path = at(&root, "file", SymlinkPolicy::Beneath);
        let file = opened(run(&mut kernel, FileOp::Open(path, Access::Write)));
        let shared = Bytes::from(vec![b'x'; 100_000]);
        let write = FileOp::write(file.clone(), WriteAt::Offset(0), shared.clone());
        kernel.submit(FILE, Op::File(write)).unwrap();
        kernel.cancel(FILE);
        match next(&mut kernel, &mut Batch::new(), FILE).outcome {
            Outcome::File(FileOutcome::Written) | Outcome::Failed(Errno::CANCELED, None) => {}
            other => panic!("{other:?}"),
        }
        assert!(shared.is_unique(), "no thread uses the bytes any more");
        let written = content(&mut kernel, &file);
        assert!(written.iter().all(|byte| *byte == b'x' || byte.is_ascii_digit()));
    }

    const CALL: Token = Token::new(OpKind::Call, 0, 7);

    const EXECUTORS: [Executor; 5] = [
        Executor::InPlace,
        Executor::WhenReadable,
        Executor::WhenWritable,
        Executor::Ring,
        Executor::Thread,
    ];

    /// Makes a call and returns it with its result.
    fn make(
        kernel: &mut impl Kernel,
        call: Call,
        by: Executor,
    ) -> (Box<Call>, Result<usize, Errno>) {
        let outcome = match kernel.submit(CALL, Op::Call(Box::new(call), by)).unwrap() {
            Submitted::Done(outcome) => outcome,
            Submitted::InFlight => next(kernel, &mut Batch::new(), CALL).outcome,
        };
        called(outcome)
    }

    fn called(outcome: Outcome) -> (Box<Call>, Result<usize, Errno>) {
        match outcome {
            Outcome::Called(call, result) => (call, result),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn calls_return_values_memory_and_errors(mut kernel: impl Kernel, far: &impl Far) {
        let root = folder(&mut kernel, far);
        let path = at(&root, "file", SymlinkPolicy::Beneath);
        let file = opened(run(&mut kernel, FileOp::Open(path, Access::Read)));
        for by in EXECUTORS {
            let (call, result) = make(&mut kernel, Call::random(64), by);
            assert_eq!(result, Ok(64), "{by:?}");
            assert!(call.memory(0).iter().any(|byte| *byte != 0));
            // SAFETY: the file is open until the end of the test.
            let fd = unsafe { shared_ring::Fd::lent(BorrowedFd::borrow_raw(file.as_raw_fd())) };
            let (call, result) = make(&mut kernel, Call::read_at(fd, 8, 100), by);
            assert_eq!(result, Ok(2), "{by:?}");
            assert_eq!(call.memory(1)[..2], *b"89");
            assert_eq!((call.memory(0).len(), call.memory(6).len()), (0, 0));
            // SAFETY: no call has this number.
            let unknown = unsafe { Call::new(9_999, [Arg::Value(1), Arg::None, Arg::zeroed(8)]) };
            let (call, result) = make(&mut kernel, unknown, by);
            assert_eq!(result, Err(Errno::NOSYS), "{by:?}");
            let [first, _, memory, ..] = call.into_args();
            assert!(matches!((first, memory), (Arg::Value(1), Arg::Memory(m)) if m.len() == 8));
        }
    }

    pub(super) fn call_that_waits_completes(mut kernel: impl Kernel, far: &impl Far) {
        let (event, add) = far.event(true);
        for by in [Executor::Ring, Executor::Thread] {
            let read = Box::new(Call::read(number(&event), 8));
            let submitted = kernel.submit(CALL, Op::Call(read, by)).unwrap();
            assert!(matches!(submitted, Submitted::InFlight));
            soon(&mut kernel, &mut Batch::new());
            add();
            add();
            let (call, result) = called(next(&mut kernel, &mut Batch::new(), CALL).outcome);
            assert_eq!(result, Ok(8));
            let mut count = u64::from_ne_bytes(call.memory(1).try_into().unwrap());
            if count == 1 {
                // The call was faster than the second addition.
                let (call, _) = make(&mut kernel, Call::read(number(&event), 8), by);
                count += u64::from_ne_bytes(call.memory(1).try_into().unwrap());
            }
            assert_eq!(count, 2, "{by:?}");
        }
        kernel.host_mut().close_unused(event);
    }

    pub(super) fn call_waits_until_its_descriptor_is_readable(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let (socket, mut peer) = plain(&mut kernel, far);
        for bytes in [b"one", b"two"] {
            let read = Box::new(Call::read(number(&socket), 8));
            let op = Op::Call(read, Executor::WhenReadable);
            assert!(matches!(kernel.submit(CALL, op), Ok(Submitted::InFlight)));
            let mut batch = Batch::new();
            soon(&mut kernel, &mut batch);
            assert!(batch.is_empty(), "{batch:?}");
            peer.write_all(bytes);
            let (call, result) = called(next(&mut kernel, &mut batch, CALL).outcome);
            assert_eq!((result, &call.memory(1)[..3]), (Ok(3), &bytes[..]));
        }
        close(&mut kernel, socket);
    }

    pub(super) fn second_call_that_waits_for_a_descriptor_is_busy(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let (socket, mut peer) = plain(&mut kernel, far);
        let fd = number(&socket);
        let read = || Op::Call(Box::new(Call::read(fd, 8)), Executor::WhenReadable);
        kernel.submit(CALL, read()).unwrap();
        let second = Token::new(OpKind::Call, 1, 7);
        let mut batch = Batch::new();
        kernel.submit(second, read()).unwrap();
        kernel.cancel(second);
        let (_, result) = called(next(&mut kernel, &mut batch, second).outcome);
        // A ring lets both wait.
        assert!(matches!(result, Err(Errno::BUSY | Errno::CANCELED)), "{result:?}");
        peer.write_all(b"x");
        assert_eq!(called(next(&mut kernel, &mut batch, CALL).outcome).1, Ok(1));
        close(&mut kernel, socket);
    }

    pub(super) fn cancelled_call_keeps_its_memory_until_its_end(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let (event, add) = far.event(true);
        let (socket, _peer) = plain(&mut kernel, far);
        for (by, fd) in [
            (Executor::Ring, number(&event)),
            (Executor::Thread, number(&event)),
            (Executor::WhenReadable, number(&socket)),
        ] {
            let read = Box::new(Call::read(fd, 8));
            kernel.submit(CALL, Op::Call(read, by)).unwrap();
            let mut batch = Batch::new();
            soon(&mut kernel, &mut batch);
            kernel.cancel(CALL);
            soon(&mut kernel, &mut batch);
            // A thread waits for the event all the same, and uses the memory.
            add();
            let done = next(&mut kernel, &mut batch, CALL);
            assert!(done.is_last);
            match called(done.outcome) {
                (call, Ok(8)) => assert_eq!(call.memory(1), 1u64.to_ne_bytes()),
                (_, Err(Errno::CANCELED)) => {
                    let (_, result) =
                        make(&mut kernel, Call::read(number(&event), 8), Executor::Ring);
                    assert_eq!(result, Ok(8));
                }
                other => panic!("{other:?}"),
            }
        }
        close(&mut kernel, socket);
        kernel.host_mut().close_unused(event);
    }

    pub(super) fn call_in_flight_is_dropped_with_its_kernel(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let (socket, _peer) = plain(&mut kernel, far);
        let read = Box::new(Call::read(number(&socket), 8));
        kernel.submit(CALL, Op::Call(read, Executor::WhenReadable)).unwrap();
        for (slot, by) in [Executor::Ring, Executor::Thread].into_iter().enumerate() {
            let random = Op::Call(Box::new(Call::random(100_000)), by);
            kernel.submit(Token::new(OpKind::Call, 1 + slot as u32, 0), random).unwrap();
        }
        kernel.finish();
        kernel.host_mut().close_unused(socket);
    }

    pub(super) fn call_beyond_the_table_is_handed_back(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, _peer) = plain(&mut kernel, far);
        kernel
            .submit(receive(0), Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT })
            .unwrap();
        let random = || Op::Call(Box::new(Call::random(8)), Executor::Thread);
        let error = kernel.submit(CALL, random()).unwrap_err();
        assert_eq!(error.kind, SubmitErrorKind::Full);
        assert!(matches!(error.op, Op::Call(call, _) if call.memory(0).len() == 8));
        cancel(&mut kernel, &mut Batch::new(), receive(0));
        kernel.submit(CALL, random()).unwrap();
        let error = kernel.submit(CALL, random()).unwrap_err();
        assert_eq!(error.kind, SubmitErrorKind::TokenInUse);
        assert_eq!(called(next(&mut kernel, &mut Batch::new(), CALL).outcome).1, Ok(8));
        close(&mut kernel, socket);
    }

    pub(super) fn no_path_leads_out_of_its_root(mut kernel: impl Kernel, far: &impl Far) {
        let root = folder(&mut kernel, far);
        let mut names = vec!["../file", "/etc/hostname", "inner/../../file"];
        if far.has_symlinks() {
            symlink("/etc/hostname", far.root().join("far")).unwrap();
            symlink("../inner/../file", far.root().join("inner/near")).unwrap();
            names.push("far");
            let opened = open(&mut kernel, &root, "inner/near");
            assert!(matches!(opened, Outcome::File(FileOutcome::Opened(_))));
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
        if far.has_symlinks() {
            symlink("/etc/hostname", far.root().join("far")).unwrap();
            symlink("../file", far.root().join("inner/near")).unwrap();
        }
        let mut names = |name: &str, symlinks| {
            let op = Op::File(FileOp::List(at(&root, name, symlinks)));
            kernel.submit(FILE, op).unwrap();
            match next(&mut kernel, &mut Batch::new(), FILE).outcome {
                Outcome::File(FileOutcome::Listed(listing)) => {
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
        if far.has_symlinks() {
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

    pub(super) fn listing_in_flight_is_cancelled_or_dropped(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let root = folder(&mut kernel, far);
        let list = || Op::File(FileOp::List(at(&root, ".", SymlinkPolicy::Beneath)));
        kernel.submit(FILE, list()).unwrap();
        kernel.cancel(FILE);
        assert_eq!(failure(next(&mut kernel, &mut Batch::new(), FILE)), Errno::CANCELED);
        kernel.submit(FILE, list()).unwrap();
        // Dropped now.
    }

    pub(super) fn file_is_sent_up_to_its_end(mut kernel: impl Kernel, far: &impl Far) {
        let root = folder(&mut kernel, far);
        let contents: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        far.add_file("big", &contents);
        let Outcome::File(FileOutcome::Opened(opened)) = open(&mut kernel, &root, "big") else {
            panic!()
        };
        let file = opened.0;
        let (socket, mut peer) = plain(&mut kernel, far);
        let fd = number(&socket);
        let (mut got, mut offset, mut batch) = (Vec::new(), 0, Batch::new());
        let end = loop {
            let op = Op::SendFile {
                fd,
                file: file.clone(),
                offset,
                len: 256 * 1024,
                is_last: false,
                when_cold: WhenCold::Read,
            };
            kernel.submit(send(0), op).unwrap();
            match next_while_reading(&mut kernel, &mut batch, &mut peer, &mut got) {
                Outcome::SentFile { bytes: 0, .. } => break offset,
                Outcome::SentFile { bytes, .. } => offset += u64::from(bytes),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end, contents.len() as u64);
        while got.len() < contents.len() && peer.read_some(&mut got) {}
        assert!(got == contents);
    }

    pub(super) fn turn_does_not_wait_while_completions_remain(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let mut connections = [0, 1].map(|slot| {
            let (socket, peer) = plain(&mut kernel, far);
            kernel
                .submit(
                    receive(slot),
                    Op::Receive { fd: number(&socket), group: BufferGroup::DEFAULT },
                )
                .unwrap();
            (socket, peer)
        });
        soon(&mut kernel, &mut Batch::new());
        connections.iter_mut().for_each(|(_, peer)| peer.write_all(b"x"));
        let until = later(&kernel);
        for _ in &connections {
            let completion = loop {
                kernel.turn(Some(until)).unwrap();
                assert!(kernel.now() < until, "it waited for more");
                if let Some(completion) = kernel.next() {
                    break completion;
                }
            };
            assert!(matches!(completion.outcome, Outcome::Received(_)), "{completion:?}");
        }
        connections.into_iter().for_each(|(socket, _)| kernel.host_mut().close_unused(socket));
    }

    pub(super) fn wake_from_another_thread_ends_a_wait(mut kernel: impl Kernel, far: &impl Far) {
        let waker = kernel.waker();
        let token = Token::new(OpKind::Wake, 0, 0);
        for _ in 0..20 {
            far.wake(waker.clone());
            let woken = next(&mut kernel, &mut Batch::new(), token);
            assert!(matches!(woken.outcome, Outcome::Woken) && !woken.is_last);
        }
    }

    pub(super) fn wait_ends_at_its_deadline(mut kernel: impl Kernel, _far: &impl Far) {
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

    pub(super) fn full_table_rejects_operations(mut kernel: impl Kernel, far: &impl Far) {
        let connections: Vec<_> = (0..3).map(|_| plain(&mut kernel, far)).collect();
        let [fd, other, third] = [0, 1, 2].map(|i| number(&connections[i].0));
        kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
        kernel.submit(receive(1), Op::Receive { fd: other, group: BufferGroup::DEFAULT }).unwrap();
        let error = kernel
            .submit(receive(2), Op::Receive { fd: third, group: BufferGroup::DEFAULT })
            .unwrap_err();
        assert_eq!(error.kind, SubmitErrorKind::Full);
        assert!(matches!(error.op, Op::Receive { fd, .. } if fd == third));
        // A cancellation needs no entry in the table.
        cancel(&mut kernel, &mut Batch::new(), receive(0));
        kernel.submit(receive(2), Op::Receive { fd: third, group: BufferGroup::DEFAULT }).unwrap();
    }

    pub(super) fn token_in_use_is_rejected(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, _peer) = plain(&mut kernel, far);
        let fd = number(&socket);
        let successor = Token::new(OpKind::Receive, 0, 8);
        kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
        for token in [receive(0), successor] {
            let error =
                kernel.submit(token, Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap_err();
            assert_eq!(error.kind, SubmitErrorKind::TokenInUse);
        }
        kernel.cancel(successor);
        cancel(&mut kernel, &mut Batch::new(), receive(0));
    }

    pub(super) fn accepts_per_turn_are_bounded(mut kernel: impl Kernel, far: &impl Far) {
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

    pub(super) fn more_operations_than_the_queue_holds_complete(
        mut kernel: impl Kernel,
        far: &impl Far,
    ) {
        let mut batch = Batch::new();
        let mut connections: Vec<_> = (0..700).map(|_| plain(&mut kernel, far)).collect();
        // No turn between these.
        for (slot, (socket, _)) in connections.iter().enumerate() {
            let slot = slot as u32;
            kernel
                .submit(
                    receive(slot),
                    Op::Receive { fd: number(socket), group: BufferGroup::DEFAULT },
                )
                .unwrap();
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

    pub(super) fn dropped_kernel_leaves_nothing_in_flight(mut kernel: impl Kernel, far: &impl Far) {
        let (listener, address) = listen(&mut kernel);
        kernel.submit(ACCEPT, Op::Accept { listener: number(&listener), per_turn: None }).unwrap();
        let (socket, mut peer) = connection(&mut kernel, far, SMALL);
        let fd = number(&socket);
        kernel.submit(receive(0), Op::Receive { fd, group: BufferGroup::DEFAULT }).unwrap();
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
        assert!(started.elapsed() < Duration::from_secs(4), "the drop ran into its timeout");
        batch.clear();
        assert!(shared.is_unique(), "the send's memory was released");
        assert_eq!(&*kept, b"kept", "the lent buffer stays valid");
    }

    pub(super) fn dropped_kernel_completes_closes(mut kernel: impl Kernel, far: &impl Far) {
        let (socket, mut peer) = connection(&mut kernel, far, SMALL);
        // Queued behind more operations than the submission queue holds.
        let root = folder(&mut kernel, far);
        for slot in 0..1500 {
            let stat = Op::File(FileOp::Stat(at(&root, "file", SymlinkPolicy::Beneath)));
            kernel.submit(Token::new(OpKind::File, slot, 0), stat).unwrap();
        }
        kernel.submit(Token::new(OpKind::Close, 0, 0), Op::Close { socket }).unwrap();
        drop(kernel);
        assert!(!peer.read_some(&mut Vec::new()), "the connection has ended");
    }
}
