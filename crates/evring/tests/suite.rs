//! The tests of the crate that need no process of their own, in one executable: each file is a module.

mod addresses;
mod admission;
mod buffer_groups;
mod changed_files;
mod closes;
mod cold_files;
mod datagrams;
mod deferred_reads;
mod disk_errors;
mod early_reads;
mod figures;
#[cfg(feature = "sandbox")]
#[path = "../../ash-sandbox/tests/generated/mod.rs"]
mod generated;
mod generated_handlers;
mod landing;
#[path = "server/listener.rs"]
mod listener;
#[path = "../../shared-ring/tests/mapped/mod.rs"]
mod mapped;
mod owner;
mod pauses;
mod receive_hook;
mod regressions;
mod retire;
mod send_policy;
mod sends_file;
mod server;
mod slow_readers;
mod timers_and_mailboxes;
mod unsent_bytes;
