//! CPU affinity and CPU time.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::outcome::OTHER_PROGRAMS;

/// The core of the server under test.
pub(crate) const SERVER_CORE: usize = 0;
/// The core of the load generator.
pub(crate) const CLIENT_CORE: usize = 1;

/// Returns the number of online cores. `available_parallelism` counts those that this thread may use, which is one
/// when it is pinned.
pub(crate) fn online_cores() -> io::Result<usize> {
    let (_, cores) = idle_ticks(&fs::read_to_string("/proc/stat")?);
    Ok(cores.max(1))
}

/// Pins this thread and its future children to some cores, modulo the number of online cores. In a container without
/// these cores (cpuset(7)), they are pinned to those that they have.
pub(crate) fn pin(cores: &[usize]) -> io::Result<()> {
    let all = online_cores()?;
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core % all));
    match sched_setaffinity(None, &set) {
        Err(Errno::INVAL) => Ok(sched_setaffinity(None, &sched_getaffinity(None)?)?),
        result => Ok(result?),
    }
}

/// The CPU time of each thread of some processes, in nanoseconds, including kernel workers.
///
/// From `/proc/PID/task/TID/schedstat`, which is exact while a thread sleeps; read it while the
/// server is idle.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuTime(BTreeMap<u32, u64>);

impl CpuTime {
    /// Reads the CPU time of the processes `ids`.
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

    /// Returns the CPU time since `before`, without that of threads that have ended.
    pub(crate) fn since(&self, before: &CpuTime) -> u64 {
        let spent = |(thread, now): (&u32, &u64)| {
            now.saturating_sub(before.0.get(thread).copied().unwrap_or(0))
        };
        self.0.iter().map(spent).sum()
    }
}

/// Context switches of threads: voluntary, to wait, and involuntary, by preemption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Switches {
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
}

impl Switches {
    /// Reads those of all threads of the processes `ids`, from proc_pid_status(5).
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

/// Returns the identifiers of a process and its children.
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

/// The CPU time that other programs use during a measurement, which distorts it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherPrograms {
    since: Instant,
    /// Idle time of all cores, and CPU time of our processes, in ticks.
    idle: u64,
    ours: u64,
    cores: usize,
}

impl OtherPrograms {
    /// Starts to measure.
    pub(crate) fn watch() -> io::Result<Self> {
        let machine = fs::read_to_string("/proc/stat")?;
        let this = fs::read_to_string("/proc/self/stat")?;
        let ((idle, cores), ours) = (idle_ticks(&machine), own_ticks(&this));
        Ok(OtherPrograms { since: Instant::now(), idle, ours, cores })
    }

    /// Returns the share of one core that other programs and threads of the kernel have used since. Children count as ours only
    /// after they have ended.
    fn share(&self) -> io::Result<f64> {
        let now = OtherPrograms::watch()?;
        let ticks = now.idle.saturating_sub(self.idle) + (now.ours - self.ours);
        let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        let elapsed = (now.since - self.since).as_secs_f64();
        Ok((self.cores as f64 - seconds / elapsed).max(0.0))
    }

    /// Returns a note if other programs used more than 5 % of a core.
    pub(crate) fn note(&self) -> io::Result<Option<String>> {
        Ok(note(self.share()?))
    }
}

/// Returns the note on a share of a core that other programs used.
fn note(share: f64) -> Option<String> {
    let percent = share * 100.0;
    (percent > 5.0).then(|| {
        format!(
            "{OTHER_PROGRAMS} and threads of the kernel used {percent:.0} % of a core; repeat it on an idle machine."
        )
    })
}

