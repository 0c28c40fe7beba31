//! Memory for parts of files that are cached, used by one read after another.

use std::ops::Range;
use std::rc::Rc;

use rustix::io::Errno;

use crate::file_op::len;
use crate::{BufferPool, Fd, FileOutcome, FileRange, RxBuf, System};

/// The buffers of one kernel for reads of files that complete at once.
///
/// The buffers that were allocated first are lent out first, and of those allocated together the one that was returned
/// last. So a few buffers serve any number of connections whose sockets take what was read, and these stay in the CPU's
/// cache. Memory is allocated when more buffers are needed at a time than ever before, and is kept.
#[derive(Debug, Default)]
pub struct ReadBuffers(Vec<Rc<BufferPool>>);

impl ReadBuffers {
    /// Size of a buffer in bytes. Longer reads have memory of their own.
    pub const BYTES: u32 = 64 * 1024;
    /// Maximum number of buffers. Beyond it, each read has memory of its own.
    pub const MAX: u16 = 128;
    /// Maximum memory of all buffers, in bytes.
    pub const MAX_BYTES: usize = Self::MAX as usize * (Self::BYTES as usize + 128);
    /// Number of buffers that are allocated at a time.
    const STEP: u16 = 4;
    /// Minimum number of bytes that occupy a buffer: the reader may keep fewer for long.
    const MIN_BYTES: usize = Self::BYTES as usize / 4;

    /// Reads a part of a file without blocking. A short part, and any while all buffers are lent out, has memory of its own.
    /// Returns `None` if the part is longer than a buffer.
    ///
    /// # Errors
    /// Those of [`System::read_cached`].
    pub fn read(
        &mut self,
        system: &mut impl System,
        file: Fd,
        part: &Range<u64>,
    ) -> Option<Result<FileOutcome, Errno>> {
        let len = len(part);
        if len > Self::BYTES {
            return None;
        }
        let part = FileRange { file, offset: part.start, len };
        let is_long = len as usize >= Self::MIN_BYTES;
        let Some(mut bytes) = is_long.then(|| self.take()).flatten() else {
            let mut bytes = vec![0; len as usize];
            return Some(system.read_cached(part, &mut bytes).map(|n| {
                bytes.truncate(n);
                FileOutcome::Read(bytes.into())
            }));
        };
        match system.read_cached(part, &mut bytes[..len as usize]) {
            Ok(n) => bytes.truncate(n),
            Err(errno) => return Some(Err(errno)),
        }
        let is_filled = bytes.len() >= Self::MIN_BYTES;
        let bytes = if is_filled { bytes } else { RxBuf::from(bytes.to_vec()) };
        Some(Ok(FileOutcome::Read(bytes)))
    }

