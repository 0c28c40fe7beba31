//! The pages themselves: any call by any executor, bounds, cancellation, blocked and lost threads.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../httpd/tests/serving/refused.rs"]
mod refused;
mod support;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use flexsc_rt::{Busy, Call, Config, Direction, EntryId, Executor, Pages, Waits};
use support::{Pipe, complete, post, raise_descriptor_limit, read_of, register};

const EXECUTORS: [Executor; 4] =
    [Executor::InPlace, Executor::Threads, Executor::Ring, Executor::Shared];

fn errno(result: &io::Result<usize>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}

#[test]
fn any_call_gives_its_result_by_each_executor() {
    let mut pages = register(Config::default());
    for executor in EXECUTORS {
        let id = post(&mut pages, &Call::bounded(libc::SYS_getpid, [0; 6]).pinned(executor));
        assert_eq!(complete(&mut pages, id).unwrap(), std::process::id() as usize);
        // Unknown numbers.
        for number in [100_000, -1, libc::c_long::MAX] {
            let id = post(&mut pages, &Call::new(number, [0; 6]).pinned(executor));
            assert_eq!(errno(&complete(&mut pages, id)), Some(libc::ENOSYS), "{number}");
        }
        let id = post(&mut pages, &Call::bounded(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]));
        assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EBADF));
    }
    // An unknown call that nothing is said about.
    let id = post(&mut pages, &Call::new(100_000, [0; 6]));
    assert_eq!(errno(&complete(&mut pages, id)), Some(libc::ENOSYS));
    assert_eq!(pages.outstanding(), 0);
}

#[test]
fn calls_about_the_calling_thread_run_in_place() {
    let mut pages = register(Config::default());
    let id = post(&mut pages, &Call::new(libc::SYS_gettid, [0; 6]).pinned(Executor::Threads));
    // SAFETY: it returns a number.
    assert_eq!(complete(&mut pages, id).unwrap(), unsafe { libc::gettid() } as usize);
    assert_eq!(pages.counters().threads_started, 0);
}

#[test]
fn shared_batch_is_made_by_the_owner_and_threads() {
    let mut config = Config::default();
    config.active_threads = 2;
    let mut pages = register(config.clone());
    let pipe = Pipe::new();
    let mut bytes = [0; 32];
    for byte in &mut bytes {
        // Entries are given away from two pages in turn: the writes are the owner's, which must not wait for a thread;
        // a thread that begins a read waits for the owner.
        post(&mut pages, &pipe.write_of(b"x").pinned(Executor::Shared));
        let read = pipe.blocking_read_of(std::slice::from_mut(byte)).waits(Waits::Bounded);
        post(&mut pages, &read.pinned(Executor::Shared));
    }
    let mut made = 0;
    while made < 64 {
        pages.wait(None).unwrap();
        while let Some(completion) = pages.next() {
            assert_eq!(completion.result.unwrap(), 1);
            made += 1;
        }
    }
    assert_eq!(bytes, [b'x'; 32]);
    let counters = pages.counters();
    assert_eq!(counters.in_place + counters.on_threads, 64, "{counters:?}");
    assert_eq!(counters.shared, 64);
    assert!(counters.in_place >= 32 && counters.threads_started >= 1, "{counters:?}");
    // One active thread at most is the owner.
    config.active_threads = 1;
    let mut pages = register(config);
    let id = post(&mut pages, &Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::Shared));
    assert_eq!(complete(&mut pages, id).unwrap(), std::process::id() as usize);
    assert_eq!((pages.counters().in_place, pages.counters().threads_started), (1, 0));
}

#[test]
fn nothing_is_executed_before_wait() {
    let mut pages = register(Config::default());
    let pipe = Pipe::new();
    // SAFETY: the byte is static.
    let id = unsafe { pages.post(&pipe.write_of(b"x")) }.unwrap();
    assert_eq!(pages.next().map(|completion| completion.id), None);
    assert_eq!(pipe.available(), 0);
    assert!(pages.wait(None).unwrap());
    assert_eq!(pages.next().map(|completion| completion.id), Some(id));
    assert_eq!(pipe.available(), 1);
}

