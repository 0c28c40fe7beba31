//! Upcalls to another process, in front of an application.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ash_sandbox::sandbox::{DISCARDED, HANDLED};
use ash_sandbox::upcall::{AnswerEvent, Channel, Done, MAX_PLACES};
use shared_ring::author::Process;

use crate::scheduling::RealTimePolicy;
use crate::{Chunk, Commands, ConnId, HIGH_WATER, Listener, ReceiveHook, RemoteHandle, Rx};

/// Upcalls across a protection boundary (ASH, section 5.6): a [`ReceiveHook`] whose handler runs in another
/// process.
///
/// While the process has a message, the driver keeps it and what follows it on the connection; other connections go
/// on. If the process does not handle it, answers too late, or ends, the application gets the message as it
/// arrived. The process gets the messages that arrive meanwhile in one batch, but none of a connection that the
/// application has paused.
///
/// With a `Landing`, as the hook `(landing, upcalls)`, handlers in a sandbox are tried first, and may
/// [choose](crate::hooks::Landing::starting_upcalls) the messages that the process gets. What has arrived during an upcall
/// goes to the handlers, too, if the process has handled its message, and otherwise to the application.
///
/// ```no_run
/// use std::os::fd::OwnedFd;
/// use std::os::unix::net::UnixStream;
/// use std::process::Command;
/// use ash_sandbox::upcall::{Channel, Policy};
/// use evring::hooks::{Hooked, Upcalls};
/// use evring::{AnyMechanism, Config};
/// # use evring::{Application, Commands, Cx, Rx};
/// # struct Site;
/// # impl Application for Site {
/// #     type State = ();
/// #     const MAX_UNCONSUMED: usize = 1;
/// #     fn received(&mut self, _: Cx<'_, impl Commands, ()>, _: &mut Rx<'_>) {}
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (ours, theirs) = UnixStream::pair()?;
/// let mut process = Command::new("./handlers").stdin(OwnedFd::from(theirs)).spawn()?;
/// let server = AnyMechanism::new("auto", &Config::default())?;
/// let channel = Channel::new(ours, Policy::default())?;
/// // Wake-ups with tag 1 and timer 0 are the hook's. A site of `evring_httpd` has the last timer.
/// let (upcalls, handle) = Upcalls::new(channel, &server.remote(), 1, 0)?;
/// server.run(Hooked::new(Site, upcalls))?;
/// println!("{:?}", handle.counters());
/// # process.wait()?;
/// # Ok(())
/// # }
/// ```
pub struct Upcalls {
    channel: Channel,
    tag: u64,
    timer: u32,
    /// Whether the timer is set.
    is_armed: bool,
    /// The connections whose messages are in the places, with the lengths of the messages.
    owners: [Option<(ConnId, usize)>; MAX_PLACES],
    /// By slot of the connection.
    connections: Vec<UpcallConnection>,
    choose: Option<Box<Choose>>,
    post: Option<Box<Post>>,
    watch: Watch,
    shared: Arc<Shared>,
}

type Choose = dyn FnMut(ConnId, Listener) -> bool;
type Post = dyn FnMut(ConnId, u64, u64);

#[derive(Clone, Copy, Debug, Default)]
struct UpcallConnection {
    /// The process gets its messages.
    is_bound: bool,
    message: Message,
    /// Its client does not read the replies.
    is_backlogged: bool,
}

/// The message of a connection that the process has or had.
#[derive(Clone, Copy, Debug, Default)]
enum Message {
    #[default]
    None,
    /// The process has it, in this place.
    Submitted(usize),
    /// The upcall is over; this many bytes of the message were handled.
    Answered(usize),
}

/// Names [`Upcalls`], and switches them, from any thread.
#[derive(Clone, Debug)]
pub struct UpcallHandle(Arc<Shared>);

/// Numbers of messages of [`Upcalls`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpcallCounters {
    /// Messages that the process got.
    pub submitted: u64,
    /// Those of them that it has handled.
    pub handled: u64,
    /// Those that it has discarded.
    pub discarded: u64,
    /// Those that were neither handled nor discarded, for any reason. The next hook gets them, or the application.
    pub passed: u64,
    /// Those of them that the process did not answer in time, or before its end.
    pub expired: u64,
    /// Messages that the process did not get, as it is off, full, disabled or gone, or the server was
    /// overloaded.
    pub rejected: u64,
}

#[derive(Debug, Default)]
struct Shared {
    is_on: AtomicBool,
    enable: AtomicBool,
    submitted: AtomicU64,
    handled: AtomicU64,
    discarded: AtomicU64,
    passed: AtomicU64,
    expired: AtomicU64,
    rejected: AtomicU64,
}

