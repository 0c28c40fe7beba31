//! A cache that speaks memcached's text protocol.

mod phase;
mod reply;
mod request;
mod store;

use std::mem;

use memchr::{memchr, memchr2};
use multiplex::{Application, Chunk, Close, Commands, Cx, HIGH_WATER, Rx, Why};

pub use phase::KvState;
use phase::{Arriving, Phase};
use reply::Out;
use request::{Request, Set, spaces};
use store::{Item, Store};

/// A cache that speaks memcached's text protocol: `get`, `gets`, `set`, `delete`, `version`,
/// `stats`, `quit`.
///
/// Memory is bounded: values that exist and values that are arriving together stay below a limit,
/// and the least recently used make room. A `get` of many values waits for the client to read.
#[derive(Debug)]
pub struct Kv {
    store: Store,
    /// Where replies are put together; kept for its memory.
    reply: Vec<u8>,
}

/// What to do after a step.
#[derive(PartialEq, Eq)]
enum Next {
    Step,
    /// More bytes are needed.
    Wait,
    Close(Close),
}

const LINE_END: &[u8] = b"\r\n";

impl Kv {
    /// The longest key in bytes.
    pub const MAX_KEY: usize = 250;
    /// The longest value in bytes.
    pub const MAX_VALUE: usize = 1 << 20;
    /// A line that is longer, and does not begin with `get`, ends the connection.
    pub const MAX_LINE: usize = 2048;
    /// Values up to this size are copied behind their header: one small copy costs less than
    /// handing over a reference.
    const COPIED: usize = 1024;

