//! Strict parsing of request heads: their parts, and what the fields that concern every request say.
//!
//! Two servers that disagree about the end of a request enable request smuggling (RFC 9112, section 11.2).

use crate::limits::Limits;
use crate::message::head_errors::{
    Classified, EMPTY_LINE, NoRequest, classify_head, start_of_line,
};
use crate::message::host::is_host;
use crate::message::path::split_authority;
use crate::message::split::{FieldSpan, RequestLine, Span, next_field, request_line};
use crate::message::status::Status;

/// Memory for parsed heads, one at a time.
#[derive(Debug)]
pub(crate) struct HeadMemory {
    fields: [FieldSpan; Limits::MAX_HEADERS],
    /// The last valid host: most requests name the same one, which is not checked again.
    host: Vec<u8>,
    /// A copy of the bytes for a later minor version of HTTP/1. Such a request is processed as HTTP/1.1 (RFC 9110,
    /// section 6.2).
    copy: Vec<u8>,
}

impl HeadMemory {
    pub(crate) fn new() -> Self {
        let fields = [FieldSpan::default(); Limits::MAX_HEADERS];
        HeadMemory { fields, host: Vec::new(), copy: Vec::new() }
    }
}

/// A request's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: Method,
    /// The method's name.
    pub(crate) name: &'a [u8],
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
    /// Whether the client asks for another protocol on this connection.
    pub(crate) wants_upgrade: bool,
    /// The fields, by their positions in the head.
    fields: &'a [FieldSpan],
    /// The head as it arrived. If the target names a host, that of `fields` is this one, and another may be here.
    pub(crate) head: &'a [u8],
}

impl<'a> RequestHead<'a> {
    /// Returns whether a body follows the head.
    #[inline]
    pub(crate) fn has_body(&self) -> bool {
        self.framing != Framing::Length(0)
    }

    /// Returns the number of fields.
    pub(crate) fn num_fields(&self) -> usize {
        self.fields.len()
    }

    /// Iterates over the names and values of the fields.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let RequestHead { head, fields, .. } = *self;
        fields.iter().map(move |field| (field.name.of(head), field.value.of(head)))
    }

    pub(crate) fn all(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let is_named = move |field: &(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
        self.fields().filter(is_named).map(|(_, value)| value)
    }

    /// Returns the value of a field that occurs once, else `None`.
    pub(crate) fn one(&self, name: &'static str) -> Option<&'a [u8]> {
        let mut all = self.all(name);
        all.next().filter(|_| all.next().is_none())
    }

    pub(crate) fn has(&self, name: &'static str) -> bool {
        self.all(name).next().is_some()
    }

    fn without_parts(&self) -> RequestHead<'static> {
        let RequestHead { method, is_http10, persistence, framing, expects, .. } = *self;
        let RequestHead { conditional, has_accept_encoding, wants_upgrade, .. } = *self;
        RequestHead {
            method,
            name: b"",
            target: b"",
            is_http10,
            persistence,
            framing,
            expects,
            conditional,
            has_accept_encoding,
            wants_upgrade,
            fields: &[],
            head: b"",
        }
    }
}

/// A head that outlives the bytes in which it arrived, with the positions of its parts.
#[derive(Debug)]
pub(crate) struct KeptHead {
    /// The request without its parts.
    request: RequestHead<'static>,
    name: Span,
    target: Span,
    head: Vec<u8>,
    fields: Vec<FieldSpan>,
}

impl KeptHead {
    /// Keeps a head, in the memory of a previous one.
    pub(crate) fn new(request: &RequestHead<'_>, previous: Option<Self>) -> Self {
        let (mut head, mut fields) =
            previous.map(|kept| (kept.head, kept.fields)).unwrap_or_default();
        head.clear();
        head.extend_from_slice(request.head);
        fields.clear();
        fields.extend_from_slice(request.fields);
        let span = |part| Span::of_part(request.head, part);
        let (name, target) = (span(request.name), span(request.target));
        KeptHead { request: request.without_parts(), name, target, head, fields }
    }

    pub(crate) fn request(&self) -> RequestHead<'_> {
        RequestHead {
            name: self.name.of(&self.head),
            target: self.target.of(&self.head),
            fields: &self.fields,
            head: &self.head,
            ..self.request
        }
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
/// longer input, with the same status. [`classify_head`] ensures that. Inlined, as the result is large.
#[inline(always)]
pub(crate) fn parse<'a>(
    bytes: &'a [u8],
    memory: &'a mut HeadMemory,
    limits: &Limits,
) -> Result<RequestHead<'a>, NoRequest> {
    let HeadMemory { fields, host, copy } = memory;
    let (request, num_fields) = match parse_version_1(bytes, (fields, host), limits) {
        Ok(parsed) => parsed,
        Err(Classified::NoRequest(reason)) => return Err(reason),
        Err(Classified::LaterMinor(digit)) => {
            bytes.clone_into(copy);
            copy[digit] = b'1';
            parse_changed(copy, (fields, host), limits)?
        }
    };
    let fields = &mut fields[..num_fields];
    if !request.target.starts_with(b"/") {
        take_host_of_target(&request, fields);
    }
    Ok(RequestHead { fields, ..request })
}

