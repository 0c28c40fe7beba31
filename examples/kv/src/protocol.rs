//! Parser for lines of the text protocol, like memcached 1.6.

use memchr::memchr;

use crate::number::{parse_i32, parse_u32, parse_u64};
use crate::store::{Attributes, Store, Verb};

pub(crate) const ERROR: &[u8] = b"ERROR\r\n";
pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(crate) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_DELETE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const NO_SHUTDOWN: &[u8] = b"ERROR: shutdown not enabled\r\n";

/// A parsed line.
#[derive(Debug)]
pub(crate) enum Command<'a> {
    /// Keys follow from this position of the line.
    Get {
        get: Get,
        keys_at: usize,
    },
    /// A value follows the line.
    Store(StoreLine<'a>),
    Delete {
        key: &'a [u8],
        quiet: bool,
    },
    Count {
        key: &'a [u8],
        delta: u64,
        up: bool,
        quiet: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: i32,
        quiet: bool,
    },
    Flush {
        delay: i32,
        quiet: bool,
    },
    Stats {
        /// Of what; empty if the command does not say.
        what: &'a [u8],
        /// The next words, empty where there is none.
        args: [&'a [u8]; 2],
    },
    Version,
    Verbosity {
        quiet: bool,
    },
    Quit,
    /// An HTTP request or `quit`: the connection closes.
    Hangup,
    /// An invalid line with this reply, unless `noreply` was given.
    Invalid {
        reply: &'static [u8],
        quiet: bool,
    },
}

/// Variant of a `get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Get {
    /// Replies include the `cas` numbers.
    pub(crate) unique: bool,
    /// Changes the expiry time of the values.
    pub(crate) exptime: Option<i32>,
}

/// A line that a value follows.
#[derive(Debug)]
pub(crate) struct StoreLine<'a> {
    pub(crate) verb: Verb,
    pub(crate) key: &'a [u8],
    pub(crate) attributes: Attributes,
    /// Length of the value without its line end.
    pub(crate) len: usize,
    pub(crate) quiet: bool,
}

/// The words of a line.
struct Words<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let begin = self.at + self.line[self.at..].iter().position(|byte| *byte != b' ')?;
        let len = memchr(b' ', &self.line[begin..]).unwrap_or(self.line.len() - begin);
        self.at = begin + len;
        Some(&self.line[begin..self.at])
    }
}

/// Maximum number of words of any command, plus one to detect excess words.
const MAX_WORDS: usize = 8;

/// Number of words into which a line of any length is split before its last one is examined.
const LONG_LINE_WORDS: usize = 23;

fn invalid(reply: &'static [u8], quiet: bool) -> Command<'static> {
    Command::Invalid { reply, quiet }
}

/// Parses a line without its end.
pub(crate) fn parse(line: &[u8]) -> Command<'_> {
    // memcached is written in C, where strings end at a zero byte.
    let line = &line[..memchr(0, line).unwrap_or(line.len())];
    let mut remaining = Words { line, at: 0 };
    let Some(name) = remaining.next().filter(|name| name.len() > 1) else {
        return invalid(ERROR, false);
    };
    match name {
        b"get" | b"bget" => return get(remaining, false, false),
        b"gets" => return get(remaining, true, false),
        b"gat" => return get(remaining, false, true),
        b"gats" => return get(remaining, true, true),
        _ => {}
    }
    let mut words = [&b""[..]; MAX_WORDS];
    let count = words.iter_mut().zip(remaining).map(|(slot, word)| *slot = word).count();
    let words = &words[..count];
    let quiet = words.last() == Some(&&b"noreply"[..]);
    match name {
        b"set" => store(Verb::Set, words, quiet),
        b"add" => store(Verb::Add, words, quiet),
        b"replace" => store(Verb::Replace, words, quiet),
        b"append" => store(Verb::Append, words, quiet),
        b"prepend" => store(Verb::Prepend, words, quiet),
        b"cas" => store(Verb::Cas(0), words, quiet),
        b"delete" => delete(words, quiet),
        b"incr" => count_by(words, true, quiet),
        b"decr" => count_by(words, false, quiet),
        b"touch" => touch(words, quiet),
        b"flush_all" => flush(words, quiet),
        b"stats" => {
            let word = |n: usize| words.get(n).copied().unwrap_or_default();
            Command::Stats { what: word(0), args: [word(1), word(2)] }
        }
        b"version" => Command::Version,
        b"verbosity" => verbosity(words, quiet),
        b"quit" => Command::Quit,
        b"shutdown" => invalid(NO_SHUTDOWN, false),
        _ if is_hangup(line, name) => Command::Hangup,
        _ => invalid(ERROR, false),
    }
}

