//! The thread of a socket for datagrams.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};
use std::time::{Duration, Instant};

use ash_sandbox::sandbox::Handler;
use bytes::Bytes;
use shared_ring::buffers::GatherList;
use shared_ring::sockets::{Datagram, Transmit};
use shared_ring::{
    Errno, Fd, Host, Kernel, KernelError, Op, OpKind, Outcome, Socket, Submitted, Token,
};

use super::{Command, DatagramConfig, DatagramNotification, Shared};
use crate::admission::LoadEstimator;
use crate::tenant::{Bound, Landed, Lends, Reply, Verdict, add};
use crate::wheel::after;
use crate::{Admission, BindError, Tenant};

/// The receive. It is the only operation of its kind.
const RECEIVE: Token = Token::new(OpKind::Receive, 0, 0);

/// Length of the headers of a datagram, of IPv4 and UDP: an empty one is not free.
const HEADERS: usize = 20 + 8;

/// Maximum number of datagrams of the application that are sent at a time, before the thread receives again.
const MAX_COMMANDS: usize = 64;

/// A socket, its handler, and what they share with the application.
pub(super) struct DatagramServer<K: Kernel> {
    kernel: K,
    /// Closed when the value is dropped, after the kernel has finished.
    socket: Option<Socket>,
    bound: Bound,
    outbox: Outbox,
    load: LoadEstimator,
    max_amplification: Option<u32>,
    busy_poll: Duration,
    busy_poll_ends: Instant,
    notifier: SyncSender<DatagramNotification>,
    commands: Receiver<Command>,
    /// The application may have sent datagrams.
    has_commands: bool,
    /// The memory of a notification that was dropped, for the next one.
    spare: Vec<u8>,
    /// Gives sources numbers that no client can foresee.
    numbers: RandomState,
    shared: Arc<Shared>,
}

/// The datagrams being sent.
struct Outbox {
    fd: Fd,
    /// Those that are not in flight, with the slots of their tokens.
    idle: Vec<(u32, Box<Transmit>)>,
    /// Those that found no room in the socket while another one waited for it, oldest first.
    rejected: VecDeque<(u32, Box<Transmit>)>,
}

impl Outbox {
    /// Sends a datagram. Returns false if too many are in flight.
    fn send(
        &mut self,
        kernel: &mut impl Kernel,
        shared: &Shared,
        to: SocketAddr,
        fill: impl FnOnce(&mut GatherList),
    ) -> bool {
        let Some((slot, mut message)) = self.idle.pop() else { return false };
        message.to = to;
        fill(&mut message.data);
        self.rejected.push_back((slot, message));
        if self.rejected.len() == 1 {
            self.submit(kernel, shared);
        }
        true
    }

    /// Sends datagrams until the socket has no room. The end of the one that waits for room continues.
    fn submit(&mut self, kernel: &mut impl Kernel, shared: &Shared) {
        while let Some((slot, message)) = self.rejected.pop_front() {
            let op = Op::SendTo { fd: self.fd, message };
            match kernel.submit(Token::new(OpKind::Send, slot, 0), op) {
                Ok(Submitted::InFlight) => {}
                Ok(Submitted::Done(Outcome::SentTo(message, Err(Errno::AGAIN)))) => {
                    return self.rejected.push_front((slot, message));
                }
                Ok(Submitted::Done(outcome)) => self.sent(slot, outcome, shared),
                Err(rejected) => self.sent(slot, rejected.op.fail(Errno::NOBUFS), shared),
            }
        }
    }

    /// Takes a datagram back.
    fn sent(&mut self, slot: u32, outcome: Outcome, shared: &Shared) {
        let Outcome::SentTo(mut message, result) = outcome else { return };
        add(if result.is_ok() { &shared.sent } else { &shared.send_errors }, 1);
        message.data.clear();
        self.idle.push((slot, message));
    }
}

