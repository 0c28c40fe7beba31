//! Handlers in a sandbox for UDP: datagrams land in the memory of a handler, and its replies leave from there.

mod server;

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ash_sandbox::sandbox::Handler;
use shared_ring::sockets::Datagram;
#[cfg(feature = "io-uring")]
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    EngineConfig, Host, Kernel, KernelError, Linux, PortableKernel, Socket, Waker, poller,
};

use crate::{BindError, SendError, StartError, Tenant, Unavailable};
use server::DatagramServer;

/// Limits of a [`DatagramThread`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramConfig {
    /// Number of receive buffers in the message area of the handler, a power of two.
    pub buffers: u16,
    /// Maximum length of a datagram for the handler, in bytes. The application gets a longer one, cut to this length.
    pub max_len: u32,
    /// Maximum number of notifications that the application has not taken, and of its datagrams that the thread has
    /// not taken.
    pub capacity: usize,
    /// Maximum number of datagrams being sent. Further replies of the handler are dropped; datagrams of the
    /// application wait.
    pub max_in_flight: u16,
    /// Maximum length of the replies to a datagram, as a multiple of its length, both with headers of 28 bytes (IPv4 and
    /// UDP); `None` for no limit. Further replies are dropped. The source of a datagram may be forged, so without a limit a handler can be used to flood others:
    /// QUIC permits 3 (RFC 9000, section 8.1).
    pub max_amplification: Option<u32>,
    /// Time that datagrams may wait in the socket. If even the shortest delay of a period exceeds it, the thread is
    /// overloaded, and the application gets all datagrams. `None` switches that off.
    pub max_queue_delay: Option<Duration>,
    /// Time for which the thread looks for more datagrams, after each one that the handler has handled, before it sleeps.
    /// See [`Commands::busy_poll`](crate::Commands::busy_poll).
    pub busy_poll: Duration,
}

impl Default for DatagramConfig {
    fn default() -> Self {
        DatagramConfig {
            buffers: 64,
            max_len: 2048,
            capacity: 1024,
            max_in_flight: 256,
            max_amplification: Some(3),
            max_queue_delay: Some(Duration::from_millis(5)),
            busy_poll: Duration::ZERO,
        }
    }
}

impl DatagramConfig {
    /// Returns the configuration with changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// A datagram or event that the handler of a [`DatagramThread`] did not handle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatagramNotification {
    /// A datagram arrived.
    Datagram {
        /// The address from which it claims to come.
        source: SocketAddr,
        /// Its bytes, as they arrived, at most [`DatagramConfig::max_len`].
        bytes: Vec<u8>,
        /// Its length as it was sent. If that is more, its end is missing.
        sent_len: usize,
    },
    /// The handler has posted an event: the source of its datagram, kind and value.
    Event(SocketAddr, u64, u64),
}

/// A thread that owns a ring and a UDP socket, and runs a handler while the application computes or sleeps.
///
/// The ring receives each datagram into the memory of the handler, which is called once for it, with a number that
/// stands for the source in the place of the connection. Its replies go to that source, from where they lie. Datagrams
/// that it leaves go to the application through a [`DatagramRing`], which loses datagrams when it is full, as a socket
/// does.
///
/// The thread has one handler, for all datagrams and as long as it lives: [`Bindings`](crate::hooks::Bindings), filters and other
/// hooks are for connections only. Without a hook for upcalls, a datagram for one goes to the application, whether the handler
/// chose it or its governor did.
///
/// The kernel chooses the address from which a socket sends that is bound to all addresses (ip(7)); bind one
/// socket to each address if a machine has several.
///
/// ```no_run
/// use std::net::UdpSocket;
///
/// use ash_sandbox::sandbox::{Policy, Sandboxer};
/// use evring::datagrams::{DatagramConfig, DatagramNotification, DatagramThread};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ash = Sandboxer::new(Policy::default())?.load(&std::fs::read("handler.wasm")?)?;
/// let socket = UdpSocket::bind("127.0.0.1:7000")?;
/// let config = DatagramConfig::default();
/// let handler = move || ash.instantiate(1);
/// let (thread, ring) = DatagramThread::start("auto", socket, &config, handler)?;
/// while let Some(notification) = ring.wait() {
///     if let DatagramNotification::Datagram { source, bytes, .. } = notification {
///         let _ = ring.send_to(source, bytes);
///     }
/// }
/// thread.join()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DatagramThread {
    address: SocketAddr,
    tenant: Tenant,
    shared: Arc<Shared>,
    thread: JoinHandle<Result<(), KernelError>>,
}

/// The application's side of a [`DatagramThread`].
#[derive(Debug)]
pub struct DatagramRing {
    ring: Receiver<DatagramNotification>,
    commands: SyncSender<Command>,
    shared: Arc<Shared>,
}

