//! The file with the number of the process, for programs that send it signals.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use evring_httpd::options::User;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, fstat, ftruncate, open, unlink};
use rustix::process::geteuid;
use tracing::warn;

/// A file that has the number of this process until the process ends or a successor replaces it.
pub(crate) struct PidFile(Arc<Named>);

struct Named {
    path: CString,
    file: File,
    /// This process has created it.
    is_new: bool,
    /// The number of this process.
    line: String,
}

/// Maximum bytes of a file with a number.
const MAX_BYTES: usize = 32;

/// The file that [`remove`] removes.
static OF_PROCESS: OnceLock<Arc<Named>> = OnceLock::new();

impl PidFile {
    /// Opens the file, before the process changes to another user, which owns it from then on: a successor starts as
    /// this user.
    ///
    /// The user may own the directory, too. So no link is followed, and what belongs to others is not given away.
    ///
    /// Warns if it has the number of another process of this program that runs, unless this one `is_successor`.
    pub(crate) fn open(path: &Path, user: Option<&User>, is_successor: bool) -> io::Result<Self> {
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
        check_kind(&found).and_then(|()| check_contents(&file)).map_err(named)?;
        if let Some(number) = running(&file).filter(|_| !is_successor) {
            warn!(
                "the pid file {} has had the number of a server that runs, {number}, and gets that of this one",
                path.display()
            );
        }
        let path = CString::new(path.as_os_str().as_bytes())?;
        let opened = PidFile(Arc::new(Named { path, file, is_new, line: own_line() }));
        if let Some(user) = user {
            check_owner(&found, Some(user)).map_err(named)?;
            fchown(&opened.0.file, Some(user.uid()), None).map_err(named)?;
        }
        Ok(opened)
    }