impl UpcallHandle {
    /// Switches the upcalls off or on. While they are off, the application gets all messages.
    pub fn set_on(&self, is_on: bool) {
        self.0.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Enables the upcalls from the next message on, after aborts have disabled them.
    pub fn enable(&self) {
        self.0.enable.store(true, Ordering::Relaxed);
    }

    /// Returns the counters.
    pub fn counters(&self) -> UpcallCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &*self.0;
        UpcallCounters {
            submitted: get(&shared.submitted),
            handled: get(&shared.handled),
            discarded: get(&shared.discarded),
            passed: get(&shared.passed),
            expired: get(&shared.expired),
            rejected: get(&shared.rejected),
        }
    }
}

/// Adds one to a counter, which only the thread of the server writes to.
fn increment(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

impl fmt::Debug for Upcalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upcalls").field("channel", &self.channel).finish_non_exhaustive()
    }
}

/// The thread that waits for the process, and wakes the server.
struct Watch {
    event: AnswerEvent,
    state: Arc<WatchState>,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

#[derive(Debug, Default)]
struct WatchState {
    is_over: AtomicBool,
    /// The server was woken and has not looked yet.
    is_pending: AtomicBool,
    /// Notifications since the server last found an answer.
    useless_notifications: AtomicU32,
}

/// Notifications without an answer after which the thread does not wait for the next one at once: the process floods.
const MAX_USELESS_NOTIFICATIONS: u32 = 16;
/// The time until it waits again.
const FLOOD_PAUSE: Duration = Duration::from_millis(10);

impl Watch {
    fn start(event: AnswerEvent, remote: RemoteHandle, tag: u64) -> io::Result<Self> {
        let state = Arc::new(WatchState::default());
        let (watched, its) = (event.clone(), Arc::clone(&state));
        let real_time = RealTimePolicy::of_this_thread();
        let watch = move || {
            if let Some(policy) = real_time {
                policy.apply();
            }
            while !its.is_over.load(Ordering::Acquire) {
                // Without the descriptor, the timer still ends all upcalls.
                let Ok(is_notified) = watched.wait(Duration::from_secs(60)) else { return };
                if is_notified
                    && its.useless_notifications.fetch_add(1, Ordering::Relaxed)
                        >= MAX_USELESS_NOTIFICATIONS
                {
                    thread::sleep(FLOOD_PAUSE);
                }
                if is_notified && !its.is_pending.swap(true, Ordering::AcqRel) && !remote.wake(tag)
                {
                    // Too many wake-ups are pending: the next notification, or the timer, tries again.
                    its.is_pending.store(false, Ordering::Release);
                }
            }
        };
        let thread = thread::Builder::new().name("upcall-answers".into()).spawn(watch)?;
        Ok(Watch { event, state, thread: Some(thread), process: Process::current() })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The thread and its server are the parent's.
            return std::mem::forget(self.thread.take());
        }
        self.state.is_over.store(true, Ordering::Release);
        self.event.notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Upcalls {
    /// Creates the hook for a server, whose application does not use the wake-ups with `tag` and the timer of
    /// this number. A thread waits for the process, with the scheduling policy of the caller; a real-time one if that is
    /// permitted.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn new(
        channel: Channel,
        remote: &RemoteHandle,
        tag: u64,
        timer: u32,
    ) -> io::Result<(Self, UpcallHandle)> {
        let watch = Watch::start(channel.answer_event(), remote.clone(), tag)?;
        let shared = Arc::new(Shared { is_on: true.into(), ..Shared::default() });
        let handle = UpcallHandle(Arc::clone(&shared));
        let upcalls = Upcalls {
            channel,
            tag,
            timer,
            is_armed: false,
            owners: [None; MAX_PLACES],
            connections: Vec::new(),
            choose: None,
            post: None,
            watch,
            shared,
        };
        Ok((upcalls, handle))
    }

    /// Chooses the accepted connections whose messages the process gets; without it, these are all.
    #[must_use]
    pub fn choosing(mut self, choose: impl FnMut(ConnId, Listener) -> bool + 'static) -> Self {
        self.choose = Some(Box::new(choose));
        self
    }

    /// Passes the events of the process on: connection, kind and value. Without it they are dropped.
    #[must_use]
    pub fn posting(mut self, post: impl FnMut(ConnId, u64, u64) + 'static) -> Self {
        self.post = Some(Box::new(post));
        self
    }

    fn connection(&mut self, id: ConnId) -> &mut UpcallConnection {
        let slot = id.slot() as usize;
        if slot >= self.connections.len() {
            self.connections.resize(slot + 1, UpcallConnection::default());
        }
        &mut self.connections[slot]
    }

