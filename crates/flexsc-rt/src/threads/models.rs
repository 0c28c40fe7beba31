//! A model of threads that execute a page, and of the heartbeat that takes it over, in every interleaving (loom).
//!
//! A thread may be in its call for as long as any other takes: so it blocks, and proc(5), which has no such thread, does
//! not say that it runs.

use loom::thread;

use super::*;

/// The number of a system call without effect on the model.
const CALL: u32 = libc::SYS_getppid as u32;

/// A pool whose threads the model makes.
fn pool() -> Arc<Pool> {
    let shared = Arc::new(Shared::new(1).unwrap());
    let threads = Threads::new(shared, 2, 1, Duration::ZERO, Specialization::Off);
    Arc::clone(&threads.0)
}

impl Pool {
    /// Submits entries of the first page as [`Threads::submit`] does, without starting threads.
    fn submit(&self, mask: u64) {
        for place in 0..ENTRIES as u32 {
            if mask >> place & 1 != 0 {
                // SAFETY: it is free.
                unsafe { self.shared.entry(place).fill(CALL, &[0; 6]) };
            }
        }
        let mut state = self.lock();
        self.shared.submitted[0].submit(mask);
        state.queue_page(0);
    }

    /// A thread executes the next page, if it may be active.
    fn serve_once(&self, number: u16) {
        let mut state = self.lock();
        if let Some(page) = self.begin_active(&mut state) {
            drop(self.serve_page(number, page, state, &mut Applied::default()));
        }
    }
}

/// Each call is made once, no page is lost, and the threads that are active are counted, also if the heartbeat takes the
/// page over while its thread ends a call, begins the next one, or gives the page back, and the owner submits more.
#[test]
fn page_that_is_taken_over_loses_no_call() {
    loom::model(|| {
        let pool = pool();
        pool.submit(0b01);
        let [first, second] = [0, 1].map(|number| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.serve_once(number))
        });
        let mut seen = [ThreadCall::default(); 2];
        pool.beat(&mut pool.lock(), &mut seen);
        pool.submit(0b10);
        pool.beat(&mut pool.lock(), &mut seen);
        first.join().unwrap();
        second.join().unwrap();
        // A page that was queued meanwhile.
        pool.serve_once(0);
        let state = pool.lock();
        assert_eq!((state.active, state.pages[0], state.queue.len()), (0, PageState::Idle, 0));
        assert!(pool.shared.submitted[0].is_empty());
        assert!(pool.threads.iter().all(|thread| !thread.blocked.load(Ordering::Relaxed)));
        let mut head = 0;
        let mut made =
            [pool.shared.completions.pop(&mut head), pool.shared.completions.pop(&mut head)];
        made.sort_unstable();
        assert_eq!(made, [Some(0), Some(1)]);
        assert!(pool.shared.completions.is_empty(head));
    });
}
