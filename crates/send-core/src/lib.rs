//! Scalable event notification and delivery: SEND, after M. Ostrowski, *A Mechanism for Scalable Event
//! Notification and Delivery in Linux* (thesis, University of Waterloo, 2000), on a stock kernel.
//!
//! This crate separates two steps. An event is *delivered* when it is in the application's memory.
//! The application is *notified* when it is interrupted to process events. A mask in the *event
//! control block* enables each step, for each of 32 groups of event types, without a system call.
//! So events may be delivered while the application computes, with or without interrupting it.
//!
//! A [`Notifier`] runs actions for signals, timers and posts of other threads, as they arrive:
//!
//! ```
//! use send_core::{Action, EventType, Notifier};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicBool, Ordering};
//!
//! let stop = Arc::new(AtomicBool::new(false));
//! let mut notifier = Notifier::new()?;
//! notifier.on(EventType::signal(libc::SIGTERM)?, Action::Raise(stop.clone()))?;
//! # unsafe { libc::raise(libc::SIGTERM) };
//! while !stop.load(Ordering::Acquire) {
//!     // compute
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It is built on the module [`control_block`], which has the operations of evtctl() in the thesis.
//! With the feature `ring` (on by default), `sockets` delivers events of sockets, and `kernel` runs
//! servers; the crate `evring` runs applications on it.
//!
//! # Concepts and differences
//!
//! The thesis' kernel checks the block at every return to user mode. On a stock kernel, a signal
//! handler and every operation that opens the gate do this (`gate.rs`).
//!
//! | concept | section | item | difference and reason |
//! |---|---|---|---|
//! | event control block | 3.2 | [`EventControl`] | `eventbuf` is a pointer, since the number of events is set at run time; otherwise fields and writers as in figure 3.1 |
//! | ring buffer, head and tail | 3.2, 3.2.2 | [`EventControl`] | one slot more than events, as `head == tail` means empty; the thesis' `tail+1 % SIZE` and `head > tail` are errors |
//! | event, `struct event` | 3.2 | [`Event`] | 24 bytes, with a count, as events of one origin coalesce |
//! | event types and groups | 3.2.1 | [`EventType`], [`Group`] | faults (`SIGSEGV` and others) are not events, as they cannot be deferred |
//! | `deliver`, `notify` | 3.2 | [`ControlBlock::set_deliver`], [`ControlBlock::set_notify`] | raising `notify` costs a system call if an event arrived while it was lowered and the signal was blocked. The handler is called if the buffer holds an event of a raised group; it receives all events in the buffer |
//! | no notification is lost | 3.3, 3.4 | [`ControlBlock::poll_pending`] | raising a mask, leaving a critical section and returning from the handler poll again |
//! | handler, stack, registers | 3.2, 3.3 | [`Handler`], [`Events::instruction_pointer`] | the kernel saves and restores the registers (sigreturn(2)), at the cost of one more kernel entry; the alternate stack is shared with other signal handlers |
//! | edge and level | 3.4, figure 3.4 | [`Trigger`] | the loop of figure 3.4 is around the handler, not in it |
//! | critical section | 3.4 | [`ControlBlock::set_critical_section`], [`ControlBlock::with_notifications_blocked`] | by address for leaf code, which must call `poll_pending` at its end; by a flag for other code, as calls leave an address range |
//! | `EVT_OVERFLOW` | 3.1 | [`EventType::OVERFLOW`] | |
//! | WAIT_FOR_EVENT | 3.5 | [`ControlBlock::wait`] | with `notify` raised, the handler may take the events, as more may arrive while it returns |
//! | auto-accept, `EVT_IPACCEPT` | 3.6.1 | [`ControlBlock::auto_accept`], [`SendKernel`] | accept4(2), called at delivery; the event has no space for the peer's address, which [`ControlBlock::peer`] returns. In [`SendKernel`], a multishot accept |
//! | `deliver = 0` for accepts | 4.7 | [`ControlBlock::set_deliver`] | no connection is accepted, as accepting happens at delivery. While only `notify` is lowered, the first connection interrupts and is accepted; further ones are accepted at the next poll. To stop accepting in [`SendKernel`], cancel the accept operation |
//! | `EVT_IOREADY` | 3.6.2 | [`ControlBlock::watch`] | a multishot poll reports changes, and poll(2) at delivery returns the current state; the group is an argument, not an ioctl |
//! | coalescing, revocation | 3.6 | `queue.rs`, [`Source::revalidate`] | for signals, timers and [`Sockets`], each with at most one queued event. A socket's event is revalidated at delivery and withdrawn if its cause is gone; until then `num_queued` includes it. [`SendKernel`] reports completions, one for each operation |
//! | `SIOCEVTCLONE` | 3.6.2 | [`ControlBlock::auto_accept`] | sets the group in which accepted sockets are watched; the kernel inherits the listener's socket options |
//! | two queues, no batch | 4.3, figure 4.2 | [`SendKernel`] | line 30 of the figure is inverted; figure 3.5 is correct. Up to four new connections at a time are served first, while they are in the cache |
//! | SEND, PS2, PS1 | 4.7, figure 4.11 | [`Delivery`] | a cooperative ring with signals, one that delivers immediately, one that delivers at a wait |
//!
//! # How each event type interrupts
//!
//! | type | mechanism |
//! |---|---|
//! | accept | `O_ASYNC` on the listener: `SIGIO`, of which the kernel queues one; on the way to the handler the kernel runs the ring's task work |
//! | ready, data of [`Sockets`] | `O_ASYNC` on each socket |
//! | data, other completions of [`SendKernel`] | the next entry into the kernel, for any reason |
//! | signals | the signal itself |
//! | timers | timer_create(2) with `SIGIO` |
//! | posts of other threads | tgkill(2) with `SIGIO`, once until the thread polls |
//!
//! # Effects on the process
//!
//! **`SIGIO`** is the notification signal. Its handler stays installed for the life of the process.
//! While notification is off, the first event interrupts the thread and blocks `SIGIO`. If a
//! library saves the thread's signal mask at that moment and restores it later
//! (`pthread_sigmask(SIG_SETMASK, ..)`), it blocks `SIGIO` again. The crate therefore unblocks it
//! at each [`ControlBlock::poll_pending`] and [`ControlBlock::wait`], and at any signal that is an
//! event. It also does so at every 64th call that raises `notify`, handles events
//! ([`ControlBlock::handle_events`]) or requests an event from an empty buffer
//! ([`ControlBlock::next_event`]). A thread whose `SIGIO` was never blocked by an event makes none
//! of these system calls. To hold events off, lower `notify`; the crate undoes an application's own
//! block of `SIGIO`. The poller `RtSig` of `shared-ring` (the mechanism `rtsig` of `evring`) keeps
//! `SIGIO` blocked and takes it as the overflow of its queue, so a thread must not have both it and a
//! control block.
//!
//! **Signals that are events** have the crate's handler from [`ControlBlock::set_group`] until they
//! are removed from their group or the block is dropped. Then the former action is restored. A
//! signal that already has another handler is rejected. If a thread ends without dropping its block
//! ([`mem::forget`](std::mem::forget)), its signals keep the handler and have no effect.
//!
//! **`SIGSEGV`** permanently gets a handler with the first block of the process. It reports event
//! handlers that overflow their stack. Other faults go to the
//! former handler as the kernel would call it: with its mask (`sa_mask`, `SA_NODEFER`), only once
//! with `SA_RESETHAND`, and with `siginfo_t` if it has `SA_SIGINFO`. The default and ignore actions
//! keep their effect, also for a signal that was sent. One difference remains: the former handler
//! runs on the alternate stack even without `SA_ONSTACK`.
//!
//! **The panic hook** is wrapped with the first block. A handler that panics in a signal handler
//! aborts the process with a message that has the rule and the source file, by write(2) and
//! abort(3). The hook does not run, because the interrupted code may hold its locks. Two limits
//! remain: a hook set later must call the one it replaces, and the standard library allocates a
//! formatted message before it calls any hook.
//!
//! **A child of fork(2)** has no control block. All these signals except `SIGSEGV` get their former
//! actions back: at once (pthread_atfork(3)) or, in a child of a bare clone(2), when one arrives or
//! the child defines its own block. On its copy of the parent's block the child may read events
//! from the buffer and drop the block, without effect on the parent. Operations with an effect
//! return [`Error::InChild`], a poster returns [`PostError::Closed`], and a turn of [`SendKernel`]
//! returns a fault. The stack of the copy stays mapped.
//!
//! **A program started by posix_spawn(3)**, as by [`std::process::Command`], inherits the signal
//! mask of the calling thread. If an event has blocked `SIGIO` there, it is blocked in the program.
//! To start the program without that, raise `notify` before.
//!
//! **Threads without a block** may receive any of these signals. The handler uses no thread-local
//! storage, because a thread may lack it if the crate is in a library loaded by dlopen(3).
//!
//! Not provided: running applications in a handler, and futures.
//!
//! [`Delivery`]: kernel::Delivery
//! [`Events::instruction_pointer`]: control_block::Events::instruction_pointer
//! [`Handler`]: control_block::Handler
//! [`SendKernel`]: kernel::SendKernel
//! [`Sockets`]: sockets::Sockets
//! [`Source::revalidate`]: control_block::Source::revalidate

#![cfg_attr(docsrs, feature(doc_cfg))]

mod block;
mod code;
mod context;
pub mod control_block;
mod error;
mod event;
mod gate;
mod group;
mod handler;
#[cfg(feature = "ring")]
pub mod kernel;
mod limits;
mod notification;
mod notifier;
mod per_thread;
mod posts;
mod queue;
#[cfg(feature = "ring")]
mod ring;
mod signals;
#[cfg(feature = "ring")]
pub mod sockets;
mod source;
mod stack;
mod timer;

pub use error::{Error, PostError};
pub use event::{Event, EventType};
pub use handler::Action;
pub use notifier::Notifier;
pub use posts::Poster;

use control_block::{Actions, ControlBlock, EventControl, Group, Groups, Trigger};

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
