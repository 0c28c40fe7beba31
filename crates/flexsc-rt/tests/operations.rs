//! Every typed call, by each executor.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use flexsc_rt::operations::*;
use flexsc_rt::{Call, Config, Descriptor, Direction, EventLoop, Executor, Kind, Operation, Pages};
use rustix::fs::{
    AtFlags, FallocateFlags, MemfdFlags, Mode, OFlags, ResolveFlags, SeekFrom, memfd_create,
};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size};

/// Runs a test with each executor of bounded calls, and with the choice by cost.
fn each_executor(test: impl Fn(&mut EventLoop)) {
    for executor in [Some(Executor::InPlace), Some(Executor::Threads), Some(Executor::Shared), None]
    {
        let mut config = Config::default();
        config.executor = executor;
        let mut events = EventLoop::new(&config).expect("pages");
        test(&mut events);
        assert_eq!(events.outstanding(), 0);
    }
    // And without threads.
    let mut config = Config::default();
    config.threads = 0;
    test(&mut EventLoop::new(&config).expect("pages"));
}

/// Makes one call.
fn run<O: Operation>(events: &mut EventLoop, operation: O) -> O::Output {
    let output = Rc::new(RefCell::new(None));
    let slot = Rc::clone(&output);
    events.post(operation, move |_, output| *slot.borrow_mut() = Some(output)).expect("room");
    while output.borrow().is_none() {
        events.turn(None).expect("a completion");
    }
    output.take().expect("it was set")
}

fn path(directory: &Path, name: &str) -> CString {
    CString::new(directory.join(name).into_os_string().into_encoded_bytes()).unwrap()
}

fn kind<T>(result: io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn files() {
    each_executor(|events| {
        let directory = tempfile::tempdir().unwrap();
        let at = |name| path(directory.path(), name);
        let create = OFlags::CREATE | OFlags::RDWR;
        let file = run(events, open(at("file"), create, Mode::RUSR | Mode::WUSR)).unwrap();
        let (written, bytes) = run(events, write_at(&file, 2, b"content".to_vec()));
        assert_eq!((written.unwrap(), bytes), (7, b"content".to_vec()));
        let (read, bytes) = run(events, read_at(&file, 1, Vec::with_capacity(4)));
        assert_eq!((read.unwrap(), bytes), (4, b"\0con".to_vec()));
        // Reads append.
        let mut room = Vec::with_capacity(16);
        room.push(b'>');
        assert_eq!(run(events, read_at(&file, 8, room)).1, b">t");
        run(events, truncate(&file, 5)).unwrap();
        run(events, fsync(&file)).unwrap();
        run(events, fdatasync(&file)).unwrap();
        assert_eq!(run(events, stat_file(&file)).unwrap().stx_size, 5);
        let extended = run(events, fallocate(&file, FallocateFlags::empty(), 0, 100));
        assert!(extended.is_ok() || kind(extended) == Some(ErrorKind::Unsupported));
        run(events, truncate(&file, 5)).unwrap();
        run(events, chmod(at("file"), Mode::RUSR)).unwrap();
        let meta = run(events, stat(at("file"), AtFlags::empty())).unwrap();
        assert_eq!((meta.stx_size, meta.stx_mode & 0o777), (5, 0o400));

        run(events, rename(at("file"), at("other"))).unwrap();
        assert_eq!(
            kind(run(events, stat(at("file"), AtFlags::empty()))),
            Some(ErrorKind::NotFound)
        );
        run(events, mkdir(at("directory"), Mode::RWXU)).unwrap();
        let opened = run(events, open(at(""), OFlags::RDONLY, Mode::empty())).unwrap();
        let (len, bytes) = run(events, getdents(&opened, Vec::with_capacity(4096)));
        assert_eq!(len.unwrap(), bytes.len());
        let mut names: Vec<_> = directory_entries(&bytes).map(|entry| entry.name).collect();
        names.sort_unstable();
        assert_eq!(names, [&b"."[..], b"..", b"directory", b"other"]);
        let (len, _) = run(events, getdents(&opened, Vec::with_capacity(4096)));
        assert_eq!(len.unwrap(), 0);
        // Relative to a directory.
        let relative = PathAt::new(&opened, c"other".to_owned());
        assert_eq!(run(events, stat(relative.clone(), AtFlags::empty())).unwrap().stx_size, 5);
        run(events, unlink(relative, AtFlags::empty())).unwrap();
        run(events, unlink(at("directory"), AtFlags::REMOVEDIR)).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        run(events, close(file)).unwrap();
    });
}

#[test]
fn open_follows_a_link_unless_a_rule_forbids_it() {
    each_executor(|events| {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("real")).unwrap();
        std::fs::write(directory.path().join("real/file"), "content").unwrap();
        std::os::unix::fs::symlink("real", directory.path().join("link")).unwrap();
        let root = Descriptor::new(File::open(directory.path()).unwrap());
        let mut len = |name: &CStr, rules| {
            let path = PathAt::new(&root, name.to_owned());
            let file = open_resolving(path, OFlags::RDONLY, Mode::empty(), rules);
            let file = run(events, file).map_err(|error| error.raw_os_error())?;
            Ok(run(events, stat_file(&file)).unwrap().stx_size)
        };
        assert_eq!(len(c"link/file", ResolveFlags::empty()), Ok(7));
        assert_eq!(len(c"link/file", ResolveFlags::NO_SYMLINKS), Err(Some(libc::ELOOP)));
        assert_eq!(len(c"real/file", ResolveFlags::NO_SYMLINKS), Ok(7));
    });
}

