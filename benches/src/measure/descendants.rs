//! The processes that a process has started, and those that these have started.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{fs, io, thread};

use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper,
};

use super::cpu::fields;

/// Makes processes whose parent has ended children of this process, such as the workers of a killed server
/// (`PR_SET_CHILD_SUBREAPER` in prctl(2)). So they remain its descendants.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills the descendants of a process until none is left. Some start others, and some end only later.
pub(crate) fn kill_descendants(of: Pid) {
    for _ in 0..1_000 {
        let all = descendants(of);
        if all.is_empty() {
            return;
        }
        let opened =
            all.into_iter().filter_map(|id| Some((id, pidfd_open(id, PidfdFlags::empty()).ok()?)));
        let opened: Vec<_> = opened.collect();
        // Each is still a descendant, so its number was not used again before it was opened.
        let all = descendants(of);
        for (_, process) in opened.iter().filter(|(id, _)| all.contains(id)) {
            // Fails if it has ended.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the descendants of a process, without those that have ended.
fn descendants(of: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parents: BTreeMap<_, _> = numbers.filter_map(|id| Some((id, parent(id)?))).collect();
    let descends = |id: &i32| {
        // A process is younger than its ancestors, but numbers wrap around.
        let mut ancestors = std::iter::successors(parents.get(id), |parent| parents.get(*parent));
        ancestors.any(|ancestor| *ancestor == of.as_raw_pid())
    };
    parents.keys().filter(|id| descends(id)).filter_map(|id| Pid::from_raw(*id)).collect()
}

/// Returns the parent of a process that has not ended.
fn parent(id: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = fields(&stat);
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| !["Z", "X"].contains(&state))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn grandchildren_are_killed_with_the_children() {
        // The shell waits for its child, and prints its number.
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & echo $!; wait"]).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let sleep = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        assert!(descendants(getpid()).contains(&sleep));
        assert_eq!(descendants(Pid::from_child(&shell)), [sleep]);
        kill_descendants(Pid::from_child(&shell));
        shell.wait().unwrap();
        assert!(!descendants(getpid()).contains(&sleep));
    }
}
