//! Where in the file of settings an error of the server comes from.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use evring_httpd::Error;
use evring_httpd::evring::StartError;
use evring_httpd::evring_tls::CertificateError;

use crate::table::{FileError, Setting, position};

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
        match self.find(error) {
            None => message,
            Some((name, at)) => {
                let reason = format!("`{name}`: {message}");
                FileError { path: self.path.clone(), at: Some(at), reason }.to_string()
            }
        }
    }

    /// Adds file, line, column and name of a setting to a message about it, if the file has it.
    pub(crate) fn locate_setting(&self, name: &str, message: impl fmt::Display) -> String {
        let prefix = format!("--{name}=");
        match self.flags.iter().find(|(flag, _)| flag.starts_with(&prefix)) {
            None => message.to_string(),
            Some((_, at)) => {
                let reason = format!("`{name}`: {message}");
                FileError { path: self.path.clone(), at: Some(*at), reason }.to_string()
            }
        }
    }

    /// Returns name and position of the last setting that the reason of a conflict names, if the file has each once.
    fn find_conflict(&self, reason: &str) -> Option<(&str, (usize, usize))> {
        let words = || reason.split(|c: char| !c.is_ascii_alphabetic() && c != '-');
        let named = self.flags.iter().filter_map(|(flag, at)| {
            let name = flag.strip_prefix("--")?.split('=').next()?;
            words().any(|word| word == name).then_some((name, *at))
        });
        let mut found: Vec<_> = named.collect();
        let names: HashSet<_> = found.iter().map(|(name, _)| *name).collect();
        if names.len() < found.len() {
            return None;
        }
        found.pop()
    }

    /// Returns name and position of the setting that causes an error. None is better than a wrong one: if several have
    /// the same value, only one of them may be the cause.
    fn find(&self, error: &Error) -> Option<(&str, (usize, usize))> {
        if let Error::Conflict(reason) = error {
            return self.find_conflict(reason);
        }
        let (names, value) = cause(error);
        let named = |is_cause: &dyn Fn(&str) -> bool| -> Vec<_> {
            let flags = self.flags.iter().filter_map(|(flag, at)| {
                let (name, of_flag) = flag.strip_prefix("--")?.split_once('=')?;
                (names.contains(&name) && is_cause(of_flag)).then_some((name, *at))
            });
            flags.collect()
        };
        let is_value = |of_flag: &str| {
            let rest = of_flag.strip_prefix(&*value);
            rest.is_some_and(|rest| value.is_empty() || rest.is_empty() || rest.starts_with(','))
                || of_flag.parse::<SocketAddr>().is_ok_and(|at| at.to_string() == value)
        };
        let mut found = named(&is_value);
        // The message has the whole path of a page, and the whole address.
        let is_completed = matches!(error, Error::Page(..) | Error::Start(_) | Error::Duplicate(_));
        if found.is_empty() && is_completed {
            found = named(&|of_flag| is_part(of_flag, &value));
        }
        found.dedup();
        let are_all_causes = value.is_empty() || matches!(error, Error::Duplicate(_));
        if found.len() > 1 && !are_all_causes {
            return None;
        }
        found.pop()
    }
}

/// Returns whether a value ends with that of a flag: a page is below the root, and an address may be short.
fn is_part(of_flag: &str, value: &str) -> bool {
    if of_flag.parse::<SocketAddr>().is_ok() {
        return false;
    }
    let part = of_flag.rsplit(['=', ':']).next().unwrap_or_default().trim_start_matches('/');
    let before = value.strip_suffix(part).filter(|_| !part.is_empty());
    before.is_some_and(|before| before.ends_with([':', '/']))
}

