//! The schedules of figures 3 and 7: four processes read a file, then send it. The send buffers of A
//! and B are full until C and D have finished.
//!
//! From the paper's schedules follow 9 and 7 context switches, as it says, and mean response times of 22.5 + 6a and
//! 20 + 4a, where `a` is the time of a switch. It gives 23 + 6a and 20 + 4.5a. Its 23 takes 30 units for B, as for A; but B begins
//! 4 units after A and ends 2 after it, so its time is 28. The switches from the beginning to the end of A, B, C and D in figure
//! 7(2) are 6, 6, 2 and 2; the same count gives the 20 + 4a that the paper has for figure 3(1), without full buffers.

use std::collections::VecDeque;
use std::time::Instant;

use ecem::{Config, Delivery, Event, EventKind, EventManager, Readiness};

const PROCESSES: usize = 4;
/// Time to read a file, and to send it.
const PHASE: u32 = 4;
/// Time to send the part that a full send buffer takes before the process blocks.
const PART: u32 = 2;

/// Times in units of work, and numbers of context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Time {
    work: u32,
    switches: u32,
}

#[derive(Debug, Default)]
struct Cpu {
    now: Time,
    running: Option<usize>,
    started: [Option<Time>; PROCESSES],
    ended: [Option<Time>; PROCESSES],
}

impl Cpu {
    fn run(&mut self, process: usize, work: u32) {
        if self.running.replace(process).is_some_and(|former| former != process) {
            self.now.switches += 1;
        }
        self.started[process].get_or_insert(self.now);
        self.now.work += work;
    }

    /// Returns the number of switches, and four times the mean response time.
    fn result(&self) -> (u32, Time) {
        let mut sum = Time::default();
        for (start, end) in self.started.iter().zip(&self.ended) {
            let (start, end) = (start.unwrap(), end.unwrap());
            sum.work += end.work - start.work;
            sum.switches += end.switches - start.switches;
        }
        (self.now.switches, sum)
    }
}

fn read(process: usize) -> Event {
    Event::new(process as i32, EventKind::DiskReadResponse)
}

fn write(process: usize) -> Event {
    Event::new((PROCESSES + process) as i32, EventKind::NetworkWriteRequest)
}

/// Runs the processes, the first ones with full send buffers. A process whose disk read response is deferred is not
/// scheduled.
fn schedule(defers: bool, full: usize) -> (u32, Time) {
    let (mut cpu, now) = (Cpu::default(), Instant::now());
    let mut manager = EventManager::new(&Config::default());
    let mut is_full = [0, 1, 2, 3].map(|process| process < full);
    let pairs: Vec<_> = (0..PROCESSES)
        .map(|process| {
            let post = if is_full[process] { Readiness::Wait } else { Readiness::Ready };
            manager.add(read(process), write(process), post).unwrap()
        })
        .collect();
    let mut left = [PHASE; PROCESSES];
    let mut runnable = VecDeque::new();
    for (process, pair) in pairs.into_iter().enumerate() {
        cpu.run(process, PHASE);
        // The disk responds while others run.
        if !defers || manager.deliver(pair, process, now) == Delivery::Now(process) {
            runnable.push_back(process);
        }
    }
    let mut blocked = VecDeque::new();
    while let Some(process) = runnable.pop_front() {
        let work = if is_full[process] { PART } else { left[process] };
        cpu.run(process, work);
        left[process] -= work;
        if left[process] > 0 {
            blocked.push_back(process);
        } else {
            cpu.ended[process] = Some(cpu.now);
        }
        if runnable.is_empty() {
            // The clients have acknowledged bytes of A and B.
            is_full = [false; PROCESSES];
            (0..PROCESSES).for_each(|process| manager.set(write(process), Readiness::Ready));
            runnable.append(&mut blocked);
            runnable.extend(std::iter::from_fn(|| manager.next(now)).map(|(_, process)| process));
        }
    }
    cpu.result()
}

#[test]
fn deferred_delivery_saves_two_of_nine_switches() {
    assert_eq!(schedule(false, 2), (9, Time { work: 90, switches: 24 }));
    assert_eq!(schedule(true, 2), (7, Time { work: 80, switches: 16 }));
}

#[test]
fn processes_without_full_buffers_switch_seven_times() {
    for defers in [false, true] {
        assert_eq!(schedule(defers, 0), (7, Time { work: 80, switches: 16 }));
    }
}
