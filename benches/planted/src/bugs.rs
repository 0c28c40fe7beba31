//! The bugs, each as an edit of the source text.
//!
//! `find` occurs once in its file. In `plant`, the word `PLANTED` stands for the condition that
//! this bug is selected.

use simulate::Program;

/// A bug that simulation must find.
#[derive(Debug)]
pub struct Bug {
    /// Its name.
    pub name: &'static str,
    /// A description.
    pub description: &'static str,
    /// The name of the mechanism to simulate, if only one has the bug.
    pub only_on: Option<&'static str>,
    /// The server to simulate, if only one shows the bug.
    pub only_in: Option<Program>,
    /// The edits that plant it.
    pub edits: &'static [Edit],
}

/// A replacement of a piece of a file.
#[derive(Debug)]
pub struct Edit {
    /// The path of the file in this repository.
    pub file: &'static str,
    /// The piece to replace.
    pub find: &'static str,
    /// The piece with the bug.
    pub plant: &'static str,
}

macro_rules! bugs {
    ($($(#[doc = $description:literal])* $name:ident $(on $mechanism:literal)? $(in $program:ident)?
       $(, $file:literal: $find:literal => $plant:literal)+;)*) => {
        /// All bugs.
        pub const BUGS: &[Bug] = &[$(Bug {
            name: stringify!($name),
            description: concat!($($description),*).trim_ascii(),
            only_on: bugs!(@only $($mechanism)?),
            only_in: bugs!(@only $(Program::$program)?),
            edits: &[$(Edit { file: $file, find: $find, plant: $plant },)+],
        },)*];
    };
    (@only) => { None };
    (@only $value:expr) => { Some($value) };
}

bugs! {
    /// A command or completion of a closed connection affects the next connection in its slot.
    GenerationIgnored, "crates/evring/src/driver/connection.rs":
        "self.generation == id.generation()" =>
        "(self.generation == id.generation() || PLANTED)";

    /// A server that retires resets its connections.
    RetireResets, "crates/evring/src/driver/quiesce.rs":
        "self.io.retiring = true;" =>
        "self.io.retiring = true; if PLANTED { self.stop_now(); }";

    /// A slot is reused without a new generation.
    GenerationKept, "crates/evring/src/driver/io.rs":
        "connection.generation.wrapping_add(1)" =>
        "connection.generation.wrapping_add(u32::from(!PLANTED))";

    /// The memory of a send is freed by its cancel instead of its completion.
    FreedAtCancel, "crates/shared-ring/src/uring/mod.rs":
        "self.counters.cancels += 1;" =>
        "self.counters.cancels += 1;
        if PLANTED && let Op::Send { data, .. } = &mut entry.op {
            drop(std::mem::take(data));
        }";

    /// A cancel is lost if the submission queue is full.
    CancelForgotten, "crates/shared-ring/src/uring/mod.rs":
        "self.cancels.push_front(token);" =>
        "if PLANTED {
            continue;
        }
        self.cancels.push_front(token);";

    /// A cancel is submitted although its operation has ended, and cancels the next one with its
    /// token.
    CancelReachesNext, "crates/shared-ring/src/uring/mod.rs":
        "entry.is_some_and(|e| e.state.cancel_is_due())" =>
        "entry.is_some_and(|e| e.state.cancel_is_due() || PLANTED)";

    /// A descriptor is closed while operations on it are in flight.
    ClosedWhileBusy, "crates/evring/src/driver/close.rs":
        "if connection.is_busy() {" =>
        "if connection.is_busy() && !PLANTED {";

    /// A receive that found no buffer is not submitted again.
    StarvedForgotten, "crates/shared-ring/src/uring/completion.rs":
        "self.owned.groups[group.index()].starved.push_back(token);" =>
        "if !PLANTED {
            self.owned.groups[group.index()].starved.push_back(token);
        }";

    /// Connections receive into the default group, whatever was chosen.
    GroupIgnored, "crates/evring/src/driver/receive.rs":
        "let group = connection.group;" =>
        "let group = if PLANTED { Default::default() } else { connection.group };";

    /// A multishot operation that the kernel ended early is not submitted again.
    NotRearmed, "crates/shared-ring/src/uring/completion.rs":
        "let ended = self.rearm(token);" =>
        "if PLANTED {
            return;
        }
        let ended = self.rearm(token);";

    /// A buffer is provided to the kernel twice.
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

    /// A short read of a file is taken for a complete one.
    ShortReadIsWhole, "crates/shared-ring/src/uring/completion.rs":
        "if n > 0 && bytes.len() < len as usize {" =>
        "if n > 0 && bytes.len() < len as usize && !PLANTED {";

    /// A short write to a file is taken for a complete one.
    ShortFileWriteIsWhole, "crates/shared-ring/src/uring/completion.rs":
        "if !write.bytes.is_empty() {
            return self.rearm(token);" =>
        "if !write.bytes.is_empty() && !PLANTED {
            return self.rearm(token);";

    /// The remainder of a short send is dropped.
    ShortWriteIsWhole, "crates/evring/src/driver/send.rs":
        "if connection.phase == Phase::Ending || list.is_empty() {" =>
        "if connection.phase == Phase::Ending || list.is_empty() || PLANTED {";

    /// The remainder of a short send is queued behind newer data.
    RemainderGoesBehind, "crates/evring/src/driver/send.rs":
        "connection.queue.push_front(SendItem::Memory(list));" =>
        "match PLANTED {
            true => connection.queue.push_back(SendItem::Memory(list)),
            false => connection.queue.push_front(SendItem::Memory(list)),
        }";

    /// The start of an incomplete request is lost.
    TailLost, "crates/evring/src/driver/receive.rs":
        "if !remaining.is_empty() && self.io.connection(slot).app_reads() {" =>
        "if !remaining.is_empty() && self.io.connection(slot).app_reads() && !PLANTED {";

    /// Bytes that arrive while the application has paused are lost.
    PausedBytesLost, "crates/evring/src/driver/receive.rs":
        "self.io.append_to_tail(slot, &bytes);" =>
        "if !PLANTED {
            self.io.append_to_tail(slot, &bytes);
        }";

    /// A wake-up is never acknowledged, so later ones are suppressed.
    NeverAcknowledged, "crates/shared-ring/src/waker.rs":
        "pub(crate) fn acknowledge(&self) {" =>
        "pub(crate) fn acknowledge(&self) {
        if PLANTED {
            return;
        }";

    /// A stale event of a closed descriptor reaches the next descriptor with its number.
    StaleEventReachesNext on "rtsig", "crates/shared-ring/src/engine.rs":
        "if self.socket(fd).notes.closed_after == self.waits => {" =>
        "if self.socket(fd).notes.closed_after == self.waits && !PLANTED => {";

    /// Edge-triggered: a receive that fills its buffer is taken for the last one.
    FullBufferIsLast, "crates/shared-ring/src/engine.rs":
        "self.note_remaining(fd, bytes.fills_buffer())," =>
        "self.note_remaining(fd, bytes.fills_buffer() && !PLANTED),";

    /// Edge-triggered: the end of the stream behind the last bytes is not read.
    EndNotRead, "crates/shared-ring/src/engine.rs":
        "|| notes.ready.contains(Readiness::HANGUP)" =>
        "|| notes.ready.contains(Readiness::HANGUP) && !PLANTED";

    /// The poller does not watch for writability while a send waits for it.
    WritabilityNotWatched, "crates/shared-ring/src/engine.rs":
        "by_edges || socket.writer.is_some()" =>
        "by_edges || socket.writer.is_some() && !PLANTED";

    /// Discarded hints are not replaced by a scan.
    HintsLost on "interest", "crates/shared-ring/src/interest/sets.rs":
        "self.hints.discard();
        self.unscanned = self.numbers();" =>
        "self.hints.discard();
        self.unscanned = if PLANTED { 0 } else { self.numbers() };";

    /// A stale signal of a closed descriptor is attributed to the next one with its number.
    StaleSignalAccepted on "rtsig", "crates/shared-ring/src/poller/rtsig.rs":
        "if !is_current {" =>
        "if !is_current && !PLANTED {";

    /// Signals that overflowed the queue are not replaced by a scan.
    OverflowIgnored on "rtsig", "crates/shared-ring/src/poller/rtsig.rs":
        "self.overflowed = false;" =>
        "self.overflowed = false;
        if PLANTED {
            return Ok(());
        }";

    /// A descriptor's state is not polled when it begins to signal.
    StateNotPolled on "rtsig", "crates/shared-ring/src/poller/rtsig.rs":
        "if want.is_empty() {" =>
        "if want.is_empty() || PLANTED {";

    /// A connection that is accepted while the server stops is leaked.
    LateArrivalLeaked, "crates/evring/src/driver/mod.rs":
        "Outcome::Accepted(socket) => self.accepted(" =>
        "Outcome::Accepted(_) if self.io.stopping && PLANTED => {}
            Outcome::Accepted(socket) => self.accepted(";

    /// Scans do not ask for the end of the stream.
    EndNotPolled on "rtsig", "crates/shared-ring/src/poller/rtsig.rs":
        "want.to_poll() | libc::POLLRDHUP | libc::POLLPRI;" =>
        "want.to_poll() | libc::POLLPRI | if PLANTED { 0 } else { libc::POLLRDHUP };";

    /// Interests do not include the end of the stream.
    EndNotOfInterest on "interest", "crates/shared-ring/src/poller/interest.rs":
        "wanted |= libc::POLLRDHUP | libc::POLLPRI;" =>
        "wanted |= libc::POLLPRI | if PLANTED { 0 } else { libc::POLLRDHUP };";

    /// A listener does not accept again after a pause.
    RetryForgotten, "crates/evring/src/driver/listener.rs":
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

    /// Deferred connections are never admitted.
    DeferredForgotten, "crates/evring/src/driver/mod.rs":
        "if !self.io.deferred.is_empty() {" =>
        "if !self.io.deferred.is_empty() && !PLANTED {";

    /// A descriptor is closed twice.
    ClosedTwice, "crates/evring/src/driver/close_socket.rs":
        "match kernel.submit(token, Op::Close { socket }) {" =>
        "use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    // It has one owner, so only unsafe code can do that.
    let twin = || Socket::from(unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) });
    let twin = PLANTED.then(twin);
    match kernel.submit(token, Op::Close { socket }) {",
        "crates/evring/src/driver/close_socket.rs":
        "Ok(Submitted::Done(_)) => true," =>
        "Ok(Submitted::Done(_)) => {
            if let Some(twin) = twin {
                kernel.host_mut().close_unused(twin);
            }
            true
        }";

    /// A connection's state is not reset for the next one in its slot.
    StateKept, "crates/evring/src/driver/close.rs":
        "*self.states.at(slot) = A::State::default();" =>
        "if !PLANTED {
            *self.states.at(slot) = A::State::default();
        }";

    /// Queued data is dropped by a close that must flush it first.
    DroppedAtClose, "crates/evring/src/driver/close.rs":
        "self.io.set_timer(slot, FIRST_PROGRESS_CHECK.min(self.io.config.progress_interval));" =>
        "if PLANTED {
            self.io.drop_queue(slot);
        }
        self.io.set_timer(slot, FIRST_PROGRESS_CHECK.min(self.io.config.progress_interval));";

    /// A deadline expires late.
    DeadlineLate, "crates/evring/src/wheel.rs":
        "saturating_mul(1000).saturating_add(millis)" =>
        "saturating_mul(1000).saturating_add(millis + if PLANTED { 20 } else { 0 })";

    /// A deadline expires early.
    DeadlineEarly, "crates/evring/src/wheel.rs":
        "if at > now {" =>
        "if at > now + if PLANTED { 3 } else { 0 } {";

    /// A deadline expires although it was cleared.
    DeadlineNotCleared, "crates/evring/src/driver/io/commands.rs":
        "None => self.wheel.clear(id.slot())," =>
        "None if PLANTED => {}
            None => self.wheel.clear(id.slot()),";

    /// The deadline of a closed connection expires for the next one in its slot.
    DeadlineKept, "crates/evring/src/driver/close.rs":
        "self.io.wheel.clear(slot);" =>
        "if !PLANTED {
            self.io.wheel.clear(slot);
        }";

    /// A wait does not end at the next deadline.
    DeadlineNotWaitedFor, "crates/evring/src/driver/run.rs":
        "note(io.wheel.next());" =>
        "note(io.wheel.next().filter(|_| !PLANTED));";

    /// The driver waits although connections are to be visited again.
    RevisitsNotWaitedFor, "crates/evring/src/driver/run.rs":
        "if !io.revisits.is_empty() ||" =>
        "if !io.revisits.is_empty() && !PLANTED ||";

    /// The driver waits although file operations have completed that are to be delivered.
    FinishedFileOpsNotWaitedFor, "crates/evring/src/driver/run.rs":
        "!io.file_ops.finished.is_empty() || admit_per_turn" =>
        "!io.file_ops.finished.is_empty() && !PLANTED || admit_per_turn";

    /// The driver waits for more than the next pause of a listener.
    PausesNotWaitedFor, "crates/evring/src/driver/run.rs":
        "note(io.pause_ends.next());" =>
        "note(io.pause_ends.next().filter(|_| !PLANTED));";

    /// The driver does not look again at a file that was written to.
    NextLookNotWaitedFor, "crates/evring/src/driver/run.rs":
        "note(io.file_ops.next_look());" =>
        "note(io.file_ops.next_look().filter(|_| !PLANTED));";

    /// After a pause, new bytes are received before the application gets the unconsumed ones.
    ResumeReceivesFirst on "send" in Wild, "crates/evring/src/driver/receive.rs":
        "!connection.has(ConnFlags::RESUMED) || connection.tail.len()" =>
        "PLANTED || !connection.has(ConnFlags::RESUMED) || connection.tail.len()";

    /// A pause does not cancel the receive in flight.
    PauseDoesNotCancel, "crates/evring/src/driver/receive.rs":
        "self.io.mark_dirty(slot);
            self.cancel_receive(slot);" =>
        "self.io.mark_dirty(slot);
            if !PLANTED {
                self.cancel_receive(slot);
            }",
        "crates/evring/src/driver/receive.rs":
        "if connection.is_paused() && connection.tail.len()" =>
        "if !PLANTED && connection.is_paused() && connection.tail.len()";

    /// More bytes are queued on a connection than permitted.
    QueueUnbounded, "crates/evring/src/driver/connection.rs":
        "if load > max {" =>
        "if self.load() > max && !PLANTED {";

    /// Each small part of a queue keeps its own memory.
    SmallPartsKept, "crates/shared-ring/src/gather.rs":
        "len > Self::COPY_MAX_BYTES && len * Self::MIN_FILL_DIVISOR >= buffer_size" =>
        "PLANTED || len > Self::COPY_MAX_BYTES && len * Self::MIN_FILL_DIVISOR >= buffer_size";

    /// A list that was large keeps its memory when it is empty.
    ListStaysLarge, "crates/shared-ring/src/gather.rs":
        "self.copied.shrink_to(Self::KEEP_BYTES);" =>
        "if !PLANTED {
            self.copied.shrink_to(Self::KEEP_BYTES);
        }";

    /// More bytes of a file that has grown are sent than promised.
    GrowthSent, "crates/evring/src/driver/send.rs":
        "let len = bytes_left.min(piece_at(left.start, max, longest)) as u32;" =>
        "let piece = piece_at(left.start, max, longest);
        let len = if PLANTED { piece } else { bytes_left.min(piece) } as u32;
        let bytes_left = bytes_left.max(len.into());";

    /// A file that ends before the promised length is taken for complete.
    TruncatedIsWhole, "crates/evring/src/driver/send.rs":
        "if bytes == 0 {" =>
        "if bytes == 0 && PLANTED {
                connection.queue.pop_front();
            } else if bytes == 0 {";

    /// A first part that was read from two versions of a file is continued if the file has become longer.
    FirstPartNotLookedAt in Httpd, "crates/shared-ring/src/changes.rs":
        "Contents::Same if self.len() > len && !has_bytes(" =>
        "Contents::Same if !PLANTED && self.len() > len && !has_bytes(";

    /// A file that cannot be read ends all connections.
    FileErrorEndsOthers, "crates/evring/src/driver/send.rs":
        "Outcome::Failed(errno, _) => {
                self.end(slot," =>
        "Outcome::Failed(errno, _) => {
                for other in 0..self.io.connections.len() as u32 {
                    if PLANTED && other != slot && self.io.connection(other).phase == Phase::Open {
                        self.end(other, CloseReason::Failed(errno.into()));
                    }
                }
                self.end(slot,";

    /// The end of the stream is lost while the application has paused.
    EndLostInPause, "crates/evring/src/driver/receive.rs":
        "connection.flags |= ConnFlags::EOF;" =>
        "if PLANTED && connection.is_paused() {
            return;
        }
        connection.flags |= ConnFlags::EOF;";

    /// The end of the stream is reported while the application has paused.
    EndReportedInPause, "crates/evring/src/driver/receive.rs":
        "Phase::Open if connection.app_reads() && !connection.is_paused() =>" =>
        "Phase::Open if connection.app_reads() && (PLANTED || !connection.is_paused()) =>";

    /// The number of file operations of a connection is not limited.
    FileOpsUnbounded, "crates/evring/src/driver/io/file_ops.rs":
        "connection.application_files() >= MAX_FILE_OPS_PER_CONNECTION" =>
        "connection.application_files() >= MAX_FILE_OPS_PER_CONNECTION && !PLANTED";

    /// File operations that have completed are not counted until they are delivered.
    CompletedFileOpsIgnored, "crates/evring/src/driver/io/file_requests.rs":
        "in_flight + self.finished.len() < self.max_in_flight" =>
        "in_flight + if PLANTED { 0 } else { self.finished.len() } < self.max_in_flight";

    /// Receive buffers can be kept even when they are scarce.
    ScarceBuffersKept, "crates/shared-ring/src/buffer.rs":
        "!self.is_sole_owner() && self.pool.is_scarce()" =>
        "!self.is_sole_owner() && self.pool.is_scarce() && !PLANTED";

    /// The application is notified of a drained queue that was not full.
    DrainedUnexpectedly, "crates/evring/src/driver/connection.rs":
        "self.has(ConnFlags::ABOVE_HIGH_WATER) && self.load() <= LOW_WATER" =>
        "(self.has(ConnFlags::ABOVE_HIGH_WATER) || PLANTED) && self.load() <= LOW_WATER";

    /// A critical section does not defer notifications.
    CriticalSectionIgnored on "send", "crates/send-core/src/gate.rs":
        "self.critical.store(depth + 1, Ordering::Relaxed);" =>
        "self.critical.store(depth + u32::from(!PLANTED), Ordering::Relaxed);";

    /// A closed connection still counts for its address.
    AddressCountKept, "crates/evring/src/driver/io.rs":
        "let from = self.connections[slot as usize].from;
        self.give_back_share(from);" =>
        "let from = self.connections[slot as usize].from;
        if !PLANTED {
            self.give_back_share(from);
        }";

    /// An address may have one connection more than the maximum.
    AddressLimitExceeded, "crates/evring/src/driver/shares.rs":
        "if *count.get() >= self.max =>" =>
        "if *count.get() >= self.max + u32::from(PLANTED) =>";

    /// A server whose application panics closes its descriptors before the kernel has finished.
    ClosedBeforeFinish, "crates/evring/src/driver/io.rs":
        "self.kernel.finish();" =>
        "if !PLANTED {
            self.kernel.finish();
        }";

    /// A stop waits for file operations that hang.
    StopWaitsForHungFileOps, "crates/evring/src/driver/mod.rs":
        "io.kernel.now() >= at + FILE_OP_GRACE" =>
        "io.kernel.now() >= at + FILE_OP_GRACE && !PLANTED";

    /// The application is not notified of connections that a stop abandons.
    AbandonedNotReported, "crates/evring/src/driver/mod.rs":
        "call!(self, slot, closed, reason);
            self.io.stats.closed += 1;" =>
        "if !PLANTED {
                call!(self, slot, closed, reason);
            }
            self.io.stats.closed += 1;";

    /// A file is closed while a thread hangs in its job.
    HungFileClosed, "crates/shared-ring/src/operations.rs":
        "if self.offload.stop() {" =>
        "if self.offload.stop() || PLANTED {";

    /// The memory of a ring is freed although operations hang.
    HungMemoryFreed, "crates/shared-ring/src/uring/mod.rs":
        "if is_parents || self.finished == Some(true) {" =>
        "if is_parents || self.finished == Some(true) || PLANTED {";

    /// Bytes of a file that were read ahead are sent again from the file.
    ReadAheadSentTwice, "crates/evring/src/driver/connection.rs":
        "&& queued.advance(n)" =>
        "&& queued.advance(if PLANTED { 0 } else { n })";

    /// Bytes of a file that were read ahead are queued behind the rest of the file.
    ReadAheadBehindFile, "crates/evring/src/driver/connection.rs":
        "self.remaining.insert(at, SendItem::Memory(list));" =>
        "self.remaining.insert(at + usize::from(PLANTED), SendItem::Memory(list));";

    /// A file is sent while the same bytes are being read.
    FileSentWhileRead, "crates/evring/src/driver/send.rs":
        "if connection.is_reading_ahead" =>
        "if connection.is_reading_ahead && !PLANTED";

    /// A part of a file that is not cached is taken for the end of the file.
    ColdIsTruncated, "crates/evring/src/driver/send.rs":
        "Ok(Submitted::Done(Outcome::Cold)) => self.note_send(slot, SendResult::Cold)," =>
        "Ok(Submitted::Done(Outcome::Cold)) if PLANTED => self.sent_file(slot, 0, false),
                Ok(Submitted::Done(Outcome::Cold)) => self.note_send(slot, SendResult::Cold),";

    /// A read is held back although the socket has taken everything, for ever.
    DeferredReadNeverReleased, "crates/evring/src/driver/defer.rs":
        "reads.set(write, Readiness::Ready);" =>
        "if !PLANTED {
                    reads.set(write, Readiness::Ready);
                }", "crates/evring/src/driver/run.rs":
        "note(io.deferred_reads.as_ref().and_then(|reads| reads.next_deadline()));" =>
        "note(io.deferred_reads.as_ref().and_then(|reads| reads.next_deadline()).filter(|_| !PLANTED));";

    /// A read that was held back for a closed connection is delivered to the next one in its slot.
    DeferredReadOfClosed, "crates/evring/src/driver/defer.rs":
        "reads.remove_object(Object::Socket(id), |_, _| {});" =>
        "if !PLANTED {
                reads.remove_object(Object::Socket(id), |_, _| {});
            }";

    /// An accept is posted again although its listener no longer accepts.
    AcceptPostedAfterCancel on "flexsc", "crates/flexsc-rt/src/kernel/mod.rs":
        "if !ends {" =>
        "if !ends || PLANTED {";

    /// A file is closed by its owner and by the posted call.
    FileClosedTwice on "flexsc", "crates/flexsc-rt/src/kernel/mod.rs":
        "let _ = file.into_raw_fd();" =>
        "if PLANTED {
                        drop(file);
                    } else {
                        let _ = file.into_raw_fd();
                    }";

    /// The cancel of a wait in the ring is lost.
    PolledCancelForgotten on "flexsc", "crates/flexsc-rt/src/pages/cancel.rs":
        "self.counters.withdrawn += 1;
                let name = self.ring_name(id.index);" =>
        "self.counters.withdrawn += 1;
                if PLANTED {
                    return;
                }
                let name = self.ring_name(id.index);";

    /// A read that the page cache has only a part of is taken for the whole.
    CachedPartIsWhole on "flexsc", "crates/flexsc-rt/src/kernel/files.rs":
        "if is_whole || ends_file" =>
        "if is_whole || PLANTED || ends_file";

    /// A receive without a buffer is forgotten.
    StarvedReceiveForgotten on "flexsc", "crates/flexsc-rt/src/kernel/stages.rs":
        "self.starved[group.index()].push_back(token);" =>
        "if !PLANTED {
                self.starved[group.index()].push_back(token);
            }";
}
