//! An instance of a handler, and its invocations (section 5.4).

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Instant;

use shared_ring::author::Process;
use wasmtime::{Global, Store, Trap, TypedFunc, Val};

use super::budget::Budget;
use super::clock::{Clock, OwnTime};
use super::dropped::Dropped;
use super::host::{COUNTERS, Host};
use super::native::NativeEntry;
use super::{Area, Bound, HandlerMemory, Loops, NativeCalls, Policy};
use crate::ilp::{Ilp, PipeId, Register};
use crate::model::{Governor, Strategy};

/// The result of a handler's entry if it has handled the message (section 5.4.1).
pub const HANDLED: i32 = 1;
/// The result if the message is useless, for instance as its checksum is wrong (figure 3-1).
pub const DISCARDED: i32 = 2;
/// The result if the application has to handle the message.
pub const PASSED: i32 = 0;

/// The outcome of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The handler has handled it; [`Handler::sends`] are to be sent.
    Handled,
    /// The handler has discarded it.
    Discarded,
    /// The application handles it.
    Passed(Pass),
}

/// The reason why a message is passed to the application.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pass {
    /// The handler has chosen so.
    ByHandler,
    /// The handler has started an upcall with the message (section 2.1).
    Upcall,
    /// A voluntary abort (section 3.3.1).
    Voluntary,
    /// An involuntary abort (section 3.3.2).
    Involuntary(Abort),
    /// The handler was disabled, after too many involuntary aborts.
    Disabled,
    /// The application has switched the handler off, or this process is a child of the one that has instantiated it.
    Off,
    /// The tenant has too few operations left: [`Policy::operations_per_second`] (section 2.4).
    OverBudget,
    /// The message is longer than the room for copies.
    TooLong,
    /// There is no room for a copy: the kernel receives into the whole message area.
    Elsewhere,
    /// The governor prefers this strategy, as the handler aborts too often.
    Governed(Strategy),
}

/// The reason of an involuntary abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Abort {
    /// The handler used up the operations, or the time, of one invocation.
    TooManyOperations,
    /// It accessed memory outside of its own, or wrote to the message area.
    Memory,
    /// Its stack overflowed.
    Stack,
    /// Any other trap, such as a division by zero.
    Trap,
    /// Its reply [was rejected](Handler::reject).
    Reply,
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Abort::TooManyOperations => "it used up the operations of an invocation",
            Abort::Memory => "it accessed memory that is not its own",
            Abort::Stack => "its stack overflowed",
            Abort::Trap => "it trapped, for instance by a division by zero or a panic",
            Abort::Reply => "it sent what the protocol does not permit",
        })
    }
}

/// Numbers of invocations and their outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerCounters {
    /// Messages that the handler was invoked for.
    pub invocations: u64,
    /// Messages that it has handled.
    pub handled: u64,
    /// Messages that it has discarded.
    pub discarded: u64,
    /// Voluntary aborts.
    pub voluntary_aborts: u64,
    /// Involuntary aborts.
    pub involuntary_aborts: u64,
    /// Messages for which it was not invoked, as it was disabled, off, over its budget, or as its governor
    /// preferred another strategy.
    pub skipped: u64,
    /// Host calls.
    pub calls: u64,
    /// Operations that were charged to the tenant.
    pub operations: u64,
}

/// The parameters of the entry.
type Parameters = (i32, i32, i64, i32);

/// An instance of a module.
pub(crate) struct Instance {
    store: Store<Host>,
    entry: TypedFunc<Parameters, i32>,
    /// The mutable globals, with their values before the last call.
    globals: Box<[(Global, Val)]>,
}

impl Instance {
    pub(crate) fn new(
        store: Store<Host>,
        entry: TypedFunc<Parameters, i32>,
        globals: Vec<Global>,
    ) -> Self {
        let globals = globals.into_iter().map(|global| (global, Val::I32(0))).collect();
        Instance { store, entry, globals }
    }

