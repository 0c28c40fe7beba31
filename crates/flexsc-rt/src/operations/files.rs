//! Files and directories.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, ResolveFlags};

use super::buffer::Bytes;
use super::{done, fill, filled, number};
use crate::call::{Call, Direction, Waits};
use crate::descriptor::{Descriptor, Nature};
use crate::object::{Kind, Object};
use crate::operation::{Operation, Owned};
use crate::pages::Scratch;

/// A path, and the directory at which it begins.
#[derive(Clone, Debug)]
pub struct PathAt {
    directory: Option<Descriptor>,
    path: CString,
}

impl PathAt {
    /// Returns a path relative to a directory. The kind and the file system of the directory, which the choice of an
    /// executor depends on, are queried the first time ([`Descriptor::kind`]), unless it was itself opened by such a path:
    /// then they are taken for those of that path's directory, also where a file system is mounted.
    pub fn new(directory: &Descriptor, path: CString) -> Self {
        if directory.known().kind() == Kind::Unknown {
            directory.kind();
        }
        PathAt { directory: Some(directory.clone()), path }
    }

    fn args(&self) -> (usize, usize) {
        let directory = self.directory.as_ref().map_or(libc::AT_FDCWD, Descriptor::number);
        (directory as usize, self.path.as_ptr() as usize)
    }

    /// Returns what is known of the objects of the directory, if there is one.
    fn nature(&self) -> Nature {
        self.directory.as_ref().map_or(Nature::default(), Descriptor::known)
    }

    fn object(&self) -> Object {
        self.nature().object()
    }
}

impl From<CString> for PathAt {
    /// A path relative to the working directory, of [`Kind::Unknown`].
    fn from(path: CString) -> Self {
        PathAt { directory: None, path }
    }
}

impl From<&CStr> for PathAt {
    /// A path relative to the working directory, of [`Kind::Unknown`].
    fn from(path: &CStr) -> Self {
        PathAt { directory: None, path: path.to_owned() }
    }
}

/// A call on a path: number, and two arguments after the path.
fn on_path<O: 'static>(
    path: impl Into<PathAt>,
    call: libc::c_long,
    [c, d]: [usize; 2],
    finish: impl FnOnce(PathAt, io::Result<usize>, &Scratch) -> O + 'static,
) -> impl Operation<Output = O> {
    // SAFETY: the path ends with a zero byte and lies on the heap; the other arguments are numbers.
    unsafe {
        let prepare = move |path: &mut PathAt, _: &mut Scratch| {
            let (directory, name) = path.args();
            Call::bounded(call, [directory, name, c, d, 0, 0]).object(path.object())
        };
        Owned::new(path.into(), prepare, finish)
    }
}

/// A call on a file: number, and three arguments after the descriptor.
fn on_file(
    file: &Descriptor,
    call: libc::c_long,
    [b, c, d]: [usize; 3],
) -> impl Operation<Output = io::Result<()>> {
    // SAFETY: the arguments are numbers.
    unsafe {
        let prepare = move |file: &mut Descriptor, _: &mut Scratch| {
            Call::bounded(call, [file.arg(), b, c, d, 0, 0]).about(file)
        };
        Owned::new(file.clone(), prepare, done)
    }
}

/// Takes over a descriptor that a call has returned, in a directory.
pub(super) fn opened(result: io::Result<usize>, directory: Nature) -> io::Result<Descriptor> {
    // SAFETY: the kernel has just returned it to this call.
    result.map(|fd| Descriptor::below(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }, directory))
}

/// Opens a file, with `O_CLOEXEC`: openat(2). Open a FIFO with [`OFlags::NONBLOCK`], or the open
/// waits for its other end; the ring opens it as if the flag was given.
pub fn open(
    path: impl Into<PathAt>,
    flags: OFlags,
    mode: Mode,
) -> impl Operation<Output = io::Result<Descriptor>> {
    let flags = (flags | OFlags::CLOEXEC).bits() as usize;
    let args = [flags, mode.bits() as usize];
    on_path(path, libc::SYS_openat, args, |path, result, _| opened(result, path.nature()))
}

