//! The transformation that a layer applies to the bytes of a connection.

use std::io::{self, Write};

/// A transformation of the bytes of one connection. The application inside finds it by
/// [`Commands::session`](evring::Commands::session).
pub trait Transform: Sized + 'static {
    /// Configuration shared by all connections.
    type Config;

    /// Starts a connection.
    ///
    /// # Errors
    /// Fails if the configuration is invalid.
    fn new(config: &Self::Config) -> io::Result<Self>;

    /// Returns whether application bytes can be sealed, such as after a handshake.
    fn ready(&self) -> bool;

    /// Appends the decoded bytes of `wire` to `plain`. Returns whether the peer has announced the end of
    /// its stream.
    ///
    /// # Errors
    /// Fails if the bytes are invalid; the connection ends.
    fn open(&mut self, wire: &[u8], plain: &mut Vec<u8>) -> io::Result<bool>;

    /// Returns whether the peer has begun something that only its next bytes complete, such as a handshake or a
    /// record. Such a connection is not idle.
    fn is_partial(&self) -> bool {
        false
    }

    /// Checks a stream that ended without an announcement.
    ///
    /// # Errors
    /// Fails if such an end is invalid.
    fn ended(&self) -> io::Result<()>;

    /// Encodes application bytes. Called only when [`ready`](Transform::ready), with at most 16 KiB, and
    /// always followed by [`wire`](Transform::wire).
    ///
    /// # Errors
    /// Fails if the connection cannot continue.
    fn seal(&mut self, plain: &[u8]) -> io::Result<()>;

    /// Announces the end of the stream to the peer.
    fn end(&mut self);

    /// Writes the encoded bytes to send.
    ///
    /// # Errors
    /// Returns the errors of `to`, which never fails.
    fn wire(&mut self, to: &mut dyn Write) -> io::Result<()>;
}
