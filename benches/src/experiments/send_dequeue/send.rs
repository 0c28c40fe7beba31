//! SEND: events that the thread posts to itself while notification is disabled.

use std::hint;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use send_core::control_block::{Actions, ControlBlock, Group, Groups, Trigger};
use send_core::{Action, Error, EventType, Poster};

use super::method::Method;
use crate::failure::Failure;

pub(super) struct Send {
    control: ControlBlock,
    poster: Poster,
    handled: Arc<AtomicU64>,
}

impl Send {
    /// Creates a control block with a buffer for `max_events` events.
    pub(super) fn new(max_events: u32) -> Result<Self, Failure> {
        let refused = |error: Error| Failure::new("cannot create a control block", error);
        let mut control = ControlBlock::define(max_events).map_err(refused)?;
        let handled = Arc::new(AtomicU64::new(0));
        let actions = Actions::new().on(EventType::USER, Action::Count(handled.clone()));
        control.set_handler(actions, Trigger::Level);
        control.set_group(EventType::USER, Some(Group::FIRST)).map_err(refused)?;
        control.set_deliver(Groups::ALL);
        let poster = control.poster();
        Ok(Send { control, poster, handled })
    }
}

impl Method for Send {
    fn name(&self) -> &'static str {
        "send"
    }

    fn hold(&mut self) -> io::Result<()> {
        self.control.set_notify(Groups::NONE).map_err(io::Error::other)
    }

    fn queue(&mut self, events: u32) -> io::Result<()> {
        (0..events.into()).try_for_each(|value| self.poster.post(value)).map_err(io::Error::other)
    }

    fn handle(&mut self, events: u32) -> io::Result<()> {
        let until = self.handled() + u64::from(events);
        self.control.set_notify(Groups::ALL).map_err(io::Error::other)?;
        while self.handled() < until {
            hint::spin_loop();
        }
        Ok(())
    }

    fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }
}