/// Returns the CPU time of this process and its ended children, in seconds.
pub(crate) fn own_seconds() -> io::Result<f64> {
    let ticks = own_ticks(&fs::read_to_string("/proc/self/stat")?);
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns idle and iowait time from the line `cpu user nice system idle iowait ...` in proc_stat(5),
/// and the number of cores. The other times are samples, which can be in phase with the periods of a
/// control group's quota.
fn idle_ticks(machine: &str) -> (u64, usize) {
    let mut lines = machine.lines();
    let words = lines.next().unwrap_or("").split_ascii_whitespace();
    let idle = words.skip(4).take(2).filter_map(|w| w.parse::<u64>().ok()).sum();
    (idle, lines.take_while(|line| line.starts_with("cpu")).count())
}

/// Returns the sum of `utime`, `stime`, `cutime` and `cstime` in proc_pid_stat(5), fields 14 to 17.
fn own_ticks(this: &str) -> u64 {
    fields(this).skip(11).take(4).filter_map(|w| w.parse::<u64>().ok()).sum()
}

/// Returns the fields of proc_pid_stat(5) from the third, the state, on.
pub(super) fn fields(stat: &str) -> impl Iterator<Item = &str> {
    // The program name, in brackets, may contain spaces.
    stat.rsplit(')').next().unwrap_or("").split_ascii_whitespace()
}

fn first_field(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().next()?.parse().ok()
}

/// Raises the descriptor limit of this process and its children to the maximum.
pub(crate) fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // On failure the old limit remains.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_summed_over_old_and_new_threads() {
        let before = CpuTime([(1, 100), (2, 50)].into());
        let after = CpuTime([(1, 175), (3, 20)].into());
        assert_eq!(after.since(&before), 95);
    }

    #[test]
    fn pinned_thread_found_one_core_and_stayed_there() {
        let pinned = |core| {
            pin(&[core])?;
            let set = rustix::thread::sched_getaffinity(None)?;
            Ok::<_, io::Error>((0..CpuSet::MAX_CPU).filter(|n| set.is_set(*n)).collect::<Vec<_>>())
        };
        let has_both = sched_getaffinity(None).unwrap().count() > 1;
        let on = std::thread::spawn(move || {
            [SERVER_CORE, CLIENT_CORE].map(|core| pinned(core).unwrap())
        });
        let [server, client] = on.join().unwrap();
        assert_eq!((server.len(), client.len()), (1, 1));
        assert_eq!(server != client, has_both, "{server:?} {client:?}");
    }

    #[test]
    fn time_of_other_programs_is_parsed_from_two_files() {
        let machine = "cpu  10 20 30 4000 500 1 2 3 0 0\ncpu0 1 1\ncpu1 1 1\nintr 5";
        assert_eq!(idle_ticks(machine), (4500, 2));
        let this = "7 (a (b) c) S 1 7 7 0 -1 4194304 100 0 0 0 5 6 70 80 20 0 1 0";
        assert_eq!(own_ticks(this), 161);
        assert!(OtherPrograms::watch().unwrap().share().is_ok());
    }

    #[test]
    fn share_of_other_programs_is_read_from_the_note() {
        let mut outcome = crate::outcome::Outcome::new("cold");
        outcome.notes.extend(note(0.05));
        assert_eq!(outcome.disturbances(), "");
        outcome.notes.extend(note(0.153));
        assert_eq!(outcome.disturbances(), "other programs 15 %");
    }

    #[test]
    fn voluntary_switches_are_counted() {
        // A thread of another test takes its count with it when it ends.
        let grew = (0..100).any(|_| {
            let before = Switches::of(&[std::process::id()]).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
            Switches::of(&[std::process::id()]).unwrap().voluntary > before.voluntary
        });
        assert!(grew);
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
    fn a_computation_uses_cpu_time() {
        let before = CpuTime::of(&[std::process::id()]).unwrap();
        let mut x = 1u64;
        for i in 1..40_000_000u64 {
            x = std::hint::black_box(x.wrapping_mul(i | 1));
        }
        assert!(CpuTime::of(&[std::process::id()]).unwrap().since(&before) > 1_000_000, "{x}");
    }
}
