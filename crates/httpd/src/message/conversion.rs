//! Conversion of heads and trailers to the types of the `http` crate.

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Uri, Version};

use crate::limits::Limits;
use crate::message::request::RequestHead;

/// Converts requests for handlers. Does not allocate unless handlers keep parts of them.
#[derive(Debug, Default)]
pub(crate) struct HttpConversion {
    /// Copies of heads; targets and values are slices of it.
    heads: BytesMut,
    /// The header map of the last response, reused for the next request.
    spare: HeaderMap,
}

/// Bytes allocated for heads at a time; a handler that keeps a value keeps that block.
const HEAD_BLOCK_BYTES: usize = 4096;
/// Maximum capacity of a header map that is kept for reuse.
const MAX_SPARE_FIELDS: usize = 64;

impl HttpConversion {
    /// Converts a head. With `path`, that is its path.
    pub(crate) fn parts(
        &mut self,
        request: &RequestHead<'_>,
        path: Option<Vec<u8>>,
    ) -> Result<Parts, http::Error> {
        if self.heads.capacity() < request.head.len() {
            self.heads.reserve(request.head.len().max(HEAD_BLOCK_BYTES));
        }
        self.heads.extend_from_slice(request.head);
        let head = self.heads.split().freeze();
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.method = Method::from_bytes(request.name)?;
        parts.uri = Uri::from_maybe_shared(subslice(&head, request.head, request.target))?;
        if let Some(path) = path {
            parts.uri = with_path(parts.uri, path)?;
        }
        parts.version = if request.is_http10 { Version::HTTP_10 } else { Version::HTTP_11 };
        parts.headers = std::mem::take(&mut self.spare);
        if parts.headers.capacity() < request.num_fields() {
            parts.headers.reserve(request.num_fields());
        }
        for (name, value) in request.fields() {
            let name = HeaderName::from_bytes(name)?;
            let value = subslice(&head, request.head, value);
            parts.headers.append(name, HeaderValue::from_maybe_shared(value)?);
        }
        Ok(parts)
    }

    pub(crate) fn recycle(&mut self, mut fields: HeaderMap) {
        if (1..=MAX_SPARE_FIELDS).contains(&fields.capacity()) {
            fields.clear();
            self.spare = fields;
        }
    }
}

/// Returns a URI with another path.
#[cold]
fn with_path(uri: Uri, mut path: Vec<u8>) -> Result<Uri, http::Error> {
    if let Some(query) = uri.query() {
        path.push(b'?');
        path.extend_from_slice(query.as_bytes());
    }
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(PathAndQuery::from_maybe_shared(Bytes::from(path))?);
    Ok(Uri::from_parts(parts)?)
}

/// Returns the slice of `copy` at the position of `part` in `original`.
fn subslice(copy: &Bytes, original: &[u8], part: &[u8]) -> Bytes {
    let start = part.as_ptr().addr() - original.as_ptr().addr();
    copy.slice(start..start + part.len())
}

/// Parses trailer fields; drops framing fields and Host, which are not allowed in trailers.
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

/// Returns whether the server writes this field itself.
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
    use crate::message::request::{HeadMemory, parse};

    fn parts(conversion: &mut HttpConversion, head: &[u8]) -> Parts {
        let mut memory = HeadMemory::new();
        let request = parse(head, &mut memory, &Limits::default()).unwrap();
        conversion.parts(&request, None).unwrap()
    }

    #[test]
    fn values_kept_by_handlers_do_not_change() {
        let mut conversion = HttpConversion::default();
        let mut kept = Vec::new();
        for i in 0..500 {
            let head = format!("GET /{i} HTTP/1.1\r\nHost: h\r\nX: {}\r\nX: 2\r\n\r\n", i * 7);
            let parts = parts(&mut conversion, head.as_bytes());
            assert_eq!(parts.headers.len(), 3);
            kept.push((i, parts.uri, parts.headers["x"].clone()));
            conversion.recycle(parts.headers);
        }
        for (i, uri, value) in kept {
            assert_eq!(uri.to_string(), format!("/{i}"));
            assert_eq!(value, (i * 7).to_string());
        }
    }

    #[test]
    fn head_memory_is_reused() {
        let mut conversion = HttpConversion::default();
        let head = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        let first = parts(&mut conversion, head).headers["host"].as_bytes().as_ptr().addr();
        for _ in 0..10_000 {
            let at = parts(&mut conversion, head).headers["host"].as_bytes().as_ptr().addr();
            assert!(at.abs_diff(first) < HEAD_BLOCK_BYTES);
        }
    }
}
