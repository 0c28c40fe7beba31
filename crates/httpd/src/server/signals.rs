//! Running until a signal arrives.

use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::server::builder::Builder;
use crate::server::error::Error;
use crate::server::running::Server;

impl Builder {
    /// Starts the server, and stops it at SIGTERM or SIGINT; see [`Server::wait_until_signal`].
    ///
    /// # Errors
    /// Those of [`Builder::start`] and [`Server::wait_until_signal`].
    pub fn run_until_signal(self) -> Result<(), Error> {
        self.start()?.wait_until_signal()
    }
}

impl Server {
    /// Stops the server at SIGTERM or SIGINT, as [`Handle::stop`](crate::Handle::stop) does, and waits until
    /// all connections are closed.
    ///
    /// # Errors
    /// If the signals cannot be handled, or a worker failed.
    pub fn wait_until_signal(self) -> Result<(), Error> {
        let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Error::Signals)?;
        let (stop, control) = (self.handle(), signals.handle());
        let thread = thread::Builder::new().name("signals".to_owned()).spawn(move || {
            if signals.forever().next().is_some() {
                stop.stop();
            }
        });
        let thread = thread.map_err(Error::Thread)?;
        let outcome = self.wait();
        control.close();
        let _ = thread.join();
        outcome.map(drop)
    }
}
