//! Code that runs in a child of fork(2).

/// Runs `child` in a forked process of at most ten seconds. Returns whether it returned true.
pub(crate) fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child takes no lock that another thread may have, and ends.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: passes a number.
        unsafe { libc::alarm(10) };
        let status = i32::from(!child());
        // SAFETY: it ends the process without the parent's exit handlers.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: writes one integer.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status == 0
}
