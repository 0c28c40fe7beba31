//! The parts of a file that were found in the page cache.
//!
//! To find out takes up to three system calls, as many as the send itself, and servers send the same parts again
//! and again. So a file remembers what was found, for a short time.

use std::ops::Range;
use std::time::{Duration, Instant};

/// Size of a block, the unit that is remembered.
const BLOCK_BYTES: u64 = crate::File::BLOCK_BYTES;

/// Number of blocks of a window.
const BLOCKS: u64 = u64::BITS as u64;

/// Time for which a part counts as cached. The kernel evicts pages only after it has looked at all others that
/// were used less recently, so pages that were just looked at stay longer than that; if they don't, a send waits
/// for the disk once.
const VALID: Duration = Duration::from_secs(1);

/// Parts of a file that were found in the page cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CachedParts {
    /// When the first of them was found.
    since: Option<Instant>,
    /// The number of the window.
    window: u64,
    /// The blocks of the window, one bit for each.
    blocks: u64,
    /// The beginning of another block, such as the last one of a file.
    partial: (u64, u64),
}

impl CachedParts {
    /// Returns the bytes to look for before this part is sent: those from the start of its block.
    pub(crate) fn part_to_find(part: &Range<u64>) -> Range<u64> {
        part.start - part.start % BLOCK_BYTES..part.end
    }

    /// Returns whether all bytes of a part were found.
    pub(crate) fn contains(&self, part: &Range<u64>, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) > VALID) {
            return false;
        }
        let mut at = part.start;
        while at < part.end {
            let block = at / BLOCK_BYTES;
            let in_window = block / BLOCKS == self.window;
            if in_window && self.blocks & 1 << (block % BLOCKS) != 0 {
                at = (block + 1).saturating_mul(BLOCK_BYTES);
            } else if (self.partial.0..self.partial.1).contains(&at) {
                at = self.partial.1;
            } else {
                return false;
            }
        }
        true
    }

    /// Adds a part that was found. It begins with a block.
    pub(crate) fn add(&mut self, part: &Range<u64>, now: Instant) {
        let window = part.start / BLOCK_BYTES / BLOCKS;
        let is_valid =
            self.since.is_some_and(|since| now.saturating_duration_since(since) <= VALID);
        if !is_valid || window != self.window {
            *self = CachedParts { since: Some(now), window, ..CachedParts::default() };
        }
        let mut at = part.start;
        while part.end - at >= BLOCK_BYTES && at / BLOCK_BYTES / BLOCKS == window {
            self.blocks |= 1 << (at / BLOCK_BYTES % BLOCKS);
            at += BLOCK_BYTES;
        }
        if at < part.end {
            self.partial = (at, part.end.min(at.saturating_add(BLOCK_BYTES)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLIS: Duration = Duration::from_millis(1);

    #[test]
    fn parts_are_found_from_the_start_of_a_block() {
        assert_eq!(CachedParts::part_to_find(&(300_000..300_001)), 262_144..300_001);
    }

    #[test]
    fn found_parts_are_known_for_a_second() {
        let (mut parts, now) = (CachedParts::default(), Instant::now());
        assert!(!parts.contains(&(0..1), now));
        parts.add(&(0..BLOCK_BYTES), now);
        parts.add(&(BLOCK_BYTES..BLOCK_BYTES + 100), now + 500 * MILLIS);
        assert!(parts.contains(&(0..BLOCK_BYTES + 100), now + 500 * MILLIS));
        assert!(parts.contains(&(BLOCK_BYTES + 7..BLOCK_BYTES + 8), now));
        assert!(!parts.contains(&(0..BLOCK_BYTES + 101), now));
        assert!(parts.contains(&(0..1), now + 1_000 * MILLIS));
        assert!(!parts.contains(&(0..1), now + 1_001 * MILLIS));
        parts.add(&(0..3), now + 1_001 * MILLIS);
        assert!(!parts.contains(&(0..4), now + 1_001 * MILLIS), "the others have expired");
    }

    #[test]
    fn part_at_the_largest_offset_overflowed() {
        let (mut parts, now) = (CachedParts::default(), Instant::now());
        let part = u64::MAX - BLOCK_BYTES + 1..u64::MAX;
        parts.add(&part, now);
        assert!(parts.contains(&part, now));
        parts.add(&(part.start - BLOCK_BYTES..u64::MAX), now);
        assert!(parts.contains(&(part.start - BLOCK_BYTES..u64::MAX), now));
    }

    #[test]
    fn another_window_replaces_the_first() {
        let (mut parts, now) = (CachedParts::default(), Instant::now());
        let far = BLOCKS * BLOCK_BYTES;
        parts.add(&(0..BLOCK_BYTES), now);
        parts.add(&(far..far + BLOCK_BYTES), now);
        assert!(parts.contains(&(far..far + BLOCK_BYTES), now));
        assert!(!parts.contains(&(0..1), now));
        assert!(!parts.contains(&(far..far + BLOCK_BYTES + 1), now));
    }
}
