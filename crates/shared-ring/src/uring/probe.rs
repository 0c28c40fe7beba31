//! What the io_uring of this machine can do, found by trying, and in words what it can't.

use std::fmt;
use std::fs;
use std::io;

use io_uring::opcode;

use super::{Entries, Mode, Ring};

/// What stands in the way of a [`UringKernel`](super::UringKernel).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The kernel has no io_uring at all.
    NoUring,
    /// The administrator has switched it off.
    Sysctl(u8),
    /// A filter of system calls, as containers have, forbids it.
    Forbidden,
    /// The rings' memory can't be had: the limit on locked memory, or no memory.
    Memory,
    /// The kernel is too old for a way of running the ring.
    Mode(Mode),
    /// The kernel is too old for something that is needed in any mode.
    Feature(&'static str),
    /// Something else.
    Other(i32),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::NoUring => f.write_str("this kernel has no io_uring; Linux 6.1 or later has"),
            Missing::Sysctl(value) => {
                write!(f, "io_uring is switched off by sysctl kernel.io_uring_disabled={value}")
            }
            Missing::Forbidden => f.write_str(
                "io_uring is forbidden here, as by the seccomp filter of a container; \
                 allow the system calls io_uring_setup, io_uring_enter and io_uring_register",
            ),
            Missing::Memory => f.write_str(
                "there is no memory for io_uring's rings; raise the limit on locked memory \
                 (ulimit -l)",
            ),
            Missing::Mode(Mode::Deferred) => f.write_str(
                "this kernel's io_uring can't defer its work to the wait (DEFER_TASKRUN); \
                 Linux 6.1 or later can",
            ),
            Missing::Mode(Mode::Cooperative) => f.write_str(
                "this kernel's io_uring can't wait for the next kernel entry (COOP_TASKRUN); \
                 Linux 6.0 or later can",
            ),
            Missing::Mode(Mode::Immediate) => {
                f.write_str("this kernel's io_uring refuses to be set up")
            }
            Missing::Feature(what) => {
                write!(f, "this kernel's io_uring lacks {what}; Linux 6.1 or later has it")
            }
            Missing::Other(errno) => {
                write!(f, "io_uring can't be set up: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for Missing {}

/// Every operation that is posted.
const OPERATIONS: [(u8, &str); 10] = [
    (opcode::Accept::CODE, "accept"),
    (opcode::Recv::CODE, "receive"),
    (opcode::Send::CODE, "send"),
    (opcode::SendMsg::CODE, "sendmsg"),
    (opcode::Connect::CODE, "connect"),
    (opcode::Close::CODE, "close"),
    (opcode::PollAdd::CODE, "poll"),
    (opcode::OpenAt2::CODE, "openat2"),
    (opcode::Read::CODE, "read"),
    (opcode::AsyncCancel::CODE, "cancel"),
];

/// What a ring must be able to do beside its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Completions survive an overflow of their queue.
    NoDrop,
    /// A wait can have a deadline.
    ExtArg,
    /// What a submission says is read when it is taken.
    SubmitStable,
    /// The ring waits for sockets by itself.
    FastPoll,
}

const ABILITIES: [(Ability, &str); 4] = [
    (Ability::NoDrop, "completions that survive an overflow (NODROP)"),
    (Ability::ExtArg, "waiting with a deadline (EXT_ARG)"),
    (Ability::SubmitStable, "stable submissions (SUBMIT_STABLE)"),
    (Ability::FastPoll, "internal polling (FAST_POLL)"),
];

/// Sets up a ring in `mode` that can do all that is needed, or says why that is impossible.
pub(super) fn set_up<R: Ring>(
    system: &R::System,
    mode: Mode,
    entries: Entries,
) -> Result<R, Missing> {
    let ring = R::set_up(system, mode, entries).map_err(|error| explain(mode, &error))?;
    if let Some((_, what)) = ABILITIES.into_iter().find(|(ability, _)| !ring.can(*ability)) {
        return Err(Missing::Feature(what));
    }
    match ring.lacks(&OPERATIONS) {
        Ok(None) => Ok(ring),
        Ok(Some(what)) => Err(Missing::Feature(what)),
        Err(error) => Err(Missing::Other(error.raw_os_error().unwrap_or(0))),
    }
}

/// Why io_uring_setup(2) failed.
fn explain(mode: Mode, error: &io::Error) -> Missing {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => Missing::NoUring,
        Some(libc::EPERM) => {
            let switch = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            match switch.ok().and_then(|text| text.trim().parse().ok()) {
                Some(value) if value > 0 => Missing::Sysctl(value),
                _ => Missing::Forbidden,
            }
        }
        Some(libc::EACCES) => Missing::Forbidden,
        Some(libc::ENOMEM) => Missing::Memory,
        Some(libc::EINVAL) => Missing::Mode(mode),
        errno => Missing::Other(errno.unwrap_or(0)),
    }
}

/// Why a registration failed that needs `what`.
pub(super) fn refused(error: &io::Error, what: &'static str) -> Missing {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => Missing::Memory,
        Some(libc::EINVAL) => Missing::Feature(what),
        errno => Missing::Other(errno.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_a_sentence() {
        let refused = |errno| explain(Mode::Deferred, &io::Error::from_raw_os_error(errno));
        assert_eq!(refused(libc::ENOSYS), Missing::NoUring);
        assert_eq!(refused(libc::EINVAL), Missing::Mode(Mode::Deferred));
        assert_eq!(refused(libc::ENOMEM), Missing::Memory);
        for errno in [libc::ENOSYS, libc::EPERM, libc::ENOMEM, libc::EINVAL, libc::EIO] {
            assert!(refused(errno).to_string().contains("io_uring"));
        }
        assert!(Missing::Sysctl(2).to_string().contains("kernel.io_uring_disabled=2"));
    }
}
