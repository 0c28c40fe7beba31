//! An application defined by one function, which reports its callbacks.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use evring::files::FileOutcome;
use evring::{Application, CloseReason, Commands, ConnId, Cx, Listener, Others, Rx};

use super::TIMEOUT;

/// A callback, in a form that can be sent between threads and compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Accepted,
    Connected(Result<(), io::ErrorKind>),
    Received { bytes: Vec<u8>, eof: bool },
    Drained,
    File(u32, Result<Outcome, io::ErrorKind>),
    Expired,
    Stopping,
    Closed(Ended),
    Woken(u64),
}

/// Result of a file operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Opened(u64),
    Stat((evring::files::FileKind, u64)),
    Listed(Vec<std::ffi::OsString>),
    Read(Vec<u8>),
    Written,
}

/// [`CloseReason`], comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Closed,
    Failed,
    Overrun,
    Truncated,
    Stopped,
}

impl From<&CloseReason> for Ended {
    fn from(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::Closed => Ended::Closed,
            CloseReason::Failed(_) => Ended::Failed,
            CloseReason::Overrun => Ended::Overrun,
            CloseReason::Truncated => Ended::Truncated,
            CloseReason::Stopped => Ended::Stopped,
            _ => panic!("{reason:?} is new"),
        }
    }
}

/// One callback: its event and the commands.
pub struct Turn<'a, 'r> {
    pub io: &'a mut dyn Commands,
    /// The connection; `None` for `woken`.
    pub id: Option<ConnId>,
    pub event: Event,
    pub rx: Option<&'a mut Rx<'r>>,
    /// The opened file.
    pub file: Option<evring::files::File>,
}

impl Turn<'_, '_> {
    pub fn conn(&self) -> ConnId {
        self.id.expect("this callback is about a connection")
    }

    /// Consumes all bytes.
    pub fn consume(&mut self) {
        if let Some(rx) = &mut self.rx {
            rx.consume(rx.bytes().len());
        }
    }
}

/// An application that reports every callback, then calls a function.
pub struct Script<F> {
    act: F,
    log: Sender<(Option<ConnId>, Event)>,
}

/// The callbacks of a [`Script`], in order.
pub struct Log(Receiver<(Option<ConnId>, Event)>);

impl Log {
    /// Returns the next event.
    #[track_caller]
    pub fn next(&self) -> Event {
        self.next_of().1
    }

    /// Returns the next event and its connection.
    #[track_caller]
    pub fn next_of(&self) -> (Option<ConnId>, Event) {
        self.0.recv_timeout(TIMEOUT).expect("the application reports an event in time")
    }

    /// Returns the next event other than received bytes.
    #[track_caller]
    pub fn skip_received(&self) -> Event {
        loop {
            match self.next() {
                Event::Received { .. } => {}
                event => return event,
            }
        }
    }

    /// Returns all remaining events, once the server has stopped.
    pub fn remaining(&self) -> Vec<Event> {
        self.0.try_iter().map(|(_, event)| event).collect()
    }
}

/// Creates a script's constructor and its log.
pub fn script<F>(act: F) -> (impl FnOnce() -> Script<F> + Send, Log)
where
    F: FnMut(&mut Turn<'_, '_>) + Send,
{
    let (log, events) = channel();
    (move || Script { act, log }, Log(events))
}

impl<F: FnMut(&mut Turn<'_, '_>)> Script<F> {
    fn report(&mut self, mut turn: Turn<'_, '_>) {
        // A test that has ended no longer receives.
        let _ = self.log.send((turn.id, turn.event.clone()));
        (self.act)(&mut turn);
    }

    fn plain(&mut self, x: Cx<'_, impl Commands, ()>, event: Event) {
        self.report(Turn { io: x.io, id: Some(x.id), event, rx: None, file: None });
    }
}

/// Maximum number of bytes that a script may leave unconsumed.
pub const MAX_UNCONSUMED: usize = 64;

impl<F: FnMut(&mut Turn<'_, '_>)> Application for Script<F> {
    type State = ();
    const MAX_UNCONSUMED: usize = MAX_UNCONSUMED;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _: Listener) {
        self.plain(x, Event::Accepted);
    }

    fn connected(&mut self, x: Cx<'_, impl Commands, ()>, result: io::Result<()>) {
        self.plain(x, Event::Connected(result.map_err(|e| e.kind())));
    }

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let event = Event::Received { bytes: rx.bytes().to_vec(), eof: rx.eof() };
        self.report(Turn { io: x.io, id: Some(x.id), event, rx: Some(rx), file: None });
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, ()>) {
        self.plain(x, Event::Drained);
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, tag: u32, done: io::Result<FileOutcome>) {
        let mut file = None;
        let outcome = done.map(|done| match done {
            FileOutcome::Opened(opened) => {
                let (opened, meta) = *opened;
                file = Some(opened);
                Outcome::Opened(meta.len)
            }
            FileOutcome::Stat(meta) => Outcome::Stat((meta.kind, meta.len)),
            FileOutcome::Listed(listing) => {
                let mut names: Vec<_> = listing.entries.into_iter().map(|entry| entry.0).collect();
                names.sort();
                Outcome::Listed(names)
            }
            FileOutcome::Read(bytes) => Outcome::Read(bytes.to_vec()),
            FileOutcome::Written => Outcome::Written,
        });
        let outcome = outcome.map_err(|error| error.kind());
        let event = Event::File(tag, outcome);
        self.report(Turn { io: x.io, id: Some(x.id), event, rx: None, file });
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, ()>) {
        self.plain(x, Event::Expired);
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, ()>) {
        self.plain(x, Event::Stopping);
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.plain(x, Event::Closed(Ended::from(&reason)));
    }

    fn woken(&mut self, io: &mut impl Commands, _: Others<'_, Self::State>, tag: u64) {
        self.report(Turn { io, id: None, event: Event::Woken(tag), rx: None, file: None });
    }
}
