//! The event correlation table (section 5.1).

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

use foldhash::fast::RandomState;

use crate::{Event, PairState, Readiness};

/// Identifies a pair of a table. A removed pair's identifier is never valid again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PairId {
    index: u32,
    generation: u32,
}

impl PairId {
    /// Returns the pair's index, below the maximum number of pairs. Later pairs may reuse it.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// The reason why a pair was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddError {
    /// The table holds its maximum number of pairs.
    Full(usize),
    /// The table has this pair already.
    Exists(PairId),
    /// An event cannot happen before itself.
    SameEvent,
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddError::Full(max) => write!(
                f,
                "the table holds its maximum of {max} pairs; remove one, or create a larger table"
            ),
            AddError::Exists(_) => f.write_str("the table has this pair already"),
            AddError::SameEvent => f.write_str("an event cannot happen before itself"),
        }
    }
}

impl std::error::Error for AddError {}

/// Pairs of events, each in the order in which they must happen, with their states.
///
/// `K` identifies the objects of events, by default by descriptor. An object may be in any number
/// of pairs. Finding a pair takes constant time; adding and removing one does on average.
#[derive(Debug)]
pub struct PairTable<K = i32> {
    entries: Vec<Entry<K>>,
    /// First of the unused entries, which `next_of_pre` links.
    unused: Option<u32>,
    max: usize,
    objects: HashMap<K, Lists, RandomState>,
    pairs: HashMap<(Event<K>, Event<K>), u32, RandomState>,
}

/// First pairs of an object.
#[derive(Clone, Copy, Debug, Default)]
struct Lists {
    pre: Option<u32>,
    post: Option<u32>,
}

#[derive(Debug)]
struct Entry<K> {
    pre: Event<K>,
    post: Event<K>,
    state: PairState,
    /// Odd while the entry is in use.
    generation: u32,
    /// Neighbours in the list of pairs with the same object of the pre-event.
    of_pre: Neighbours,
    /// Neighbours in the list of pairs with the same object of the post-event.
    of_post: Neighbours,
}

#[derive(Clone, Copy, Debug, Default)]
struct Neighbours {
    previous: Option<u32>,
    next: Option<u32>,
}

/// Creates a map that never holds more than `max` entries, and never grows. A removed entry leaves a mark, and a map that
/// is full of entries and marks grows if it is more than half full of entries, else it only removes the marks.
fn map<K, V>(max: usize) -> HashMap<K, V, RandomState> {
    HashMap::with_capacity_and_hasher(2 * max, RandomState::default())
}

/// The role of an event in a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Pre,
    Post,
}

impl<K> Entry<K> {
    fn neighbours(&mut self, role: Role) -> &mut Neighbours {
        match role {
            Role::Pre => &mut self.of_pre,
            Role::Post => &mut self.of_post,
        }
    }

    fn event(&self, role: Role) -> &Event<K> {
        match role {
            Role::Pre => &self.pre,
            Role::Post => &self.post,
        }
    }
}

impl Lists {
    fn first(&mut self, role: Role) -> &mut Option<u32> {
        match role {
            Role::Pre => &mut self.pre,
            Role::Post => &mut self.post,
        }
    }
}

