//! A cache that speaks memcached's text protocol.

use std::error::Error;

use clap::Parser;
use examples::{Kv, Listen};

/// A cache that speaks memcached's text protocol
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    listen: Listen,
    /// Memory for values in MiB
    #[arg(long, default_value_t = 64)]
    memory: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    options.listen.serve(Kv::new(options.memory << 20))
}
