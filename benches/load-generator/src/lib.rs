//! A load generator for web servers that tells the truth.
//!
//! A [`Generator`] makes the load of a [`Plan`] on any [`Kernel`](shared_ring::Kernel) and counts in
//! a [`Tally`]. In an open loop new work arrives when it is due, whether or not the server has
//! answered what came before, and every time is counted from the moment at which it was due; so a
//! server that stalls is seen to stall (SEND section 4.4, Banga section 7, FlexSC section 6.2.2).
//! In a closed loop each connection asks again when it was answered, which finds the rate that a
//! server can do and hides how long it makes others wait.
//!
//! What this crate does not do: it has no flags and prints nothing (`lab load` does), speaks no
//! TLS and no HTTP/2, and runs in one thread.

mod arrivals;
mod connection;
mod deadlines;
mod generator;
mod plan;
mod reply;
mod session;
mod tally;

pub use arrivals::Arrivals;
pub use generator::Generator;
pub use plan::{Ending, InvalidPlan, Pace, Plan, Slow};
pub use session::{Ask, Session, SessionError, sessions};
pub use tally::{Failed, Failures, Log, Moment, Slice, Stopped, Tally};
