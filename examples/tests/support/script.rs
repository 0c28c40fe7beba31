//! An application that a test writes as one function, and that reports what it was told.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use evring::{Application, CloseReason, Commands, ConnId, Cx, FileOutcome, Listener, Rx};

use super::PATIENCE;

/// What an application was told, in a form that threads can pass on and tests compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Accepted,
    Connected(Result<(), io::ErrorKind>),
    Received { bytes: Vec<u8>, eof: bool },
    Drained,
    File(u32, Outcome),
    Expired,
    Stopping,
    Closed(Ended),
    Woken(u64),
}

/// The end of work on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Opened(Result<u64, io::ErrorKind>),
    Stat(Result<(evring::FileKind, u64), io::ErrorKind>),
    Listed(Result<Vec<std::ffi::OsString>, io::ErrorKind>),
    Read(Result<Vec<u8>, io::ErrorKind>),
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
        }
    }
}

/// One callback: what was told, and what can be done about it.
pub struct Turn<'a, 'r> {
    pub io: &'a mut dyn Commands,
    /// The connection; none when woken.
    pub id: Option<ConnId>,
    pub event: Event,
    pub rx: Option<&'a mut Rx<'r>>,
    /// What was opened.
    pub file: Option<evring::File>,
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

/// An application that reports everything and then does what the test says.
pub struct Script<F> {
    act: F,
    log: Sender<(Option<ConnId>, Event)>,
}

/// What a [`Script`] was told, in order.
pub struct Log(Receiver<(Option<ConnId>, Event)>);

impl Log {
    /// The next event.
    #[track_caller]
    pub fn next(&self) -> Event {
        self.next_of().1
    }

    /// The next event and its connection.
    #[track_caller]
    pub fn next_of(&self) -> (Option<ConnId>, Event) {
        self.0.recv_timeout(PATIENCE).expect("the application is told something")
    }

    /// The next event that is none of received bytes.
    #[track_caller]
    pub fn skip_received(&self) -> Event {
        loop {
            match self.next() {
                Event::Received { .. } => {}
                event => return event,
            }
        }
    }

    /// Everything that was told and not looked at, once the server has stopped.
    pub fn rest(&self) -> Vec<Event> {
        self.0.try_iter().map(|(_, event)| event).collect()
    }
}

/// Makes a maker of a script, and the log of it.
pub fn script<F>(act: F) -> (impl FnOnce() -> Script<F> + Send, Log)
where
    F: FnMut(&mut Turn<'_, '_>) + Send,
{
    let (log, events) = channel();
    (move || Script { act, log }, Log(events))
}

impl<F: FnMut(&mut Turn<'_, '_>)> Script<F> {
    fn tell(&mut self, mut turn: Turn<'_, '_>) {
        // A test that has seen enough no longer listens.
        let _ = self.log.send((turn.id, turn.event.clone()));
        (self.act)(&mut turn);
    }

    fn plain(&mut self, x: Cx<'_, impl Commands, ()>, event: Event) {
        self.tell(Turn { io: x.io, id: Some(x.id), event, rx: None, file: None });
    }
}

/// How many bytes a script may leave.
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
        self.tell(Turn { io: x.io, id: Some(x.id), event, rx: Some(rx), file: None });
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, ()>) {
        self.plain(x, Event::Drained);
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, tag: u32, done: FileOutcome) {
        let mut file = None;
        let outcome = match done {
            FileOutcome::Opened(Ok((opened, meta))) => {
                file = Some(opened);
                Outcome::Opened(Ok(meta.len))
            }
            FileOutcome::Opened(Err(e)) => Outcome::Opened(Err(e.kind())),
            FileOutcome::Stat(r) => Outcome::Stat(r.map(|m| (m.kind, m.len)).map_err(|e| e.kind())),
            FileOutcome::Listed(r) => {
                let mut names = r.map(|l| l.entries.into_iter().map(|e| e.0).collect::<Vec<_>>());
                if let Ok(names) = &mut names {
                    names.sort();
                }
                Outcome::Listed(names.map_err(|e| e.kind()))
            }
            FileOutcome::Read(r) => Outcome::Read(r.map(|b| b.to_vec()).map_err(|e| e.kind())),
        };
        let event = Event::File(tag, outcome);
        self.tell(Turn { io: x.io, id: Some(x.id), event, rx: None, file });
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

    fn woken(&mut self, io: &mut impl Commands, tag: u64) {
        self.tell(Turn { io, id: None, event: Event::Woken(tag), rx: None, file: None });
    }
}
