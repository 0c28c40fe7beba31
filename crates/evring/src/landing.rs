//! Messages that land in the memory of a handler in a sandbox, and replies that leave from there.

use std::fmt;
use std::time::Duration;

use ash_sandbox::sandbox::Handler;
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool, Place};

use crate::bindings::{BindingReader, NewHandler};
use crate::hooks::BindError;
use crate::tenant::{Bound, Landed, Lends, Reply, Tenant, Verdict};
use crate::{Bindings, Chunk, Commands, ConnId, HIGH_WATER, Listener, ReceiveHook, Rx};

/// Handlers in a sandbox, in front of an application: a [`ReceiveHook`].
///
/// The kernel receives into the memory of the handler (ASH, section 5.4), by a group of buffers over its
/// message area. A tenant is a listener or a connection, as a buffer is chosen before a byte is read. Bytes
/// of the message, or of a reply slot, that the handler sends leave from there without a copy; the driver copies
/// replies that are shorter than a slice is worth ([`GatherList::keeps`](shared_ring::buffers::GatherList::keeps)).
///
/// While a connection has [`HIGH_WATER`] bytes of replies that its client does not read, nothing is received from it.
///
/// Messages that were held for that are offered to the handlers only: the bytes that these leave go to the application,
/// and not to the next hook.
///
/// A handler gets what one receive returned as one message, or all that has arrived during a hold. It consumes all of it,
/// or nothing: then the application gets it as it arrived, and what follows until it has consumed all. It may keep messages
/// where they have landed until it gives them back, in half of the buffers and up to [`MAX_KEPT`](ash_sandbox::sandbox::MAX_KEPT), unless it is
/// disabled or replaced by another one for [what lands](crate::hooks::Binding::Landed) in its memory; one that is off keeps them,
/// and so does one whose messages all go to another handler by a filter. While three quarters of the buffers are in use, it can
/// keep no more.
///
/// [`Bindings`] bind handlers to other connections, and to messages with certain first bytes, while the server runs, and
/// [add](Bindings::add) handlers.
/// Such a message has landed elsewhere and is copied to the handler. While the server is
/// [overloaded](Commands::is_overloaded), the application gets all messages (section 2.4). Late messages on connections that
/// last do not count as overload, and `tokio` measures none: there the budget of the tenant is the only bound.
///
/// ```no_run
/// use ash_sandbox::sandbox::{Policy, Sandboxer};
/// use evring::hooks::{Hooked, Landing};
/// use evring::{AnyMechanism, Config, Listener};
/// # use evring::{Application, Commands, Cx, Rx};
/// # struct Site;
/// # impl Application for Site {
/// #     type State = ();
/// #     const MAX_UNCONSUMED: usize = 1;
/// #     fn received(&mut self, _: Cx<'_, impl Commands, ()>, _: &mut Rx<'_>) {}
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ash = Sandboxer::new(Policy::default())?.load(&std::fs::read("handler.wasm")?)?;
/// let config = Config::default().with(|c| c.listen = vec![([127, 0, 0, 1], 7000).into()]);
/// let mut server = AnyMechanism::new("auto", &config)?;
/// let mut landing = Landing::new();
/// let tenant = landing.bind(ash.instantiate(1)?, 64, 2048, |buffers| server.add_buffers(buffers))?;
/// server.set_listener_group(Listener(0), tenant.group())?;
/// server.run(Hooked::new(Site, landing))?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Landing {
    /// By number of the buffer group.
    tenants: Vec<Option<Bound>>,
    bindings: BindingReader,
    /// By slot of the connection.
    backlogs: Vec<Backlog>,
    /// Only messages with which a handler starts an upcall go to the next hook.
    starts_upcalls: bool,
    /// The next hook gets the message in hand.
    passes_to_next: bool,
    busy_poll: Duration,
    choose: Option<Box<Choose>>,
    post: Option<Box<Post>>,
}

type Choose = dyn FnMut(ConnId, Listener) -> Option<BufferGroup>;
type Post = dyn FnMut(ConnId, u64, u64);

/// Replies that the client of a connection does not read.
#[derive(Clone, Copy, Debug, Default)]
enum Backlog {
    #[default]
    None,
    /// The bytes that the connection receives are held, for the tenant of this group.
    Held(BufferGroup),
    /// It was held until now.
    Ended(BufferGroup),
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.tenants.iter().flatten()).finish()
    }
}

impl Landing {
    /// Creates a hook without tenants: the application gets all messages.
    pub fn new() -> Self {
        Landing::default()
    }

    /// Binds a handler to a new tenant, with `count` receive buffers of `size` bytes in the message area of
    /// the handler; messages that land elsewhere are copied to the rest of it. `add` adds them to the mechanism: by
    /// [`Multiplexer::add_buffers`](crate::mechanisms::Multiplexer::add_buffers) or [`Commands::add_buffers`].
    ///
    /// # Errors
    /// If the handler is bound, the buffers do not fit its message area, or `add` fails.
    pub fn bind(
        &mut self,
        handler: Handler,
        count: u16,
        size: u32,
        add: impl FnOnce(BufferPool) -> Result<BufferGroup, BufferError>,
    ) -> Result<Tenant, BindError> {
        let (bound, tenant) = Bound::new(handler, (count, size), Lends::Long, add)?;
        let group = tenant.group();
        let len = self.tenants.len().max(group.index() + 1);
        self.tenants.resize_with(len, || None);
        self.tenants[group.index()] = Some(bound);
        Ok(tenant.of(&self.bindings.bindings()))
    }

    /// Returns the bindings, which bind the tenants of this hook while the server runs.
    pub fn bindings(&self) -> Bindings {
        self.bindings.bindings()
    }

