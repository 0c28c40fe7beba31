//! A handler in a sandbox whose memory messages land in, and from which its replies leave.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use ash_sandbox::model::{ProcessState, Strategy};
use ash_sandbox::sandbox::{Area, COUNTERS, Handler, MAX_KEPT, Outcome, Pass, SLOT_GAP};
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool, GatherList, RxBuf};

use crate::Rx;
use crate::bindings::BindingsId;
use crate::hooks::{BindError, Bindings, LandingArea};
use crate::landing_area::AreaBuffers;

/// Names a handler that is bound, by a [`Landing`](crate::hooks::Landing) or a [`DatagramThread`](crate::datagrams::DatagramThread), and
/// switches it, from any thread.
#[derive(Clone, Debug)]
pub struct Tenant {
    group: BufferGroup,
    shared: Arc<Shared>,
    /// Those of the landing; of none if the handler is that of a socket for datagrams.
    bindings: BindingsId,
}

/// Numbers of messages and replies of a [`Tenant`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LandingCounters {
    /// Messages that the kernel received into the memory of the handler.
    pub landed: u64,
    /// Messages that arrived elsewhere and for which a [`Binding`](crate::hooks::Binding) chose the handler, and those that
    /// waited during a hold.
    pub copied: u64,
    /// Messages that the handler has handled.
    pub handled: u64,
    /// Messages that it has discarded.
    pub discarded: u64,
    /// Messages that the handler neither handled nor discarded, for any reason. The next hook gets them, or the application.
    pub passed: u64,
    /// Those of them after an involuntary abort.
    pub aborted: u64,
    /// Those of them after a voluntary abort.
    pub aborted_voluntarily: u64,
    /// Those of them that the handler did not get, as its governor preferred another strategy.
    pub governed: u64,
    /// Those of them that the handler did not get, as the server was overloaded.
    pub overloaded: u64,
    /// Replies that leave from the memory of the handler.
    pub replies_lent: u64,
    /// Replies that were copied.
    pub replies_copied: u64,
    /// Bytes of the replies that were copied.
    pub bytes_copied: u64,
}

#[derive(Debug, Default)]
struct Shared {
    is_on: AtomicBool,
    /// The changes to make to the handler before its next message: a set of bits.
    pending: AtomicU8,
    is_disabled: AtomicBool,
    /// The strategy for the last message, by its number in `Strategy::ALL`.
    strategy: AtomicU8,
    own_counters: Arc<[AtomicU64; COUNTERS]>,
    landed: AtomicU64,
    copied: AtomicU64,
    handled: AtomicU64,
    discarded: AtomicU64,
    passed: AtomicU64,
    aborted: AtomicU64,
    aborted_voluntarily: AtomicU64,
    governed: AtomicU64,
    overloaded: AtomicU64,
    replies_lent: AtomicU64,
    replies_copied: AtomicU64,
    bytes_copied: AtomicU64,
}

/// Bits of [`Shared::pending`]: the handler is to be enabled; from [`STATE_SHIFT`] on, the number of a state of the
/// application's process for its governor, plus one.
const ENABLE: u8 = 1;
const STATE_SHIFT: u32 = 1;

impl Shared {
    /// Does what is pending.
    #[cold]
    fn obey(&self, handler: &mut Handler) {
        let pending = self.pending.swap(0, Ordering::Relaxed);
        if pending & ENABLE != 0 {
            handler.enable();
            self.is_disabled.store(false, Ordering::Relaxed);
        }
        let state = usize::from(pending >> STATE_SHIFT).checked_sub(1);
        let state = state.and_then(|number| ProcessState::ALL.get(number));
        if let Some((governor, state)) = handler.governor_mut().zip(state) {
            governor.set_state(*state);
        }
    }
}

impl Tenant {
    /// Returns whether the landing of these bindings has the handler.
    pub(crate) fn is_of(&self, bindings: &Bindings) -> bool {
        self.bindings.is_of(bindings)
    }

    /// Notes that the landing of these bindings has the handler.
    pub(crate) fn of(self, bindings: &Bindings) -> Self {
        Tenant { bindings: bindings.id(), ..self }
    }

