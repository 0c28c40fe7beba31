//! Where an access log is written, and in which format.

use std::path::{Path, PathBuf};

/// Destination of the access log; the default is standard output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccessLog {
    /// File to append to; `None` selects standard output.
    pub path: Option<PathBuf>,
    /// The format of the lines.
    pub format: LogFormat,
}

impl From<PathBuf> for AccessLog {
    /// Selects standard output for `-` and `/dev/stdout`, which another user than that of the pipe could not open.
    fn from(path: PathBuf) -> Self {
        let is_stdout = ["-", "/dev/stdout"].map(Path::new).contains(&path.as_path());
        AccessLog { path: (!is_stdout).then_some(path), ..AccessLog::default() }
    }
}

impl AccessLog {
    /// Returns the access log of a setting; `off` means none.
    pub fn from_setting(path: PathBuf, format: LogFormat) -> Option<Self> {
        (path.as_os_str() != "off").then(|| AccessLog { format, ..path.into() })
    }
}

/// The format of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[non_exhaustive]
pub enum LogFormat {
    /// The combined format, as of Apache and nginx.
    #[default]
    Combined,
    /// The combined format, then a space and the microseconds that the response took, or `-`.
    Timed,
    /// An object of JSON per line: `time` in seconds since 1970, to the millisecond, and the `microseconds` that the
    /// response took.
    Json,
}
