//! TLS around any application, with rustls.

use std::io::{self, Read as _, Write};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use crate::{Layer, Transform};

/// TLS server around the application `A`.
pub type Tls<A> = Layer<A, ServerSession>;

/// Returns the configuration of a server with the certificate `chain` and its private `key`.
///
/// # Errors
/// Fails if key and certificate do not match or their type is not supported.
pub fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}

/// A TLS session. Its keys use rustls' random source, not the mechanism's.
#[derive(Debug)]
pub struct ServerSession(ServerConnection);

impl Transform for ServerSession {
    type Config = Arc<ServerConfig>;

    fn new(config: &Self::Config) -> io::Result<Self> {
        let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        // The layer takes the sealed bytes before it seals more, so the buffer stays small.
        tls.set_buffer_limit(None);
        Ok(ServerSession(tls))
    }

    fn ready(&self) -> bool {
        !self.0.is_handshaking()
    }

    fn open(&mut self, mut wire: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        let tls = &mut self.0;
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

    fn ended(&self) -> io::Result<()> {
        // Without a close_notify the stream may have been truncated by an attacker.
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        self.0.writer().write_all(plain)
    }

    fn end(&mut self) {
        self.0.send_close_notify();
    }

    fn wire(&mut self, to: &mut dyn Write) -> io::Result<()> {
        while self.0.wants_write() {
            self.0.write_tls(to)?;
        }
        Ok(())
    }
}
