//! What wakes the tasks of a runtime while none of them has calls executed.

use std::collections::BTreeMap;
use std::mem;
use std::task::Waker;

/// The tasks that a notifier may wake.
///
/// It wakes the driver when the pages have something to do. A task that is woken need not poll its futures: it may wait
/// for something else. So if no turn follows within a tick, the notifier wakes more and more of the others.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The driver, while it waits.
    driver: Option<Waker>,
    /// The tasks of pending futures, by their numbers.
    pending: BTreeMap<u64, Waker>,
    /// A turn was taken since the last tick.
    has_turned: bool,
    /// Tasks that were woken since the last turn, as none came.
    woken: usize,
}

impl Watch {
    /// Has the driver woken, once. Returns the waker whose place it takes.
    pub(crate) fn park(&mut self, driver: Waker) -> Option<Waker> {
        self.driver.replace(driver)
    }

    /// Notes a turn. Returns the waker of the driver, if it was not woken for it.
    pub(crate) fn turn(&mut self) -> Option<Waker> {
        (self.has_turned, self.woken) = (true, 0);
        self.driver.take()
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.driver.is_some()
    }

    /// Takes the driver, for which there is something to do.
    pub(crate) fn take_driver(&mut self) -> Option<Waker> {
        self.has_turned = true;
        self.driver.take()
    }

    /// Returns whether ticks count: the driver was woken, and futures are pending.
    pub(crate) fn is_due(&self) -> bool {
        self.driver.is_none() && !self.pending.is_empty()
    }

    /// Returns whether tasks were woken as no turn came.
    pub(crate) fn is_overdue(&self) -> bool {
        self.woken > 0
    }

    /// Notes a pending future. Returns the waker whose place it takes.
    pub(crate) fn add(&mut self, future: u64, waker: &Waker) -> Option<Waker> {
        match self.pending.get_mut(&future) {
            Some(known) if known.will_wake(waker) => None,
            Some(known) => Some(mem::replace(known, waker.clone())),
            None => self.pending.insert(future, waker.clone()),
        }
    }

    /// Forgets a future. Returns its waker.
    pub(crate) fn remove(&mut self, future: u64) -> Option<Waker> {
        self.pending.remove(&future)
    }

    /// Returns the tasks to wake at a tick: after one without a turn one, then twice as many each time.
    pub(crate) fn tick(&mut self) -> Vec<Waker> {
        if !self.is_due() || mem::take(&mut self.has_turned) {
            return Vec::new();
        }
        let more = self.woken.max(1);
        let woken: Vec<_> = self.pending.values().skip(self.woken).take(more).cloned().collect();
        self.woken += woken.len();
        woken
    }
}
