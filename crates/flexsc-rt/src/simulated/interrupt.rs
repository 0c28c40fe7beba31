//! Starts threads of the simulated machine, and interrupts their calls.

use std::cell::Cell;
use std::io;
use std::thread::Builder;

use super::machine::machine;
use super::tasks;
use crate::entry::{Entry, Status};

/// Starts a thread, unless the kernel starts none at the moment.
pub(crate) fn spawn(_builder: Builder, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let living = tasks::living();
    if machine(|machine| machine.refuses_thread(living)) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    tasks::spawn(body);
    Ok(())
}

/// The call that a thread makes.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    entry: Cell<Option<u32>>,
    task: Cell<usize>,
}

// SAFETY: the threads of the machine are run by one.
unsafe impl Send for Serving {}
// SAFETY: as above.
unsafe impl Sync for Serving {}

impl Serving {
    /// # Safety
    /// None is required.
    pub(crate) unsafe fn enter_thread(&self) {
        self.entry.set(None);
        self.task.set(tasks::current().expect("it runs on a thread of the machine"));
    }

    pub(crate) fn leave_thread() {}

    pub(crate) fn entry(&self) -> Option<u32> {
        self.entry.get()
    }

    pub(crate) fn begin(&self, entry: u32) {
        self.entry.set(Some(entry));
    }

    /// A signal reaches no later call.
    pub(crate) fn end(&self, entry: u32) {
        assert_eq!(self.entry.take(), Some(entry));
        if let Some(task) = tasks::current() {
            tasks::set_signalled(task, false);
            tasks::pause();
        }
    }

    /// The signal may come too early, before the call waits; then it is lost.
    pub(crate) fn interrupt(&self, index: u32, entry: &Entry) {
        let is_in_it = self.entry.get() == Some(index) && entry.status() == Status::Cancel;
        if is_in_it && machine(|machine| machine.random(3)) == 0 {
            tasks::set_signalled(self.task.get(), true);
        }
    }

    pub(crate) fn begin_again(&self, entry: u32) {
        assert_eq!(self.entry.take(), Some(entry));
    }

    /// Now and then, other calls do, too.
    pub(crate) fn is_running(&self) -> bool {
        tasks::is_computing(self.task.get()) || machine(|machine| machine.random(4)) == 0
    }

    pub(crate) fn is_dead(&self) -> bool {
        tasks::is_dead(self.task.get())
    }
}
