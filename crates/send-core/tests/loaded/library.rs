//! A library with a control block, to be loaded by dlopen(3).

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use send_core::{Action, Actions, ControlBlock, Error, EventType, Group, Groups, Trigger};

static SEEN: OnceLock<Arc<AtomicU64>> = OnceLock::new();

fn begin(signal: i32) -> Result<(), Error> {
    let kind = EventType::signal(signal)?;
    let mut send = ControlBlock::define(8)?;
    let seen = Arc::clone(SEEN.get_or_init(Arc::default));
    send.set_handler(Actions::new().on(kind, Action::Count(seen)), Trigger::Level);
    send.set_group(kind, Some(Group::FIRST))?;
    send.set_notify(Groups::ALL)?;
    // The block lives as long as the process.
    mem::forget(send);
    Ok(())
}

/// Makes a signal an event of the calling thread; whether that was possible.
#[unsafe(no_mangle)]
pub extern "C" fn loaded_begin(signal: i32) -> bool {
    begin(signal).is_ok()
}

/// How often it has come.
#[unsafe(no_mangle)]
pub extern "C" fn loaded_seen() -> u64 {
    SEEN.get().map_or(0, |seen| seen.load(Ordering::Relaxed))
}