    fn take(&mut self) -> Option<RxBuf> {
        if let Some(free) = self.0.iter().find_map(BufferPool::lend_free) {
            return Some(free);
        }
        if self.0.len() == usize::from(Self::MAX / Self::STEP) {
            return None;
        }
        let more = BufferPool::for_reads(Self::STEP, Self::BYTES);
        let first = more.lend_free();
        self.0.push(more);
        first
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::Linux;

    /// Returns a reader of the first bytes of a cached file with so many bytes.
    fn reader(
        buffers: &mut ReadBuffers,
        file_bytes: usize,
    ) -> impl FnMut(u64) -> Option<Result<RxBuf, Errno>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; file_bytes]).unwrap();
        move |len| {
            let read =
                buffers.read(&mut Linux::default(), Fd::from_raw(file.as_raw_fd()), &(0..len))?;
            Some(read.map(|outcome| match outcome {
                FileOutcome::Read(bytes) => bytes,
                other => panic!("{other:?}"),
            }))
        }
    }

    #[test]
    fn reads_share_a_bounded_number_of_buffers() {
        let mut buffers = ReadBuffers::default();
        let mut reader = reader(&mut buffers, 100_000);
        let mut read = || reader(60_000).unwrap().unwrap();
        let mut held: Vec<_> = (0..ReadBuffers::MAX).map(|_| read()).collect();
        let is_lent = |bytes: &RxBuf| bytes.held() == ReadBuffers::BYTES as usize;
        assert!(held.iter().all(|bytes| **bytes == [7; 60_000] && is_lent(bytes)));
        let own = read();
        assert!(*own == [7; 60_000] && !is_lent(&own), "{} bytes", own.held());
        let last = held.pop().unwrap().as_ptr();
        assert_eq!(read().as_ptr(), last);
        drop(reader);
        assert_eq!(buffers.0.len(), usize::from(ReadBuffers::MAX / ReadBuffers::STEP));
    }

    #[test]
    fn part_was_not_looked_for_while_all_buffers_were_lent() {
        let mut buffers = ReadBuffers::default();
        let held: Vec<_> = std::iter::from_fn(|| buffers.take()).collect();
        assert_eq!(held.len(), usize::from(ReadBuffers::MAX));
        let directory = std::fs::File::open("/proc").unwrap();
        let fd = Fd::from_raw(directory.as_raw_fd());
        let failed = buffers.read(&mut Linux::default(), fd, &(0..20_000));
        assert!(matches!(failed, Some(Err(_))), "{failed:?}");
        let mut read = reader(&mut buffers, 65_536);
        let bytes = read(65_536).unwrap().unwrap();
        assert!(*bytes == [7; 65_536]);
        assert!(read(65_537).is_none());
    }

    #[test]
    fn read_of_few_bytes_allocated_buffers() {
        let mut buffers = ReadBuffers::default();
        let mut read = reader(&mut buffers, 100_000);
        assert_eq!(*read(16_383).unwrap().unwrap(), [7; 16_383]);
        drop(read);
        assert!(buffers.0.is_empty());
    }

    #[test]
    fn few_bytes_occupy_no_buffer_and_more_than_a_buffer_none() {
        let mut buffers = ReadBuffers::default();
        let mut read = reader(&mut buffers, 16_383);
        let few: Vec<_> = (0..1_000).map(|_| read(60_000).unwrap().unwrap()).collect();
        assert!(few.iter().all(|bytes| bytes.held() < 20_000));
        drop(read);
        let mut read = reader(&mut buffers, 100_000);
        assert_eq!(read(16_384).unwrap().unwrap().held(), ReadBuffers::BYTES as usize);
        assert!(read(u64::from(ReadBuffers::BYTES) + 1).is_none());
        drop(read);
        assert_eq!(buffers.0.len(), 1);
    }

    #[test]
    fn oldest_buffers_are_lent_first_and_of_these_the_last_returned() {
        let mut buffers = ReadBuffers::default();
        let mut read = reader(&mut buffers, 100_000);
        let mut read = || read(60_000).unwrap().unwrap();
        let [a, b, c, d] = [(); 4].map(|()| read());
        let newer = read();
        let at = |bytes: &RxBuf| bytes.as_ptr();
        let [first, second, third] = [&b, &c, &newer].map(at);
        for bytes in [b, newer, c] {
            drop(bytes);
        }
        let again = [(); 3].map(|()| read());
        assert_eq!(again.each_ref().map(at), [second, first, third]);
        drop((a, d));
    }

    #[test]
    fn memory_is_allocated_for_four_more_buffers_at_a_time() {
        let mut buffers = ReadBuffers::default();
        let mut held = Vec::new();
        for n in 1..=9_usize {
            held.push(reader(&mut buffers, 100_000)(60_000).unwrap().unwrap());
            assert_eq!(buffers.0.len(), n.div_ceil(4), "{n}");
        }
    }

    #[test]
    fn whole_buffer_is_read_and_the_end_of_a_file_shortens_it() {
        let mut buffers = ReadBuffers::default();
        let whole = reader(&mut buffers, 100_000)(65_536).unwrap().unwrap();
        assert!(*whole == [7; 65_536] && whole.held() == 65_536);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 20_000]).unwrap();
        let fd = Fd::from_raw(file.as_raw_fd());
        let end = buffers.read(&mut Linux::default(), fd, &(1_000..60_000));
        let Some(Ok(FileOutcome::Read(end))) = end else { panic!("{end:?}") };
        assert_eq!(end.len(), 19_000);
    }

    #[test]
    fn error_of_a_read_returns_its_buffer() {
        let mut buffers = ReadBuffers::default();
        for _ in 0..1_000 {
            let directory = std::fs::File::open("/proc").unwrap();
            let fd = Fd::from_raw(directory.as_raw_fd());
            let read = buffers.read(&mut Linux::default(), fd, &(0..20_000));
            assert!(matches!(read, Some(Err(_))), "{read:?}");
        }
        assert_eq!(buffers.0.len(), 1);
    }
}
