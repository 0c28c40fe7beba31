//! Where in the file of settings an error of the server comes from.

use std::path::{Path, PathBuf};

use evring_httpd::Error;
use evring_httpd::evring::StartError;
use evring_httpd::evring_tls::CertificateError;

use crate::settings::{FileError, Setting, position};

/// The settings of a file with their positions; empty without a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Positions {
    path: PathBuf,
    /// Flags, such as `--root=/srv`, with line and column.
    flags: Vec<(String, (usize, usize))>,
}

impl Positions {
    pub(crate) fn new<'a>(
        path: &Path,
        text: &str,
        settings: impl Iterator<Item = &'a Setting>,
    ) -> Self {
        let flags = settings.flat_map(|setting| {
            let at = position(text, &setting.span);
            setting.flags.iter().map(move |flag| (flag.clone(), at))
        });
        Positions { path: path.to_owned(), flags: flags.collect() }
    }

    /// Adds file, line, column and name of the setting that causes an error to its message, if the file has it.
    pub(crate) fn locate(&self, error: &Error, message: String) -> String {
        let (names, value) = cause(error);
        let found = self.flags.iter().rev().find_map(|(flag, at)| {
            let (name, of_flag) = flag.strip_prefix("--")?.split_once('=')?;
            let rest = of_flag.strip_prefix(&*value);
            let is_value = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(','));
            // A page is below the root, and an address may be short.
            let is_part = value.ends_with(of_flag.rsplit(['=', ':']).next()?);
            (names.contains(&name) && (value.is_empty() || is_value || is_part))
                .then_some((name, *at))
        });
        match found {
            None => message,
            Some((name, at)) => {
                let reason = format!("`{name}`: {message}");
                FileError { path: self.path.clone(), at: Some(at), reason }.to_string()
            }
        }
    }
}

/// Returns the names of the settings that can cause an error, and the value of the one that does, or nothing.
fn cause(error: &Error) -> (&'static [&'static str], String) {
    const CERTIFICATES: &[&str] = &["tls-cert", "tls-key", "tls-client-ca"];
    let of = |path: &Path| path.display().to_string();
    match error {
        Error::Root(path, _) => (&["root"], of(path)),
        Error::Page(path, _) => (&["fallback", "error-page"], of(path)),
        Error::Log(path, _) => (&["access-log"], of(path)),
        Error::Users(path, _) => (&["basic-auth"], of(path)),
        Error::User(..) => (&["user"], String::new()),
        Error::Duplicate(at) => (&["listen", "tls-redirect", "metrics-listen"], at.to_string()),
        Error::Start(StartError::Listen(at, _)) => {
            (&["listen", "tls-redirect", "metrics-listen"], at.to_string())
        }
        Error::Start(StartError::Unavailable(_) | StartError::Unknown(_)) => {
            (&["backend"], String::new())
        }
        Error::Certificate(error) => match error {
            CertificateError::None => (&["tls-client-ca", "tls-redirect"], String::new()),
            CertificateError::Read(path, _)
            | CertificateError::NoCertificate(path)
            | CertificateError::NoKey(path)
            | CertificateError::Invalid(path, _) => (CERTIFICATES, of(path)),
            CertificateError::Unusable { key, .. } => (&["tls-key"], of(key)),
            CertificateError::Authorities(_) => (&["tls-client-ca"], String::new()),
            _ => (&[], String::new()),
        },
        #[cfg(feature = "sandbox")]
        Error::HandlerFile(path, _) => (&["handler"], of(path)),
        _ => (&[], String::new()),
    }
}