/// Opens a file as [`open`] does, unless its path breaks a rule, such as that it has no symbolic link in any place:
/// openat2(2). It gives `ENOSYS` before Linux 5.6, `ENOSYS` or `EPERM` in some sandboxes, and `EINVAL` for a mode without
/// `CREATE` or `TMPFILE`.
pub fn open_resolving(
    path: impl Into<PathAt>,
    flags: OFlags,
    mode: Mode,
    rules: ResolveFlags,
) -> impl Operation<Output = io::Result<Descriptor>> {
    let flags = flags | OFlags::CLOEXEC;
    let how = [u64::from(flags.bits()), u64::from(mode.bits()), rules.bits()];
    // SAFETY: the path ends with a zero byte and lies on the heap; the scratch holds the rest.
    unsafe {
        let prepare = move |path: &mut PathAt, scratch: &mut Scratch| {
            let (directory, name) = path.args();
            scratch[..3].copy_from_slice(&how);
            let (how_at, len) = (scratch.as_ptr() as usize, size_of_val(&how));
            Call::bounded(libc::SYS_openat2, [directory, name, how_at, len, 0, 0])
                .object(path.object())
        };
        Owned::new(path.into(), prepare, |path: PathAt, result, _: &Scratch| {
            opened(result, path.nature())
        })
    }
}

/// In the scratch memory of a close: it was posted.
const POSTED: u64 = 1;

/// Closes a descriptor: close(2). If a clone is left, or a call is in flight, the last of them
/// closes it. It cannot be cancelled. One that is not posted closes the descriptor when it is dropped.
pub fn close(file: Descriptor) -> impl Operation<Output = io::Result<()>> {
    // SAFETY: the number belongs to this operation; it is given up when the call was posted and has ended.
    unsafe {
        let prepare = |file: &mut Result<OwnedFd, Option<Descriptor>>, scratch: &mut Scratch| {
            scratch[0] = POSTED;
            if let Err(shared) = file
                && let Some(owned) = shared.take().and_then(Descriptor::into_owned)
            {
                *file = Ok(owned);
            }
            match file {
                Ok(owned) => {
                    let args = [owned.as_raw_fd() as usize, 0, 0, 0, 0, 0];
                    Call::bounded(libc::SYS_close, args).uncancellable()
                }
                // The others close it.
                Err(_) => Call::bounded(libc::SYS_getppid, [0; 6]),
            }
        };
        let finish = |file: Result<OwnedFd, Option<Descriptor>>,
                      result: io::Result<usize>,
                      scratch: &Scratch| {
            if scratch[0] != POSTED {
                // It was not made, and the drop of the descriptor closes it.
                return result.map(drop);
            }
            let Ok(owned) = file else { return Ok(()) };
            // Whatever close(2) returns, the number is free afterwards.
            std::mem::forget(owned);
            result.map(drop)
        };
        Owned::new(Err(Some(file)), prepare, finish)
    }
}

/// The unstable parts of `struct statx` are those that were asked for.
fn statx(result: io::Result<usize>, scratch: &Scratch) -> io::Result<libc::statx> {
    const { assert!(size_of::<libc::statx>() <= size_of::<Scratch>()) };
    // SAFETY: the kernel has written the structure; any bytes are one.
    result.map(|_| unsafe { ptr::read(scratch.as_ptr().cast()) })
}

const STATX_MASK: usize = (libc::STATX_BASIC_STATS | libc::STATX_BTIME) as usize;

/// Returns the metadata of a path: statx(2).
pub fn stat(
    path: impl Into<PathAt>,
    flags: AtFlags,
) -> impl Operation<Output = io::Result<libc::statx>> {
    let flags = flags.bits() as usize;
    // SAFETY: the path ends with a zero byte and lies on the heap; the scratch has room for the
    // structure.
    unsafe {
        let prepare = move |path: &mut PathAt, scratch: &mut Scratch| {
            let (directory, name) = path.args();
            let result = scratch.as_mut_ptr() as usize;
            Call::bounded(libc::SYS_statx, [directory, name, flags, STATX_MASK, result, 0])
                .object(path.object())
        };
        Owned::new(path.into(), prepare, |_, result, scratch: &Scratch| statx(result, scratch))
    }
}

