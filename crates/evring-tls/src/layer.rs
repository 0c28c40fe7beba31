//! A layer that transforms all bytes of an application, such as TLS.

mod inside;
mod order;
mod session;
mod transform;

use std::io::{self, Write};
use std::mem;
use std::time::Duration;

use evring::files::FileOutcome;
use evring::layers::FILE_TAG;
use evring::{
    Application, Close, CloseReason, Commands, Config, ConnId, Cx, HIGH_WATER, LOW_WATER, Listener,
    Others, Rx,
};

pub use transform::Transform;

use inside::{LayerCommands, Sessions};
use session::{Pace, Session};

/// An application inside a [`Transform`].
///
/// Accepted connections are transformed, except those of listeners that stay [plain](Layer::plain_at). Those that
/// the application opens are not, so a proxy inside sends plain bytes to its upstream server. File ranges
/// are read into memory piece by piece. The tag [`FILE_TAG`](evring::layers::FILE_TAG) of file
/// operations is reserved.
///
/// A close before the end of a handshake announces the end to the peer and ends the connection. If bytes are queued, the
/// layer completes the handshake before it closes, and resets a peer that is slower than the
/// [minimum rate](Layer::min_rate). With [`Close::Half`] it completes the handshake, too, but only the application's deadline
/// limits its time, as that of any handshake. When the peer also announces its end, the connection closes as
/// with [`Close::Linger`].
///
/// Memory per connection is bounded: by [`Layer::MAX_HELD`] for bytes to encode, and for decoded bytes by twice the
/// maximum of the application and one receive. Beyond the maximum, bytes stay encoded with the mechanism.
///
/// The application cannot be [`Hooked`](evring::hooks::Hooked): a hook sees what the mechanism receives, and not decoded bytes.
#[derive(Debug)]
pub struct Layer<A, T: Transform> {
    inner: A,
    /// `None` if no connection is transformed.
    config: Option<T::Config>,
    plain: Vec<Listener>,
    sessions: Sessions<T>,
    pace: Pace,
}

impl<A: Application, T: Transform> Layer<A, T> {
    /// Maximum number of bytes that wait for a handshake or behind a file. If exceeded, the connection
    /// ends.
    pub const MAX_HELD: usize = session::MAX_HELD;

    /// Wraps `inner`.
    ///
    /// # Errors
    /// Fails if no connection can start with `config`.
    pub fn new(config: T::Config, inner: A) -> io::Result<Self> {
        T::new(&config)?;
        Ok(Layer { config: Some(config), ..Layer::transparent(inner) })
    }

    /// Wraps `inner` without transforming any connection, so that one type serves with and without the
    /// transformation.
    pub fn transparent(inner: A) -> Self {
        const { assert!(!A::INTERCEPTS, "a hook inside a layer would get nothing") };
        let Config { min_rate, progress_interval, .. } = Config::default();
        let pace = Pace::new(min_rate, progress_interval);
        Layer { inner, config: None, plain: Vec::new(), sessions: Sessions::default(), pace }
    }

    /// Excludes the connections of these listeners from the transformation.
    #[must_use]
    pub fn plain_at(self, listeners: Vec<Listener>) -> Self {
        Layer { plain: listeners, ..self }
    }

    /// Sets the minimum rate, in bytes per second, and the interval at which it is checked, of a peer that receives what
    /// the application has queued before it closed the connection. Those of the mechanism's [`Config`] are suited; its
    /// defaults are the defaults here.
    #[must_use]
    pub fn min_rate(self, min_rate: u32, interval: Duration) -> Self {
        Layer { pace: Pace::new(min_rate, interval), ..self }
    }

    /// Calls the application, then sends the bytes that it wrote into reserved memory.
    fn call(&mut self, io: &mut dyn Commands, f: impl FnOnce(&mut A, &mut LayerCommands<'_, T>)) {
        f(&mut self.inner, &mut LayerCommands { io: &mut *io, sessions: &mut self.sessions });
        self.sessions.send_reserved(io);
    }

    fn deliver(&mut self, x: Cx<'_, impl Commands, A::State>) {
        let Some(session) = self.sessions.get(x.id) else { return };
        let (mut plain, eof) = (mem::take(&mut session.plain), session.eof);
        session.eof_notified = false;
        let mut rx = Rx::borrowed(plain.bytes_mut(), eof).partial(session.has_partial_record());
        self.call(x.io, |app, io| {
            app.received(Cx { io, id: x.id, state: x.state, others: x.others }, &mut rx)
        });
        let remaining = rx.bytes().len();
        plain.keep_last(remaining);
        if let Some(session) = self.sessions.get(x.id) {
            (session.plain, session.eof_notified) = (plain, eof);
            session.end_half_close(x.io);
            if remaining >= A::MAX_UNCONSUMED && session.wants_more() {
                session.fail(x.io, CloseReason::Overrun, Close::Reset);
            }
        }
    }

    /// Tells the application that the server is stopping.
    fn stop(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.call(x.io, |app, io| {
            app.stopping(Cx { io, id: x.id, state: x.state, others: x.others })
        });
    }

    /// Notifies the application when the layer's queue has drained.
    ///
    /// The mechanism notifies at [`LOW_WATER`]. When the layer's queue empties, the mechanism's queue may
    /// be anywhere below [`HIGH_WATER`], and no notification follows; so that also counts as drained.
    fn notify_drained(&mut self, x: Cx<'_, impl Commands, A::State>) {
        const { assert!(LOW_WATER < HIGH_WATER) };
        if self.sessions.get(x.id).is_some_and(Session::take_drained) {
            self.call(x.io, |app, io| {
                app.drained(Cx { io, id: x.id, state: x.state, others: x.others })
            });
        }
    }
}

/// Reborrows the context for another call.
fn reborrow<'a, C, S>(x: &'a mut Cx<'_, C, S>) -> Cx<'a, C, S> {
    Cx { io: x.io, id: x.id, state: x.state, others: x.others.reborrow() }
}

impl<A: Application, T: Transform> Application for Layer<A, T> {
    type State = A::State;
    /// The layer leaves bytes while the application has not consumed as many decoded ones.
    const MAX_UNCONSUMED: usize = A::MAX_UNCONSUMED;

