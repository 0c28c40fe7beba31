//! TLS of a server.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

#[cfg(any(feature = "epoll", feature = "uring"))]
use evring::mechanisms::Multiplexer;
use evring::{AnyMechanism, KernelError, Listener, Stats};
use evring_tls::rustls::server::ProducesTickets;
use evring_tls::{CertificateError, Certificates, Tls, TlsConfig, client_roots, server_config};
use tracing::warn;

#[cfg(feature = "cli")]
use crate::flags;
use crate::limits::Limits;
use crate::server::addresses::Addresses;
use crate::server::error::Error;
use crate::site::Site;

/// The response to a request that comes without TLS.
const REPLY_TO_PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 45\r\nConnection: close\r\n\r\n\
    400 this port expects TLS: use an https: URL\n";

/// Settings for TLS. Without a certificate, the server serves without TLS.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = "TLS"))]
#[non_exhaustive]
pub struct TlsOptions {
    /// File of a certificate chain, in PEM, the server's certificate first; can be repeated, a client gets one for the
    /// name that it asks for, or else any, the first that it can verify. SIGHUP reads the files again
    #[cfg_attr(feature = "cli", arg(long = "tls-cert", value_name = "FILE", requires = "keys"))]
    pub certificates: Vec<PathBuf>,

    /// File of the private key of each --tls-cert, in PEM and in the same order
    #[cfg_attr(
        feature = "cli",
        arg(long = "tls-key", value_name = "FILE", requires = "certificates")
    )]
    pub keys: Vec<PathBuf>,

    /// Serve with a certificate for localhost that is made at the start and that no client trusts
    #[cfg_attr(feature = "cli", arg(long = "tls-self-signed"))]
    pub self_signed: bool,

    /// File of certificates, in PEM, of the authorities that sign those of clients; clients without one, or that send
    /// more than 16 KiB of certificates, are refused
    #[cfg_attr(feature = "cli", arg(long = "tls-client-ca", value_name = "FILE"))]
    pub client_ca: Option<PathBuf>,

    /// Address to listen on without TLS, where requests are redirected to https; can be repeated. Requests go to the port
    /// of the first address with TLS (443 if one has it). If the client names a port at which httpd does not redirect,
    /// they go to 443: ports are mapped
    #[cfg_attr(feature = "cli", arg(long = "tls-redirect", value_name = "ADDR:PORT"))]
    pub redirect_from: Vec<Addresses>,

    /// Port of https to which --tls-redirect sends all requests, if ports are mapped to another one than 443
    #[cfg_attr(feature = "cli", arg(long = "tls-redirect-port", value_name = "PORT", value_parser = flags::port))]
    pub redirect_port: Option<NonZeroU16>,
}

impl TlsOptions {
    /// Returns the settings for one certificate and its key.
    pub fn files(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        TlsOptions {
            certificates: vec![certificate.into()],
            keys: vec![key.into()],
            ..TlsOptions::default()
        }
    }

    /// Returns the settings for a certificate for localhost that is made at the start.
    pub fn self_signed() -> Self {
        TlsOptions { self_signed: true, ..TlsOptions::default() }
    }

    /// Returns whether the server serves with TLS.
    pub fn is_enabled(&self) -> bool {
        self.self_signed || !self.certificates.is_empty()
    }

    /// Returns the addresses to redirect from.
    pub(crate) fn redirecting_addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.redirect_from.iter().flat_map(|addresses| addresses.as_slice().iter().copied())
    }

    /// Reads the certificates; `None` without TLS.
    ///
    /// The addresses that redirect come after `addresses` others. `made` is the self-signed certificate of the server
    /// before, which stays. `tickets` has what encrypts the sessions of clients, so that they are resumed after a
    /// reload, too.
    pub(crate) fn load(
        &self,
        addresses: usize,
        made: Option<Arc<Certificates>>,
        tickets: &Tickets,
    ) -> Result<Option<LoadedTls>, Error> {
        if !self.is_enabled() {
            let needs_tls = !self.redirect_from.is_empty() || self.client_ca.is_some();
            return match needs_tls || !self.keys.is_empty() {
                true => Err(CertificateError::None.into()),
                false => Ok(None),
            };
        }
        let certificates = if let Some(made) = made.filter(|_| self.self_signed) {
            made
        } else if self.self_signed {
            Certificates::self_signed(&["localhost", "127.0.0.1", "::1"])?.into()
        } else if self.certificates.len() == self.keys.len() {
            Certificates::load(self.certificates.iter().zip(&self.keys))?.into()
        } else {
            return Err(Error::Conflict(
                "each certificate (tls-cert) needs one key (tls-key), in the same order",
            ));
        };
        let roots = self.client_ca.as_deref().map(client_roots).transpose()?;
        let mut config = server_config(Arc::clone(&certificates), roots, &["http/1.1"])?;
        // A ticket has the certificate of its client, which the authorities of before have signed.
        if self.client_ca.is_none() {
            let ticketer = tickets.get_or_init(|| Arc::clone(&config.ticketer));
            Arc::make_mut(&mut config).ticketer = Arc::clone(ticketer);
        }
        let config =
            TlsConfig::from(config).reply_to_plain(REPLY_TO_PLAIN).accept_missing_close_notify();
        let is_self_signed = self.self_signed;
        Ok(Some(LoadedTls { certificates, config, first_redirecting: addresses, is_self_signed }))
    }
}

/// The encryption of session tickets for clients that need no certificate, once it is made.
pub(crate) type Tickets = OnceLock<Arc<dyn ProducesTickets>>;

/// Logs which certificates clients refuse because of their time.
pub(crate) fn warn_of_invalid(certificates: &Certificates) {
    for warning in certificates.invalid_at(SystemTime::now()) {
        warn!("{warning}");
    }
}

/// Certificates that were read, and the addresses that redirect.
#[derive(Clone, Debug)]
pub(crate) struct LoadedTls {
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) config: TlsConfig,
    /// Index of the first address that redirects.
    pub(crate) first_redirecting: usize,
    pub(crate) is_self_signed: bool,
}

/// Runs a site with TLS, except at the listeners that redirect; or without.
pub(crate) fn run(
    mechanism: AnyMechanism,
    site: Site,
    tls: Option<TlsConfig>,
) -> Result<Stats, KernelError> {
    let plain = site.redirect.as_ref().map_or(0..0, |redirect| redirect.listeners.clone());
    let Limits { min_rate, progress_interval, .. } = site.context.limits;
    match (mechanism, tls) {
        (mechanism, Some(config)) => match Tls::new(config, site) {
            Ok(tls) => {
                let tls = tls.plain_at(plain.map(Listener).collect());
                mechanism.run(tls.min_rate(min_rate, progress_interval))
            }
            // `Tls::new` has made a session with this configuration before.
            Err(error) => Err(KernelError::new("starting TLS", error)),
        },
        // The preferred mechanisms run without the layer. The others share one instantiation with TLS, which
        // halves the time to compile them.
        #[cfg(feature = "epoll")]
        (AnyMechanism::Epoll(epoll), None) => epoll.run(site),
        #[cfg(feature = "uring")]
        (AnyMechanism::Uring(uring), None) => uring.run(site),
        #[allow(unreachable_patterns, reason = "with only these mechanisms there is no other")]
        (mechanism, None) => mechanism.run(Tls::transparent(site)),
    }
}
