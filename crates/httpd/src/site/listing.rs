//! Directory listings.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use evring::files::{FileKind, Listing, Metadata};
use httpdate::HttpDate;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::message::path;
use crate::response::head::put;

/// Characters to encode in a link: all but the unreserved ones (RFC 3986, section 2.3).
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const STYLE: &str = ":root{color-scheme:light dark}\
    body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
    table{border-collapse:collapse}td{padding:.1rem 1rem .1rem 0}\
    td:first-child{overflow-wrap:anywhere}td+td{text-align:right;white-space:nowrap;opacity:.7}";

/// Returns the page for a directory; `name` is the target's path, which ends in a slash.
pub(crate) fn page(name: &[u8], listing: Listing) -> Vec<u8> {
    let is_complete = listing.is_complete;
    let entries = visible(listing);
    let title = escape_html(&String::from_utf8_lossy(&path::decoded(name)));
    let mut out = Vec::with_capacity(1024 + entries.len() * 160);
    put(
        &mut out,
        format_args!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n<table>\n"
        ),
    );
    if name.iter().any(|b| *b != b'/') {
        out.extend_from_slice(b"<tr><td><a href=\"../\">../</a><td><td>\n");
    }
    for (name, meta) in &entries {
        // The prefix `./` keeps a name with a colon from being read as a scheme.
        let link = percent_encode(name.as_bytes(), NAME);
        let text = escape_html(&name.to_string_lossy());
        let date = HttpDate::from(meta.modified().max(std::time::UNIX_EPOCH));
        match meta.kind {
            FileKind::Directory => put(
                &mut out,
                format_args!("<tr><td><a href=\"./{link}/\">{text}/</a><td><td>{date}\n"),
            ),
            _ => put(
                &mut out,
                format_args!("<tr><td><a href=\"./{link}\">{text}</a><td>{}<td>{date}\n", meta.len),
            ),
        }
    }
    out.extend_from_slice(b"</table>\n");
    if !is_complete {
        let max = Listing::MAX_ENTRIES;
        put(&mut out, format_args!("<p>The directory has more than {max} entries.\n"));
    }
    out
}

/// Returns the listing in JSON: `entries` have a name, a link relative to the directory, a type, the time of the last
/// change, and files a size in bytes. A directory with too many entries is not `complete`. Bytes of names that are
/// not UTF-8 are replaced; the links have them.
pub(crate) fn json(name: &[u8], listing: Listing) -> Vec<u8> {
    let is_complete = listing.is_complete;
    let entries = visible(listing);
    let mut out = Vec::with_capacity(256 + entries.len() * 160);
    let path = escape_json(&String::from_utf8_lossy(&path::decoded(name)));
    put(&mut out, format_args!("{{\"path\":\"{path}\",\"entries\":["));
    for (at, (name, meta)) in entries.iter().enumerate() {
        let link = percent_encode(name.as_bytes(), NAME);
        let text = escape_json(&name.to_string_lossy());
        let date = HttpDate::from(meta.modified().max(std::time::UNIX_EPOCH));
        let comma = if at > 0 { "," } else { "" };
        put(&mut out, format_args!("{comma}\n{{\"name\":\"{text}\",\"href\":\"./{link}"));
        match meta.kind {
            FileKind::Directory => out.extend_from_slice(b"/\",\"type\":\"directory\""),
            _ => put(&mut out, format_args!("\",\"type\":\"file\",\"size\":{}", meta.len)),
        }
        put(&mut out, format_args!(",\"modified\":\"{date}\"}}"));
    }
    put(&mut out, format_args!("\n],\"complete\":{is_complete}}}\n"));
    out
}

/// Returns the entries that are shown, sorted.
fn visible(listing: Listing) -> Vec<(OsString, Metadata)> {
    let mut entries = listing.entries;
    entries
        .retain(|(name, meta)| !name.as_bytes().starts_with(b".") && meta.kind != FileKind::Other);
    entries.sort_by(|a, b| order(&a.1, &b.1).then_with(|| a.0.cmp(&b.0)));
    entries
}

/// Orders directories before files.
fn order(a: &Metadata, b: &Metadata) -> Ordering {
    (a.kind != FileKind::Directory).cmp(&(b.kind != FileKind::Directory))
}

fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Escapes text for a string in JSON (RFC 8259, section 7).
fn escape_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if c < ' ' => escaped += &format!("\\u{:04x}", u32::from(c)),
            c => escaped.push(c),
        }
    }
    escaped
}
