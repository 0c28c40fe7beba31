//! Running until a signal arrives.

use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::server::{Builder, Error};

impl Builder {
    /// Starts the server and stops it at SIGTERM or SIGINT, as [`Handle::stop`](crate::Handle::stop) does.
    /// Returns when all connections are closed.
    ///
    /// # Errors
    /// Those of [`Builder::run`], and if the signals cannot be handled.
    pub fn run_until_signal(self) -> Result<(), Error> {
        let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Error::Signals)?;
        let server = self.start()?;
        let (stop, control) = (server.handle(), signals.handle());
        let thread = thread::Builder::new().name("signals".to_owned()).spawn(move || {
            if signals.forever().next().is_some() {
                stop.stop();
            }
        });
        let thread = thread.map_err(Error::Thread)?;
        let outcome = server.wait();
        control.close();
        let _ = thread.join();
        outcome.map(drop)
    }
}
