//! What a user can do about an error.

use std::io::ErrorKind;

use evring_httpd::evring::StartError;
use evring_httpd::{Error, Options};
use tracing::warn;

/// Returns an error's message, with what to do.
pub(crate) fn with_advice(error: Error) -> String {
    let advice = match &error {
        Error::Start(StartError::Listen(at, reason)) => match reason.kind() {
            ErrorKind::PermissionDenied => format!(
                "ports below 1024 need a capability: run `setcap cap_net_bind_service=+ep` on the program, set \
                 AmbientCapabilities=CAP_NET_BIND_SERVICE in its unit, or choose another port, such as -p {}",
                u32::from(at.port()) + 8000
            ),
            ErrorKind::AddrInUse => format!(
                "another program listens there: end it (`ss -ltnp 'sport = :{}'` shows it), or choose another port \
                 with -p or --listen",
                at.port()
            ),
            ErrorKind::AddrNotAvailable => {
                "no interface of this machine has this address: `ip address` lists them".to_owned()
            }
            _ => return error.to_string(),
        },
        Error::User(_, reason) if reason.kind() == ErrorKind::PermissionDenied => {
            "start the program as root, or without --user".to_owned()
        }
        _ => return error.to_string(),
    };
    format!("{error}; {advice}")
}

/// Warns if the directory has no page for `/`.
pub(crate) fn warn_of_directory(options: &Options) {
    let Some(root) = options.root.as_deref().filter(|_| !options.files.listing) else { return };
    if !root.join("index.html").exists() {
        warn!(
            "{} has no index.html, so clients get 404 for /: add one, or list directories with --listing",
            root.display()
        );
    }
}
