//! The kernel's bounds and accounts: accepts of all listeners, groups of buffers, system calls. A system without
//! openat2(2).

#[allow(dead_code, reason = "a part is used")]
#[path = "../../httpd/tests/serving/refused.rs"]
mod refused;
#[path = "support/kernel.rs"]
mod support;

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::NonNull;

use flexsc_rt::kernel::FlexScKernel;
use shared_ring::buffers::{BufferGroup, BufferMemory, BufferPool, GatherList};
use shared_ring::calls::{Call, Executor};
use shared_ring::files::{Access, File, FileOp, FileOutcome, PathAt, SymlinkPolicy};
use shared_ring::{Errno, Fd, Host, Op, OpKind, Outcome, Submit, SubmitErrorKind, Token, WhenCold};

use support::{accept, connect, fd, kernel, listen, next, submit, turn};

/// Memory of a group of buffers.
#[repr(align(4096))]
struct Page(UnsafeCell<[u8; 4096]>);

// SAFETY: the memory is that of the value, and nothing else uses it.
unsafe impl BufferMemory for Page {
    fn bytes(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(NonNull::from(&self.0).cast(), 4096)
    }
}

/// One buffer of 16 bytes.
fn small_buffer() -> BufferPool {
    BufferPool::over(Box::new(Page(UnsafeCell::new([0; 4096]))), 1, 16).unwrap()
}

#[test]
fn accepts_beyond_the_first_of_each_listener_are_bounded_together() {
    const FOR_ONE: u64 = 16;
    const BEYOND_THE_FIRST: u64 = 1_024;
    let mut kernel = kernel();
    let listeners: Vec<_> = (0..100).map(|_| listen(&mut kernel).0).collect();
    let token = |slot: usize| Token::new(OpKind::Accept, slot as u32, 0);
    let before = kernel.page_counters().posted;
    for (slot, listener) in listeners.iter().enumerate() {
        submit(&mut kernel, token(slot), accept(listener, None));
    }
    assert_eq!(kernel.page_counters().posted - before, 100 + BEYOND_THE_FIRST);
    // One that ends leaves its accepts to the next one.
    kernel.cancel(token(0));
    assert!(next(&mut kernel).is_last);
    let before = kernel.page_counters().posted;
    submit(&mut kernel, token(0), accept(&listeners[0], None));
    assert_eq!(kernel.page_counters().posted - before, FOR_ONE);
    kernel.finish();
    listeners.into_iter().for_each(|listener| kernel.host_mut().close_unused(listener));
}

#[test]
fn receives_use_the_buffers_of_their_group() {
    let mut kernel = kernel();
    let small = kernel.add_buffers(small_buffer()).unwrap();
    let mut pairs = [(); 2].map(|()| connect(&mut kernel));
    let token = |slot: usize| Token::new(OpKind::Receive, slot as u32, 0);
    for (slot, group) in [small, BufferGroup::DEFAULT].into_iter().enumerate() {
        submit(&mut kernel, token(slot), Op::Receive { fd: fd(&pairs[slot].0), group });
    }
    let mut received = |slot: usize, len: usize| {
        let completion = next(&mut kernel);
        assert_eq!(completion.token, token(slot));
        let Outcome::Received(bytes) = completion.outcome else { panic!("{completion:?}") };
        assert_eq!(bytes.len(), len);
        bytes
    };
    pairs[0].1.write_all(&[7; 40]).unwrap();
    let held = received(0, 16);
    // The group has no other buffer. The default one has.
    pairs[1].1.write_all(&[8; 40]).unwrap();
    received(1, 40);
    drop(held);
    received(0, 16);
    received(0, 8);
    // Another kernel has more groups.
    let unknown = {
        let mut other = support::kernel();
        other.add_buffers(small_buffer()).unwrap();
        other.add_buffers(small_buffer()).unwrap()
    };
    let receive = Op::Receive { fd: fd(&pairs[0].0), group: unknown };
    let refused = kernel.submit(Token::new(OpKind::Receive, 9, 0), receive).unwrap_err();
    assert!(matches!(refused.kind, SubmitErrorKind::UnknownGroup));
    kernel.finish();
    pairs.into_iter().for_each(|(ours, _)| kernel.host_mut().close_unused(ours));
}

#[test]
fn system_calls_of_all_executors_are_counted() {
    let mut kernel = kernel();
    let (reads, mut writes) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&reads, true).unwrap();
    // SAFETY: the pipe outlives the kernel's calls.
    let fd = unsafe { Fd::lent(reads.as_fd()) };
    let token = Token::new(OpKind::Call, 0, 0);
    for _ in 0..5 {
        let read = Op::Call(Box::new(Call::read(fd, 8)), Executor::WhenReadable);
        submit(&mut kernel, token, read);
        assert_eq!(turn(&mut kernel), 0);
        writes.write_all(b"ready").unwrap();
        assert!(matches!(next(&mut kernel).outcome, Outcome::Called(_, Ok(5))));
    }
    for _ in 0..3 {
        submit(&mut kernel, token, Op::Call(Box::new(Call::random(16)), Executor::Thread));
        assert!(matches!(next(&mut kernel).outcome, Outcome::Called(_, Ok(16))));
    }
    let of_pages = kernel.page_counters();
    assert!(of_pages.in_place >= 5 && of_pages.on_threads == 3, "{of_pages:?}");
    // The owner sleeps in the ring, or in an epoll set.
    assert!(of_pages.ring_entries.max(of_pages.epoll_calls) > 3, "{of_pages:?}");
    let counters = kernel.counters();
    assert_eq!((counters.system_calls, counters.completions), (sum(of_pages), 8));
}

