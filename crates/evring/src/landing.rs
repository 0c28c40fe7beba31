//! Messages that land in the memory of a handler in a sandbox, and replies that leave from there.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ash_sandbox::sandbox::{Area, Handler, Outcome, Pass, SLOT_GAP};
use shared_ring::{BufferError, BufferGroup, BufferMemory, BufferPool, GatherList, RxBuf};

use crate::bindings::BindingReader;
use crate::{Bindings, Chunk, Commands, ConnId, Listener, ReceiveHook, Rx};

/// Handlers in a sandbox, in front of an application: a [`ReceiveHook`].
///
/// The kernel receives into the memory of the handler (ASH, section 5.4), by a group of buffers over its
/// message area. A tenant is a listener or a connection, as a buffer is chosen before a byte is read. What
/// the handler sends of the message, or of a reply slot, leaves from there without a copy; the driver copies
/// replies that are shorter than a slice is worth ([`GatherList::keeps`]).
///
/// A handler gets what one receive returned as one message. It consumes all of it, or nothing: then the
/// application gets it as it arrived, and what follows until it has consumed all.
///
/// [`Bindings`] bind handlers to other connections, and to messages with certain first bytes, while the server runs.
/// Such a message has landed elsewhere and is copied to the handler. While the server is
/// [overloaded](Commands::is_overloaded), the application gets all messages (section 2.4).
///
/// ```no_run
/// use ash_sandbox::sandbox::{Policy, Sandboxer};
/// use evring::{AnyMechanism, Config, Hooked, Landing, Listener};
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
    /// Only messages with which a handler starts an upcall go to the next hook.
    starts_upcalls: bool,
    /// The next hook gets the message in hand.
    passes_to_next: bool,
    choose: Option<Box<Choose>>,
    post: Option<Box<Post>>,
}

type Choose = dyn FnMut(ConnId, Listener) -> Option<BufferGroup>;
type Post = dyn FnMut(ConnId, u64, u64);

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.tenants.iter().flatten().map(|bound| &bound.handler)).finish()
    }
}

/// Names a tenant of a [`Landing`], and switches its handler, from any thread.
#[derive(Clone, Debug)]
pub struct Tenant {
    group: BufferGroup,
    shared: Arc<Shared>,
}

/// Numbers of messages and replies of a [`Tenant`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LandingCounters {
    /// Messages that the kernel received into the memory of the handler.
    pub landed: u64,
    /// Messages that arrived elsewhere and for which a [`Binding`](crate::Binding) chose the handler.
    pub copied: u64,
    /// Messages that the handler has handled.
    pub handled: u64,
    /// Messages that it has discarded.
    pub discarded: u64,
    /// Messages that the application got, for any reason.
    pub passed: u64,
    /// Those of them after an involuntary abort.
    pub aborted: u64,
    /// Those of them that the handler did not get, as the server was overloaded.
    pub overloaded: u64,
    /// Replies that leave from the memory of the handler.
    pub replies_lent: u64,
    /// Replies that were copied.
    pub replies_copied: u64,
    /// Bytes of the replies that were copied.
    pub bytes_copied: u64,
}

