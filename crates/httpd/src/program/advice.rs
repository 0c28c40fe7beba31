//! Advice to the user about an error.

use std::fmt;
use std::io::{self, ErrorKind};

use evring_httpd::Error;
use evring_httpd::evring::StartError;
use evring_httpd::evring_tls::CertificateError;
use evring_httpd::options::{CompressionLevels, FileOptions, Options};
use tracing::warn;

/// Returns the message of an error of a server with these options, with what to do.
pub(crate) fn with_advice(error: &Error, options: &Options) -> String {
    let advice = match error {
        Error::Start(StartError::Listen(at, reason)) => match reason.kind() {
            ErrorKind::PermissionDenied => format!(
                "ports below 1024 need a capability: run `setcap cap_net_bind_service=+ep` on the program, set \
                 AmbientCapabilities=CAP_NET_BIND_SERVICE in its unit, or choose another port, such as -p {}{}",
                u32::from(at.port()) + 8000,
                if options.user.is_some() {
                    "; with `user`, start the program as root"
                } else {
                    ""
                }
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
        Error::Certificate(CertificateError::None) => {
            "--tls-redirect and --tls-client-ca need --tls-cert and --tls-key, or --tls-self-signed"
                .to_owned()
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
        ErrorKind::IsADirectory => format!("{message}; name a file"),
        _ => message.to_string(),
    }
}

/// Warns if the directory has no page for `/`.
pub(crate) fn warn_of_directory(options: &Options) {
    let FileOptions { listing, fallback, redirects, .. } = &options.files;
    let redirects = redirects.iter().any(|redirect| redirect.to_string().starts_with("/="));
    let has_other_page = *listing || fallback.is_some() || redirects;
    let Some(root) = options.root.as_deref().filter(|_| !has_other_page) else { return };
    if !root.join("index.html").exists() {
        warn!(
            "{} has no index.html, so clients get 404 for /: add one, or list directories with --listing",
            root.display()
        );
    }
}

/// Warns of settings that have no effect without another one.
pub(crate) fn warn_of_unused(options: &Options) {
    let default = Options::default();
    let Options { files, tls, hosts, .. } = options;
    let has_files = options.root.is_some() || hosts.iter().any(|host| host.root.is_some());
    let has_log =
        options.access_log.is_some() || hosts.iter().any(|host| host.access_log.is_some());
    let is_on = |files: &FileOptions| files.compression.levels != CompressionLevels::OFF;
    let compresses = is_on(files) || hosts.iter().any(|host| is_on(&host.files));
    let (own, other) = (&files.compression, &default.files.compression);
    for (has_no_effect, setting, needed) in [
        (options.log_format != default.log_format && !has_log, "log-format", "access-log"),
        (
            tls.redirect_port.is_some() && tls.redirect_from.is_empty(),
            "tls-redirect-port",
            "tls-redirect",
        ),
        (own.min_bytes != other.min_bytes && !compresses, "compress-min", "compress"),
        (own.max_bytes != other.max_bytes && !compresses, "compress-max", "compress"),
        (files.listing && !has_files, "listing", "a directory of files"),
        (files.max_age.is_some() && !has_files, "max-age", "a directory of files"),
        (compresses && !has_files, "compress", "a directory of files"),
    ] {
        if has_no_effect {
            warn!("{setting} has no effect without {needed}");
        }
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
