//! Pages on a simulated machine, whose steps follow from a seed: what the owner and the syscall threads do is the code of
//! the crate, and what the kernel does happens between their steps. `futures.rs` has tasks that wait for calls, and drop
//! them; `events.rs` has callbacks, and calls that are delayed.
//!
//! The ring (`call_ring.rs`), the epoll set and the clock are also those of `benches/flexsc-sim`, where another machine
//! makes calls of a server. The module `machine` of each has what differs.
//!
//! `models.rs` checks in every interleaving the few atomic operations that owner and threads share; here millions of
//! posts, cancellations and completions meet, by all executors, while entries and threads run short, die, or cannot be
//! started.

#![allow(dead_code, unreachable_pub, reason = "the tests do not use all of the included modules")]

mod active;
mod armed;
mod call_ring;
mod clock;
#[path = "../cores.rs"]
mod cores;
mod epoll_set;
#[path = "../event_loop.rs"]
mod event_loop;
mod events;
#[path = "../future/mod.rs"]
mod future;
mod futures;
mod interrupt;
mod kernel_ring;
mod machine;
mod notifier;
#[path = "../pages/mod.rs"]
mod pages;
mod processors;
mod raw;
#[path = "../readiness.rs"]
mod readiness;
#[path = "../ring.rs"]
mod ring;
mod tasks;
#[path = "../threads/mod.rs"]
mod threads;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::Duration;

use crate::call::{Call, Direction, Executor, Waits};
use crate::descriptor::Descriptor;
use crate::error::Busy;
use crate::registered::FilePlace;
use crate::specialization::Specialization;
use machine::{
    CLOSED, DESCRIPTORS, DIES, SAYS_CANCELLED, STANDSTILL, Starts, WITH_ERRORS, machine, step,
};
use pages::{Config, Counters, EntryId, Pages};

/// A run: the pages, and the calls whose completions were not taken.
struct Run {
    pages: Pages,
    live: HashMap<EntryId, Posted>,
    /// Files that calls are about, of which some are registered with the ring.
    files: Vec<Descriptor>,
    registered: u64,
    ids: Vec<EntryId>,
    next_call: usize,
    taken: u64,
    interrupted: u64,
    not_open: u64,
    no_thread: u64,
    busy: u64,
}

#[derive(Debug)]
struct Posted {
    call: usize,
    id: EntryId,
    cancelled: bool,
    uncancellable: bool,
    needs_the_closed_one: bool,
    of: Call,
    /// The registered file that it is about.
    _file: Option<Descriptor>,
}

impl Posted {
    fn new(number: usize, id: EntryId, call: &Call, file: Option<Descriptor>) -> Self {
        Posted {
            call: number,
            id,
            cancelled: false,
            uncancellable: call.uncancellable,
            needs_the_closed_one: needs_the_closed_one(call),
            of: *call,
            _file: file,
        }
    }
}

fn random(below: u64) -> u64 {
    machine(|machine| machine.random(below))
}

/// Returns any call, of this number.
fn random_call(of: usize) -> Call {
    let fd = if random(32) == 0 { CLOSED } else { random(DESCRIPTORS as u64) as i32 };
    let direction = if random(2) == 0 { Direction::Read } else { Direction::Write };
    let args = [of, fd as usize, direction as usize, 0, 0, 0];
    let number = 1_000 + random(3) as libc::c_long;
    let call = match random(8) {
        0..=3 => Call::bounded(number, args),
        4 => {
            let call = Call::new(number + 10, args).waits(Waits::Ready(fd, direction));
            if random(2) == 0 && fd >= WITH_ERRORS as i32 { transfer(call) } else { call }
        }
        5 => Call::new(number + 10, args).waits(Waits::AfterReady(fd, direction)),
        6 => match random(2) {
            0 => Call::until_ready(fd, direction),
            _ => Call::new(number + 20, args).waits(Waits::ReadyThenBlocks(fd, direction)),
        },
        _ if random(8) == 0 => {
            Call::new(libc::c_long::from(DIES) + random(2) as libc::c_long, args)
        }
        _ => Call::new(number + 30, args),
    };
    let bounded = call.waits == Waits::Bounded;
    // A pinned call that finds its descriptor not ready reports that.
    let repeats = matches!(call.waits, Waits::Ready(..) | Waits::AfterReady(..));
    let call = match random(6) {
        0 => call.pinned(Executor::Ring),
        1 if bounded => call.pinned(Executor::InPlace),
        2 if bounded => call.pinned(Executor::Shared),
        3 if !repeats => call.pinned(Executor::Threads),
        4..=5 if bounded || repeats => {
            let mut call = call.in_batches();
            // In the ring it does not wait.
            call.args[3] = random(2) as usize;
            call
        }
        _ => call,
    };
    if random(16) == 0 { call.uncancellable() } else { call }
}

