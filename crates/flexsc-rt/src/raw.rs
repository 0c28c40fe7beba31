//! Makes a system call of any number.

use std::io;
use std::os::fd::RawFd;

use crate::call::Direction;

/// Owns an open file of this machine.
pub(crate) use std::os::fd::OwnedFd as OwnedFile;

/// Result of an interrupted or cancelled call (section 4.2).
pub(crate) const INTERRUPTED: isize = -(libc::EINTR as isize);

/// Makes a system call. Returns what the kernel returned: an error is negative.
///
/// # Safety
/// The caller vouches for the meaning of number and arguments.
#[inline]
pub(crate) unsafe fn system_call(number: u32, args: &[usize; 6]) -> isize {
    let [a, b, c, d, e, f] = *args;
    #[cfg(target_arch = "x86_64")]
    {
        let result: isize;
        // SAFETY: the caller vouches for the call. The kernel changes two registers beside that of the result, and no
        // stack.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") number as usize => result,
                in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
                lateout("rcx") _, lateout("r11") _,
                options(nostack),
            );
        }
        result
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: the caller vouches for it.
        let result = unsafe { libc::syscall(number as libc::c_long, a, b, c, d, e, f) };
        if result == -1 {
            // SAFETY: the address of the thread's error number.
            return -(unsafe { *libc::__errno_location() } as isize);
        }
        result as isize
    }
}

/// Returns whether a descriptor is open (fcntl(2)).
#[cold]
pub(crate) fn is_open(fd: RawFd) -> bool {
    // SAFETY: it reads a flag of any number.
    unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
}

/// Returns whether a descriptor is ready in a direction (poll(2)). An error in its queue does not count.
#[cold]
pub(crate) fn is_ready(fd: RawFd, direction: Direction) -> bool {
    let events = match direction {
        Direction::Read => libc::POLLIN,
        Direction::Write => libc::POLLOUT,
    };
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: `polled` is one descriptor, and poll(2) writes to it only.
    unsafe { libc::poll(&mut polled, 1, 0) == 1 && polled.revents & events != 0 }
}

/// Returns a result as the standard library's.
#[inline]
pub(crate) fn decode(result: isize) -> io::Result<usize> {
    if (-4095..0).contains(&result) {
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    Ok(result as usize)
}
