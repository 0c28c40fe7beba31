//! A ring as a source of events: what it reports is delivered as it is, and made out later, by the
//! application.

use std::time::Instant;

use shared_ring::{
    Fault, Kernel, Kind, LinuxRing, Reported, Ring, Submit, Table, Token, UringKernel, Waker,
};

use crate::sockets::{Arrived, Bound, Listening, Socket, Watched};
use crate::{Error, Event, EventType, Group, Groups, Intake, Source};

/// A ring's kernel, and the sockets of which it tells.
pub struct RingSource<R: Ring + 'static = LinuxRing> {
    pub(crate) kernel: UringKernel<R>,
    /// How many receive buffers there are for sockets; none if somebody else makes completions out.
    pub(crate) buffers: Option<u16>,
    /// What became of the last wait.
    pub(crate) fault: Option<Fault>,
    pub(crate) watched: Table<Watched>,
    pub(crate) vacant: Vec<u32>,
    pub(crate) listeners: Vec<Listening>,
    pub(crate) arrived: Arrived,
}

impl<R: Ring + 'static> RingSource<R> {
    /// The events of a kernel: of its sockets, if it has receive buffers for them, else its
    /// completions as they are reported.
    pub(crate) fn new(kernel: UringKernel<R>, buffers: Option<u16>) -> Self {
        RingSource {
            kernel,
            buffers,
            fault: None,
            arrived: Arrived::new(),
            watched: Table::default(),
            vacant: Vec::new(),
            listeners: Vec::new(),
        }
    }
}

impl<R: Ring + 'static> RingSource<R> {
    /// Keeps a fault for whoever wants all of it.
    pub(crate) fn broken(&mut self, fault: Fault) -> Error {
        let error = Error::System(fault.doing, fault.error.raw_os_error().unwrap_or(0));
        self.fault = Some(fault);
        error
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

impl<R: Ring + 'static> RingSource<R> {
    /// The state of a watched socket has changed.
    fn changed(&mut self, reported: Reported, intake: &mut Intake<'_>) {
        let (token, (_, result, _)) = (reported.token(), reported.into_parts());
        let place = self.watched.get(token.slot() as usize);
        let Some(watched) =
            place.filter(|w| w.generation % Token::GENERATIONS == token.generation())
        else {
            return;
        };
        let Some(Bound { fd, holder, group, .. }) = watched.bound.as_ref() else { return };
        let (fd, holder, group) = (*fd, *holder, *group);
        // That it can still be written to is no news; that it can still be read from may be, as more may
        // have come.
        let known = intake.told(holder) & libc::POLLOUT as u32;
        if let Ok(state) = u32::try_from(result)
            && state & !known != 0
        {
            let value = Socket::new(token).value();
            let ready = Event { fd: fd.raw(), state, value, ..Event::new(EventType::READY) };
            intake.generate_in(holder, group, ready);
        }
        if !reported.goes_on() {
            self.kernel.watch_again(token, fd);
        }
    }
}

// SAFETY: `UringKernel::reported` and `unreported` say that they may be called in a signal handler, when
// no other method is being called; `watch` then finds room that was made when the socket came.
unsafe impl<R: Ring + 'static> Source for RingSource<R> {
    fn take_in(&mut self, intake: &mut Intake<'_>) {
        while intake.has_room()
            && let Some(reported) = self.kernel.reported()
        {
            match reported.token().kind() {
                Kind::Watch => self.changed(reported, intake),
                Kind::Accept if self.buffers.is_some() => self.accept_told(reported, intake),
                Kind::Receive if self.buffers.is_some() => self.data_told(reported, intake),
                _ => drop(intake.post(event(reported))),
            }
        }
    }

    fn queued(&self) -> u32 {
        self.kernel.unreported()
    }

    fn allow(&mut self, groups: Groups, accepts: Option<Group>) -> Result<(), Error> {
        self.set_accepting(accepts.is_some_and(|group| groups.contains(group)))
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<(), Error> {
        let turned = self.kernel.turn(until);
        turned.map_err(|fault| self.broken(fault))
    }
}
