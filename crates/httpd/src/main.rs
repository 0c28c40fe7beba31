//! The web server as a program.

mod backends;
mod workers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// A web server that runs on every event mechanism of Linux.
///
/// Serves the files below a directory, or without one a page of its own. Ends on SIGTERM or
/// SIGINT when the replies under way are sent, or after 10 seconds; a second such signal ends it at
/// once.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Directory to serve; without it, a page that is part of the program
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Address and port to listen at; port 0 takes any free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// Event mechanism (select, poll, epoll, epoll-edge, uring, sigio, tokio; see --list-backends); `auto` takes the fastest that can run here
    #[arg(long, value_name = "NAME", default_value = "auto")]
    backend: String,

    /// Threads, each with a listening socket of its own at the same address
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,

    /// List the event mechanisms, and why some can't run here, then exit
    #[arg(long)]
    list_backends: bool,

    /// With --list-backends: as JSON
    #[arg(long, requires = "list_backends")]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list_backends {
        return backends::list(arguments.json);
    }
    match workers::serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("httpd: {error}");
            ExitCode::FAILURE
        }
    }
}
