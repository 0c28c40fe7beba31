//! The end of a session whose keys may encrypt no more records.

use std::io::{self, Read};
use std::sync::Arc;

use evring_tls::rustls::crypto::{CipherSuiteCommon, ring};
use evring_tls::rustls::pki_types::ServerName;
use evring_tls::rustls::version::TLS12;
use evring_tls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, SupportedCipherSuite,
    Tls12CipherSuite,
};
use evring_tls::{Certificates, ServerSession, TlsConfig, Transform};

const MAX_RECORDS: u64 = 16;

/// Returns a suite of TLS 1.2 whose keys encrypt few records.
fn suite() -> SupportedCipherSuite {
    let suites = ring::default_provider().cipher_suites;
    let tls12 = suites.into_iter().find_map(|suite| match suite {
        SupportedCipherSuite::Tls12(suite) => Some(suite),
        SupportedCipherSuite::Tls13(_) => None,
    });
    let Tls12CipherSuite { common, prf_provider, kx, sign, aead_alg } = tls12.unwrap();
    let common = CipherSuiteCommon {
        suite: common.suite,
        hash_provider: common.hash_provider,
        confidentiality_limit: MAX_RECORDS,
    };
    let (prf_provider, kx, sign, aead_alg) = (*prf_provider, *kx, *sign, *aead_alg);
    let suite = Tls12CipherSuite { common, prf_provider, kx, sign, aead_alg };
    SupportedCipherSuite::Tls12(Box::leak(Box::new(suite)))
}

#[test]
fn session_whose_keys_may_encrypt_no_more_dropped_all_further_bytes() {
    let certificates = Arc::new(Certificates::self_signed(&["localhost"]).unwrap());
    let mut roots = RootCertStore::empty();
    roots.add(certificates.first_chain().remove(0)).unwrap();
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![suite()];
    let config = ServerConfig::builder_with_provider(Arc::new(provider));
    let config = config.with_protocol_versions(&[&TLS12]).unwrap();
    let config = config.with_no_client_auth().with_cert_resolver(certificates);
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let client = client.with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut session = ServerSession::new(&TlsConfig::from(Arc::new(config))).unwrap();
    let mut wire = Vec::new();
    while client.is_handshaking() || client.wants_write() {
        wire.clear();
        client.write_tls(&mut wire).unwrap();
        session.open(&wire, &mut Vec::new()).unwrap();
        wire.clear();
        session.wire(&mut wire).unwrap();
        client.read_tls(&mut &wire[..]).unwrap();
        client.process_new_packets().unwrap();
    }
    let mut sealed = 0;
    let error = loop {
        if let Err(error) = session.seal(b"x") {
            break error;
        }
        sealed += 1;
        assert!(sealed <= MAX_RECORDS, "{sealed} records");
        wire.clear();
        session.wire(&mut wire).unwrap();
        client.read_tls(&mut &wire[..]).unwrap();
        client.process_new_packets().unwrap();
    };
    assert!(error.to_string().contains("the keys of the session"), "{error}");
    // The client sees an end of the session, not of the stream.
    let mut received = Vec::new();
    let end = client.reader().read_to_end(&mut received);
    assert!(end.is_ok() || end.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
    assert!((received.len() as u64) < sealed, "{received:?} of {sealed}");
}
