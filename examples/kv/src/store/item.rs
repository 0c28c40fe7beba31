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

        /// Offsets and sizes of the fields, in order.
        #[cfg(test)]
        const FIELDS: &[(usize, usize)] = &[$(($at, size_of::<$type>()),)*];
    };
}

// The first four bytes link to the next block.
header! {
    /// The last block.
    last, set_last: u32 = 4;
    /// The next item of the bucket.
    chained, set_chained: u32 = 8;
    /// The next more recently used item.
    newer, set_newer: u32 = 12;
    /// The next less recently used item.
    older, set_older: u32 = 16;
    /// The client's flags.
    flags, set_flags: u32 = 20;
    /// The second in which it expires; 0 for never.
    expires, set_expires: u32 = 24;
    /// Length of the value.
    value_len, set_value_len: u32 = 28;
    /// Unique number of the value, for `cas`.
    unique, set_unique: u64 = 32;
    /// Time of its move to the front of the LRU order.
    stamp, set_stamp: u32 = 40;
    /// Number of connections that hold it: one writer, or the readers.
    holders, set_holders: u16 = 44;
    /// Length of the key.
    key_len, set_key_len: u8 = 46;
    /// [`LINKED`], [`FETCHED`] and [`MIRRORED`].
    state, set_state: u8 = 47;
}

/// The index contains the item.
pub(super) const LINKED: u8 = 1;
/// A client has requested the item.
pub(super) const FETCHED: u8 = 2;
/// Handlers may have a reply with the value.
pub(super) const MIRRORED: u8 = 4;

const _: () = assert!(HEADER < BLOCK);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_contiguous() {
        let mut end = 4;
        for (at, len) in FIELDS {
            assert_eq!(*at, end);
            end += len;
        }
        assert_eq!(end, HEADER);
    }
}