#[test]
fn wait_without_calls_returns() {
    assert!(!register(Config::default()).wait(None).unwrap());
}

#[test]
fn full_pages_are_busy_until_a_completion_is_taken() {
    let mut config = Config::with_entries(64);
    config.reserve = 4;
    let mut pages = register(config);
    let call = Call::bounded(libc::SYS_getpid, [0; 6]);
    for _ in 0..64 {
        post(&mut pages, &call);
    }
    // SAFETY: it returns a number.
    assert_eq!(unsafe { pages.post(&call) }, Err(Busy));
    assert!(pages.wait(None).unwrap());
    // SAFETY: as above.
    assert_eq!(unsafe { pages.post(&call) }, Err(Busy));
    let mut seen = HashSet::new();
    while let Some(completion) = pages.next() {
        assert!(seen.insert(completion.id));
    }
    assert_eq!((seen.len(), pages.outstanding(), pages.counters().throttled), (64, 0, 2));
    // An identifier is not used again.
    assert!(!seen.contains(&post(&mut pages, &call)));
}

/// The standstill of section 7: all entries wait for what only another call can bring about.
#[test]
fn waiting_calls_leave_entries_and_a_thread_for_others() {
    let mut config = Config::with_entries(64);
    config.reserve = 4;
    config.threads = 4;
    let mut pages = register(config);
    let pipe = Pipe::new();
    let mut byte = [0; 64];
    let waits = Waits::Ready(pipe.reads.as_raw_fd(), Direction::Read);
    let mut posted = 0;
    // SAFETY: the bytes outlive the pages' calls, which end below.
    while unsafe { pages.post(&pipe.read_of(&mut byte[posted..=posted]).waits(waits)) }.is_ok() {
        posted += 1;
    }
    assert_eq!(posted, 60);
    assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
    for _ in 0..posted {
        post(&mut pages, &pipe.write_of(b"x"));
        let mut ended = 0;
        while ended < 2 {
            pages.wait(None).unwrap();
            ended += std::iter::from_fn(|| pages.next()).count();
        }
    }
    assert_eq!(pages.outstanding(), 0);
    // The same for threads.
    let mut posted = 0;
    // SAFETY: as above.
    while unsafe { pages.post(&pipe.blocking_read_of(&mut byte[posted..=posted])) }.is_ok() {
        posted += 1;
    }
    assert_eq!(posted, 3);
    pages.submit().unwrap();
    for _ in 0..posted {
        let id = post(&mut pages, &pipe.write_of(b"x").pinned(Executor::Threads));
        let mut ended = HashSet::new();
        while ended.len() < 2 {
            pages.wait(None).unwrap();
            ended.extend(std::iter::from_fn(|| pages.next()).map(|completion| completion.id));
        }
        assert!(ended.contains(&id));
    }
    assert_eq!(pages.outstanding(), 0);
}

#[test]
fn blocked_thread_is_replaced_by_another() {
    let mut config = Config::default();
    config.active_threads = 1;
    let mut pages = register(config);
    let pipe = Pipe::new();
    let mut bytes = [[0; 1]; 3];
    let mut reads = HashSet::new();
    for byte in &mut bytes {
        reads.insert(post(&mut pages, &pipe.blocking_read_of(byte)));
    }
    let call = Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::Threads);
    let others: HashSet<EntryId> = (0..40).map(|_| post(&mut pages, &call)).collect();
    let mut ended = HashSet::new();
    while ended.len() < others.len() {
        pages.wait(None).unwrap();
        ended.extend(std::iter::from_fn(|| pages.next()).map(|completion| completion.id));
    }
    assert_eq!(ended, others);
    // The third thread may have made all these calls before it blocked.
    let mut more = 0;
    while pages.counters().threads_started < 4 {
        let id = post(&mut pages, &call);
        pages.wait(None).unwrap();
        assert_eq!(pages.next().map(|completion| completion.id), Some(id));
        more += 1;
        assert!(more < 10_000, "{:?}", pages.counters());
    }
    assert!(pages.counters().threads_blocked >= 3, "{:?}", pages.counters());
    let counters = pages.counters();
    assert_eq!(counters.max_active_threads, 1);
    pipe.write(b"abc");
    while pages.outstanding() > 0 {
        pages.wait(None).unwrap();
        while let Some(completion) = pages.next() {
            assert_eq!(completion.result.unwrap(), 1);
            assert!(reads.remove(&completion.id));
        }
    }
    bytes.sort_unstable();
    assert_eq!(bytes, [*b"a", *b"b", *b"c"]);
}

