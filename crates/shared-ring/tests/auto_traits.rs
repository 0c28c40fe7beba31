//! Checks at compile time which types are `Send`, `Sync` and `Clone`.

use shared_ring::buffers::{BufferPool, GatherList, RxBuf};
use shared_ring::files::File;
use shared_ring::poller::{Epoll, RtSig};
use shared_ring::uring::LinuxRing;
use shared_ring::uring::UringKernel;
use shared_ring::{Engine, Fd, Linux, Op, Outcome, Socket, Waker};
use shared_ring::{author::FileJob, author::OffloadThreads};

macro_rules! is {
    ($($type:ty: $trait:ident),* $(,)?) => {
        $(const _: fn() = || {
            fn is<T: ?Sized + $trait>() {}
            is::<$type>();
        };)*
    };
}

/// If a type has the trait, two functions match, and the ambiguous call does not compile.
macro_rules! is_not {
    ($($type:ty: $trait:ident),* $(,)?) => {
        $(const _: fn() = || {
            trait Which<T> {
                fn which() {}
            }
            impl<T: ?Sized> Which<()> for T {}
            #[allow(dead_code, reason = "it makes the call ambiguous")]
            struct Has;
            impl<T: ?Sized + $trait> Which<Has> for T {}
            <$type as Which<_>>::which();
        };)*
    };
}

is! {
    // Numbers, which system calls accept from any thread.
    Fd: Send, Fd: Sync, Socket: Send, Socket: Sync, Linux: Send, Linux: Sync,
    // Used by other threads to wake the kernel and to run file jobs.
    Waker: Send, Waker: Sync, FileJob: Send, OffloadThreads: Send,
    // One thread at a time uses the queues; the kernel checks which one.
    LinuxRing: Send,
}

is_not! {
    // Its queues are accessed by plain loads.
    LinuxRing: Sync,
    // They count references and lent buffers without atomics.
    BufferPool: Send, BufferPool: Sync, RxBuf: Send, RxBuf: Sync, File: Send, File: Sync,
    // They may hold a receive buffer.
    GatherList: Send, GatherList: Sync, Op: Send, Op: Sync, Outcome: Send, Outcome: Sync,
    UringKernel: Send, UringKernel: Sync, Engine<Epoll>: Send, Engine<Epoll>: Sync,
    // Its signals are sent to one thread.
    RtSig: Send, RtSig: Sync,
    // Each has one owner.
    Socket: Clone, Socket: Copy,
}
