//! The host's side of the calls, and what one invocation leaves behind.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

use wasmtime::{Caller, Linker, Trap};

use super::Policy;
use super::call::{self, Call, MODULE, cost_of_bytes};
use super::clock::OwnTime;
use super::kept::Kept;
use super::memory::HandlerMemory;
use super::result::{EXHAUSTED, FAULT, INVALID, OK};
use super::shared_data::SharedData;
use crate::ilp::{Ilp, PipeId, Register, State};

/// Number of counters of a handler.
pub const COUNTERS: usize = 16;

/// Bytes at the end of a reply slot that are not used, so that slots are buffers of a receive ring's form.
pub const SLOT_GAP: usize = 64;

/// A pipe list that a handler may apply, and the registers that it may export and import.
#[derive(Debug)]
struct Pipes {
    ilp: Ilp,
    state: State,
    registers: Vec<(PipeId, Register)>,
}

/// The parts of a host call that are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charging {
    /// The bytes that it touches; the longest path has the calls themselves.
    Bytes,
    /// The call and its bytes.
    Calls,
    /// The call and its bytes, which are taken from the fuel, too.
    Fuel,
}

/// The state that host calls read and write.
#[derive(Debug)]
pub(crate) struct Host {
    memory: Option<Arc<HandlerMemory>>,
    tenant: u64,
    start: Instant,
    charging: Charging,
    /// Operations that host calls may still use in this invocation.
    operations: u64,
    message: Range<usize>,
    max_sends: usize,
    max_events: usize,
    slot_bytes: usize,
    /// The reply slots that hold no reply in flight, as a set of bits.
    free_slots: u64,
    /// Those of them that the current invocation has not taken.
    left_slots: u64,
    pub(crate) sends: Vec<Range<usize>>,
    pub(crate) kept: Kept,
    shared: SharedData,
    pub(crate) events: Vec<(u64, u64)>,
    pub(crate) counters: Arc<[AtomicU64; COUNTERS]>,
    pub(crate) calls: u64,
    /// The handler has ended itself by `abort`.
    pub(crate) aborted: bool,
    /// It has started an upcall with the message.
    pub(crate) starts_upcall: bool,
    /// Of the invocation, if a clock bounds it.
    pub(crate) own_time: OwnTime,
    pipes: Vec<Pipes>,
}

impl Host {
    pub(crate) fn new(tenant: u64, charging: Charging, policy: &Policy) -> Self {
        let Policy { max_sends, max_events, reply_slot_bytes, .. } = *policy;
        let all_slots = u64::MAX >> (64 - policy.reply_slots);
        Host {
            memory: None,
            tenant,
            start: Instant::now(),
            charging,
            operations: 0,
            message: 0..0,
            max_sends,
            max_events,
            slot_bytes: reply_slot_bytes,
            free_slots: all_slots,
            left_slots: 0,
            sends: Vec::with_capacity(max_sends),
            kept: Kept::default(),
            shared: SharedData::new(),
            events: Vec::with_capacity(max_events),
            counters: Arc::default(),
            calls: 0,
            aborted: false,
            starts_upcall: false,
            own_time: OwnTime::default(),
            pipes: Vec::new(),
        }
    }

    pub(crate) fn set_memory(&mut self, memory: Arc<HandlerMemory>) {
        self.memory = Some(memory);
    }

    pub(crate) fn add_pipes(&mut self, ilp: Ilp, registers: Vec<(PipeId, Register)>) -> u32 {
        self.pipes.push(Pipes { state: ilp.state(), ilp, registers });
        self.pipes.len() as u32 - 1
    }

    /// Starts an invocation.
    pub(crate) fn begin(&mut self, message: Range<usize>, slot: Option<u32>, operations: u64) {
        // The last one has locks if it ended with a panic.
        self.end_shared(false);
        self.kept.begin(slot.map(|slot| (slot, message.clone())));
        self.message = message;
        self.operations = operations;
        self.aborted = false;
        self.starts_upcall = false;
        self.left_slots = self.free_slots;
        for pipes in &mut self.pipes {
            pipes.state.reset();
        }
        self.sends.clear();
        self.events.clear();
    }

    /// Begins anew without an invocation: there are no effects.
    pub(crate) fn discard(&mut self) {
        self.kept.begin(None);
        self.sends.clear();
        self.events.clear();
    }

