//! TLS around any application, by rustls.

use std::io::{self, Read as _, Write};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use crate::{Layer, Transform};

/// TLS around the application `A`, on the side of the server.
pub type Tls<A> = Layer<A, ServerSession>;

/// The settings of a server that shows `chain` and proves it with `key`.
///
/// # Errors
/// When key and certificate don't belong together or are of an unknown kind.
pub fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}

/// One TLS session. Its keys come from rustls' own source of chance, not from the mechanism's.
#[derive(Debug)]
pub struct ServerSession(ServerConnection);

impl Transform for ServerSession {
    type Config = Arc<ServerConfig>;

    fn new(config: &Self::Config) -> io::Result<Self> {
        let mut tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        // The layer fetches what was sealed before it seals more, so nothing piles up here.
        tls.set_buffer_limit(None);
        Ok(ServerSession(tls))
    }

    fn ready(&self) -> bool {
        !self.0.is_handshaking()
    }

    fn open(&mut self, mut wire: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        let tls = &mut self.0;
        // rustls takes a piece at a time, and nothing more once the peer has said goodbye.
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
        // Whoever ends the stream without a goodbye may be somebody who cut it.
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
