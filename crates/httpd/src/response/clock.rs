//! The Date of responses, formatted once per second.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evring::Commands;
use httpdate::HttpDate;

/// A date in HTTP's format, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) type Stamp = [u8; 29];

/// The last second of the year 9999, the maximum of an HTTP date.
const MAX_DATE: Duration = Duration::from_secs(253_402_300_799);

/// Formats a time, clamped to the range of HTTP dates.
pub(crate) fn stamp(time: SystemTime) -> Stamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().min(MAX_DATE);
    let mut text = EPOCH;
    let _ = write!(&mut text[..], "{}", HttpDate::from(UNIX_EPOCH + since));
    text
}

const EPOCH: Stamp = *b"Thu, 01 Jan 1970 00:00:00 GMT";

/// The bytes before and after the date.
const DATE: &[u8] = b"Date: ";
const SERVER: &[u8] = concat!("\r\nServer: httpd/", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();

/// A cache of the current date.
///
/// The wall clock is read when, by the monotonic clock, the second has passed. So a change of
/// the wall clock takes effect within a second.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The Date and Server fields, as bytes.
    fields: Vec<u8>,
    until: Option<Instant>,
    ticks: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let fields = [DATE, &EPOCH, SERVER].concat();
        Clock { fields, until: None, ticks: 0 }
    }

    /// Updates the date if the second has passed, and returns whether it has.
    #[inline]
    pub(crate) fn tick(&mut self, now: Instant, io: &impl Commands) -> bool {
        let over = self.until.is_none_or(|until| now >= until);
        if over {
            self.update(now, io.wall_time());
        }
        over
    }

    #[cold]
    fn update(&mut self, now: Instant, wall: SystemTime) {
        let within = wall.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        self.until = Some(now + Duration::from_nanos(u64::from(1_000_000_000 - within)));
        self.ticks += 1;
        self.fields[DATE.len()..][..EPOCH.len()].copy_from_slice(&stamp(wall));
    }

    /// Returns the fields of every response, Date and Server.
    pub(crate) fn fields(&self) -> &[u8] {
        &self.fields
    }

    /// Returns the fields one by one.
    #[cfg(feature = "sandbox")]
    pub(crate) fn date_and_server(&self) -> (&[u8], &[u8]) {
        self.fields.split_at(DATE.len() + EPOCH.len() + b"\r\n".len())
    }

    pub(crate) fn stamp(&self) -> &[u8] {
        &self.fields[DATE.len()..][..EPOCH.len()]
    }

    /// Returns the number of updates; it is never 0 after the first tick.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_clamped_to_http_dates() {
        let text = |time| String::from_utf8(stamp(time).to_vec()).unwrap();
        assert_eq!(text(UNIX_EPOCH - Duration::from_secs(1)), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(text(UNIX_EPOCH + MAX_DATE * 2), "Fri, 31 Dec 9999 23:59:59 GMT");
        let example = UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(text(example), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn date_changes_with_the_second() {
        let (mut clock, start) = (Clock::new(), Instant::now());
        clock.update(start, UNIX_EPOCH + Duration::from_millis(1_250));
        assert_eq!(clock.until, Some(start + Duration::from_millis(750)));
        assert_eq!(clock.stamp(), b"Thu, 01 Jan 1970 00:00:01 GMT");
    }
}
