//! Event correlation: pairs of events of two subsystems, such as disk and network. After S. S. Lim
//! and K. H. Park, *ECEM: an event correlation based event manager for an I/O-intensive application*
//! (Journal of Systems and Software, 2004).
//!
//! An event pair `pre => post` says that one event happens before another: a file's data is read
//! before it is sent. Each of the two is ready, or waits. An ordinary event loop delivers the
//! pre-event at once. If the post-event has to wait, because the send buffer is full, the program
//! ran for nothing. An [`EventManager`] delivers the pre-event only when the post-event is ready.
//!
//! ```
//! use ecem::{Config, Delivery, Event, EventKind, EventManager, Readiness};
//! use std::time::Instant;
//!
//! let (file, socket) = (5, 6);
//! let read = Event::new(file, EventKind::DiskReadResponse);
//! let write = Event::new(socket, EventKind::NetworkWriteRequest);
//! let mut manager = EventManager::new(&Config::default());
//! let pair = manager.add(read, write, Readiness::Wait)?;
//!
//! // Data of the file is there, but the send buffer is full.
//! let now = Instant::now();
//! assert_eq!(manager.deliver(pair, "4096 bytes", now), Delivery::Deferred);
//! assert_eq!(manager.next(now), None);
//!
//! // The client has acknowledged bytes, so that the send buffer has room.
//! manager.set(write, Readiness::Ready);
//! assert_eq!(manager.next(now), Some((pair, "4096 bytes")));
//! # Ok::<(), ecem::AddError>(())
//! ```
//!
//! # Pairs of descriptors, and of other objects
//!
//! [`Correlations`] is the paper's interface, for programs that name events by descriptors. It makes two system calls
//! for each pair, which return the types of the descriptors, and the program reports the states. The crate `evring`
//! and its example proxy have their pairs in the same table ([`EventManager`], [`PairTable`]), but by connection.
//! Many connections share the descriptor of a file, so a pair of descriptors would not say which connection a read
//! belongs to, and a system call for each read would cost more than the table saves.
//!
//! # Concepts and differences
//!
//! | concept | section | here | what differs |
//! |---|---|---|---|
//! | event | 3, table 1 | [`Event`], [`EventKind`] | an event belongs to an object: a descriptor, or any other key |
//! | state of an event: ready, wait | 3.1 | [`Readiness`] | |
//! | event pair, happened-before | 3.1 | [`PairTable::add`] | `pre => post`; pairs of any two objects |
//! | RR, RW, WR, WW | table 2 | [`PairState`] | in `evring` a pair exists only while a read is held back, so its state is RW, or RR until that read is delivered |
//! | event correlation table, hash function | 5.1 | [`PairTable`] | bounded; a pair is also linked to the others of its two objects |
//! | deferred event delivery | 3.2 | [`EventManager`] | it defers an event, not a process; the number of deferred events and the time are bounded |
//! | `ecem_add`, `ecem_del` | 5.1 | [`Correlations::add`], [`Correlations::del`] | the paper leaves the flag open: here it names the pairs of DED and DNS ([`Flags`]) |
//! | `ecem_retrieve_correlated_disk`, `.._network` | 5.1 | [`Correlations::correlated_disk`], [`Correlations::correlated_networks`] | a file may have several sockets |
//! | `ecem_check_if_RW_state` | 5.1 | [`Correlations::is_in_rw_state`] | |
//! | kernel module | 5.1 | this library, in the process | user space reports the states; a pair is removed before its descriptor is closed |
//! | disk-to-network splicing | 4 | the crate `evring`: `FileDelivery::Dns` | in user space, in the turn in which the socket has room; the send queue of a connection is its pair, so the table has none |
//! | servers with deferred delivery | 6 | the crate `evring`: `FileDelivery::Ded` | an event loop instead of processes; the table has pairs for what the application reads, at most 256 for each worker, and what exceeds them is delivered at once; files in a send queue need none |
//! | figures 3 and 7 | 2.1, 3.3 | `tests/figures.rs`; `evring/tests/figures.rs` on the simulated machine | 9 and 7 switches, as in the paper; mean response times of 22.5 + 6a and 20 + 4a instead of 23 + 6a and 20 + 4.5a, which do not follow from its schedules (there) |

mod descriptors;
mod event;
mod manager;
mod table;

pub use descriptors::{Correlations, Error, Flags};
pub use event::{Event, EventKind, PairState, Readiness};
pub use manager::{Config, Counters, Delivery, EventManager};
pub use table::{AddError, PairId, PairTable};

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
