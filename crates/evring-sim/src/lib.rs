//! A simulated machine: it runs a whole server and its clients in one thread, and one seed decides every
//! event.
//!
//! The code above the system calls is the real one: [`UringKernel`] with its tables, queues and
//! buffers over a simulated [`Ring`](shared_ring::uring::Ring), and [`Engine`] over a simulated
//! [`Poller`]. The [`Machine`] below has descriptors, bounded streams, files in memory and virtual time.
//! [`Peer`]s are the other side of the network. Each system call of the program runs peers and the network
//! in random order and injects [faults](Fault). The same [`Plan`] repeats a run exactly.
//!
//! The machine checks these rules during a run:
//! - The program neither writes nor frees the memory of an operation before the operation ends.
//! - It closes each descriptor once, and not while an operation uses it, or a submission for it is queued.
//! - Tokens are unique among operations in flight.
//! - The program does not wait forever, and releases everything at its end.
//!
//! [`CheckedKernel`] does the same at the interface of a kernel. If the program's global allocator is a
//! [`WatchingAllocator`], the machine also checks that no memory is freed too early.
//!
//! # A server
//!
//! A server of the crate `evring` runs on a [`SimKernel`], or on a simulated epoll by a [`SimEngine`]
//! (`Config::engine_config`).
//!
//! ```
//! use std::time::Duration;
//!
//! use evring::mechanisms::{EventLoop, Mode};
//! use evring::{Application, Chunk, Close, Commands, Config, Cx, Rx};
//! use evring_sim::{Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimKernel};
//! # struct Echo;
//! # impl Application for Echo {
//! #     type State = ();
//! #     const MAX_UNCONSUMED: usize = 1;
//! #     fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
//! #         x.io.send(x.id, Chunk::Received(rx.take()));
//! #         if rx.eof() {
//! #             x.io.close(x.id, Close::Flush);
//! #         }
//! #     }
//! # }
//!
//! /// A client that sends a line and expects its echo.
//! #[derive(Default)]
//! struct Client {
//!     line: Option<PeerConn>,
//!     received: Vec<u8>,
//! }
//!
//! impl Peer for Client {
//!     fn step(&mut self, net: &mut Net<'_>) -> Next {
//!         let Some(line) = &self.line else {
//!             let Some(line) = net.connect("10.0.0.1:7".parse().unwrap()) else {
//!                 return Next::After(Duration::from_millis(1)); // the queue is full
//!             };
//!             let sent = net.send(&line, b"hello");
//!             assert_eq!(sent, 5, "the send buffer has room for 5 bytes");
//!             net.finish(&line);
//!             self.line = Some(line);
//!             return Next::Ready;
//!         };
//!         match net.receive(line, 100, &mut self.received) {
//!             ReceiveResult::Bytes(_) => return Next::Ready,
//!             ReceiveResult::Nothing => return Next::Wait,
//!             ReceiveResult::End if self.received == b"hello" => {}
//!             // A fault broke the connection; the bytes received before must be correct.
//!             _ if net.is_disrupted(line) && b"hello".starts_with(&self.received) => {}
//!             got => net.fail(format!("{got:?} after {}", self.received.escape_ascii())),
//!         }
//!         net.close(self.line.take().expect("just used"));
//!         Next::Done
//!     }
//!
//!     fn waits_for(&self) -> String {
//!         "an echo".to_owned()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! for seed in 0..100 {
//!     let machine = Machine::new(&Plan::default().with(|p| p.seed = seed));
//!     let mut config = Config::default();
//!     config.listen = vec!["10.0.0.1:7".parse()?];
//!     let kernel = SimKernel::new(&machine, &config.uring_config(Mode::Deferred)?)?;
//!     let server = EventLoop::new(kernel, &config)?;
//!     let remote = server.remote();
//!     for _ in 0..3 {
//!         machine.add_peer(Client::default());
//!     }
//!     machine.on_end(move || remote.stop());
//!     let result = server.run(Echo);
//!     assert_eq!(machine.verdict().failure, None, "seed {seed}");
//!     result?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Machine::verdict`] reports the first failure, in more detail than the result of `run`. With
//! [`Plan::trace_steps`] it contains a trace of all events.
//!
//! # A kernel
//!
//! A kernel of one's own that makes its system calls through [`System`](shared_ring::author::System), or
//! uses a [`Ring`](shared_ring::uring::Ring), runs on a machine unchanged: [`Machine`] implements the first,
//! [`SimRing`] the second. [`CheckedKernel::over`] adds the checks. [`Machine::manual_peer`] gives a test
//! the other end of the network without a [`Peer`].
//!
//! # Not simulated
//!
//! Threads, except those of a kernel's offload; Unix sockets; a network for datagrams, which a test
//! [delivers](Machine::deliver_datagram) and [takes](Machine::take_sent_datagrams) itself; symbolic links; most
//! system calls by number. A machine makes accept4, close, connect, getrandom, openat2, pread64, preadv2, read,
//! recvfrom, sendfile, sendmsg, sendto and write; others fail with `ENOSYS`.

mod calls;
mod check;
mod datagrams;
mod disk;
mod fault;
mod hang;
mod machine;
mod manual_peer;
mod memory;
mod number;
mod page_cache;
mod peer;
mod plan;
mod poller;
mod provided;
mod ring;
mod rng;
mod signals;
mod state;
mod stream;
mod submission;
mod trace;
mod versions;
mod work;

pub use calls::{CallBy, SimCalls};
pub use check::CheckedKernel;
pub use fault::{Fault, Faults};
pub use machine::{Machine, RunReport};
pub use manual_peer::ManualPeer;
pub use memory::WatchingAllocator;
pub use peer::{Net, Next, Peer, PeerConn, ReceiveResult};
pub use plan::{Plan, Unsupported};
pub use poller::{PollerKind, SimPoller};
pub use ring::SimRing;
pub use state::MachineUsage;
pub use versions::FileVersions;

use shared_ring::poller::Poller;
use shared_ring::uring::{SetupError, UringConfig, UringKernel};
use shared_ring::{Engine, EngineConfig};

/// The io_uring kernel on a simulated machine.
pub type SimKernel = CheckedKernel<UringKernel<SimRing>>;

/// The engine over a simulated poller, on a simulated machine.
pub type SimEngine<const EDGE: bool> = CheckedKernel<Engine<SimPoller<EDGE>, Machine>>;

impl SimKernel {
    /// Sets up a ring on a machine.
    ///
    /// # Errors
    /// The first feature that the machine does not support.
    pub fn new(machine: &Machine, config: &UringConfig) -> Result<Self, SetupError> {
        let kernel = UringKernel::on(machine.clone(), config)?;
        Ok(CheckedKernel::over(kernel, machine))
    }
}

impl<const EDGE: bool> SimEngine<EDGE> {
    /// Sets up an engine on a machine.
    ///
    /// # Errors
    /// If no descriptor is free for the waker.
    pub fn new(machine: &Machine, config: &EngineConfig) -> std::io::Result<Self> {
        Self::polling(machine, SimPoller::new(machine), config)
    }
}

impl<P: Poller> CheckedKernel<Engine<P, Machine>> {
    /// Sets up an engine on a machine over one of its pollers.
    ///
    /// # Errors
    /// If no descriptor is free for the waker.
    pub fn polling(machine: &Machine, poller: P, config: &EngineConfig) -> std::io::Result<Self> {
        let engine = Engine::on(machine.clone(), poller, config)?;
        Ok(CheckedKernel::over(engine, machine))
    }
}

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