#[test]
fn copies_between_files_sockets_and_pipes() {
    each_executor(|events| {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("from"), "0123456789").unwrap();
        let from = path(directory.path(), "from");
        let from = run(events, open(from, OFlags::RDONLY, Mode::empty())).unwrap();
        let to = path(directory.path(), "to");
        let create = OFlags::CREATE | OFlags::RDWR;
        let to = run(events, open(to, create, Mode::RUSR | Mode::WUSR)).unwrap();
        assert_eq!(run(events, copy_file_range(&from, &to, 4)).unwrap(), 4);
        assert_eq!(std::fs::read(directory.path().join("to")).unwrap(), b"0123");

        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) = (Descriptor::new(ours), Descriptor::new(theirs));
        assert_eq!(ours.kind(), Kind::Socket);
        assert_eq!(run(events, sendfile(&ours, &from, 2, 5)).unwrap(), 5);
        assert_eq!(run(events, receive(&theirs, Vec::with_capacity(16))).1, b"23456");

        let (reads, writes) = io::pipe().unwrap();
        let (reads, writes) = (Descriptor::new(reads), Descriptor::new(writes));
        assert_eq!(reads.kind(), Kind::Pipe);
        assert_eq!(run(events, write(&writes, &b"piped"[..])).0.unwrap(), 5);
        assert_eq!(run(events, splice(&reads, &ours, 3, Direction::Write)).unwrap(), 3);
        assert_eq!(run(events, receive(&theirs, Vec::with_capacity(16))).1, b"pip");
        assert_eq!(run(events, read(&reads, Vec::with_capacity(16))).1, b"ed");
    });
}

#[test]
fn splice_whose_named_descriptor_is_ready_spun_until_the_other_was() {
    for flags in [PipeFlags::empty(), PipeFlags::NONBLOCK] {
        let pipe = || {
            let (reads, writes) = rustix::pipe::pipe_with(flags).unwrap();
            (Descriptor::new(reads), Descriptor::new(writes))
        };
        for (full, sleep_in_ring) in [(false, false), (false, true), (true, false), (true, true)] {
            let ((input, feed), (drain, output)) = (pipe(), pipe());
            let mut config = Config::default();
            config.sleep_in_ring = sleep_in_ring;
            let events = &mut EventLoop::new(&config).unwrap();
            // The caller names the end that is ready.
            let named = if full { Direction::Read } else { Direction::Write };
            if full {
                let fill = vec![0; fcntl_getpipe_size(&output).unwrap()];
                assert!(run(events, write(&output, fill)).0.is_ok());
                assert_eq!(run(events, write(&feed, &b"late"[..])).0.unwrap(), 4);
            }
            let moved = Rc::new(RefCell::new(None));
            let note = Rc::clone(&moved);
            let operation = splice(&input, &output, 4, named);
            events.post(operation, move |_, result| *note.borrow_mut() = Some(result)).unwrap();
            for _ in 0..20 {
                events.turn(Some(Duration::from_millis(1))).unwrap();
            }
            assert!(moved.borrow().is_none());
            let counters = events.counters();
            assert!(counters.in_place + counters.on_threads < 20, "{counters:?}");
            if full {
                let mut all = vec![0; fcntl_getpipe_size(&output).unwrap()];
                rustix::io::read(&drain, &mut all[..]).unwrap();
            } else {
                rustix::io::write(&feed, b"late").unwrap();
            }
            while moved.borrow().is_none() {
                events.turn(None).unwrap();
            }
            assert_eq!(moved.take().unwrap().unwrap(), 4);
            assert_eq!(run(events, read(&drain, Vec::with_capacity(16))).1, b"late");
        }
    }
}

