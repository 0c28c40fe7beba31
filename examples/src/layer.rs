//! A layer that transforms all bytes of an application, such as TLS.

mod inside;
mod order;
mod session;

use std::io::{self, Write};
use std::mem;

use evring::{
    Application, Close, CloseReason, Commands, ConnId, Cx, FileOutcome, HIGH_WATER, LOW_WATER,
    Listener, Rx,
};

use inside::{Inside, Sessions};
use session::{READ_TAG, Session};

/// What a layer does to the bytes of one connection.
pub trait Transform: Sized {
    /// What all connections share.
    type Config;

    /// Begins a connection.
    ///
    /// # Errors
    /// When the configuration makes no sense.
    fn new(config: &Self::Config) -> io::Result<Self>;

    /// Whether the application's bytes can be sealed yet; a handshake may have to come first.
    fn ready(&self) -> bool;

    /// Appends to `plain` what the bytes from the peer mean; says whether the peer has said that
    /// it will send no more.
    ///
    /// # Errors
    /// When they mean nothing; the connection ends.
    fn open(&mut self, wire: &[u8], plain: &mut Vec<u8>) -> io::Result<bool>;

    /// Judges a stream that ended although the peer did not say so.
    ///
    /// # Errors
    /// When that is no proper end.
    fn ended(&self) -> io::Result<()>;

    /// Takes bytes of the application. Called when [`ready`](Transform::ready), with at most
    /// 16 KiB, and always followed by [`wire`](Transform::wire).
    ///
    /// # Errors
    /// When the connection can't go on.
    fn seal(&mut self, plain: &[u8]) -> io::Result<()>;

    /// Says to the peer that no more will be sent.
    fn end(&mut self);

    /// Writes whatever is to be sent.
    ///
    /// # Errors
    /// Those of `to`, which never fails.
    fn wire(&mut self, to: &mut dyn Write) -> io::Result<()>;
}

/// An application inside a [`Transform`].
///
/// Connections that were accepted are transformed; those that the application opens are not, so
/// that a [`Proxy`](crate::Proxy) inside speaks plainly to the server behind it. Parts of files
/// pass through memory, piece by piece. Tags of file work with the highest bit set are taken.
///
/// Memory for each connection is bounded: by [`Layer::MAX_HELD`] for what waits to be sealed,
/// and by the application's bound and one receive for what was opened.
#[derive(Debug)]
pub struct Layer<A, T: Transform> {
    inner: A,
    config: T::Config,
    sessions: Sessions<T>,
}

impl<A: Application, T: Transform> Layer<A, T> {
    /// The most bytes that wait for a handshake or behind a file; more end the connection.
    pub const MAX_HELD: usize = session::MAX_HELD;

    /// Puts `inner` inside.
    ///
    /// # Errors
    /// When no connection can be begun with `config`.
    pub fn new(config: T::Config, inner: A) -> io::Result<Self> {
        T::new(&config)?;
        Ok(Layer { inner, config, sessions: Sessions::default() })
    }

