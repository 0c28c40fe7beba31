//! Whether the contents of an open file are still those that were sent before.

use rustix::io::Errno;

use crate::Metadata;

/// What is known of the contents of a file.
///
/// The kernel says that a file was written to, but not whether bytes were added or replaced. So a few of the bytes that
/// were sent are kept. A file that has become longer counts as one with added bytes as long as these are the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    /// Length when the file was opened.
    pub(crate) opened_len: u64,
    len: u64,
    modified_ns: i64,
    sample: Option<Sample>,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The offset behind them.
    end: u64,
    len: u8,
    bytes: [u8; Version::SAMPLE_BYTES],
}

impl Version {
    /// Maximum number of bytes of a sample.
    pub(crate) const SAMPLE_BYTES: usize = 64;

    /// Maximum distance of a sample from bytes that are sent.
    const MAX_DISTANCE: u64 = 1 << 20;

    /// Returns the contents of a file that is opened.
    pub(crate) fn new(opened: &Metadata) -> Self {
        let &Metadata { len, modified_ns, .. } = opened;
        Version { opened_len: len, len, modified_ns, sample: None }
    }

    /// Returns whether some bytes are known.
    pub(crate) fn has_sample(&self) -> bool {
        self.sample.is_some()
    }

    /// Returns whether no bytes are known that lie near an offset.
    pub(crate) fn lacks_sample(&self, at: u64) -> bool {
        self.sample.is_none_or(|sample| sample.end.abs_diff(at) >= Self::MAX_DISTANCE)
    }

    /// Keeps the last of these bytes, which were sent and end at an offset.
    pub(crate) fn set_sample(&mut self, end: u64, sent: &[u8]) {
        let last = &sent[sent.len().saturating_sub(Self::SAMPLE_BYTES)..];
        if last.is_empty() {
            return;
        }
        let mut bytes = [0; Self::SAMPLE_BYTES];
        bytes[..last.len()].copy_from_slice(last);
        self.sample = Some(Sample { end, len: last.len() as u8, bytes });
    }

    /// Returns whether the contents have changed, apart from added bytes. `read` reads bytes at an offset, and returns false if
    /// it cannot. If the metadata cannot be read, the contents count as changed.
    pub(crate) fn has_changed(
        &mut self,
        now: Result<Metadata, Errno>,
        read: impl FnOnce(u64, &mut [u8]) -> bool,
    ) -> bool {
        let Ok(now) = now else { return true };
        if (now.len, now.modified_ns) == (self.len, self.modified_ns) {
            return false;
        }
        if now.len <= self.len {
            return true;
        }
        if let Some(Sample { end, len, bytes }) = self.sample {
            let (expected, mut found) = (&bytes[..len.into()], [0; Self::SAMPLE_BYTES]);
            let found = &mut found[..expected.len()];
            if !read(end.saturating_sub(len.into()), found) || found != expected {
                return true;
            }
        }
        (self.len, self.modified_ns) = (now.len, now.modified_ns);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FileKind;

    fn meta(len: u64, modified_ns: i64) -> Metadata {
        Metadata { kind: FileKind::Regular, len, modified_ns, changed_ns: 0, inode: 1 }
    }

    /// Returns a function that reads from a file with this byte everywhere.
    fn all(byte: u8) -> impl FnOnce(u64, &mut [u8]) -> bool {
        move |_, into| {
            into.fill(byte);
            true
        }
    }

    fn never(_: u64, _: &mut [u8]) -> bool {
        panic!("no bytes are needed")
    }

    #[test]
    fn shorter_and_rewritten_files_have_changed() {
        let mut version = Version::new(&meta(100, 1));
        version.set_sample(50, &[7; 50]);
        assert!(!version.has_changed(Ok(meta(100, 1)), never));
        assert!(version.has_changed(Ok(meta(99, 1)), never));
        assert!(version.has_changed(Ok(meta(100, 2)), never));
    }

    #[test]
    fn longer_file_has_changed_unless_the_bytes_that_were_sent_are_there() {
        let mut version = Version::new(&meta(100, 1));
        version.set_sample(50, &[7; 50]);
        assert!(version.has_changed(Ok(meta(101, 2)), all(8)));
        assert!(version.has_changed(Ok(meta(101, 2)), |_, _| false));
        assert!(!version.has_changed(Ok(meta(101, 2)), all(7)));
        assert!(!version.has_changed(Ok(meta(101, 2)), never), "that is known");
        assert!(version.has_changed(Ok(meta(100, 3)), never), "it became shorter afterwards");
        assert_eq!(version.opened_len, 100);
    }

    #[test]
    fn file_whose_metadata_cannot_be_read_counts_as_changed() {
        assert!(Version::new(&meta(100, 1)).has_changed(Err(Errno::IO), never));
    }

    #[test]
    fn longer_file_of_which_nothing_was_sent_has_not_changed() {
        let mut version = Version::new(&meta(100, 1));
        assert!(!version.has_changed(Ok(meta(101, 2)), never));
    }

    #[test]
    fn sample_is_the_last_64_bytes() {
        let mut version = Version::new(&meta(1 << 30, 1));
        assert!(version.lacks_sample(0));
        let mut sent = [6; 100];
        sent[36..].fill(7);
        version.set_sample(200, &sent);
        let read = |at, into: &mut [u8]| {
            assert_eq!((at, into.len()), (136, 64));
            all(7)(at, into)
        };
        assert!(!version.has_changed(Ok(meta(2 << 30, 2)), read));
        assert!(!version.lacks_sample(200 + (1 << 20) - 1));
        assert!(version.lacks_sample(200 + (1 << 20)));
        version.set_sample(1 << 20, &[]);
        assert!(!version.lacks_sample(200), "no bytes are no sample");
    }
}
