//! The tests that start the program, in one executable: each file is a module.

mod bounds;
mod downloads;
mod hosts;
mod messages;
mod program;
mod regressions;
mod reload;
mod sandbox;
mod sent_bytes;
mod serving;
mod stage;
mod successor;
mod successor_whole;
mod tls;
mod tls_downloads;
mod tls_settings;
mod user;
mod wrong_settings;