/// Replaces the value of Host by the host of a target in absolute form, so that every reader of the head finds the same host
/// (RFC 9112, section 3.2.2).
#[cold]
fn take_host_of_target(request: &RequestHead<'_>, fields: &mut [FieldSpan]) {
    let Ok((authority, _)) = split_authority(request.target) else { return };
    let is_host =
        |field: &&mut FieldSpan| field.name.of(request.head).eq_ignore_ascii_case(b"host");
    if let Some(field) = fields.iter_mut().find(is_host) {
        field.value = Span::of_part(request.head, authority);
    }
}

/// Parses a head whose minor version was changed.
#[cold]
fn parse_changed<'a>(
    copy: &'a [u8],
    memory: (&mut [FieldSpan], &mut Vec<u8>),
    limits: &Limits,
) -> Result<(RequestHead<'a>, usize), NoRequest> {
    parse_version_1(copy, memory, limits).map_err(|error| match error {
        Classified::NoRequest(reason) => reason,
        Classified::LaterMinor(_) => NoRequest::Rejected(Status::BAD_REQUEST),
    })
}

/// Parses the head of a request of HTTP/1.1 or 1.0. Returns it without its fields, and their number in `memory`.
#[inline(always)]
fn parse_version_1<'a>(
    bytes: &'a [u8],
    (memory, host): (&mut [FieldSpan], &mut Vec<u8>),
    limits: &Limits,
) -> Result<(RequestHead<'a>, usize), Classified> {
    let max = limits.max_head_bytes.min(Limits::MAX_HEAD_BYTES).min(bytes.len());
    let max_fields = limits.max_headers.min(memory.len());
    let mut headers = ParsedHeaders::default();
    let Some((line, len, num_fields)) =
        split(&bytes[..max], &mut memory[..max_fields], &mut headers, host)
    else {
        return Err(classify_head(bytes, limits));
    };
    let RequestLine { name, target, is_http10, .. } = line;
    if name.len() + target.len() + b"  HTTP/1.1\r\n".len() > limits.max_request_line_bytes {
        return Err(classify_head(bytes, limits));
    }
    if headers.is_invalid {
        return Err(Classified::rejected(Status::BAD_REQUEST));
    }
    let request = RequestHead {
        method: Method::from(name),
        name,
        target,
        is_http10,
        persistence: headers.persistence(is_http10),
        framing: headers.framing(is_http10).map_err(Classified::rejected)?,
        expects: if is_http10 { Expects::Nothing } else { headers.expects },
        conditional: headers.conditional,
        has_accept_encoding: headers.has_accept_encoding,
        wants_upgrade: headers.upgrade && headers.has_upgrade && !is_http10,
        fields: &[],
        head: &bytes[..len],
    };
    Ok((request, num_fields))
}

/// Splits a head. Returns its request line, its length and the number of its fields; `None` if it is malformed or
/// incomplete, or has more fields than `memory`.
#[inline(always)]
fn split<'a>(
    bytes: &'a [u8],
    memory: &mut [FieldSpan],
    headers: &mut ParsedHeaders,
    valid_host: &mut Vec<u8>,
) -> Option<(RequestLine<'a>, usize, usize)> {
    let line = request_line(bytes, start_of_line(bytes))?;
    let (mut at, mut num_fields) = (line.end, 0);
    while !bytes[at..].starts_with(b"\r\n") {
        let field = next_field(bytes, at)?;
        *memory.get_mut(num_fields)? = field.span;
        num_fields += 1;
        headers.add(field.name, field.value, valid_host);
        at = field.end;
    }
    Some((line, at + b"\r\n".len(), num_fields))
}

/// Returns whether bytes behind a request begin the next one: an empty line alone does not (RFC 9112, section 2.2).
pub(crate) fn begins_request(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes != EMPTY_LINE
}

/// Returns whether an incomplete head, of which `scanned` bytes were parsed, still is, as no further
/// line has ended. This avoids parsing the head again for each byte of a slow client.
pub(crate) fn is_still_partial(bytes: &[u8], scanned: usize, limits: &Limits) -> bool {
    let passes = |limit: usize| scanned < limit && limit <= bytes.len();
    let new = bytes.get(scanned..).unwrap_or_default();
    let line = start_of_line(bytes) + limits.max_request_line_bytes;
    !passes(line) && !passes(limits.max_head_bytes) && memchr::memchr(b'\n', new).is_none()
}

impl From<&[u8]> for Method {
    #[inline(always)]
    fn from(name: &[u8]) -> Self {
        if name == b"GET" { Method::Get } else { Method::other(name) }
    }
}

impl Method {
    #[inline(never)]
    fn other(name: &[u8]) -> Self {
        match name {
            b"HEAD" => Method::Head,
            b"OPTIONS" => Method::Options,
            b"POST" | b"PUT" | b"DELETE" | b"CONNECT" | b"TRACE" | b"PATCH" => Method::Known,
            _ => Method::Unknown,
        }
    }
}

