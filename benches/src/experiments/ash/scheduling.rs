//! Scheduling policies of the threads on the server core, and the load there.

use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::failure::Failure;
use crate::measure::{SERVER_CORE, pin, program};

/// A policy of sched(7).
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

/// `struct sched_attr` of sched_setattr(2), in its first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

impl Policy {
    /// Sets the policy of this thread.
    pub(super) fn apply(self) -> io::Result<()> {
        let (policy, priority, runtime_ns) = match self {
            Policy::Normal => (libc::SCHED_OTHER, 0, 0),
            Policy::Batch => (libc::SCHED_BATCH, 0, 0),
            Policy::Slice => (libc::SCHED_OTHER, 0, 100_000),
            Policy::RealTime => (libc::SCHED_FIFO, 1, 0),
        };
        let attributes = SchedAttr {
            size: size_of::<SchedAttr>() as u32,
            policy: policy.cast_unsigned(),
            flags: 0,
            nice: 0,
            priority,
            runtime_ns,
            deadline_ns: 0,
            period_ns: 0,
        };
        // SAFETY: the kernel reads as many bytes as the structure says that it has.
        match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
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
