//! System calls have the same effect on the ring, in the event loop and on a thread.

mod turns;

use std::ffi::CString;
use std::fs;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use shared_ring::calls::{Arg, Call, Executor};
use shared_ring::poller::Epoll;
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    Engine, EngineConfig, Errno, Kernel, Op, OpKind, Outcome, Submit, Submitted, Token,
};
use turns::{Batch, TurnInto};

const EXECUTORS: [Executor; 3] = [Executor::InPlace, Executor::Ring, Executor::Thread];

/// Runs a test with each executor, on a ring and on the engine.
fn on_each(test: impl Fn(&mut dyn FnMut(Call) -> (Call, Result<usize, Errno>))) {
    let config = EngineConfig::new(8, 1, 64);
    let mut engine = Engine::new(Epoll::new().unwrap(), &config).unwrap();
    let ring = UringConfig::new(Mode::Deferred, 8, 1, 64);
    let mut ring = UringKernel::new(&ring);
    for by in EXECUTORS {
        println!("engine, {by:?}");
        test(&mut |call| make(&mut engine, call, by));
        match &mut ring {
            Ok(ring) => {
                println!("ring, {by:?}");
                test(&mut |call| make(ring, call, by));
            }
            Err(missing) => println!("not tested: ring: {missing}"),
        }
    }
}

fn make(kernel: &mut impl Kernel, call: Call, by: Executor) -> (Call, Result<usize, Errno>) {
    let token = Token::new(OpKind::Call, 0, 0);
    let mut submitted = kernel.submit(token, Op::Call(Box::new(call), by)).unwrap();
    let mut batch = Batch::new();
    loop {
        if let Submitted::Done(Outcome::Called(call, result)) = submitted {
            return (*call, result);
        }
        kernel.turn_into(None, &mut batch).unwrap();
        while let Some(completion) = batch.pop_front() {
            if completion.token == token {
                submitted = Submitted::Done(completion.outcome);
            }
        }
    }
}

/// Creates a call.
fn call<const N: usize>(number: libc::c_long, args: [Arg; N]) -> Call {
    // SAFETY: the tests pass memory of the lengths that they give, strings that end with 0, and
    // descriptors that stay open.
    unsafe { Call::new(number as u32, args) }
}

fn value(value: impl TryInto<i64>) -> Arg {
    Arg::Value(value.try_into().ok().expect("it fits") as usize)
}

fn fd(fd: &impl AsRawFd) -> Arg {
    value(fd.as_raw_fd())
}

fn path(path: &Path) -> Arg {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    Arg::Memory(path.into_bytes_with_nul().into())
}

fn bytes(bytes: &[u8]) -> Arg {
    Arg::Memory(bytes.into())
}

fn opened(result: Result<usize, Errno>) -> OwnedFd {
    // SAFETY: the kernel has just opened it.
    unsafe { OwnedFd::from_raw_fd(result.unwrap() as i32) }
}

const HERE: i32 = libc::AT_FDCWD;

#[test]
fn files_are_made_written_renamed_and_removed() {
    on_each(|make| {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let mut ok = |call: Call| make(call).1.unwrap();
        ok(call(libc::SYS_mkdirat, [value(HERE), path(&at("new")), value(0o700)]));
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
        let open = [value(HERE), path(&at("new/file")), value(flags), value(0o600)];
        let file = opened(make(call(libc::SYS_openat, open)).1);
        let mut ok = |call: Call| make(call).1.unwrap();
        assert_eq!(ok(call(libc::SYS_write, [fd(&file), bytes(b"0123456789"), value(10)])), 10);
        let write = [fd(&file), bytes(b"abc"), value(3), value(4)];
        assert_eq!(ok(call(libc::SYS_pwrite64, write)), 3);
        ok(call(libc::SYS_fsync, [fd(&file)]));
        ok(call(libc::SYS_fdatasync, [fd(&file)]));
        ok(call(libc::SYS_ftruncate, [fd(&file), value(8)]));
        ok(call(libc::SYS_fallocate, [fd(&file), value(0), value(0), value(12)]));
        let advice = [fd(&file), value(0), value(0), value(libc::POSIX_FADV_SEQUENTIAL)];
        ok(call(libc::SYS_fadvise64, advice));
        assert_eq!(fs::read(at("new/file")).unwrap(), b"0123abc7\0\0\0\0");
        let rename =
            [value(HERE), path(&at("new/file")), value(HERE), path(&at("moved")), value(0)];
        ok(call(libc::SYS_renameat2, rename));
        let link = [value(HERE), path(&at("moved")), value(HERE), path(&at("linked")), value(0)];
        ok(call(libc::SYS_linkat, link));
        ok(call(libc::SYS_symlinkat, [path(Path::new("moved")), value(HERE), path(&at("soft"))]));
        assert_eq!(fs::read_link(at("soft")).unwrap(), Path::new("moved"));
        ok(call(libc::SYS_unlinkat, [value(HERE), path(&at("linked")), value(0)]));
        let directory = [value(HERE), path(&at("new")), value(libc::AT_REMOVEDIR)];
        ok(call(libc::SYS_unlinkat, directory));
        assert!(!at("new").exists() && !at("linked").exists());
        let absent = [value(HERE), path(&at("linked")), value(0)];
        assert_eq!(make(call(libc::SYS_unlinkat, absent)).1, Err(Errno::NOENT));
    });
}

