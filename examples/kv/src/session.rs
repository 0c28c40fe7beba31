//! Protocol state of a connection. No I/O: bytes in, bytes out.

use std::mem;

use memchr::{memchr, memchr3};

use crate::database::Database;
use crate::protocol::{self, BAD_FORMAT, Command, ERROR, Get, StoreLine};
use crate::reply;
use crate::store::{AllocError, Clock, Found, Outcome, PendingItem, Reading, Store, Verb};

/// State of a connection.
///
/// Before it is dropped, [`Session::end`] must be called.
#[derive(Debug, Default)]
pub struct Session {
    phase: Phase,
}

#[derive(Debug, Default)]
enum Phase {
    /// A command line follows.
    #[default]
    Line,
    /// Keys follow, one at least.
    FirstKey(Get),
    /// Keys follow, up to the end of the line. Each is answered before the next one is parsed, so a line
    /// may request more values than the queue can hold.
    Keys(Get),
    /// A value is being sent; more keys follow.
    Send { reading: Reading, hash: u64, get: Get },
    /// The bytes of a value follow.
    Value(Incoming),
    /// This many bytes are discarded.
    Discard(usize),
    /// The remaining line is discarded, then this reply is sent.
    SkipLine(&'static [u8]),
    /// There are too many connections, so this one closes.
    Refused,
}

/// A value being received.
#[derive(Debug)]
struct Incoming {
    pending: PendingItem,
    hash: u64,
    verb: Verb,
    quiet: bool,
    /// Number of value bytes to receive, without the line end.
    remaining: usize,
    /// Number of line-end bytes received.
    end: usize,
    /// The line-end bytes were correct.
    valid: bool,
}

/// What a [`Session`] needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes.
    Input,
    /// Another call, once the available replies have been sent.
    Output,
    /// The close of the connection.
    Close,
}

const LINE_END: &[u8] = b"\r\n";

/// Result of one step.
enum Step {
    /// Consumed this many bytes; continue.
    Used(usize),
    /// Needs more bytes.
    Wait,
    /// The connection closes.
    Close,
}

impl Session {
    /// Maximum length in bytes of a line whose end has not arrived. A longer one that is no `get` closes the
    /// connection.
    pub const MAX_LINE: usize = 2048;

    /// Number of reply bytes after which `serve` returns.
    pub const OUTPUT: usize = 64 * 1024;

    /// Maximum number of bytes that a call leaves unused when it needs more input.
    pub const MAX_UNUSED: usize = Self::MAX_LINE;

    /// Creates the session of a connection that is refused.
    pub(crate) fn refused() -> Self {
        Session { phase: Phase::Refused }
    }