/// Files that are always ready: on a disk or in memory, in memory, and a device.
fn always_ready() -> [Descriptor; 3] {
    let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    [tempfile::tempfile().unwrap().into(), memory, null.into()].map(Descriptor::new)
}

/// Waits for a while in which an operation must not end, has something done, and waits for the end.
fn ends_after(
    events: &mut EventLoop,
    operation: impl Operation<Output = io::Result<usize>>,
    done: impl FnOnce(),
) -> usize {
    let moved = Rc::new(RefCell::new(None));
    let note = Rc::clone(&moved);
    let before = events.counters();
    events.post(operation, move |_, result| *note.borrow_mut() = Some(result)).unwrap();
    for _ in 0..20 {
        events.turn(Some(Duration::from_millis(1))).unwrap();
    }
    assert!(moved.borrow().is_none(), "{moved:?}");
    let now = events.counters();
    let calls = now.in_place + now.on_threads - before.in_place - before.on_threads;
    assert!(calls < 10, "{calls}");
    done();
    while moved.borrow().is_none() {
        events.turn(None).unwrap();
    }
    moved.take().unwrap().unwrap()
}

#[test]
fn splice_that_named_a_file_did_not_wait_for_the_pipe() {
    for (flags, sleep_in_ring) in
        [PipeFlags::empty(), PipeFlags::NONBLOCK].into_iter().flat_map(|f| [(f, false), (f, true)])
    {
        let mut config = Config::default();
        config.sleep_in_ring = sleep_in_ring;
        let events = &mut EventLoop::new(&config).unwrap();
        for file in always_ready() {
            let (reads, writes) = rustix::pipe::pipe_with(flags).unwrap();
            let (reads, feed) = (Descriptor::new(reads), Descriptor::new(writes));
            let operation = splice(&reads, &file, 4, Direction::Write);
            let moved = ends_after(events, operation, || {
                rustix::io::write(&feed, b"late").unwrap();
            });
            assert_eq!(moved, 4);
            if file.kind() == Kind::Device {
                continue;
            }
            // From its beginning.
            rustix::fs::seek(&file, SeekFrom::Start(0)).unwrap();
            let all = vec![0; fcntl_getpipe_size(&feed).unwrap()];
            rustix::io::write(&feed, &all).unwrap();
            let operation = splice(&file, &feed, 4, Direction::Read);
            let moved = ends_after(events, operation, || {
                rustix::io::read(&reads, &mut all.clone()[..]).unwrap();
            });
            assert_eq!(moved, 4);
            assert_eq!(run(events, read(&reads, Vec::with_capacity(16))).1, b"late");
        }
    }
}

#[test]
fn splice_that_named_a_device_ended_with_eagain_without_threads() {
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        (config.threads, config.sleep_in_ring) = (0, sleep_in_ring);
        let events = &mut EventLoop::new(&config).unwrap();
        for device in ["/dev/null", "/dev/zero"] {
            let device = File::options().read(true).write(true).open(device).unwrap();
            let (reads, feed) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap();
            let operation =
                splice(&Descriptor::new(reads), &Descriptor::new(device), 4, Direction::Write);
            let moved = ends_after(events, operation, || {
                rustix::io::write(&feed, b"late").unwrap();
            });
            assert_eq!(moved, 4);
        }
    }
}