/// Returns the metadata of an open file: statx(2).
pub fn stat_file(file: &Descriptor) -> impl Operation<Output = io::Result<libc::statx>> {
    // SAFETY: the path is static; the scratch has room for the structure.
    unsafe {
        let prepare = |file: &mut Descriptor, scratch: &mut Scratch| {
            let (path, flags) = (c"".as_ptr() as usize, libc::AT_EMPTY_PATH as usize);
            let result = scratch.as_mut_ptr() as usize;
            Call::bounded(libc::SYS_statx, [file.arg(), path, flags, STATX_MASK, result, 0])
                .about(file)
        };
        Owned::new(file.clone(), prepare, |_, result, scratch: &Scratch| statx(result, scratch))
    }
}

/// Reads entries of a directory into a buffer, in the kernel's format: getdents64(2).
/// [`directory_entries`] decodes them. The result is 0 at the end.
pub fn getdents(
    directory: &Descriptor,
    buffer: Vec<u8>,
) -> impl Operation<Output = (io::Result<usize>, Vec<u8>)> {
    // SAFETY: the kernel writes to the unused capacity, which is on the heap.
    unsafe {
        let prepare = |(file, buffer): &mut (Descriptor, Vec<u8>), _: &mut Scratch| {
            fill(buffer, |address, len| {
                Call::bounded(libc::SYS_getdents64, [file.arg(), address, len, 0, 0, 0]).about(file)
            })
        };
        Owned::new((directory.clone(), buffer), prepare, filled)
    }
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Its inode.
    pub inode: u64,
    /// Its type: `DT_REG`, `DT_DIR`, ... (readdir(3)).
    pub file_type: u8,
    /// Its name.
    pub name: &'a [u8],
}

/// Decodes the entries that [`getdents`] has read. Malformed bytes end them.
pub fn directory_entries(mut bytes: &[u8]) -> impl Iterator<Item = DirectoryEntry<'_>> {
    /// Bytes before the name: inode, offset, length, type.
    const HEAD_BYTES: usize = 19;
    std::iter::from_fn(move || {
        let inode = u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?);
        let len = usize::from(u16::from_ne_bytes(bytes.get(16..18)?.try_into().ok()?));
        let file_type = *bytes.get(18)?;
        let name = bytes.get(HEAD_BYTES..len)?;
        let end = name.iter().position(|byte| *byte == 0)?;
        bytes = &bytes[len..];
        Some(DirectoryEntry { inode, file_type, name: &name[..end] })
    })
}

/// Renames a file: renameat2(2), without flags.
pub fn rename(
    from: impl Into<PathAt>,
    to: impl Into<PathAt>,
) -> impl Operation<Output = io::Result<()>> {
    // SAFETY: the paths end with zero bytes and lie on the heap.
    unsafe {
        let prepare = |(from, to): &mut (PathAt, PathAt), _: &mut Scratch| {
            let ((a, b), (c, d)) = (from.args(), to.args());
            Call::bounded(libc::SYS_renameat2, [a, b, c, d, 0, 0]).object(to.object())
        };
        Owned::new((from.into(), to.into()), prepare, done)
    }
}

/// Removes a file, or a directory with [`AtFlags::REMOVEDIR`]: unlinkat(2).
pub fn unlink(path: impl Into<PathAt>, flags: AtFlags) -> impl Operation<Output = io::Result<()>> {
    on_path(path, libc::SYS_unlinkat, [flags.bits() as usize, 0], done)
}

/// Makes a directory: mkdirat(2).
pub fn mkdir(path: impl Into<PathAt>, mode: Mode) -> impl Operation<Output = io::Result<()>> {
    on_path(path, libc::SYS_mkdirat, [mode.bits() as usize, 0], done)
}

/// Changes the permissions of a file: fchmodat(2).
pub fn chmod(path: impl Into<PathAt>, mode: Mode) -> impl Operation<Output = io::Result<()>> {
    on_path(path, libc::SYS_fchmodat, [mode.bits() as usize, 0], done)
}

/// Sets the length of a file: ftruncate(2).
pub fn truncate(file: &Descriptor, len: u64) -> impl Operation<Output = io::Result<()>> {
    on_file(file, libc::SYS_ftruncate, [len as usize, 0, 0])
}

/// Writes a file's data and metadata to its disk: fsync(2).
pub fn fsync(file: &Descriptor) -> impl Operation<Output = io::Result<()>> {
    on_file(file, libc::SYS_fsync, [0; 3])
}

