//! The table of operations in flight, which owns their memory until their last completion.

use crate::table::Table;
use crate::token::OpKind;
use crate::{Op, SubmitError, SubmitErrorKind, Token};

/// An operation in flight and its kernel's state for it.
#[derive(Debug)]
pub struct InFlight<N> {
    /// Identifies it.
    pub token: Token,
    /// The operation, with its memory.
    pub op: Op,
    /// The kernel's state.
    pub state: N,
}

/// Operations in flight by token, up to a maximum number.
#[derive(Debug)]
pub struct InFlightTable<N> {
    entries: Table<Option<InFlight<N>>>,
    vacant: Vec<u32>,
    /// For each kind and slot, the entry's index plus one.
    places: [Table<u32>; OpKind::COUNT],
}

impl<N> InFlightTable<N> {
    /// Number of entries allocated at the start.
    const PREALLOCATED: u32 = 256;

    /// Creates a table for at most `capacity` operations.
    pub fn new(capacity: u32) -> Self {
        let mut entries = Table::default();
        entries.fill(capacity.min(Self::PREALLOCATED) as usize);
        InFlightTable { entries, vacant: (0..capacity).rev().collect(), places: Default::default() }
    }

    /// Returns the number of operations, which it counts.
    pub fn len(&self) -> usize {
        self.entries.iter().flatten().count()
    }

    /// Returns whether no operation is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Inserts an operation and returns its entry.
    ///
    /// # Errors
    /// Hands the operation back if the table is full, or if an operation of the same kind is in flight for
    /// the slot.
    // An operation is large: inlined, it is written once.
    #[inline(always)]
    pub fn insert(
        &mut self,
        token: Token,
        op: Op,
        state: N,
    ) -> Result<&mut InFlight<N>, SubmitError> {
        let place = self.places[token.kind() as usize].at(token.slot() as usize);
        if *place != 0 {
            return Err(SubmitError { op, kind: SubmitErrorKind::TokenInUse });
        }
        let Some(at) = self.vacant.pop() else {
            return Err(SubmitError { op, kind: SubmitErrorKind::Full });
        };
        *place = at + 1;
        let entry = self.entries.at(at as usize);
        Ok(entry.insert(InFlight { token, op, state }))
    }

    fn place(&self, token: Token) -> Option<usize> {
        let place = *self.places[token.kind() as usize].get(token.slot() as usize)?;
        place.checked_sub(1).map(|p| p as usize)
    }

    /// Returns the operation of `token`; `None` for a stale token.
    #[inline]
    pub fn get(&mut self, token: Token) -> Option<&mut InFlight<N>> {
        let place = self.place(token)?;
        self.entries[place].as_mut().filter(|e| e.token == token)
    }

    /// Removes the operation of `token` and returns it with its memory.
    #[inline]
    pub fn remove(&mut self, token: Token) -> Option<InFlight<N>> {
        self.remove_if(token, |_| true)
    }

    /// The same, if it is one of those for which `ends` returns true.
    #[inline]
    pub(crate) fn remove_if(
        &mut self,
        token: Token,
        ends: impl FnOnce(&InFlight<N>) -> bool,
    ) -> Option<InFlight<N>> {
        let place = self.place(token)?;
        let entry = self.entries[place].take_if(|e| e.token == token && ends(e))?;
        self.places[token.kind() as usize][token.slot() as usize] = 0;
        self.vacant.push(place as u32);
        Some(entry)
    }

    /// Ends the operations for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&InFlight<N>) -> bool) {
        let ended: Vec<Token> =
            self.entries.iter().flatten().filter(|e| !keep(e)).map(|e| e.token).collect();
        for token in ended {
            self.remove(token);
        }
    }

    /// Ends all operations.
    pub fn drain(&mut self) -> impl Iterator<Item = InFlight<N>> {
        self.tokens().into_iter().filter_map(|token| self.remove(token))
    }

    /// Returns the tokens of all operations.
    pub fn tokens(&self) -> Vec<Token> {
        self.entries.iter().flatten().map(|e| e.token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fd, Socket};
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn close(fd: i32) -> Op {
        Op::Close { socket: Socket::of(Fd::from_raw(fd)) }
    }

    #[test]
    fn stale_token_finds_nothing() {
        let mut table = InFlightTable::new(2);
        let (old, new) = (Token::new(OpKind::Close, 7, 1), Token::new(OpKind::Close, 7, 2));
        table.insert(new, close(3), ()).unwrap();
        assert!(table.get(old).is_none() && table.remove(old).is_none());
        assert_eq!(table.insert(old, close(3), ()).unwrap_err().kind, SubmitErrorKind::TokenInUse);
        assert!(table.remove(new).is_some() && table.remove(new).is_none());
    }

    proptest! {
        #[test]
        fn behaves_like_a_bounded_map(steps in prop::collection::vec((0..3u32, 0..6u32, any::<bool>()), 0..80)) {
            let (mut table, mut model) = (InFlightTable::new(4), HashMap::new());
            for (step, (generation, slot, insert)) in steps.into_iter().enumerate() {
                let token = Token::new(OpKind::Send, slot, generation);
                if insert {
                    let taken = model.keys().any(|t: &Token| t.slot() == slot);
                    let result = table.insert(token, close(0), step).map(drop).map_err(|r| r.kind);
                    if taken {
                        prop_assert_eq!(result, Err(SubmitErrorKind::TokenInUse));
                    } else if model.len() == 4 {
                        prop_assert_eq!(result, Err(SubmitErrorKind::Full));
                    } else {
                        prop_assert_eq!(result, Ok(()));
                        model.insert(token, step);
                    }
                } else {
                    prop_assert_eq!(table.remove(token).map(|e| e.state), model.remove(&token));
                }
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}
