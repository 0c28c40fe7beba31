//! Heads and trailers in the types of the `http` crate.

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Uri, Version};

use crate::Limits;
use crate::request::Request;

/// Makes what handlers are given, without an allocation as long as they don't keep it.
#[derive(Debug, Default)]
pub(crate) struct HttpConversion {
    /// Where copies of heads are, of which targets and values are slices.
    heads: BytesMut,
    /// The fields of the last reply, to be those of the next request.
    spare: HeaderMap,
}

/// How much memory for heads is taken at a time; whoever keeps a value keeps so much.
const HEADS: usize = 4096;
/// Fields for which memory is kept.
const SPARE: usize = 64;

impl HttpConversion {
    /// A request's head.
    pub(crate) fn parts(&mut self, request: &Request<'_, '_>) -> Result<Parts, http::Error> {
        if self.heads.capacity() < request.head.len() {
            self.heads.reserve(request.head.len().max(HEADS));
        }
        self.heads.extend_from_slice(request.head);
        let head = self.heads.split().freeze();
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.method = Method::from_bytes(request.name.as_bytes())?;
        parts.uri = Uri::from_maybe_shared(within(&head, request.head, request.target))?;
        parts.version = if request.is_http10 { Version::HTTP_10 } else { Version::HTTP_11 };
        parts.headers = std::mem::take(&mut self.spare);
        if parts.headers.capacity() < request.fields.len() {
            parts.headers.reserve(request.fields.len());
        }
        for field in request.fields {
            let name = HeaderName::from_bytes(field.name.as_bytes())?;
            let value = within(&head, request.head, field.value);
            parts.headers.append(name, HeaderValue::from_maybe_shared(value)?);
        }
        Ok(parts)
    }

    /// Keeps the memory of fields that are not used any more.
    pub(crate) fn keep(&mut self, mut fields: HeaderMap) {
        if (1..=SPARE).contains(&fields.capacity()) {
            fields.clear();
            self.spare = fields;
        }
    }
}

/// The part of `copy` that is where `part` is in `original`.
fn within(copy: &Bytes, original: &[u8], part: &[u8]) -> Bytes {
    let start = part.as_ptr().addr() - original.as_ptr().addr();
    copy.slice(start..start + part.len())
}

/// Trailer fields; those that frame a message have no business there.
pub(crate) fn trailers(bytes: &[u8]) -> HeaderMap {
    let mut memory = [httparse::EMPTY_HEADER; Limits::MAX_HEADERS];
    let mut map = HeaderMap::new();
    if let Ok(httparse::Status::Complete((_, fields))) = httparse::parse_headers(bytes, &mut memory)
    {
        for field in fields {
            let name = HeaderName::from_bytes(field.name.as_bytes());
            let value = HeaderValue::from_bytes(field.value);
            if let (Ok(name), Ok(value)) = (name, value)
                && !is_framing(&name)
                && name != header::HOST
            {
                map.append(name, value);
            }
        }
    }
    map
}

/// Fields that the server itself writes.
pub(crate) fn is_framing(name: &HeaderName) -> bool {
    [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::DATE,
        header::SERVER,
    ]
    .contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{MEMORY, Parsed, parse};

    fn parts(conversion: &mut HttpConversion, head: &[u8]) -> Parts {
        match parse(head, &mut { MEMORY }, &Limits::default()) {
            Parsed::Request(request) => conversion.parts(&request).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_handler_keeps_stays_as_it_was() {
        let mut conversion = HttpConversion::default();
        let mut kept = Vec::new();
        for i in 0..500 {
            let head = format!("GET /{i} HTTP/1.1\r\nHost: h\r\nX: {}\r\nX: 2\r\n\r\n", i * 7);
            let parts = parts(&mut conversion, head.as_bytes());
            assert_eq!(parts.headers.len(), 3);
            kept.push((i, parts.uri, parts.headers["x"].clone()));
            conversion.keep(parts.headers);
        }
        for (i, uri, value) in kept {
            assert_eq!(uri.to_string(), format!("/{i}"));
            assert_eq!(value, (i * 7).to_string());
        }
    }

    #[test]
    fn memory_for_heads_is_used_again() {
        let mut conversion = HttpConversion::default();
        let head = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        let first = parts(&mut conversion, head).headers["host"].as_bytes().as_ptr().addr();
        for _ in 0..10_000 {
            let at = parts(&mut conversion, head).headers["host"].as_bytes().as_ptr().addr();
            assert!(at.abs_diff(first) < HEADS);
        }
    }
}
