//! One test suite for all kernels: the ring in each mode, and the engine over each poller, on this
//! machine and on a simulated one.
//!
//! Differences: a simulated disk has no symbolic links, and a simulated connect never waits for room in
//! the listen backlog.

mod cases;
mod far;
mod mapped;
mod number;
mod renames;
mod turns;

use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evring_sim::{CheckedKernel, PollerKind, SimKernel};
use far::simulated::SimulatedMachine;
use far::{Far, LocalMachine, Stream};
use mapped::{View, mapped};
use number::number;
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool, GatherList};
use shared_ring::calls::{Call, Executor};
use shared_ring::files::{Access, File, FileOp, FileOutcome, SymlinkPolicy};
use shared_ring::poller::{POLLERS, Poll};
use shared_ring::sockets::{BufferSizes, ListenOptions};
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    Completion, Counters, Engine, EngineConfig, Errno, Fd, Host, Kernel, KernelError, Op, OpKind,
    Outcome, Socket, Submit, SubmitError, SubmitErrorKind, Submitted, Token, Waker,
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
                    Err(missing) => println!("not tested: ring, {mode:?}: {missing}"),
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
on_every_kernel!(receive_without_a_buffer_kept_the_kernel_busy);
on_every_kernel!(cancelled_receive_kept_another_one_from_a_buffer);
on_every_kernel!(call_after_a_starved_receive_was_not_made);
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
on_every_kernel!(read_counted_as_cold_where_that_is_unknown);
on_every_kernel!(files_are_created_and_written);
on_every_kernel!(file_opened_for_reading_cannot_be_written);
on_every_kernel!(write_far_behind_the_end_replaced_the_start);
on_every_kernel!(write_in_flight_is_cancelled_or_done);
on_every_kernel!(calls_return_values_memory_and_errors);
on_every_kernel!(call_that_waits_completes);
on_every_kernel!(call_waits_until_its_descriptor_is_readable);
on_every_kernel!(second_call_that_waits_for_a_descriptor_is_busy);
on_every_kernel!(cancelled_call_keeps_its_memory_until_its_end);
on_every_kernel!(call_in_flight_is_dropped_with_its_kernel);
on_every_kernel!(call_beyond_the_table_is_handed_back, Capacity { operations: 1, ..CAPACITY });
on_every_kernel!(no_path_leads_out_of_its_root);
on_every_kernel!(path_led_out_of_its_root_if_links_may);
on_every_kernel!(path_of_a_link_was_not_resolved_beside_renames);
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
    const MAX_PIECE_BYTES: u64 = K::MAX_PIECE_BYTES;

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
