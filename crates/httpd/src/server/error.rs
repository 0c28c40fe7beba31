//! The errors of a server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

#[cfg(feature = "sandbox")]
use ash_sandbox::sandbox;
#[cfg(feature = "sandbox")]
use evring::hooks::BindError;
use evring::{KernelError, StartError};
#[cfg(feature = "tls")]
use evring_tls::CertificateError;

use crate::host_options::HostName;
#[cfg(feature = "user")]
use crate::server::user::User;

/// The error that prevented a server from starting or terminated it.
#[non_exhaustive]
pub enum Error {
    /// An address, in its form for debugging, is invalid, or its name cannot be resolved.
    Address(String, io::Error),
    /// A directory to serve cannot be read.
    Root(PathBuf, io::Error),
    /// A page below the root, such as the fallback, cannot be read.
    Page(PathBuf, io::Error),
    /// The access log cannot be opened.
    Log(PathBuf, io::Error),
    /// A mechanism could not start.
    Start(StartError),
    /// A mechanism failed while running.
    Kernel(KernelError),
    /// A worker panicked.
    Panic,
    /// A thread could not be started.
    Thread(io::Error),
    /// Two settings contradict each other.
    Conflict(&'static str),
    /// Two settings of a virtual host contradict each other; one of them may be that of all hosts.
    HostConflict(HostName, &'static str),
    /// A path is that of no route, and why.
    Route(String, &'static str),
    /// Redirects form a loop, of which this is one.
    RedirectLoop(String),
    /// The first redirect never applies, as the second one has all of its paths.
    RedirectUnused(String, String),
    /// Two settings are the same address to listen on, or one that includes it.
    Duplicate(SocketAddr),
    /// The server cannot listen on the first address, as its socket on the second one includes it, or is included.
    Held(SocketAddr, SocketAddr),
    /// The server stops or retires, so that its settings cannot be replaced.
    Ended,
    /// The workers of earlier settings still finish their responses, as many as there may be.
    StillEnding,
    /// The handlers of signals could not be installed.
    Signals(io::Error),
    /// The process cannot run as this user.
    #[cfg(feature = "user")]
    User(User, io::Error),
    /// A file of users cannot be read.
    #[cfg(feature = "basic-auth")]
    Users(PathBuf, io::Error),
    /// A certificate cannot be used.
    #[cfg(feature = "tls")]
    Certificate(CertificateError),
    /// A handler cannot be instantiated: its name, and the reason.
    #[cfg(feature = "sandbox")]
    Handler(String, sandbox::Rejection),
    /// The directory of compiled handlers cannot be used.
    #[cfg(feature = "sandbox")]
    HandlerCache(sandbox::CacheError),
    /// The file of a handler cannot be read.
    #[cfg(feature = "sandbox")]
    HandlerFile(PathBuf, io::Error),
    /// A handler is bound to an address at which the server serves nothing.
    #[cfg(feature = "sandbox")]
    HandlerAddress(String, SocketAddr),
    /// Messages cannot land in the memory of a handler.
    #[cfg(feature = "sandbox")]
    HandlerBuffers(String, BindError),
}

#[cfg(feature = "tls")]
impl From<CertificateError> for Error {
    fn from(error: CertificateError) -> Self {
        Error::Certificate(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Address(at, error) => {
                write!(f, "cannot resolve the listen address {at}: {error}")
            }
            Error::Root(path, error) => {
                write!(f, "cannot read the directory {}: {error}", path.display())
            }
            Error::Page(path, error) => {
                write!(f, "cannot read the page {}: {error}", path.display())
            }
            Error::Log(path, error) => {
                write!(f, "cannot open the access log {}: {error}", path.display())
            }
            Error::Start(error) => error.fmt(f),
            Error::Kernel(error) => error.fmt(f),
            Error::Panic => f.write_str("a worker panicked"),
            Error::Thread(error) => write!(f, "cannot start a thread: {error}"),
            Error::Conflict(reason) => f.write_str(reason),
            Error::HostConflict(name, reason) => write!(f, "the virtual host {name}: {reason}"),
            Error::Route(path, reason) => write!(f, "the route {path}: {reason}"),
            Error::RedirectLoop(redirect) => write!(
                f,
                "the redirect {redirect} leads back to itself by others, so that clients give up; remove one of them"
            ),
            Error::RedirectUnused(redirect, earlier) => write!(
                f,
                "the redirect {redirect} never applies: {earlier}, before it, has its paths; remove one of them, or put \
                 {redirect} first"
            ),
            Error::Duplicate(at) => {
                write!(
                    f,
                    "there are two listeners on {at}; each needs an address of its own, and one on all interfaces has \
                     those of its port"
                )
            }
            Error::Held(at, other) => write!(
                f,
                "cannot listen on {at}: this server listens on {other}: restart it, with another socket unit if it has one"
            ),
            Error::Ended => f.write_str("the server ends, so its settings cannot change"),
            Error::StillEnding => f.write_str(
                "three earlier reloads still have workers that finish responses, which is the maximum; the new \
                 settings need the end of those of one reload, or a restart",
            ),
            Error::Signals(error) => write!(f, "cannot handle signals: {error}"),
            #[cfg(feature = "user")]
            Error::User(user, error) => {
                write!(f, "cannot run as the user {user}: {error}")
            }
            #[cfg(feature = "basic-auth")]
            Error::Users(path, error) => {
                write!(f, "cannot read the users of {}: {error}", path.display())
            }
            #[cfg(feature = "tls")]
            Error::Certificate(error) => error.fmt(f),
            #[cfg(feature = "sandbox")]
            Error::HandlerFile(path, error) => {
                write!(f, "cannot read the handler {}: {error}", path.display())
            }
            #[cfg(feature = "sandbox")]
            Error::HandlerAddress(name, at) => write!(
                f,
                "the handler {name} is for {at}, where the server serves nothing; add the address to `listen`, or name another"
            ),
            #[cfg(feature = "sandbox")]
            Error::HandlerBuffers(name, error) => {
                write!(f, "cannot receive into the memory of the handler {name}: {error}")
            }
            #[cfg(feature = "sandbox")]
            Error::HandlerCache(error) => error.fmt(f),
            #[cfg(feature = "sandbox")]
            Error::Handler(name, rejection) => {
                write!(f, "cannot use the handler {name}: {rejection}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Address(_, error)
            | Error::Root(_, error)
            | Error::Log(_, error)
            | Error::Page(_, error)
            | Error::Thread(error)
            | Error::Signals(error) => Some(error),
            // These are displayed as they are.
            Error::Start(error) => error.source(),
            Error::Kernel(error) => error.source(),
            Error::Panic
            | Error::Conflict(_)
            | Error::HostConflict(..)
            | Error::Route(..)
            | Error::RedirectLoop(_)
            | Error::RedirectUnused(..)
            | Error::Duplicate(_)
            | Error::Held(..)
            | Error::Ended
            | Error::StillEnding => None,
            #[cfg(feature = "user")]
            Error::User(_, error) => Some(error),
            #[cfg(feature = "basic-auth")]
            Error::Users(_, error) => Some(error),
            #[cfg(feature = "tls")]
            Error::Certificate(error) => error.source(),
            #[cfg(feature = "sandbox")]
            Error::HandlerFile(_, error) => Some(error),
            #[cfg(feature = "sandbox")]
            Error::Handler(_, rejection) => Some(rejection),
            #[cfg(feature = "sandbox")]
            Error::HandlerAddress(..) => None,
            #[cfg(feature = "sandbox")]
            Error::HandlerBuffers(_, error) => Some(error),
            // It is displayed as it is.
            #[cfg(feature = "sandbox")]
            Error::HandlerCache(error) => error.source(),
        }
    }
}

/// Formats the message, as `main` prints a returned error with `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
