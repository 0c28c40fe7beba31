//! A ring as a source of events: what it reports is delivered as it is, and made out later, by the
//! application.

use std::time::Instant;

use shared_ring::{
    Kernel, KernelError, LinuxRing, OpKind, RawCompletion, Ring, Submit, UringKernel, Waker,
};

use crate::{Error, Event, EventSink, EventType, Source};

/// A ring's kernel.
pub(crate) struct RingSource<R: Ring + 'static = LinuxRing> {
    pub(crate) kernel: UringKernel<R>,
    /// What became of the last wait.
    pub(crate) fault: Option<KernelError>,
}

impl<R: Ring + 'static> RingSource<R> {
    pub(crate) fn new(kernel: UringKernel<R>) -> Self {
        RingSource { kernel, fault: None }
    }
}

/// The type of an event that tells of an operation's completion.
fn kind(of: OpKind) -> EventType {
    match of {
        OpKind::Accept => EventType::ACCEPT,
        OpKind::Receive => EventType::DATA,
        _ => EventType::DONE,
    }
}

/// A completion as it stands in the buffer.
fn event(reported: RawCompletion) -> Event {
    let (name, result, flags) = reported.into_parts();
    let kind = kind(reported.token().kind());
    Event { value: name, fd: result, state: flags, ..Event::new(kind) }
}

/// The completion of which an event tells.
pub(crate) fn reported(event: Event) -> RawCompletion {
    RawCompletion::from_parts(event.value, event.fd, event.state)
}

// SAFETY: `UringKernel::reported` and `raw_pending` say that they may be called in a signal handler,
// when no other method is being called.
unsafe impl<R: Ring + 'static> Source for RingSource<R> {
    fn collect(&mut self, sink: &mut EventSink<'_>) {
        while sink.has_room()
            && let Some(reported) = self.kernel.next_raw()
        {
            sink.post(event(reported));
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