    /// Calls the application, then sends what it wrote into reserved memory.
    fn call<C: Commands>(&mut self, io: &mut C, f: impl FnOnce(&mut A, &mut Inside<'_, C, T>)) {
        f(&mut self.inner, &mut Inside { io, sessions: &mut self.sessions });
        self.sessions.send_reserved(io);
    }

    fn deliver(&mut self, x: Cx<'_, impl Commands, A::State>) {
        let Some(session) = self.sessions.get(x.id) else { return };
        let (mut plain, eof) = (mem::take(&mut session.plain), session.eof);
        let mut rx = Rx::borrowed(plain.bytes_mut(), eof);
        self.call(x.io, |app, io| app.received(Cx { io, id: x.id, state: x.state }, &mut rx));
        let left = rx.bytes().len();
        plain.keep_last(left);
        if let Some(session) = self.sessions.get(x.id) {
            session.plain = plain;
            if left >= A::MAX_UNCONSUMED && session.wants_more() {
                session.fail(x.io, CloseReason::Overrun, Close::Reset);
            }
        }
    }

    /// Tells the application when all it had queued has gone, or nearly.
    ///
    /// The queue of the mechanism says so at [`LOW_WATER`]. What waited in the layer may find
    /// that queue anywhere below [`HIGH_WATER`], and nothing will be said then; so that counts.
    fn settle(&mut self, x: Cx<'_, impl Commands, A::State>) {
        const { assert!(LOW_WATER < HIGH_WATER) };
        if self.sessions.get(x.id).is_some_and(Session::take_relief) {
            self.call(x.io, |app, io| app.drained(Cx { io, id: x.id, state: x.state }));
        }
    }
}

/// The same context again, for one more call.
fn again<'a, C, S>(x: &'a mut Cx<'_, C, S>) -> Cx<'a, C, S> {
    Cx { io: x.io, id: x.id, state: x.state }
}

impl<A: Application, T: Transform> Application for Layer<A, T> {
    type State = A::State;
    /// The layer itself leaves nothing; connections that are not transformed may.
    const MAX_UNCONSUMED: usize = A::MAX_UNCONSUMED;

    fn accepted(&mut self, x: Cx<'_, impl Commands, A::State>, at: Listener) {
        match T::new(&self.config) {
            Ok(transform) => self.sessions.begin(x.id, transform),
            Err(_) => x.io.close(x.id, Close::Reset),
        }
        self.call(x.io, |app, io| app.accepted(Cx { io, id: x.id, state: x.state }, at));
    }

    fn connected(&mut self, x: Cx<'_, impl Commands, A::State>, result: io::Result<()>) {
        self.call(x.io, |app, io| app.connected(Cx { io, id: x.id, state: x.state }, result));
    }

    fn received(&mut self, mut x: Cx<'_, impl Commands, A::State>, rx: &mut Rx<'_>) {
        let Some(session) = self.sessions.get(x.id) else {
            let Cx { io, id, state } = x;
            return self.call(io, |app, io| app.received(Cx { io, id, state }, rx));
        };
        if session.received(x.io, rx) {
            self.deliver(again(&mut x));
        }
        self.settle(x);
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, A::State>) {
        match self.sessions.get(x.id) {
            None => self.call(x.io, |app, io| app.drained(Cx { io, id: x.id, state: x.state })),
            Some(session) => {
                session.drained(x.io);
                self.settle(x);
            }
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, A::State>, tag: u32, done: FileOutcome) {
        match (self.sessions.get(x.id), done) {
            (Some(session), FileOutcome::Read(result)) if tag == READ_TAG => {
                session.read(x.io, result);
                self.settle(x);
            }
            (_, done) => {
                self.call(x.io, |app, io| app.file(Cx { io, id: x.id, state: x.state }, tag, done))
            }
        }
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.call(x.io, |app, io| app.expired(Cx { io, id: x.id, state: x.state }));
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, A::State>, reason: CloseReason) {
        let reason = self.sessions.end(x.id).and_then(|session| session.reason).unwrap_or(reason);
        self.call(x.io, |app, io| app.closed(Cx { io, id: x.id, state: x.state }, reason));
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.call(x.io, |app, io| app.stopping(Cx { io, id: x.id, state: x.state }));
    }

    fn is_idle(&self, state: &A::State) -> bool {
        // The layer keeps nothing back from an application that waits.
        self.inner.is_idle(state)
    }

    fn woken(&mut self, io: &mut impl Commands, tag: u64) {
        self.call(io, |app, io| app.woken(io, tag));
    }
}

/// Lets a [`Transform`] write to a connection.
struct Wire<'a, C> {
    io: &'a mut C,
    to: ConnId,
    queued: Option<usize>,
}

impl<C: Commands> Write for Wire<'_, C> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.queued = Some(self.io.send(self.to, evring::Chunk::Copy(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
