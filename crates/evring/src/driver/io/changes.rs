//! Files that change while they are sent: the rest of a reply would be of other contents.
//!
//! Before a file is sent by sendfile(2) there is nothing to look at but the file; bytes that were read are looked at
//! afterwards, so that they are of the contents that the metadata show.

use std::time::Duration;

use shared_ring::__private::Table;
use shared_ring::Submit;
use shared_ring::files::{Contents, File, FileVersion};
use shared_ring::nonblocking::Blocking;

use super::Io;
use crate::driver::connection::{QueuedFile, SendItem};

/// Time after which a file that was [written to](Contents::Written) is looked at again. A pause of a send may end a quarter
/// earlier.
pub(crate) const LOOK_AGAIN: Duration = File::WRITE_TIME.saturating_mul(4).checked_div(3).unwrap();

/// The versions of a file for each connection that has sent, or whose application has read, a part of it, which is not all.
/// A connection has one at a time, of the file that it sends now, or that its application has read last.
#[derive(Default)]
pub(crate) struct Versions(Table<Option<FileVersion>>);

impl Versions {
    /// Forgets the file of a connection.
    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(version) = self.0.get_mut(slot as usize) {
            *version = None;
        }
    }

    /// Forgets a file of which bytes were sent. A file of which none were sent is one that was looked at when they were read,
    /// and that was [written to](Contents::Written).
    fn forget_sent(&mut self, slot: u32) {
        if let Some(version) = self.0.get_mut(slot as usize) {
            version.take_if(|version| version.has_sample());
        }
    }

    /// Returns a connection's version of a file.
    fn of(&mut self, slot: u32, file: &File) -> Option<&mut FileVersion> {
        let version = self.0.at(slot as usize);
        if !version.is_some_and(|version| version.is_of(file)) {
            *version = FileVersion::of(file);
        }
        version.as_mut()
    }
}

/// Returns whether a file is looked at for a piece that follows others: the piece enters a block, or is the last.
fn looks_at(start: u64, end: u64, is_last: bool) -> bool {
    let block_before = |at: u64| at.saturating_sub(1) / File::BLOCK_BYTES;
    is_last || block_before(end) > block_before(start)
}

impl<K: Submit> Io<K> {
    /// Returns the contents of the file at the front of a queue before its bytes up to `end` are sent. Of a file of which more
    /// than a block is sent, notes some bytes before.
    pub(crate) fn contents_before(&mut self, slot: u32, end: u64) -> Contents {
        let Io { kernel, connections, sent_versions: versions, .. } = self;
        let queue = &connections[slot as usize].queue;
        let Some(SendItem::File(queued)) = queue.front() else {
            return Contents::Same;
        };
        let QueuedFile { file, left, is_begun } = queued;
        let is_last = end == left.end;
        if *is_begun {
            return match versions.of(slot, file) {
                Some(version) if looks_at(left.start, end, is_last) => {
                    version.contents(kernel.host(), file, left.start, kernel.now())
                }
                _ => Contents::Same,
            };
        }
        versions.forget(slot);
        // The socket may take less than the piece.
        let first_end = end.min(left.start.saturating_add(File::BLOCK_BYTES));
        let has_more = !is_last || end > first_end || queue.has_more_parts();
        if has_more && let Some(version) = versions.of(slot, file) {
            version.note_bytes(kernel.host(), file, first_end, Blocking::NoBlock);
        }
        Contents::Same
    }

    /// Notes some bytes of the file at the front of a queue, of which more follow, unless they were noted before.
    pub(crate) fn note_sent_bytes(&mut self, slot: u32) {
        let Io { kernel, connections, sent_versions: versions, .. } = self;
        if let Some(SendItem::File(queued)) = connections[slot as usize].queue.front()
            && let Some(version) = versions.of(slot, &queued.file)
        {
            version.note_bytes(kernel.host(), &queued.file, queued.left.start, Blocking::MayBlock);
        }
    }

    /// Returns the contents of the first file of a queue, from which these bytes were read.
    pub(crate) fn contents_after_read(&mut self, slot: u32, bytes: &[u8]) -> Contents {
        let Io { kernel, connections, sent_versions, .. } = self;
        let queue = &connections[slot as usize].queue;
        let Some(queued) = queue.first_file() else {
            return Contents::Same;
        };
        contents_of_read(kernel, sent_versions, slot, queued, queue.has_more_parts(), bytes)
    }

