//! The pipes that are ready to use, a module each.

pub mod byte_swap;
pub mod chacha20;
pub mod checksum;
pub mod copy;
pub mod count;
pub mod crc32c;
pub mod search;
pub mod xor;
