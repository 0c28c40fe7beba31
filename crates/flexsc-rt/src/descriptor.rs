//! A descriptor that stays open while calls on it are in flight.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs};
use rustix::net::sockopt::{Timeout, socket_timeout};
use rustix::termios::{LocalModes, SpecialCodeIndex, isatty, tcgetattr};

use crate::call::{Call, Direction, Waits};
use crate::object::{FileSystem, Kind, Object};
use crate::registered::{FilePlace, Registration};

/// An open file, socket or pipe, shared with the calls that use it.
///
/// It is closed when the last clone is dropped and the last call has ended. A descriptor need not
/// be non-blocking (section 4.1).
///
/// Whether it is non-blocking is asked once, by the first call that may block, or the second one of another sort. The
/// flag belongs to the open file description, which clones of the number and other processes share (fcntl(2),
/// `F_SETFL`). If one of them makes a non-blocking description blocking later, a read, write, accept, connect or splice
/// that finds it not ready blocks the owner of the pages; [`send`](crate::operations::send) and
/// [`receive`](crate::operations::receive) never do. So leave it as it is while a `Descriptor` has it.
///
/// A call in blocking mode may end although its descriptor is not ready: a read of a terminal by its settings (termios(3),
/// `VMIN` and `VTIME`), which each read asks for, and a call on a socket with a timeout (socket(7), `SO_RCVTIMEO` and
/// `SO_SNDTIMEO`), which is asked for with the flag. A syscall thread makes such a call at once, and waits in it; without
/// threads, the owner does. `send`, `receive` and `splice` have no timeout.
#[derive(Clone, Debug)]
pub struct Descriptor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fd: OwnedFd,
    /// A [`Nature`].
    nature: AtomicU16,
    registration: OnceLock<Registration>,
}

/// The known nature of a descriptor: 0, or a [`Kind`] plus one, the number of a [`FileSystem`], and flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nature(u16);

const KIND: u16 = 0xff;
const NON_BLOCKING: u16 = 1 << 8;

/// It is that of other objects of its directory. The object was not asked.
const LIKELY: u16 = 1 << 9;

/// A call was about it, and it was not asked.
const USED: u16 = 1 << 10;

/// In blocking mode, a call on it may end although it is not ready: it is a terminal, or a socket with a timeout.
const HAS_LIMIT: u16 = 1 << 11;

/// The lowest bit of the file system's number.
const FILE_SYSTEM: u32 = 12;

const _: () = assert!(FileSystem::MAX < 1 << (u16::BITS - FILE_SYSTEM));

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

/// The device /dev/ptmx, of pseudoterminals. Reads of it do not depend on the settings of the terminal.
const CONTROLLER: u64 = libc::makedev(5, 2);

/// File systems without a disk: tmpfs, ramfs, cgroup2, hugetlbfs (statfs(2)).
const IN_MEMORY: [i64; 4] = [0x0102_1994, 0x8584_58f6, 0x6367_7270, 0x9584_58f6];

/// File systems whose files may block as devices do, such as /proc/kmsg and `trace_pipe`: proc, sys, tracefs,
/// debugfs (statfs(2)).
const PSEUDO: [i64; 4] = [0x9fa0, 0x6265_6572, 0x7472_6163, 0x6462_6720];

impl Nature {
    fn new(kind: Kind, file_system: FileSystem, flags: u16) -> Self {
        Nature((u16::from(file_system.number()) << FILE_SYSTEM) | flags | (kind as u16 + 1))
    }

    /// Returns the kind of object.
    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self.0 & KIND {
            0 => Kind::Unknown,
            known => KINDS[usize::from(known) - 1],
        }
    }

    /// Returns the object of calls.
    #[inline]
    pub(crate) fn object(self) -> Object {
        let number = (self.0 >> FILE_SYSTEM) as u8;
        Object::new(self.kind(), FileSystem::from_number(number))
    }
}

impl Descriptor {
    /// Takes over a file, socket or pipe.
    pub fn new(fd: impl Into<OwnedFd>) -> Self {
        Descriptor::below(fd, Nature::default())
    }

    /// Takes over a file that was opened at a path. Its kind and file system are likely those of the directory, which
    /// suffices for the choice of an executor.
    pub(crate) fn below(fd: impl Into<OwnedFd>, directory: Nature) -> Self {
        let Nature(bits) = directory;
        let likely =
            if bits & KIND == 0 { 0 } else { (bits & !(NON_BLOCKING | HAS_LIMIT | USED)) | LIKELY };
        let (nature, registration) = (AtomicU16::new(likely), OnceLock::new());
        Descriptor(Arc::new(Inner { fd: fd.into(), nature, registration }))
    }

    /// Returns its place in the table of the ring of some pages.
    #[inline]
    pub(crate) fn place(&self) -> Option<FilePlace> {
        self.0.registration.get().map(Registration::place)
    }

    /// Notes its registration, unless it has one.
    pub(crate) fn set_registration(&self, registration: Registration) -> bool {
        self.0.registration.set(registration).is_ok()
    }

    /// Returns the number.
    #[inline]
    pub(crate) fn number(&self) -> RawFd {
        self.0.fd.as_raw_fd()
    }

    /// Returns the number as an argument.
    #[inline]
    pub(crate) fn arg(&self) -> usize {
        self.number() as usize
    }

    /// Returns what is known, if a former call has asked, or what is likely.
    #[inline]
    pub(crate) fn known(&self) -> Nature {
        Nature(self.0.nature.load(Ordering::Relaxed))
    }

