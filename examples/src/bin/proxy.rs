//! Passes connections on to another server.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use examples::{Listen, Proxy, Timeouts};

/// Passes connections on to another server
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    listen: Listen,
    /// The server behind
    #[arg(long)]
    upstream: SocketAddr,
    /// Connect to it only when the client has sent something
    #[arg(long)]
    connect_late: bool,
    /// Seconds for the server behind to take a connection
    #[arg(long, default_value_t = Timeouts::default().connect.as_secs())]
    connect_timeout: u64,
    /// Seconds without any bytes after which a pair of connections is closed
    #[arg(long, default_value_t = Timeouts::default().idle.as_secs())]
    idle_timeout: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let timeouts = Timeouts {
        connect: Duration::from_secs(options.connect_timeout),
        idle: Duration::from_secs(options.idle_timeout),
    };
    let proxy = Proxy::new(options.upstream, timeouts);
    options.listen.serve(if options.connect_late { proxy.connecting_late() } else { proxy })
}
