//! Contents of files that change: each byte shows the version of the file that it is of.

use std::fmt;

use shared_ring::files::File;

/// Number of versions that differ: more than appear while a block is sent. Later ones look like these again.
const VERSIONS: u32 = 32;

/// Returns the byte of a version at an offset. Each version differs from the others everywhere, and continues beyond the
/// initial length.
pub(crate) fn byte_of(version: u32, original: &[u8], at: usize) -> u8 {
    original.get(at).copied().unwrap_or(at as u8) ^ difference_of(version % VERSIONS)
}

/// Returns by what the bytes of a version differ from the original ones.
fn difference_of(version: u32) -> u8 {
    // Multiples of an odd number differ.
    version.wrapping_mul(0x1d) as u8
}

/// The versions of the bytes in a reply from a file that may [change](crate::Fault::FileChanges).
#[derive(Clone, Copy, Debug, Default)]
pub struct FileVersions {
    last: Option<u32>,
    /// One bit for each version that was found.
    found: u32,
    /// The offset at which another version began.
    switched_at: Option<usize>,
}

impl FileVersions {
    /// Returns whether a server may send `byte` at offset `at` of a file with initial content `original`, after the bytes
    /// before. A server that looks at a file between its blocks continues a block with a newer version, but sends no
    /// further block. A piece of several blocks, which begins with one, may be all of a newer version.
    pub fn accepts(&mut self, original: &[u8], at: usize, byte: u8) -> bool {
        const BLOCK_BYTES: usize = File::BLOCK_BYTES as usize;
        const PIECE_BYTES: usize = File::MAX_PIECE_BYTES as usize;
        let difference = byte ^ byte_of(0, original, at);
        if self.last.is_none_or(|last| difference_of(last) != difference) {
            let Some(version) = (0..VERSIONS).find(|version| difference_of(*version) == difference)
            else {
                return false;
            };
            if self.found & 1 << version != 0 {
                return false;
            }
            if self.last.is_some() {
                self.switched_at.get_or_insert(at);
            }
            self.found |= 1 << version;
            self.last = Some(version);
        }
        self.switched_at.is_none_or(|from| {
            let max = if from.is_multiple_of(BLOCK_BYTES) { PIECE_BYTES } else { BLOCK_BYTES };
            from / max == at / max
        })
    }
}

impl fmt::Display for FileVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.switched_at {
            Some(at) => write!(f, "another version began at {at}"),
            None => f.write_str("one version came before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = File::BLOCK_BYTES as usize;
    const PIECE: usize = File::MAX_PIECE_BYTES as usize;

    /// Returns whether bytes of these versions at these offsets are accepted one after another.
    fn accepts(parts: &[(u32, usize)]) -> bool {
        let (original, mut versions) = ([7; 10], FileVersions::default());
        parts.iter().all(|(version, at)| {
            versions.accepts(&original, *at, byte_of(*version, &original, *at))
        })
    }

    #[test]
    fn block_or_piece_continues_with_a_newer_version_and_the_next_one_does_not() {
        assert!(accepts(&[(0, 0), (0, BLOCK), (0, 2 * PIECE)]));
        assert!(accepts(&[(3, 0), (3, PIECE)]));
        assert!(accepts(&[(0, 0), (1, 1), (2, BLOCK - 1)]));
        assert!(!accepts(&[(0, 0), (1, 1), (1, BLOCK)]));
        assert!(accepts(&[(0, 0), (1, BLOCK), (1, PIECE - 1)]));
        assert!(!accepts(&[(0, 0), (1, BLOCK), (1, PIECE)]));
        assert!(!accepts(&[(1, 0), (2, 1), (1, 2)]), "an old version does not come back");
    }

    #[test]
    fn bytes_of_no_version_are_not_accepted() {
        let accepted = (0..=255).filter(|byte| FileVersions::default().accepts(&[7], 0, *byte));
        assert_eq!(accepted.count(), VERSIONS as usize);
    }
}
