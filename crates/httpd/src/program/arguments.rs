//! Command-line flags.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Parser;
use evring_httpd::options::{AccessLog, Addresses, HostOptions, Options};
use evring_httpd::{Builder, Config, Error};
use tracing::level_filters::LevelFilter;

use crate::backends;
use crate::descriptors::{DescriptorBudget, DescriptorDemand, InheritedSockets};
use crate::pid_file::PidFile;
use crate::positions::Positions;

/// The text below the help.
const EXAMPLES: &str = "\
Examples:
  httpd public -p 8000                    serves ./public at http://127.0.0.1:8000
  httpd public --listing --listen :8000   lists directories, for all clients of the network
  httpd public --tls-self-signed          tries TLS on this machine
  httpd --config /etc/httpd.toml          serves by a file of settings
  httpd --config httpd.toml --check-config";

/// evring's web server: HTTP/1.1 on any event mechanism of Linux
///
/// Serves the files below DIR, or evring's page without it. On SIGTERM, SIGINT or SIGQUIT the server stops
/// accepting, finishes the responses in progress within --shutdown-timeout, and exits. A second
/// signal exits at once. SIGHUP reads the settings and certificates again, and reopens the access log. SIGUSR2 starts
/// the program again and passes the sockets on; this process ends with its last connection.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Directory to serve, as --root; without it and without virtual hosts, only evring's page is served
    #[arg(value_name = "DIR", conflicts_with = "root")]
    directory: Option<PathBuf>,

    /// Port to listen on for clients on this machine, as --listen 127.0.0.1:PORT. It has no environment variable
    #[arg(short, long, value_name = "PORT", conflicts_with = "listen", value_parser = port)]
    port: Option<u16>,

    /// File of settings, in TOML: the names of flags without `--`, and their values. Flags and environment variables
    /// (`EVRING_HTTPD_WORKERS` for --workers) take precedence: `--listing=false` turns off what a variable or the file
    /// turns on. Relative paths begin at the working directory. Several values of a variable are lines, and addresses have commas between them:
    /// `EVRING_HTTPD_LISTEN=:80,:8080`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Check the settings and the files that they name, and exit
    #[arg(long)]
    pub(crate) check_config: bool,

    /// List the event mechanisms, with the reason if one is unavailable, and exit
    #[arg(long)]
    pub(crate) list_backends: bool,

    /// Print the list as JSON
    #[arg(long, requires = "list_backends")]
    pub(crate) json: bool,

    /// Where the settings of the file are.
    #[arg(skip)]
    pub(crate) positions: Positions,

    #[command(flatten)]
    options: Options,

    // The next settings are of the process: a program that uses the library sets up its own log and pid file.
    /// Log level on standard error (off, error, warn, info, debug, trace); `debug` logs each request
    /// answered with an error
    #[arg(long, value_name = "LEVEL", default_value = "warn", help_heading = "Logging")]
    pub(crate) log_level: LevelFilter,

    /// File for the number of the process; after SIGUSR2, for that of the successor. Removed at the end, or emptied
    /// if --user may not remove files there.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) pid_file: Option<PathBuf>,
}

/// Parses the number of a port.
fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "expected a number from 0 to 65535".to_owned())
}

impl Arguments {
    /// Sets the virtual hosts.
    pub(crate) fn set_hosts(&mut self, hosts: Vec<HostOptions>) {
        self.options.hosts = hosts;
    }

    /// Returns the options of the server.
    pub(crate) fn into_options(self) -> Options {
        let Arguments { directory, port, mut options, .. } = self;
        options.root = directory.or(options.root);
        if let Some(port) = port {
            options.listen = vec![Addresses::from(SocketAddr::from(([127, 0, 0, 1], port)))];
        }
        options
    }
}

/// The server that the settings ask for.
pub(crate) struct Settings(pub(crate) Options);

impl Settings {
    /// Checks the settings, and the files that they name, without starting a server.
    ///
    /// # Errors
    /// The reason why a server with these settings cannot start, as far as it does not depend on other programs.
    pub(crate) fn check(&self) -> Result<(), Error> {
        backends::choose(&self.0.backend).map_err(Error::Start)?;
        Builder::from(self.0.clone()).check()
    }