/// The header fields that are relevant to every request.
#[derive(Default)]
struct ParsedHeaders {
    /// A field is repeated that must not be, or has a value that it must not have.
    is_invalid: bool,
    has_host: bool,
    length: Option<u64>,
    coding: TransferCoding,
    close: bool,
    keep_alive: bool,
    /// An option of Connection.
    upgrade: bool,
    has_upgrade: bool,
    expects: Expects,
    conditional: bool,
    has_accept_encoding: bool,
}

/// The value of the Transfer-Encoding fields.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum TransferCoding {
    #[default]
    None,
    /// Fields without a coding.
    Empty,
    /// Codings, `chunked` not yet.
    Others,
    Chunked,
    /// Other codings, then `chunked`.
    Unknown,
    /// `chunked` is not last, or not once.
    Undefined,
}

impl TransferCoding {
    /// Adds the members of a list, which repeated fields continue. Empty ones are none (RFC 9110, section 5.6.1.2).
    fn add(&mut self, value: &[u8]) {
        if *self == TransferCoding::None {
            *self = TransferCoding::Empty;
        }
        let members = value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
        for coding in members.filter(|member| !member.is_empty()) {
            *self = match (*self, coding.eq_ignore_ascii_case(b"chunked")) {
                (TransferCoding::Empty, true) => TransferCoding::Chunked,
                (TransferCoding::Others, true) => TransferCoding::Unknown,
                (TransferCoding::Empty | TransferCoding::Others, false) => TransferCoding::Others,
                _ => TransferCoding::Undefined,
            };
        }
    }
}

impl ParsedHeaders {
    /// Adds a field. What is wrong with it takes effect at the end of the head.
    #[inline]
    fn add(&mut self, name: &[u8], value: &[u8], valid_host: &mut Vec<u8>) {
        match name.len() {
            4 if is_name(name, b"host") => {
                self.is_invalid |= self.has_host || !is_valid_host(value, valid_host);
                self.has_host = true;
            }
            6 if is_name(name, b"expect") => self.add_expect(value),
            5 if is_name(name, b"range") => self.conditional = true,
            8 if is_name(name, b"if-match") || is_name(name, b"if-range") => {
                self.conditional = true;
            }
            13 if is_name(name, b"if-none-match") => self.conditional = true,
            19 if is_name(name, b"if-unmodified-since") => self.conditional = true,
            15 if is_name(name, b"accept-encoding") => self.has_accept_encoding = true,
            7 if is_name(name, b"upgrade") => self.has_upgrade = true,
            10 if is_name(name, b"connection") => self.add_connection(value),
            14 if is_name(name, b"content-length") => {
                let length = number(value);
                self.is_invalid |= self.length.is_some() || length.is_none();
                self.length = length;
            }
            17 if is_name(name, b"transfer-encoding") => self.coding.add(value),
            17 if is_name(name, b"if-modified-since") => self.conditional = true,
            _ => {}
        }
    }

    /// Adds the members of a list, which repeated fields continue (RFC 9110, section 5.3).
    fn add_expect(&mut self, value: &[u8]) {
        let members = value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
        for expectation in members.filter(|member| !member.is_empty()) {
            let is_continue = expectation.eq_ignore_ascii_case(b"100-continue");
            self.expects = match self.expects {
                Expects::Nothing | Expects::Continue if is_continue => Expects::Continue,
                _ => Expects::Unknown,
            };
        }
    }

    fn add_connection(&mut self, value: &[u8]) {
        for option in value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            self.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
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
            TransferCoding::None => Ok(Framing::Length(self.length.unwrap_or(0))),
            // Both together, or a coding in HTTP/1.0, may be an attempt at request smuggling.
            _ if is_http10 || self.length.is_some() => Err(Status::BAD_REQUEST),
            TransferCoding::Chunked => Ok(Framing::Chunked),
            TransferCoding::Unknown => Err(Status::NOT_IMPLEMENTED),
            // The length of the body is undefined.
            TransferCoding::Empty | TransferCoding::Others | TransferCoding::Undefined => {
                Err(Status::BAD_REQUEST)
            }
        }
    }
}

/// Returns whether a name of a field, which is a token, is one of lower-case letters and hyphens, in any case.
#[inline]
fn is_name<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    // No other byte of a token becomes a letter or a hyphen.
    <&[u8; N]>::try_from(name).is_ok_and(|name| name.map(|byte| byte | 0x20) == *lower)
}

/// Returns whether a host is valid: the last valid one, which it becomes, or another one.
#[inline]
fn is_valid_host(host: &[u8], last: &mut Vec<u8>) -> bool {
    *host == **last || is_other_host(host, last)
}

#[cold]
fn is_other_host(host: &[u8], last: &mut Vec<u8>) -> bool {
    let is_valid = is_host(host);
    if is_valid {
        host.clone_into(last);
    }
    is_valid
}

/// Returns whether every line of a field section ends in CRLF.
pub(crate) fn ends_in_crlf_only(fields: &[u8]) -> bool {
    let bare = |at: usize| at == 0 || fields[at - 1] != b'\r';
    fields.ends_with(b"\r\n") && !memchr::memchr_iter(b'\n', fields).any(bare)
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

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
