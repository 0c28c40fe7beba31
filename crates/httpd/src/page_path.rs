//! The path of a page below the root.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use evring::files::SymlinkPolicy;
use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::message::path;
use crate::regular_file;

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
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the page, if the server can send it with this policy.
    pub(crate) fn open(&self, root: &Path, symlinks: SymlinkPolicy) -> io::Result<File> {
        if symlinks != SymlinkPolicy::Anywhere {
            let directory = File::open(root)?;
            let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let opened = fs::openat2(directory, &self.path, flags, Mode::empty(), how);
            if self.is_refused(root, opened.err())? {
                let reason =
                    "a link leads out of the directory or is absolute; use follow-symlinks";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
            }
        }
        regular_file::open(&root.join(&self.path))
    }

    /// Returns whether the server refuses the path because of a link, if openat2(2) has had this result.
    fn is_refused(&self, root: &Path, error: Option<Errno>) -> io::Result<bool> {
        let real =
            || Ok::<_, io::Error>((root.join(&self.path).canonicalize()?, root.canonicalize()?));
        match error {
            None => Ok(false),
            Some(Errno::XDEV) => Ok(true),
            // Without openat2(2), the server follows no link at all.
            Some(Errno::NOSYS | Errno::PERM) => {
                real().map(|(path, root)| path != root.join(&self.path))
            }
            // Something was renamed meanwhile, so the kernel has resolved no `..`. It will when a client requests the page.
            Some(Errno::AGAIN) => real().map(|(path, root)| !path.starts_with(root)),
            Some(error) => Err(error.into()),
        }
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
    use std::os::unix::fs::symlink;

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
            assert_eq!(page.path(), Path::new(path));
            assert_eq!(page.to_string().parse(), Ok(page), "{text}");
        }
        for text in ["", "/", "/a/", "/..", "/../a", "/.git", "/a/.b"] {
            assert!(text.parse::<PagePath>().is_err(), "{text}");
        }
    }

    #[test]
    fn links_are_refused_without_their_resolution() {
        let root = tempfile::tempdir().unwrap();
        let (root, outside) = (root.path().join("root"), root.path().join("outside.html"));
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(root.join("page.html"), "page").unwrap();
        std::fs::write(outside, "outside").unwrap();
        symlink("sub/../page.html", root.join("inner.html")).unwrap();
        symlink("../outside.html", root.join("outer.html")).unwrap();
        // Each with the result of openat2(2), and whether the page is refused.
        for (name, error, expected) in [
            ("page.html", None, false),
            ("page.html", Some(Errno::NOSYS), false),
            ("page.html", Some(Errno::AGAIN), false),
            ("inner.html", None, false),
            ("inner.html", Some(Errno::PERM), true),
            ("inner.html", Some(Errno::AGAIN), false),
            ("outer.html", Some(Errno::XDEV), true),
            ("outer.html", Some(Errno::NOSYS), true),
            ("outer.html", Some(Errno::AGAIN), true),
        ] {
            let page: PagePath = name.parse().unwrap();
            assert_eq!(page.is_refused(&root, error).unwrap(), expected, "{name} {error:?}");
        }
        let open = |name: &str, symlinks| name.parse::<PagePath>().unwrap().open(&root, symlinks);
        assert!(open("inner.html", SymlinkPolicy::Beneath).is_ok());
        assert_eq!(
            open("outer.html", SymlinkPolicy::Beneath).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert!(open("outer.html", SymlinkPolicy::Anywhere).is_ok());
        assert_eq!(
            open("none.html", SymlinkPolicy::Beneath).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
