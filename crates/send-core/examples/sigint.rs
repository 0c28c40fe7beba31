//! The annotated program of the thesis (SEND 3.3). It prints a line repeatedly; each SIGINT
//! interrupts it with an event, whose handler prints another line.
//!
//!     cargo run -p send-core --example sigint
//!
//! Press Ctrl-C to interrupt it. `kill -KILL` ends it; an argument sets the number of lines.

use std::error::Error;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use std::{env, io, process, thread};

use send_core::control_block::{Actions, ControlBlock, Group, Groups, Trigger};
use send_core::{Action, EventType};

fn main() -> Result<(), Box<dyn Error>> {
    let lines = env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(u64::MAX);
    println!("this is process {}", process::id());

    // DEF_ECB: a block whose buffer holds 100 events. The thesis sets up `stack` and `regs` by
    // hand; here the block contains both.
    let mut ecb = ControlBlock::define(100)?;

    // The handler is called for all event types and selects the action by `kind`. In the thesis,
    // the handler lowers `notify`, reads the buffer from `tail` to `head`, raises `notify` and
    // restores the registers. Because the first and last steps must not be interrupted, the handler
    // is a critical section. Here the crate performs these steps around the actions. The thesis
    // prints with printf(3); a handler may only use write(2).
    let sigint = EventType::signal(libc::SIGINT)?;
    let stdout = io::stdout().as_fd().try_clone_to_owned()?;
    let received = Action::Write(Arc::new(stdout), b"Received SIGINT\n");
    ecb.set_handler(Actions::new().on(sigint, received), Trigger::Edge);

    // SETGROUP: SIGINT is in group 0, which is delivered first.
    ecb.set_group(sigint, Some(Group::FIRST))?;

    // From now on the event is delivered and interrupts.
    ecb.set_deliver(Group::FIRST.into());
    ecb.set_notify(Groups::from(Group::FIRST))?;

    for _ in 0..lines {
        println!("In loop...");
        thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}
