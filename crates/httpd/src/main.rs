//! The web server as a program.

mod arguments;
mod backends;
mod descriptors;
mod stderr;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use clap::Parser;
use evring_httpd::Server;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use arguments::Arguments;
use stderr::Stderr;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list_backends {
        return backends::list(arguments.json);
    }
    let stderr = match Stderr::start() {
        Ok(stderr) => stderr,
        Err(error) => {
            eprintln!("httpd: the system refused a thread: {error}");
            return ExitCode::FAILURE;
        }
    };
    tracing_subscriber::fmt()
        .with_max_level(arguments.log_level)
        .with_writer(stderr.clone())
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Stderr::take_panics();
    let outcome = serve(&arguments, &stderr);
    if let Err(error) = &outcome {
        stderr.say(&format!("httpd: {error}"));
    }
    stderr.end();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Serves until a signal says stop.
fn serve(arguments: &Arguments, stderr: &Stderr) -> Result<(), Box<dyn std::error::Error>> {
    let mut signals = end_at_second_signal()?;
    let (backend, note) = backends::choose(&arguments.backend)?;
    let reopen = Arc::default();
    for signal in [SIGHUP, SIGUSR1] {
        signal_hook::flag::register(signal, Arc::clone(&reopen))?;
    }
    let share = arguments.wanted().share_here()?;
    let server = arguments.server(&backend, share, &reopen).start()?;
    if let Some(note) = note {
        stderr.say(&note);
    }
    stderr.say(&ready(&server, share.workers));
    let handle = server.handle();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        signals.forever().next();
        info!("stopping; replies under way are sent first, a second signal ends this at once");
        handle.stop();
    })?;
    let reset: u64 = server.wait()?.iter().map(|stats| stats.reset_at_stop).sum();
    if reset > 0 {
        warn!(
            "{reset} connections that waited to be accepted were reset at the stop, as there was no room for \
             them; --max-connections makes room"
        );
    }
    Ok(())
}

/// The line that says that connections are accepted.
fn ready(server: &Server, workers: u16) -> String {
    let addresses: Vec<_> = server.addresses().iter().map(|at| format!("http://{at}")).collect();
    let backend = server.backend();
    format!("listening on {} (backend {backend}, {workers} workers)", addresses.join(" and "))
}

/// Listens to the signals that end the server; the second one ends the process.
fn end_at_second_signal() -> std::io::Result<Signals> {
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal passes by the exit and arms it.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&is_second))?;
        signal_hook::flag::register(signal, Arc::clone(&is_second))?;
    }
    Signals::new([SIGTERM, SIGINT])
}
