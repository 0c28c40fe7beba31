//! Reading a request's head, strictly.
//!
//! `httparse` finds the parts. What it leaves to others is checked here, because two servers that
//! disagree about where a request ends can be played against each other (RFC 9112, section 11.2).

use std::mem::MaybeUninit;

use httparse::Header;

use crate::Limits;
use crate::head_errors::classify_head;
use crate::host::is_host;
use crate::status::Status;

/// What the first bytes of a connection, or those after the last request, turn out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'h, 'a> {
    /// The beginning of a request.
    Partial,
    /// Nothing to go on from: the reply has this status, then the connection ends.
    Refused(Status),
    /// A first line of a later minor version of HTTP/1, whose digit is here. Such a request is read as
    /// one of HTTP/1.1 (RFC 9110, section 6.2): whoever has the bytes parses a copy that says `1`.
    LaterMinor(usize),
    /// A request, with its head complete.
    Request(Request<'h, 'a>),
}

/// Where the fields of a request are noted.
pub(crate) type Memory<'a> = [MaybeUninit<Header<'a>>; Limits::MAX_HEADERS];

/// An empty [`Memory`].
pub(crate) const MEMORY: Memory<'_> = [const { MaybeUninit::uninit() }; Limits::MAX_HEADERS];

/// A request's head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'h, 'a> {
    /// What is to be done.
    pub(crate) method: Method,
    /// The method's name.
    pub(crate) name: &'a str,
    /// The target as it arrived.
    pub(crate) target: &'a [u8],
    /// Whether it is of HTTP/1.0.
    pub(crate) is_http10: bool,
    /// Whether the connection goes on.
    pub(crate) persistence: Persistence,
    /// Where the body ends.
    pub(crate) framing: Framing,
    /// What the client expects before it sends the body.
    pub(crate) expects: Expects,
    /// Whether there are preconditions or ranges.
    pub(crate) conditional: bool,
    /// Whether the client says which codings it takes.
    pub(crate) has_accept_encoding: bool,
    /// All fields.
    pub(crate) fields: &'h [Header<'a>],
    /// The head as it arrived.
    pub(crate) head: &'a [u8],
}

impl<'a> Request<'_, 'a> {
    /// All values of a field.
    pub(crate) fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value)
    }

    /// The value of a field that comes once; a repeated one counts as none.
    pub(crate) fn one(&self, name: &'static str) -> Option<&'a [u8]> {
        let mut all = self.all(name);
        all.next().filter(|_| all.next().is_none())
    }

    /// Whether a field is there.
    pub(crate) fn has(&self, name: &'static str) -> bool {
        self.all(name).next().is_some()
    }
}

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// By its length; 0 also if there is no body.
    Length(u64),
    /// It comes in chunks.
    Chunked,
}

/// What the Expect field says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Expects {
    #[default]
    Nothing,
    /// Leave to send the body: `100-continue`.
    Continue,
    /// Something that nobody knows.
    Unknown,
}

/// What a client wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// A file.
    Get,
    /// All about a file but its contents.
    Head,
    /// What can be done.
    Options,
    /// Another method of HTTP.
    Known,
    /// Something else.
    Unknown,
}

/// Whether a connection goes on after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// It does, as always with HTTP/1.1.
    Implicit,
    /// It does, and the reply says so, for HTTP/1.0.
    Explicit,
    /// It ends.
    Close,
}

/// Reads the head of a request from the first `bytes`.
///
/// The outcome does not depend on how the bytes arrive: once a beginning of them is refused, whatever
/// follows it leaves it refused, with the same status. [`classify_head`] sees to that.
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
    // A complete head has them all.
    let (Some(name), Some(target), Some(version)) = (head.method, head.path, head.version) else {
        return Parsed::Refused(Status::BAD_REQUEST);
    };
    let target = target.as_bytes();
    if name.len() + target.len() + b"  HTTP/1.1\r\n".len() > limits.max_request_line_bytes {
        return classify_head(bytes, limits);
    }
    // `httparse` passes over empty lines before a request, and takes a bare LF for one.
    let empty_lines = &bytes[..offset(bytes, name)];
    if !empty_lines.chunks(2).all(|line| line == b"\r\n") {
        return Parsed::Refused(Status::BAD_REQUEST);
    }
    let fields = head.headers;
    let headers = match ParsedHeaders::read(bytes, len, fields) {
        Ok(headers) => headers,
        Err(status) => return Parsed::Refused(status),
    };
    let is_http10 = version == 0;
    match headers.framing(is_http10) {
        Err(status) => Parsed::Refused(status),
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

/// What the fields say that matters to every request.
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

/// What Transfer-Encoding says.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Coding {
    #[default]
    None,
    Chunked,
    /// Others, with `chunked` last.
    Unknown,
    /// The end of the body can't be known.
    Endless,
}