#[test]
fn sendfile_from_a_disk_blocked_the_owner() {
    let mut events = EventLoop::new(&Config::default()).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let (ours, theirs) = (Descriptor::new(ours), Descriptor::new(theirs));
    let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&memory, b"memory").unwrap();
    let source = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    let (memory, disk) = (Descriptor::new(memory), Descriptor::new(source));
    for (file, by_threads) in [(memory, 0), (disk, 1)] {
        if by_threads > 0 && file.kind() == Kind::Memory {
            println!("not tested: the sources are in memory");
            continue;
        }
        let before = events.counters().on_threads;
        assert_eq!(run(&mut events, sendfile(&ours, &file, 0, 6)).unwrap(), 6);
        assert_eq!(events.counters().on_threads - before, by_threads);
        assert_eq!(run(&mut events, receive(&theirs, Vec::with_capacity(16))).1.len(), 6);
    }
}

#[test]
fn splice_to_a_blocking_socket_blocked_the_owner() {
    let mut events = EventLoop::new(&Config::default()).unwrap();
    let (reads, writes) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap();
    let (input, feed) = (Descriptor::new(reads), Descriptor::new(writes));
    rustix::io::write(&feed, b"late").unwrap();
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut filled = 0;
    while let Ok(len) = ours.write(&[0; 4096]) {
        filled += len;
    }
    ours.set_nonblocking(false).unwrap();
    let output = Descriptor::new(ours);
    let moved = Rc::new(RefCell::new(None));
    let note = Rc::clone(&moved);
    let operation = splice(&input, &output, 4, Direction::Read);
    events.post(operation, move |_, result| *note.borrow_mut() = Some(result)).unwrap();
    events.turn(Some(Duration::from_millis(1))).unwrap();
    assert!(moved.borrow().is_none());
    theirs.read_exact(&mut vec![0; filled]).unwrap();
    while moved.borrow().is_none() {
        events.turn(None).unwrap();
    }
    assert_eq!(moved.take().unwrap().unwrap(), 4);
    let mut late = [0; 4];
    theirs.read_exact(&mut late).unwrap();
    assert_eq!(late, *b"late");
}

#[test]
fn sockets() {
    each_executor(|events| {
        for non_blocking in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(non_blocking).unwrap();
            let address = listener.local_addr().unwrap();
            let listener = Descriptor::new(listener);
            let kind = libc::SOCK_STREAM | if non_blocking { libc::SOCK_NONBLOCK } else { 0 };
            let client = run(events, socket(libc::AF_INET, kind, 0)).unwrap();
            run(events, connect(&client, address)).unwrap();
            let server = run(events, accept(&listener)).unwrap();
            run(events, set_option(&client, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)).unwrap();
            let set = run(events, option(&client, libc::SOL_SOCKET, libc::SO_KEEPALIVE));
            assert_eq!(set.unwrap(), 1);
            assert_eq!(run(events, send(&client, &b"hello"[..])).0.unwrap(), 5);
            let ready = run(events, poll(&server, Direction::Read)).unwrap();
            assert_eq!(ready & libc::POLLIN, libc::POLLIN);
            assert_eq!(run(events, receive(&server, Vec::with_capacity(16))).1, b"hello");
            run(events, shutdown(&client, std::net::Shutdown::Write)).unwrap();
            assert_eq!(run(events, receive(&server, Vec::with_capacity(16))).0.unwrap(), 0);
            // No one listens on the client's port.
            let refused = run(events, socket(libc::AF_INET, kind, 0)).unwrap();
            let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
            let result = run(events, connect(&refused, nowhere));
            assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            run(events, close(client)).unwrap();
        }
    });
}

