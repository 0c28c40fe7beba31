//! Running a site with any number of worker threads. Each worker has its own mechanism; workers
//! share only handlers and metrics.

pub(crate) mod addresses;
pub(crate) mod builder;
mod check;
pub(crate) mod error;
mod generation;
mod lab;
mod logs;
mod memory;
#[cfg(feature = "sandbox")]
mod modules;
#[cfg(feature = "metrics")]
mod monitor;
pub(crate) mod options;
pub(crate) mod running;
#[cfg(feature = "signals")]
mod signals;
mod socket_list;
mod sockets;
mod start;
mod status;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "user")]
pub(crate) mod user;
mod worker;
