//! A library with a control block, loaded by dlopen(3).

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use send_core::control_block::{Actions, ControlBlock, Group, Groups, Trigger};
use send_core::{Action, Error, EventType};

static COUNT: OnceLock<Arc<AtomicU64>> = OnceLock::new();

fn define(signal: i32) -> Result<(), Error> {
    let kind = EventType::signal(signal)?;
    let mut send = ControlBlock::define(8)?;
    let count = Arc::clone(COUNT.get_or_init(Arc::default));
    send.set_handler(Actions::new().on(kind, Action::Count(count)), Trigger::Level);
    send.set_group(kind, Some(Group::FIRST))?;
    send.set_notify(Groups::ALL)?;
    // The block exists until the process ends.
    mem::forget(send);
    Ok(())
}

/// Makes a signal an event of the calling thread. Returns whether this succeeded.
#[unsafe(no_mangle)]
pub extern "C" fn loaded_begin(signal: i32) -> bool {
    define(signal).is_ok()
}

/// Returns the number of signals received.
#[unsafe(no_mangle)]
pub extern "C" fn loaded_count() -> u64 {
    COUNT.get().map_or(0, |count| count.load(Ordering::Relaxed))
}