impl<K: Kernel> DatagramServer<K> {
    /// Binds the handler, and begins to receive.
    ///
    /// # Errors
    /// If the handler is bound, or its memory has no room for the buffers. Then the socket is closed.
    pub(super) fn new(
        mut kernel: K,
        socket: Socket,
        handler: Handler,
        config: &DatagramConfig,
        (notifier, commands): (SyncSender<DatagramNotification>, Receiver<Command>),
    ) -> Result<(Self, Tenant), BindError> {
        let size = config.max_len + Datagram::HEADER_BYTES as u32;
        let add_buffers = |buffers| kernel.add_buffers(buffers);
        let bound = Bound::new(handler, (config.buffers, size), Lends::All, add_buffers);
        let (bound, tenant) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                kernel.host_mut().close_unused(socket);
                return Err(error);
            }
        };
        let admission = config
            .max_queue_delay
            .map(|max_queue_delay| Admission { max_queue_delay, ..Admission::default() });
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let slots = 0..u32::from(config.max_in_flight);
        // SAFETY: the socket is closed when the value is dropped, after `Submit::finish` has returned; no turn follows.
        let fd = unsafe { socket.fd() };
        let busy_poll_ends = kernel.now();
        let mut server = DatagramServer {
            shared: Shared::new(kernel.waker()),
            kernel,
            socket: Some(socket),
            bound,
            outbox: Outbox {
                fd,
                idle: slots.map(|slot| (slot, Transmit::new(nowhere))).collect(),
                rejected: VecDeque::with_capacity(config.max_in_flight.into()),
            },
            load: LoadEstimator::new(admission, false),
            max_amplification: config.max_amplification,
            busy_poll: config.busy_poll,
            busy_poll_ends,
            notifier,
            commands,
            has_commands: false,
            spare: Vec::new(),
            numbers: RandomState::new(),
        };
        let receive = Op::ReceiveFrom { fd, group: tenant.group() };
        let posted = server.kernel.submit(RECEIVE, receive);
        debug_assert!(matches!(posted, Ok(Submitted::InFlight)), "it is the first operation");
        Ok((server, tenant))
    }

    /// Returns what other threads see of it.
    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Returns when the next turn ends: at once during a busy poll, or when the overload ends if it is not detected again.
    pub(super) fn until(&self) -> Option<Instant> {
        let now = self.kernel.now();
        if now < self.busy_poll_ends { Some(now) } else { self.load.overload_ends() }
    }

    /// Runs a turn of the kernel, which waits until a time at most.
    ///
    /// # Errors
    /// If the kernel failed, or the socket can receive nothing more.
    pub(super) fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        self.kernel.turn(until)?;
        while let Some(completion) = self.kernel.next() {
            match completion.outcome {
                Outcome::Datagram(datagram) => self.received(datagram),
                outcome @ Outcome::SentTo(..) => {
                    self.outbox.sent(completion.token.slot(), outcome, &self.shared);
                    self.outbox.submit(&mut self.kernel, &self.shared);
                }
                Outcome::Woken => self.has_commands = true,
                Outcome::Failed(errno, _) if completion.token == RECEIVE => {
                    self.receive_again(errno)?;
                }
                Outcome::Eof => return Err(failed(Errno::SHUTDOWN)),
                _ => {}
            }
            if self.has_commands {
                self.execute_commands();
            }
        }
        self.load.end_turn(self.kernel.now(), 0, false);
        Ok(())
    }

    /// Receives again after an error that a peer can cause, or that passes.
    fn receive_again(&mut self, errno: Errno) -> Result<(), KernelError> {
        let passes = matches!(
            errno,
            Errno::CONNREFUSED
                | Errno::CONNRESET
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::NETDOWN
                | Errno::MSGSIZE
                | Errno::ACCESS
                | Errno::NOPROTOOPT
                | Errno::NONET
                | Errno::PROTO
                | Errno::NOMEM
        );
        if !passes {
            return Err(failed(errno));
        }
        let receive = Op::ReceiveFrom { fd: self.outbox.fd, group: self.bound.group() };
        match self.kernel.submit(RECEIVE, receive) {
            Ok(_) => Ok(()),
            Err(_) => Err(failed(errno)),
        }
    }

    fn received(&mut self, datagram: Datagram) {
        add(&self.shared.received, 1);
        let (source, sent_len, now) = (datagram.source(), datagram.sent_len(), self.kernel.now());
        self.note_wait(&datagram, now);
        if datagram.is_truncated() {
            add(&self.shared.truncated, 1);
            return self.pass(source, datagram.bytes(), sent_len);
        }
        let buffer = datagram.into_buffer();
        let is_scarce = buffer.is_scarce();
        let landed_at = buffer.place().map(|place| Landed { offset: place.offset, is_scarce });
        let (number, is_overloaded) = (self.numbers.hash_one(source), self.load.is_overloaded());
        match self.bound.handle(&buffer, landed_at, number, is_overloaded, now) {
            Verdict::Handled(message) => {
                let DatagramServer { kernel, bound, outbox, shared, .. } = self;
                let max = self.max_amplification;
                let mut left = max.map_or(usize::MAX, |max| {
                    sent_len.saturating_add(HEADERS).saturating_mul(max as usize)
                });
                let mut buffer = Some(buffer);
                bound.replies(&message, &mut buffer, |reply| {
                    let len = reply.len().saturating_add(HEADERS);
                    let is_sent = len <= left
                        && outbox.send(kernel, shared, source, |data| match reply {
                            Reply::Lent(buffer) => data.hold(buffer),
                            Reply::Copied(bytes) => data.copy(bytes),
                        });
                    left -= if is_sent { len } else { 0 };
                    add(&shared.replies_dropped, u64::from(!is_sent));
                    is_sent
                });
                for n in 0..self.bound.events().len() {
                    let (kind, value) = self.bound.events()[n];
                    self.post(DatagramNotification::Event(source, kind, value));
                }
                self.busy_poll_ends = after(now, self.busy_poll);
            }
            Verdict::Discarded => {}
            Verdict::Passed { .. } => self.pass(source, &buffer, sent_len),
        }
    }

    /// Samples how long datagrams wait in the socket.
    fn note_wait(&mut self, datagram: &Datagram, now: Instant) {
        self.load.admitted();
        if self.load.first_service(now)
            && let Some(arrived_at) = datagram.arrived_at()
        {
            let waited = self.kernel.host().wall_time().duration_since(arrived_at);
            self.load.sample_wait(now, waited.unwrap_or_default());
        }
    }

    /// Passes a datagram to the application.
    fn pass(&mut self, source: SocketAddr, datagram: &[u8], sent_len: usize) {
        let mut bytes = mem::take(&mut self.spare);
        bytes.clear();
        bytes.extend_from_slice(datagram);
        self.post(DatagramNotification::Datagram { source, bytes, sent_len });
    }

    /// Puts a notification into the ring, or drops it.
    fn post(&mut self, notification: DatagramNotification) {
        let Err(error) = self.notifier.try_send(notification) else { return };
        add(&self.shared.notifications_dropped, 1);
        let (TrySendError::Full(dropped) | TrySendError::Disconnected(dropped)) = error;
        if let DatagramNotification::Datagram { bytes, .. } = dropped {
            self.spare = bytes;
        }
    }

    /// Sends the datagrams of the application, as many as may be in flight.
    fn execute_commands(&mut self) {
        for _ in 0..MAX_COMMANDS {
            if self.outbox.idle.is_empty() {
                // The end of a send continues.
                return;
            }
            match self.commands.try_recv() {
                Ok(Command { to, bytes }) => {
                    let fill = |data: &mut GatherList| data.shared(Bytes::from(bytes));
                    self.outbox.send(&mut self.kernel, &self.shared, to, fill);
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    self.has_commands = false;
                    return;
                }
            }
        }
        self.has_commands = false;
        self.shared.waker.wake();
    }
}

