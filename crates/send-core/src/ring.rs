//! A ring as a source of events: what it reports is delivered as it is, and made out later, by the
//! application.

use std::time::Instant;

use shared_ring::{Fault, Kernel, Kind, LinuxRing, Reported, Ring, Submit, UringKernel, Waker};

use crate::{Error, Event, EventType, Intake, Source};

/// A ring's kernel.
pub(crate) struct RingSource<R: Ring + 'static = LinuxRing> {
    pub(crate) kernel: UringKernel<R>,
    /// What became of the last wait.
    pub(crate) fault: Option<Fault>,
}

impl<R: Ring + 'static> RingSource<R> {
    pub(crate) fn new(kernel: UringKernel<R>) -> Self {
        RingSource { kernel, fault: None }
    }
}

/// The type of an event that tells of an operation's completion.
fn kind(of: Kind) -> EventType {
    match of {
        Kind::Accept => EventType::ACCEPT,
        Kind::Receive => EventType::DATA,
        _ => EventType::DONE,
    }
}

/// A completion as it stands in the buffer.
fn event(reported: Reported) -> Event {
    let (name, result, flags) = reported.into_parts();
    let kind = kind(reported.token().kind());
    Event { value: name, fd: result, state: flags, ..Event::new(kind) }
}

/// The completion of which an event tells.
pub(crate) fn reported(event: Event) -> Reported {
    Reported::from_parts(event.value, event.fd, event.state)
}

// SAFETY: `UringKernel::reported` and `unreported` say that they may be called in a signal handler,
// when no other method is being called.
unsafe impl<R: Ring + 'static> Source for RingSource<R> {
    fn take_in(&mut self, intake: &mut Intake<'_>) {
        while intake.has_room()
            && let Some(reported) = self.kernel.reported()
        {
            intake.post(event(reported));
        }
    }

    fn queued(&self) -> u32 {
        self.kernel.unreported()
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<(), Error> {
        self.kernel.turn(until).map_err(|fault| {
            let error = Error::System(fault.doing, fault.error.raw_os_error().unwrap_or(0));
            self.fault = Some(fault);
            error
        })
    }
}
