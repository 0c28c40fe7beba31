//! Where in the file of settings an error of the server comes from.

use std::env;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use evring_httpd::Error;
use evring_httpd::evring::StartError;
use evring_httpd::evring_tls::CertificateError;
use evring_httpd::options::HostName;

use crate::table::{FileError, Setting, position, variable};

/// Line and column.
type Position = (usize, usize);

/// A setting's name, and where it is.
type Found<'a> = (&'a str, Position);

/// The settings of a file with their positions; empty without a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Positions {
    path: PathBuf,
    /// Flags of each table, such as `--root=/srv`: those of the server, then those of each virtual host.
    tables: Vec<Vec<(String, Position)>>,
}

impl Positions {
    pub(crate) fn new<'a>(
        path: &Path,
        text: &str,
        tables: impl Iterator<Item = &'a Vec<Setting>>,
    ) -> Self {
        let flags = |table: &'a Vec<Setting>| {
            let flags = table.iter().flat_map(|setting| {
                let at = position(text, &setting.span);
                setting.flags.iter().map(move |flag| (flag.clone(), at))
            });
            flags.collect()
        };
        Positions { path: path.to_owned(), tables: tables.map(flags).collect() }
    }

    /// Returns the names and values of all settings.
    fn all(&self) -> impl Iterator<Item = (&str, &str, Position)> {
        self.tables.iter().flatten().filter_map(name_and_value)
    }

    /// Adds file, line, column and name of the setting that causes an error to its message, if the file has it. Settings
    /// that contradict each other are all named, and those of which one is the cause; the position is that of the last.
    pub(crate) fn locate(&self, error: &Error, message: String) -> String {
        let mut are_all_causes = true;
        let (found, message) = match error {
            Error::Conflict(reason) => (self.find_conflict(None, reason), message),
            Error::HostConflict(host, reason) => {
                let found = self.find_conflict(Some(host), reason);
                let message = if found.is_empty() { message } else { (*reason).to_owned() };
                (found, message)
            }
            _ => {
                let found;
                (found, are_all_causes) = self.find(error);
                (found, message)
            }
        };
        let Some(((name, at), others)) = found.split_last() else {
            return match variable_of(error) {
                Some(variable) => format!("the variable {variable}: {message}"),
                None => message,
            };
        };
        let mut reason = format!("`{name}`");
        for (n, (name, (line, column))) in others.iter().enumerate() {
            let joint = match (are_all_causes, n) {
                (true, 0) => ", with",
                (true, _) => " and",
                (false, _) => ", or",
            };
            reason += &format!("{joint} `{name}` at {line}:{column}");
        }
        self.message_at(*at, format!("{reason}: {message}"))
    }

    /// Adds file, line, column and name of a setting to a message about it, if the file has it.
    pub(crate) fn locate_setting(&self, name: &str, message: impl fmt::Display) -> String {
        match self.all().find(|(of_flag, ..)| *of_flag == name) {
            None => message.to_string(),
            Some((.., at)) => self.message_at(at, format!("`{name}`: {message}")),
        }
    }

    fn message_at(&self, at: Position, reason: String) -> String {
        FileError { path: self.path.clone(), at: Some(at), reason }.to_string()
    }

    /// Returns the settings that the reason of a conflict names, in the order of the file: those of the host, and those
    /// of the server that the host does not have.
    fn find_conflict(&self, host: Option<&HostName>, reason: &str) -> Vec<Found<'_>> {
        let is_named = |name: &str| {
            let words = reason.split(|c: char| !c.is_ascii_alphabetic() && c != '-');
            words.into_iter().any(|word| word == name)
        };
        let is_of_host = |table: &&Vec<(String, Position)>| {
            let mut settings = table.iter().filter_map(name_and_value);
            settings.any(|(name, value, _)| {
                name == "name" && host.is_some_and(|host| value.parse().as_ref() == Ok(host))
            })
        };
        let (of_server, of_hosts) = self.tables.split_at(1.min(self.tables.len()));
        let mut found: Vec<Found<'_>> = Vec::new();
        for table in of_hosts.iter().find(is_of_host).into_iter().chain(of_server) {
            let own = table.iter().filter_map(name_and_value).filter(|(name, ..)| is_named(name));
            for (name, _, at) in own {
                // A list is one setting.
                if !found.iter().any(|(other, _)| *other == name) {
                    found.push((name, at));
                }
            }
        }
        found.sort_by_key(|(_, at)| *at);
        found
    }

    /// Returns names and positions of the settings that cause an error, and whether all of them do: if several have the
    /// same value, only one of them may be the cause.
    fn find(&self, error: &Error) -> (Vec<Found<'_>>, bool) {
        let (names, value) = cause(error);
        let named = |is_cause: &dyn Fn(&str) -> bool| -> Vec<_> {
            let causes =
                self.all().filter(|(name, value, _)| names.contains(name) && is_cause(value));
            causes.map(|(name, _, at)| (name, at)).collect()
        };
        let is_value = |of_flag: &str| {
            let rest = of_flag.strip_prefix(&*value);
            rest.is_some_and(|rest| value.is_empty() || rest.is_empty() || rest.starts_with(','))
                || of_flag.parse::<SocketAddr>().is_ok_and(|at| at.to_string() == value)
        };
        let mut found = named(&is_value);
        // The message has the whole path of a page, and the whole address.
        let is_completed = matches!(
            error,
            Error::Page(..) | Error::Start(_) | Error::Duplicate(_) | Error::Held(..)
        );
        if found.is_empty() && is_completed {
            found = named(&|of_flag| is_part(of_flag, &value));
        }
        found.dedup();
        (found, value.is_empty() || matches!(error, Error::Duplicate(_)))
    }
}

