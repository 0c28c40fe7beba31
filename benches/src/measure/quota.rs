//! CPU quotas for servers, by control groups: cgroups(7), versions 1 and 2.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::Failure;

/// The quota of a period, in microseconds: the kernel's minimum, so that a throttled server does not
/// stop for long.
const BUDGET_US: u32 = 1_000;
/// The period of a quota shared by several cores, in microseconds. The kernel allocates it to a core
/// in slices of 5 ms (`sched_cfs_bandwidth_slice_us`): with less than two slices, one core could get
/// the whole quota.
const SLICED_PERIOD_US: u32 = 50_000;

/// A control group whose processes share part of a core. Dropping it kills them and removes it.
#[derive(Debug)]
pub(crate) struct Quota(PathBuf);

impl Quota {
    /// Creates a group with `percent` of a core, with the shortest possible periods.
    pub(crate) fn new(percent: u32) -> Result<Self, Failure> {
        Quota::of(percent, BUDGET_US, BUDGET_US * 100 / percent.clamp(1, 100))
    }

    /// Creates a group with `percent` of a core, with periods that several cores can share.
    pub(crate) fn in_slices(percent: u32) -> Result<Self, Failure> {
        Quota::of(percent, SLICED_PERIOD_US / 100 * percent, SLICED_PERIOD_US)
    }

    fn of(percent: u32, budget_us: u32, period_us: u32) -> Result<Self, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        for parent in parents(&mounts, &own) {
            let group = parent.join(format!("lab-{}-{number}-{percent}", std::process::id()));
            if fs::create_dir(&group).is_err() {
                continue;
            }
            let quota = Quota(group);
            if quota.set(budget_us, period_us).is_ok() {
                return Ok(quota);
            }
        }
        Err(Failure::Run(
            "cannot create a control group with a CPU quota (cgroups(7)); run the experiment as root"
                .to_owned(),
        ))
    }

    fn set(&self, budget_us: u32, period_us: u32) -> io::Result<()> {
        let one = self.0.join("cpu.max");
        if one.exists() {
            return fs::write(one, format!("{budget_us} {period_us}"));
        }
        fs::write(self.0.join("cpu.cfs_period_us"), period_us.to_string())?;
        fs::write(self.0.join("cpu.cfs_quota_us"), budget_us.to_string())
    }

    /// Returns its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Kills the remaining processes of a group, such as workers of a killed server, and removes it.
fn remove(group: &Path) {
    for _ in 0..100 {
        let remaining = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let remaining = remaining.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?));
        for process in remaining {
            let _ = kill_process(process, Signal::KILL);
        }
        if fs::remove_dir(group).is_ok() || !group.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Removes the groups of this process, when a signal ends it.
pub(crate) fn remove_all() {
    let own_prefix = format!("lab-{}-", std::process::id());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for entry in
        parents(&mounts, &own).iter().filter_map(|parent| fs::read_dir(parent).ok()).flatten()
    {
        let Ok(entry) = entry else { continue };
        if entry.file_name().to_string_lossy().starts_with(&own_prefix) {
            remove(&entry.path());
        }
    }
}

/// Moves this process into the group at a directory.
pub(crate) fn join(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

/// Returns possible parents of a new group: this process's group and its ancestors, nearest first, in
/// each hierarchy that may have the controller.
fn parents(mounts: &str, own: &str) -> Vec<PathBuf> {
    let mut parents = Vec::new();
    for mount in mounts.lines() {
        // `36 35 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu`
        let Some((before, after)) = mount.split_once(" - ") else { continue };
        let (before, after): (Vec<_>, Vec<_>) =
            (before.split(' ').collect(), after.split(' ').collect());
        let (Some(root), Some(point)) = (before.get(3), before.get(4)) else { continue };
        let kind = after.first().copied().unwrap_or("");
        let has_cpu = after.last().is_some_and(|options| options.split(',').any(|o| o == "cpu"));
        let group = match kind {
            "cgroup2" => own.lines().find_map(|line| line.strip_prefix("0::")),
            "cgroup" if has_cpu => own.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                controllers.split(',').any(|c| c == "cpu").then_some(path)
            }),
            _ => continue,
        };
        let group = group.unwrap_or("/");
        let inside = group.strip_prefix(root.trim_end_matches('/')).unwrap_or(group);
        let nearest = Path::new(point).join(inside.trim_start_matches('/'));
        let around = nearest.ancestors().take_while(|a| a.starts_with(point));
        parents.extend(around.map(Path::to_owned));
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_found_nearest_first() {
        let one = "35 28 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = parents(one, "0::/user.slice/shell\n");
        let expected = ["/sys/fs/cgroup/user.slice/shell", "/sys/fs/cgroup/user.slice"];
        assert_eq!(found[..2], expected.map(PathBuf::from));
        assert_eq!(found[2..], [PathBuf::from("/sys/fs/cgroup")]);
        let two = "36 35 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                   37 35 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let found = parents(two, "3:memory:/a\n2:cpu,cpuacct:/b\n");
        assert_eq!(found[0], PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/b"));
        assert_eq!(found.len(), 2);
    }
}
