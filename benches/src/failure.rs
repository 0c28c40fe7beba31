//! The error type of the lab.

use std::fmt;
use std::io;

/// An error message for the user, by exit code.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line is invalid; exit code 2.
    Request(String),
    /// The command failed; exit code 1.
    Run(String),
    /// The experiment ran, and missed goals; exit code 3.
    Missed(String),
}

impl Failure {
    /// Returns a failure with the message "`what`: `error`".
    pub(crate) fn new(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Failure::Run(format!("{what}: {error}"))
    }

    /// Returns the exit code of the program.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Request(_) => 2,
            Failure::Run(_) => 1,
            Failure::Missed(_) => 3,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Request(text) | Failure::Run(text) | Failure::Missed(text)) = self;
        f.write_str(text)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Run(error.to_string())
    }
}
