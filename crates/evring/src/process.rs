//! What the program of a server sets for its process.

#[cfg(feature = "signals")]
use std::io;
#[cfg(feature = "signals")]
use std::sync::Arc;
#[cfg(feature = "signals")]
use std::sync::atomic::AtomicBool;
#[cfg(feature = "signals")]
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
#[cfg(feature = "signals")]
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
    iterator::Signals,
};

#[cfg(feature = "signals")]
use crate::RemoteHandle;

/// Raises the limit of open descriptors to the hard limit (setrlimit(2)). Returns the limit.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let limit = if setrlimit(Resource::Nofile, raised).is_ok() { raised } else { limit };
    limit.current.unwrap_or(u64::MAX)
}

/// Calls [`RemoteHandle::stop`] of each server at the first SIGINT or SIGTERM. At the second one the process ends, by the
/// signal's default action. This lasts as long as the process: a thread waits for the signals.
///
/// # Errors
/// The signals cannot be handled, or the thread cannot be started.
#[cfg(feature = "signals")]
pub fn stop_at_signals(servers: Vec<RemoteHandle>) -> io::Result<()> {
    const STOP: [i32; 2] = [SIGTERM, SIGINT];
    let has_arrived = Arc::new(AtomicBool::new(false));
    for signal in STOP {
        // Actions run in the order of their registration: the first signal finds the flag clear.
        flag::register_conditional_default(signal, has_arrived.clone())?;
        flag::register(signal, has_arrived.clone())?;
    }
    let mut signals = Signals::new(STOP)?;
    let stop = move || signals.forever().for_each(|_| servers.iter().for_each(RemoteHandle::stop));
    thread::Builder::new().name("signals".to_owned()).spawn(stop).map(drop)
}