/// Numbers of datagrams of a [`DatagramThread`], besides those of its [`Tenant`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramCounters {
    /// Datagrams that were received.
    pub received: u64,
    /// Those of them that were too long for the handler, so that the application got their beginning.
    pub truncated: u64,
    /// Datagrams that were sent, of the handler and of the application.
    pub sent: u64,
    /// Datagrams that the operating system did not send.
    pub send_errors: u64,
    /// Replies of the handler that were dropped: too many were being sent, or they were too long for their datagram.
    pub replies_dropped: u64,
    /// Notifications that were dropped, as the application had not taken enough.
    pub notifications_dropped: u64,
}

#[derive(Debug)]
struct Shared {
    waker: Waker,
    stop: AtomicBool,
    received: AtomicU64,
    truncated: AtomicU64,
    sent: AtomicU64,
    send_errors: AtomicU64,
    replies_dropped: AtomicU64,
    notifications_dropped: AtomicU64,
}

impl Shared {
    fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Shared {
            waker,
            stop: false.into(),
            received: 0.into(),
            truncated: 0.into(),
            sent: 0.into(),
            send_errors: 0.into(),
            replies_dropped: 0.into(),
            notifications_dropped: 0.into(),
        })
    }
}

/// A datagram of the application.
#[derive(Debug)]
struct Command {
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// The error that prevented a [`DatagramThread`] from starting.
#[non_exhaustive]
pub enum DatagramError<E> {
    /// The mechanism did not start.
    Start(StartError),
    /// The handler could not be made.
    Handler(E),
    /// The handler could not be bound.
    Bind(BindError),
    /// The socket could not be set up.
    Socket(io::Error),
    /// The thread could not be created, or panicked.
    Thread(io::Error),
}

impl<E: fmt::Display> fmt::Display for DatagramError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatagramError::Start(error) => error.fmt(f),
            DatagramError::Handler(error) => error.fmt(f),
            DatagramError::Bind(error) => error.fmt(f),
            DatagramError::Socket(error) => write!(f, "the socket cannot be set up: {error}"),
            DatagramError::Thread(error) => {
                write!(f, "the thread of the socket cannot run: {error}")
            }
        }
    }
}

impl<E: fmt::Display> fmt::Debug for DatagramError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<E: fmt::Display> std::error::Error for DatagramError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // These are displayed as they are.
            DatagramError::Start(error) => error.source(),
            DatagramError::Bind(error) => error.source(),
            DatagramError::Socket(error) | DatagramError::Thread(error) => Some(error),
            DatagramError::Handler(_) => None,
        }
    }
}

/// A kernel that can receive datagrams.
enum AnyKernel {
    #[cfg(feature = "io-uring")]
    Uring(Box<UringKernel>),
    Portable(Box<PortableKernel>),
}

/// The error for an invalid configuration.
const INVALID: &str = "max_len must be at most 65535, and max_in_flight at least 1";

impl AnyKernel {
    fn new(mechanism: &str, operations: u32) -> Result<Self, StartError> {
        match mechanism {
            #[cfg(feature = "io-uring")]
            "uring" => Self::uring(operations).map_err(StartError::Unavailable),
            "epoll" => Self::portable(operations),
            #[cfg(feature = "io-uring")]
            "auto" => Self::uring(operations).or_else(|_| Self::portable(operations)),
            #[cfg(not(feature = "io-uring"))]
            "auto" => Self::portable(operations),
            name => Err(StartError::Unavailable(Unavailable(format!(
                "the mechanism `{name}` has no datagrams; use auto, uring or epoll"
            )))),
        }
    }

    #[cfg(feature = "io-uring")]
    fn uring(operations: u32) -> Result<Self, Unavailable> {
        // All receives use the group of the handler.
        let config = UringConfig::new(Mode::Deferred, operations, 1, 1);
        let kernel = UringKernel::new(&config).map_err(|error| Unavailable(error.to_string()))?;
        Ok(AnyKernel::Uring(Box::new(kernel)))
    }

    fn portable(operations: u32) -> Result<Self, StartError> {
        let failed = |error| StartError::System("cannot set up the event loop", error);
        let poller = poller::Epoll::new().map_err(failed)?;
        let kernel = PortableKernel::new(poller, &EngineConfig::new(operations, 1, 1));
        Ok(AnyKernel::Portable(Box::new(kernel.map_err(failed)?)))
    }
}

/// The result of the start of a thread.
type Started<E> = Result<(Tenant, Arc<Shared>), DatagramError<E>>;