    /// Returns whether the connection was refused.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.phase, Phase::Refused)
    }

    /// Returns whether the session only waits for another request.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Line)
    }

    /// Processes received bytes and appends replies to `out`. Returns the number of bytes used and what the
    /// session needs next.
    pub fn serve(
        &mut self,
        database: &mut Database,
        clock: &impl Clock,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let mut used = 0;
        loop {
            if out.len() >= Self::OUTPUT {
                return (used, Next::Output);
            }
            match self.step(database, clock, &input[used..], out) {
                Step::Used(n) => used += n,
                Step::Wait => return (used, Next::Input),
                Step::Close => return (used, Next::Close),
            }
        }
    }

    /// Releases the store memory held by the connection.
    pub fn end(&mut self, database: &mut Database) {
        match mem::take(&mut self.phase) {
            Phase::Value(value) => {
                database.store_without_tick(value.hash).abandon(&value.pending);
            }
            Phase::Send { reading, hash, .. } => {
                database.store_without_tick(hash).release_reading(&reading);
            }
            Phase::Line
            | Phase::FirstKey(_)
            | Phase::Keys(_)
            | Phase::Discard(_)
            | Phase::SkipLine(_)
            | Phase::Refused => {}
        }
    }

    fn step(
        &mut self,
        database: &mut Database,
        clock: &impl Clock,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        if input.is_empty() && !matches!(self.phase, Phase::Send { .. }) {
            return Step::Wait;
        }
        match &mut self.phase {
            Phase::Line => self.line(database, clock, input, out),
            Phase::FirstKey(get) => {
                let get = *get;
                self.first_key(get, input)
            }
            Phase::Keys(get) => {
                let get = *get;
                self.key(get, database, clock, input, out)
            }
            Phase::Send { reading, hash, get } => {
                let (hash, get) = (*hash, *get);
                let mut store = database.store_without_tick(hash);
                if store.read(reading, Self::OUTPUT - out.len(), out) {
                    store.release_reading(reading);
                    out.extend_from_slice(LINE_END);
                    self.phase = Phase::Keys(get);
                }
                Step::Used(0)
            }
            Phase::Value(value) => {
                let used = value.fill(database, input);
                if value.end == LINE_END.len() {
                    self.complete_value(database, clock, out);
                }
                Step::Used(used)
            }
            Phase::Discard(remaining) => {
                let n = input.len().min(*remaining);
                *remaining -= n;
                if *remaining == 0 {
                    self.phase = Phase::Line;
                }
                Step::Used(n)
            }
            Phase::Refused => Step::Close,
            Phase::SkipLine(reply) => match memchr(b'\n', input) {
                None => Step::Used(input.len()),
                Some(end) => {
                    out.extend_from_slice(reply);
                    self.phase = Phase::Line;
                    Step::Used(end + 1)
                }
            },
        }
    }

    fn line(
        &mut self,
        database: &mut Database,
        clock: &impl Clock,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        let Some(end) = memchr(b'\n', input) else {
            return self.long_line(input);
        };
        let line = &input[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let command = protocol::parse(line);
        if let Command::Get { get, keys_at } = command {
            if line.len() > Store::MAX_KEY && has_long_key(&line[keys_at..]) {
                get_before_long_key(get, &line[keys_at..], database, clock);
                out.extend_from_slice(BAD_FORMAT);
                return Step::Used(end + 1);
            }
            self.phase = Phase::Keys(get);
            return Step::Used(keys_at);
        }
        match self.command(command, database, clock, out) {
            Step::Used(_) => Step::Used(end + 1),
            other => other,
        }
    }

    /// Handles a line without an end.
    fn long_line(&mut self, line: &[u8]) -> Step {
        if line.len() <= Self::MAX_LINE {
            return Step::Wait;
        }
        match protocol::parse_long(line) {
            Some(Command::Get { get, keys_at }) => {
                self.phase = match get.exptime {
                    None => Phase::FirstKey(get),
                    Some(_) => Phase::Keys(get),
                };
                Step::Used(keys_at)
            }
            Some(Command::Invalid { reply, .. }) => {
                self.phase = Phase::SkipLine(reply);
                Step::Used(0)
            }
            _ => Step::Close,
        }
    }

    fn command(
        &mut self,
        command: Command<'_>,
        database: &mut Database,
        clock: &impl Clock,
        out: &mut Vec<u8>,
    ) -> Step {
        let mut respond = |quiet: bool, reply: &[u8]| {
            if !quiet {
                out.extend_from_slice(reply);
            }
        };
        match command {
            Command::Get { .. } => unreachable!("`line` handles `get`"),
            Command::Store(line) => self.begin_value(&line, database, clock, out),
            Command::Delete { key, quiet } => {
                let key = database.key(key);
                let found = database.store(key.hash, clock).delete(key);
                respond(quiet, if found { b"DELETED\r\n" } else { reply::NOT_FOUND });
            }
            Command::Count { key, delta, up, quiet } => {
                let key = database.key(key);
                let counted = database.store(key.hash, clock).count(key, delta, up);
                if !quiet {
                    reply::counted(counted, out);
                }
            }
            Command::Touch { key, exptime, quiet } => {
                let key = database.key(key);
                let found = database.store(key.hash, clock).touch(key, exptime, clock);
                respond(quiet, if found.is_some() { b"TOUCHED\r\n" } else { reply::NOT_FOUND });
            }
            Command::Flush { delay, quiet } => {
                database.flush(delay, clock);
                respond(quiet, reply::OK);
            }
            Command::Stats { what, args } => reply::stats(what, args, database, clock, out),
            Command::Version => {
                respond(false, b"VERSION ");
                respond(false, reply::VERSION.as_bytes());
                respond(false, LINE_END);
            }
            Command::Verbosity { quiet } => respond(quiet, reply::OK),
            Command::Quit | Command::Hangup => return Step::Close,
            Command::Invalid { reply, quiet } => respond(quiet, reply),
        }
        Step::Used(0)
    }

    /// Prepares to receive the bytes of a value.
    fn begin_value(
        &mut self,
        line: &StoreLine<'_>,
        database: &mut Database,
        clock: &impl Clock,
        out: &mut Vec<u8>,
    ) {
        let StoreLine { verb, key, attributes, len, quiet } = *line;
        let key = database.key(key);
        let mut store = database.store(key.hash, clock);
        match store.allocate(key, attributes, len, clock) {
            Ok(pending) => {
                let hash = key.hash;
                let (remaining, end, valid) = (len, 0, true);
                let value = Incoming { pending, hash, verb, quiet, remaining, end, valid };
                self.phase = Phase::Value(value);
            }
            Err(error) => {
                if verb == Verb::Set {
                    // A failed set removes the old value.
                    store.discard(key);
                }
                if !quiet {
                    out.extend_from_slice(match error {
                        AllocError::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
                        AllocError::NoMemory => b"SERVER_ERROR out of memory storing object\r\n",
                    });
                }
                self.phase = Phase::Discard(len + LINE_END.len());
            }
        }
    }

    /// Handles a received value with its line end.
    fn complete_value(&mut self, database: &mut Database, clock: &impl Clock, out: &mut Vec<u8>) {
        let Phase::Value(value) = mem::take(&mut self.phase) else { return };
        let mut store = database.store(value.hash, clock);
        store.stats.cmd_set += 1;
        let reply: &[u8] = if value.valid {
            match store.store(value.verb, &value.pending, value.hash) {
                Outcome::Stored => b"STORED\r\n",
                Outcome::NotStored => b"NOT_STORED\r\n",
                Outcome::Exists => b"EXISTS\r\n",
                Outcome::NotFound => reply::NOT_FOUND,
            }
        } else {
            store.abandon(&value.pending);
            b"CLIENT_ERROR bad data chunk\r\n"
        };
        if !value.quiet {
            out.extend_from_slice(reply);
        }
    }

    /// Finds the first key of a `get`. Without any it is invalid.
    fn first_key(&mut self, get: Get, input: &[u8]) -> Step {
        let spaces = input.iter().position(|byte| *byte != b' ').unwrap_or(input.len());
        match input[spaces..] {
            [] => {}
            [b'\r'] if spaces == 0 => return Step::Wait,
            [b'\r'] => {}
            [b'\n' | 0, ..] | [b'\r', b'\n', ..] => self.phase = Phase::SkipLine(ERROR),
            _ => self.phase = Phase::Keys(get),
        }
        Step::Used(spaces)
    }

    /// Answers the next key of a `get`, or ends it.
    fn key(
        &mut self,
        get: Get,
        database: &mut Database,
        clock: &impl Clock,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        let spaces = input.iter().position(|byte| *byte != b' ').unwrap_or(input.len());
        let word = &input[spaces..];
        // A zero byte ends the words of a line, but not the line.
        let Some(len) = memchr3(b' ', b'\n', 0, word) else {
            // One more byte may be the first half of a line end.
            if word.len() > Store::MAX_KEY + 1 {
                self.phase = Phase::SkipLine(BAD_FORMAT);
                return Step::Used(spaces);
            }
            return if spaces > 0 { Step::Used(spaces) } else { Step::Wait };
        };
        let key = match word[len] {
            b'\n' => word[..len].strip_suffix(b"\r").unwrap_or(&word[..len]),
            _ => &word[..len],
        };
        if key.len() > Store::MAX_KEY {
            self.phase = Phase::SkipLine(BAD_FORMAT);
            return Step::Used(spaces);
        }
        if !key.is_empty()
            && let Some((reading, hash)) = answer(get, key, database, clock, out)
        {
            self.phase = Phase::Send { reading, hash, get };
            // The byte after the key is parsed again once the value is sent.
            return Step::Used(spaces + key.len());
        }
        match word[len] {
            b' ' => Step::Used(spaces + len + 1),
            b'\n' => {
                out.extend_from_slice(reply::END);
                self.phase = Phase::Line;
                Step::Used(spaces + len + 1)
            }
            _ => {
                self.phase = Phase::SkipLine(reply::END);
                Step::Used(spaces + len)
            }
        }
    }
}

