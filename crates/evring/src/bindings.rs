//! Which handler in a sandbox gets which messages, changed while the server runs.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use ash_sandbox::sandbox::Handler;
use shared_ring::buffers::{BufferError, BufferGroup};

use crate::{BindError, ConnId, Listener, Tenant};

/// The part of the traffic to which a handler in a sandbox is bound (ASH, section 3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binding {
    /// The connections that a listener accepts from now on, unless [`Landing::choosing`](crate::hooks::Landing::choosing)
    /// chooses a handler for them. Their messages land in the memory of the handler.
    Listener(Listener),
    /// The messages of a connection. They are copied to the handler, unless they land in its memory.
    Connection(ConnId),
    /// The messages that land in the memory of the handler with this [group](Tenant::group), unless a connection or a
    /// filter is bound: another handler takes its place, also for the messages that it had by a binding of this kind. They
    /// are copied to that one.
    Landed(BufferGroup),
    /// The messages of all connections without a binding of their own that have these bytes at this offset; of several
    /// filters, the first that was bound decides. They are copied to the handler, unless they land in its memory.
    /// A message is what one receive returned, so a filter suits protocols whose messages come whole.
    Filter {
        /// Offset of the bytes in the message.
        offset: usize,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// Binds the handlers of a [`Landing`](crate::hooks::Landing) from any thread, while the server runs.
///
/// A handler is named by the [`Tenant`] that [`Landing::bind`](crate::hooks::Landing::bind) has returned. The landing takes
/// changes with its next message, and never waits for a thread that makes one. A change costs the same however many
/// bindings exist. All that a landing has not taken need no more memory than the bindings, or a few kilobytes.
#[derive(Clone, Debug, Default)]
pub struct Bindings(Arc<Shared>);

/// Identifies the bindings of a landing.
#[derive(Clone, Debug, Default)]
pub(crate) struct BindingsId(Weak<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The landing has not taken all changes.
    has_changes: AtomicBool,
    state: Mutex<BindingsState>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, BindingsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handler for a running landing.
#[derive(Debug)]
pub(crate) struct NewHandler {
    pub(crate) handler: Handler,
    /// Number and size of its receive buffers.
    pub(crate) buffers: (u16, u32),
    pub(crate) bound: SyncSender<Result<Tenant, BindError>>,
}

#[derive(Debug, Default)]
struct BindingsState {
    /// All bindings.
    table: TenantTable,
    /// A landing exists, which takes handlers.
    takes_handlers: bool,
    /// Handlers that the landing has not taken, oldest first.
    handlers: VecDeque<NewHandler>,
    /// Changes that the landing has not taken, oldest first.
    changes: Vec<Change>,
    /// Memory of the filters in `changes`.
    filter_bytes: usize,
    /// The changes were larger than the bindings, so that the landing copies the table instead.
    has_overflowed: bool,
}

/// A binding, and its tenant; `None` if it ends.
type Change = (Binding, Option<BufferGroup>);

/// Changes that the landing may leave before it copies a table with fewer bindings.
const MIN_CHANGES: usize = 64;

/// Bytes of filters in such changes, before it copies a table with fewer.
const MIN_FILTER_BYTES: usize = 4096;

impl Bindings {
    /// Binds a handler of the same landing, in the place of the one that was bound there.
    ///
    /// # Errors
    /// [`BindError::OtherLanding`] if the handler was not bound by the landing of these bindings.
    pub fn bind(&self, to: Binding, tenant: &Tenant) -> Result<(), BindError> {
        if !tenant.is_of(self) {
            return Err(BindError::OtherLanding);
        }
        self.change((to, Some(tenant.group())));
        Ok(())
    }

    /// Ends a binding.
    pub fn unbind(&self, from: Binding) {
        self.change((from, None));
    }

    /// Gives another handler to the landing while the server runs, as [`Landing::bind`](crate::hooks::Landing::bind) does before.
    /// The landing takes it with its next message or connection, and then the receiver gets its tenant, to which nothing is
    /// bound yet. To replace a handler, bind [what lands](Binding::Landed) for the old one, and its listeners and
    /// filters, to the new one. The memory of the old one stays, as connections receive into it, and so does its group: a
    /// mechanism takes at most 63 handlers in its life.
    ///
    /// The receiver gets [`BufferError::TooMany`] for one more, and at once if [`BufferGroup::MAX`] handlers wait for a
    /// message. If the landing has ended or ends, the handler is dropped, and `recv` returns an error.
    pub fn add(
        &self,
        handler: Handler,
        count: u16,
        size: u32,
    ) -> Receiver<Result<Tenant, BindError>> {
        let (bound, receiver) = sync_channel(1);
        let mut state = self.0.state();
        if !state.takes_handlers {
            return receiver;
        }
        if state.handlers.len() < BufferGroup::MAX {
            state.handlers.push_back(NewHandler { handler, buffers: (count, size), bound });
            self.0.has_changes.store(true, Ordering::Release);
        } else {
            // There is room for it, so that it does not fail.
            let _ = bound.send(Err(BufferError::TooMany.into()));
        }
        receiver
    }

    pub(crate) fn id(&self) -> BindingsId {
        BindingsId(Arc::downgrade(&self.0))
    }

    fn change(&self, change: Change) {
        let mut state = self.0.state();
        let BindingsState { table, changes, filter_bytes, has_overflowed, .. } = &mut *state;
        table.set(change.clone());
        if !*has_overflowed {
            if let (Binding::Filter { bytes, .. }, _) = &change {
                *filter_bytes += bytes.capacity();
            }
            changes.push(change);
            *has_overflowed = changes.len() > table.len().max(MIN_CHANGES)
                || *filter_bytes > table.filter_bytes.max(MIN_FILTER_BYTES);
            if *has_overflowed {
                (*changes, *filter_bytes) = (Vec::new(), 0);
            }
        }
        self.0.has_changes.store(true, Ordering::Release);
    }
}

impl BindingsId {
    pub(crate) fn is_of(&self, bindings: &Bindings) -> bool {
        self.0.as_ptr() == Arc::as_ptr(&bindings.0)
    }
}

/// The tenants of all bindings, by their buffer groups.
#[derive(Clone, Debug, Default)]
struct TenantTable {
    /// By number of the listener.
    listeners: Vec<Option<BufferGroup>>,
    /// By slot of the connection, whose successors in the slot have no binding.
    connections: HashMap<u32, (ConnId, BufferGroup)>,
    /// By number of the group in whose memory a message lands.
    landed: Vec<Option<BufferGroup>>,
    filters: Vec<(usize, Vec<u8>, BufferGroup)>,
    /// Bytes of the filters.
    filter_bytes: usize,
}

impl TenantTable {
    /// Returns the number of bindings that it has room for.
    fn len(&self) -> usize {
        self.listeners.len() + self.connections.len() + self.landed.len() + self.filters.len()
    }

    fn set(&mut self, (binding, group): Change) {
        match binding {
            Binding::Listener(listener) => *at(&mut self.listeners, listener.0.into()) = group,
            Binding::Connection(id) => {
                let bound = self.connections.get(&id.slot()).map(|(bound, _)| *bound);
                // The slot may have a later connection.
                let is_old =
                    |bound: ConnId| (bound.generation().wrapping_sub(id.generation()) as i32) > 0;
                match group {
                    Some(group) if !bound.is_some_and(is_old) => {
                        self.connections.insert(id.slot(), (id, group));
                    }
                    None if bound == Some(id) => drop(self.connections.remove(&id.slot())),
                    _ => {}
                }
            }
            Binding::Landed(at_group) => *at(&mut self.landed, at_group.index()) = group,
            Binding::Filter { offset, bytes } => {
                let is_same =
                    |filter: &(usize, Vec<u8>, _)| (filter.0, &filter.1) == (offset, &bytes);
                match (self.filters.iter().position(is_same), group) {
                    (Some(at), Some(group)) => self.filters[at].2 = group,
                    (Some(at), None) => {
                        self.filter_bytes -= bytes.len();
                        self.filters.remove(at);
                    }
                    (None, Some(group)) => {
                        self.filter_bytes += bytes.len();
                        self.filters.push((offset, bytes, group));
                    }
                    (None, None) => {}
                }
            }
        }
    }
}

/// Returns an element; the list grows to it.
fn at<T>(list: &mut Vec<Option<T>>, index: usize) -> &mut Option<T> {
    if index >= list.len() {
        list.resize_with(index + 1, || None);
    }
    &mut list[index]
}

/// The bindings as a landing sees them.
#[derive(Debug)]
pub(crate) struct BindingReader {
    bindings: Bindings,
    table: TenantTable,
    handlers: VecDeque<NewHandler>,
}

impl Default for BindingReader {
    fn default() -> Self {
        let bindings = Bindings::default();
        bindings.0.state().takes_handlers = true;
        BindingReader { bindings, table: TenantTable::default(), handlers: VecDeque::new() }
    }
}

impl Drop for BindingReader {
    /// Ends the wait for handlers that no message binds any more.
    fn drop(&mut self) {
        let handlers = {
            let mut state = self.bindings.0.state();
            state.takes_handlers = false;
            mem::take(&mut state.handlers)
        };
        drop(handlers);
    }
}

impl BindingReader {
    pub(crate) fn bindings(&self) -> Bindings {
        self.bindings.clone()
    }

    /// Takes changes, unless another thread is making one.
    #[inline]
    fn refresh(&mut self) {
        if self.bindings.0.has_changes.load(Ordering::Acquire) {
            self.take_changes();
        }
    }

    #[cold]
    fn take_changes(&mut self) {
        let Shared { has_changes, state } = &*self.bindings.0;
        let mut state = match state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // The lock orders it before the next change.
        has_changes.store(false, Ordering::Relaxed);
        if mem::take(&mut state.has_overflowed) {
            self.table = state.table.clone();
        }
        state.changes.drain(..).for_each(|change| self.table.set(change));
        state.changes.shrink_to(MIN_CHANGES);
        self.handlers.append(&mut state.handlers);
        state.filter_bytes = 0;
    }

    /// Returns a handler that is to be bound.
    #[inline]
    pub(crate) fn next_handler(&mut self) -> Option<NewHandler> {
        self.refresh();
        self.handlers.pop_front()
    }

    /// Returns the tenant that has taken the place of the one in whose memory a message has landed, or that one.
    #[inline]
    pub(crate) fn of_landed(&self, group: BufferGroup) -> BufferGroup {
        let landed = &self.table.landed;
        let mut at = group;
        // Bounded, as there is no last one if handlers have changed places.
        for _ in 0..landed.len() {
            match landed.get(at.index()).copied().flatten() {
                Some(next) if next != group => at = next,
                _ => break,
            }
        }
        at
    }

    /// Returns the tenant of the connections that a listener accepts.
    pub(crate) fn of_listener(&mut self, listener: Listener) -> Option<BufferGroup> {
        self.refresh();
        self.table.listeners.get(usize::from(listener.0)).copied().flatten()
    }

    /// Returns the tenant of a message, if a connection or a filter is bound.
    #[inline]
    pub(crate) fn of_message(&mut self, id: ConnId, message: &[u8]) -> Option<BufferGroup> {
        self.refresh();
        let table = &self.table;
        let connection = table.connections.get(&id.slot()).copied();
        if let Some((_, group)) = connection.filter(|(bound, _)| *bound == id) {
            return Some(group);
        }
        let has = |(offset, bytes, _): &&(usize, Vec<u8>, _)| {
            message.get(*offset..).is_some_and(|rest| rest.starts_with(bytes))
        };
        table.filters.iter().find(has).map(|(.., group)| *group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_binding_of_a_closed_connection_replaced_that_of_its_successor() {
        let (mut table, group) = (TenantTable::default(), Some(BufferGroup::DEFAULT));
        let connection = |generation| Binding::Connection(ConnId::new(5, generation));
        let bound = |table: &TenantTable| table.connections.get(&5).map(|(id, _)| id.generation());
        table.set((connection(2), group));
        table.set((connection(1), group));
        table.set((connection(1), None));
        assert_eq!(bound(&table), Some(2));
        table.set((connection(3), group));
        assert_eq!(bound(&table), Some(3));
        table.set((connection(3), None));
        assert_eq!(bound(&table), None);
        assert!(table.connections.is_empty());
    }

    #[test]
    fn binding_of_a_high_slot_took_memory_for_all_below() {
        let mut table = TenantTable::default();
        let last = Binding::Connection(ConnId::new(u32::MAX, 0));
        table.set((last.clone(), None));
        assert_eq!(table.len(), 0);
        table.set((last, Some(BufferGroup::DEFAULT)));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn each_change_copied_the_whole_table() {
        let mut reader = BindingReader::default();
        let bindings = reader.bindings();
        let group = Some(BufferGroup::DEFAULT);
        for slot in 0..10_000 {
            bindings.change((Binding::Connection(ConnId::new(slot, 1)), group));
        }
        let id = |slot| ConnId::new(slot, 1);
        assert_eq!(reader.of_message(id(9_999), b"a"), group);
        let place = |reader: &BindingReader| &raw const reader.table.connections[&9_999];
        let before = place(&reader);
        for slot in 0..5_000 {
            bindings.unbind(Binding::Connection(id(slot)));
            assert_eq!(bindings.0.state.lock().unwrap().changes.len(), 1);
            assert_eq!(reader.of_message(id(slot), b"a"), None);
            assert_eq!(reader.of_message(id(5_000 + slot), b"a"), group);
        }
        assert_eq!(place(&reader), before, "the table was copied");
    }

    #[test]
    fn each_end_of_a_large_filter_kept_a_copy() {
        const LEN: usize = 1024 * 1024;
        let mut reader = BindingReader::default();
        let bindings = reader.bindings();
        for len in [LEN, 1] {
            for is_bound in [true, false].repeat(20) {
                let mut bytes = Vec::with_capacity(LEN);
                bytes.resize(len, b'a');
                let group = is_bound.then_some(BufferGroup::DEFAULT);
                bindings.change((Binding::Filter { offset: 0, bytes }, group));
                let state = bindings.0.state.lock().unwrap();
                let kept = state.changes.iter().map(|(binding, _)| match binding {
                    Binding::Filter { bytes, .. } => bytes.capacity(),
                    _ => 0,
                });
                let max = if is_bound { len } else { 0 };
                assert!(kept.sum::<usize>() <= max.max(MIN_FILTER_BYTES));
            }
            assert_eq!(reader.of_message(ConnId::new(0, 0), &[b'a'; LEN]), None);
        }
    }

    #[test]
    fn room_for_changes_that_were_taken_was_kept() {
        let mut reader = BindingReader::default();
        let bindings = reader.bindings();
        let group = Some(BufferGroup::DEFAULT);
        for slot in 0..10_000 {
            bindings.change((Binding::Connection(ConnId::new(slot, 1)), group));
        }
        assert_eq!(reader.of_message(ConnId::new(9_999, 1), b"a"), group);
        assert!(bindings.0.state.lock().unwrap().changes.capacity() <= MIN_CHANGES);
    }

    #[test]
    fn panic_of_a_thread_that_made_a_change_hid_all_later_ones() {
        let mut reader = BindingReader::default();
        let bindings = reader.bindings();
        let broken = bindings.clone();
        let panics = std::thread::spawn(move || {
            let _state = broken.0.state.lock();
            panic!("as of a lack of memory");
        });
        assert!(panics.join().is_err());
        let (id, group) = (ConnId::new(0, 1), Some(BufferGroup::DEFAULT));
        bindings.change((Binding::Connection(id), group));
        assert_eq!(reader.of_message(id, b"a"), group);
    }

    #[test]
    fn changes_that_a_landing_does_not_take_are_bounded_and_none_is_lost() {
        let mut reader = BindingReader::default();
        let bindings = reader.bindings();
        let filter = |n: u8| Binding::Filter { offset: 0, bytes: vec![n] };
        let group = Some(BufferGroup::DEFAULT);
        for n in 0..10_000 {
            bindings.change((filter(n as u8 % 3), group.filter(|_| n % 5 != 0)));
            assert!(bindings.0.state.lock().unwrap().changes.len() <= MIN_CHANGES);
            // The landing takes changes at times, and finds more than it takes one by one at others.
            if n % 1_000 < 100 {
                let expected = bindings.0.state.lock().unwrap().table.clone();
                for n in 0..3 {
                    let bound = expected.filters.iter().find(|filter| filter.1 == [n]);
                    let seen = reader.of_message(ConnId::new(0, 0), &[n]);
                    assert_eq!(seen, bound.map(|filter| filter.2));
                }
            }
        }
    }
}
