//! The trait of the notification methods, and their timing.

use std::io;
use std::time::{Duration, Instant};

/// A notification method: delivers events to the thread that created it.
pub(super) trait Method {
    /// Returns its name in figures.
    fn name(&self) -> &'static str;

    /// Blocks the delivery of events.
    fn hold(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Queues a number of events.
    fn queue(&mut self, events: u32) -> io::Result<()>;

    /// Unblocks delivery. Returns once the events have been handled.
    fn handle(&mut self, events: u32) -> io::Result<()>;

    /// Returns the number of events handled so far.
    fn handled(&self) -> u64;
}

/// Durations of the two steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) queue: Duration,
    pub(super) dequeue: Duration,
}

/// Queues events, and measures the time to queue and to handle them.
pub(super) fn once(method: &mut dyn Method, events: u32) -> io::Result<Time> {
    let before = method.handled();
    method.hold()?;
    let start = Instant::now();
    method.queue(events)?;
    let queued = Instant::now();
    let early = method.handled() - before;
    method.handle(events)?;
    let dequeue = queued.elapsed();
    let all = method.handled() - before;
    if early > 0 || all != u64::from(events) {
        return Err(io::Error::other(format!(
            "{all} of {events} events were handled, {early} of them before delivery was unblocked"
        )));
    }
    Ok(Time { queue: queued - start, dequeue })
}
