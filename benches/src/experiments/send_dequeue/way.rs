//! What a way of events does, and the clock around it.

use std::io;
use std::time::{Duration, Instant};

/// A way by which events come to the thread that made it.
pub(super) trait Way {
    /// By what it is called in figures.
    fn name(&self) -> &'static str;

    /// Lets events wait from now on.
    fn hold(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Queues so many events.
    fn queue(&mut self, events: u32) -> io::Result<()>;

    /// Returns when they have been handled.
    fn handle(&mut self, events: u32) -> io::Result<()>;

    /// How many have been handled so far.
    fn handled(&self) -> u64;
}

/// How long the two steps took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) queue: Duration,
    pub(super) dequeue: Duration,
}

/// Queues events and has them handled.
pub(super) fn once(way: &mut dyn Way, events: u32) -> io::Result<Time> {
    let before = way.handled();
    way.hold()?;
    let began = Instant::now();
    way.queue(events)?;
    let queued = Instant::now();
    let early = way.handled() - before;
    way.handle(events)?;
    let dequeue = queued.elapsed();
    let all = way.handled() - before;
    if early > 0 || all != u64::from(events) {
        return Err(io::Error::other(format!("{all} were handled, {early} of them too early")));
    }
    Ok(Time { queue: queued - began, dequeue })
}