    /// Sets the timer for the next deadline. Returns whether it could.
    fn arm(&mut self, io: &mut impl Commands, at: Option<Instant>) -> bool {
        let result = io.set_timer(self.timer, at);
        self.is_armed = at.is_some() && result.is_ok();
        result.is_ok()
    }

    /// Ends an upcall that handled this many bytes of its message.
    fn end(&mut self, io: &mut impl Commands, id: ConnId, handled: usize) {
        self.connection(id).message = Message::Answered(handled);
        if !self.connection(id).is_backlogged {
            io.hold(id, false);
        }
    }

    fn answered(&mut self, io: &mut impl Commands, done: Done) {
        let Some((id, len)) = self.owners[done.place].take() else { return };
        match done.result {
            HANDLED => {
                increment(&self.shared.handled);
                if !self.channel.reply().is_empty() {
                    let queued = io.send(id, Chunk::Copy(self.channel.reply()));
                    self.connection(id).is_backlogged = queued >= HIGH_WATER;
                }
                if let (Some(post), Some((kind, value))) = (&mut self.post, done.event) {
                    post(id, kind, value);
                }
                self.end(io, id, len);
            }
            DISCARDED => {
                increment(&self.shared.discarded);
                self.end(io, id, len);
            }
            _ => {
                increment(&self.shared.passed);
                self.end(io, id, 0);
            }
        }
    }

    /// Takes the answers, and ends the upcalls that are late, or all if the process has ended.
    fn take_answers(&mut self, io: &mut impl Commands) {
        // Before the look, so that a later answer, or the end of the process, wakes again.
        self.watch.state.is_pending.swap(false, Ordering::AcqRel);
        while let Some(done) = self.channel.next_done() {
            self.watch.state.useless_notifications.store(0, Ordering::Relaxed);
            self.answered(io, done);
        }
        while let Some(place) = self.channel.next_expired(io.now()) {
            if let Some((id, _)) = self.owners[place].take() {
                increment(&self.shared.passed);
                increment(&self.shared.expired);
                self.end(io, id, 0);
            }
        }
    }
}

impl ReceiveHook for Upcalls {
    fn accepted(&mut self, _: &mut impl Commands, id: ConnId, at: Listener) {
        let is_bound = self.choose.as_mut().is_none_or(|choose| choose(id, at));
        *self.connection(id) = UpcallConnection { is_bound, ..UpcallConnection::default() };
    }

    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        if !self.connection(id).is_bound || rx.bytes().is_empty() {
            return;
        }
        if self.shared.enable.load(Ordering::Relaxed) {
            self.shared.enable.store(false, Ordering::Relaxed);
            self.channel.enable();
        }
        let is_on = self.shared.is_on.load(Ordering::Relaxed);
        // The turn may have begun long before.
        let now = Instant::now();
        let deadline = now + self.channel.policy().timeout;
        // No message is submitted without a timer that ends its upcall.
        if !is_on
            || io.is_overloaded()
            // The application still works on an earlier message, whose reply comes first.
            || !io.is_receiving(id)
            || self.channel.rejection(rx.bytes().len()).is_some()
            || !self.is_armed && !self.arm(io, Some(deadline))
        {
            return increment(&self.shared.rejected);
        }
        let Some(place) = self.channel.submit(rx.bytes(), id.value(), now) else {
            return increment(&self.shared.rejected);
        };
        increment(&self.shared.submitted);
        self.owners[place] = Some((id, rx.bytes().len()));
        self.connection(id).message = Message::Submitted(place);
        io.hold(id, true);
    }

    fn offered(&mut self, _: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
        match self.connection(id).message {
            Message::None => true,
            Message::Submitted(_) => false,
            Message::Answered(handled) => {
                self.connection(id).message = Message::None;
                rx.consume(handled);
                true
            }
        }
    }

    fn holds(&self, id: ConnId) -> bool {
        let connection = self.connections.get(id.slot() as usize);
        connection.is_some_and(|connection| {
            connection.is_backlogged || matches!(connection.message, Message::Submitted(_))
        })
    }

    fn drained(&mut self, io: &mut impl Commands, id: ConnId) {
        if std::mem::take(&mut self.connection(id).is_backlogged) {
            io.hold(id, false);
        }
    }

    fn woken(&mut self, io: &mut impl Commands, tag: u64) -> bool {
        if tag == self.tag {
            self.take_answers(io);
        }
        tag == self.tag
    }

    fn timer(&mut self, io: &mut impl Commands, timer: u32) -> bool {
        if timer != self.timer {
            return false;
        }
        self.take_answers(io);
        self.arm(io, self.channel.deadline());
        true
    }

    fn closed(&mut self, id: ConnId) {
        if let Message::Submitted(place) = self.connection(id).message {
            self.channel.abandon(place);
            self.owners[place] = None;
        }
        *self.connection(id) = UpcallConnection::default();
    }
}