#[test]
fn system_calls_of_the_kernel_itself_are_counted() {
    let mut kernel = kernel();
    let (socket, _peer) = connect(&mut kernel);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), b"content").unwrap();
    let before = kernel.counters().system_calls - sum(kernel.page_counters());
    // It asks for the metadata of a file that was opened,
    let file = open(&mut kernel, directory.path(), c"file").unwrap();
    // and whether a part of it is cached.
    for _ in 0..2 {
        let (fd, file, when_cold) = (fd(&socket), file.clone(), WhenCold::Read);
        let op = Op::SendFile { fd, file, offset: 0, len: 7, is_last: true, when_cold };
        submit(&mut kernel, Token::new(OpKind::Send, 0, 0), op);
        assert!(matches!(next(&mut kernel).outcome, Outcome::SentFile { bytes: 7, .. }));
    }
    assert_eq!(kernel.counters().system_calls - sum(kernel.page_counters()), before + 3);
    kernel.host_mut().close_unused(socket);
}

/// All system calls of the pages.
fn sum(counters: flexsc_rt::Counters) -> u64 {
    counters.in_place + counters.on_threads + counters.ring_entries + counters.epoll_calls
}

/// Opens a file of a directory.
fn open(kernel: &mut FlexScKernel, directory: &Path, name: &CStr) -> Result<File, Errno> {
    let root = kernel.host_mut().open_directory(directory).unwrap();
    let at = PathAt { root, path: name.into(), symlinks: SymlinkPolicy::Beneath };
    let op = Op::File(FileOp::Open(at, Access::Read));
    submit(kernel, Token::new(OpKind::File, 0, 0), op);
    match next(kernel).outcome {
        Outcome::File(FileOutcome::Opened(opened)) => Ok(opened.0),
        Outcome::Failed(errno, None) => Err(errno),
        outcome => panic!("{outcome:?}"),
    }
}

/// Returns the most memory that the process has had mapped, in KiB (proc(5)).
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn read_of_a_range_longer_than_its_file_took_memory_for_the_whole_range() {
    let mut kernel = kernel();
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..2_500_001_u32).map(|n| (n / 7) as u8).collect();
    std::fs::write(directory.path().join("file"), &content).unwrap();
    let file = open(&mut kernel, directory.path(), c"file").unwrap();
    let before = peak_kib();
    for start in [0, 1, 4_096] {
        let read = FileOp::Read(file.clone(), start..u64::MAX);
        submit(&mut kernel, Token::new(OpKind::File, 0, 0), Op::File(read));
        let outcome = next(&mut kernel).outcome;
        let Outcome::File(FileOutcome::Read(bytes)) = outcome else { panic!("{outcome:?}") };
        assert!(*bytes == content[start as usize..], "from {start}: {} bytes", bytes.len());
    }
    // The range has 4 GiB.
    assert!(peak_kib() - before < 3 << 20, "{} KiB more", peak_kib() - before);
}

#[test]
fn files_are_opened_where_openat2_is_missing() {
    // Filters of systemd have the one or the other error.
    for refusal in [libc::ENOSYS, libc::EPERM] {
        let refused = std::thread::spawn(move || {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("file"), b"content").unwrap();
            refused::refuse(libc::SYS_openat2, refusal).expect("cannot install a seccomp filter");
            let mut kernel = kernel();
            open(&mut kernel, directory.path(), c"file").unwrap();
            for (name, errno) in [(c"none", Errno::NOENT), (c"../file", Errno::XDEV)] {
                assert_eq!(open(&mut kernel, directory.path(), name).unwrap_err(), errno);
            }
        });
        refused.join().unwrap();
    }
}

#[test]
fn send_to_a_full_socket_is_not_repeated_while_its_peer_has_ended() {
    let mut kernel = kernel();
    let (mut ours, mut peer) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut filled = 0;
    while let Ok(len) = ours.write(&[7; 4096]) {
        filled += len;
    }
    // Each poll reports that the peer has shut down its sending side.
    peer.shutdown(Shutdown::Write).unwrap();
    let mut data = Box::new(GatherList::default());
    data.shared(b"late".to_vec().into());
    // SAFETY: the socket outlives the kernel's calls.
    let fd = unsafe { Fd::lent(ours.as_fd()) };
    submit(&mut kernel, Token::new(OpKind::Send, 0, 0), Op::Send { fd, data });
    assert_eq!(turn(&mut kernel), 0);
    let calls = kernel.page_counters().in_place;
    (0..100).for_each(|_| assert_eq!(turn(&mut kernel), 0));
    assert_eq!(kernel.page_counters().in_place, calls);
    peer.read_exact(&mut vec![0; filled]).unwrap();
    assert!(matches!(next(&mut kernel).outcome, Outcome::Sent(_, 4)));
}