    fn accepted(&mut self, x: Cx<'_, impl Commands, A::State>, at: Listener) {
        let config = self.config.as_ref().filter(|_| !self.plain.contains(&at));
        match config.map(T::new) {
            None => {}
            Some(Ok(transform)) => self.sessions.begin(x.id, transform),
            Some(Err(_)) => x.io.close(x.id, Close::Reset),
        }
        self.call(x.io, |app, io| {
            app.accepted(Cx { io, id: x.id, state: x.state, others: x.others }, at)
        });
    }

    fn connected(&mut self, x: Cx<'_, impl Commands, A::State>, result: io::Result<()>) {
        self.call(x.io, |app, io| {
            app.connected(Cx { io, id: x.id, state: x.state, others: x.others }, result)
        });
    }

    fn received(&mut self, mut x: Cx<'_, impl Commands, A::State>, rx: &mut Rx<'_>) {
        let Some(session) = self.sessions.get(x.id) else {
            let Cx { io, id, state, others } = x;
            return self.call(io, |app, io| app.received(Cx { io, id, state, others }, rx));
        };
        let mut calls = session.received(x.io, rx, A::MAX_UNCONSUMED);
        while calls {
            self.deliver(reborrow(&mut x));
            // The application may have made room for bytes that are not decoded yet.
            calls = match self.sessions.get(x.id) {
                Some(session) if session.has_undecoded(rx) => {
                    session.received(x.io, rx, A::MAX_UNCONSUMED)
                }
                _ => false,
            };
        }
        if self.sessions.get(x.id).is_some_and(Session::take_stop) {
            self.stop(reborrow(&mut x));
        }
        self.notify_drained(x);
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, A::State>) {
        match self.sessions.get(x.id) {
            None => self.call(x.io, |app, io| {
                app.drained(Cx { io, id: x.id, state: x.state, others: x.others })
            }),
            Some(session) => {
                session.drained(x.io);
                self.notify_drained(x);
            }
        }
    }

    fn file(
        &mut self,
        x: Cx<'_, impl Commands, A::State>,
        tag: u32,
        done: io::Result<FileOutcome>,
    ) {
        match (self.sessions.get(x.id), done) {
            (Some(session), done) if tag == FILE_TAG => {
                let bytes = done.map(|done| match done {
                    FileOutcome::Read(bytes) => bytes,
                    other => unreachable!("not a read: {other:?}"),
                });
                session.read(x.io, bytes);
                self.notify_drained(x);
            }
            (Some(session), _) if !session.app_reads() => {}
            (_, done) => self.call(x.io, |app, io| {
                app.file(Cx { io, id: x.id, state: x.state, others: x.others }, tag, done)
            }),
        }
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, A::State>) {
        if let Some(session) = self.sessions.get(x.id).filter(|session| session.is_flushing()) {
            return session.check_progress(x.io, self.pace);
        }
        self.call(x.io, |app, io| {
            app.expired(Cx { io, id: x.id, state: x.state, others: x.others })
        });
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, A::State>, reason: CloseReason) {
        let reason = self.sessions.get(x.id).and_then(Session::end).unwrap_or(reason);
        self.call(x.io, |app, io| {
            app.closed(Cx { io, id: x.id, state: x.state, others: x.others }, reason)
        });
        self.sessions.remove(x.id);
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, A::State>) {
        if self.sessions.get(x.id).is_some_and(|session| !session.app_reads()) {
            return;
        }
        // An idle application would close; a request that has arrived in part is answered first, as without the layer.
        let is_idle = self.inner.is_idle(x.id, x.state);
        if !(is_idle && self.sessions.get(x.id).is_some_and(Session::defer_stop)) {
            self.stop(x);
        }
    }

    fn is_idle(&self, id: ConnId, state: &A::State) -> bool {
        self.sessions.find(id).is_none_or(Session::is_quiet) && self.inner.is_idle(id, state)
    }

    fn has_message(&self, id: ConnId, state: &A::State) -> bool {
        self.inner.has_message(id, state)
    }

    fn has_unread(&self, id: ConnId, state: &A::State) -> bool {
        self.sessions.find(id).is_some_and(Session::has_unread) || self.inner.has_unread(id, state)
    }

    fn is_unserved(&self, id: ConnId, state: &A::State) -> bool {
        self.inner.is_unserved(id, state)
    }

    fn evicting(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.call(x.io, |app, io| {
            app.evicting(Cx { io, id: x.id, state: x.state, others: x.others })
        });
        // The mechanism would close without an announcement of the end.
        if let Some(session) = self.sessions.get(x.id).filter(|session| session.app_reads()) {
            session.close(x.io, Close::Flush);
        }
    }

    fn woken(&mut self, io: &mut impl Commands, all: Others<'_, A::State>, tag: u64) {
        self.call(io, |app, io| app.woken(io, all, tag));
    }

    fn timer(&mut self, io: &mut impl Commands, all: Others<'_, A::State>, timer: u32) {
        self.call(io, |app, io| app.timer(io, all, timer));
    }
}

/// Writes the bytes of a [`Transform`] to a connection.
struct Wire<'a> {
    io: &'a mut dyn Commands,
    to: ConnId,
    queued: Option<usize>,
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.queued = Some(self.io.send(self.to, evring::Chunk::Copy(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
