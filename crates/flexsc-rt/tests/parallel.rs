//! Claim 4 of the paper: one user thread makes work for several cores.

mod support;

use std::fs::{self, File};
use std::hint::black_box;
use std::mem;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use flexsc_rt::{Call, Config, Executor, Specialization};
use support::{post, register};

/// Bytes that keep the kernel computing for some tenths of a second.
const LEN: usize = 64 << 20;

/// Returns the CPU time of a thread of this process, in nanoseconds.
fn cpu_time_ns(thread: i32) -> i64 {
    // The clock of a thread, as pthread_getcpuclockid(3) names it.
    let clock = !thread << 3 | 6;
    // SAFETY: a plain C structure, which the call fills in.
    unsafe {
        let mut time: libc::timespec = mem::zeroed();
        assert_eq!(libc::clock_gettime(clock, &mut time), 0);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    }
}

/// Returns how often the calling thread has left its core, or another thread took it.
fn switches() -> i64 {
    // SAFETY: a plain C structure, which the call fills in.
    unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_nvcsw + usage.ru_nivcsw
    }
}

/// Returns the syscall threads.
fn syscall_threads() -> Vec<i32> {
    let mut threads = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let number = name.trim_end().strip_prefix("flexsc ").and_then(|n| n.parse::<u16>().ok());
        threads.extend(number.map(|_| task.file_name().to_str().unwrap().parse::<i32>().unwrap()));
    }
    threads
}

/// Computes in user mode for some tenths of a millisecond.
fn compute() {
    let end = Instant::now() + Duration::from_micros(300);
    while Instant::now() < end {
        black_box(());
    }
}

/// While the owner has not left its core, a thread that consumes CPU time does so on another one. Two of them do, while
/// neither call has ended.
#[test]
fn one_owner_keeps_several_cores_busy() {
    if thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return println!("not tested: one core");
    }
    let mut config = Config::default();
    (config.active_threads, config.specialization) = (2, Specialization::Off);
    // It would start another thread for one that waits for a core.
    config.heartbeat = Duration::from_secs(600);
    let mut pages = register(config);
    let random = File::open("/dev/urandom").unwrap();
    let mut memory = [vec![0_u8; LEN], vec![0; LEN]];
    let calls = memory.each_mut().map(|memory| {
        let args = [random.as_raw_fd() as usize, memory.as_mut_ptr() as usize, LEN, 0, 0, 0];
        Call::bounded(libc::SYS_read, args).pinned(Executor::Threads)
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut has_advanced = [false; 2];
    while has_advanced != [true; 2] {
        assert!(Instant::now() < deadline, "the threads do not advance beside the owner");
        if pages.outstanding() < 2 || pages.has_completion() {
            // The advances seen before were not those of two calls in flight.
            while pages.outstanding() > 0 {
                pages.wait(None).unwrap();
                pages.next();
            }
            has_advanced = [false; 2];
            for call in &calls {
                post(&mut pages, call);
            }
            pages.submit().unwrap();
        }
        let Ok(threads) = <[i32; 2]>::try_from(syscall_threads()) else { continue };
        let switches_before = switches();
        let before = threads.map(cpu_time_ns);
        compute();
        let after = threads.map(cpu_time_ns);
        if switches() == switches_before {
            for (n, has_advanced) in has_advanced.iter_mut().enumerate() {
                *has_advanced |= after[n] > before[n] && !pages.has_completion();
            }
        }
    }
    while pages.outstanding() > 0 {
        pages.wait(None).unwrap();
        pages.next();
    }
}