    /// Returns the contents of a file from which an application has read these bytes at an offset.
    pub(crate) fn contents_for_application(
        &mut self,
        slot: u32,
        file: &File,
        start: u64,
        bytes: &[u8],
    ) -> Contents {
        let left = start..file.opened_len().unwrap_or(u64::MAX);
        let read = QueuedFile { file: file.clone(), left, is_begun: start > 0 };
        contents_of_read(&self.kernel, &mut self.read_versions, slot, &read, false, bytes)
    }
}

/// Returns the contents of a file from which bytes were read, the first of those that are left of a part.
fn contents_of_read<K: Submit>(
    kernel: &K,
    versions: &mut Versions,
    slot: u32,
    QueuedFile { file, left, is_begun }: &QueuedFile,
    has_more_parts: bool,
    bytes: &[u8],
) -> Contents {
    let (start, read_to) = (left.start, left.start + bytes.len() as u64);
    let is_last = read_to >= left.end;
    if !is_begun {
        versions.forget_sent(slot);
        if is_last && !has_more_parts {
            return Contents::Same;
        }
    }
    // An application may begin anywhere.
    let Some(version) = versions.of(slot, file) else { return Contents::Same };
    let (host, now) = (kernel.host(), kernel.now());
    let contents = if !version.has_sample() {
        version.contents_of_first(host, file, start, bytes, now)
    } else if looks_at(start, read_to, is_last) {
        version.contents(host, file, start, now)
    } else {
        // Not noted: they may be newer than the metadata that were looked at last.
        return Contents::Same;
    };
    if contents == Contents::Same && (!is_last || has_more_parts) {
        version.note_read(read_to, bytes);
    }
    contents
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::OwnedFd;

    use shared_ring::poller::Poll;
    use shared_ring::{Engine, EngineConfig, Host};

    use super::*;

    const BLOCK: u64 = File::BLOCK_BYTES;

    const PART: usize = 1024;

    /// Returns a file of six blocks of zeros, and a function that looks at it after a part was read at an offset.
    fn reader() -> (tempfile::NamedTempFile, impl FnMut(u64, bool, u8) -> Contents) {
        let kernel = Engine::new(Poll::default(), &EngineConfig::new(1, 1, 1)).unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(&path, vec![0; 6 * BLOCK as usize]).unwrap();
        let file = File::from(OwnedFd::from(fs::File::open(&path).unwrap()));
        file.note_metadata(&kernel.host().file_metadata(&file).unwrap());
        let mut versions = Versions::default();
        let read = move |start, is_begun, byte| {
            let queued = QueuedFile { file: file.clone(), left: start..6 * BLOCK, is_begun };
            contents_of_read(&kernel, &mut versions, 0, &queued, false, &[byte; PART])
        };
        (path, read)
    }

    #[test]
    fn bytes_that_were_read_without_a_look_at_the_file_were_noted() {
        let (path, mut read) = reader();
        assert_eq!(read(BLOCK - PART as u64, false, 0), Contents::Same);
        fs::write(&path, vec![1; 6 * BLOCK as usize + 1]).unwrap();
        // Far from the bytes that were noted, and within a block.
        assert_eq!(read(5 * BLOCK - PART as u64, true, 1), Contents::Same);
        assert_eq!(read(5 * BLOCK, true, 1), Contents::Changed);
    }

    #[test]
    fn application_that_did_not_begin_at_the_start_of_a_file_got_bytes_of_two_versions() {
        let (path, mut read) = reader();
        assert_eq!(read(1, true, 0), Contents::Same);
        fs::write(&path, vec![1; 6 * BLOCK as usize + 1]).unwrap();
        assert_eq!(read(BLOCK, true, 1), Contents::Changed);
    }

    #[test]
    fn file_is_looked_at_when_a_piece_enters_a_block_and_at_the_end() {
        assert!(!looks_at(1, BLOCK, false));
        assert!(looks_at(1, BLOCK, true));
        assert!(looks_at(1, BLOCK + 1, false), "a piece across two blocks");
        assert!(looks_at(BLOCK, BLOCK + 1, false));
        assert!(looks_at(2 * BLOCK, 3 * BLOCK, false));
        assert!(!looks_at(BLOCK + 1, 2 * BLOCK, false));
    }
}