#[test]
fn reads_of_10_000_idle_sockets_need_no_thread() {
    const SOCKETS: usize = 10_000;
    raise_descriptor_limit();
    let mut pages = register(Config::with_entries(SOCKETS as u32 + 64));
    let sockets: Vec<_> = (0..SOCKETS).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let mut buffers = vec![[0_u8; 8]; SOCKETS];
    for (socket, buffer) in sockets.iter().zip(&mut buffers) {
        post(&mut pages, &read_of(socket.as_raw_fd(), buffer));
    }
    assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    // The kernel may drop datagrams when many wait.
    let mut number = 0_usize;
    for some in sockets.chunks(500) {
        for socket in some {
            sender.send_to(&number.to_ne_bytes(), socket.local_addr().unwrap()).unwrap();
            number += 1;
        }
        while pages.outstanding() > SOCKETS - number {
            assert!(pages.wait(None).unwrap());
            while let Some(completion) = pages.next() {
                assert_eq!(completion.result.unwrap(), 8);
            }
        }
    }
    assert!(buffers.iter().enumerate().all(|(number, buffer)| *buffer == number.to_ne_bytes()));
    assert_eq!(pages.counters().threads_started, 0);
}

#[test]
fn several_calls_wait_for_one_descriptor_in_order() {
    let mut pages = register(Config::default());
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let mut buffers = [[0; 1]; 5];
    let ids: Vec<_> = buffers
        .iter_mut()
        .map(|buffer| post(&mut pages, &read_of(ours.as_raw_fd(), buffer)))
        .collect();
    pages.submit().unwrap();
    pages.cancel(ids[1]);
    assert_eq!(errno(&complete(&mut pages, ids[1])), Some(libc::EINTR));
    for byte in [b"a", b"b", b"c", b"d"] {
        theirs.send(byte).unwrap();
    }
    for id in [ids[0], ids[2], ids[3], ids[4]] {
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
    }
    assert_eq!(buffers, [*b"a", [0], *b"b", *b"c", *b"d"]);
}

fn accept_of(listener: &TcpListener) -> Call {
    let fd = listener.as_raw_fd();
    Call::new(libc::SYS_accept4, [fd as usize, 0, 0, libc::SOCK_CLOEXEC as usize, 0, 0])
        .waits(Waits::ReadyThenBlocks(fd, Direction::Read))
}

fn connection(result: io::Result<usize>) -> OwnedFd {
    // SAFETY: the kernel has just opened it.
    unsafe { OwnedFd::from_raw_fd(result.unwrap() as i32) }
}

#[test]
fn wait_for_a_negative_descriptor_panicked() {
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        config.sleep_in_ring = sleep_in_ring;
        let mut pages = register(config);
        let waits = Waits::ReadyThenBlocks(-1, Direction::Read);
        let id =
            post(&mut pages, &Call::new(libc::SYS_read, [usize::MAX, 0, 0, 0, 0, 0]).waits(waits));
        assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EBADF));
    }
}

#[test]
fn connection_moved_several_accepts_onto_threads() {
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        (config.active_threads, config.sleep_in_ring) = (1, sleep_in_ring);
        // The thread that may be active stays so.
        config.heartbeat = Duration::from_secs(60);
        let mut pages = register(config);
        let (pipe, mut byte) = (Pipe::new(), [0; 1]);
        let read = post(&mut pages, &pipe.blocking_read_of(&mut byte));
        pages.submit().unwrap();
        while pages.counters().max_active_threads == 0 {
            thread::yield_now();
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepts: Vec<_> = (0..4).map(|_| post(&mut pages, &accept_of(&listener))).collect();
        pages.submit().unwrap();
        let mut clients = vec![TcpStream::connect(listener.local_addr().unwrap()).unwrap()];
        for _ in 0..10 {
            assert!(!pages.wait(Some(Duration::from_millis(1))).unwrap());
        }
        assert_eq!(pages.counters().on_threads, 2, "the read, and one accept");
        pipe.write(b"x");
        assert_eq!(complete(&mut pages, read).unwrap(), 1);
        for accept in accepts {
            drop(connection(complete(&mut pages, accept)));
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        }
        assert_eq!(pages.counters().on_threads, 5);
    }
}

