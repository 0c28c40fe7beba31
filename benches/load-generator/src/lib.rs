//! A load generator for web servers, for open and closed loops.
//!
//! A [`Generator`] runs the load of a [`Plan`] on a [`Kernel`](shared_ring::Kernel) and returns
//! [`Stats`].
//!
//! In an open loop, requests become due at a given rate, whether or not the server keeps up. Each
//! latency runs from when its request was due, so that it includes the time that a stalled server
//! makes requests wait (SEND section 4.4, Banga section 7, FlexSC section 6.2.2).
//!
//! In a closed loop, each client sends its next request after the reply to the last one. This
//! measures the server's maximum rate, but underestimates latency when the server stalls.
//!
//! Not supported: TLS, HTTP/2 and several threads. `lab load` has the command line and the output.

mod arrivals;
mod connection;
mod deadlines;
mod generator;
mod plan;
mod reply;
mod session;
mod stats;

pub use arrivals::Arrivals;
pub use generator::Generator;
pub use plan::{CloseMode, InvalidPlan, LoadModel, Plan, SlowClients};
pub use session::{Request, Session, SessionError, parse_sessions};
pub use stats::{
    ErrorCounts, IntervalStats, RequestError, RequestRecord, RunEvent, Stats, StopReason,
};
