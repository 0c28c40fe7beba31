//! The tests that start the program, in one executable: each file is a module.

mod access_log;
mod authority;
mod bounds;
mod downloads;
mod hosts;
mod messages;
mod program;
mod regressions;
mod reload;
mod reload_of_program;
mod sandbox;
mod sent_bytes;
mod service_manager;
mod serving;
mod settings;
mod stage;
mod successor;
mod successor_whole;
mod tls;
mod tls_bounds;
mod tls_certificates;
mod tls_downloads;
mod tls_settings;
mod user;
mod wrong_settings;