    /// Returns the buffer group, for [`Multiplexer::set_listener_group`](crate::mechanisms::Multiplexer::set_listener_group)
    /// and [`Commands::set_receive_group`](crate::Commands::set_receive_group).
    pub fn group(&self) -> BufferGroup {
        self.group
    }

    /// Switches the handler off or on (section 6.4.2). While it is off, the application gets all messages.
    pub fn set_on(&self, is_on: bool) {
        self.shared.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Enables the handler from the next message on, after aborts have disabled it.
    pub fn enable(&self) {
        self.shared.pending.fetch_or(ENABLE, Ordering::Relaxed);
    }

    /// Returns whether involuntary aborts have disabled the handler.
    pub fn is_disabled(&self) -> bool {
        self.shared.is_disabled.load(Ordering::Relaxed)
    }

    /// Returns the strategy for the last message: that which the [governor](Handler::set_governor) preferred, or
    /// [`Strategy::Ash`], also while the governor tries the handler again. [`LandingCounters`] say why: how many messages
    /// the handler has handled, and after how many it has aborted.
    pub fn strategy(&self) -> Strategy {
        let number = self.shared.strategy.load(Ordering::Relaxed);
        Strategy::ALL.get(usize::from(number)).copied().unwrap_or(Strategy::Ash)
    }

    /// Tells the governor of the handler, from the next message on, what the application's process does.
    pub fn set_process_state(&self, state: ProcessState) {
        let number = ProcessState::ALL.iter().position(|other| *other == state).unwrap_or(0) as u8;
        let with = |pending| Some(pending & ENABLE | (number + 1) << STATE_SHIFT);
        #[allow(deprecated, reason = "its new name is not in Rust 1.88")]
        let _ = self.shared.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
    }

    /// Returns the counters that the handler itself counts.
    pub fn own_counters(&self) -> [u64; COUNTERS] {
        self.shared.own_counters.each_ref().map(|counter| counter.load(Ordering::Relaxed))
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
            aborted_voluntarily: get(&shared.aborted_voluntarily),
            governed: get(&shared.governed),
            overloaded: get(&shared.overloaded),
            replies_lent: get(&shared.replies_lent),
            replies_copied: get(&shared.replies_copied),
            bytes_copied: get(&shared.bytes_copied),
        }
    }
}

/// Adds to a counter, which only the thread of the handler writes to.
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// The outcome of a message.
pub(crate) enum Verdict {
    /// The handler consumed the message. The range is its place in memory, empty if it was copied.
    Handled(Range<usize>),
    /// The handler has discarded it.
    Discarded,
    /// The application gets it.
    Passed {
        /// The handler has started an upcall with it, or its governor prefers upcalls.
        starts_upcall: bool,
    },
}

/// Where a message has landed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    /// In the buffers.
    pub(crate) offset: usize,
    /// The buffers are scarce.
    pub(crate) is_scarce: bool,
}

/// Why the buffer of a message is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Its bytes are sent, from any place.
    ToSend,
    /// The handler keeps it, where it lies.
    ToKeep,
}

/// The buffer of a message, or its bytes elsewhere.
pub(crate) trait MessageBuffer {
    /// Returns the message, unless it was taken.
    fn bytes(&self) -> &[u8];

    /// Takes it, once.
    fn take(&mut self, taken: Taken) -> RxBuf;
}

impl MessageBuffer for Rx<'_> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.bytes()
    }

    #[inline]
    fn take(&mut self, taken: Taken) -> RxBuf {
        match taken {
            Taken::ToSend => self.take(),
            Taken::ToKeep => self.take_in_place().expect("it has landed in a buffer"),
        }
    }
}

impl MessageBuffer for Option<RxBuf> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.as_deref().unwrap_or_default()
    }

    #[inline]
    fn take(&mut self, _: Taken) -> RxBuf {
        self.take().expect("the buffer of a message is taken once")
    }
}

/// A reply to a message.
pub(crate) enum Reply<'a> {
    /// It leaves from the memory of the handler.
    Lent(RxBuf),
    /// It has to be copied.
    Copied(&'a [u8]),
}

