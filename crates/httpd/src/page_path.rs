//! The path of a page below the root.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::message::path;

/// The path of a file that the server sends by itself, below the root: `/errors/404.html` is the file
/// `errors/404.html` there.
///
/// ```
/// let page: evring_httpd::options::PagePath = "app.html".parse()?;
/// assert_eq!(page.to_string(), "/app.html");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagePath {
    /// The path as a client would request it.
    canonical: Vec<u8>,
    /// The path below the root.
    path: PathBuf,
}

impl PagePath {
    /// Returns the path as a client would request it, in canonical form.
    pub(crate) fn canonical(&self) -> &[u8] {
        &self.canonical
    }

    /// Returns the path below the root.
    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }
}

impl FromStr for PagePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let canonical = path::canonical_of_file(&format!("/{text}"));
        match path::resolve(&canonical) {
            Ok(path) if !canonical.ends_with(b"/") => Ok(PagePath { canonical, path }),
            _ => Err("expected the path of a file below the root that is not hidden, such as \
                      /index.html"
                .to_owned()),
        }
    }
}

impl fmt::Display for PagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_files_below_the_root() {
        for (text, canonical, path) in [
            ("/index.html", "/index.html", "index.html"),
            ("a/b.html", "/a/b.html", "a/b.html"),
            ("/a b%.html", "/a%20b%25.html", "a b%.html"),
            ("/a/../c", "/c", "c"),
        ] {
            let page: PagePath = text.parse().unwrap();
            assert_eq!(page.canonical(), canonical.as_bytes());
            assert_eq!(page.path(), std::path::Path::new(path));
            assert_eq!(page.to_string().parse(), Ok(page), "{text}");
        }
        for text in ["", "/", "/a/", "/..", "/../a", "/.git", "/a/.b"] {
            assert!(text.parse::<PagePath>().is_err(), "{text}");
        }
    }
}
