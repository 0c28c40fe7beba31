//! Whether a file has changed since some of it was sent.

use crate::version::Version;
use crate::{Blocking, File, Host};

impl File {
    /// Notes some bytes of the file, unless some are known: the last 64 before an offset, which are sent next, if the page
    /// cache has them, or which were just sent.
    pub fn note_bytes(&self, host: &impl Host, end: u64, disk: Blocking) {
        let has_sample = self.version().is_none_or(|version| version.has_sample());
        if !has_sample && let Some((sample, len)) = self.read_sample(host, end, disk) {
            self.note_read(end, &sample[..len]);
        }
    }

    /// Returns whether the contents have changed since [`note_metadata`](File::note_metadata), as the bytes before `sent_to`
    /// were sent: the file is shorter, or of the same length and was written to later, or is longer and has not the bytes that
    /// were noted last. A longer file with these is one to which bytes were added. The time of the last change of metadata
    /// does not count: it changes when another file takes the name of this one. If the metadata cannot be read, the file
    /// counts as changed.
    pub fn has_changed(&self, host: &impl Host, sent_to: u64) -> bool {
        let Some(mut version) = self.version() else { return false };
        // Read before the metadata, which then show whether these are still the bytes that were sent.
        let sample = self.read_sample(host, sent_to, Blocking::NoBlock);
        let has_changed = version.has_changed(host.file_metadata(self), |at, into| {
            // Only after it became longer. These bytes were sent lately; and not all file systems can read without
            // blocking.
            host.read_file(self, at, into, Blocking::MayBlock).is_ok_and(|n| n == into.len())
        });
        if let (Some((sample, len)), false) = (sample, has_changed) {
            version.set_sample(sent_to, &sample[..len]);
        }
        self.set_version(version);
        has_changed
    }

    /// Reads the last bytes before an offset, if none near it are known.
    fn read_sample(
        &self,
        host: &impl Host,
        end: u64,
        disk: Blocking,
    ) -> Option<([u8; Version::SAMPLE_BYTES], usize)> {
        self.version().filter(|version| version.lacks_sample(end))?;
        let mut sample = [0; Version::SAMPLE_BYTES];
        let len = end.min(sample.len() as u64) as usize;
        let read = host.read_file(self, end - len as u64, &mut sample[..len], disk);
        read.is_ok_and(|n| n == len).then_some((sample, len))
    }
}
