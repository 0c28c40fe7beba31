//! A thread that owns the ring, and the notification ring of its application (ASH, figure 5-2).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError, TrySendError};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use shared_ring::KernelError;

use crate::{
    AnyMechanism, Application, Chunk, Close, Commands, Config, ConnId, Cx, HIGH_WATER, Hooked,
    Mailbox, Others, ReceiveHook, RemoteHandle, Rx, SendError, Sender, StartError, Stats,
};

/// Bytes of a message that the application gets in one piece.
const MAX_MESSAGE: usize = 64 * 1024;

/// The wake-up after which connections that found the ring full are received from again.
const RESUME: u64 = u64::MAX;
/// That of the application's replies.
const COMMANDS: u64 = u64::MAX - 1;

/// What the hook of an [`OwnerThread`] did not consume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification {
    /// Bytes arrived.
    Message(ConnId, Vec<u8>),
    /// The client sends nothing more.
    End(ConnId),
    /// The hook has posted an event: a connection, kind and value.
    Event(ConnId, u64, u64),
}

/// A thread that runs a server while the application computes or sleeps.
///
/// It handles completions and calls the hook, for instance a `Landing` with handlers in a sandbox. The rest
/// goes to the application through its [`NotificationRing`]. While that is full, the thread does not receive
/// from the connections that have more for it; connections whose messages the hook consumes go on. Nor does it
/// receive from a connection with [`HIGH_WATER`] bytes of replies to send, until its client has read them.
#[derive(Debug)]
pub struct OwnerThread {
    addresses: Vec<SocketAddr>,
    remote: RemoteHandle,
    thread: JoinHandle<Result<Stats, KernelError>>,
}

/// The application's side of an [`OwnerThread`].
#[derive(Debug)]
pub struct NotificationRing {
    ring: Receiver<Notification>,
    is_stalled: Arc<AtomicBool>,
    remote: RemoteHandle,
    commands: Sender<Command>,
}

/// Posts events to a [`NotificationRing`], for the hook.
#[derive(Clone, Debug)]
pub struct Notifier(SyncSender<Notification>);

impl Notifier {
    /// Posts an event. Returns whether the ring had room; if not, the event is dropped.
    pub fn post(&self, id: ConnId, kind: u64, value: u64) -> bool {
        self.0.try_send(Notification::Event(id, kind, value)).is_ok()
    }
}

/// The error that prevented an [`OwnerThread`] from starting.
#[non_exhaustive]
pub enum OwnerError<E> {
    /// The mechanism did not start.
    Start(StartError),
    /// The hook could not be made.
    Hook(E),
    /// The thread could not be created, or panicked.
    Thread(io::Error),
}

impl<E: fmt::Display> fmt::Display for OwnerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OwnerError::Start(error) => error.fmt(f),
            OwnerError::Hook(error) => error.fmt(f),
            OwnerError::Thread(error) => write!(f, "the thread of the ring cannot run: {error}"),
        }
    }
}

impl<E: fmt::Display> fmt::Debug for OwnerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<E: fmt::Display> std::error::Error for OwnerError<E> {}

#[derive(Debug)]
enum Command {
    Send(ConnId, Vec<u8>),
    Close(ConnId),
}

