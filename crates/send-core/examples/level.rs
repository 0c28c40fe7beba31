//! An edge-triggered and a level-triggered handler (SEND 3.4, figure 3.4), side by side.
//!
//!     cargo run -p send-core --example level
//!
//! A handler that takes one event of several that were delivered, and returns, leaves the others in
//! the buffer. Edge-triggered it hears of them when the next is delivered; level-triggered the
//! interrupted program does not go on before the buffer is empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use send_core::{ControlBlock, Error, EventType, Events, Group, Groups, Handler, Trigger};

/// Takes one event at a time.
struct OneByOne(Arc<AtomicU64>);

// SAFETY: it takes an event and adds to an atomic number.
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
        // Three events, worth 1, 10 and 100, are there before anybody is told.
        let poster = ecb.poster();
        for value in [1, 10, 100] {
            poster.post(value).expect("there is room");
        }
        ecb.set_notify(Groups::ALL)?;
        println!("{trigger:?}-triggered: the handler took {}", sum.load(Ordering::Relaxed));
        // A fourth comes.
        poster.post(1_000).expect("there is room");
        println!("{trigger:?}-triggered: after another {}", sum.load(Ordering::Relaxed));
    }
    Ok(())
}
