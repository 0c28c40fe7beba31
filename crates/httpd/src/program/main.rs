//! The program `httpd`.

mod advice;
mod arguments;
mod arrivals;
mod backends;
mod descriptors;
mod end;
mod hosts;
mod pid_file;
mod positions;
mod reload;
mod settings;
mod stderr;
mod successor;
mod table;
mod threads;

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use evring_httpd::evring::sockets::ListeningSocket;
use evring_httpd::options::Options;
use evring_httpd::{Error, Handle};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use arguments::Settings;
use descriptors::{InheritedSockets, open_descriptors};
use end::End;
use pid_file::PidFile;
use positions::Positions;
use reload::Reload;
use stderr::Stderr;
use successor::Inheritance;

fn main() -> ExitCode {
    settings::trim_variables();
    let inheritance = Inheritance::take();
    let command_line: Vec<_> = std::env::args_os().collect();
    let mut arguments = match settings::parse(&command_line) {
        Ok(arguments) => arguments,
        Err(error) => return error.report(),
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
    let (filter, log_level) = tracing_subscriber::reload::Layer::new(arguments.log_level);
    let format = tracing_subscriber::fmt::layer()
        .with_writer(stderr.clone())
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry().with(filter).with(format).init();
    Stderr::log_panics();
    let is_check = arguments.check_config;
    let pid_file = arguments.pid_file.clone();
    settings::warn_of_variables();
    let positions = std::mem::take(&mut arguments.positions);
    let settings = Settings(arguments.into_options());
    let reload = Reload {
        arguments: command_line,
        inherited: InheritedSockets::default(),
        open: 0,
        log_level,
        pid_file: pid_file.clone(),
        user: settings.0.user.clone(),
        end: Arc::default(),
        timeout: settings.0.connections.reload_timeout,
        status: String::new(),
    };
    let outcome = match is_check {
        true => check(&settings, pid_file.as_deref(), &positions, &stderr),
        false => inheritance.map_err(Into::into).and_then(|inherited| {
            serve(settings, pid_file, &positions, inherited, reload, &stderr)
        }),
    };
    if let Err(error) = &outcome {
        stderr.print(&format!("httpd: {error}"));
    }
    stderr.flush();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks the settings, and the files that they name.
fn check(
    settings: &Settings,
    pid_file: Option<&Path>,
    positions: &Positions,
    stderr: &Stderr,
) -> Result<(), Box<dyn std::error::Error>> {
    settings
        .check()
        .map_err(|error| positions.locate(&error, advice::with_advice(&error, &settings.0)))?;
    let user = settings.0.user.as_ref();
    let checked = settings
        .check_logs(pid_file)
        .and_then(|()| pid_file.map_or(Ok(()), |path| PidFile::check(path, user)));
    checked.map_err(|error| positions.locate_setting("pid-file", error))?;
    advice::warn_of_unused(&settings.0);
    stderr.print("the settings are valid");
    Ok(())
}

/// Serves until a signal arrives.
fn serve(
    settings: Settings,
    pid_file: Option<PathBuf>,
    positions: &Positions,
    mut inherited: Inheritance,
    mut reload: Reload,
    stderr: &Stderr,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut signals = exit_at_second_signal(&reload.end)?;
    // A file of logs at its maximum size is an error of its writer, not the end of the process (setrlimit(2)).
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    let reload_signals = Reload::signals()?;
    let successor_signals = Signals::new([SIGUSR2])?;
    let located = |error: Error, options: &Options| {
        positions.locate(&error, advice::with_advice(&error, options))
    };
    let (backend, note) = backends::choose(&settings.0.backend)
        .map_err(|error| located(Error::Start(error), &settings.0))?;
    let sockets = std::mem::take(&mut inherited.sockets);
    let taken_over = std::mem::take(&mut inherited.taken_over);
    let is_successor = inherited.is_successor();
    // Descriptors from the process before: they become the workers' listeners, which are counted there, or are closed.
    let of_process_before = taken_over.len() + usize::from(is_successor);
    reload.open = open_descriptors().saturating_sub(of_process_before as u64);
    let [given, before] = [&sockets, &taken_over]
        .map(|sockets| sockets.iter().map(ListeningSocket::address).collect::<Vec<_>>());
    reload.inherited = InheritedSockets::new(&given, &before);
    let demand = settings.descriptor_demand(&reload.inherited);
    let budget = demand.budget_of_process(reload.open, "")?;
    let user = settings.0.user.as_ref();
    let pid_file = settings
        .check_logs(pid_file.as_deref())
        .and_then(|()| pid_file.map(|path| PidFile::open(&path, user, is_successor)).transpose());
    let pid_file = pid_file.map_err(|error| positions.locate_setting("pid-file", error))?;
    if let Some(file) = &pid_file {
        file.remove_at_second_signal();
    }
    let server = settings.server(&backend, budget).inherit(sockets).take_over(taken_over).start();
    let server = server.map_err(|error| located(error, &settings.0))?;
    stderr.count_at(server.handle());
    advice::warn_of_directory(&settings.0);
    advice::warn_of_unused(&settings.0);
    if let Some(note) = note {
        stderr.print(&note);
    }
    if let Some(file) = &pid_file {
        file.write()?;
    }
    let ready = ready_line(&server.handle(), budget.workers);
    stderr.print(&ready);
    reload.status.clone_from(&ready);
    notify_manager(&[NotifyState::Ready, NotifyState::Status(&ready)]);
    inherited.report_ready()?;
    let end = Arc::clone(&reload.end);
    start_successor_at_signal(successor_signals, server.handle(), given, Arc::clone(&end))?;
    for at in server.metrics_addresses() {
        info!("metrics at http://{at}/metrics");
    }
    reload.clone().at_signals(reload_signals, server.handle())?;
    let handle = server.handle();
    threads::start("signals", move || {
        // The first signal may have arrived before `signals` existed.
        if !end.is_stopping() {
            signals.forever().next();
        }
        if end.has_successor() {
            // The service does not stop, and the successor has the sockets.
            handle.retire();
        } else {
            handle.drain();
            notify_manager(&[NotifyState::Stopping]);
            thread::sleep(handle.drain_delay());
        }
        info!("shutting down: finishing the responses in progress; a second signal exits at once");
        handle.stop();
    })?;
    let stats = server.wait()?;
    let cut: u64 = stats.iter().map(|stats| stats.cut_at_stop).sum();
    if cut > 0 {
        warn!(
            "connections cut at shutdown: {cut}; what they received or sent did not end in time; raise \
             --shutdown-timeout"
        );
    }
    let reset: u64 = stats.iter().map(|stats| stats.reset_at_stop).sum();
    if reset > 0 {
        warn!(
            "{reset} connections in the listen queue were reset at shutdown: no room for them; raise \
             --max-connections"
        );
    }
    Ok(())
}

/// Time for the service manager to take a message if its queue is full.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// Tells the service manager, if the process has one, what it does (sd_notify(3)).
fn notify_manager(states: &[NotifyState<'_>]) {
    let send = |manager: io::Result<unix::net::SocketAddr>| {
        let message: String = states.iter().map(|state| format!("{state}\n")).collect();
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(NOTIFY_TIMEOUT))?;
        let manager = manager?;
        loop {
            match socket.send_to_addr(message.as_bytes(), &manager) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    break Err(io::Error::other("it reads no messages"));
                }
                sent => break sent.map(drop),
            }
        }
    };
    // The crate takes an abstract address for a path, and waits without limit.
    let notified = match std::env::var_os("NOTIFY_SOCKET").as_deref().map(OsStr::as_bytes) {
        Some([b'@', name @ ..]) => send(unix::net::SocketAddr::from_abstract_name(name)),
        Some(path @ [b'/', ..]) => {
            send(unix::net::SocketAddr::from_pathname(OsStr::from_bytes(path)))
        }
        _ => sd_notify::notify(states),
    };
    if let Err(error) = notified {
        warn!("cannot notify the service manager: {error}");
    }
}

