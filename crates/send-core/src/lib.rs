//! Scalable event notification and delivery: SEND, after M. Ostrowski, *A Mechanism for Scalable Event
//! Notification and Delivery in Linux* (thesis, University of Waterloo, 2000), on a stock kernel.
//!
//! Two things are kept apart here that others do at once. An event is *delivered* when it stands in
//! the application's memory; the application is *notified* when it is made to look. Each is switched
//! by a mask in the *event control block*, for each of 32 groups of event types, and no system call
//! is needed to switch it. So events may be delivered while the application computes, and may or may
//! not interrupt it.
//!
//! ```
//! use send_core::{Action, Actions, EventType, ControlBlock, Group, Groups, Trigger};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! let mut send = ControlBlock::define(100)?;
//! let seen = Arc::new(AtomicU64::new(0));
//! let handler = Actions::new().on(EventType::USER, Action::Count(seen.clone()));
//! send.set_handler(handler, Trigger::Level);
//! send.set_group(EventType::USER, Some(Group::FIRST))?;
//! send.set_notify(Groups::ALL)?;
//! // From now on an event that another thread posts interrupts this one.
//! let poster = send.poster();
//! std::thread::spawn(move || poster.post(7)).join().unwrap()?;
//! assert_eq!(seen.load(Ordering::Relaxed), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! For daily use there is [`Notifier`]; for sockets of one's own, [`Sockets`]; for servers,
//! [`SendKernel`], which the crate `evring` runs applications on; beneath all, [`ControlBlock`], which has
//! what evtctl() has in the thesis.
//!
//! # What is where, and what differs
//!
//! The kernel of the thesis looks at the block at every return to user mode. On a stock kernel a
//! signal handler takes its part, together with everything that opens the gate again (`gate.rs`).
//!
//! | concept | section | here | what differs, and why |
//! |---|---|---|---|
//! | event control block | 3.2 | [`EventControl`] | `eventbuf` is a pointer, since the number of events is set at run time; otherwise the fields and their writers are those of figure 3.1 |
//! | ring buffer, head and tail | 3.2, 3.2.2 | [`EventControl`] | one place more than events, as `head == tail` means empty; the thesis' `tail+1 % SIZE` and `head > tail` are slips |
//! | event, `struct event` | 3.2 | [`Event`] | 24 bytes; a count, as events of one origin coalesce |
//! | event types and groups | 3.2.1 | [`EventType`], [`Group`] | faults (`SIGSEGV` and such) are no events: they can't wait |
//! | `deliver`, `notify` | 3.2 | [`ControlBlock::set_deliver`], [`ControlBlock::set_notify`] | raising `notify` costs a system call if an event has found it down and the signal has blocked itself. The handler is called if the buffer holds an event of a group that is up; it sees all events in the buffer |
//! | no notification is lost | 3.3, 3.4 | [`ControlBlock::poll_pending`] | raising a mask, leaving a critical section and the end of the handler look again |
//! | handler, stack, registers | 3.2, 3.3 | [`Handler`], [`Events::interrupted_at`] | the kernel saves and restores the registers (sigreturn(2)), which is one more entry; one alternate stack for all who want one |
//! | edge and level | 3.4, figure 3.4 | [`Trigger`] | the loop of figure 3.4 is around the handler, not in it |
//! | critical section | 3.4 | [`ControlBlock::set_critical_section`], [`ControlBlock::with_notifications_blocked`] | by address for leaf code, whose end calls `poll_pending`; by a flag for everything else, as code that calls others has no one range |
//! | `EVT_OVERFLOW` | 3.1 | [`EventType::OVERFLOW`] | |
//! | WAIT_FOR_EVENT | 3.5 | [`ControlBlock::wait`] | with `notify` up the handler may take what it brings, as events come while it returns |
//! | auto-accept, `EVT_IPACCEPT` | 3.6.1 | [`ControlBlock::auto_accept`], [`SendKernel`] | accept4(2), by whoever delivers the event; the address of the other end has no room in it, and is [asked for](ControlBlock::peer). In [`SendKernel`] a multishot accept |
//! | `deliver = 0` for accepts | 4.7 | [`ControlBlock::set_deliver`] | nothing is accepted, as that is done at delivery. While only `notify` is down the first connection interrupts and is accepted, those behind it when the application looks. Whoever wants no connections from [`SendKernel`] cancels its accept |
//! | `EVT_IOREADY` | 3.6.2 | [`ControlBlock::watch`] | a multishot poll tells that something has changed, and poll(2) at delivery what is true; the group is an argument, not an ioctl |
//! | coalescing, revocation | 3.6 | `queue.rs`, [`Source::revalidate`] | of signals, timers and [`Sockets`], each with one event waiting. What a socket's says is asked for when it is to be delivered: then it is withdrawn, and until then it is counted in `num_queued`. [`SendKernel`] tells by completions, one for each operation |
//! | `SIOCEVTCLONE` | 3.6.2 | [`ControlBlock::auto_accept`] | the group in which accepted sockets are watched; options of the listener are inherited by the kernel |
//! | two queues, no batch | 4.3, figure 4.2 | [`SendKernel`] | line 30 of the figure is inverted; figure 3.5 is right. Of new connections four at a time come first, so that they are served while they are in the cache |
//! | SEND, PS2, PS1 | 4.7, figure 4.11 | [`Delivery`] | a cooperative ring with signals, one that delivers by itself, one that delivers at a wait |
//!
//! # How each type of event interrupts
//!
//! | type | by |
//! |---|---|
//! | accept | `O_ASYNC` on the listener: `SIGIO`, of which the kernel keeps one; on its way to the handler the kernel runs the ring's work |
//! | ready, data of [`Sockets`] | the same, on each socket |
//! | data, other completions of [`SendKernel`] | the next entry into the kernel, whatever causes it |
//! | signals | themselves |
//! | timers | timer_create(2), by `SIGIO` |
//! | posts of other threads | tgkill(2), by `SIGIO`, once until the thread has looked |
//!
//! # What it does to the process
//!
//! **`SIGIO`** is the signal of notification, handled for as long as the process lives. While notification is
//! off an event finds the thread with `SIGIO` unblocked once, and from then on blocked. A library that reads
//! the thread's mask of signals at that moment, and restores it later (`pthread_sigmask(SIG_SETMASK, ..)`),
//! blocks `SIGIO` again. The crate sees to that by unblocking it: at each [`ControlBlock::poll_pending`] and
//! [`ControlBlock::wait`], at any signal that is an event, and at every 64th time that `notify` is raised, an event
//! is asked for ([`ControlBlock::next_event`] on an empty buffer) or events are handled
//! ([`ControlBlock::handle_events`]). A thread whose `SIGIO` was never blocked so makes none of these system calls.
//! To keep events off, lower `notify`; the crate ends a block of `SIGIO` that the application has made
//! itself.
//!
//! **Signals that are events** have the crate's handler from [`ControlBlock::set_group`] on, until they are put
//! into no group or the block is dropped; then they are handled as before. A signal with another handler is
//! refused.
//!
//! **`SIGSEGV`** gets a handler, for good, with the first block of a thread that has no alternate stack of 64
//! KiB: it names an event handler that overflows its stack. It calls the handler that was there before as the
//! kernel would: with its mask (`sa_mask`, `SA_NODEFER`), once if it is to be called once (`SA_RESETHAND`),
//! with what it wants to be told (`SA_SIGINFO`). The default action, or to ignore the signal, stays that,
//! also when the signal was sent. What can't be kept is the stack: the former handler runs on the alternate
//! one even without `SA_ONSTACK`.
//!
//! **The panic hook** is wrapped with the first block. A handler that panics in a signal handler ends the
//! process with the name of the rule and the source file, by write(2) and abort(3); the hook, whose locks the
//! interrupted code may hold, does not run. Two things remain: a hook that is set later has to call the one
//! that it replaces, and the standard library takes memory for a message that is formatted before it calls
//! any hook.
//!
//! **A child of fork(2)** has no control block. To it all these signals but `SIGSEGV` do what they did before
//! they were claimed: at once (pthread_atfork(3)), or, in a child by a bare clone(2), as soon as one comes or
//! the child makes a block of its own, which it may. With its copy of the parent's block it may look at what
//! was in the buffer, and drop it, which the parent does not feel; what would change anything returns
//! [`Error::InChild`], a poster [`PostError::Ended`], and a turn of [`SendKernel`] a fault. The stack of the
//! copy stays mapped.
//!
//! **Threads without a block** can have any of these signals arrive. The handler uses no thread-local
//! storage, which such a thread may not have where the crate is in a library that was loaded by dlopen(3).
//!
//! What this crate does not do: it runs no application in a handler, and makes no futures.

mod block;
mod code;
mod context;
mod control_block;
mod error;
mod event;
mod gate;
mod group;
mod handler;
mod kernel;
mod notifier;
mod per_thread;
mod posts;
mod queue;
mod ring;
mod signals;
mod sockets;
mod source;
mod stack;
mod sync;
mod timer;

pub use block::EventControl;
pub use control_block::ControlBlock;
pub use error::{Error, PostError};
pub use event::{Event, EventType};
pub use gate::Counts;
pub use group::{Group, Groups};
pub use handler::{Action, Actions, Events, Handler, SetFlag, Trigger};
pub use kernel::{Capacity, Delivery, SendKernel, SendSetupError};
pub use notifier::Notifier;
pub use posts::Poster;
pub use sockets::{Received, SocketConfig, SocketId, Sockets};
pub use source::{EventSink, NoSource, Source};

/// The most events that a buffer holds.
pub const MAX_EVENTS: u32 = 1 << 24;

/// The most sockets of which a block tells.
pub const MAX_SOCKETS: u32 = 1 << 20;

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
