//! Conversion of request targets to paths below the root.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::message::host::is_host;
use crate::message::status::Status;

/// The file that is served for a directory.
pub(crate) const INDEX: &str = "index.html";
/// The ends of the names of precompressed files, in the order of the codings.
pub(crate) const PRECOMPRESSED: [&str; 3] = [".br", ".zst", ".gz"];

/// Splits a target into path and query, without scheme and authority.
///
/// # Errors
/// 400 for a target that is neither in origin form nor in absolute form (RFC 9112, section 3.2)
/// or contains bytes that no URI has.
pub(crate) fn split(target: &[u8]) -> Result<(&[u8], Option<&[u8]>), Status> {
    if let Some(at) = target.iter().position(|b| !is_uri_byte(*b)) {
        // Browsers send a backslash in a query as it is, and one in a path as a slash.
        let (before, rest) = target.split_at(at);
        if !before.contains(&b'?') || !rest.iter().all(|b| is_uri_byte(*b) || *b == b'\\') {
            return Err(Status::BAD_REQUEST);
        }
    }
    let origin = if target.starts_with(b"/") { target } else { split_authority(target)?.1 };
    Ok(match memchr::memchr(b'?', origin) {
        Some(at) => (path_or_root(&origin[..at]), Some(&origin[at + 1..])),
        None => (path_or_root(origin), None),
    })
}

/// Replaces an empty path, as in `http://example.org?q`, by the root.
fn path_or_root(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"/" } else { path }
}

const HTTP: &[u8] = b"http://";
const HTTPS: &[u8] = b"https://";

fn has_scheme(target: &[u8], scheme: &[u8]) -> bool {
    target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

/// Returns whether a target is in absolute form, with the scheme https.
pub(crate) fn is_https(target: &[u8]) -> bool {
    has_scheme(target, HTTPS)
}

/// Returns the authority of a target in absolute form, such as `host:80` of `http://host:80/path?query`, and the path and
/// query.
pub(crate) fn split_authority(target: &[u8]) -> Result<(&[u8], &[u8]), Status> {
    let remaining = match () {
        () if has_scheme(target, HTTP) => &target[HTTP.len()..],
        () if has_scheme(target, HTTPS) => &target[HTTPS.len()..],
        () => return Err(Status::BAD_REQUEST),
    };
    let end = remaining.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(remaining.len());
    // This also rejects userinfo, which serves to deceive users (RFC 9110, section 4.2.4).
    if end == 0 || !is_host(&remaining[..end]) {
        return Err(Status::BAD_REQUEST);
    }
    Ok(remaining.split_at(end))
}

/// Returns whether a byte may occur in a path and in a query. Bytes that RFC 3986 forbids and browsers send
/// unencoded in both are accepted.
fn is_uri_byte(b: u8) -> bool {
    const TABLE: [bool; 256] = {
        let mut table = [false; 256];
        let mut b = 0;
        while b < 256 {
            let forbidden = matches!(b as u8, b'"' | b'<' | b'>' | b'\\' | b'#');
            table[b] = (b as u8).is_ascii_graphic() && !forbidden;
            b += 1;
        }
        table
    };
    TABLE[usize::from(b)]
}

/// Resolves a target's path to a path below the root; for a directory, to that of its index.
///
/// # Errors
/// 400 for a malformed encoding, an encoded slash or NUL, and for a path that leaves the root.
/// 404 for a name that begins with a dot, as such files are hidden, except `/.well-known`.
pub(crate) fn resolve(path: &[u8]) -> Result<PathBuf, Status> {
    let (mut names, is_directory) = names(path)?;
    for (at, name) in names.iter().enumerate() {
        if name.contains(&b'/') {
            return Err(Status::BAD_REQUEST);
        }
        // Well-known URIs are public (RFC 8615).
        if name.starts_with(b".") && !(at == 0 && name == b".well-known") {
            return Err(Status::NOT_FOUND);
        }
    }
    if is_directory {
        names.push(INDEX.into());
    }
    Ok(PathBuf::from(OsString::from_vec(names.join(&b'/'))))
}

/// Returns the decoded names in a path without dot segments, and whether it is a directory's.
///
/// Segments are decoded one by one, so an encoded slash never separates names: it is a part of one.
fn names(path: &[u8]) -> Result<(Vec<Vec<u8>>, bool), Status> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut is_directory = true;
    for segment in path.split(|b| *b == b'/') {
        let name = decode_any(segment)?;
        if leaves_a_directory(&name) {
            return Err(Status::BAD_REQUEST);
        }
        is_directory = matches!(&name[..], b"" | b"." | b"..");
        match &name[..] {
            b"" | b"." => {}
            b".." => drop(names.pop().ok_or(Status::BAD_REQUEST)?),
            _ => names.push(name),
        }
    }
    Ok((names, is_directory))
}

/// Returns whether a name with slashes, as a path below a directory, may be one of something outside of it.
fn leaves_a_directory(name: &[u8]) -> bool {
    let mut parts = name.split(|b| *b == b'/');
    name.contains(&b'/')
        && (name.starts_with(b"/") || parts.any(|part| matches!(part, b"." | b"..")))
}

