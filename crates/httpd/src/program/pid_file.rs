//! The file with the number of the process, for programs that send it signals.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, fchown};
use std::path::{Path, PathBuf};

use evring_httpd::User;

/// A file that has the number of this process until the process ends or a successor replaces it.
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Opens the file, before the process changes to another user, who owns it from then on: a successor starts as
    /// this user.
    pub(crate) fn open(path: &Path, user: Option<&User>) -> io::Result<Self> {
        let named = |error: io::Error| {
            let reason = format!("cannot write the pid file {}: {error}", path.display());
            io::Error::new(error.kind(), reason)
        };
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(named)?;
        if let Some(user) = user {
            fchown(&file, Some(user.uid()), None).map_err(named)?;
        }
        Ok(PidFile { path: path.to_owned(), file })
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
        let is_own = fs::read_to_string(&self.path).is_ok_and(|text| text == own_line());
        if is_own && fs::remove_file(&self.path).is_err() {
            // The user may not remove files of the directory.
            let _ = self.file.set_len(0);
        }
    }
}

fn own_line() -> String {
    format!("{}\n", std::process::id())
}