/// Writes a file's data to its disk: fdatasync(2).
pub fn fdatasync(file: &Descriptor) -> impl Operation<Output = io::Result<()>> {
    on_file(file, libc::SYS_fdatasync, [0; 3])
}

/// Allocates or frees space of a file: fallocate(2).
pub fn fallocate(
    file: &Descriptor,
    flags: FallocateFlags,
    offset: u64,
    len: u64,
) -> impl Operation<Output = io::Result<()>> {
    let args = [flags.bits() as usize, offset as usize, len as usize];
    on_file(file, libc::SYS_fallocate, args)
}

/// Reads a file on a disk or in memory at an offset: pread(2). Others may block the owner; use [`read`]. The offset of a
/// pipe or socket is an error (ESPIPE), unless the ring makes the call, which then reads as [`read`] does.
pub fn read_at(
    file: &Descriptor,
    offset: u64,
    buffer: Vec<u8>,
) -> impl Operation<Output = (io::Result<usize>, Vec<u8>)> {
    // SAFETY: the kernel writes to the unused capacity, which is on the heap.
    unsafe {
        let prepare = move |(file, buffer): &mut (Descriptor, Vec<u8>), _: &mut Scratch| {
            fill(buffer, |address, len| {
                let args = [file.arg(), address, len, offset as usize, 0, 0];
                Call::bounded(libc::SYS_pread64, args).about(file)
            })
        };
        Owned::new((file.clone(), buffer), prepare, filled)
    }
}

/// Writes to a file on a disk or in memory at an offset: pwrite(2). Others may block the owner; use
/// [`write()`]. Returns the number of bytes written. The offset of a pipe or socket is as in [`read_at`].
pub fn write_at<B: Bytes>(
    file: &Descriptor,
    offset: u64,
    bytes: B,
) -> impl Operation<Output = (io::Result<usize>, B)> {
    // SAFETY: the bytes do not move.
    unsafe {
        let prepare = move |(file, bytes): &mut (Descriptor, B), _: &mut Scratch| {
            let bytes = bytes.bytes();
            let (address, len) = (bytes.as_ptr() as usize, bytes.len());
            Call::bounded(libc::SYS_pwrite64, [file.arg(), address, len, offset as usize, 0, 0])
                .about(file)
        };
        let finish = |(_, bytes): (Descriptor, B), result, _: &Scratch| (result, bytes);
        Owned::new((file.clone(), bytes), prepare, finish)
    }
}

/// Reads from a pipe, terminal or file: read(2). Reads of one stream have no order among them, unless each is posted
/// after the last one has ended.
///
/// A signalfd(2) must be non-blocking (`SFD_NONBLOCK`): then the owner reads it, and takes signals for its own thread, too. In
/// blocking mode, a syscall thread would read it, which has none of these, and would wait.
pub fn read(
    file: &Descriptor,
    buffer: Vec<u8>,
) -> impl Operation<Output = (io::Result<usize>, Vec<u8>)> {
    // SAFETY: the kernel writes to the unused capacity, which is on the heap.
    unsafe {
        let prepare = |(file, buffer): &mut (Descriptor, Vec<u8>), _: &mut Scratch| {
            fill(buffer, |address, len| {
                Call::new(libc::SYS_read, [file.arg(), address, len, 0, 0, 0])
                    .waits(file.stream(Direction::Read))
                    .about(file)
            })
        };
        Owned::new((file.clone(), buffer), prepare, filled)
    }
}

/// Writes to a pipe, terminal or file: write(2). Returns the number of bytes written. Writes to one stream have no order
/// among them, unless each is posted after the last one has ended.
pub fn write<B: Bytes>(
    file: &Descriptor,
    bytes: B,
) -> impl Operation<Output = (io::Result<usize>, B)> {
    // SAFETY: the bytes do not move.
    unsafe {
        let prepare = |(file, bytes): &mut (Descriptor, B), _: &mut Scratch| {
            let bytes = bytes.bytes();
            let (address, len) = (bytes.as_ptr() as usize, bytes.len());
            let waits = match file.stream(Direction::Write) {
                // It needs no room, but for a datagram.
                Waits::ReadyThenBlocks(..) if len == 0 => Waits::Indefinitely,
                waits => waits,
            };
            Call::new(libc::SYS_write, [file.arg(), address, len, 0, 0, 0]).waits(waits).about(file)
        };
        let finish = |(_, bytes): (Descriptor, B), result, _: &Scratch| (result, bytes);
        Owned::new((file.clone(), bytes), prepare, finish)
    }
}

