//! What becomes of a head that is not a whole and sound one.

use crate::Limits;
use crate::request::Parsed;
use crate::status::Status;

/// What an incomplete head is, by its length.
#[cold]
pub(crate) fn partial<'h, 'a>(bytes: &'a [u8], limits: &Limits) -> Parsed<'h, 'a> {
    let start = &bytes[..bytes.len().min(limits.line)];
    if start.len() == limits.line && memchr::memchr(b'\n', start).is_none() {
        return Parsed::Refused(Status::LINE);
    }
    if bytes.len() >= limits.head {
        return Parsed::Refused(Status::HEAD);
    }
    Parsed::Partial
}

/// What a broken head is.
#[cold]
pub(crate) fn refused<'h, 'a>(
    bytes: &'a [u8],
    error: httparse::Error,
    limits: &Limits,
) -> Parsed<'h, 'a> {
    match error {
        httparse::Error::TooManyHeaders => Parsed::Refused(Status::HEAD),
        // A version that is not spoken here, or none at all: the whole line decides.
        httparse::Error::Version => {
            let start = bytes.trim_ascii_start();
            match memchr::memchr(b'\n', start) {
                None => partial(bytes, limits),
                Some(end) if names_a_version(&start[..end]) => Parsed::Refused(Status::VERSION),
                Some(_) => Parsed::Refused(Status::BAD_REQUEST),
            }
        }
        _ => Parsed::Refused(Status::BAD_REQUEST),
    }
}

/// Whether a request line without its LF has three words, the last of them like `HTTP/2.0`.
fn names_a_version(line: &[u8]) -> bool {
    let mut words = line.split(|b| *b == b' ').skip(2);
    let (version, more) = (words.next().unwrap_or_default(), words.next());
    let digits = match version {
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor, b'\r'] => [major, minor],
        _ => return false,
    };
    more.is_none() && digits.iter().all(|digit| digit.is_ascii_digit())
}