    /// A cache that keeps at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Kv { store: Store::new(limit), reply: Vec::new() }
    }

    fn step<C: Commands>(&mut self, out: &mut Out<'_, C>, at: &mut Phase, rx: &mut Rx<'_>) -> Next {
        match at {
            Phase::Line => self.line(out, at, rx),
            Phase::Get { unique, any } => match self.key(out, *unique, any, rx) {
                Ok(next) => next,
                Err(then) => {
                    *at = then;
                    Next::Step
                }
            },
            Phase::Value(value) => {
                let done = value.fill(rx);
                self.next_line(done, out, at)
            }
            Phase::Swallow(left) => {
                let done = phase::swallow(left, rx);
                self.next_line(done, out, at)
            }
            Phase::SkipLine => self.next_line(phase::skip_line(rx), out, at),
        }
    }

    /// Goes on with the next line once the current phase is done.
    fn next_line<C: Commands>(&mut self, done: bool, out: &mut Out<'_, C>, at: &mut Phase) -> Next {
        if !done {
            return Next::Wait;
        }
        if let Phase::Value(value) = mem::take(at) {
            self.arrived(out, value);
        }
        Next::Step
    }

    fn line<C: Commands>(&mut self, out: &mut Out<'_, C>, at: &mut Phase, rx: &mut Rx<'_>) -> Next {
        rx.consume(spaces(rx.bytes()));
        for (word, unique) in [(&b"get "[..], false), (b"gets ", true)] {
            if rx.bytes().starts_with(word) {
                rx.consume(word.len());
                *at = Phase::Get { unique, any: false };
                return Next::Step;
            }
        }
        let within = &rx.bytes()[..rx.bytes().len().min(Self::MAX_LINE)];
        let Some(end) = memchr(b'\n', within) else {
            let over = within.len() == Self::MAX_LINE;
            return if over { Next::Close(Close::Linger) } else { Next::Wait };
        };
        let line = within[..end].strip_suffix(b"\r").unwrap_or(&within[..end]);
        let next = self.command(out, at, Request::parse(line));
        rx.consume(end + 1);
        next
    }

    fn command<C: Commands>(
        &mut self,
        out: &mut Out<'_, C>,
        at: &mut Phase,
        request: Request,
    ) -> Next {
        match request {
            Request::Set(set) => *at = self.set(out, set),
            Request::Delete { key, quiet } => {
                let found = self.store.remove(&key, out.io.now());
                out.say_unless(quiet, if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Request::Version => {
                out.say(concat!("VERSION ", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes());
            }
            Request::Stats => {
                let stats = self.store.stats();
                out.copy(stats.as_bytes());
            }
            Request::Quit => return Next::Close(Close::Linger),
            Request::Wrong { reply, quiet } => out.say_unless(quiet, reply),
        }
        Next::Step
    }

    /// Prepares for the bytes of a value.
    fn set<C: Commands>(&mut self, out: &mut Out<'_, C>, set: Set) -> Phase {
        let with_end = set.len + LINE_END.len();
        if set.len > Self::MAX_VALUE || !self.store.reserve(Store::cost(&set.key, with_end)) {
            // The old value must not outlive a set that failed.
            self.store.remove(&set.key, out.io.now());
            let large = set.len > Self::MAX_VALUE;
            out.say_unless(
                set.quiet,
                if large {
                    b"SERVER_ERROR object too large for cache\r\n"
                } else {
                    b"SERVER_ERROR out of memory storing object\r\n"
                },
            );
            return Phase::Swallow(with_end);
        }
        let expires = set.expires(out.io);
        Phase::Value(Arriving { set, expires, data: Vec::with_capacity(with_end) })
    }

    fn arrived<C: Commands>(
        &mut self,
        out: &mut Out<'_, C>,
        Arriving { set, expires, data }: Arriving,
    ) {
        if data.ends_with(LINE_END) {
            self.store.insert(set.key, Item::new(set.flags, expires, data.into()));
            out.say_unless(set.quiet, b"STORED\r\n");
        } else {
            self.store.release(Store::cost(&set.key, data.len()));
            out.say_unless(set.quiet, b"CLIENT_ERROR bad data chunk\r\n");
        }
    }

    /// Answers the next key of a `get`; an error is where to go when there is none.
    fn key<C: Commands>(
        &mut self,
        out: &mut Out<'_, C>,
        unique: bool,
        any: &mut bool,
        rx: &mut Rx<'_>,
    ) -> Result<Next, Phase> {
        rx.consume(spaces(rx.bytes()));
        let Some(end) = memchr2(b' ', b'\n', rx.bytes()) else {
            // One more may be the first half of a line end.
            let over = rx.bytes().len() > Self::MAX_KEY + 1;
            return if over { Err(Self::long_key(out)) } else { Ok(Next::Wait) };
        };
        let last = rx.bytes()[end] == b'\n';
        let word = &rx.bytes()[..end];
        let key = if last { word.strip_suffix(b"\r").unwrap_or(word) } else { word };
        if key.len() > Self::MAX_KEY {
            return Err(Self::long_key(out));
        }
        *any |= !key.is_empty();
        self.answer(out, key, unique);
        rx.consume(end + 1);
        if !last {
            return Ok(Next::Step);
        }
        out.say(if *any { b"END\r\n" } else { request::ERROR });
        Err(Phase::Line)
    }

    fn long_key<C: Commands>(out: &mut Out<'_, C>) -> Phase {
        out.say(request::BAD_FORMAT);
        Phase::SkipLine
    }

    fn answer<C: Commands>(&mut self, out: &mut Out<'_, C>, key: &[u8], unique: bool) {
        let Some(item) = self.store.get(key, out.io.now()) else { return };
        self.reply.clear();
        item.write_header(&mut self.reply, key, unique);
        if item.data.len() <= Self::COPIED {
            self.reply.extend_from_slice(&item.data);
            out.copy(&self.reply);
        } else {
            out.copy(&self.reply);
            out.send(Chunk::Shared(item.data.clone()));
        }
    }
}

impl Application for Kv {
    type State = KvState;
    const MAX_UNCONSUMED: usize = Self::MAX_LINE + 1;

    fn received(&mut self, x: Cx<'_, impl Commands, KvState>, rx: &mut Rx<'_>) {
        let mut out = Out { io: x.io, id: x.id, queued: 0 };
        let mut next = Next::Step;
        while next == Next::Step && !rx.bytes().is_empty() {
            if out.queued >= HIGH_WATER {
                return out.io.receive(x.id, false);
            }
            next = self.step(&mut out, &mut x.state.0, rx);
        }
        match next {
            Next::Close(how) => out.io.close(x.id, how),
            _ if rx.eof() || out.io.stopping() && x.state.is_idle() => {
                out.io.close(x.id, Close::Flush)
            }
            _ => {}
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, KvState>) {
        x.io.receive(x.id, true);
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, KvState>) {
        if x.state.is_idle() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, KvState>, _: Why) {
        if let Phase::Value(value) = &x.state.0 {
            self.store.release(Store::cost(&value.set.key, value.set.len + LINE_END.len()));
        }
    }
}