    /// Calls the entry. If frames are lost with an abort, the globals are as before the call: compilers keep the
    /// pointer to the stack in one.
    #[inline]
    fn call(&mut self, parameters: Parameters) -> wasmtime::Result<i32> {
        for (global, value) in &mut self.globals {
            *value = global.get(&mut self.store);
        }
        let result = self.entry.call(&mut self.store, parameters);
        if result.is_err() {
            self.restore();
        }
        result
    }

    #[cold]
    fn restore(&mut self) {
        for (global, value) in &self.globals {
            // It has the type of the value, so this cannot fail.
            let _ = global.set(&mut self.store, *value);
        }
    }
}

/// The code that runs when a message arrives.
pub(crate) enum HandlerCode {
    /// An instance of a module, in the sandbox.
    Module(Instance),
    /// An unsafe handler.
    Native { host: Box<Host>, entry: Box<NativeEntry> },
}

impl HandlerCode {
    #[inline]
    fn host(&self) -> &Host {
        match self {
            HandlerCode::Module(instance) => instance.store.data(),
            HandlerCode::Native { host, .. } => host,
        }
    }

    #[inline]
    fn host_mut(&mut self) -> &mut Host {
        match self {
            HandlerCode::Module(instance) => instance.store.data_mut(),
            HandlerCode::Native { host, .. } => host,
        }
    }
}

/// An instance of a handler. It belongs to one thread at a time, and to the process that has instantiated it: a child of fork(2)
/// would write to the memory of its parent, so its copy passes all messages on ([`Pass::Off`]).
///
/// Its pages are mapped when it is instantiated, so that no message waits for them. To drop one of a
/// module costs little while its sandboxer, or an [`Ash`](super::Ash) of that, exists, so that a thread that serves messages
/// can do so: the next [instantiation](super::Ash::instantiate) unmaps its memory, or the end of the sandboxer and all that it
/// has loaded. Those beyond 32 that wait for this, native handlers, and those with a [`SharedTable`](super::SharedTable) are
/// unmapped at once: a mapping keeps the memory of the table.
pub struct Handler {
    code: ManuallyDrop<HandlerCode>,
    memory: Arc<HandlerMemory>,
    /// The process that shares the memory with nobody but the kernel.
    process: Process,
    policy: Arc<Policy>,
    bound: Bound,
    budget: Arc<Budget>,
    /// Operations that have to be left for an invocation.
    min_operations: u64,
    aborts: u32,
    is_on: bool,
    counters: HandlerCounters,
    governor: Option<Governor>,
    /// The areas that the kernel has.
    taken: Weak<()>,
    /// The part of the message area to which messages are copied meanwhile.
    copy_area: Range<usize>,
    /// Interrupts the handler, if it is bounded by epochs.
    clock: Option<Arc<Clock>>,
    /// Takes the instance at the end, unless the sandboxer and all that it has loaded are gone.
    dropped: Weak<Dropped>,
}

