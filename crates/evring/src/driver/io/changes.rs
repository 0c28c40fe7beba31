//! Files that change while they are sent: the rest of a reply would be of other contents.
//!
//! Before a file is sent by sendfile(2) there is nothing to look at but the file; bytes that were read are looked at
//! afterwards, so that they are of the contents that the metadata show.

use shared_ring::Submit;
use shared_ring::files::{Contents, File};
use shared_ring::nonblocking::Blocking;

use super::Io;
use crate::driver::connection::{QueuedFile, SendItem};

/// Returns whether a file is looked at for a piece that follows others: the piece enters a block, or is the last.
fn looks_at(start: u64, end: u64, is_last: bool) -> bool {
    let block_before = |at: u64| at.saturating_sub(1) / File::BLOCK_BYTES;
    is_last || block_before(end) > block_before(start)
}

impl<K: Submit> Io<K> {
    /// Returns the contents of the file at the front of a queue before its bytes up to `end` are sent. Of a file that is not
    /// sent in one piece, notes some bytes before.
    pub(crate) fn contents_before(&self, slot: u32, end: u64) -> Contents {
        let Some(SendItem::File(queued)) = self.connections[slot as usize].queue.front() else {
            return Contents::Same;
        };
        let QueuedFile { file, left, is_begun } = queued;
        let is_last = end == left.end;
        if *is_begun && looks_at(left.start, end, is_last) {
            return self.contents(file, left.start);
        }
        if !*is_begun && !is_last {
            file.note_bytes(self.kernel.host(), end, Blocking::NoBlock);
        }
        Contents::Same
    }

    /// Notes some bytes of the file at the front of a queue, of which not all were sent, unless they were noted before.
    pub(crate) fn note_sent_bytes(&self, slot: u32) {
        let connection = &self.connections[slot as usize];
        if let Some(SendItem::File(QueuedFile { file, left, .. })) = connection.queue.front() {
            file.note_bytes(self.kernel.host(), left.start, Blocking::MayBlock);
        }
    }

    /// Returns the contents of the first file of a queue, from which these bytes were read.
    pub(crate) fn contents_after_read(&self, slot: u32, bytes: &[u8]) -> Contents {
        let Some(queued) = self.connections[slot as usize].queue.first_file() else {
            return Contents::Same;
        };
        let QueuedFile { file, left, is_begun } = queued;
        self.contents_of(file, left.start, bytes, *is_begun, left.end)
    }

    /// Returns the contents of a file from which an application has read these bytes.
    pub(crate) fn contents_for_application(
        &self,
        (file, start): &(File, u64),
        bytes: &[u8],
    ) -> Contents {
        let end = file.opened_len().unwrap_or(u64::MAX);
        self.contents_of(file, *start, bytes, *start > 0, end)
    }

    /// Returns the contents of a file from which bytes were read: the last of them, if they reach `end`.
    fn contents_of(
        &self,
        file: &File,
        start: u64,
        bytes: &[u8],
        is_begun: bool,
        end: u64,
    ) -> Contents {
        let read_to = start + bytes.len() as u64;
        let is_last = read_to >= end;
        if is_begun && looks_at(start, read_to, is_last) {
            let contents = self.contents(file, start);
            if contents != Contents::Same {
                return contents;
            }
        }
        if !is_last {
            file.note_read(read_to, bytes);
        }
        Contents::Same
    }

    fn contents(&self, file: &File, sent_to: u64) -> Contents {
        file.contents(self.kernel.host(), sent_to, self.kernel.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = File::BLOCK_BYTES;

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
