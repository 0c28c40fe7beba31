//! Which handler in a sandbox gets which messages, changed while the server runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use shared_ring::BufferGroup;

use crate::{ConnId, Listener, Tenant};

/// What a handler in a sandbox can be bound to (ASH, section 3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binding {
    /// The connections that a listener accepts from now on, unless [`Landing::choosing`](crate::Landing::choosing)
    /// chooses a handler for them. Their messages land in the memory of the handler.
    Listener(Listener),
    /// The messages of a connection. They are copied to the handler, unless they land in its memory.
    Connection(ConnId),
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

/// Binds the handlers of a [`Landing`](crate::Landing) from any thread, while the server runs.
///
/// A handler is named by the [`Tenant`] that [`Landing::bind`](crate::Landing::bind) has returned. The landing takes a
/// change with its next message, and never waits for a thread that makes one.
#[derive(Clone, Debug, Default)]
pub struct Bindings(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Number of changes, counted while the table is locked.
    changes: AtomicU64,
    table: Mutex<Arc<Table>>,
}

impl Bindings {
    /// Binds a handler of the same landing, in the place of the one that was bound there.
    pub fn bind(&self, to: Binding, tenant: &Tenant) {
        self.change(|table| table.set(to, Some(tenant.group())));
    }

    /// Ends a binding.
    pub fn unbind(&self, from: Binding) {
        self.change(|table| table.set(from, None));
    }

    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = self.0.table.lock().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut table));
        self.0.changes.fetch_add(1, Ordering::Release);
    }
}

/// The tenants of all bindings, by their buffer groups.
#[derive(Clone, Debug, Default)]
struct Table {
    /// By number of the listener.
    listeners: Vec<Option<BufferGroup>>,
    /// By slot of the connection, whose successors in the slot have no binding.
    connections: Vec<Option<(ConnId, BufferGroup)>>,
    filters: Vec<(usize, Vec<u8>, BufferGroup)>,
}

impl Table {
    fn set(&mut self, binding: Binding, group: Option<BufferGroup>) {
        match binding {
            Binding::Listener(listener) => *at(&mut self.listeners, listener.0.into()) = group,
            Binding::Connection(id) => {
                let slot = id.slot() as usize;
                let bound = self.connections.get(slot).copied().flatten().map(|(bound, _)| bound);
                // The slot may have a later connection.
                let is_old =
                    |bound: ConnId| (bound.generation().wrapping_sub(id.generation()) as i32) > 0;
                let is_known = group.is_some() || bound == Some(id);
                if is_known && !bound.is_some_and(is_old) {
                    *at(&mut self.connections, slot) = group.map(|group| (id, group));
                }
            }
            Binding::Filter { offset, bytes } => {
                let is_same =
                    |filter: &(usize, Vec<u8>, _)| (filter.0, &filter.1) == (offset, &bytes);
                match (self.filters.iter().position(is_same), group) {
                    (Some(at), Some(group)) => self.filters[at].2 = group,
                    (Some(at), None) => drop(self.filters.remove(at)),
                    (None, Some(group)) => self.filters.push((offset, bytes, group)),
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
#[derive(Debug, Default)]
pub(crate) struct BindingReader {
    bindings: Bindings,
    table: Arc<Table>,
    changes: u64,
}

impl BindingReader {
    pub(crate) fn bindings(&self) -> Bindings {
        self.bindings.clone()
    }

    /// Takes changes, unless another thread is making one.
    #[inline]
    fn refresh(&mut self) {
        let changes = self.bindings.0.changes.load(Ordering::Acquire);
        if changes != self.changes
            && let Ok(table) = self.bindings.0.table.try_lock()
        {
            (self.table, self.changes) = (Arc::clone(&table), changes);
        }
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
        let table = &*self.table;
        let connection = table.connections.get(id.slot() as usize).copied().flatten();
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
        let (mut table, group) = (Table::default(), Some(BufferGroup::DEFAULT));
        let connection = |generation| Binding::Connection(ConnId::new(5, generation));
        let bound = |table: &Table| table.connections[5].map(|(id, _)| id.generation());
        table.set(connection(2), group);
        table.set(connection(1), group);
        table.set(connection(1), None);
        assert_eq!(bound(&table), Some(2));
        table.set(connection(3), group);
        assert_eq!(bound(&table), Some(3));
        table.set(connection(3), None);
        assert_eq!(bound(&table), None);
        // The end of a binding that does not exist takes no memory.
        table.set(Binding::Connection(ConnId::new(u32::MAX, 0)), None);
        assert_eq!(table.connections.len(), 6);
    }
}