/// A hangup is reported for both directions, so also while only a wait for room is armed.
#[test]
fn hangup_moved_a_second_blocking_call_of_a_descriptor_onto_a_thread() {
    let mut config = Config::default();
    config.active_threads = 1;
    // The thread that may be active stays so.
    config.heartbeat = Duration::from_secs(60);
    let mut pages = register(config);
    let (pipe, mut byte) = (Pipe::new(), [0; 1]);
    let read = post(&mut pages, &pipe.blocking_read_of(&mut byte));
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (fd, mut bytes) = (ours.as_raw_fd(), [0_u8; 2]);
    let waits = Waits::ReadyThenBlocks(fd, Direction::Read);
    let [first, second] = [0, 1].map(|n| {
        let args = [fd as usize, &raw mut bytes[n] as usize, 1, 0, 0, 0];
        post(&mut pages, &Call::new(libc::SYS_read, args).waits(waits))
    });
    drop(theirs);
    // Armed, then reported: the first one has a thread, which does not make it yet.
    assert!(!pages.wait(Some(Duration::ZERO)).unwrap());
    assert_eq!(pages.counters().on_threads, 2);
    let writable = post(&mut pages, &Call::until_ready(fd, Direction::Write));
    assert_eq!(complete(&mut pages, writable).unwrap(), 0);
    assert_eq!(pages.counters().on_threads, 2, "the read of the pipe, and one of the socket");
    pipe.write(b"x");
    assert_eq!(complete(&mut pages, read).unwrap(), 1);
    for id in [first, second] {
        assert_eq!(complete(&mut pages, id).unwrap(), 0);
    }
    assert_eq!(pages.counters().on_threads, 3);
}

#[test]
fn calls_that_block_although_their_descriptors_are_ready_had_all_threads() {
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        (config.threads, config.sleep_in_ring) = (4, sleep_in_ring);
        let mut pages = register(config);
        let pipes: Vec<_> = (0..6).map(|_| Pipe::new()).collect();
        let bytes = vec![b'x'; 1 << 20];
        let write_of = |pipe: &Pipe| {
            let fd = pipe.writes.as_raw_fd();
            let args = [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
            Call::new(libc::SYS_write, args).waits(Waits::ReadyThenBlocks(fd, Direction::Write))
        };
        let writes: Vec<_> = pipes.iter().map(|pipe| post(&mut pages, &write_of(pipe))).collect();
        while pages.counters().on_threads < 3 {
            pages.wait(Some(Duration::from_millis(1))).unwrap();
        }
        let bounded = Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::Threads);
        for _ in 0..10 {
            let id = post(&mut pages, &bounded);
            assert!(pages.wait(Some(Duration::from_secs(10))).unwrap(), "no thread is left");
            assert!(complete(&mut pages, id).is_ok());
        }
        let mut byte = [0; 1];
        // SAFETY: it is not posted.
        assert_eq!(unsafe { pages.post(&pipes[0].blocking_read_of(&mut byte)) }, Err(Busy));
        // One waits for a thread, another is on one.
        for write in [writes[5], writes[0]] {
            pages.cancel(write);
            complete(&mut pages, write).map(drop).unwrap_or_else(|error| {
                assert_eq!(error.raw_os_error(), Some(libc::EINTR));
            });
        }
        // The others follow when one has ended.
        let mut part = vec![0; 1 << 16];
        while pages.outstanding() > 0 {
            pages.wait(Some(Duration::ZERO)).unwrap();
            while let Some(completion) = pages.next() {
                assert_eq!(completion.result.unwrap(), bytes.len());
            }
            for pipe in pipes.iter().filter(|pipe| pipe.available() > 0) {
                rustix::io::read(&pipe.reads, &mut part).unwrap();
            }
        }
    }
}

