//! Information about a session for the application.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, HandshakeKind, ProtocolVersion, ServerConnection};

use crate::session::ServerSession;

/// The result of a connection's TLS handshake. Cheap to clone.
///
/// An application inside [`Tls`](crate::Tls) gets them from
/// [`Commands::session`](evring::Commands::session):
///
/// ```
/// use evring::{Commands, ConnId};
/// use evring_tls::{ServerSession, TlsInfo};
///
/// fn tls_of(io: &impl Commands, id: ConnId) -> Option<TlsInfo> {
///     io.session(id)?.downcast_ref::<ServerSession>()?.info()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsInfo(Arc<Details>);

#[derive(Debug, PartialEq, Eq)]
struct Details {
    version: ProtocolVersion,
    cipher_suite: CipherSuite,
    server_name: Option<Box<str>>,
    protocol: Option<Box<[u8]>>,
    is_resumed: bool,
    client_certificates: Box<[CertificateDer<'static>]>,
}

impl TlsInfo {
    /// Returns the version of TLS.
    pub fn version(&self) -> ProtocolVersion {
        self.0.version
    }

    /// Returns the cipher suite.
    pub fn cipher_suite(&self) -> CipherSuite {
        self.0.cipher_suite
    }

    /// Returns the name of the server that the client has asked for (SNI).
    pub fn server_name(&self) -> Option<&str> {
        self.0.server_name.as_deref()
    }

    /// Returns the protocol that both have agreed on (ALPN), such as `http/1.1`.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.0.protocol.as_deref()
    }

    /// Returns whether the session continues an earlier one, by a ticket or its number.
    pub fn is_resumed(&self) -> bool {
        self.0.is_resumed
    }

    /// Returns the client's certificate and those that lead to its authority, in DER. They were verified. Empty if
    /// the server does not ask for one.
    pub fn client_certificates(&self) -> &[CertificateDer<'static>] {
        &self.0.client_certificates
    }

    /// Returns `None` before the end of the handshake.
    fn of(tls: &ServerConnection) -> Option<Self> {
        Some(TlsInfo(Arc::new(Details {
            version: tls.protocol_version()?,
            cipher_suite: tls.negotiated_cipher_suite()?.suite(),
            server_name: tls.server_name().map(Into::into),
            protocol: tls.alpn_protocol().map(Into::into),
            is_resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
            client_certificates: tls.peer_certificates().unwrap_or_default().into(),
        })))
    }
}

impl ServerSession {
    /// Returns the details of the session, or `None` before the end of its handshake.
    pub fn info(&self) -> Option<TlsInfo> {
        if self.connection().is_handshaking() { None } else { TlsInfo::of(self.connection()) }
    }
}
