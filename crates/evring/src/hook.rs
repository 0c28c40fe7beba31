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

    /// Bytes arrived, as one receive returned them, or in other parts if a hook held the connection. What the hook consumes,
    /// the application does not get; the rest follows in order. Replies go through [`Commands::send`], with its bounds; after a
    /// [`Commands::close`] the application gets nothing more.
    ///
    /// Not called while the application has unconsumed bytes, or [has a message](Application::has_message): it gets the
    /// rest of a message whose beginning it got. So a hook passes a message that is not complete, or that it gives up,
    /// to the application by consuming nothing.
    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>);

    /// Returns whether the hook behind this one gets the bytes that [`received`](Self::received) has just left. Asked
    /// only after it.
    fn passes_to_next(&self) -> bool {
        true
    }

    /// The application is about to get these bytes. Returns whether it does: not if the hook holds the message
    /// that they begin with. A hook holds a message by consuming nothing and
    /// [holding](Commands::hold) the bytes of the connection; once it ends this, it can consume the message here. Bytes that
    /// have arrived meanwhile are another message, which the hooks [receive](Self::received).
    fn offered(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
        true
    }

    /// Returns whether the hook holds a message of a connection. When the server stops, the application is asked to
    /// close the connection only after the hook has ended this.
    fn holds(&self, id: ConnId) -> bool {
        false
    }

    /// The send queue of a connection has fallen from [`HIGH_WATER`](crate::HIGH_WATER) to
    /// [`LOW_WATER`](crate::LOW_WATER).
    fn drained(&mut self, io: &mut impl Commands, id: ConnId) {}

    /// Another thread called [`RemoteHandle::wake`](crate::RemoteHandle::wake). Returns whether that was for the
    /// hook, and not for the application.
    fn woken(&mut self, io: &mut impl Commands, tag: u64) -> bool {
        false
    }

    /// A timer has expired. Returns whether it is the hook's, and not the application's.
    fn timer(&mut self, io: &mut impl Commands, timer: u32) -> bool {
        false
    }

    /// A connection of either kind has closed.
    fn closed(&mut self, id: ConnId) {}
}

/// A hook, or none.
impl<H: ReceiveHook> ReceiveHook for Option<H> {
    fn accepted(&mut self, io: &mut impl Commands, id: ConnId, at: Listener) {
        if let Some(hook) = self {
            hook.accepted(io, id, at);
        }
    }

    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        if let Some(hook) = self {
            hook.received(io, id, rx);
        }
    }

    fn passes_to_next(&self) -> bool {
        self.as_ref().is_none_or(ReceiveHook::passes_to_next)
    }

    fn offered(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
        self.as_mut().is_none_or(|hook| hook.offered(io, id, rx))
    }

    fn holds(&self, id: ConnId) -> bool {
        self.as_ref().is_some_and(|hook| hook.holds(id))
    }

    fn drained(&mut self, io: &mut impl Commands, id: ConnId) {
        if let Some(hook) = self {
            hook.drained(io, id);
        }
    }

    fn woken(&mut self, io: &mut impl Commands, tag: u64) -> bool {
        self.as_mut().is_some_and(|hook| hook.woken(io, tag))
    }

    fn timer(&mut self, io: &mut impl Commands, timer: u32) -> bool {
        self.as_mut().is_some_and(|hook| hook.timer(io, timer))
    }

    fn closed(&mut self, id: ConnId) {
        if let Some(hook) = self {
            hook.closed(id);
        }
    }
}

/// Two hooks, such as upcalls behind handlers in a sandbox (ASH, section 5.6). The second one sees the messages of which the
/// first one consumes nothing.
impl<A: ReceiveHook, B: ReceiveHook> ReceiveHook for (A, B) {
    fn accepted(&mut self, io: &mut impl Commands, id: ConnId, at: Listener) {
        self.0.accepted(io, id, at);
        self.1.accepted(io, id, at);
    }

    fn received(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {
        let len = rx.bytes().len();
        self.0.received(io, id, rx);
        let is_left = rx.bytes().len() == len && !io.is_closing(id) && !self.0.holds(id);
        if is_left && self.0.passes_to_next() {
            self.1.received(io, id, rx);
        }
    }

    fn passes_to_next(&self) -> bool {
        self.0.passes_to_next() && self.1.passes_to_next()
    }

    fn offered(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) -> bool {
        self.0.offered(io, id, rx) && self.1.offered(io, id, rx)
    }

    fn holds(&self, id: ConnId) -> bool {
        self.0.holds(id) || self.1.holds(id)
    }

    fn drained(&mut self, io: &mut impl Commands, id: ConnId) {
        self.0.drained(io, id);
        self.1.drained(io, id);
    }

    fn woken(&mut self, io: &mut impl Commands, tag: u64) -> bool {
        self.0.woken(io, tag) || self.1.woken(io, tag)
    }

    fn timer(&mut self, io: &mut impl Commands, timer: u32) -> bool {
        self.0.timer(io, timer) || self.1.timer(io, timer)
    }

    fn closed(&mut self, id: ConnId) {
        self.0.closed(id);
        self.1.closed(id);
    }
}

/// An application behind a [`ReceiveHook`].
///
/// Several hooks are a tuple. In an application that is `Hooked` itself, the outer hook does not see the messages that have
/// arrived behind one that the inner hook held.
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
        let is_left = !rx.bytes().is_empty() && !io.is_closing(id) && !self.hook.holds(id);
        if A::INTERCEPTS && is_left && self.hook.passes_to_next() {
            self.inner.intercept(io, id, rx);
        }
    }

    fn received(&mut self, x: Cx<'_, impl Commands, A::State>, rx: &mut Rx<'_>) {
        let len = rx.bytes().len();
        if !self.hook.offered(x.io, x.id, rx) {
            return;
        }
        if rx.bytes().len() < len && !rx.bytes().is_empty() && !x.io.is_closing(x.id) {
            self.intercept(x.io, x.id, rx);
            if self.hook.holds(x.id) {
                return;
            }
        }
        if !x.io.is_closing(x.id) {
            self.inner.received(x, rx);
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.hook.drained(x.io, x.id);
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
        if !self.hook.holds(x.id) {
            self.inner.stopping(x);
        }
    }

    fn is_idle(&self, id: ConnId, state: &A::State) -> bool {
        self.inner.is_idle(id, state)
    }

    fn has_message(&self, id: ConnId, state: &A::State) -> bool {
        self.inner.has_message(id, state)
    }

    fn has_unread(&self, id: ConnId, state: &A::State) -> bool {
        self.inner.has_unread(id, state)
    }

    fn is_unserved(&self, id: ConnId, state: &A::State) -> bool {
        self.inner.is_unserved(id, state)
    }

    fn evicting(&mut self, x: Cx<'_, impl Commands, A::State>) {
        self.inner.evicting(x);
    }

    fn woken(&mut self, io: &mut impl Commands, all: Others<'_, A::State>, tag: u64) {
        if !self.hook.woken(io, tag) {
            self.inner.woken(io, all, tag);
        }
    }

    fn timer(&mut self, io: &mut impl Commands, all: Others<'_, A::State>, timer: u32) {
        if !self.hook.timer(io, timer) {
            self.inner.timer(io, all, timer);
        }
    }
}
