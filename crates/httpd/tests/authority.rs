//! An authority for tests, and the certificates that it signs.
#![cfg(feature = "tls")]

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use evring_httpd::evring_tls::rustls;
use evring_httpd::options::TlsOptions;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

/// An authority, and a directory for the files of the certificates that it signs.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub(crate) dir: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { issuer, dir: tempfile::tempdir().unwrap() }
    }

    /// Signs a certificate for these names and returns it with its key.
    pub(crate) fn sign(&self, names: &[&str]) -> (CertificateDer<'static>, KeyPair) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        self.sign_with(CertificateParams::new(names).unwrap())
    }

    pub(crate) fn sign_with(
        &self,
        params: CertificateParams,
    ) -> (CertificateDer<'static>, KeyPair) {
        self.sign_key(params, KeyPair::generate().unwrap())
    }

    pub(crate) fn sign_key(
        &self,
        params: CertificateParams,
        key: KeyPair,
    ) -> (CertificateDer<'static>, KeyPair) {
        (params.signed_by(&key, &self.issuer).unwrap().der().clone(), key)
    }

    /// Writes a certificate for these names, and its key, to files called `name`.
    pub(crate) fn write(&self, name: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        self.write_files(name, self.sign(names))
    }

    /// Writes a certificate for localhost that is valid in these years, and its key, to files called `name`.
    pub(crate) fn write_of_years(&self, name: &str, years: Range<i32>) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        self.write_files(name, self.sign_with(params))
    }

    pub(crate) fn write_files(
        &self,
        name: &str,
        (certificate, key): (CertificateDer<'static>, KeyPair),
    ) -> (PathBuf, PathBuf) {
        let pem = |bytes: &[u8]| {
            let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
            text.push_str(&base64(bytes));
            text.push_str("\n-----END CERTIFICATE-----\n");
            text
        };
        let file = |extension| self.dir.path().join(format!("{name}.{extension}"));
        fs::write(file("crt"), pem(&certificate)).unwrap();
        fs::write(file("key"), key.serialize_pem()).unwrap();
        (file("crt"), file("key"))
    }

    pub(crate) fn options(&self, name: &str, names: &[&str]) -> TlsOptions {
        let (certificate, key) = self.write(name, names);
        TlsOptions::files(certificate, key)
    }

    /// Writes the authority's own certificate to a file.
    pub(crate) fn file(&self) -> PathBuf {
        let file = self.dir.path().join("authority.pem");
        fs::write(&file, self.issuer.pem()).unwrap();
        file
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        roots
    }

    /// Returns the configuration of a client that trusts the authority.
    pub(crate) fn trusting(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_protocol_versions(versions).unwrap();
        let mut config = config.with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, b| bits << 8 | u32::from(*b));
        let bits = bits << (8 * (3 - group.len()));
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}
