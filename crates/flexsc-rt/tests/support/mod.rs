//! The common code of the tests of the crate.
#![allow(dead_code, reason = "each test uses a part")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use flexsc_rt::{Call, Config, Direction, EntryId, Pages, Waits};

pub(crate) fn register(config: Config) -> Pages {
    Pages::register(&config).expect("pages")
}

/// Posts a call of a test, the memory of which outlives it.
pub(crate) fn post(pages: &mut Pages, call: &Call) -> EntryId {
    // SAFETY: the tests take all completions before they free memory.
    unsafe { pages.post(call) }.expect("room")
}

/// Waits for the next completion, which is of one call.
pub(crate) fn complete(pages: &mut Pages, id: EntryId) -> io::Result<usize> {
    loop {
        if let Some(completion) = pages.next() {
            assert_eq!(completion.id, id);
            return completion.result;
        }
        pages.wait(None).expect("a completion");
    }
}

/// A receive that waits until the socket is readable.
pub(crate) fn read_of(fd: RawFd, buffer: &mut [u8]) -> Call {
    let (address, len) = (buffer.as_mut_ptr() as usize, buffer.len());
    Call::new(libc::SYS_recvfrom, [fd as usize, address, len, libc::MSG_DONTWAIT as usize, 0, 0])
        .waits(Waits::Ready(fd, Direction::Read))
}

/// A pipe in blocking mode.
pub(crate) struct Pipe {
    pub(crate) reads: OwnedFd,
    pub(crate) writes: OwnedFd,
}

impl Pipe {
    pub(crate) fn new() -> Self {
        let (reads, writes) = rustix::pipe::pipe().expect("a pipe");
        Pipe { reads, writes }
    }

    /// A read that blocks a syscall thread.
    pub(crate) fn blocking_read_of(&self, buffer: &mut [u8]) -> Call {
        let args = [self.reads.as_raw_fd() as usize, buffer.as_mut_ptr() as usize, buffer.len()];
        Call::new(libc::SYS_read, [args[0], args[1], args[2], 0, 0, 0])
    }

    /// A read that returns `EAGAIN` (preadv2(2), `RWF_NOWAIT`).
    pub(crate) fn read_of(&self, buffer: &mut [u8]) -> Call {
        let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let part = Box::leak(Box::new(part));
        let (fd, parts) = (self.reads.as_raw_fd() as usize, &raw const *part as usize);
        Call::new(libc::SYS_preadv2, [fd, parts, 1, usize::MAX, 0, libc::RWF_NOWAIT as usize])
    }

    /// A write that does not block, as the pipe has room.
    pub(crate) fn write_of(&self, bytes: &'static [u8]) -> Call {
        let args =
            [self.writes.as_raw_fd() as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
        Call::bounded(libc::SYS_write, args)
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        rustix::io::write(&self.writes, bytes).expect("room");
    }

    pub(crate) fn available(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.reads).expect("a pipe")
    }
}

/// Allows as many descriptors as the system does.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("a limit within the maximum");
}