#[test]
fn ipv6_addresses_are_encoded() {
    let listener = match TcpListener::bind("[::1]:0") {
        Ok(listener) => listener,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let mut events = EventLoop::new(&Config::default()).unwrap();
    let client = run(&mut events, socket(libc::AF_INET6, libc::SOCK_STREAM, 0)).unwrap();
    run(&mut events, connect(&client, listener.local_addr().unwrap())).unwrap();
}

#[test]
fn memory_futexes_and_children() {
    for threads in [4, 64] {
        let mut config = Config::default();
        config.threads = threads;
        let events = &mut EventLoop::new(&config).unwrap();
        let mut memory = Mapping::new(1 << 16).unwrap();
        memory.fill(1);
        let (advised, memory) = run(events, madvise(memory, Advice::WillNeed));
        advised.unwrap();
        assert_eq!(memory[5], 1);
        let (advised, memory) = run(events, madvise(memory, Advice::DontNeed));
        advised.unwrap();
        assert_eq!((memory[5], memory.len()), (0, 1 << 16));

        let futex = Arc::new(AtomicU32::new(3));
        assert_eq!(kind(run(events, futex_wait(&futex, 2))), Some(ErrorKind::WouldBlock));
        let woken = Rc::new(RefCell::new(false));
        let note = Rc::clone(&woken);
        let wait = futex_wait(&futex, 3);
        events.post(wait, move |_, result| *note.borrow_mut() = result.is_ok()).unwrap();
        while run(events, futex_wake(&futex, 1)).unwrap() == 0 {}
        while !*woken.borrow() {
            events.turn(None).unwrap();
        }

        #[expect(clippy::zombie_processes, reason = "the posted call waits for it")]
        let child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let status = run(events, wait_child(child.id())).unwrap();
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7);
        assert!(run(events, wait_child(child.id())).is_err());
        run(events, sleep(Duration::from_micros(1))).unwrap();
    }
}

#[test]
fn raw_operation_owns_its_memory() {
    let mut events = EventLoop::new(&Config::default()).unwrap();
    // SAFETY: the kernel writes to the buffer, which is on the heap and long enough.
    let name = unsafe {
        let prepare = |buffer: &mut Box<[u8; 390]>, _: &mut _| {
            Call::bounded(libc::SYS_uname, [buffer.as_mut_ptr() as usize, 0, 0, 0, 0, 0])
        };
        raw(Box::new([0; 390]), prepare, |buffer, result, _: &_| result.map(|_| buffer))
    };
    let name = run(&mut events, name).unwrap();
    assert_eq!(CStr::from_bytes_until_nul(&name[..]).unwrap(), c"Linux");
}

#[test]
fn malformed_directory_entries_end_the_list() {
    assert_eq!(directory_entries(&[0; 100]).count(), 0);
    assert_eq!(directory_entries(&[1; 100]).count(), 0);
    assert_eq!(directory_entries(&[0; 5]).count(), 0);
}

#[test]
fn wait_for_a_child_that_is_not_named_reaped_any_child() {
    each_executor(|events| {
        #[expect(clippy::zombie_processes, reason = "the posted call waits for it")]
        let child = Command::new("true").spawn().unwrap();
        for pid in [0, i32::MAX as u32 + 1, u32::MAX] {
            let refused = run(events, wait_child(pid));
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL), "{pid}");
        }
        assert!(libc::WIFEXITED(run(events, wait_child(child.id())).unwrap()));
    });
}

#[test]
fn read_without_room_looked_like_the_end_of_the_stream() {
    each_executor(|events| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"bytes").unwrap();
        let theirs = Descriptor::new(theirs);
        let file = Descriptor::new(File::open("/proc/self/exe").unwrap());
        let full = || vec![7];
        for (read, buffer) in [
            run(events, receive(&theirs, full())),
            run(events, read(&theirs, full())),
            run(events, read_at(&file, 0, full())),
        ] {
            assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EINVAL));
            assert_eq!(buffer, [7]);
        }
        assert_eq!(run(events, receive(&theirs, Vec::with_capacity(16))).1, b"bytes");
        drop(ours);
        assert_eq!(run(events, receive(&theirs, Vec::with_capacity(16))).0.unwrap(), 0);
    });
}

#[test]
fn receive_without_room_consumed_a_datagram_or_waited() {
    each_executor(|events| {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.send(b"datagram").unwrap();
        let theirs = Descriptor::new(theirs);
        let is_refused = |(result, buffer): (io::Result<usize>, Vec<u8>)| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
            assert_eq!(buffer, b"");
        };
        is_refused(run(events, receive(&theirs, Vec::new())));
        assert_eq!(run(events, receive(&theirs, Vec::with_capacity(16))).1, b"datagram");
        let (_writer, idle) = UnixStream::pair().unwrap();
        let idle = Descriptor::new(idle);
        is_refused(run(events, receive(&idle, Vec::new())));
        is_refused(run(events, read(&idle, Vec::new())));
        let directory = Descriptor::new(File::open("/proc/self").unwrap());
        is_refused(run(events, getdents(&directory, Vec::new())));
    });
}

