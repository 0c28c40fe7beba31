//! Downloads with TLS by each policy for sending files, on every mechanism.
#![cfg(feature = "tls")]

use crate::downloads::{Files, on_all};
use crate::tls::{Authority, BOTH, connect};

use std::sync::Arc;

use evring_httpd::Server;
use evring_httpd::evring::Config;
use evring_httpd::evring::sockets::BufferSizes;
use evring_httpd::options::Limits;

#[test]
fn random_downloads_with_tls_are_exact_on_every_policy_and_mechanism() {
    let (authority, files) = (Authority::new(), Files::new());
    let client = Arc::new(authority.trusting(BOTH));
    on_all(|policy, backend| {
        let config = Config::default().with(|c| {
            c.send_policy = policy.send_policy();
            c.socket_buffers = BufferSizes { send: Some(16 * 1024), receive: None };
        });
        // Every file is sent from disk.
        let mut limits = Limits::default();
        limits.max_cached_file_bytes = 0;
        let name = format!("{policy}-{backend}");
        let server = Server::builder().listen("127.0.0.1:0").backend(backend).config(config);
        let server = server.limits(limits).files(files.root.path());
        let server = server.tls(authority.options(&name, &["localhost"])).start().unwrap();
        files.download(policy, backend, || connect(&server, &client, "localhost"));
    });
}
