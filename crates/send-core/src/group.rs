//! Event groups and the masks of groups.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitXor, Not, Sub};

use crate::{Error, EventType};

/// An event group, 0 to 31: the bit of the masks that controls a set of event types (SEND 3.2.1).
/// Groups with lower numbers are delivered first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(u8);

impl Group {
    /// Number of groups.
    pub const COUNT: u8 = 32;

    /// The group delivered first.
    pub const FIRST: Group = Group(0);

    /// Returns the group with this number.
    ///
    /// # Errors
    /// [`Error::NoSuchGroup`] for 32 and above.
    pub const fn new(number: u8) -> Result<Self, Error> {
        if number < Self::COUNT { Ok(Group(number)) } else { Err(Error::NoSuchGroup(number)) }
    }

    /// Returns the group delivered after this one, or this one if it is the last.
    pub const fn next(self) -> Group {
        if self.0 + 1 < Self::COUNT { Group(self.0 + 1) } else { self }
    }

    /// Returns the group's number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

/// A set of event groups, one bit for each: the type of `deliver` and `notify`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Groups(u32);

impl Groups {
    /// No group.
    pub const NONE: Groups = Groups(0);
    /// Every group.
    pub const ALL: Groups = Groups(u32::MAX);

    /// Returns the set with these bits.
    pub const fn from_bits(bits: u32) -> Self {
        Groups(bits)
    }

    /// Returns the bits of the set.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the set contains a group.
    pub const fn contains(self, group: Group) -> bool {
        self.0 & (1 << group.0) != 0
    }

    /// Returns whether the sets have a common group.
    pub const fn intersects(self, other: Groups) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the group with the lowest number.
    pub(crate) const fn first(self) -> Option<Group> {
        if self.0 == 0 { None } else { Some(Group(self.0.trailing_zeros() as u8)) }
    }
}

impl From<Group> for Groups {
    fn from(group: Group) -> Self {
        Groups(1 << group.0)
    }
}

impl BitOr for Groups {
    type Output = Groups;

    fn bitor(self, other: Groups) -> Groups {
        Groups(self.0 | other.0)
    }
}

impl BitAnd for Groups {
    type Output = Groups;

    fn bitand(self, other: Groups) -> Groups {
        Groups(self.0 & other.0)
    }
}

impl BitXor for Groups {
    type Output = Groups;

    fn bitxor(self, other: Groups) -> Groups {
        Groups(self.0 ^ other.0)
    }
}

impl Sub for Groups {
    type Output = Groups;

    fn sub(self, other: Groups) -> Groups {
        Groups(self.0 & !other.0)
    }
}

impl Not for Groups {
    type Output = Groups;

    fn not(self) -> Groups {
        Groups(!self.0)
    }
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "groups {:#b}", self.0)
    }
}

/// The group of each event type. A type without a group is disabled.
#[derive(Clone, Debug)]
pub(crate) struct Assignment([Option<Group>; EventType::COUNT]);

impl Default for Assignment {
    fn default() -> Self {
        Assignment([None; EventType::COUNT])
    }
}

impl Assignment {
    pub(crate) fn get(&self, kind: EventType) -> Option<Group> {
        self.0[kind.index()]
    }

    /// Assigns a type to a group. Returns its former group.
    pub(crate) fn set(&mut self, kind: EventType, group: Option<Group>) -> Option<Group> {
        std::mem::replace(&mut self.0[kind.index()], group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_numbers_are_below_32_and_the_lowest_is_first() {
        assert_eq!(Group::new(32), Err(Error::NoSuchGroup(32)));
        let (low, high) = (Group::new(3).unwrap(), Group::new(31).unwrap());
        let both = Groups::from(high) | low.into();
        assert_eq!(both.first(), Some(low));
        assert_eq!((both - low.into()).first(), Some(high));
        assert_eq!(Groups::NONE.first(), None);
        assert!(both.contains(high) && !(!both).contains(high));
    }
}
