//! Advice to the user about an error.

use std::fmt;
use std::io::{self, ErrorKind};

use evring_httpd::Error;
use evring_httpd::evring::StartError;
use evring_httpd::evring_tls::CertificateError;
use evring_httpd::options::{CompressionLevels, Options};
use tracing::warn;

/// Returns the message of an error of a server with these options, with what to do.
pub(crate) fn with_advice(error: &Error, options: &Options) -> String {
    let advice = match error {
        Error::Start(StartError::Listen(at, reason)) => match reason.kind() {
            ErrorKind::PermissionDenied => format!(
                "ports below 1024 need a capability: run `setcap cap_net_bind_service=+ep` on the program, set \
                 AmbientCapabilities=CAP_NET_BIND_SERVICE in its unit, or choose another port, such as -p {}",
                u32::from(at.port()) + 8000
            ),
            ErrorKind::AddrInUse => format!(
                "another program listens there: end it (`ss -ltnp 'sport = :{}'` shows it), or choose another port with \
                 -p or --listen",
                at.port()
            ),
            ErrorKind::AddrNotAvailable => {
                "no interface of this machine has this address: `ip address` lists them".to_owned()
            }
            _ => return error.to_string(),
        },
        Error::Root(path, reason) | Error::Start(StartError::Root(path, reason))
            if reason.kind() == ErrorKind::NotFound
                && options.files.compression.levels != CompressionLevels::OFF
                && path.to_str().is_some_and(|text| text.parse::<CompressionLevels>().is_ok()) =>
        {
            format!("for a value of --compress, write --compress={}", path.display())
        }
        Error::Root(_, reason) => {
            return with_path_advice(error, reason, "the path of --root, or DIR");
        }
        Error::Certificate(CertificateError::Read(_, reason)) => {
            let flags = "the path of --tls-cert, --tls-key or --tls-client-ca";
            return with_path_advice(error, reason, flags);
        }
        Error::Users(_, reason) => {
            return with_path_advice(error, reason, "the path of --basic-auth");
        }
        Error::Log(_, reason) => {
            return with_path_advice(error, reason, "the path of --access-log");
        }
        Error::Page(_, reason) => {
            let flags = "--fallback or --error-page, whose paths begin at the root";
            return with_path_advice(error, reason, flags);
        }
        Error::User(_, reason) if reason.kind() == ErrorKind::PermissionDenied => {
            "start the program as root, or without --user".to_owned()
        }
        _ => return error.to_string(),
    };
    format!("{error}; {advice}")
}

/// Returns a message about a path that cannot be used, with what to do.
pub(crate) fn with_path_advice(
    message: impl fmt::Display,
    reason: &io::Error,
    origin: &str,
) -> String {
    match reason.kind() {
        ErrorKind::NotFound => format!("{message}; check {origin}"),
        ErrorKind::PermissionDenied => {
            format!("{message}; let the user of the server access it")
        }
        _ => message.to_string(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_done_about_an_address_is_said() {
        let at = "127.0.0.1:80".parse().unwrap();
        let advice = |kind: ErrorKind| {
            let error = Error::Start(StartError::Listen(at, io::Error::from(kind)));
            with_advice(&error, &Options::default())
        };
        let advice = [
            (advice(ErrorKind::PermissionDenied), "setcap cap_net_bind_service=+ep"),
            (advice(ErrorKind::PermissionDenied), "-p 8080"),
            (advice(ErrorKind::AddrInUse), "another program listens there"),
            (advice(ErrorKind::AddrNotAvailable), "no interface of this machine has this address"),
        ];
        for (message, expected) in advice {
            assert!(message.contains(expected), "{message}");
        }
    }
}
