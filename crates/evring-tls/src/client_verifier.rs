//! Verification of clients' certificates, whose length is bounded.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Maximum bytes of a client's certificate and those that lead to its authority. A session keeps all that the client has
/// sent, and a verifier may need only the first of them.
pub(crate) const MAX_CLIENT_CHAIN_BYTES: usize = 16 * 1024;

/// Refuses long chains, and verifies others like the verifier inside.
#[derive(Debug)]
pub(crate) struct ClientVerifier(pub(crate) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Each also takes the memory of its place in the list.
        let bytes = |one: &CertificateDer<'_>| one.len() + size_of::<CertificateDer<'_>>();
        if bytes(end_entity) + intermediates.iter().map(bytes).sum::<usize>()
            > MAX_CLIENT_CHAIN_BYTES
        {
            return Err(Error::General("the client's certificates have more than 16 KiB".into()));
        }
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
