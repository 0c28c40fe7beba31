//! `incr` and `decr` of decimal values.

use super::blocks::Blocks;
use super::write::counted;
use super::{Key, PendingItem, Store};
use crate::number::parse_u64;

/// Result of `incr` or `decr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The new number.
    Now(u64),
    NotFound,
    /// The value is not a number.
    NonNumeric,
    NoMemory,
}

/// Maximum size of a numeric item, as memcached counts it; larger ones are not numbers.
const MAX_NUMBER: usize = 512 * 1024;

impl Store {
    /// Adds to a number or subtracts from it. Addition wraps around; subtraction stops at 0.
    pub(crate) fn count(&mut self, key: Key<'_>, delta: u64, up: bool) -> Counted {
        let Some(item) = self.look_up(key) else {
            let stats = &mut self.stats;
            *(if up { &mut stats.incr_misses } else { &mut stats.decr_misses }) += 1;
            return Counted::NotFound;
        };
        let Some(value) = self.number(item) else { return Counted::NonNumeric };
        let value = if up { value.wrapping_add(delta) } else { value.saturating_sub(delta) };
        let mut digits = itoa::Buffer::new();
        if !self.write_number(item, key, digits.format(value).as_bytes()) {
            return Counted::NoMemory;
        }
        let stats = &mut self.stats;
        *(if up { &mut stats.incr_hits } else { &mut stats.decr_hits }) += 1;
        Counted::Now(value)
    }

    fn number(&self, item: u32) -> Option<u64> {
        let len = self.blocks.value_len(item) as usize;
        let key_len = self.blocks.key_len(item).into();
        if counted(key_len, self.blocks.flags(item), len) > MAX_NUMBER {
            return None;
        }
        parse_u64(self.blocks.bytes(self.value(item), len))
    }

    /// Writes a number in place, padded with spaces to the old length. If it is longer or the item is being
    /// read, writes a new item.
    fn write_number(&mut self, item: u32, key: Key<'_>, digits: &[u8]) -> bool {
        let len = self.blocks.value_len(item) as usize;
        if digits.len() <= len && self.blocks.holders(item) == 0 {
            self.void_reply(item);
            let mut cursor = self.value(item);
            self.blocks.write(&mut cursor, digits);
            for _ in digits.len()..len {
                self.blocks.write(&mut cursor, b" ");
            }
            self.unique += 1;
            self.blocks.set_unique(item, self.unique);
            self.index.used(&mut self.blocks, item);
            return true;
        }
        let (flags, expires) = (self.blocks.flags(item), self.blocks.expires(item));
        // Eviction must not remove this item first.
        self.index.used(&mut self.blocks, item);
        let Ok(PendingItem { item: new, mut cursor }) =
            self.new_item(key.bytes, flags, expires, digits.len())
        else {
            return false;
        };
        self.blocks.write(&mut cursor, digits);
        let old = self.index.find(&self.blocks, key);
        self.put(new, old, key.hash);
        self.release(new);
        true
    }

    /// Returns the position of an item's value.
    pub(super) fn value(&self, item: u32) -> super::Cursor {
        let mut cursor = Blocks::cursor(item);
        self.blocks.advance(&mut cursor, self.blocks.key_len(item).into());
        cursor
    }
}
