//! Directory listings.

use std::cmp::Ordering;
use std::os::unix::ffi::OsStrExt;

use evring::{FileKind, Listing, Metadata};
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
    let mut entries = listing.entries;
    entries
        .retain(|(name, meta)| !name.as_bytes().starts_with(b".") && meta.kind != FileKind::Other);
    entries.sort_by(|a, b| order(&a.1, &b.1).then_with(|| a.0.cmp(&b.0)));
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
    if !listing.is_complete {
        let max = Listing::MAX_ENTRIES;
        put(&mut out, format_args!("<p>The directory has more than {max} entries.\n"));
    }
    out
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn entry(name: &[u8], kind: FileKind) -> (OsString, Metadata) {
        let meta = Metadata {
            kind,
            len: 7,
            modified_ns: 784_111_777_000_000_000,
            changed_ns: 0,
            inode: 1,
        };
        (OsString::from_vec(name.to_vec()), meta)
    }

    fn rows(name: &str, listing: Listing) -> Vec<String> {
        let text = String::from_utf8(page(name.as_bytes(), listing)).unwrap();
        text.lines()
            .filter(|l| l.starts_with("<tr>") || l.starts_with("<p>"))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn names_are_escaped_and_dotfiles_are_hidden() {
        use FileKind::{Directory, Other, Regular};
        let entries = vec![
            entry(b"javascript:x", Regular),
            entry(b"<b>&\"", Regular),
            entry(b".git", Directory),
            entry(b"pipe", Other),
            entry(b"a b", Directory),
            entry(b"\xff\n", Regular),
        ];
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let expected = [
            "<tr><td><a href=\"../\">../</a><td><td>".to_owned(),
            format!("<tr><td><a href=\"./a%20b/\">a b/</a><td><td>{date}"),
            format!("<tr><td><a href=\"./%3Cb%3E%26%22\">&lt;b&gt;&amp;&quot;</a><td>7<td>{date}"),
            format!("<tr><td><a href=\"./javascript%3Ax\">javascript:x</a><td>7<td>{date}"),
            format!("<tr><td><a href=\"./%FF%0A\">\u{fffd}\u{fffd}</a><td>7<td>{date}"),
        ];
        assert_eq!(rows("/x/", Listing { entries, is_complete: true }), expected);
    }

    #[test]
    fn root_has_no_parent_link_and_title_is_decoded() {
        let empty = Listing { entries: Vec::new(), is_complete: false };
        assert_eq!(rows("//", empty.clone()), ["<p>The directory has more than 4096 entries."]);
        let text = String::from_utf8(page(b"/a%20%3Cb/", empty)).unwrap();
        assert!(text.contains("<h1>/a &lt;b/</h1>"), "{text}");
    }
}