/// Returns a call that needs another descriptor, too, in the other direction.
fn transfer(mut call: Call) -> Call {
    let other = (WITH_ERRORS as u64 + random((DESCRIPTORS - WITH_ERRORS) as u64)) as i32;
    call.args[4] = other as usize + 1;
    call.other_end(other)
}

/// Begins a run. In half of them the kernel does not start every thread, in a fifth no notifier.
fn prepare(seed: u64, config: &Config) {
    machine(|machine| {
        machine.reset(seed);
        machine.max_threads = config.threads.into();
        machine.refuses_notifier = seed % 5 == 2;
        machine.starts = match seed % 4 {
            1 => Starts::UpTo(machine.random(u64::from(config.threads) + 1) as usize),
            3 => Starts::Some(1 + machine.random(3)),
            _ => Starts::All,
        };
    });
}

/// Returns whether this is the error of a call whose thread died, or that has none: the kernel starts none, and those that
/// run are blocked.
fn has_no_thread(call: &Call, error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::EOWNERDEAD) => (DIES..DIES + 10).contains(&call.number),
        Some(libc::EAGAIN) => {
            machine(|machine| machine.starts != Starts::All) && call.waits != Waits::Bounded
        }
        _ => false,
    }
}

/// Returns whether a call needs the descriptor that is closed.
fn needs_the_closed_one(call: &Call) -> bool {
    call.waits.descriptor().is_some_and(|(fd, _)| fd == CLOSED)
}

impl Run {
    fn new(seed: u64, config: &Config) -> Self {
        prepare(seed, config);
        Run::started(config)
    }

    fn started(config: &Config) -> Self {
        let pages = Pages::register(config).unwrap();
        Run {
            pages,
            live: HashMap::new(),
            files: Vec::new(),
            registered: 0,
            ids: Vec::new(),
            next_call: 0,
            taken: 0,
            interrupted: 0,
            not_open: 0,
            no_thread: 0,
            busy: 0,
        }
    }

    fn post(&mut self) {
        let call = random_call(self.next_call);
        // The machine has other descriptors, so the last argument of a call is the file.
        let file = match random(4) {
            0 if !self.files.is_empty() => {
                self.files[random(self.files.len() as u64) as usize].clone()
            }
            _ => return self.post_call(call, None),
        };
        let (mut args, place) = (call.args, file.place().unwrap_or(FilePlace::NONE));
        args[5] = file.arg();
        self.post_call(Call { args, file: place, ..call }, Some(file));
    }

    /// Registers a file, of which the table has room for some, or drops one.
    fn change_files(&mut self) {
        if self.files.len() > FILES as usize {
            self.files.swap_remove(random(self.files.len() as u64) as usize);
        }
        let file = Descriptor::new(File::open("/dev/null").unwrap());
        self.registered += u64::from(self.pages.register_file(&file));
        self.files.push(file);
    }

    fn post_call(&mut self, call: Call, file: Option<Descriptor>) {
        let number = self.next_call;
        machine(|machine| machine.lend(number));
        // SAFETY: the machine has no memory.
        match unsafe { self.pages.post(&call) } {
            Ok(id) => {
                self.next_call += 1;
                let posted = Posted::new(number, id, &call, file);
                machine(|machine| machine.makes_no_call(number, call.waits));
                assert!(self.live.insert(id, posted).is_none(), "the entry was in use");
                self.ids.push(id);
            }
            Err(Busy) => {
                machine(|machine| machine.take_back(number));
                self.busy += 1;
                let is_full = self.pages.outstanding() == self.pages.entries();
                assert!(call.waits != Waits::Bounded || is_full, "a bounded call was refused");
            }
        }
        if self.ids.len() > 4 * self.pages.entries() {
            self.ids.drain(..self.pages.entries());
        }
    }

