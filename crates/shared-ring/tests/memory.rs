//! A dropped kernel releases the memory of its operations, its receive buffers, and values attached to
//! files.

mod held;
mod number;

use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use held::held;
use number::number;
use shared_ring::buffers::{BufferGroup, GatherList};
use shared_ring::files::{File, FileOp, PathAt, SymlinkPolicy};
use shared_ring::poller::POLLERS;
use shared_ring::uring::{Mode, UringConfig, UringKernel};
use shared_ring::{
    Engine, EngineConfig, Host, Kernel, Linux, Op, OpKind, Outcome, Socket, Submit, Submitted,
    Token, WhenCold, nonblocking,
};

const MODES: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Immediate];
const ENGINE: EngineConfig = EngineConfig::new(8, 4, 4096);

/// Creates a socket with a full send buffer, and its peer.
fn full() -> (Socket, UnixStream) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let end = loop {
        if let Err(error) = ours.write(&[0; 4096]) {
            break error;
        }
    };
    assert_eq!(end.kind(), ErrorKind::WouldBlock);
    (Socket::from(OwnedFd::from(ours)), theirs)
}

/// Drops a kernel with operations of several kinds in flight, and then a buffer that it has lent.
fn drop_with_operations_in_flight(mut kernel: impl Kernel) {
    let (socket, mut theirs) = full();
    let fd = number(&socket);
    let (other, _peer) = full();
    let token = |kind, slot| Token::new(kind, slot, 0);

    kernel
        .submit(token(OpKind::Receive, 0), Op::Receive { fd, group: BufferGroup::DEFAULT })
        .unwrap();
    let mut data = Box::<GatherList>::default();
    data.copy(&[1; 10_000]);
    let sent = kernel.submit(token(OpKind::Send, 0), Op::Send { fd, data }).unwrap();
    assert!(matches!(sent, Submitted::InFlight), "{sent:?}");
    let mut contents = tempfile::tempfile().unwrap();
    contents.write_all(b"contents").unwrap();
    let kept = Rc::new(());
    let file = File::from(OwnedFd::from(contents)).with(Rc::clone(&kept));
    let send_file = Op::SendFile {
        fd: number(&other),
        file,
        offset: 0,
        len: 8,
        is_last: true,
        when_cold: WhenCold::Read,
    };
    let sent = kernel.submit(token(OpKind::Send, 1), send_file).unwrap();
    assert!(matches!(sent, Submitted::InFlight), "{sent:?}");

    theirs.write_all(b"received").unwrap();
    let bytes = loop {
        match kernel.next().map(|completion| completion.outcome) {
            Some(Outcome::Received(bytes)) => break bytes,
            Some(other) => panic!("{other:?}"),
            None => kernel.turn(None).unwrap(),
        }
    };
    kernel.turn(Some(Instant::now())).unwrap();
    assert_eq!(Rc::strong_count(&kept), 2, "the file is in use");
    drop(kernel);
    assert_eq!(Rc::strong_count(&kept), 1, "the file is no longer in use");
    assert_eq!(&*bytes, b"received", "the lent buffer stays valid");
    Linux::default().close_unused(socket);
    Linux::default().close_unused(other);
}

/// Drops a kernel while an offload thread lists a directory, or before the listing was taken.
fn releases_directory(name: &str, mut kernel: impl Kernel) {
    let kept = Rc::new(());
    let directory = std::fs::File::open("/proc/self").unwrap();
    let root = File::from(OwnedFd::from(directory)).with(Rc::clone(&kept));
    let path = PathAt { root, path: c"task".into(), symlinks: SymlinkPolicy::Beneath };
    let list = Op::File(FileOp::List(path));
    let posted = kernel.submit(Token::new(OpKind::File, 0, 0), list).unwrap();
    assert!(matches!(posted, Submitted::InFlight), "{name}: {posted:?}");
    assert_eq!(Rc::strong_count(&kept), 2, "{name}: the directory is in use");
    drop(kernel);
    assert_eq!(Rc::strong_count(&kept), 1, "{name}: the directory is no longer in use");
}

/// Returns the size of this process's address space in bytes (proc(5), `/proc/pid/statm`).
fn mapped() -> usize {
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    sizes.split(' ').next().unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

/// Checks that dropped kernels unmap their buffer rings, which the allocator does not count.
fn unmaps(mode: Mode) {
    const ROUNDS: usize = 8;
    const RING: usize = 16 << 15;
    let config = UringConfig::new(mode, 1, 1 << 15, 1);
    let rounds = || (0..ROUNDS).for_each(|_| drop(UringKernel::new(&config).unwrap()));
    rounds();
    let before = mapped();
    rounds();
    let grown = mapped().saturating_sub(before);
    assert!(grown < ROUNDS * RING / 2, "{mode:?}: {grown} bytes leaked");
}

fn releases_memory<K: Kernel>(name: &str, kernel: impl Fn() -> K) {
    println!("{name}");
    // Allocations that a process makes once happen in the first run.
    drop_with_operations_in_flight(kernel());
    let before = held();
    drop_with_operations_in_flight(kernel());
    assert_eq!(held() - before, 0, "{name}: bytes leaked");
    releases_directory(name, kernel());
}

/// Held by each test, as the address space is that of all.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn dropped_kernel_releases_all_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, open) in POLLERS {
        releases_memory(&format!("engine over {name}"), || {
            Engine::new(open().unwrap(), &ENGINE).unwrap()
        });
    }
    for mode in MODES {
        let EngineConfig { operations, buffers, buffer_size, .. } = ENGINE;
        let config = UringConfig::new(mode, operations, buffers, buffer_size);
        match UringKernel::probe(mode) {
            Ok(()) => {
                releases_memory(&format!("ring, {mode:?}"), || UringKernel::new(&config).unwrap());
                unmaps(mode);
            }
            Err(missing) => println!("not tested: ring, {mode:?}: {missing}"),
        }
    }
}

#[test]
fn each_send_that_waited_for_the_disk_held_memory_of_the_size_of_its_part() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const SENDS: u32 = 16;
    const BYTES: u32 = nonblocking::MAX_READ_BYTES;
    if let Err(missing) = UringKernel::probe(Mode::Deferred) {
        return println!("not tested: {missing}");
    }
    let mut kernel = UringKernel::new(&UringConfig::new(Mode::Deferred, 64, 4, 4096)).unwrap();
    // The file system of proc(5) does not report what is cached.
    let file = File::from(OwnedFd::from(std::fs::File::open("/proc/version").unwrap()));
    let sockets: Vec<_> = (0..SENDS)
        .map(|_| UnixStream::pair().unwrap())
        .map(|(ours, theirs)| (Socket::from(OwnedFd::from(ours)), theirs))
        .collect();
    let mut submit = |slot: u32| {
        let (fd, file) = (number(&sockets[slot as usize].0), file.clone());
        let when_cold = WhenCold::Read;
        let op = Op::SendFile { fd, file, offset: 0, len: BYTES, is_last: true, when_cold };
        let sent = kernel.submit(Token::new(OpKind::Send, slot, 0), op).unwrap();
        assert!(matches!(sent, Submitted::InFlight), "{sent:?}");
    };
    submit(0);
    let before = held();
    (1..SENDS).for_each(&mut submit);
    let grown = held() - before;
    assert!(grown < BYTES as isize, "{grown} bytes for {SENDS} sends");
    kernel.finish();
    sockets.into_iter().for_each(|(socket, _)| Linux::default().close_unused(socket));
}
