//! Where a connection stands between two requests, or within one.

use std::time::Instant;

use memchr::memchr;
use multiplex::Rx;

use super::LINE_END;
use super::request::Set;

/// What a connection to [`Kv`](crate::Kv) is in the middle of.
#[derive(Debug, Default)]
pub struct KvState(pub(super) Phase);

impl KvState {
    /// Whether it is between two requests.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.0, Phase::Line)
    }
}

#[derive(Debug, Default)]
pub(super) enum Phase {
    /// A line with a command comes next.
    #[default]
    Line,
    /// Keys come next, up to the end of the line. They are answered one by one, so that a line
    /// may name more values than there is memory to queue.
    Get { unique: bool, any: bool },
    /// The bytes of a value come next.
    Value(Arriving),
    /// So many bytes are of no use.
    Swallow(usize),
    /// The rest of the line is of no use.
    SkipLine,
}

/// A value on its way in.
#[derive(Debug)]
pub(super) struct Arriving {
    pub set: Set,
    pub expires: Option<Instant>,
    /// What has come so far, to be followed by a line end.
    pub data: Vec<u8>,
}

impl Arriving {
    /// Takes the bytes that are missing, as far as they are there; says whether it has all.
    pub(super) fn fill(&mut self, rx: &mut Rx<'_>) -> bool {
        let mut missing = self.set.len + LINE_END.len() - self.data.len();
        let n = missing.min(rx.bytes().len());
        self.data.extend_from_slice(&rx.bytes()[..n]);
        swallow(&mut missing, rx)
    }
}

/// Drops bytes as far as they are there; says whether all were.
pub(super) fn swallow(left: &mut usize, rx: &mut Rx<'_>) -> bool {
    let n = rx.bytes().len().min(*left);
    rx.consume(n);
    *left -= n;
    *left == 0
}

/// Drops bytes up to the end of the line; says whether it was there.
pub(super) fn skip_line(rx: &mut Rx<'_>) -> bool {
    let end = memchr(b'\n', rx.bytes());
    rx.consume(end.map_or(rx.bytes().len(), |end| end + 1));
    end.is_some()
}
