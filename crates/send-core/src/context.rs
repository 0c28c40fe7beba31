//! The context interrupted by a signal: `ucontext_t`, sigaction(2).

use std::marker::PhantomData;

/// The interrupted state of a thread, restored when the signal handler returns.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    raw: *mut libc::ucontext_t,
    handler: PhantomData<&'a mut libc::ucontext_t>,
}

impl Context<'_> {
    /// Wraps the context passed to a signal handler.
    ///
    /// # Safety
    /// The handler must not return while this exists.
    pub(crate) unsafe fn from_raw(raw: *mut ()) -> Self {
        Context { raw: raw.cast(), handler: PhantomData }
    }

    pub(crate) fn as_raw(&self) -> *mut () {
        self.raw.cast()
    }

    /// Returns the address of the interrupted instruction, on supported processors.
    pub(crate) fn instruction(&self) -> Option<usize> {
        // SAFETY: the handler is running, so the kernel's structure exists.
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

    /// Returns the interrupted stack pointer, on supported processors.
    pub(crate) fn stack_pointer(&self) -> Option<usize> {
        // SAFETY: the handler is running, so the kernel's structure exists.
        let machine = unsafe { &(*self.raw).uc_mcontext };
        #[cfg(target_arch = "x86_64")]
        return Some(machine.gregs[libc::REG_RSP as usize] as usize);
        #[cfg(target_arch = "aarch64")]
        return Some(machine.sp as usize);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            let _ = machine;
            None
        }
    }

    /// Blocks a signal from when the interrupted code resumes.
    pub(crate) fn block(&mut self, signal: i32) {
        // SAFETY: the set is part of the structure, and sigaddset(3) is safe in signal handlers.
        unsafe { libc::sigaddset(&raw mut (*self.raw).uc_sigmask, signal) };
    }

    /// Unblocks a signal from when the interrupted code resumes.
    pub(crate) fn unblock(&mut self, signal: i32) {
        // SAFETY: as above.
        unsafe { libc::sigdelset(&raw mut (*self.raw).uc_sigmask, signal) };
    }
}

/// The interrupted instruction is available on this processor.
pub(crate) const IS_SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
