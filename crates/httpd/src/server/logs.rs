//! The access logs of a server and its virtual hosts.

use std::iter;

use crate::access_log::AccessLog;
use crate::server::builder::Builder;
use crate::server::error::Error;
use crate::site::host_logs::{HostLogs, LogIndex};
use crate::site::log::{LogSender, LogWriter};
use crate::site::metrics::Metrics;

impl Builder {
    /// Returns the access logs, each once: first that of the server, if it has one.
    pub(super) fn access_logs(&self) -> Vec<AccessLog> {
        let mut logs: Vec<AccessLog> = Vec::new();
        for log in
            self.log.iter().chain(self.hosts.iter().filter_map(|host| host.access_log.as_ref()))
        {
            if !logs.iter().any(|other| other.path == log.path) {
                logs.push(log.clone());
            }
        }
        logs
    }

    /// Returns the log of each host, if a host has one of its own.
    fn host_logs(&self, logs: &[AccessLog]) -> Option<HostLogs> {
        self.hosts.iter().find(|host| host.access_log.is_some())?;
        let index = |of: &AccessLog| {
            let index = logs.iter().position(|log| log.path == of.path);
            index.map(|index| LogIndex(index as u16))
        };
        let first = self.log.as_ref().and_then(index);
        let mut all = HostLogs::new(first);
        for host in &self.hosts {
            let own = host.access_log.as_ref();
            all.add(&host.names, own.map_or(first, index));
        }
        Some(all)
    }

    /// Opens the access logs. Returns their writer, and what each worker writes to.
    pub(super) fn start_logs(
        &self,
        metrics: &Metrics,
    ) -> Result<(Option<LogWriter>, Vec<Option<LogSender>>), Error> {
        let logs = self.access_logs();
        if logs.is_empty() {
            return Ok((None, iter::repeat_with(|| None).take(self.workers.into()).collect()));
        }
        let hosts = self.host_logs(&logs);
        let started = LogWriter::start(&logs, hosts, self.workers.into(), &metrics.another());
        let (writer, senders) = started.map_err(|(path, error)| Error::Log(path, error))?;
        Ok((Some(writer), senders.into_iter().map(Some).collect()))
    }
}
