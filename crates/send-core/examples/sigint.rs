//! The annotated program of the thesis (SEND 3.3): it prints a line again and again, and whenever it
//! is sent SIGINT an event interrupts it, of which it prints a line, too.
//!
//!     cargo run -p send-core --example sigint
//!
//! Press Ctrl-C to see it; `kill -KILL`, or an argument that says how many lines to print, ends it.

use std::time::Duration;
use std::{env, process, thread};

use send_core::{Action, Actions, ControlBlock, Error, EventType, Group, Groups, Trigger};

fn main() -> Result<(), Error> {
    let lines = env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(u64::MAX);
    println!("this is process {}", process::id());

    // DEF_ECB: a block whose buffer holds 100 events. The thesis allocates a stack for the handler
    // and sets `stack` and `regs` by hand; here the block comes with both.
    let mut ecb = ControlBlock::define(100)?;

    // The handler is called for all types of events, and tells them apart by `kind`. In the thesis it
    // turns `notify` off, works through the buffer from `tail` to `head`, turns `notify` on, restores
    // the registers, and must not be interrupted while it does the first and the last of that, for
    // which it lies in a critical section. All of that is done around these actions. In the thesis
    // they print by printf(3); a handler may call write(2), but not that.
    let sigint = EventType::signal(libc::SIGINT)?;
    let received = Action::Write(1, b"Received SIGINT\n");
    ecb.set_handler(Actions::new().on(sigint, received), Trigger::Edge);

    // SETGROUP: SIGINT is in group 0, which is delivered first.
    ecb.set_group(sigint, Some(Group::FIRST))?;

    // From here on the event is delivered, and interrupts.
    ecb.set_deliver(Group::FIRST.into());
    ecb.set_notify(Groups::from(Group::FIRST))?;

    for _ in 0..lines {
        println!("In loop...");
        thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}