/// Returns the canonical form of a path, as [`try_canonical`] does. A path that has none is returned unchanged.
pub(crate) fn canonical(path: &[u8]) -> Cow<'_, [u8]> {
    try_canonical(path).unwrap_or(Cow::Borrowed(path))
}

/// Returns the canonical form of a path: names decoded and encoded in one way, without dot segments
/// and empty segments. Equivalent paths have the same form, so none bypasses a handler and a file
/// has one key in the cache.
///
/// # Errors
/// 400 for a malformed encoding, an encoded NUL, a path that leaves the root, and a name with slashes that could leave a
/// directory, such as `..%2Fa`.
pub(crate) fn try_canonical(path: &[u8]) -> Result<Cow<'_, [u8]>, Status> {
    let mut last = 0;
    let mut is_canonical = |b: &u8| {
        let before = std::mem::replace(&mut last, *b);
        is_unencoded(*b) && !(before == b'/' && matches!(b, b'/' | b'.'))
    };
    if path.iter().all(&mut is_canonical) {
        return Ok(Cow::Borrowed(path));
    }
    let (names, is_directory) = names(path)?;
    let mut canonical = Vec::with_capacity(path.len());
    for name in &names {
        for (at, part) in name.split(|b| *b == b'/').enumerate() {
            canonical.extend_from_slice(if at == 0 { b"/" } else { ENCODED_SLASH });
            encode(part, &mut canonical);
        }
    }
    if is_directory {
        canonical.push(b'/');
    }
    Ok(Cow::Owned(canonical))
}

/// A slash in a name of a canonical path.
const ENCODED_SLASH: &[u8] = b"%2F";

/// Returns whether a name in a canonical path has a slash. No file has such a name.
#[cfg(any(feature = "basic-auth", feature = "sandbox"))]
pub(crate) fn has_encoded_slash(path: &[u8]) -> bool {
    path.windows(ENCODED_SLASH.len()).any(|part| part == ENCODED_SLASH)
}

/// Returns whether a path has segments that its canonical form has not: `.`, `..` and empty ones.
pub(crate) fn has_other_segments(path: &[u8]) -> bool {
    let is_dots = |segment| decode(segment).is_ok_and(|name| matches!(&name[..], b"." | b".."));
    path.windows(2).any(|pair| pair == b"//") || path.split(|b| *b == b'/').any(is_dots)
}

/// Returns the canonical form of the path of a file, which has no percent-encodings.
pub(crate) fn canonical_of_file(path: &str) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(path.len());
    encode(path.as_bytes(), &mut encoded);
    canonical(&encoded).into_owned()
}

/// Returns the canonical form of a path of the settings, which may be written as in a URI or as it is displayed: a `%` in
/// front of two hex digits begins an encoding.
pub(crate) fn canonical_setting(path: &str) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(path.len());
    for (at, part) in path.as_bytes().split(|b| *b == b'%').enumerate() {
        let is_encoding = matches!(part, [high, low, ..] if hex(high).and(hex(low)).is_some());
        if at > 0 {
            encoded.extend_from_slice(if is_encoding { b"%" } else { b"%25" });
        }
        encode(part, &mut encoded);
    }
    canonical(&encoded).into_owned()
}

/// Returns whether a canonical path is `setting`, or below it if that ends in a slash.
#[inline]
pub(crate) fn is_at_or_below(path: &[u8], setting: &[u8]) -> bool {
    path == setting || setting.ends_with(b"/") && path.starts_with(setting)
}

/// Percent-encodes the bytes that are not allowed in a path (RFC 3986, section 3.3).
pub(crate) fn encode(path: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in path {
        if is_unencoded(byte) {
            out.push(byte);
        } else {
            out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// Returns whether a byte, such as a slash, is written unencoded in a canonical path.
fn is_unencoded(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&b)
}

/// Decodes a valid path for display.
pub(crate) fn decoded(path: &[u8]) -> Vec<u8> {
    let segments = path.split(|b| *b == b'/').map(|segment| decode(segment).unwrap_or_default());
    segments.collect::<Vec<_>>().join(&b'/')
}

/// Decodes one segment, such as `%41` to `A`.
///
/// # Errors
/// 400 for a malformed encoding, and for an encoded slash or NUL.
pub(crate) fn decode(segment: &[u8]) -> Result<Vec<u8>, Status> {
    decode_any(segment).and_then(|name| match name.contains(&b'/') {
        true => Err(Status::BAD_REQUEST),
        false => Ok(name),
    })
}

/// Decodes one segment, which may have an encoded slash.
fn decode_any(segment: &[u8]) -> Result<Vec<u8>, Status> {
    let mut name = Vec::with_capacity(segment.len());
    let mut bytes = segment.iter();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => match (bytes.next().and_then(hex), bytes.next().and_then(hex)) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => return Err(Status::BAD_REQUEST),
            },
            plain => *plain,
        };
        if byte == 0 {
            return Err(Status::BAD_REQUEST);
        }
        name.push(byte);
    }
    Ok(name)
}