/// The reason why a handler cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BindError {
    /// The areas of its memory were taken.
    Taken,
    /// The buffers do not fit the message area, or the mechanism refused them.
    Buffers(BufferError),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::Taken => {
                f.write_str("the handler is bound: bind another instance to another tenant")
            }
            BindError::Buffers(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BindError {}

impl From<BufferError> for BindError {
    fn from(error: BufferError) -> Self {
        BindError::Buffers(error)
    }
}

#[derive(Debug)]
struct Shared {
    is_on: AtomicBool,
    enable: AtomicBool,
    landed: AtomicU64,
    copied: AtomicU64,
    handled: AtomicU64,
    discarded: AtomicU64,
    passed: AtomicU64,
    aborted: AtomicU64,
    overloaded: AtomicU64,
    replies_lent: AtomicU64,
    replies_copied: AtomicU64,
    bytes_copied: AtomicU64,
}

impl Tenant {
    /// Returns the buffer group, for [`Multiplexer::set_listener_group`](crate::Multiplexer::set_listener_group)
    /// and [`Commands::set_receive_group`].
    pub fn group(&self) -> BufferGroup {
        self.group
    }

    /// Switches the handler off or on (section 6.4.2). While it is off, the application gets all messages.
    pub fn set_on(&self, is_on: bool) {
        self.shared.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Enables the handler from the next message on, after aborts have disabled it.
    pub fn enable(&self) {
        self.shared.enable.store(true, Ordering::Relaxed);
    }

    /// Returns the counters.
    pub fn counters(&self) -> LandingCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &*self.shared;
        LandingCounters {
            landed: get(&shared.landed),
            copied: get(&shared.copied),
            handled: get(&shared.handled),
            discarded: get(&shared.discarded),
            passed: get(&shared.passed),
            aborted: get(&shared.aborted),
            overloaded: get(&shared.overloaded),
            replies_lent: get(&shared.replies_lent),
            replies_copied: get(&shared.replies_copied),
            bytes_copied: get(&shared.bytes_copied),
        }
    }
}

/// Adds to a counter, which only the thread of the landing writes to.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// An area of a handler's memory as the memory of buffers.
struct AreaBuffers(Area);

// SAFETY: the area keeps its memory mapped, which is not a part of the value. There is one value of each
// area. The handler cannot write to the message area. It can write to the reply area, by another mapping
// and while it runs: the thread that runs it then holds no reference to a buffer of that area, and a handler
// that changes a reply in flight, which the slots it is offered exclude, changes its own reply only.
unsafe impl BufferMemory for AreaBuffers {
    fn bytes(&self) -> NonNull<[u8]> {
        self.0.bytes()
    }
}

/// A handler, and the buffers of its memory.
struct Bound {
    handler: Handler,
    /// Offsets of the message area in the memory.
    messages: Range<usize>,
    /// Distance between two receive buffers, in bytes.
    stride: usize,
    /// Size of a receive buffer, in bytes.
    size: usize,
    replies: Replies,
    shared: Arc<Shared>,
}

/// The reply slots of a handler.
struct Replies {
    /// Offsets of the reply area in the memory.
    area: Range<usize>,
    /// Address of the area in the mapping of the host.
    start: usize,
    slot_bytes: usize,
    pool: Rc<BufferPool>,
    /// The slots that hold no reply in flight.
    free: Vec<Option<RxBuf>>,
}

impl Replies {
    fn new(area: Area, slots: u16, slot_bytes: usize) -> Result<Self, BufferError> {
        let (range, start) = (area.range(), area.bytes().addr().get());
        let size = slot_bytes - SLOT_GAP;
        let pool = Rc::new(BufferPool::over(Box::new(AreaBuffers(area)), slots, size as u32)?);
        let free = (0..slots).map(|_| None).collect();
        Ok(Replies { area: range, start, slot_bytes, pool, free })
    }

    /// Takes back the slots whose replies have left. Returns the free ones as a set of bits.
    fn collect(&mut self) -> u64 {
        while let Some(buffer) = self.pool.lend_free() {
            let slot = (buffer.as_ptr().addr() - self.start) / self.slot_bytes;
            self.free[slot] = Some(buffer);
        }
        let bits = self.free.iter().enumerate();
        bits.fold(0, |bits, (slot, buffer)| bits | u64::from(buffer.is_some()) << slot)
    }

    /// Takes the slot in which a reply lies, if it is whole in one that is free.
    fn take(&mut self, reply: &Range<usize>) -> Option<RxBuf> {
        let start = reply.start.checked_sub(self.area.start)?;
        let (slot, offset) = (start / self.slot_bytes, start % self.slot_bytes);
        let size = self.slot_bytes - SLOT_GAP;
        if offset + reply.len() > size || !GatherList::keeps(reply.len(), size) {
            return None;
        }
        let mut buffer = self.free.get_mut(slot)?.take()?;
        buffer.advance(offset);
        buffer.truncate(reply.len());
        Some(buffer)
    }
}

impl Landing {
    /// Creates a hook without tenants: the application gets all messages.
    pub fn new() -> Self {
        Landing::default()
    }

    /// Binds a handler to a new tenant, with `count` receive buffers of `size` bytes in the message area of
    /// the handler; messages that land elsewhere are copied to the rest of it. `add` adds them to the mechanism: by
    /// [`Multiplexer::add_buffers`](crate::Multiplexer::add_buffers) or [`Commands::add_buffers`].
    ///
    /// # Errors
    /// If the handler is bound, the buffers do not fit its message area, or `add` fails.
    pub fn bind(
        &mut self,
        mut handler: Handler,
        count: u16,
        size: u32,
        add: impl FnOnce(BufferPool) -> Result<BufferGroup, BufferError>,
    ) -> Result<Tenant, BindError> {
        let len = BufferPool::memory_len(count, size)?;
        let stride = len / usize::from(count);
        let (slots, slot_bytes) = (handler.policy().reply_slots, handler.policy().reply_slot_bytes);
        let (replies, area) = handler.take_areas(len).ok_or(BindError::Taken)?;
        let replies = Replies::new(replies, slots, slot_bytes)?;
        let messages = area.range();
        let group = add(BufferPool::over(Box::new(AreaBuffers(area)), count, size)?)?;
        let shared = Arc::new(Shared {
            is_on: true.into(),
            enable: false.into(),
            landed: 0.into(),
            copied: 0.into(),
            handled: 0.into(),
            discarded: 0.into(),
            passed: 0.into(),
            aborted: 0.into(),
            overloaded: 0.into(),
            replies_lent: 0.into(),
            replies_copied: 0.into(),
            bytes_copied: 0.into(),
        });
        let bound = Bound {
            handler,
            messages,
            stride,
            size: size as usize,
            replies,
            shared: Arc::clone(&shared),
        };
        let len = self.tenants.len().max(group.index() + 1);
        self.tenants.resize_with(len, || None);
        self.tenants[group.index()] = Some(bound);
        Ok(Tenant { group, shared })
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

    /// Lets handlers choose the messages that the next hook gets, such as [`Upcalls`](crate::Upcalls): those with
    /// which they start an upcall. Without it, the next hook gets all that they leave. It always gets the messages for
    /// which no handler is bound.
    #[must_use]
    pub fn starting_upcalls(self) -> Self {
        Landing { starts_upcalls: true, ..self }
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
        let len = rx.bytes().len();
        self.passes_to_next = true;
        if len == 0 {
            return;
        }
        let place = rx.place();
        let group = self.bindings.of_message(id, rx.bytes()).or(place.map(|place| place.group));
        let Some(group) = group else { return };
        let Some(Some(bound)) = self.tenants.get_mut(group.index()) else { return };
        let Bound { handler, messages, stride, size, replies, shared } = bound;
        self.passes_to_next = !self.starts_upcalls;
        let landed = place.filter(|place| place.group == group);
        add(if landed.is_some() { &shared.landed } else { &shared.copied }, 1);
        if io.is_overloaded() {
            add(&shared.passed, 1);
            return add(&shared.overloaded, 1);
        }
        handler.set_on(shared.is_on.load(Ordering::Relaxed));
        if shared.enable.load(Ordering::Relaxed) {
            shared.enable.store(false, Ordering::Relaxed);
            handler.enable();
        }
        handler.set_free_slots(replies.collect());
        let connection = u64::from(id.generation()) << 32 | u64::from(id.slot());
        // Where the message lies in the memory; empty if a copy of it does.
        let mut message = 0..0;
        let outcome = match landed {
            Some(place) => {
                let start = messages.start + place.offset;
                message = start..start + len;
                let slot = (place.offset / *stride) as u32;
                handler.handle(message.clone(), connection, slot, io.now())
            }
            None => handler.handle_copy(rx.bytes(), connection, io.now()),
        };
        match outcome {
            Outcome::Handled => add(&shared.handled, 1),
            Outcome::Discarded => {
                add(&shared.discarded, 1);
                return rx.consume(len);
            }
            Outcome::Passed(reason) => {
                add(&shared.passed, 1);
                add(&shared.aborted, u64::from(matches!(reason, Pass::Involuntary(_))));
                self.passes_to_next |= reason == Pass::Upcall;
                return;
            }
        }
        let is_message = |sent: &Range<usize>| {
            sent.start >= message.start && sent.end <= message.end && !sent.is_empty()
        };
        // The buffer of the message leaves with the last reply that lies in it, as the kernel may receive
        // into it again from then on.
        let last = handler.sends().iter().rposition(is_message);
        for (n, (range, bytes)) in handler.sends().iter().zip(handler.sent()).enumerate() {
            let lent = if last == Some(n) && GatherList::keeps(range.len(), *size) {
                let mut buffer = rx.take();
                let is_lent = buffer.place().is_some();
                buffer.advance(range.start - message.start);
                buffer.truncate(range.len());
                Some((buffer, is_lent))
            } else {
                replies.take(range).map(|buffer| (buffer, true))
            };
            let (chunk, is_lent) = match lent {
                Some((buffer, is_lent)) => (Chunk::Received(buffer), is_lent),
                None => (Chunk::Copy(bytes), false),
            };
            if is_lent {
                add(&shared.replies_lent, 1);
            } else {
                add(&shared.replies_copied, 1);
                add(&shared.bytes_copied, range.len() as u64);
            }
            io.send(id, chunk);
        }
        rx.consume(rx.bytes().len());
        if let Some(post) = &mut self.post {
            handler.events().iter().for_each(|&(kind, value)| post(id, kind, value));
        }
    }
}