    /// Checks that no access log is written to the file with the number of the process, if there is one.
    pub(crate) fn check_logs(&self, pid_file: Option<&Path>) -> io::Result<()> {
        let Some(pid_file) = pid_file else { return Ok(()) };
        let Options { access_log, log_format, hosts, .. } = &self.0;
        let of_server = access_log.clone().and_then(|p| AccessLog::from_setting(p, *log_format));
        let of_hosts = hosts.iter().filter_map(|host| host.access_log.as_ref()?.as_ref());
        let all = of_server.iter().chain(of_hosts);
        PidFile::check_is_none_of(pid_file, all.filter_map(|log| log.path.as_deref()))
    }

    /// Returns the descriptors that the settings ask for, with these inherited sockets.
    pub(crate) fn descriptor_demand(&self, inherited: &InheritedSockets) -> DescriptorDemand {
        let Options { workers, listen, tls, hosts, connections, limits, .. } = &self.0;
        let all = listen.iter().chain(&tls.redirect_from);
        let mut listeners: usize = all.map(|addresses| addresses.as_slice().len()).sum();
        if listen.is_empty() {
            // Those of a service manager, or else one at the default address.
            listeners += inherited.given.max(1);
        }
        let host_logs = hosts.iter().filter_map(|host| host.access_log.as_ref()?.as_ref());
        let host_logs: HashSet<_> = host_logs.filter_map(|log| log.path.as_ref()).collect();
        DescriptorDemand {
            workers: *workers,
            listeners: (listeners + hosts.len()) as u64,
            inherited: inherited.clone(),
            host_logs: host_logs.len() as u64,
            has_metrics: self.0.metrics_listen.is_some(),
            connections: connections.max_connections,
            open_files: u32::try_from(limits.max_open_files).unwrap_or(u32::MAX),
        }
    }

    /// Configures the server on `backend`, within `budget`.
    pub(crate) fn server(&self, backend: &str, budget: DescriptorBudget) -> Builder {
        let mut options = self.0.clone();
        options.workers = budget.workers;
        options.connections.max_connections = budget.connections;
        options.limits.max_open_files = budget.open_files as usize;
        options.status |= options.root.is_none() && options.hosts.is_empty();
        let config = Config::from(&options).with(|c| c.max_file_ops = budget.max_file_ops);
        Builder::from(options).backend(backend).config(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_defaults_of_the_library() {
        let options = Arguments::parse_from(["httpd"]).into_options();
        assert_eq!(format!("{options:#?}"), format!("{:#?}", Options::default()));
    }

    #[test]
    fn each_worker_of_a_successor_had_as_many_listeners_as_there_are_sockets() {
        let settings = |flags: &[&str]| {
            let arguments = ["httpd"].iter().chain(flags);
            Settings(Arguments::parse_from(arguments).into_options())
        };
        let listeners = |flags: &[&str], given: &[SocketAddr], taken_over: &[SocketAddr]| {
            let inherited = InheritedSockets::new(given, taken_over);
            let demand = settings(flags).descriptor_demand(&inherited);
            demand.listeners + inherited.further(demand.workers)
        };
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let addresses = ["--listen", "127.0.0.1:1", "--listen", "127.0.0.1:2"];
        let of_workers: Vec<_> = (0..64).map(|n| at(1 + n % 2)).chain([at(3)]).collect();
        for (workers, expected) in [("32", 2), ("64", 2), ("31", 4), ("16", 4), ("1", 64)] {
            let flags =
                [&addresses[..], &["--metrics-listen", "127.0.0.1:3", "--workers", workers]];
            let flags = flags.concat();
            assert_eq!(listeners(&flags, &[], &of_workers), expected, "{workers} workers");
            assert_eq!(listeners(&flags, &[], &[]), 2);
            // The workers share them.
            assert_eq!(listeners(&flags, &[at(1), at(2)], &[]), 2);
        }
        let of_manager = [at(1), at(2), at(3)];
        assert_eq!(listeners(&["--workers", "8"], &of_manager, &[]), 3, "it listens on all");
        assert_eq!(listeners(&["--workers", "8"], &[], &[]), 1);
        let demand = settings(&[&addresses[..], &["--workers", "32"]].concat());
        let demand = demand.descriptor_demand(&InheritedSockets::new(&[], &of_workers));
        assert_eq!(demand.budget(1024, 10).unwrap().workers, 32, "there were 11");
    }
}