impl Reply<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Reply::Lent(buffer) => buffer.len(),
            Reply::Copied(bytes) => bytes.len(),
        }
    }
}

/// Which replies leave from the memory of the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lends {
    /// Those that a list would not [copy](GatherList::keeps).
    Long,
    /// All that lie in the message or in a reply slot.
    All,
}

impl Lends {
    fn covers(self, len: usize, buffer_size: usize) -> bool {
        self == Lends::All || GatherList::keeps(len, buffer_size)
    }
}

/// A handler, and the buffers of its memory.
pub(crate) struct Bound {
    handler: Handler,
    messages: LandingArea,
    /// Size of a receive buffer, in bytes.
    size: usize,
    replies: Replies,
    lends: Lends,
    /// The buffers of messages that the handler keeps, with their slots.
    kept: Vec<(u32, RxBuf)>,
    /// Their maximum, while buffers are not scarce.
    max_kept: usize,
    shared: Arc<Shared>,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handler.fmt(f)
    }
}

impl Bound {
    /// Binds a handler: `count` receive buffers of `size` bytes in its message area become a group, which `add` adds.
    ///
    /// # Errors
    /// If the handler is bound, the buffers do not fit its message area, or `add` fails.
    pub(crate) fn new(
        mut handler: Handler,
        (count, size): (u16, u32),
        lends: Lends,
        add: impl FnOnce(BufferPool) -> Result<BufferGroup, BufferError>,
    ) -> Result<(Self, Tenant), BindError> {
        let len = BufferPool::memory_len(count, size)?;
        let (slots, slot_bytes) = (handler.policy().reply_slots, handler.policy().reply_slot_bytes);
        let (replies, area) = handler.take_areas(len).ok_or(BindError::Taken)?;
        let replies = Replies::new(replies, slots, slot_bytes)?;
        let messages = LandingArea::of(area, (count, size), add)?;
        let group = messages.group();
        let shared = Arc::new(Shared {
            is_on: true.into(),
            is_disabled: handler.is_disabled().into(),
            own_counters: handler.share_own_counters(),
            ..Shared::default()
        });
        let tenant = Tenant { group, shared: Arc::clone(&shared), bindings: BindingsId::default() };
        let size = size as usize;
        // The others stay for receives.
        let max_kept = MAX_KEPT.min(usize::from(count) / 2);
        let kept = Vec::with_capacity(max_kept);
        Ok((Bound { handler, messages, size, replies, lends, kept, max_kept, shared }, tenant))
    }

    /// Returns the group of its receive buffers.
    pub(crate) fn group(&self) -> BufferGroup {
        self.messages.group()
    }

    /// Lets the handler handle a message, unless it is off or the server is overloaded. The message has landed at an
    /// offset of the buffers, or is copied. While buffers are scarce, the handler cannot keep it: some stay for messages with
    /// which it gives others back.
    #[inline]
    pub(crate) fn handle(
        &mut self,
        bytes: &[u8],
        landed_at: Option<Landed>,
        connection: u64,
        is_overloaded: bool,
        now: Instant,
    ) -> Verdict {
        let Bound { handler, messages, replies, kept, max_kept, shared, .. } = self;
        add(if landed_at.is_some() { &shared.landed } else { &shared.copied }, 1);
        if is_overloaded {
            add(&shared.passed, 1);
            add(&shared.overloaded, 1);
            return Verdict::Passed { starts_upcall: false };
        }
        handler.set_on(shared.is_on.load(Ordering::Relaxed));
        if shared.pending.load(Ordering::Relaxed) != 0 {
            shared.obey(handler);
        }
        handler.set_free_slots(replies.collect());
        let mut message = 0..0;
        let outcome = match landed_at {
            Some(Landed { offset, is_scarce }) => {
                // SAFETY: `replies` puts the buffer of each message that the handler keeps into `kept`. It stays there until
                // the handler has given it back or loses all.
                unsafe { handler.set_max_kept(if is_scarce { 0 } else { *max_kept }) };
                let start = messages.range().start + offset;
                message = start..start + bytes.len();
                handler.handle(bytes, connection, messages.slot(offset), now)
            }
            None => handler.handle_copy(bytes, connection, now),
        };
        let mut strategy = Strategy::Ash;
        let verdict = match outcome {
            Outcome::Handled => {
                add(&shared.handled, 1);
                Verdict::Handled(message)
            }
            Outcome::Discarded => {
                add(&shared.discarded, 1);
                Verdict::Discarded
            }
            Outcome::Passed(reason) => {
                add(&shared.passed, 1);
                match reason {
                    Pass::Involuntary(_) => {
                        add(&shared.aborted, 1);
                        shared.is_disabled.store(handler.is_disabled(), Ordering::Relaxed);
                        if handler.is_disabled() {
                            kept.clear();
                        }
                    }
                    Pass::Voluntary => add(&shared.aborted_voluntarily, 1),
                    Pass::Governed(preferred) => {
                        add(&shared.governed, 1);
                        strategy = preferred;
                    }
                    _ => {}
                }
                let starts_upcall =
                    matches!(reason, Pass::Upcall | Pass::Governed(Strategy::Upcall));
                Verdict::Passed { starts_upcall }
            }
        };
        shared.strategy.store(strategy as u8, Ordering::Relaxed);
        verdict
    }

