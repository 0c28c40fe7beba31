//! A hook that sees received bytes before the application.

use std::io;

use crate::{Application, CloseReason, Commands, ConnId, Cx, FileOutcome, Listener, Others, Rx};

/// Sees received bytes before the application, and may answer for it.
///
/// It keeps what it needs for a connection in a table of its own, by [`ConnId::slot`].
#[allow(unused_variables)]
pub trait ReceiveHook {
    /// A client connected; the application is notified afterwards.
    fn accepted(&mut self, io: &mut impl Commands, id: ConnId, at: Listener) {}

    /// Bytes arrived, as one receive returned them. What the hook consumes, the application does not get;
    /// the rest follows in order. Replies go through [`Commands::send`], with its bounds; after a
    /// [`Commands::close`] the application gets nothing more.
    ///
    /// Not called while the application has unconsumed bytes: it gets the rest of a message whose beginning
    /// it got. So a hook passes a message that is not complete, or that it gives up, to the application by
    /// consuming nothing.
    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>);

    /// A connection of either kind has closed.
    fn closed(&mut self, id: ConnId) {}
}

/// An application behind a [`ReceiveHook`].
#[derive(Debug)]
pub struct Hooked<A, H> {
    inner: A,
    hook: H,
}

impl<A: Application, H: ReceiveHook> Hooked<A, H> {
    /// Puts `hook` before `inner`.
    pub fn new(inner: A, hook: H) -> Self {
        Hooked { inner, hook }
    }
}

impl<A: Application, H: ReceiveHook> Application for Hooked<A, H> {
    type State = A::State;
    const MAX_UNCONSUMED: usize = A::MAX_UNCONSUMED;
    const INTERCEPTS: bool = true;

    fn accepted(&mut self, x: Cx<'_, impl Commands, A::State>, at: Listener) {
        self.hook.accepted(x.io, x.id, at);
        self.inner.accepted(x, at);
    }

    fn connected(&mut self, x: Cx<'_, impl Commands, A::State>, result: io::Result<()>) {
        self.inner.connected(x, result);
    }

    fn intercept(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        self.hook.received(io, id, rx);
        if A::INTERCEPTS {
            self.inner.intercept(io, id, rx);
        }
    }

    fn received(&mut self, x: Cx<'_, impl Commands, A::State>, rx: &mut Rx<'_>) {
        self.inner.received(x, rx);
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.inner.drained(x);
    }

    fn file(
        &mut self,
        x: Cx<'_, impl Commands, A::State>,
        tag: u32,
        done: io::Result<FileOutcome>,
    ) {
        self.inner.file(x, tag, done);
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.inner.expired(x);
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, A::State>, reason: CloseReason) {
        self.hook.closed(x.id);
        self.inner.closed(x, reason);
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.inner.stopping(x);
    }

    fn is_idle(&self, state: &A::State) -> bool {
        self.inner.is_idle(state)
    }

    fn woken(&mut self, io: &mut impl Commands, all: Others<'_, A::State>, tag: u64) {
        self.inner.woken(io, all, tag);
    }

    fn timer(&mut self, io: &mut impl Commands, all: Others<'_, A::State>, timer: u32) {
        self.inner.timer(io, all, timer);
    }
}
