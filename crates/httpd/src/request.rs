//! Strict parsing of request heads.
//!
//! `httparse` splits a head; this module checks what `httparse` accepts too liberally. Two servers that
//! disagree about the end of a request enable request smuggling (RFC 9112, section 11.2).

use std::mem::MaybeUninit;

use httparse::Header;

use crate::Limits;
use crate::head_errors::classify_head;
use crate::host::is_host;
use crate::status::Status;

/// The result of parsing the bytes at the start of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'h, 'a> {
    /// An incomplete head.
    Partial,
    /// An invalid head. The response has this status, then the connection closes.
    Rejected(Status),
    /// A request line with a later minor version of HTTP/1; the value is the offset of the digit. Such a
    /// request is processed as HTTP/1.1 (RFC 9110, section 6.2): the caller parses a copy with the
    /// digit replaced by 1.
    LaterMinor(usize),
    /// A complete head.
    Request(Request<'h, 'a>),
}

/// Storage for the fields of a request.
pub(crate) type Memory<'a> = [MaybeUninit<Header<'a>>; Limits::MAX_HEADERS];

/// An empty [`Memory`].
pub(crate) const MEMORY: Memory<'_> = [const { MaybeUninit::uninit() }; Limits::MAX_HEADERS];

/// A request's head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'h, 'a> {
    pub(crate) method: Method,
    /// The method's name.
    pub(crate) name: &'a str,
    /// The target as it arrived.
    pub(crate) target: &'a [u8],
    pub(crate) is_http10: bool,
    pub(crate) persistence: Persistence,
    /// How the length of the body is determined.
    pub(crate) framing: Framing,
    pub(crate) expects: Expects,
    /// Whether there are preconditions or a range.
    pub(crate) conditional: bool,
    /// Whether there is an Accept-Encoding field.
    pub(crate) has_accept_encoding: bool,
    pub(crate) fields: &'h [Header<'a>],
    /// The head as it arrived.
    pub(crate) head: &'a [u8],
}

impl<'a> Request<'_, 'a> {
    pub(crate) fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value)
    }

    /// Returns the value of a field that occurs once, else `None`.
    pub(crate) fn one(&self, name: &'static str) -> Option<&'a [u8]> {
        let mut all = self.all(name);
        all.next().filter(|_| all.next().is_none())
    }

    pub(crate) fn has(&self, name: &'static str) -> bool {
        self.all(name).next().is_some()
    }
}

/// How the length of a body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Content-Length; 0 also for no body.
    Length(u64),
    Chunked,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Expects {
    #[default]
    Nothing,
    Continue,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Options,
    /// Another standard method.
    Known,
    Unknown,
}

/// Whether a connection stays open after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// It does, without a Connection field; the default of HTTP/1.1.
    Implicit,
    /// It does, with `Connection: keep-alive`, for HTTP/1.0.
    Explicit,
    /// It closes.
    Close,
}

/// Parses the head of a request at the start of `bytes`.
///
/// The result does not depend on the segmentation of the bytes: if a prefix is rejected, so is every
/// longer input, with the same status. [`classify_head`] ensures that.
#[inline]
pub(crate) fn parse<'h, 'a>(
    bytes: &'a [u8],
    memory: &'h mut Memory<'a>,
    limits: &Limits,
) -> Parsed<'h, 'a> {
    let memory = &mut memory[..limits.max_headers.min(Limits::MAX_HEADERS)];
    let mut head = httparse::Request::new(&mut []);
    let len = match head.parse_with_uninit_headers(bytes, memory) {
        Ok(httparse::Status::Complete(len)) if len <= limits.max_head_bytes => len,
        _ => return classify_head(bytes, limits),
    };
    // A complete head has all three.
    let (Some(name), Some(target), Some(version)) = (head.method, head.path, head.version) else {
        return Parsed::Rejected(Status::BAD_REQUEST);
    };
    let target = target.as_bytes();
    if name.len() + target.len() + b"  HTTP/1.1\r\n".len() > limits.max_request_line_bytes {
        return classify_head(bytes, limits);
    }
    // `httparse` skips empty lines before a request, also those that end in a bare LF.
    let empty_lines = &bytes[..offset(bytes, name)];
    if !empty_lines.chunks(2).all(|line| line == b"\r\n") {
        return Parsed::Rejected(Status::BAD_REQUEST);
    }
    let fields = head.headers;
    let headers = match ParsedHeaders::read(bytes, len, fields) {
        Ok(headers) => headers,
        Err(status) => return Parsed::Rejected(status),
    };
    let is_http10 = version == 0;
    match headers.framing(is_http10) {
        Err(status) => Parsed::Rejected(status),
        Ok(framing) => Parsed::Request(Request {
            method: Method::from(name),
            name,
            target,
            is_http10,
            persistence: headers.persistence(is_http10),
            framing,
            expects: if is_http10 { Expects::Nothing } else { headers.expects },
            conditional: headers.conditional,
            has_accept_encoding: headers.has_accept_encoding,
            fields,
            head: &bytes[..len],
        }),
    }
}

impl From<&str> for Method {
    #[inline]
    fn from(name: &str) -> Self {
        match name {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "OPTIONS" => Method::Options,
            "POST" | "PUT" | "DELETE" | "CONNECT" | "TRACE" | "PATCH" => Method::Known,
            _ => Method::Unknown,
        }
    }
}

