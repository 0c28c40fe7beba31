//! System calls that are refused to a thread or a program, as io_uring is in many containers.

use std::io;

/// Makes io_uring_setup(2) fail with EPERM; see [`refuse`].
pub(crate) fn refuse_io_uring() -> io::Result<()> {
    refuse(libc::SYS_io_uring_setup, libc::EPERM)
}

/// Installs a seccomp(2) filter that makes a system call fail, for the calling thread, the threads that it starts, and
/// the programs that it executes.
pub(crate) fn refuse(number: libc::c_long, errno: i32) -> io::Result<()> {
    install(number, errno, 0)
}

/// The same, for all threads of the process.
#[allow(dead_code, reason = "one of the tests uses it")]
pub(crate) fn refuse_to_all_threads(number: libc::c_long, errno: i32) -> io::Result<()> {
    install(number, errno, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

fn install(number: libc::c_long, errno: i32, flags: libc::c_ulong) -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        // The system call number is the first field of `seccomp_data`.
        step(LOAD, 0, 0, 0),
        step(EQUAL, 0, 1, number as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: it takes no pointer.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let set = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the program and its steps live until the call returns; the kernel copies them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, set, flags, &raw const program) };
    if done != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
