//! A system call together with the memory that it uses.

use std::io;

use crate::call::Call;
use crate::pages::Scratch;

/// A call that owns its memory. [`operations`](crate::operations) has those of a server;
/// [`operations::raw`](crate::operations::raw) makes others.
///
/// # Safety
/// The prepared call does nothing that a program must not do. It refers only to the scratch memory
/// and to memory that `self` owns and that does not move with it; both until `finish`. `self` owns a clone of the
/// [`Descriptor`](crate::Descriptor) that is given to [`Call::about`]. `prepare` may be called again if the call was not
/// posted.
pub unsafe trait Operation: Sized + 'static {
    /// The result.
    type Output: 'static;

    /// Returns the call. It must not use the [`Runtime`](crate::Runtime) of its future, which panics then.
    fn prepare(&mut self, scratch: &mut Scratch) -> Call;

    /// Returns the result from what the kernel returned. `scratch` is what `prepare` and the call have left there, or
    /// zeros if the call was not posted; `result` is an error then.
    fn finish(self, result: io::Result<usize>, scratch: &Scratch) -> Self::Output;
}

/// The scratch memory of a call that was not posted.
pub(crate) const NOT_POSTED: Scratch = [0; 32];

/// An operation made of its memory and two functions.
pub(crate) struct Owned<M, P, F> {
    memory: M,
    prepare: P,
    finish: F,
}

impl<M, P, F> Owned<M, P, F> {
    /// # Safety
    /// As [`Operation`].
    pub(crate) unsafe fn new(memory: M, prepare: P, finish: F) -> Self {
        Owned { memory, prepare, finish }
    }
}

// SAFETY: `Owned::new` requires it.
unsafe impl<M, P, F, O> Operation for Owned<M, P, F>
where
    M: 'static,
    O: 'static,
    P: FnMut(&mut M, &mut Scratch) -> Call + 'static,
    F: FnOnce(M, io::Result<usize>, &Scratch) -> O + 'static,
{
    type Output = O;

    #[inline]
    fn prepare(&mut self, scratch: &mut Scratch) -> Call {
        (self.prepare)(&mut self.memory, scratch)
    }

    #[inline]
    fn finish(self, result: io::Result<usize>, scratch: &Scratch) -> O {
        (self.finish)(self.memory, result, scratch)
    }
}