    /// Sets the reply slots that hold no reply in flight.
    pub(crate) fn set_free_slots(&mut self, slots: u64) {
        self.free_slots = slots;
    }

    /// Returns the place of the message of the last invocation.
    #[inline]
    pub(crate) fn message(&self) -> &Range<usize> {
        &self.message
    }

    /// Returns the operations that host calls have left.
    pub(crate) fn operations(&self) -> u64 {
        self.operations
    }

    /// Returns a range that the handler may read: of its own memory, or of the message or one that it keeps.
    fn readable(&self, offset: i32, len: i32) -> Option<(&HandlerMemory, Range<usize>)> {
        let memory = self.memory.as_deref()?;
        let range = memory.range(offset as u32, len as u32)?;
        let is_own =
            range.end <= memory.message_area().start || range.start >= memory.reply_area().start;
        let is_message = range.start >= self.message.start && range.end <= self.message.end;
        let is_readable = is_own || is_message || self.kept.covers(&range);
        is_readable.then_some((memory, range))
    }

    /// Returns a range that the handler may write: of its own memory, or of reply slots that hold no reply in flight.
    fn writable(&self, offset: i32, len: i32) -> Option<(&HandlerMemory, Range<usize>)> {
        let memory = self.memory.as_deref()?;
        let range = memory.range(offset as u32, len as u32)?;
        let is_own = range.end <= memory.message_area().start;
        (is_own || self.is_in_free_slots(memory, &range)).then_some((memory, range))
    }

    fn is_in_free_slots(&self, memory: &HandlerMemory, range: &Range<usize>) -> bool {
        let area = memory.reply_area().start;
        let slot = |offset: usize| (offset - area) / self.slot_bytes;
        range.start >= area
            && (range.is_empty()
                || (slot(range.start)..=slot(range.end - 1)).all(|n| self.free_slots >> n & 1 != 0))
    }

    /// Returns the message, and the memory that the handler may write to; for native code.
    #[inline]
    pub(crate) fn native_memory(&mut self) -> (&[u8], &mut [u8]) {
        let Some(memory) = self.memory.as_deref() else { return (&[], &mut []) };
        let (start, own) = (memory.host_pointer(0), memory.message_area().start);
        // SAFETY: the message is in the message area, which begins where the handler's own memory ends. Only
        // this thread accesses them: the kernel has finished with the message, and the caller borrows the
        // host for as long.
        unsafe {
            let message = start.add(self.message.start).cast_const();
            let message = std::slice::from_raw_parts(message, self.message.len());
            (message, std::slice::from_raw_parts_mut(start, own))
        }
    }

    /// Charges a call, and operations beyond its own cost. Returns whether there were enough operations left.
    #[inline]
    pub(crate) fn charge(&mut self, call: &Call, more: u64) -> bool {
        debug_assert!(more == 0 || call.is_by_bytes, "{} has no bytes", call.name);
        let cost = match self.charging {
            Charging::Bytes => more,
            Charging::Calls | Charging::Fuel => call.cost.saturating_add(more),
        };
        self.calls += 1;
        let left = self.operations.checked_sub(cost);
        self.operations = left.unwrap_or(0);
        left.is_some()
    }

    #[inline]
    pub(crate) fn send(&mut self, offset: i32, len: i32) -> i32 {
        let Some((_, range)) = self.readable(offset, len) else { return FAULT };
        if self.sends.len() == self.max_sends {
            return EXHAUSTED;
        }
        self.sends.push(range);
        OK
    }

    fn reply(&mut self, len: i32) -> i32 {
        let Some(memory) = &self.memory else { return FAULT };
        if len as u32 as usize > self.slot_bytes - SLOT_GAP || self.left_slots == 0 {
            return EXHAUSTED;
        }
        let slot = self.left_slots.trailing_zeros() as usize;
        self.left_slots &= self.left_slots - 1;
        (memory.reply_area().start + slot * self.slot_bytes) as i32
    }

