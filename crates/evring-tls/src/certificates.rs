//! Certificates from files, chosen by the name that a client asks for.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use evring::__private::read_input_file;
use httpdate::HttpDate;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{
    ClientHello, ResolvesServerCert, ServerSessionMemoryCache, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

use crate::client_verifier::{ClientVerifier, MAX_CLIENT_CHAIN_BYTES};

/// Certificates of a server with their keys. A client gets one whose names include the name that it asks for (SNI), or
/// else any: the first of them that it can verify, such as an RSA certificate if it has no ECDSA.
pub struct Certificates {
    /// Files of chains and keys, in PEM.
    files: Vec<(PathBuf, PathBuf)>,
    current: RwLock<Arc<Names>>,
}

/// Certificates by name.
struct Names {
    /// All of them, in the order of the files; at least one.
    all: Vec<Arc<CertifiedKey>>,
    /// By host names in lower case, also wildcards such as `*.example.org`; at least one each.
    by_name: HashMap<String, Vec<Arc<CertifiedKey>>>,
}

impl Certificates {
    /// Reads certificate chains and private keys from files in PEM; a chain begins with the server's certificate.
    ///
    /// # Errors
    /// If there is none, a file cannot be read, or a key does not belong to its certificate.
    pub fn load<C: Into<PathBuf>, K: Into<PathBuf>>(
        files: impl IntoIterator<Item = (C, K)>,
    ) -> Result<Self, CertificateError> {
        let files: Vec<_> = files.into_iter().map(|(c, k)| (c.into(), k.into())).collect();
        let current = RwLock::new(Arc::new(Names::read(&files)?));
        Ok(Certificates { files, current })
    }

    /// Makes a certificate for these names that no client trusts by itself, and a key. Both exist in memory only. The
    /// certificate is valid for a year, from a day ago, as clocks differ; its subject is the first name.
    ///
    /// # Errors
    /// If a name is no host name or address.
    #[cfg(feature = "self-signed")]
    pub fn self_signed(names: &[&str]) -> Result<Self, CertificateError> {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        let failed = |error: rcgen::Error| CertificateError::SelfSigned(error.to_string());
        let all: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(all).map_err(failed)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(first) = names.first() {
            params.distinguished_name.push(rcgen::DnType::CommonName, *first);
        }
        let now = SystemTime::now();
        (params.not_before, params.not_after) = ((now - DAY).into(), (now + 365 * DAY).into());
        let pair = rcgen::KeyPair::generate().map_err(failed)?;
        let made = params.self_signed(&pair).map_err(failed)?;
        let key = PrivateKeyDer::try_from(pair.serialize_der())
            .map_err(|error| CertificateError::SelfSigned(error.to_owned()))?;
        let chain = vec![made.der().clone()];
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|error| CertificateError::SelfSigned(error.to_string()))?;
        let names = Names::new(vec![Arc::new(key)]).ok_or(CertificateError::None)?;
        Ok(Certificates { files: Vec::new(), current: RwLock::new(Arc::new(names)) })
    }

    /// Reads all files again. Handshakes that begin later use the new certificates; connections stay open.
    ///
    /// # Errors
    /// Those of [`Certificates::load`] and [`Certificates::check_replaces`]; then all certificates stay as they were.
    pub fn reload(&self) -> Result<(), CertificateError> {
        if self.files.is_empty() {
            return Ok(());
        }
        let next = Certificates::load(self.files.iter().cloned())?;
        next.check_replaces(self, SystemTime::now())?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next.current();
        Ok(())
    }

    /// Checks that no certificate that is invalid at `time` replaces a valid one of `before`: for a name of either, or for
    /// clients without SNI, which get the first.
    ///
    /// # Errors
    /// [`CertificateError::Invalidates`] for the first that does.
    pub fn check_replaces(
        &self,
        before: &Certificates,
        time: SystemTime,
    ) -> Result<(), CertificateError> {
        let Some(time) = unix_time(time) else { return Ok(()) };
        let (old, next) = (before.current(), self.current());
        let invalid =
            |key: &Arc<CertifiedKey>| key.cert.iter().find_map(|one| invalidity(one, time));
        let is_valid = |key: &Arc<CertifiedKey>| invalid(key).is_none();
        // A client gets any certificate for the name: a valid one for certain before, or a valid one at best.
        let is_worse = |(old, next): &(&[_], &[_])| {
            let certain = old.iter().all(is_valid) && !next.iter().all(is_valid);
            certain || old.iter().any(is_valid) && !next.iter().any(is_valid)
        };
        let names = old.by_name.keys().chain(next.by_name.keys());
        let of_name = |name: &String| Some((&old.find(name)?[..], &next.find(name)?[..]));
        let pairs = names.filter_map(of_name).chain([(&old.all[..1], &next.all[..1])]);
        let worse: Vec<_> = pairs.filter(is_worse).flat_map(|(_, next)| next).collect();
        for ((file, _), key) in self.files.iter().zip(&next.all) {
            if let Some(reason) = invalid(key)
                && worse.iter().any(|one| Arc::ptr_eq(one, key))
            {
                let warning = CertificateWarning { file: file.clone(), reason };
                return Err(CertificateError::Invalidates(warning));
            }
        }
        Ok(())
    }

    /// Returns each file of a certificate with the time when the first certificate of its chain expires.
    pub fn expiries(&self) -> BTreeMap<PathBuf, SystemTime> {
        let names = self.current();
        let chains = self.files.iter().zip(&names.all);
        let first = |key: &CertifiedKey| key.cert.iter().filter_map(expiry).min();
        chains.filter_map(|((file, _), key)| Some((file.clone(), first(key)?))).collect()
    }

    /// Returns the certificates from files that are not valid at a time, so that clients refuse them.
    pub fn invalid_at(&self, time: SystemTime) -> Vec<CertificateWarning> {
        let Some(time) = unix_time(time) else { return Vec::new() };
        let names = self.current();
        let chains = self.files.iter().zip(&names.all);
        chains
            .flat_map(|((file, _), key)| {
                key.cert.iter().map(move |certificate| (file, certificate))
            })
            .filter_map(|(file, certificate)| {
                let reason = invalidity(certificate, time)?;
                Some(CertificateWarning { file: file.clone(), reason })
            })
            .collect()
    }

    /// Returns the first certificate chain, which clients without SNI get.
    pub fn first_chain(&self) -> Vec<CertificateDer<'static>> {
        self.current().all[0].cert.clone()
    }

    fn current(&self) -> Arc<Names> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Names {
    fn read(files: &[(PathBuf, PathBuf)]) -> Result<Self, CertificateError> {
        let keys: Result<_, _> =
            files.iter().map(|(chain, key)| certified_key(chain, key).map(Arc::new)).collect();
        Names::new(keys?).ok_or(CertificateError::None)
    }

    /// Sorts certificates by their names.
    fn new(keys: Vec<Arc<CertifiedKey>>) -> Option<Self> {
        keys.first()?;
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for key in &keys {
            for name in names_of(key) {
                by_name.entry(name).or_default().push(Arc::clone(key));
            }
        }
        Some(Names { all: keys, by_name })
    }

    /// Returns the certificates for a name, which has the form of a host name in lower case: those with the name itself,
    /// or else those with its wildcard.
    fn find(&self, name: &str) -> Option<&Vec<Arc<CertifiedKey>>> {
        self.by_name.get(name).or_else(|| self.find_wildcard(name))
    }

    fn find_wildcard(&self, name: &str) -> Option<&Vec<Arc<CertifiedKey>>> {
        // A wildcard stands for one label (RFC 9525, section 6.3).
        let (_, domain) = name.split_once('.')?;
        self.by_name.get(&format!("*.{domain}"))
    }
}

