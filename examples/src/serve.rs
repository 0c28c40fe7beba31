//! What the programs of this package have in common.

use std::error::Error;
use std::net::SocketAddr;

use clap::Args;
use evring::{AnyMechanism, Application, Config};

/// Where to listen and on which mechanism.
#[derive(Args, Clone, Debug)]
pub struct Listen {
    /// Address to listen at; port 0 takes any free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Event mechanism; `auto` takes the best one here
    #[arg(long, default_value = "auto")]
    backend: String,
}

impl Listen {
    /// Serves `app`; prints where, once connections are taken.
    ///
    /// # Errors
    /// When it can't start or can't go on.
    pub fn serve(self, app: impl Application + 'static) -> Result<(), Box<dyn Error>> {
        self.serve_with(Config::default(), app)
    }

    /// The same with a configuration, but for the addresses.
    ///
    /// # Errors
    /// When it can't start or can't go on.
    pub fn serve_with(
        self,
        config: Config,
        app: impl Application + 'static,
    ) -> Result<(), Box<dyn Error>> {
        let config = Config { listen: vec![self.listen], ..config };
        let mechanism = AnyMechanism::new(&self.backend, &config)?;
        for address in mechanism.addresses() {
            println!("listening on {address} (backend {})", mechanism.name());
        }
        mechanism.run(app)?;
        Ok(())
    }
}