/// Values up to this many bytes are sent at once; larger ones in pieces.
const WHOLE: usize = 4 * 1024;

/// Appends the reply for a key. A large value's bytes are sent later in pieces.
fn answer(
    get: Get,
    key: &[u8],
    database: &mut Database,
    clock: &impl Clock,
    out: &mut Vec<u8>,
) -> Option<(Reading, u64)> {
    let name = database.key(key);
    let mut store = database.store(name.hash, clock);
    let found: Option<Found> = match get.exptime {
        None => store.get(name),
        Some(exptime) => store.touch(name, exptime, clock),
    };
    let found = found?;
    let start = out.len();
    reply::value_header(key, &found, get.unique, out);
    if found.len > WHOLE
        && let Some(reading) = store.begin_reading(found)
    {
        return Some((reading, name.hash));
    }
    // Too many connections read this value, so it is copied at once.
    store.read_whole(found, out);
    out.extend_from_slice(LINE_END);
    if get == (Get { unique: false, exptime: None }) {
        store.publish_reply(name, found, &out[start..]);
    }
    None
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let line = &line[..memchr(0, line).unwrap_or(line.len())];
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

fn has_long_key(keys: &[u8]) -> bool {
    words(keys).any(|key| key.len() > Store::MAX_KEY)
}

/// Handles a line with an overlong key: the error is its only reply, but the keys before it are looked up, and touched.
fn get_before_long_key(get: Get, keys: &[u8], database: &mut Database, clock: &impl Clock) {
    for key in words(keys).take_while(|key| key.len() <= Store::MAX_KEY) {
        let key = database.key(key);
        let mut store = database.store(key.hash, clock);
        match get.exptime {
            None => store.get(key),
            Some(exptime) => store.touch(key, exptime, clock),
        };
    }
}

impl Incoming {
    /// Takes the missing bytes that are available. Returns how many.
    fn fill(&mut self, database: &mut Database, input: &[u8]) -> usize {
        let n = self.remaining.min(input.len());
        if n > 0 {
            let mut store = database.store_without_tick(self.hash);
            store.fill(&mut self.pending, &input[..n]);
            self.remaining -= n;
        }
        if self.remaining > 0 {
            return n;
        }
        let end = &input[n..];
        let end = &end[..end.len().min(LINE_END.len() - self.end)];
        self.valid &= LINE_END[self.end..].starts_with(end);
        self.end += end.len();
        n + end.len()
    }
}
