//! A descriptor that stays open while calls on it are in flight.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs};

use crate::call::{Direction, Kind, Waits};

/// An open file, socket or pipe, shared with the calls that use it.
///
/// It is closed when the last clone is dropped and the last call has ended. A descriptor need not
/// be non-blocking (section 4.1).
///
/// Whether it is non-blocking is asked once, by the first call that may block. The flag belongs to the open file
/// description, which clones of the number and other processes share (fcntl(2), `F_SETFL`). If one of them makes a
/// non-blocking description blocking later, a read, write, accept, connect or splice that finds it not ready blocks the
/// owner of the pages; [`send`](crate::operations::send) and [`receive`](crate::operations::receive) never do. So leave it as it is
/// while a `Descriptor` has it.
#[derive(Clone, Debug)]
pub struct Descriptor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fd: OwnedFd,
    /// What is known of it: 0, or a [`Kind`] plus one, and [`NON_BLOCKING`] or [`LIKELY`].
    nature: AtomicU8,
}

const NON_BLOCKING: u8 = 1 << 7;

/// The kind is that of other objects of its directory. The object was not asked.
const LIKELY: u8 = 1 << 6;

const KINDS: [Kind; Kind::COUNT] = [
    Kind::Unknown,
    Kind::Disk,
    Kind::Memory,
    Kind::Socket,
    Kind::Pipe,
    Kind::Device,
    Kind::Other,
    Kind::Pseudo,
];

/// File systems without a disk: tmpfs, ramfs, cgroup2, hugetlbfs (statfs(2)).
const IN_MEMORY: [i64; 4] = [0x0102_1994, 0x8584_58f6, 0x6367_7270, 0x9584_58f6];

/// File systems whose files may block as devices do, such as /proc/kmsg and `trace_pipe`: proc, sys, tracefs,
/// debugfs (statfs(2)).
const PSEUDO: [i64; 4] = [0x9fa0, 0x6265_6572, 0x7472_6163, 0x6462_6720];

impl Descriptor {
    /// Takes over a file, socket or pipe.
    pub fn new(fd: impl Into<OwnedFd>) -> Self {
        Descriptor(Arc::new(Inner { fd: fd.into(), nature: AtomicU8::new(0) }))
    }

    /// Takes over a file that was opened at a path. Its kind is likely that of the directory, which suffices for the
    /// choice of an executor.
    pub(crate) fn below(fd: impl Into<OwnedFd>, directory: Kind) -> Self {
        let likely = if directory == Kind::Unknown { 0 } else { (directory as u8 + 1) | LIKELY };
        Descriptor(Arc::new(Inner { fd: fd.into(), nature: AtomicU8::new(likely) }))
    }

    /// Returns the number.
    pub(crate) fn number(&self) -> RawFd {
        self.0.fd.as_raw_fd()
    }

    /// Returns the number as an argument.
    pub(crate) fn arg(&self) -> usize {
        self.number() as usize
    }

    /// Returns the kind of object, if a former call has asked for it, or its likely kind.
    pub(crate) fn known_kind(&self) -> Kind {
        match self.0.nature.load(Ordering::Relaxed) & !(NON_BLOCKING | LIKELY) {
            0 => Kind::Unknown,
            known => KINDS[usize::from(known) - 1],
        }
    }

    /// Returns the kind of object. The first time, this makes two or three system calls.
    pub fn kind(&self) -> Kind {
        self.nature();
        self.known_kind()
    }

    fn nature(&self) -> u8 {
        match self.0.nature.load(Ordering::Relaxed) {
            likely if likely == 0 || likely & LIKELY != 0 => {
                let nature = self.look();
                self.0.nature.store(nature, Ordering::Relaxed);
                nature
            }
            known => known,
        }
    }

    #[cold]
    fn look(&self) -> u8 {
        let kind = match fstat(&self.0.fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::RegularFile | FileType::Directory | FileType::Symlink) => {
                match fstatfs(&self.0.fd) {
                    Ok(stat) if IN_MEMORY.contains(&stat.f_type) => Kind::Memory,
                    Ok(stat) if PSEUDO.contains(&stat.f_type) => Kind::Pseudo,
                    _ => Kind::Disk,
                }
            }
            Ok(FileType::Socket) => Kind::Socket,
            Ok(FileType::Fifo) => Kind::Pipe,
            Ok(FileType::CharacterDevice | FileType::BlockDevice) => Kind::Device,
            _ => Kind::Other,
        };
        let non_blocking =
            fcntl_getfl(&self.0.fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        (kind as u8 + 1) | if non_blocking { NON_BLOCKING } else { 0 }
    }

    /// Returns what a call waits for that blocks if the descriptor does.
    pub(crate) fn stream(&self, direction: Direction) -> Waits {
        let non_blocking = self.nature() & NON_BLOCKING != 0;
        match self.known_kind() {
            Kind::Disk | Kind::Memory => Waits::Bounded,
            // Not every such file reports readiness to epoll(7) or knows `O_NONBLOCK`.
            Kind::Pseudo => Waits::Indefinitely,
            _ if non_blocking => Waits::Ready(self.number(), direction),
            _ => Waits::ReadyThenBlocks(self.number(), direction),
        }
    }

    /// Returns what a call waits for that never blocks.
    pub(crate) fn ready(&self, direction: Direction) -> Waits {
        Waits::Ready(self.number(), direction)
    }

    /// Gives up the descriptor, if no other clone and no call uses it.
    pub(crate) fn into_owned(self) -> Option<OwnedFd> {
        Arc::into_inner(self.0).map(|inner| inner.fd)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
