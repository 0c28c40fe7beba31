//! TLS around any application, with rustls.

use std::io::{self, Read as _, Write};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

use crate::layer::{Layer, Transform};

/// TLS server around the application `A`.
pub type Tls<A> = Layer<A, ServerSession>;

/// The configuration of a [`Tls`] application.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    server: Arc<ServerConfig>,
    reply_to_plain: &'static [u8],
    needs_close_notify: bool,
}

impl TlsConfig {
    /// Sets what a client gets, without encryption, that sends an upper-case letter first: a request of HTTP
    /// or another text protocol without TLS. Then the connection ends. By default it gets an alert.
    #[must_use]
    pub fn reply_to_plain(self, reply: &'static [u8]) -> Self {
        TlsConfig { reply_to_plain: reply, ..self }
    }

    /// Lets a client end its side of the connection without a close_notify between two records, as if it had sent one. For
    /// protocols whose messages show where they end, such as HTTP (RFC 9112, section 9.8): an attacker may have cut what
    /// followed. By default the connection is reset.
    #[must_use]
    pub fn accept_missing_close_notify(self) -> Self {
        TlsConfig { needs_close_notify: false, ..self }
    }
}

impl From<Arc<ServerConfig>> for TlsConfig {
    fn from(server: Arc<ServerConfig>) -> Self {
        TlsConfig { server, reply_to_plain: b"", needs_close_notify: true }
    }
}

/// A TLS session. Its keys use rustls' random source, not the mechanism's.
#[derive(Debug)]
pub struct ServerSession {
    tls: Box<ServerConnection>,
    records: Records,
    /// Whether bytes have arrived.
    begun: bool,
    /// The reply to a client without TLS; empty once written, or if the client uses TLS.
    reply_to_plain: &'static [u8],
    needs_close_notify: bool,
}

/// Where records begin and end in the bytes of the peer (RFC 8446, section 5.1).
#[derive(Debug, Default)]
struct Records {
    /// Bytes of a header, of which the last two are the length of what follows.
    header: [u8; 5],
    /// How many of them have arrived.
    arrived: usize,
    /// Bytes of the record that are to come.
    missing: usize,
}

impl Records {
    /// Passes received bytes.
    fn pass(&mut self, mut bytes: &[u8]) {
        loop {
            let body = self.missing.min(bytes.len());
            bytes = &bytes[body..];
            self.missing -= body;
            let Some((first, others)) = bytes.split_first() else { return };
            self.header[self.arrived] = *first;
            self.arrived += 1;
            bytes = others;
            if self.arrived == self.header.len() {
                let [.., high, low] = self.header;
                self.missing = u16::from_be_bytes([high, low]).into();
                self.arrived = 0;
            }
        }
    }

    /// Returns whether a record has arrived in part.
    fn is_partial(&self) -> bool {
        self.arrived > 0 || self.missing > 0
    }
}

impl ServerSession {
    /// Maximum bytes of memory of a session, in addition to those that wait to be sent: its keys, a handshake
    /// message or a record that is incomplete, and a record that is being encrypted. For clients without certificates.
    pub const MAX_BYTES: usize = 100 * 1024;

    /// The same if clients have certificates, as [`server_config`](crate::server_config) accepts them: then the session
    /// also keeps these, and all messages of the handshake until the client has signed them. Between calls: a call that
    /// processes a long message may take more, as the buffer of the messages exists twice while it grows. A thread makes
    /// one call at a time.
    pub const MAX_BYTES_WITH_CLIENT_CERTIFICATES: usize = 320 * 1024;

    /// Returns the session of rustls: its version, cipher suite, protocol, and the client's certificates.
    pub fn connection(&self) -> &ServerConnection {
        &self.tls
    }
}

impl Transform for ServerSession {
    type Config = TlsConfig;

    fn new(config: &Self::Config) -> io::Result<Self> {
        let TlsConfig { server, reply_to_plain, needs_close_notify } = config;
        let mut tls = ServerConnection::new(Arc::clone(server)).map_err(io::Error::other)?;
        // The layer takes the sealed bytes before it seals more, so the buffer stays small.
        tls.set_buffer_limit(None);
        Ok(ServerSession {
            tls: Box::new(tls),
            records: Records::default(),
            begun: false,
            reply_to_plain,
            needs_close_notify: *needs_close_notify,
        })
    }

    fn ready(&self) -> bool {
        !self.tls.is_handshaking()
    }

    fn open(&mut self, mut wire: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        if let Some(first) = wire.first()
            && !std::mem::replace(&mut self.begun, true)
        {
            if first.is_ascii_uppercase() && !self.reply_to_plain.is_empty() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "bytes without TLS"));
            }
            self.reply_to_plain = b"";
        }
        self.records.pass(wire);
        let tls = &mut self.tls;
        // rustls takes one piece at a time, and none after a close_notify.
        while !wire.is_empty() && tls.read_tls(&mut wire)? > 0 {
            let state = tls
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let (from, len) = (plain.len(), state.plaintext_bytes_to_read());
            plain.resize(from + len, 0);
            tls.reader().read_exact(&mut plain[from..])?;
            if state.peer_has_closed() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_partial(&self) -> bool {
        self.begun && self.tls.is_handshaking() || self.records.is_partial()
    }

    fn ended(&self) -> io::Result<()> {
        if self.needs_close_notify || self.tls.is_handshaking() || self.records.is_partial() {
            // The stream may have been truncated by an attacker.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        self.tls.writer().write_all(plain)?;
        if !plain.is_empty() && !self.tls.wants_write() {
            // With TLS 1.2 a key encrypts a number of records. The one after it became close_notify, and rustls drops all
            // further ones.
            return Err(io::Error::other(
                "the keys of the session have encrypted as much as they may",
            ));
        }
        Ok(())
    }

    fn end(&mut self) {
        self.tls.send_close_notify();
    }

    fn wire(&mut self, to: &mut dyn Write) -> io::Result<()> {
        if self.begun && !self.reply_to_plain.is_empty() {
            return to.write_all(std::mem::take(&mut self.reply_to_plain));
        }
        while self.tls.wants_write() {
            self.tls.write_tls(to)?;
        }
        Ok(())
    }
}
