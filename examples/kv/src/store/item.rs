//! The header at the beginning of an item's first block.

use super::blocks::{BLOCK, Blocks, HEADER};

macro_rules! header {
    ($($(#[$doc:meta])* $get:ident, $set:ident: $type:ty = $at:literal;)*) => {
        impl Blocks {
            $(
                $(#[$doc])*
                #[inline]
                pub(super) fn $get(&self, item: u32) -> $type {
                    <$type>::from_le_bytes(self.field(item, $at))
                }

                #[inline]
                pub(super) fn $set(&mut self, item: u32, value: $type) {
                    self.set_field(item, $at, value.to_le_bytes());
                }
            )*
        }

        /// The fields' places, in order.
        #[cfg(test)]
        const FIELDS: &[(usize, usize)] = &[$(($at, size_of::<$type>()),)*];
    };
}

// The first four bytes name the next block.
header! {
    /// The last block.
    last, set_last: u32 = 4;
    /// The next item of its bucket.
    chained, set_chained: u32 = 8;
    /// The item that was used next after it.
    newer, set_newer: u32 = 12;
    /// The item that was used last before it.
    older, set_older: u32 = 16;
    /// The client's flags.
    flags, set_flags: u32 = 20;
    /// The second in which it expires; 0 if it never does.
    expires, set_expires: u32 = 24;
    /// The length of its value.
    value_len, set_value_len: u32 = 28;
    /// Its number among all values that were ever stored, for `cas`.
    unique, set_unique: u64 = 32;
    /// When it was moved to the front of the order of use.
    stamp, set_stamp: u32 = 40;
    /// How many connections hold it: one that writes it, or those that read it.
    holders, set_holders: u16 = 44;
    /// The length of its key.
    key_len, set_key_len: u8 = 46;
    /// [`LINKED`] and [`FETCHED`].
    state, set_state: u8 = 47;
}

/// It can be found by its key.
pub(super) const LINKED: u8 = 1;
/// A client has asked for it.
pub(super) const FETCHED: u8 = 2;

const _: () = assert!(HEADER < BLOCK);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_lie_side_by_side() {
        let mut end = 4;
        for (at, len) in FIELDS {
            assert_eq!(*at, end);
            end += len;
        }
        assert_eq!(end, HEADER);
    }
}
