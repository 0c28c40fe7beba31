//! Several mechanisms in a process divide what there is for each core.

use std::thread;
use std::time::Instant;

use evring::Config;
use evring::mechanisms::{FlexSc, Mechanism};
use flexsc_rt::kernel::FlexScKernel;
use shared_ring::calls::{Call, Executor};
use shared_ring::{Kernel, Op, OpKind, Submit, Token};

use crate::server::TIMEOUT;

/// System calls at a time.
const CALLS: u32 = 4;

fn kernel(workers: u16) -> FlexScKernel {
    FlexSc::kernel(&Config::default().with(|c| c.workers = workers)).unwrap()
}

/// Has threads make some calls that take a while. Returns how many threads have been active at a time so far.
fn make_calls(kernel: &mut FlexScKernel) -> usize {
    for slot in 0..CALLS {
        let call = Op::Call(Box::new(Call::random(100_000)), Executor::Thread);
        kernel.submit(Token::new(OpKind::Call, slot, 0), call).unwrap();
    }
    let mut left = CALLS;
    while left > 0 {
        kernel.turn(None).unwrap();
        left -= std::iter::from_fn(|| kernel.next()).count() as u32;
    }
    kernel.page_counters().max_active_threads
}

#[test]
fn each_worker_had_an_active_syscall_thread_for_each_core() {
    let cores = thread::available_parallelism().unwrap().get();
    if cores == 1 {
        return println!("not tested: one thread is active on a machine with one core");
    }
    let until = Instant::now() + TIMEOUT;
    let (mut alone, mut rounds) = (kernel(1), 1);
    while make_calls(&mut alone) < 2 {
        assert!(Instant::now() < until, "no two threads were active in {rounds} rounds");
        rounds += 1;
    }
    drop(alone);
    let mut shares = kernel(cores as u16);
    for _ in 0..20 * rounds {
        assert_eq!(make_calls(&mut shares), 1);
    }
}
