//! Heads of responses that have only a type and bytes.

use crate::decision::options::ResponseOptions;
use crate::message::request::Persistence;
use crate::message::status::Status;
use crate::response::clock::Clock;
use crate::response::head::{begin_head, end_head, put_number};

/// The heads of the last such responses with status 200, by type, so that at most the length has to be written.
#[derive(Debug, Default)]
pub(crate) struct PlainHeads {
    all: Vec<PlainHead>,
    /// The next one to replace.
    oldest: usize,
}

#[derive(Debug)]
struct PlainHead {
    content_type: &'static str,
    /// The head, and then what followed in the last response.
    bytes: Vec<u8>,
    /// Length of the head up to the value of Content-Length.
    before_length: usize,
    /// The length in the head, and that of the whole head, if it has no Connection field.
    whole: Option<(u64, usize)>,
    /// The clock's tick count for the Date in `bytes`.
    ticks: u64,
}

impl PlainHeads {
    const MAX: usize = 8;

    /// Returns the head of a response with `len` bytes.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        content_type: &'static str,
        len: u64,
        options: ResponseOptions,
        clock: &Clock,
    ) -> &mut Vec<u8> {
        let is_current = |head: &PlainHead| {
            std::ptr::eq(head.content_type, content_type) && head.ticks == clock.ticks()
        };
        let at = match self.all.iter().position(is_current) {
            Some(at) => at,
            None => self.write(content_type, clock),
        };
        let head = &mut self.all[at];
        match head.whole {
            Some((length, end)) if length == len && is_implicit(options) => {
                head.bytes.truncate(end);
            }
            _ => head.write_length(len, options),
        }
        &mut head.bytes
    }

    /// Writes a head up to the length, in the place of the one that has the type, or else of the oldest.
    #[cold]
    fn write(&mut self, content_type: &'static str, clock: &Clock) -> usize {
        let has_type = |head: &PlainHead| std::ptr::eq(head.content_type, content_type);
        let at = match self.all.iter().position(has_type) {
            Some(at) => at,
            None if self.all.len() < Self::MAX => {
                self.all.push(PlainHead {
                    content_type,
                    bytes: Vec::new(),
                    before_length: 0,
                    whole: None,
                    ticks: 0,
                });
                self.all.len() - 1
            }
            None => {
                self.oldest = (self.oldest + 1) % Self::MAX;
                self.oldest
            }
        };
        let PlainHead { bytes, .. } = &mut self.all[at];
        bytes.clear();
        begin_head(bytes, Status::OK, clock);
        bytes.extend_from_slice(b"Content-Type: ");
        bytes.extend_from_slice(content_type.as_bytes());
        bytes.extend_from_slice(b"\r\nContent-Length: ");
        let (before_length, bytes) = (bytes.len(), std::mem::take(bytes));
        let ticks = clock.ticks();
        self.all[at] = PlainHead { content_type, bytes, before_length, whole: None, ticks };
        at
    }
}

impl PlainHead {
    fn write_length(&mut self, len: u64, options: ResponseOptions) {
        self.bytes.truncate(self.before_length);
        put_number(&mut self.bytes, len);
        self.bytes.extend_from_slice(b"\r\n");
        end_head(&mut self.bytes, options);
        self.whole = is_implicit(options).then_some((len, self.bytes.len()));
    }
}

/// Returns whether the head has no Connection field.
fn is_implicit(options: ResponseOptions) -> bool {
    options.persistence == Persistence::Implicit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_response_has_its_type_length_and_connection() {
        const TYPES: [&str; 11] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"];
        let (mut heads, clock) = (PlainHeads::default(), Clock::new());
        let last = ResponseOptions::last(true);
        let implicit = ResponseOptions { persistence: Persistence::Implicit, ..last };
        for content_type in TYPES.into_iter().chain(TYPES).chain(["b", "b"]) {
            for (len, options) in
                [(12, implicit), (12, implicit), (3, implicit), (3, last), (3, last)]
            {
                let head = heads.begin(content_type, len, options, &clock);
                let text = std::str::from_utf8(head).unwrap();
                assert!(text.starts_with("HTTP/1.1 200 OK\r\nDate: "), "{text}");
                let close = if is_implicit(options) { "" } else { "Connection: close\r\n" };
                let end = format!(
                    "\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\n{close}\r\n"
                );
                assert!(text.ends_with(&end), "{text}");
                head.extend_from_slice(b"body");
            }
        }
        assert_eq!(heads.all.len(), PlainHeads::MAX);
    }
}
