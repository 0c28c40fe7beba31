//! The application: callbacks that a mechanism invokes for connections. They do no I/O.

use std::io;

use shared_ring::files::FileOutcome;

use crate::{Close, Commands, ConnId, Listener, Others, Rx};

/// Context of a callback: commands, the connection and its state.
#[derive(Debug)]
pub struct Cx<'a, C, S> {
    /// Receives the commands.
    pub io: &'a mut C,
    /// The connection that the callback is about.
    pub id: ConnId,
    /// The connection's state.
    pub state: &'a mut S,
    /// The states of the other connections.
    pub others: Others<'a, S>,
}

/// The reason why a connection ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// The application closed it.
    Closed,
    /// The peer reset the connection or did not respond, or the connect failed.
    Failed(io::Error),
    /// The application left [`Application::MAX_UNCONSUMED`] bytes unconsumed, or queued more than
    /// [`Config::max_queued_bytes`](crate::Config::max_queued_bytes). Or all connections together buffered
    /// more than [`Config::max_buffered_bytes`](crate::Config::max_buffered_bytes).
    Overrun,
    /// A file was shorter than the range to send, or has changed meanwhile.
    Truncated,
    /// The server stopped.
    Stopped,
}

/// A server, a client, or a layer around one: callbacks receive events and issue commands.
///
/// An application does no I/O and reads no clock or random source except through [`Commands`]. It therefore
/// gives the same replies on every mechanism, and can run without one.
///
/// Each connection starts with `accepted` or `connected` and ends with `closed`, also after a failed
/// `connected`. If a callback panics, the driver drops the application, and `run` resumes the panic.
#[allow(unused_variables)]
pub trait Application: Sized {
    /// State of a connection, kept in its slot. Reset to the default when the connection has closed.
    type State: Default;

    /// Number of unconsumed bytes that is too many. A connection whose application leaves this many, and neither
    /// pauses nor closes it, ends with [`CloseReason::Overrun`]. So one less is the longest incomplete
    /// message; 1 suits an application that consumes everything.
    const MAX_UNCONSUMED: usize;

    /// Whether [`intercept`](Self::intercept) is called.
    const INTERCEPTS: bool = false;

    /// A client connected.
    fn accepted(&mut self, x: Cx<'_, impl Commands, Self::State>, at: Listener) {}

    /// A connect completed or failed.
    fn connected(&mut self, x: Cx<'_, impl Commands, Self::State>, result: io::Result<()>) {}

    /// Bytes arrived, as one receive returned them. What this consumes, [`received`](Self::received) does not
    /// get. Not called while there are unconsumed bytes. [`Hooked`](crate::hooks::Hooked) uses this.
    fn intercept(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {}

    /// Bytes arrived, the peer shut down its sending side ([`Rx::eof`]), receiving was resumed, or a part of further bytes
    /// arrived ([`Rx::is_partial`]). Unconsumed bytes are passed again, together with new ones; in the last two cases there
    /// may be none. Not called while paused. After `close`, called only for [`Close::Half`].
    fn received(&mut self, x: Cx<'_, impl Commands, Self::State>, rx: &mut Rx<'_>);

    /// The send queue has fallen from [`HIGH_WATER`](crate::HIGH_WATER) to [`LOW_WATER`](crate::LOW_WATER).
    /// After `close`, called only for [`Close::Half`].
    fn drained(&mut self, x: Cx<'_, impl Commands, Self::State>) {}

    /// The file operation `tag` has completed. After `close`, called only for [`Close::Half`].
    fn file(
        &mut self,
        x: Cx<'_, impl Commands, Self::State>,
        tag: u32,
        done: io::Result<FileOutcome>,
    ) {
    }

    /// The connection's deadline has passed, and is now cleared.
    fn expired(&mut self, x: Cx<'_, impl Commands, Self::State>) {}

    /// The connection has closed; commands for it have no effect. Called when its socket is closed, or the server gives up.
    /// From the time at which the driver ends the connection, [`Commands::is_open`] returns `false`, and no other callback
    /// is invoked for it: the kernel may still use its memory. File operations may run even after this; their results are
    /// dropped.
    fn closed(&mut self, x: Cx<'_, impl Commands, Self::State>, reason: CloseReason) {}

    /// The server is stopping: the connection should close after its current work, at once if it has none.
    /// Bytes that the peer sent before are passed first. Called again after a resume. After `close`, called only for
    /// [`Close::Half`]: the connection still receives.
    fn stopping(&mut self, x: Cx<'_, impl Commands, Self::State>) {
        x.io.close(x.id, Close::Flush);
    }

    /// Returns whether a connection only waits for another request, so that the driver may close it to make
    /// room. The driver asks this about connections with no queued bytes, no unconsumed bytes and no
    /// operations. It closes those with the earliest deadlines first.
    fn is_idle(&self, id: ConnId, state: &Self::State) -> bool {
        false
    }

    /// Returns whether the application works on a message of the connection, of which more may arrive. While it does, the
    /// driver does not offer what arrives to [`intercept`](Self::intercept), which would take the rest of the message
    /// for another one and reply before the application.
    fn has_message(&self, id: ConnId, state: &Self::State) -> bool {
        false
    }

    /// Returns whether a layer holds received bytes, or their end, for the application inside, which has paused. The driver
    /// asks this about a half-closed connection whose peer has ended, too, and does not close it meanwhile.
    fn has_unread(&self, id: ConnId, state: &Self::State) -> bool {
        false
    }

    /// Returns whether an idle connection has not brought a request yet, but perhaps a handshake. The driver closes
    /// such connections, and those on which nothing has arrived, only if too few others are idle: a request may be
    /// on its way, and its client would not expect the end.
    fn is_unserved(&self, id: ConnId, state: &Self::State) -> bool {
        false
    }

    /// The driver closes an idle connection to make room for a new one. Bytes that this sends leave first. If it does
    /// not close the connection, the driver does, with [`Close::Flush`]; a connection that is evicted does not
    /// [linger](Close::Linger).
    fn evicting(&mut self, x: Cx<'_, impl Commands, Self::State>) {
        x.io.close(x.id, Close::Flush);
    }

    /// Another thread called [`RemoteHandle::wake`](crate::RemoteHandle::wake) with `tag`.
    fn woken(&mut self, io: &mut impl Commands, all: Others<'_, Self::State>, tag: u64) {}

    /// A timer that [`Commands::set_timer`] set has expired, and is now cleared.
    fn timer(&mut self, io: &mut impl Commands, all: Others<'_, Self::State>, timer: u32) {}
}