#[test]
fn each_wait_arms_its_descriptor_by_one_call() {
    let mut pages = register(Config::default());
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let mut byte = [0; 1];
    for round in 1..=10 {
        let id = post(&mut pages, &read_of(ours.as_raw_fd(), &mut byte));
        pages.submit().unwrap();
        theirs.send(b"x").unwrap();
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
        // It was armed, and reported.
        assert_eq!(pages.counters().epoll_calls, 2 * round);
    }
}

#[test]
fn cancelled_calls_end_with_eintr() {
    let mut pages = register(Config::default());
    let pipe = Pipe::new();
    let mut byte = [0; 1];
    // Not submitted.
    let id = post(&mut pages, &pipe.write_of(b"x"));
    pages.cancel(id);
    pages.cancel(id);
    assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EINTR));
    assert_eq!(pipe.available(), 0);
    // On a thread, which may have begun or not.
    for wait_ms in [0, 0, 0, 5, 20] {
        let id = post(&mut pages, &pipe.blocking_read_of(&mut byte));
        pages.wait(Some(Duration::from_millis(wait_ms))).unwrap();
        pages.cancel(id);
        assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EINTR));
        // It has ended.
        pages.cancel(id);
    }
    // A cancellation that comes too late.
    let id = post(&mut pages, &Call::bounded(libc::SYS_getpid, [0; 6]));
    pages.wait(None).unwrap();
    pages.cancel(id);
    assert_eq!(complete(&mut pages, id).unwrap(), std::process::id() as usize);
    assert_eq!(pages.outstanding(), 0);
}

/// A signal that is for one call must not reach another one.
#[test]
fn cancellation_interrupts_no_other_call() {
    let mut pages = register(Config::default());
    let pipe = Pipe::new();
    let mut byte = [0; 1];
    for round in 0..300 {
        let id = post(&mut pages, &pipe.blocking_read_of(&mut byte));
        let sleep = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };
        let sleeps: Vec<_> = (0..4)
            .map(|_| {
                let args = [&raw const sleep as usize, 0, 0, 0, 0, 0];
                post(&mut pages, &Call::new(libc::SYS_nanosleep, args))
            })
            .collect();
        pages.submit().unwrap();
        for _ in 0..round * 10 {
            std::hint::spin_loop();
        }
        pages.cancel(id);
        let mut ended = 0;
        while ended < 5 {
            pages.wait(None).unwrap();
            while let Some(completion) = pages.next() {
                ended += 1;
                if sleeps.contains(&completion.id) {
                    assert_eq!(completion.result.unwrap(), 0);
                } else {
                    assert_eq!(errno(&completion.result), Some(libc::EINTR));
                }
            }
        }
    }
}

/// Returns the number of the syscall thread, of which there is one.
fn syscall_thread(pages: &mut Pages) -> libc::pid_t {
    let mut target = [0_u8; 64];
    let (path, room) = (c"/proc/thread-self".as_ptr() as usize, target.as_mut_ptr() as usize);
    let at = libc::AT_FDCWD as usize;
    let call = Call::bounded(libc::SYS_readlinkat, [at, path, room, target.len(), 0, 0]);
    let id = post(pages, &call.pinned(Executor::Threads));
    let len = complete(pages, id).unwrap();
    let target = std::str::from_utf8(&target[..len]).unwrap();
    target.rsplit('/').next().unwrap().parse().unwrap()
}

#[test]
fn threads_of_the_crate_handled_the_signals_of_the_program() {
    let mut pages = register(Config::default());
    syscall_thread(&mut pages);
    let mut seen = HashSet::new();
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    // glibc does not block those that it uses itself.
    let unblocked = |signal: i32| {
        matches!(signal, libc::SIGKILL | libc::SIGSTOP | 32 | 33) || faults.contains(&signal)
    };
    // A thread has its name when it has begun.
    while seen.len() < 2 {
        for thread in std::fs::read_dir("/proc/self/task").unwrap() {
            // Threads of other tests end meanwhile.
            let path = thread.unwrap().path();
            let Ok(status) = std::fs::read_to_string(path.join("status")) else { continue };
            let field =
                |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
            let name = field("Name:");
            // A thread that begins has the name of the one that has started it. It gets its own before it unblocks a
            // signal.
            let later = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            if !name.starts_with("flexsc") || later.trim_end() != name {
                continue;
            }
            let blocked = u64::from_str_radix(field("SigBlk:"), 16).unwrap();
            let is_own = name != "flexsc heartbea";
            for signal in (1..65).filter(|signal| !unblocked(*signal)) {
                let is_blocked = blocked >> (signal - 1) & 1 != 0;
                let may_be_open = is_own && signal == libc::SIGRTMAX() - 3;
                assert!(is_blocked || may_be_open, "{name}: {signal}");
            }
            seen.insert(is_own);
        }
    }
}

