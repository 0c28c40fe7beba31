//! Requests of memcached's text protocol, but for `get`, which is answered key by key.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use multiplex::Commands;

use super::Kv;

pub(super) const ERROR: &[u8] = b"ERROR\r\n";
pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_DELETE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";

/// Relative times of expiry reach so far; memcached takes larger numbers as Unix times.
const MAX_RELATIVE_SECONDS: i64 = 30 * 24 * 60 * 60;

/// A line, understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Set(Set),
    Delete {
        key: Bytes,
        quiet: bool,
    },
    Version,
    Stats,
    Quit,
    /// A line that is answered with `reply`, unless it asked for no reply.
    Wrong {
        reply: &'static [u8],
        quiet: bool,
    },
}

/// A value to be stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub key: Bytes,
    pub flags: u32,
    pub exptime: i64,
    /// Its length in bytes, without the line end behind it.
    pub len: usize,
    pub quiet: bool,
}

impl Set {
    /// When the value expires, if ever.
    pub(super) fn expires(&self, io: &impl Commands) -> Option<Instant> {
        let seconds = match u64::try_from(self.exptime) {
            Ok(0) => return None,
            Ok(_) if self.exptime <= MAX_RELATIVE_SECONDS => {
                Duration::from_secs(self.exptime as u64)
            }
            Ok(unix) => {
                let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(unix))?;
                at.duration_since(io.wall()).unwrap_or_default()
            }
            Err(_negative) => Duration::ZERO,
        };
        io.now().checked_add(seconds)
    }
}

/// How many spaces `bytes` begin with.
pub(super) fn spaces(bytes: &[u8]) -> usize {
    bytes.iter().position(|b| *b != b' ').unwrap_or(bytes.len())
}

impl Request {
    /// Understands a line without its end. The answers to what is wrong are memcached's,
    /// including which of them `noreply` silences.
    pub(super) fn parse(line: &[u8]) -> Request {
        let mut words = line.split(|b| *b == b' ').filter(|word| !word.is_empty());
        let command = words.next().unwrap_or_default();
        // One word more than any command takes shows that there are too many.
        let mut rest = [&b""[..]; 6];
        let count = rest.iter_mut().zip(words).map(|(slot, word)| *slot = word).count();
        let rest = &rest[..count];
        match command {
            b"set" => Self::set(rest),
            b"delete" => Self::delete(rest),
            b"version" => Request::Version,
            b"stats" => Request::Stats,
            b"quit" => Request::Quit,
            _ => Self::wrong(ERROR, false),
        }
    }

    fn set(words: &[&[u8]]) -> Request {
        let ([key, flags, exptime, len] | [key, flags, exptime, len, _]) = words else {
            return Self::wrong(ERROR, false);
        };
        let quiet = words.last() == Some(&&b"noreply"[..]);
        let parsed = (number::<u32>(flags), number::<i64>(exptime), number::<i32>(len));
        let (Some(flags), Some(exptime), Some(len)) = parsed else {
            return Self::wrong(BAD_FORMAT, quiet);
        };
        // The line end behind the value counts, and the sum must stay a number of C's.
        let fits = (0..=i32::MAX - 2).contains(&len) && key.len() <= Kv::MAX_KEY;
        if !fits {
            return Self::wrong(BAD_FORMAT, quiet);
        }
        let key = Bytes::copy_from_slice(key);
        Request::Set(Set { key, flags, exptime, len: len as usize, quiet })
    }

    fn delete(words: &[&[u8]]) -> Request {
        let quiet = words.last() == Some(&&b"noreply"[..]) && words.len() > 1;
        match words {
            [] | [_, _, _, _, ..] => Self::wrong(ERROR, false),
            [key, ..] if key.len() > Kv::MAX_KEY => Self::wrong(BAD_FORMAT, quiet),
            [_, _, ..] if !(quiet || words[1..] == [&b"0"[..]]) => Self::wrong(BAD_DELETE, false),
            [key, ..] => Request::Delete { key: Bytes::copy_from_slice(key), quiet },
        }
    }

    fn wrong(reply: &'static [u8], quiet: bool) -> Request {
        Request::Wrong { reply, quiet }
    }
}

fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(line: &str) -> (&'static str, bool) {
        match Request::parse(line.as_bytes()) {
            Request::Wrong { reply, quiet } => (std::str::from_utf8(reply).unwrap().trim(), quiet),
            other => panic!("{line} was understood as {other:?}"),
        }
    }

    #[test]
    fn errors_are_those_of_memcached_1_6() {
        const FORMAT: &str = "CLIENT_ERROR bad command line format";
        for line in ["", "bogus", "VERSION", "get", "set a", "set a 0 0", "delete"] {
            assert_eq!(wrong(line), ("ERROR", false), "{line}");
        }
        for line in ["set a 0 0 1 noreply x", "set a 0 0 1 2 3 4", "delete a x y z"] {
            assert_eq!(wrong(line), ("ERROR", false), "{line}");
        }
        for line in ["set a x 0 1", "set a 0 x 1", "set a 0 0 x", "set a -1 0 1", "set a 0 0 -1"] {
            assert_eq!(wrong(line), (FORMAT, false), "{line}");
        }
        assert_eq!(wrong("set a 0 0 2147483646"), (FORMAT, false));
        assert_eq!(wrong("set a b 0 1 noreply"), (FORMAT, true));
        assert_eq!(wrong(&format!("set {} 0 0 3", "k".repeat(251))), (FORMAT, false));
        assert_eq!(wrong(&format!("delete {}", "k".repeat(251))), (FORMAT, false));
        for line in ["delete a 1", "delete a b c"] {
            assert_eq!(wrong(line).0, std::str::from_utf8(BAD_DELETE).unwrap().trim(), "{line}");
        }
    }

    #[test]
    fn what_memcached_lets_pass_passes() {
        let set = |line: &str| match Request::parse(line.as_bytes()) {
            Request::Set(set) => (set.flags, set.exptime, set.len, set.quiet),
            other => panic!("{line} gave {other:?}"),
        };
        assert_eq!(set("set a 4294967295 -1 +1"), (u32::MAX, -1, 1, false));
        assert_eq!(set("set  a  01  00  01 "), (1, 0, 1, false));
        assert_eq!(set("set a 0 99999999999 3 foo"), (0, 99_999_999_999, 3, false));
        assert_eq!(set("set a 0 0 3 noreply"), (0, 0, 3, true));
        let key = Bytes::from_static(b"a");
        for (line, quiet) in [("delete a 0", false), ("delete a 0 noreply", true)] {
            let expected = Request::Delete { key: key.clone(), quiet };
            assert_eq!(Request::parse(line.as_bytes()), expected, "{line}");
        }
        assert_eq!(Request::parse(b"version x"), Request::Version);
    }
}
