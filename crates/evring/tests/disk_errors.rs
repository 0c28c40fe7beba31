//! A disk error (EIO) in the middle of a file that is sent: the reply is cut and the connection closed, on the
//! simulated machine and with a real file.

use crate::downloader::{Downloader, config, machine};
use crate::sends_file::sends_whole_file;
use crate::server;

use std::ffi::c_void;
use std::fs::File as StdFile;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::mpsc::{self, Sender};

use evring::files::File;
use evring::mechanisms::{EventLoop, Mode};
use evring::sockets::BufferSizes;
use evring::{Application, Chunk, Close, CloseReason, Commands, Cx, FileDelivery, Rx};
use evring_sim::{Fault, Faults, SimKernel};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use server::{Server, TIMEOUT, listening, side_by_side};

const FILE_BYTES: usize = 600_000;
const EIO: i32 = Errno::IO.raw_os_error();

/// Returns the error with which a connection ended.
fn errno_of(reason: &CloseReason) -> Option<i32> {
    match reason {
        CloseReason::Failed(error) => error.raw_os_error(),
        _ => None,
    }
}

/// Returns the number of bytes that arrived, and the error with which the connection ended.
fn simulated(policy: FileDelivery, seed: u64) -> (usize, Option<i32>) {
    let machine = machine(FILE_BYTES as u64, |p| {
        p.seed = seed;
        p.faults = Faults::NONE.with(Fault::DiskError);
        // Every other run has an error, unless it ends before.
        p.max_faults = seed % 2;
        p.room = Some(20_000);
    });
    let config = config(|c| c.send_policy = policy.send_policy());
    let kernel = SimKernel::new(&machine, &config.uring_config(Mode::Deferred).unwrap()).unwrap();
    let server = EventLoop::new(kernel, &config).unwrap();
    let remote = server.remote();
    let (reason, closed) = mpsc::channel();
    let end = Downloader::add(&machine, FILE_BYTES as u64, None);
    machine.on_end(move || remote.stop());
    let closed_by = |closed: CloseReason| reason.send(errno_of(&closed)).unwrap();
    let result = server.run(sends_whole_file(FILE_BYTES as u64, closed_by));
    assert_eq!(machine.verdict().failure, None, "{policy}, seed {seed}");
    result.unwrap();
    (end.get().unwrap().bytes as usize, closed.recv().unwrap())
}

#[test]
fn injected_disk_error_in_the_middle_of_a_file_cuts_the_reply() {
    for policy in FileDelivery::ALL {
        let (mut cut, mut complete) = (0, 0);
        for seed in 0..40 {
            match simulated(policy, seed) {
                (FILE_BYTES, None) => complete += 1,
                (1.., Some(errno)) => {
                    assert_eq!(errno, EIO, "{policy}, seed {seed}");
                    cut += 1;
                }
                // The error was in the open, or in the first read.
                (0, _) => {}
                // It was in a look at the file, which counts as changed then.
                (len, None) if len < FILE_BYTES => {}
                other => panic!("{policy}, seed {seed}: {other:?}"),
            }
        }
        assert!(cut >= 1 && complete >= 20, "{policy}: {cut} cut, {complete} complete");
    }
}

/// Memory of this process, whose last page can't be read.
struct Memory {
    start: *mut c_void,
    len: usize,
}

// SAFETY: only the kernel reads the memory.
unsafe impl Send for Memory {}

impl Memory {
    /// Maps a file with this length, and a page behind its end.
    fn new(len: usize) -> Self {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        let mut file = StdFile::from(file);
        file.write_all(&vec![b'm'; len]).unwrap();
        let mapped = len + rustix::param::page_size();
        // SAFETY: a new mapping, which only the kernel reads.
        let start =
            unsafe { mmap(null_mut(), mapped, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
        Memory { start: start.unwrap(), len: mapped }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing else uses the mapping.
        unsafe { munmap(self.start, self.len) }.unwrap();
    }
}

/// Sends a part of /proc/self/mem, whose reads fail with EIO where memory can't be read.
struct SendsMemory {
    memory: Memory,
    /// The offset in the memory from which on it is sent.
    from: usize,
    closed: Sender<Option<i32>>,
}

impl Application for SendsMemory {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.take().is_empty() {
            return;
        }
        let file = File::from(OwnedFd::from(StdFile::open("/proc/self/mem").unwrap()));
        let start = self.memory.start as u64;
        let range = start + self.from as u64..start + self.memory.len as u64;
        x.io.send(x.id, Chunk::File(file, range));
        x.io.close(x.id, Close::Flush);
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.closed.send(errno_of(&reason)).unwrap();
    }
}

/// Only `ded` reads files into memory; sendfile(2) does not take this one.
#[test]
fn real_disk_error_in_the_middle_of_a_file_cuts_the_reply() {
    // A multiple of what is read at a time.
    const READABLE: usize = 128 * 1024;
    side_by_side(|name| {
        let (sender, closed) = mpsc::channel();
        let config = listening(1).with(|config| {
            config.socket_buffers = BufferSizes { send: Some(8192), receive: None };
            config.send_policy = FileDelivery::Ded.send_policy();
        });
        let memory = Memory::new(READABLE);
        let app = move || SendsMemory { memory, from: 0, closed: sender };
        let server = Server::start(name, config, app);
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        let mut got = Vec::new();
        // A reset may destroy bytes that have arrived.
        let _ = client.read_to_end(&mut got);
        assert!(got.len() <= READABLE && got.iter().all(|byte| *byte == b'm'), "{name}");
        let errno = closed.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(errno, Some(EIO), "{name}, after {} bytes", got.len());
        server.stop();
    });
}

/// The file counts as one that is not cached, so `plain` and `dns` read before they send. sendfile(2) does not take this
/// one, and would fail with another error.
#[test]
fn real_disk_error_of_a_part_that_is_not_cached_ends_the_connection() {
    let len = rustix::param::page_size();
    side_by_side(|name| {
        for policy in [FileDelivery::Plain, FileDelivery::Dns, FileDelivery::Auto] {
            let (sender, closed) = mpsc::channel();
            let config = listening(1).with(|config| config.send_policy = policy.send_policy());
            let memory = Memory::new(len);
            let app = move || SendsMemory { memory, from: len, closed: sender };
            let server = Server::start(name, config, app);
            let mut client = server.connect();
            client.write_all(b"x").unwrap();
            let errno = closed.recv_timeout(TIMEOUT).unwrap();
            assert_eq!(errno, Some(EIO), "{name}, {policy}");
            let mut got = Vec::new();
            // It may be a reset.
            let _ = client.read_to_end(&mut got);
            assert!(got.is_empty(), "{name}, {policy}");
            server.stop();
        }
    });
}