#[test]
fn close_ends_a_descriptor() {
    on_each(|make| {
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        make(call(libc::SYS_close, [value(writes.into_raw_fd())])).1.unwrap();
        // The pipe has no other writer.
        assert_eq!(rustix::io::read(&reads, &mut [0; 1]), Ok(0));
    });
}

#[test]
fn statx_fills_in_the_memory_of_its_call() {
    on_each(|make| {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "content").unwrap();
        let size = size_of::<libc::statx>();
        let (flags, mask) = (value(0), value(libc::STATX_SIZE));
        let statx = [value(HERE), path(file.path()), flags, mask, Arg::zeroed(size)];
        let (statx, result) = make(call(libc::SYS_statx, statx));
        assert_eq!(result, Ok(0));
        // SAFETY: the kernel has filled in this structure, of integers.
        let status = unsafe { statx.memory(4).as_ptr().cast::<libc::statx>().read_unaligned() };
        assert_eq!(status.stx_size, 7);
    });
}

#[test]
fn vectors_point_into_other_arguments() {
    on_each(|make| {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let (mut first, mut second) =
            (vec![0u8; 3].into_boxed_slice(), vec![0u8; 9].into_boxed_slice());
        rustix::io::write(&write, b"scattered").unwrap();
        let vectors = [(first.as_mut_ptr() as usize, 3usize), (second.as_mut_ptr() as usize, 9)];
        let vectors: Vec<u8> = vectors
            .iter()
            .flat_map(|(start, len)| [start.to_ne_bytes(), len.to_ne_bytes()].concat())
            .collect();
        // The kernel ignores arguments beyond the third.
        let readv = [fd(&read), bytes(&vectors), value(2), Arg::Memory(first), Arg::Memory(second)];
        let (readv, result) = make(call(libc::SYS_readv, readv));
        assert_eq!(result, Ok(9));
        assert_eq!((readv.memory(3), &readv.memory(4)[..6]), (&b"sca"[..], &b"ttered"[..]));
    });
}

#[test]
fn sockets_connect_send_receive_and_shut_down() {
    on_each(|make| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_be_bytes();
        let family = (libc::AF_INET as u16).to_ne_bytes();
        let mut address = [0; 16];
        address[..8].copy_from_slice(&[family[0], family[1], port[0], port[1], 127, 0, 0, 1]);
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let socket = [value(libc::AF_INET), value(kind), value(0)];
        let socket = opened(make(call(libc::SYS_socket, socket)).1);
        let connect = [fd(&socket), bytes(&address), value(16)];
        assert_eq!(make(call(libc::SYS_connect, connect)).1, Ok(0));
        let accept = [fd(&listener), value(0), value(0), value(libc::SOCK_CLOEXEC)];
        let accepted = opened(make(call(libc::SYS_accept4, accept)).1);
        let send = [fd(&socket), bytes(b"hello"), value(5), value(libc::MSG_NOSIGNAL)];
        assert_eq!(make(call(libc::SYS_sendto, send)).1, Ok(5));
        let peek = [fd(&accepted), Arg::zeroed(4), value(4), value(libc::MSG_PEEK)];
        let (peek, result) = make(call(libc::SYS_recvfrom, peek));
        assert_eq!((result, peek.memory(1)), (Ok(4), &b"hell"[..]));
        assert_eq!(make(call(libc::SYS_shutdown, [fd(&socket), value(libc::SHUT_WR)])).1, Ok(0));
        let read = [fd(&accepted), Arg::zeroed(10), value(10)];
        assert_eq!(make(call(libc::SYS_read, read)).1, Ok(5));
        let read = [fd(&accepted), Arg::zeroed(10), value(10)];
        assert_eq!(make(call(libc::SYS_read, read)).1, Ok(0), "the end of the stream");
    });
}

