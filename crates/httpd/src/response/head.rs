//! Serialization of response heads.

use std::io::Write;

use crate::decision::conditions::Validators;
use crate::decision::options::ResponseOptions;
use crate::decision::representation::{Caching, RepresentationHeaders};
use crate::message::request::Persistence;
use crate::message::status::Status;
use crate::response::clock::{Clock, stamp};

pub(super) const OK_LINE: &[u8] = b"HTTP/1.1 200 OK\r\n";

/// Writes the status line and the fields of every response.
pub(crate) fn begin_head(out: &mut Vec<u8>, status: Status, clock: &Clock) {
    if status == Status::OK {
        out.extend_from_slice(OK_LINE);
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        put_number(out, status.0.into());
        out.push(b' ');
        out.extend_from_slice(status.1.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(clock.fields());
}

/// Writes the Connection field and the end of a head.
pub(crate) fn end_head(out: &mut Vec<u8>, options: ResponseOptions) {
    out.extend_from_slice(connection(options));
    out.extend_from_slice(b"\r\n");
}

/// Returns the Connection field.
pub(crate) fn connection(options: ResponseOptions) -> &'static [u8] {
    match options.persistence {
        Persistence::Implicit => b"",
        Persistence::Explicit => b"Connection: keep-alive\r\n",
        Persistence::Close => b"Connection: close\r\n",
    }
}

/// Writes a field.
#[inline]
pub(crate) fn put_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes a Content-Length.
pub(crate) fn put_length(out: &mut Vec<u8>, len: u64) {
    out.extend_from_slice(b"Content-Length: ");
    put_number(out, len);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends formatted text; writing to a vector cannot fail.
pub(crate) fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// Writes the fields that a 304 has, too (RFC 9110, section 15.4.5).
pub(super) fn put_validators(out: &mut Vec<u8>, headers: &RepresentationHeaders) {
    if let Some(Validators { etag, is_weak, modified, .. }) = &headers.validators {
        if let Some(modified) = modified {
            put_field(out, "Last-Modified", &stamp(*modified));
        }
        if let Some(etag) = etag {
            let weak = if *is_weak { "W/" } else { "" };
            put(out, format_args!("ETag: {weak}{etag}\r\n"));
        }
    }
    if headers.varies {
        out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    if headers.varies_by_type {
        out.extend_from_slice(b"Vary: Accept\r\n");
    }
    match headers.caching {
        Caching::Unspecified => {}
        Caching::NoStore => out.extend_from_slice(b"Cache-Control: no-store\r\n"),
        Caching::MaxAge(n) => put(out, format_args!("Cache-Control: max-age={n}\r\n")),
    }
    out.extend_from_slice(&headers.fields);
}

/// Writes all fields except Content-Type.
pub(super) fn put_representation(out: &mut Vec<u8>, headers: &RepresentationHeaders) {
    put_validators(out, headers);
    if headers.validators.as_ref().is_some_and(Validators::has_ranges) {
        out.extend_from_slice(b"Accept-Ranges: bytes\r\n");
    }
    if let Some(coding) = headers.coding {
        put_field(out, "Content-Encoding", coding.name().as_bytes());
    }
}

pub(super) fn put_type(out: &mut Vec<u8>, headers: &RepresentationHeaders) {
    put_field(out, "Content-Type", headers.content_type.as_bytes());
}
