//! Preconditions: what a client has already, and what it expects to find (RFC 9110, section 13).

use std::time::{Duration, SystemTime};

use evring::Metadata;

use crate::coding::Coding;
use crate::request::Request;

/// What tells one state of a file from any other, as far as that can be told.
///
/// The contents of a file change with its change time (ctime), which no program can set: a write, a
/// truncation and a restored modification time all move it to the kernel's clock. That clock ticks,
/// so a change may have the same time as one before it, if both come within [`Validators::TICK`]. A
/// link or a name may also lead to another file meanwhile, which its inode tells.
///
/// So the entity tag of a file whose change time was a tick ago as it was opened, before it is read,
/// stands for one state: what is read from then on is either the last of all states with that change
/// time, or a later state with another one. Before that, a tag is made for one reply only, and never
/// equals a later one.
///
/// Last-Modified is the modification time, as users expect. It has seconds only, and tools restore it, so
/// it is a weak validator (RFC 9110, section 8.8.2.2): clients that know the tag, which is always sent
/// with it, must prefer that. A range is resumed by the date only when the file has not changed since
/// that second, which must be over.
///
/// A reply from memory is no older than [`Limits::cache_ttl`](crate::Limits::cache_ttl), as for
/// a request without conditions. A file may have changed between its opening and its reading, or while
/// it is sent, so If-Range is believed only when the file was asked about again. What no server can
/// tell: that a file is being written in place as it is sent, and writes to mapped memory that the
/// kernel has not noted yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Validators {
    /// The entity tag, quoted: a strong one.
    pub(crate) etag: Option<String>,
    /// Last-Modified.
    pub(crate) modified: Option<SystemTime>,
    /// Whether the tag stands for this state of the file, and not for one reply.
    pub(crate) is_settled: bool,
    /// Whether the second of the last change is over.
    pub(crate) is_dated: bool,
    /// Whether nothing has changed since the second that `modified` tells.
    pub(crate) resumes_by_date: bool,
}

/// What follows from the preconditions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreconditionResult {
    /// The request is to be carried out.
    Proceed,
    /// The client has the file as it is now: 304.
    NotModified,
    /// The file is not as the client expects: 412.
    Failed,
}

impl Validators {
    /// Longer than a tick of the kernel's clock for the times of files: 1 to 10 ms.
    const TICK: Duration = Duration::from_millis(20);

    /// Those of a file in a coding, which was opened at the time `wall` and not read yet.
    pub(crate) fn of(meta: &Metadata, coding: Option<Coding>, wall: SystemTime) -> Self {
        let settled = meta.changed() + Self::TICK;
        let is_settled = settled <= wall;
        let Metadata { len, changed_ns, modified_ns, inode, .. } = meta;
        let extension = coding.map_or("", Coding::extension);
        // Nothing, in general; a file system without change times has these.
        let ago = changed_ns.wrapping_sub(*modified_ns);
        let since =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let once =
            if is_settled { String::new() } else { format!("-{:x}", since(wall).as_nanos()) };
        let etag = format!("\"{inode:x}-{changed_ns:x}-{ago:x}-{len:x}{once}{extension}\"");
        // No date lies ahead (RFC 9110, section 8.8.2.1).
        let seconds = since(meta.modified().min(wall)).as_secs();
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let is_dated = next_second(settled) <= wall;
        Validators {
            etag: Some(etag),
            modified: Some(modified),
            is_settled,
            is_dated,
            resumes_by_date: is_dated && meta.changed() < modified + Duration::from_secs(1),
        }
    }

    /// Weighs the preconditions of a GET or HEAD, in the order of RFC 9110, section 13.2.2.
    pub(crate) fn evaluate(&self, request: &Request<'_, '_>) -> PreconditionResult {
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

    /// The Range field, if If-Range lets it count.
    pub(crate) fn range<'a>(&self, request: &Request<'_, 'a>) -> Option<&'a [u8]> {
        let range = request.one("range")?;
        if !request.has("if-range") {
            return Some(range);
        }
        let wanted = request.one("if-range")?;
        let same = match wanted.first() {
            Some(b'"') => self.is_tag(wanted),
            _ => self.resumes_by_date && date(wanted) == self.modified,
        };
        same.then_some(range)
    }

    /// Whether a list of entity tags has this one, or all of them. Weak tags stand for what is
    /// as good, which counts when `weakly` compared.
    fn is_listed<'a>(&self, mut fields: impl Iterator<Item = &'a [u8]>, weakly: bool) -> bool {
        fields.any(|field| {
            field.trim_ascii() == b"*"
                || tags(field).any(|(weak, tag)| (weakly || !weak) && self.is_tag(tag))
        })
    }

    fn is_tag(&self, tag: &[u8]) -> bool {
        self.etag.as_ref().is_some_and(|etag| etag.as_bytes() == tag)
    }
}

/// The first whole second at a time or after it, as HTTP's dates have them.
fn next_second(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() + u64::from(since.subsec_nanos() > 0);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// A date in one of HTTP's three forms.
fn date(field: &[u8]) -> Option<SystemTime> {
    httpdate::parse_http_date(std::str::from_utf8(field).ok()?).ok()
}

/// The entity tags of a list, each with whether it is weak. What follows a broken one is left out.
fn tags(mut list: &[u8]) -> impl Iterator<Item = (bool, &[u8])> {
    std::iter::from_fn(move || {
        while let [b' ' | b'\t' | b',', rest @ ..] = list {
            list = rest;
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
