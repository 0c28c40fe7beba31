//! Echo server.

use std::error::Error;

use clap::Parser;
use examples::{Echo, Listen};

/// Echo server
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    listen: Listen,
}

fn main() -> Result<(), Box<dyn Error>> {
    Options::parse().listen.serve(Echo)
}
