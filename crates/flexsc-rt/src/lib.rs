//! Exception-less system calls on a stock kernel, after L. Soares and M. Stumm, *Exception-Less
//! System Calls for Event-Driven Servers* (USENIX ATC 2011).
//!
//! A program posts system calls to entries in shared memory, and goes on. When it has nothing else
//! to do it waits; then the calls are executed in one batch. Any system call can be posted.
//!
//! - [`Pages`] are the entries: post, wait, take completions, cancel. For authors of libraries.
//! - [`operations`] are typed system calls that own their memory.
//! - [`EventLoop`] is the paper's libflexsc: each call has a callback.
//! - [`Runtime`] makes each call a future, under any executor of one thread.
//! - `green`, with the feature `green-threads`, has threads that switch where a call waits.
//! - [`kernel`] runs the servers of the crates `evring` and `evring-httpd` on pages (`--backend flexsc`).
//!
//! # Use
//!
//! ```
//! use flexsc_rt::operations::{open, read_at};
//! use flexsc_rt::{Config, EventLoop};
//! use rustix::fs::{Mode, OFlags};
//!
//! # fn main() -> Result<(), flexsc_rt::Error> {
//! let mut events = EventLoop::new(&Config::default())?;
//! for path in [c"/proc/version", c"/proc/uptime", c"/proc/loadavg"] {
//!     let opened = open(path, OFlags::RDONLY, Mode::empty());
//!     let posted = events.post_or_delay(opened, |events, file| {
//!         let Ok(file) = file else { return };
//!         let read = read_at(&file, 0, Vec::with_capacity(4096));
//!         let posted = events.post_or_delay(read, |_, (_, bytes)| {
//!             print!("{}", String::from_utf8_lossy(&bytes));
//!         });
//!         posted.expect("there is room");
//!     });
//!     posted.expect("there is room");
//! }
//! events.run()
//! # }
//! ```
//!
//! [`Config::entries`] calls can be in flight. [`EventLoop::post_or_delay`] delays further ones, up to as many again of each
//! of three sorts: calls that need only an entry, calls to which the reserved entries are not open ([`Config::reserve`]), and
//! those of them that also need a thread. Beyond that it gives a call back: post it in a callback, or use [`Runtime`], whose
//! futures wait for room.
//!
//! It needs Linux 5.12, which has `RESOLVE_CACHED` of openat2(2): [`kernel`] opens cached files by it. Calls can be pinned
//! to io_uring from Linux 6.1 on.
//!
//! # Executors
//!
//! The paper's syscall threads are part of its kernel. Here, the executor that costs least makes a call:
//!
//! - **In place** ([`Executor::InPlace`]): the owner of the pages, at the next wait, in one run for
//!   all posted calls. In batches of 64 an entry and its share of the wait cost about 20 nanoseconds
//!   beside a call without work; alone, both cost 30 to 40.
//! - **Syscall threads** ([`Executor::Threads`]): for calls that block. At most one per core is
//!   active, of all pages of the process. The kernel does not report that a thread blocks; so a heartbeat looks for calls that
//!   take longer than a bound, counts their threads as blocked, and wakes others.
//! - **The ring** ([`Executor::Ring`]): io_uring, set up when a call is first given to it. A call for
//!   which the ring or the kernel has no operation is made by another executor;
//!   [`Counters::ring_refused`] counts these, and [`Pages::ring_error`] returns why there is no ring. A descriptor of very
//!   many calls can be registered with the ring ([`Pages::register_file`]), which makes these cheaper.
//! - **Shared** ([`Executor::Shared`]): owner and syscall threads make the calls of a batch at a time, each from
//!   pages of its own; the owner takes back what no thread has begun. So one user thread keeps several cores
//!   busy, if these have nothing else to do.
//! - Calls that wait for a descriptor need no thread meanwhile, so 10,000 reads of idle sockets occupy no thread.
//!   They wait in an epoll set. When the descriptor is ready, the owner makes the call in place, or a syscall thread
//!   makes it if the descriptor is in blocking mode. With [`Config::sleep_in_ring`] they wait in the ring instead:
//!   one entry into the kernel submits a batch, waits and takes completions.
//!
//! Which of the four makes a bounded call ([`Waits::Bounded`]) is learnt from measured costs, for each number, kind of
//! object and batch depth: calls begin in place, and from time to time one batch tries another
//! executor. [`Config::executor`] and [`Call::pinned`] pin it, [`Counters`] show it.
//!
//! Costs do not choose for calls that may wait longer: typed sends and receives, and accepts, `sendfile`, `splice`, reads
//! and writes of non-blocking sockets, pipes and devices. The owner makes such a call in place, and again when the
//! descriptor is ready, if it was not: one that succeeds at once costs one system call, while the ring costs more for each
//! of few calls. Where it may block all the same, as on a descriptor in blocking mode or on the disk of a file, a syscall
//! thread makes it once the descriptor is ready.
//!
//! Files have the costs of their file system; a process tells 15 of them apart, and further ones by their [`Kind`]. The
//! second call on a file asks for it (fstat(2), fstatfs(2)), for all that follow. A path has the file system of the
//! directory of its [`PathAt`](operations::PathAt), and without one [`Kind::Unknown`]: costs of all such paths are learnt
//! together. Calls about the calling thread (gettid(2), prctl(2), sigprocmask(2), ...) are made in place.
//!
//! # When it helps
//!
//! It helps programs that have many calls to make and cannot wait for each, above all where some of
//! them block. It does not make a single call cheaper: executed in place, a call enters the kernel
//! once, as without this crate. A program that makes one bounded call at a time should make it.
//!
//! On two cores of an AMD EPYC, and for single calls and batches of an Intel Xeon, Linux 6.18 (`docs/results/flexsc-*.json`), where
//! a call without work takes 110 to 140 ns:
//!
//! | program | result |
//! |---|---|
//! | metadata of 100,000 cached files | 1.47 times as many per second as `std::fs`, which uses one core, and 0.77 times as many as two threads of it; 8.8 times as many as `tokio::fs`, and 1.7 times as many as it with one thread per core |
//! | open, one read and close of 10,000 small files | cached: 0.85 times as many per second as `std::fs`, 3.2 times as many as `tokio::fs`; not cached: 2.9 times and as many |
//! | 10,000 connections, each a thread | green threads: 0.63 times the CPU time of threads of the kernel |
//! | web server that opens a file for each request, 256 connections | open connections: 1.09 times the requests per second of CPU time of epoll, 0.97 times those of io_uring; 1.03 system calls per request, epoll 7.0. A connection for each request: as many as with epoll, 0.91 times those of io_uring |
//! | memcached server (`examples/kv`), 256 connections, nine `get` and one `set` | as many replies per second of CPU time as with epoll, 0.93 times those of io_uring |
//! | reads of 4 KiB on syscall threads, 512 at a time | with the owner's core left to it as long as with threads on both cores, see [`Specialization`] |
//! | one call without work at a time | 1.3 times the time of the call |
//! | batches of 64 calls without work | 1.3 times the time of the calls |
//! | batches of 64 opens and closes; of sends and receives, as bounded calls by [`Pages::post`] | 1.1 times the time of the calls; 1.1 times |
//!
//! Batches gain where it costs more to enter the kernel. On a processor on which getppid(2) took 170 ns, those of 64 opens
//! and closes took 0.67 times the time of the calls, and those of sends and receives 0.83 times.
//!
//! # Ownership
//!
//! One thread registers pages and owns them; they cannot be sent to another. `status` says which
//! party may access an entry:
//!
//! | status | the entry belongs to | it ends by |
//! |---|---|---|
//! | free | the owner | the owner fills it in (release) |
//! | submitted | the owner, until its bit in the page's mask is set; then the executor that clears that bit | a claim: one atomic `and`, by a thread or by the owner (acquire) |
//! | busy | the executor | the result (release), or the owner's cancel |
//! | cancel | the executor | the result |
//! | done | the owner | the owner takes the result |
//!
//! The kernel uses the memory of a call until its completion was taken. Typed operations own it; an
//! [`EventLoop`] or [`Runtime`] that is dropped cancels what is in flight, waits two seconds, and
//! then leaks memory that the kernel may still use.
//!
//! # The paper, and this crate
//!
//! | concept | section | type here | what differs, and why |
//! |---|---|---|---|
//! | syscall page, entry of 64 bytes | 3.1.1, figure 2 | [`Pages`] | one field more, the thread that serves the entry, in place of the number of arguments |
//! | `flexsc_register` | 3.2 | [`Pages::register`] | threads start on demand, not one for each entry |
//! | `flexsc_wait` | 3.2 | [`Pages::wait`] | also executes calls in place |
//! | syscall thread | 3.2.1 | [`Executor::Threads`] | a thread of the process. One is active per core, of all registrations; only the first of each is never refused. The workers of a server divide them ([`FlexScKernel::with_workers`](kernel::FlexScKernel::with_workers)) |
//! | core specialization | 3, 6.1 | [`Specialization`] | syscall threads leave the owner's core while they are busy, the owner is awake, and no more threads are runnable than there are cores, and return; one less is active meanwhile; the owner is not moved |
//! | a thread that blocks wakes the next | 3.2.1 | [`Config::heartbeat`] | by time, as user space is not notified |
//! | lock of a page | 3.2.1 | `threads/mod.rs` | a thread holds the page until its submitted calls are issued, or until it has blocked |
//! | many syscall threads | 3.2.1, 7 | [`Waits::Ready`] | calls that wait for a descriptor share one epoll set, or the ring |
//! | linear scan | 7 | `completions.rs` | the "outgoing queue" that section 7 proposes: a completion costs the same whatever is outstanding |
//! | throttling, standstill | 7 | [`Busy`], [`Config::reserve`] | entries and one thread are kept for calls that do not wait for others; no future, and no call of `post_or_delay`, passes an older one that needs only an entry |
//! | cancel | 4.2 | [`Pages::cancel`], [`EventLoop::cancel`] | the same status and signal; a call that no executor has begun, or that is delayed, is withdrawn |
//! | event loop, callbacks | 4, figure 4 | [`EventLoop`] | a callback is a closure, which owns what the stage needs |
//! | FlexSC-Threads | 1, 2 | `green::Threads` | all green threads of a scheduler run on one OS thread; several programs' threads share nothing |
//! | several accepts outstanding | 4 | [`kernel::FlexScKernel`] | up to 16 for a listener, which wait in the ring, without io_uring in the epoll set |
//! | each stage posts the next call | 4, figure 4 | [`kernel::FlexScKernel`] | fstat(2) of a file that was opened, the look whether a part of it is cached, shutdown and socket options are direct calls, which do not wait; lists of directories and writes to files run on other threads |
//! | several cores for one user thread | 6, figures 5 and 7 | [`Executor::Threads`], [`Executor::Shared`] | those of [`Pages`] (tested, without a figure); in `FlexScKernel` the owner and the ring make what is frequent, so a server needs a worker for each core |
//! | no completion notification | 4 | | the same: completions are found by polling, after the callbacks |
//!
//! # Decisions
//!
//! - **Full pages**: a post returns [`Busy`]. [`EventLoop::post_or_delay`] delays the call: of each of the three
//!   sorts, as many as there are entries. Beyond that it gives the call back. Futures wait. No delayed call and no
//!   future passes an older one that needs only an entry, with one exception: a future that was woken for an entry,
//!   and has not used it within two turns, can be passed. [`Pages::post`] and [`EventLoop::post`] pass all calls that
//!   wait.
//! - **A panic in a callback** passes through [`EventLoop::run`], which can be called again.
//! - **fork(2)**: in a child, the parent's pages execute nothing and return [`Error::InChild`].
//! - **A closed descriptor**: a [`Descriptor`] stays open until the calls on it have ended. For a
//!   raw call, see [`Pages::post`].
//! - **A syscall thread that dies**, by seccomp(2) or a posted exit(2): its call has the error
//!   `EOWNERDEAD`, after 1,024 heartbeats at the latest; another thread takes over the other calls. A thread is not
//!   missed while the kernel has given its number to another thread of the program. The stack of a dead thread, 64 KiB,
//!   stays mapped.
//! - **No thread can be started**, as at a limit of pids(7): the threads that run go on. While all of them are blocked, or
//!   there is none, the owner makes bounded calls in place; those that would block a thread end with `EAGAIN`.
//! - **Signals**: cancellation uses the signal `SIGRTMAX - 3`. Syscall threads block all other signals, and the other
//!   threads of this crate block all signals, except those for an error of the thread itself, such as `SIGSEGV`. So
//!   other handlers run in the program's own threads.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    all(test, not(loom)),
    allow(clippy::duplicate_mod, reason = "a simulated machine has the pages, too")
)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("flexsc-rt passes offsets in registers of 64 bits, and needs Linux");

