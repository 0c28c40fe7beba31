//! Checks of this machine's io_uring, and messages for missing features.

use std::fmt;
use std::fs;
use std::io;
use std::{panic, thread};

use io_uring::opcode;

use super::{Entries, Feature, Mode, Ring, UringConfig, UringKernel};

/// The reason why a [`UringKernel`](super::UringKernel) is unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetupError {
    /// The kernel has no io_uring, or a filter of system calls hides it.
    NoUring,
    /// The sysctl `kernel.io_uring_disabled` has this value.
    Sysctl(u8),
    /// A filter of system calls forbids it, as in containers.
    Forbidden,
    /// The rings' memory cannot be allocated: the limit on locked memory, or out of memory.
    Memory,
    /// The kernel does not support this mode.
    Mode(Mode),
    /// The kernel lacks a feature that every mode requires.
    MissingFeature(&'static str),
    /// No thread can be started to [probe](UringKernel::probe) io_uring, by errno.
    Thread(i32),
    /// Another error, by errno.
    Other(i32),
}

impl SetupError {
    pub(super) fn other(error: &io::Error) -> Self {
        SetupError::Other(error.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetupError::NoUring => f.write_str(
                "this kernel has no io_uring, or a container hides it; use Linux 6.1 or later",
            ),
            SetupError::Sysctl(value) => {
                write!(f, "io_uring is disabled by sysctl kernel.io_uring_disabled={value}")
            }
            SetupError::Forbidden => f.write_str(
                "io_uring is forbidden, for example by a container's seccomp filter; \
                 allow the system calls io_uring_setup, io_uring_enter and io_uring_register",
            ),
            SetupError::Memory => f.write_str(
                "cannot allocate io_uring's rings; raise the limit on locked memory (ulimit -l)",
            ),
            SetupError::Mode(Mode::Deferred) => f.write_str(
                "this kernel's io_uring cannot defer its work to the wait (DEFER_TASKRUN); \
                 use Linux 6.1 or later",
            ),
            SetupError::Mode(Mode::Cooperative) => f.write_str(
                "this kernel's io_uring cannot defer its work to a kernel entry (COOP_TASKRUN); \
                 use Linux 6.0 or later",
            ),
            SetupError::Mode(Mode::Immediate) => {
                f.write_str("this kernel's io_uring rejects the ring's parameters")
            }
            SetupError::MissingFeature(what) => {
                write!(f, "this kernel's io_uring lacks {what}; use Linux 6.1 or later")
            }
            SetupError::Thread(errno) => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(f, "cannot start a thread to probe io_uring: {error}")
            }
            SetupError::Other(errno) => {
                write!(f, "cannot set up io_uring: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for SetupError {}

impl UringKernel {
    /// Checks that a ring can be set up in this mode. A separate thread sets it up, because the kernel may interrupt
    /// (EINTR) a later system call of the thread whose ring has ended.
    ///
    /// # Errors
    /// The missing feature, or [`SetupError::Thread`].
    pub fn probe(mode: Mode) -> Result<(), SetupError> {
        probe_in(thread::Builder::new(), mode)
    }
}

/// [`UringKernel::probe`] in a thread of `builder`.
fn probe_in(builder: thread::Builder, mode: Mode) -> Result<(), SetupError> {
    let config = UringConfig::new(mode, 1, 1, 1);
    let missing = |error: io::Error| SetupError::Thread(error.raw_os_error().unwrap_or(0));
    let thread = builder.spawn(move || UringKernel::new(&config).map(drop)).map_err(missing)?;
    thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Every operation of the ring in use.
const OPERATIONS: [(u8, &str); 12] = [
    (opcode::Accept::CODE, "accept"),
    (opcode::Recv::CODE, "receive"),
    (opcode::Send::CODE, "send"),
    (opcode::SendMsg::CODE, "sendmsg"),
    (opcode::RecvMsg::CODE, "recvmsg"),
    (opcode::Connect::CODE, "connect"),
    (opcode::Close::CODE, "close"),
    (opcode::PollAdd::CODE, "poll"),
    (opcode::OpenAt2::CODE, "openat2"),
    (opcode::Read::CODE, "read"),
    (opcode::Write::CODE, "write"),
    (opcode::AsyncCancel::CODE, "cancel"),
];

const FEATURES: [(Feature, &str); 4] = [
    (Feature::NoDrop, "completions that survive an overflow (NODROP)"),
    (Feature::ExtArg, "waiting with a timeout (EXT_ARG)"),
    (Feature::SubmitStable, "stable submissions (SUBMIT_STABLE)"),
    (Feature::FastPoll, "internal polling (FAST_POLL)"),
];

/// Sets up a ring in `mode` with all required features.
///
/// # Errors
/// The first feature that is missing.
pub(super) fn setup<R: Ring>(
    system: &R::System,
    mode: Mode,
    entries: Entries,
) -> Result<R, SetupError> {
    let ring = R::setup(system, mode, entries).map_err(|error| explain(mode, &error))?;
    if let Some((_, what)) = FEATURES.into_iter().find(|(feature, _)| !ring.has_feature(*feature)) {
        return Err(SetupError::MissingFeature(what));
    }
    match ring.first_unsupported(&OPERATIONS) {
        Ok(None) => Ok(ring),
        Ok(Some(what)) => Err(SetupError::MissingFeature(what)),
        Err(error) => Err(SetupError::other(&error)),
    }
}

/// Converts an error of io_uring_setup(2).
fn explain(mode: Mode, error: &io::Error) -> SetupError {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => SetupError::NoUring,
        Some(libc::EPERM) => {
            forbidden(&fs::read_to_string(super::ring::SWITCH).unwrap_or_default())
        }
        Some(libc::EACCES) => SetupError::Forbidden,
        Some(libc::ENOMEM) => SetupError::Memory,
        Some(libc::EINVAL) => SetupError::Mode(mode),
        errno => SetupError::Other(errno.unwrap_or(0)),
    }
}

/// Returns why io_uring is forbidden, from the content of `io_uring_disabled`; empty if there is no such file.
fn forbidden(switch: &str) -> SetupError {
    match switch.trim().parse() {
        Ok(0) | Err(_) => SetupError::Forbidden,
        Ok(value) => SetupError::Sysctl(value),
    }
}

/// Converts the error of a registration that requires `what`.
pub(super) fn registration_error(error: &io::Error, what: &'static str) -> SetupError {
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
    fn every_error_names_io_uring() {
        let error = |errno| explain(Mode::Deferred, &io::Error::from_raw_os_error(errno));
        assert_eq!(error(libc::ENOSYS), SetupError::NoUring);
        assert_eq!(error(libc::EINVAL), SetupError::Mode(Mode::Deferred));
        assert_eq!(error(libc::ENOMEM), SetupError::Memory);
        for errno in [libc::ENOSYS, libc::EPERM, libc::ENOMEM, libc::EINVAL, libc::EIO] {
            assert!(error(errno).to_string().contains("io_uring"));
        }
        assert_eq!(forbidden("2\n"), SetupError::Sysctl(2));
        assert_eq!(forbidden("0\n"), SetupError::Forbidden, "it is not switched off");
        assert_eq!(forbidden(""), SetupError::Forbidden, "there is no switch");
        assert!(SetupError::Thread(libc::EAGAIN).to_string().contains("io_uring"));
        assert!(SetupError::Sysctl(2).to_string().contains("kernel.io_uring_disabled=2"));
    }

    #[test]
    fn missing_thread_was_a_failure_of_io_uring() {
        // Its stack does not fit into the address space.
        let builder = thread::Builder::new().stack_size(isize::MAX as usize);
        let error = probe_in(builder, Mode::Immediate).unwrap_err();
        assert!(matches!(error, SetupError::Thread(1..)), "{error:?}");
    }
}