    /// Returns the object that the next call is about. The second call asks, if nothing is known: many descriptors are
    /// closed after one.
    #[inline]
    pub(crate) fn object(&self) -> Object {
        let known = self.known();
        match known.0 {
            0 => {
                // Another thread may have asked meanwhile.
                let order = Ordering::Relaxed;
                let _ = self.0.nature.compare_exchange(0, USED, order, order);
            }
            USED => return self.nature().object(),
            _ => {}
        }
        known.object()
    }

    /// Returns the kind of object. The first time, this makes two to four system calls.
    pub fn kind(&self) -> Kind {
        self.nature().kind()
    }

    fn nature(&self) -> Nature {
        let known = self.known();
        if known.0 & KIND != 0 && known.0 & LIKELY == 0 {
            return known;
        }
        let nature = self.look();
        self.0.nature.store(nature.0, Ordering::Relaxed);
        nature
    }

    #[cold]
    fn look(&self) -> Nature {
        let stat = fstat(&self.0.fd);
        let file_type = stat.as_ref().ok().map(|stat| FileType::from_raw_mode(stat.st_mode));
        let device = stat.as_ref().map_or(0, |stat| stat.st_rdev);
        let (kind, file_system) = match (file_type, stat) {
            (Some(FileType::RegularFile | FileType::Directory | FileType::Symlink), Ok(stat)) => {
                let kind = match fstatfs(&self.0.fd) {
                    Ok(stat) if IN_MEMORY.contains(&stat.f_type) => Kind::Memory,
                    Ok(stat) if PSEUDO.contains(&stat.f_type) => Kind::Pseudo,
                    _ => Kind::Disk,
                };
                (kind, FileSystem::of(stat.st_dev))
            }
            (Some(FileType::Socket), _) => (Kind::Socket, FileSystem::default()),
            (Some(FileType::Fifo), _) => (Kind::Pipe, FileSystem::default()),
            (Some(FileType::CharacterDevice | FileType::BlockDevice), _) => {
                (Kind::Device, FileSystem::default())
            }
            _ => (Kind::Other, FileSystem::default()),
        };
        let non_blocking =
            fcntl_getfl(&self.0.fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        let flags = match kind {
            _ if non_blocking => NON_BLOCKING,
            Kind::Socket if self.has_timeout() => HAS_LIMIT,
            Kind::Device if device != CONTROLLER && isatty(&self.0.fd) => HAS_LIMIT,
            _ => 0,
        };
        Nature::new(kind, file_system, flags)
    }

    /// Returns whether a call on a socket has a timeout.
    fn has_timeout(&self) -> bool {
        let has = |timeout| socket_timeout(&self.0.fd, timeout).is_ok_and(|time| time.is_some());
        has(Timeout::Recv) || has(Timeout::Send)
    }

    /// Returns whether a read of a terminal may end before it is ready, or later.
    fn has_minimum(&self) -> bool {
        tcgetattr(&self.0.fd).is_ok_and(|settings| {
            let is_canonical = settings.local_modes.contains(LocalModes::ICANON);
            !is_canonical && settings.special_codes[SpecialCodeIndex::VMIN] != 1
        })
    }

    /// Returns what a call waits for that blocks if the descriptor does.
    pub(crate) fn stream(&self, direction: Direction) -> Waits {
        let nature = self.nature();
        let has_limit = nature.0 & HAS_LIMIT != 0
            && match direction {
                _ if nature.kind() == Kind::Socket => true,
                Direction::Read => self.has_minimum(),
                Direction::Write => false,
            };
        if has_limit { Waits::Indefinitely } else { self.end_of_transfer(direction) }
    }

    /// Returns what a transfer waits for that blocks if the descriptor does, as one of its ends. It has no timeout.
    pub(crate) fn end_of_transfer(&self, direction: Direction) -> Waits {
        let nature = self.nature();
        match nature.kind() {
            Kind::Disk | Kind::Memory => Waits::Bounded,
            // Not every such file reports readiness to epoll(7) or knows `O_NONBLOCK`.
            Kind::Pseudo => Waits::Indefinitely,
            _ if nature.0 & NON_BLOCKING != 0 => Waits::Ready(self.number(), direction),
            _ => Waits::ReadyThenBlocks(self.number(), direction),
        }
    }

    /// Returns whether a call may block although it waits for no stream: for the disk of a file, or as the descriptor is
    /// in blocking mode.
    pub(crate) fn may_block(&self) -> bool {
        let nature = self.nature();
        match nature.kind() {
            Kind::Memory => false,
            Kind::Disk | Kind::Pseudo => true,
            _ => nature.0 & NON_BLOCKING == 0,
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

impl Call {
    /// Sets the kind of object to that of a descriptor, which the call is about, and the file system to that of a file. The
    /// second call of a descriptor asks for these, by fstat(2), fstatfs(2) and fcntl(2) in the owner's thread, and all
    /// further ones use the answer. Like the call itself, the two first may wait for a file system of the network.
    ///
    /// If the descriptor is [registered](crate::Pages::register_file) and the first argument, the ring finds the file in its
    /// table. [`Pages::post`](crate::Pages::post) requires that a clone of the descriptor is kept until the completion was
    /// taken.
    #[inline]
    pub fn about(mut self, descriptor: &Descriptor) -> Self {
        if let Some(place) = descriptor.place()
            && self.args[0] == descriptor.arg()
        {
            self.file = place;
        }
        self.object(descriptor.object())
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