mod active;
mod bell;
mod call;
/// The rings of this machine.
mod call_ring {
    pub(crate) use shared_ring::author::CallJob;
    pub(crate) use shared_ring::uring::{CallRing, Pushed};
}
mod choice;
/// The clock of this machine.
mod clock {
    pub(crate) use std::time::Instant;
}
mod completions;
mod cores;
mod descriptor;
mod entry;
mod entry_queue;
mod epoll_set;
mod error;
mod event_loop;
mod future;
#[cfg(feature = "green-threads")]
pub mod green;
/// This machine.
mod host {
    pub(crate) use shared_ring::Linux as Machine;

    pub(crate) fn machine() -> Machine {
        Machine::default()
    }
}
mod interrupt;
pub mod kernel;
#[cfg(all(test, loom))]
mod models;
mod notifier;
mod object;
mod operation;
pub mod operations;
mod page;
mod pages;
mod processors;
mod raw;
mod readiness;
mod registered;
mod ring;
mod shared;
#[cfg(all(test, not(loom)))]
mod simulated;
mod specialization;
mod sync;
/// The synchronization primitives of the threads of this machine.
mod tasks {
    pub(crate) use shared_ring::sync::{Condvar, Mutex, MutexGuard};
    #[cfg(all(test, not(loom)))]
    pub(crate) use std::thread::yield_now;
}
mod threads;
mod watch;

pub use call::{Call, Direction, Executor, Waits};
pub use descriptor::Descriptor;
pub use error::{Busy, Error};
pub use event_loop::{CallId, EventLoop, Refused};
pub use future::{CallFuture, Runtime};
pub use object::Kind;
pub use operation::Operation;
pub use pages::{Completion, Config, Counters, EntryId, Pages, Scratch};
pub use shared_ring::uring::SetupError;
pub use specialization::Specialization;

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
