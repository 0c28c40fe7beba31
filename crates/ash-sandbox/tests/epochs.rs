//! Handlers that are bounded by a clock.

#![cfg(feature = "sandbox")]

use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ash_sandbox::sandbox::{
    Abort, Handler, Loops, NativeCalls, Outcome, Pass, Policy, Sandboxer, SharedTable,
};

/// Returns a sandboxer whose clock ticks as often as this.
fn sandboxer(tick: Duration) -> Sandboxer {
    Sandboxer::new(Policy::default().with(|policy| policy.loops = Loops::Epoch(tick))).unwrap()
}

/// A module with an entry of these instructions.
fn module(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "ash" "table" (func $table (result i32)))
            (memory (export "memory") 1 1)
            (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
                (local $n i32) (local $at i32) {body}))"#
    );
    wat::parse_str(text).unwrap()
}

fn run(handler: &mut Handler) -> Outcome {
    handler.handle_copy(b"", 7, Instant::now())
}

const TICK: Duration = Duration::from_millis(50);

/// The table of the handler that is kept from running.
static TABLE: OnceLock<Arc<SharedTable>> = OnceLock::new();

/// Keeps this thread from running for five ticks, and then tells the handler to end.
extern "C" fn stall(_: libc::c_int) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 5 * TICK.as_nanos() as i64 };
    // SAFETY: the time is read during the call, which signal handlers may use.
    unsafe { libc::nanosleep(&raw const time, ptr::null_mut()) };
    if let Some(table) = TABLE.get() {
        table.words()[0].store(1, Ordering::Relaxed);
    }
}

/// Has `stall` called in this thread when it has run for a millisecond.
fn stall_this_thread() {
    // SAFETY: zeros are values of these types. They are read, and the timer is written, during the calls. The signal
    // handler does what signal handlers may do.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = stall as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()), 0);
        let mut event: libc::sigevent = zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGUSR1;
        event.sigev_notify_thread_id = libc::gettid();
        let (mut timer, clock) = (zeroed(), libc::CLOCK_THREAD_CPUTIME_ID);
        assert_eq!(libc::timer_create(clock, &raw mut event, &raw mut timer), 0);
        let mut time: libc::itimerspec = zeroed();
        time.it_value.tv_nsec = 1_000_000;
        assert_eq!(libc::timer_settime(timer, 0, &raw const time, ptr::null_mut()), 0);
    }
}

#[test]
fn handler_was_aborted_and_charged_for_what_other_threads_ran() {
    let table = TABLE.get_or_init(|| SharedTable::new(8).unwrap());
    // Waits for the table to change, and loops a little longer, so that it meets a tick.
    let waits = module(
        "(local.set $at (call $table))
         (loop $waits (br_if $waits (i64.eqz (i64.load (local.get $at)))))
         (loop $more
             (local.set $n (i32.add (local.get $n) (i32.const 1)))
             (br_if $more (i32.lt_u (local.get $n) (i32.const 1000))))
         (i32.const 1)",
    );
    let mut waits = sandboxer(TICK).load(&waits).unwrap().instantiate_with(1, table).unwrap();
    stall_this_thread();
    let start = Instant::now();
    assert_eq!(run(&mut waits), Outcome::Handled);
    assert!(start.elapsed() >= 5 * TICK);
    let charged = Duration::from_nanos(waits.counters().operations);
    assert!(charged < 2 * TICK, "{charged:?}");
}