/// Copies from a file to a file, at their positions: copy_file_range(2).
pub fn copy_file_range(
    from: &Descriptor,
    to: &Descriptor,
    len: usize,
) -> impl Operation<Output = io::Result<usize>> {
    // SAFETY: the arguments are numbers, and null pointers.
    unsafe {
        let prepare = move |(from, to): &mut (Descriptor, Descriptor), _: &mut Scratch| {
            Call::bounded(libc::SYS_copy_file_range, [from.arg(), 0, to.arg(), 0, len, 0]).about(to)
        };
        Owned::new((from.clone(), to.clone()), prepare, number)
    }
}

/// Sends a part of a file to a socket, pipe or file: sendfile(2). A syscall thread makes the call once there is room, as
/// it may wait for the disk; the owner, if the file is in memory and the receiver non-blocking.
pub fn sendfile(
    to: &Descriptor,
    file: &Descriptor,
    offset: u64,
    len: usize,
) -> impl Operation<Output = io::Result<usize>> {
    // SAFETY: the scratch holds the offset.
    unsafe {
        let prepare = move |(to, file): &mut (Descriptor, Descriptor), scratch: &mut Scratch| {
            scratch[0] = offset;
            let offset = scratch.as_mut_ptr() as usize;
            let waits = match to.stream(Direction::Write) {
                Waits::Ready(fd, direction) if file.may_block() => {
                    Waits::ReadyThenBlocks(fd, direction)
                }
                waits => waits,
            };
            Call::new(libc::SYS_sendfile, [to.arg(), file.arg(), offset, len, 0, 0])
                .waits(waits)
                .about(to)
        };
        Owned::new((to.clone(), file.clone()), prepare, number)
    }
}