/// Returns the host names of a certificate, in lower case.
fn names_of(key: &CertifiedKey) -> Vec<String> {
    let certificate = key.cert.first().map(webpki::EndEntityCert::try_from);
    let Some(Ok(certificate)) = certificate else { return Vec::new() };
    certificate.valid_dns_names().map(str::to_ascii_lowercase).collect()
}

fn unix_time(time: SystemTime) -> Option<UnixTime> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(UnixTime::since_unix_epoch)
}

/// Returns when a certificate expires.
fn expiry(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    // No certificate is valid then (RFC 5280, section 4.1.2.5), so the reason has its last moment.
    const NEVER: Duration = Duration::from_secs(1 << 40);
    match invalidity(certificate, UnixTime::since_unix_epoch(NEVER))? {
        Invalidity::Expired(at) => Some(at),
        Invalidity::NotYetValid(_) => None,
    }
}

/// Returns why a certificate is not valid at a time.
fn invalidity(certificate: &CertificateDer<'_>, time: UnixTime) -> Option<Invalidity> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let at = |time: UnixTime| SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs());
    // A path to an authority begins with the validity of the certificate; without authorities it ends there.
    let usage = webpki::KeyUsage::server_auth();
    match certificate.verify_for_usage(&[], &[], &[], time, usage, None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            Some(Invalidity::Expired(at(not_after)))
        }
        Err(webpki::Error::CertNotValidYet { not_before, .. }) => {
            Some(Invalidity::NotYetValid(at(not_before)))
        }
        _ => None,
    }
}

/// A certificate that clients refuse because of its time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CertificateWarning {
    /// The file with the certificate.
    pub file: PathBuf,
    reason: Invalidity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invalidity {
    Expired(SystemTime),
    NotYetValid(SystemTime),
}

