//! Standard output, whose reader may close the pipe.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;

/// Writes lines to standard output. A closed pipe is not an error.
pub(crate) fn say(text: impl Display) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    match writeln!(output, "{text}").and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new("cannot write to standard output", error))
        }
        _ => Ok(()),
    }
}