impl ParsedHeaders {
    #[inline]
    fn read(bytes: &[u8], len: usize, headers: &[Header<'_>]) -> Result<Self, Status> {
        let mut fields = ParsedHeaders::default();
        for header in headers {
            // With the end of the head, below, this looks at the end of every line: `httparse`
            // also takes a bare LF for one.
            if !bytes[..offset(bytes, header.name)].ends_with(b"\r\n") {
                return Err(Status::BAD_REQUEST);
            }
            fields.note(header.name, header.value)?;
        }
        match bytes[..len].ends_with(b"\r\n\r\n") {
            true => Ok(fields),
            false => Err(Status::BAD_REQUEST),
        }
    }

    #[inline]
    fn note(&mut self, name: &str, value: &[u8]) -> Result<(), Status> {
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => {
                if self.has_host || !is_host(value) {
                    return Err(Status::BAD_REQUEST);
                }
                self.has_host = true;
            }
            6 if name.eq_ignore_ascii_case("expect") => {
                let known = value.eq_ignore_ascii_case(b"100-continue");
                self.expects = if known { Expects::Continue } else { Expects::Unknown };
            }
            5 | 8 | 13 | 19 if CONDITIONS.iter().any(|c| name.eq_ignore_ascii_case(c)) => {
                self.conditional = true;
            }
            15 if name.eq_ignore_ascii_case("accept-encoding") => self.has_accept_encoding = true,
            10 if name.eq_ignore_ascii_case("connection") => self.note_connection(value),
            14 if name.eq_ignore_ascii_case("content-length") => {
                if self.length.is_some() {
                    return Err(Status::BAD_REQUEST);
                }
                self.length = Some(number(value).ok_or(Status::BAD_REQUEST)?);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                // Two fields are one list.
                self.coding = match (self.coding, coding(value)) {
                    (Coding::None, coding) => coding,
                    (Coding::Endless, Coding::Chunked | Coding::Unknown) => Coding::Unknown,
                    _ => Coding::Endless,
                };
            }
            17 if name.eq_ignore_ascii_case("if-modified-since") => self.conditional = true,
            _ => {}
        }
        Ok(())
    }

    fn note_connection(&mut self, value: &[u8]) {
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
            // Whoever sends both, or a coding that HTTP/1.0 does not have, may be an attacker.
            _ if is_http10 || self.length.is_some() => Err(Status::BAD_REQUEST),
            Coding::Chunked => Ok(Framing::Chunked),
            Coding::Unknown => Err(Status::NOT_IMPLEMENTED),
            Coding::Endless => Err(Status::BAD_REQUEST),
        }
    }
}

/// Fields that make a request conditional, but for If-Modified-Since.
const CONDITIONS: [&str; 5] =
    ["range", "if-match", "if-range", "if-none-match", "if-unmodified-since"];

/// Whether every line of some fields ends as it should, and the last one is empty.
pub(crate) fn ends_in_crlf_only(fields: &[u8]) -> bool {
    let bare = |at: usize| at == 0 || fields[at - 1] != b'\r';
    fields.ends_with(b"\r\n") && !memchr::memchr_iter(b'\n', fields).any(bare)
}

/// Where in `bytes` a part of them begins.
fn offset(bytes: &[u8], part: &str) -> usize {
    part.as_ptr().addr() - bytes.as_ptr().addr()
}

/// Digits and nothing else.
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
        None => Coding::Endless,
        Some(_) if codings.clone().any(|coding| is_chunked(&coding)) => Coding::Endless,
        Some(_) if codings.next().is_some() => Coding::Unknown,
        Some(_) => Coding::Chunked,
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