    /// Cancels a call, or one that has completed.
    fn cancel(&mut self) {
        if self.ids.is_empty() {
            return;
        }
        let id = self.ids[random(self.ids.len() as u64) as usize];
        self.pages.cancel(id);
        if let Some(posted) = self.live.get_mut(&id) {
            posted.cancelled = true;
        }
    }

    /// Takes completions, so many at most.
    fn take(&mut self, max: u64) {
        for _ in 0..max {
            let Some(completion) = self.pages.next() else { return };
            let posted = self.live.remove(&completion.id).expect("a completion of a posted call");
            assert_eq!(posted.id, completion.id);
            self.taken += 1;
            let effects = machine(|machine| machine.take_back(posted.call));
            match completion.result {
                Ok(result) => {
                    assert!(!posted.needs_the_closed_one, "{posted:?} ended with {result}");
                    let expected =
                        effects.is_none_or(|effects| effects == 1 && result == posted.call);
                    assert!(expected, "{posted:?} ended with {result}, after {effects:?} effects");
                }
                Err(error) => {
                    assert!(
                        effects.is_none_or(|effects| effects == 0),
                        "{posted:?} had its effect"
                    );
                    if error.raw_os_error() == Some(libc::EBADF) {
                        assert!(posted.needs_the_closed_one, "{posted:?}");
                        self.not_open += 1;
                        continue;
                    }
                    if has_no_thread(&posted.of, &error) {
                        self.no_thread += 1;
                        continue;
                    }
                    assert_eq!(error.raw_os_error(), Some(libc::EINTR), "{posted:?}");
                    assert!(posted.cancelled && !posted.uncancellable, "{posted:?}");
                    self.interrupted += 1;
                }
            }
        }
    }

    fn step(&mut self) -> io::Result<()> {
        if random(200) == 0 {
            self.end_bounded();
        }
        if random(64) == 0 {
            self.change_files();
        }
        match random(16) {
            0..=5 => self.post(),
            6..=7 => self.cancel(),
            8..=10 => self.take(1 + random(8)),
            11..=12 => (0..=random(16)).for_each(|_| step()),
            13 => self.pages.submit().map_err(io::Error::other)?,
            14 => {
                let timeout = Duration::from_nanos([0, 300, 5_000][random(3) as usize]);
                self.pages.wait(Some(timeout)).map_err(io::Error::other)?;
            }
            // The machine panics if nothing could end the wait.
            _ => {
                self.pages.wait(None).map_err(io::Error::other)?;
            }
        }
        if let Some(threads) = &self.pages.threads {
            threads.assert_pages_are_locked();
        }
        Ok(())
    }

    /// Waits for the bounded calls while no other ends (section 7).
    fn end_bounded(&mut self) {
        machine(|machine| machine.stands_still = true);
        while self.live.values().any(|posted| posted.of.waits == Waits::Bounded) {
            self.pages.wait(None).unwrap();
            self.take(u64::MAX);
        }
        machine(|machine| machine.stands_still = false);
    }

    /// Posts calls that compute on threads until so many are outstanding.
    fn fill(&mut self, calls: usize) {
        while self.pages.outstanding() < calls {
            let number = self.next_call;
            let call = Call::bounded(1_001, [number, 0, 0, 0, 0, 0]).pinned(Executor::Threads);
            machine(|machine| machine.lend(number));
            self.next_call += 1;
            // SAFETY: the machine has no memory.
            let id = unsafe { self.pages.post(&call) }.unwrap();
            self.live.insert(id, Posted::new(number, id, &call, None));
        }
    }

    /// Keeps so many calls that compute outstanding on threads, until something is so.
    fn keep_busy(&mut self, calls: usize, is_so: impl Fn(&Counters) -> bool) {
        for _ in 0..STANDSTILL {
            if is_so(&self.pages.counters()) {
                return;
            }
            self.fill(calls);
            self.pages.submit().unwrap();
            step();
            self.take(u64::MAX);
        }
        panic!("standstill: it is not so");
    }

