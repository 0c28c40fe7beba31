//! Scheduling policies of the threads on the server core, and the load there.

use std::fs;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evring::owner::Scheduling;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::failure::Failure;
use crate::measure::{SERVER_CORE, pin, program};
use crate::outcome::Outcome;

/// A policy of sched(7): those of [`Scheduling`], and that of figure 6-2 for which wake-ups do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// `SCHED_OTHER`, with the default slice.
    Normal,
    /// `SCHED_BATCH`: wake-ups do not preempt.
    Batch,
    /// `SCHED_OTHER` with a slice of 100 us.
    Slice,
    /// `SCHED_FIFO`, which needs the permission to.
    RealTime,
}

impl Policy {
    /// Returns the policy of a thread that owns a ring: real-time, where it is permitted. In the thesis, handlers and
    /// upcalls run in the interrupt, and so before all processes.
    pub(super) fn of_ring_thread() -> Policy {
        match std::thread::spawn(|| Policy::RealTime.apply()).join() {
            Ok(Ok(())) => Policy::RealTime,
            _ => Policy::Slice,
        }
    }

    /// Returns what [`Scheduling`] names so; it has no `SCHED_BATCH`, which no server would choose.
    pub(super) fn scheduling(self) -> Option<Scheduling> {
        match self {
            Policy::Normal => Some(Scheduling::Normal),
            Policy::Slice => Some(Scheduling::ShortSlice),
            Policy::RealTime => Some(Scheduling::RealTime),
            Policy::Batch => None,
        }
    }

    /// Sets the policy of this thread.
    pub(super) fn apply(self) -> Result<(), Failure> {
        let Some(scheduling) = self.scheduling() else { return batch() };
        scheduling.apply().map_err(|e| Failure::new(format_args!("the policy {self:?}"), e))
    }
}

/// Sets `SCHED_BATCH` for this thread.
fn batch() -> Result<(), Failure> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are read during the call; 0 is this thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(Failure::new("the policy Batch", io::Error::last_os_error())),
    }
}

/// Processes that compute on the server core until this is dropped.
pub(super) struct Busy(Vec<Child>);

impl Busy {
    /// Starts a number of processes.
    pub(super) fn start(count: usize) -> Result<Self, Failure> {
        let mut busy = Busy(Vec::with_capacity(count));
        for _ in 0..count {
            let mut command = Command::new(program()?);
            command.arg("spin").stdin(Stdio::null()).stdout(Stdio::piped());
            busy.0.push(command.spawn()?);
        }
        for process in &mut busy.0 {
            let mut ready = [0];
            match &mut process.stdout {
                Some(output) => output.read_exact(&mut ready)?,
                None => return Err(Failure::Run("a busy process has no output".to_owned())),
            }
        }
        Ok(busy)
    }

    /// Returns the CPU time of all processes until now.
    pub(super) fn cpu(&self) -> Result<Duration, Failure> {
        let mut all = Duration::ZERO;
        for process in &self.0 {
            let text = fs::read_to_string(format!("/proc/{}/schedstat", process.id()))?;
            let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
            let ns = ns.ok_or_else(|| Failure::Run(format!("no CPU time in schedstat: {text}")))?;
            all += Duration::from_nanos(ns);
        }
        Ok(all)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
        }
        for process in &mut self.0 {
            let _ = process.wait();
        }
    }
}

/// Computes on the server core until the parent kills this process.
pub(crate) fn spin() -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    pin(&[SERVER_CORE])?;
    let mut output = io::stdout();
    output.write_all(&[1])?;
    output.flush()?;
    loop {
        std::hint::spin_loop();
    }
}

/// Returns the policy of the thread of the ring: real-time, where it is permitted.
pub(super) fn owner_policy(outcome: &mut Outcome) -> Policy {
    let policy = Policy::of_ring_thread();
    if policy != Policy::RealTime {
        let note = "Real-time scheduling is not permitted here (CAP_SYS_NICE), so the thread of the ring \
                    has a slice of 100 us: suspended_user_over_ash is not that of the definition.";
        outcome.notes.push(note.to_owned());
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_that_need_no_permission_apply() {
        for policy in [Policy::Normal, Policy::Batch, Policy::Slice] {
            std::thread::spawn(move || policy.apply()).join().unwrap().unwrap();
        }
    }

    #[test]
    fn busy_processes_run_until_they_are_dropped() {
        let busy = Busy::start(2).unwrap();
        let ids: Vec<_> = busy.0.iter().map(Child::id).collect();
        drop(busy);
        assert!(ids.iter().all(|id| !std::path::Path::new(&format!("/proc/{id}")).exists()));
    }
}