/// The header fields that are relevant to every request.
#[derive(Default)]
struct ParsedHeaders {
    has_host: bool,
    length: Option<u64>,
    coding: Coding,
    close: bool,
    keep_alive: bool,
    expects: Expects,
    conditional: bool,
    has_accept_encoding: bool,
}

/// The value of the Transfer-Encoding fields.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Coding {
    #[default]
    None,
    Chunked,
    /// Other codings, then `chunked`.
    Unknown,
    /// `chunked` is not last, or not once: the length of the body is undefined.
    Undefined,
}

impl ParsedHeaders {
    #[inline]
    fn read(bytes: &[u8], len: usize, headers: &[Header<'_>]) -> Result<Self, Status> {
        let mut fields = ParsedHeaders::default();
        for header in headers {
            // `httparse` accepts a bare LF. This checks the ends of all lines, with the check below.
            if !bytes[..offset(bytes, header.name)].ends_with(b"\r\n") {
                return Err(Status::BAD_REQUEST);
            }
            fields.add(header.name, header.value)?;
        }
        match bytes[..len].ends_with(b"\r\n\r\n") {
            true => Ok(fields),
            false => Err(Status::BAD_REQUEST),
        }
    }

    #[inline]
    fn add(&mut self, name: &str, value: &[u8]) -> Result<(), Status> {
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => {
                if self.has_host || !is_host(value) {
                    return Err(Status::BAD_REQUEST);
                }
                self.has_host = true;
            }
            6 if name.eq_ignore_ascii_case("expect") => {
                let is_continue = value.eq_ignore_ascii_case(b"100-continue");
                self.expects = if is_continue { Expects::Continue } else { Expects::Unknown };
            }
            5 | 8 | 13 | 19 if CONDITIONS.iter().any(|c| name.eq_ignore_ascii_case(c)) => {
                self.conditional = true;
            }
            15 if name.eq_ignore_ascii_case("accept-encoding") => self.has_accept_encoding = true,
            10 if name.eq_ignore_ascii_case("connection") => self.add_connection(value),
            14 if name.eq_ignore_ascii_case("content-length") => {
                if self.length.is_some() {
                    return Err(Status::BAD_REQUEST);
                }
                self.length = Some(number(value).ok_or(Status::BAD_REQUEST)?);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                // Repeated fields form one list.
                self.coding = match (self.coding, coding(value)) {
                    (Coding::None, coding) => coding,
                    (Coding::Undefined, Coding::Chunked | Coding::Unknown) => Coding::Unknown,
                    _ => Coding::Undefined,
                };
            }
            17 if name.eq_ignore_ascii_case("if-modified-since") => self.conditional = true,
            _ => {}
        }
        Ok(())
    }

    fn add_connection(&mut self, value: &[u8]) {
        for option in value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    #[inline]
    fn persistence(&self, is_http10: bool) -> Persistence {
        match (self.close, is_http10) {
            (true, _) => Persistence::Close,
            (false, false) => Persistence::Implicit,
            (false, true) if self.keep_alive => Persistence::Explicit,
            (false, true) => Persistence::Close,
        }
    }

    #[inline]
    fn framing(&self, is_http10: bool) -> Result<Framing, Status> {
        if !self.has_host && !is_http10 {
            return Err(Status::BAD_REQUEST);
        }
        match self.coding {
            Coding::None => Ok(Framing::Length(self.length.unwrap_or(0))),
            // Both together, or a coding in HTTP/1.0, may be an attempt at request smuggling.
            _ if is_http10 || self.length.is_some() => Err(Status::BAD_REQUEST),
            Coding::Chunked => Ok(Framing::Chunked),
            Coding::Unknown => Err(Status::NOT_IMPLEMENTED),
            Coding::Undefined => Err(Status::BAD_REQUEST),
        }
    }
}

/// Fields that make a request conditional, except If-Modified-Since.
const CONDITIONS: [&str; 5] =
    ["range", "if-match", "if-range", "if-none-match", "if-unmodified-since"];

/// Returns whether every line of a field section ends in CRLF.
pub(crate) fn ends_in_crlf_only(fields: &[u8]) -> bool {
    let bare = |at: usize| at == 0 || fields[at - 1] != b'\r';
    fields.ends_with(b"\r\n") && !memchr::memchr_iter(b'\n', fields).any(bare)
}

/// Returns the offset of `part` in `bytes`.
fn offset(bytes: &[u8], part: &str) -> usize {
    part.as_ptr().addr() - bytes.as_ptr().addr()
}

/// Parses a number that consists of digits only.
fn number(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

fn coding(value: &[u8]) -> Coding {
    let is_chunked = |coding: &&[u8]| coding.trim_ascii().eq_ignore_ascii_case(b"chunked");
    let mut codings = value.rsplit(|b| *b == b',');
    match codings.next().filter(is_chunked) {
        None => Coding::Undefined,
        Some(_) if codings.clone().any(|coding| is_chunked(&coding)) => Coding::Undefined,
        Some(_) if codings.next().is_some() => Coding::Unknown,
        Some(_) => Coding::Chunked,
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
