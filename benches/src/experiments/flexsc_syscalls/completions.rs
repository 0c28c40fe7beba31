//! The cost of a completion while other calls are outstanding.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use flexsc_rt::{Call, Config, Direction, Executor, Kind, Pages, Waits};
use rustix::fs::{MemfdFlags, memfd_create};

use super::super::rounds::Round;
use super::super::system_call::{SystemCall, failed};
use super::works::memory;
use crate::command::{Complete, CompletionWay};
use crate::failure::Failure;
use crate::measure::Callgrind;
use crate::outcome::{Outcome, X};
use crate::statistics::{Spread, UNMEASURED, ratios, spread};

/// Calls outstanding while completions are measured, and those that complete.
const OUTSTANDING: [usize; 2] = [100, 10_000];
const COMPLETIONS: u32 = 20_000;

/// A way to complete calls, the number of calls at a time, and the middle of the names of its ratios.
struct Way {
    by: CompletionWay,
    name: &'static str,
    at_a_time: u32,
    in_ratios: &'static str,
}

const WAYS: [Way; 4] = [
    Way { by: CompletionWay::InPlace, name: "in place", at_a_time: 1, in_ratios: "" },
    Way { by: CompletionWay::Ring, name: "ring", at_a_time: 64, in_ratios: "ring_" },
    Way { by: CompletionWay::Threads, name: "threads", at_a_time: 64, in_ratios: "threads_" },
    Way { by: CompletionWay::Readiness, name: "readiness", at_a_time: 1, in_ratios: "readiness_" },
];

const FIGURE: &str = "Time of a completion against calls outstanding";
const INSTRUCTIONS_FIGURE: &str = "Instructions of a completion against calls outstanding";

/// The times of each way, with few and with many calls outstanding: one for each round.
#[derive(Default)]
pub(super) struct Completions([[Vec<f64>; 2]; WAYS.len()]);

impl Completions {
    /// Measures all in a round.
    pub(super) fn measure(&mut self, round: &mut Round) -> Result<(), Failure> {
        for way in round.order(WAYS.len()) {
            for at in round.order(OUTSTANDING.len()) {
                let time = completion(&WAYS[way], OUTSTANDING[at])?;
                self.0[way][at].push(time.unwrap_or(UNMEASURED));
            }
        }
        Ok(())
    }

    pub(super) fn report(&self, outcome: &mut Outcome) {
        for (way, [few, many]) in WAYS.iter().zip(&self.0) {
            let name = format!("completion_{}10000_over_100", way.in_ratios);
            outcome.ratio(name, "flexsc", ratios(many, few));
            for (outstanding, times) in OUTSTANDING.iter().zip([few, many]) {
                if let Some(y) = spread(times) {
                    outcome.point(FIGURE, "ns", way.name, X::Number(*outstanding as f64), y);
                }
            }
        }
    }
}

/// Returns the time of a posted null call while others wait, in nanoseconds; `None` without a ring that it needs.
fn completion(way: &Way, outstanding: usize) -> Result<Option<f64>, Failure> {
    let batches = COMPLETIONS / way.at_a_time;
    let time = completions(way, outstanding, batches)?;
    Ok(time.map(|time| time.as_nanos() as f64 / f64::from(batches * way.at_a_time)))
}

/// Makes a number of completions, for valgrind.
pub(crate) fn complete(options: &Complete) -> Result<(), Failure> {
    let way = WAYS.iter().find(|way| way.by == options.way).expect("all ways are listed");
    completions(way, options.outstanding, options.count / way.at_a_time)?
        .map(drop)
        .ok_or_else(|| Failure::Run("there is no ring".to_owned()))
}

/// Posts batches of null calls while others wait, and takes the completion of each. Returns the time; `None` without a
/// ring that it needs.
fn completions(way: &Way, outstanding: usize, batches: u32) -> Result<Option<Duration>, Failure> {
    let (reads, _writes) = std::io::pipe()?;
    let fd = reads.as_raw_fd();
    let args = [fd as usize, memory(1), 1, 0, 0, 0];
    let waits = Waits::ReadyThenBlocks(fd, Direction::Read);
    let config = Config::with_entries(outstanding as u32 + 200);
    // Dropped before the pipe.
    let mut pages = Pages::register(&config).map_err(failed)?;
    let busy = |busy| Failure::new("flexsc", busy);
    for _ in 0..outstanding {
        // SAFETY: the memory is never freed, and the pipe is closed after the pages.
        unsafe { pages.post(&Call::new(libc::SYS_read, args).waits(waits)) }.map_err(busy)?;
    }
    pages.wait(Some(Duration::ZERO)).map_err(failed)?;
    let in_memory = memfd_create("lab", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
    let (readable, mut writes) = std::io::pipe()?;
    writes.write_all(b"x")?;
    let call = match way.by {
        CompletionWay::InPlace => SystemCall::NULL.posted().pinned(Executor::InPlace),
        CompletionWay::Threads => SystemCall::NULL.posted().pinned(Executor::Threads),
        CompletionWay::Ring => {
            let args = [in_memory.as_raw_fd() as usize, 0, 0, libc::POSIX_FADV_NORMAL as usize];
            // SAFETY: it has no pointer, and the file stays open as long as the pages.
            let advice = unsafe { SystemCall::new(libc::SYS_fadvise64, args, Kind::Memory) };
            advice.posted().pinned(Executor::Ring)
        }
        CompletionWay::Readiness => Call::until_ready(readable.as_raw_fd(), Direction::Read),
    };
    let begin = Instant::now();
    for _ in 0..batches {
        for _ in 0..way.at_a_time {
            // SAFETY: it has no memory.
            unsafe { pages.post(&call) }.map_err(busy)?;
        }
        let mut ended = 0;
        while ended < way.at_a_time {
            pages.wait(None).map_err(failed)?;
            while let Some(completion) = pages.next() {
                if completion.result.is_err() {
                    return Err(Failure::Run("a null call has failed".to_owned()));
                }
                ended += 1;
            }
        }
    }
    let time = begin.elapsed();
    Ok((way.by != CompletionWay::Ring || pages.ring_error().is_none()).then_some(time))
}

/// Adds the instructions of a completion by each way.
pub(super) fn count_instructions(outcome: &mut Outcome) -> Result<(), Failure> {
    let callgrind = Callgrind::find()?;
    for way in &WAYS {
        let counts = OUTSTANDING.map(|number| callgrind.count_completions(way.by, number));
        let [few, many] = match counts {
            [Ok(few), Ok(many)] => [few, many],
            [Err(failure), _] | [_, Err(failure)] => {
                let what = format!("Instructions of a completion by {}: {failure}.", way.name);
                outcome.notes.push(what);
                continue;
            }
        };
        for (outstanding, count) in OUTSTANDING.into_iter().zip([few, many]) {
            let y = Spread { median: count, low: count, high: count };
            let x = X::Number(outstanding as f64);
            outcome.point(INSTRUCTIONS_FIGURE, "", way.name, x, y);
        }
        let name = format!("completion_instructions_{}10000_over_100", way.in_ratios);
        outcome.count(name, "flexsc", many / few);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_timed_with_calls_outstanding() {
        for way in &WAYS {
            let time = completion(way, 100).unwrap();
            assert!(time.is_none_or(|time| time > 0.0));
        }
    }
}