#[test]
fn bytes_move_between_pipes() {
    on_each(|make| {
        let ((from, full), (read, to)) =
            (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
        rustix::io::write(&full, b"moving").unwrap();
        assert_eq!(make(call(libc::SYS_tee, [fd(&from), fd(&to), value(3), value(0)])).1, Ok(3));
        let splice = [fd(&from), value(0), fd(&to), value(0), value(100), value(0)];
        assert_eq!(make(call(libc::SYS_splice, splice)).1, Ok(6));
        let mut moved = [0; 16];
        assert_eq!(rustix::io::read(&read, &mut moved), Ok(9));
        assert_eq!(&moved[..9], b"movmoving");
    });
}

/// A negative offset is an error of a call, and the current position of a submission.
#[test]
fn negative_offsets_are_errors() {
    on_each(|make| {
        let file = fs::File::open("/proc/self/exe").unwrap();
        let read = [fd(&file), Arg::zeroed(8), value(8), value(-1)];
        assert_eq!(make(call(libc::SYS_pread64, read)).1, Err(Errno::INVAL));
        assert_eq!(make(call(libc::SYS_ftruncate, [fd(&file), value(-1)])).1, Err(Errno::INVAL));
    });
}

/// A submission has 32 bits for the length.
#[test]
fn advice_about_more_than_4_gib_was_about_the_remainder() {
    const LEN: usize = (1 << 32) + PAGE;
    const PAGE: usize = 64 << 10;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let memory = unsafe {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        mmap_anonymous(std::ptr::null_mut(), LEN, access, flags | MapFlags::NORESERVE).unwrap()
    };
    on_each(|make| {
        // SAFETY: it is in the mapping, which nothing else refers to.
        let last = unsafe { memory.cast::<u8>().add(LEN - 1) };
        // SAFETY: as above.
        unsafe { last.write_volatile(1) };
        let advice = [value(memory.addr()), value(LEN), value(libc::MADV_DONTNEED)];
        assert_eq!(make(call(libc::SYS_madvise, advice)).1, Ok(0));
        // SAFETY: as above.
        assert_eq!(unsafe { last.read_volatile() }, 0);
    });
    // SAFETY: the mapping has this length, and nothing refers to it.
    unsafe { munmap(memory, LEN).unwrap() };
    let config = UringConfig::new(Mode::Deferred, 8, 1, 64);
    let mut ring = match UringKernel::new(&config) {
        Ok(ring) => ring,
        Err(missing) => return println!("not tested: {missing}"),
    };
    for (len, is_made) in [(u32::MAX as usize, true), (LEN, false)] {
        let of_file = [value(HERE), value(0), value(len), value(0)];
        assert_eq!(ring.has_operation(&mut call(libc::SYS_fadvise64, of_file)), is_made, "{len}");
        let of_memory = [value(0), value(len), value(0)];
        assert_eq!(ring.has_operation(&mut call(libc::SYS_madvise, of_memory)), is_made, "{len}");
    }
}

#[test]
fn ring_says_which_calls_it_makes() {
    let config = UringConfig::new(Mode::Deferred, 8, 1, 64);
    let mut ring = match UringKernel::new(&config) {
        Ok(ring) => ring,
        Err(missing) => return println!("not tested: {missing}"),
    };
    let file = fs::File::open("/proc/self/exe").unwrap();
    assert!(ring.has_operation(&mut call(libc::SYS_fsync, [fd(&file)])));
    for number in [
        libc::SYS_renameat2,
        libc::SYS_unlinkat,
        libc::SYS_mkdirat,
        libc::SYS_linkat,
        libc::SYS_symlinkat,
        libc::SYS_openat,
        libc::SYS_statx,
        libc::SYS_fallocate,
        libc::SYS_fadvise64,
        libc::SYS_madvise,
        libc::SYS_splice,
        libc::SYS_tee,
        libc::SYS_connect,
        libc::SYS_accept4,
        libc::SYS_shutdown,
        libc::SYS_sendto,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
    ] {
        assert!(ring.has_operation(&mut call(number, [0; 6].map(value))), "{number}");
    }
    assert!(!ring.has_operation(&mut call(libc::SYS_getpid, [])));
    let (read, result) = make(&mut ring, call(libc::SYS_getpid, []), Executor::Ring);
    assert_eq!((read.number(), result), (libc::SYS_getpid as u32, Ok(std::process::id() as usize)));
    assert_eq!(ring.counters().offloaded_calls, 1);
}