/// Returns the message that connections are accepted.
fn ready_line(server: &Handle, workers: u16) -> String {
    let url = |at| format!("{}://{at}", server.scheme());
    let mut addresses: Vec<_> = server.addresses().iter().map(url).collect();
    let redirecting = server.redirecting_addresses();
    addresses.extend(redirecting.iter().map(|at| format!("http://{at}")));
    let redirects = match redirecting.len() {
        0 => "",
        1 => ", which redirects to https",
        _ => ", which redirect to https",
    };
    let (backend, plural) = (server.backend(), if workers == 1 { "" } else { "s" });
    format!(
        "listening on {}{redirects} (backend {backend}, {workers} worker{plural})",
        addresses.join(" and ")
    )
}

/// Starts a successor at SIGUSR2. When it listens, the server ends with its last connection.
fn start_successor_at_signal(
    mut signals: Signals,
    handle: Handle,
    given: Vec<SocketAddr>,
    end: Arc<End>,
) -> Result<(), evring_httpd::Error> {
    threads::start("successor", move || {
        for _ in signals.forever() {
            match successor::start(&handle, &given, &end) {
                Ok(successor) => {
                    // The service manager knows it before this process can end.
                    let number = successor.as_raw_pid().unsigned_abs();
                    notify_manager(&[NotifyState::MainPid(number)]);
                    break;
                }
                Err(error) => {
                    pid_file::restore();
                    error!("no successor, this process continues: {error}");
                }
            }
        }
        handle.retire();
        info!("another process serves; finishing the responses in progress");
    })
}

/// Signals that stop the server.
const STOP: [i32; 3] = [SIGTERM, SIGINT, SIGQUIT];

/// Registers the signals that stop the server; the second one exits the process.
fn exit_at_second_signal(end: &Arc<End>) -> io::Result<Signals> {
    for signal in STOP {
        let end = Arc::clone(end);
        let exit_if_second = move || {
            if !end.stop() {
                pid_file::remove();
                signal_hook::low_level::exit(1);
            }
        };
        // SAFETY: the action uses atomics, makes system calls, and ends the process by _exit(2). It allocates and locks
        // nothing, and does not panic (signal-safety(7)).
        unsafe { signal_hook::low_level::register(signal, exit_if_second) }?;
    }
    Signals::new(STOP)
}
