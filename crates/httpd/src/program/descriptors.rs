//! Distribution of the process' file descriptors among workers, connections and files.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::net::SocketAddr;

use evring::process::raise_descriptor_limit;
use evring_httpd::Config;
use tracing::{info, warn};

/// The numbers of sockets that the process got from another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct InheritedSockets {
    /// Number of addresses of a service manager.
    pub(crate) given: usize,
    /// Number of sockets for each address, also of the process before.
    for_address: Vec<usize>,
}

impl InheritedSockets {
    /// Counts the sockets of a service manager, and those of the process before, by their addresses.
    pub(crate) fn new(given: &[SocketAddr], taken_over: &[SocketAddr]) -> Self {
        let count = |all: &[SocketAddr]| -> Vec<usize> {
            let mut counts = HashMap::new();
            all.iter().for_each(|at| *counts.entry(*at).or_default() += 1);
            counts.into_values().collect()
        };
        let given = count(given);
        InheritedSockets {
            given: given.len(),
            for_address: [&given[..], &count(taken_over)].concat(),
        }
    }

    /// Returns the number of sockets that a worker has beside one for each address, if these are shared out.
    pub(crate) fn further(&self, workers: u16) -> u64 {
        let further = |sockets: &usize| (sockets - 1) / usize::from(workers);
        self.for_address.iter().map(further).sum::<usize>() as u64
    }
}

/// The descriptors that the flags ask for.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorDemand {
    pub(crate) workers: u16,
    /// Listening addresses and roots of virtual hosts, per worker.
    pub(crate) listeners: u64,
    pub(crate) inherited: InheritedSockets,
    /// Access logs of virtual hosts.
    pub(crate) host_logs: u64,
    /// Whether there is a listener for metrics.
    pub(crate) has_metrics: bool,
    pub(crate) connections: u32,
    /// Open files per worker that are being sent.
    pub(crate) open_files: u32,
}

/// The descriptors that the limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorBudget {
    pub(crate) workers: u16,
    pub(crate) connections: u32,
    pub(crate) open_files: u32,
    /// File operations in flight per worker.
    pub(crate) max_file_ops: u32,
}

/// The limit is too low for one worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooFewDescriptors {
    limit: u64,
    needed: u64,
}

impl fmt::Display for TooFewDescriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooFewDescriptors { limit, needed } = self;
        write!(
            f,
            "cannot serve with {limit} descriptors, the hard limit of this process (ulimit \
             -Hn): one worker needs {needed}; raise the limit"
        )
    }
}

impl std::error::Error for TooFewDescriptors {}

/// Descriptors that the process opens later, outside the workers: the access log, its replacement when it is reopened,
/// and two more.
const PROCESS_RESERVE: u64 = 4;
/// Descriptors of the access log of a virtual host, with its replacement.
const PER_HOST_LOG: u64 = 2;
/// Descriptors of the listener for metrics: its 256 connections, and its worker. At most an eighth of the limit.
const OF_METRICS: u64 = 256 + 8;
/// Descriptors of a worker other than connections, listeners and files: two event queues with
/// their wake-up descriptors, the root, and a few for connections that are being closed or reset.
const WORKER_RESERVE: u64 = 5 + 3;
/// Minimum number of descriptors for a worker's connections and files.
const MIN_PER_WORKER: u64 = 8;
/// Maximum number of file operations in flight per worker.
const MAX_FILE_OPS: u64 = 256;

/// Returns the number of open descriptors of the process.
pub(crate) fn open_descriptors() -> u64 {
    // Reading the directory takes one itself.
    fs::read_dir("/proc/self/fd").map_or(8, |list| list.count() as u64 - 1)
}

impl DescriptorDemand {
    /// Distributes `limit` descriptors, of which `open` are in use. Files get a quarter of each
    /// worker's descriptors; connections never use that part.
    pub(crate) fn budget(
        &self,
        limit: u64,
        open: u64,
    ) -> Result<DescriptorBudget, TooFewDescriptors> {
        let of_metrics = if self.has_metrics { OF_METRICS.min(limit / 8) } else { 0 };
        let reserve = open + PROCESS_RESERVE + PER_HOST_LOG * self.host_logs + of_metrics;
        let available = limit.saturating_sub(reserve);
        let is_enough = |workers: &u16| {
            available / u64::from(*workers) >= self.fixed(*workers) + MIN_PER_WORKER
        };
        let Some(workers) = (1..=self.workers).rev().find(is_enough) else {
            return Err(TooFewDescriptors {
                limit,
                needed: reserve + self.fixed(1) + MIN_PER_WORKER,
            });
        };
        let per_worker = available / u64::from(workers) - self.fixed(workers);
        let max_files = u64::from(self.open_files) + 2 * MAX_FILE_OPS;
        // Files also get the descriptors that connections do not need.
        let files = (per_worker / 4)
            .max(3)
            .max(per_worker.saturating_sub(self.connections.into()))
            .min(max_files);
        let connections = (per_worker - files).min(self.connections.into());
        // A directory that is listed takes a second descriptor, and so does a look at a sibling of an open file.
        let file_ops = (files / 4).clamp(1, MAX_FILE_OPS);
        let open_files = files.saturating_sub(2 * file_ops).clamp(1, self.open_files.into());
        Ok(DescriptorBudget {
            workers,
            connections: connections as u32,
            open_files: open_files as u32,
            max_file_ops: file_ops as u32,
        })
    }