    /// Ends all calls, and checks that nothing is lost and that no thread remains. Returns how often each outcome occurred.
    fn end(mut self) -> [u64; 8] {
        self.end_bounded();
        let mut posted: Vec<_> = self.live.values_mut().collect();
        posted.sort_by_key(|posted| posted.call);
        for posted in posted {
            self.pages.cancel(posted.id);
            posted.cancelled = true;
        }
        while self.pages.outstanding() > 0 {
            self.pages.wait(None).unwrap();
            self.take(u64::MAX);
        }
        assert!(self.live.is_empty(), "lost: {:?}", self.live);
        machine(|machine| machine.assert_idle());
        // Every entry can be used again.
        for number in 0..self.pages.entries() {
            let number = self.next_call + number;
            let call = Call::bounded(1_000, [number, 0, 0, 0, 0, 0]);
            machine(|machine| machine.lend(number));
            // SAFETY: the machine has no memory.
            unsafe { self.pages.post(&call.pinned(Executor::InPlace)) }.unwrap();
        }
        self.pages.wait(None).unwrap();
        let taken = std::iter::from_fn(|| self.pages.next()).count();
        assert_eq!(taken, self.pages.entries());
        let Counters { threads_started, threads_blocked, threads_died, .. } = self.pages.counters();
        let Counters { max_active_threads, .. } = self.pages.counters();
        assert!(max_active_threads <= ACTIVE_THREADS, "{max_active_threads} threads were active");
        let Run { pages, taken, interrupted, not_open, no_thread, busy, .. } = self;
        drop(pages);
        assert_eq!(tasks::living(), 0, "threads have not ended");
        assert_eq!(active::count(), 0, "threads that are gone count as active");
        let [started, blocked, died] = [threads_started, threads_blocked, threads_died];
        [taken, interrupted, not_open, busy, no_thread, started, blocked, died]
    }
}

/// Places for registered files.
const FILES: u32 = 2;

/// Threads that may be active at a time.
const ACTIVE_THREADS: usize = 2;

fn configurations() -> [Config; 4] {
    let few = |sleep_in_ring, threads, ring| {
        let mut config = Config::with_entries(64);
        (config.reserve, config.threads, config.active_threads) = (8, threads, ACTIVE_THREADS);
        (config.sleep_in_ring, config.uses_ring) = (sleep_in_ring, ring);
        (config.heartbeat, config.registered_files) = (Duration::from_micros(3), FILES);
        config
    };
    let mut more = few(false, 5, true);
    more.entries = 192;
    [few(false, 3, true), few(true, 3, true), few(false, 2, false), more]
}

/// Runs each configuration with seeds, and sums the outcomes, each of which has to occur more often than there are seeds.
fn run_seeds<const N: usize>(seeds: Range<u64>, run: impl Fn(u64, &Config) -> [u64; N]) {
    for (n, config) in configurations().iter().enumerate() {
        let mut total = [0; N];
        for seed in seeds.clone() {
            run(seed, config).iter().zip(&mut total).for_each(|(count, total)| *total += count);
        }
        assert!(total.iter().all(|count| *count > seeds.end - seeds.start), "{n}: {total:?}");
    }
}

