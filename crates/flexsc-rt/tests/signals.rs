//! The signal that interrupts syscall threads: one with a handler of the program, and one that a call takes.

mod support;

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{mem, ptr};

use flexsc_rt::operations::read;
use flexsc_rt::{Call, Completion, Config, Descriptor, EntryId, Error, EventLoop, Pages};
use support::{Pipe, post, register};

/// The signal, as the crate documents it.
fn signal() -> i32 {
    libc::SIGRTMAX() - 3
}

extern "C" fn ignore(_signal: i32) {}

/// Sets the handler of the signal.
fn set_handler(handler: libc::sighandler_t) {
    // SAFETY: a handler that does nothing, or the default.
    assert_ne!(unsafe { libc::signal(signal(), handler) }, libc::SIG_ERR);
}

fn set_of(signal: i32) -> libc::sigset_t {
    // SAFETY: a plain C structure.
    unsafe {
        let mut signals = mem::zeroed();
        libc::sigaddset(&mut signals, signal);
        signals
    }
}

fn signalfd(signals: &libc::sigset_t, flags: i32) -> OwnedFd {
    // SAFETY: the set is valid; the descriptor is owned from here on.
    unsafe {
        let fd = libc::signalfd(-1, signals, libc::SFD_CLOEXEC | flags);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    }
}

/// Cancels a call once it has blocked its thread. Returns its result.
fn cancel(pages: &mut Pages, id: EntryId) -> io::Result<usize> {
    let blocked = pages.counters().threads_blocked;
    pages.submit().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while pages.counters().threads_blocked == blocked {
        assert!(Instant::now() < deadline, "the thread is not counted as blocked");
        std::thread::yield_now();
    }
    pages.cancel(id);
    assert!(pages.wait(Some(Duration::from_secs(60))).unwrap(), "the call has not ended");
    let Completion { id: ended, result, .. } = pages.next().unwrap();
    assert_eq!(ended, id);
    result
}

/// One test, as the signal is the process's.
#[test]
fn signals_of_syscall_threads() {
    registration_failed_after_the_handler_of_the_program_was_removed();
    call_that_took_the_signal_kept_its_thread_for_ever();
    signal_of_the_program_itself_kept_a_syscall_thread_for_ever();
    signal_for_the_owner_is_read_from_a_signalfd_that_does_not_block();
}

fn registration_failed_after_the_handler_of_the_program_was_removed() {
    set_handler(ignore as *const () as usize);
    for _ in 0..2 {
        let error = Pages::register(&Config::default()).unwrap_err();
        assert!(matches!(error, Error::SignalInUse(number) if number == signal()), "{error}");
        let mut config = Config::default();
        config.threads = 0;
        register(config);
    }
    set_handler(libc::SIG_DFL);
    let first = register(Config::default());
    let second = register(Config::default());
    // A handler that takes the place of the crate's is noticed, too.
    drop((first, second));
    set_handler(ignore as *const () as usize);
    assert!(matches!(Pages::register(&Config::default()), Err(Error::SignalInUse(_))));
    set_handler(libc::SIG_DFL);
}

fn call_that_took_the_signal_kept_its_thread_for_ever() {
    let mut config = Config::default();
    config.threads = 1;
    let mut pages = register(config);
    let signals = signalfd(&set_of(signal()), 0);
    let mut taken = [0_u8; size_of::<libc::signalfd_siginfo>()];
    let args = [signals.as_raw_fd() as usize, taken.as_mut_ptr() as usize, taken.len(), 0, 0, 0];
    let id = post(&mut pages, &Call::new(libc::SYS_read, args));
    assert_eq!(cancel(&mut pages, id).unwrap(), taken.len());
    // The next call of the thread can be interrupted.
    let (pipe, mut byte) = (Pipe::new(), [0]);
    let id = post(&mut pages, &pipe.blocking_read_of(&mut byte));
    let interrupted = cancel(&mut pages, id).unwrap_err();
    assert_eq!(interrupted.raw_os_error(), Some(libc::EINTR));
}

fn signal_of_the_program_itself_kept_a_syscall_thread_for_ever() {
    let mut config = Config::default();
    config.threads = 1;
    let mut pages = register(config);
    let (pipe, mut byte) = (Pipe::new(), [0]);
    let id = post(&mut pages, &pipe.blocking_read_of(&mut byte));
    pages.submit().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while pages.counters().threads_blocked == 0 {
        assert!(Instant::now() < deadline, "the thread is not counted as blocked");
        std::thread::yield_now();
    }
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        // Threads of former pages may be about to end.
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.trim_end() == "flexsc 0" {
            let thread: i32 = task.file_name().to_str().unwrap().parse().unwrap();
            // SAFETY: the crate's handler counts the signal.
            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal()) };
        }
    }
    assert!(pages.wait(Some(Duration::from_secs(60))).unwrap(), "the call has not ended");
    assert_eq!(pages.next().unwrap().id, id);
    // The next call of the thread can be interrupted.
    let id = post(&mut pages, &pipe.blocking_read_of(&mut byte));
    assert!(cancel(&mut pages, id).is_err());
}

fn signal_for_the_owner_is_read_from_a_signalfd_that_does_not_block() {
    let signals = set_of(libc::SIGUSR1);
    // SAFETY: the mask of this thread; nothing is written.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, ptr::null_mut()) };
    // SAFETY: this thread exists, and has the signal blocked.
    let raise = || unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
    let reads = Descriptor::new(signalfd(&signals, libc::SFD_NONBLOCK));
    for sleep_in_ring in [false, true] {
        let mut config = Config::default();
        config.sleep_in_ring = sleep_in_ring;
        let mut events = EventLoop::new(&config).unwrap();
        for is_there in [true, false] {
            if is_there {
                raise();
            }
            let taken = Rc::new(Cell::new(0));
            let note = Rc::clone(&taken);
            let room = Vec::with_capacity(size_of::<libc::signalfd_siginfo>());
            let done = move |_: &mut EventLoop, (len, _): (io::Result<usize>, _)| {
                note.set(len.unwrap());
            };
            events.post(read(&reads, room), done).unwrap();
            if !is_there {
                events.turn(Some(Duration::ZERO)).unwrap();
                assert_eq!(taken.get(), 0);
                raise();
            }
            while taken.get() == 0 {
                events.turn(None).unwrap();
            }
            assert_eq!(taken.get(), size_of::<libc::signalfd_siginfo>());
        }
        assert_eq!(events.counters().on_threads, 0);
    }
}