#[test]
fn read_of_a_pseudo_file_blocked_the_owner() {
    let mut files = 0;
    for path in ["/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        let file = match File::open(path) {
            Ok(file) => Descriptor::new(file),
            Err(error) => {
                println!("not tested: {path}: {error}");
                continue;
            }
        };
        files += 1;
        assert_eq!(file.kind(), Kind::Pseudo, "{path}");
        each_executor(|events| {
            let (len, _) = run(events, read(&file, Vec::with_capacity(4096)));
            assert!(len.is_ok(), "{path}");
        });
        let mut events = EventLoop::new(&Config::default()).unwrap();
        run(&mut events, read(&file, Vec::with_capacity(1))).0.unwrap();
        assert_eq!(events.counters().on_threads, 1);
    }
    assert!(files > 0);
}

#[test]
fn costs_are_learnt_for_each_file_system() {
    let mut pages = Pages::register(&Config::with_entries(64)).unwrap();
    let mut stat = |path: &str| {
        let file = Descriptor::new(File::open(path).unwrap());
        file.kind();
        let mut result = [0_u8; 512];
        let address = result.as_mut_ptr() as usize;
        // SAFETY: file and memory outlive the call.
        unsafe {
            let args = [file.as_fd().as_raw_fd() as usize, address, 0, 0, 0, 0];
            pages.post(&Call::bounded(libc::SYS_fstatfs, args).about(&file)).unwrap();
        }
        assert!(pages.wait(None).unwrap());
        pages.next().unwrap().result.unwrap();
        pages.counters().learnt_apart
    };
    // Both are pseudo file systems.
    assert_eq!(
        ["/proc", "/proc/self", "/sys", "/proc/version", "/sys/kernel"].map(&mut stat),
        [1, 1, 2, 2, 2]
    );
    assert_eq!(stat("/dev/shm"), 3);
    assert!(pages.counters().file_systems >= 3);
}

#[test]
fn read_of_a_terminal_without_a_minimum_waited_for_input() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let terminal = rustix::fs::open(name, flags, Mode::empty()).unwrap();
    let set_minimum = |minimum, time| {
        let mut settings = tcgetattr(&terminal).unwrap();
        settings.make_raw();
        settings.special_codes[SpecialCodeIndex::VMIN] = minimum;
        settings.special_codes[SpecialCodeIndex::VTIME] = time;
        tcsetattr(&terminal, OptionalActions::Now, &settings).unwrap();
    };
    let reads = Descriptor::new(terminal.try_clone().unwrap());
    let controls = Descriptor::new(controller);
    each_executor(|events| {
        for (minimum, time) in [(0, 0), (0, 1)] {
            set_minimum(minimum, time);
            assert_eq!(run(events, read(&reads, Vec::with_capacity(16))).0.unwrap(), 0);
        }
        for minimum in [0, 1, 16] {
            set_minimum(minimum, 0);
            // Readable for the kernel are as many bytes as the minimum.
            assert_eq!(run(events, write(&controls, &b"typed"[..])).0.unwrap(), 5);
            assert_eq!(run(events, read(&reads, Vec::with_capacity(5))).1, b"typed");
        }
        set_minimum(0, 0);
        assert_eq!(run(events, write(&reads, &b"shown"[..])).0.unwrap(), 5);
        assert_eq!(run(events, read(&controls, Vec::with_capacity(16))).1, b"shown");
    });
}

#[test]
fn call_on_a_socket_with_a_timeout_waited_without_end() {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    let soon = Some(Duration::from_millis(1));
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(soon).unwrap();
    let (full, _peer, _) = full_half_closed();
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    set_socket_timeout(&full, Timeout::Send, soon).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_timeout(&listener, Timeout::Recv, soon).unwrap();
    let (ours, listener) = (Descriptor::new(ours), Descriptor::new(listener));
    each_executor(|events| {
        let timed_out = Some(ErrorKind::WouldBlock);
        assert_eq!(kind(run(events, read(&ours, Vec::with_capacity(1))).0), timed_out);
        assert_eq!(kind(run(events, write(&full, &b"late"[..])).0), timed_out);
        assert_eq!(kind(run(events, accept(&listener))), timed_out);
        rustix::io::write(&theirs, b"byte").unwrap();
        assert_eq!(run(events, read(&ours, Vec::with_capacity(16))).1, b"byte");
    });
}

