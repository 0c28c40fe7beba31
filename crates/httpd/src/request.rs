//! Reading a request's head, strictly.
//!
//! `httparse` finds the parts. What it leaves to others is checked here, because two servers that
//! disagree about where a request ends can be played against each other (RFC 9112, section 11.2).

use std::mem::MaybeUninit;

use crate::Limits;
use crate::broken::{partial, refused};
use crate::status::Status;

/// What the first bytes of a connection, or those after the last request, turn out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// The beginning of a request.
    Partial,
    /// Nothing to go on from: the reply has this status, then the connection ends.
    Refused(Status),
    /// A request, with its head complete.
    Request(Request<'a>),
}

/// A request, as far as a server of files needs to know it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// What is to be done.
    pub(crate) method: Method,
    /// The target as it arrived.
    pub(crate) target: &'a [u8],
    /// Whether the connection goes on.
    pub(crate) persist: Persist,
    /// Length of the body.
    pub(crate) body: u64,
    /// Whether the client waits for leave to send the body.
    pub(crate) expects: bool,
    /// Length of the head.
    pub(crate) len: usize,
}

/// What a client wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// A file.
    Get,
    /// All about a file but its contents.
    Head,
    /// A method of HTTP that files don't have.
    NotAllowed,
    /// Something else.
    Unknown,
}

/// Whether a connection goes on after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persist {
    /// It does, as always with HTTP/1.1.
    Implied,
    /// It does, and the reply says so, for HTTP/1.0.
    Stated,
    /// It ends.
    Ends,
}

/// Reads the head of a request from the first `bytes`.
///
/// However the bytes arrive, the outcome is the same in the end.
#[inline]
pub(crate) fn parse<'a>(bytes: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let mut memory = [const { MaybeUninit::uninit() }; Limits::FIELDS];
    let mut head = httparse::Request::new(&mut []);
    let len = match head.parse_with_uninit_headers(bytes, &mut memory) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return partial(bytes, limits),
        Err(error) => return refused(bytes, error, limits),
    };
    // A complete head has them all.
    let (Some(method), Some(target), Some(version)) = (head.method, head.path, head.version) else {
        return Parsed::Refused(Status::BAD_REQUEST);
    };
    // `httparse` passes over empty lines before a request, and takes a bare LF for one.
    let empty_lines = &bytes[..offset(bytes, method)];
    if !empty_lines.chunks(2).all(|line| line == b"\r\n") {
        return Parsed::Refused(Status::BAD_REQUEST);
    }
    let target = target.as_bytes();
    if method.len() + target.len() + b"  HTTP/1.1\r\n".len() > limits.line {
        return Parsed::Refused(Status::LINE);
    }
    if len > limits.head {
        return Parsed::Refused(Status::HEAD);
    }
    match Fields::read(bytes, len, head.headers).and_then(|fields| fields.judge(version)) {
        Err(status) => Parsed::Refused(status),
        Ok(Verdict { persist, body, expects }) => {
            let method = Method::from(method);
            Parsed::Request(Request { method, target, persist, body, expects, len })
        }
    }
}

impl From<&str> for Method {
    #[inline]
    fn from(name: &str) -> Self {
        match name {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH" => {
                Method::NotAllowed
            }
            _ => Method::Unknown,
        }
    }
}

/// The fields that matter here.
#[derive(Default)]
struct Fields {
    has_host: bool,
    length: Option<u64>,
    coding: Coding,
    close: bool,
    keep_alive: bool,
    expects: bool,
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

/// What follows from the fields.
struct Verdict {
    persist: Persist,
    body: u64,
    expects: bool,
}

impl Fields {
    #[inline]
    fn read(bytes: &[u8], len: usize, headers: &[httparse::Header<'_>]) -> Result<Self, Status> {
        let mut fields = Fields::default();
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
                if self.has_host || !value.iter().all(|b| is_host_byte(*b)) {
                    return Err(Status::BAD_REQUEST);
                }
                self.has_host = true;
            }
            6 if name.eq_ignore_ascii_case("expect") => self.expects = true,
            10 if name.eq_ignore_ascii_case("connection") => self.note_connection(value),
            14 if name.eq_ignore_ascii_case("content-length") => {
                if self.length.is_some() {
                    return Err(Status::BAD_REQUEST);
                }
                self.length = Some(number(value).ok_or(Status::BAD_REQUEST)?);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                let is_first = self.coding == Coding::None;
                self.coding = if is_first { coding(value) } else { Coding::Endless };
            }
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
    fn judge(&self, version: u8) -> Result<Verdict, Status> {
        let is_old = version == 0;
        if !self.has_host && !is_old {
            return Err(Status::BAD_REQUEST);
        }
        if self.coding != Coding::None {
            return Err(self.judge_coding(is_old));
        }
        let persist = match (self.close, is_old) {
            (true, _) => Persist::Ends,
            (false, false) => Persist::Implied,
            (false, true) if self.keep_alive => Persist::Stated,
            (false, true) => Persist::Ends,
        };
        Ok(Verdict { persist, body: self.length.unwrap_or(0), expects: self.expects })
    }

    /// Nobody needs a coded body to get a file, so none is accepted; but the reasons differ.
    #[cold]
    fn judge_coding(&self, is_old: bool) -> Status {
        match self.coding {
            _ if is_old || self.length.is_some() => Status::BAD_REQUEST,
            Coding::Unknown => Status::NOT_IMPLEMENTED,
            Coding::Chunked => Status::LENGTH,
            _ => Status::BAD_REQUEST,
        }
    }
}

/// Where in `bytes` a part of them begins.
fn offset(bytes: &[u8], part: &str) -> usize {
    part.as_ptr().addr() - bytes.as_ptr().addr()
}

/// A name or address with a port: no user, no path, no list.
#[inline]
fn is_host_byte(b: u8) -> bool {
    const TABLE: [bool; 256] = {
        let allowed = b"-._~%!$&'()*+;=:[]";
        let mut table = [false; 256];
        let mut i = 0;
        while i < 256 {
            table[i] = (i as u8).is_ascii_alphanumeric();
            i += 1;
        }
        let mut i = 0;
        while i < allowed.len() {
            table[allowed[i] as usize] = true;
            i += 1;
        }
        table
    };
    TABLE[usize::from(b)]
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
