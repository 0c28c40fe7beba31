//! The signal that interrupts syscall threads: one with a handler of the program, and one that a call takes.

mod support;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{mem, ptr};

use flexsc_rt::{Call, Completion, Config, EntryId, Error, Pages};
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
    // SAFETY: plain C structures; the descriptor is owned from here on.
    let signals = unsafe {
        let mut signals: libc::sigset_t = mem::zeroed();
        libc::sigaddset(&mut signals, signal());
        let fd = libc::signalfd(-1, ptr::from_ref(&signals), libc::SFD_CLOEXEC);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    };
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