#[test]
fn handler_was_invoked_with_less_of_the_budget_than_the_clock_permits() {
    let policy = |second| {
        Policy::default().with(|policy| {
            policy.loops = Loops::Epoch(Duration::from_millis(1));
            policy.operations_per_second = second;
        })
    };
    let cyclic = module("(loop $l) (drop (call $table)) (i32.const 1)");
    let over = Outcome::Passed(Pass::OverBudget);
    let now = Instant::now();
    let second = Duration::from_secs(1);
    // More than two and a half ticks of 1,000,000 operations and those of an invocation, until calls use a half of it.
    let sandboxer = Sandboxer::new(policy(4_000_000)).unwrap();
    let ash = sandboxer.load(&cyclic).unwrap();
    let copies = |calls: &mut NativeCalls<'_>| {
        assert_eq!(calls.copy(0, 0, 1 << 16), 0);
        1
    };
    let mut calls = sandboxer.trust(1, 1 << 16, copies).unwrap();
    while calls.counters().operations < 2_000_000 {
        assert_eq!(calls.handle_copy(b"", 7, now), Outcome::Handled);
    }
    let cyclic_of = |tenant| ash.instantiate(tenant).unwrap();
    assert_eq!(cyclic_of(2).handle_copy(b"", 7, now), Outcome::Handled);
    assert_eq!(cyclic_of(1).handle_copy(b"", 7, now), over);
    assert_eq!(cyclic_of(1).handle_copy(b"", 7, now + second), Outcome::Handled);
    // Less than that: one invocation until all of a second are left again.
    let ash = Sandboxer::new(policy(1_000_000)).unwrap().load(&cyclic).unwrap();
    let mut handler = ash.instantiate(1).unwrap();
    for at in [now, now + second] {
        assert_eq!(handler.handle_copy(b"", 7, at), Outcome::Handled);
        assert_eq!(handler.handle_copy(b"", 7, at), over);
    }
}

/// Returns the priority of a thread with the scheduling policy SCHED_FIFO.
fn real_time_priority(id: rustix::process::Pid) -> Option<i32> {
    let (id, mut parameters) = (id.as_raw_nonzero().get(), libc::sched_param { sched_priority: 0 });
    // SAFETY: the parameters are written during the call.
    let is_known = unsafe { libc::sched_getparam(id, &raw mut parameters) } == 0;
    // SAFETY: passes a number.
    let is_fifo = is_known && unsafe { libc::sched_getscheduler(id) } == libc::SCHED_FIFO;
    is_fifo.then_some(parameters.sched_priority)
}

#[test]
fn clock_of_epochs_has_a_shortest_tick() {
    let endless = module("(loop $l (br $l)) (i32.const 1)");
    let mut endless = sandboxer(Duration::ZERO).load(&endless).unwrap().instantiate(1).unwrap();
    let start = Instant::now();
    let abort = Outcome::Passed(Pass::Involuntary(Abort::TooManyOperations));
    assert_eq!(run(&mut endless), abort);
    // The first of two ticks may come at once.
    assert!(start.elapsed() >= Duration::from_micros(100), "{:?}", start.elapsed());
}

#[test]
fn clock_of_epochs_inherited_the_core_of_a_real_time_thread() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let all = sched_getaffinity(None).unwrap();
    // SAFETY: it returns a number.
    let highest = unsafe { libc::sched_get_priority_max(libc::SCHED_FIFO) };
    let tries_it = move || {
        let parameters = libc::sched_param { sched_priority: highest };
        // SAFETY: the parameters are read during the call; 0 is this thread.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
    };
    let may_be_real_time = std::thread::spawn(tries_it).join().unwrap();
    let clock = |all: CpuSet| {
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|core| all.is_set(*core)).unwrap());
        sched_setaffinity(None, &one).unwrap();
        let sandboxer = sandboxer(Duration::from_millis(1));
        sandboxer.load(&module("(loop $l) (i32.const 1)")).unwrap();
        let clocks = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            tasks.filter_map(|task| {
                let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
                let id = task.file_name().to_str()?.parse().ok()?;
                (name == "ash-clock\n").then_some(rustix::process::Pid::from_raw(id))
            })
        };
        let end = Instant::now() + Duration::from_secs(20);
        let is_free = |id: Option<rustix::process::Pid>| {
            let is_above = !may_be_real_time || real_time_priority(id.unwrap()) == Some(highest);
            sched_getaffinity(id).is_ok_and(|cores| cores == all) && is_above
        };
        while clocks().next().is_none() || !clocks().all(is_free) {
            let what = "a clock runs on one core, or behind real-time threads, or there is none";
            assert!(Instant::now() < end, "{what}");
            std::thread::yield_now();
        }
        drop(sandboxer);
    };
    std::thread::scope(|scope| scope.spawn(|| clock(all)).join().unwrap());
}
