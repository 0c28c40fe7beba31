//! System calls by number, with the memory that they access.

use std::fmt;
use std::io;

use rustix::io::Errno;

use crate::Fd;

/// A system call: its number, its arguments, and the memory that the kernel accesses.
///
/// [`Op::Call`](crate::Op::Call) owns the call until the kernel has finished with it, also after a
/// cancellation. The completion returns it with the memory.
///
/// Safe functions create common calls. They make no pointer but to memory that the call owns, so no call
/// of safe code fails with `EFAULT`; a call of any number needs unsafe code:
///
/// ```compile_fail,E0133
/// use shared_ring::calls::{Arg, Call};
///
/// let read = Call::new(0, [Arg::Value(0), Arg::Value(0xdead), Arg::Value(8)]);
/// ```
#[derive(Debug)]
pub struct Call {
    number: u32,
    args: [Arg; 6],
}

/// An argument of a [`Call`].
#[derive(Default)]
pub enum Arg {
    /// 0, as which the arguments count that a call does not have.
    #[default]
    None,
    /// A number: a length, an offset, flags.
    Value(usize),
    /// A descriptor.
    Fd(Fd),
    /// The address of memory that the kernel reads or writes.
    Memory(Box<[u8]>),
}

/// The executor of a [`Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// The thread that submits it, at once. The event loop waits as long as the call blocks.
    InPlace,
    /// The event loop, at once and whenever its first descriptor is readable, until the result is not
    /// `EAGAIN`. The descriptor is non-blocking; no other call or receive waits for it, else the result is
    /// `EBUSY`. [`Op::Close`](crate::Op::Close) closes it. As long as the kernel reports the descriptor as ready but the call
    /// returns `EAGAIN`, as beside an error in a socket's queue (`IP_RECVERR` of ip(7)), the loop does not sleep.
    WhenReadable,
    /// The same, whenever it is writable.
    WhenWritable,
    /// io_uring. Where there is none, or it has no operation for the call, or refuses to use a file, [`Executor::Thread`].
    Ring,
    /// One of a few threads. A call that waits for ever occupies one of them; file operations have others.
    Thread,
}

impl Call {
    /// Creates a call of any number. Absent arguments are 0.
    ///
    /// # Safety
    /// Whenever the kernel executes the call with these arguments, it accesses no memory but what they
    /// own, within its bounds; memory that they own and that contains pointers counts as arguments. The call
    /// does not change memory mappings, descriptors or threads that other code relies on. Each descriptor is
    /// named as [`Fd::lent`] describes.
    pub unsafe fn new<const N: usize>(number: u32, args: [Arg; N]) -> Self {
        const { assert!(N <= 6, "a system call has at most six arguments") };
        let mut args = args.into_iter();
        Call { number, args: [(); 6].map(|()| args.next().unwrap_or_default()) }
    }

    /// Creates a call that reads up to `len` bytes at the current position: read(2).
    pub fn read(fd: Fd, len: usize) -> Self {
        let args = [Arg::Fd(fd), Arg::zeroed(len), Arg::Value(len)];
        // SAFETY: the kernel writes at most `len` bytes.
        unsafe { Call::new(libc::SYS_read as u32, args) }
    }

    /// Creates a call that reads up to `len` bytes at an offset: pread(2).
    pub fn read_at(fd: Fd, offset: u64, len: usize) -> Self {
        let args = [Arg::Fd(fd), Arg::zeroed(len), Arg::Value(len), Arg::Value(offset as usize)];
        // SAFETY: the kernel writes at most `len` bytes.
        unsafe { Call::new(libc::SYS_pread64 as u32, args) }
    }

    /// Creates a call that writes bytes at the current position: write(2).
    pub fn write(fd: Fd, bytes: impl Into<Box<[u8]>>) -> Self {
        let bytes = bytes.into();
        let len = Arg::Value(bytes.len());
        // SAFETY: the kernel reads all bytes at most.
        unsafe { Call::new(libc::SYS_write as u32, [Arg::Fd(fd), Arg::Memory(bytes), len]) }
    }

    /// Creates a call that returns `len` random bytes: getrandom(2).
    pub fn random(len: usize) -> Self {
        // SAFETY: the kernel writes at most `len` bytes.
        unsafe { Call::new(libc::SYS_getrandom as u32, [Arg::zeroed(len), Arg::Value(len)]) }
    }

    /// Returns the number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the memory of an argument; empty if it has none.
    pub fn memory(&self, at: usize) -> &[u8] {
        match self.args.get(at) {
            Some(Arg::Memory(memory)) => memory,
            _ => &[],
        }
    }

    /// Returns the arguments, with the memory for reuse.
    pub fn into_args(self) -> [Arg; 6] {
        self.args
    }

    /// Returns the first descriptor among the arguments.
    pub fn fd(&self) -> Option<Fd> {
        self.args.iter().find_map(|arg| match arg {
            Arg::Fd(fd) => Some(*fd),
            _ => None,
        })
    }

    /// Returns the call with the addresses of its memory.
    ///
    /// # Safety
    /// The call lives, and is not accessed otherwise, until the returned value is no longer used.
    pub unsafe fn job(&mut self) -> CallJob {
        let args = self.args.each_mut().map(|arg| match arg {
            Arg::None => 0,
            Arg::Value(value) => *value,
            Arg::Fd(fd) => fd.raw() as isize as usize,
            Arg::Memory(memory) => memory.as_mut_ptr() as usize,
        });
        CallJob { number: self.number, args }
    }
}

impl Arg {
    /// Returns memory of `len` bytes for a result.
    pub fn zeroed(len: usize) -> Self {
        Arg::Memory(vec![0; len].into_boxed_slice())
    }
}

impl fmt::Debug for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arg::None => f.write_str("0"),
            Arg::Value(value) => value.fmt(f),
            Arg::Fd(fd) => fd.fmt(f),
            Arg::Memory(memory) => write!(f, "{} bytes", memory.len()),
        }
    }
}

/// A system call as its executor needs it. The [`Call`] that it was made of owns the memory.
#[derive(Clone, Copy, Debug)]
pub struct CallJob {
    /// Its number.
    pub number: u32,
    /// Its arguments, with addresses of memory.
    pub args: [usize; 6],
}

impl CallJob {
    /// Executes the call in the calling thread.
    ///
    /// # Errors
    /// Those of the call; `ENOSYS` if the kernel has none of this number.
    pub fn run(&self) -> Result<usize, Errno> {
        let [a, b, c, d, e, f] = self.args;
        // SAFETY: by the promises of `Call::new` and `Call::job`.
        let result = unsafe { libc::syscall(self.number.into(), a, b, c, d, e, f) };
        match result {
            -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
            value => Ok(value as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_values_or_errors() {
        let run = |call: &mut Call| {
            // SAFETY: the call lives and is not accessed until `run` returns.
            unsafe { call.job() }.run()
        };
        let mut random = Call::random(32);
        assert_eq!((run(&mut random), random.memory(0).len()), (Ok(32), 32));
        assert!(random.memory(0).iter().any(|byte| *byte != 0));
        // SAFETY: it has no arguments, and returns a number.
        let mut process = unsafe { Call::new(libc::SYS_getpid as u32, []) };
        assert_eq!(run(&mut process), Ok(std::process::id() as usize));
        // SAFETY: there is no call of this number.
        let mut unknown = unsafe { Call::new(9_999, []) };
        assert_eq!(run(&mut unknown), Err(Errno::NOSYS));
    }
}
