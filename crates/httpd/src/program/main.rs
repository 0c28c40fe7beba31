//! The program `httpd`.

mod advice;
mod arguments;
mod backends;
mod descriptors;
mod settings;
mod stderr;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use evring_httpd::evring_tls::Certificates;
use evring_httpd::{Builder, Server};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};

use arguments::Settings;
use stderr::Stderr;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let arguments = match settings::parse(&arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("httpd: {error}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.list_backends {
        return backends::list(arguments.json);
    }
    let stderr = match Stderr::start() {
        Ok(stderr) => stderr,
        Err(error) => {
            eprintln!("httpd: cannot start the log thread: {error}");
            return ExitCode::FAILURE;
        }
    };
    tracing_subscriber::fmt()
        .with_max_level(arguments.log_level)
        .with_writer(stderr.clone())
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Stderr::log_panics();
    let (is_check, drain_delay) = (arguments.check_config, arguments.drain_delay);
    let settings = Settings(arguments.into_options());
    let outcome = match is_check {
        true => check(&settings, &stderr),
        false => serve(&settings, drain_delay, &stderr),
    };
    if let Err(error) = &outcome {
        stderr.print(&format!("httpd: {error}"));
    }
    stderr.flush();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks the files that the settings name.
fn check(settings: &Settings, stderr: &Stderr) -> Result<(), Box<dyn std::error::Error>> {
    Builder::from(settings.0.clone()).check()?;
    stderr.print("the settings are valid");
    Ok(())
}

/// Serves until a signal arrives.
fn serve(
    settings: &Settings,
    drain_delay: Duration,
    stderr: &Stderr,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut signals = exit_at_second_signal()?;
    let (backend, note) = backends::choose(&settings.0.backend)?;
    let reopen = Arc::default();
    for signal in [SIGHUP, SIGUSR1] {
        signal_hook::flag::register(signal, Arc::clone(&reopen))?;
    }
    let budget = settings.descriptor_demand().budget_of_process()?;
    let server = settings.server(&backend, budget, &reopen).start();
    let server = server.map_err(advice::with_advice)?;
    advice::warn_of_directory(&settings.0);
    if let Some(note) = note {
        stderr.print(&note);
    }
    stderr.print(&ready_line(&server, budget.workers));
    for at in server.metrics_addresses() {
        info!("metrics at http://{at}/metrics");
    }
    if let Some(certificates) = server.certificates() {
        reload_at_hangup(certificates)?;
    }
    let handle = server.handle();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        signals.forever().next();
        handle.drain();
        thread::sleep(drain_delay);
        info!("shutting down: finishing the responses in progress; a second signal exits at once");
        handle.stop();
    })?;
    let reset: u64 = server.wait()?.iter().map(|stats| stats.reset_at_stop).sum();
    if reset > 0 {
        warn!(
            "{reset} connections in the listen queue were reset at shutdown: no room for them; raise \
             --max-connections"
        );
    }
    Ok(())
}

/// Returns the message that connections are accepted.
fn ready_line(server: &Server, workers: u16) -> String {
    let url = |at| format!("{}://{at}", server.scheme());
    let addresses: Vec<_> = server.addresses().iter().map(url).collect();
    let (backend, plural) = (server.backend(), if workers == 1 { "" } else { "s" });
    format!(
        "listening on {} (backend {backend}, {workers} worker{plural})",
        addresses.join(" and ")
    )
}

/// Reads the certificates again at SIGHUP. If they cannot be used, the old ones stay.
fn reload_at_hangup(certificates: Arc<Certificates>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGHUP])?;
    thread::Builder::new().name("certificates".to_owned()).spawn(move || {
        for _ in signals.forever() {
            match certificates.reload() {
                Ok(()) => info!("certificates reloaded"),
                Err(error) => error!("the certificates stay as they were: {error}"),
            }
        }
    })?;
    Ok(())
}

/// Registers the signals that stop the server; the second one exits the process.
fn exit_at_second_signal() -> std::io::Result<Signals> {
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal finds the flag unset, then sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&is_second))?;
        signal_hook::flag::register(signal, Arc::clone(&is_second))?;
    }
    Signals::new([SIGTERM, SIGINT])
}