/// Parses the beginning of a line that exceeds the maximum length. Returns `None` unless it is a `get`, perhaps without a
/// key yet, or a `gat` with its time.
pub(crate) fn parse_long(line: &[u8]) -> Option<Command<'_>> {
    let mut words = Words { line, at: 0 };
    let name = words.next()?;
    if words.at - name.len() > 100 {
        return None;
    }
    match name {
        b"get" | b"gets" => {
            let get = Get { unique: name == b"gets", exptime: None };
            Some(Command::Get { get, keys_at: words.at })
        }
        // More digits may follow at the end of what has arrived.
        b"gat" | b"gats" => words.next().filter(|_| words.at < line.len()).map(|_| parse(line)),
        _ => None,
    }
}

fn get(mut words: Words<'_>, unique: bool, touches: bool) -> Command<'static> {
    let mut keys_at = words.at;
    let Some(first) = words.next() else { return invalid(ERROR, false) };
    let mut exptime = None;
    if touches {
        exptime = parse_i32(first);
        if exptime.is_none() {
            return invalid(BAD_EXPTIME, false);
        }
        keys_at = words.at;
    }
    Command::Get { get: Get { unique, exptime }, keys_at }
}

fn store<'a>(verb: Verb, words: &[&'a [u8]], quiet: bool) -> Command<'a> {
    let is_cas = matches!(verb, Verb::Cas(_));
    let needed = if is_cas { 5 } else { 4 };
    if words.len() != needed && words.len() != needed + 1 {
        return invalid(ERROR, false);
    }
    let (key, flags, exptime, len) = (words[0], words[1], words[2], words[3]);
    let unique = if is_cas { parse_u64(words[4].iter().copied()) } else { Some(0) };
    let numbers = (parse_u32(flags), parse_i32(exptime), parse_i32(len), unique);
    let (Some(flags), Some(exptime), Some(len), Some(unique)) = numbers else {
        return invalid(BAD_FORMAT, quiet);
    };
    // With the line end, the length must fit a C `int`.
    if key.len() > Store::MAX_KEY || !(0..=i32::MAX - 2).contains(&len) {
        return invalid(BAD_FORMAT, quiet);
    }
    let verb = if is_cas { Verb::Cas(unique) } else { verb };
    let attributes = Attributes { flags, exptime };
    Command::Store(StoreLine { verb, key, attributes, len: len as usize, quiet })
}

fn delete<'a>(words: &[&'a [u8]], quiet: bool) -> Command<'a> {
    let key = match *words {
        [key] => key,
        // memcached once accepted a time, and still accepts 0.
        [key, b"0" | b"noreply"] | [key, b"0", b"noreply"] => key,
        [_, _] | [_, _, _] => return invalid(BAD_DELETE, quiet),
        _ => return invalid(ERROR, false),
    };
    // A single word is a key, also `noreply`.
    let quiet = quiet && words.len() > 1;
    if key.len() > Store::MAX_KEY {
        return invalid(BAD_FORMAT, quiet);
    }
    Command::Delete { key, quiet }
}

fn count_by<'a>(words: &[&'a [u8]], up: bool, quiet: bool) -> Command<'a> {
    let ([key, delta] | [key, delta, _]) = words else { return invalid(ERROR, false) };
    if key.len() > Store::MAX_KEY {
        return invalid(BAD_FORMAT, quiet);
    }
    match parse_u64(delta.iter().copied()) {
        Some(delta) => Command::Count { key, delta, up, quiet },
        None => invalid(BAD_DELTA, quiet),
    }
}

fn touch<'a>(words: &[&'a [u8]], quiet: bool) -> Command<'a> {
    let ([key, exptime] | [key, exptime, _]) = words else { return invalid(ERROR, false) };
    if key.len() > Store::MAX_KEY {
        return invalid(BAD_FORMAT, quiet);
    }
    match parse_i32(exptime) {
        Some(exptime) => Command::Touch { key, exptime, quiet },
        None => invalid(BAD_EXPTIME, quiet),
    }
}

fn flush(words: &[&[u8]], quiet: bool) -> Command<'static> {
    match *words {
        [] | [b"noreply"] => Command::Flush { delay: 0, quiet },
        [delay] | [delay, _] => match parse_i32(delay) {
            Some(delay) => Command::Flush { delay, quiet },
            None => invalid(BAD_EXPTIME, quiet),
        },
        _ => invalid(ERROR, false),
    }
}

fn verbosity(words: &[&[u8]], quiet: bool) -> Command<'static> {
    let ([level] | [level, _]) = words else { return invalid(ERROR, false) };
    match parse_u32(level) {
        Some(_) => Command::Verbosity { quiet },
        None => invalid(BAD_FORMAT, quiet),
    }
}

/// Returns whether an unknown line is an HTTP request. Checks only initial letters that no command has.
fn is_hangup(line: &[u8], name: &[u8]) -> bool {
    let looked_at = match name[0] {
        b'g' | b's' | b'a' | b'c' | b'i' | b'd' | b't' => false,
        b'm' => name.len() != 2,
        _ => true,
    };
    let last = || Words { line, at: 0 }.take(LONG_LINE_WORDS).last();
    looked_at && last().is_some_and(|word| word.starts_with(b"HTTP/"))
}
