//! The file with the number of the process, for programs that send it signals.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use evring_httpd::options::User;
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use rustix::process::geteuid;

/// A file that has the number of this process until the process ends or a successor replaces it.
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
    /// This process has created it.
    is_new: bool,
}

impl PidFile {
    /// Opens the file, before the process changes to another user, which owns it from then on: a successor starts as
    /// this user.
    ///
    /// The user may own the directory, too. So no link is followed, and what belongs to others is not given away.
    pub(crate) fn open(path: &Path, user: Option<&User>) -> io::Result<Self> {
        let named = named(path);
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = File::options();
        options.read(true).write(true).custom_flags(flags.bits() as i32);
        let open = || {
            let (file, is_new) = match options.clone().create_new(true).open(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    (options.open(path)?, false)
                }
                created => (created?, true),
            };
            let found = file.metadata()?;
            // A file without a name was removed in between.
            match found.nlink() {
                0 => Err(io::Error::from(io::ErrorKind::NotFound)),
                _ => Ok((file, is_new, found)),
            }
        };
        let opened = match open() {
            // A process that ends removes its file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => open(),
            opened => opened,
        };
        let (file, is_new, found) = opened.map_err(named)?;
        let opened = PidFile { path: path.to_owned(), file, is_new };
        check_kind(&found).map_err(named)?;
        if let Some(user) = user {
            if ![geteuid().as_raw(), user.uid()].contains(&found.uid()) {
                return Err(named(io::Error::other("it belongs to another user; remove it")));
            }
            fchown(&opened.file, Some(user.uid()), None).map_err(named)?;
        }
        Ok(opened)
    }

    /// Checks that the file can be written, without creating it.
    pub(crate) fn check(path: &Path) -> io::Result<()> {
        let found = path.symlink_metadata();
        let (path_to_check, needed) = match &found {
            Ok(_) => (path, Access::WRITE_OK),
            Err(_) => (parent(path), Access::WRITE_OK | Access::EXEC_OK),
        };
        let is_writable = accessat(CWD, path_to_check, needed, AtFlags::EACCESS);
        let checked = found.map_or(Ok(()), |found| check_kind(&found));
        checked.and_then(|()| Ok(is_writable?)).map_err(named(path))
    }

    /// Writes the number of this process.
    pub(crate) fn write(&self) -> io::Result<()> {
        let line = own_line();
        self.file.write_all_at(line.as_bytes(), 0)?;
        self.file.set_len(line.len() as u64)
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // It is empty if the server did not start.
        let is_own = |text: String| text == own_line() || self.is_new && text.is_empty();
        let is_own = fs::read_to_string(&self.path).is_ok_and(is_own);
        if is_own && fs::remove_file(&self.path).is_err() {
            // The user may not remove files of the directory.
            let _ = self.file.set_len(0);
        }
    }
}

/// Adds the path to an error.
fn named(path: &Path) -> impl Fn(io::Error) -> io::Error + Copy {
    move |error| {
        let reason = format!("cannot write the pid file {}: {error}", path.display());
        io::Error::new(error.kind(), reason)
    }
}

/// Checks that a path is that of a file, by which no other one is written.
fn check_kind(found: &Metadata) -> io::Result<()> {
    match found.is_file() && found.nlink() == 1 {
        true => Ok(()),
        false => Err(io::Error::other("it is not a file of one name; remove it")),
    }
}

/// Returns the directory of a file.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn own_line() -> String {
    format!("{}\n", std::process::id())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn file_that_another_process_removed_meanwhile_could_not_be_opened() {
        const TRIES: usize = 2000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let both = Barrier::new(2);
        let failures: Vec<_> = thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..TRIES {
                    both.wait();
                    fs::remove_file(&path).unwrap();
                    both.wait();
                }
            });
            let open = |_| {
                fs::write(&path, "1\n").unwrap();
                both.wait();
                let opened = PidFile::open(&path, None);
                both.wait();
                opened.err()
            };
            (0..TRIES).filter_map(open).collect()
        });
        assert!(failures.is_empty(), "{} of {TRIES}: {failures:?}", failures.len());
    }

    #[test]
    fn check_accepted_what_is_no_file_of_one_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "").unwrap();
        symlink(path("file"), path("link")).unwrap();
        let checked = |name: &str| {
            let checked = PidFile::check(&path(name)).is_ok();
            // What the check accepts can be opened, and nothing else.
            assert_eq!(PidFile::open(&path(name), None).is_ok(), checked, "{name}");
            checked
        };
        assert!(checked("file") && checked("new"));
        fs::hard_link(path("file"), path("other")).unwrap();
        assert!(!checked("link") && !checked("file") && !checked("other") && !checked("."));
    }
}
