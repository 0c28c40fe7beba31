//! Memory, futexes, time and children.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{done, number};
use crate::call::Call;
use crate::operation::{Operation, Owned};
use crate::pages::Scratch;

/// Anonymous memory, of which the kernel can be advised.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns plain memory.
unsafe impl Send for Mapping {}
// SAFETY: shared references only read it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps memory that begins with zeroes. The length is in bytes.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe {
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            mmap_anonymous(ptr::null_mut(), len, access, flags)?
        };
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { address, len })
    }
}

impl std::ops::Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: it is mapped with this length, and initialized.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.len) };
    }
}

/// A program's advice about its memory: madvise(2). None takes access away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// It will be used soon: the kernel maps it now.
    WillNeed,
    /// Its content is not needed: it is zero at the next access.
    DontNeed,
    /// Large pages are of use.
    HugePage,
    /// It is used in no order.
    Random,
    /// It is used in order.
    Sequential,
}

/// Advises the kernel about memory: madvise(2). Returns the memory.
pub fn madvise(
    memory: Mapping,
    advice: Advice,
) -> impl Operation<Output = (io::Result<()>, Mapping)> {
    let advice = match advice {
        Advice::WillNeed => libc::MADV_WILLNEED,
        Advice::DontNeed => libc::MADV_DONTNEED,
        Advice::HugePage => libc::MADV_HUGEPAGE,
        Advice::Random => libc::MADV_RANDOM,
        Advice::Sequential => libc::MADV_SEQUENTIAL,
    };
    // SAFETY: the operation owns the mapping, to which nothing else refers.
    unsafe {
        let prepare = move |memory: &mut Mapping, _: &mut Scratch| {
            let (address, len) = (memory.address.as_ptr() as usize, memory.len);
            Call::bounded(libc::SYS_madvise, [address, len, advice as usize, 0, 0, 0])
        };
        let finish = |memory, result: io::Result<usize>, _: &Scratch| (result.map(drop), memory);
        Owned::new(memory, prepare, finish)
    }
}

/// Waits on a syscall thread until a futex is woken: futex(2), private. `EAGAIN` if it has another
/// value.
pub fn futex_wait(
    futex: &Arc<AtomicU32>,
    expected: u32,
) -> impl Operation<Output = io::Result<()>> {
    // SAFETY: the operation owns a reference.
    unsafe {
        let prepare = move |futex: &mut Arc<AtomicU32>, _: &mut Scratch| {
            let command = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
            let address = futex.as_ptr() as usize;
            Call::new(libc::SYS_futex, [address, command, expected as usize, 0, 0, 0])
        };
        Owned::new(Arc::clone(futex), prepare, done)
    }
}

/// Wakes threads that wait for a futex: futex(2), private. Returns their number.
pub fn futex_wake(futex: &Arc<AtomicU32>, max: u32) -> impl Operation<Output = io::Result<usize>> {
    // SAFETY: the operation owns a reference.
    unsafe {
        let prepare = move |futex: &mut Arc<AtomicU32>, _: &mut Scratch| {
            let command = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
            let address = futex.as_ptr() as usize;
            Call::bounded(libc::SYS_futex, [address, command, max as usize, 0, 0, 0])
        };
        Owned::new(Arc::clone(futex), prepare, number)
    }
}

/// Waits on a syscall thread until a child has ended: wait4(2). Returns its status, in the format
/// of wait(2). A number that is not of one process gives `EINVAL`.
pub fn wait_child(pid: u32) -> impl Operation<Output = io::Result<i32>> {
    // wait4(2) takes 0 and negative numbers for a process group, or for any child.
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    // SAFETY: the scratch has room for the status.
    unsafe {
        let prepare = move |(): &mut (), scratch: &mut Scratch| {
            scratch[0] = 0;
            let status = scratch.as_mut_ptr() as usize;
            match pid {
                Some(pid) => Call::new(libc::SYS_wait4, [pid as usize, status, 0, 0, 0, 0]),
                None => Call::bounded(libc::SYS_getppid, [0; 6]),
            }
        };
        let finish = move |(), result: io::Result<usize>, scratch: &Scratch| {
            pid.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
            result.map(|_| scratch.as_ptr().cast::<i32>().read())
        };
        Owned::new((), prepare, finish)
    }
}

/// Sleeps on a syscall thread: nanosleep(2).
pub fn sleep(duration: Duration) -> impl Operation<Output = io::Result<()>> {
    // SAFETY: the scratch holds the structure.
    unsafe {
        let prepare = move |(): &mut (), scratch: &mut Scratch| {
            scratch[0] = duration.as_secs().min(i64::MAX as u64);
            scratch[1] = duration.subsec_nanos().into();
            Call::new(libc::SYS_nanosleep, [scratch.as_mut_ptr() as usize, 0, 0, 0, 0, 0])
        };
        Owned::new((), prepare, done)
    }
}
