//! Values of flags.

use std::io;
use std::num::NonZero;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

/// Parses numbers from `min` to `max`.
pub(crate) fn range<N: TryFrom<u64>>(
    min: u64,
    max: u64,
) -> impl Fn(&str) -> Result<N, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (min..=max).contains(number));
        let number = number.and_then(|number| N::try_from(number).ok());
        number.ok_or_else(|| format!("expected a number from {min} to {max}"))
    }
}

/// Parses the number of a port other than 0.
pub(crate) fn port(text: &str) -> Result<NonZero<u16>, String> {
    text.parse().map_err(|_| "expected a number from 1 to 65535".to_owned())
}

/// Parses a number of bytes.
pub(crate) fn bytes<N: FromStr>(text: &str) -> Result<N, String> {
    let expected = "expected a number of bytes without a unit, such as 1048576";
    text.parse().map_err(|_| expected.to_owned())
}

/// Parses a positive time in seconds, such as `0.5`.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let time = seconds_or_none(text).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| "expected a number of seconds above 0, such as 30 or 0.5".to_owned())
}

/// Parses a time in seconds, which may be 0.
pub(crate) fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "expected a number of seconds, such as 30 or 0.5".to_owned())
}

/// Maximum number of worker threads.
const MAX_WORKERS: u16 = 1024;

/// Parses a number of worker threads, or `auto` for one per processor that the process may use.
pub(crate) fn workers(text: &str) -> Result<u16, String> {
    if text == "auto" {
        return Ok(auto(thread::available_parallelism()));
    }
    let number = text.parse().ok().filter(|number| (1..=MAX_WORKERS).contains(number));
    number.ok_or_else(|| format!("expected a number from 1 to {MAX_WORKERS}, or `auto`"))
}

/// Returns the number of worker threads for so many processors, or for an unknown number.
fn auto(processors: io::Result<NonZero<usize>>) -> u16 {
    let number = processors.map_or(1, NonZero::get);
    u16::try_from(number).map_or(MAX_WORKERS, |number| number.min(MAX_WORKERS))
}

/// Formats a time as [`seconds`] parses it.
pub(crate) fn text(time: Duration) -> String {
    time.as_secs_f64().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_number_of_workers_was_refused_on_large_machines() {
        for (processors, expected) in [(1, 1), (1024, 1024), (1025, 1024), (1 << 16, 1024)] {
            assert_eq!(auto(Ok(NonZero::new(processors).unwrap())), expected);
        }
        assert_eq!(auto(Err(io::ErrorKind::Unsupported.into())), 1);
        assert!(workers("auto").is_ok() && workers("1024").is_ok());
        assert!(workers("1025").is_err() && workers("0").is_err());
    }
}