/// Sends the signal that cancels calls to a thread as another program would.
fn signal_from_elsewhere(thread: libc::pid_t) {
    // SAFETY: a plain C structure, for which all zero bytes are a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    (info.si_signo, info.si_code) = (libc::SIGRTMAX() - 3, libc::SI_QUEUE);
    let (process, signal) = (std::process::id(), info.si_signo);
    // SAFETY: the structure is read during the call.
    let sent = unsafe {
        let info = &raw const info;
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info)
    };
    assert_eq!(sent, 0);
}

#[test]
fn signal_from_elsewhere_kept_a_syscall_thread_waiting_for_another() {
    let mut config = Config::default();
    config.threads = 1;
    let mut pages = register(config);
    let thread = syscall_thread(&mut pages);
    let (pipe, mut byte) = (Pipe::new(), [0; 1]);
    for is_cancelled in [false, true] {
        let id = post(&mut pages, &pipe.blocking_read_of(&mut byte));
        pages.submit().unwrap();
        let blocked = pages.counters().threads_blocked;
        while pages.counters().threads_blocked == blocked {
            thread::yield_now();
        }
        if is_cancelled {
            pages.cancel(id)
        } else {
            signal_from_elsewhere(thread)
        }
        assert!(pages.wait(Some(Duration::from_secs(10))).unwrap(), "the read has not ended");
        assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EINTR));
    }
}

#[test]
fn timeout_beyond_the_clock_panicked() {
    let mut pages = register(Config::default());
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let args = [&raw const time as usize, 0, 0, 0, 0, 0];
    let id = post(&mut pages, &Call::new(libc::SYS_nanosleep, args));
    assert!(pages.wait(Some(Duration::MAX)).unwrap());
    assert_eq!(complete(&mut pages, id).unwrap(), 0);
}

fn call_of_lock(file: &File, lock: &libc::flock) -> Call {
    let (fd, lock) = (file.as_raw_fd() as usize, ptr::from_ref(lock) as usize);
    Call::new(libc::SYS_fcntl, [fd, libc::F_OFD_SETLK as usize, lock, 0, 0, 0])
}

fn lock_file(pages: &mut Pages, file: &File, lock: &libc::flock) {
    let id = post(pages, &call_of_lock(file, lock).waits(Waits::Bounded));
    assert_eq!(complete(pages, id).unwrap(), 0);
}

/// Posts a lock of a file that another description has locked: a syscall thread makes it, as a file is always ready,
/// and it returns `EAGAIN`. Waits until it has.
fn post_lock_in_vain(pages: &mut Pages, file: &File, lock: &libc::flock) -> EntryId {
    let waits = Waits::ReadyThenBlocks(file.as_raw_fd(), Direction::Read);
    let id = post(pages, &call_of_lock(file, lock).waits(waits));
    pages.submit().unwrap();
    while !pages.has_completion() {
        thread::yield_now();
    }
    id
}

/// A lock of a whole file.
fn lock() -> libc::flock {
    // SAFETY: a plain C structure, for which all zero bytes are a valid value: the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (libc::F_WRLCK as _, libc::SEEK_SET as _);
    lock
}

#[test]
fn cancellation_was_lost_between_the_result_of_a_thread_and_the_next_wait() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (other, lock) = (file.reopen().unwrap(), lock());
    let mut pages = register(Config::default());
    lock_file(&mut pages, file.as_file(), &lock);
    let id = post_lock_in_vain(&mut pages, &other, &lock);
    pages.cancel(id);
    let completion = pages.next().expect("its completion follows");
    assert_eq!((completion.id, errno(&completion.result)), (id, Some(libc::EINTR)));
}

