//! The access logs of a server and its virtual hosts.

use std::collections::HashMap;
use std::io;
use std::iter;

use crate::access_log::AccessLog;
use crate::host_options::HostOptions;
use crate::server::builder::Builder;
use crate::server::error::Error;
use crate::site::host_logs::{HostLogs, LogIndex};
#[cfg(feature = "user")]
use crate::site::log;
use crate::site::log::{LogError, LogSender, LogWriter};
use crate::site::metrics::Metrics;

impl Builder {
    /// Returns the access logs, each once: first that of the server, if it has one.
    pub(super) fn access_logs(&self) -> Vec<AccessLog> {
        let mut logs: Vec<AccessLog> = Vec::new();
        for log in self.log.iter().chain(self.own_logs()) {
            if !logs.iter().any(|other| other.path == log.path) {
                logs.push(log.clone());
            }
        }
        logs
    }

    /// Returns the logs that are not those of the server.
    fn own_logs(&self) -> impl Iterator<Item = &AccessLog> {
        self.hosts.iter().filter_map(|host| host.access_log.as_ref()?.as_ref())
    }

    /// Returns a host whose log has the destination of another one, and another format.
    pub(super) fn host_of_another_format(&self) -> Option<&HostOptions> {
        let mut formats: HashMap<_, _> =
            self.log.iter().map(|log| (&log.path, log.format)).collect();
        self.hosts.iter().find(|host| {
            let own = host.access_log.iter().flatten().next();
            own.is_some_and(|log| *formats.entry(&log.path).or_insert(log.format) != log.format)
        })
    }

    /// Returns whether a host has a log of its own, or none.
    pub(super) fn has_host_logs(&self) -> bool {
        self.hosts.iter().any(|host| host.access_log.is_some())
    }

    /// Returns the log of each host, if a host has one of its own, or none.
    fn host_logs(&self, logs: &[AccessLog]) -> Option<HostLogs> {
        if !self.has_host_logs() {
            return None;
        }
        let index = |of: &AccessLog| {
            let index = logs.iter().position(|log| log.path == of.path);
            index.map(|index| LogIndex(index as u16))
        };
        let first = self.log.as_ref().and_then(index);
        let mut all = HostLogs::new(first);
        for host in &self.hosts {
            let own = host.access_log.as_ref();
            all.add(&host.names, own.map_or(first, |own| own.as_ref().and_then(index)));
        }
        Some(all)
    }

    /// Creates the access logs that do not exist for the user that opens them later, if the server has another one.
    #[cfg(feature = "user")]
    pub(super) fn create_logs(&self) -> Result<(), Error> {
        let Some(user) = &self.user else { return Ok(()) };
        for path in self.access_logs().into_iter().filter_map(|log| log.path) {
            log::create_for(&path, user.uid()).map_err(|error| Error::Log(path, error))?;
        }
        Ok(())
    }

    /// Adds the user to the error of a file that it may not open.
    pub(super) fn with_user(&self, error: io::Error) -> io::Error {
        #[cfg(feature = "user")]
        if let Some(user) = &self.user
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            return io::Error::new(error.kind(), format!("{error}; the user {user} opens it"));
        }
        error
    }

    /// Opens the access logs. Returns what each worker writes to, and their writer, whose drop waits for the senders.
    pub(super) fn start_logs(
        &self,
        metrics: &Metrics,
    ) -> Result<(Vec<Option<LogSender>>, Option<LogWriter>), Error> {
        let logs = self.access_logs();
        if logs.is_empty() {
            return Ok((iter::repeat_with(|| None).take(self.workers.into()).collect(), None));
        }
        let hosts = self.host_logs(&logs);
        let started = LogWriter::start(&logs, hosts, self.workers.into(), &metrics.another());
        let (writer, senders) = started.map_err(|error| match error {
            LogError::Open(path, error) => Error::Log(path, self.with_user(error)),
            LogError::Thread(error) => Error::Thread(error),
        })?;
        Ok((senders.into_iter().map(Some).collect(), Some(writer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::LogFormat;
    use crate::server::running::Server;

    /// Returns a host with a log of its own, none, or that of the server.
    fn host(name: &str, access_log: Option<Option<AccessLog>>) -> HostOptions {
        HostOptions { access_log, ..HostOptions::new(name.parse().unwrap(), "/") }
    }

    fn log(path: &str, format: LogFormat) -> AccessLog {
        AccessLog { format, ..AccessLog::from(std::path::PathBuf::from(path)) }
    }

    #[test]
    fn second_format_of_a_file_was_ignored() {
        let [combined, json] =
            [LogFormat::Combined, LogFormat::Json].map(|format| log("/tmp/a.log", format));
        let server = |of_server: &AccessLog, of_hosts: [&AccessLog; 2]| {
            let [a, b] = of_hosts.map(|log| Some(Some(log.clone())));
            let server = Server::builder().access_log(of_server.clone());
            server.host(host("a", a)).host(host("b", b))
        };
        let other = log("/tmp/b.log", LogFormat::Json);
        for (of_server, of_hosts, wrong) in [
            (&combined, [&json, &other], Some("a")),
            (&other, [&json, &combined], Some("b")),
            (&json, [&json, &other], None),
            (&combined, [&other, &other], None),
        ] {
            let host = match server(of_server, of_hosts).check_values() {
                Err(Error::HostConflict(name, _)) => Some(name.to_string()),
                outcome => outcome.map(|()| None).unwrap(),
            };
            assert_eq!(host.as_deref(), wrong, "{of_server:?} {of_hosts:?}");
        }
    }

    #[test]
    fn log_of_one_host_was_counted_as_not_sorted() {
        let memory = |of_server: bool, of_host: Option<Option<AccessLog>>| {
            let server = Server::builder().workers(2).host(host("a", of_host));
            let log = log("/tmp/a.log", LogFormat::Combined);
            let server = if of_server { server.access_log(log) } else { server };
            server.memory_at_full_load()
        };
        let own = Some(Some(log("/tmp/b.log", LogFormat::Combined)));
        let without = memory(false, None);
        for (of_server, of_host, buffers) in [
            (true, None, 2),
            (false, own.clone(), 4),
            (true, own, 4),
            (true, Some(None), 4),
            (false, Some(None), 0),
        ] {
            let with = memory(of_server, of_host.clone());
            assert_eq!(with - without, buffers << 20, "{of_server} {of_host:?}");
        }
    }
}