/// Returns further seeds: as many as `FLEXSC_SEEDS` says, or 100.
fn more_seeds() -> Range<u64> {
    let seeds = std::env::var("FLEXSC_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    1_000..1_000 + seeds.unwrap_or(100)
}

fn run_calls(seed: u64, config: &Config) -> [u64; 9] {
    let mut run = Run::new(seed, config);
    for _ in 0..20_000 {
        run.step().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    // Without a ring, no file is registered, which must not count as an outcome that is missing.
    let registered = if config.uses_ring { run.registered } else { 2 };
    assert!(config.uses_ring || run.registered == 0, "seed {seed}: {} files", run.registered);
    let outcomes = run.end();
    std::array::from_fn(|n| outcomes.get(n).copied().unwrap_or(registered))
}

/// A call is made once, or not at all if its result is `EINTR`, `EBADF` as its descriptor is closed, `EOWNERDEAD` as its
/// thread died, or `EAGAIN` as it has none; no completion is lost, and none is reported twice; the kernel and the threads
/// use no memory whose completion was taken; a wait ends, and bounded calls end while no other does; no more threads are
/// active than may be, a page has one of them at a time, and none remains; a registered file stays in its place while the
/// ring has to find it there.
#[test]
fn cancels_completions_and_throttling_race_for_millions_of_steps() {
    run_seeds(0..25, run_calls);
}

/// A cancellation that the ring had not taken when its wait ended by itself reached the wait for the other end.
#[test]
fn waits_of_a_transfer_were_cancelled_with_those_before() {
    let config = &configurations()[1];
    for seed in 0..50 {
        let mut run = Run::new(seed, config);
        for _ in 0..3_000 {
            match random(4) {
                0 => {
                    for _ in 0..random(40) {
                        let number = run.next_call;
                        let fd = WITH_ERRORS as u64 + random((DESCRIPTORS - WITH_ERRORS) as u64);
                        let to = Direction::Write;
                        let args = [number, fd as usize, to as usize, 0, 0, 0];
                        let call = Call::new(1_010, args).waits(Waits::Ready(fd as i32, to));
                        run.post_call(transfer(call), None);
                    }
                }
                1 => {
                    run.pages.wait(Some(Duration::ZERO)).unwrap();
                }
                2 => (0..=random(16)).for_each(|_| step()),
                _ => run.take(8),
            }
        }
        run.end();
    }
}

#[test]
fn ecanceled_of_a_call_in_the_ring_that_nobody_cancelled_was_eintr() {
    for config in &configurations()[..2] {
        let mut run = Run::new(0, config);
        machine(|machine| machine.lend(0));
        let call = Call::new(SAYS_CANCELLED.into(), [0; 6]).pinned(Executor::Ring);
        // SAFETY: the machine has no memory.
        unsafe { run.pages.post(&call) }.unwrap();
        run.pages.wait(None).unwrap();
        let error = run.pages.next().unwrap().result.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
        machine(|machine| machine.take_back(0));
        run.next_call = 1;
        run.end();
    }
}

#[test]
fn cancellation_that_the_ring_refused_after_the_end_of_its_call_was_not_offered_again() {
    let mut run = Run::new(0, &configurations()[0]);
    machine(|machine| {
        machine.lend(0);
        machine.stands_still = true;
    });
    // SAFETY: the machine has no memory.
    let id = unsafe { run.pages.post(&Call::new(1_031, [0; 6]).pinned(Executor::Ring)) }.unwrap();
    run.pages.submit().unwrap();
    while run.pages.ring_is_behind() {
        run.pages.submit().unwrap();
    }
    run.pages.cancel(id);
    machine(|machine| {
        machine.stands_still = false;
        while machine.ring.deferred.is_empty() {
            machine.step_ring();
        }
        machine.kernel_ring.be_short_until(u64::MAX);
    });
    run.pages.submit().unwrap();
    assert_eq!(run.pages.next().unwrap().result.unwrap(), 0);
    assert!(run.pages.ring_is_behind(), "the kernel is short of memory");
    machine(|machine| machine.kernel_ring.be_short_until(0));
    let mut entries = 0;
    while run.pages.ring_is_behind() && entries < 100 {
        run.pages.submit().unwrap();
        entries += 1;
    }
    assert!(entries < 100, "the owner would not sleep");
    machine(|machine| machine.take_back(0));
    run.next_call = 1;
    run.end();
}

#[test]
fn pinned_calls_that_the_ring_refused_were_given_to_threads_one_at_a_time() {
    for config in &configurations()[..2] {
        let mut run = Run::new(0, config);
        // One that the ring makes, too.
        for number in 0..=32 {
            let of = if number == 0 { 1_000 } else { 1_002 };
            let call = Call::bounded(of, [number, 0, 0, 0, 0, 0]).pinned(Executor::Ring);
            run.post_call(call, None);
        }
        run.pages.submit().unwrap();
        assert_eq!(run.pages.counters().ring_refused, 32);
        assert_eq!((run.pages.counters().on_threads, processors::submitted()), (32, 1));
        run.end();
    }
}

/// The heartbeat began its wait for the next check anew after each post.
#[test]
fn posts_delayed_the_end_of_a_call_whose_thread_had_died() {
    const PERIOD: Duration = Duration::from_micros(100);
    let mut config = Config::with_entries(64);
    (config.threads, config.active_threads, config.uses_ring) = (3, 2, false);
    config.heartbeat = PERIOD;
    let mut run = Run::new(0, &config);
    machine(|machine| machine.holds_deaths = true);
    run.post_call(Call::new(DIES.into(), [0; 6]), None);
    let dies = run.ids[0];
    run.pages.submit().unwrap();
    while run.pages.counters().threads_blocked == 0 {
        step();
    }
    machine(|machine| machine.holds_deaths = false);
    while tasks::dead() == 0 {
        step();
    }
    let now = || machine(|machine| Duration::from_nanos(machine.now_ns));
    // 1,024 beats, each of which may come late.
    let deadline = now() + PERIOD * 1_536;
    while run.live.contains_key(&dies) {
        assert!(now() < deadline, "its call has not ended");
        let call = Call::bounded(1_000, [run.next_call, 0, 0, 0, 0, 0]);
        run.post_call(call.pinned(Executor::Threads), None);
        run.pages.submit().unwrap();
        let next_post = now() + PERIOD * 100;
        while now() < next_post {
            step();
        }
        run.take(u64::MAX);
    }
    run.end();
}

/// A busy owner and a busy thread of two cores have one each, while no other thread of the machine could run.
#[test]
fn threads_get_cores_while_the_load_justifies_it() {
    let mut config = Config::with_entries(64);
    (config.threads, config.active_threads, config.uses_ring) = (3, 2, false);
    config.heartbeat = Duration::from_micros(3);
    prepare(2, &config);
    processors::set(2, 2);
    let mut run = Run::started(&config);
    let given = |counters: &Counters| counters.cores_given - counters.cores_taken_back;
    let is_owners = || processors::allowed().is_some_and(|cores| cores.is_set(0));
    run.keep_busy(32, |counters| given(counters) == 1);
    run.keep_busy(32, |_| !is_owners());
    processors::set(2, 3);
    run.keep_busy(32, |counters| given(counters) == 0);
    run.keep_busy(32, |_| is_owners());
    processors::set(2, 2);
    run.keep_busy(32, |counters| given(counters) == 1);
    // No load is left.
    run.keep_busy(0, |counters| given(counters) == 0);
    assert_eq!(run.pages.counters().cores_given, 2);
    run.end();
}

#[test]
fn owner_that_slept_had_a_core_of_its_own() {
    let mut config = Config::with_entries(64);
    (config.threads, config.active_threads, config.uses_ring) = (3, 2, false);
    config.heartbeat = Duration::from_micros(3);
    for (specialization, has_core) in
        [(Specialization::Adaptive, false), (Specialization::WhileBusy, true)]
    {
        config.specialization = specialization;
        prepare(2, &config);
        processors::set(2, 2);
        let mut run = Run::started(&config);
        let mut given = 0;
        // Several times as many as the threads need to get cores.
        for _ in 0..8_000 {
            run.fill(32);
            run.pages.wait(None).unwrap();
            run.take(u64::MAX);
            given = run.pages.counters().cores_given;
            if given > 0 {
                break;
            }
        }
        assert_eq!(given > 0, has_core, "{specialization:?}");
        run.end();
    }
}

/// The same for more seeds: `FLEXSC_SEEDS=10000 cargo test -p flexsc-rt --lib more_seeds -- --ignored`.
#[test]
#[ignore = "runs until all of FLEXSC_SEEDS are done; cancels_completions_and_throttling_race_for_millions_of_steps runs by default"]
fn more_seeds_of_calls() {
    run_seeds(more_seeds(), run_calls);
}

#[test]
fn runs_are_repeatable() {
    let run = |seed| {
        let mut run = Run::new(seed, &configurations()[3]);
        (0..5_000).for_each(|_| run.step().unwrap());
        let counters = run.pages.counters();
        (run.end(), counters)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

/// The time of the only call that was on a thread was shared out to all calls of the batch.
#[test]
fn call_in_a_batch_of_cheaper_ones_went_to_threads() {
    let mut config = Config::with_entries(64);
    (config.threads, config.active_threads, config.uses_ring) = (2, 1, false);
    prepare(0, &config);
    // Calls of high numbers would learn together.
    machine(|machine| machine.call_ns = [(110, 100), (111, 1_000)].into());
    let mut run = Run::started(&config);
    let mut on_threads = [0; 2];
    for (batches, on_threads) in [4_000, 1_000].into_iter().zip(&mut on_threads) {
        for _ in 0..batches {
            for number in 0..64 {
                let call = Call::bounded(110 + libc::c_long::from(number == 0), [number; 6]);
                machine(|machine| machine.lend(number));
                // SAFETY: the machine has no memory.
                unsafe { run.pages.post(&call) }.unwrap();
            }
            while run.pages.outstanding() > 0 {
                run.pages.wait(None).unwrap();
                while let Some(ended) = run.pages.next() {
                    machine(|machine| machine.take_back(ended.result.unwrap()));
                }
            }
        }
        *on_threads = run.pages.counters().on_threads;
    }
    // One trial of each number at most.
    assert!(on_threads[1] - on_threads[0] <= 4 * 64, "{on_threads:?}");
    run.end();
}

/// Returns the counters after batches of calls, after each of which a callback takes so long. Each batch has ended before
/// the owner looks.
fn run_with_callbacks(callback_ns: u64) -> Counters {
    let mut config = Config::with_entries(64);
    (config.threads, config.active_threads, config.uses_ring) = (2, 1, false);
    config.heartbeat = Duration::from_secs(1_000);
    prepare(0, &config);
    machine(|machine| machine.call_ns = [(110, 10_000), (111, 10)].into());
    let mut run = Run::started(&config);
    for _ in 0..200 {
        for number in 0..64 {
            machine(|machine| machine.lend(number));
            // Those that the owner makes are taken first.
            let call = match number {
                0..32 => Call::bounded(111, [number; 6]).pinned(Executor::InPlace),
                _ => Call::bounded(110, [number; 6]),
            };
            // SAFETY: the machine has no memory.
            unsafe { run.pages.post(&call) }.unwrap();
        }
        run.pages.submit().unwrap();
        while (0..64).any(|number| machine(|machine| machine.effects(number)) == Some(0)) {
            step();
        }
        // The thread of the last one notes its end.
        (0..200).for_each(|_| step());
        while run.pages.outstanding() > 0 {
            run.pages.wait(None).unwrap();
            while let Some(ended) = run.pages.next() {
                machine(|machine| {
                    machine.take_back(ended.result.unwrap());
                    machine.now_ns += callback_ns;
                });
            }
        }
    }
    let counters = run.pages.counters();
    run.end();
    counters
}

#[test]
fn callbacks_counted_as_costs_of_calls_that_had_ended_on_threads() {
    let without = run_with_callbacks(0);
    // A trial has several batches, unless the first one costs too much.
    assert!(without.on_threads > 2 * 32, "{without:?}");
    assert_eq!(run_with_callbacks(100_000), without);
}

/// One call of a batch in place shows the cost of the others, unless it is slow.
#[test]
fn clock_is_read_for_few_calls_of_a_batch() {
    const BATCHES: u64 = 100;
    let mut config = Config::with_entries(64);
    (config.threads, config.uses_ring) = (0, false);
    prepare(2, &config);
    let mut run = Run::started(&config);
    for batch in 0..BATCHES as usize {
        for number in batch * 64..(batch + 1) * 64 {
            machine(|machine| machine.lend(number));
            // SAFETY: the machine has no memory.
            unsafe { run.pages.post(&Call::bounded(1_001, [number, 0, 0, 0, 0, 0])) }.unwrap();
        }
        run.pages.submit().unwrap();
        let ended = std::iter::from_fn(|| run.pages.next());
        let ended = ended.map(|ended| machine(|machine| machine.take_back(ended.result.unwrap())));
        assert_eq!(ended.count(), 64);
    }
    assert_eq!(run.pages.counters().in_place, BATCHES * 64);
    let readings = machine(|machine| machine.readings);
    assert!((BATCHES..4 * BATCHES).contains(&readings), "{readings}");
}