#[test]
fn cancellation_of_a_call_that_goes_to_a_thread_again_never_returned() {
    let (sender, ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (other, lock) = (file.reopen().unwrap(), lock());
        let mut pages = register(Config::default());
        lock_file(&mut pages, file.as_file(), &lock);
        let id = post_lock_in_vain(&mut pages, &other, &lock);
        // It goes to a thread again.
        let _ = pages.next();
        pages.cancel(id);
        let result = complete(&mut pages, id);
        sender.send(errno(&result)).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(10));
    assert_eq!(ended, Ok(Some(libc::EINTR)));
}

#[test]
fn calls_hung_where_no_thread_can_be_started() {
    thread::spawn(|| {
        let mut pages = register(Config::default());
        for call in [libc::SYS_clone3, libc::SYS_clone] {
            refused::refuse(call, libc::EAGAIN).expect("cannot install a seccomp filter");
        }
        let (pipe, mut byte) = (Pipe::new(), [0; 1]);
        let bounded = pipe.write_of(b"x").pinned(Executor::Threads);
        for _ in 0..2 {
            let id = post(&mut pages, &bounded);
            assert!(pages.wait(Some(Duration::from_secs(10))).unwrap(), "no completion");
            assert_eq!(complete(&mut pages, id).unwrap(), 1);
            let id = post(&mut pages, &pipe.blocking_read_of(&mut byte));
            assert!(pages.wait(Some(Duration::from_secs(10))).unwrap(), "no completion");
            assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EAGAIN));
        }
        assert_eq!(pages.counters().threads_started, 0);
    })
    .join()
    .unwrap();
}

/// Returns whether this is the process of one test only. Otherwise, runs the test in one.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(test).is_some() {
        return true;
    }
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let output = alone.args(["--exact", test, "--nocapture"]).env(test, "1").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{output:?}");
    false
}

#[test]
fn calls_hung_where_only_some_threads_can_be_started() {
    const NAME: &str = "calls_hung_where_only_some_threads_can_be_started";
    // The filter is that of all threads of a process, so this one has to have none of other tests.
    if !is_alone(NAME) {
        return;
    }
    let (blocked, other, pipe) = (Pipe::new(), Pipe::new(), Pipe::new());
    let (mut first, mut second) = ([0; 1], [0; 1]);
    let mut pages = register(Config::default());
    let waits = post(&mut pages, &blocked.blocking_read_of(&mut first));
    pages.submit().unwrap();
    assert_eq!(pages.counters().threads_started, 1);
    for call in [libc::SYS_clone3, libc::SYS_clone] {
        refused::refuse_to_all_threads(call, libc::EAGAIN).expect("cannot install a filter");
    }
    for _ in 0..2 {
        let id = post(&mut pages, &pipe.write_of(b"x").pinned(Executor::Threads));
        assert!(pages.wait(Some(Duration::from_secs(10))).unwrap(), "no completion");
        assert_eq!(complete(&mut pages, id).unwrap(), 1);
        let id = post(&mut pages, &other.blocking_read_of(&mut second));
        assert!(pages.wait(Some(Duration::from_secs(10))).unwrap(), "no completion");
        assert_eq!(errno(&complete(&mut pages, id)), Some(libc::EAGAIN));
    }
    // The thread that runs ends its call, and makes others when it is back.
    blocked.write(b"x");
    assert_eq!(complete(&mut pages, waits).unwrap(), 1);
    let deadline = Instant::now() + Duration::from_secs(10);
    while pages.counters().on_threads == 1 {
        assert!(Instant::now() < deadline, "{:?}", pages.counters());
        let call = Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::Threads);
        let id = post(&mut pages, &call);
        assert!(complete(&mut pages, id).is_ok());
    }
    assert_eq!(pages.counters().threads_started, 1);
}

