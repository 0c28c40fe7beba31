//! Core specialization: what the counters and the affinity of the syscall threads show.

mod support;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flexsc_rt::{Call, Config, Executor, Pages, Specialization};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use support::register;

/// Time after which a test fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The pages, and a call that keeps a thread busy for a while, so that the owner may be late.
struct Busy {
    pages: Pages,
    zero: File,
    buffer: Vec<u8>,
}

impl Busy {
    fn new(specialization: Specialization) -> Self {
        Busy::with_entries(specialization, 128)
    }

    /// With 64 entries, a page, one thread is active at a time.
    fn with_entries(specialization: Specialization, entries: u32) -> Self {
        Busy::with(specialization, entries, Duration::from_micros(500))
    }

    fn with(specialization: Specialization, entries: u32, heartbeat: Duration) -> Self {
        let mut config = Config::with_entries(entries);
        config.heartbeat = heartbeat;
        (config.executor, config.uses_ring) = (Some(Executor::Threads), false);
        config.specialization = specialization;
        let zero = File::open("/dev/zero").unwrap();
        Busy { pages: register(config), zero, buffer: vec![0; 4 << 20] }
    }

    /// Posts calls until so many are outstanding.
    fn fill(&mut self, calls: usize) {
        let address = self.buffer.as_mut_ptr() as usize;
        let args = [self.zero.as_raw_fd() as usize, address, self.buffer.len(), 0, 0, 0];
        while self.pages.outstanding() < calls {
            // SAFETY: file and memory outlive the pages, and nothing reads the memory.
            unsafe { self.pages.post(&Call::bounded(libc::SYS_read, args)) }.unwrap();
        }
    }

    /// Takes the completions that are there, at least one.
    fn take(&mut self) {
        assert!(self.pages.wait(None).unwrap());
        while let Some(completion) = self.pages.next() {
            assert_eq!(completion.result.unwrap(), self.buffer.len());
        }
    }

    /// Keeps the threads busy until something is so.
    fn until(&mut self, what: &str, calls: usize, is_so: impl Fn(&Pages) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_so(&self.pages) {
            assert!(Instant::now() < deadline, "not so: {what}");
            self.fill(calls);
            self.take();
        }
    }

    fn end(mut self) {
        while self.pages.outstanding() > 0 {
            self.take();
        }
    }
}

/// Returns the cores that the syscall threads of this process may use. There is one registration.
fn cores_of_threads() -> Vec<CpuSet> {
    let mut all = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let number = name.trim_end().strip_prefix("flexsc ").and_then(|n| n.parse::<u16>().ok());
        if number.is_some() {
            let id = task.file_name().to_str().unwrap().parse().unwrap();
            all.extend(sched_getaffinity(Pid::from_raw(id)));
        }
    }
    all
}

/// One core, which the owner and the threads share.
fn nothing_is_given(specialization: Specialization) {
    println!("not tested: one core, {specialization:?}");
    let mut busy = Busy::new(specialization);
    busy.until("calls are made", 128, |pages| pages.counters().on_threads > 1_000);
    assert_eq!(busy.pages.counters().cores_given, 0);
    busy.end();
}

/// One test at a time, as each looks at the threads of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn is_given(pages: &Pages) -> bool {
    let counters = pages.counters();
    counters.cores_given > counters.cores_taken_back
}

#[test]
fn threads_shared_the_core_to_which_their_owner_had_moved() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let allowed = sched_getaffinity(None).unwrap();
    if allowed.count() < 2 {
        return println!("not tested: several cores");
    }
    // Without a heartbeat no cores are given, and so none are taken back, after which a thread has all cores, too.
    let mut busy = Busy::with(Specialization::Adaptive, 128, Duration::from_secs(3600));
    let mut own = CpuSet::new();
    own.set(sched_getcpu());
    sched_setaffinity(None, &own).unwrap();
    busy.until("a thread has all cores", 128, |_| cores_of_threads().contains(&allowed));
    assert_eq!(busy.pages.counters().cores_given, 0);
    busy.end();
    sched_setaffinity(None, &allowed).unwrap();
}

