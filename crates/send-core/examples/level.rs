//! Edge-triggered and level-triggered handlers compared (SEND 3.4, figure 3.4).
//!
//!     cargo run -p send-core --example level
//!
//! The handler takes one event per call and leaves the others in the buffer. Edge-triggered, it is
//! called again at the next delivery. Level-triggered, it is called until the buffer is empty,
//! before the interrupted code resumes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use send_core::control_block::{ControlBlock, Events, Group, Groups, Handler, Trigger};
use send_core::{Error, EventType};

/// Takes one event at a time.
struct OneByOne(Arc<AtomicU64>);

// SAFETY: the handler takes an event and adds to an atomic number.
unsafe impl Handler for OneByOne {
    fn handle(&mut self, events: &mut Events<'_>) {
        if let Some(event) = events.next() {
            self.0.fetch_add(event.value, Ordering::Relaxed);
        }
    }
}

fn main() -> Result<(), Error> {
    for trigger in [Trigger::Edge, Trigger::Level] {
        let mut ecb = ControlBlock::define(100)?;
        let sum = Arc::new(AtomicU64::new(0));
        ecb.set_handler(OneByOne(sum.clone()), trigger);
        ecb.set_group(EventType::USER, Some(Group::FIRST))?;
        ecb.set_deliver(Groups::ALL);
        // Post three events, worth 1, 10 and 100, before notification is enabled.
        let poster = ecb.poster();
        for value in [1, 10, 100] {
            poster.post(value).expect("the queue has room");
        }
        ecb.set_notify(Groups::ALL)?;
        println!("{trigger:?}-triggered: the handler took {}", sum.load(Ordering::Relaxed));
        // Post a fourth event.
        poster.post(1_000).expect("the queue has room");
        println!("{trigger:?}-triggered: after another {}", sum.load(Ordering::Relaxed));
    }
    Ok(())
}
