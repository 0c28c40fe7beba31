//! The analytical model of chapter 7: the time in which an ASH, an upcall, an interrupt or a poll handles
//! a message, and the strategy that takes the least.
//!
//! ```
//! use ash_sandbox::model::{Machine, ProcessState, Strategy, Workload};
//!
//! // The remote increment of table 7-7, on the thesis' machine.
//! let workload = Workload { handler_us: 20.0, sandboxing_factor: 1.25, ..Workload::default() };
//! let best = Machine::AEGIS.recommend(&workload, ProcessState::Blocked);
//! assert_eq!(best, Strategy::Ash);
//! ```
//!
//! A [`Machine`] has the parameters of table 7-2; `cargo lab run ash-model`, in the repository, measures those of
//! this machine, and `cargo lab recommend` prints them as a line that it can be parsed from. A
//! [`Workload`] has those of table 7-3. A [`Governor`] applies the model to a handler while it runs.

mod governor;
mod machine;
mod workload;

pub use governor::Governor;
pub use machine::{Machine, MachineError};
pub use workload::{ProcessState, Strategy, Workload};
