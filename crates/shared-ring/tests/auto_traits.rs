//! What may go to another thread, and what threads may share. It is looked at as this is built.

use shared_ring::poller::{Epoll, RtSig};
use shared_ring::{
    BufferPool, Engine, Fd, File, FileJob, GatherList, Linux, LinuxRing, OffloadThreads, Op,
    Outcome, RxBuf, Socket, UringKernel, Waker,
};

macro_rules! is {
    ($($type:ty: $trait:ident),* $(,)?) => {
        $(const _: fn() = || {
            fn is<T: ?Sized + $trait>() {}
            is::<$type>();
        };)*
    };
}

/// Where a type has the trait, there are two functions to choose from, and the choice is refused.
macro_rules! is_not {
    ($($type:ty: $trait:ident),* $(,)?) => {
        $(const _: fn() = || {
            trait Which<T> {
                fn which() {}
            }
            impl<T: ?Sized> Which<()> for T {}
            #[allow(dead_code, reason = "it is one to choose from")]
            struct Has;
            impl<T: ?Sized + $trait> Which<Has> for T {}
            <$type as Which<_>>::which();
        };)*
    };
}

is! {
    // Numbers, which the machine's calls take from any thread.
    Fd: Send, Fd: Sync, Socket: Send, Socket: Sync, Linux: Send, Linux: Sync,
    // What other threads wake by, and do.
    Waker: Send, Waker: Sync, FileJob: Send, OffloadThreads: Send,
    // One thread at a time has the queues; which one, the kernel checks.
    LinuxRing: Send,
}

is_not! {
    // Its queues are read by plain loads.
    LinuxRing: Sync,
    // They count references, and lend buffers, without atomic numbers.
    BufferPool: Send, BufferPool: Sync, RxBuf: Send, RxBuf: Sync, File: Send, File: Sync,
    // What they hold may be a receive buffer.
    GatherList: Send, GatherList: Sync, Op: Send, Op: Sync, Outcome: Send, Outcome: Sync,
    UringKernel: Send, UringKernel: Sync, Engine<Epoll>: Send, Engine<Epoll>: Sync,
    // Its signals come to one thread.
    RtSig: Send, RtSig: Sync,
    // There is one of each.
    Socket: Clone, Socket: Copy,
}