    /// Checks that the file is none of these others, which may not exist yet.
    pub(crate) fn check_is_none_of<'a>(
        path: &Path,
        others: impl IntoIterator<Item = &'a Path>,
    ) -> io::Result<()> {
        let own = canonical(path);
        match others.into_iter().any(|other| canonical(other) == own) {
            false => Ok(()),
            true => Err(named(path)(io::Error::other(
                "it is the file of access-log, too; use two files",
            ))),
        }
    }

    /// Checks that the file can be written, and given to the user, without creating it.
    pub(crate) fn check(path: &Path, user: Option<&User>) -> io::Result<()> {
        let found = path.symlink_metadata();
        let (path_to_check, needed) = match &found {
            Ok(_) => (path, Access::WRITE_OK),
            Err(_) => (parent(path), Access::WRITE_OK | Access::EXEC_OK),
        };
        let is_writable = accessat(CWD, path_to_check, needed, AtFlags::EACCESS);
        let checked = found.map_or(Ok(()), |found| {
            check_kind(&found)?;
            check_owner(&found, user)?;
            check_contents(&File::open(path)?)
        });
        checked.and_then(|()| Ok(is_writable?)).map_err(named(path))
    }

    /// Writes the number of this process.
    pub(crate) fn write(&self) -> io::Result<()> {
        self.0.write()
    }

    /// Makes it the file that [`remove`] removes, for the rest of the process.
    pub(crate) fn remove_at_second_signal(&self) {
        // There is no other one.
        let _ = OF_PROCESS.set(Arc::clone(&self.0));
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// Writes the number of this process into its file again, if a successor that has failed left its own.
pub(crate) fn restore() {
    if let Some(file) = OF_PROCESS.get()
        && let Err(error) = file.restore()
    {
        warn!("{error}");
    }
}

/// Removes the file of this process, if it has one. A signal handler may call it: it allocates and locks nothing.
pub(crate) fn remove() {
    if let Some(file) = OF_PROCESS.get() {
        file.remove();
    }
}

impl Named {
    /// Writes the number of this process. Until the file has its length, newlines replace the number of before, as a
    /// program may read the rest of a longer one as a number.
    fn write(&self) -> io::Result<()> {
        let Named { file, line, .. } = self;
        let write = || {
            let before = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
            let mut text = line.clone().into_bytes();
            text.resize(before.min(MAX_BYTES).max(line.len()), b'\n');
            file.write_all_at(&text, 0)?;
            file.set_len(line.len() as u64)
        };
        write().map_err(named(Path::new(OsStr::from_bytes(self.path.as_bytes()))))
    }

    /// Writes the number again, unless the file has that of another process that runs.
    fn restore(&self) -> io::Result<()> {
        let Ok(file) = self.open().map(File::from) else { return Ok(()) };
        let is_of_other = !is_same(&file, &self.file) || running(&file).is_some();
        if is_of_other { Ok(()) } else { self.write() }
    }

    /// Opens the file of the path, which may be another one by now.
    fn open(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        open(&*self.path, flags, Mode::empty())
    }

    /// Removes the file, unless another process has replaced its number.
    fn remove(&self) {
        let mut text = [0; MAX_BYTES];
        let Ok(file) = self.open() else { return };
        let Ok(n) = rustix::io::read(&file, &mut text) else { return };
        // It is empty if the server did not start.
        let is_own = match n {
            0 => self.is_new && is_same(&file, &self.file),
            n => text[..n] == *self.line.as_bytes(),
        };
        if is_own && unlink(&*self.path).is_err() {
            // The user may not remove files of the directory.
            let _ = ftruncate(&self.file, 0);
        }
    }
}

/// Checks that a file that a user gets is not that of others.
fn check_owner(found: &Metadata, user: Option<&User>) -> io::Result<()> {
    let is_of_other = |user: &User| ![geteuid().as_raw(), user.uid()].contains(&found.uid());
    match user.is_some_and(is_of_other) {
        true => Err(io::Error::other("it belongs to another user; remove it")),
        false => Ok(()),
    }
}

/// Returns whether two descriptors are of the same file.
fn is_same(a: impl AsFd, b: impl AsFd) -> bool {
    matches!((fstat(a), fstat(b)), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

/// Returns the process that a pid file names, if that runs this program and is not this process.
///
/// The number of a process that has ended may be that of another program, or of this process in a new container.
fn running(file: &File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_BYTES as u64).read_to_string(&mut text).ok()?;
    let number = text.trim().parse().ok()?;
    let is_running =
        number != std::process::id() && program(number)? == program(std::process::id())?;
    is_running.then_some(number)
}

/// Returns the name of the program of a process that has not ended (proc_pid_stat(5)).
fn program(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    // A process that nothing has waited for has a number still.
    (!rest.starts_with(['Z', 'X'])).then(|| name.to_owned())
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

/// Checks that a file has a number or nothing, so that no other one is overwritten and removed.
fn check_contents(file: &File) -> io::Result<()> {
    let mut text = [0; MAX_BYTES + 1];
    let n = file.read_at(&mut text, 0)?;
    let is_of_number = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_whitespace();
    match n <= MAX_BYTES && text[..n].iter().all(is_of_number) {
        true => Ok(()),
        false => Err(io::Error::other("it has other contents than a process number; remove it")),
    }
}

/// Returns the path without links. If the file does not exist, resolves its directory only.
fn canonical(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let new = || parent(path).canonicalize().map(|parent| parent.join(name));
    path.canonicalize().or_else(|_| new()).unwrap_or_else(|_| path.to_owned())
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

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    use super::*;

    #[test]
    fn rest_of_a_longer_number_was_another_process_until_the_file_was_cut() {
        let file = File::from(memfd_create("pid", MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all_at(b"1234567\n", 0).unwrap();
        // The file stays as it is before its length is set.
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let named = Named { path: CString::default(), file, is_new: false, line: "999\n".into() };
        let pid_file = PidFile(Arc::new(named));
        pid_file.write().unwrap_err();
        let mut text = [0; 8];
        pid_file.0.file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"999\n\n\n\n\n");
    }

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
                let opened = PidFile::open(&path, None, false);
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
            let checked = PidFile::check(&path(name), None).is_ok();
            // What the check accepts can be opened, and nothing else.
            assert_eq!(PidFile::open(&path(name), None, false).is_ok(), checked, "{name}");
            checked
        };
        assert!(checked("file") && checked("new"));
        fs::hard_link(path("file"), path("other")).unwrap();
        assert!(!checked("link") && !checked("file") && !checked("other") && !checked("."));
    }

    #[test]
    fn file_with_other_contents_was_overwritten_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for (text, is_accepted) in [
            ("", true),
            ("12\n", true),
            ("1\n\n\n", true),
            ("text", false),
            (&"1".repeat(33), false),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(PidFile::check(&path, None).is_ok(), is_accepted, "{text:?}");
            let opened = PidFile::open(&path, None, false);
            assert_eq!(opened.is_ok(), is_accepted, "{text:?}");
            drop(opened);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
