//! The calls whose times are measured.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use flexsc_rt::{Descriptor, Kind};
use rustix::fs::{MemfdFlags, memfd_create};

use super::super::system_call::SystemCall;
use crate::failure::Failure;

/// The largest batch.
pub(super) const MAX_DEPTH: usize = 512;

/// Memory that calls use. It is never freed, and read by nothing else.
pub(super) fn memory(bytes: usize) -> usize {
    vec![0_u8; bytes].leak().as_mut_ptr() as usize
}

/// Creates a file in memory.
fn in_memory() -> io::Result<OwnedFd> {
    Ok(memfd_create("lab", MemfdFlags::CLOEXEC)?)
}

/// One call, or two of which the second gets the result of the first.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) stages: Vec<Stage>,
}

/// Makes a call from the result of the former stage.
pub(super) type Stage = Box<dyn Fn(usize) -> SystemCall>;

impl Workload {
    fn one(name: &'static str, call: SystemCall) -> Self {
        Workload { name, stages: vec![Box::new(move |_| call)] }
    }
}

/// The works, and what they need.
pub(super) struct Workloads {
    pub(super) all: Vec<Workload>,
    /// The file of the null call.
    pub(super) null_file: Descriptor,
    _files: Vec<OwnedFd>,
}

impl Workloads {
    pub(super) fn new(on_disk: &Path) -> Result<Self, Failure> {
        let null_file = Descriptor::new(in_memory()?);
        let null_fd = null_file.as_fd().as_raw_fd() as usize;
        let mut works = Workloads { all: vec![], null_file, _files: vec![] };
        let path = on_disk.join("file");
        let on_disk_file = File::options().read(true).write(true).create_new(true).open(path)?;
        let args = [null_fd, 0, 0, libc::POSIX_FADV_NORMAL as usize];
        // SAFETY: it has no pointer, and the file stays open as long as this.
        let null = unsafe { SystemCall::new(libc::SYS_fadvise64, args, Kind::Memory) };
        works.all.push(Workload::one("null", null));
        works.all.push(Workload::one("getppid", SystemCall::NULL));
        for (place, kind, file) in
            [("page cache", Kind::Disk, on_disk_file), ("tmpfs", Kind::Memory, in_memory()?.into())]
        {
            file.set_len(4096)?;
            works.transfers(place, kind, file.into());
        }
        let null = File::options().read(true).write(true).open("/dev/null")?;
        works.transfers("/dev/null", Kind::Device, null.into());
        works.paths(on_disk)?;
        works.sockets()?;
        Ok(works)
    }

    fn transfers(&mut self, place: &str, kind: Kind, file: OwnedFd) {
        for (size, bytes) in [("64 B", 64), ("4 KiB", 4096)] {
            let name = format!("{size} read, {place}").leak();
            let args = [file.as_raw_fd() as usize, memory(bytes), bytes, 0];
            // SAFETY: the memory is never freed, and the file stays open as long as this.
            let read = unsafe { SystemCall::new(libc::SYS_pread64, args, kind) };
            self.all.push(Workload::one(name, read));
            self.write(format!("{size} write, {place}").leak(), kind, &file, bytes);
        }
        self._files.push(file);
    }

    fn write(&mut self, name: &'static str, kind: Kind, file: &OwnedFd, bytes: usize) {
        let file = file.try_clone().expect("a free descriptor");
        let args = [file.as_raw_fd() as usize, memory(bytes), bytes, 0];
        // SAFETY: the memory is never freed, and the file stays open as long as this.
        let write = unsafe { SystemCall::new(libc::SYS_pwrite64, args, kind) };
        self.all.push(Workload::one(name, write));
        self._files.push(file);
    }

    fn paths(&mut self, directory: &Path) -> Result<(), Failure> {
        let path = directory.join("named");
        File::create(&path)?;
        let mut bytes = path.into_os_string().into_encoded_bytes();
        bytes.push(0);
        let path = bytes.leak().as_ptr() as usize;
        let at = libc::AT_FDCWD as usize;
        let basic = libc::STATX_BASIC_STATS as usize;
        let args = [at, path, 0, basic, memory(size_of::<libc::statx>())];
        // SAFETY: path and result are never freed.
        let stat = unsafe { SystemCall::new(libc::SYS_statx, args, Kind::Unknown) };
        self.all.push(Workload::one("stat", stat));
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        // SAFETY: the path is never freed.
        let open =
            unsafe { SystemCall::new(libc::SYS_openat, [at, path, flags, 0], Kind::Unknown) };
        let close = |file| {
            // SAFETY: the file was opened by the stage before, and nothing else uses it.
            unsafe { SystemCall::new(libc::SYS_close, [file], Kind::Unknown) }
        };
        let stages: Vec<Stage> = vec![Box::new(move |_| open), Box::new(close)];
        self.all.push(Workload { name: "open, close", stages });
        Ok(())
    }

    fn sockets(&mut self) -> Result<(), Failure> {
        let (from, to) = UnixStream::pair()?;
        // Room for the largest batch: the kernel counts more than the bytes of a message.
        rustix::net::sockopt::set_socket_send_buffer_size(&from, MAX_DEPTH * 1024)
            .map_err(io::Error::from)?;
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
        let args = |socket: &UnixStream| [socket.as_raw_fd() as usize, memory(64), 64, flags, 0, 0];
        // SAFETY: the memory is never freed, and the sockets stay open as long as this.
        let (send, receive) = unsafe {
            (
                SystemCall::new(libc::SYS_sendto, args(&from), Kind::Socket),
                SystemCall::new(libc::SYS_recvfrom, args(&to), Kind::Socket),
            )
        };
        let stages: Vec<Stage> = vec![Box::new(move |_| send), Box::new(move |_| receive)];
        self.all.push(Workload { name: "send, receive", stages });
        self._files.extend([from.into(), to.into()]);
        Ok(())
    }
}