impl Drop for Handler {
    fn drop(&mut self) {
        // SAFETY: nothing uses the code after this.
        let code = unsafe { ManuallyDrop::take(&mut self.code) };
        if let HandlerCode::Module(mut instance) = code {
            // After a panic it may have locks.
            instance.store.data_mut().end_shared(false);
            // Else the table would exist as long as the sandboxer.
            if self.memory.table().is_none()
                && let Some(dropped) = self.dropped.upgrade()
            {
                dropped.keep(instance);
            }
        }
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler")
            .field("bound", &self.bound)
            .field("is_on", &self.is_on)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Handler {
    pub(crate) fn new(
        mut code: HandlerCode,
        memory: Arc<HandlerMemory>,
        policy: Arc<Policy>,
        budget: Arc<Budget>,
        (bound, is_by_bytes): (Bound, bool),
        (clock, dropped): (Option<Arc<Clock>>, Weak<Dropped>),
    ) -> Self {
        // With less it could be aborted, or use more than there is.
        let of_second = |operations: u64| operations.min(budget.per_second()).max(1);
        let all = of_second(policy.max_operations);
        let min_operations = match (bound, &clock) {
            (Bound::Acyclic(operations), _) if is_by_bytes => operations.max(all),
            (Bound::Acyclic(operations), _) => operations,
            (Bound::Cyclic, None) => all,
            // A nanosecond is an operation. The clock does not interrupt host calls, which may use those of an invocation.
            (Bound::Cyclic, Some(clock)) => {
                of_second(policy.max_operations.saturating_add(clock.max_ns()))
            }
        };
        code.host_mut().set_memory(Arc::clone(&memory));
        let copy_area = memory.message_area();
        Handler {
            code: ManuallyDrop::new(code),
            memory,
            process: Process::current(),
            policy,
            bound,
            budget,
            min_operations,
            aborts: 0,
            is_on: true,
            counters: HandlerCounters::default(),
            governor: None,
            taken: Weak::new(),
            copy_area,
            clock,
            dropped,
        }
    }

    /// Returns the memory, whose message area receives messages.
    pub fn memory(&self) -> &Arc<HandlerMemory> {
        &self.memory
    }

    /// Takes the reply area and the first bytes of the message area, for the kernel; `None` while one of them exists that was
    /// taken before. Until both are dropped, messages are [copied](Self::handle_copy) to the rest of the message area.
    pub fn take_areas(&mut self, message_bytes: usize) -> Option<(Area, Area)> {
        if self.areas_are_taken() {
            return None;
        }
        let taken = Arc::new(());
        self.taken = Arc::downgrade(&taken);
        let (replies, mut messages) = (self.memory.reply_area(), self.memory.message_area());
        self.copy_area = messages.clone();
        messages.end -= messages.len().saturating_sub(message_bytes);
        self.copy_area.start = messages.end;
        let area = |range| Area::new(&self.memory, range, &taken);
        Some((area(replies), area(messages)))
    }

    fn areas_are_taken(&self) -> bool {
        let is_taken = self.taken.strong_count() > 0;
        if !is_taken {
            // Another thread may have dropped them, after the last access.
            fence(Ordering::Acquire);
        }
        is_taken
    }

    /// Sets the reply slots that the handler may use: bit `n` is slot `n`. At first these are all.
    pub fn set_free_slots(&mut self, slots: u64) {
        self.code.host_mut().set_free_slots(slots);
    }

    /// Sets how many messages the handler may keep where they have landed, up to [`MAX_KEPT`](super::MAX_KEPT); at first none.
    ///
    /// # Safety
    /// The caller keeps the buffer of each message that the handler [keeps](Self::keeps): nothing writes to it until the handler
    /// has [given it back](Self::given_back), an abort has disabled the handler, or it was [taken back](Self::take_back_kept),
    /// nor afterwards while what the handler has [sent](Self::sent) before is used.
    pub unsafe fn set_max_kept(&mut self, slots: usize) {
        self.code.host_mut().kept.set_max(slots);
    }

    /// Returns the slot of the last message, if the handler has handled it and keeps it.
    #[inline]
    pub fn keeps(&self) -> Option<u32> {
        self.code.host().kept.kept_now()
    }

    /// Returns the slots that the handler gave back with the last message, which it has handled.
    #[inline]
    pub fn given_back(&self) -> &[u32] {
        self.code.host().kept.given_back()
    }

    /// Takes from the handler all messages that it keeps, as aborts that disable it do.
    pub fn take_back_kept(&mut self) {
        self.code.host_mut().kept.clear();
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Lets the handler apply a pipe list, export these registers and the keys of its keystreams before it, and import
    /// the registers after it. Returns the number by which the handler names the list.
    pub fn add_pipes(&mut self, ilp: Ilp, registers: Vec<(PipeId, Register)>) -> u32 {
        self.code.host_mut().add_pipes(ilp, registers)
    }

    /// Switches the handler off or on. While it is off, all messages are passed to the application.
    pub fn set_on(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// Returns whether the handler was disabled by involuntary aborts.
    pub fn is_disabled(&self) -> bool {
        self.aborts >= self.policy.max_aborts
    }

    /// Enables the handler again, after involuntary aborts have disabled it.
    pub fn enable(&mut self) {
        self.aborts = 0;
    }

    /// Lets a governor choose the strategy for each message. While it prefers another one than the handler, messages
    /// are [passed on](Pass::Governed). `None` ends that.
    pub fn set_governor(&mut self, governor: Option<Governor>) {
        self.governor = governor;
    }

    /// Returns the governor, to change the state of the application's process.
    pub fn governor_mut(&mut self) -> Option<&mut Governor> {
        self.governor.as_mut()
    }

    /// Returns the counters.
    pub fn counters(&self) -> HandlerCounters {
        HandlerCounters { calls: self.code.host().calls, ..self.counters }
    }

    /// Returns the counters that the handler itself counts.
    pub fn own_counters(&self) -> [u64; COUNTERS] {
        self.code.host().counters.each_ref().map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Returns the counters that the handler itself counts, for other threads, which only load them.
    pub fn share_own_counters(&self) -> Arc<[AtomicU64; COUNTERS]> {
        Arc::clone(&self.code.host().counters)
    }

    /// Copies a message to the message area, and handles it. For messages that were not received
    /// into the area.
    pub fn handle_copy(&mut self, message: &[u8], connection: u64, now: Instant) -> Outcome {
        let is_taken = self.areas_are_taken();
        let area = if is_taken { self.copy_area.clone() } else { self.memory.message_area() };
        if message.len() > area.len() || area.is_empty() {
            self.code.host_mut().discard();
            let is_elsewhere = area.is_empty();
            return Outcome::Passed(if is_elsewhere { Pass::Elsewhere } else { Pass::TooLong });
        }
        let left = match self.admit(now) {
            Ok(left) => left,
            Err(reason) => return Outcome::Passed(reason),
        };
        let to = self.memory.host_pointer(area.start);
        // SAFETY: the message fits into the area, which only this thread accesses: the kernel has another part.
        unsafe { message.as_ptr().copy_to_nonoverlapping(to, message.len()) };
        self.invoke(area.start..area.start + message.len(), connection, None, now, left)
    }

    /// Handles a message that lies in the message area, in the mapping of the host, and in a slot of the receive ring. Sends
    /// and events of a handler that does not handle the message are dropped.
    ///
    /// # Panics
    /// If the message is not in the message area.
    pub fn handle(&mut self, message: &[u8], connection: u64, slot: u32, now: Instant) -> Outcome {
        let area = self.memory.message_area();
        let first = self.memory.host_pointer(area.start).addr();
        let offset = message.as_ptr().addr().wrapping_sub(first);
        assert!(
            offset <= area.len() && message.len() <= area.len() - offset,
            "a message outside of the message area"
        );
        let start = area.start + offset;
        let place = start..start + message.len();
        match self.admit(now) {
            Ok(left) => self.invoke(place, connection, Some(slot), now, left),
            Err(reason) => Outcome::Passed(reason),
        }
    }

    /// Returns how many operations are left for an invocation, or why there is none.
    fn admit(&mut self, now: Instant) -> Result<u64, Pass> {
        let left = self.budget.left(now);
        let Some(reason) = self.reason_to_skip(left) else { return Ok(left) };
        self.counters.skipped += 1;
        self.code.host_mut().discard();
        Err(reason)
    }

    /// Calls the handler with a message in the message area.
    fn invoke(
        &mut self,
        message: Range<usize>,
        connection: u64,
        landed_in: Option<u32>,
        now: Instant,
        left: u64,
    ) -> Outcome {
        self.counters.invocations += 1;
        let (offset, len) = (message.start as i32, message.len() as i32);
        let slot = landed_in.unwrap_or(0);
        let fuel = self.policy.max_operations.min(left);
        let of_path = match self.bound {
            Bound::Acyclic(operations) => operations,
            Bound::Cyclic => 0,
        };
        let operations = fuel.saturating_sub(of_path);
        self.code.host_mut().begin(message.clone(), landed_in, operations);
        let clock = self.arm(fuel);
        let result = match &mut *self.code {
            HandlerCode::Module(instance) => {
                instance.call((offset, len, connection as i64, slot as i32))
            }
            HandlerCode::Native { host, entry } => {
                Ok(entry(&mut NativeCalls { host, connection, slot }))
            }
        };
        let used = self.used(fuel, clock, &result);
        self.counters.operations += used;
        self.budget.charge(now, used);
        let outcome = self.outcome(result);
        let host = self.code.host_mut();
        host.end_shared(outcome == Outcome::Handled);
        host.kept.end(outcome == Outcome::Handled);
        if let Some(governor) = &mut self.governor {
            // A handler that starts an upcall has done its work.
            governor.record(matches!(&outcome, Outcome::Passed(reason) if *reason != Pass::Upcall));
        }
        match &outcome {
            Outcome::Handled => self.counters.handled += 1,
            Outcome::Discarded => self.counters.discarded += 1,
            Outcome::Passed(reason) => {
                self.code.host_mut().discard();
                match reason {
                    Pass::Voluntary => self.counters.voluntary_aborts += 1,
                    Pass::Involuntary(_) => {
                        self.counters.involuntary_aborts += 1;
                        self.aborts += 1;
                        if self.is_disabled() {
                            self.take_back_kept();
                        }
                    }
                    _ => {}
                }
            }
        }
        outcome
    }

    /// Turns the last outcome from [`Outcome::Handled`] into an involuntary abort, as what the handler has sent breaks the
    /// protocol. Its sends and events are dropped, and it keeps and gives back nothing; what it has stored in a shared table
    /// stays. If it [is disabled](Self::is_disabled) then, the caller drops the buffers of all messages that it has kept.
    /// Returns the outcome. Call it at most once for an outcome, and before the next message.
    pub fn reject(&mut self) -> Outcome {
        self.counters.handled = self.counters.handled.saturating_sub(1);
        self.counters.involuntary_aborts += 1;
        self.aborts += 1;
        if let Some(governor) = &mut self.governor {
            governor.correct();
        }
        let host = self.code.host_mut();
        host.kept.end(false);
        host.discard();
        if self.is_disabled() {
            self.take_back_kept();
        }
        Outcome::Passed(Pass::Involuntary(Abort::Reply))
    }

    /// Returns the ranges of the memory that the handler has sent in the last invocation, in order.
    pub fn sends(&self) -> &[Range<usize>] {
        &self.code.host().sends
    }

    /// Returns the bytes that the handler has sent in the last invocation, in order. `message` is the message of that
    /// invocation, of which they may be parts; those that it does not have are empty.
    pub fn sent<'a>(&'a self, message: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + Clone {
        (0..self.sends().len()).map(move |n| self.nth_sent(n, message))
    }

    /// Returns the bytes of one of the [`sends`](Self::sends), as [`sent`](Self::sent) does.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn nth_sent<'a>(&'a self, n: usize, message: &'a [u8]) -> &'a [u8] {
        let (range, place) = (&self.sends()[n], self.code.host().message());
        // The kernel may write to its place again, unless the caller still has the buffer.
        if range.start >= place.start && range.end <= place.end {
            let part = range.start - place.start..range.end - place.start;
            return message.get(part).unwrap_or_default();
        }
        // SAFETY: the range is in the memory: in the handler's own, in a reply slot, or in a message that it keeps. No
        // handler runs, as that needs `&mut self`; the kernel only reads replies, and the caller of `set_max_kept` has
        // promised that nothing writes to kept messages.
        unsafe { std::slice::from_raw_parts(self.memory.host_pointer(range.start), range.len()) }
    }

    /// Returns the events that the handler has posted in the last invocation: kind and value.
    pub fn events(&self) -> &[(u64, u64)] {
        &self.code.host().events
    }

    fn reason_to_skip(&mut self, left: u64) -> Option<Pass> {
        if !self.is_on || !self.process.is_current() {
            Some(Pass::Off)
        } else if self.is_disabled() {
            Some(Pass::Disabled)
        } else if left < self.min_operations {
            Some(Pass::OverBudget)
        } else {
            let strategy = self.governor.as_mut()?.next_strategy();
            (strategy != Strategy::Ash).then_some(Pass::Governed(strategy))
        }
    }

    /// Returns the engine's state of a module.
    fn module(&mut self) -> Option<&mut Store<Host>> {
        match &mut *self.code {
            HandlerCode::Module(instance) => Some(&mut instance.store),
            HandlerCode::Native { .. } => None,
        }
    }

    /// Bounds the next invocation. Returns its start, if it is charged by time.
    fn arm(&mut self, fuel: u64) -> Option<Instant> {
        match (self.bound, self.policy.loops) {
            (Bound::Acyclic(_), _) => None,
            (Bound::Cyclic, Loops::Fuel) => {
                // The engine counts fuel, so this cannot fail.
                self.module().map(|store| store.set_fuel(fuel));
                None
            }
            (Bound::Cyclic, Loops::Epoch(_)) => {
                if let Some(store) = self.module() {
                    store.data_mut().own_time = OwnTime::default();
                    store.set_epoch_deadline(1);
                }
                Some(Instant::now())
            }
        }
    }

    /// Returns the operations of the last invocation.
    fn used(&mut self, fuel: u64, start: Option<Instant>, result: &wasmtime::Result<i32>) -> u64 {
        let by_calls = fuel - self.code.host().operations();
        match (self.bound, start) {
            // With the longest path, which calls could not use.
            (Bound::Acyclic(_), _) => by_calls,
            // One operation for each nanosecond.
            (Bound::Cyclic, Some(start)) => {
                let tick = self.clock.as_ref().map(|clock| clock.tick()).unwrap_or_default();
                let time = self.code.host().own_time.of(start.elapsed(), tick);
                (time.as_nanos() as u64).max(by_calls)
            }
            (Bound::Cyclic, None) if self.has_lost_fuel(result) => fuel,
            (Bound::Cyclic, None) => {
                let left = self.module().and_then(|store| store.get_fuel().ok()).unwrap_or(0);
                (fuel - left.min(fuel)).max(by_calls)
            }
        }
    }

    /// Returns whether a trap has lost what the engine counted. Its code counts fuel in a register, and stores it only at
    /// calls, returns and `unreachable`, and where the fuel ends. The stack overflows at calls.
    fn has_lost_fuel(&self, result: &wasmtime::Result<i32>) -> bool {
        let Err(error) = result else { return false };
        let is_stored = matches!(
            error.downcast_ref(),
            Some(Trap::OutOfFuel | Trap::UnreachableCodeReached | Trap::StackOverflow)
        );
        !is_stored && !self.code.host().aborted
    }

    fn outcome(&self, result: wasmtime::Result<i32>) -> Outcome {
        match result {
            Ok(HANDLED) => Outcome::Handled,
            Ok(DISCARDED) => Outcome::Discarded,
            Ok(PASSED) if self.code.host().starts_upcall => Outcome::Passed(Pass::Upcall),
            Ok(PASSED) => Outcome::Passed(Pass::ByHandler),
            Ok(_) => Outcome::Passed(Pass::Voluntary),
            Err(_) if self.code.host().aborted => Outcome::Passed(Pass::Voluntary),
            Err(error) => Outcome::Passed(Pass::Involuntary(match error.downcast_ref() {
                Some(Trap::OutOfFuel | Trap::Interrupt) => Abort::TooManyOperations,
                Some(Trap::MemoryOutOfBounds) => Abort::Memory,
                Some(Trap::StackOverflow) => Abort::Stack,
                _ => Abort::Trap,
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::sandbox::{Policy, Sandboxer};

    #[test]
    fn exports_named_as_mutable_globals_were_read_for_each_message() {
        let exports = (0..1_000).fold(String::new(), |mut exports, n| {
            let _ = write!(
                exports,
                r#"(export "{}" (global 0))"#,
                super::super::rewrite::global_name(n)
            );
            exports
        });
        let text = format!(
            r#"(module (memory (export "memory") 1 1) (global i32 (i32.const 7)) {exports}
                (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) (i32.const 1)))"#
        );
        let sandboxer = Sandboxer::new(Policy::default()).unwrap();
        let handler = sandboxer.load(&wat::parse_str(text).unwrap()).unwrap().instantiate(1);
        let handler = handler.unwrap();
        let HandlerCode::Module(instance) = &*handler.code else { panic!("it is a module") };
        assert!(instance.globals.is_empty(), "{} globals", instance.globals.len());
    }
}
