//! A system call that an experiment makes directly or posts.

use std::io;
use std::time::Instant;

use flexsc_rt::{Call, Kind};

use crate::failure::Failure;

/// A bounded system call. The memory of its arguments is never freed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemCall {
    number: libc::c_long,
    args: [usize; 6],
    kind: Kind,
}

impl SystemCall {
    /// A call without work: getppid(2).
    pub(super) const NULL: SystemCall =
        SystemCall { number: libc::SYS_getppid, args: [0; 6], kind: Kind::Unknown };

    /// # Safety
    /// The program may make the call at any time, from any thread, and several times at once.
    pub(super) unsafe fn new<const N: usize>(
        number: libc::c_long,
        args: [usize; N],
        kind: Kind,
    ) -> Self {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&args);
        SystemCall { number, args: all, kind }
    }

    /// Makes it.
    #[inline]
    pub(super) fn make(&self) -> io::Result<usize> {
        let [a, b, c, d, e, f] = self.args;
        // SAFETY: `new` requires it.
        let result = unsafe { libc::syscall(self.number, a, b, c, d, e, f) };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }

    /// Returns it as a call to post.
    #[inline]
    pub(super) fn posted(&self) -> Call {
        Call::bounded(self.number, self.args).kind(self.kind)
    }
}

/// Returns times of a system call without work, one for each round.
pub(super) fn null_call_ns(rounds: usize) -> Vec<f64> {
    const CALLS: u32 = 100_000;
    let time = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            // getppid(2) always succeeds.
            let _ = SystemCall::NULL.make();
        }
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..rounds).map(time).collect()
}

/// Returns an error of the pages, for the user.
pub(super) fn failed(error: flexsc_rt::Error) -> Failure {
    Failure::new("flexsc", error)
}