    /// Returns the number of descriptors of each of so many workers that are not for its connections and files.
    fn fixed(&self, workers: u16) -> u64 {
        WORKER_RESERVE + self.listeners + self.inherited.further(workers)
    }

    /// Raises the limit and distributes this process' descriptors, of which `open` are not those of the new workers.
    /// Logs it if the demand is not met, and until when.
    pub(crate) fn budget_of_process(
        &self,
        open: u64,
        until: &str,
    ) -> Result<DescriptorBudget, TooFewDescriptors> {
        let limit = raise_descriptor_limit();
        let budget = self.budget(limit, open)?;
        let (requested, granted) = (self.connections, budget.connections);
        // At a reload, the limit was enough before.
        let is_significant = granted < requested / 2
            || requested != Config::default().max_connections
            || !until.is_empty();
        let reason =
            format!("the process is limited to {limit} descriptors (ulimit -Hn); raise the limit");
        if granted < requested {
            let message =
                format!("{granted} connections per worker instead of {requested}{until}: {reason}");
            if is_significant { warn!("{message}") } else { info!("{message}") }
        }
        if budget.open_files < self.open_files {
            let (granted, requested) = (budget.open_files, self.open_files);
            info!("{granted} open files per worker instead of {requested}{until}: {reason}");
        }
        if budget.workers < self.workers {
            let (n, requested) = (budget.workers, self.workers);
            let plural = if n == 1 { "" } else { "s" };
            warn!("{n} worker{plural} instead of {requested}{until}: {reason}");
        }
        Ok(budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: DescriptorDemand = DescriptorDemand {
        workers: 1,
        listeners: 1,
        inherited: InheritedSockets { given: 0, for_address: Vec::new() },
        host_logs: 0,
        has_metrics: false,
        connections: 10_000,
        open_files: 1024,
    };

    #[test]
    fn demand_is_met_if_the_limit_allows() {
        let budget = DEMAND.budget(1 << 20, 6).unwrap();
        let full = DescriptorBudget {
            workers: 1,
            connections: 10_000,
            open_files: 1024,
            max_file_ops: 256,
        };
        assert_eq!(budget, full);
        let unlimited = DescriptorDemand { workers: 1024, ..DEMAND }.budget(u64::MAX, 6).unwrap();
        assert_eq!(unlimited, DescriptorBudget { workers: 1024, ..full });
    }

    #[test]
    fn budget_never_exceeds_the_limit() {
        for limit in 0..3000 {
            for (workers, listeners) in [(1, 1), (2, 1), (4, 3), (64, 2)] {
                let demand = DescriptorDemand { workers, listeners, ..DEMAND };
                let Ok(budget) = demand.budget(limit, 6) else {
                    assert!(
                        limit < 6 + PROCESS_RESERVE + WORKER_RESERVE + listeners + MIN_PER_WORKER,
                        "{limit}"
                    );
                    continue;
                };
                let files = u64::from(budget.open_files + 2 * budget.max_file_ops);
                let each = WORKER_RESERVE + listeners + u64::from(budget.connections) + files;
                assert!(
                    6 + PROCESS_RESERVE + u64::from(budget.workers) * each <= limit,
                    "{limit} {budget:?}"
                );
                assert!(budget.workers >= 1 && budget.workers <= workers);
                assert!(u64::from(budget.connections) > MIN_PER_WORKER / 2, "{limit} {budget:?}");
            }
        }
    }

    #[test]
    fn further_sockets_of_fewer_workers_than_requested_were_not_counted() {
        let mut demand = DescriptorDemand { workers: 64, ..DEMAND };
        demand.inherited.for_address = vec![64];
        for limit in 100..2_000 {
            let budget = demand.budget(limit, 6).unwrap();
            let further = (64 - 1) / u64::from(budget.workers);
            let files = u64::from(budget.open_files + 2 * budget.max_file_ops);
            let each = WORKER_RESERVE + 1 + further + u64::from(budget.connections) + files;
            let all = 6 + PROCESS_RESERVE + u64::from(budget.workers) * each;
            assert!(all <= limit, "{limit} {budget:?}");
        }
    }

    #[test]
    fn low_limits_leave_these_many_connections() {
        let connections = |limit| DEMAND.budget(limit, 6).unwrap().connections;
        assert_eq!([40, 64, 128, 512].map(connections), [16, 34, 82, 370]);
        // Each log of a host was opened with a descriptor of the workers.
        let of_host_logs =
            |limit, host_logs| DescriptorDemand { host_logs, ..DEMAND }.budget(limit, 6);
        assert_eq!(of_host_logs(512 + 2 * 500, 500).unwrap().connections, 370);
        assert_eq!(of_host_logs(512, 500).unwrap_err().needed, 6 + 4 + 1000 + 9 + 8);
    }
}
