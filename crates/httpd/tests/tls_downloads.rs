//! Downloads with TLS by each policy for sending files, on every mechanism.
#![cfg(feature = "tls")]

use crate::authority::Authority;
use crate::downloads::changes::{Change, ranges, restore};
use crate::downloads::{Files, on_all};
use crate::tls::{BOTH, connect};

use std::path::Path;
use std::sync::Arc;

use evring_httpd::Server;
use evring_httpd::evring::sockets::BufferSizes;
use evring_httpd::evring::{Config, FileDelivery};
use evring_httpd::options::Limits;

/// Starts a server that reads every file from disk.
fn start(policy: FileDelivery, backend: &str, root: &Path, authority: &Authority) -> Server {
    let config = Config::default().with(|c| {
        c.send_policy = policy.send_policy();
        c.socket_buffers = BufferSizes { send: Some(16 * 1024), receive: None };
    });
    let mut limits = Limits::default();
    limits.max_cached_file_bytes = 0;
    let name = format!("{policy}-{backend}");
    let server = Server::builder().listen("127.0.0.1:0").backend(backend).config(config);
    let server = server.limits(limits).files(root);
    server.tls(authority.options(&name, &["localhost"])).start().unwrap()
}

#[test]
fn random_downloads_with_tls_are_exact_on_every_policy_and_mechanism() {
    let (authority, files) = (Authority::new(), Files::new());
    let client = Arc::new(authority.trusting(BOTH));
    on_all(|policy, backend| {
        let server = start(policy, backend, files.root.path(), &authority);
        files.download(policy, backend, || connect(&server, &client, "localhost"));
    });
}

#[test]
fn file_that_changes_during_a_download_with_tls_was_continued_with_new_bytes() {
    let authority = Authority::new();
    let client = Arc::new(authority.trusting(BOTH));
    for change in Change::ALL {
        on_all(|policy, backend| {
            let root = tempfile::tempdir().unwrap();
            restore(root.path());
            let server = start(policy, backend, root.path(), &authority);
            let stream = connect(&server, &client, "localhost");
            change.download(root.path(), stream, &format!("{policy} {backend}"));
        });
    }
}

#[test]
fn ranges_of_a_file_that_changes_were_continued_with_new_bytes_over_tls() {
    let authority = Authority::new();
    let client = Arc::new(authority.trusting(BOTH));
    for change in [Change::Overwritten, Change::Copied] {
        on_all(|policy, backend| {
            let root = tempfile::tempdir().unwrap();
            let server = start(policy, backend, root.path(), &authority);
            for ranges in ranges() {
                restore(root.path());
                let stream = connect(&server, &client, "localhost");
                let what = format!("{policy} {backend}");
                change.download_ranges(root.path(), stream, &ranges, &what);
            }
        });
    }
}
