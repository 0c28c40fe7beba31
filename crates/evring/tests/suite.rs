//! The tests of the crate that need no process of their own, in one executable: each file is a module.

mod addresses;
mod admission;
mod buffer_groups;
mod changed_files;
mod closes;
mod cold_files;
mod connections;
mod datagrams;
mod deferred_reads;
mod disk_errors;
mod disk_file;
mod downloader;
mod early_reads;
mod failures;
mod fair_sends;
mod figures;
mod file_operations;
#[cfg(feature = "sandbox")]
#[path = "../../ash-sandbox/tests/generated/mod.rs"]
mod generated;
mod generated_handlers;
mod held_bytes;
mod hung_reads;
mod idle_connections;
mod landing;
mod last_replies;
#[path = "server/listener.rs"]
mod listener;
mod listeners;
mod many_listeners;
#[path = "../../shared-ring/tests/mapped/mod.rs"]
mod mapped;
mod owner;
mod pauses;
mod receive_hook;
mod replies_ok;
mod retire;
mod send_policy;
mod sends_file;
mod server;
mod slow_readers;
mod stops;
mod timers_and_mailboxes;
mod unsent_bytes;
mod waiting_sends;
#[cfg(feature = "flexsc")]
mod workers;
