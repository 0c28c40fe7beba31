//! Part of a core for a server, by a control group: cgroups(7), in both versions.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// What is given out at a time, in microseconds: the least that the kernel takes, so that a server
/// that has used it up does not stop for long.
const BUDGET_US: u32 = 1_000;

/// A control group whose processes have part of a core together. It is removed when dropped, when
/// they have ended.
#[derive(Debug)]
pub(crate) struct Quota(PathBuf);

impl Quota {
    /// Makes a group that has `percent` of a core.
    pub(crate) fn new(percent: u32) -> Result<Self, Failure> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let period_us = BUDGET_US * 100 / percent.clamp(1, 100);
        for parent in parents(&mounts, &own) {
            let group = parent.join(format!("lab-{}-{percent}", std::process::id()));
            if fs::create_dir(&group).is_err() {
                continue;
            }
            let quota = Quota(group);
            if quota.set(period_us).is_ok() {
                return Ok(quota);
            }
        }
        Err(Failure::Run(
            "no control group with a share of the processor can be made here (cgroups(7)); as root \
             it can"
                .to_owned(),
        ))
    }

    fn set(&self, period_us: u32) -> io::Result<()> {
        let one = self.0.join("cpu.max");
        if one.exists() {
            return fs::write(one, format!("{BUDGET_US} {period_us}"));
        }
        fs::write(self.0.join("cpu.cfs_period_us"), period_us.to_string())?;
        fs::write(self.0.join("cpu.cfs_quota_us"), BUDGET_US.to_string())
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
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
