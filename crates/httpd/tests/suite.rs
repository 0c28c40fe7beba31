//! The tests of the library over sockets, in one executable: each file is a module.

mod backends;
mod basic_auth;
mod cases;
mod compression;
mod content;
mod downloads;
mod file_delivery;
mod hostile;
mod library;
mod monitor;
mod routing;
mod serving;
#[cfg(feature = "signals")]
mod signals;
mod stage;
mod streams;
#[cfg(feature = "tower")]
mod tower;
mod upgrade_to_protocol;
mod waiting;
