//! Values of flags.

use std::str::FromStr;
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

/// Parses a number of worker threads, or `auto` for one per processor that the process may use.
pub(crate) fn workers(text: &str) -> Result<u16, String> {
    let number = match text {
        "auto" => {
            std::thread::available_parallelism().ok().and_then(|n| u16::try_from(n.get()).ok())
        }
        _ => text.parse().ok(),
    };
    let number = number.filter(|number| (1..=1024).contains(number));
    number.ok_or_else(|| "expected a number from 1 to 1024, or `auto`".to_owned())
}

/// Formats a time as [`seconds`] parses it.
pub(crate) fn text(time: Duration) -> String {
    time.as_secs_f64().to_string()
}
