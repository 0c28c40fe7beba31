//! Preconditions and validators (RFC 9110, section 13).

use std::time::{Duration, SystemTime};

use evring::files::Metadata;

use crate::decision::coding::Coding;
use crate::message::request::RequestHead;

/// Validators of a file: they identify one state of it as precisely as its metadata allows.
///
/// A file's contents change together with its change time (ctime), which no program can set: a write, a
/// truncation and a restored modification time all set it to the kernel's clock. That clock has
/// ticks, so two changes within [`Validators::TICK`] may have the same change time. A path may
/// also lead to another file later, which the inode shows.
///
/// If the change time of a file was at least a tick ago when it was opened, its entity tag
/// identifies one state. The bytes read are either of the last state with that change
/// time, or of a later state with another one. Otherwise the tag is unique to one response and never
/// equals a later one.
///
/// Copies of a file on several servers have different tags, as they have inodes and change times of their own. A tag of
/// modification time and size alone would be equal for different contents after a tool restored the time.
///
/// Last-Modified is the modification time, as users expect. It has a resolution of one second, and
/// tools restore it, so it is a weak validator (RFC 9110, section 8.8.2.2). Every response that has it
/// also has the entity tag, which clients must prefer. A range is resumed by date only if that
/// second is over and the file has not changed since.
///
/// A response from memory is at most [`Limits::cache_ttl`](crate::options::Limits::cache_ttl) old, as for a
/// request without conditions. A file may change after it is opened, while it is read or sent, so
/// If-Range makes the server stat the file again. Two things remain undetected: a write in place
/// while the file is sent, and writes to mapped memory that the kernel has not noticed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Validators {
    /// The entity tag, with quotes, without the prefix of weak ones.
    pub(crate) etag: Option<String>,
    /// Whether the tag identifies the content, but not its bytes: another version of the server may compress
    /// it to other ones.
    pub(crate) is_weak: bool,
    pub(crate) modified: Option<SystemTime>,
    /// Whether the tag identifies this state of the file, not only one response.
    pub(crate) is_stable: bool,
    /// Whether the second of the last change is over.
    pub(crate) is_dated: bool,
    /// Whether the file has not changed since the second of `modified`.
    pub(crate) resumes_by_date: bool,
}

/// The result of evaluating preconditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreconditionResult {
    Proceed,
    /// The client's copy is current: 304.
    NotModified,
    /// A precondition is false: 412.
    Failed,
}

impl Validators {
    /// Longer than a tick of the kernel's clock for file times, which is 1 to 10 ms.
    const TICK: Duration = Duration::from_millis(20);

    /// Returns the validators of a file in a coding; it was opened at `wall`, with this metadata, and not read before.
    pub(crate) fn of(meta: &Metadata, coding: Option<Coding>, wall: SystemTime) -> Self {
        let stable_at = meta.changed() + Self::TICK;
        let is_stable = stable_at <= wall;
        let Metadata { len, changed_ns, modified_ns, inode, .. } = meta;
        let extension = coding.map_or("", Coding::extension);
        // Usually 0. File systems without change times need the modification time.
        let change_delay = changed_ns.wrapping_sub(*modified_ns);
        let since =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let nonce =
            if is_stable { String::new() } else { format!("-{:x}", since(wall).as_nanos()) };
        let etag =
            format!("\"{inode:x}-{changed_ns:x}-{change_delay:x}-{len:x}{nonce}{extension}\"");
        // Last-Modified must not be in the future (RFC 9110, section 8.8.2.1).
        let seconds = since(meta.modified().min(wall)).as_secs();
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let is_dated = next_second(stable_at) <= wall;
        Validators {
            etag: Some(etag),
            is_weak: false,
            modified: Some(modified),
            is_stable,
            is_dated,
            resumes_by_date: is_dated && meta.changed() < modified + Duration::from_secs(1),
        }
    }

    /// Returns the validators of the file's content as the server compresses it.
    #[cfg(feature = "compression")]
    pub(crate) fn of_compressed(self) -> Self {
        Validators { is_weak: true, resumes_by_date: false, ..self }
    }

    /// Returns whether parts of the content are sent: the bytes that the tag identifies may differ otherwise.
    pub(crate) fn has_ranges(&self) -> bool {
        !self.is_weak
    }

    /// Evaluates the preconditions of a GET or HEAD, in the order of RFC 9110, section 13.2.2.
    pub(crate) fn evaluate(&self, request: &RequestHead<'_>) -> PreconditionResult {
        if request.has("if-match") {
            if !self.is_listed(request.all("if-match"), false) {
                return PreconditionResult::Failed;
            }
        } else if let Some(time) = request.one("if-unmodified-since").and_then(date)
            && self.modified.is_none_or(|modified| modified > time)
        {
            return PreconditionResult::Failed;
        }
        if request.has("if-none-match") {
            if self.is_listed(request.all("if-none-match"), true) {
                return PreconditionResult::NotModified;
            }
        } else if let Some(time) = request.one("if-modified-since").and_then(date)
            && self.modified.is_some_and(|modified| modified <= time)
        {
            return PreconditionResult::NotModified;
        }
        PreconditionResult::Proceed
    }

    /// Returns the Range field, unless If-Range disables it.
    pub(crate) fn range<'a>(&self, request: &RequestHead<'a>) -> Option<&'a [u8]> {
        let range = request.one("range")?;
        if !request.has("if-range") {
            return Some(range);
        }
        let validator = request.one("if-range")?;
        let same = match validator.first() {
            Some(b'"') => !self.is_weak && self.is_tag(validator),
            _ => self.resumes_by_date && date(validator) == self.modified,
        };
        same.then_some(range)
    }

    /// Returns whether a list of entity tags contains this one or is `*`. Weak tags match only in
    /// a weak comparison (RFC 9110, section 8.8.3.2).
    fn is_listed<'a>(
        &self,
        mut fields: impl Iterator<Item = &'a [u8]>,
        weak_comparison: bool,
    ) -> bool {
        fields.any(|field| {
            field.trim_ascii() == b"*"
                || tags(field).any(|(weak, tag)| {
                    (weak_comparison || !(weak || self.is_weak)) && self.is_tag(tag)
                })
        })
    }

    fn is_tag(&self, tag: &[u8]) -> bool {
        self.etag.as_ref().is_some_and(|etag| etag.as_bytes() == tag)
    }
}

/// Rounds a time up to a whole second, the resolution of HTTP dates.
fn next_second(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() + u64::from(since.subsec_nanos() > 0);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Parses a date in one of HTTP's three formats.
fn date(field: &[u8]) -> Option<SystemTime> {
    httpdate::parse_http_date(std::str::from_utf8(field).ok()?).ok()
}

/// Iterates over the entity tags of a list as (is weak, tag), up to the first malformed one.
fn tags(mut list: &[u8]) -> impl Iterator<Item = (bool, &[u8])> {
    std::iter::from_fn(move || {
        while let [b' ' | b'\t' | b',', tail @ ..] = list {
            list = tail;
        }
        let (weak, tag) = match list.strip_prefix(b"W/") {
            Some(tag) => (true, tag),
            None => (false, list),
        };
        let inner = tag.strip_prefix(b"\"")?;
        let end = memchr::memchr(b'"', inner)? + 2;
        list = &tag[end..];
        Some((weak, &tag[..end]))
    })
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
