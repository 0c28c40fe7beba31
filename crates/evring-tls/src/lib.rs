//! TLS around any application of [`evring`], by [`rustls`].
//!
//! [`Tls`] is an application around an application: it decrypts what is received and encrypts what is sent, so the
//! application inside and every mechanism below stay as they are. [`Certificates`] are read from files, chosen by
//! the server's name that a client asks for, and can be read again while the server runs.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use evring_tls::{Certificates, TlsConfig, server_config};
//!
//! let certificates = Certificates::load([("cert.pem", "key.pem")])?;
//! let config = server_config(Arc::new(certificates), None, &["http/1.1"])?;
//! let config = TlsConfig::from(config);
//! # let _ = config;
//! // mechanism.run(Tls::new(config, application)?)
//! # Ok::<(), evring_tls::CertificateError>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod certificates;
mod client_verifier;
mod info;
mod layer;
mod session;

pub use certificates::{
    CertificateError, CertificateWarning, Certificates, MAX_KEPT_SESSIONS_BYTES, client_roots,
    server_config,
};
pub use info::TlsInfo;
pub use layer::{Layer, Transform};
pub use rustls;
pub use session::{ServerSession, Tls, TlsConfig};

/// Tests the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