    #[inline]
    pub(crate) fn copy(&mut self, to: i32, from: i32, len: i32) -> i32 {
        let Some((memory, to)) = self.writable(to, len) else { return FAULT };
        if let Some((_, from)) = self.readable(from, len) {
            let (from, len) = (memory.host_pointer(from.start), from.len());
            // SAFETY: both ranges are in the memory, and only this thread accesses them: the handler
            // waits for this call, and the kernel has finished with the message.
            unsafe { from.copy_to(memory.host_pointer(to.start), len) };
            return OK;
        }
        let Some(from) = memory.in_table(from as u32, len as u32) else { return FAULT };
        let Some(table) = memory.table() else { return FAULT };
        // SAFETY: the range is in the memory, and only this thread accesses it: the handler waits for this call.
        let to = unsafe { std::slice::from_raw_parts_mut(memory.host_pointer(to.start), to.len()) };
        // Words that the handler reads before the call, such as a version, are older than the bytes; words that it
        // reads after the call are newer.
        fence(Ordering::Acquire);
        copy_of_words(table.words(), from.start, to);
        fence(Ordering::Acquire);
        OK
    }

    fn table(&self) -> i32 {
        let offset = self.memory.as_ref().and_then(|memory| memory.table_offset());
        offset.map_or(FAULT, |offset| offset as i32)
    }

    /// Takes the lock of a section. Returns the offset of the section.
    fn lock(&mut self, section: i32) -> i32 {
        let Some(memory) = self.memory.as_deref() else { return FAULT };
        let (Some(table), Some(start)) = (memory.table(), memory.table_offset()) else {
            return FAULT;
        };
        match self.shared.lock(table, section as u32 as usize) {
            Ok(section) => (start + section.start) as i32,
            Err(status) => status,
        }
    }

    /// Notes that bytes of the handler's own memory are to be written to a section that it has locked.
    fn store(&mut self, to: i32, from: i32, len: i32) -> i32 {
        let Some((memory, from)) = self.readable(from, len) else { return FAULT };
        let Some(to) = memory.in_table(to as u32, len as u32) else { return FAULT };
        let Some(table) = self.memory.as_deref().and_then(HandlerMemory::table) else {
            return FAULT;
        };
        self.shared.store(table, to, from)
    }

    /// Writes what the handler has stored, if it has handled the message, and releases its locks.
    #[inline]
    pub(crate) fn end_shared(&mut self, is_handled: bool) {
        if self.shared.has_locks() {
            self.release_locks(is_handled);
        }
    }

    #[inline(never)]
    fn release_locks(&mut self, is_handled: bool) {
        let Some(memory) = self.memory.as_deref() else { return };
        let Some(table) = memory.table() else { return };
        if is_handled {
            self.shared.commit(table, |offset| memory.host_pointer(offset).cast_const());
        }
        self.shared.release(table);
    }

    fn fill(&mut self, to: i32, value: i32, len: i32) -> i32 {
        let Some((memory, to)) = self.writable(to, len) else { return FAULT };
        // SAFETY: as in `copy`.
        unsafe { memory.host_pointer(to.start).write_bytes(value as u8, to.len()) };
        OK
    }

    fn apply(&mut self, pipes: i32, from: i32, to: Option<i32>, len: i32) -> i32 {
        let Some((memory, source)) = self.readable(from, len) else { return FAULT };
        let (source, len) = (memory.host_pointer(source.start).cast_const(), source.len());
        let to = match to.map(|to| self.writable(to, len as i32)) {
            Some(None) => return FAULT,
            Some(Some((memory, to))) => Some(memory.host_pointer(to.start)),
            None => None,
        };
        let Some(pipes) = self.pipes.get_mut(pipes as usize) else { return INVALID };
        // SAFETY: the range is in the memory, and nothing changes it: see `copy`.
        let message = unsafe { std::slice::from_raw_parts(source, len) };
        let result = match to {
            None => pipes.ilp.read(&mut pipes.state, message),
            Some(to) if to.addr().abs_diff(source.addr()) < len => return FAULT,
            Some(to) => {
                // SAFETY: as above, and it does not overlap the message.
                let to = unsafe { std::slice::from_raw_parts_mut(to, len) };
                pipes.ilp.write(&mut pipes.state, message, to)
            }
        };
        if result.is_ok() { OK } else { INVALID }
    }

    /// Returns the operations for applying a list to so many bytes.
    fn cost_of_pipes(&self, pipes: i32, len: i32) -> u64 {
        let pipes = self.pipes.get(pipes as usize);
        pipes.map_or(0, |pipes| pipes.ilp.operations(len as u32))
    }

    fn export(&mut self, pipes: i32, register: i32, value: i64) -> i32 {
        let Some(pipes) = self.pipes.get_mut(pipes as usize) else { return INVALID };
        let Some(&(pipe, register)) = pipes.registers.get(register as usize) else {
            return INVALID;
        };
        if pipes.state.export(pipe, register, value as u64).is_ok() { OK } else { INVALID }
    }

