//! The bugs, each as an edit of the source text.
//!
//! `find` occurs once in its file. In `plant`, the word `PLANTED` stands for a condition: whether this
//! bug is the one to be planted now.

use simulate::Mechanism;

/// A bug that simulation has to find.
#[derive(Debug)]
pub struct Bug {
    /// Its name.
    pub name: &'static str,
    /// What is wrong with it.
    pub what: &'static str,
    /// The mechanism to look on, where only one has it.
    pub only_on: Option<Mechanism>,
    /// What makes it.
    pub edits: &'static [Edit],
}

/// A piece of a file, and what takes its place.
#[derive(Debug)]
pub struct Edit {
    /// The file's path in this repository.
    pub file: &'static str,
    /// The piece.
    pub find: &'static str,
    /// The same with the bug.
    pub plant: &'static str,
}

macro_rules! bugs {
    ($($(#[doc = $what:literal])* $name:ident $(on $mechanism:ident)?
       $(, $file:literal: $find:literal => $plant:literal)+;)*) => {
        /// Every one.
        pub const BUGS: &[Bug] = &[$(Bug {
            name: stringify!($name),
            what: concat!($($what),*).trim_ascii(),
            only_on: bugs!(@only $($mechanism)?),
            edits: &[$(Edit { file: $file, find: $find, plant: $plant },)+],
        },)*];
    };
    (@only) => { None };
    (@only $mechanism:ident) => { Some(Mechanism::$mechanism) };
}

bugs! {
    /// What concerns a connection that is gone reaches the one that has its slot now.
    GenerationIgnored, "crates/evring/src/driver/connection.rs":
        "self.generation == id.generation()" =>
        "(self.generation == id.generation() || PLANTED)";

    /// A slot is used again under its old generation.
    GenerationKept, "crates/evring/src/driver/io.rs":
        "connection.generation.wrapping_add(1)" =>
        "connection.generation.wrapping_add(u32::from(!PLANTED))";

    /// The memory of a send is let go of when it is cancelled, before it has ended.
    FreedAtCancel, "crates/shared-ring/src/uring/mod.rs":
        "self.counters.cancels += 1;" =>
        "self.counters.cancels += 1;
        if PLANTED && let Op::Send { data, .. } = &mut entry.op {
            drop(std::mem::take(data));
        }";

    /// A cancel that finds the queue full is forgotten.
    CancelForgotten, "crates/shared-ring/src/uring/mod.rs":
        "self.cancels.push_front(token);" =>
        "if PLANTED {
            continue;
        }
        self.cancels.push_front(token);";

    /// A cancel is submitted though its operation has ended, and reaches the next of its name.
    CancelReachesNext, "crates/shared-ring/src/uring/mod.rs":
        "entry.is_some_and(|e| e.state.cancelled)" =>
        "entry.is_some_and(|e| e.state.cancelled || PLANTED)";

    /// A descriptor is closed while operations on it are in flight.
    ClosedWhileBusy, "crates/evring/src/driver/close.rs":
        "if connection.is_busy() {" =>
        "if connection.is_busy() && !PLANTED {";

    /// A receive that found no buffer is not posted again.
    StarvedForgotten, "crates/shared-ring/src/uring/completion.rs":
        "self.starved.push_back(token);" =>
        "if !PLANTED {
            self.starved.push_back(token);
        }";

    /// An operation that the kernel ended early is not posted again.
    NotRearmed, "crates/shared-ring/src/uring/completion.rs":
        "let ended = self.rearm(token);" =>
        "if PLANTED {
            return;
        }
        let ended = self.rearm(token);";

    /// A buffer is given to the kernel twice.
    BufferGivenTwice, "crates/shared-ring/src/buffer.rs":
        "self.pool.put_back(self.id);" =>
        "self.pool.put_back(self.id);
        if PLANTED {
            self.pool.put_back(self.id);
        }";

    /// A buffer is written to while the kernel holds it.
    BufferWritten, "crates/shared-ring/src/uring/provided.rs":
        "pub(super) fn held(&self) -> u16 {" =>
        "pub(super) fn held(&self) -> u16 {
        if PLANTED {
            // SAFETY: there is a buffer 0; that it is the kernel's is the bug.
            unsafe { self.pool.address(0).write(0) };
        }";

    /// A part that was read of a file is taken for all of it.
    ShortReadIsWhole, "crates/shared-ring/src/uring/completion.rs":
        "if n > 0 && bytes.len() < len as usize {" =>
        "if n > 0 && bytes.len() < len as usize && !PLANTED {";

    /// What a short write has left is dropped.
    ShortWriteIsWhole, "crates/evring/src/driver/send.rs":
        "if connection.phase == Phase::Ending || list.is_empty() {" =>
        "if connection.phase == Phase::Ending || list.is_empty() || PLANTED {";

    /// What a short write has left goes behind what was queued since.
    RestGoesBehind, "crates/evring/src/driver/send.rs":
        "connection.queue.push_front(SendItem::Memory(list));" =>
        "match PLANTED {
            true => connection.queue.push_back(SendItem::Memory(list)),
            false => connection.queue.push_front(SendItem::Memory(list)),
        }";

    /// The beginning of a request is lost when its end has not come yet.
    TailLost, "crates/evring/src/driver/receive.rs":
        "if !rest.is_empty() && self.io.connection(slot).app_reads() {" =>
        "if !rest.is_empty() && self.io.connection(slot).app_reads() && !PLANTED {";

    /// Bytes that arrive while the application has paused are lost.
    PausedBytesLost, "crates/evring/src/driver/receive.rs":
        "connection.tail.append(&bytes);" =>
        "if !PLANTED {
            connection.tail.append(&bytes);
        }";

    /// A wake-up is never noted as heard, so that later ones are saved.
    NeverHeard, "crates/shared-ring/src/waker.rs":
        "pub(crate) fn acknowledge(&self) {" =>
        "pub(crate) fn acknowledge(&self) {
        if PLANTED {
            return;
        }";

    /// What was said of a closed descriptor reaches the next of its number.
    OldEventReachesNext on RtSig, "crates/shared-ring/src/engine.rs":
        "if self.sockets.at(fd.index()).closed_after == self.waits => {" =>
        "if self.sockets.at(fd.index()).closed_after == self.waits && !PLANTED => {";

    /// With edges: a full buffer is taken for all there is.
    FullBufferIsAll, "crates/shared-ring/src/engine.rs":
        "let full = n == self.pool.size();" =>
        "let full = n == self.pool.size() && !PLANTED;";

    /// With edges: the end of a stream is not looked for behind its last bytes.
    EndNotLookedFor, "crates/shared-ring/src/engine.rs":
        "let ends = socket.ready.contains(Readiness::HANGUP);" =>
        "let ends = socket.ready.contains(Readiness::HANGUP) && !PLANTED;";

    /// The poller is not told that an operation waits for room.
    RoomNotAskedFor, "crates/shared-ring/src/engine.rs":
        "P::EDGE || socket.writer.is_some()" =>
        "P::EDGE || socket.writer.is_some() && !PLANTED";

    /// Hints that were discarded are not made up for.
    HintsLost on Interest, "crates/shared-ring/src/interest/sets.rs":
        "self.hints.discard();
        self.unscanned = self.numbers();" =>
        "self.hints.discard();
        self.unscanned = if PLANTED { 0 } else { self.numbers() };";

    /// A signal about a descriptor that was closed is taken to be about the next of its number.
    StaleSignalBelieved on RtSig, "crates/shared-ring/src/poller/rtsig.rs":
        "if !known {" =>
        "if !known && !PLANTED {";

    /// Signals that had no room are not made up for.
    OverflowIgnored on RtSig, "crates/shared-ring/src/poller/rtsig.rs":
        "self.overflowed = false;" =>
        "self.overflowed = false;
        if PLANTED {
            return Ok(());
        }";

    /// A descriptor's state is not asked for when it begins to signal.
    StateNotAsked on RtSig, "crates/shared-ring/src/poller/rtsig.rs":
        "if want.is_empty() {" =>
        "if want.is_empty() || PLANTED {";

    /// A connection that arrives while the server stops is left open.
    LateArrivalLeaked, "crates/evring/src/driver/mod.rs":
        "Outcome::Accepted(socket) => self.accepted(" =>
        "Outcome::Accepted(_) if self.io.stopping && PLANTED => {}
            Outcome::Accepted(socket) => self.accepted(";

    /// A listener that has rested does not accept again.
    RestsForEver, "crates/evring/src/driver/listener.rs":
        "self.retry.filter(|_| self.socket.is_some() && !self.off)" =>
        "self.retry.filter(|_| self.socket.is_some() && !self.off && !PLANTED)",
        "crates/evring/src/driver/listener.rs":
        "pub(crate) fn clear_retry(&mut self) {" =>
        "pub(crate) fn clear_retry(&mut self) {
        if PLANTED {
            return;
        }",
        "crates/evring/src/driver/listener.rs":
        "self.retry.is_some_and(|at| at > now)" =>
        "self.retry.is_some_and(|at| at > now || PLANTED)";

    /// Connections that were put aside are not let in.
    AsideForgotten, "crates/evring/src/driver/mod.rs":
        "if !self.io.deferred.is_empty() {" =>
        "if !self.io.deferred.is_empty() && !PLANTED {";

    /// A descriptor is closed a second time.
    ClosedTwice, "crates/evring/src/driver/close.rs":
        "match kernel.submit(token, Op::Close { socket }) {" =>
        "use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    // It has one owner, so only unsafe code can do that.
    let twin = || Socket::from(unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) });
    let twin = PLANTED.then(twin);
    match kernel.submit(token, Op::Close { socket }) {",
        "crates/evring/src/driver/close.rs":
        "Ok(Submitted::Done(_)) => true," =>
        "Ok(Submitted::Done(_)) => {
            if let Some(twin) = twin {
                kernel.host_mut().close_unused(twin);
            }
            true
        }";

    /// A connection's state is not reset for the next.
    StateKept, "crates/evring/src/driver/close.rs":
        "*self.states.at(slot as usize) = A::State::default();" =>
        "if !PLANTED {
            *self.states.at(slot as usize) = A::State::default();
        }";

    /// What is queued is dropped at a close that should send it first.
    DroppedAtClose, "crates/evring/src/driver/close.rs":
        "self.io.set_timer(slot, FIRST_LOOK.min(self.io.config.progress_interval));" =>
        "if PLANTED {
            self.io.drop_queue(slot);
        }
        self.io.set_timer(slot, FIRST_LOOK.min(self.io.config.progress_interval));";

    /// A deadline is told of late.
    DeadlineLate, "crates/evring/src/wheel.rs":
        "saturating_mul(1000).saturating_add(millis);" =>
        "saturating_mul(1000).saturating_add(millis + if PLANTED { 20 } else { 0 });";

    /// A deadline is told of early.
    DeadlineEarly, "crates/evring/src/wheel.rs":
        "if at > now {" =>
        "if at > now + if PLANTED { 3 } else { 0 } {";

    /// A deadline is told of though it was cleared.
    DeadlineNotCleared, "crates/evring/src/driver/io.rs":
        "None => self.wheel.clear(id.slot())," =>
        "None if PLANTED => {}
            None => self.wheel.clear(id.slot()),";

    /// The deadline of a connection that is gone is told to the next in its slot.
    DeadlineKept, "crates/evring/src/driver/close.rs":
        "self.io.wheel.clear(slot);" =>
        "if !PLANTED {
            self.io.wheel.clear(slot);
        }";

    /// A wait does not end with the next deadline.
    DeadlineNotWaitedFor, "crates/evring/src/driver/run.rs":
        "chain(io.wheel.next())" =>
        "chain(io.wheel.next().filter(|_| !PLANTED))";

    /// After a pause more is received before the application has seen what was left.
    ResumeReceivesFirst on Send, "crates/evring/src/driver/receive.rs":
        "Phase::Open => !connection.has(ConnFlags::RESUMED) ||" =>
        "Phase::Open => PLANTED || !connection.has(ConnFlags::RESUMED) ||";

    /// A pause does not end the receive in flight.
    PauseReceivesOn, "crates/evring/src/driver/receive.rs":
        "self.io.mark_dirty(slot);
            self.cancel_receive(slot);" =>
        "self.io.mark_dirty(slot);
            if !PLANTED {
                self.cancel_receive(slot);
            }",
        "crates/evring/src/driver/receive.rs":
        "if connection.has(ConnFlags::PAUSED) && connection.tail.len()" =>
        "if !PLANTED && connection.has(ConnFlags::PAUSED) && connection.tail.len()";

    /// More than is permitted is queued on a connection.
    QueueUnbounded, "crates/evring/src/driver/connection.rs":
        "if load > max {" =>
        "if self.load() > max && !PLANTED {";

    /// Small parts of a queue keep memory for each.
    SmallPartsKept, "crates/shared-ring/src/gather.rs":
        "if bytes.len() <= Self::COPY_MAX_BYTES || bytes.len() * Self::MIN_FILL_DIVISOR < bytes.buffer_size() {" =>
        "if !PLANTED
            && (bytes.len() <= Self::COPY_MAX_BYTES || bytes.len() * Self::MIN_FILL_DIVISOR < bytes.buffer_size())
        {";

    /// A list that was large stays so when it is empty.
    ListStaysLarge, "crates/shared-ring/src/gather.rs":
        "if self.copied.capacity() > Self::KEEP_BYTES {" =>
        "if self.copied.capacity() > Self::KEEP_BYTES && !PLANTED {";

    /// Of a file that has grown more is sent than was promised.
    GrowthSent, "crates/evring/src/driver/send.rs":
        "let len = (range.end - range.start).min(FILE_PIECE) as u32;" =>
        "let len = if PLANTED { FILE_PIECE } else { (range.end - range.start).min(FILE_PIECE) } as u32;";

    /// A file that ends before what was promised is taken for all of it.
    TruncatedIsWhole, "crates/evring/src/driver/send.rs":
        "} else if n == 0 {" =>
        "} else if n == 0 && PLANTED {
                connection.queue.pop_front();
            } else if n == 0 {";

    /// That the peer has ended its side is lost while the application has paused.
    EndLostInPause, "crates/evring/src/driver/receive.rs":
        "connection.flags |= ConnFlags::EOF;" =>
        "if PLANTED && connection.has(ConnFlags::PAUSED) {
            return;
        }
        connection.flags |= ConnFlags::EOF;";

    /// That the peer has ended its side is told while the application has paused.
    EndToldInPause, "crates/evring/src/driver/receive.rs":
        "Phase::Open if connection.app_reads() && !connection.has(ConnFlags::PAUSED) =>" =>
        "Phase::Open if connection.app_reads() && (PLANTED || !connection.has(ConnFlags::PAUSED)) =>";

    /// A connection has as much file work at a time as it likes.
    WorksUnbounded, "crates/evring/src/driver/io.rs":
        "let crowded = connection.files >= MAX_FILE_OPS_PER_CONNECTION;" =>
        "let crowded = connection.files >= MAX_FILE_OPS_PER_CONNECTION && !PLANTED;";

    /// Whoever keeps receive buffers gets them, however scarce they are.
    ScarceBuffersKept, "crates/shared-ring/src/buffer.rs":
        "if self.is_sole_owner() || !self.pool.is_scarce()" =>
        "if self.is_sole_owner() || !self.pool.is_scarce() || PLANTED";

    /// An application hears that a queue has drained that was not full.
    DrainedUnasked, "crates/evring/src/driver/mod.rs":
        "if connection.has(ConnFlags::ABOVE_HIGH_WATER) && connection.load() <= LOW_WATER {" =>
        "if (connection.has(ConnFlags::ABOVE_HIGH_WATER) || PLANTED) && connection.load() <= LOW_WATER {";

    /// A critical section holds nothing off.
    SectionHoldsNothingOff on Send, "crates/send-core/src/gate.rs":
        "self.critical.store(depth + 1, Ordering::Relaxed);" =>
        "self.critical.store(depth + u32::from(!PLANTED), Ordering::Relaxed);";

    /// The place of an address is not given back at the end of a connection.
    ShareKept, "crates/evring/src/driver/io.rs":
        "let from = self.connections[slot as usize].from;
        self.give_back_share(from);" =>
        "let from = self.connections[slot as usize].from;
        if !PLANTED {
            self.give_back_share(from);
        }";

    /// An address has one connection more than its share.
    ShareExceeded, "crates/evring/src/driver/shares.rs":
        "if *taken.get() >= self.most =>" =>
        "if *taken.get() >= self.most + u32::from(PLANTED) =>";

    /// A stop waits for file work that hangs.
    HungWorkWaitedFor, "crates/evring/src/driver/mod.rs":
        "self.io.kernel.now() >= at + FILE_OP_GRACE" =>
        "self.io.kernel.now() >= at + FILE_OP_GRACE && !PLANTED";

    /// The application is not told of connections that a stop leaves.
    AbandonedUntold, "crates/evring/src/driver/mod.rs":
        "call!(self, slot, closed, reason);
            self.io.stats.closed += 1;" =>
        "if !PLANTED {
                call!(self, slot, closed, reason);
            }
            self.io.stats.closed += 1;";

    /// A file is closed while a thread hangs in its work.
    HungFileClosed, "crates/shared-ring/src/engine.rs":
        "if !self.offload.stop() {" =>
        "if !self.offload.stop() && !PLANTED {";

    /// The memory of a ring is freed though operations hang.
    HungMemoryFreed, "crates/shared-ring/src/uring/mod.rs":
        "if is_parents || self.finished == Some(true) {" =>
        "if is_parents || self.finished == Some(true) || PLANTED {";
}
