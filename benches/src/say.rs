//! Standard output, whose reader may have had enough.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;

/// Writes a line, or several, to standard output. That nobody reads any more is no failure.
pub(crate) fn say(text: impl Display) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    match writeln!(output, "{text}").and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new("can't write to standard output", error))
        }
        _ => Ok(()),
    }
}