#[test]
fn id_of_larger_pages_panicked() {
    let (mut few, mut many) =
        (register(Config::with_entries(64)), register(Config::with_entries(128)));
    let call = Call::bounded(libc::SYS_getpid, [0; 6]);
    let ids: Vec<_> = (0..128).map(|_| post(&mut many, &call)).collect();
    let beyond: Vec<_> = ids.into_iter().filter(|id| id.index() >= few.entries()).collect();
    assert_eq!(beyond.len(), 64);
    post(&mut few, &call);
    for id in beyond {
        few.cancel(id);
    }
    assert!(few.wait(None).unwrap());
    assert!(few.next().unwrap().result.is_ok());
}

#[test]
fn death_of_a_syscall_thread_loses_no_other_call() {
    let mut config = Config::default();
    config.active_threads = 1;
    let mut pages = register(config);
    let dies = post(&mut pages, &Call::new(libc::SYS_exit, [0; 6]));
    let call = Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::Threads);
    let others: Vec<_> = (0..20).map(|_| post(&mut pages, &call)).collect();
    let mut ended = 0;
    while ended < 21 {
        pages.wait(None).unwrap();
        while let Some(completion) = pages.next() {
            ended += 1;
            if completion.id == dies {
                assert_eq!(errno(&completion.result), Some(libc::EOWNERDEAD));
            } else {
                assert!(others.contains(&completion.id) && completion.result.is_ok());
            }
        }
    }
    assert_eq!(pages.counters().threads_died, 1);
}

/// Returns how many descriptors of the process are eventfds, of which pages have one.
fn eventfds() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    targets.filter(|target| target.as_os_str() == "anon_inode:[eventfd]").count()
}

#[test]
fn thread_that_died_kept_its_pages_and_their_descriptor() {
    if !is_alone("thread_that_died_kept_its_pages_and_their_descriptor") {
        return;
    }
    let before = eventfds();
    for _ in 0..20 {
        let mut pages = register(Config::default());
        assert!(eventfds() > before);
        let dies = post(&mut pages, &Call::new(libc::SYS_exit, [0; 6]));
        assert_eq!(errno(&complete(&mut pages, dies)), Some(libc::EOWNERDEAD));
    }
    // The last heartbeat ends after the drop of its pages has returned.
    let deadline = Instant::now() + Duration::from_secs(10);
    while eventfds() > before {
        assert!(Instant::now() < deadline, "{} eventfds, {before} before", eventfds());
        thread::yield_now();
    }
}

#[test]
fn drop_ends_calls_that_wait() {
    let pipe = Pipe::new();
    let mut byte = [0; 1];
    let mut pages = register(Config::default());
    post(&mut pages, &pipe.blocking_read_of(&mut byte));
    post(&mut pages, &Call::bounded(libc::SYS_getpid, [0; 6]));
    pages.submit().unwrap();
    assert!(pages.shut_down());
    assert_eq!(pages.outstanding(), 0);
    // They can be used again.
    let id = post(&mut pages, &pipe.write_of(b"x"));
    assert_eq!(complete(&mut pages, id).unwrap(), 1);
}

#[test]
fn without_threads_the_owner_makes_all_calls() {
    let mut config = Config::default();
    config.threads = 0;
    let mut pages: Pages = register(config);
    let id = post(&mut pages, &Call::new(libc::SYS_getpid, [0; 6]).pinned(Executor::Threads));
    assert_eq!(complete(&mut pages, id).unwrap(), std::process::id() as usize);
    assert_eq!(pages.counters().in_place, 1);
}

/// epoll(7) refuses /dev/zero with EPERM: it is always ready.
#[test]
fn without_threads_a_call_on_a_device_without_readiness_ended_with_eperm() {
    let zero = File::open("/dev/zero").unwrap();
    let fd = zero.as_raw_fd();
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        (config.threads, config.sleep_in_ring) = (0, sleep_in_ring);
        let mut pages = register(config);
        for waits in
            [Waits::AfterReady(fd, Direction::Read), Waits::ReadyThenBlocks(fd, Direction::Read)]
        {
            let mut byte = [1];
            let args = [fd as usize, byte.as_mut_ptr() as usize, 1, 0, 0, 0];
            let id = post(&mut pages, &Call::new(libc::SYS_read, args).waits(waits));
            assert_eq!(complete(&mut pages, id).unwrap(), 1, "{waits:?}");
            assert_eq!(byte, [0]);
        }
        assert_eq!(pages.counters().in_place, 2);
    }
}