impl OwnerThread {
    /// Starts a server on a mechanism in a thread of its own. The ring has `capacity` notifications, and as
    /// many replies. `hook` runs in that thread: it may choose the scheduling policy, and add buffers.
    ///
    /// # Errors
    /// If the mechanism does not start, or `hook` fails.
    pub fn start<H: ReceiveHook + 'static, E: Send + 'static>(
        mechanism: &str,
        config: &Config,
        capacity: usize,
        hook: impl FnOnce(&mut AnyMechanism, Notifier) -> Result<H, E> + Send + 'static,
    ) -> Result<(Self, NotificationRing), OwnerError<E>> {
        let (notifier, ring) = mpsc::sync_channel(capacity.max(1));
        let (started, result) = mpsc::sync_channel(1);
        let is_stalled = Arc::new(AtomicBool::new(false));
        let (mechanism, config) = (mechanism.to_owned(), config.clone());
        let stalled = Arc::clone(&is_stalled);
        let run = move || {
            let prepare = || {
                let mut server =
                    AnyMechanism::new(&mechanism, &config).map_err(OwnerError::Start)?;
                let hook = hook(&mut server, Notifier(notifier.clone()));
                Ok((server, hook.map_err(OwnerError::Hook)?))
            };
            let (server, hook) = match prepare() {
                Ok(prepared) => prepared,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return Ok(Stats::default());
                }
            };
            let remote = server.remote();
            let (mailbox, commands) = Mailbox::new(&remote, COMMANDS, capacity.max(1));
            let _ = started.send(Ok((server.addresses().to_vec(), remote, commands)));
            let rest = Rest { notifier, mailbox, is_stalled: stalled, stalled: Vec::new() };
            server.run(Hooked::new(rest, hook))
        };
        let thread = thread::Builder::new().name("ring-owner".into());
        let thread = thread.spawn(run).map_err(OwnerError::Thread)?;
        let panicked = |_| OwnerError::Thread(io::Error::other("it panicked before it listened"));
        let (addresses, remote, commands) = result.recv().map_err(panicked)??;
        let ring = NotificationRing { ring, is_stalled, remote: remote.clone(), commands };
        Ok((OwnerThread { addresses, remote, thread }, ring))
    }

    /// Returns the local addresses of the listeners, in the order of [`Config::listen`].
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns a handle of the server, to stop it.
    pub fn remote(&self) -> RemoteHandle {
        self.remote.clone()
    }

    /// Waits until the server has stopped. Resumes its panic.
    ///
    /// # Errors
    /// If the kernel failed.
    pub fn join(self) -> Result<Stats, KernelError> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl NotificationRing {
    /// Takes the next notification, if there is one. Makes no system call unless connections wait for room.
    pub fn poll(&self) -> Option<Notification> {
        match self.ring.try_recv() {
            Ok(notification) => Some(self.taken(notification)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Sleeps until there is a notification, and takes it. `None` if the server has ended.
    pub fn wait(&self) -> Option<Notification> {
        self.ring.recv().ok().map(|notification| self.taken(notification))
    }

    fn taken(&self, notification: Notification) -> Notification {
        if self.is_stalled.swap(false, Ordering::SeqCst) && !self.remote.wake(RESUME) {
            // Too many wake-ups are pending: the next notification tries again.
            self.is_stalled.store(true, Ordering::SeqCst);
        }
        notification
    }

    /// Sends bytes to a client. Nothing happens if the connection has closed.
    ///
    /// # Errors
    /// Returns the bytes if too many replies wait for the thread, or the server has ended.
    pub fn send(&self, to: ConnId, bytes: Vec<u8>) -> Result<(), SendError<Vec<u8>>> {
        let bytes_of = |command| match command {
            Command::Send(_, bytes) => bytes,
            Command::Close(_) => Vec::new(),
        };
        self.commands.send(Command::Send(to, bytes)).map_err(|error| match error {
            SendError::Full(command) => SendError::Full(bytes_of(command)),
            SendError::Closed(command) => SendError::Closed(bytes_of(command)),
        })
    }

    /// Closes a connection after all that was sent.
    ///
    /// # Errors
    /// If too many replies wait for the thread, or the server has ended.
    pub fn close(&self, id: ConnId) -> Result<(), SendError<()>> {
        self.commands.send(Command::Close(id)).map_err(|error| match error {
            SendError::Full(_) => SendError::Full(()),
            SendError::Closed(_) => SendError::Closed(()),
        })
    }
}

/// Puts what the hook left into the ring, and executes what the application commands.
struct Rest {
    notifier: SyncSender<Notification>,
    mailbox: Mailbox<Command>,
    is_stalled: Arc<AtomicBool>,
    /// The connections that wait for room in the ring.
    stalled: Vec<ConnId>,
}

#[derive(Debug, Default)]
struct Connection {
    is_stalled: bool,
    /// Its client does not read the replies.
    is_backlogged: bool,
    has_ended: bool,
}

impl Rest {
    /// Puts a notification into the ring. If it is full, returns false, and the application will resume the
    /// connection.
    fn put(&self, notification: Notification) -> Result<bool, Gone> {
        let notification = match self.notifier.try_send(notification) {
            Ok(()) => return Ok(true),
            Err(TrySendError::Disconnected(_)) => return Err(Gone),
            Err(TrySendError::Full(notification)) => notification,
        };
        self.is_stalled.store(true, Ordering::SeqCst);
        // The application may have emptied the ring before it could see the mark.
        match self.notifier.try_send(notification) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(_)) => Ok(false),
            Err(TrySendError::Disconnected(_)) => Err(Gone),
        }
    }
}

/// The application has dropped its ring.
struct Gone;

impl Application for Rest {
    type State = Connection;
    const MAX_UNCONSUMED: usize = MAX_MESSAGE;

    fn received(&mut self, x: Cx<'_, impl Commands, Connection>, rx: &mut Rx<'_>) {
        let mut put = Ok(true);
        if !rx.bytes().is_empty() {
            put = self.put(Notification::Message(x.id, rx.bytes().to_vec()));
            if let Ok(true) = put {
                rx.consume(rx.bytes().len());
            }
        }
        if rx.eof() && rx.bytes().is_empty() && !x.state.has_ended && matches!(put, Ok(true)) {
            put = self.put(Notification::End(x.id));
            x.state.has_ended = matches!(put, Ok(true));
        }
        match put {
            Ok(true) => {}
            Ok(false) => {
                x.io.set_receiving(x.id, false);
                if !std::mem::replace(&mut x.state.is_stalled, true) {
                    self.stalled.push(x.id);
                }
            }
            Err(Gone) => x.io.close(x.id, Close::Reset),
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, Connection>) {
        if std::mem::take(&mut x.state.is_backlogged) && !x.state.is_stalled {
            x.io.set_receiving(x.id, true);
        }
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, Connection>, _: crate::CloseReason) {
        if x.state.is_stalled {
            self.stalled.retain(|id| *id != x.id);
        }
    }

    fn woken(&mut self, io: &mut impl Commands, mut all: Others<'_, Connection>, tag: u64) {
        if tag == RESUME {
            for id in self.stalled.drain(..) {
                let Some(connection) = all.get(io, id) else { continue };
                connection.is_stalled = false;
                if !connection.is_backlogged {
                    io.set_receiving(id, true);
                }
            }
        } else {
            for command in self.mailbox.drain() {
                match command {
                    Command::Send(id, bytes) => {
                        let load = io.send(id, Chunk::Shared(Bytes::from(bytes)));
                        if load >= HIGH_WATER
                            && let Some(connection) = all.get(io, id)
                        {
                            connection.is_backlogged = true;
                            io.set_receiving(id, false);
                        }
                    }
                    Command::Close(id) => io.close(id, Close::Flush),
                }
            }
        }
    }
}
