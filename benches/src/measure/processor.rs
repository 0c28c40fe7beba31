//! Processors: who runs where, and for how long.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::thread::available_parallelism;
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Where servers under test run.
pub(crate) const SERVER_CORE: usize = 0;
/// Where the load comes from.
pub(crate) const CLIENT_CORE: usize = 1;

/// Keeps this thread, and those it will start, on some cores; on the first where there is but one.
pub(crate) fn pin(cores: &[usize]) -> io::Result<()> {
    let all = available_parallelism()?;
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core % all));
    Ok(sched_setaffinity(None, &set)?)
}

/// The processor time of each thread of some processes in nanoseconds, kernel workers included.
///
/// From schedstat(5), which is exact for a thread that sleeps; measure while the server is idle.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuTime(BTreeMap<u32, u64>);

impl CpuTime {
    /// Reads it for the processes `ids`.
    pub(crate) fn of(ids: &[u32]) -> io::Result<Self> {
        let mut threads = BTreeMap::new();
        for id in ids {
            for entry in fs::read_dir(format!("/proc/{id}/task"))? {
                let entry = entry?;
                let thread = entry.file_name().to_string_lossy().parse().ok();
                // A thread may end between the two reads.
                let text = fs::read_to_string(entry.path().join("schedstat")).ok();
                if let Some((thread, time)) = thread.zip(text.as_deref().and_then(first_field)) {
                    threads.insert(thread, time);
                }
            }
        }
        Ok(CpuTime(threads))
    }

    /// How much was spent since `before`. What threads spent that have ended is lost.
    pub(crate) fn since(&self, before: &CpuTime) -> u64 {
        let spent = |(thread, now): (&u32, &u64)| {
            now.saturating_sub(before.0.get(thread).copied().unwrap_or(0))
        };
        self.0.iter().map(spent).sum()
    }
}

/// How often threads have left a core to wait, and how often others took it from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Switches {
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
}

impl Switches {
    /// Those of all threads of the processes `ids`, from proc_pid_status(5).
    pub(crate) fn of(ids: &[u32]) -> io::Result<Self> {
        let mut all = Switches::default();
        for id in ids {
            for entry in fs::read_dir(format!("/proc/{id}/task"))? {
                // A thread may end between the two reads.
                let text = fs::read_to_string(entry?.path().join("status")).unwrap_or_default();
                all.voluntary += field(&text, "voluntary_ctxt_switches:");
                all.involuntary += field(&text, "nonvoluntary_ctxt_switches:");
            }
        }
        Ok(all)
    }
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// A process and its children.
pub(crate) fn family(id: u32) -> io::Result<Vec<u32>> {
    let mut family = vec![id];
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(other) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may end between the two reads.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if fields(&stat).nth(1).and_then(|parent| parent.parse().ok()) == Some(id) {
            family.push(other);
        }
    }
    Ok(family)
}

/// Watches how much of the processors others use meanwhile, as that spoils a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Others {
    since: Instant,
    /// Time for which processors were idle, and for which they worked for our processes, in ticks.
    idle: u64,
    ours: u64,
    cores: usize,
}

impl Others {
    /// Begins to watch.
    pub(crate) fn watch() -> io::Result<Self> {
        let machine = fs::read_to_string("/proc/stat")?;
        let this = fs::read_to_string("/proc/self/stat")?;
        let ((idle, cores), ours) = (idle_ticks(&machine), own_ticks(&this));
        Ok(Others { since: Instant::now(), idle, ours, cores })
    }

    /// Which part of one core others have used since. Of our children only those count as ours
    /// that have ended.
    fn share(&self) -> io::Result<f64> {
        let now = Others::watch()?;
        let ticks = now.idle.saturating_sub(self.idle) + (now.ours - self.ours);
        let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        let elapsed = (now.since - self.since).as_secs_f64();
        Ok((self.cores as f64 - seconds / elapsed).max(0.0))
    }

    /// A sentence for whoever reads the numbers, if others used much.
    pub(crate) fn note(&self) -> io::Result<Option<String>> {
        let percent = self.share()? * 100.0;
        Ok((percent > 5.0).then(|| {
            format!(
                "While this was measured, other programs used {percent:.0} % of a core; measure \
                 again on an idle machine."
            )
        }))
    }
}

/// The processor time in seconds that this process and those of its children have used that have
/// ended.
pub(crate) fn own_seconds() -> io::Result<f64> {
    let ticks = own_ticks(&fs::read_to_string("/proc/self/stat")?);
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// From `cpu user nice system idle iowait ...` in proc_stat(5), and how many processors there are. The times
/// before these are samples, which can be in step with the periods of a control group's share.
fn idle_ticks(machine: &str) -> (u64, usize) {
    let mut lines = machine.lines();
    let words = lines.next().unwrap_or("").split_ascii_whitespace();
    let idle = words.skip(4).take(2).filter_map(|w| w.parse::<u64>().ok()).sum();
    (idle, lines.take_while(|line| line.starts_with("cpu")).count())
}

/// `utime`, `stime`, `cutime` and `cstime` in proc_pid_stat(5), fields 14 to 17.
fn own_ticks(this: &str) -> u64 {
    fields(this).skip(11).take(4).filter_map(|w| w.parse::<u64>().ok()).sum()
}

/// The fields of proc_pid_stat(5) from the third on, the state.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    // The name of the program, in brackets, may hold spaces.
    stat.rsplit(')').next().unwrap_or("").split_ascii_whitespace()
}

fn first_field(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().next()?.parse().ok()
}

/// Lets this process, and what it becomes, have as many descriptors as it may.
pub(crate) fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Where it can't be raised, what there is has to do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_summed_over_threads_old_and_new() {
        let before = CpuTime([(1, 100), (2, 50)].into());
        let after = CpuTime([(1, 175), (3, 20)].into());
        assert_eq!(after.since(&before), 95);
    }

    #[test]
    fn the_time_of_others_is_read_from_two_files() {
        let machine = "cpu  10 20 30 4000 500 1 2 3 0 0\ncpu0 1 1\ncpu1 1 1\nintr 5";
        assert_eq!(idle_ticks(machine), (4500, 2));
        let this = "7 (a (b) c) S 1 7 7 0 -1 4194304 100 0 0 0 5 6 70 80 20 0 1 0";
        assert_eq!(own_ticks(this), 161);
        assert!(Others::watch().unwrap().share().is_ok());
    }

    #[test]
    fn switches_are_counted() {
        let before = Switches::of(&[std::process::id()]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let after = Switches::of(&[std::process::id()]).unwrap();
        assert!(after.voluntary > before.voluntary);
        assert_eq!(field("a:\t1\nnonvoluntary_ctxt_switches:\t7\n", "a:"), 1);
    }

    #[test]
    fn children_belong_to_the_family() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let family = family(std::process::id()).unwrap();
        assert!(family.contains(&std::process::id()) && family.contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn work_takes_time() {
        let before = CpuTime::of(&[std::process::id()]).unwrap();
        let mut x = 1u64;
        for i in 1..40_000_000u64 {
            x = std::hint::black_box(x.wrapping_mul(i | 1));
        }
        assert!(CpuTime::of(&[std::process::id()]).unwrap().since(&before) > 1_000_000, "{x}");
    }
}
