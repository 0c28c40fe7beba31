//! A thread that owns the ring, and the notification ring of its application (ASH, figure 5-2).

pub use crate::scheduling::{Scheduling, SchedulingError};

use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use shared_ring::KernelError;

use crate::{
    AnyMechanism, Application, Chunk, Close, Commands, Config, ConnId, Cx, HIGH_WATER, Hooked,
    Mailbox, Others, ReceiveHook, RemoteHandle, Rx, SendError, Sender, StartError, Stats,
};

/// Time after which a wake-up that failed is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// Maximum number of bytes that the application gets in one piece.
const MAX_MESSAGE: usize = 64 * 1024;

/// The wake-up after which connections that found the ring full are received from again.
const RESUME: u64 = u64::MAX;
/// That of the application's replies.
const COMMANDS: u64 = u64::MAX - 1;

/// An event that the hook of an [`OwnerThread`] did not consume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification {
    /// Bytes arrived, at most 64 KiB of them. The hook gets nothing more of the connection until it is
    /// [given back](NotificationRing::reply).
    Message(ConnId, Vec<u8>),
    /// The client sends nothing more.
    End(ConnId),
    /// A connection has closed of which the application got a message or the end: its last notification.
    Closed(ConnId),
    /// The hook has posted an event: a connection, kind and value.
    Event(ConnId, u64, u64),
}

/// A thread that runs a server while the application computes or sleeps.
///
/// It handles completions and calls the hook, for instance a `Landing` with handlers in a sandbox. The rest
/// goes to the application through its [`NotificationRing`]. While that is full, the thread does not receive
/// from the connections that have more for it; connections whose messages the hook consumes go on. Nor does it
/// receive from a connection with [`HIGH_WATER`] bytes of the application's replies to send, until its client has read
/// them; hooks such as `Landing` do the same for theirs.
///
/// Once the application has a message of a connection, it gets all that follows, since that may be the rest of the
/// message, or a message whose reply would overtake the application's. By its [`reply`](NotificationRing::reply) it
/// gives the connection back to the hook; by [`send`](NotificationRing::send) it does not.
#[derive(Debug)]
pub struct OwnerThread {
    addresses: Vec<SocketAddr>,
    remote: RemoteHandle,
    thread: JoinHandle<Result<Stats, KernelError>>,
}

/// The application's side of an [`OwnerThread`].
#[derive(Debug)]
pub struct NotificationRing {
    /// Present until it is dropped.
    ring: Option<Receiver<Notification>>,
    is_stalled: Arc<AtomicBool>,
    /// Messages and ends that the application has taken.
    taken: Cell<u64>,
    remote: RemoteHandle,
    commands: Sender<Command>,
}

/// Posts events to a [`NotificationRing`], for the hook.
#[derive(Clone, Debug)]
pub struct NotificationSender(SyncSender<Notification>);

impl NotificationSender {
    /// Posts an event. Returns whether the ring had room; if not, the event is dropped.
    #[must_use = "without room the event is dropped"]
    pub fn post(&self, id: ConnId, kind: u64, value: u64) -> bool {
        self.0.try_send(Notification::Event(id, kind, value)).is_ok()
    }
}

/// The error that prevented an [`OwnerThread`] from starting.
#[non_exhaustive]
pub enum OwnerError<E> {
    /// The mechanism did not start.
    Start(StartError),
    /// The thread is not permitted to have the scheduling policy.
    Scheduling(SchedulingError),
    /// The hook could not be made.
    Hook(E),
    /// The thread could not be created, or panicked.
    Thread(io::Error),
}

impl<E: fmt::Display> fmt::Display for OwnerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OwnerError::Start(error) => error.fmt(f),
            OwnerError::Scheduling(error) => error.fmt(f),
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

impl<E: fmt::Display> std::error::Error for OwnerError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // These are displayed as they are.
            OwnerError::Start(error) => error.source(),
            OwnerError::Scheduling(error) => error.source(),
            OwnerError::Hook(_) => None,
            OwnerError::Thread(error) => Some(error),
        }
    }
}

#[derive(Debug)]
enum Command {
    Send(ConnId, Vec<u8>),
    /// Sends a reply, after which the hook gets what arrives, if the application has taken so many messages and ends.
    Reply(ConnId, Vec<u8>, u64),
    Close(ConnId),
}

