//! Descriptors: what owns one, and how operations name it.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

/// The owner of a descriptor that belongs to a machine: of a socket, mostly.
///
/// [`Op::Close`](crate::Op::Close) ends it, or at once [`Host::close_unused`](crate::Host::close_unused), on the
/// machine that it comes from. Both take it, so it is closed once. (A refused `Op::Close` hands it back.)
/// It can't be closed without its machine, so one that is dropped stays open for good.
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
/// Nor is there a copy of it, to be used when it is closed:
///
/// ```compile_fail,E0382
/// use shared_ring::{Host, OpKind, Op, Socket, Submit, Token};
///
/// fn use_after_close(kernel: &mut impl Submit, socket: Socket) {
///     kernel.submit(Token::new(OpKind::Close, 0, 0), Op::Close { socket }).unwrap();
///     kernel.host_mut().shutdown(&socket);
/// }
/// ```
#[must_use = "what is dropped stays open; `Op::Close` and `Host::discard` close it"]
pub struct Socket(RawFd);

/// The number by which operations and pollers name a descriptor that something else owns: a
/// [`Socket`], or what has [lent](Fd::lent) it.
///
/// Nothing keeps the descriptor open for it, so only unsafe code makes one. A program without unsafe
/// code can't name what it does not own:
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
    /// The number, to name it in operations.
    ///
    /// # Safety
    /// As for [`Fd::lent`].
    #[inline]
    pub unsafe fn fd(&self) -> Fd {
        Fd(self.0)
    }

    /// The owner of what a kernel has just opened, or an alias of an owner elsewhere that is not closed.
    pub(crate) const fn of(fd: Fd) -> Self {
        Socket(fd.0)
    }

    /// The number, for as long as the owner is there.
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
    /// The number of a descriptor that keeps its owner.
    ///
    /// # Safety
    /// The descriptor stays open until everything that was given this number has let go of it, and the
    /// number is not used after that.
    ///
    /// - An operation lets go of it by its last completion, by being refused, or when
    ///   [`Submit::finish`](crate::Submit::finish) has returned and its kernel takes no turn any more.
    /// - A poller lets go of it by [`forget`](crate::poller::Poller::forget), or as it is dropped.
    /// - What [`UringKernel::begin`](crate::UringKernel::begin) has begun lets go of it when
    ///   [`UringKernel::end`](crate::UringKernel::end) says that the kernel has been told, or as the kernel
    ///   is dropped.
    /// - What is done at once, such as a system call, has let go of it when it returns.
    pub unsafe fn lent(fd: BorrowedFd<'_>) -> Self {
        Fd(fd.as_raw_fd())
    }

    pub(crate) const fn from_raw(fd: RawFd) -> Self {
        Fd(fd)
    }

    /// The number.
    pub const fn raw(self) -> RawFd {
        self.0
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fd {}", self.0)
    }
}
