//! What a signal has interrupted: `ucontext_t`, sigaction(2).

use std::marker::PhantomData;

/// The interrupted state of a thread, on its way back to it.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    raw: *mut libc::ucontext_t,
    handler: PhantomData<&'a mut libc::ucontext_t>,
}

impl Context<'_> {
    /// The context that a signal handler was given.
    ///
    /// # Safety
    /// That handler runs for as long as this lives.
    pub(crate) unsafe fn from_raw(raw: *mut ()) -> Self {
        Context { raw: raw.cast(), handler: PhantomData }
    }

    pub(crate) fn as_raw(&self) -> *mut () {
        self.raw.cast()
    }

    /// The interrupted instruction, where it is known how to ask.
    pub(crate) fn instruction(&self) -> Option<usize> {
        // SAFETY: the handler runs, so the kernel's structure is there.
        let machine = unsafe { &(*self.raw).uc_mcontext };
        #[cfg(target_arch = "x86_64")]
        return Some(machine.gregs[libc::REG_RIP as usize] as usize);
        #[cfg(target_arch = "aarch64")]
        return Some(machine.pc as usize);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            let _ = machine;
            None
        }
    }

    /// Has a signal blocked from when the interrupted code goes on.
    pub(crate) fn block(&mut self, signal: i32) {
        // SAFETY: the set is part of the structure, and sigaddset(3) is safe in signal handlers.
        unsafe { libc::sigaddset(&raw mut (*self.raw).uc_sigmask, signal) };
    }

    /// Has a signal let through from when the interrupted code goes on.
    pub(crate) fn unblock(&mut self, signal: i32) {
        // SAFETY: as above.
        unsafe { libc::sigdelset(&raw mut (*self.raw).uc_sigmask, signal) };
    }
}

/// Whether interrupted instructions are known here.
pub(crate) const KNOWN: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
