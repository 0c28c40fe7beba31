//! How many syscall threads of the process are active. The only tests of their process, in turn.

mod support;

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use flexsc_rt::{Call, Config, Executor, Pages};
use support::{Pipe, post, register};

static ALONE: Mutex<()> = Mutex::new(());

fn take_all(pages: &mut Pages) {
    while pages.outstanding() > 0 {
        pages.wait(None).unwrap();
        while let Some(completion) = pages.next() {
            completion.result.unwrap();
        }
    }
}

#[test]
fn as_many_threads_as_may_be_are_active_at_a_time() {
    let _alone = ALONE.lock();
    let mut config = Config::default();
    config.active_threads = 2;
    // It would count a thread that waits as blocked.
    config.heartbeat = Duration::from_secs(60);
    let mut pages = register(config);
    let (pipe, mut bytes) = (Pipe::new(), [[0; 1]; 2]);
    for byte in &mut bytes {
        post(&mut pages, &pipe.blocking_read_of(byte));
    }
    pages.submit().unwrap();
    while pages.counters().max_active_threads < 2 {
        thread::yield_now();
    }
    pipe.write(b"xx");
    while pages.outstanding() > 0 {
        pages.wait(None).unwrap();
        while let Some(completion) = pages.next() {
            assert_eq!(completion.result.unwrap(), 1);
        }
    }
    assert_eq!(pages.counters().max_active_threads, 2);
}

/// Each of two registrations may have as many active threads as there are cores; together, they have no more, but one each.
#[test]
fn registrations_had_as_many_active_threads_each_as_there_are_cores() {
    let _alone = ALONE.lock();
    let active = thread::available_parallelism().map_or(1, |cores| cores.get()).max(2);
    let mut config = Config::with_entries(64 * active as u32);
    config.active_threads = active;
    // It would count a thread that waits as blocked.
    config.heartbeat = Duration::from_secs(600);
    let [mut first, mut second] = [(), ()].map(|()| register(config.clone()));
    let [of_first, of_second] = [(), ()].map(|()| Pipe::new());
    let mut bytes = vec![[0; 2]; active];
    for [a, b] in &mut bytes {
        post(&mut first, &of_first.blocking_read_of(std::slice::from_mut(a)));
        post(&mut second, &of_second.blocking_read_of(std::slice::from_mut(b)));
    }
    first.submit().unwrap();
    while first.counters().max_active_threads < active {
        thread::yield_now();
    }
    second.submit().unwrap();
    assert_eq!(second.counters().threads_started, 1);
    // Its calls are made by the only one.
    of_second.write(&vec![b'x'; active]);
    take_all(&mut second);
    assert_eq!(second.counters().max_active_threads, 1);
    // Those of the first pages are active no more.
    of_first.write(&vec![b'x'; active]);
    take_all(&mut first);
    let getpid = Call::bounded(libc::SYS_getpid, [0; 6]).pinned(Executor::Threads);
    while second.counters().max_active_threads < 2 {
        for _ in 0..active {
            post(&mut second, &getpid);
        }
        take_all(&mut second);
    }
}

/// The pages give up a call that does not end.
#[test]
fn thread_of_pages_that_are_gone_is_not_active() {
    let _alone = ALONE.lock();
    let mut config = Config::with_entries(128);
    (config.active_threads, config.heartbeat) = (2, Duration::from_secs(600));
    let (pipe, mut byte) = (Pipe::new(), [0; 1]);
    let mut bytes = [[0; 1]; 2];
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get()).max(2);
    let mut gone = Vec::new();
    for _ in 0..cores {
        let mut pages = register(config.clone());
        let read = pipe.blocking_read_of(&mut byte).uncancellable();
        post(&mut pages, &read);
        pages.submit().unwrap();
        while pages.counters().max_active_threads < 1 {
            thread::yield_now();
        }
        gone.push(pages);
    }
    drop(gone);
    let mut pages = register(config);
    for byte in &mut bytes {
        post(&mut pages, &pipe.blocking_read_of(byte));
    }
    pages.submit().unwrap();
    assert_eq!(pages.counters().threads_started, 2);
    // The calls of the pages that are gone end, too.
    pipe.write(&vec![b'x'; cores + 2]);
    take_all(&mut pages);
    while pipe.available() > 0 {
        thread::yield_now();
    }
}