    /// Takes back the buffers of all messages that the handler keeps.
    #[inline]
    pub(crate) fn take_back_kept(&mut self) {
        if !self.kept.is_empty() {
            self.handler.take_back_kept();
            self.kept.clear();
        }
    }

    /// Passes the replies to a message that the handler has handled to `send`, in order, and then keeps the message and
    /// gives others back, as the handler has chosen. It takes the buffer of the message at most once: for a reply, or
    /// to keep it where it is. `send` returns whether it sends the reply.
    #[inline]
    pub(crate) fn replies(
        &mut self,
        message: &Range<usize>,
        from: &mut impl MessageBuffer,
        mut send: impl FnMut(Reply<'_>) -> bool,
    ) {
        let Bound { handler, size, replies, lends, kept, shared, .. } = self;
        let is_message = |sent: &Range<usize>| {
            sent.start >= message.start && sent.end <= message.end && !sent.is_empty()
        };
        // The buffer of the message leaves with the last reply that lies in it, as the kernel may receive
        // into it again from then on.
        let keeps = handler.keeps();
        let last = handler.sends().iter().rposition(|sent| keeps.is_none() && is_message(sent));
        for (n, range) in handler.sends().iter().enumerate() {
            let lent = if last == Some(n) && lends.covers(range.len(), *size) {
                let mut buffer = from.take(Taken::ToSend);
                let is_lent = buffer.place().is_some();
                buffer.advance(range.start - message.start);
                buffer.truncate(range.len());
                Some((buffer, is_lent))
            } else {
                replies.take(range, *lends).map(|buffer| (buffer, true))
            };
            let (reply, is_lent) = match lent {
                Some((buffer, is_lent)) => (Reply::Lent(buffer), is_lent),
                None => (Reply::Copied(handler.nth_sent(n, from.bytes())), false),
            };
            if !send(reply) {
                continue;
            }
            if is_lent {
                add(&shared.replies_lent, 1);
            } else {
                add(&shared.replies_copied, 1);
                add(&shared.bytes_copied, range.len() as u64);
            }
        }
        for slot in handler.given_back() {
            kept.retain(|(kept, _)| kept != slot);
        }
        if let Some(slot) = keeps {
            kept.push((slot, from.take(Taken::ToKeep)));
        }
    }

    /// Returns the events of the last message, which the handler has handled: kind and value.
    pub(crate) fn events(&self) -> &[(u64, u64)] {
        self.handler.events()
    }
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
    fn take(&mut self, reply: &Range<usize>, lends: Lends) -> Option<RxBuf> {
        let start = reply.start.checked_sub(self.area.start)?;
        let (slot, offset) = (start / self.slot_bytes, start % self.slot_bytes);
        let size = self.slot_bytes - SLOT_GAP;
        if offset + reply.len() > size || !lends.covers(reply.len(), size) {
            return None;
        }
        let mut buffer = self.free.get_mut(slot)?.take()?;
        buffer.advance(offset);
        buffer.truncate(reply.len());
        Some(buffer)
    }
}
