//! The Date of replies, written once a second.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evring::Commands;
use httpdate::HttpDate;

/// A point in time as HTTP writes it, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) type Stamp = [u8; 29];

/// The last second of the year 9999: HTTP can't write a later one.
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// Writes a time for HTTP, or the nearest one that HTTP can write.
pub(crate) fn stamp(time: SystemTime) -> Stamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().min(LAST);
    let mut text = EPOCH;
    let _ = write!(&mut text[..], "{}", HttpDate::from(UNIX_EPOCH + since));
    text
}

const EPOCH: Stamp = *b"Thu, 01 Jan 1970 00:00:00 GMT";

/// What stands before the Date in every head, and what follows it.
const DATE: &[u8] = b"Date: ";
const SERVER: &[u8] = concat!("\r\nServer: httpd/", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();

/// The Date of the current second.
///
/// The time of day is asked for when the monotonic clock says that the second has passed; a
/// clock that is set is noticed within a second.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The fields that every reply has, the Date among them.
    fields: Vec<u8>,
    until: Option<Instant>,
    turns: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let fields = [DATE, &EPOCH, SERVER].concat();
        Clock { fields, until: None, turns: 0 }
    }

    /// Brings the Date up to now; nearly free within the same second. Whether that was over.
    #[inline]
    pub(crate) fn tick(&mut self, now: Instant, io: &impl Commands) -> bool {
        let over = self.until.is_none_or(|until| now >= until);
        if over {
            self.turn(now, io.wall_time());
        }
        over
    }

    #[cold]
    fn turn(&mut self, now: Instant, wall: SystemTime) {
        let within = wall.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        self.until = Some(now + Duration::from_nanos(u64::from(1_000_000_000 - within)));
        self.turns += 1;
        self.fields[DATE.len()..][..EPOCH.len()].copy_from_slice(&stamp(wall));
    }

    /// The fields that every reply has, Date and Server.
    pub(crate) fn fields(&self) -> &[u8] {
        &self.fields
    }

    /// The Date.
    pub(crate) fn stamp(&self) -> &[u8] {
        &self.fields[DATE.len()..][..EPOCH.len()]
    }

    /// A number that changes whenever the Date does, and is never 0 after the first tick.
    pub(crate) fn turns(&self) -> u64 {
        self.turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_of_http_are_written_as_the_nearest() {
        let text = |time| String::from_utf8(stamp(time).to_vec()).unwrap();
        assert_eq!(text(UNIX_EPOCH - Duration::from_secs(1)), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(text(UNIX_EPOCH + LAST * 2), "Fri, 31 Dec 9999 23:59:59 GMT");
        let known = UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(text(known), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn the_date_turns_with_the_second_and_not_before() {
        let (mut clock, start) = (Clock::new(), Instant::now());
        clock.turn(start, UNIX_EPOCH + Duration::from_millis(1_250));
        assert_eq!(clock.until, Some(start + Duration::from_millis(750)));
        assert_eq!(clock.stamp(), b"Thu, 01 Jan 1970 00:00:01 GMT");
    }
}
