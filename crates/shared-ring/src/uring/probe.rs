//! What the io_uring of this machine can do, found by trying, and in words what it can't.

use std::fmt;
use std::fs;
use std::io;

use io_uring::opcode;

use super::{Entries, Mode, Ring};

/// What stands in the way of a [`UringKernel`](super::UringKernel).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetupError {
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
    MissingFeature(&'static str),
    /// Something else.
    Other(i32),
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetupError::NoUring => {
                f.write_str("this kernel has no io_uring; Linux 6.1 or later has")
            }
            SetupError::Sysctl(value) => {
                write!(f, "io_uring is switched off by sysctl kernel.io_uring_disabled={value}")
            }
            SetupError::Forbidden => f.write_str(
                "io_uring is forbidden here, as by the seccomp filter of a container; \
                 allow the system calls io_uring_setup, io_uring_enter and io_uring_register",
            ),
            SetupError::Memory => f.write_str(
                "there is no memory for io_uring's rings; raise the limit on locked memory \
                 (ulimit -l)",
            ),
            SetupError::Mode(Mode::Deferred) => f.write_str(
                "this kernel's io_uring can't defer its work to the wait (DEFER_TASKRUN); \
                 Linux 6.1 or later can",
            ),
            SetupError::Mode(Mode::Cooperative) => f.write_str(
                "this kernel's io_uring can't wait for the next kernel entry (COOP_TASKRUN); \
                 Linux 6.0 or later can",
            ),
            SetupError::Mode(Mode::Immediate) => {
                f.write_str("this kernel's io_uring refuses to be set up")
            }
            SetupError::MissingFeature(what) => {
                write!(f, "this kernel's io_uring lacks {what}; Linux 6.1 or later has it")
            }
            SetupError::Other(errno) => {
                write!(f, "io_uring can't be set up: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for SetupError {}

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
pub enum Feature {
    /// Completions survive an overflow of their queue.
    NoDrop,
    /// A wait can have a deadline.
    ExtArg,
    /// What a submission says is read when it is taken.
    SubmitStable,
    /// The ring waits for sockets by itself.
    FastPoll,
}

const FEATURES: [(Feature, &str); 4] = [
    (Feature::NoDrop, "completions that survive an overflow (NODROP)"),
    (Feature::ExtArg, "waiting with a deadline (EXT_ARG)"),
    (Feature::SubmitStable, "stable submissions (SUBMIT_STABLE)"),
    (Feature::FastPoll, "internal polling (FAST_POLL)"),
];

/// Sets up a ring in `mode` that can do all that is needed, or says why that is impossible.
pub(super) fn setup<R: Ring>(
    system: &R::System,
    mode: Mode,
    entries: Entries,
) -> Result<R, SetupError> {
    let ring = R::setup(system, mode, entries).map_err(|error| explain(mode, &error))?;
    if let Some((_, what)) = FEATURES.into_iter().find(|(ability, _)| !ring.has_feature(*ability)) {
        return Err(SetupError::MissingFeature(what));
    }
    match ring.first_unsupported(&OPERATIONS) {
        Ok(None) => Ok(ring),
        Ok(Some(what)) => Err(SetupError::MissingFeature(what)),
        Err(error) => Err(SetupError::Other(error.raw_os_error().unwrap_or(0))),
    }
}

/// Why io_uring_setup(2) failed.
fn explain(mode: Mode, error: &io::Error) -> SetupError {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => SetupError::NoUring,
        Some(libc::EPERM) => {
            let switch = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            forbidden(&switch.unwrap_or_default())
        }
        Some(libc::EACCES) => SetupError::Forbidden,
        Some(libc::ENOMEM) => SetupError::Memory,
        Some(libc::EINVAL) => SetupError::Mode(mode),
        errno => SetupError::Other(errno.unwrap_or(0)),
    }
}

/// Why io_uring is forbidden, by what the file `io_uring_disabled` says; nothing where there is none.
fn forbidden(switch: &str) -> SetupError {
    match switch.trim().parse() {
        Ok(0) | Err(_) => SetupError::Forbidden,
        Ok(value) => SetupError::Sysctl(value),
    }
}

/// Why a registration failed that needs `what`.
pub(super) fn refused(error: &io::Error, what: &'static str) -> SetupError {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => SetupError::Memory,
        Some(libc::EINVAL) => SetupError::MissingFeature(what),
        errno => SetupError::Other(errno.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_a_sentence() {
        let refused = |errno| explain(Mode::Deferred, &io::Error::from_raw_os_error(errno));
        assert_eq!(refused(libc::ENOSYS), SetupError::NoUring);
        assert_eq!(refused(libc::EINVAL), SetupError::Mode(Mode::Deferred));
        assert_eq!(refused(libc::ENOMEM), SetupError::Memory);
        for errno in [libc::ENOSYS, libc::EPERM, libc::ENOMEM, libc::EINVAL, libc::EIO] {
            assert!(refused(errno).to_string().contains("io_uring"));
        }
        assert_eq!(forbidden("2\n"), SetupError::Sysctl(2));
        assert_eq!(forbidden("0\n"), SetupError::Forbidden, "it is not switched off");
        assert_eq!(forbidden(""), SetupError::Forbidden, "there is no switch");
        assert!(SetupError::Sysctl(2).to_string().contains("kernel.io_uring_disabled=2"));
    }
}
