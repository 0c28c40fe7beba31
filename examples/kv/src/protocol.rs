//! Lines of the text protocol, understood as memcached 1.6 understands them.

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

/// What a line asks for.
#[derive(Debug)]
pub(crate) enum Command<'a> {
    /// The keys follow from this position of the line on.
    Get {
        get: Get,
        keys_at: usize,
    },
    /// A value follows behind the line.
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
        what: &'a [u8],
    },
    Version,
    Verbosity {
        quiet: bool,
    },
    Quit,
    /// A web browser or another client that makes no sense: the connection ends.
    Hangup,
    /// A line that gets this reply, unless it asked for none.
    Wrong {
        reply: &'static [u8],
        quiet: bool,
    },
}

/// Which `get` it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Get {
    /// With the values' numbers.
    pub(crate) unique: bool,
    /// Changes when the values expire.
    pub(crate) exptime: Option<i32>,
}

/// A line that a value follows.
#[derive(Debug)]
pub(crate) struct StoreLine<'a> {
    pub(crate) verb: Verb,
    pub(crate) key: &'a [u8],
    pub(crate) attributes: Attributes,
    /// The value's length without the line end behind it.
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

/// The words of a command: as many as any takes, and one more that shows that there are too many.
const MAX_WORDS: usize = 8;

/// The words in which a line of any length is cut before its last one is looked at.
const CUT: usize = 23;

fn wrong(reply: &'static [u8], quiet: bool) -> Command<'static> {
    Command::Wrong { reply, quiet }
}

/// Understands a line without its end.
pub(crate) fn parse(line: &[u8]) -> Command<'_> {
    // Strings end at a zero byte, where the reference is a program in C.
    let line = &line[..memchr(0, line).unwrap_or(line.len())];
    let mut rest = Words { line, at: 0 };
    let Some(name) = rest.next().filter(|name| name.len() > 1) else { return wrong(ERROR, false) };
    match name {
        b"get" | b"bget" => return get(rest, false, false),
        b"gets" => return get(rest, true, false),
        b"gat" => return get(rest, false, true),
        b"gats" => return get(rest, true, true),
        _ => {}
    }
    let mut words = [&b""[..]; MAX_WORDS];
    let count = words.iter_mut().zip(rest).map(|(slot, word)| *slot = word).count();
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
        b"stats" => Command::Stats { what: words.first().unwrap_or(&&b""[..]) },
        b"version" => Command::Version,
        b"verbosity" => verbosity(words, quiet),
        b"quit" => Command::Quit,
        b"shutdown" if count <= 1 => wrong(NO_SHUTDOWN, false),
        _ if is_hangup(line, name) => Command::Hangup,
        _ => wrong(ERROR, false),
    }
}

/// Understands the beginning of a line that is too long to be looked at as a whole: only those that
/// name values may be. None if it is another.
pub(crate) fn parse_long(line: &[u8]) -> Option<Command<'_>> {
    let mut words = Words { line, at: 0 };
    let name = words.next()?;
    let far = words.at - name.len() > 100;
    (!far && matches!(name, b"get" | b"gets" | b"gat" | b"gats")).then(|| parse(line))
}

fn get(mut words: Words<'_>, unique: bool, touches: bool) -> Command<'static> {
    let mut keys_at = words.at;
    let Some(first) = words.next() else { return wrong(ERROR, false) };
    let mut exptime = None;
    if touches {
        exptime = parse_i32(first);
        if exptime.is_none() {
            return wrong(BAD_EXPTIME, false);
        }
        keys_at = words.at;
    }
    Command::Get { get: Get { unique, exptime }, keys_at }
}

fn store<'a>(verb: Verb, words: &[&'a [u8]], quiet: bool) -> Command<'a> {
    let is_cas = matches!(verb, Verb::Cas(_));
    let needed = if is_cas { 5 } else { 4 };
    if words.len() != needed && words.len() != needed + 1 {
        return wrong(ERROR, false);
    }
    let (key, flags, exptime, len) = (words[0], words[1], words[2], words[3]);
    let unique = if is_cas { parse_u64(words[4].iter().copied()) } else { Some(0) };
    let numbers = (parse_u32(flags), parse_i32(exptime), parse_i32(len), unique);
    let (Some(flags), Some(exptime), Some(len), Some(unique)) = numbers else {
        return wrong(BAD_FORMAT, quiet);
    };
    // With the line end behind it, the length must stay a number of C's.
    if key.len() > Store::MAX_KEY || !(0..=i32::MAX - 2).contains(&len) {
        return wrong(BAD_FORMAT, quiet);
    }
    let verb = if is_cas { Verb::Cas(unique) } else { verb };
    let attributes = Attributes { flags, exptime };
    Command::Store(StoreLine { verb, key, attributes, len: len as usize, quiet })
}

fn delete<'a>(words: &[&'a [u8]], quiet: bool) -> Command<'a> {
    let key = match *words {
        [key] => key,
        // A time was allowed once; 0 still is.
        [key, b"0" | b"noreply"] | [key, b"0", b"noreply"] => key,
        [_, _] | [_, _, _] => return wrong(BAD_DELETE, quiet),
        _ => return wrong(ERROR, false),
    };
    // A single word is a key, whatever it is.
    let quiet = quiet && words.len() > 1;
    if key.len() > Store::MAX_KEY {
        return wrong(BAD_FORMAT, quiet);
    }
    Command::Delete { key, quiet }
}

fn count_by<'a>(words: &[&'a [u8]], up: bool, quiet: bool) -> Command<'a> {
    let ([key, delta] | [key, delta, _]) = words else { return wrong(ERROR, false) };
    if key.len() > Store::MAX_KEY {
        return wrong(BAD_FORMAT, quiet);
    }
    match parse_u64(delta.iter().copied()) {
        Some(delta) => Command::Count { key, delta, up, quiet },
        None => wrong(BAD_DELTA, quiet),
    }
}

fn touch<'a>(words: &[&'a [u8]], quiet: bool) -> Command<'a> {
    let ([key, exptime] | [key, exptime, _]) = words else { return wrong(ERROR, false) };
    if key.len() > Store::MAX_KEY {
        return wrong(BAD_FORMAT, quiet);
    }
    match parse_i32(exptime) {
        Some(exptime) => Command::Touch { key, exptime, quiet },
        None => wrong(BAD_EXPTIME, quiet),
    }
}

fn flush(words: &[&[u8]], quiet: bool) -> Command<'static> {
    match *words {
        [] | [b"noreply"] => Command::Flush { delay: 0, quiet },
        [delay] | [delay, _] => match parse_i32(delay) {
            Some(delay) => Command::Flush { delay, quiet },
            None => wrong(BAD_EXPTIME, quiet),
        },
        _ => wrong(ERROR, false),
    }
}

fn verbosity(words: &[&[u8]], quiet: bool) -> Command<'static> {
    let ([level] | [level, _]) = words else { return wrong(ERROR, false) };
    match parse_u32(level) {
        Some(_) => Command::Verbosity { quiet },
        None => wrong(BAD_FORMAT, quiet),
    }
}

/// Whether a line that is no command is one of HTTP. Those that could be commands by their first
/// letter are not looked at.
fn is_hangup(line: &[u8], name: &[u8]) -> bool {
    let looked_at = match name[0] {
        b'g' | b's' | b'a' | b'c' | b'i' | b'd' | b't' => false,
        b'm' => name.len() != 2,
        _ => true,
    };
    let last = || Words { line, at: 0 }.take(CUT).last();
    looked_at && last().is_some_and(|word| word.starts_with(b"HTTP/"))
}
