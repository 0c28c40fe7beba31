//! The states of other connections than the one that a callback is about.

use std::fmt;

use shared_ring::__private::Table;

use crate::{Commands, ConnId};

/// States of the open connections, without the one that the callback is about.
///
/// [`Commands`] has the rest: [`peer_addr`](Commands::peer_addr), [`unsent_bytes`](Commands::unsent_bytes).
pub struct Others<'a, S> {
    /// The states in the slots before the one in hand.
    before: &'a mut [S],
    /// The states in the slots after it.
    after: &'a mut [S],
    /// Slot of the first state in `after`.
    first_after: usize,
    /// The states of connections that callbacks have opened, in slots beyond `after`.
    opened: Option<&'a mut Vec<S>>,
}

impl<S> Others<'_, S> {
    /// Returns the states of no connection, to call an application without a driver.
    pub fn none() -> Self {
        Others { before: &mut [], after: &mut [], first_after: 0, opened: None }
    }

    /// Lends the states for another call, such as of an application in a wrapper.
    pub fn reborrow(&mut self) -> Others<'_, S> {
        Others {
            before: self.before,
            after: self.after,
            first_after: self.first_after,
            opened: self.opened.as_deref_mut(),
        }
    }
}

impl<S: Default> Others<'_, S> {
    /// Returns the state of a connection; `None` if it is closed, or the one that the callback is about.
    pub fn get(&mut self, io: &impl Commands, id: ConnId) -> Option<&mut S> {
        if io.is_open(id) { self.at(id.slot() as usize) } else { None }
    }

    /// Calls `f` for each open connection.
    pub fn for_each<C: Commands>(&mut self, io: &mut C, mut f: impl FnMut(&mut C, ConnId, &mut S)) {
        let mut next = io.next_open(0);
        while let Some(id) = next {
            if let Some(state) = self.at(id.slot() as usize) {
                f(io, id, state);
            }
            next = io.next_open(id.slot() + 1);
        }
    }

    fn at(&mut self, slot: usize) -> Option<&mut S> {
        if slot < self.before.len() {
            return Some(&mut self.before[slot]);
        }
        let index = slot.checked_sub(self.first_after)?;
        if index < self.after.len() {
            return Some(&mut self.after[index]);
        }
        let index = index - self.after.len();
        let opened = self.opened.as_deref_mut()?;
        if index >= opened.len() {
            opened.resize_with(index + 1, S::default);
        }
        Some(&mut opened[index])
    }
}

impl<S> fmt::Debug for Others<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Others").finish_non_exhaustive()
    }
}

/// The states of all connections, by slot.
#[derive(Debug)]
pub(crate) struct States<S> {
    table: Table<S>,
    /// The states beyond the table: the table cannot grow while a callback borrows a state.
    opened: Vec<S>,
}

impl<S> Default for States<S> {
    fn default() -> Self {
        States { table: Table::default(), opened: Vec::new() }
    }
}

impl<S: Default> States<S> {
    /// Returns the state in a slot.
    #[inline]
    pub(crate) fn at(&mut self, slot: u32) -> &mut S {
        self.extend_to(slot);
        &mut self.table[slot as usize]
    }

    /// Returns the state in a slot, and the others.
    #[inline]
    pub(crate) fn split(&mut self, slot: u32) -> (&mut S, Others<'_, S>) {
        self.extend_to(slot);
        let slot = slot as usize;
        let (before, rest) = self.table.iter_mut().into_slice().split_at_mut(slot);
        let [state, after @ ..] = rest else { unreachable!("the table extends to the slot") };
        (state, Others { before, after, first_after: slot + 1, opened: Some(&mut self.opened) })
    }

    /// Returns all states.
    pub(crate) fn all(&mut self) -> Others<'_, S> {
        let before = self.table.iter_mut().into_slice();
        let first_after = before.len();
        Others { before, after: &mut [], first_after, opened: Some(&mut self.opened) }
    }

    #[inline]
    fn extend_to(&mut self, slot: u32) {
        if slot as usize >= self.table.len() {
            self.extend(slot as usize + 1);
        }
    }

    #[cold]
    fn extend(&mut self, len: usize) {
        for state in self.opened.drain(..) {
            let next = self.table.len();
            *self.table.at(next) = state;
        }
        self.table.fill(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_opened_connections_move_to_the_table() {
        let mut states = States::default();
        *states.at(0) = 10;
        let (state, mut others) = states.split(0);
        assert_eq!((*state, others.at(0)), (10, None));
        *others.at(2).unwrap() = 12;
        *others.at(1).unwrap() = 11;
        assert_eq!([*states.at(3), *states.at(2), *states.at(1), *states.at(0)], [0, 12, 11, 10]);
        let (state, mut others) = states.split(2);
        assert_eq!((*state, others.at(1)), (12, Some(&mut 11)));
        assert_eq!(others.at(2), None);
        assert_eq!((*others.at(3).unwrap(), *others.at(4).unwrap()), (0, 0));
        assert_eq!(*states.all().at(2).unwrap(), 12);
    }
}
