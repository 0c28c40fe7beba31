//! Checks that what a handler in a sandbox sends is one response, so that it cannot forge the next one of the
//! connection, which a proxy may share among clients (RFC 9112, section 11.1).

use std::fmt;

use crate::message::split::{next_field, status_line};
use crate::site::responses::has_close;

/// Maximum size of the head of a handler's response in bytes.
pub(crate) const MAX_HEAD_BYTES: usize = 8192;

/// A response, and what it has of the fields that the server adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckedResponse {
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
    /// Length of its status line in bytes.
    pub(crate) line_bytes: usize,
    pub(crate) has_date: bool,
    pub(crate) has_server: bool,
    /// It ends the connection.
    pub(crate) closes: bool,
}

/// Why bytes are not one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    StatusLine,
    /// A status with which no response ends, or that there is not.
    Status(u16),
    Field,
    TransferEncoding,
    ContentLength,
    /// The declared length, if there is one, and the number of bytes behind the head.
    Body(Option<u64>, u64),
    /// The status permits no body, or no declared length.
    BodyNotPermitted(u16),
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalid::StatusLine => {
                f.write_str("it does not begin with a status line, such as `HTTP/1.1 200 OK`")
            }
            Invalid::Status(status) => write!(f, "{status} is no final status, of 200 to 599"),
            Invalid::Field => write!(
                f,
                "a field line is malformed, or no empty line ends the head within {MAX_HEAD_BYTES} bytes"
            ),
            Invalid::TransferEncoding => f.write_str(
                "it has Transfer-Encoding; send the body as it is, with its Content-Length",
            ),
            Invalid::ContentLength => {
                f.write_str("it has several Content-Length, or one that is no number")
            }
            Invalid::Body(Some(declared), sent) => {
                write!(f, "its Content-Length is {declared}, and its body has {sent} bytes")
            }
            Invalid::Body(None, sent) => {
                write!(f, "it has no Content-Length for its body of {sent} bytes")
            }
            Invalid::BodyNotPermitted(status) => {
                write!(
                    f,
                    "a response with the status {status} has no body, and 204 no Content-Length"
                )
            }
        }
    }
}

/// Checks pieces that are sent one behind another. `memory`, which has room for a head, takes one that lies in several
/// pieces.
pub(crate) fn check<'a>(
    pieces: impl Iterator<Item = &'a [u8]> + Clone,
    memory: &mut Vec<u8>,
) -> Result<CheckedResponse, Invalid> {
    let all = pieces.clone().map(|piece| piece.len() as u64).sum::<u64>();
    let first = pieces.clone().next().unwrap_or_default();
    let head = match ResponseHead::parse(&first[..first.len().min(MAX_HEAD_BYTES)]) {
        Err(_) if all > first.len() as u64 => {
            memory.clear();
            for piece in pieces {
                memory.extend_from_slice(&piece[..piece.len().min(MAX_HEAD_BYTES - memory.len())]);
            }
            ResponseHead::parse(memory)?
        }
        head => head?,
    };
    head.with_body(all - head.len as u64)
}

struct ResponseHead {
    /// Without the length of the body.
    response: CheckedResponse,
    content_length: Option<u64>,
    len: usize,
}

impl ResponseHead {
    fn parse(bytes: &[u8]) -> Result<ResponseHead, Invalid> {
        let (status, line_bytes) = status_line(bytes).ok_or(Invalid::StatusLine)?;
        // 101 switches to another protocol, and behind the others follows another response.
        if !(200..=599).contains(&status) {
            return Err(Invalid::Status(status));
        }
        let mut response = CheckedResponse {
            status,
            body_bytes: 0,
            line_bytes,
            has_date: false,
            has_server: false,
            closes: false,
        };
        let (mut content_length, mut at) = (None, line_bytes);
        while !bytes[at..].starts_with(b"\r\n") {
            let field = next_field(bytes, at).ok_or(Invalid::Field)?;
            let is = |name: &[u8]| field.name.eq_ignore_ascii_case(name);
            if is(b"Transfer-Encoding") {
                return Err(Invalid::TransferEncoding);
            }
            if is(b"Content-Length") {
                let number = number(field.value).ok_or(Invalid::ContentLength)?;
                if content_length.replace(number).is_some() {
                    return Err(Invalid::ContentLength);
                }
            }
            response.has_date |= is(b"Date");
            response.has_server |= is(b"Server");
            response.closes |= is(b"Connection") && has_close(field.value);
            at = field.end;
        }
        Ok(ResponseHead { response, content_length, len: at + b"\r\n".len() })
    }

    fn with_body(&self, body_bytes: u64) -> Result<CheckedResponse, Invalid> {
        let ResponseHead { response, content_length, .. } = *self;
        let status = response.status;
        let response = CheckedResponse { body_bytes, ..response };
        match status {
            204 if content_length.is_some() => Err(Invalid::BodyNotPermitted(status)),
            // The length that 304 declares is that of another response (RFC 9110, section 8.6).
            204 | 304 if body_bytes > 0 => Err(Invalid::BodyNotPermitted(status)),
            204 | 304 => Ok(response),
            _ if content_length == Some(body_bytes) => Ok(response),
            _ => Err(Invalid::Body(content_length, body_bytes)),
        }
    }
}