fn failed(errno: Errno) -> KernelError {
    KernelError::new("receiving datagrams", errno)
}

impl<K: Kernel> Drop for DatagramServer<K> {
    fn drop(&mut self) {
        // Until this returns, the kernel may receive into the memory of the handler.
        self.kernel.finish();
        if let Some(socket) = self.socket.take() {
            self.kernel.host_mut().close_unused(socket);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Weak, mpsc};

    use ash_sandbox::sandbox::{HandlerMemory, Policy, Sandboxer};
    use evring_sim::{CheckedKernel, Fault, Faults, Machine, Plan, SimKernel, SimPoller};
    use shared_ring::uring::{Mode, UringConfig};
    use shared_ring::{EngineConfig, Submit};

    use super::*;

    const ECHO: &str = r#"
    (module
      (import "ash" "send" (func $send (param i32 i32) (result i32)))
      (memory (export "memory") 1 1)
      (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
        (drop (call $send (local.get 0) (local.get 1)))
        (i32.const 1)))
    "#;

    const MAX_LEN: usize = 100;
    const IN_FLIGHT: u16 = 2;
    const OPERATIONS: u32 = 1 + IN_FLIGHT as u32;

    /// A server, its socket, and the other ends of its channels.
    struct Started<K: Kernel> {
        server: DatagramServer<K>,
        fd: Fd,
        tenant: Tenant,
        memory: Weak<HandlerMemory>,
        ring: Receiver<DatagramNotification>,
        sender: SyncSender<Command>,
    }

    /// Starts a server of [`ECHO`] with so many places for notifications and commands.
    fn start<K: Kernel<Host = Machine>>(
        machine: &Machine,
        kernel: K,
        config: DatagramConfig,
        (notifications, commands): (usize, usize),
    ) -> Started<K> {
        let socket = machine.datagram_socket().unwrap();
        // SAFETY: the number is used while the server has the socket.
        let fd = unsafe { socket.fd() };
        let ash = Sandboxer::new(Policy::default()).unwrap();
        let ash = ash.load(&wat::parse_str(ECHO).unwrap()).unwrap();
        let handler = ash.instantiate(1).unwrap();
        let memory = Arc::downgrade(handler.memory());
        let config = config.with(|c| c.max_queue_delay = None);
        let (notifier, ring) = mpsc::sync_channel(notifications);
        let (sender, commands) = mpsc::sync_channel(commands);
        let server = DatagramServer::new(kernel, socket, handler, &config, (notifier, commands));
        let (server, tenant) = server.unwrap();
        Started { server, fd, tenant, memory, ring, sender }
    }

    fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// Datagrams arrive faster than they are handled and sent, with any faults, until the server is dropped.
    fn serve<K: Kernel<Host = Machine>>(machine: &Machine, kernel: K) -> [u64; 3] {
        let config = DatagramConfig::default().with(|c| {
            (c.buffers, c.max_len, c.max_in_flight) = (2, MAX_LEN as u32, IN_FLIGHT);
        });
        let Started { mut server, fd, tenant, memory, ring, sender } =
            start(machine, kernel, config, (1, 4));
        let (mut arrived, mut replies, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        let mut turn = |server: &mut DatagramServer<K>| {
            server.turn(Some(server.kernel.now())).unwrap();
            replies.append(&mut machine.take_sent_datagrams(fd));
            passed.extend(ring.try_iter());
        };
        for n in 0..200u16 {
            let source = SocketAddr::from(([10, 0, 0, 1 + n as u8 % 5], 1 + n));
            let bytes = vec![n as u8; usize::from(n % 120)];
            if machine.deliver_datagram(fd, source, &bytes) {
                arrived.push((source, bytes));
            }
            if n % 4 == 0 {
                turn(&mut server);
            }
        }
        let shared = server.shared();
        let is_done = |server: &DatagramServer<K>| {
            get(&shared.received) == arrived.len() as u64
                && server.outbox.idle.len() == usize::from(IN_FLIGHT)
        };
        while !is_done(&server) {
            turn(&mut server);
        }
        // Each datagram is handled once, and its reply goes to its source.
        let (mut whole, mut long): (Vec<_>, Vec<_>) =
            arrived.into_iter().partition(|(_, bytes)| bytes.len() <= MAX_LEN);
        let dropped = get(&shared.replies_dropped) + get(&shared.send_errors);
        assert_eq!(tenant.counters().handled, whole.len() as u64);
        assert_eq!(replies.len() as u64 + dropped, whole.len() as u64);
        whole.retain(|datagram| replies.contains(datagram));
        whole.sort();
        replies.sort();
        assert!(whole == replies, "each reply is that to another datagram");
        // The others reach the application in order, with their beginning and their length.
        long.retain(|(source, bytes)| {
            let cut = DatagramNotification::Datagram {
                source: *source,
                bytes: bytes[..MAX_LEN].to_vec(),
                sent_len: bytes.len(),
            };
            let is_passed = passed.first() == Some(&cut);
            passed.drain(..usize::from(is_passed));
            !is_passed
        });
        assert_eq!(passed, []);
        assert_eq!(get(&shared.notifications_dropped), long.len() as u64);
        // Those of the application wait for room.
        let to = SocketAddr::from(([10, 0, 0, 9], 9));
        let sent = [[1; 9], [2; 9], [3; 9], [4; 9]];
        sent.iter().for_each(|bytes| {
            sender.try_send(Command { to, bytes: bytes.to_vec() }).unwrap();
        });
        server.has_commands = true;
        server.execute_commands();
        let mut taken = machine.take_sent_datagrams(fd);
        while server.has_commands || server.outbox.idle.len() < usize::from(IN_FLIGHT) {
            server.turn(Some(server.kernel.now())).unwrap();
            taken.append(&mut machine.take_sent_datagrams(fd));
        }
        taken.sort();
        assert!(taken.into_iter().eq(sent.map(|bytes| (to, bytes.to_vec()))), "lost datagrams");
        // Receives and sends are in flight when the server is dropped.
        for n in 0..10 {
            machine.deliver_datagram(fd, SocketAddr::from(([10, 0, 0, 1], 1)), &[n; 10]);
        }
        server.turn(Some(server.kernel.now())).unwrap();
        drop(server);
        assert_eq!((machine.failure(), machine.in_use().sockets), (None, 0));
        assert!(memory.upgrade().is_none(), "the memory of the handler leaks");
        [replies.len() as u64, dropped, long.len() as u64]
    }

    #[test]
    fn datagrams_that_arrived_waited_for_all_commands_of_the_application() {
        const COMMANDS: usize = 2 * MAX_COMMANDS + 10;
        let machine = Machine::new(&Plan::default());
        let operations = 1 + 2 * COMMANDS as u32;
        let config = UringConfig::new(Mode::Deferred, operations, 1, 1);
        let kernel = SimKernel::new(&machine, &config).unwrap();
        let config = DatagramConfig::default().with(|c| {
            (c.max_len, c.max_in_flight) = (MAX_LEN as u32, 2 * COMMANDS as u16);
        });
        let Started { mut server, fd, sender, .. } = start(&machine, kernel, config, (1, COMMANDS));
        let to = SocketAddr::from(([10, 0, 0, 9], 9));
        for n in 0..COMMANDS {
            sender.try_send(Command { to, bytes: vec![n as u8; 9] }).unwrap();
        }
        let shared = server.shared();
        shared.waker.wake();
        // Those that are sent, or being sent, after each turn.
        let mut begun = Vec::new();
        while begun.last() != Some(&COMMANDS) {
            server.turn(Some(server.kernel.now())).unwrap();
            let in_flight = 2 * COMMANDS - server.outbox.idle.len();
            begun.push(get(&shared.sent) as usize + in_flight);
            // The thread wakes itself for the rest.
            assert!(begun.len() < 100, "{begun:?}");
        }
        let parts: Vec<_> = begun
            .iter()
            .scan(0, |before, n| Some(*n - std::mem::replace(before, *n)))
            .filter(|part| *part > 0)
            .collect();
        assert_eq!(parts, [MAX_COMMANDS, MAX_COMMANDS, 10]);
        assert_eq!(machine.take_sent_datagrams(fd).len() as u64, get(&shared.sent));
    }

    #[test]
    fn simulated_datagrams_are_handled_once_and_leave_nothing() {
        let mut seen = [0; 3];
        for seed in 0..40 {
            let faults = [
                Fault::ShortSend,
                Fault::MultishotEnds,
                Fault::NoBuffers,
                Fault::Interrupted,
                Fault::Busy,
                Fault::TakesFew,
                Fault::CancelLoses,
                Fault::Spurious,
            ];
            let mut plan = Plan::default();
            plan.seed = seed;
            plan.faults = faults.into_iter().fold(Faults::NONE, Faults::with);
            let machine = Machine::new(&plan);
            let numbers = if seed % 2 == 0 {
                let config = UringConfig::new(Mode::Deferred, OPERATIONS, 1, 1);
                serve(&machine, SimKernel::new(&machine, &config).unwrap())
            } else {
                let config = EngineConfig::new(OPERATIONS, 1, 1);
                let poller = SimPoller::<false>::new(&machine);
                serve(&machine, CheckedKernel::polling(&machine, poller, &config).unwrap())
            };
            seen.iter_mut().zip(numbers).for_each(|(all, number)| *all += number);
        }
        assert!(seen.iter().all(|number| *number > 0), "{seen:?}");
    }
}