/// Returns the environment variable of a setting that can cause an error, if it has the value that does.
fn variable_of(error: &Error) -> Option<String> {
    let (names, value) = cause(error);
    let mut variables = names.iter().map(|name| variable(name)).filter(|_| !value.is_empty());
    variables.find(|variable| env::var(variable).is_ok_and(|text| text == value))
}

/// Returns name and value of a flag with its position.
fn name_and_value((flag, at): &(String, Position)) -> Option<(&str, &str, Position)> {
    let (name, value) = flag.strip_prefix("--")?.split_once('=')?;
    Some((name, value, *at))
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
        Error::Duplicate(at) | Error::Held(at, _) | Error::Start(StartError::Listen(at, _)) => {
            (&["listen", "tls-redirect", "metrics-listen"], at.to_string())
        }
        Error::Start(StartError::Unknown(name, _)) => (&["backend"], name.clone()),
        Error::Start(StartError::Unavailable(_)) => (&["backend"], String::new()),
        Error::Certificate(error) => match error {
            CertificateError::None => (&["tls-client-ca", "tls-redirect"], String::new()),
            CertificateError::Read(path, _) | CertificateError::Invalid(path, _) => {
                (CERTIFICATES, of(path))
            }
            CertificateError::NoCertificate(path) => (&["tls-cert", "tls-client-ca"], of(path)),
            CertificateError::Invalidates(warning) => (&["tls-cert"], of(&warning.file)),
            CertificateError::NoKey(path) | CertificateError::Encrypted(path) => {
                (&["tls-key"], of(path))
            }
            CertificateError::InvalidKey { key, .. } => (&["tls-key"], of(key)),
            CertificateError::Authorities(_) => (&["tls-client-ca"], String::new()),
            _ => (&[], String::new()),
        },
        #[cfg(feature = "sandbox")]
        Error::HandlerFile(path, _) => (&["handler"], of(path)),
        #[cfg(feature = "sandbox")]
        Error::Handler(name, _)
        | Error::HandlerAddress(name, _)
        | Error::HandlerBuffers(name, _) => (&["handler"], name.clone()),
        #[cfg(feature = "sandbox")]
        Error::HandlerCache(_) => (&["handler-cache"], String::new()),
        Error::RedirectLoop(redirect) | Error::RedirectUnused(redirect, _) => {
            (&["redirect"], redirect.clone())
        }
        _ => (&[], String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the settings of a file that has each in a line.
    fn flags(all: &[&str]) -> Positions {
        let lines = all.iter().zip(1..).map(|(flag, line)| ((*flag).to_owned(), (line, 1)));
        Positions { path: PathBuf::from("FILE"), tables: vec![lines.collect()] }
    }

    #[test]
    fn another_setting_was_named_as_the_cause() {
        let in_use = |at: &str| {
            let error = std::io::Error::from(std::io::ErrorKind::AddrInUse);
            Error::Start(StartError::Listen(at.parse().unwrap(), error))
        };
        let page = |path: &str| Error::Page(path.into(), std::io::ErrorKind::NotFound.into());
        let log = |path: &str| Error::Log(path.into(), std::io::ErrorKind::NotFound.into());
        let twice = Error::Duplicate("127.0.0.1:80".parse().unwrap());
        for (all, error, expected) in [
            (
                &["--listen=0.0.0.0:8080", "--tls-redirect=:80"][..],
                in_use("0.0.0.0:8080"),
                &[1][..],
            ),
            (&["--listen=:8080", "--tls-redirect=:80"], in_use("0.0.0.0:8080"), &[1]),
            (
                &["--listen=localhost:80", "--tls-redirect=127.0.0.1:81"],
                in_use("127.0.0.1:80"),
                &[1],
            ),
            (&["--listen=[::1]:80", "--metrics-listen=127.0.0.1:80"], in_use("127.0.0.1:80"), &[2]),
            (&["--listen=[0::1]:80", "--metrics-listen=:80"], in_use("[::1]:80"), &[1]),
            (&["--metrics-listen=127.0.0.1:80"], in_use("0.0.0.0:80"), &[]),
            (&["--access-log=/a", "--access-log=/a"], log("/a"), &[1, 2]),
            (&["--access-log=/b/a", "--access-log=/a"], log("/b/a"), &[1]),
            (&["--access-log=a"], log("/b/a"), &[]),
            (&["--error-page=404=/e.html", "--fallback=c/e.html"], page("/root/c/e.html"), &[1, 2]),
            (&["--error-page=404=/e.html", "--fallback=f.html"], page("/root/e.html"), &[1]),
            (&["--fallback=f.html"], page("/root/af.html"), &[]),
            (&["--listen=127.0.0.1:80", "--metrics-listen=127.0.0.1:80"], twice, &[1, 2]),
        ] {
            let positions = flags(all);
            let (found, _) = positions.find(&error);
            let lines: Vec<usize> = found.iter().map(|(_, (line, _))| *line).collect();
            assert_eq!(lines, expected, "{all:?} {error}");
        }
    }

    #[test]
    fn settings_with_the_same_value_were_not_named() {
        let log = Error::Log("/a".into(), std::io::ErrorKind::NotFound.into());
        let message = flags(&["--access-log=/a", "--root=/", "--access-log=/a"])
            .locate(&log, "no such file".to_owned());
        assert_eq!(message, "FILE:3:1: `access-log`, or `access-log` at 1:1: no such file");
        let twice = Error::Duplicate("127.0.0.1:80".parse().unwrap());
        let message = flags(&["--listen=127.0.0.1:80", "--metrics-listen=127.0.0.1:80"])
            .locate(&twice, "twice".to_owned());
        assert_eq!(message, "FILE:2:1: `metrics-listen`, with `listen` at 1:1: twice");
    }
}