/// Returns the names of the settings that can cause an error, and the value of the one that does, or nothing.
fn cause(error: &Error) -> (&'static [&'static str], String) {
    const CERTIFICATES: &[&str] = &["tls-cert", "tls-key", "tls-client-ca"];
    let of = |path: &Path| path.display().to_string();
    match error {
        Error::Root(path, _) | Error::Start(StartError::Root(path, _)) => (&["root"], of(path)),
        Error::Page(path, _) => (&["fallback", "error-page"], of(path)),
        Error::Log(path, _) => (&["access-log"], of(path)),
        Error::Users(path, _) => (&["basic-auth"], of(path)),
        Error::User(..) => (&["user"], String::new()),
        Error::Duplicate(at) => (&["listen", "tls-redirect", "metrics-listen"], at.to_string()),
        Error::Start(StartError::Listen(at, _)) => {
            (&["listen", "tls-redirect", "metrics-listen"], at.to_string())
        }
        Error::Start(StartError::Unavailable(_) | StartError::Unknown(..)) => {
            (&["backend"], String::new())
        }
        Error::Certificate(error) => match error {
            CertificateError::None => (&["tls-client-ca", "tls-redirect"], String::new()),
            CertificateError::Read(path, _) | CertificateError::Invalid(path, _) => {
                (CERTIFICATES, of(path))
            }
            CertificateError::NoCertificate(path) => (&["tls-cert", "tls-client-ca"], of(path)),
            CertificateError::NoKey(path) => (&["tls-key"], of(path)),
            CertificateError::Unusable { key, .. } => (&["tls-key"], of(key)),
            CertificateError::Authorities(_) => (&["tls-client-ca"], String::new()),
            _ => (&[], String::new()),
        },
        #[cfg(feature = "sandbox")]
        Error::HandlerFile(path, _) => (&["handler"], of(path)),
        #[cfg(feature = "sandbox")]
        Error::Handler(name, _) => (&["handler"], name.clone()),
        #[cfg(feature = "sandbox")]
        Error::HandlerCache(_) => (&["handler-cache"], String::new()),
        Error::RedirectLoop(redirect) => (&["redirect"], redirect.clone()),
        _ => (&[], String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_setting_was_named_as_the_cause() {
        let flags = |all: &[&str]| Positions {
            path: PathBuf::from("FILE"),
            flags: all
                .iter()
                .zip(1..)
                .map(|(flag, line)| ((*flag).to_owned(), (line, 1)))
                .collect(),
        };
        let in_use = |at: &str| {
            let error = std::io::Error::from(std::io::ErrorKind::AddrInUse);
            Error::Start(StartError::Listen(at.parse().unwrap(), error))
        };
        let page = |path: &str| Error::Page(path.into(), std::io::ErrorKind::NotFound.into());
        let log = |path: &str| Error::Log(path.into(), std::io::ErrorKind::NotFound.into());
        let twice = Error::Duplicate("127.0.0.1:80".parse().unwrap());
        for (all, error, expected) in [
            (&["--listen=0.0.0.0:8080", "--tls-redirect=:80"][..], in_use("0.0.0.0:8080"), Some(1)),
            (&["--listen=:8080", "--tls-redirect=:80"], in_use("0.0.0.0:8080"), Some(1)),
            (
                &["--listen=localhost:80", "--tls-redirect=127.0.0.1:81"],
                in_use("127.0.0.1:80"),
                Some(1),
            ),
            (
                &["--listen=[::1]:80", "--metrics-listen=127.0.0.1:80"],
                in_use("127.0.0.1:80"),
                Some(2),
            ),
            (&["--listen=[0::1]:80", "--metrics-listen=:80"], in_use("[::1]:80"), Some(1)),
            (&["--metrics-listen=127.0.0.1:80"], in_use("0.0.0.0:80"), None),
            (&["--access-log=/a", "--access-log=/a"], log("/a"), None),
            (&["--access-log=/b/a", "--access-log=/a"], log("/b/a"), Some(1)),
            (&["--access-log=a"], log("/b/a"), None),
            (&["--error-page=404=/e.html", "--fallback=c/e.html"], page("/root/c/e.html"), None),
            (&["--error-page=404=/e.html", "--fallback=f.html"], page("/root/e.html"), Some(1)),
            (&["--fallback=f.html"], page("/root/af.html"), None),
            (&["--listen=127.0.0.1:80", "--metrics-listen=127.0.0.1:80"], twice, Some(2)),
        ] {
            let found = flags(all).find(&error).map(|(_, (line, _))| line);
            assert_eq!(found, expected, "{all:?} {error}");
        }
    }
}
