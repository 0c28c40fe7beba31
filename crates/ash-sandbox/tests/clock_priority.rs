//! The priority of the thread that ticks for handlers which are bounded by a clock, where the process may not choose any. The
//! limit is that of the process, so this program has no other test.

#![cfg(feature = "sandbox")]

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use ash_sandbox::sandbox::{Ash, Loops, Policy, Sandboxer};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// The limit of real-time priority that the error of `evring::owner::Scheduling::RealTime` recommends.
const LIMIT: i32 = 2;

/// Makes this thread real-time with a priority. Returns whether that is permitted.
fn set_priority(priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters are read during the call; 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}

/// Returns the priority of a thread with the scheduling policy SCHED_FIFO.
fn real_time_priority(id: Pid) -> Option<i32> {
    let (id, mut parameters) = (id.as_raw_nonzero().get(), libc::sched_param { sched_priority: 0 });
    // SAFETY: the parameters are written during the call.
    let is_known = unsafe { libc::sched_getparam(id, &raw mut parameters) } == 0;
    // SAFETY: passes a number.
    let is_fifo = is_known && unsafe { libc::sched_getscheduler(id) } == libc::SCHED_FIFO;
    is_fifo.then_some(parameters.sched_priority)
}

/// Takes from this thread, and from those that it creates, the permission to have any priority.
fn drop_sys_nice() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        set.remove(CapabilitySet::SYS_NICE);
    }
    set_capabilities(None, sets)
}

fn load() -> Ash {
    let text = r#"(module
        (memory (export "memory") 1 1)
        (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) (loop $l) (i32.const 1)))"#;
    let policy = Policy::default().with(|p| p.loops = Loops::Epoch(Duration::from_millis(1)));
    Sandboxer::new(policy).unwrap().load(&wat::parse_str(text).unwrap()).unwrap()
}

/// Loads a handler in a thread whose maximum priority is [`LIMIT`], or returns what is missing for that.
fn load_without_sys_nice() -> Result<Ash, String> {
    let limit = Some(LIMIT as u64);
    // The maximum may be lower, and this process may raise it.
    let maximum = getrlimit(Resource::Rtprio).maximum;
    for maximum in [maximum, limit] {
        if setrlimit(Resource::Rtprio, Rlimit { current: limit, maximum }).is_ok() {
            break;
        }
    }
    drop_sys_nice().map_err(|error| format!("a thread without CAP_SYS_NICE: {error}"))?;
    // Of other threads, as this one stays as it is.
    let may_have = |priority| thread::spawn(move || set_priority(priority)).join().unwrap();
    if may_have(LIMIT + 1) || !may_have(LIMIT) {
        return Err(format!("a thread whose maximum real-time priority is {LIMIT}"));
    }
    Ok(load())
}

/// Returns the thread that ticks.
fn clock() -> Option<Pid> {
    let mut tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.find_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let id = task.file_name().to_str()?.parse().ok()?;
        (name == "ash-clock\n").then(|| Pid::from_raw(id)).flatten()
    })
}

#[test]
fn clock_was_not_real_time_where_the_maximum_priority_was_not_permitted() {
    let ash = match thread::spawn(load_without_sys_nice).join().unwrap() {
        Ok(ash) => ash,
        Err(missing) => return eprintln!("not tested: {missing}"),
    };
    let until = Instant::now() + Duration::from_secs(20);
    while clock().and_then(real_time_priority) != Some(LIMIT) {
        assert!(Instant::now() < until, "{:?}", clock().and_then(real_time_priority));
        thread::yield_now();
    }
    drop(ash);
}
