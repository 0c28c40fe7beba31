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
        // A signal during the start stops the server, too.
        let signals = stop_signals()?;
        self.start()?.wait_until(signals)
    }
}

impl Server {
    /// Stops the server at SIGTERM or SIGINT, as [`Handle::drain`](crate::Handle::drain) and, after
    /// [`Builder::drain_delay`], [`Handle::stop`](crate::Handle::stop) do, and waits until all connections are closed.
    ///
    /// # Errors
    /// If the signals cannot be handled, or a worker failed.
    pub fn wait_until_signal(self) -> Result<(), Error> {
        let signals = stop_signals()?;
        self.wait_until(signals)
    }

    fn wait_until(self, mut signals: Signals) -> Result<(), Error> {
        let (stop, control) = (self.handle(), signals.handle());
        let thread = thread::Builder::new().name("signals".to_owned()).spawn(move || {
            if signals.forever().next().is_some() {
                stop.drain();
                thread::sleep(stop.drain_delay());
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

fn stop_signals() -> Result<Signals, Error> {
    Signals::new([SIGTERM, SIGINT]).map_err(Error::Signals)
}