impl OwnerThread {
    /// Starts a server on a mechanism in a thread of its own, with a scheduling policy. The ring has `capacity`
    /// notifications, and as many replies. `hook` runs in that thread, and may add buffers.
    ///
    /// # Errors
    /// If the policy is not permitted, the mechanism does not start, or `hook` fails.
    pub fn start<H: ReceiveHook + 'static, E: Send + 'static>(
        mechanism: &str,
        config: &Config,
        scheduling: Scheduling,
        capacity: usize,
        hook: impl FnOnce(&mut AnyMechanism, NotificationSender) -> Result<H, E> + Send + 'static,
    ) -> Result<(Self, NotificationRing), OwnerError<E>> {
        let (notifier, ring) = mpsc::sync_channel(capacity.max(1));
        let (started, result) = mpsc::sync_channel(1);
        let is_stalled = Arc::new(AtomicBool::new(false));
        let (mechanism, config) = (mechanism.to_owned(), config.clone());
        let stalled = Arc::clone(&is_stalled);
        let run = move || {
            let prepare = || {
                scheduling.apply().map_err(OwnerError::Scheduling)?;
                let mut server =
                    AnyMechanism::new(&mechanism, &config).map_err(OwnerError::Start)?;
                let hook = hook(&mut server, NotificationSender(notifier.clone()));
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
            let rest = Rest {
                notifier,
                mailbox,
                is_stalled: stalled,
                stalled: Vec::new(),
                closed: Vec::new(),
                put: 0,
            };
            server.run(Hooked::new(rest, hook))
        };
        let thread = thread::Builder::new().name("ring-owner".into());
        let thread = thread.spawn(run).map_err(OwnerError::Thread)?;
        let panicked = |_| OwnerError::Thread(io::Error::other("it panicked before it listened"));
        let (addresses, remote, commands) = result.recv().map_err(panicked)??;
        let taken = Cell::new(0);
        let ring = Some(ring);
        let ring = NotificationRing { ring, is_stalled, taken, remote: remote.clone(), commands };
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

impl Drop for NotificationRing {
    /// Lets the connections that wait for room find that the application has gone.
    fn drop(&mut self) {
        self.ring = None;
        self.is_stalled.store(false, Ordering::SeqCst);
        // If too many wake-ups are pending, one of these has the same effect.
        let _ = self.remote.wake(RESUME);
    }
}

impl NotificationRing {
    /// Takes the next notification, if there is one. Makes no system call unless connections wait for room.
    pub fn poll(&self) -> Option<Notification> {
        match self.receiver().try_recv() {
            Ok(notification) => Some(self.taken(notification)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                self.resume();
                None
            }
        }
    }

    /// Sleeps until there is a notification, and takes it. `None` if the server has ended.
    pub fn wait(&self) -> Option<Notification> {
        loop {
            // A wake-up that failed is tried again: the connections that it would resume may be all there are.
            let result = if self.is_stalled.load(Ordering::SeqCst) {
                self.receiver().recv_timeout(RETRY)
            } else {
                self.receiver().recv().map_err(RecvTimeoutError::from)
            };
            match result {
                Ok(notification) => return Some(self.taken(notification)),
                Err(RecvTimeoutError::Timeout) => self.resume(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn receiver(&self) -> &Receiver<Notification> {
        self.ring.as_ref().expect("it is present until it is dropped")
    }

    fn taken(&self, notification: Notification) -> Notification {
        if is_counted(&notification) {
            self.taken.set(self.taken.get() + 1);
        }
        self.resume();
        notification
    }

    /// Wakes the thread if connections wait for room.
    fn resume(&self) {
        if self.is_stalled.load(Ordering::SeqCst)
            && self.is_stalled.swap(false, Ordering::SeqCst)
            && !self.remote.wake(RESUME)
        {
            // Too many wake-ups are pending: the next notification, or the next time-out, tries again.
            self.is_stalled.store(true, Ordering::SeqCst);
        }
    }

    /// Sends bytes to a client. Nothing happens if the connection has closed.
    ///
    /// # Errors
    /// Returns the bytes if too many replies wait for the thread, or the server has ended.
    pub fn send(&self, to: ConnId, bytes: Vec<u8>) -> Result<(), SendError<Vec<u8>>> {
        self.command(Command::Send(to, bytes))
    }

    /// Sends the last bytes of a reply as [`send`](Self::send) does, perhaps none, and gives the connection back to the
    /// hook, which gets what arrives from then on. The application has replied to whole messages. If there is another
    /// message of the connection in the ring, the application gets the next ones, too, until it has replied to that.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn reply(&self, to: ConnId, bytes: Vec<u8>) -> Result<(), SendError<Vec<u8>>> {
        self.command(Command::Reply(to, bytes, self.taken.get()))
    }

    fn command(&self, command: Command) -> Result<(), SendError<Vec<u8>>> {
        let bytes_of = |command| match command {
            Command::Send(_, bytes) | Command::Reply(_, bytes, _) => bytes,
            Command::Close(_) => Vec::new(),
        };
        self.commands.send(command).map_err(|error| match error {
            SendError::Full(command) => SendError::Full(bytes_of(command)),
            SendError::Closed(command) => SendError::Closed(bytes_of(command)),
        })
    }

    /// Closes a connection after all that was sent.
    ///
    /// # Errors
    /// If too many replies wait for the thread, or the server has ended.
    pub fn close(&self, id: ConnId) -> Result<(), SendError<()>> {
        self.command(Command::Close(id)).map_err(|error| match error {
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
    /// Closed connections of which the application does not know that yet, as the ring is full. No connection becomes
    /// known to it before they have left, so there are at most as many as connections.
    closed: Vec<ConnId>,
    /// Messages and ends in the ring until now.
    put: u64,
}

#[derive(Debug, Default)]
struct HookedConnection {
    /// Messages and ends in the ring when the last one of this connection was put there; 0 if none was.
    last_put: u64,
    /// The hook gets nothing: the application has a message.
    has_message: bool,
    is_stalled: bool,
    /// Its client does not read the replies.
    is_backlogged: bool,
    has_ended: bool,
}

impl Rest {
    /// Resumes the connections that wait for room in the ring.
    fn resume(&mut self, io: &mut impl Commands, all: &mut Others<'_, HookedConnection>) {
        // Those that closed meanwhile first: if the ring is full again, the next wake-up continues.
        let _ = self.put_closed();
        for id in self.stalled.drain(..) {
            let Some(connection) = all.get(io, id) else { continue };
            connection.is_stalled = false;
            if !connection.is_backlogged {
                io.set_receiving(id, true);
            }
        }
    }

    /// Puts a notification into the ring. If it is full, returns false, and the application will resume the
    /// connection.
    fn put(&mut self, notification: Notification) -> Result<bool, Gone> {
        if !self.put_closed()? {
            return Ok(false);
        }
        let is_counted = is_counted(&notification);
        let is_put = self.put_one(notification)?;
        self.put += u64::from(is_put && is_counted);
        Ok(is_put)
    }

    /// Puts the ends that the application does not know yet into the ring. Returns false if it is full.
    fn put_closed(&mut self) -> Result<bool, Gone> {
        while let Some(id) = self.closed.last() {
            if !self.put_one(Notification::Closed(*id))? {
                return Ok(false);
            }
            self.closed.pop();
        }
        Ok(true)
    }

    fn put_one(&self, notification: Notification) -> Result<bool, Gone> {
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
            Err(TrySendError::Disconnected(_)) => {
                self.is_stalled.store(false, Ordering::SeqCst);
                Err(Gone)
            }
        }
    }
}

/// Returns whether both sides count a notification, to tell which ones the application has taken.
fn is_counted(notification: &Notification) -> bool {
    matches!(notification, Notification::Message(..) | Notification::End(_))
}

/// The application has dropped its ring.
struct Gone;

/// Sends bytes of the application, and receives nothing more from a client that does not read them.
fn send(
    io: &mut impl Commands,
    all: &mut Others<'_, HookedConnection>,
    id: ConnId,
    bytes: Vec<u8>,
) {
    let load = io.send(id, Chunk::Shared(Bytes::from(bytes)));
    if load >= HIGH_WATER
        && let Some(connection) = all.get(io, id)
    {
        connection.is_backlogged = true;
        io.set_receiving(id, false);
    }
}

impl Application for Rest {
    type State = HookedConnection;
    const MAX_UNCONSUMED: usize = MAX_MESSAGE;

    fn received(&mut self, x: Cx<'_, impl Commands, HookedConnection>, rx: &mut Rx<'_>) {
        let mut put = Ok(true);
        // More may have been received while the ring was full.
        while !rx.bytes().is_empty() && matches!(put, Ok(true)) {
            x.state.has_message = true;
            let len = rx.bytes().len().min(MAX_MESSAGE);
            // Until the application takes something, the bytes of other connections are not copied.
            put = match self.is_stalled.load(Ordering::SeqCst) {
                true => Ok(false),
                false => self.put(Notification::Message(x.id, rx.bytes()[..len].to_vec())),
            };
            if let Ok(true) = put {
                rx.consume(len);
                x.state.last_put = self.put;
            }
        }
        if rx.eof() && rx.bytes().is_empty() && !x.state.has_ended && matches!(put, Ok(true)) {
            put = self.put(Notification::End(x.id));
            if let Ok(true) = put {
                x.state.has_ended = true;
                x.state.last_put = self.put;
            }
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

    fn drained(&mut self, x: Cx<'_, impl Commands, HookedConnection>) {
        if std::mem::take(&mut x.state.is_backlogged) && !x.state.is_stalled {
            x.io.set_receiving(x.id, true);
        }
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, HookedConnection>, _: crate::CloseReason) {
        if x.state.is_stalled {
            self.stalled.retain(|id| *id != x.id);
        }
        // If the application has gone, nobody misses it.
        if x.state.last_put > 0 && matches!(self.put(Notification::Closed(x.id)), Ok(false)) {
            self.closed.push(x.id);
        }
    }

    fn has_message(&self, _: ConnId, state: &HookedConnection) -> bool {
        state.has_message
    }

    fn woken(&mut self, io: &mut impl Commands, mut all: Others<'_, HookedConnection>, tag: u64) {
        // The wake-up of an application that has gone may have found no place.
        if tag == RESUME || !self.is_stalled.load(Ordering::SeqCst) {
            self.resume(io, &mut all);
        }
        if tag != RESUME {
            for command in self.mailbox.drain() {
                match command {
                    Command::Send(id, bytes) => send(io, &mut all, id, bytes),
                    Command::Reply(id, bytes, taken) => {
                        send(io, &mut all, id, bytes);
                        if let Some(connection) = all.get(io, id) {
                            connection.has_message &=
                                connection.last_put > taken || connection.is_stalled;
                        }
                    }
                    Command::Close(id) => io.close(id, Close::Flush),
                }
            }
        }
    }
}
