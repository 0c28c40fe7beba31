//! Operations as posted system calls. Each has its executor, or waits for a descriptor; so none is chosen by the costs
//! of a kind of object.

use std::ffi::c_char;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};

use shared_ring::Op;
use shared_ring::author::DiscardBuffer;
use shared_ring::buffers::{GatherList, RxBuf};
use shared_ring::calls::Executor as By;
use shared_ring::nonblocking::Blocking;

use crate::call::{Call, Direction, Executor, Waits};
use crate::operations;
use crate::pages::Scratch;

/// Returns the first call of an operation, which owns its memory beside the entry's scratch memory.
pub(super) fn first(op: &mut Op, scratch: &mut Scratch) -> Call {
    match op {
        Op::Accept { listener, .. } => accept(listener.raw()),
        Op::Receive { fd, .. } => Call::until_ready(fd.raw(), Direction::Read),
        Op::Writable { fd } => Call::until_ready(fd.raw(), Direction::Write),
        Op::Send { fd, data } => send(fd.raw(), data),
        Op::SendFile { fd, file, offset, len, .. } => {
            send_file(fd.raw(), file.as_raw_fd(), *offset, *len, scratch)
        }
        Op::Connect { fd, to } => {
            let waits = Waits::Ready(fd.raw(), Direction::Write);
            operations::connect_call(fd.raw(), *to, scratch).waits(waits)
        }
        Op::Close { socket } => close(socket.as_raw_fd()),
        Op::Call(call, by) => raw(call, *by),
        Op::File(_) => unreachable!("file operations have stages of their own"),
        Op::ReceiveFrom { .. } | Op::SendTo { .. } => unreachable!("they were rejected"),
    }
}

/// A system call, by the executor that its submitter has chosen.
fn raw(call: &mut shared_ring::calls::Call, by: By) -> Call {
    let fd = call.fd().map(shared_ring::Fd::raw);
    // SAFETY: the call stays in the table, and is not accessed, until the posted one has ended.
    let job = unsafe { call.job() };
    let call = Call::new(job.number.into(), job.args);
    match (by, fd) {
        (By::WhenReadable, Some(fd)) => call.waits(Waits::Ready(fd, Direction::Read)),
        (By::WhenWritable, Some(fd)) => call.waits(Waits::Ready(fd, Direction::Write)),
        (By::Ring, _) => call.pinned(Executor::Ring),
        (By::Thread, _) => call.pinned(Executor::Threads),
        _ => call.pinned(Executor::InPlace),
    }
}

/// Takes a connection once there is one: accept4(2).
fn accept(listener: RawFd) -> Call {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    Call::new(libc::SYS_accept4, [listener as usize, 0, 0, flags as usize, 0, 0])
        .waits(Waits::AfterReady(listener, Direction::Read))
        .in_batches()
}

/// Receives what has arrived: recv(2).
pub(super) fn receive(fd: RawFd, buffer: &mut RxBuf) -> Call {
    let (address, len) = (buffer.as_mut_ptr() as usize, buffer.len());
    let flags = libc::MSG_DONTWAIT as usize;
    Call::bounded(libc::SYS_recvfrom, [fd as usize, address, len, flags, 0, 0])
        .pinned(Executor::InPlace)
        .in_batches()
}

/// Sends the first bytes of a list as soon as there is room: send(2), sendmsg(2).
fn send(fd: RawFd, data: &mut GatherList) -> Call {
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    let call = match data.single() {
        Some(one) => {
            let args = [fd as usize, one.as_ptr() as usize, one.len(), flags, 0, 0];
            Call::new(libc::SYS_sendto, args)
        }
        None => {
            let message = data.message() as usize;
            Call::new(libc::SYS_sendmsg, [fd as usize, message, flags, 0, 0, 0])
        }
    };
    call.waits(Waits::Ready(fd, Direction::Write)).in_batches()
}

/// Sends a part of a file if there is room: sendfile(2).
fn send_file(fd: RawFd, file: RawFd, offset: u64, len: u32, scratch: &mut Scratch) -> Call {
    scratch[0] = offset;
    let args = [fd as usize, file as usize, scratch.as_ptr() as usize, len as usize, 0, 0];
    Call::bounded(libc::SYS_sendfile, args).pinned(Executor::InPlace)
}

/// Waits until a descriptor has room.
pub(super) fn until_writable(fd: RawFd) -> Call {
    Call::until_ready(fd, Direction::Write)
}

/// Reads a part of a file that is not cached: pread(2) on a syscall thread.
pub(super) fn read_cold(file: RawFd, part: &Range<u64>, into: *mut u8) -> Call {
    let (offset, len) = (part.start as usize, (part.end - part.start) as usize);
    debug_assert!(len <= DiscardBuffer::BYTES);
    let args = [file as usize, into as usize, len, offset, 0, 0];
    Call::bounded(libc::SYS_pread64, args).pinned(Executor::Threads)
}

/// Opens a path: openat2(2).
pub(super) fn open(
    root: RawFd,
    path: *const c_char,
    how: [u64; 3],
    disk: Blocking,
    scratch: &mut Scratch,
) -> Call {
    scratch[..3].copy_from_slice(&how);
    let args = [root as usize, path as usize, scratch.as_ptr() as usize, size_of_val(&how), 0, 0];
    by(disk, Call::bounded(libc::SYS_openat2, args))
}

/// Reads a part of a file: preadv2(2).
pub(super) fn read(
    fd: RawFd,
    offset: u64,
    into: &mut [u8],
    disk: Blocking,
    scratch: &mut Scratch,
) -> Call {
    scratch[0] = into.as_mut_ptr() as u64;
    scratch[1] = into.len() as u64;
    let flags = if disk == Blocking::NoBlock { libc::RWF_NOWAIT as usize } else { 0 };
    let args = [fd as usize, scratch.as_ptr() as usize, 1, offset as usize, 0, flags];
    by(disk, Call::bounded(libc::SYS_preadv2, args))
}

/// Lets a thread make a call that may wait for the disk.
fn by(disk: Blocking, call: Call) -> Call {
    match disk {
        Blocking::NoBlock => call.pinned(Executor::InPlace).in_batches(),
        Blocking::MayBlock => call.pinned(Executor::Threads),
    }
}

/// Closes a descriptor: close(2).
pub(super) fn close(fd: RawFd) -> Call {
    Call::bounded(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0])
        .pinned(Executor::InPlace)
        .uncancellable()
        .in_batches()
}
