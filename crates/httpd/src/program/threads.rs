//! Starts the threads of the program that wait for signals.

use std::thread;

use evring_httpd::Error;

/// Starts a thread.
///
/// # Errors
/// If the kernel refuses another thread.
pub(crate) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map(drop).map_err(Error::Thread)
}
