//! Redirects of paths.

use std::fmt;
use std::str::FromStr;

use crate::message::path;
use crate::message::status::Status;

/// A redirect: `/old=/new`, `/old/=https://example.org/new/`, or, with a status other than 301, `/old=/new,307`.
///
/// A path that ends in a slash matches everything below it. If the target without its fragment ends in a slash, too, the
/// rest of the path is appended. The query stays, unless the target has one. The fragment comes last. Handlers take
/// precedence. The path may be percent-encoded: a `%` in front of two hex digits is written `%25`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The canonical path.
    from: Vec<u8>,
    to: String,
    status: Status,
}

/// The statuses of redirects.
const STATUSES: [Status; 5] =
    [Status::MOVED, Status::FOUND, Status::SEE_OTHER, Status::TEMPORARY, Status::PERMANENT];

impl Redirect {
    /// Returns the status and the Location field for a request by the first redirect that matches its canonical path.
    pub(crate) fn find(
        redirects: &[Self],
        name: &[u8],
        query: Option<&[u8]>,
    ) -> Option<(Status, Vec<u8>)> {
        let redirect = redirects.iter().find(|redirect| redirect.matches(name))?;
        let rest = &name[redirect.from.len()..];
        let mut location = b"Location: ".to_vec();
        let (to, fragment) =
            redirect.to.split_at(redirect.to.find('#').unwrap_or(redirect.to.len()));
        location.extend_from_slice(to.as_bytes());
        if to.ends_with('/') && !rest.is_empty() {
            // No file has a name with a slash, so the client gets 400 instead.
            if let Err(Status::BAD_REQUEST) = path::resolve(name) {
                return None;
            }
            location.extend_from_slice(rest);
        }
        if let Some(query) = query.filter(|_| !to.contains('?')) {
            location.push(b'?');
            location.extend_from_slice(query);
        }
        location.extend_from_slice(fragment.as_bytes());
        location.extend_from_slice(b"\r\n");
        Some((redirect.status, location))
    }

    /// Returns one of the redirects that lead to each other, so that clients give up.
    pub(crate) fn find_loop(redirects: &[Self]) -> Option<&Self> {
        // As many as browsers follow.
        const MAX_REDIRECTS: usize = 20;
        let next = |name: &Vec<u8>| {
            let (_, location) = Self::find(redirects, name, None)?;
            let to = location.strip_prefix(b"Location: ")?;
            let end = to.iter().position(|b| b"?#\r".contains(b)).unwrap_or(to.len());
            to.starts_with(b"/").then(|| path::canonical(&to[..end]).into_owned())
        };
        redirects.iter().find_map(|redirect| {
            let mut paths = std::iter::successors(Some(redirect.from.clone()), next);
            // By then only those of the loop follow.
            let last = paths.nth(MAX_REDIRECTS + 1)?;
            redirects.iter().find(|redirect| redirect.matches(&last))
        })
    }

    /// Returns a redirect that never applies, and the one before it that does for all of its paths.
    pub(crate) fn find_unused(redirects: &[Self]) -> Option<(&Self, &Self)> {
        redirects.iter().enumerate().find_map(|(n, redirect)| {
            let mut earlier = redirects[..n].iter();
            Some((redirect, earlier.find(|earlier| earlier.matches(&redirect.from))?))
        })
    }

    /// Returns whether the redirect applies to a canonical path.
    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        path::is_at_or_below(name, &self.from)
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", String::from_utf8_lossy(&self.from), self.to)
    }
}

impl FromStr for Redirect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || "expected a path and its target, such as /old=/new".to_owned();
        let (from, to) = text.split_once('=').ok_or_else(error)?;
        let (to, status) = match to.rsplit_once(',') {
            Some((to, status)) if status.len() == 3 && status.parse::<u16>().is_ok() => {
                let found = STATUSES.into_iter().find(|known| status == known.0.to_string());
                (to, found.ok_or("expected the status 301, 302, 303, 307 or 308")?)
            }
            _ => (to, Status::MOVED),
        };
        let is_path = to.starts_with('/') && !to.starts_with("//");
        let is_target = is_path || to.starts_with("https://") || to.starts_with("http://");
        let is_uri = to.bytes().all(|b| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b));
        if !from.starts_with('/') || !is_target || !is_uri {
            return Err(error());
        }
        let from = path::canonical_setting(from);
        let redirect = Redirect { from, to: to.to_owned(), status };
        let to_path = to.split(['?', '#']).next().unwrap_or_default();
        if is_path && redirect.matches(&path::canonical(to_path.as_bytes())) {
            return Err(format!("`{to}` would be redirected again, for ever"));
        }
        Ok(redirect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rules: &[&str], name: &str, query: Option<&str>) -> Option<(u16, String)> {
        let rules: Vec<Redirect> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let found = Redirect::find(&rules, name.as_bytes(), query.map(str::as_bytes));
        found.map(|(status, location)| (status.0, String::from_utf8(location).unwrap()))
    }

    #[test]
    fn first_redirect_that_matches_gives_the_location() {
        let rules = [
            "/a=/b",
            "/c/=https://example.org/d/,308",
            "/e/=/f?g,302",
            "/h/=/,307",
            "/i j=/k",
            "/l=/m#n",
            "/o/=/q/#r/",
        ];
        let cases = [
            ("/a", None, Some((301, "/b"))),
            ("/a", Some("x=y"), Some((301, "/b?x=y"))),
            ("/a/", None, None),
            ("/c/", None, Some((308, "https://example.org/d/"))),
            ("/c/x/y", Some("z"), Some((308, "https://example.org/d/x/y?z"))),
            ("/c", None, None),
            ("/e/x", Some("z"), Some((302, "/f?g"))),
            ("/h/x", None, Some((307, "/x"))),
            ("/i%20j", None, Some((301, "/k"))),
            ("/h//example.org/%zz", None, None),
            // Names with a dot were not redirected.
            ("/h/.x", None, Some((307, "/.x"))),
            // The query was in the fragment.
            ("/l", Some("x"), Some((301, "/m?x#n"))),
            ("/o/p", Some("x"), Some((301, "/q/p?x#r/"))),
        ];
        for (name, query, expected) in cases {
            let expected = expected.map(|(status, to)| (status, format!("Location: {to}\r\n")));
            assert_eq!(found(&rules, name, query), expected, "{name}");
        }
    }

    #[test]
    fn redirects_that_never_apply_were_accepted() {
        for (rules, expected) in [
            (&["/a=/b", "/a=/c"][..], Some(1)),
            (&["/a/=/b/", "/c=/d", "/a/e=/f"], Some(2)),
            (&["/a/=/b/", "/a/e/=/f"], Some(1)),
            (&["/a=/b", "/a/=/c"], None),
            (&["/a/e=/f", "/a/=/b/"], None),
        ] {
            let rules: Vec<Redirect> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
            let unused = Redirect::find_unused(&rules).map(|(unused, _)| unused);
            assert_eq!(unused, expected.map(|n| &rules[n]));
        }
    }

    #[test]
    fn bad_redirects_are_rejected() {
        for text in [
            "",
            "/a",
            "a=/b",
            "/a=b",
            "/a=",
            "/a=//b",
            "/a=/b,304",
            "/a=/b c",
            "/a=/b\r\nX: y",
            "/a=/a",
            "/a/=/a/b",
            "/=/b",
            "/a=ftp://b",
        ] {
            assert!(text.parse::<Redirect>().is_err(), "{text}");
        }
    }
}
