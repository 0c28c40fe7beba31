//! Descriptors: owners, and the numbers by which operations name them.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Owns a descriptor of a machine, usually a socket.
///
/// [`Op::Close`](crate::Op::Close) or [`Host::close_unused`](crate::Host::close_unused) closes it,
/// on its own machine. Both take it, so it is closed once; a rejected `Op::Close` hands it back.
/// Only its machine can close it, so a socket that is dropped stays open forever.
///
/// ```
/// use std::os::fd::OwnedFd;
/// use std::os::unix::net::UnixStream;
///
/// use shared_ring::{Host, Linux, Socket};
///
/// # fn main() -> std::io::Result<()> {
/// let (ours, _theirs) = UnixStream::pair()?;
/// let socket = Socket::from(OwnedFd::from(ours));
/// Linux::default().shutdown(&socket);
/// Linux::default().close_unused(socket);
/// # Ok(())
/// # }
/// ```
///
/// It can't be closed twice:
///
/// ```compile_fail,E0382
/// use shared_ring::{Host, Linux, Socket};
///
/// fn close_twice(socket: Socket) {
///     Linux::default().close_unused(socket);
///     Linux::default().close_unused(socket);
/// }
/// ```
///
/// It can't be used after it is closed:
///
/// ```compile_fail,E0382
/// use shared_ring::{Host, OpKind, Op, Socket, Submit, Token};
///
/// fn use_after_close(kernel: &mut impl Submit, socket: Socket) {
///     kernel.submit(Token::new(OpKind::Close, 0, 0), Op::Close { socket }).unwrap();
///     kernel.host_mut().shutdown(&socket);
/// }
/// ```
#[must_use = "a dropped socket stays open; `Op::Close` and `Host::close_unused` close it"]
pub struct Socket(RawFd);

/// The number by which operations and pollers name a descriptor. A [`Socket`], or the value that
/// has [lent](Fd::lent) it, owns the descriptor.
///
/// A number does not keep the descriptor open, so only unsafe code creates one. Safe code can't
/// name a descriptor that it does not own:
///
/// ```compile_fail,E0133
/// # use shared_ring::{Fd, Socket};
/// fn name(socket: &Socket) -> Fd {
///     socket.fd()
/// }
/// ```
///
/// ```compile_fail,E0133
/// # use std::os::fd::BorrowedFd;
/// # use shared_ring::Fd;
/// fn name(descriptor: BorrowedFd<'_>) -> Fd {
///     Fd::lent(descriptor)
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fd(RawFd);

impl Socket {
    /// Returns the number, for use in operations.
    ///
    /// # Safety
    /// As for [`Fd::lent`].
    #[inline]
    pub unsafe fn fd(&self) -> Fd {
        Fd(self.0)
    }

    /// Creates the owner of a descriptor that a kernel has just opened, or an alias of another owner
    /// that must not be closed.
    pub(crate) const fn of(fd: Fd) -> Self {
        Socket(fd.0)
    }

    /// Returns the number, which is valid as long as the owner exists.
    #[inline]
    pub(crate) const fn number(&self) -> Fd {
        Fd(self.0)
    }
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Socket(fd.into_raw_fd())
    }
}

impl FromRawFd for Socket {
    /// Creates the owner of a descriptor that a machine has just opened.
    unsafe fn from_raw_fd(fd: RawFd) -> Self {
        Socket(fd)
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

impl Fd {
    /// Returns the number of a borrowed descriptor.
    ///
    /// # Safety
    /// The descriptor stays open until every user of this number has released it, and the number is
    /// not used after that.
    ///
    /// - An operation releases it with its last completion, when it is rejected, or when
    ///   [`Submit::finish`](crate::Submit::finish) has returned and its kernel runs no further turn.
    /// - A poller releases it on [`forget`](crate::poller::Poller::forget), or when dropped.
    /// - A submission of [`UringKernel::begin`](crate::uring::UringKernel::begin) releases it when
    ///   [`UringKernel::end`](crate::uring::UringKernel::end) returns that the kernel has the cancellation,
    ///   or when the kernel is dropped.
    /// - A call that completes at once, such as a system call, releases it on return.
    pub unsafe fn lent(fd: BorrowedFd<'_>) -> Self {
        Fd(fd.as_raw_fd())
    }

    pub(crate) const fn from_raw(fd: RawFd) -> Self {
        Fd(fd)
    }

    /// Returns the number as an integer.
    pub const fn raw(self) -> RawFd {
        self.0
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Borrows a descriptor of this machine by its number.
pub(crate) fn borrow(fd: &Fd) -> BorrowedFd<'_> {
    // SAFETY: the code that made the `Fd` promised that it is open while it is used (`Fd::lent`).
    unsafe { BorrowedFd::borrow_raw(fd.raw()) }
}

impl fmt::Debug for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fd {}", self.0)
    }
}

/// Sets a socket option that is an integer (setsockopt(2)).
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads at most `size` bytes, which `value` has.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
