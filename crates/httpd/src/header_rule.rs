//! Header fields that are sent with files.

use std::path::Path;
use std::str::FromStr;

use http::{HeaderName, HeaderValue};

use crate::message::path;

/// A header field of files and listings, for all of them or some: `X-Frame-Options: DENY`, `/assets/ Cache-Control:
/// max-age=31536000, immutable`, or `*.pdf Content-Disposition: attachment`. A path that ends in a slash matches
/// everything below it, and the path of an `index.html` also matches its directory, but not the listing of one without it.
/// Of several rules with one name that match, the last one applies. Errors and redirects have it only with the word
/// `always`, as in `always Strict-Transport-Security: max-age=31536000`; the responses of handlers and redirects to https
/// do not. The path may be percent-encoded: a `%` in front of two hex digits is written `%25`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    files: Pattern,
    name: HeaderName,
    /// The field as it is sent.
    line: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    All,
    /// Of all files, and of errors and redirects.
    Always,
    /// The canonical path of a target.
    Path(Vec<u8>),
    /// The end of a file's name, with its dot.
    Extension(String),
}

/// Fields that the server determines itself.
const OWN: [&str; 15] = [
    "accept-ranges",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "keep-alive",
    "last-modified",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl HeaderRule {
    /// Writes the fields for a file, or for a listing without one, of which a client requests the canonical path `name`.
    /// Returns whether one of them is Cache-Control.
    pub(crate) fn put_all(
        rules: &[Self],
        name: &[u8],
        file: Option<&Path>,
        out: &mut Vec<u8>,
    ) -> bool {
        let mut has_caching = false;
        for rule in Self::last_of_each_name(rules, |files| files.matches(name, file)) {
            out.extend_from_slice(rule.line.as_bytes());
            has_caching |= rule.name == http::header::CACHE_CONTROL;
        }
        has_caching
    }

    /// Returns the fields of errors and redirects.
    pub(crate) fn of_errors(rules: &[Self]) -> Vec<u8> {
        let always = Self::last_of_each_name(rules, |files| *files == Pattern::Always);
        always.flat_map(|rule| rule.line.bytes()).collect()
    }

    /// Returns the rules that match, without those that a later one replaces.
    fn last_of_each_name(
        rules: &[Self],
        matches: impl Fn(&Pattern) -> bool,
    ) -> impl Iterator<Item = &Self> {
        let applies = move |(n, rule): (usize, &'_ Self)| {
            let is_later = |other: &Self| other.name == rule.name && matches(&other.files);
            matches(&rule.files) && !rules[n + 1..].iter().any(is_later)
        };
        rules.iter().enumerate().filter(move |&all| applies(all)).map(|(_, rule)| rule)
    }
}

impl Pattern {
    fn matches(&self, name: &[u8], file: Option<&Path>) -> bool {
        match self {
            Pattern::All | Pattern::Always => true,
            // That of an index is also for its directory, which sends it.
            Pattern::Path(path) => {
                path::is_at_or_below(name, path)
                    || file.is_some()
                        && name.ends_with(b"/")
                        && path.strip_suffix(path::INDEX.as_bytes()) == Some(name)
            }
            Pattern::Extension(end) => file
                .is_some_and(|file| file.as_os_str().as_encoded_bytes().ends_with(end.as_bytes())),
        }
    }
}

impl FromStr for HeaderRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || {
            "expected a field, such as `X-Frame-Options: DENY`, or files and a field, such as `/assets/ \
             Cache-Control: no-cache`"
                .to_owned()
        };
        let (files, field) = match text.split_once(' ') {
            Some((files, field)) if files.starts_with(['/', '*']) || files == "always" => {
                (Some(files), field)
            }
            _ => (None, text),
        };
        let files = match files {
            None => Pattern::All,
            Some("always") => Pattern::Always,
            Some(path) if path.starts_with('/') => Pattern::Path(path::canonical_setting(path)),
            Some(end) => match end.strip_prefix('*') {
                Some(end) if end.len() > 1 && end.starts_with('.') && !end.contains(['/', '*']) => {
                    Pattern::Extension(end.to_owned())
                }
                _ => return Err("expected a path or an extension, such as `*.pdf`".to_owned()),
            },
        };
        let (name, value) = field.split_once(':').ok_or_else(error)?;
        let (name, value) = (name.trim(), value.trim());
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| error())?;
        HeaderValue::from_str(value).map_err(|_| error())?;
        if OWN.contains(&parsed.as_str()) {
            return Err(format!("the server determines {name} itself"));
        }
        Ok(HeaderRule { files, name: parsed, line: format!("{name}: {value}\r\n") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields<'a>(rules: &[&str], name: &str, file: impl Into<Option<&'a str>>) -> (String, bool) {
        let rules: Vec<HeaderRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let mut out = Vec::new();
        let file = file.into().map(Path::new);
        let caching = HeaderRule::put_all(&rules, name.as_bytes(), file, &mut out);
        (String::from_utf8(out).unwrap(), caching)
    }

    #[test]
    fn rules_match_paths_and_extensions() {
        let rules = ["A:b", "/x/ Cache-Control: no-cache", "*.html C: d: e", "/y z F: g"];
        assert!("/y z F: g".parse::<HeaderRule>().is_err(), "`z F` is no name");
        let rules = &rules[..3];
        let cases = [
            ("/", "index.html", ("A: b\r\nC: d: e\r\n", false)),
            ("/x", "x", ("A: b\r\n", false)),
            ("/x/", "x/index.html", ("A: b\r\nCache-Control: no-cache\r\nC: d: e\r\n", true)),
            ("/x/a.css", "x/a.css", ("A: b\r\nCache-Control: no-cache\r\n", true)),
        ];
        for (name, file, (expected, caching)) in cases {
            assert_eq!(fields(rules, name, file), (expected.to_owned(), caching), "{name}");
        }
        assert_eq!(fields(&["/a%b A: b"], "/a%25b", "a%b").0, "A: b\r\n");
    }

    #[test]
    fn rule_for_an_index_did_not_match_its_directory() {
        let rules = ["/index.html A: b", "/x/index.html C: d", "/y/my-index.html E: f"];
        for (name, expected) in [
            ("/", "A: b\r\n"),
            ("/index.html", "A: b\r\n"),
            ("/x/", "C: d\r\n"),
            ("/x", ""),
            ("/y/", ""),
            ("/z/", ""),
        ] {
            assert_eq!(fields(&rules, name, "index.html").0, expected, "{name}");
        }
    }

    #[test]
    fn listing_had_the_fields_of_an_index_that_does_not_exist() {
        let rules = ["/x/index.html A: b", "*.html Cache-Control: max-age=60", "/x/ C: d", "E: f"];
        assert_eq!(fields(&rules, "/x/", None), ("C: d\r\nE: f\r\n".to_owned(), false));
    }

    #[test]
    fn rules_with_one_name_accumulated() {
        let rules = [
            "Cache-Control: no-cache",
            "X: y",
            "/assets/ cache-control: max-age=31536000, immutable",
            "/assets/a.js X: z",
        ];
        let immutable = "cache-control: max-age=31536000, immutable\r\n";
        let cases = [
            ("/index.html", "Cache-Control: no-cache\r\nX: y\r\n".to_owned()),
            ("/assets/b.js", format!("X: y\r\n{immutable}")),
            ("/assets/a.js", format!("{immutable}X: z\r\n")),
        ];
        for (name, expected) in cases {
            assert_eq!(fields(&rules, name, &name[1..]), (expected, true), "{name}");
        }
        let rules = ["always A: b", "always A: c"].map(|rule| rule.parse().unwrap());
        assert_eq!(HeaderRule::of_errors(&rules), b"A: c\r\n");
    }

    #[test]
    fn errors_have_the_fields_that_are_always_sent() {
        let rules = ["A: b", "always C: d", "/always E: f", "always: g", "always  H:i"];
        let all = "A: b\r\nC: d\r\nalways: g\r\nH: i\r\n";
        assert_eq!(fields(&rules, "/", "index.html").0, all);
        let rules: Vec<HeaderRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        assert_eq!(HeaderRule::of_errors(&rules), b"C: d\r\nH: i\r\n");
    }

    #[test]
    fn bad_rules_are_rejected() {
        for text in [
            "",
            "A",
            "A b: c",
            ": a",
            "A: b\r\nC: d",
            "* A: b",
            "*.a/b A: b",
            "ETag: a",
            "Server: a",
            "/a",
            "always",
            "always A",
            "Always A: b",
        ] {
            assert!(text.parse::<HeaderRule>().is_err(), "{text}");
        }
        let error = "/a Content-Length: 5".parse::<HeaderRule>().unwrap_err();
        assert_eq!(error, "the server determines Content-Length itself");
    }
}