impl<K: Copy + Eq + Hash> PairTable<K> {
    /// Creates a table for at most `max` pairs, and allocates its memory.
    ///
    /// # Panics
    /// If `max` is 2^32 - 1 or more.
    pub fn new(max: usize) -> Self {
        assert!(u32::try_from(max).is_ok_and(|max| max < u32::MAX), "a table of {max} pairs");
        PairTable {
            entries: Vec::with_capacity(max),
            unused: None,
            max,
            objects: map(2 * max),
            pairs: map(max),
        }
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the maximum number of pairs.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Adds the pair `pre => post`. Its state is WW.
    ///
    /// # Errors
    /// If the table is full or has this pair already, or if both are the same event.
    pub fn add(&mut self, pre: Event<K>, post: Event<K>) -> Result<PairId, AddError> {
        if pre == post {
            return Err(AddError::SameEvent);
        }
        if let Some(id) = self.find(pre, post) {
            return Err(AddError::Exists(id));
        }
        let index = match self.unused {
            Some(index) => {
                let entry = &mut self.entries[index as usize];
                self.unused = entry.of_pre.next;
                *entry = Entry { generation: entry.generation + 1, ..Entry::new(pre, post) };
                index
            }
            None if self.entries.len() < self.max => {
                self.entries.push(Entry::new(pre, post));
                self.entries.len() as u32 - 1
            }
            None => return Err(AddError::Full(self.max)),
        };
        self.link(index, Role::Pre);
        self.link(index, Role::Post);
        self.pairs.insert((pre, post), index);
        Ok(self.id(index))
    }

    /// Removes a pair. Returns its events, or `None` if it was removed before.
    pub fn remove(&mut self, id: PairId) -> Option<(Event<K>, Event<K>)> {
        let entry = self.get(id)?;
        let (pre, post) = (entry.pre, entry.post);
        self.unlink(id.index, Role::Pre);
        self.unlink(id.index, Role::Post);
        self.pairs.remove(&(pre, post));
        let entry = &mut self.entries[id.index as usize];
        entry.generation += 1;
        // An entry whose generations are used up is not used again.
        if entry.generation < u32::MAX - 1 {
            entry.of_pre.next = self.unused;
            self.unused = Some(id.index);
        }
        Some((pre, post))
    }

    /// Removes one of the pairs with an event of this object. To remove all when it is closed, call
    /// this until it returns `None`.
    pub fn remove_object(&mut self, object: K) -> Option<PairId> {
        let lists = self.objects.get(&object)?;
        let id = self.id(lists.pre.or(lists.post)?);
        self.remove(id);
        Some(id)
    }

    /// Returns the pair `pre => post`.
    pub fn find(&self, pre: Event<K>, post: Event<K>) -> Option<PairId> {
        self.pairs.get(&(pre, post)).map(|index| self.id(*index))
    }

    /// Returns the pairs whose pre-event is one of this object, the last added first.
    pub fn pairs_before(&self, object: K) -> impl Iterator<Item = PairId> {
        let first = self.objects.get(&object).and_then(|lists| lists.pre);
        let next = |index: &u32| self.entries[*index as usize].of_pre.next;
        std::iter::successors(first, next).map(|index| self.id(index))
    }

    /// Returns the pairs whose post-event is one of this object, the last added first.
    pub fn pairs_after(&self, object: K) -> impl Iterator<Item = PairId> {
        let first = self.objects.get(&object).and_then(|lists| lists.post);
        let next = |index: &u32| self.entries[*index as usize].of_post.next;
        std::iter::successors(first, next).map(|index| self.id(index))
    }

    /// Returns the events of a pair: the pre-event and the post-event.
    pub fn events(&self, id: PairId) -> Option<(Event<K>, Event<K>)> {
        self.get(id).map(|entry| (entry.pre, entry.post))
    }

    /// Returns the state of a pair.
    pub fn state(&self, id: PairId) -> Option<PairState> {
        self.get(id).map(|entry| entry.state)
    }

    /// Sets the state of a pair's pre-event. Returns the pair's state before and after, or `None`
    /// if it was removed.
    pub fn set_pre(&mut self, id: PairId, to: Readiness) -> Option<(PairState, PairState)> {
        self.change(id, |state| PairState::new(to, state.post()))
    }

    /// Sets the state of a pair's post-event. Returns the pair's state before and after, or `None`
    /// if it was removed.
    pub fn set_post(&mut self, id: PairId, to: Readiness) -> Option<(PairState, PairState)> {
        self.change(id, |state| PairState::new(state.pre(), to))
    }

    /// Sets the state of an event in all pairs that have it. Calls `changed` for each pair whose
    /// state changes, with the state before and after.
    pub fn set(
        &mut self,
        event: Event<K>,
        to: Readiness,
        mut changed: impl FnMut(PairId, PairState, PairState),
    ) {
        for role in [Role::Pre, Role::Post] {
            self.set_role(role, event, to, &mut changed);
        }
    }

    /// The same for the pairs that the event ends.
    pub(crate) fn set_as_post(
        &mut self,
        event: Event<K>,
        to: Readiness,
        changed: impl FnMut(PairId, PairState, PairState),
    ) {
        self.set_role(Role::Post, event, to, changed);
    }

    fn set_role(
        &mut self,
        role: Role,
        event: Event<K>,
        to: Readiness,
        mut changed: impl FnMut(PairId, PairState, PairState),
    ) {
        let Some(lists) = self.objects.get_mut(&event.object) else { return };
        let mut next = *lists.first(role);
        while let Some(index) = next {
            let entry = &mut self.entries[index as usize];
            next = entry.neighbours(role).next;
            if entry.event(role).kind != event.kind {
                continue;
            }
            let id = self.id(index);
            let change = match role {
                Role::Pre => self.set_pre(id, to),
                Role::Post => self.set_post(id, to),
            };
            if let Some((before, after)) = change.filter(|(before, after)| before != after) {
                changed(id, before, after);
            }
        }
    }

    fn change(
        &mut self,
        id: PairId,
        to: impl FnOnce(PairState) -> PairState,
    ) -> Option<(PairState, PairState)> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        let before = entry.state;
        entry.state = to(before);
        Some((before, entry.state))
    }

    fn get(&self, id: PairId) -> Option<&Entry<K>> {
        self.entries.get(id.index as usize).filter(|entry| entry.generation == id.generation)
    }

    fn id(&self, index: u32) -> PairId {
        PairId { index, generation: self.entries[index as usize].generation }
    }

    /// Puts an entry at the front of a list of its object.
    fn link(&mut self, index: u32, role: Role) {
        let object = self.entries[index as usize].event(role).object;
        let first = self.objects.entry(object).or_default().first(role);
        let next = first.replace(index);
        *self.entries[index as usize].neighbours(role) = Neighbours { previous: None, next };
        if let Some(next) = next {
            self.entries[next as usize].neighbours(role).previous = Some(index);
        }
    }

    /// Takes an entry out of a list of its object.
    fn unlink(&mut self, index: u32, role: Role) {
        let object = self.entries[index as usize].event(role).object;
        let Neighbours { previous, next } = *self.entries[index as usize].neighbours(role);
        if let Some(next) = next {
            self.entries[next as usize].neighbours(role).previous = previous;
        }
        match previous {
            Some(previous) => self.entries[previous as usize].neighbours(role).next = next,
            None => {
                let lists = self.objects.get_mut(&object).expect("the object of a pair has lists");
                *lists.first(role) = next;
                if lists.pre.is_none() && lists.post.is_none() {
                    self.objects.remove(&object);
                }
            }
        }
    }
}

impl<K> Entry<K> {
    fn new(pre: Event<K>, post: Event<K>) -> Self {
        Entry {
            pre,
            post,
            state: PairState::WW,
            generation: 1,
            of_pre: Neighbours::default(),
            of_post: Neighbours::default(),
        }
    }
}