impl fmt::Display for CertificateWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match self.reason {
            Invalidity::Expired(at) => write!(
                f,
                "the certificate in {file} expired on {}, and clients refuse it: renew it and reload",
                HttpDate::from(at)
            ),
            Invalidity::NotYetValid(at) => write!(
                f,
                "the certificate in {file} is not valid before {}, and clients refuse it: check the clock of \
                 this machine, or use another certificate until then",
                HttpDate::from(at)
            ),
        }
    }
}

/// Maximum bytes of a file.
const MAX_FILE_BYTES: usize = 16 << 20;

/// The marks of an encrypted key: in the form of PKCS #8 (RFC 7468, section 11), and in that before (RFC 1421,
/// section 4.6.1.1).
const ENCRYPTED: [&[u8]; 2] = [b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED"];

fn read(file: &Path) -> Result<Vec<u8>, CertificateError> {
    read_input_file(file, MAX_FILE_BYTES)
        .map_err(|error| CertificateError::Read(file.to_owned(), error))
}

/// Reads one certificate chain and its key.
fn certified_key(chain: &Path, key: &Path) -> Result<CertifiedKey, CertificateError> {
    let certificates = read_certificates(chain)?;
    let text = read(key)?;
    let has = |mark: &[u8]| text.windows(mark.len()).any(|bytes| bytes == mark);
    let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        _ if ENCRYPTED.into_iter().any(has) => CertificateError::Encrypted(key.to_owned()),
        pem::Error::NoItemsFound => CertificateError::NoKey(key.to_owned()),
        other => CertificateError::Invalid(key.to_owned(), other.to_string()),
    })?;
    webpki::EndEntityCert::try_from(&certificates[0]).map_err(|error| {
        let reason = match error {
            webpki::Error::UnsupportedCertVersion => {
                "it is of X.509 version 1; TLS needs version 3, which has the names of the server as extensions"
                    .to_owned()
            }
            other => other.to_string(),
        };
        CertificateError::Invalid(chain.to_owned(), reason)
    })?;
    CertifiedKey::from_der(certificates, private, &ring::default_provider()).map_err(|error| {
        CertificateError::InvalidKey { chain: chain.to_owned(), key: key.to_owned(), error }
    })
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let text = read(file)?;
    let all = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| CertificateError::Invalid(file.to_owned(), error.to_string()))?;
    if all.is_empty() { Err(CertificateError::NoCertificate(file.to_owned())) } else { Ok(all) }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let names = self.current();
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let with_name = name.as_ref().and_then(|name| names.by_name.get(name));
        let with_wildcard = name.as_ref().and_then(|name| names.find_wildcard(name));
        let mut found: Vec<_> = with_name.into_iter().chain(with_wildcard).flatten().collect();
        if found.is_empty() {
            found.extend(&names.all);
        }
        // rustls leaves out what the client's cipher suites exclude.
        let schemes = hello.signature_schemes();
        let usable = found.iter().find(|key| key.key.choose_scheme(schemes).is_some());
        usable.or(found.first()).map(|key| Arc::clone(key))
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.current();
        let names: Vec<_> = current.by_name.keys().collect();
        f.debug_struct("Certificates").field("files", &self.files).field("names", &names).finish()
    }
}

/// Reads the certificates of the authorities that sign those of clients, in PEM.
///
/// # Errors
/// If the file cannot be read, or has no valid certificate.
pub fn client_roots(file: &Path) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(file)? {
        roots
            .add(certificate)
            .map_err(|error| CertificateError::Invalid(file.to_owned(), error.to_string()))?;
    }
    Ok(roots)
}

/// Sessions that can be resumed without a ticket.
const SESSIONS: usize = 1024;

/// Maximum bytes of the sessions that a [`server_config`] with authorities for clients keeps, so that clients of TLS 1.2
/// can resume them without a ticket: each has its client's certificates. Without authorities they are small.
pub const MAX_KEPT_SESSIONS_BYTES: usize = SESSIONS * (MAX_CLIENT_CHAIN_BYTES + 1024);

/// Returns the configuration of a server for TLS 1.2 and 1.3, with resumption by tickets and, for TLS 1.2, sessions.
///
/// With `client_roots`, clients need a certificate that one of the authorities has signed; with those that lead to the
/// authority, it has at most 16 KiB. `protocols` are those of ALPN, such as `http/1.1`: a client that offers others only
/// is refused.
///
/// # Errors
/// If there is no authority, or the operating system has no random numbers.
pub fn server_config(
    certificates: Arc<Certificates>,
    client_roots: Option<RootCertStore>,
    protocols: &[&str],
) -> Result<Arc<ServerConfig>, CertificateError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(CertificateError::Tls)?;
    let builder = match client_roots {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| CertificateError::Authorities(error.to_string()))?;
            builder.with_client_cert_verifier(Arc::new(ClientVerifier(verifier)))
        }
    };
    let mut config = builder.with_cert_resolver(certificates);
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    // The best suite of ours, whatever a client puts first.
    config.ignore_client_order = true;
    config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    config.ticketer = ring::Ticketer::new().map_err(CertificateError::Tls)?;
    Ok(Arc::new(config))
}

