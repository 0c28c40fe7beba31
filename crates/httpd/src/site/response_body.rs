//! Bodies of responses.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;

use crate::site::pipe::{self, Broken, Writer};

/// The body of a response.
#[derive(Default)]
pub struct Body(pub(crate) Kind);

pub(crate) enum Kind {
    Bytes(Bytes),
    /// Pieces, and the sum of their lengths if it is known.
    Pieces(Option<u64>, Pieces),
}

/// The pieces of a body.
pub(crate) struct Pieces {
    pub(crate) next: NextPiece,
    /// Whether the next piece may have to be waited for.
    pub(crate) waits: bool,
}

/// A piece of a body.
pub(crate) enum Piece {
    Bytes(Bytes),
    /// The lines of the trailer section, which end a body in chunks.
    #[cfg_attr(not(feature = "tower"), expect(dead_code))]
    Trailers(Vec<u8>),
}

/// Returns the next piece. An error resets the connection, so that the client does not take the body
/// for complete.
type NextPiece =
    Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<io::Result<Piece>>> + Send + 'static>;

impl Pieces {
    /// Creates pieces that are made when they are needed.
    pub(crate) fn made(
        mut pieces: impl Iterator<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Self {
        let next = move |_: &mut Context<'_>| {
            let piece = pieces.next();
            Poll::Ready(piece.map(|piece| piece.map(Piece::Bytes)))
        };
        Pieces { next: Box::new(next), waits: false }
    }

    /// Creates pieces that may have to be waited for.
    pub(crate) fn polled(
        next: impl FnMut(&mut Context<'_>) -> Poll<Option<io::Result<Piece>>> + Send + 'static,
    ) -> Self {
        Pieces { next: Box::new(next), waits: true }
    }
}

impl Default for Kind {
    fn default() -> Self {
        Kind::Bytes(Bytes::new())
    }
}

impl Body {
    /// Returns the bytes, or `None` for a body made in pieces.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match &self.0 {
            Kind::Bytes(bytes) => Some(bytes),
            Kind::Pieces(..) => None,
        }
    }

    /// Returns whether pieces may have to be waited for.
    pub(crate) fn waits(&self) -> bool {
        matches!(&self.0, Kind::Pieces(_, pieces) if pieces.waits)
    }

    /// Creates a body that is produced in pieces as the send queue drains. Pieces are collected
    /// until there is enough to send, so a slow iterator delays the pieces before it.
    ///
    /// An error resets the connection, so that the client does not take the body for complete. So
    /// does an iterator that yields more than 1000 empty pieces in a row.
    ///
    /// ```
    /// use evring_httpd::bytes::Bytes;
    /// use evring_httpd::body::Body;
    /// use evring_httpd::{Request, Response, Server};
    ///
    /// let numbers = |_: Request| {
    ///     let lines = (1..=1_000_000).map(|n| Ok(Bytes::from(format!("{n}\n"))));
    ///     Response::new(Body::pieces(lines))
    /// };
    /// let server = Server::builder().route("/numbers", numbers);
    /// ```
    pub fn pieces(pieces: impl Iterator<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Body(Kind::Pieces(None, Pieces::made(pieces)))
    }

    /// Like [`Body::pieces`], with a known length. Resets the connection if the length differs.
    pub fn sized(
        len: u64,
        pieces: impl Iterator<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Self {
        Body(Kind::Pieces(Some(len), Pieces::made(pieces)))
    }

    /// Creates a body from a function that returns the next piece, or `None` after the last one. If it
    /// returns `Poll::Pending`, it is called again when the waker of its context is woken. `len` is the
    /// length in bytes, if known; the connection is reset if the length differs or a piece is an error. A body with a
    /// length ends with its last byte.
    pub fn poll_fn(
        len: Option<u64>,
        mut next: impl FnMut(&mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> + Send + 'static,
    ) -> Self {
        let next = move |context: &mut Context<'_>| {
            next(context).map(|piece| piece.map(|piece| piece.map(Piece::Bytes)))
        };
        Body(Kind::Pieces(len, Pieces::polled(next)))
    }

    /// Creates a body whose pieces any thread or task sends. At most 64 KiB wait for the client.
    ///
    /// ```
    /// use evring_httpd::body::Body;
    /// use evring_httpd::{Request, Response, Server};
    ///
    /// async fn numbers(_: Request) -> Response {
    ///     let (mut sender, body) = Body::channel();
    ///     std::thread::spawn(move || {
    ///         for n in 0..3 {
    ///             if sender.try_send(format!("{n}\n")).is_err() {
    ///                 return; // the client has gone or is slow
    ///             }
    ///         }
    ///         sender.finish();
    ///     });
    ///     Response::new(body)
    /// }
    ///
    /// let server = Server::builder().route("/numbers", numbers);
    /// ```
    pub fn channel() -> (BodySender, Self) {
        let (writer, mut reader) = pipe::pipe();
        let incomplete = || io::Error::other("its sender was dropped before `BodySender::finish`");
        let next = move |context: &mut Context<'_>| {
            let piece = reader.poll_piece(context);
            piece.map(|piece| piece.map(|piece| piece.map_err(|Broken| incomplete())))
        };
        (BodySender(writer), Body::poll_fn(None, next))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Bytes(bytes) => write!(f, "Body({} bytes)", bytes.len()),
            Kind::Pieces(Some(len), _) => write!(f, "Body({len} bytes in pieces)"),
            Kind::Pieces(None, _) => f.write_str("Body(in pieces)"),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Body(Kind::Bytes(bytes))
    }
}

macro_rules! bodies {
    ($($type:ty),*) => {$(
        impl From<$type> for Body {
            fn from(bytes: $type) -> Self {
                Bytes::from(bytes).into()
            }
        }
    )*};
}

bodies!(&'static str, String, &'static [u8], Vec<u8>);

/// Sends the pieces of a body, which [`Body::channel`] created. If it is dropped before
/// [`BodySender::finish`], the connection is reset, so that the client does not take the body for complete.
#[derive(Debug)]
pub struct BodySender(Writer);

impl BodySender {
    /// Sends a piece, after waiting until there is room for it.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn send(&mut self, piece: impl Into<Bytes>) -> Result<(), Disconnected> {
        let room = poll_fn(|context| self.0.poll_room(context)).await;
        room.map_err(|Broken| Disconnected)?;
        self.0.push(piece.into());
        Ok(())
    }

    /// Sends a piece if there is room for it.
    ///
    /// # Errors
    /// Returns the piece if the client has not received the earlier ones, or has gone
    /// ([`BodySender::is_closed`]).
    pub fn try_send(&mut self, piece: impl Into<Bytes>) -> Result<(), Bytes> {
        let piece = piece.into();
        if self.is_closed() || !self.0.has_room() {
            return Err(piece);
        }
        self.0.push(piece);
        Ok(())
    }

    /// Returns whether the client has gone.
    pub fn is_closed(&self) -> bool {
        self.0.is_unread()
    }

    /// Ends the body.
    pub fn finish(self) {
        self.0.end(Ok(HeaderMap::new()));
    }
}

/// The client has gone, so it receives no more of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Disconnected;

impl fmt::Display for Disconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client has gone before it received the body")
    }
}

impl std::error::Error for Disconnected {}
