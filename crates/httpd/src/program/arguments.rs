//! Command-line flags.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use evring_httpd::{AccessLog, Builder, Config, Options};
use tracing::level_filters::LevelFilter;

use crate::descriptors::{DescriptorBudget, DescriptorDemand};

/// evring's web server: HTTP/1.1 on any event mechanism of Linux
///
/// Serves the files below --root, or evring's page without it. On SIGTERM or SIGINT the server stops
/// accepting, finishes the responses in progress within --shutdown-timeout, and exits. A second
/// signal exits at once.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// List the event mechanisms, with the reason if one is unavailable, and exit
    #[arg(long)]
    pub(crate) list_backends: bool,

    /// Print the list as JSON
    #[arg(long, requires = "list_backends")]
    pub(crate) json: bool,

    /// Log level on standard error (off, error, warn, info, debug, trace); `debug` logs each request
    /// answered with an error
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub(crate) log_level: LevelFilter,

    #[command(flatten)]
    pub(crate) options: Options,
}

impl Arguments {
    /// Returns the descriptors that the flags ask for.
    pub(crate) fn descriptor_demand(&self) -> DescriptorDemand {
        let Options { workers, listen, tls, connections, limits, .. } = &self.options;
        let listen = listen.iter().chain(&tls.redirect_from);
        DescriptorDemand {
            workers: *workers,
            listeners: listen.map(|addresses| addresses.as_slice().len() as u64).sum(),
            connections: connections.max_connections,
            open_files: u32::try_from(limits.max_open_files).unwrap_or(u32::MAX),
        }
    }

    /// Configures the server on `backend`, within `budget`. Setting `reopen` reopens its access log.
    pub(crate) fn server(
        &self,
        backend: &str,
        budget: DescriptorBudget,
        reopen: &Arc<AtomicBool>,
    ) -> Builder {
        let mut options = self.options.clone();
        options.workers = budget.workers;
        options.connections.max_connections = budget.connections;
        options.limits.max_open_files = budget.open_files as usize;
        options.status |= options.root.is_none();
        let log = options.access_log.take().map(AccessLog::from);
        let config = Config::from(&options).with(|c| c.max_file_ops = budget.max_file_ops);
        let server = Builder::from(options).backend(backend).config(config);
        match log {
            Some(mut log) => {
                log.reopen = Arc::clone(reopen);
                server.access_log(log)
            }
            None => server,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_defaults_of_the_library() {
        let arguments = Arguments::parse_from(["httpd"]);
        assert_eq!(format!("{:#?}", arguments.options), format!("{:#?}", Options::default()));
    }
}