/// The reason why certificates cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum CertificateError {
    /// There is none.
    None,
    /// A file cannot be read.
    Read(PathBuf, io::Error),
    /// A file has no certificate.
    NoCertificate(PathBuf),
    /// A file has no private key.
    NoKey(PathBuf),
    /// A private key has a password.
    Encrypted(PathBuf),
    /// A file is no valid PEM, or has an invalid certificate, or one that TLS cannot use.
    Invalid(PathBuf, String),
    /// A key does not belong to its certificate, or its type is not supported.
    InvalidKey {
        /// The file of the certificates.
        chain: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// The reason.
        error: rustls::Error,
    },
    /// A certificate that is not valid now would replace a valid one.
    Invalidates(CertificateWarning),
    /// The authorities for clients cannot be used.
    Authorities(String),
    /// A certificate cannot be made.
    SelfSigned(String),
    /// TLS cannot be set up.
    Tls(rustls::Error),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateError::None => f.write_str("TLS needs a certificate and its key"),
            CertificateError::Read(file, error) => {
                write!(f, "cannot read the certificate or key {}: {error}", file.display())
            }
            CertificateError::NoCertificate(file) => write!(
                f,
                "{} has no certificate: expected `-----BEGIN CERTIFICATE-----`",
                file.display()
            ),
            CertificateError::NoKey(file) => write!(
                f,
                "{} has no private key: expected `-----BEGIN PRIVATE KEY-----` without a password",
                file.display()
            ),
            CertificateError::Encrypted(file) => write!(
                f,
                "the private key {} has a password, and the server cannot ask for it: write the key without it \
                 (`openssl pkey -in KEY -out NEW`)",
                file.display()
            ),
            CertificateError::Invalid(file, error) => {
                write!(f, "{} has an invalid certificate or key: {error}", file.display())
            }
            CertificateError::InvalidKey { chain, key, error } => {
                let (key, chain) = (key.display(), chain.display());
                write!(f, "the key {key} cannot be used with the certificate {chain}: ")?;
                match error {
                    rustls::Error::InconsistentKeys(_) => {
                        f.write_str("it is the key of another certificate")
                    }
                    rustls::Error::General(_) => f.write_str(
                        "its type is not supported: use RSA of 2048 to 8192 bits, ECDSA of P-256 or P-384, or Ed25519",
                    ),
                    other => other.fmt(f),
                }
            }
            CertificateError::Invalidates(warning) => {
                write!(f, "{warning}; the valid one before it stays in use")
            }
            CertificateError::Authorities(error) => {
                write!(f, "the authorities for client certificates cannot be used: {error}")
            }
            CertificateError::SelfSigned(error) => {
                write!(f, "cannot make a self-signed certificate: {error}")
            }
            CertificateError::Tls(error) => write!(f, "cannot set up TLS: {error}"),
        }
    }
}

impl std::error::Error for CertificateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CertificateError::Read(_, error) => Some(error),
            CertificateError::InvalidKey { error, .. } | CertificateError::Tls(error) => {
                Some(error)
            }
            _ => None,
        }
    }
}

#[cfg(all(test, feature = "self-signed"))]
mod tests {
    use super::*;

    #[test]
    fn certificate_made_at_the_start_was_valid_until_4096_and_had_no_name() {
        let made = Certificates::self_signed(&["localhost", "127.0.0.1"]).unwrap().first_chain();
        let day = Duration::from_secs(24 * 60 * 60);
        let at = |time: SystemTime| {
            UnixTime::since_unix_epoch(time.duration_since(SystemTime::UNIX_EPOCH).unwrap())
        };
        let invalidity = |time| invalidity(&made[0], at(time));
        let now = SystemTime::now();
        assert_eq!((invalidity(now), invalidity(now + 364 * day)), (None, None));
        assert!(matches!(invalidity(now - 2 * day), Some(Invalidity::NotYetValid(_))));
        assert!(matches!(invalidity(now + 366 * day), Some(Invalidity::Expired(_))));
        // The common name (2.5.4.3) is a UTF8String.
        let name = [&[0x55, 4, 3, 0x0c, 9], &b"localhost"[..]].concat();
        assert!(made[0].windows(name.len()).any(|bytes| bytes == name));
    }
}
