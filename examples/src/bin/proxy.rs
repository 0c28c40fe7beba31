//! TCP proxy in front of one server.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use examples::{Listen, Proxy, Timeouts};

/// TCP proxy in front of one server
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    listen: Listen,
    /// Address of the upstream server
    #[arg(long)]
    upstream: SocketAddr,
    /// Connect to the upstream server only when the client has sent bytes
    #[arg(long)]
    connect_late: bool,
    /// Timeout for the connect to the upstream server, in seconds
    #[arg(long, default_value_t = Timeouts::default().connect.as_secs())]
    connect_timeout: u64,
    /// Close a pair of connections that moves no bytes for this many seconds
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
