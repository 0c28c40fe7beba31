//! Whether a file has changed since some of it was sent.

use std::time::{Duration, Instant};

use crate::version::{Contents, Version};
use crate::{Blocking, File, Host};

impl File {
    /// Time after which a file that was [written to](Contents::Written) is looked at again.
    pub const WRITE_TIME: Duration = Version::WRITE_TIME;

    /// Notes some bytes of the file, unless some are known: the last 64 before an offset, which are sent next, if the page
    /// cache has them, or which were just sent.
    pub fn note_bytes(&self, host: &impl Host, end: u64, disk: Blocking) {
        let has_sample = self.version().is_none_or(|version| version.has_sample());
        if !has_sample && let Some((sample, len)) = self.read_sample(host, end, disk) {
            self.note_read(end, &sample[..len]);
        }
    }

    /// Compares the contents with those at [`note_metadata`](File::note_metadata), as the bytes before `sent_to` were sent. They
    /// have changed if the file is shorter, or was written to and is of the same length, or is longer and has not the bytes
    /// that were noted last. A longer file with these is one to which bytes were added. The time of the last change of
    /// metadata does not count: it changes when another file takes the name of this one. If the metadata cannot be read, the
    /// file counts as changed.
    pub fn contents(&self, host: &impl Host, sent_to: u64, now: Instant) -> Contents {
        let Some(mut version) = self.version() else { return Contents::Same };
        // Read before the metadata, which then show whether these are still the bytes that were sent.
        let sample = self.read_sample(host, sent_to, Blocking::NoBlock);
        let contents = version.compare(host.file_metadata(self), now, |at, into| {
            // Only after it became longer. These bytes were sent lately; and not all file systems can read without
            // blocking.
            host.read_file(self, at, into, Blocking::MayBlock).is_ok_and(|n| n == into.len())
        });
        if let (Some((sample, len)), Contents::Same) = (sample, contents) {
            version.set_sample(sent_to, &sample[..len]);
        }
        self.set_version(version);
        contents
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::time::SystemTime;

    use super::*;
    use crate::linux::Linux;

    #[test]
    fn file_was_changed_during_a_write_that_adds_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, [1; 1000]).unwrap();
        let mut log = fs::File::options().append(true).open(&path).unwrap();
        log.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(fs::File::open(&path).unwrap()));
        let (host, start) = (Linux::default(), Instant::now());
        file.note_metadata(&host.file_metadata(&file).unwrap());
        file.note_bytes(&host, 500, Blocking::MayBlock);
        assert_eq!(file.contents(&host, 500, start), Contents::Same);
        // write(2) sets mtime before it adds the bytes.
        log.set_modified(SystemTime::now()).unwrap();
        assert_eq!(file.contents(&host, 500, start), Contents::Written);
        log.write_all(&[2; 1000]).unwrap();
        let later = start + File::WRITE_TIME;
        assert_eq!(file.contents(&host, 500, later), Contents::Same);
        log.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(file.contents(&host, 500, later), Contents::Written);
        assert_eq!(file.contents(&host, 500, later + File::WRITE_TIME), Contents::Changed);
    }
}
