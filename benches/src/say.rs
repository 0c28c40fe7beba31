//! Text for standard output, whose reader may close the pipe.

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

/// Formats a number with its significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.001 => format!("{value:.1e}"),
        size if size < 100.0 => format!("{value:.3}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits() {
        let all = [0.0, 0.000_012, 1.0487, 99.5, 12_345.6].map(number);
        assert_eq!(all, ["0", "1.2e-5", "1.049", "99.500", "12346"]);
    }
}
