//! Files that the server reads when it starts.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file. A pipe would have to wait for its writer, and a device may have no end.
///
/// # Errors
/// If it cannot be opened, or is no regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    Ok(file)
}