impl DatagramThread {
    /// Starts a thread for a socket. `mechanism` is `uring`, `epoll`, or `auto` for the first of them that this
    /// machine has. `handler` runs in the thread: it may choose the scheduling policy, and returns the handler.
    /// The socket must not have the option `IP_RECVERR` or `IPV6_RECVERR`, as the thread does not take such errors.
    ///
    /// # Errors
    /// If the configuration is invalid, the mechanism does not start, or the handler cannot be made or bound.
    pub fn start<E: Send + 'static>(
        mechanism: &str,
        socket: UdpSocket,
        config: &DatagramConfig,
        handler: impl FnOnce() -> Result<Handler, E> + Send + 'static,
    ) -> Result<(Self, DatagramRing), DatagramError<E>> {
        if config.max_len > u16::MAX.into() || config.max_in_flight == 0 {
            return Err(DatagramError::Start(StartError::Config(INVALID)));
        }
        let address = socket.local_addr().map_err(DatagramError::Socket)?;
        socket.set_nonblocking(true).map_err(DatagramError::Socket)?;
        if config.max_queue_delay.is_some() {
            Datagram::note_arrivals(&socket).map_err(DatagramError::Socket)?;
        }
        let (notifier, ring) = mpsc::sync_channel(config.capacity.max(1));
        let (sender, commands) = mpsc::sync_channel(config.capacity.max(1));
        let (started, result) = mpsc::sync_channel::<Started<E>>(1);
        let (mechanism, config) = (mechanism.to_owned(), config.clone());
        let run = move || {
            let operations = u32::from(config.max_in_flight) + 1;
            let prepared = AnyKernel::new(&mechanism, operations).map_err(DatagramError::Start);
            let prepared = prepared
                .and_then(|kernel| Ok((kernel, handler().map_err(DatagramError::Handler)?)));
            let channels = (notifier, commands);
            let socket = Socket::from(OwnedFd::from(socket));
            match prepared {
                #[cfg(feature = "io-uring")]
                Ok((AnyKernel::Uring(kernel), handler)) => {
                    serve(*kernel, socket, handler, &config, channels, &started)
                }
                Ok((AnyKernel::Portable(kernel), handler)) => {
                    serve(*kernel, socket, handler, &config, channels, &started)
                }
                Err(error) => {
                    Linux::default().close_unused(socket);
                    let _ = started.send(Err(error));
                    Ok(())
                }
            }
        };
        let thread = thread::Builder::new().name("datagram-owner".into());
        let thread = thread.spawn(run).map_err(DatagramError::Thread)?;
        let panicked = |_| DatagramError::Thread(io::Error::other("it panicked before it started"));
        let (tenant, shared) = result.recv().map_err(panicked)??;
        let ring = DatagramRing { ring, commands: sender, shared: Arc::clone(&shared) };
        Ok((DatagramThread { address, tenant, shared, thread }, ring))
    }

    /// Returns the local address of the socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the name of the handler, which switches it and has its counters.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Returns the counters.
    pub fn counters(&self) -> DatagramCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &*self.shared;
        DatagramCounters {
            received: get(&shared.received),
            truncated: get(&shared.truncated),
            sent: get(&shared.sent),
            send_errors: get(&shared.send_errors),
            replies_dropped: get(&shared.replies_dropped),
            notifications_dropped: get(&shared.notifications_dropped),
        }
    }

    /// Stops the thread. Replies that it is sending may be lost.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
    }

    /// Waits until the thread has ended. Resumes its panic.
    ///
    /// # Errors
    /// If the kernel failed, or the socket can receive nothing more.
    pub fn join(self) -> Result<(), KernelError> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl DatagramRing {
    /// Takes the next notification, if there is one. Makes no system call.
    pub fn poll(&self) -> Option<DatagramNotification> {
        self.ring.try_recv().ok()
    }

    /// Sleeps until there is a notification, and takes it. `None` if the thread has ended.
    pub fn wait(&self) -> Option<DatagramNotification> {
        self.ring.recv().ok()
    }

    /// Sends a datagram from the socket.
    ///
    /// # Errors
    /// Returns the bytes if too many datagrams wait for the thread, or it has ended.
    pub fn send_to(&self, to: SocketAddr, bytes: Vec<u8>) -> Result<(), SendError<Vec<u8>>> {
        self.commands.try_send(Command { to, bytes }).map_err(|error| match error {
            TrySendError::Full(command) => SendError::Full(command.bytes),
            TrySendError::Disconnected(command) => SendError::Closed(command.bytes),
        })?;
        self.shared.waker.wake();
        Ok(())
    }
}

/// Binds the handler, and serves the socket until the thread is stopped.
fn serve<K: Kernel, E>(
    kernel: K,
    socket: Socket,
    handler: Handler,
    config: &DatagramConfig,
    channels: (SyncSender<DatagramNotification>, Receiver<Command>),
    started: &SyncSender<Started<E>>,
) -> Result<(), KernelError> {
    let (mut server, tenant) = match DatagramServer::new(kernel, socket, handler, config, channels)
    {
        Ok(server) => server,
        Err(error) => {
            let _ = started.send(Err(DatagramError::Bind(error)));
            return Ok(());
        }
    };
    let shared = server.shared();
    let _ = started.send(Ok((tenant, Arc::clone(&shared))));
    while !shared.stop.load(Ordering::Acquire) {
        server.turn(server.until())?;
    }
    Ok(())
}