/// Moves bytes between a pipe and another descriptor: splice(2), with `SPLICE_F_NONBLOCK`. It waits
/// for the descriptor in the direction that the caller names, and for the other one if that is ready
/// and the call returns `EAGAIN`. A file is always ready: then it waits for the other descriptor. A syscall thread
/// makes the call if one of them is a file that is not in memory, or in blocking mode.
///
/// If the call returns `EAGAIN` again and again although both are ready, that is the result: Linux moves nothing from a
/// TCP socket whose next byte is urgent (`MSG_OOB`). A [`receive`](super::receive) returns the bytes after it.
pub fn splice(
    from: &Descriptor,
    to: &Descriptor,
    len: usize,
    waits_for: Direction,
) -> impl Operation<Output = io::Result<usize>> {
    // SAFETY: the arguments are numbers, and null pointers.
    unsafe {
        let prepare = move |(from, to): &mut (Descriptor, Descriptor), _: &mut Scratch| {
            let flags = (libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE) as usize;
            let (named, other) = match waits_for {
                Direction::Read => (&*from, &*to),
                Direction::Write => (&*to, &*from),
            };
            let of_named = named.end_of_transfer(waits_for);
            let of_other = other.end_of_transfer(waits_for.opposite()).descriptor();
            // The flag is for the pipe only.
            let blocks = named.may_block() || other.may_block();
            let waits = match of_named.descriptor().or(of_other) {
                Some((fd, direction)) if blocks => Waits::ReadyThenBlocks(fd, direction),
                Some((fd, direction)) => Waits::Ready(fd, direction),
                // The kernel refuses two files.
                None => of_named,
            };
            let call = Call::new(libc::SYS_splice, [from.arg(), 0, to.arg(), 0, len, flags])
                .waits(waits)
                .about(to);
            match (of_named.descriptor(), of_other) {
                (Some(_), Some((fd, _))) => call.other_end(fd),
                _ => call,
            }
        };
        Owned::new((from.clone(), to.clone()), prepare, number)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;

    use super::*;

    fn object_of(mut operation: impl Operation) -> Object {
        operation.prepare(&mut [0; 32]).object
    }

    fn directory(path: &str) -> Descriptor {
        let directory = Descriptor::new(File::open(path).unwrap());
        directory.kind();
        directory
    }

    #[test]
    fn calls_on_paths_and_opened_files_shared_costs_whatever_the_file_system() {
        for (root, file) in [("/proc", c"version"), ("/dev/shm", c".")] {
            let root = directory(root);
            let object = root.known().object();
            let path = || PathAt::new(&root, file.to_owned());
            assert_eq!(object_of(stat(path(), AtFlags::empty())), object);
            assert_eq!(object_of(rename(path(), path())), object);
            let mut open = open(path(), OFlags::RDONLY, Mode::empty());
            let call = open.prepare(&mut [0; 32]);
            assert_eq!(call.object, object);
            let [directory, path, flags, mode, ..] = call.args;
            // SAFETY: the path is that of the operation.
            let fd = unsafe { libc::syscall(call.number.into(), directory, path, flags, mode) };
            let opened = open.finish(Ok(fd as usize), &[0; 32]).unwrap();
            assert_eq!(object_of(read_at(&opened, 0, Vec::with_capacity(1))), object);
            assert_eq!(object_of(fsync(&opened)), object);
            // A path below it, too, without a further question.
            let below = PathAt::new(&opened, c"x".to_owned());
            assert_eq!(object_of(stat(below, AtFlags::empty())), object);
        }
    }

    #[test]
    fn file_systems_of_one_kind_shared_costs() {
        let [proc, same, sys, memory] = ["/proc", "/proc/self", "/sys", "/dev/shm"].map(directory);
        assert_eq!(sys.kind(), proc.kind());
        let [proc, same, sys, memory] = [proc, same, sys, memory].map(|d| d.known().object());
        assert_eq!(proc, same);
        assert_ne!(proc, sys);
        assert_ne!(proc, memory);
        assert_ne!(proc, Kind::Pseudo.into());
    }

    #[test]
    fn second_call_on_a_file_asks_for_its_file_system() {
        let file = Descriptor::new(File::open("/proc/version").unwrap());
        assert_eq!(object_of(read_at(&file, 0, Vec::with_capacity(1))), Object::default());
        assert_eq!(file.known().kind(), Kind::Unknown);
        let object = directory("/proc").known().object();
        assert_eq!(object_of(read_at(&file, 0, Vec::with_capacity(1))), object);
        assert_eq!(Call::bounded(libc::SYS_fsync, [0; 6]).about(&file).object, object);
    }

    #[test]
    fn transfers_of_files_that_are_not_in_memory_were_made_by_the_owner() {
        let sent = |to: &_, file: &_| sendfile(to, file, 0, 1).prepare(&mut [0; 32]).waits;
        let spliced =
            |file: &_, to: &_, named| splice(file, to, 1, named).prepare(&mut [0; 32]).waits;
        let memory = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let memory = Descriptor::new(memory);
        assert_eq!(memory.kind(), Kind::Memory);
        let pseudo = Descriptor::new(File::open("/proc/version").unwrap());
        let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap().1;
        let pipe = Descriptor::new(pipe);
        let (fd, to) = (pipe.number(), Direction::Write);
        assert_eq!(sent(&pipe, &memory), Waits::Ready(fd, to));
        assert_eq!(sent(&pipe, &pseudo), Waits::ReadyThenBlocks(fd, to));
        for named in [Direction::Read, Direction::Write] {
            assert_eq!(spliced(&memory, &pipe, named), Waits::Ready(fd, to));
            assert_eq!(spliced(&pseudo, &pipe, named), Waits::ReadyThenBlocks(fd, to));
        }
    }

    #[test]
    fn kind_of_the_directory_does_not_decide_what_a_read_waits_for() {
        let memory = directory("/dev/shm").known();
        let null = || File::open("/dev/null").unwrap();
        let opened = Descriptor::below(null(), memory);
        assert_eq!(opened.known().object(), memory.object());
        assert_eq!(opened.kind(), Kind::Device);
        let opened = Descriptor::below(null(), memory);
        assert!(matches!(opened.stream(Direction::Read), Waits::ReadyThenBlocks(..)));
        assert_eq!(opened.known().object(), Kind::Device.into());
    }
}
