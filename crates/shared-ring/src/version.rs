//! Whether the contents of an open file are still those that were sent before.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::Metadata;

/// The contents of a file, compared with those of which some was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The same, perhaps with bytes added.
    Same,
    /// Others, or not known.
    Changed,
    /// The file was written to, and is as long as before: bytes were replaced, or a write(2) in progress adds some. The
    /// kernel sets the time first and the length later. If this lasts for [`File::WRITE_TIME`](crate::File::WRITE_TIME), bytes
    /// were replaced.
    Written,
}

/// The version of a file of which one client gets several pieces.
///
/// The kernel says that a file was written to, but not whether bytes were added or replaced. So a few of the bytes that
/// were sent are kept. A file that has become longer counts as one with added bytes as long as these are the same.
#[derive(Clone, Copy, Debug)]
pub struct FileVersion {
    opened: Opened,
    len: u64,
    modified_ns: i64,
    sample: Option<Sample>,
    /// When the file was first seen to be [written to](Contents::Written).
    written: Option<Instant>,
}

/// Metadata of a file when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    inode: u64,
    pub(crate) len: u64,
    modified_ns: i64,
}

impl From<&Metadata> for Opened {
    fn from(&Metadata { inode, len, modified_ns, .. }: &Metadata) -> Self {
        Opened { inode, len, modified_ns }
    }
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The offset behind them.
    end: u64,
    len: u8,
    bytes: [u8; FileVersion::SAMPLE_BYTES],
}

impl FileVersion {
    /// Maximum number of bytes of a sample.
    pub(crate) const SAMPLE_BYTES: usize = 64;

    /// Maximum time from the change of mtime until the change of the length, also if the writer is preempted between them.
    pub(crate) const WRITE_TIME: Duration = Duration::from_millis(500);

    /// Distance from the next bytes at which a sample is replaced. The piece before may have as many bytes, so a sample that
    /// is compared may be up to twice as far away.
    const MAX_DISTANCE: u64 = 1 << 20;

    pub(crate) fn new(opened: Opened) -> Self {
        let Opened { len, modified_ns, .. } = opened;
        FileVersion { opened, len, modified_ns, sample: None, written: None }
    }

    /// Returns whether this is of a file with these metadata.
    pub(crate) fn is_opened_as(&self, opened: Opened) -> bool {
        self.opened == opened
    }

    /// Returns the length that the file had when it was looked at last.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether some bytes are known.
    pub fn has_sample(&self) -> bool {
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

    /// Compares the contents with the metadata that were read at a time. `read` reads bytes at an offset, and returns false if
    /// it cannot. If the metadata cannot be read, the contents count as changed.
    pub(crate) fn compare(
        &mut self,
        found: Result<Metadata, Errno>,
        at: Instant,
        read: impl FnOnce(u64, &mut [u8]) -> bool,
    ) -> Contents {
        let Ok(found) = found else { return Contents::Changed };
        if (found.len, found.modified_ns) == (self.len, self.modified_ns) {
            self.written = None;
            return Contents::Same;
        }
        if found.len == self.len {
            let since = *self.written.get_or_insert(at);
            let is_over = at.saturating_duration_since(since) >= Self::WRITE_TIME;
            return if is_over { Contents::Changed } else { Contents::Written };
        }
        if found.len < self.len {
            return Contents::Changed;
        }
        if let Some(Sample { end, len, bytes }) = self.sample {
            let (expected, mut now) = (&bytes[..len.into()], [0; Self::SAMPLE_BYTES]);
            let now = &mut now[..expected.len()];
            if !read(end.saturating_sub(len.into()), now) || now != expected {
                return Contents::Changed;
            }
        }
        (self.len, self.modified_ns, self.written) = (found.len, found.modified_ns, None);
        Contents::Same
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FileKind;

    fn meta(len: u64, modified_ns: i64) -> Metadata {
        Metadata { kind: FileKind::Regular, len, modified_ns, changed_ns: 0, inode: 1 }
    }

    fn version(len: u64, modified_ns: i64) -> FileVersion {
        FileVersion::new(Opened::from(&meta(len, modified_ns)))
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
        let (mut version, start) = (version(100, 1), Instant::now());
        version.set_sample(50, &[7; 50]);
        assert_eq!(version.compare(Ok(meta(100, 1)), start, never), Contents::Same);
        assert_eq!(version.compare(Ok(meta(99, 1)), start, never), Contents::Changed);
        assert_eq!(version.compare(Ok(meta(100, 2)), start, never), Contents::Written);
        let before = start + FileVersion::WRITE_TIME - Duration::from_nanos(1);
        assert_eq!(version.compare(Ok(meta(100, 3)), before, never), Contents::Written);
        let over = start + FileVersion::WRITE_TIME;
        assert_eq!(version.compare(Ok(meta(100, 3)), over, never), Contents::Changed);
    }

    #[test]
    fn file_that_becomes_longer_after_its_mtime_has_changed_is_the_same() {
        let (mut version, start) = (version(100, 1), Instant::now());
        assert_eq!(version.compare(Ok(meta(100, 2)), start, never), Contents::Written);
        assert_eq!(version.compare(Ok(meta(101, 2)), start, never), Contents::Same);
        let later = start + FileVersion::WRITE_TIME;
        assert_eq!(version.compare(Ok(meta(101, 3)), later, never), Contents::Written);
        assert_eq!(version.compare(Ok(meta(102, 3)), later, never), Contents::Same);
    }

    #[test]
    fn longer_file_has_changed_unless_the_bytes_that_were_sent_are_there() {
        let (mut version, at) = (version(100, 1), Instant::now());
        version.set_sample(50, &[7; 50]);
        assert_eq!(version.compare(Ok(meta(101, 2)), at, all(8)), Contents::Changed);
        assert_eq!(version.compare(Ok(meta(101, 2)), at, |_, _| false), Contents::Changed);
        assert_eq!(version.compare(Ok(meta(101, 2)), at, all(7)), Contents::Same);
        assert_eq!(version.compare(Ok(meta(101, 2)), at, never), Contents::Same, "that is known");
        assert_eq!(
            version.compare(Ok(meta(100, 3)), at, never),
            Contents::Changed,
            "it is shorter"
        );
    }

    #[test]
    fn file_whose_metadata_cannot_be_read_counts_as_changed() {
        let mut version = version(100, 1);
        assert_eq!(version.compare(Err(Errno::IO), Instant::now(), never), Contents::Changed);
    }

    #[test]
    fn longer_file_of_which_nothing_was_sent_has_not_changed() {
        let mut version = version(100, 1);
        assert_eq!(version.compare(Ok(meta(101, 2)), Instant::now(), never), Contents::Same);
    }

    #[test]
    fn sample_is_the_last_64_bytes() {
        let mut version = version(1 << 30, 1);
        assert!(version.lacks_sample(0));
        let mut sent = [6; 100];
        sent[36..].fill(7);
        version.set_sample(200, &sent);
        let read = |at, into: &mut [u8]| {
            assert_eq!((at, into.len()), (136, 64));
            all(7)(at, into)
        };
        assert_eq!(version.compare(Ok(meta(2 << 30, 2)), Instant::now(), read), Contents::Same);
        assert!(!version.lacks_sample(200 + (1 << 20) - 1));
        assert!(version.lacks_sample(200 + (1 << 20)));
        version.set_sample(1 << 20, &[]);
        assert!(!version.lacks_sample(200), "no bytes are no sample");
    }
}
