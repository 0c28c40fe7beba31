//! A ring as a source of events: its completions are delivered undecoded.

use std::fmt;
use std::time::Instant;

use shared_ring::uring::{LinuxRing, RawCompletion, Ring};
use shared_ring::uring::{SetupError, UringKernel};
use shared_ring::{Kernel, KernelError, OpKind, Submit, Waker};

use crate::control_block::{EventSink, Source};
use crate::{Error, Event, EventType};

/// A ring's kernel as a source.
pub(crate) struct RingSource<R: Ring + 'static = LinuxRing> {
    pub(crate) kernel: UringKernel<R>,
    /// The fault of the last wait, if it failed.
    pub(crate) fault: Option<KernelError>,
    /// Further completions stay in the kernel, whose end discards them.
    pub(crate) ends: bool,
}

impl<R: Ring + 'static> RingSource<R> {
    pub(crate) fn new(kernel: UringKernel<R>) -> Self {
        RingSource { kernel, fault: None, ends: false }
    }
}

/// Returns the event type of an operation's completion.
fn kind(of: OpKind) -> EventType {
    match of {
        OpKind::Accept => EventType::ACCEPT,
        OpKind::Receive => EventType::DATA,
        _ => EventType::DONE,
    }
}

/// Encodes a completion as an event.
fn event(raw: RawCompletion) -> Event {
    let (name, result, flags) = raw.into_parts();
    let kind = kind(raw.token().kind());
    Event { value: name, fd: result, state: flags, ..Event::new(kind) }
}

/// Returns the completion that an event encodes.
pub(crate) fn raw(event: Event) -> RawCompletion {
    RawCompletion::from_parts(event.value, event.fd, event.state)
}

// SAFETY: `UringKernel::next_raw` and `raw_pending` are documented as callable in a signal handler
// when no other method is being called.
unsafe impl<R: Ring + 'static> Source for RingSource<R> {
    fn collect(&mut self, sink: &mut EventSink<'_>) {
        while !self.ends
            && sink.has_room()
            && let Some(raw) = self.kernel.next_raw()
        {
            sink.post(event(raw));
        }
    }

    fn queued(&self) -> u32 {
        self.kernel.raw_pending()
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<(), Error> {
        self.kernel.turn(until).map_err(|fault| {
            let error = Error::System(fault.context, fault.error.raw_os_error().unwrap_or(0));
            self.fault = Some(fault);
            error
        })
    }
}

/// The error of creating a [`SendKernel`](crate::kernel::SendKernel) or [`Sockets`](crate::sockets::Sockets).
#[derive(Debug)]
#[non_exhaustive]
pub enum SendSetupError {
    /// The ring cannot be created.
    Ring(SetupError),
    /// The control block cannot be created, or the configuration is invalid.
    Block(Error),
}

impl fmt::Display for SendSetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendSetupError::Ring(error) => error.fmt(f),
            SendSetupError::Block(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SendSetupError {}

impl From<SetupError> for SendSetupError {
    fn from(error: SetupError) -> Self {
        SendSetupError::Ring(error)
    }
}

impl From<Error> for SendSetupError {
    fn from(error: Error) -> Self {
        SendSetupError::Block(error)
    }
}
