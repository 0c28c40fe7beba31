//! Models of what the owner and syscall threads share, in every interleaving (loom).

use loom::sync::Arc;
use loom::thread;

use crate::bell::Sleep;
use crate::completions::Completions;
use crate::entry::{Entry, Status};
use crate::page::Submitted;

struct Shared {
    entries: [Entry; 2],
    submitted: Submitted,
    completions: Completions,
}

fn shared() -> Arc<Shared> {
    let entries = [Entry::new(), Entry::new()];
    Arc::new(Shared { entries, submitted: Submitted::new(), completions: Completions::new(2) })
}

/// Claims and executes all that is submitted: the "call" doubles its argument.
fn serve(shared: &Shared, thread: u16) {
    while let Some(index) = shared.submitted.claim() {
        let entry = &shared.entries[index];
        entry.begin(thread);
        // SAFETY: it was claimed.
        unsafe {
            let (number, args) = entry.call();
            entry.finish_on_thread((number as usize + args[0]) as isize);
        }
        shared.completions.push(index as u32);
    }
}

/// Two threads that claim entries of one page, as after a takeover, make each call once, and the
/// owner finds each result; also when it reuses the entry.
#[test]
fn each_call_is_made_once_by_two_threads() {
    loom::model(|| {
        let shared = shared();
        for (index, entry) in shared.entries.iter().enumerate() {
            // SAFETY: it is free.
            unsafe { entry.fill(10, &[index, 0, 0, 0, 0, 0]) };
        }
        shared.submitted.submit(0b11);
        let threads = [1, 2].map(|number| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || serve(&shared, number))
        });
        let (mut head, mut seen) = (0, [false; 2]);
        let mut taken = 0;
        while taken < 2 {
            match shared.completions.pop(&mut head) {
                Some(index) => {
                    let index = index as usize;
                    // SAFETY: the completion says that it is done.
                    let result = unsafe { shared.entries[index].take() };
                    assert_eq!(result, 10 + index as isize);
                    assert!(!std::mem::replace(&mut seen[index], true));
                    taken += 1;
                }
                None => thread::yield_now(),
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(shared.completions.is_empty(head));
    });
}

/// A place of the queue is reused only after the owner has emptied it.
#[test]
fn completions_are_not_overwritten() {
    loom::model(|| {
        let shared = shared();
        let submit = |index: usize, number| {
            // SAFETY: it is free.
            unsafe { shared.entries[index].fill(number, &[0; 6]) };
            shared.submitted.submit(1 << index);
        };
        submit(0, 1);
        submit(1, 2);
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || serve(&shared, 1))
        };
        let (mut head, mut sum, mut taken, mut again) = (0, 0, 0, false);
        while taken < 3 {
            match shared.completions.pop(&mut head) {
                Some(index) => {
                    // SAFETY: the completion says that it is done.
                    sum += unsafe { shared.entries[index as usize].take() };
                    taken += 1;
                    if !again {
                        again = true;
                        submit(index as usize, 4);
                    }
                }
                // The thread may have ended; the owner may claim as well.
                None => {
                    serve(&shared, 2);
                    thread::yield_now();
                }
            }
        }
        other.join().unwrap();
        assert_eq!(sum, 7);
    });
}

/// An owner that withdraws an entry, or cancels it, finds one result.
#[test]
fn cancelled_call_has_one_result() {
    loom::model(|| {
        let shared = shared();
        // SAFETY: it is free.
        unsafe { shared.entries[0].fill(1, &[1, 0, 0, 0, 0, 0]) };
        shared.submitted.submit(1);
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || serve(&shared, 1))
        };
        let withdrawn = shared.submitted.withdraw(0);
        if withdrawn {
            // SAFETY: the owner has claimed it.
            unsafe { shared.entries[0].finish(-4) };
        } else {
            shared.entries[0].cancel();
        }
        other.join().unwrap();
        assert_eq!(shared.entries[0].status(), Status::Done);
        let mut head = 0;
        assert_eq!(shared.completions.pop(&mut head).is_none(), withdrawn);
        // SAFETY: it is done.
        assert_eq!(unsafe { shared.entries[0].take() }, if withdrawn { -4 } else { 2 });
    });
}

/// An owner that falls asleep is woken, or has seen the completion.
#[test]
fn sleeping_owner_is_woken() {
    loom::model(|| {
        let shared = Arc::new((Completions::new(1), Sleep::new()));
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.0.push(0);
                shared.1.must_ring()
            })
        };
        shared.1.prepare();
        let seen = !shared.0.is_empty(0);
        let rung = other.join().unwrap();
        assert!(seen || rung);
    });
}
