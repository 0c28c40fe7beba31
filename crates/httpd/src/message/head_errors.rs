//! Classification of heads that are malformed, incomplete or too long.

use std::mem::MaybeUninit;

use crate::limits::Limits;
use crate::message::status::Status;

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRequest {
    /// The head is incomplete.
    Partial,
    /// The head is invalid. The response has this status, then the connection closes.
    Rejected(Status),
}

/// The class of a head that is not one of HTTP/1.1 or 1.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Classified {
    NoRequest(NoRequest),
    /// A request line with a later minor version of HTTP/1; the value is the offset of the digit.
    LaterMinor(usize),
}

impl Classified {
    pub(crate) const fn rejected(status: Status) -> Self {
        Classified::NoRequest(NoRequest::Rejected(status))
    }
}

/// Classifies a head that is malformed, incomplete or too long.
///
/// The result is the same as if the bytes arrived one at a time. Each limit corresponds to a position.
/// Errors before that position take precedence over the limit; bytes after it are ignored.
///
/// - The request line starts after leading empty lines. It is too long if it does not end within
///   [`Limits::max_request_line_bytes`] bytes: 501 if the method alone is that long (RFC 9112, section
///   3), else 414.
/// - The head is too long if it does not end within [`Limits::max_head_bytes`] bytes: 431.
/// - There are too many fields where the first one beyond [`Limits::max_headers`] begins: 431.
/// - An unsupported version takes effect at the end of its line: 505 if it is well-formed, else 400.
/// - Other errors are 400 at their position. Errors that `httparse` accepts and `request` rejects, such
///   as a bare LF or an invalid Host, take effect at the end of the head.
#[cold]
pub(crate) fn classify_head(bytes: &[u8], limits: &Limits) -> Classified {
    const PARTIAL: Classified = Classified::NoRequest(NoRequest::Partial);
    let (within, bound) = before_limit(bytes, limits);
    let mut memory = [const { MaybeUninit::uninit() }; Limits::MAX_HEADERS];
    let fields = &mut memory[..limits.max_headers.min(Limits::MAX_HEADERS)];
    match httparse::Request::new(&mut []).parse_with_uninit_headers(within, fields) {
        Err(httparse::Error::TooManyHeaders) => Classified::rejected(Status::HEAD),
        Err(httparse::Error::Version) => {
            let start = start_of_line(within);
            let end = memchr::memchr(b'\n', &within[start..]);
            match end.map(|end| version(&within[start..][..end])) {
                // The version is known at the end of the line.
                None => bound.map_or(PARTIAL, Classified::rejected),
                Some(Some([b'1', _])) => {
                    let digit = start + end.unwrap_or_default() - b"2\r".len();
                    Classified::LaterMinor(digit)
                }
                Some(Some(_)) => Classified::rejected(Status::VERSION),
                Some(None) => Classified::rejected(Status::BAD_REQUEST),
            }
        }
        Err(_) => Classified::rejected(Status::BAD_REQUEST),
        // A complete head within the limits gets here only if a line ends in a bare LF.
        Ok(httparse::Status::Complete(_)) => Classified::rejected(Status::BAD_REQUEST),
        Ok(httparse::Status::Partial) => bound.map_or(PARTIAL, Classified::rejected),
    }
}

/// Returns the bytes before the first limit that is reached, and the status for reaching it.
fn before_limit<'a>(bytes: &'a [u8], limits: &Limits) -> (&'a [u8], Option<Status>) {
    let start = start_of_line(bytes);
    let line = &bytes[start..];
    let line = &line[..line.len().min(limits.max_request_line_bytes)];
    let is_long =
        line.len() == limits.max_request_line_bytes && memchr::memchr(b'\n', line).is_none();
    if is_long && start + limits.max_request_line_bytes <= limits.max_head_bytes {
        let status = match memchr::memchr(b' ', line) {
            Some(_) => Status::LINE,
            None => Status::NOT_IMPLEMENTED,
        };
        return (&bytes[..start + limits.max_request_line_bytes], Some(status));
    }
    match bytes.split_at_checked(limits.max_head_bytes) {
        Some((head, _)) => (head, Some(Status::HEAD)),
        None => (bytes, None),
    }
}

/// A line without text.
pub(crate) const EMPTY_LINE: &[u8] = b"\r\n";

/// Returns the offset of the first line that is not empty.
pub(crate) fn start_of_line(bytes: &[u8]) -> usize {
    bytes.chunks(2).take_while(|line| *line == EMPTY_LINE).count() * 2
}

/// Returns the version digits of a request line that ends in CR and has three words.
fn version(line: &[u8]) -> Option<[u8; 2]> {
    let mut words = line.split(|b| *b == b' ').skip(2);
    let (version, more) = (words.next().unwrap_or_default(), words.next());
    match version {
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor, b'\r']
            if more.is_none() && major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Some([*major, *minor])
        }
        _ => None,
    }
}