    /// Gives the keystream of a list a key of 32 bytes, followed by a nonce of 12.
    fn key(&mut self, pipes: i32, keystream: i32, key: i32, first_block: i32) -> i32 {
        let Some((memory, range)) = self.readable(key, 44) else { return FAULT };
        let from = memory.host_pointer(range.start).cast_const();
        // SAFETY: 44 bytes of the memory, which nothing changes: see `copy`.
        let (key, nonce) =
            unsafe { (from.cast::<[u8; 32]>().read(), from.add(32).cast::<[u8; 12]>().read()) };
        let Some(pipes) = self.pipes.get_mut(pipes as usize) else { return INVALID };
        let is_set = pipes.state.set_key(keystream as usize, (&key, &nonce), first_block as u32);
        if is_set { OK } else { INVALID }
    }

    fn import(&self, pipes: i32, register: i32) -> i64 {
        let pipes = self.pipes.get(pipes as usize);
        let value = pipes.and_then(|pipes| {
            let (pipe, register) = *pipes.registers.get(register as usize)?;
            pipes.state.import(pipe, register).ok()
        });
        value.map_or(-1, |value| value as i64)
    }

    pub(crate) fn post(&mut self, kind: i64, value: i64) -> i32 {
        if self.events.len() == self.max_events {
            return EXHAUSTED;
        }
        self.events.push((kind as u64, value as u64));
        OK
    }

    pub(crate) fn count(&mut self, counter: i32, by: i64) -> i32 {
        let Some(counter) = self.counters.get(counter as usize) else { return FAULT };
        // Others only load it.
        let sum = counter.load(Ordering::Relaxed).wrapping_add(by as u64);
        counter.store(sum, Ordering::Relaxed);
        OK
    }
}

impl Drop for Host {
    /// Releases the locks of an invocation that ended with a panic.
    fn drop(&mut self) {
        self.end_shared(false);
    }
}

/// Copies bytes that begin at an offset of the words. Others may change these meanwhile; each is loaded once.
fn copy_of_words(words: &[AtomicU64], from: usize, to: &mut [u8]) {
    const WORD: usize = size_of::<u64>();
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed).to_ne_bytes();
    // The end of a word, whole words, and the beginning of another one.
    let (mut words, skipped) = (&words[from / WORD..], from % WORD);
    let (first, rest) = to.split_at_mut(((WORD - skipped) % WORD).min(to.len()));
    if let Some((word, rest)) = words.split_first().filter(|_| !first.is_empty()) {
        first.copy_from_slice(&load(word)[skipped..skipped + first.len()]);
        words = rest;
    }
    let (whole, last) = rest.as_chunks_mut();
    let (of_whole, of_last) = words.split_at(whole.len());
    whole.iter_mut().zip(of_whole).for_each(|(to, word)| *to = load(word));
    if let Some(word) = of_last.first().filter(|_| !last.is_empty()) {
        last.copy_from_slice(&load(word)[..last.len()]);
    }
}

/// Charges a call. Returns whether there were enough operations left; where fuel is counted, after those of the handler's
/// instructions. When they are used up, fuel is too, so that the handler ends at its next check, and not within the call
/// (section 4.1.2).
fn charge(caller: &mut Caller<'_, Host>, call: &Call, more: u64) -> bool {
    let host = caller.data_mut();
    let has_left = host.charge(call, more);
    if host.charging == Charging::Fuel
        && let Ok(fuel) = caller.get_fuel()
    {
        let cost = call.cost.saturating_add(more);
        let _ = caller.set_fuel(fuel.saturating_sub(cost));
        return has_left && fuel >= cost;
    }
    has_left
}

/// Charges a call whose result cannot say that too few operations are left. Where fuel is counted, the handler ends before
/// it, and not at its next check: a body may have thousands of these calls.
fn charge_or_end(caller: &mut Caller<'_, Host>, call: &Call) -> wasmtime::Result<()> {
    if !charge(caller, call, 0) && caller.data().charging == Charging::Fuel {
        return Err(Trap::OutOfFuel.into());
    }
    Ok(())
}

/// Charges a call that touches bytes.
fn charge_bytes(caller: &mut Caller<'_, Host>, call: &Call, bytes: i32) -> bool {
    charge(caller, call, cost_of_bytes(bytes as u32))
}

