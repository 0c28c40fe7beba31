//! Files of settings, keys and the like, which programs read at the start and again later.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Maximum time for the writer of a pipe to write all and to close it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a file of at most `max` bytes. It can be a pipe: then its writer has to write all within 30 s.
///
/// # Errors
/// If it cannot be read, has more bytes, or is a pipe to which nothing is written.
pub fn read(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    read_within(path, max, TIMEOUT)
}

fn read_within(path: &Path, max: usize, timeout: Duration) -> io::Result<Vec<u8>> {
    let until = Instant::now() + timeout;
    // The open of a pipe would wait for its writer (fifo(7)).
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut bytes = Vec::new();
    loop {
        let room = (max + 1 - bytes.len()) as u64;
        match file.by_ref().take(room).read_to_end(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_for(&file, until)?,
            Err(error) => return Err(error),
            Ok(_) if bytes.len() > max => {
                let reason = format!("it has more than {max} bytes");
                return Err(io::Error::new(ErrorKind::InvalidData, reason));
            }
            Ok(_) if bytes.is_empty() && file.metadata()?.file_type().is_fifo() => {
                let reason =
                    "nothing was written to this pipe: start its writer first, or use a file";
                return Err(io::Error::new(ErrorKind::InvalidData, reason));
            }
            Ok(_) => return Ok(bytes),
        }
    }
}

/// Waits until a pipe has bytes or its last writer has closed it.
fn wait_for(file: &File, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) => {
                let reason =
                    "the writer of this pipe does not end: let it close the pipe, or use a file";
                return Err(io::Error::new(ErrorKind::TimedOut, reason));
            }
            Ok(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;
    use std::thread;

    use super::*;

    /// Returns a path that leads to a pipe.
    fn path_of(end: &impl AsRawFd) -> PathBuf {
        format!("/proc/self/fd/{}", end.as_raw_fd()).into()
    }

    #[test]
    fn pipe_is_read_until_its_last_writer_has_closed_it() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = path_of(&reader);
        let text = vec![b'a'; 1 << 20];
        let read = thread::scope(|scope| {
            // More than a pipe holds.
            scope.spawn(|| {
                writer.write_all(&text).unwrap();
                drop(writer);
            });
            read(&path, 1 << 20).unwrap()
        });
        assert!(read == text);
        let error = super::read(&path, 1 << 20).unwrap_err();
        assert!(error.to_string().contains("nothing was written to this pipe"), "{error}");
    }

    #[test]
    fn writer_that_does_not_end_is_not_waited_for() {
        let (reader, mut writer) = io::pipe().unwrap();
        for text in ["", "text"] {
            writer.write_all(text.as_bytes()).unwrap();
            let error = read_within(&path_of(&reader), 9, Duration::from_millis(1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        }
    }

    #[test]
    fn files_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for (text, is_read) in [("", true), ("text", true), ("texts", false)] {
            fs::write(&path, text).unwrap();
            assert_eq!(read(&path, 4).ok().as_deref(), is_read.then_some(text.as_bytes()));
        }
        let error = read(Path::new("/dev/zero"), 4).unwrap_err();
        assert!(error.to_string().contains("more than 4 bytes"), "{error}");
    }
}
