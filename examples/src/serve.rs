//! Options and start of the programs in this package.

use std::error::Error;
use std::net::SocketAddr;

use clap::Args;
use evring::process::stop_at_signals;
use evring::{AnyMechanism, Application, Config};

/// Listen address and mechanism.
#[derive(Args, Clone, Debug)]
pub struct Listen {
    /// Address to listen on; port 0 selects a free port
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Event mechanism; `auto` selects uring, else epoll, else another one that can run
    #[arg(long, default_value = "auto")]
    backend: String,
}

impl Listen {
    /// Runs `app` until SIGINT or SIGTERM, and prints the addresses once the server listens.
    ///
    /// # Errors
    /// Fails if the server cannot start or its kernel fails.
    pub fn serve(self, app: impl Application + 'static) -> Result<(), Box<dyn Error>> {
        self.serve_with(Config::default(), app)
    }

    /// Like [`serve`](Self::serve), with a configuration whose addresses are replaced.
    ///
    /// # Errors
    /// Fails if the server cannot start or its kernel fails.
    pub fn serve_with(
        self,
        config: Config,
        app: impl Application + 'static,
    ) -> Result<(), Box<dyn Error>> {
        let config = config.with(|c| c.listen = vec![self.listen]);
        let mechanism = AnyMechanism::new(&self.backend, &config)?;
        stop_at_signals(vec![mechanism.remote()])?;
        for address in mechanism.addresses() {
            println!("listening on {address} (backend {})", mechanism.name());
        }
        mechanism.run(app)?;
        Ok(())
    }
}
