//! A ring whose completions are events: counters of system calls, queues, and the end.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::squeue::Entry as Sqe;
use rustix::io::Errno;
use send_core::kernel::{Capacity, Delivery, SendKernel};
use shared_ring::sockets::ListenOptions;
use shared_ring::uring::{Cqe, Entries, Feature, LinuxRing, Mode, Ring, UringConfig, UringKernel};
use shared_ring::{Host, Kernel, Linux, Op, OpKind, Outcome, Submit, Token};

/// Notification is lowered while more new connections than this are queued.
const BATCH_ABOVE: usize = 32;

#[test]
fn unblocking_call_was_not_counted() {
    let delivery = Delivery::Preemptive;
    let config = UringConfig::new(delivery.mode(), 16, 1, 16);
    let mut kernel = match SendKernel::new(&config, delivery) {
        Ok(kernel) => kernel,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let options = ListenOptions::new(64);
    let at = "127.0.0.1:0".parse().unwrap();
    let (listener, address) = kernel.host_mut().listen(at, &options).unwrap();
    let token = Token::new(OpKind::Accept, 0, 0);
    // SAFETY: the listener stays open.
    let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
    kernel.submit(token, accept).unwrap();
    let past = Some(Instant::now());
    kernel.turn(past).unwrap();
    // This lowers notification; the next connection makes the signal block itself.
    let mut clients: Vec<_> =
        (0..=BATCH_ABOVE).map(|_| TcpStream::connect(address).unwrap()).collect();
    kernel.turn(past).unwrap();
    clients.push(TcpStream::connect(address).unwrap());
    while kernel.notification_counters().masked == 0 {
        std::hint::spin_loop();
    }
    assert_eq!(
        (kernel.notification_counters().masked, kernel.notification_counters().unmasked),
        (1, 0)
    );
    let mut accepted = 0;
    while accepted < clients.len() {
        while let Some(completion) = kernel.next() {
            if let Outcome::Accepted(socket) = completion.outcome {
                kernel.host_mut().close_unused(socket);
                accepted += 1;
            }
        }
        let before = (kernel.counters().system_calls, kernel.notification_counters().unmasked);
        kernel.turn(past).unwrap();
        let calls = kernel.counters().system_calls - before.0;
        // Each turn enters the ring once.
        assert_eq!(calls, 1 + kernel.notification_counters().unmasked - before.1);
    }
    assert_eq!(kernel.notification_counters().unmasked, 1);
}

#[test]
fn queues_of_no_event_passed_none_on() {
    let delivery = Delivery::Ps2;
    let config = UringConfig::new(delivery.mode(), 16, 1, 16);
    let kernel = match UringKernel::new(&config) {
        Ok(kernel) => kernel,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let mut kernel = SendKernel::with_kernel(kernel, delivery, Capacity::new(8, 0)).unwrap();
    kernel.waker().wake();
    let woken = (0..1_000).any(|_| {
        kernel.turn(Some(Instant::now())).unwrap();
        kernel.next().is_some_and(|completion| matches!(completion.outcome, Outcome::Woken))
    });
    assert!(woken);
}

/// Clients of a flood.
const CLIENTS_AT_MOST: u32 = 300;

thread_local! {
    /// Where a client is to connect.
    static ADDRESS: Cell<Option<SocketAddr>> = const { Cell::new(None) };
    /// Where a client connects whenever the ring is looked at, and how many were accepted so far.
    static FLOODED: Cell<Option<SocketAddr>> = const { Cell::new(None) };
    static LANDED: Cell<u32> = const { Cell::new(0) };
    static CLIENT: Cell<Option<TcpStream>> = const { Cell::new(None) };
}

/// A ring that accepts a connection immediately after it was asked what has landed, or whenever it is looked at.
struct AcceptsAfterQuery(LinuxRing);

// Only `landed` and `reap` differ.
impl Ring for AcceptsAfterQuery {
    type System = Linux;

    fn setup(system: &Linux, mode: Mode, entries: Entries) -> io::Result<Self> {
        LinuxRing::setup(system, mode, entries).map(AcceptsAfterQuery)
    }

    fn is_parents(&self) -> bool {
        self.0.is_parents()
    }

    fn has_feature(&self, feature: Feature) -> bool {
        self.0.has_feature(feature)
    }

    fn first_unsupported(
        &self,
        operations: &[(u8, &'static str)],
    ) -> io::Result<Option<&'static str>> {
        self.0.first_unsupported(operations)
    }

    unsafe fn register_buffers(&mut self, address: u64, count: u16, group: u16) -> io::Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.0.register_buffers(address, count, group) }
    }

    fn unregister_buffers(&mut self, group: u16) {
        self.0.unregister_buffers(group);
    }

    fn limit_workers(&mut self, max: [u32; 2]) -> io::Result<()> {
        self.0.limit_workers(max)
    }

    unsafe fn push(&mut self, sqe: &Sqe) -> bool {
        // SAFETY: by the caller's promise.
        unsafe { self.0.push(sqe) }
    }

    fn queued(&mut self) -> u32 {
        self.0.queued()
    }

    fn is_full(&mut self) -> bool {
        self.0.is_full()
    }

    fn has_taskrun(&mut self) -> bool {
        self.0.has_taskrun()
    }

    fn has_overflowed(&mut self) -> bool {
        self.0.has_overflowed()
    }

    fn enter(&mut self, wanted: u32, timeout: Option<Duration>) -> Result<u32, Errno> {
        self.0.enter(wanted, timeout)
    }

    fn landed(&self) -> u32 {
        let landed = self.0.landed();
        if let Some(address) = ADDRESS.take() {
            CLIENT.set(Some(TcpStream::connect(address).unwrap()));
            while self.0.landed() == landed {
                thread::yield_now();
            }
        }
        landed
    }

    fn reap(&mut self, into: &mut VecDeque<Cqe>) {
        let landed = self.0.landed();
        if let Some(address) = FLOODED.get()
            && LANDED.get() < CLIENTS_AT_MOST
        {
            CLIENT.set(Some(TcpStream::connect(address).unwrap()));
            // It does not land when the accept has ended.
            let lands = (0..1_000).any(|_| {
                thread::yield_now();
                self.0.landed() > landed
            });
            LANDED.set(LANDED.get() + u32::from(lands));
        }
        self.0.reap(into);
    }
}

#[test]
fn connection_accepted_at_the_end_stayed_open() {
    let delivery = Delivery::Preemptive;
    let config = UringConfig::new(delivery.mode(), 16, 1, 16);
    for finishes in [true, false] {
        let ring = match UringKernel::<AcceptsAfterQuery>::on(Linux::default(), &config) {
            Ok(ring) => ring,
            Err(missing) => return println!("not tested: {missing}"),
        };
        let mut kernel = SendKernel::with_kernel(ring, delivery, Capacity::default()).unwrap();
        let at = "127.0.0.1:0".parse().unwrap();
        let (listener, address) = kernel.host_mut().listen(at, &ListenOptions::new(64)).unwrap();
        // SAFETY: the listener stays open.
        let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
        kernel.submit(Token::new(OpKind::Accept, 0, 0), accept).unwrap();
        kernel.turn(Some(Instant::now())).unwrap();
        // The end looks for events once, and finds none.
        ADDRESS.set(Some(address));
        if finishes {
            kernel.finish();
        }
        drop(kernel);
        let mut client = CLIENT.take().expect("it has connected");
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let end = client.read(&mut [0]).map_err(|error| error.kind());
        assert!(matches!(end, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{finishes}: {end:?}");
    }
}

#[test]
fn flood_of_connections_kept_the_end_from_ending() {
    for delivery in [Delivery::Preemptive, Delivery::Ps2, Delivery::Ps1] {
        let config = UringConfig::new(delivery.mode(), 16, 1, 16);
        let ring = match UringKernel::<AcceptsAfterQuery>::on(Linux::default(), &config) {
            Ok(ring) => ring,
            Err(missing) => return println!("not tested: {missing}"),
        };
        let mut kernel = SendKernel::with_kernel(ring, delivery, Capacity::new(8, 8)).unwrap();
        let at = "127.0.0.1:0".parse().unwrap();
        let (listener, address) = kernel.host_mut().listen(at, &ListenOptions::new(1024)).unwrap();
        // SAFETY: the listener stays open.
        let accept = Op::Accept { listener: unsafe { listener.fd() }, per_turn: None };
        kernel.submit(Token::new(OpKind::Accept, 0, 0), accept).unwrap();
        kernel.turn(Some(Instant::now())).unwrap();
        FLOODED.set(Some(address));
        kernel.finish();
        FLOODED.set(None);
        let came = LANDED.replace(0);
        assert!(came < CLIENTS_AT_MOST / 10, "{delivery:?}: the end took {came} connections");
    }
}