#[test]
fn write_of_nothing_to_a_full_pipe_waited_for_room() {
    let (reads, writes) = io::pipe().unwrap();
    let writes = Descriptor::new(writes);
    let full = vec![7; fcntl_getpipe_size(&writes).unwrap()];
    rustix::io::write(&writes, &full).unwrap();
    each_executor(|events| assert_eq!(run(events, write(&writes, &b""[..])).0.unwrap(), 0));
    drop(reads);
}

/// Returns a full socket, whose peer has shut down its side, the peer, and the number of bytes in between.
fn full_half_closed() -> (Descriptor, UnixStream, usize) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut sent = 0;
    while let Ok(n) = ours.write(&[7; 4096]) {
        sent += n;
    }
    (Descriptor::new(ours), theirs, sent)
}

#[test]
fn half_closed_peer_is_no_room() {
    for (sleep_in_ring, threads) in [(false, 0), (false, 4), (true, 0), (true, 4)] {
        let mut config = Config::default();
        (config.sleep_in_ring, config.threads) = (sleep_in_ring, threads);
        let mut events = EventLoop::new(&config).expect("pages");
        let (full, mut peer, sent) = full_half_closed();
        let outputs = Rc::new(RefCell::new(Vec::new()));
        let notes = Rc::clone(&outputs);
        let wait = || poll(&full, Direction::Write);
        events.post(wait(), move |_, done| notes.borrow_mut().push(done)).expect("room");
        let cancelled = events.post(wait(), |_, _| {}).expect("room");
        // The loop turns, and does nothing for the waits.
        for _ in 0..50 {
            run(&mut events, sleep(Duration::ZERO)).unwrap();
        }
        let before = events.counters();
        for _ in 0..50 {
            run(&mut events, sleep(Duration::ZERO)).unwrap();
        }
        assert!(outputs.borrow().is_empty(), "{:?}", outputs.borrow());
        let now = events.counters();
        assert_eq!(now.readiness_waits, before.readiness_waits, "{config:?}");
        let in_place = now.in_place - before.in_place;
        assert!(in_place <= 50, "{config:?}: {in_place} calls, of 50 sleeps at most");
        events.cancel(cancelled);
        peer.read_exact(&mut vec![0; sent]).unwrap();
        while outputs.borrow().is_empty() {
            events.turn(None).unwrap();
        }
        let room = outputs.take().pop().unwrap().unwrap();
        assert_eq!(room & libc::POLLOUT, libc::POLLOUT, "{config:?}: {room}");
        // The calls of the socket go on.
        let reply = run(&mut events, send(&full, b"reply".to_vec()));
        assert_eq!(reply.0.unwrap(), 5);
    }
}

#[test]
fn metadata_contains_the_time_of_birth() {
    use rustix::fs::{CWD, StatxFlags, statx};
    let directory = tempfile::tempdir().unwrap();
    let name = path(directory.path(), "file");
    File::create(directory.path().join("file")).unwrap();
    let of_system =
        statx(CWD, &name, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME).unwrap();
    if of_system.stx_mask & libc::STATX_BTIME == 0 {
        println!("not tested: {} has no times of birth", directory.path().display());
    }
    let born = (of_system.stx_btime.tv_sec, of_system.stx_btime.tv_nsec);
    let mut events = EventLoop::new(&Config::default()).expect("pages");
    let file = run(&mut events, open(name.clone(), OFlags::RDONLY, Mode::empty())).unwrap();
    let by_path = run(&mut events, stat(name, AtFlags::empty())).unwrap();
    let by_file = run(&mut events, stat_file(&file)).unwrap();
    for metadata in [by_path, by_file] {
        assert_eq!(metadata.stx_mask, of_system.stx_mask);
        assert_eq!((metadata.stx_btime.tv_sec, metadata.stx_btime.tv_nsec), born);
    }
}
