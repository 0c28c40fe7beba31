//! Why the lab could not do what it was asked.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// A sentence for the user, and whether the request itself was at fault.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request makes no sense; exit code 2.
    Request(String),
    /// Something went wrong on the way; exit code 1.
    Run(String),
}

impl Failure {
    /// Tells what was being done when `error` came.
    pub(crate) fn new(doing: impl fmt::Display, error: impl fmt::Display) -> Self {
        Failure::Run(format!("{doing}: {error}"))
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Request(_) => ExitCode::from(2),
            Failure::Run(_) => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Request(text) | Failure::Run(text)) = self;
        f.write_str(text)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Run(error.to_string())
    }
}