/// Charges a call that applies a pipe list.
fn charge_pipes(caller: &mut Caller<'_, Host>, call: &Call, pipes: i32, len: i32) -> bool {
    let cost = caller.data().cost_of_pipes(pipes, len);
    charge(caller, call, cost)
}

/// Does what an instruction would do: it has its effect, or traps before it.
fn in_place_of_instruction(
    caller: &mut Caller<'_, Host>,
    call: &Call,
    len: i32,
    effect: impl FnOnce(&mut Host) -> i32,
) -> wasmtime::Result<()> {
    if !charge_bytes(caller, call, len) {
        return Err(Trap::OutOfFuel.into());
    }
    match effect(caller.data_mut()) {
        OK => Ok(()),
        _ => Err(Trap::MemoryOutOfBounds.into()),
    }
}

/// Adds the approved calls to a linker, and no others.
pub(crate) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    use call::{
        ABORT, CLOCK, COPY, COPY_MEMORY, COUNT, EXPORT, FILL_MEMORY, GIVE_BACK, ID, IMPORT, KEEP,
        KEY, LOCK, POST, READ_APPLY, REPLY, SEND, STORE, TABLE, UPCALL, WRITE_APPLY,
    };
    linker.func_wrap(
        MODULE,
        CLOCK.name,
        |mut caller: Caller<'_, Host>| -> wasmtime::Result<i64> {
            charge_or_end(&mut caller, &CLOCK)?;
            Ok(caller.data().start.elapsed().as_nanos() as i64)
        },
    )?;
    linker.func_wrap(MODULE, SEND.name, |mut caller: Caller<'_, Host>, offset, len| {
        if !charge_bytes(&mut caller, &SEND, len) {
            return EXHAUSTED;
        }
        caller.data_mut().send(offset, len)
    })?;
    linker.func_wrap(MODULE, ID.name, |mut caller: Caller<'_, Host>| -> wasmtime::Result<i64> {
        charge_or_end(&mut caller, &ID)?;
        Ok(caller.data().tenant as i64)
    })?;
    linker.func_wrap(MODULE, COPY.name, |mut caller: Caller<'_, Host>, to, from, len| {
        if !charge_bytes(&mut caller, &COPY, len) {
            return EXHAUSTED;
        }
        caller.data_mut().copy(to, from, len)
    })?;
    linker.func_wrap(
        MODULE,
        READ_APPLY.name,
        |mut caller: Caller<'_, Host>, pipes, from, len| {
            if !charge_pipes(&mut caller, &READ_APPLY, pipes, len) {
                return EXHAUSTED;
            }
            caller.data_mut().apply(pipes, from, None, len)
        },
    )?;
    linker.func_wrap(
        MODULE,
        WRITE_APPLY.name,
        |mut caller: Caller<'_, Host>, pipes, from, to: i32, len| {
            if !charge_pipes(&mut caller, &WRITE_APPLY, pipes, len) {
                return EXHAUSTED;
            }
            caller.data_mut().apply(pipes, from, Some(to), len)
        },
    )?;
    linker.func_wrap(
        MODULE,
        IMPORT.name,
        |mut caller: Caller<'_, Host>, pipes, register| -> wasmtime::Result<i64> {
            charge_or_end(&mut caller, &IMPORT)?;
            Ok(caller.data().import(pipes, register))
        },
    )?;
    linker.func_wrap(
        MODULE,
        EXPORT.name,
        |mut caller: Caller<'_, Host>, pipes, register, value| {
            if !charge(&mut caller, &EXPORT, 0) {
                return EXHAUSTED;
            }
            caller.data_mut().export(pipes, register, value)
        },
    )?;
    linker.func_wrap(
        MODULE,
        KEY.name,
        |mut caller: Caller<'_, Host>, pipes, keystream, key, first_block| {
            if !charge(&mut caller, &KEY, 0) {
                return EXHAUSTED;
            }
            caller.data_mut().key(pipes, keystream, key, first_block)
        },
    )?;
    linker.func_wrap(MODULE, POST.name, |mut caller: Caller<'_, Host>, kind, value| {
        if !charge(&mut caller, &POST, 0) {
            return EXHAUSTED;
        }
        caller.data_mut().post(kind, value)
    })?;
    linker.func_wrap(MODULE, UPCALL.name, |mut caller: Caller<'_, Host>| {
        if !charge(&mut caller, &UPCALL, 0) {
            return EXHAUSTED;
        }
        caller.data_mut().starts_upcall = true;
        OK
    })?;
    linker.func_wrap(MODULE, COUNT.name, |mut caller: Caller<'_, Host>, counter, by| {
        charge(&mut caller, &COUNT, 0);
        caller.data_mut().count(counter, by)
    })?;
    linker.func_wrap(MODULE, REPLY.name, |mut caller: Caller<'_, Host>, len| {
        if !charge(&mut caller, &REPLY, 0) {
            return EXHAUSTED;
        }
        caller.data_mut().reply(len)
    })?;
    linker.func_wrap(MODULE, KEEP.name, |mut caller: Caller<'_, Host>| {
        if !charge(&mut caller, &KEEP, 0) {
            return EXHAUSTED;
        }
        caller.data_mut().kept.keep()
    })?;
    linker.func_wrap(MODULE, GIVE_BACK.name, |mut caller: Caller<'_, Host>, slot: i32| {
        if !charge(&mut caller, &GIVE_BACK, 0) {
            return EXHAUSTED;
        }
        caller.data_mut().kept.give_back(slot as u32)
    })?;
    linker.func_wrap(
        MODULE,
        TABLE.name,
        |mut caller: Caller<'_, Host>| -> wasmtime::Result<i32> {
            charge_or_end(&mut caller, &TABLE)?;
            Ok(caller.data().table())
        },
    )?;
    linker.func_wrap(MODULE, LOCK.name, |mut caller: Caller<'_, Host>, section| {
        if !charge(&mut caller, &LOCK, 0) {
            return EXHAUSTED;
        }
        caller.data_mut().lock(section)
    })?;
    linker.func_wrap(MODULE, STORE.name, |mut caller: Caller<'_, Host>, to, from, len| {
        if !charge_bytes(&mut caller, &STORE, len) {
            return EXHAUSTED;
        }
        caller.data_mut().store(to, from, len)
    })?;
    linker.func_wrap(MODULE, COPY_MEMORY.name, |mut caller: Caller<'_, Host>, to, from, len| {
        in_place_of_instruction(&mut caller, &COPY_MEMORY, len, |host| host.copy(to, from, len))
    })?;
    linker.func_wrap(
        MODULE,
        FILL_MEMORY.name,
        |mut caller: Caller<'_, Host>, to, value, len| {
            in_place_of_instruction(&mut caller, &FILL_MEMORY, len, |host| {
                host.fill(to, value, len)
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        ABORT.name,
        |mut caller: Caller<'_, Host>| -> wasmtime::Result<()> {
            charge(&mut caller, &ABORT, 0);
            caller.data_mut().aborted = true;
            Err(wasmtime::Error::msg("the handler has aborted"))
        },
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::SharedTable;
    use super::super::memory::Areas;
    use super::*;

    #[test]
    fn locks_of_an_invocation_that_ended_with_a_panic_were_kept() {
        let page = rustix::param::page_size();
        let table = SharedTable::with_sections(1, 8).unwrap();
        let areas = Areas { replies: page, messages: page };
        let memory = HandlerMemory::new(page, areas, Some(Arc::clone(&table)), 8 * page).unwrap();
        let mut host = Host::new(1, Charging::Calls, &Policy::default());
        host.set_memory(Arc::new(memory));
        // A panic skips `end_shared`.
        host.begin(0..0, None, 1_000);
        assert!(host.lock(0) >= 0 && table.try_lock(0).is_none());
        host.begin(0..0, None, 1_000);
        assert!(table.try_lock(0).is_some(), "the next invocation has its lock");
        assert!(host.lock(0) >= 0 && table.try_lock(0).is_none());
        drop(host);
        assert!(table.try_lock(0).is_some(), "nobody has its lock");
    }

    #[test]
    fn copies_of_words_begin_and_end_anywhere() {
        let bytes: Vec<u8> = (0..40).collect();
        let words =
            bytes.as_chunks().0.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word)));
        let words: Vec<_> = words.collect();
        for from in 0..=bytes.len() {
            for end in from..=bytes.len() {
                let mut copy = vec![0; end - from];
                copy_of_words(&words, from, &mut copy);
                assert_eq!(copy, bytes[from..end]);
            }
        }
    }
}