/// Returns the value of a field of digits.
fn number(digits: &[u8]) -> Option<u64> {
    let text = str::from_utf8(digits).ok().filter(|_| digits.iter().all(u8::is_ascii_digit));
    text?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(response: &str) -> Result<CheckedResponse, Invalid> {
        let mut memory = Vec::with_capacity(MAX_HEAD_BYTES);
        let whole = check([response.as_bytes()].into_iter(), &mut memory);
        // In two pieces, and with empty ones, it is the same.
        for at in 0..=response.len() {
            let (first, second) = response.as_bytes().split_at(at);
            assert_eq!(
                check([first, b"", second].into_iter(), &mut memory),
                whole,
                "{at}: {response}"
            );
        }
        let bytes = response.as_bytes().chunks(1);
        assert_eq!(check(bytes, &mut memory), whole, "{response}");
        assert_eq!(memory.capacity(), MAX_HEAD_BYTES);
        whole
    }

    #[test]
    fn one_response_is_accepted() {
        for (response, status, body_bytes) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, 5),
            ("HTTP/1.1 404 \r\ncontent-length:0\r\n\r\n", 404, 0),
            ("HTTP/1.1 204 No Content\r\n\r\n", 204, 0),
            ("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n", 304, 0),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, 0),
            ("HTTP/1.1 200 ä\tb\r\nA: ä\r\nContent-Length: 2\t\r\n\r\n\r\n", 200, 2),
        ] {
            let found = checked(response).map(|found| (found.status, found.body_bytes));
            assert_eq!(found, Ok((status, body_bytes)), "{response}");
        }
    }

    #[test]
    fn fields_that_the_server_adds_are_found() {
        for (fields, expected) in [
            ("", (false, false, false)),
            ("date: a\r\nX-Server: b\r\n", (true, false, false)),
            ("Server: a\r\nConnection: keep-alive\r\n", (false, true, false)),
            ("Connection: a, Close\r\n", (false, false, true)),
        ] {
            let response = format!("HTTP/1.1 204 No Content\r\n{fields}\r\n");
            let found = checked(&response).unwrap();
            assert_eq!((found.has_date, found.has_server, found.closes), expected, "{fields}");
            assert_eq!(found.line_bytes, "HTTP/1.1 204 No Content\r\n".len());
        }
    }

    #[test]
    fn forgeries_are_rejected() {
        const NEXT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
        for (response, reason) in [
            (String::new(), Invalid::StatusLine),
            ("hello".into(), Invalid::StatusLine),
            ("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n".into(), Invalid::StatusLine),
            ("HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n".into(), Invalid::StatusLine),
            ("HTTP/1.1 200 O\nK\r\nContent-Length: 0\r\n\r\n".into(), Invalid::StatusLine),
            ("HTTP/1.1 200 O\rK\r\nContent-Length: 0\r\n\r\n".into(), Invalid::StatusLine),
            (format!("HTTP/1.1 100 Continue\r\n\r\n{NEXT}"), Invalid::Status(100)),
            (format!("HTTP/1.1 103 Early Hints\r\n\r\n{NEXT}"), Invalid::Status(103)),
            ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\n\r\n".into(), Invalid::Status(101)),
            ("HTTP/1.1 600 A\r\nContent-Length: 0\r\n\r\n".into(), Invalid::Status(600)),
            (format!("{NEXT}{NEXT}"), Invalid::Body(Some(4), 4 + NEXT.len() as u64)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort".into(), Invalid::Body(Some(9), 5)),
            ("HTTP/1.1 200 OK\r\n\r\nuntil the end".into(), Invalid::Body(None, 13)),
            ("HTTP/1.1 200 OK\r\n\r\n".into(), Invalid::Body(None, 0)),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na".into(),
                Invalid::ContentLength,
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\na".into(), Invalid::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na".into(), Invalid::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n".into(), Invalid::ContentLength),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(),
                Invalid::TransferEncoding,
            ),
            ("HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n\r\n".into(), Invalid::Field),
            ("HTTP/1.1 200 OK\r\nA: b\rc\r\nContent-Length: 0\r\n\r\n".into(), Invalid::Field),
            ("HTTP/1.1 200 OK\r\nA : b\r\nContent-Length: 0\r\n\r\n".into(), Invalid::Field),
            ("HTTP/1.1 200 OK\r\n folded\r\nContent-Length: 0\r\n\r\n".into(), Invalid::Field),
            ("HTTP/1.1 200 OK\r\nA: \0\r\nContent-Length: 0\r\n\r\n".into(), Invalid::Field),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n".into(), Invalid::Field),
            (format!("HTTP/1.1 204 No Content\r\n\r\n{NEXT}"), Invalid::BodyNotPermitted(204)),
            (
                "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n".into(),
                Invalid::BodyNotPermitted(204),
            ),
            (
                "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\nevil".into(),
                Invalid::BodyNotPermitted(304),
            ),
        ] {
            assert_eq!(checked(&response), Err(reason), "{response}");
        }
    }

    #[test]
    fn head_is_bounded() {
        let long = |bytes| {
            let rest = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nA: \r\n\r\n".len();
            let value = "a".repeat(bytes - rest);
            format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nA: {value}\r\n\r\nb")
        };
        let of = |response: &str| {
            let found = check([response.as_bytes()].into_iter(), &mut Vec::new());
            found.map(|found| (found.status, found.body_bytes))
        };
        assert_eq!(of(&long(MAX_HEAD_BYTES)), Ok((200, 1)));
        assert_eq!(of(&long(MAX_HEAD_BYTES + 1)), Err(Invalid::Field));
    }
}
