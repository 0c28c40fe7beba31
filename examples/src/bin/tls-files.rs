//! The web server's files over TLS.

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;
use evring::{Config, FileDelivery, Root};
use evring_httpd::Site;
use examples::{Listen, Tls, server_config};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The web server's files over TLS
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    listen: Listen,
    /// Directory to serve
    #[arg(long)]
    root: PathBuf,
    /// Certificate chain, PEM
    #[arg(long)]
    cert: PathBuf,
    /// Private key, PEM
    #[arg(long)]
    key: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Options { listen, root, cert, key } = Options::parse();
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<_, _>>()?;
    let tls = server_config(chain, PrivateKeyDer::from_pem_file(key)?)?;
    let config = Config::default().with(|c| {
        c.roots = vec![root];
        c.send_policy = FileDelivery::Auto.send_policy();
    });
    listen.serve_with(config, Tls::new(tls, Site::new(Some(Root(0))))?)
}
