//! What becomes of a head that is not a whole and sound one.

use crate::Limits;
use crate::request::{MEMORY, Parsed};
use crate::status::Status;

/// What a head is that is broken, incomplete or too long.
///
/// Bytes are judged in their order, as if they came one by one. A bound is at a place: what lies
/// beyond it is not looked at, and what lies before it has been, so a mistake counts before the bound
/// exactly if it is before it.
///
/// - The first line, which begins behind empty ones, is too long if its end is not among its first
///   [`Limits::max_request_line_bytes`] bytes: 501 if its method alone is so long (RFC 9112, section 3), else 414.
/// - The head is too long if its end is not among the first [`Limits::max_head_bytes`] bytes: 431.
/// - More fields than [`Limits::max_headers`] are too many where the first of them begins: 431.
/// - A version that is not spoken here counts where its line ends: 505 if it is one, else 400.
/// - What is wrong otherwise is 400, where it is: but what `httparse` lets pass and `request` does not,
///   such as a bare LF or a wrong Host, where the head ends.
#[cold]
pub(crate) fn classify_head<'h, 'a>(bytes: &'a [u8], limits: &Limits) -> Parsed<'h, 'a> {
    let (within, bound) = before_limit(bytes, limits);
    let mut memory = MEMORY;
    let fields = &mut memory[..limits.max_headers.min(Limits::MAX_HEADERS)];
    match httparse::Request::new(&mut []).parse_with_uninit_headers(within, fields) {
        Err(httparse::Error::TooManyHeaders) => Parsed::Refused(Status::HEAD),
        Err(httparse::Error::Version) => {
            let start = start_of_line(within);
            let end = memchr::memchr(b'\n', &within[start..]);
            match end.map(|end| version(&within[start..][..end])) {
                // The whole line decides.
                None => bound.map_or(Parsed::Partial, Parsed::Refused),
                Some(Some([b'1', _])) => {
                    let digit = start + end.unwrap_or_default() - b"2\r".len();
                    Parsed::LaterMinor(digit)
                }
                Some(Some(_)) => Parsed::Refused(Status::VERSION),
                Some(None) => Parsed::Refused(Status::BAD_REQUEST),
            }
        }
        Err(_) => Parsed::Refused(Status::BAD_REQUEST),
        // Complete within its bounds, it would not be here but for a line that ends in a bare LF.
        Ok(httparse::Status::Complete(_)) => Parsed::Refused(Status::BAD_REQUEST),
        Ok(httparse::Status::Partial) => bound.map_or(Parsed::Partial, Parsed::Refused),
    }
}

/// The bytes before the first bound that they reach, and what a head is that does so.
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

/// Where the first line begins that is not empty.
pub(crate) fn start_of_line(bytes: &[u8]) -> usize {
    bytes.chunks(2).take_while(|line| line == b"\r\n").count() * 2
}

/// The bytes with the minor version that is at `digit` replaced by that of HTTP/1.1.
#[cold]
pub(crate) fn as_http_1_1(bytes: &[u8], digit: usize) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    copy[digit] = b'1';
    copy
}

/// The digits of the version at the end of a request line, which has three words and, as its LF is not
/// with it, ends in CR.
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
