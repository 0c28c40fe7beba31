//! Models of a thread in a call, and of those that signal it, in every interleaving (loom).

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use super::*;

/// The process: a syscall thread, its entries, and the signal that is pending for it.
struct Model {
    serving: Serving,
    entries: [Entry; 2],
    is_pending: AtomicBool,
}

impl Model {
    fn new() -> Arc<Self> {
        let entries = [Entry::new(), Entry::new()];
        Arc::new(Model { serving: Serving::default(), entries, is_pending: AtomicBool::new(false) })
    }

    /// The owner cancels the call of an entry, if the thread makes it.
    fn cancel(&self, index: u32) {
        if self.entries[index as usize].cancel() {
            self.interrupt(index);
        }
    }

    /// The heartbeat interrupts what the thread serves, if it is cancelled.
    fn beat(&self) {
        if let Some(index) = self.serving.entry()
            && self.entries[index as usize].status() == Status::Cancel
        {
            self.interrupt(index);
        }
    }

    fn interrupt(&self, index: u32) {
        self.serving.interrupt_with(index, &self.entries[index as usize], || {
            let was_pending = self.is_pending.swap(true, Ordering::AcqRel);
            assert!(!was_pending, "two signals were queued");
            true
        });
    }

    /// A system call of the thread, at whose end the kernel runs the handler. Returns whether it was interrupted.
    fn system_call(&self) -> bool {
        let has_signal = self.is_pending.swap(false, Ordering::AcqRel);
        if has_signal {
            self.serving.handled.fetch_add(1, Ordering::Release);
        }
        has_signal
    }

    /// The thread makes the call of an entry. Returns whether it was interrupted.
    fn serve(&self, index: u32, call: impl FnOnce() -> bool) -> bool {
        let entry = &self.entries[index as usize];
        entry.begin(0);
        self.serving.begin(index);
        let interrupted = call();
        self.serving.end_with(index, || {
            self.system_call();
            false
        });
        // SAFETY: the thread has claimed the entry.
        unsafe { entry.finish_on_thread(0) };
        interrupted
    }

    fn assert_no_signal_is_on_its_way(&self) {
        assert!(!self.is_pending.load(Ordering::Relaxed));
        assert!(!self.serving.is_signal_on_its_way());
    }
}

/// A signal reaches the call that it is for, or none: not the next one, and no second signal is queued.
#[test]
fn interrupt_that_comes_late_reaches_no_later_call() {
    loom::model(|| {
        let model = Model::new();
        let served = Arc::clone(&model);
        let syscall_thread = thread::spawn(move || {
            served.serve(0, || served.system_call());
            let interrupted = served.serve(1, || served.system_call());
            assert!(!interrupted, "the signal was for the call before");
        });
        let beats = Arc::clone(&model);
        let heartbeat = thread::spawn(move || beats.beat());
        model.cancel(0);
        heartbeat.join().unwrap();
        syscall_thread.join().unwrap();
        model.assert_no_signal_is_on_its_way();
    });
}

/// A thread died in its call, which is being cancelled, and another one takes its number.
#[test]
fn interrupt_of_a_dead_thread_overwrote_the_call_of_its_successor() {
    loom::model(|| {
        let model = Model::new();
        model.entries[0].begin(0);
        model.serving.begin(0);
        let cancels = Arc::clone(&model);
        let canceller = thread::spawn(move || {
            if cancels.entries[0].cancel() {
                // The kernel finds no such thread.
                cancels.serving.interrupt_with(0, &cancels.entries[0], || false);
            }
        });
        // The heartbeat, and then the thread that it starts.
        model.serving.begin_again(0);
        // SAFETY: the thread that had claimed the entry is gone.
        unsafe { model.entries[0].finish_on_thread(-(libc::EOWNERDEAD as isize)) };
        let interrupted = model.serve(1, || model.system_call());
        assert!(!interrupted, "the signal was for the call before");
        canceller.join().unwrap();
        assert_eq!(model.serving.entry(), None);
        model.assert_no_signal_is_on_its_way();
    });
}

/// A call that takes the signal itself, as the read of a signalfd(2), ends, and the next one can be interrupted.
#[test]
fn call_that_takes_its_signal_ends() {
    loom::model(|| {
        let model = Model::new();
        let served = Arc::clone(&model);
        let syscall_thread = thread::spawn(move || {
            served.serve(0, || served.is_pending.swap(false, Ordering::AcqRel));
            served.serve(1, || served.system_call());
        });
        model.cancel(0);
        model.cancel(1);
        syscall_thread.join().unwrap();
        model.assert_no_signal_is_on_its_way();
    });
}
