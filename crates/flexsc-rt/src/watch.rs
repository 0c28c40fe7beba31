//! Wake-ups of the tasks of a runtime while none of them has calls executed.

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
    /// The tasks of pending futures, in the order in which they were added.
    pending: BTreeMap<u64, Waker>,
    /// The number of the last one that was added.
    last: u64,
    /// A turn was taken since the last tick.
    has_turned: bool,
    /// Tasks that were woken since the last turn, as none came.
    woken: usize,
    /// The number of the last one of them.
    last_woken: u64,
}

impl Watch {
    /// Has the driver woken, once. Returns the waker whose place it takes.
    pub(crate) fn park(&mut self, driver: Waker) -> Option<Waker> {
        self.driver.replace(driver)
    }

    /// Notes a turn. Returns the waker of the driver, if it was not woken for it.
    pub(crate) fn turn(&mut self) -> Option<Waker> {
        (self.has_turned, self.woken, self.last_woken) = (true, 0, 0);
        self.driver.take()
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.driver.is_some()
    }

    /// Takes the driver, which has something to do, or is gone.
    pub(crate) fn take_driver(&mut self) -> Option<Waker> {
        self.has_turned = true;
        self.driver.take()
    }

    /// Returns whether ticks count: no driver waits, and a task is there that was not woken since the last turn. When all
    /// were, the first that polls its futures takes a turn.
    pub(crate) fn is_due(&self) -> bool {
        let last = self.pending.last_key_value();
        self.driver.is_none() && last.is_some_and(|(last, _)| *last > self.last_woken)
    }

    /// Returns whether tasks were woken as no turn came.
    pub(crate) fn is_overdue(&self) -> bool {
        self.woken > 0
    }

    /// Adds the task of a pending future. Returns its number.
    pub(crate) fn add(&mut self, waker: &Waker) -> u64 {
        self.last += 1;
        self.pending.insert(self.last, waker.clone());
        self.last
    }

    /// Replaces the task of a future, which may have moved. Returns the waker of the former one.
    pub(crate) fn replace(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        let former = self.pending.get_mut(&number)?;
        (!former.will_wake(waker)).then(|| mem::replace(former, waker.clone()))
    }

    /// Forgets a future. Returns its waker.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Waker> {
        self.pending.remove(&number)
    }

    /// Returns the tasks to wake at a tick: after one without a turn one, then twice as many each time.
    pub(crate) fn tick(&mut self) -> Vec<Waker> {
        if !self.is_due() || mem::take(&mut self.has_turned) {
            return Vec::new();
        }
        let next = self.pending.range(self.last_woken + 1..).take(self.woken.max(1));
        let (numbers, wakers): (Vec<_>, Vec<_>) =
            next.map(|(number, waker)| (*number, waker.clone())).unzip();
        self.woken += wakers.len();
        self.last_woken = numbers.last().copied().unwrap_or(self.last_woken);
        wakers
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a watch without a driver that has the tasks of so many futures, and these with their numbers.
    fn watch(count: usize) -> (Watch, Vec<(Arc<Task>, u64)>) {
        let mut watch = Watch::default();
        let tasks = (0..count).map(|_| {
            let task = Arc::<Task>::default();
            let number = watch.add(&Waker::from(Arc::clone(&task)));
            (task, number)
        });
        let tasks = tasks.collect();
        (watch, tasks)
    }

    fn tick(watch: &mut Watch) {
        watch.tick().into_iter().for_each(Waker::wake);
    }

    fn wakes(tasks: &[(Arc<Task>, u64)]) -> Vec<usize> {
        tasks.iter().map(|(task, _)| task.0.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn end_of_a_future_that_was_woken_kept_the_next_one_from_being_woken() {
        let (mut watch, tasks) = watch(2);
        tick(&mut watch);
        drop(watch.remove(tasks[0].1));
        tick(&mut watch);
        assert_eq!(wakes(&tasks), [1, 1]);
    }

    #[test]
    fn ticks_end_when_all_were_woken_and_begin_with_a_turn_or_another_future() {
        let (mut watch, tasks) = watch(4);
        for woken in [1, 2, 4] {
            assert!(watch.is_due());
            tick(&mut watch);
            assert_eq!(wakes(&tasks).iter().sum::<usize>(), woken);
        }
        assert!(!watch.is_due() && watch.is_overdue());
        let other = Arc::<Task>::default();
        watch.add(&Waker::from(Arc::clone(&other)));
        assert!(watch.is_due());
        tick(&mut watch);
        assert!(!watch.is_due());
        assert_eq!(other.0.load(Ordering::Relaxed), 1);
        assert!(watch.turn().is_none());
        assert!(watch.is_due() && !watch.is_overdue());
        // The turn was taken in this one.
        tick(&mut watch);
        assert_eq!(wakes(&tasks), [1; 4]);
        tick(&mut watch);
        assert_eq!(wakes(&tasks), [2, 1, 1, 1]);
    }
}
