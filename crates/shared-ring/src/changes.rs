//! Whether a file has changed since some of it was sent.

use std::time::{Duration, Instant};

use crate::version::{Contents, FileVersion};
use crate::{Blocking, File, Host};

impl File {
    /// Time after which a file that was [written to](Contents::Written) is looked at again.
    pub const WRITE_TIME: Duration = FileVersion::WRITE_TIME;
}

impl FileVersion {
    /// Returns the version of a file before a first piece of it is sent. `None` if it is not
    /// [looked at](File::note_metadata).
    pub fn of(file: &File) -> Option<Self> {
        file.opened().map(FileVersion::new)
    }

    /// Returns whether this is a version of a file as it was opened.
    pub fn is_of(&self, file: &File) -> bool {
        file.opened().is_some_and(|opened| self.is_opened_as(opened))
    }

    /// Notes some bytes of the file, unless some are known: the last 64 before an offset, which are sent next, if the page
    /// cache has them, or which were just sent.
    pub fn note_bytes(&mut self, host: &impl Host, file: &File, end: u64, disk: Blocking) {
        if !self.has_sample()
            && let Some((sample, len)) = self.read_sample(host, file, end, disk)
        {
            self.set_sample(end, &sample[..len]);
        }
    }

    /// Notes that these bytes before an offset were read from the file, to be sent.
    pub fn note_read(&mut self, end: u64, bytes: &[u8]) {
        if self.lacks_sample(end) {
            self.set_sample(end, bytes);
        }
    }

    /// Compares the contents with those before, when the next bytes are those at `sent_to`. They have changed if the file is
    /// shorter, or was written to and is of the same length, or is longer and has not the bytes that were noted last. A longer
    /// file with these is one to which bytes were added. The time of the last change of metadata does not count: it
    /// changes when another file takes the name of this one. If the metadata cannot be read, the file counts as changed.
    pub fn contents(
        &mut self,
        host: &impl Host,
        file: &File,
        sent_to: u64,
        now: Instant,
    ) -> Contents {
        // Read before the metadata, which then show whether these are still the bytes that were sent.
        let sample = self.read_sample(host, file, sent_to, Blocking::NoBlock);
        let contents = self.compare(host.file_metadata(file), now, |at, into| {
            // Only after it became longer. As a rule these bytes were sent less than 2 MiB before: a sample is kept while it
            // is less than 1 MiB away, and a piece has up to 1 MiB. Not all file systems can read without blocking.
            host.read_file(file, at, into, Blocking::MayBlock).is_ok_and(|n| n == into.len())
        });
        if let (Some((sample, len)), Contents::Same) = (sample, contents) {
            self.set_sample(sent_to, &sample[..len]);
        }
        contents
    }

    /// Compares the contents with those at the open, after these bytes were read at an offset. They are the first that
    /// are sent. A longer file must still have all of them: a read that takes several calls can be of two contents.
    pub fn contents_of_first(
        &mut self,
        host: &impl Host,
        file: &File,
        offset: u64,
        first: &[u8],
        now: Instant,
    ) -> Contents {
        let len = self.len();
        match self.compare(host.file_metadata(file), now, |_, _| false) {
            Contents::Same if self.len() > len && !has_bytes(host, file, offset, first) => {
                Contents::Changed
            }
            contents => contents,
        }
    }

    /// Reads the last bytes before an offset, if none near it are known.
    fn read_sample(
        &self,
        host: &impl Host,
        file: &File,
        end: u64,
        disk: Blocking,
    ) -> Option<([u8; FileVersion::SAMPLE_BYTES], usize)> {
        if !self.lacks_sample(end) {
            return None;
        }
        let mut sample = [0; FileVersion::SAMPLE_BYTES];
        let len = end.min(sample.len() as u64) as usize;
        let read = host.read_file(file, end - len as u64, &mut sample[..len], disk);
        read.is_ok_and(|n| n == len).then_some((sample, len))
    }
}

/// Returns whether a file has these bytes at an offset. They were read lately, so the page cache probably has them.
#[cold]
#[inline(never)]
fn has_bytes(host: &impl Host, file: &File, offset: u64, bytes: &[u8]) -> bool {
    const PART: usize = 32 * 1024;
    let mut now = [0; PART];
    (offset..).step_by(PART).zip(bytes.chunks(PART)).all(|(at, part)| {
        let now = &mut now[..part.len()];
        host.read_file(file, at, now, Blocking::MayBlock) == Ok(part.len()) && now == part
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::time::SystemTime;

    use super::*;
    use crate::linux::Linux;

    /// Returns a file with these bytes, opened for writing, and its version.
    fn opened(bytes: &[u8]) -> (fs::File, File, FileVersion) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, bytes).unwrap();
        let log = fs::File::options().append(true).open(&path).unwrap();
        log.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let file = File::from(OwnedFd::from(fs::File::open(&path).unwrap()));
        file.note_metadata(&Linux::default().file_metadata(&file).unwrap());
        let version = FileVersion::of(&file).unwrap();
        assert!(version.is_of(&file));
        (log, file, version)
    }

    #[test]
    fn first_bytes_of_two_contents_counted_as_those_of_a_longer_file() {
        let bytes: Vec<u8> = (0..80_000_u32).map(|at| (at % 251) as u8).collect();
        let contents = |first: &[u8], offset| {
            let (mut log, file, mut version) = opened(&bytes);
            let (host, now) = (Linux::default(), Instant::now());
            let mut contents = |now| version.contents_of_first(&host, &file, offset, first, now);
            assert_eq!(contents(now), Contents::Same, "nothing was written");
            log.set_modified(SystemTime::now()).unwrap();
            assert_eq!(contents(now), Contents::Written);
            log.write_all(b"more").unwrap();
            contents(now)
        };
        assert_eq!(contents(&bytes[..70_000], 0), Contents::Same);
        assert_eq!(contents(&bytes[500..70_000], 500), Contents::Same);
        for at in [0, 32_767, 32_768, 69_999] {
            let mut first = bytes[..70_000].to_vec();
            first[at] ^= 1;
            assert_eq!(contents(&first, 0), Contents::Changed, "byte {at}");
        }
        let mut beyond = bytes.clone();
        beyond.extend_from_slice(b"more than the file has");
        assert_eq!(contents(&beyond, 0), Contents::Changed);
    }

    #[test]
    fn file_was_changed_during_a_write_that_adds_bytes() {
        let (mut log, file, mut version) = opened(&[1; 1000]);
        let (host, start) = (Linux::default(), Instant::now());
        version.note_bytes(&host, &file, 500, Blocking::MayBlock);
        let mut contents = |now| version.contents(&host, &file, 500, now);
        assert_eq!(contents(start), Contents::Same);
        // write(2) sets mtime before it adds the bytes.
        log.set_modified(SystemTime::now()).unwrap();
        assert_eq!(contents(start), Contents::Written);
        log.write_all(&[2; 1000]).unwrap();
        let later = start + File::WRITE_TIME;
        assert_eq!(contents(later), Contents::Same);
        log.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(contents(later), Contents::Written);
        assert_eq!(contents(later + File::WRITE_TIME), Contents::Changed);
    }
}
