//! How the descriptors that a process may have are shared out.

use std::fmt;
use std::fs;

use evring_httpd::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// What a server wants to have open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescriptorDemand {
    pub(crate) workers: u16,
    /// Addresses that each worker listens at.
    pub(crate) listeners: u64,
    /// Connections of each worker.
    pub(crate) connections: u32,
    /// Files of each worker that clients take.
    pub(crate) open_files: u32,
}

/// What it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorBudget {
    pub(crate) workers: u16,
    pub(crate) connections: u32,
    pub(crate) open_files: u32,
    /// File work of each worker that is in flight at a time.
    pub(crate) max_file_ops: u32,
}

/// There are too few to serve anybody.
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
            "can't serve with {limit} descriptors, which is the hard limit of this process (ulimit \
             -Hn): a worker needs {needed}; raise the limit"
        )
    }
}

impl std::error::Error for TooFewDescriptors {}

/// What the process opens later beside what the workers have: the access log, and that log anew.
const PROCESS: u64 = 4;
/// What a worker has beside connections, listeners and files: two event queues with what wakes their
/// thread, and its root. Some more are there for connections that are being closed or reset.
const WORKER: u64 = 5 + 3;
/// The fewest descriptors with which a worker is of any use: a few connections, and files.
const MIN_PER_WORKER: u64 = 8;
/// Work on files that a worker does at a time where there is no want of descriptors.
const FILE_WORKS: u64 = 256;

impl DescriptorDemand {
    /// What can be had of `limit` descriptors, of which some are open. A quarter of what a worker
    /// has for itself is for files, and none of that is taken by connections.
    pub(crate) fn share(
        self,
        limit: u64,
        open: u64,
    ) -> Result<DescriptorBudget, TooFewDescriptors> {
        let fixed = WORKER + self.listeners;
        let left = limit.saturating_sub(open + PROCESS);
        let workers = (left / (fixed + MIN_PER_WORKER)).min(self.workers.into());
        if workers == 0 {
            return Err(TooFewDescriptors {
                limit,
                needed: open + PROCESS + fixed + MIN_PER_WORKER,
            });
        }
        let own = left / workers - fixed;
        let wanted_files = u64::from(self.open_files) + 2 * FILE_WORKS;
        // What connections leave over is for files, too.
        let files =
            (own / 4).max(3).max(own.saturating_sub(self.connections.into())).min(wanted_files);
        let connections = (own - files).min(self.connections.into());
        // A list of a directory needs a second one.
        let works = (files / 4).clamp(1, FILE_WORKS);
        let open_files = files.saturating_sub(2 * works).clamp(1, self.open_files.into());
        Ok(DescriptorBudget {
            workers: workers as u16,
            connections: connections as u32,
            open_files: open_files as u32,
            max_file_ops: works as u32,
        })
    }

    /// What this process can have, which is said where it is much less.
    pub(crate) fn share_here(self) -> Result<DescriptorBudget, TooFewDescriptors> {
        let limit = raise();
        // The list itself has one.
        let open = fs::read_dir("/proc/self/fd").map_or(8, |list| list.count() as u64 - 1);
        let share = self.share(limit, open)?;
        let (wanted, had) = (self.connections, share.connections);
        let much = had < wanted / 2 || wanted != Config::default().max_connections;
        if had < wanted {
            let what = format!(
                "{had} connections for each worker instead of {wanted}, as the process may have no \
                 more than {limit} descriptors (ulimit -Hn); raise the limit"
            );
            if much { warn!("{what}") } else { info!("{what}") }
        }
        if share.workers < self.workers {
            let (n, wanted) = (share.workers, self.workers);
            warn!("{n} workers instead of {wanted}, as there are no more than {limit} descriptors");
        }
        Ok(share)
    }
}

/// Lets the process have as many descriptors as it may, and returns how many that is.
fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let limit = if setrlimit(Resource::Nofile, raised).is_ok() { raised } else { limit };
    limit.current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: DescriptorDemand =
        DescriptorDemand { workers: 1, listeners: 1, connections: 10_000, open_files: 1024 };

    #[test]
    fn all_is_had_where_there_is_enough() {
        let share = USUAL.share(1 << 20, 6).unwrap();
        let all = DescriptorBudget {
            workers: 1,
            connections: 10_000,
            open_files: 1024,
            max_file_ops: 256,
        };
        assert_eq!(share, all);
        let unlimited = DescriptorDemand { workers: 1024, ..USUAL }.share(u64::MAX, 6).unwrap();
        assert_eq!(unlimited, DescriptorBudget { workers: 1024, ..all });
    }

    #[test]
    fn no_more_is_shared_out_than_there_is() {
        for limit in 0..3000 {
            for (workers, listeners) in [(1, 1), (2, 1), (4, 3), (64, 2)] {
                let wanted = DescriptorDemand { workers, listeners, ..USUAL };
                let Ok(share) = wanted.share(limit, 6) else {
                    assert!(limit < 6 + PROCESS + WORKER + listeners + MIN_PER_WORKER, "{limit}");
                    continue;
                };
                let files = u64::from(share.open_files + 2 * share.max_file_ops);
                let each = WORKER + listeners + u64::from(share.connections) + files;
                assert!(
                    6 + PROCESS + u64::from(share.workers) * each <= limit,
                    "{limit} {share:?}"
                );
                assert!(share.workers >= 1 && share.workers <= workers);
                assert!(u64::from(share.connections) > MIN_PER_WORKER / 2, "{limit} {share:?}");
            }
        }
    }

    #[test]
    fn few_descriptors_serve_as_many_as_they_can() {
        let had = |limit| USUAL.share(limit, 6).unwrap().connections;
        assert_eq!([40, 64, 128, 512].map(had), [16, 34, 82, 370]);
    }
}