#[test]
fn busy_threads_get_cores_of_their_own_and_give_them_back() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let allowed = sched_getaffinity(None).unwrap();
    if allowed.count() < 2 {
        return nothing_is_given(Specialization::WhileBusy);
    }
    let mut busy = Busy::new(Specialization::WhileBusy);
    // The owner stays where it is.
    let core = sched_getcpu();
    let mut own = CpuSet::new();
    own.set(core);
    sched_setaffinity(None, &own).unwrap();

    busy.until("cores are given", 128, is_given);
    let leaves = |cores: &CpuSet| !cores.is_set(core) && cores.count() == allowed.count() - 1;
    // A thread moves before its next page; one that finds no further page moves never.
    busy.until("a thread leaves the owner's core", 128, |_| cores_of_threads().iter().any(leaves));

    // Nothing is posted any more.
    while busy.pages.outstanding() > 0 {
        busy.take();
    }
    let deadline = Instant::now() + TIMEOUT;
    while is_given(&busy.pages) {
        assert!(Instant::now() < deadline, "the cores are not taken back");
        thread::yield_now();
    }
    busy.until("a thread returns", 1, |_| cores_of_threads().contains(&allowed));
    busy.end();

    // Without specialization nothing is given, for as long as another registration takes to get cores.
    sched_setaffinity(None, &allowed).unwrap();
    let mut shared = Busy::new(Specialization::Off);
    let mut busy = Busy::new(Specialization::WhileBusy);
    busy.until("cores are given again", 128, is_given);
    shared.until("calls are made", 128, |pages| pages.counters().on_threads > 1_000);
    let counters = shared.pages.counters();
    assert_eq!((counters.cores_given, counters.cores_taken_back), (0, 0));
    busy.end();
    shared.end();
}

#[test]
fn threads_shared_the_core_to_which_their_owner_was_moved_after_they_had_left_its_former_one() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let allowed = sched_getaffinity(None).unwrap();
    if allowed.count() < 2 {
        return println!("not tested: several cores");
    }
    let mut busy = Busy::new(Specialization::WhileBusy);
    let first = sched_getcpu();
    let is_other = |core: &usize| *core != first && allowed.is_set(*core);
    let second = (0..CpuSet::MAX_CPU).find(is_other).unwrap();
    for core in [first, second] {
        let mut own = CpuSet::new();
        own.set(core);
        sched_setaffinity(None, &own).unwrap();
        busy.until("cores are given", 128, is_given);
        let mut left = allowed;
        left.unset(core);
        busy.until("a thread leaves the owner's core", 128, |_| cores_of_threads().contains(&left));
    }
    busy.end();
    sched_setaffinity(None, &allowed).unwrap();
}

/// Threads that compute as long as this exists: one more than there are cores.
struct Load<'a>(&'a AtomicBool);

impl<'a> Load<'a> {
    fn begin(scope: &'a thread::Scope<'a, '_>, ends: &'a AtomicBool, cores: u32) -> Self {
        for _ in 0..=cores {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Load(ends)
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The default. That the threads get cores without that load is a test of `cores.rs`, where the load is given.
#[test]
fn adaptive_threads_get_no_cores_while_other_threads_of_the_machine_could_run() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let allowed = sched_getaffinity(None).unwrap();
    assert_eq!(Config::default().specialization, Specialization::Adaptive);
    if allowed.count() < 2 {
        return nothing_is_given(Specialization::Adaptive);
    }
    let mut adaptive = Busy::with_entries(Specialization::Adaptive, 64);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = Load::begin(scope, &ends, allowed.count());
        adaptive.until("the cores are taken back", 8, |pages| !is_given(pages));
        let given = adaptive.pages.counters().cores_given;
        // For as long as another registration takes to get cores, these get none.
        let mut busy = Busy::new(Specialization::WhileBusy);
        let deadline = Instant::now() + TIMEOUT;
        while !is_given(&busy.pages) {
            assert!(Instant::now() < deadline, "no cores are given to the other registration");
            busy.fill(128);
            adaptive.fill(8);
            busy.take();
            adaptive.take();
        }
        assert_eq!(adaptive.pages.counters().cores_given, given);
        drop(load);
        busy.end();
    });
    adaptive.end();
}
