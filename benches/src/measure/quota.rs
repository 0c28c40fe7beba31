//! Part of a core for a server, by a control group: cgroups(7), in both versions.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::Failure;

/// What is given out at a time, in microseconds: the least that the kernel takes, so that a server
/// that has used it up does not stop for long.
const BUDGET_US: u32 = 1_000;
/// For how long each part is given out where several cores share it, in microseconds. The kernel
/// hands it to a core in slices of 5 ms (`sched_cfs_bandwidth_slice_us`): of less than two slices
/// one core would get all.
const SLICED_PERIOD_US: u32 = 50_000;

/// A control group whose processes have part of a core together. It is removed when dropped, when
/// they have ended.
#[derive(Debug)]
pub(crate) struct Quota(PathBuf);

impl Quota {
    /// Makes a group that has `percent` of a core, in pieces as small as can be.
    pub(crate) fn new(percent: u32) -> Result<Self, Failure> {
        Quota::of(percent, BUDGET_US, BUDGET_US * 100 / percent.clamp(1, 100))
    }

    /// The same in pieces that several cores can share.
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
            "no control group with a share of the processor can be made here (cgroups(7)); as root \
             it can"
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

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes a group. Who is left in it, such as the workers of a server that was killed, is ended.
fn remove(group: &Path) {
    for _ in 0..100 {
        let left = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let left = left.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?));
        for process in left {
            let _ = kill_process(process, Signal::KILL);
        }
        if fs::remove_dir(group).is_ok() || !group.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Removes the groups that this process has made, for when it is ended by a signal.
pub(crate) fn remove_all() {
    let mine = format!("lab-{}-", std::process::id());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for entry in
        parents(&mounts, &own).iter().filter_map(|parent| fs::read_dir(parent).ok()).flatten()
    {
        let Ok(entry) = entry else { continue };
        if entry.file_name().to_string_lossy().starts_with(&mine) {
            remove(&entry.path());
        }
    }
}

/// Moves this process into the group of a directory.
pub(crate) fn join(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

/// Where a group might be made: in this process's own group or in those around it, nearest first,
/// in each hierarchy that may have the controller.
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
    fn groups_are_looked_for_from_the_inside_out() {
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
