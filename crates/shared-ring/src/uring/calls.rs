//! System calls for which the ring has an operation.

use io_uring::opcode;
use io_uring::squeue::Entry as Sqe;
use io_uring::types::{Fd as Raw, FsyncFlags, OpenHow};
use libc::c_int;

use super::Ring;
use crate::CallJob;

/// For each operation that was asked for, whether the kernel supports it.
#[derive(Debug)]
pub(super) struct RingCalls([Option<bool>; 128]);

impl Default for RingCalls {
    fn default() -> Self {
        RingCalls([None; 128])
    }
}

impl RingCalls {
    /// Returns the submission for a call. `None` if the ring or the kernel has none.
    #[inline]
    pub(super) fn sqe(&mut self, ring: &impl Ring, job: &CallJob) -> Option<Sqe> {
        let sqe = sqe(job)?;
        let code = sqe.get_opcode() as usize;
        let supported = match self.0.get(code)? {
            Some(supported) => *supported,
            None => self.probe(ring, code),
        };
        supported.then_some(sqe)
    }

    #[cold]
    fn probe(&mut self, ring: &impl Ring, code: usize) -> bool {
        let missing = ring.first_unsupported(&[(code as u8, "")]);
        *self.0[code].insert(missing.is_ok_and(|missing| missing.is_none()))
    }
}

/// Returns the submission that has the effect of a call. `None` if the ring has no such operation, or it
/// differs for these arguments.
pub(super) fn sqe(job: &CallJob) -> Option<Sqe> {
    let [a, b, c, d, e, f] = job.args;
    let (fd, int, fd_at) = (Raw(a as c_int), |value: usize| value as c_int, |at| Raw(at as c_int));
    // A submission has 32 bits for it, also where the type of the operation permits more.
    let len = |value: usize| u32::try_from(value).ok();
    // -1 stands for the current position in submissions, and is an error in calls.
    let offset = |value: usize| (value as i64 >= 0).then_some(value as u64);
    Some(match i64::from(job.number) {
        libc::SYS_read => opcode::Read::new(fd, b as _, len(c)?).offset(CURRENT).build(),
        libc::SYS_write => opcode::Write::new(fd, b as _, len(c)?).offset(CURRENT).build(),
        libc::SYS_pread64 => opcode::Read::new(fd, b as _, len(c)?).offset(offset(d)?).build(),
        libc::SYS_pwrite64 => opcode::Write::new(fd, b as _, len(c)?).offset(offset(d)?).build(),
        libc::SYS_readv => opcode::Readv::new(fd, b as _, len(c)?).offset(CURRENT).build(),
        libc::SYS_writev => opcode::Writev::new(fd, b as _, len(c)?).offset(CURRENT).build(),
        libc::SYS_preadv2 => {
            opcode::Readv::new(fd, b as _, len(c)?).offset(offset(d)?).rw_flags(int(f)).build()
        }
        libc::SYS_fsync => opcode::Fsync::new(fd).build(),
        libc::SYS_fdatasync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        libc::SYS_fallocate => {
            opcode::Fallocate::new(fd, offset(d)?).offset(offset(c)?).mode(int(b)).build()
        }
        libc::SYS_ftruncate => opcode::Ftruncate::new(fd, offset(b)?).build(),
        libc::SYS_fadvise64 => {
            opcode::Fadvise::new(fd, len(c)?.into(), int(d)).offset(offset(b)?).build()
        }
        libc::SYS_madvise => opcode::Madvise::new(a as _, len(b)?.into(), int(c)).build(),
        libc::SYS_openat => opcode::OpenAt::new(fd, b as _).flags(int(c)).mode(d as u32).build(),
        libc::SYS_openat2 if d == size_of::<OpenHow>() => {
            opcode::OpenAt2::new(fd, b as _, c as _).build()
        }
        libc::SYS_close => opcode::Close::new(fd).build(),
        libc::SYS_statx => {
            opcode::Statx::new(fd, b as _, e as _).flags(int(c)).mask(d as u32).build()
        }
        libc::SYS_renameat2 => {
            opcode::RenameAt::new(fd, b as _, fd_at(c), d as _).flags(e as u32).build()
        }
        libc::SYS_unlinkat => opcode::UnlinkAt::new(fd, b as _).flags(int(c)).build(),
        libc::SYS_mkdirat => opcode::MkDirAt::new(fd, b as _).mode(c as u32).build(),
        libc::SYS_linkat => opcode::LinkAt::new(fd, b as _, fd_at(c), d as _).flags(int(e)).build(),
        libc::SYS_symlinkat => opcode::SymlinkAt::new(fd_at(b), a as _, c as _).build(),
        // Without pointers to offsets: at the current positions.
        libc::SYS_splice if b == 0 && d == 0 => {
            opcode::Splice::new(fd, -1, fd_at(c), -1, len(e)?).flags(f as u32).build()
        }
        libc::SYS_tee => opcode::Tee::new(fd, fd_at(b), len(c)?).flags(d as u32).build(),
        libc::SYS_socket => opcode::Socket::new(int(a), int(b), int(c)).build(),
        libc::SYS_connect => opcode::Connect::new(fd, b as _, c as u32).build(),
        libc::SYS_accept4 => opcode::Accept::new(fd, b as _, c as _).flags(int(d)).build(),
        libc::SYS_shutdown => opcode::Shutdown::new(fd, int(b)).build(),
        libc::SYS_sendto if e == 0 => opcode::Send::new(fd, b as _, len(c)?).flags(int(d)).build(),
        libc::SYS_recvfrom if e == 0 => {
            opcode::Recv::new(fd, b as _, len(c)?).flags(int(d)).build()
        }
        libc::SYS_sendmsg => opcode::SendMsg::new(fd, b as _).flags(c as u32).build(),
        libc::SYS_recvmsg => opcode::RecvMsg::new(fd, b as _).flags(c as u32).build(),
        _ => return None,
    })
}

/// Returns whether the operation for a call also takes a file of the ring's table, in place of the descriptor that is the
/// first argument.
#[inline]
pub(super) fn takes_registered_file(number: u32) -> bool {
    let uses_other_operation = matches!(
        i64::from(number),
        libc::SYS_preadv2
            | libc::SYS_fsync
            | libc::SYS_fdatasync
            | libc::SYS_fallocate
            | libc::SYS_ftruncate
            | libc::SYS_fadvise64
            | libc::SYS_connect
            | libc::SYS_accept4
            | libc::SYS_shutdown
            | libc::SYS_sendto
            | libc::SYS_recvfrom
            | libc::SYS_sendmsg
            | libc::SYS_recvmsg
    );
    uses_other_operation || may_use_file(number)
}

/// Returns whether a call reads or writes, perhaps a file. A preadv2(2) may fail because it is not to block (`RWF_NOWAIT`).
pub(super) fn may_use_file(number: u32) -> bool {
    matches!(
        i64::from(number),
        libc::SYS_read
            | libc::SYS_write
            | libc::SYS_pread64
            | libc::SYS_pwrite64
            | libc::SYS_readv
            | libc::SYS_writev
    )
}

/// The offset that stands for the current position.
const CURRENT: u64 = u64::MAX;
