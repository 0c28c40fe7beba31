//! Preconditions: what a client has already, and what it expects to find (RFC 9110, section 13).

use std::time::{Duration, SystemTime};

use multiplex::Meta;

use crate::coding::Coding;
use crate::request::Request;

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Validators {
    /// The entity tag, quoted: a strong one, made of the time of its last change and its length.
    pub(crate) etag: String,
    /// The last change, to the second.
    pub(crate) modified: SystemTime,
}

/// What follows from the preconditions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request is to be carried out.
    Proceed,
    /// The client has the file as it is now: 304.
    NotModified,
    /// The file is not as the client expects: 412.
    Failed,
}

impl Validators {
    /// Those of a file in a coding at the time `wall`.
    pub(crate) fn of(meta: &Meta, coding: Option<Coding>, wall: SystemTime) -> Self {
        let Meta { len, modified_ns, .. } = meta;
        let extension = coding.map_or("", Coding::extension);
        Validators {
            etag: format!("\"{modified_ns:x}-{len:x}{extension}\""),
            // A time in the future would be a lie about this reply (RFC 9110, section 8.8.2.1).
            modified: whole_seconds(meta.modified().min(wall)),
        }
    }

    /// Weighs the preconditions of a GET or HEAD, in the order of RFC 9110, section 13.2.2.
    pub(crate) fn judge(&self, request: &Request<'_, '_>) -> Verdict {
        if request.has("if-match") {
            if !self.is_listed(request.all("if-match"), false) {
                return Verdict::Failed;
            }
        } else if let Some(time) = request.one("if-unmodified-since").and_then(date)
            && self.modified > time
        {
            return Verdict::Failed;
        }
        if request.has("if-none-match") {
            if self.is_listed(request.all("if-none-match"), true) {
                return Verdict::NotModified;
            }
        } else if let Some(time) = request.one("if-modified-since").and_then(date)
            && self.modified <= time
        {
            return Verdict::NotModified;
        }
        Verdict::Proceed
    }

    /// The Range field, if If-Range lets it count.
    pub(crate) fn range<'a>(&self, request: &Request<'_, 'a>) -> Option<&'a [u8]> {
        let range = request.one("range")?;
        if !request.has("if-range") {
            return Some(range);
        }
        let wanted = request.one("if-range")?;
        let same = match wanted.first() {
            Some(b'"') => wanted == self.etag.as_bytes(),
            _ => date(wanted) == Some(self.modified),
        };
        same.then_some(range)
    }

    /// Whether a list of entity tags has this one, or all of them. Weak tags stand for what is
    /// as good, which counts when `weakly` compared.
    fn is_listed<'a>(&self, mut fields: impl Iterator<Item = &'a [u8]>, weakly: bool) -> bool {
        fields.any(|field| {
            field.trim_ascii() == b"*"
                || tags(field).any(|(weak, tag)| (weakly || !weak) && tag == self.etag.as_bytes())
        })
    }
}

/// Whole seconds, as HTTP's dates have them.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
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
