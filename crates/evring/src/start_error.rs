//! The errors of starting a mechanism.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The reason why a mechanism is unavailable, as a message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// The error that prevented a server from starting.
#[non_exhaustive]
pub enum StartError {
    /// The mechanism is unavailable on this machine.
    Unavailable(Unavailable),
    /// This build has no mechanism of this name; it has those with the other names.
    Unknown(String, &'static [&'static str]),
    /// Listening on an address failed.
    Listen(SocketAddr, io::Error),
    /// Opening a root directory failed.
    Root(PathBuf, io::Error),
    /// The configuration is invalid.
    Config(&'static str),
    /// A system call required by every mechanism failed.
    System(&'static str, io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Unavailable(reason) => reason.fmt(f),
            StartError::Unknown(name, names) => {
                let names = names.join(", ");
                write!(
                    f,
                    "unknown mechanism `{name}`; this build has auto, {names}; each mechanism is a feature of its own"
                )
            }
            StartError::Listen(at, error) => write!(f, "cannot listen on {at}: {error}"),
            StartError::Root(path, error) => {
                let path = path.display();
                let advice = match error.kind() {
                    io::ErrorKind::PermissionDenied => {
                        "; grant this user search permission (chmod +x) on it and all parent directories"
                    }
                    io::ErrorKind::NotFound => "; create it or choose another one",
                    io::ErrorKind::NotADirectory => "; choose its parent directory",
                    _ => "",
                };
                write!(f, "cannot open the directory {path}: {error}{advice}")
            }
            StartError::Config(problem) => f.write_str(problem),
            StartError::System(context, error) => write!(f, "{context}: {error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Listen(_, error)
            | StartError::Root(_, error)
            | StartError::System(_, error) => Some(error),
            StartError::Unavailable(_) | StartError::Unknown(..) | StartError::Config(_) => None,
        }
    }
}

/// Prints the message, so that a `main` that returns the error shows it.
impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Unavailable> for StartError {
    fn from(reason: Unavailable) -> Self {
        StartError::Unavailable(reason)
    }
}