fn hex(digit: &u8) -> Option<u8> {
    char::from(*digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encodings_in_settings_matched_nothing() {
        for (path, expected) in [
            ("/a b", "/a%20b"),
            ("/a%20b", "/a%20b"),
            ("/%61/", "/a/"),
            ("/\u{fc}", "/%C3%BC"),
            ("/%c3%bc", "/%C3%BC"),
            ("/100%25", "/100%25"),
            ("/100%", "/100%25"),
            ("/%zz%6", "/%25zz%256"),
        ] {
            assert_eq!(String::from_utf8(canonical_setting(path)).unwrap(), expected);
        }
    }

    #[test]
    fn paths_stay_below_the_root() {
        const CASES: [(&str, Result<&str, u16>); 32] = [
            ("/", Ok("index.html")),
            ("//", Ok("index.html")),
            ("/a", Ok("a")),
            ("/a/", Ok("a/index.html")),
            ("/a//b", Ok("a/b")),
            ("//a", Ok("a")),
            ("/a/./b", Ok("a/b")),
            ("/a/.", Ok("a/index.html")),
            ("/a/..", Ok("index.html")),
            ("/a/../b", Ok("b")),
            ("/a/b/../../c", Ok("c")),
            ("/a/%2e%2e/b", Ok("b")),
            ("/a/%2E./b", Ok("b")),
            ("/..", Err(400)),
            ("/../a", Err(400)),
            ("/%2e%2e/a", Err(400)),
            ("/a/../../b", Err(400)),
            ("/.git", Err(404)),
            ("/.git/config", Err(404)),
            ("/%2egit", Err(404)),
            ("/a/...", Err(404)),
            ("/.well-known/security.txt", Ok(".well-known/security.txt")),
            ("/a/../.well-known/", Ok(".well-known/index.html")),
            ("/a/.well-known/b", Err(404)),
            ("/.well-known/.b", Err(404)),
            ("/a%20b", Ok("a b")),
            ("/%41%5a%5A", Ok("AZZ")),
            ("/a%2fb", Err(400)),
            ("/a%00b", Err(400)),
            ("/a%", Err(400)),
            ("/a%4", Err(400)),
            ("/a%+1", Err(400)),
        ];
        for (path, expected) in CASES {
            let found = resolve(path.as_bytes()).map_err(|status| status.0);
            assert_eq!(found, expected.map(PathBuf::from), "{path}");
        }
    }

    #[test]
    fn equivalent_paths_have_one_canonical_form() {
        const CASES: [(&str, &str); 18] = [
            ("/", "/"),
            ("//", "/"),
            ("/.", "/"),
            ("/a/b", "/a/b"),
            ("/a/", "/a/"),
            ("/%61/b", "/a/b"),
            ("//a//b", "/a/b"),
            ("//a/", "/a/"),
            ("/x/../a/./b", "/a/b"),
            ("/a/.", "/a/"),
            ("/a/b/%2e%2e", "/a/"),
            ("/.a", "/.a"),
            ("/a%20b%3fc", "/a%20b%3Fc"),
            ("/a%2cb", "/a,b"),
            ("/%25", "/%25"),
            ("/a|[b]", "/a%7C%5Bb%5D"),
            ("/%zz", "/%zz"),
            ("/../a", "/../a"),
        ];
        for (path, expected) in CASES {
            let found = canonical(path.as_bytes());
            assert_eq!(String::from_utf8_lossy(&found), expected, "{path}");
            assert_eq!(canonical(&found), found, "{path}");
            assert_eq!(resolve(&found), resolve(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn names_may_be_invalid_utf8() {
        let name = OsString::from_vec(vec![0xff, b'\\', b'\n']);
        assert_eq!(resolve(b"/%ff%5C%0a"), Ok(PathBuf::from(name)));
    }

    /// A target, and its path and query if it is valid.
    type Case = (&'static str, Option<(&'static str, Option<&'static str>)>);

    #[test]
    fn targets_in_origin_and_absolute_form() {
        const CASES: [Case; 23] = [
            ("http://u:p@h/", None),
            ("", None),
            ("/", Some(("/", None))),
            ("/a?b", Some(("/a", Some("b")))),
            ("/a?", Some(("/a", Some("")))),
            ("/a?b?c", Some(("/a", Some("b?c")))),
            ("http://h/a?b", Some(("/a", Some("b")))),
            ("HTTPS://h:1", Some(("/", None))),
            ("http://h?q", Some(("/", Some("q")))),
            ("http:///a", None),
            ("http://", None),
            ("ftp://h/a", None),
            ("*", None),
            ("a", None),
            ("?a", None),
            ("/a#b", None),
            ("/a\\b", None),
            ("/a\\?b", None),
            ("/a?\\b?\\", Some(("/a", Some("\\b?\\")))),
            ("http://h?\\", Some(("/", Some("\\")))),
            ("http://h\\?b", None),
            ("/a?b#", None),
            ("/\u{e4}", None),
        ];
        for (target, expected) in CASES {
            let expected =
                expected.map(|(path, query)| (path.as_bytes(), query.map(str::as_bytes)));
            assert_eq!(split(target.as_bytes()).ok(), expected, "{target}");
        }
    }
}