    /// Chooses the tenant of each accepted connection; `None` leaves that of the listener.
    #[must_use]
    pub fn choosing(
        mut self,
        choose: impl FnMut(ConnId, Listener) -> Option<BufferGroup> + 'static,
    ) -> Self {
        self.choose = Some(Box::new(choose));
        self
    }

    fn backlog(&mut self, id: ConnId) -> &mut Backlog {
        let slot = id.slot() as usize;
        if slot >= self.backlogs.len() {
            self.backlogs.resize(slot + 1, Backlog::None);
        }
        &mut self.backlogs[slot]
    }

    /// Binds the handlers that [`Bindings::add`] has given.
    #[inline]
    fn take_handlers(&mut self, io: &mut impl Commands) {
        while let Some(NewHandler { handler, buffers: (count, size), bound }) =
            self.bindings.next_handler()
        {
            // The receiver may be gone; the tenant stays.
            let _ = bound.send(self.bind(handler, count, size, |buffers| io.add_buffers(buffers)));
        }
    }

    /// Lets the handler of a tenant handle a message, that of a binding if there is one.
    fn handle(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>, tenant: BufferGroup) {
        let len = rx.bytes().len();
        self.take_handlers(io);
        let bound = self.bindings.of_message(id, rx.bytes());
        let group = bound.unwrap_or_else(|| self.bindings.of_landed(tenant));
        // Another handler has taken its place.
        if bound.is_none()
            && group != tenant
            && let Some(Some(replaced)) = self.tenants.get_mut(tenant.index())
        {
            replaced.take_back_kept();
        }
        let Some(Some(bound)) = self.tenants.get_mut(group.index()) else { return };
        self.passes_to_next = !self.starts_upcalls;
        let landed = rx.place().filter(|place| place.group == group);
        let landed_at =
            landed.map(|Place { offset, .. }| Landed { offset, is_scarce: rx.is_scarce() });
        let (is_overloaded, now) = (io.is_overloaded(), io.now());
        let message = match bound.handle(rx.bytes(), landed_at, id.value(), is_overloaded, now) {
            Verdict::Handled(message) => message,
            Verdict::Discarded => return rx.consume(len),
            Verdict::Passed { starts_upcall } => return self.passes_to_next |= starts_upcall,
        };
        let mut queued = 0;
        let send = |reply: Reply<'_>| {
            let chunk = match reply {
                Reply::Lent(buffer) => Chunk::Received(buffer),
                Reply::Copied(bytes) => Chunk::Copy(bytes),
            };
            queued = io.send(id, chunk);
            true
        };
        bound.replies(&message, rx, send);
        rx.consume(rx.bytes().len());
        if !self.busy_poll.is_zero() {
            io.busy_poll(self.busy_poll);
        }
        if let Some(post) = &mut self.post {
            bound.events().iter().for_each(|&(kind, value)| post(id, kind, value));
        }
        if queued >= HIGH_WATER {
            *self.backlog(id) = Backlog::Held(tenant);
            io.hold(id, true);
        }
    }

    /// Lets handlers choose the messages that the next hook gets, such as [`Upcalls`](crate::hooks::Upcalls): those with
    /// which they start an upcall. Without it, the next hook gets all that they leave. It always gets the messages for
    /// which no handler is bound.
    #[must_use]
    pub fn starting_upcalls(self) -> Self {
        Landing { starts_upcalls: true, ..self }
    }

    /// Looks for more messages for this time after each message that a handler has handled, before the thread sleeps; not
    /// by default. See [`Commands::busy_poll`]. A message that goes to the application does not begin it, as the
    /// application may need the core.
    #[must_use]
    pub fn busy_polling(self, time: Duration) -> Self {
        Landing { busy_poll: time, ..self }
    }

    /// Passes the events of handlers on: connection, kind and value. Without it they are dropped.
    #[must_use]
    pub fn posting(mut self, post: impl FnMut(ConnId, u64, u64) + 'static) -> Self {
        self.post = Some(Box::new(post));
        self
    }
}

impl ReceiveHook for Landing {
    fn accepted(&mut self, io: &mut impl Commands, id: ConnId, at: Listener) {
        self.take_handlers(io);
        let chosen = self.choose.as_mut().and_then(|choose| choose(id, at));
        if let Some(group) = chosen.or_else(|| self.bindings.of_listener(at)) {
            // The connection keeps the listener's group if this one does not exist.
            let _ = io.set_receive_group(id, group);
        }
    }

    fn passes_to_next(&self) -> bool {
        self.passes_to_next
    }

    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        self.passes_to_next = true;
        if rx.bytes().is_empty() {
            return;
        }
        // What was held, if anything, has been offered.
        *self.backlog(id) = Backlog::None;
        // The bytes are elsewhere if they arrived while another hook held the connection.
        let tenant = rx.place().map_or_else(|| io.receive_group(id), |place| place.group);
        self.handle(io, id, rx, tenant);
    }

    fn offered(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
        if let Backlog::Ended(tenant) = *self.backlog(id) {
            *self.backlog(id) = Backlog::None;
            if !rx.bytes().is_empty() {
                self.handle(io, id, rx, tenant);
            }
        }
        !self.holds(id)
    }

    fn holds(&self, id: ConnId) -> bool {
        matches!(self.backlogs.get(id.slot() as usize), Some(Backlog::Held(_)))
    }

    fn drained(&mut self, io: &mut impl Commands, id: ConnId) {
        if let Backlog::Held(tenant) = *self.backlog(id) {
            *self.backlog(id) = Backlog::Ended(tenant);
            io.hold(id, false);
        }
    }

    fn closed(&mut self, id: ConnId) {
        *self.backlog(id) = Backlog::None;
    }
}
