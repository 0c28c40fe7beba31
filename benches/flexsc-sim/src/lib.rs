//! The kernel of posted system calls on a simulated machine: [`kernel`].
//!
//! The sources are those of `flexsc-rt`, pages and kernel included. Of its modules, those that touch the machine are
//! others: clock, epoll set and ring are those of its own simulation, system calls and syscall threads are here.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "of the included modules, only the kernel is used"
)]

#[path = "../../../crates/flexsc-rt/src/simulated/armed.rs"]
mod armed;
#[path = "../../../crates/flexsc-rt/src/bell.rs"]
mod bell;
#[path = "../../../crates/flexsc-rt/src/call.rs"]
mod call;
#[path = "../../../crates/flexsc-rt/src/simulated/call_ring.rs"]
mod call_ring;
#[path = "../../../crates/flexsc-rt/src/choice/mod.rs"]
mod choice;
#[path = "../../../crates/flexsc-rt/src/simulated/clock.rs"]
mod clock;
#[path = "../../../crates/flexsc-rt/src/completions.rs"]
mod completions;
#[path = "../../../crates/flexsc-rt/src/descriptor.rs"]
mod descriptor;
#[path = "../../../crates/flexsc-rt/src/entry.rs"]
mod entry;
#[path = "../../../crates/flexsc-rt/src/entry_queue.rs"]
mod entry_queue;
#[path = "../../../crates/flexsc-rt/src/simulated/epoll_set.rs"]
mod epoll_set;
#[path = "../../../crates/flexsc-rt/src/error.rs"]
mod error;
mod host;
mod interrupt;
#[path = "../../../crates/flexsc-rt/src/kernel/mod.rs"]
mod kernel;
mod machine;
#[path = "../../../crates/flexsc-rt/src/object.rs"]
mod object;
#[path = "../../../crates/flexsc-rt/src/operation.rs"]
mod operation;
#[path = "../../../crates/flexsc-rt/src/operations/mod.rs"]
mod operations;
#[path = "../../../crates/flexsc-rt/src/page.rs"]
mod page;
#[path = "../../../crates/flexsc-rt/src/pages/mod.rs"]
mod pages;
mod raw;
#[path = "../../../crates/flexsc-rt/src/readiness.rs"]
mod readiness;
#[path = "../../../crates/flexsc-rt/src/registered.rs"]
mod registered;
#[path = "../../../crates/flexsc-rt/src/ring.rs"]
mod ring;
#[path = "../../../crates/flexsc-rt/src/shared.rs"]
mod shared;
#[path = "../../../crates/flexsc-rt/src/specialization.rs"]
mod specialization;
#[path = "../../../crates/flexsc-rt/src/sync.rs"]
mod sync;
mod threads;
mod workers;

use evring_sim::{CheckedKernel, Machine};
use shared_ring::EngineConfig;

use kernel::FlexScKernel;

/// Sets up the kernel on a machine, `with_ring` or as where io_uring is switched off. A thread has one at a time.
///
/// # Errors
/// If no descriptor is free for the waker.
pub fn kernel(
    machine: &Machine,
    config: &EngineConfig,
    with_ring: bool,
) -> std::io::Result<CheckedKernel<FlexScKernel>> {
    host::set(machine);
    machine::begin(machine, with_ring);
    let kernel = FlexScKernel::new(config).map_err(std::io::Error::other)?;
    Ok(CheckedKernel::over(kernel, machine))
}
